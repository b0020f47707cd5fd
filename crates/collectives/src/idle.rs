//! How to wait when nothing moves: a little while at full attention, then asleep.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::sys;

/// Spinning saves the price of a wake-up, which is several times that of a small message. But the
/// rank that is waited for may need this very core: at once if there are more ranks than cores, and
/// after a moment in any case, because the system may have put both on one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Idle {
    crowded: bool,
    turns: u32,
    since: Option<Instant>,
}

/// How long to keep the core to itself.
const SPIN: Duration = Duration::from_micros(100);
/// How long to offer it to others between looks.
const YIELD: Duration = Duration::from_micros(200);
/// The same when it is known that others need it.
const YIELDS: u32 = 8;

impl Idle {
    pub fn new(crowded: bool) -> Self {
        Self { crowded, turns: 0, since: None }
    }

    /// More ranks than cores.
    pub fn is_crowded(&self) -> bool {
        self.crowded
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
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        if waited >= SPIN {
            std::thread::yield_now();
        }
        waited < YIELD
    }
}

/// On a busy machine two ranks that wait for each other may be put on one core, and stay there:
/// neither is ever seen to need another. The later one steps aside.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    together: Cell<u32>,
}

impl Aside {
    /// So often in a row is no accident.
    const LONG: u32 = 3;

    /// A rank that this one had to wait for ran on core `theirs`.
    pub fn met_on(&self, theirs: u32) {
        if theirs != sys::core() {
            return self.together.set(0);
        }
        self.together.set(self.together.get() + 1);
        if self.together.get() >= Self::LONG {
            self.together.set(0);
            sys::step_off(theirs);
        }
    }
}
