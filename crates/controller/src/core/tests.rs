//! Nothing is said before it is durable, and nothing goes on after the disk failed.

use std::sync::mpsc;
use std::time::Duration;

use tutti_engine::{Engine, Settings};
use tutti_journal::{Batch, Journal, Loaded, MemoryJournal, Replay};
use tutti_model::{Grant, Role, Time, Token};

use super::*;
use crate::links::Links;

/// Appends only when told to, or fails.
struct Gate {
    inner: MemoryJournal,
    /// One word per append: write, or fail.
    words: mpsc::Receiver<bool>,
}

impl Journal for Gate {
    fn load(&mut self, replay: &mut dyn Replay) -> Result<Loaded, JournalError> {
        self.inner.load(replay)
    }
    fn append(&mut self, batch: &Batch) -> Result<(), JournalError> {
        match self.words.recv() {
            Ok(true) => self.inner.append(batch),
            _ => Err(JournalError::Broken),
        }
    }
    fn write_snapshot(&mut self, seq: Seq, bytes: &[u8]) -> Result<(), JournalError> {
        self.inner.write_snapshot(seq, bytes)
    }
    fn stats(&self) -> Result<Stats, JournalError> {
        self.inner.stats()
    }
}

fn gated() -> (Started, mpsc::Sender<bool>) {
    let (words, gate) = mpsc::channel();
    let journal = Gate { inner: MemoryJournal::default(), words: gate };
    let world = World::new(Engine::new(Settings::default()));
    let links = Arc::new(Links::new(crate::links::GangKeys::fixed(1)));
    let started = start(world, Box::new(journal), links, SnapshotRule::default()).unwrap();
    (started, words)
}

fn add_token() -> Command {
    let token = Token {
        id: "t".into(),
        hash: String::new(),
        grant: Grant::Join { node: None, uses: None },
        created_at: Time(0),
        created_by: "a".into(),
        expires_at: None,
    };
    let actor = tutti_engine::Actor { user: "a".into(), role: Role::Admin };
    Command::AddToken { actor, token }
}

async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(100), future).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_and_reads_wait_for_the_disk() {
    let (Started { core, ended: _ended }, words) = gated();
    let call = tokio::spawn({
        let core = core.clone();
        async move { core.call(add_token()).await }
    });
    // In memory it is there at once; nobody is told.
    while core.peek(|w| w.engine.state().tokens.is_empty()).unwrap() {
        tokio::task::yield_now().await;
    }
    let count = |w: &World| w.engine.state().tokens.len();
    assert!(soon(core.read(count)).await.is_none());
    assert!(!call.is_finished());
    words.send(true).unwrap();
    assert_eq!(core.read(count).await, Ok(1));
    assert_eq!(call.await.unwrap().unwrap(), Reply::Done);
    core.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_append_ends_everything() {
    let (Started { core, ended }, words) = gated();
    words.send(false).unwrap();
    let call = core.call(add_token()).await;
    assert!(matches!(call, Err(CallError::Stopped(Stopped))));
    assert!(matches!(ended.await, Ok(Err(CoreError::Append(JournalError::Broken)))));
    assert_eq!(core.read(|w| w.engine.state().seq).await, Err(Stopped));
    assert!(matches!(core.call(Command::Tick).await, Err(CallError::Stopped(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_queued_before_the_stop_is_done() {
    let (Started { core, ended }, words) = gated();
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let core = core.clone();
            tokio::spawn(async move { core.call(add_token()).await })
        })
        .collect();
    (0..20).for_each(|_| words.send(true).unwrap());
    for call in calls {
        call.await.unwrap().unwrap();
    }
    core.stop().await;
    assert!(matches!(ended.await, Ok(Ok(()))));
}
