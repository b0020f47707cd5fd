//! GPUs that somebody holds and hardly uses. Samples never enter the engine; that a GPU turned idle, or
//! busy again, does, and the ledger counts it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tutti_engine::Command;
use tutti_model::{GoodputRule, GpuIndex, LeaseId, NodeId, Span, State, Time};

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

/// What is held on a node, since when, and what the ledger has as idle.
struct Held {
    node: NodeId,
    name: String,
    gpus: BTreeMap<GpuIndex, Time>,
    idle: BTreeSet<GpuIndex>,
}

/// Looks until the controller stops.
pub async fn watch(app: Arc<App>) {
    let mut stopping = app.stopping();
    loop {
        let Ok((rule, changed)) = turned(&app, now()) else { return };
        if !changed.is_empty() && app.core.tell(changed).await.is_err() {
            return;
        }
        let every = Span(rule.idle_after.0 / 4).clamp(EVERY_MIN, EVERY_MAX);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(every.0)) => {}
            _ = stopping.wait_for(|s| *s) => return,
        }
    }
}

/// What turned idle or busy, as commands, and the rule that says so.
pub fn turned(app: &App, now: Time) -> Result<(GoodputRule, Vec<Command>), Stopped> {
    let (rule, held) = app.core.peek(|world| {
        let state = world.engine.state();
        (state.policy.goodput.clone(), held(state))
    })?;
    let changed = changes(&app.telemetry, &rule, held, now);
    Ok((rule, changed))
}

fn held(state: &State) -> Vec<Held> {
    let took = |lease: &LeaseId| {
        let job = state.job(lease.task.job)?;
        Some(job.task(lease.task.index)?.attempt()?.took_at())
    };
    let of_node = |node: &tutti_model::Node| {
        let since = |holders: &tutti_model::GpuUse| holders.leases.keys().filter_map(took).max();
        let gpus = node.used.gpus.iter();
        Held {
            node: node.id,
            name: node.facts.name.clone(),
            gpus: gpus.filter_map(|(gpu, holders)| Some((*gpu, since(holders)?))).collect(),
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
        let is_idle = |(&gpu, &since): (&GpuIndex, &Time)| {
            let was = held.idle.contains(&gpu);
            judge(rule, was, since, now, |from, until| mean(gpu, from, until)).then_some(gpu)
        };
        let idle: BTreeSet<GpuIndex> = held.gpus.iter().filter_map(is_idle).collect();
        let same = idle.len() == known && idle.iter().all(|gpu| held.idle.contains(gpu));
        (!same).then_some(Command::Activity { node: held.node, idle })
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
    rule: &GoodputRule,
    was: bool,
    since: Time,
    now: Time,
    mean: impl Fn(Time, Time) -> Option<f64>,
) -> bool {
    let below = |share: Option<f64>| share.map(|share| share * 100.0 < f64::from(rule.idle_below));
    let ago = |span: Span| Time(now.0.saturating_sub(span.0));
    if was {
        return below(mean(ago(AWAKE_AFTER.min(rule.idle_after)), now)) != Some(false);
    }
    let from = ago(rule.idle_after);
    let half = ago(Span(rule.idle_after.0 / 2));
    // Seen all the time, not only in the last moments.
    since <= from && mean(from, half).is_some() && below(mean(from, now)) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::{GpuSample, NodeSample};

    const MINUTE: u64 = 60_000;

    fn is_idle(was: bool, held_for: u64, mean: impl Fn(Time, Time) -> Option<f64>) -> bool {
        let now = Time(100 * MINUTE);
        judge(&GoodputRule::default(), was, Time(now.0 - held_for), now, mean)
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
        let since = Time(now.0 - 350_000);
        let held = |idle: &[u16]| Held {
            node: NodeId(1),
            name: "n1".into(),
            // The third is nobody's.
            gpus: [(GpuIndex(0), since), (GpuIndex(1), since)].into(),
            idle: idle.iter().map(|i| GpuIndex(*i)).collect(),
        };
        let rule = GoodputRule::default();
        let told = |idle: &[u16]| changes(&store, &rule, vec![held(idle)], now);
        let idle = [GpuIndex(0)].into();
        assert_eq!(told(&[]), [Command::Activity { node: NodeId(1), idle }]);
        assert_eq!(told(&[0]), []);
        assert_eq!(told(&[0, 2]), [], "what nobody holds says nothing");
        assert_eq!(told(&[0, 1]).len(), 1);
    }
}
