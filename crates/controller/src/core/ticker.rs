//! Tells the engine that time has passed: when it asked to be woken, and at least once a second.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tutti_engine::Command;
use tutti_model::Time;

use super::Request;
use crate::clock::now;

const TICK_MAX: Duration = Duration::from_secs(1);

/// A wake-up that is already due must not become a busy loop.
const TICK_MIN: Duration = Duration::from_millis(2);

pub(super) async fn run(
    queue: mpsc::WeakSender<Request>,
    mut wakeup: watch::Receiver<Option<Time>>,
) {
    let mut latest = tokio::time::Instant::now() + TICK_MAX;
    loop {
        let wanted = *wakeup.borrow_and_update();
        let wait = wanted.map_or(TICK_MAX, |at| Duration::from_millis(at.since(now()).0));
        let at = (tokio::time::Instant::now() + wait.max(TICK_MIN)).min(latest);
        tokio::select! {
            () = tokio::time::sleep_until(at) => {}
            changed = wakeup.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        }
        let Some(queue) = queue.upgrade() else { return };
        if queue.send(Request::Tell(vec![Command::Tick])).await.is_err() {
            return;
        }
        latest = tokio::time::Instant::now() + TICK_MAX;
    }
}
