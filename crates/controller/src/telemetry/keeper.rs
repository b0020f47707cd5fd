//! The thread that brings history back at the start, and writes it down once a minute and at the
//! end.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Store;
use super::file::Files;
use crate::clock::now;

/// A minute is over when its last samples are here.
const GRACE: u64 = 3;
const MINUTE: u64 = 60;

/// Dropping it without [`Keeper::stop`] loses at most the last minute.
pub struct Keeper {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Writes what is not written yet. May take as long as the disk does.
    pub fn stop(self) {
        // Refused only if it has ended.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("the thread that keeps telemetry broke off");
        }
    }
}

/// Starts the thread. Whatever is wrong with the files, the controller goes on without them.
pub fn keep(store: Arc<Store>, data_dir: &Path) -> std::io::Result<Keeper> {
    let (stop, stopped) = mpsc::channel();
    let data_dir = data_dir.to_owned();
    let thread = std::thread::Builder::new()
        .name("tutti-telemetry".to_owned())
        .spawn(move || run(&store, &data_dir, &stopped))?;
    Ok(Keeper { stop, thread })
}

fn run(store: &Store, data_dir: &Path, stopped: &mpsc::Receiver<()>) {
    let files = match Files::open(data_dir) {
        Ok(files) => files,
        Err(error) => {
            let error = crate::error::chain(&error);
            tracing::warn!("telemetry is kept in memory only: {error}");
            close_forever(store, stopped);
            return;
        }
    };
    store.take_over(files.load(seconds()));
    let mut complained = false;
    loop {
        let ended = wait(stopped);
        store.close(seconds().saturating_sub(GRACE));
        match files.save(store, seconds()) {
            Ok(()) => complained = false,
            Err(error) if !complained => {
                complained = true;
                let error = crate::error::chain(&error);
                tracing::warn!("telemetry can't be written down, trying on: {error}");
            }
            Err(_) => {}
        }
        if ended {
            return;
        }
    }
}

fn close_forever(store: &Store, stopped: &mpsc::Receiver<()>) {
    while !wait(stopped) {
        store.close(seconds().saturating_sub(GRACE));
    }
}

/// Until shortly after the next full minute; true if it is time to leave.
fn wait(stopped: &mpsc::Receiver<()>) -> bool {
    let left = MINUTE - (seconds().saturating_sub(GRACE + 1)) % MINUTE;
    match stopped.recv_timeout(Duration::from_secs(left)) {
        Err(RecvTimeoutError::Timeout) => false,
        Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
    }
}

fn seconds() -> u64 {
    now().0 / 1000
}
