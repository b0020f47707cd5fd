//! Whose sockets are on a port, by the kernel's own tables: which listen or connect where, and by
//! `/proc/PID/fd` which process has them. A part's processes are those below its shim, which
//! adopts all orphans; what a process says of itself, in its environment for instance, counts for nothing.
//!
//! ```text
//!  sockets that listen on the port ─► of the part's user? ─► held below its shim? ─► judge ─► PortOwner
//!  all others on it ────────────────► of the part's user? ──────────────────────────► judge
//! ```
//!
//! Who bound the port before the server did, both with `SO_REUSEADDR`, need not listen to get a connection: while a
//! socket connects from the port to just where a router connects from, the kernel joins these two
//! (RFC 9293, simultaneous open) and passes the server by. So sockets that don't listen count as well.
//!
//! A job decides how many processes and open files it has, so every search has a budget. What is not found
//! within it is not the part's.

mod probe;
mod search;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use tutti_model::{LeaseId, PortOwner};

use crate::shim::tree;
pub use probe::bound_alone;
use search::{Budget, Kernel, Place, Processes, Spent};
pub use table::Socket;
use table::Which;

/// So many sockets may get what is sent to one port: a server may have one for each CPU.
const LISTENERS_MAX: usize = 1024;
/// Threads and open files of a part that a look goes through; a look at one takes some microseconds.
const STEPS_MAX: usize = 200_000;
const LOOK_WITHIN: Duration = Duration::from_secs(1);
/// To read the list of sockets, which everybody on the machine makes longer.
const LIST_WITHIN: Duration = Duration::from_millis(500);
/// To find a stranger's process for the words that tell of it.
const NAME_WITHIN: Duration = Duration::from_secs(1);
const NAME_STEPS_MAX: usize = 50_000;
/// Looking for a stranger's process means to look into all of them.
const NAME_EVERY: Duration = Duration::from_secs(10);
const NO_SERVER: &str = " (with a socket that connects from there, or may)";
/// Of the addresses where a part listens and is not asked.
const ELSEWHERE_MAX: usize = 16;

/// A part, and where routers reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingPart {
    pub lease: LeaseId,
    /// The process above all of its processes.
    pub shim: i32,
    /// The user that it runs as.
    pub uid: u32,
    pub at: SocketAddr,
}

impl ServingPart {
    /// Whether its processes can have made this socket. Those of root can be anybody.
    fn may_own(&self, socket: &Socket) -> bool {
        self.uid == 0 || socket.uid == self.uid
    }

    /// Whether somebody else has this one, which does not listen, where it may be connected to in the part's stead.
    /// Those of the part's user are not looked for among its processes: a server may have any number.
    fn is_bypassed_by(&self, socket: &Socket) -> bool {
        !socket.listens && socket.is_held() && !self.may_own(socket) && self.is_reached_by(socket)
    }

    /// Of a socket on all IPv6 addresses that gets IPv4 too, the kernel prefers one of the address's own family.
    fn is_second(&self, listener: &Socket) -> bool {
        self.at.is_ipv4() && listener.at.is_ipv6() && listener.at.ip().is_unspecified()
    }

    fn is_reached_by(&self, socket: &Socket) -> bool {
        socket.receives(self.at.ip())
    }

    /// Whether a look has to know of it.
    fn is_concerned_by(&self, socket: &Socket) -> bool {
        match socket.listens {
            true => self.is_reached_by(socket) || self.may_own(socket),
            false => self.is_bypassed_by(socket),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict<'a> {
    Part,
    Nobody,
    Elsewhere(Vec<&'a Socket>),
    Stranger(&'a Socket),
}

/// `on_port` are sockets on the part's port, on whatever address; `held` says which of them its processes have.
fn judge<'a>(part: &ServingPart, on_port: &'a [Socket], held: impl Fn(u64) -> bool) -> Verdict<'a> {
    // The kernel prefers these to any that listens, the part's own too.
    if let Some(stranger) = on_port.iter().find(|s| part.is_bypassed_by(s)) {
        return Verdict::Stranger(stranger);
    }
    let is_own = |l: &&Socket| part.may_own(l) && held(l.inode);
    let (reached, elsewhere): (Vec<&Socket>, Vec<&Socket>) =
        on_port.iter().filter(|s| s.listens).partition(|l| part.is_reached_by(l));
    let (own, strange): (Vec<&Socket>, Vec<&Socket>) = reached.into_iter().partition(is_own);
    // Even beside the part's own: the kernel shares connections out among them.
    let first = strange.iter().find(|l| !part.is_second(l));
    let own_first = own.iter().any(|l| !part.is_second(l));
    if let Some(stranger) = first.or(strange.first().filter(|_| !own_first)) {
        return Verdict::Stranger(stranger);
    }
    if !own.is_empty() {
        return Verdict::Part;
    }
    let elsewhere: Vec<&Socket> = elsewhere.into_iter().filter(is_own).collect();
    if elsewhere.is_empty() { Verdict::Nobody } else { Verdict::Elsewhere(elsewhere) }
}

/// The sockets that have to be looked for among the part's processes: none where the verdict stands without.
fn wanted(part: &ServingPart, on_port: &[Socket]) -> BTreeSet<u64> {
    let inodes = |list: &mut dyn Iterator<Item = &Socket>| list.map(|l| l.inode).collect();
    let listeners = || on_port.iter().filter(|s| s.listens);
    let reached = || listeners().filter(|l| part.is_reached_by(l));
    let taken = reached().any(|l| !part.may_own(l) && !part.is_second(l));
    if taken || on_port.iter().any(|s| part.is_bypassed_by(s)) {
        return BTreeSet::new();
    }
    if reached().next().is_some() {
        return inodes(&mut reached().filter(|l| part.may_own(l)));
    }
    inodes(&mut listeners().filter(|l| part.may_own(l)).take(ELSEWHERE_MAX))
}

/// Looks once a second at one part, so what it found is remembered: it costs a few reads while nothing changes.
#[derive(Debug, Default)]
pub struct PortWatcher {
    /// Where a process of the part has the socket with this inode.
    known: BTreeMap<u64, Place>,
    /// Who has the socket with this inode, in words.
    strangers: BTreeMap<u64, String>,
    named: Option<Instant>,
}

/// What a look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub owner: PortOwner,
    /// The part has more processes and open files than could be looked at.
    pub spent: bool,
}

impl PortWatcher {
    /// Whose sockets get what is sent to the part. `shims` are those of all parts here.
    pub fn look(
        &mut self,
        part: &ServingPart,
        shims: &BTreeMap<i32, LeaseId>,
    ) -> io::Result<Found> {
        let keep = |socket: &Socket| part.is_concerned_by(socket);
        let on_port = table::on_port(part.at.port(), Which::Owned, keep, LIST_WITHIN)?;
        let mut budget = Budget::new(STEPS_MAX, LOOK_WITHIN);
        Ok(self.look_at(&Kernel, part, &on_port, &mut budget, shims))
    }

    fn look_at(
        &mut self,
        processes: &impl Processes,
        part: &ServingPart,
        on_port: &[Socket],
        budget: &mut Budget,
        shims: &BTreeMap<i32, LeaseId>,
    ) -> Found {
        let there: BTreeSet<u64> = on_port.iter().map(|s| s.inode).collect();
        self.strangers.retain(|inode, _| there.contains(inode));
        if let Some(owner) = too_many(part, on_port) {
            return Found { owner, spent: false };
        }
        let wanted = wanted(part, on_port);
        let searched = search::find(processes, part.shim, &wanted, &mut self.known, budget);
        let owner = match judge(part, on_port, |inode| self.known.contains_key(&inode)) {
            Verdict::Part => PortOwner::Part,
            Verdict::Nobody => PortOwner::Nobody,
            Verdict::Elsewhere(list) => PortOwner::Elsewhere {
                addresses: list.iter().map(|l| l.at.to_string()).take(ELSEWHERE_MAX).collect(),
            },
            Verdict::Stranger(socket) if searched.is_err() && part.may_own(socket) => {
                let who = format!(
                    "{} (not found among the threads and open files of this replica that could be \
                     looked at)",
                    unknown_process(socket)
                );
                PortOwner::Stranger { who }
            }
            Verdict::Stranger(socket) => {
                let who = self.describe(socket, shims);
                let how = if socket.listens { "" } else { NO_SERVER };
                PortOwner::Stranger { who: format!("{who}{how}") }
            }
        };
        Found { owner, spent: searched == Err(Spent) }
    }

    /// "process 4711 (python3) of user bob, job 12".
    fn describe(&mut self, socket: &Socket, shims: &BTreeMap<i32, LeaseId>) -> String {
        if let Some(known) = self.strangers.get(&socket.inode) {
            return known.clone();
        }
        if self.named.is_some_and(|at| at.elapsed() < NAME_EVERY) {
            return unknown_process(socket);
        }
        self.named = Some(Instant::now());
        let Some(words) = find_and_describe(socket, shims) else {
            return unknown_process(socket);
        };
        self.strangers.insert(socket.inode, words.clone());
        words
    }
}

/// Nobody has so many, and each of them has to be looked for.
fn too_many(part: &ServingPart, on_port: &[Socket]) -> Option<PortOwner> {
    let listeners = on_port.iter().filter(|s| s.listens);
    let mut reached = listeners.filter(|l| part.is_reached_by(l) && !part.is_second(l));
    let one = reached.nth(LISTENERS_MAX)?;
    let who = format!("{} (with more than {LISTENERS_MAX} sockets)", unknown_process(one));
    Some(PortOwner::Stranger { who })
}

/// Who has a port that is to be a part's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    By(Socket),
    /// By a socket that is bound and no more, which the kernel does not list.
    Bound,
}

impl Taken {
    pub fn words(&self, shims: &BTreeMap<i32, LeaseId>) -> String {
        let Taken::By(socket) = self else {
            return "somebody has a socket there that does not listen, and this kernel does not say who"
                .to_owned();
        };
        let who = find_and_describe(socket, shims).unwrap_or_else(|| unknown_process(socket));
        let does = if socket.listens { "listens there" } else { "has a socket there" };
        format!("{who} {does}")
    }
}

/// Whether somebody has this address, as long as nothing of the part runs. `own` is the part's user.
pub fn taken(at: SocketAddr, own: Option<u32>) -> io::Result<Option<Taken>> {
    let mut found = None;
    // What keeps a socket from the address may go away before it is listed, so that nothing is.
    for _ in 0..2 {
        let in_use = match bound_alone(at) {
            Ok(_) => return Ok(None),
            Err(error) => error.kind() == io::ErrorKind::AddrInUse,
        };
        let keep = |socket: &Socket| socket.receives(at.ip());
        let there = table::on_port(at.port(), Which::All, keep, LIST_WITHIN)?;
        found = taken_by(&there, own, in_use);
        if found != Some(Taken::Bound) {
            break;
        }
    }
    Ok(found)
}

/// `there` are all sockets on the address that the kernel lists. Connections of an earlier server of the same user
/// are in no server's way, nor is what is left of them once they are closed.
fn taken_by(there: &[Socket], own: Option<u32>, in_use: bool) -> Option<Taken> {
    let in_the_way = |s: &&Socket| s.is_held() && (s.listens || Some(s.uid) != own);
    match there.iter().find(in_the_way) {
        Some(socket) => Some(Taken::By(*socket)),
        None => (in_use && there.is_empty()).then_some(Taken::Bound),
    }
}

/// Looks into the processes of the socket's user: others can't make this search longer.
fn find_and_describe(socket: &Socket, shims: &BTreeMap<i32, LeaseId>) -> Option<String> {
    // The files of a process that must not be traced are root's.
    let may_have = |pid: i32| {
        let uid = fs::metadata(format!("/proc/{pid}")).map(|found| found.uid());
        uid.is_ok_and(|uid| uid == socket.uid || uid == 0)
    };
    let mut budget = Budget::new(NAME_STEPS_MAX, NAME_WITHIN);
    let found = search::find_anywhere(&Kernel, socket.inode, may_have, &mut budget);
    let pid = found.ok()??;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A process gives itself its name.
    let name: String = name.trim_end().chars().filter(|c| c.is_ascii_graphic()).collect();
    let lease = tree::ancestry(pid).find_map(|above| shims.get(&above));
    let job = lease.map_or_else(String::new, |lease| format!(", job {}", lease.task.job));
    Some(format!("process {pid} ({name}) of {}{job}", user_words(socket.uid)))
}

fn unknown_process(socket: &Socket) -> String {
    format!("a process of {}", user_words(socket.uid))
}

/// By the local file only: a name service may hang, and a number will do.
fn user_words(uid: u32) -> String {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, id) = (fields.next()?, fields.next()?, fields.next()?);
        (id.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.map_or_else(|| format!("user number {uid}"), |name| format!("user {name}"))
}

#[cfg(test)]
mod tests;
