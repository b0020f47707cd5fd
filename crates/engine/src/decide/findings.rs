//! What agents find wrong with their machines, and what follows for those who run there. The whole
//! level is said each time; what is new in it is what matters.

use std::collections::BTreeMap;

use tutti_model::{
    AttemptPhase, Drain, Finding, GpuIndex, HealthAction, Node, NodeId, Part, State, StopCause,
    Time,
};

use super::nodes::{held_parts, need_session};
use super::{Decision, View, done};
use crate::effects::find_attempt;
use crate::event::Event;
use crate::health::{NOBODY, is_counted_out, may_take_out};

/// They are in every snapshot and in every list of nodes.
const FINDINGS_MAX: usize = 64;
const TEXT_CHARS_MAX: usize = 400;
const NAME_CHARS_MAX: usize = 100;

pub(super) fn said(view: View<'_>, node: NodeId, session: u64, said: &[Finding]) -> Decision {
    need_session(view, node, session)?;
    done(changes(view, node, said))
}

/// The events that bring the node to what its agent says.
pub(super) fn changes(view: View<'_>, id: NodeId, said: &[Finding]) -> Vec<Event> {
    let known = view.state.node(id).map_or(&[][..], |n| n.findings.as_slice());
    let said = tidy(said);
    let is_known = |f: &Finding| known.iter().any(|k| k.same(f));
    if known.len() == said.len() && said.iter().all(is_known) {
        return Vec::new();
    }
    let news: Vec<&Finding> = said.iter().filter(|f| !is_known(f)).collect();
    let mut events = vec![Event::FindingsChanged { node: id, findings: said.clone() }];
    events.extend(drained(view, id, &said, &news));
    events.extend(stopped(view.state, id, &said, &news));
    events
}

/// Each key once, the hardest actions first if there are too many, no text without end.
fn tidy(said: &[Finding]) -> Vec<Finding> {
    let clip = |text: &str, max: usize| text.chars().take(max).collect::<String>();
    let mut by_key: BTreeMap<String, Finding> = BTreeMap::new();
    for finding in said {
        let key = clip(&finding.key, NAME_CHARS_MAX);
        let check = clip(&finding.check, NAME_CHARS_MAX);
        let text = clip(&finding.text, TEXT_CHARS_MAX);
        by_key.insert(key.clone(), Finding { key, check, text, ..finding.clone() });
    }
    let mut all: Vec<Finding> = by_key.into_values().collect();
    if all.len() > FINDINGS_MAX {
        all.sort_by_key(|f| std::cmp::Reverse(f.action));
        all.truncate(FINDINGS_MAX);
        all.sort_by(|a, b| a.key.cmp(&b.key));
    }
    all
}

/// A drain that findings ask for lasts as long as one of them does. An operator who resumes the node
/// meanwhile is not overruled by what was known then.
fn drained(view: View<'_>, id: NodeId, said: &[Finding], news: &[&Finding]) -> Option<Event> {
    let node = view.state.node(id);
    let worst = |all: &mut dyn Iterator<Item = &Finding>| {
        all.filter(|f| f.closes_node()).max_by_key(|f| f.action).cloned()
    };
    let must = |f: &Finding| f.action == HealthAction::RebootNode;
    let may = |f: &Finding| must(f) || may_take_out(view.state, view.settings, id);
    let reason = match node.and_then(|n| Some((n, n.drain.as_ref()?))) {
        Some((node, Drain { finding: Some(key), .. })) => {
            let counted = is_counted_out(node);
            let stands = said.iter().find(|f| f.key == *key && f.closes_node());
            if stands.is_some_and(|f| must(f) || counted) {
                return None;
            }
            // What was broken may have become a mere suspicion, and of those few count.
            match stands.cloned().or_else(|| worst(&mut said.iter())).filter(|f| counted || may(f))
            {
                Some(other) => other,
                None => return Some(Event::NodeReopened { node: id }),
            }
        }
        Some(_) => return None,
        None => worst(&mut news.iter().copied()).filter(may)?,
    };
    let drain = Drain {
        by: NOBODY.to_owned(),
        reason: reason.text,
        since: view.now,
        auto: true,
        finding: Some(reason.key),
    };
    Some(Event::NodeDrained { node: id, drain })
}

/// Whoever must not go on where it is.
fn stopped(state: &State, id: NodeId, said: &[Finding], news: &[&Finding]) -> Vec<Event> {
    let mut events = Vec::new();
    for (lease, part) in held_parts(state, id) {
        let stops = find_attempt(state, lease)
            .is_some_and(|a| matches!(a.phase, AttemptPhase::Stopping { .. }));
        if stops {
            continue;
        }
        let level = said.iter().filter(|f| f.fences().is_some_and(|g| part.gpus.contains(&g)));
        let edge = news.iter().copied().filter(|f| concerns(f, part));
        if let Some(worst) = level.chain(edge).max_by_key(|f| f.action) {
            events.push(Event::Stopping { lease, why: cause(id, part, worst) });
        }
    }
    events
}

/// Whether a new finding stops the part. What is most likely the program's own doing is left to the
/// program: it sees the error itself, and its log says where.
fn concerns(finding: &Finding, part: &Part) -> bool {
    let here = |gpu: GpuIndex| part.gpus.contains(&gpu);
    match finding.action {
        HealthAction::RestartJob => !finding.by_job && finding.gpu.is_none_or(here),
        HealthAction::RebootNode => true,
        _ => false,
    }
}

fn cause(node: NodeId, part: &Part, finding: &Finding) -> StopCause {
    let gpu = finding.gpu.filter(|gpu| part.gpus.contains(gpu));
    StopCause::Unhealthy { node, gpu, text: finding.text.clone(), action: finding.action }
}

/// What the driver said of a GPU of a part since then, and nothing is wrong with the GPU: most likely
/// its program's own doing.
pub(crate) fn own_doing<'n>(node: &'n Node, part: &Part, since: Time) -> Option<&'n Finding> {
    let here = |f: &Finding| f.gpu.is_some_and(|gpu| part.gpus.contains(&gpu));
    let told = |f: &Finding| f.check == "xid" && f.action == HealthAction::Note;
    let new = node.findings.iter().filter(|f| (f.by_job || told(f)) && f.since >= since);
    new.filter(|f| here(f)).max_by_key(|f| (f.action, f.since))
}

/// What is wrong with the GPUs of a part, if that explains why its ranks failed. Nothing is placed
/// on a GPU that is fenced, so a fence came while it ran.
pub(crate) fn explains(node: &Node, part: &Part, since: Time) -> Option<StopCause> {
    let concerned = |f: &&Finding| {
        let new = f.action >= HealthAction::FenceGpu || f.since >= since;
        let acts = f.action >= HealthAction::RestartJob && !f.by_job;
        acts && new && f.gpu.is_some_and(|gpu| part.gpus.contains(&gpu))
    };
    let worst = node.findings.iter().filter(concerned).max_by_key(|f| f.action)?;
    Some(cause(node.id, part, worst))
}
