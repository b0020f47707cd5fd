//! How to wait when nothing moves: a little while at full attention, then asleep.

use std::time::{Duration, Instant};

/// Spinning saves the price of a wake-up, which is several times that of a small message. With more
/// ranks than cores it only keeps the core from the rank that is waited for, so there it yields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    crowded: bool,
    turns: u32,
    since: Option<Instant>,
}

const SPIN: Duration = Duration::from_micros(50);
const YIELDS: u32 = 4;

impl Idle {
    pub fn new(crowded: bool) -> Self {
        Self { crowded, turns: 0, since: None }
    }

    pub fn reset(&mut self) {
        self.turns = 0;
        self.since = None;
    }

    /// One short wait; false once it is time to sleep.
    pub fn spin(&mut self) -> bool {
        self.turns += 1;
        if self.crowded {
            std::thread::yield_now();
            return self.turns <= YIELDS;
        }
        std::hint::spin_loop();
        // Reading the clock costs as much as a few turns.
        if !self.turns.is_multiple_of(16) {
            return true;
        }
        self.since.get_or_insert_with(Instant::now).elapsed() < SPIN
    }
}
