//! Rates from counters: the difference of two readings over the time between them.

use std::time::Duration;

/// A counter that is read again and again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    last: Option<(u64, Duration)>,
}

impl Rate {
    /// Per second since the last reading; 0 at the first, and when the counter has started anew.
    pub fn of(&mut self, count: u64, clock: Duration) -> u64 {
        self.since(count, clock).unwrap_or(0)
    }

    /// None at the first reading, and when the counter has started anew.
    pub fn since(&mut self, count: u64, clock: Duration) -> Option<u64> {
        let (before, then) = self.last.replace((count, clock))?;
        let more = count.checked_sub(before)?;
        let secs = clock.checked_sub(then)?.as_secs_f64();
        (secs > 0.0).then(|| (more as f64 / secs) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_readings_and_survives_a_reset() {
        let mut rate = Rate::default();
        let at = Duration::from_millis;
        assert_eq!(rate.since(1000, at(0)), None);
        assert_eq!(rate.since(3000, at(500)), Some(4000));
        assert_eq!(rate.since(10, at(1000)), None, "the driver was loaded again");
        assert_eq!(rate.of(20, at(2000)), 10);
        assert_eq!(rate.of(30, at(2000)), 0, "no time has passed");
    }
}
