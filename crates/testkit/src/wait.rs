//! Waiting for something to be so, with a limit and a name for the report.

use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine with two cores, even one that wakes a sleeper a second
/// late; a test that reaches it has failed.
pub const PATIENCE: Duration = Duration::from_secs(180);

const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Asks until the answer is there.
#[track_caller]
pub fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(ASK_AGAIN);
    }
}

/// Asks until it is so.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    wait_for(what, limit, || is_so().then_some(()));
}
