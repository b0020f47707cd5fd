//! What is known only while this controller lives: sessions and when each node was last heard.
//! Never in the journal; only its consequences are.

use std::collections::BTreeMap;

use tutti_model::{EndpointLoad, LeaseId, NodeId, PartReport, Span, State, Time};

use crate::serve::Memory;

mod levels;

pub use levels::{Level, Levels};

const HOUR_MS: u64 = 3_600_000;

#[derive(Clone, Debug, Default)]
pub struct Live {
    nodes: BTreeMap<NodeId, Heard>,
    levels: Levels,
    /// Of each endpoint, what routers say.
    endpoints: BTreeMap<String, Memory>,
    /// The next numbers when this controller started.
    began: Option<Numbers>,
    last_tick: Option<Time>,
    hour_turned: bool,
    /// Added to the shell's clock when that is behind the journal: time goes on, never back.
    offset: Span,
}

/// Of jobs and of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub job: u64,
    pub generation: u64,
}

impl Numbers {
    /// Those that are given next.
    pub fn next(state: &State) -> Numbers {
        Numbers { job: state.next_job.max(1), generation: state.next_generation.max(1) }
    }
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    session: Option<u64>,
    at: Time,
}

impl Live {
    /// The engine's time for the shell's `now`.
    pub fn clock(&mut self, now: Time, journal: Time) -> Time {
        let shifted = now.plus(self.offset);
        if shifted < journal {
            self.offset = Span(self.offset.0 + (journal.0 - shifted.0));
            return journal;
        }
        shifted
    }

    pub fn begin(&mut self, state: &State) {
        self.began = Some(Numbers::next(state));
    }

    pub fn began(&self) -> Option<Numbers> {
        self.began
    }

    pub fn last_tick(&self) -> Option<Time> {
        self.last_tick
    }

    /// A long gap between ticks is the controller's own absence (suspended, or the clock was set),
    /// not the nodes': it is not held against them.
    pub fn tick(&mut self, now: Time, gap_max: Span) {
        self.hour_turned = self.last_tick.is_some_and(|last| last.0 / HOUR_MS != now.0 / HOUR_MS);
        if let Some(last) = self.last_tick {
            let gap = now.since(last);
            if gap > gap_max {
                self.nodes.values_mut().for_each(|h| h.at = h.at.plus(gap));
            }
        }
        self.last_tick = Some(now);
    }

    /// Takes over what the ranks of these parts say of themselves.
    /// `sleeps` says whether an attempt is suspended or was a moment ago: such a pause is none.
    pub fn note_levels<'a>(
        &mut self,
        node: NodeId,
        reports: impl Iterator<Item = &'a PartReport>,
        now: Time,
        sleeps: impl Fn(LeaseId) -> bool,
    ) {
        for report in reports {
            self.levels.note(node, report, now, sleeps(report.lease));
        }
    }

    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    pub fn forget_levels(&mut self, is_current: impl Fn(LeaseId) -> bool) {
        self.levels.retain(is_current);
    }

    /// Takes over what all routers together see.
    pub fn note_loads(&mut self, state: &State, loads: &BTreeMap<String, EndpointLoad>, now: Time) {
        self.endpoints.retain(|name, _| state.endpoints.contains_key(name));
        for (name, load) in loads {
            let Some(endpoint) = state.endpoints.get(name) else { continue };
            let memory = self.endpoints.entry(name.clone()).or_default();
            memory.note(load, now);
            let service = endpoint.service();
            let longest = service.up_after.max(service.down_after).max(service.zero_after);
            memory.forget_before(Time(now.0.saturating_sub(longest.0)));
        }
    }

    pub fn note_drained(&mut self, endpoint: &str, now: Time) {
        self.endpoints.entry(endpoint.to_owned()).or_default().note_drained(now);
    }

    pub(crate) fn memory(&self, endpoint: &str) -> Option<&Memory> {
        self.endpoints.get(endpoint)
    }

    /// Whether an hour ended with the last tick: the time for chores.
    pub fn hour_turned(&self) -> bool {
        self.hour_turned
    }

    pub fn connected(&mut self, node: NodeId, session: u64, now: Time) {
        self.nodes.insert(node, Heard { session: Some(session), at: now });
    }

    pub fn heard(&mut self, node: NodeId, now: Time) {
        if let Some(h) = self.nodes.get_mut(&node) {
            h.at = now;
        }
    }

    /// From now on the node has no session, and the time to come back runs.
    pub fn disconnected(&mut self, node: NodeId, now: Time) {
        self.nodes.insert(node, Heard { session: None, at: now });
    }

    /// Those that are not known any more are forgotten.
    pub fn keep_nodes(&mut self, known: impl Fn(NodeId) -> bool) {
        self.nodes.retain(|node, _| known(*node));
    }

    pub fn is_session(&self, node: NodeId, session: u64) -> bool {
        self.nodes.get(&node).is_some_and(|h| h.session == Some(session))
    }

    pub fn last_heard(&self, node: NodeId) -> Option<Time> {
        self.nodes.get(&node).map(|h| h.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_when_the_clock_was_set_back() {
        let mut live = Live::default();
        assert_eq!(live.clock(Time(100), Time(500)), Time(500));
        assert_eq!(live.clock(Time(110), Time(500)), Time(510));
        assert_eq!(live.clock(Time(90), Time(510)), Time(510));
    }

    #[test]
    fn an_absent_controller_does_not_blame_its_nodes() {
        let mut live = Live::default();
        live.connected(NodeId(1), 1, Time(0));
        live.tick(Time(1000), Span::secs(4));
        live.tick(Time(61_000), Span::secs(4));
        assert_eq!(live.last_heard(NodeId(1)), Some(Time(60_000)));
    }
}
