//! What the shell says to the ledger.

use std::collections::BTreeSet;

use tutti_model::{Day, GpuIndex, NodeId, Time};

use super::{Decision, View, done};
use crate::event::Event;
use crate::reject::Rejected;

/// Only what is held can be held in vain.
pub(super) fn activity(
    view: View<'_>,
    id: NodeId,
    idle: &BTreeSet<GpuIndex>,
    since: Option<Time>,
) -> Decision {
    let Some(node) = view.state.node(id) else { return done(Vec::new()) };
    let held = |gpu: &GpuIndex| node.used.gpus.contains_key(gpu);
    let gpus: BTreeSet<GpuIndex> = idle.iter().copied().filter(held).collect();
    let known = view.state.goodput.nodes.get(&id).map(|book| &book.idle);
    let Some(known) = known.filter(|known| **known != gpus) else { return done(Vec::new()) };
    let since = since.filter(|_| !gpus.is_subset(known));
    done(vec![Event::GpusIdle { node: id, gpus, since }])
}

/// A day that was dropped already is no mistake: whoever asks may not have heard the answer.
pub(super) fn drop_day(view: View<'_>, day: Day) -> Decision {
    let goodput = &view.state.goodput;
    if !goodput.days.contains_key(&day) {
        return done(Vec::new());
    }
    if !goodput.is_sealed(day) {
        return Err(Rejected::DayNotSealed(day));
    }
    done(vec![Event::LedgerDropped { day }])
}

/// Once a day, soon after midnight (UTC).
pub(super) fn day_turned(view: View<'_>) -> Option<Event> {
    let goodput = &view.state.goodput;
    let turned = goodput.begun && Day::of(view.now) > Day::of(goodput.settled);
    turned.then_some(Event::LedgerSettled)
}
