//! The classes of every node add up to its GPUs times the time since it joined, to the millisecond
//! and the thousandth of a GPU. What is on record of the nodes is what is on record of the days. And
//! what the open books say is what is the case, so nothing is counted in the wrong class.

use std::collections::BTreeMap;

use tutti_model::{Amounts, GpuMicros, NodeId, Slice, State};

use crate::apply::goodput::{held, kind, unheld};

pub(super) fn check(state: &State) -> Result<(), String> {
    if !state.goodput.begun {
        return Ok(());
    }
    sums_to_capacity(state)?;
    days_are_nodes(state)?;
    books_are_true(state)
}

fn sums_to_capacity(state: &State) -> Result<(), String> {
    let mut open: BTreeMap<NodeId, GpuMicros> = BTreeMap::new();
    for slice in state.goodput.runs.values().flat_map(|run| &run.slices) {
        let undecided: GpuMicros = slice.open.iter().map(|work| work.amount).sum();
        let since = slice.milli() * state.at.since(slice.since).0;
        *open.entry(slice.node).or_default() += undecided + since;
    }
    if let Some(id) = state.nodes.keys().find(|id| !state.goodput.nodes.contains_key(id)) {
        return Err(format!("node {id} has no book"));
    }
    // Also of those that were removed: work there may still be judged.
    for (id, book) in &state.goodput.nodes {
        let milli: u64 = book.unheld.iter().map(|lot| u64::from(lot.milli)).sum();
        let unheld = milli * state.at.since(book.since).0;
        let held = open.remove(id).unwrap_or(0);
        let (all, capacity) = (book.past.total() + unheld + held, book.capacity.at(state.at));
        if all != capacity {
            return Err(format!(
                "node {id}: {} on record, {unheld} not held and {held} held since are {all}, it \
                 could have done {capacity}",
                book.past.total()
            ));
        }
    }
    open.pop_first().map_or(Ok(()), |(node, _)| Err(format!("time on unknown node {node}")))
}

fn days_are_nodes(state: &State) -> Result<(), String> {
    let (mut days, mut nodes) = (state.goodput.dropped.clone(), Amounts::default());
    state.goodput.days.values().flat_map(|day| day.values()).for_each(|a| days.merge(a));
    state.goodput.nodes.values().for_each(|book| nodes.merge(&book.past));
    if days != nodes {
        return Err(format!("the days have {days:?}, the nodes {nodes:?}"));
    }
    Ok(())
}

fn books_are_true(state: &State) -> Result<(), String> {
    for (node, is) in unheld(state) {
        let said = &state.goodput.nodes[&node].unheld;
        if *said != is {
            return Err(format!("node {node}: the book has {said:?}, it is {is:?}"));
        }
    }
    let mut runs: BTreeMap<_, _> = state.goodput.runs.iter().collect();
    for (task, _, attempt) in super::attempts(state) {
        let lease = attempt.lease(task);
        let run = runs.remove(&lease);
        let mut is: Vec<_> = attempt.parts.iter().flat_map(|part| held(state, part)).collect();
        is.retain(|h| h.busy + h.idle > 0);
        let slices = run.map_or(&[][..], |run| &run.slices);
        let holds = |s: &Slice| {
            is.iter()
                .any(|h| (h.node, &h.model, h.busy, h.idle) == (s.node, &s.model, s.busy, s.idle))
        };
        let live: Vec<&Slice> = slices.iter().filter(|s| s.milli() > 0).collect();
        if live.len() != is.len() || !live.into_iter().all(holds) {
            return Err(format!("{lease}: the book has {slices:?}, it holds {:?}", attempt.parts));
        }
        if run.is_some_and(|run| run.kind != kind(attempt)) {
            return Err(format!("{lease} is {:?}, the book has {run:?}", attempt.phase));
        }
    }
    runs.pop_first().map_or(Ok(()), |(lease, _)| Err(format!("{lease} is over and has a book")))
}
