//! The output of ranks on disk: one line per record, in segments that are never renamed.
//!
//! ```text
//! logs/12_3/1/0.log            bytes 0..        "1731650000123 o hello\n"
//! logs/12_3/1/0.log.67108864   bytes 67108864..  the number is where the segment begins
//! ```
//!
//! A record is `<unix_ms> <stream> <text>\n`. The stream is `o` or `e`; upper case means that no
//! newline followed the text yet, so that prompts and progress bars are seen at once and nothing
//! is added to what a program wrote. Because a segment's name says where it begins, offsets go on
//! over rotation, and reader and writer need no lock between them.

pub mod prune;
pub mod read;
pub mod record;
pub mod write;

use std::path::{Path, PathBuf};

use tutti_model::{Rank, TaskId};

/// When a rank's log begins a new segment, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LogLimits {
    pub segment_bytes: u64,
    pub segments: u32,
}

impl Default for LogLimits {
    fn default() -> Self {
        LogLimits { segment_bytes: 64 << 20, segments: 4 }
    }
}

/// Where the logs of one attempt are.
pub fn attempt_dir(logs: &Path, task: TaskId, attempt: u32) -> PathBuf {
    logs.join(task.to_string()).join(attempt.to_string())
}

fn segment_path(dir: &Path, rank: Rank, base: u64) -> PathBuf {
    match base {
        0 => dir.join(format!("{rank}.log")),
        base => dir.join(format!("{rank}.log.{base}")),
    }
}

/// The bases of a rank's segments, in order. None where nothing was written yet.
fn segments(dir: &Path, rank: Rank) -> std::io::Result<Vec<u64>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let first = format!("{rank}.log");
    let mut bases = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let Some(rest) = name.to_str().and_then(|n| n.strip_prefix(&first)) else { continue };
        if rest.is_empty() {
            bases.push(0);
        } else if let Some(base) = rest.strip_prefix('.').and_then(|b| b.parse().ok()) {
            bases.push(base);
        }
    }
    bases.sort_unstable();
    Ok(bases)
}
