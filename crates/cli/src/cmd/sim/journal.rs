//! Reads a cluster's own past. The journal may be in use, so a copy of it is read.

use std::fs::{File, TryLockError};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tutti_engine::Record;
use tutti_journal::{BoxError, Journal, JournalError, Options, RedbJournal, Replay, codec};
use tutti_model::{Policy, Seq, State};
use tutti_sim::cluster::Cluster;
use tutti_sim::trace::{History, Trace};

use crate::fail::{Fail, NOT_FOUND, chain};
use crate::session;

/// A copy may be torn by what is written meanwhile. So often it is made anew, with pauses.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// Where a journal is.
pub struct Place {
    pub file: PathBuf,
    /// `--cluster` said so, and not which nodes to use.
    pub named_by_cluster: bool,
}

/// The journal at `path`, a file or a data dir; else that of the cluster that `flag` names by its
/// data dir; else that of the variable, or of the default one.
pub fn locate(path: Option<&Path>, flag: Option<&str>) -> Result<Place, Fail> {
    let named = flag.filter(|f| path.is_none() && is_place(Path::new(f))).map(PathBuf::from);
    let named_by_cluster = named.is_some();
    let at = match path.map(Path::to_owned).or(named) {
        Some(at) => at,
        // A flag that is no place lists nodes; what the variable names is the cluster.
        None => {
            let variable = std::env::var("TUTTI_CLUSTER").ok().filter(|v| !v.is_empty());
            session::local_dir("sim --format journal", None, variable.as_deref())?
        }
    };
    let file = if at.is_dir() { at.join(tutti_controller::JOURNAL_FILE) } else { at };
    if file.is_file() {
        return Ok(Place { file, named_by_cluster });
    }
    let message = format!("there is no journal at {}", file.display());
    let exit = if path.is_some() { crate::fail::USAGE } else { NOT_FOUND };
    Err(Fail::new(message)
        .exit(exit)
        .hint("name the data dir of a cluster: tutti sim --format journal --trace DIR"))
}

/// A data dir or a journal, not a file that lists nodes.
fn is_place(path: &Path) -> bool {
    path.is_dir() || (path.is_file() && path.extension().is_none_or(|e| e != "toml"))
}

/// Jobs that still run have run until now if a controller writes this journal, else until its last
/// record.
pub fn read(file: &Path) -> Result<(Trace, Cluster, Arc<Policy>), Fail> {
    read_with(file, |from, to| std::fs::copy(from, to))
}

fn read_with(
    file: &Path,
    mut copy: impl FnMut(&Path, &Path) -> std::io::Result<u64>,
) -> Result<(Trace, Cluster, Arc<Policy>), Fail> {
    let mut last: Option<JournalError> = None;
    for _ in 0..TRIES {
        let in_use = in_use(file)?;
        let copy = Copy::of(file, &mut copy)?;
        let mut reader = Reader::default();
        let loaded = RedbJournal::open(&copy.path, &Options::default())
            .and_then(|mut journal| journal.load(&mut reader));
        match loaded {
            Ok(_) => {
                let at = reader.history.at();
                let now = if in_use { crate::show::time::now().max(at) } else { at };
                return Ok(reader.history.finish(now));
            }
            // Nobody wrote to it while it was copied: it is the journal itself that is wrong.
            Err(e) if !in_use && !copy.torn => {
                return Err(Fail::new(format!("{}: {}", file.display(), chain(&e))));
            }
            Err(e) => last = Some(e),
        }
        std::thread::sleep(PAUSE);
    }
    tracing::debug!(error = ?last, "the last copy could not be read");
    Err(Fail::new(format!(
        "{} is written to faster than it can be copied: {TRIES} copies were torn",
        file.display()
    ))
    .hint("try again when less is submitted, or stop the controller first"))
}

/// A controller holds a lock on its journal.
fn in_use(file: &Path) -> Result<bool, Fail> {
    let bad = |e: std::io::Error| Fail::new(format!("can't read {}: {e}", file.display()));
    match File::open(file).map_err(bad)?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(e)) => Err(bad(e)),
    }
}

/// Gone when dropped.
struct Copy {
    dir: PathBuf,
    path: PathBuf,
    /// A write was finished while it was made.
    torn: bool,
}

/// Where redb notes every finished write.
const HEAD: usize = 4096;

impl Copy {
    fn of(
        file: &Path,
        copy_file: impl FnOnce(&Path, &Path) -> std::io::Result<u64>,
    ) -> Result<Copy, Fail> {
        let bad = |what: &str, e: std::io::Error| Fail::new(format!("can't {what}: {e}"));
        let head = || head(file).map_err(|e| bad(&format!("read {}", file.display()), e));
        let dir = crate::local::temporary_dir("tutti-sim")?;
        let mut copy = Copy { path: dir.join("journal.redb"), dir, torn: false };
        let before = head()?;
        copy_file(file, &copy.path).map_err(|e| bad(&format!("copy {}", file.display()), e))?;
        copy.torn = head()? != before;
        Ok(copy)
    }
}

fn head(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEAD];
    let read = File::open(file)?.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.dir) {
            crate::terminal::warn(&format!("can't remove {}: {e}", self.dir.display()));
        }
    }
}

#[derive(Default)]
struct Reader {
    history: History,
}

impl Replay for Reader {
    fn snapshot(&mut self, _seq: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        self.history.snapshot(codec::decode::<State>(bytes)?);
        Ok(())
    }

    fn batch(&mut self, _first: Seq, _last: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        codec::decode::<Vec<Record>>(bytes)?.iter().for_each(|r| self.history.record(r));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
