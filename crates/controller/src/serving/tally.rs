//! How it went with one endpoint: since the controller's start, since its rollout began, and lately.

use std::collections::{BTreeMap, VecDeque};

use tutti_model::{EndpointReport, Span, Time, Traffic};
use tutti_wire::api::Figures;

const SLOT: Span = Span::secs(5);
/// Five minutes.
const SLOTS_MAX: u64 = 60;
/// What [`Figures`] are about.
const FIGURES_OVER: Span = Span::secs(60);
/// Rates over less than this say nothing.
const OVER_MIN: Span = Span::secs(1);

#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// When it was first heard of.
    since: Time,
    total: Traffic,
    /// The rollout that `revisions` counts from the beginning of.
    rollout: Option<Time>,
    revisions: BTreeMap<u32, Traffic>,
    /// Oldest first.
    slots: VecDeque<Slot>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// Counted in slots from the beginning of time.
    number: u64,
    traffic: Traffic,
    revisions: BTreeMap<u32, Traffic>,
}

/// What a few seconds were like.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub at: Time,
    pub over: Span,
    pub traffic: Traffic,
}

impl Tally {
    pub fn new(now: Time) -> Tally {
        Tally { since: now, ..Tally::default() }
    }

    /// What a router said, after what it said before.
    pub fn add(&mut self, said: &EndpointReport, before: &EndpointReport, now: Time) {
        let more = said.traffic.since(&before.traffic);
        if more == Traffic::default() {
            return;
        }
        let nothing = Traffic::default();
        let of_revision = |(number, traffic): (&u32, &Traffic)| {
            let more = traffic.since(before.revisions.get(number).unwrap_or(&nothing));
            (more != nothing).then_some((*number, more))
        };
        let by_revision: Vec<(u32, Traffic)> =
            said.revisions.iter().filter_map(of_revision).collect();
        let slot = self.slot(now);
        slot.traffic.merge(&more);
        for (number, traffic) in &by_revision {
            slot.revisions.entry(*number).or_default().merge(traffic);
        }
        self.total.merge(&more);
        for (number, traffic) in &by_revision {
            self.revisions.entry(*number).or_default().merge(traffic);
        }
    }

    /// A rollout that begins is judged by what comes after.
    pub fn follow(&mut self, rollout: Option<Time>) {
        if rollout.is_some() && rollout != self.rollout {
            self.revisions.clear();
            self.rollout = rollout;
        }
    }

    pub fn total(&self) -> &Traffic {
        &self.total
    }

    /// By revision: since the rollout that is under way began, else of the last minutes.
    pub fn revisions(&self, rollout: Option<Time>, now: Time) -> BTreeMap<u32, Traffic> {
        if rollout.is_some() {
            return self.revisions.clone();
        }
        let mut sums: BTreeMap<u32, Traffic> = BTreeMap::new();
        for slot in self.latest(SLOTS_MAX, now) {
            for (number, traffic) in &slot.revisions {
                sums.entry(*number).or_default().merge(traffic);
            }
        }
        sums
    }

    pub fn figures(&self, now: Time) -> Figures {
        let slots = FIGURES_OVER.0 / SLOT.0;
        let mut sum = Traffic::default();
        self.latest(slots, now).for_each(|slot| sum.merge(&slot.traffic));
        let from = Time((number(now) + 1).saturating_sub(slots) * SLOT.0);
        let over = now.since(from.max(self.since)).max(OVER_MIN);
        figures(&sum, over)
    }

    /// The last five minutes, oldest first, without what had no traffic.
    pub fn history(&self, now: Time) -> Vec<Point> {
        let point = |slot: &Slot| Point {
            at: Time(slot.number * SLOT.0),
            over: SLOT,
            traffic: slot.traffic.clone(),
        };
        self.latest(SLOTS_MAX, now).map(point).collect()
    }

    fn latest(&self, slots: u64, now: Time) -> impl Iterator<Item = &Slot> {
        let first = (number(now) + 1).saturating_sub(slots);
        self.slots.iter().filter(move |slot| slot.number >= first)
    }

    fn slot(&mut self, now: Time) -> &mut Slot {
        let number = number(now);
        if self.slots.back().is_none_or(|last| last.number < number) {
            self.slots.push_back(Slot { number, ..Slot::default() });
        }
        let first = (number + 1).saturating_sub(SLOTS_MAX);
        while self.slots.len() > 1 && self.slots.front().is_some_and(|slot| slot.number < first) {
            self.slots.pop_front();
        }
        self.slots.back_mut().expect("one was put there if there was none")
    }
}

fn number(at: Time) -> u64 {
    at.0 / SLOT.0
}

fn figures(sum: &Traffic, over: Span) -> Figures {
    let per_second = |n: u64| n as f64 * 1000.0 / over.0 as f64;
    let part = |n: u64, of: u64| (of > 0).then(|| (n as f64 / of as f64).min(1.0));
    Figures {
        requests_per_second: per_second(sum.requests),
        errors: part(sum.errors, sum.requests).unwrap_or(0.0),
        refused_per_second: per_second(sum.refused),
        output_tokens_per_second: per_second(sum.output_tokens),
        first_byte_p50: sum.first_byte.quantile(0.5),
        first_byte_p95: sum.first_byte.quantile(0.95),
        per_token_p50: sum.per_token.quantile(0.5),
        queue_wait_p95: sum.queue_wait.quantile(0.95),
        prefix_hits: part(sum.prefix_blocks_hit, sum.prefix_blocks),
    }
}
