//! The boundary to redb: its errors become ours, and so do its panics. redb asserts what it
//! believes of its own pages, so a damaged file can make it panic where it should say so.

use std::any::Any;
use std::cell::RefCell;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::JournalError;

#[derive(Clone, Debug)]
pub(crate) struct Guard {
    path: PathBuf,
}

impl Guard {
    pub fn new(path: PathBuf) -> Guard {
        Guard { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Nothing of ours may run inside: a panic would be blamed on the file. After a panic the
    /// database behind `work` is not used again but to be closed.
    pub fn run<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce() -> Result<T, redb::Error>,
    ) -> Result<T, JournalError> {
        match quietly(work) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.of_redb(doing, error)),
            Err(panic) => Err(self.damaged(format!("redb gave up: {panic}"))),
        }
    }

    /// Closing can panic too, when what is closed is damaged or a panic came before.
    pub fn close(&self, db: redb::Database) -> Result<(), JournalError> {
        self.run("closing", move || {
            drop(db);
            Ok(())
        })
    }

    pub fn damaged(&self, what: impl Into<String>) -> JournalError {
        JournalError::Damaged { path: self.path.clone(), what: what.into() }
    }

    pub fn of_io(&self, doing: &'static str, source: std::io::Error) -> JournalError {
        let path = self.path.clone();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                JournalError::DiskFull { path, source }
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                JournalError::Permission { path, source }
            }
            ErrorKind::UnexpectedEof => self.damaged("the file ends too early"),
            _ => JournalError::Io { doing, path, source },
        }
    }

    fn of_redb(&self, doing: &'static str, error: redb::Error) -> JournalError {
        use redb::Error as E;
        let path = self.path.clone();
        match error {
            E::Io(source) => self.of_io(doing, source),
            E::DatabaseAlreadyOpen => JournalError::InUse { path },
            E::Corrupted(what) => self.damaged(what),
            E::UpgradeRequired(found) => JournalError::OlderFormat { path, found: found.into() },
            E::ValueTooLarge(bytes) => JournalError::TooLarge { bytes },
            E::PreviousIo | E::DatabaseClosed | E::LockPoisoned(_) => JournalError::Broken,
            E::TableTypeMismatch { .. }
            | E::TableIsMultimap(_)
            | E::TableIsNotMultimap(_)
            | E::TableDoesNotExist(_)
            | E::TypeDefinitionChanged { .. } => {
                JournalError::NotAJournal { path, found: error.to_string() }
            }
            other => JournalError::Store { doing, path, source: Box::new(other) },
        }
    }

    /// Held until the file is closed. redb takes the same lock again on the same file.
    pub fn lock(&self, file: &File) -> Result<(), JournalError> {
        self.of_lock(file.try_lock())
    }

    fn of_lock(&self, taken: Result<(), TryLockError>) -> Result<(), JournalError> {
        match taken {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(JournalError::InUse { path: self.path.clone() }),
            Err(TryLockError::Error(e)) => Err(self.of_io("locking", e)),
        }
    }
}

pub(crate) fn lock_shared(guard: &Guard, file: &File) -> Result<(), JournalError> {
    guard.of_lock(file.try_lock_shared())
}

thread_local! {
    /// Where the last panic was, while this thread is inside [`quietly`].
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Turns a panic into text. It is told to nobody else: people should read one error that says
/// what to do, not a backtrace through somebody's B-tree before it.
fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = PANIC.with_borrow_mut(|at| match at {
                Some(at) => {
                    *at = info.location().map_or_else(String::new, |l| format!(" ({l})"));
                    true
                }
                None => false,
            });
            if !ours {
                before(info);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(work));
    let place = PANIC.take().unwrap_or_default();
    outcome.map_err(|panic| format!("{}{place}", panic_text(&*panic)))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(s), _) => s,
        (_, Some(s)) => s,
        _ => "without saying why",
    }
}
