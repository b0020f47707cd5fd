//! Which sockets the processes of a part have: found by one walk over them, however many are looked for, and
//! within bounds, because a job may have any number of processes and open files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::time::{Duration, Instant};

use crate::shim::tree;

/// What a search may cost. A step is a thread, or an open file, that is looked at.
#[derive(Debug)]
pub struct Budget {
    steps: usize,
    until: Instant,
}

/// It was not enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent;

impl Budget {
    pub fn new(steps: usize, within: Duration) -> Budget {
        Budget { steps, until: Instant::now() + within }
    }

    fn spend(&mut self) -> Result<(), Spent> {
        self.steps = self.steps.checked_sub(1).ok_or(Spent)?;
        if Instant::now() < self.until { Ok(()) } else { Err(Spent) }
    }
}

type Inode = u64;

/// An open file of a process, by which it has a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub pid: i32,
    pub fd: i32,
}

/// The kernel's tables of processes; tests imagine others. All that is named here may be gone a moment later.
pub trait Processes {
    /// Whether the kernel keeps lists of children.
    fn lists_children(&self) -> bool;
    /// For each of its threads, the processes that it has started.
    fn children(&self, pid: i32) -> impl Iterator<Item = Vec<i32>>;
    /// All processes and their parents.
    fn parents(&self) -> impl Iterator<Item = (i32, i32)>;
    /// Itself first.
    fn ancestry(&self, pid: i32) -> impl Iterator<Item = i32>;
    /// All open files, with the inode of those that are sockets.
    fn files(&self, pid: i32) -> impl Iterator<Item = (i32, Option<Inode>)>;
    fn socket(&self, place: Place) -> Option<Inode>;
}

/// Which of the wanted sockets processes below the shim have, and where they are. What was known is looked at
/// first. When the budget is spent, `known` has what was found by then.
pub fn find(
    processes: &impl Processes,
    shim: i32,
    wanted: &BTreeSet<Inode>,
    known: &mut BTreeMap<Inode, Place>,
    budget: &mut Budget,
) -> Result<(), Spent> {
    let before = std::mem::take(known);
    for (inode, place) in before.into_iter().filter(|(inode, _)| wanted.contains(inode)) {
        budget.spend()?;
        if processes.socket(place) == Some(inode) && descends(processes, place.pid, shim, budget)? {
            known.insert(inode, place);
        }
    }
    let mut missing: BTreeSet<Inode> =
        wanted.iter().copied().filter(|inode| !known.contains_key(inode)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut family = Family::new(processes, shim, budget)?;
    while let Some(pid) = family.next(budget)? {
        for (fd, inode) in processes.files(pid) {
            budget.spend()?;
            let Some(inode) = inode.filter(|inode| missing.contains(inode)) else { continue };
            // The process may have ended since it was listed, and its number be another's by now.
            if !descends(processes, pid, shim, budget)? {
                break;
            }
            known.insert(inode, Place { pid, fd });
            missing.remove(&inode);
            if missing.is_empty() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn descends(
    processes: &impl Processes,
    pid: i32,
    shim: i32,
    budget: &mut Budget,
) -> Result<bool, Spent> {
    for above in processes.ancestry(pid) {
        budget.spend()?;
        if above == shim {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A process and all below it, nearest first.
struct Family<'a, P> {
    processes: &'a P,
    queue: VecDeque<i32>,
    /// The queue has them all.
    listed: bool,
}

impl<'a, P: Processes> Family<'a, P> {
    fn new(processes: &'a P, shim: i32, budget: &mut Budget) -> Result<Family<'a, P>, Spent> {
        let mut queue = VecDeque::from([shim]);
        let listed = !processes.lists_children();
        if listed {
            let mut parents = Vec::new();
            for pair in processes.parents() {
                budget.spend()?;
                parents.push(pair);
            }
            queue.extend(tree::descendants_by_parent(shim, &parents));
        }
        Ok(Family { processes, queue, listed })
    }

    fn next(&mut self, budget: &mut Budget) -> Result<Option<i32>, Spent> {
        let Some(pid) = self.queue.pop_front() else { return Ok(None) };
        budget.spend()?;
        if !self.listed {
            for children in self.processes.children(pid) {
                budget.spend()?;
                self.queue.extend(children);
            }
        }
        Ok(Some(pid))
    }
}

/// Who has this socket, of those that may have it.
pub fn find_anywhere(
    processes: &impl Processes,
    inode: Inode,
    may_have: impl Fn(i32) -> bool,
    budget: &mut Budget,
) -> Result<Option<i32>, Spent> {
    for pid in tree::all_pids() {
        budget.spend()?;
        if !may_have(pid) {
            continue;
        }
        for (_, found) in processes.files(pid) {
            budget.spend()?;
            if found == Some(inode) {
                return Ok(Some(pid));
            }
        }
    }
    Ok(None)
}

/// `/proc`.
pub struct Kernel;

impl Processes for Kernel {
    fn lists_children(&self) -> bool {
        tree::lists_children()
    }

    /// A process that is gone has none.
    fn children(&self, pid: i32) -> impl Iterator<Item = Vec<i32>> {
        tree::children_by_thread(pid).into_iter().flatten().map(Option::unwrap_or_default)
    }

    fn parents(&self) -> impl Iterator<Item = (i32, i32)> {
        tree::all_pids().filter_map(|pid| Some((pid, tree::parent_of(pid)?)))
    }

    fn ancestry(&self, pid: i32) -> impl Iterator<Item = i32> {
        tree::ancestry(pid)
    }

    /// What can't be read has none that we know of.
    fn files(&self, pid: i32) -> impl Iterator<Item = (i32, Option<Inode>)> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let fd = entry.file_name().to_str()?.parse().ok()?;
            Some((fd, self.socket(Place { pid, fd })))
        })
    }

    fn socket(&self, Place { pid, fd }: Place) -> Option<Inode> {
        let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    }
}
