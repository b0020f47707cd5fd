//! GPUs that somebody holds and hardly uses. Samples never enter the engine; that a GPU turned idle, or
//! busy again, does, and the ledger counts it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tutti_engine::Command;
use tutti_model::{
    GoodputRule, GpuIndex, JobSpec, LeaseId, NodeId, Policy, Span, State, Time, WatchAction,
    WatchRule,
};

use crate::api::App;
use crate::clock::now;
use crate::core::Stopped;
use crate::telemetry::series::Layout;
use crate::telemetry::{Of, Store};

/// One that is idle is busy again when it was so over this time.
const AWAKE_AFTER: Span = Span::secs(60);
/// How often it is looked.
const EVERY_MIN: Span = Span::secs(1);
const EVERY_MAX: Span = Span::secs(15);
/// Samples come once a second: less says nothing.
const ALERT_MIN: Span = Span::secs(2);

/// What is held on a node, and what the ledger has as idle.
struct Held {
    node: NodeId,
    name: String,
    gpus: BTreeMap<GpuIndex, HeldGpu>,
    idle: BTreeSet<GpuIndex>,
}

#[derive(Clone, Copy)]
struct HeldGpu {
    since: Time,
    /// It counts as idle after so long.
    idle_after: Span,
}

/// Looks until the controller stops.
pub async fn watch(app: Arc<App>) {
    let mut stopping = app.stopping();
    loop {
        let Ok((soonest, changed)) = turned(&app, now()) else { return };
        if !changed.is_empty() && app.core.tell(changed).await.is_err() {
            return;
        }
        let every = Span(soonest.0 / 4).clamp(EVERY_MIN, EVERY_MAX);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(every.0)) => {}
            _ = stopping.wait_for(|s| *s) => return,
        }
    }
}

/// What turned idle or busy, as commands, and the shortest time after which anything counts as idle.
pub fn turned(app: &App, now: Time) -> Result<(Span, Vec<Command>), Stopped> {
    let (rule, held) = app.core.peek(|world| {
        let state = world.engine.state();
        (state.policy.goodput.clone(), held(state))
    })?;
    let times = held.iter().flat_map(|held| held.gpus.values().map(|gpu| gpu.idle_after));
    let soonest = times.min().unwrap_or(rule.idle_after);
    let changed = changes(&app.telemetry, &rule, held, now);
    Ok((soonest, changed))
}

/// As the ledger's rule has it, and no later than an alert says that it does nothing: of what is
/// called idle there, the hours must not be called productive here.
fn idle_after(policy: &Policy, spec: &JobSpec) -> Span {
    let terms = policy.watch.terms(WatchRule::Idle);
    let own = spec.watch.as_deref().and_then(|watch| watch.own(WatchRule::Idle));
    let alerts = [Some(terms), own.map(|own| own.over(terms))];
    let on = alerts.into_iter().flatten().filter(|terms| terms.action != WatchAction::Off);
    let alert = on.map(|terms| terms.lasts.max(ALERT_MIN)).min();
    alert.map_or(policy.goodput.idle_after, |alert| alert.min(policy.goodput.idle_after))
}

fn held(state: &State) -> Vec<Held> {
    let took = |lease: &LeaseId| {
        let job = state.job(lease.task.job)?;
        let since = job.task(lease.task.index)?.attempt()?.took_at();
        Some(HeldGpu { since, idle_after: idle_after(&state.policy, &job.spec) })
    };
    // Whose activity it is nobody can tell: the newest holder and the shortest time count.
    let both = |a: HeldGpu, b: HeldGpu| HeldGpu {
        since: a.since.max(b.since),
        idle_after: a.idle_after.min(b.idle_after),
    };
    let of_node = |node: &tutti_model::Node| {
        let of_gpu =
            |holders: &tutti_model::GpuUse| holders.leases.keys().filter_map(took).reduce(both);
        let gpus = node.used.gpus.iter();
        Held {
            node: node.id,
            name: node.facts.name.clone(),
            gpus: gpus.filter_map(|(gpu, holders)| Some((*gpu, of_gpu(holders)?))).collect(),
            idle: state.goodput.nodes.get(&node.id).map(|b| b.idle.clone()).unwrap_or_default(),
        }
    };
    state.nodes.values().filter(|node| !node.used.gpus.is_empty()).map(of_node).collect()
}

fn changes(store: &Store, rule: &GoodputRule, held: Vec<Held>, now: Time) -> Vec<Command> {
    let of_node = |held: Held| {
        let mean =
            |gpu: GpuIndex, from: Time, until: Time| activity(store, &held.name, gpu, from, until);
        let known = held.gpus.keys().filter(|gpu| held.idle.contains(gpu)).count();
        let is_idle = |(&gpu, of): (&GpuIndex, &HeldGpu)| {
            let was = held.idle.contains(&gpu);
            let mean = |from, until| mean(gpu, from, until);
            judge(rule.idle_below, of, was, now, mean).then_some(gpu)
        };
        let idle: BTreeSet<GpuIndex> = held.gpus.iter().filter_map(is_idle).collect();
        let same = idle.len() == known && idle.iter().all(|gpu| held.idle.contains(gpu));
        // All that are new have done nothing for at least the shortest of their times.
        let fresh = idle.difference(&held.idle).filter_map(|gpu| held.gpus.get(gpu));
        let since =
            fresh.map(|gpu| gpu.idle_after).min().map(|ago| Time(now.0.saturating_sub(ago.0)));
        (!same).then_some(Command::Activity { node: held.node, idle, since })
    };
    held.into_iter().filter_map(of_node).collect()
}

/// How much of it was at work: of its SMs if it tells, else of the time.
fn activity(store: &Store, node: &str, gpu: GpuIndex, from: Time, until: Time) -> Option<f64> {
    let mean = |name| store.mean(node, Of::Gpu(gpu), Layout::gpu().cell(name)?, from, until);
    mean("sm").or_else(|| mean("util")).map(|point| point.mean)
}

/// Whether a GPU is idle that is held since then. What nobody has seen is not.
fn judge(
    idle_below: u32,
    gpu: &HeldGpu,
    was: bool,
    now: Time,
    mean: impl Fn(Time, Time) -> Option<f64>,
) -> bool {
    let below = |share: Option<f64>| share.map(|share| share * 100.0 < f64::from(idle_below));
    let ago = |span: Span| Time(now.0.saturating_sub(span.0));
    if was {
        return below(mean(ago(AWAKE_AFTER.min(gpu.idle_after)), now)) != Some(false);
    }
    let from = ago(gpu.idle_after);
    let half = ago(Span(gpu.idle_after.0 / 2));
    // Seen all the time, not only in the last moments.
    gpu.since <= from && mean(from, half).is_some() && below(mean(from, now)) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::{GpuSample, NodeSample};

    const MINUTE: u64 = 60_000;

    fn is_idle(was: bool, held_for: u64, mean: impl Fn(Time, Time) -> Option<f64>) -> bool {
        let now = Time(100 * MINUTE);
        let rule = GoodputRule::default();
        let gpu = HeldGpu { since: Time(now.0 - held_for), idle_after: rule.idle_after };
        judge(rule.idle_below, &gpu, was, now, mean)
    }

    #[test]
    fn five_minutes_of_nothing_are_idle() {
        let nothing = |_: Time, _: Time| Some(0.01);
        assert!(is_idle(false, 5 * MINUTE, nothing));
        assert!(!is_idle(false, 4 * MINUTE, nothing), "it was somebody else's until then");
        assert!(!is_idle(false, 9 * MINUTE, |_, _| Some(0.03)));
        assert!(!is_idle(false, 9 * MINUTE, |_, _| None), "nobody has seen it");
        let lately = |from: Time, until: Time| (until.0 > 99 * MINUTE && from.0 > 0).then_some(0.0);
        assert!(!is_idle(false, 9 * MINUTE, lately), "seen for a moment only");
    }

    #[test]
    fn a_minute_of_work_ends_it() {
        assert!(is_idle(true, 9 * MINUTE, |_, _| Some(0.02)));
        assert!(!is_idle(true, 9 * MINUTE, |_, _| Some(0.5)));
        assert!(is_idle(true, 9 * MINUTE, |_, _| None), "silence is no work");
    }

    /// What an alert calls idle is not called productive beside it.
    #[test]
    fn the_ledger_is_no_slower_than_the_alert() {
        let mut policy = Policy::default();
        let mut job = JobSpec::shell("sleep 1000");
        assert_eq!(idle_after(&policy, &job), Span::secs(300), "the alert waits for longer");
        policy.watch.idle.lasts = Some(Span::secs(30));
        assert_eq!(idle_after(&policy, &job), Span::secs(30));
        policy.watch.idle.action = Some(WatchAction::Off);
        assert_eq!(idle_after(&policy, &job), Span::secs(300), "nobody says so");
        job.watch = serde_json::from_str(r#"{"idle": {"for": "0s", "action": "warn"}}"#).unwrap();
        assert_eq!(idle_after(&policy, &job), ALERT_MIN);
    }

    #[test]
    fn only_changes_are_told() {
        let store = Store::default();
        let now = Time(1_794_787_200_000);
        for second in 0..=400u64 {
            let gpu = |index, util| GpuSample {
                index: GpuIndex(index),
                util: Some(util),
                ..GpuSample::default()
            };
            let at = Time(now.0 - (400 - second) * 1000);
            let gpus = vec![gpu(0, 0), gpu(1, 90), gpu(2, 0)];
            store.push("n1", NodeSample { at, gpus, ..NodeSample::default() }, at);
        }
        let rule = GoodputRule::default();
        let since = HeldGpu { since: Time(now.0 - 350_000), idle_after: rule.idle_after };
        let held = |idle: &[u16]| Held {
            node: NodeId(1),
            name: "n1".into(),
            // The third is nobody's.
            gpus: [(GpuIndex(0), since), (GpuIndex(1), since)].into(),
            idle: idle.iter().map(|i| GpuIndex(*i)).collect(),
        };
        let told = |idle: &[u16]| changes(&store, &rule, vec![held(idle)], now);
        let (idle, since) = ([GpuIndex(0)].into(), Some(Time(now.0 - rule.idle_after.0)));
        assert_eq!(told(&[]), [Command::Activity { node: NodeId(1), idle, since }]);
        assert_eq!(told(&[0]), []);
        assert_eq!(told(&[0, 2]), [], "what nobody holds says nothing");
        assert_eq!(told(&[0, 1]).len(), 1);
    }
}
