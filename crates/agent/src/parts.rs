//! Part records on disk: what makes a part start at most once, and its end known after a crash.
//!
//! One file per part, whose name says how far it is. Renaming is the only way forward, and only
//! one process can win it:
//!
//! ```text
//! 12_3@7.prepared ──agent──► 12_3@7.launch ──shim, holding a lock──► 12_3@7.running
//!                                  └───────agent: never again──────► (removed)
//! ```
//!
//! The file holds the launch as one frame; the shim appends the end as a second one. The shim
//! locks the file before it renames it and keeps the lock while it lives, so `running` without a
//! lock is a shim that died. A lock can't be mistaken for another process's, as a pid can.
//!
//! Records of forgotten parts are kept as spares, emptied, and written over: making and removing a file for
//! every short job would cost more than the rest of the agent's work.
//!
//! Nothing is synced: what a crash of the whole machine loses has no process left either.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tutti_model::{Generation, Launch, LeaseId};

use crate::frames::{self, Inbox};
use crate::messages::End;
use crate::suspend::Level;

#[derive(Debug, thiserror::Error)]
pub enum PartsError {
    #[error("can't {verb} {path}")]
    Io {
        verb: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What the first frame says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub launch: Launch,
    /// Free on this node for the gang's rendezvous when the part was prepared.
    pub port: u16,
}

/// A part as a starting agent finds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub record: Record,
    pub state: FoundState,
    /// What its shim wrote down, if it was ever suspended.
    pub level: Option<Level>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FoundState {
    Prepared,
    /// The zygote was asked, or was about to be; no shim has claimed it.
    Unclaimed,
    Alive,
    /// The shim died without writing an end.
    Dead,
    Ended(End),
}

/// What became of a part whose shim is no longer heard.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    Unclaimed,
    Alive,
    Dead,
    Ended(End),
}

/// Ending of the file that says how far a part is with being suspended.
const LEVEL: &str = "level";

/// More are not kept; that many parts rarely end between two that start.
const SPARES: usize = 256;
/// How long a shim waits for the last owner of a reused record to let go of it.
const CLAIM_TRIES: u32 = 2000;

#[derive(Debug)]
pub struct Parts {
    dir: PathBuf,
    /// Names of files that may be written over.
    spares: Vec<PathBuf>,
    spares_made: u64,
}

impl Parts {
    pub fn open(dir: PathBuf) -> Result<Parts, PartsError> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed("make", &dir))?;
        Ok(Parts { dir, spares: Vec::new(), spares_made: 0 })
    }

    /// The path without its ending. Also marks every process of the part in its environment.
    pub fn stem(&self, lease: LeaseId) -> PathBuf {
        self.dir.join(lease.to_string())
    }

    pub fn write_prepared(&mut self, record: &Record) -> Result<(), PartsError> {
        self.write(record, "prepared")
    }

    pub fn write_launch(&mut self, record: &Record) -> Result<(), PartsError> {
        self.write(record, "launch")
    }

    fn write(&mut self, record: &Record, ending: &str) -> Result<(), PartsError> {
        let path = with_ending(&self.stem(record.launch.lease), ending);
        let mut bytes = Vec::with_capacity(1024);
        frames::put(&mut bytes, record);
        match self.spares.pop() {
            Some(spare) => write_over(&spare, &bytes)
                .and_then(|()| std::fs::rename(&spare, &path))
                .map_err(failed("write", &path)),
            None => OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path)
                .and_then(|mut f| f.write_all(&bytes))
                .map_err(failed("write", &path)),
        }
    }

    /// Prepared becomes ready to be claimed.
    pub fn release(&self, lease: LeaseId) -> Result<(), PartsError> {
        let stem = self.stem(lease);
        let from = with_ending(&stem, "prepared");
        std::fs::rename(&from, with_ending(&stem, "launch")).map_err(failed("rename", &from))
    }

    /// Takes an unclaimed part away from any shim that may still come. False: a shim was first.
    pub fn revoke(&self, lease: LeaseId) -> Result<bool, PartsError> {
        let path = with_ending(&self.stem(lease), "launch");
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(failed("remove", &path)(e)),
        }
    }

    pub fn remove(&mut self, lease: LeaseId) -> Result<(), PartsError> {
        let stem = self.stem(lease);
        let level = with_ending(&stem, LEVEL);
        match std::fs::remove_file(&level) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &level)(e));
            }
            _ => {}
        }
        for ending in ["running", "prepared", "launch"] {
            let path = with_ending(&stem, ending);
            match self.retire(&path) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(failed("remove", &path)(e)),
            }
        }
        Ok(())
    }

    fn retire(&mut self, path: &Path) -> io::Result<()> {
        if self.spares.len() >= SPARES {
            return std::fs::remove_file(path);
        }
        let spare = self.dir.join(format!("{}.spare", self.spares_made));
        std::fs::rename(path, &spare)?;
        self.spares_made += 1;
        match empty(&spare) {
            Ok(()) => self.spares.push(spare),
            Err(_) => std::fs::remove_file(&spare)?,
        }
        Ok(())
    }

    /// Looks at one part again.
    pub fn fate(&self, lease: LeaseId) -> Result<Fate, PartsError> {
        let path = with_ending(&self.stem(lease), "running");
        let mut claimed = open_if_there(&path)?;
        if claimed.is_none() {
            let launch = with_ending(&self.stem(lease), "launch");
            if launch.try_exists().map_err(failed("look for", &launch))? {
                return Ok(Fate::Unclaimed);
            }
            // A shim may have claimed it between the two looks.
            claimed = open_if_there(&path)?;
        }
        let Some(file) = claimed else { return Ok(Fate::Dead) };
        // The order matters: a shim writes its end before it lets go of the lock.
        let held = is_locked(&file).map_err(failed("look at the lock of", &path))?;
        let (_, end) = read_frames(file).map_err(failed("read", &path))?;
        Ok(match end {
            Some(end) => Fate::Ended(end),
            None if held => Fate::Alive,
            None => Fate::Dead,
        })
    }

    /// Everything on disk, by lease. A record that was cut off while it was written never
    /// reached a zygote, so it is removed.
    pub fn scan(&self) -> Result<BTreeMap<LeaseId, Found>, PartsError> {
        // The last agent's shims may still be claiming parts, and a name that changes while the
        // directory is read can be missed. So it is read until two readings agree.
        let mut names = self.names()?;
        loop {
            let again = self.names()?;
            if again == names {
                break;
            }
            names = again;
        }
        let mut found = BTreeMap::new();
        for path in names {
            if let Some((lease, part)) = scan_one(&path)? {
                found.insert(lease, part);
            }
        }
        Ok(found)
    }

    fn names(&self) -> Result<BTreeSet<PathBuf>, PartsError> {
        let entries = std::fs::read_dir(&self.dir).map_err(failed("list", &self.dir))?;
        let paths = entries.map(|entry| entry.map(|e| e.path()));
        paths.collect::<io::Result<_>>().map_err(failed("list", &self.dir))
    }
}

fn open_if_there(path: &Path) -> Result<Option<File>, PartsError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed("open", path)(e)),
    }
}

/// The length is set last and is never 0 in between: truncating to nothing makes some file systems
/// write the file out when it is closed.
fn write_over(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)
}

/// Nothing of a job stays behind: its record has its whole environment, secrets too. One byte does, of
/// the frame's length, for the reason that [`write_over`] gives.
fn empty(path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(1)
}

fn scan_one(path: &Path) -> Result<Option<(LeaseId, Found)>, PartsError> {
    if path.extension().is_some_and(|e| e == "spare") {
        std::fs::remove_file(path).map_err(failed("remove", path))?;
        return Ok(None);
    }
    let Some((lease, ending)) = parse_name(path) else { return Ok(None) };
    let file = match File::open(path) {
        Ok(file) => file,
        // Claimed since it was listed.
        Err(e) if e.kind() == io::ErrorKind::NotFound && ending == "launch" => {
            return scan_one(&path.with_extension("running"));
        }
        Err(e) => return Err(failed("open", path)(e)),
    };
    let held = ending == "running" && is_locked(&file).map_err(failed("look at", path))?;
    let (record, end) = read_frames(file).map_err(failed("read", path))?;
    let Some(record) = record else {
        tracing::warn!("the part record {} is cut off; removed", path.display());
        std::fs::remove_file(path).map_err(failed("remove", path))?;
        return Ok(None);
    };
    let state = match (ending, end) {
        ("prepared", _) => FoundState::Prepared,
        ("launch", _) => FoundState::Unclaimed,
        (_, Some(end)) => FoundState::Ended(end),
        (_, None) if held => FoundState::Alive,
        (_, None) => FoundState::Dead,
    };
    let level = read_level(&path.with_extension(LEVEL))?;
    Ok(Some((lease, Found { record, state, level })))
}

/// Beside the part's record, while it is not simply running where it began. Whole, or not there.
pub fn write_level(stem: &Path, level: &Level) -> io::Result<()> {
    let mut bytes = Vec::new();
    frames::put(&mut bytes, level);
    let fresh = with_ending(stem, "level-new");
    std::fs::write(&fresh, &bytes)?;
    std::fs::rename(&fresh, with_ending(stem, LEVEL))
}

fn read_level(path: &Path) -> Result<Option<Level>, PartsError> {
    let Some(mut file) = open_if_there(path)? else { return Ok(None) };
    let mut inbox = Inbox::default();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed("read", path))?;
    inbox.push(&bytes);
    inbox.next().map_err(|e| failed("read", path)(io::Error::other(e)))
}

/// The shim's hold on its part. Dropping it, by any way of dying, lets go.
pub struct Claim {
    file: File,
}

impl Claim {
    /// Takes the part, or says that somebody else has it or that it was revoked.
    pub fn take(stem: &Path) -> io::Result<Option<Claim>> {
        let launch = with_ending(stem, "launch");
        for _ in 0..CLAIM_TRIES {
            let file = match OpenOptions::new().read(true).append(true).open(&launch) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(e),
            };
            // Held, but not renamed: the last owner of this file is on its way out, or another
            // shim is about to win.
            if !lock(&file)? {
                std::thread::sleep(std::time::Duration::from_millis(1));
                continue;
            }
            return match std::fs::rename(&launch, with_ending(stem, "running")) {
                Ok(()) => Ok(Some(Claim { file })),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(e),
            };
        }
        Ok(None)
    }

    pub fn write_end(&mut self, end: &End) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(128);
        frames::put(&mut bytes, end);
        self.file.write_all(&bytes)
    }
}

fn read_frames(mut file: File) -> io::Result<(Option<Record>, Option<End>)> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let mut inbox = Inbox::default();
    inbox.push(&bytes);
    let record = inbox.next().map_err(io::Error::other)?;
    let end = if record.is_some() { inbox.next().map_err(io::Error::other)? } else { None };
    Ok((record, end))
}

/// `12_3@7.running`.
fn parse_name(path: &Path) -> Option<(LeaseId, &str)> {
    let (lease, ending) = path.file_name()?.to_str()?.rsplit_once('.')?;
    let (task, generation) = lease.split_once('@')?;
    let lease =
        LeaseId { task: task.parse().ok()?, generation: Generation(generation.parse().ok()?) };
    matches!(ending, "prepared" | "launch" | "running").then_some((lease, ending))
}

fn with_ending(stem: &Path, ending: &str) -> PathBuf {
    let mut path = stem.as_os_str().to_owned();
    path.push(".");
    path.push(ending);
    path.into()
}

fn failed(verb: &'static str, path: &Path) -> impl Fn(io::Error) -> PartsError {
    let path = path.to_owned();
    move |source| PartsError::Io { verb, path: path.clone(), source }
}

/// A POSIX lock: the kernel drops it when its process dies, and a forked child does not share it.
fn lock(file: &File) -> io::Result<bool> {
    let lock = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open and `lock` outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        e => Err(e),
    }
}

/// Whether another process holds the lock.
fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open and `lock` is a valid place to write the answer to.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: all fields are plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

#[cfg(test)]
mod tests;
