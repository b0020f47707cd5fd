//! From one revision to another, and back if the new one does worse.

use tutti_model::{Rollout, RolloutStage, Time, count};

use super::exchange::shares;
use super::judge::{Judgement, judge};
use super::look::{Look, Standing};
use crate::event::Event;

/// So many replicas that fail one after another are no accident.
const FAILURES_MAX: u32 = 3;

pub(super) fn advance(look: &Look<'_>) -> Option<Event> {
    let rollout = look.endpoint.rollout.as_ref()?;
    let (endpoint, now) = (look.name(), look.view.now);
    let bake = look.endpoint.service().rollout.bake;
    if rollout.stage == RolloutStage::Back {
        let left = look.live().any(|r| r.replica.revision != rollout.from);
        return (!left).then_some(Event::RolloutEnded { endpoint, current: rollout.from });
    }
    let judged = judged(look, rollout);
    if let Some(why) = fails(look, rollout, &judged) {
        let stage = RolloutStage::Back;
        return Some(Event::RolloutMoved { endpoint, stage, why: Some(why) });
    }
    let stage = match rollout.stage {
        RolloutStage::Canary { .. } if look.endpoint.want == 0 => RolloutStage::Rolling,
        RolloutStage::Canary { percent, since: None } => {
            let ready = look.ready().filter(|r| r.replica.revision == rollout.to).count();
            if ready < shares(look).new as usize {
                return None;
            }
            RolloutStage::Canary { percent, since: Some(now) }
        }
        RolloutStage::Canary { since: Some(since), .. } => {
            if now < since.plus(bake) || judged != Judgement::Good {
                return None;
            }
            RolloutStage::Rolling
        }
        RolloutStage::Rolling if exchanged(look, rollout) => {
            RolloutStage::Watching { until: now.plus(bake) }
        }
        RolloutStage::Watching { until } if until <= now => {
            return Some(Event::RolloutEnded { endpoint, current: rollout.to });
        }
        RolloutStage::Rolling | RolloutStage::Watching { .. } | RolloutStage::Back => return None,
    };
    Some(Event::RolloutMoved { endpoint, stage, why: None })
}

fn judged(look: &Look<'_>, rollout: &Rollout) -> Judgement {
    let load = look.memory.and_then(|m| m.load(look.view.now));
    let traffic = |revision: u32| load.and_then(|l| l.revisions.get(&revision));
    judge(&look.endpoint.service().rollout, traffic(rollout.from), traffic(rollout.to))
}

fn fails(look: &Look<'_>, rollout: &Rollout, judged: &Judgement) -> Option<String> {
    let failures = look.endpoint.revision(rollout.to).map_or(0, |r| r.failures);
    if failures >= FAILURES_MAX {
        let last = look.endpoint.last_failure.as_deref().unwrap_or("nobody said why");
        let failed = count(failures.into(), "replica");
        return Some(format!("{failed} failed one after another, the last: {last}"));
    }
    match judged {
        Judgement::Bad(why) => Some(why.clone()),
        Judgement::TooFew | Judgement::Good => None,
    }
}

/// No old one is left, and what is not ready waits for GPUs that nobody has.
fn exchanged(look: &Look<'_>, rollout: &Rollout) -> bool {
    let old = look.live().any(|r| r.replica.revision != rollout.to);
    let settled =
        |r: &super::look::Seen<'_>| r.is_ready() || matches!(r.standing, Standing::Waits { .. });
    let want = look.endpoint.want as usize;
    let all = look.live().count() >= want && look.live().all(settled);
    !old && all && (want == 0 || look.ready().count() > 0)
}

/// When time alone moves it on.
pub(super) fn next_turn(look: &Look<'_>) -> Option<Time> {
    match look.endpoint.rollout.as_ref()?.stage {
        RolloutStage::Watching { until } => Some(until),
        RolloutStage::Canary { since: Some(since), .. } => {
            Some(since.plus(look.endpoint.service().rollout.bake))
        }
        _ => None,
    }
}
