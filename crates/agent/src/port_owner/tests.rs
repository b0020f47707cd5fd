use std::cell::Cell;
use std::net::TcpListener;
use std::process::{Child, Command};

use tutti_model::{Generation, JobId, TaskId};

use super::*;

const LONG: Duration = Duration::from_secs(1000);

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

fn my_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn look_as(watcher: &mut PortWatcher, uid: u32, shim: i32, at: SocketAddr) -> PortOwner {
    let part = ServingPart { lease: lease(1), shim, uid, at };
    let shims = BTreeMap::from([(std::process::id() as i32, lease(7))]);
    let found = watcher.look(&part, &shims).unwrap();
    assert!(!found.spent);
    found.owner
}

fn look(watcher: &mut PortWatcher, shim: i32, at: SocketAddr) -> PortOwner {
    look_as(watcher, my_uid(), shim, at)
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

/// Somebody hands a part a socket of their own making, by a Unix socket for instance, and keeps a copy.
#[test]
fn a_socket_that_another_user_made_is_not_the_parts_though_it_has_it() {
    let me = std::process::id() as i32;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let owner = look_as(&mut PortWatcher::default(), my_uid() + 4711, me, at);
    assert!(matches!(owner, PortOwner::Stranger { .. }), "{owner:?}");
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
    watcher.known.values_mut().for_each(|place| place.pid = other.pid());
    assert_eq!(look(&mut watcher, me, at), PortOwner::Part);
    assert!(matches!(look(&mut watcher, other.pid(), at), PortOwner::Stranger { .. }));
}

/// Process 1 is the shim. Each process below it is a child of the one before, and has sockets of these inodes.
#[derive(Default)]
struct Imagined {
    sockets: BTreeMap<i32, std::ops::Range<u64>>,
    without_lists: bool,
    looks: Cell<usize>,
}

impl Imagined {
    fn new(processes: i32, sockets_each: u64) -> Imagined {
        let of = |pid: i32| u64::from(pid as u32) * 1_000_000;
        let sockets = (1..=processes).map(|pid| (pid, of(pid)..of(pid) + sockets_each)).collect();
        Imagined { sockets, ..Imagined::default() }
    }
}

impl Processes for Imagined {
    fn lists_children(&self) -> bool {
        !self.without_lists
    }
    fn children(&self, pid: i32) -> impl Iterator<Item = Vec<i32>> {
        let child = Some(pid + 1).filter(|pid| self.sockets.contains_key(pid));
        std::iter::once(child.into_iter().collect())
    }
    fn parents(&self) -> impl Iterator<Item = (i32, i32)> {
        self.sockets.keys().map(|&pid| (pid, pid - 1))
    }
    fn ancestry(&self, pid: i32) -> impl Iterator<Item = i32> {
        [pid, 1].into_iter()
    }
    fn files(&self, pid: i32) -> impl Iterator<Item = (i32, Option<u64>)> {
        let sockets = self.sockets[&pid].clone().enumerate();
        sockets.map(|(fd, inode)| {
            self.looks.set(self.looks.get() + 1);
            (fd as i32, Some(inode))
        })
    }
    fn socket(&self, place: Place) -> Option<u64> {
        self.looks.set(self.looks.get() + 1);
        self.sockets.get(&place.pid)?.clone().nth(place.fd as usize)
    }
}

const AT: &str = "10.0.0.1:8000";

fn part() -> ServingPart {
    ServingPart { lease: lease(1), shim: 1, uid: 1001, at: AT.parse().unwrap() }
}

fn listener(at: &str, uid: u32, inode: u64) -> Socket {
    Socket { at: at.parse().unwrap(), listens: true, uid, inode, ipv6_alone: false }
}

/// One that is connected, is on its way to be, or is bound and no more.
fn other(at: &str, uid: u32, inode: u64) -> Socket {
    Socket { listens: false, ..listener(at, uid, inode) }
}

fn look_imagined(
    watcher: &mut PortWatcher,
    processes: &Imagined,
    on_port: &[Socket],
    steps: usize,
) -> Found {
    let mut budget = Budget::new(steps, LONG);
    watcher.look_at(processes, &part(), on_port, &mut budget, &BTreeMap::new())
}

#[test]
fn any_number_of_sockets_is_looked_for_by_one_walk() {
    for without_lists in [false, true] {
        let processes = Imagined { without_lists, ..Imagined::new(100, 1000) };
        // A thousand, all in the last process.
        let all: Vec<Socket> = (0..1000).map(|n| listener(AT, 1001, 100_000_000 + n)).collect();
        let mut watcher = PortWatcher::default();
        let found = look_imagined(&mut watcher, &processes, &all, 200_000);
        assert_eq!(found, Found { owner: PortOwner::Part, spent: false });
        assert_eq!(processes.looks.get(), 100_000, "each open file once");
        processes.looks.set(0);
        look_imagined(&mut watcher, &processes, &all, 200_000);
        assert_eq!(processes.looks.get(), 1000, "what is remembered");
    }
}

#[test]
fn a_part_with_more_than_can_be_looked_at_is_not_said_to_listen() {
    let processes = Imagined::new(1000, 1000);
    let (first, last) = (listener(AT, 1001, 1_000_000), listener(AT, 1001, 1_000_000_000));
    let mut watcher = PortWatcher::default();
    let Found { owner, spent } = look_imagined(&mut watcher, &processes, &[first, last], 50_000);
    assert!(spent && processes.looks.get() <= 50_000, "{}", processes.looks.get());
    let PortOwner::Stranger { who } = owner else { panic!("{owner:?}") };
    assert!(who.contains("could be looked at"), "{who}");
    // Time is bounded as well.
    let mut late = Budget::new(1 << 40, Duration::ZERO);
    let found =
        PortWatcher::default().look_at(&processes, &part(), &[last], &mut late, &BTreeMap::new());
    assert!(found.spent && found.owner != PortOwner::Part, "{found:?}");
    // Where nothing listens, or somebody else does, nothing has to be looked for.
    processes.looks.set(0);
    for strangers in [vec![], vec![listener("0.0.0.0:8000", 666, 5), last]] {
        let found = look_imagined(&mut watcher, &processes, &strangers, 50_000);
        assert!(!found.spent && found.owner != PortOwner::Part);
    }
    assert_eq!(processes.looks.get(), 0);
}

#[test]
fn more_sockets_than_a_server_has_are_not_looked_for() {
    let processes = Imagined::new(10, 10_000);
    let all: Vec<Socket> = (0..5000).map(|n| listener(AT, 1001, 1_000_000 + n)).collect();
    let found = look_imagined(&mut PortWatcher::default(), &processes, &all, 200_000);
    assert!(matches!(found.owner, PortOwner::Stranger { .. }), "{found:?}");
    assert_eq!(processes.looks.get(), 0);
    // Those of others on other addresses do not count, however many there are.
    let mut all: Vec<Socket> = (0..5000)
        .map(|n| listener(&format!("127.1.{}.{}:8000", n / 250, n % 250), 666, n))
        .collect();
    all.push(listener(AT, 1001, 1_000_000));
    let found = look_imagined(&mut PortWatcher::default(), &processes, &all, 200_000);
    assert_eq!(found.owner, PortOwner::Part);
}

#[test]
fn verdicts() {
    let own = |at: &str| listener(at, 1001, 1);
    let strange = |at: &str| listener(at, 666, 2);
    let twin = |at: &str| listener(at, 1001, 3);
    let is = |on_port: &[Socket]| match judge(&part(), on_port, |inode| inode == 1) {
        Verdict::Part => "part",
        Verdict::Nobody => "nobody",
        Verdict::Elsewhere(_) => "elsewhere",
        Verdict::Stranger(_) => "stranger",
    };
    assert_eq!(is(&[]), "nobody");
    assert_eq!(is(&[own(AT)]), "part");
    assert_eq!(is(&[own("[::]:8000")]), "part");
    assert_eq!(is(&[own("127.0.0.1:8000")]), "elsewhere");
    assert_eq!(is(&[strange("127.0.0.1:8000")]), "nobody");
    assert_eq!(is(&[own(AT), strange("127.0.0.1:8000")]), "part");
    // Beside its own, on the same port.
    for other in [strange, twin] {
        assert_eq!(is(&[own(AT), other(AT)]), "stranger");
        assert_eq!(is(&[own(AT), other("0.0.0.0:8000")]), "stranger");
        // One on exactly this address comes before one on all, whatever its family.
        assert_eq!(is(&[own("0.0.0.0:8000"), other("[::ffff:10.0.0.1]:8000")]), "stranger");
        // One on all IPv6 addresses comes after those for IPv4.
        assert_eq!(is(&[own("0.0.0.0:8000"), other("[::]:8000")]), "part");
        assert_eq!(is(&[own("[::]:8000"), other("[::]:8000")]), "stranger");
        // One for IPv6 alone gets nothing of it.
        let alone = Socket { ipv6_alone: true, ..other("[::]:8000") };
        assert_eq!(is(&[alone]), "nobody");
    }
    assert_eq!(is(&[Socket { ipv6_alone: true, ..own("[::]:8000") }]), "elsewhere");
    // Held by its process, made by somebody else.
    assert_eq!(is(&[listener(AT, 666, 1)]), "stranger");
    // What root holds may have been made by whomever it became.
    let root = ServingPart { uid: 0, ..part() };
    assert_eq!(judge(&root, &[listener(AT, 33, 1)], |inode| inode == 1), Verdict::Part);
}

#[test]
fn whoever_may_be_connected_to_in_its_stead_is_a_stranger() {
    let own = listener(AT, 1001, 1);
    let is = |part: &ServingPart, on_port: &[Socket]| {
        let verdict = judge(part, on_port, |inode| inode == 1);
        match verdict {
            Verdict::Stranger(socket) => socket.inode,
            Verdict::Part => 0,
            _ => panic!("{verdict:?}"),
        }
    };
    // Also one that is bound to all addresses: it has not connected yet.
    for at in [AT, "0.0.0.0:8000", "[::]:8000", "[::ffff:10.0.0.1]:8000"] {
        assert_eq!(is(&part(), &[own, other(at, 666, 7)]), 7, "{at}");
        assert_eq!(is(&part(), &[other(at, 666, 7)]), 7, "{at}, before the part listens");
        assert_eq!(wanted(&part(), &[own, other(at, 666, 7)]), BTreeSet::new());
        // Its own connections, and those that nobody has: they are over, or not accepted.
        assert_eq!(is(&part(), &[own, other(at, 1001, 7), other(at, 666, 0)]), 0, "{at}");
        let root = ServingPart { uid: 0, ..part() };
        assert_eq!(is(&root, &[own, other(at, 666, 7)]), 0, "{at}");
    }
    // On its way to nobody whom routers ask.
    let alone = Socket { ipv6_alone: true, ..other("[::]:8000", 666, 7) };
    assert_eq!(is(&part(), &[own, other("127.0.0.1:8000", 666, 7), alone]), 0);
    // They are no servers of the part.
    let alone = [other(AT, 1001, 1), other("127.0.0.1:8000", 1001, 1)];
    assert_eq!(judge(&part(), &alone, |_| true), Verdict::Nobody);
    assert_eq!(wanted(&part(), &alone), BTreeSet::new());
}

#[test]
fn any_number_of_connections_of_its_own_is_passed_over() {
    let part = part();
    assert!(!part.is_concerned_by(&other(AT, 1001, 7)) && !part.is_concerned_by(&other(AT, 0, 0)));
    assert!(part.is_concerned_by(&other(AT, 666, 7)));
    assert!(part.is_concerned_by(&listener(AT, 1001, 7)));
    // Those of others are not taken for servers, however many there are.
    let mut all: Vec<Socket> = (0..5000).map(|n| other(AT, 666, 1 + n)).collect();
    all.push(listener(AT, 1001, 1_000_000));
    let processes = Imagined::new(1, 1);
    let found = look_imagined(&mut PortWatcher::default(), &processes, &all, 200_000);
    let PortOwner::Stranger { who } = found.owner else { panic!("{found:?}") };
    assert!(who.contains("connects from there"), "{who}");
    assert_eq!(processes.looks.get(), 0);
}

#[test]
fn a_port_is_taken_by_what_is_no_rest_of_an_earlier_server() {
    let (server, bound) = (listener(AT, 1001, 1), other(AT, 666, 2));
    let (own, over) = (other(AT, 1001, 3), other(AT, 0, 0));
    let taken = |there: &[Socket]| taken_by(there, Some(1001), true);
    assert_eq!(taken(&[over, own, server]), Some(Taken::By(server)), "whoever's it is");
    assert_eq!(taken(&[over, own, bound]), Some(Taken::By(bound)));
    assert_eq!(taken(&[over, own]), None);
    assert_eq!(taken(&[over]), None);
    assert_eq!(taken(&[]), Some(Taken::Bound), "by what the kernel does not list");
    assert_eq!(taken_by(&[], Some(1001), false), None, "no such address is here");
    assert_eq!(taken_by(&[own], None, true), Some(Taken::By(own)));
}

#[test]
fn a_port_that_is_bound_and_no_more_is_taken() {
    use nix::sys::socket::{setsockopt, sockopt::ReuseAddr};
    let (held, port) = bound_alone("127.0.0.1:0".parse().unwrap()).unwrap();
    // Whoever sets it too may listen beside it.
    setsockopt(&held, ReuseAddr, &true).unwrap();
    let at = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
    let server = TcpListener::bind(at).expect("std sets it");
    drop(server);
    let found = taken(at, Some(my_uid() + 4711)).unwrap().expect("it is taken");
    let said = found.words(&BTreeMap::new());
    match found {
        Taken::By(_) => assert!(said.starts_with(&format!("process {} (", std::process::id()))),
        Taken::Bound => assert!(said.starts_with("somebody has a socket there"), "{said}"),
    }
    let beside = SocketAddr::new("127.0.0.2".parse().unwrap(), port);
    assert_eq!(taken(beside, Some(my_uid())).unwrap(), None, "of another address");
    drop(held);
    assert_eq!(taken(at, Some(my_uid())).unwrap(), None);
}

/// A service with a fixed port that is started again at once.
#[test]
fn what_is_left_of_a_servers_connections_does_not_take_its_port() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap();
    let client = std::net::TcpStream::connect(at).unwrap();
    // Who closes first keeps the rest.
    drop(server.accept().unwrap());
    drop((server, client));
    let refused = bound_alone(at).expect_err("the kernel keeps the address for a minute");
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(taken(at, Some(my_uid())).unwrap(), None);
    TcpListener::bind(at).expect("a server may have it");
}
