//! The processes under a shim. Because a shim adopts orphans, all that a part has started are its
//! descendants, however they forked; and when it has no child, nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tutti_model::ExitStatus;

/// Signals every descendant, and again as long as new ones turn up.
pub fn signal_all(signal: libc::c_int) {
    signal_others(signal, None);
}

/// The same, but for one child.
pub fn signal_others(signal: libc::c_int, except: Option<i32>) {
    let mut signalled: Vec<i32> = except.into_iter().collect();
    // A tree that forks faster than this sees it is met again at the next call.
    for _ in 0..8 {
        let fresh: Vec<i32> =
            descendants().into_iter().filter(|pid| !signalled.contains(pid)).collect();
        if fresh.is_empty() {
            return;
        }
        for &pid in &fresh {
            // SAFETY: a plain system call. Only our own children and theirs are named, and a
            // child's pid stays taken until we reap it.
            unsafe { libc::kill(pid, signal) };
        }
        signalled.extend(fresh);
    }
}

/// Signals the descendants that have a handler for it; false if there is none. Most signals kill a
/// process that does not listen, and the shell around a program that saves its work does not.
pub fn signal_listeners(signal: libc::c_int) -> bool {
    let listeners: Vec<i32> =
        descendants().into_iter().filter(|&pid| catches(pid, signal)).collect();
    for &pid in &listeners {
        // SAFETY: a plain system call; see `signal_all`.
        unsafe { libc::kill(pid, signal) };
    }
    !listeners.is_empty()
}

fn catches(pid: i32, signal: libc::c_int) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

pub fn descendants() -> Vec<i32> {
    below(std::process::id() as i32)
}

/// The process and all that it has started.
pub fn family(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    all.extend(below(pid));
    all
}

fn below(root: i32) -> Vec<i32> {
    let Some(mut queue) = children(root) else { return scan_descendants(root) };
    let mut all = Vec::new();
    while let Some(pid) = queue.pop() {
        queue.extend(children(pid).unwrap_or_default());
        all.push(pid);
    }
    all
}

/// Stopped, or gone.
pub fn is_still(pid: i32) -> bool {
    stat(pid).is_none_or(|stat| matches!(stat[0].as_str(), "T" | "t" | "Z" | "X"))
}

/// What the kernel lists for each thread; none where it was built without that list, or when the
/// process is gone.
fn children(pid: i32) -> Option<Vec<i32>> {
    let lists: Option<Vec<Vec<i32>>> = children_by_thread(pid)?.collect();
    Some(lists?.concat())
}

/// Thread by thread, for those who must be able to stop half way.
pub fn children_by_thread(pid: i32) -> Option<impl Iterator<Item = Option<Vec<i32>>>> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    Some(threads.map(|thread| {
        let list = fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        Some(list.split_whitespace().filter_map(|p| p.parse().ok()).collect())
    }))
}

/// Whether the kernel was built with lists of children.
pub fn lists_children() -> bool {
    let me = std::process::id();
    fs::exists(format!("/proc/{me}/task/{me}/children")).unwrap_or(false)
}

/// The same from every process's parent.
fn scan_descendants(root: i32) -> Vec<i32> {
    let parents: Vec<(i32, i32)> =
        all_pids().filter_map(|pid| Some((pid, parent_of(pid)?))).collect();
    descendants_by_parent(root, &parents)
}

/// Nearest first. Each pair is a process and its parent.
pub fn descendants_by_parent(root: i32, parents: &[(i32, i32)]) -> Vec<i32> {
    let mut by_parent: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for &(pid, parent) in parents {
        by_parent.entry(parent).or_default().push(pid);
    }
    let mut all = vec![root];
    let mut next = 0;
    while next < all.len() {
        // Taken out: pids that were given again while they were listed must not lead in circles.
        all.extend(by_parent.remove(&all[next]).unwrap_or_default());
        next += 1;
    }
    all.remove(0);
    all
}

pub fn all_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The process itself, its parent, and so on: as far as they live.
pub fn ancestry(pid: i32) -> impl Iterator<Item = i32> {
    // A process that moves while it is looked at must not lead in circles.
    std::iter::successors(Some(pid), |&pid| parent_of(pid)).take_while(|&pid| pid > 1).take(256)
}

pub fn parent_of(pid: i32) -> Option<i32> {
    stat(pid)?.get(1)?.parse().ok()
}

/// A child that has ended.
pub fn reap_one() -> Option<(i32, ExitStatus)> {
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    if pid <= 0 {
        return None;
    }
    let status = if libc::WIFSIGNALED(status) {
        ExitStatus::Signal(libc::WTERMSIG(status))
    } else {
        ExitStatus::Code(libc::WEXITSTATUS(status))
    };
    Some((pid, status))
}

/// No child, alive or waiting to be reaped.
pub fn childless() -> bool {
    // SAFETY: a zeroed siginfo is a valid place; WNOWAIT leaves the child as it is.
    let result = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_ALL, 0, &mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT)
    };
    result < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD)
}

/// Kills what a shim left behind when it was killed itself: the processes that carry the part's
/// mark in their environment.
pub struct Sweep {
    mark: Vec<u8>,
    /// Pid and start time. A process that is stuck on its way out, in a driver for instance, has
    /// no environment any more, but may still hold a GPU.
    met: BTreeSet<(i32, u64)>,
}

impl Sweep {
    pub fn new(mark: &str) -> Sweep {
        Sweep { mark: format!("TUTTI_PART={mark}").into_bytes(), met: BTreeSet::new() }
    }

    /// Kills all that are found. Returns how many live.
    pub fn pass(&mut self) -> usize {
        for pid in all_pids() {
            let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else { continue };
            if environ.split(|&b| b == 0).any(|var| var == self.mark) {
                self.met.extend(started(pid).map(|at| (pid, at)));
                // SAFETY: a plain system call.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
        }
        self.met.retain(|&(pid, at)| started(pid) == Some(at));
        self.met.len()
    }
}

/// When the process began, in the kernel's own units; none if it has ended.
fn started(pid: i32) -> Option<u64> {
    let stat = stat(pid)?;
    match stat.first()?.as_str() {
        "Z" | "X" => None,
        _ => stat.get(19)?.parse().ok(),
    }
}

/// The fields of the process's `stat` that follow its name.
fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may contain anything, brackets too.
    let (_, after_name) = stat.rsplit_once(") ")?;
    Some(after_name.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_sweep_kills_what_is_marked_and_says_when_it_is_gone() {
        let mark = format!("/sweep-test-{}", std::process::id());
        let mut marked = Command::new("sleep");
        let mut child = marked.arg("1000").env("TUTTI_PART", &mark).spawn().unwrap();
        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut sweep = Sweep::new(&mark);
        sweep.pass();
        // Dead, not reaped: nothing of it runs any more.
        child.wait().unwrap();
        assert_eq!(sweep.pass(), 0);
        assert!(started(other.id() as i32).is_some(), "left alone");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
