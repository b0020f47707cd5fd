//! A coarse clock of one connection: says how long nothing has moved, without a timer per request.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Counts ticks in which nothing moved. What is said of a time holds to within two ticks, and is never
/// too early.
pub struct Ticker {
    sleep: Pin<Box<Sleep>>,
    period: Duration,
    moved: bool,
    still: u32,
}

impl Ticker {
    pub fn new(period: Duration) -> Self {
        Ticker { sleep: Box::pin(sleep(period)), period, moved: true, still: 0 }
    }

    /// Something moved.
    pub fn moved(&mut self) {
        self.moved = true;
    }

    /// Something else is waited for from now on.
    pub fn restart(&mut self) {
        self.moved = true;
        self.still = 0;
    }

    /// True if nothing has moved for so long; else the task is woken at the next tick.
    pub fn poll_still(&mut self, limit: Duration, cx: &mut Context<'_>) -> bool {
        while self.sleep.as_mut().poll(cx).is_ready() {
            self.sleep.as_mut().reset(Instant::now() + self.period);
            if self.moved {
                self.moved = false;
                self.still = 0;
            } else {
                self.still += 1;
            }
        }
        self.period * self.still >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_never_too_early_and_at_most_two_ticks_late() {
        let mut ticker = Ticker::new(Duration::from_millis(10));
        let limit = Duration::from_millis(50);
        let began = Instant::now();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            ticker.moved();
            let late = std::future::poll_fn(|cx| ticker.poll_still(limit, cx).into_ready()).await;
            assert!(!late);
        }
        let moved_at = Instant::now();
        std::future::poll_fn(|cx| match ticker.poll_still(limit, cx) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        })
        .await;
        let took = moved_at.elapsed();
        assert!(took >= limit && took <= limit + Duration::from_millis(25), "{took:?}");
        assert!(began.elapsed() > Duration::from_millis(600));
    }

    trait IntoReady: Sized {
        fn into_ready(self) -> std::task::Poll<Self> {
            std::task::Poll::Ready(self)
        }
    }
    impl IntoReady for bool {}
}
