//! Whose server listens on a port, by the kernel's own tables: `/proc/net/tcp` says which sockets listen
//! where, and `/proc/PID/fd` which process has them. A part's processes are those below its shim, which
//! adopts all orphans; what a process says of itself, in its environment for instance, counts for nothing.
//!
//! ```text
//!  /proc/net/tcp{,6} ─► listeners ─► those that get what is sent to the part ─► whose? ─► PortOwner
//! ```

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tutti_model::{LeaseId, PortOwner};

use crate::shim::tree;
pub use table::{Listener, listeners};

/// Looking for a stranger's process means to look into all of them.
const SEARCH_EVERY: Duration = Duration::from_secs(10);

/// A part, and where routers reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServingPart {
    pub lease: LeaseId,
    /// The process above all of its processes.
    pub shim: i32,
    pub at: SocketAddr,
}

/// Looks once a second, so what it found is remembered: it costs a few reads while nothing changes.
#[derive(Debug, Default)]
pub struct PortWatcher {
    /// The descriptor by which a process of the part has the socket with this inode.
    held: BTreeMap<(LeaseId, u64), (i32, i32)>,
    /// Who has the socket with this inode, in words.
    strangers: BTreeMap<u64, String>,
    searched: Option<Instant>,
}

impl PortWatcher {
    /// For each part, whose sockets get what is sent to it. `shims` are those of all parts here.
    pub fn look(
        &mut self,
        parts: &[ServingPart],
        listening: &[Listener],
        shims: &BTreeMap<i32, LeaseId>,
    ) -> BTreeMap<LeaseId, PortOwner> {
        let there: BTreeSet<u64> = listening.iter().map(|l| l.inode).collect();
        let asked: BTreeSet<LeaseId> = parts.iter().map(|p| p.lease).collect();
        self.held.retain(|(lease, inode), _| asked.contains(lease) && there.contains(inode));
        self.strangers.retain(|inode, _| there.contains(inode));
        parts.iter().map(|part| (part.lease, self.owner(part, listening, shims))).collect()
    }

    fn owner(
        &mut self,
        part: &ServingPart,
        listening: &[Listener],
        shims: &BTreeMap<i32, LeaseId>,
    ) -> PortOwner {
        let on_port = || listening.iter().filter(|l| l.at.port() == part.at.port());
        let (mut own, mut own_direct, mut strange, mut strange_v6) = (false, false, None, None);
        // It may be for IPv6 alone, which anybody may have; and of one that is not, the kernel prefers a socket of
        // the address's own family.
        let indirect = |l: &Listener| part.at.is_ipv4() && l.at.is_ipv6();
        for listener in on_port().filter(|l| l.receives(part.at.ip())) {
            match (self.holds(part, listener.inode), indirect(listener)) {
                (true, indirect) => (own, own_direct) = (true, own_direct || !indirect),
                (false, true) => strange_v6 = strange_v6.or(Some(listener)),
                // Even beside the part's own: the kernel shares connections out among them.
                (false, false) => strange = strange.or(Some(listener)),
            }
        }
        if let Some(listener) = strange.or(strange_v6.filter(|_| !own_direct)) {
            return PortOwner::Stranger { who: self.describe(listener, shims) };
        }
        if own {
            return PortOwner::Part;
        }
        let mut elsewhere: Vec<&Listener> = on_port().collect();
        elsewhere.retain(|listener| self.holds(part, listener.inode));
        match elsewhere.is_empty() {
            true => PortOwner::Nobody,
            false => PortOwner::Elsewhere {
                addresses: elsewhere.iter().map(|l| l.at.to_string()).collect(),
            },
        }
    }

    fn holds(&mut self, part: &ServingPart, inode: u64) -> bool {
        let key = (part.lease, inode);
        if let Some(&(pid, fd)) = self.held.get(&key)
            && has_socket(pid, fd, inode)
            && tree::ancestry(pid).any(|above| above == part.shim)
        {
            return true;
        }
        self.held.remove(&key);
        let family = tree::family(part.shim);
        let found = family.into_iter().find_map(|pid| Some((pid, find_socket(pid, inode)?)));
        self.held.extend(found.map(|found| (key, found)));
        found.is_some()
    }

    /// "process 4711 (python3) of user bob, job 12".
    fn describe(&mut self, listener: &Listener, shims: &BTreeMap<i32, LeaseId>) -> String {
        if let Some(known) = self.strangers.get(&listener.inode) {
            return known.clone();
        }
        let may_search = self.searched.is_none_or(|at| at.elapsed() >= SEARCH_EVERY);
        if !may_search {
            return unknown_process(listener);
        }
        self.searched = Some(Instant::now());
        let words = describe(listener, shims);
        self.strangers.insert(listener.inode, words.clone());
        words
    }
}

/// Who has this socket, in words. Looks into all processes.
pub fn describe(listener: &Listener, shims: &BTreeMap<i32, LeaseId>) -> String {
    let Some(pid) = all_pids().find(|&pid| find_socket(pid, listener.inode).is_some()) else {
        return unknown_process(listener);
    };
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A process gives itself its name.
    let name: String = name.trim_end().chars().filter(|c| c.is_ascii_graphic()).collect();
    let lease = tree::ancestry(pid).find_map(|above| shims.get(&above));
    let job = lease.map_or_else(String::new, |lease| format!(", job {}", lease.task.job));
    format!("process {pid} ({name}) of {}{job}", user_words(listener.uid))
}

fn unknown_process(listener: &Listener) -> String {
    format!("a process of {}", user_words(listener.uid))
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

fn all_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn has_socket(pid: i32, fd: i32, inode: u64) -> bool {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}"));
    link.is_ok_and(|link| link.as_os_str() == socket_name(inode).as_str())
}

/// The descriptor by which a process has this socket. What can't be read has none that we know of.
fn find_socket(pid: i32, inode: u64) -> Option<i32> {
    let name = socket_name(inode);
    fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().find_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        (link.as_os_str() == name.as_str()).then(|| entry.file_name().to_str()?.parse().ok())?
    })
}

fn socket_name(inode: u64) -> String {
    format!("socket:[{inode}]")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::process::{Child, Command};

    use tutti_model::{Generation, JobId, TaskId};

    use super::*;

    fn lease(job: u64) -> LeaseId {
        LeaseId { task: TaskId::single(JobId(job)), generation: Generation(1) }
    }

    /// A process that is not above us.
    struct Other(Child);

    impl Other {
        fn new() -> Other {
            Other(Command::new("sleep").arg("1000").spawn().unwrap())
        }
        fn pid(&self) -> i32 {
            self.0.id() as i32
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn look(watcher: &mut PortWatcher, shim: i32, at: SocketAddr) -> PortOwner {
        let part = ServingPart { lease: lease(1), shim, at };
        let shims = BTreeMap::from([(std::process::id() as i32, lease(7))]);
        watcher.look(&[part], &listeners().unwrap(), &shims).remove(&lease(1)).unwrap()
    }

    #[test]
    fn a_socket_belongs_to_the_part_whose_process_has_it() {
        let mut watcher = PortWatcher::default();
        let (me, other) = (std::process::id() as i32, Other::new());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(look(&mut watcher, me, at), PortOwner::Part);
        assert_eq!(look(&mut watcher, me, at), PortOwner::Part, "as remembered");
        let PortOwner::Stranger { who } = look(&mut watcher, other.pid(), at) else {
            panic!("the other part has no socket at all");
        };
        assert!(who.starts_with(&format!("process {me} (")), "{who}");
        assert!(who.ends_with(", job 7"), "{who}");
        drop(listener);
        assert_eq!(look(&mut watcher, me, at), PortOwner::Nobody);
    }

    #[test]
    fn a_wildcard_counts_and_another_address_does_not() {
        let mut watcher = PortWatcher::default();
        let (me, other) = (std::process::id() as i32, Other::new());
        let wild = TcpListener::bind("0.0.0.0:0").unwrap();
        let mut at = wild.local_addr().unwrap();
        at.set_ip("127.0.0.7".parse().unwrap());
        assert_eq!(look(&mut watcher, me, at), PortOwner::Part);
        assert!(matches!(look(&mut watcher, other.pid(), at), PortOwner::Stranger { .. }));
        let near = TcpListener::bind("127.0.0.8:0").unwrap();
        at.set_port(near.local_addr().unwrap().port());
        let addresses = vec![near.local_addr().unwrap().to_string()];
        assert_eq!(look(&mut watcher, me, at), PortOwner::Elsewhere { addresses });
        assert_eq!(look(&mut watcher, other.pid(), at), PortOwner::Nobody);
    }

    /// The descriptor that was found may be another's by now.
    #[test]
    fn what_is_remembered_is_looked_at_again() {
        let mut watcher = PortWatcher::default();
        let me = std::process::id() as i32;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(look(&mut watcher, me, at), PortOwner::Part);
        let other = Other::new();
        watcher.held.values_mut().for_each(|(pid, _)| *pid = other.pid());
        assert_eq!(look(&mut watcher, me, at), PortOwner::Part);
        assert!(matches!(look(&mut watcher, other.pid(), at), PortOwner::Stranger { .. }));
    }
}
