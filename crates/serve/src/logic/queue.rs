//! The waiting room: bounded, and fair between keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::rate::Rate;
use super::who::Who;

/// Told to wait at least and at most this long.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// When nothing has left yet.
const RETRY_UNKNOWN: Duration = Duration::from_secs(5);

/// The line of all who have no key.
const KEYLESS: u32 = 0;

/// One who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    key: u32,
    round: u64,
    number: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Offered<T> {
    /// It waits. Somebody of a key with more may have lost the place for it: refuse that one with 429.
    Waits { ticket: Ticket, pushed_out: Option<PushedOut<T>> },
    /// There is no place.
    Refused { item: T, retry_after: Duration },
}

#[derive(Debug, PartialEq, Eq)]
pub struct PushedOut<T> {
    pub item: T,
    pub retry_after: Duration,
}

struct Waiter<T> {
    who: Who,
    item: T,
    deadline: Instant,
}

/// Those who wait in a line come in rounds, in each of which everybody has one turn; within a round and
/// within a line that is one key's, it is first come, first served.
struct Line<T> {
    /// By round and number.
    waiters: BTreeMap<(u64, u64), Waiter<T>>,
    /// Who waits, how often, and in which round for the last time.
    parts: BTreeMap<Who, (u64, u64)>,
    /// That is being served.
    round: u64,
    turn: u64,
}

impl<T> Line<T> {
    fn next_round(&self, who: Who) -> u64 {
        let (waiting, last) = self.parts.get(&who).copied().unwrap_or_default();
        (self.round + waiting).max(last)
    }
}

/// Keys take turns; inside a key it is first come, first served. Everybody without a key is together in a
/// line like a key's, in which addresses take turns. When the room is full, a key with less than its fair
/// part takes a place from the newest of the key that holds most, and an address with less than another
/// from that one. Every call takes time logarithmic in those who wait.
pub struct FairQueue<T> {
    capacity: usize,
    len: usize,
    lines: BTreeMap<u32, Line<T>>,
    /// Whose turn is next: keys with somebody waiting, by turn.
    turns: BTreeSet<(u64, u32)>,
    /// Who holds most.
    by_size: BTreeSet<(usize, u32)>,
    deadlines: BTreeSet<(Instant, Ticket)>,
    next_number: u64,
    next_turn: u64,
    departures: Rate,
    /// Found too late by `take`; they wait for nothing but `expire` or `cancel`.
    late: BTreeMap<Ticket, T>,
}

impl<T> FairQueue<T> {
    pub fn new(capacity: usize, now: Instant) -> Self {
        FairQueue {
            capacity,
            len: 0,
            lines: BTreeMap::new(),
            turns: BTreeSet::new(),
            by_size: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            next_number: 0,
            next_turn: 0,
            departures: Rate::new(now),
            late: BTreeMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many of this key wait.
    pub fn held_by(&self, key: u32) -> usize {
        self.lines.get(&key).map_or(0, |line| line.waiters.len())
    }

    /// A smaller one pushes nobody out; it only takes nobody in until there is a place.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    pub fn offer(&mut self, who: Who, item: T, deadline: Instant, now: Instant) -> Offered<T> {
        let key = match who {
            Who::Key(number) => number,
            Who::Address(_) => KEYLESS,
        };
        let mut pushed_out = None;
        if self.len >= self.capacity {
            let made = self.make_place_for(key).or_else(|| self.make_place_within(key, who));
            match made {
                Some((other, item)) => {
                    let retry_after = self.retry_after(other, now);
                    pushed_out = Some(PushedOut { item, retry_after });
                }
                None => return Offered::Refused { item, retry_after: self.retry_after(key, now) },
            }
        }
        let round = self.lines.get(&key).map_or(0, |line| line.next_round(who));
        let ticket = Ticket { key, round, number: self.next_number };
        self.next_number += 1;
        self.insert(ticket, Waiter { who, item, deadline });
        Offered::Waits { ticket, pushed_out }
    }

    /// The next to run. Those whose deadline has passed are left to [`FairQueue::expire`].
    pub fn take(&mut self, now: Instant) -> Option<T> {
        loop {
            let &(_, key) = self.turns.first()?;
            let line = self.lines.get(&key).expect("whoever has a turn has a line");
            let (&(round, number), waiter) =
                line.waiters.first_key_value().expect("a line that is empty is removed");
            let in_time = waiter.deadline > now;
            let ticket = Ticket { key, round, number };
            let item = self.remove(ticket)?;
            if in_time {
                self.departures.count(now);
                self.end_turn(ticket);
                return Some(item);
            }
            self.late.insert(ticket, item);
        }
    }

    /// Gives up the place. None if it has left already.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        self.remove(ticket).or_else(|| self.late.remove(&ticket))
    }

    /// All whose deadline has passed. To be called every now and then, at [`FairQueue::next_deadline`] or
    /// more often, unless everybody who waits looks at the clock and cancels.
    pub fn expire(&mut self, now: Instant) -> Vec<T> {
        let mut late: Vec<T> = std::mem::take(&mut self.late).into_values().collect();
        while let Some(&(deadline, ticket)) = self.deadlines.first()
            && deadline <= now
        {
            late.extend(self.remove(ticket));
        }
        late
    }

    /// When the next one expires.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// How long until one more of this key would have had its turn, by the pace of late.
    pub fn retry_after(&self, key: u32, now: Instant) -> Duration {
        let (least, most) = RETRY_AFTER;
        let keys = self.lines.len().max(1);
        let before = (self.held_by(key) + 1).saturating_mul(keys).min(self.len + 1);
        match self.departures.per_second(now) {
            Some(pace) => {
                Duration::from_secs_f64((before as f64 / pace).min(1e6)).clamp(least, most)
            }
            None => RETRY_UNKNOWN,
        }
    }

    /// Takes a place from the key that holds most, if this one has less than its part and would not have
    /// as much as that one then.
    fn make_place_for(&mut self, key: u32) -> Option<(u32, T)> {
        let held = self.held_by(key);
        let keys = self.lines.len() + usize::from(held == 0);
        let fair = (self.capacity / keys.max(1)).max(1);
        let &(most, largest) = self.by_size.last()?;
        if held >= fair || most <= held + 1 {
            return None;
        }
        let (round, number) = *self.lines.get(&largest)?.waiters.last_key_value()?.0;
        let item = self.remove(Ticket { key: largest, round, number })?;
        Some((largest, item))
    }

    /// Takes the last place of a line for somebody whose turn in it would come rounds before.
    fn make_place_within(&mut self, key: u32, who: Who) -> Option<(u32, T)> {
        let line = self.lines.get(&key)?;
        let (round, number) = *line.waiters.last_key_value()?.0;
        if round <= line.next_round(who) {
            return None;
        }
        let item = self.remove(Ticket { key, round, number })?;
        Some((key, item))
    }

    fn insert(&mut self, ticket: Ticket, waiter: Waiter<T>) {
        self.deadlines.insert((waiter.deadline, ticket));
        let next_turn = &mut self.next_turn;
        let turns = &mut self.turns;
        let line = self.lines.entry(ticket.key).or_insert_with(|| {
            *next_turn += 1;
            turns.insert((*next_turn, ticket.key));
            Line { waiters: BTreeMap::new(), parts: BTreeMap::new(), round: 0, turn: *next_turn }
        });
        self.by_size.remove(&(line.waiters.len(), ticket.key));
        let (waiting, last) = line.parts.entry(waiter.who).or_default();
        (*waiting, *last) = (*waiting + 1, ticket.round);
        line.waiters.insert((ticket.round, ticket.number), waiter);
        self.by_size.insert((line.waiters.len(), ticket.key));
        self.len += 1;
    }

    fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let line = self.lines.get_mut(&ticket.key)?;
        let waiter = line.waiters.remove(&(ticket.round, ticket.number))?;
        let left = line.waiters.len();
        if let Some((waiting, _)) = line.parts.get_mut(&waiter.who) {
            *waiting -= 1;
            if *waiting == 0 {
                line.parts.remove(&waiter.who);
            }
        }
        self.deadlines.remove(&(waiter.deadline, ticket));
        self.by_size.remove(&(left + 1, ticket.key));
        self.len -= 1;
        if left == 0 {
            self.turns.remove(&(line.turn, ticket.key));
            self.lines.remove(&ticket.key);
        } else {
            self.by_size.insert((left, ticket.key));
        }
        Some(waiter.item)
    }

    fn end_turn(&mut self, served: Ticket) {
        if let Some(line) = self.lines.get_mut(&served.key) {
            self.turns.remove(&(line.turn, served.key));
            self.next_turn += 1;
            (line.turn, line.round) = (self.next_turn, served.round);
            self.turns.insert((line.turn, served.key));
        }
    }
}

#[cfg(test)]
mod tests;
