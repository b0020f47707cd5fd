//! Processes as `/proc` shows them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::wait_until;

/// One process; its start tells it from a later one with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proc {
    pub pid: i32,
    pub parent: i32,
    started: u64,
    /// The short name: `tutti`, `tutti-zygote`, `tutti-shim`, or the program of a rank.
    pub name: String,
    pub cmdline: String,
}

impl Proc {
    /// None if it is gone or only waits to be reaped.
    pub fn of(pid: i32) -> Option<Proc> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (head, tail) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split_whitespace().collect();
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        let cmdline = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some(Proc {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            name,
            cmdline: String::from_utf8_lossy(&cmdline).replace('\0', " "),
        })
    }

    pub fn is_alive(&self) -> bool {
        Proc::of(self.pid).is_some_and(|now| now.started == self.started)
    }

    pub fn signal(&self, signal: Signal) {
        if self.is_alive() {
            // Gone in between is no failure.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }
}

/// Every process that has the directory, or one below it, in its command line or environment, and
/// all that descend from those. Never the caller.
pub fn processes_of(dir: &Path) -> Vec<Proc> {
    let all = every_process();
    let needle = dir.as_os_str().as_encoded_bytes();
    let me = std::process::id() as i32;
    let mut found: BTreeMap<i32, &Proc> =
        all.iter().filter(|p| p.pid != me && mentions(p.pid, needle)).map(|p| (p.pid, p)).collect();
    loop {
        let before = found.len();
        for p in &all {
            if found.contains_key(&p.parent) {
                found.insert(p.pid, p);
            }
        }
        if found.len() == before {
            return found.into_values().cloned().collect();
        }
    }
}

/// SIGKILL to all of them, agents before what they watch, until none is left.
pub fn kill_processes(dir: &Path) {
    wait_until("every process is killed", Duration::from_secs(20), || {
        let mut left = processes_of(dir);
        left.sort_by_key(|p| (p.name != "tutti", p.pid));
        left.iter().for_each(|p| p.signal(Signal::SIGKILL));
        left.is_empty()
    });
}

fn every_process() -> Vec<Proc> {
    let entries = fs::read_dir("/proc").expect("/proc can be listed");
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter_map(Proc::of)
        .collect()
}

fn mentions(pid: i32, needle: &[u8]) -> bool {
    ["cmdline", "environ"].iter().any(|file| {
        let Ok(text) = fs::read(format!("/proc/{pid}/{file}")) else { return false };
        text.windows(needle.len()).enumerate().any(|(at, window)| {
            let after = text.get(at + needle.len());
            // `nodes/n1` is not `nodes/n12`.
            window == needle && !after.is_some_and(u8::is_ascii_alphanumeric)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_tree_is_found_by_its_directory_and_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "sleep 600 & sleep 600; true"])
            .env("MARK", dir.path().join("nodes/n1"))
            .spawn()
            .unwrap();
        wait_until("the children run", Duration::from_secs(20), || {
            processes_of(dir.path()).len() == 3
        });
        assert_eq!(processes_of(&dir.path().join("nodes/n1")).len(), 3);
        assert!(processes_of(&dir.path().join("nodes/n")).is_empty());
        kill_processes(dir.path());
        child.wait().unwrap();
        assert!(processes_of(dir.path()).is_empty());
    }
}
