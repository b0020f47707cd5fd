//! Leases that this node was told to stop before it knew them, kept over restarts.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use tutti_model::{Generation, LeaseId};

/// An order that is later than this many others is not late but lost.
const KEEP: usize = 4096;

#[derive(Debug)]
pub struct Barred {
    path: PathBuf,
    leases: Vec<LeaseId>,
}

impl Barred {
    pub fn open(path: PathBuf) -> io::Result<Barred> {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e),
        };
        // A last line that a crash cut off is an order that was never answered.
        let leases = text.lines().filter_map(parse).collect();
        Ok(Barred { path, leases })
    }

    pub fn leases(&self) -> impl Iterator<Item = LeaseId> + '_ {
        self.leases.iter().copied()
    }

    pub fn add(&mut self, lease: LeaseId) -> io::Result<()> {
        self.leases.push(lease);
        if self.leases.len() > 2 * KEEP {
            self.leases.drain(..KEEP);
            return self.rewrite();
        }
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.path)?;
        file.write_all(format!("{lease}\n").as_bytes())
    }

    fn rewrite(&self) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let text: String = self.leases.iter().map(|l| format!("{l}\n")).collect();
        fs::write(&fresh, text)?;
        fs::rename(&fresh, &self.path)
    }
}

fn parse(line: &str) -> Option<LeaseId> {
    let (task, generation) = line.split_once('@')?;
    Some(LeaseId { task: task.parse().ok()?, generation: Generation(generation.parse().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TempDir, launch};

    #[test]
    fn what_is_barred_stays_barred_and_the_file_stays_small() {
        let dir = TempDir::new("barred");
        let path = dir.path().join("barred");
        let mut barred = Barred::open(path.clone()).unwrap();
        for g in 0..10_000 {
            barred.add(launch("1_2", g).lease).unwrap();
        }
        let again = Barred::open(path).unwrap();
        assert_eq!(again.leases, barred.leases);
        assert!(again.leases.len() <= 2 * KEEP);
        assert_eq!(again.leases.last(), Some(&launch("1_2", 9_999).lease));
    }
}
