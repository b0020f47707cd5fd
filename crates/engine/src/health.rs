//! Whether a node does more harm than good. It is taken out by itself when it is lost again and
//! again, or when different jobs fail there and nowhere else; never more than a few nodes, so that a
//! trouble that all of them share does not close the cluster.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Drain, Finding, HealthAction, JobId, Mishap, Node, NodeId, NodeState, State, Strike, Time,
    count,
};

use crate::settings::Settings;

/// Who takes nodes out when nobody asks for it.
pub const NOBODY: &str = "tutti";

/// Failures that have another explanation need people who do not know of each other.
const USERS_MIN: usize = 2;

/// What is wrong with this node, in words, if too much is.
pub fn trouble(state: &State, settings: &Settings, node: &Node, now: Time) -> Option<String> {
    let recent = || node.strikes.iter().filter(|s| now.since(s.at) <= settings.strike_window);
    let enough = settings.strikes_max as usize;
    let lost: Vec<&Strike> = recent().filter(|s| s.what == Mishap::Lost).collect();
    if lost.len() >= enough {
        let when: Vec<String> = lost.iter().map(|s| ago(now, s.at)).collect();
        let (times, window) = (count(lost.len() as u64, "time"), settings.strike_window);
        return Some(format!("lost {times} within {window}: {}", when.join(", ")));
    }
    let failures = Failures::of(recent());
    let proven = failures.only_proven();
    let alone = state.ledger.users.len() <= 1;
    let is_bad = proven.jobs.len() >= enough && (proven.users.len() >= USERS_MIN || alone)
        || failures.jobs.len() >= enough
            && failures.users.len() >= USERS_MIN
            && others_do_well(state, node.id, failures.first);
    let shown = if proven.jobs.len() >= enough { proven } else { failures };
    is_bad.then(|| shown.words(settings, now))
}

#[derive(Clone, Debug, Default)]
struct Failures<'a> {
    /// The newest failure of each job, and whether any was proven.
    jobs: BTreeMap<JobId, (Time, bool)>,
    users: BTreeSet<&'a str>,
    by: BTreeMap<JobId, &'a str>,
    first: Time,
}

impl<'a> Failures<'a> {
    fn of(strikes: impl Iterator<Item = &'a Strike>) -> Failures<'a> {
        let mut found = Failures { first: Time(u64::MAX), ..Failures::default() };
        for strike in strikes {
            let Mishap::Failed { task, user, proven } = &strike.what else { continue };
            let job = found.jobs.entry(task.job).or_insert((strike.at, false));
            *job = (strike.at, job.1 || *proven);
            found.users.insert(user);
            found.by.insert(task.job, user);
            found.first = found.first.min(strike.at);
        }
        found
    }

    fn only_proven(&self) -> Failures<'a> {
        let jobs: BTreeMap<_, _> =
            self.jobs.iter().filter(|(_, (_, proven))| *proven).map(|(k, v)| (*k, *v)).collect();
        let by: BTreeMap<_, _> = self
            .by
            .iter()
            .filter(|(job, _)| jobs.contains_key(job))
            .map(|(k, v)| (*k, *v))
            .collect();
        Failures { users: by.values().copied().collect(), jobs, by, first: self.first }
    }

    fn words(&self, settings: &Settings, now: Time) -> String {
        let job = |(id, (at, _)): (&JobId, &(Time, bool))| {
            let user = self.by.get(id).copied().unwrap_or_default();
            format!("{id} of {user} {}", ago(now, *at))
        };
        let jobs: Vec<String> = self.jobs.iter().map(job).collect();
        let window = settings.strike_window;
        format!(
            "{} failed here and not elsewhere within {window}: {}",
            count(jobs.len() as u64, "job"),
            jobs.join(", ")
        )
    }
}

fn ago(now: Time, at: Time) -> String {
    match now.since(at) {
        span if span.0 < 1000 => "just now".to_owned(),
        span => format!("{} ago", span.short()),
    }
}

/// Since this time something went well on another node.
fn others_do_well(state: &State, node: NodeId, since: Time) -> bool {
    let mut others = state.nodes.values().filter(|n| n.id != node);
    others.any(|n| n.good_at.is_some_and(|at| at >= since))
}

/// The drain of a node that has to be taken out now.
pub(crate) fn take_out(state: &State, settings: &Settings, id: NodeId, now: Time) -> Option<Drain> {
    let node = state.node(id).filter(|n| n.drain.is_none())?;
    let reason = trouble(state, settings, node, now)?;
    let by = NOBODY.to_owned();
    may_take_out(state, settings, id).then_some(Drain {
        by,
        reason,
        since: now,
        auto: true,
        finding: None,
    })
}

/// Whether one more node may be taken out without anybody asking for it.
pub(crate) fn may_take_out(state: &State, settings: &Settings, id: NodeId) -> bool {
    let out = state.nodes.values().filter(|n| is_counted_out(n)).count();
    let left = state.nodes.values().any(|n| n.id != id && n.state() == NodeState::Ready);
    left && out < most_out(state.nodes.len(), settings)
}

/// Taken out on suspicion. One that must be rebooted is broken, not suspect.
pub fn is_counted_out(node: &Node) -> bool {
    let Some(drain) = node.drain.as_ref().filter(|d| d.auto) else { return false };
    let broken = |f: &Finding| {
        drain.finding.as_ref() == Some(&f.key) && f.action == HealthAction::RebootNode
    };
    !node.findings.iter().any(broken)
}

/// So many nodes may be taken out without anybody asking for it.
pub fn most_out(nodes: usize, settings: &Settings) -> usize {
    (nodes * settings.taken_out_percent as usize / 100).max(1)
}

#[cfg(test)]
mod tests;
