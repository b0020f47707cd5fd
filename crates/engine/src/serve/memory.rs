//! What routers say, and what of it must be remembered for a while. A level: never in the journal, and
//! empty after a restart, which only makes endpoints slower to change.

use std::collections::{BTreeMap, VecDeque};

use tutti_model::{EndpointLoad, Generation, JobId, Span, Time};

/// Routers speak once a second. What is older says nothing any more.
const STALE: Span = Span::secs(10);
/// More changes than that are not kept: more than two hours at one a second.
const CHANGES_MAX: usize = 10_000;

/// Of one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    load: EndpointLoad,
    heard: Time,
    /// Since when routers are heard without a gap.
    since: Time,
    /// Requests under way and waiting, each from its time on.
    asked: VecDeque<(Time, Asked)>,
    /// Replicas that do not answer, and since when.
    silent: BTreeMap<(JobId, Generation), Time>,
    /// When a replica was last told to go.
    drained: Option<Time>,
}

/// At the moment that was looked at, and most since the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    now: u32,
    peak: u32,
}

impl Asked {
    fn of(load: &EndpointLoad) -> Asked {
        let now = load.in_flight.saturating_add(load.queued);
        Asked { now, peak: load.peak.max(now) }
    }
}

impl Memory {
    pub fn note(&mut self, load: &EndpointLoad, now: Time) {
        if load.routers == 0 {
            return;
        }
        if self.heard == Time(0) || now.since(self.heard) > STALE {
            self.since = now;
            self.asked.clear();
            self.silent.clear();
        }
        self.heard = now;
        let asked = Asked::of(load);
        if self.asked.back().is_none_or(|(_, last)| *last != asked) {
            self.asked.push_back((now, asked));
            let over = self.asked.len().saturating_sub(CHANGES_MAX);
            self.asked.drain(..over);
        }
        for (&job, replica) in &load.replicas {
            let key = (job, replica.generation);
            match replica.ready {
                true => drop(self.silent.remove(&key)),
                false => drop(self.silent.entry(key).or_insert(now)),
            }
        }
        self.silent.retain(|(job, _), _| load.replicas.contains_key(job));
        self.load = load.clone();
    }

    pub fn note_drained(&mut self, now: Time) {
        self.drained = Some(now);
    }

    /// What is older than the longest of the endpoint's delays is of no use.
    pub fn forget_before(&mut self, at: Time) {
        // The last change before it still says what was the case then.
        while self.asked.get(1).is_some_and(|(next, _)| *next <= at) {
            self.asked.pop_front();
        }
    }

    /// What is the case, if any router spoke lately.
    pub fn load(&self, now: Time) -> Option<&EndpointLoad> {
        (self.heard > Time(0) && now.since(self.heard) <= STALE).then_some(&self.load)
    }

    /// Since when routers are heard, if they are.
    pub fn heard_since(&self, now: Time) -> Option<Time> {
        self.load(now).map(|_| self.since)
    }

    pub fn silent_since(&self, job: JobId, generation: Generation) -> Option<Time> {
        self.silent.get(&(job, generation)).copied()
    }

    pub fn drained_at(&self) -> Option<Time> {
        self.drained
    }

    /// Requests under way and waiting now.
    pub fn asked(&self, now: Time) -> Option<u32> {
        self.load(now)?;
        self.asked.back().map(|(_, asked)| asked.now)
    }

    /// The least and the most of it over this time, if all of it is known. What came and went between
    /// two looks counts for the most only: it needs no more replicas, but it was asked.
    pub fn asked_over(&self, span: Span, now: Time) -> Option<(u32, u32)> {
        let from = Time(now.0.saturating_sub(span.0));
        if self.heard_since(now)? > from {
            return None;
        }
        // What changed before it held until the next change.
        let begins = self.asked.partition_point(|(at, _)| *at <= from).saturating_sub(1);
        let within = || self.asked.range(begins..).map(|(_, asked)| asked);
        Some((within().map(|a| a.now).min()?, within().map(|a| a.peak).max()?))
    }
}

#[cfg(test)]
mod tests {
    use tutti_model::{ReplicaLoad, Replicas, ServiceSpec};

    use super::*;

    fn load(asked: u32) -> EndpointLoad {
        EndpointLoad { routers: 1, in_flight: asked, ..EndpointLoad::default() }
    }

    fn at(seconds: u64) -> Time {
        Time(1_000_000 + seconds * 1000)
    }

    #[test]
    fn least_and_most_are_of_the_whole_time_or_unknown() {
        let mut memory = Memory::default();
        for (second, asked) in [(0, 4), (1, 4), (2, 9), (3, 1), (4, 5)] {
            memory.note(&load(asked), at(second));
        }
        assert_eq!(memory.asked_over(Span::secs(4), at(4)), Some((1, 9)));
        assert_eq!(memory.asked_over(Span::secs(1), at(4)), Some((1, 5)));
        assert_eq!(memory.asked_over(Span(0), at(4)), Some((5, 5)));
        assert_eq!(memory.asked_over(Span::secs(5), at(4)), None, "nobody knows what was before");
        memory.forget_before(at(3));
        assert_eq!(memory.asked_over(Span::secs(1), at(4)), Some((1, 5)));
    }

    #[test]
    fn what_comes_and_goes_between_two_looks_was_asked() {
        let mut memory = Memory::default();
        // One short request a minute, which is never there when it is looked for.
        for second in 0..=300 {
            let peak = u32::from(second % 60 == 30);
            memory.note(&EndpointLoad { peak, ..load(0) }, at(second));
        }
        assert_eq!(memory.asked(at(300)), Some(0));
        assert_eq!(memory.asked_over(Span::secs(60), at(300)), Some((0, 1)));
        assert_eq!(memory.asked_over(Span::secs(20), at(300)), Some((0, 0)));
        let (down_after, zero_after) = (Span::secs(20), Span::secs(90));
        let service = ServiceSpec { down_after, zero_after, ..ServiceSpec::default() };
        let bounds = Replicas { min: 0, max: 4 };
        let wanted = |now| super::super::scale::wanted(1, &service, bounds, 0, Some(&memory), now);
        assert_eq!(wanted(at(300)), None, "it is asked, if seldom");
        (301..=361).for_each(|second| memory.note(&load(0), at(second)));
        let wanted = super::super::scale::wanted(1, &service, bounds, 0, Some(&memory), at(361));
        assert_eq!(wanted.map(|(n, _)| n), Some(0), "and now it is not");
    }

    #[test]
    fn routers_that_were_silent_begin_anew() {
        let mut memory = Memory::default();
        memory.note(&load(4), at(0));
        assert!(memory.load(at(10)).is_some());
        assert!(memory.load(at(11)).is_none());
        memory.note(&load(4), at(20));
        assert_eq!(memory.asked_over(Span::secs(5), at(20)), None);
        memory.note(&EndpointLoad::default(), at(21));
        assert_eq!(memory.asked(at(21)), Some(4), "no router is no word");
    }

    #[test]
    fn a_replica_is_silent_from_the_first_time_on() {
        let mut memory = Memory::default();
        let (job, generation) = (JobId(7), Generation(1));
        let mut said = |second, ready, generation| {
            let replica = ReplicaLoad { generation, ready, ..ReplicaLoad::default() };
            let said = EndpointLoad { replicas: [(job, replica)].into(), ..load(0) };
            memory.note(&said, at(second));
            memory.silent_since(job, generation)
        };
        assert_eq!(said(0, true, generation), None);
        assert_eq!(said(1, false, generation), Some(at(1)));
        assert_eq!(said(2, false, generation), Some(at(1)));
        assert_eq!(said(3, true, generation), None);
        assert_eq!(said(4, false, Generation(2)), Some(at(4)), "another one since it was started");
    }
}
