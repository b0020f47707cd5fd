//! Which second a sample belongs to. Nodes' clocks may be wrong, and the network is at times slow:
//! samples keep the distances that their node gave them, and sit where the quickest of them came.

use tutti_model::Time;

/// A node's clock that is off by more than before has been set.
const JUMP_MS: i64 = 5_000;

#[derive(Clone, Copy, Debug, Default)]
pub struct Aligned {
    /// Our clock less the node's, of the sample that came quickest.
    offset: Option<i64>,
}

impl Aligned {
    /// In seconds since 1970, by our clock.
    pub fn second(&mut self, at: Time, now: Time) -> u64 {
        // A node may say that it is any time at all.
        let millis = |time: Time| i64::try_from(time.0).unwrap_or(i64::MAX);
        let offset = millis(now).saturating_sub(millis(at));
        let best = match self.offset {
            Some(best) if offset.saturating_sub(best) < JUMP_MS => best.min(offset),
            _ => offset,
        };
        self.offset = Some(best);
        millis(at).saturating_add(best).max(0) as u64 / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(samples: &[(u64, u64)]) -> Vec<u64> {
        let mut aligned = Aligned::default();
        samples.iter().map(|&(at, now)| aligned.second(Time(at), Time(now))).collect()
    }

    #[test]
    fn late_samples_keep_their_distance() {
        // The node's clock is 100 s behind; the third sample waits 900 ms on its way.
        let samples = [(5_500, 105_550), (6_500, 106_550), (7_500, 108_450), (8_500, 108_550)];
        assert_eq!(seconds(&samples), [105, 106, 107, 108]);
    }

    #[test]
    fn a_clock_may_say_anything() {
        let samples = [(u64::MAX, 50_000), (0, 51_000), (1 << 63, 52_000), (1, 53_000)];
        assert_eq!(seconds(&samples), [50, 51, 52, 53]);
    }

    #[test]
    fn a_clock_that_is_set_is_followed() {
        let samples = [(1_000, 50_000), (2_000, 51_000), (90_000, 52_000), (1_500, 53_000)];
        assert_eq!(seconds(&samples), [50, 51, 52, 53]);
    }
}
