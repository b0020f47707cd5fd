//! The meter of a card, looked at once in a while: a look keeps the driver busy for 5 ms, more than
//! everything else of ten rounds. In between it goes on by the power that is drawn.

use std::time::Duration;

#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// What the card said last, in mJ.
    told: Option<u64>,
    /// That, and what was drawn since.
    reckoned: u64,
    /// Never less than before, as those who read meters expect.
    shown: u64,
    clock: Duration,
}

/// Longer than between two rounds: nobody knows what was drawn in that time.
const GAP: Duration = Duration::from_secs(5);

impl Meter {
    /// It has to be looked at, whoever's turn it is.
    pub fn is_stale(&self, clock: Duration) -> bool {
        self.told.is_none() || clock.saturating_sub(self.clock) > GAP
    }

    pub fn looked(&mut self, mj: u64, clock: Duration) {
        // The driver was loaded again, and the card counts from zero.
        if self.told.is_none_or(|before| mj < before) {
            self.shown = mj;
        }
        (self.told, self.reckoned, self.clock) = (Some(mj), mj, clock);
    }

    /// In mJ. None until it was looked at.
    pub fn shows(&mut self, power_mw: Option<u32>, clock: Duration) -> Option<u64> {
        self.told?;
        let since = clock.saturating_sub(self.clock).as_secs_f64();
        self.reckoned += (f64::from(power_mw.unwrap_or(0)) * since) as u64;
        self.clock = clock;
        self.shown = self.shown.max(self.reckoned);
        Some(self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_by_power_and_never_back() {
        let at = Duration::from_secs;
        let mut meter = Meter::default();
        assert_eq!(meter.shows(Some(500), at(0)), None, "nobody looked yet");
        assert!(meter.is_stale(at(0)));
        meter.looked(1000, at(1));
        assert_eq!(meter.shows(Some(500), at(1)), Some(1000));
        assert_eq!(meter.shows(Some(500), at(3)), Some(2000));
        assert!(!meter.is_stale(at(4)) && meter.is_stale(at(60)), "the card was away");
        assert_eq!(meter.shows(None, at(4)), Some(2000), "no power was told");
        meter.looked(1900, at(5));
        assert_eq!(meter.shows(Some(50), at(5)), Some(2000), "it was reckoned too high");
        assert_eq!(meter.shows(Some(50), at(8)), Some(2050));
        meter.looked(7, at(9));
        assert_eq!(meter.shows(Some(50), at(9)), Some(7), "the driver was loaded again");
    }
}
