//! The one place where the controller reads the wall clock, or the clock of a simulation.

use std::sync::{Mutex, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tutti_model::{Span, Time};

use crate::lock::lock;

/// Set once a simulated cluster is shown by this process; then no real one is.
static STAGED: OnceLock<Mutex<Staged>> = OnceLock::new();

#[derive(Clone, Copy, Debug)]
struct Staged {
    at: Time,
    since: Instant,
    pace: f64,
}

impl Staged {
    fn time(&self, elapsed_ms: f64) -> Time {
        self.at.plus(Span((elapsed_ms * self.pace) as u64))
    }
}

pub fn now() -> Time {
    if let Some(staged) = STAGED.get() {
        let staged = *lock(staged);
        return staged.time(staged.since.elapsed().as_secs_f64() * 1000.0);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(since.as_millis() as u64)
}

/// From here on it is `at`, and time goes `pace` times as fast as outside; 0 stands still.
pub fn stage(at: Time, pace: f64) {
    let staged = Staged { at, since: Instant::now(), pace };
    *lock(STAGED.get_or_init(|| Mutex::new(staged))) = staged;
}

/// How fast the clock of a simulation goes; none if the time is real.
pub fn pace() -> Option<f64> {
    STAGED.get().map(|staged| lock(staged).pace)
}

/// How old something may be that is told once in a while, where time goes faster too.
pub fn patience(usual: Span) -> Span {
    Span((usual.0 as f64 * pace().unwrap_or(1.0).max(1.0)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_time_stands_still_or_runs() {
        let staged = |pace| Staged { at: Time(1_000), since: Instant::now(), pace };
        assert_eq!(staged(0.0).time(5_000.0), Time(1_000));
        assert_eq!(staged(60.0).time(500.0), Time(31_000));
        assert_eq!(staged(0.5).time(500.0), Time(1_250));
    }
}
