//! When everything that waits will start, in one look ahead instead of one for each.

use std::collections::BTreeMap;

use tutti_model::{Forecast, Policy, Span, State, TaskId, Time};

use super::{Event, Pace, events, growth, next, usual};
use crate::explain::passes;
use crate::imagine::{STARTS, World};
use crate::pass::WhatIf;

/// Every waiting task whose start can be foreseen; of an array, the first of its tasks under the
/// array's own id. Costs about a second on a large cluster, so it is for a thread of its own.
pub fn forecasts(state: &State, policy: &Policy, now: Time) -> BTreeMap<TaskId, Forecast> {
    let late = starts(state, policy, now, Pace::Limits);
    let early = match state.learned.runs.is_empty() {
        true => late.clone(),
        false => starts(state, policy, now, Pace::Usual),
    };
    let both = early.keys().chain(late.keys()).copied();
    both.filter_map(|task| {
        let late = late.get(&task).copied();
        let early = early.get(&task).copied().into_iter().chain(late).min()?;
        Some((task, Forecast { early, late }))
    })
    .collect()
}

fn starts(state: &State, policy: &Policy, now: Time, pace: Pace) -> BTreeMap<TaskId, Time> {
    let mut world = World::new(state, policy, passes(state));
    let mut events = events(state, policy, now, pace);
    let growth = growth(events.len(), passes(state));
    let (mut at, mut passed, mut starts) = (now, 0, BTreeMap::new());
    while starts.len() < STARTS {
        let what_if = WhatIf { peaceful: true, ..WhatIf::default() };
        let Some(plan) = world.plan(at, what_if) else { break };
        let placed: Vec<TaskId> = plan.placements.iter().map(|p| p.task).collect();
        world.carry_out(plan, at);
        for &id in &placed {
            starts.entry(id).or_insert(at);
            starts.entry(TaskId::single(id.job)).or_insert(at);
        }
        let ends = placed.into_iter().filter_map(|id| {
            let takes = usual(&world.state, world.state.job(id.job)?, pace, Span(0))?;
            Some((at.plus(takes), Event::End(id)))
        });
        events.extend(ends.collect::<Vec<_>>());
        let batch = 1 + passed * growth / 100;
        let Some(then) = next(&mut world, &mut events, batch, &mut passed) else { break };
        at = then;
    }
    starts
}
