//! Checkpoints that a job has reported, or that were registered for it: known by name, whoever wrote
//! them. What they are is found out here, from where the question is asked.

use std::fs;
use std::io;
use std::path::Path;

use tutti_checkpoint::{Acting, Options, Store};
use tutti_model::{SavedPoint, Time};
use tutti_wire::api::JobDetail;

/// One that no manifest describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub step: u64,
    pub at: Option<Time>,
    pub path: Option<String>,
    /// Where the ranks that reported it ran.
    pub node: Option<String>,
    pub standing: Standing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is here, and nobody has hashed it.
    NotHashed { files: usize, bytes: u64 },
    /// The directory that it was in is here; it is not.
    Gone,
    /// Nothing of that path is here: it is on another machine, or somewhere else altogether.
    NotSeen,
}

impl Standing {
    pub fn word(&self) -> &'static str {
        match self {
            Standing::NotHashed { .. } => "not_hashed",
            Standing::Gone => "gone",
            Standing::NotSeen => "not_seen",
        }
    }
}

/// Where the manifests of a job are, or would be.
pub fn home_of(job: &JobDetail, acting: &Acting) -> Option<String> {
    let declared = job.spec.checkpoint.as_ref().map(|c| from_job(job, &c.dir));
    let reported = job.checkpoints.iter().rev().filter_map(|p| place(job, p));
    let mut candidates: Vec<String> = declared.iter().cloned().collect();
    for path in reported {
        let above = parent(&path);
        for candidate in std::iter::once(path).chain(above) {
            if !candidates.contains(&candidate) {
                candidates.push(candidate);
            }
        }
    }
    let has_some = |at: &&String| holds_steps(at, acting);
    let with_manifests = candidates.iter().find(has_some).cloned();
    with_manifests.or(declared).or_else(|| {
        let newest = job.checkpoints.iter().rev().find_map(|p| place(job, p))?;
        parent(&newest).or(Some(newest))
    })
}

fn holds_steps(location: &str, acting: &Acting) -> bool {
    let options = Options { acting: acting.clone(), ..Options::default() };
    let found = Store::open(location, options).and_then(|store| store.list());
    found.is_ok_and(|listed| !listed.is_empty())
}

fn parent(path: &str) -> Option<String> {
    if path.contains("://") {
        return None;
    }
    let above = Path::new(path).parent().filter(|p| !p.as_os_str().is_empty())?;
    above.to_str().map(str::to_owned)
}

fn place(job: &JobDetail, point: &SavedPoint) -> Option<String> {
    point.path.as_ref().map(|path| from_job(job, path))
}

/// A relative path is meant from where the job runs.
fn from_job(job: &JobDetail, path: &str) -> String {
    if path.contains("://") || path.starts_with('/') {
        return path.to_owned();
    }
    match &job.spec.workdir {
        Some(dir) => format!("{}/{path}", dir.trim_end_matches('/')),
        None => path.to_owned(),
    }
}

/// What was reported and has no manifest among those listed, oldest first. Older ones that are gone
/// are left out: their job has removed them.
pub fn unlisted(job: &JobDetail, listed: &[u64], acting: &Acting) -> Vec<Known> {
    let newest = job.checkpoints.iter().map(|p| p.step).max();
    let mut found: Vec<Known> = job
        .checkpoints
        .iter()
        .filter(|point| !listed.contains(&point.step))
        .map(|point| look(job, point, acting))
        .filter(|known| known.standing != Standing::Gone || Some(known.step) == newest)
        .collect();
    found.sort_by_key(|known| known.step);
    found
}

fn look(job: &JobDetail, point: &SavedPoint, acting: &Acting) -> Known {
    let path = place(job, point);
    let standing = match path.as_deref().filter(|p| !p.contains("://")).map(Path::new) {
        None => Standing::NotSeen,
        Some(path) if holds_manifests(path, acting) => Standing::Gone,
        Some(path) => acting.run(|| standing(path)).unwrap_or(Standing::NotSeen),
    };
    Known { step: point.step, at: point.at, path, node: point.node.clone(), standing }
}

fn standing(path: &Path) -> Standing {
    match measure(path) {
        // What was in it was removed, or taken elsewhere.
        Ok((0, _)) => Standing::Gone,
        Ok((files, bytes)) => Standing::NotHashed { files, bytes },
        Err(_) if path.parent().is_some_and(Path::is_dir) => Standing::Gone,
        Err(_) => Standing::NotSeen,
    }
}

/// A place of ours: a step that it does not have was removed.
fn holds_manifests(path: &Path, acting: &Acting) -> bool {
    path.to_str().is_some_and(|path| holds_steps(path, acting))
}

/// Files and bytes of a directory, or of a file.
fn measure(path: &Path) -> io::Result<(usize, u64)> {
    let about = fs::metadata(path)?;
    if !about.is_dir() {
        return Ok((1, about.len()));
    }
    let mut sum = (0, 0);
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let (files, bytes) = match (kind.is_dir(), kind.is_file()) {
            (true, _) => measure(&entry.path())?,
            (_, true) => (1, entry.metadata()?.len()),
            _ => (0, 0),
        };
        sum = (sum.0 + files, sum.1 + bytes);
    }
    Ok(sum)
}
