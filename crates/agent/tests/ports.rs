//! Whose server listens on a replica's port: an agent tells it by the kernel's tables, whatever processes
//! say of themselves.

mod support;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use support::*;
use tutti_model::{Blame, JobSpec, Launch, PortOwner, ServiceSpec};
use tutti_wire::stream::ToController;

/// Listens on the port that it is given, and lets others listen there who ask for it.
const SERVER: &str = "exec python3 -c 'import socket, sys, time; s = socket.socket(); \
     s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); s.bind((sys.argv[1], int(sys.argv[2]))); \
     s.listen(); print(\"listens\", flush=True); time.sleep(1000)'";

impl Node {
    fn wait_owner(&mut self, launch: &Launch, so: impl Fn(&PortOwner) -> bool) -> PortOwner {
        let lease = launch.lease;
        self.controller.wait(|m| {
            let reports = match m {
                ToController::Report { report } => std::slice::from_ref(report),
                ToController::Heartbeat { parts } => parts,
                _ => return None,
            };
            let report = reports.iter().find(|r| r.lease == lease)?;
            report.port_owner.clone().filter(|owner| so(owner))
        })
    }

    /// What is left of it would outlive the test.
    fn end(&mut self, launch: &Launch) {
        self.controller.stop(launch.lease, 0);
        self.controller.wait_until_done(launch.lease);
    }

    fn wait_stranger(&mut self, launch: &Launch) -> String {
        match self.wait_owner(launch, |owner| matches!(owner, PortOwner::Stranger { .. })) {
            PortOwner::Stranger { who } => who,
            _ => unreachable!(),
        }
    }
}

/// A port that is free on 127.0.0.1. Fixed ports of tests are below those that the system gives out.
fn free_port() -> u16 {
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    static NEXT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(0);
    let step = || NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::iter::repeat_with(|| first + step()).take(1000).find(free).expect("a port is free")
}

fn replica(task: &str, generation: u64, line: &str, port: Option<u16>) -> Launch {
    let mut spec = JobSpec::shell(line);
    spec.service = Some(Box::new(ServiceSpec { port, ..ServiceSpec::default() }));
    with_spec(task, generation, spec)
}

#[test]
fn a_replica_that_listens_is_confirmed_also_by_the_next_agent() {
    for options in [&[][..], &["cgroups"][..]] {
        let mut node = Node::new();
        let mut agent = node.agent(options);
        // An orphan, on the port that the agent chose.
        let line = format!("({SERVER} 0.0.0.0 $PORT &); sleep 1000");
        let launch = replica("1", 1, &line, None);
        node.controller.run(&launch);
        node.wait_owner(&launch, |owner| *owner == PortOwner::Part);
        agent.kill();
        let _agent = node.agent(options);
        node.wait_owner(&launch, |owner| *owner == PortOwner::Part);
        node.end(&launch);
    }
}

#[test]
fn who_listens_first_is_found_and_the_replica_is_not_started() {
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let launch = replica("1", 1, "sleep 1000", Some(port));
    node.controller.run(&launch);
    let error = node.controller.wait_until_done(launch.lease).1.expect("it can't start");
    assert_eq!(error.blame, Blame::Job);
    let wanted =
        format!("port {port} of n1 (127.0.0.1) is taken: process {} (", std::process::id());
    assert!(error.message.starts_with(&wanted), "{}", error.message);
    assert!(error.message.contains("$PORT"), "{}", error.message);
}

#[test]
fn who_listens_while_the_replica_loads_is_told_from_it() {
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let port = free_port();
    let launch = replica("1", 1, "echo loads; sleep 1000", Some(port));
    node.controller.run(&launch);
    node.wait_owner(&launch, |owner| *owner == PortOwner::Nobody);
    let thief = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let who = node.wait_stranger(&launch);
    assert!(who.starts_with(&format!("process {} (", std::process::id())), "{who}");
    drop(thief);
    node.wait_owner(&launch, |owner| *owner == PortOwner::Nobody);
    node.end(&launch);
}

/// Listens on the port for IPv6 alone, which nobody's socket for IPv4 keeps it from.
const IPV6_ALONE: &str = "import socket, sys, time; s = socket.socket(socket.AF_INET6); \
     s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1); s.bind((\"::\", int(sys.argv[1]))); \
     s.listen(); print(\"listens\", flush=True); time.sleep(1000)";

/// A program of python's that says when it listens. Not of any part.
struct Neighbour(std::process::Child);

impl Neighbour {
    fn start(program: &str, port: u16) -> Neighbour {
        Neighbour::said(Command::new("python3").args(["-c", program, &port.to_string()]))
    }

    /// As a user that no part of these tests runs as.
    fn start_as_other(program: &str, port: u16) -> Neighbour {
        let mut command = Command::new("python3");
        Neighbour::said(command.args(["-c", program, &port.to_string()]).uid(1).gid(1))
    }

    fn said(command: &mut Command) -> Neighbour {
        command.stdout(Stdio::piped());
        let mut neighbour = Neighbour(command.spawn().unwrap());
        let mut said = String::new();
        BufReader::new(neighbour.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "listens\n");
        neighbour
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_neighbour_for_ipv6_alone_takes_nothing_away() {
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        return; // A kernel without IPv6.
    }
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let (port, fixed) = (free_port(), free_port());
    // There before the one starts, and while the other serves.
    let _early = Neighbour::start(IPV6_ALONE, fixed);
    let launch = replica("1", 1, &format!("{SERVER} 0.0.0.0 $PORT"), Some(port));
    let second = replica("2", 2, &format!("{SERVER} 0.0.0.0 {fixed}"), Some(fixed));
    node.controller.run(&launch);
    node.controller.run(&second);
    node.wait_owner(&launch, |owner| *owner == PortOwner::Part);
    node.wait_owner(&second, |owner| *owner == PortOwner::Part);
    let _late = Neighbour::start(IPV6_ALONE, port);
    // Several looks later it is as before.
    node.controller.forget_past();
    for _ in 0..4 {
        assert_eq!(node.wait_owner(&launch, |_| true), PortOwner::Part);
    }
    node.end(&launch);
    node.end(&second);
}

/// Is bound to the port, and lets others have it too that ask for it, as most servers do.
const BOUND: &str = "import socket, sys, time; s = socket.socket(); \
     s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind((\"127.0.0.1\", int(sys.argv[1])))\n";
const SAYS_SO: &str = "print(\"listens\", flush=True); time.sleep(1000)";
/// On its way to one who has no room for it, as to a router that has not connected yet.
const CONNECTS: &str = "far = socket.create_server((\"127.0.0.1\", 0), backlog=0)\n\
     fill = [socket.socket() for _ in range(3)]\n\
     for each in [*fill, s]:\n\
     \x20 each.setblocking(False); each.connect_ex(far.getsockname())\n\
     assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b\"\\x02\"\n";
const CONNECTED: &str =
    "far = socket.create_server((\"127.0.0.1\", 0)); s.connect(far.getsockname())\n";

/// Listens once a file is there.
fn late_server(file: &std::path::Path, port: u16) -> String {
    let server = SERVER.replace("SO_REUSEPORT", "SO_REUSEADDR");
    format!("until [ -e {} ]; do sleep 0.05; done; {server} 127.0.0.1 {port}", file.display())
}

#[test]
fn who_has_bound_the_port_without_listening_is_found_and_the_replica_is_not_started() {
    if !is_root() {
        return;
    }
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let port = free_port();
    let thief = Neighbour::start_as_other(&format!("{BOUND}{SAYS_SO}"), port);
    let mut launch = replica("1", 1, "sleep 1000", Some(port));
    launch.user = "nobody".into();
    node.controller.run(&launch);
    let error = node.controller.wait_until_done(launch.lease).1.expect("it can't start");
    assert_eq!(error.blame, Blame::Job);
    let taken = format!("port {port} of n1 (127.0.0.1) is taken: ");
    let who = error.message.strip_prefix(&taken).unwrap_or_else(|| panic!("{}", error.message));
    let named = format!("process {} (python3) of user daemon has a socket there; ", thief.0.id());
    // Before Linux 6.8 the kernel does not tell.
    assert!(who.starts_with(&named) || who.starts_with("somebody has a socket"), "{who}");
}

/// The kernel would hand it what a router sends to the replica (simultaneous open).
#[test]
fn who_connects_from_the_port_of_a_replica_makes_it_not_ready() {
    if !is_root() {
        return;
    }
    for how in [CONNECTS, CONNECTED] {
        let mut node = Node::new();
        let _agent = node.agent(&[]);
        let (port, dir) = (free_port(), TempDir::new());
        let begin = dir.path().join("begin");
        let mut launch = replica("1", 1, &late_server(&begin, port), Some(port));
        launch.user = "nobody".into();
        node.controller.run(&launch);
        node.wait_owner(&launch, |owner| *owner == PortOwner::Nobody);
        let thief = Neighbour::start_as_other(&format!("{BOUND}{how}{SAYS_SO}"), port);
        std::fs::write(&begin, "").unwrap();
        node.controller.wait_for_log(launch.lease.task, 0, "listens");
        let who = node.wait_owner(&launch, |owner| *owner != PortOwner::Nobody);
        let PortOwner::Stranger { who } = who else { panic!("{who:?}") };
        let named = format!("process {} (python3) of user daemon (with", thief.0.id());
        assert!(who.starts_with(&named), "{who}");
        node.controller.forget_past();
        for _ in 0..3 {
            let owner = node.wait_owner(&launch, |_| true);
            assert!(matches!(owner, PortOwner::Stranger { .. }), "{owner:?}");
        }
        drop(thief);
        node.wait_owner(&launch, |owner| *owner == PortOwner::Part);
        node.end(&launch);
    }
}

/// The environment of a process is its own to write.
#[test]
fn a_mark_in_the_environment_makes_nobody_a_part() {
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let port = free_port();
    let launch = replica("1", 1, "sleep 1000", Some(port));
    node.controller.run(&launch);
    node.wait_owner(&launch, |owner| *owner == PortOwner::Nobody);
    let mark = node.data_dir().join("parts").join(launch.lease.to_string());
    let line = format!("{SERVER} 127.0.0.1 {port}");
    let mut shell = std::process::Command::new("/bin/sh");
    let mut thief = shell.args(["-c", &line]).env("TUTTI_PART", mark).spawn().unwrap();
    let who = node.wait_stranger(&launch);
    assert!(who.starts_with(&format!("process {} (python3)", thief.id())), "{who}");
    thief.kill().unwrap();
    thief.wait().unwrap();
    node.end(&launch);
}

/// The kernel would share its requests out among both.
#[test]
fn another_part_beside_it_on_the_same_port_is_refused() {
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let port = free_port();
    let server = format!("{SERVER} 127.0.0.1 {port}");
    let launch = replica("1", 1, &server, Some(port));
    node.controller.run(&launch);
    node.wait_owner(&launch, |owner| *owner == PortOwner::Part);
    let other = shell("2", 2, &server);
    node.controller.run(&other);
    let who = node.wait_stranger(&launch);
    assert!(who.contains("(python3)") && who.ends_with(", job 2"), "{who}");
    node.end(&other);
    node.wait_owner(&launch, |owner| *owner == PortOwner::Part);
    node.end(&launch);
}

#[test]
fn a_replica_on_another_address_is_told_so() {
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let port = free_port();
    let launch = replica("1", 1, &format!("{SERVER} 127.0.0.77 {port}"), Some(port));
    node.controller.run(&launch);
    let owner = node.wait_owner(&launch, |owner| *owner != PortOwner::Nobody);
    assert_eq!(owner, PortOwner::Elsewhere { addresses: vec![format!("127.0.0.77:{port}")] });
    node.end(&launch);
}

/// Has very many sockets in many processes, none of which listens.
const POSER: &str = "exec python3 -c 'import os, socket, time\n\
     for _ in range(19):\n\
     \x20 if os.fork() == 0: break\n\
     s = [socket.socket() for _ in range(900)]; print(\"poses\", flush=True); time.sleep(1000)'";

/// Very many sockets that share what comes to one port.
const CROWD: &str = "import socket, sys, time; all = [socket.socket() for _ in range(900)]\n\
     for s in all:\n\
     \x20 s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n\
     \x20 s.bind((\"127.0.0.1\", int(sys.argv[1]))); s.listen()\n\
     print(\"listens\", flush=True); time.sleep(1000)";

/// Each of the crowd's sockets has to be looked for among all sockets of the poser.
#[test]
fn a_job_with_very_many_sockets_does_not_keep_a_neighbours_change_of_hands_from_being_seen() {
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let port = free_port();
    let poser = replica("1", 1, POSER, Some(port));
    node.controller.run(&poser);
    node.controller.wait_for_log(poser.lease.task, 0, &"poses\n".repeat(20));
    let good =
        replica("2", 2, &format!("{SERVER} 127.0.0.1 $PORT & echo pid $!; wait; sleep 1000"), None);
    node.controller.run(&good);
    node.wait_owner(&good, |owner| *owner == PortOwner::Part);
    let log = node.controller.wait_for_log(good.lease.task, 0, "listens");
    let server: i32 = log.split("pid ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    let _crowd = Neighbour::start(CROWD, port);
    // If one look is for all, it is under way by now.
    node.controller.forget_past();
    for _ in 0..3 {
        node.wait_owner(&good, |owner| *owner == PortOwner::Part);
    }
    signal(server, libc::SIGKILL);
    let said = std::cell::Cell::new(0);
    node.wait_owner(&good, |owner| {
        said.set(said.get() + 1);
        assert!(said.get() < 20, "{owner:?} {} times, though nothing listens", said.get());
        *owner == PortOwner::Nobody
    });
    node.wait_stranger(&poser);
    node.end(&good);
    node.end(&poser);
}
