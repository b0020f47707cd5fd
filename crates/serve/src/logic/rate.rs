//! How often something happens, lately.

use std::time::{Duration, Instant};

/// What is older than this counts for about a third, and so on.
const MEMORY: Duration = Duration::from_secs(10);

/// A count that fades.
#[derive(Clone, Debug)]
pub struct Rate {
    count: f64,
    at: Instant,
    began: Instant,
}

impl Rate {
    pub fn new(now: Instant) -> Self {
        Rate { count: 0.0, at: now, began: now }
    }

    pub fn count(&mut self, now: Instant) {
        self.count = self.faded(now) + 1.0;
        self.at = self.at.max(now);
    }

    /// None if it has not happened for long.
    pub fn per_second(&self, now: Instant) -> Option<f64> {
        let count = self.faded(now);
        if count < 0.1 {
            return None;
        }
        // Shortly after the beginning the window is not full yet.
        let age = now.saturating_duration_since(self.began).as_secs_f64() / MEMORY.as_secs_f64();
        let window = MEMORY.as_secs_f64() * (1.0 - (-age.max(0.01)).exp());
        Some(count / window)
    }

    fn faded(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.count * (-passed / MEMORY.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_of_late_is_found() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.per_second(start), None);
        let at = |ms: u64| start + Duration::from_millis(ms);
        (0..40).for_each(|n| rate.count(at(n * 250)));
        let early = rate.per_second(at(10_000)).unwrap();
        assert!((3.5..4.5).contains(&early), "{early}");
        (0..300).for_each(|n| rate.count(at(10_000 + n * 100)));
        let late = rate.per_second(at(40_000)).unwrap();
        assert!((9.0..11.0).contains(&late), "{late}");
        assert_eq!(rate.per_second(at(200_000)), None, "long ago says nothing");
    }
}
