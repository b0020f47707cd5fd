//! Reads a cluster's own past. The journal may be in use, so a copy of it is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tutti_engine::Record;
use tutti_journal::{BoxError, Journal, JournalError, Options, RedbJournal, Replay, codec};
use tutti_model::{Policy, Seq, State};
use tutti_sim::cluster::Cluster;
use tutti_sim::trace::{History, Trace};

use crate::fail::{Fail, NOT_FOUND, chain};
use crate::session;

/// The journal at `path`, a file or a data dir; else that of the cluster that `flag` names.
pub fn read(
    path: Option<&Path>,
    flag: Option<&str>,
) -> Result<(Trace, Cluster, Arc<Policy>), Fail> {
    let file = locate(path, flag)?;
    let copy = Copy::of(&file)?;
    let mut reader = Reader::default();
    let loaded = RedbJournal::open(&copy.path, &Options::default())
        .and_then(|mut journal| journal.load(&mut reader));
    loaded.map_err(|e: JournalError| Fail::new(format!("{}: {}", file.display(), chain(&e))))?;
    Ok(reader.history.finish())
}

fn locate(path: Option<&Path>, flag: Option<&str>) -> Result<PathBuf, Fail> {
    let given = path.map(Path::to_owned).or_else(|| flag.map(PathBuf::from));
    let at = given.unwrap_or_else(session::data_dir);
    let file = if at.is_dir() { at.join(tutti_controller::JOURNAL_FILE) } else { at };
    if file.is_file() {
        return Ok(file);
    }
    Err(Fail::new(format!("there is no journal at {}", file.display()))
        .exit(NOT_FOUND)
        .hint("name the data dir of a cluster: tutti sim --format journal --trace DIR"))
}

/// Gone when dropped.
struct Copy {
    dir: PathBuf,
    path: PathBuf,
}

impl Copy {
    fn of(file: &Path) -> Result<Copy, Fail> {
        let bad = |what: &str, e: std::io::Error| Fail::new(format!("can't {what}: {e}"));
        let dir = std::env::temp_dir().join(format!("tutti-sim-{}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|e| bad(&format!("make {}", dir.display()), e))?;
        let copy = Copy { path: dir.join("journal.redb"), dir };
        std::fs::copy(file, &copy.path).map_err(|e| bad(&format!("copy {}", file.display()), e))?;
        Ok(copy)
    }
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
