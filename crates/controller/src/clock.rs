//! The one place where the controller reads the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

use tutti_model::Time;

pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(since.as_millis() as u64)
}
