//! How long a client waits for its controller, and whom it tells that it does.
//!
//! ```text
//! 0 s ────── 3 s ─────────────────────────── limit
//!  asked      Notice: "waiting for …"         Silent: exit 75
//! ```
//! What is expected to take a while (`wait`, a check of GPUs) gets that while on top of both.

use std::sync::Arc;
use std::time::Duration;

use ureq::unversioned::transport::{NextTimeout, Transport};

/// Until somebody is told that an answer takes long.
const NOTICE_AFTER: Duration = Duration::from_secs(3);
const ANSWER_MAX: Duration = Duration::from_secs(30);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A stream of the controller says something at least this often, if only that it is there.
const STREAM_BEAT: Duration = Duration::from_secs(5);

/// Called with the controller's address when an answer takes long. At most once for an answer.
pub type Notice = fn(&str);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the beginning of an answer, and again for the rest of it.
    pub answer: Duration,
    pub notice: Option<Notice>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { answer: ANSWER_MAX, notice: None }
    }
}

impl Limits {
    pub(super) fn connect(&self) -> Duration {
        self.answer.min(CONNECT_MAX)
    }

    /// Between two signs of life of a stream.
    pub(super) fn silence(&self) -> Duration {
        self.answer + STREAM_BEAT
    }
}

/// Tells of an answer that takes long, from inside the wait for it.
#[derive(Clone, Debug)]
pub(super) struct Watcher {
    limits: Limits,
    endpoint: Arc<str>,
}

impl Watcher {
    pub fn new(limits: Limits, endpoint: &str) -> Self {
        Watcher { limits, endpoint: endpoint.into() }
    }

    /// Waits for input in two steps, if there is somebody to tell between them.
    pub fn await_input<T: Transport>(
        &self,
        inner: &mut T,
        timeout: NextTimeout,
    ) -> Result<bool, ureq::Error> {
        let (Some(notice), Some(quiet)) = (self.limits.notice, self.quiet(timeout)) else {
            return inner.await_input(timeout);
        };
        let left = timeout.for_read().after.saturating_sub(quiet);
        match inner.await_input(NextTimeout { after: exactly(quiet), ..timeout }) {
            Err(error) if is_timeout(&error) => notice(&self.endpoint),
            done => return done,
        }
        let reason = timeout.for_read().reason;
        inner.await_input(NextTimeout { after: exactly(left), reason, ..timeout })
    }

    /// How long to wait before somebody is told; none if nobody is to be told, or was already. A limit
    /// that was made longer makes this longer, too.
    fn quiet(&self, timeout: NextTimeout) -> Option<Duration> {
        let read = timeout.for_read();
        let after_notice = self.limits.answer.checked_sub(NOTICE_AFTER)?;
        if read.after.is_not_happening() || after_notice.is_zero() {
            return None;
        }
        read.after.checked_sub(after_notice).filter(|quiet| !quiet.is_zero())
    }
}

fn exactly(span: Duration) -> ureq::unversioned::transport::time::Duration {
    ureq::unversioned::transport::time::Duration::Exact(span)
}

/// Nothing came in time, as the layers below say it.
pub(super) fn is_timeout(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Timeout(_) => true,
        ureq::Error::Io(e) => io_is_timeout(e),
        _ => false,
    }
}

pub(super) fn io_is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock)
        || error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<ureq::Error>())
            .is_some_and(|inner| matches!(inner, ureq::Error::Timeout(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::Timeout;

    fn told(_: &str) {}

    fn watcher(answer: u64) -> Watcher {
        let limits = Limits { answer: Duration::from_secs(answer), notice: Some(told) };
        Watcher::new(limits, "head:7171")
    }

    fn left(secs: u64) -> NextTimeout {
        let after = exactly(Duration::from_secs(secs));
        NextTimeout { after, reason: Timeout::RecvResponse, ..NextTimeout::default() }
    }

    #[test]
    fn a_notice_comes_three_seconds_after_the_answer_was_due() {
        let quiet = |answer, after| watcher(answer).quiet(left(after)).map(|q| q.as_secs());
        assert_eq!(quiet(30, 30), Some(3));
        // One that may take a minute more.
        assert_eq!(quiet(30, 90), Some(63));
        // It was told before.
        assert_eq!(quiet(30, 27), None);
        assert_eq!(quiet(30, 5), None);
        assert_eq!(quiet(3, 3), None);
        assert_eq!(watcher(30).quiet(NextTimeout::default()), None);
        let stream = NextTimeout {
            per_read: Some(exactly(Duration::from_secs(35))),
            ..NextTimeout::default()
        };
        assert_eq!(watcher(30).quiet(stream), Some(Duration::from_secs(8)));
    }
}
