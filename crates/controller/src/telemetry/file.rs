//! The files: one for every ten minutes of seconds and every six hours of minutes, appended to once
//! a minute and removed when they are older than what is kept.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::segment::{self, Rows, SegmentError, Tier};
use super::track::{MINUTES, SECONDS, Track};
use super::{Of, Store, lock};

pub const DIR: &str = "telemetry";

/// Ending of the name of what can't be read.
const DAMAGED: &str = ".damaged";

const TIERS: [Tier; 2] = [Tier::Seconds, Tier::Minutes];

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Tier::Seconds => "seconds",
            Tier::Minutes => "minutes",
        }
    }

    /// Seconds that one file covers, and that all of them are kept for.
    fn covers(self) -> (u64, u64) {
        match self {
            Tier::Seconds => (600, SECONDS as u64),
            Tier::Minutes => (6 * 3600, MINUTES as u64 * 60),
        }
    }
}

pub struct Files {
    dir: PathBuf,
}

#[derive(Debug, thiserror::Error)]
#[error("can't {what} {}", path.display())]
pub struct FileError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError { what, path, source }
}

impl Files {
    pub fn open(data_dir: &Path) -> Result<Files, FileError> {
        use std::os::unix::fs::DirBuilderExt;
        let dir = data_dir.join(DIR);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(failed("make", &dir))?;
        Ok(Files { dir })
    }

    /// Everything that is still worth keeping. A file that can't be read to its end is mended.
    pub fn load(&self, now: u64) -> BTreeMap<String, BTreeMap<Of, Track>> {
        let mut loaded = BTreeMap::new();
        for tier in TIERS {
            for (start, path) in self.list(tier) {
                if !is_old(tier, start, now) {
                    self.load_one(&path, tier, &mut loaded);
                }
            }
        }
        let tracks = loaded.values_mut().flat_map(BTreeMap::values_mut);
        tracks.for_each(|track: &mut Track| {
            let newest = |ring: &super::ring::Ring| ring.newest().unwrap_or(0);
            track.saved = (newest(&track.seconds), newest(&track.minutes));
        });
        loaded
    }

    fn load_one(
        &self,
        path: &Path,
        tier: Tier,
        loaded: &mut BTreeMap<String, BTreeMap<Of, Track>>,
    ) {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "telemetry can't be read");
                return;
            }
        };
        let read = segment::read(&bytes, tier, |rows| {
            let tracks = loaded.entry(rows.node).or_default();
            let track = tracks.entry(rows.of).or_insert_with(|| Track::new(rows.of.layout()));
            let (ring, width) = match tier {
                Tier::Seconds => (&mut track.seconds, rows.of.layout().width),
                Tier::Minutes => (&mut track.minutes, 2 * rows.of.layout().width),
            };
            for (row, slot) in rows.bytes.chunks_exact(width).zip(rows.first..) {
                if row.iter().any(|&byte| byte != super::ring::EMPTY) {
                    ring.put(slot, row);
                }
            }
        });
        match read {
            Ok(()) => {}
            // It goes when it is old.
            Err(error @ SegmentError::Other(_)) => {
                tracing::info!(path = %path.display(), "telemetry is left out: {error}");
            }
            Err(error) => mend(path, error, &bytes),
        }
    }

    /// Appends what came since the last time, and removes what is too old.
    pub fn save(&self, store: &Store, now: u64) -> Result<(), FileError> {
        for tier in TIERS {
            let rows = unsaved(store, tier);
            if !rows.is_empty() {
                self.append(tier, now, &segment::record(&rows, tier))?;
                mark_saved(store, &rows, tier);
            }
            for (start, path) in self.list(tier).into_iter().chain(self.damaged(tier)) {
                if is_old(tier, start, now) {
                    fs::remove_file(&path).map_err(failed("remove", &path))?;
                }
            }
        }
        Ok(())
    }

    fn append(&self, tier: Tier, now: u64, record: &[u8]) -> Result<(), FileError> {
        let (covers, _) = tier.covers();
        let start = now / covers * covers;
        let path = self.dir.join(format!("{}-{start}", tier.name()));
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(failed("open", &path))?;
        let length = file.metadata().map_err(failed("look at", &path))?.len();
        let mut bytes = if length == 0 { segment::head(tier) } else { Vec::new() };
        bytes.extend(record);
        file.write_all(&bytes).map_err(|error| {
            // A part of a record in the middle would spoil what comes after it.
            let _ = file.set_len(length);
            failed("write", &path)(error)
        })
    }

    fn list(&self, tier: Tier) -> Vec<(u64, PathBuf)> {
        self.named(tier, "")
    }

    /// Those that were set aside.
    fn damaged(&self, tier: Tier) -> Vec<(u64, PathBuf)> {
        self.named(tier, DAMAGED)
    }

    /// By when they start.
    fn named(&self, tier: Tier, ending: &str) -> Vec<(u64, PathBuf)> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut found: Vec<(u64, PathBuf)> = entries
            .filter_map(|entry| {
                let name = entry.file_name();
                let start = name.to_str()?.strip_prefix(tier.name())?.strip_prefix('-')?;
                Some((start.strip_suffix(ending)?.parse().ok()?, entry.path()))
            })
            .collect();
        found.sort();
        found
    }
}

fn is_old(tier: Tier, start: u64, now: u64) -> bool {
    let (covers, keep) = tier.covers();
    start + covers + keep < now
}

/// Cuts off what can't be read: behind it nothing could be either. A record that was being written when
/// the power went is nobody's; of real damage a copy stays, for whoever wants to look.
fn mend(path: &Path, error: SegmentError, bytes: &[u8]) {
    let mut aside = path.as_os_str().to_owned();
    aside.push(DAMAGED);
    let aside = PathBuf::from(aside);
    let done = match error.whole() {
        Some(whole) if matches!(error, SegmentError::CutOff(_)) => cut(path, whole),
        Some(whole) => fs::write(&aside, bytes).and_then(|()| cut(path, whole)),
        None => fs::rename(path, &aside),
    };
    let file = path.display();
    match (done, error) {
        (Err(why), _) => tracing::warn!("telemetry in {file}: {error}; it can't be mended: {why}"),
        (Ok(()), SegmentError::CutOff(_)) => {
            tracing::info!("telemetry in {file}: {error}; what came before is kept");
        }
        (Ok(()), _) => tracing::warn!(
            "telemetry in {file}: {error}; what came before is kept, all of it is in {}",
            aside.display()
        ),
    }
}

fn cut(path: &Path, whole: usize) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.set_len(whole as u64)
}

/// What the files don't have yet.
fn unsaved(store: &Store, tier: Tier) -> Vec<Rows> {
    let mut all = Vec::new();
    for (node, book) in store.books() {
        let book = lock(&book);
        for (of, track) in &book.tracks {
            let (ring, saved) = match tier {
                Tier::Seconds => (&track.seconds, track.saved.0),
                Tier::Minutes => (&track.minutes, track.saved.1),
            };
            let Some((oldest, newest)) = ring.range() else { continue };
            let first = oldest.max(saved + 1);
            if first > newest {
                continue;
            }
            let empty = vec![super::ring::EMPTY; tier_width(tier, *of)];
            let bytes = (first..=newest).flat_map(|slot| ring.get(slot).unwrap_or(&empty).to_vec());
            all.push(Rows { node: node.clone(), of: *of, first, bytes: bytes.collect() });
        }
    }
    all
}

fn tier_width(tier: Tier, of: Of) -> usize {
    match tier {
        Tier::Seconds => of.layout().width,
        Tier::Minutes => 2 * of.layout().width,
    }
}

fn mark_saved(store: &Store, rows: &[Rows], tier: Tier) {
    for rows in rows {
        let Some(book) = store.known(&rows.node) else { continue };
        let count = (rows.bytes.len() / tier_width(tier, rows.of)) as u64;
        let last = rows.first + count - 1;
        if let Some(track) = lock(&book).tracks.get_mut(&rows.of) {
            match tier {
                Tier::Seconds => track.saved.0 = last,
                Tier::Minutes => track.saved.1 = last,
            }
        }
    }
}
