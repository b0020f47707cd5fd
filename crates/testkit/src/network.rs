//! Several machines in one: a network namespace for each, joined by a bridge in one more. Nothing
//! of the host's own network is touched.
//!
//! A namespace lives as long as the process that holds it, so even a test that is killed leaves
//! none behind.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, setns, unshare};

/// One machine of a [`Network`].
#[derive(Clone, Debug)]
pub struct Machine {
    /// Where others reach it.
    pub address: String,
    holder: u32,
    /// The bridge's end of its cable.
    port: String,
}

pub struct Network {
    machines: Vec<Machine>,
    bridge: u32,
    holders: Vec<Child>,
}

impl Network {
    /// Needs root and `ip`.
    #[track_caller]
    pub fn new(machines: usize) -> Network {
        let mut holders = vec![holder()];
        let bridge = holders[0].id();
        ip(bridge, "link add hub type bridge");
        ip(bridge, "link set hub up");
        let mut network = Network { machines: Vec::new(), bridge, holders: Vec::new() };
        for i in 1..=machines {
            let child = holder();
            let (holder, port) = (child.id(), format!("port{i}"));
            holders.push(child);
            ip(bridge, &format!("link add {port} type veth peer name eth0 netns {holder}"));
            ip(bridge, &format!("link set {port} master hub up"));
            let address = format!("10.77.0.{i}");
            ip(holder, "link set lo up");
            ip(holder, &format!("addr add {address}/24 dev eth0"));
            ip(holder, "link set eth0 up");
            network.machines.push(Machine { address, holder, port });
        }
        network.holders = holders;
        network
    }

    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Pulls the machine's cable.
    #[track_caller]
    pub fn cut(&self, machine: usize) {
        ip(self.bridge, &format!("link set {} down", self.machines[machine].port));
    }

    #[track_caller]
    pub fn mend(&self, machine: usize) {
        ip(self.bridge, &format!("link set {} up", self.machines[machine].port));
    }
}

/// One machine without a network: only loopback. For programs that listen wherever they like, and
/// for several nodes at once.
pub struct Loopback {
    machines: Vec<Machine>,
    holder: Child,
}

impl Loopback {
    /// Needs root and `ip`.
    #[track_caller]
    pub fn new(nodes: usize) -> Loopback {
        let child = holder();
        ip(child.id(), "link set lo up");
        let machine = |address| Machine { address, holder: child.id(), port: String::new() };
        let nodes = (1..=nodes).map(|i| machine(format!("127.0.77.{i}")));
        let machines = [machine("127.0.0.1".to_owned())].into_iter().chain(nodes).collect();
        Loopback { machines, holder: child }
    }

    /// For [`crate::ClusterOptions`]: they are all the same one.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }
}

/// One machine with loopback and tens of thousands of other addresses, all its own: a server and a crowd
/// of strangers, each of whom comes from an address of their own.
pub struct Crowd {
    machine: Machine,
    holder: Child,
}

impl Crowd {
    /// Needs root and `ip`.
    #[track_caller]
    pub fn new() -> Crowd {
        let child = holder();
        let machine = Machine {
            address: Ipv4Addr::from(CROWD_V4 + 1).to_string(),
            holder: child.id(),
            port: String::new(),
        };
        ip(machine.holder, "link set lo up");
        // A whole network is this machine's, so that none of it has to be named.
        ip(machine.holder, &format!("route add local {}/16 dev lo", Ipv4Addr::from(CROWD_V4)));
        ip(machine.holder, &format!("-6 route add local {}/48 dev lo", Ipv6Addr::from(CROWD_V6)));
        let crowd = Crowd { machine, holder: child };
        // Where IPv4 lets sockets have any address of such a network, IPv6 wants to be told.
        let any_v6 = "/proc/sys/net/ipv6/ip_nonlocal_bind";
        crowd.inside(|| std::fs::write(any_v6, "1").expect("IPv6 takes any address"));
        crowd
    }

    /// Where a server listens that is meant for other machines. Servers may use loopback as well.
    pub fn server(&self) -> IpAddr {
        Ipv4Addr::from(CROWD_V4 + 1).into()
    }

    /// The address of one stranger: bind a socket to it before it connects. No two numbers below
    /// 60,000 have the same.
    pub fn stranger(&self, number: u16) -> IpAddr {
        assert!(number < 60_000, "there are no more addresses");
        Ipv4Addr::from(CROWD_V4 + 256 + u32::from(number)).into()
    }

    /// The same on loopback, whose addresses some servers trust more.
    pub fn local(&self, number: u16) -> IpAddr {
        assert!(number < 60_000, "there are no more addresses");
        Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 0)) + 256 + u32::from(number)).into()
    }

    /// One of the many addresses that a single customer of a provider has: those of a `network` differ in
    /// their last 64 bits only.
    pub fn stranger_v6(&self, network: u16, number: u64) -> IpAddr {
        Ipv6Addr::from(CROWD_V6 | (u128::from(network) << 64) | u128::from(number)).into()
    }

    /// A command that is put here runs on this machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Runs `work` in a thread on this machine, with all threads and processes that it starts: a runtime
    /// has to be built inside.
    #[track_caller]
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.machine.enter();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Runs a test with its servers, its attackers and its well-behaved clients on one such machine.
pub fn in_a_crowd(test: impl AsyncFnOnce(&Crowd) + Send) {
    let crowd = Crowd::new();
    crowd.inside(|| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("threads can be started").block_on(test(&crowd));
    });
}

impl Default for Crowd {
    fn default() -> Self {
        Crowd::new()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

const CROWD_V4: u32 = u32::from_be_bytes([10, 78, 0, 0]);
const CROWD_V6: u128 = 0xfd78 << 112;

impl Drop for Loopback {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for child in &mut self.holders {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Machine {
    /// The command will run on this machine.
    pub fn put(&self, command: &mut Command) {
        enter_before_exec(command, self.holder);
    }

    /// From now on this thread, and what it starts, is on this machine.
    #[track_caller]
    pub fn enter(&self) {
        let namespace = File::open(format!("/proc/{}/ns/net", self.holder)).expect("a namespace");
        setns(namespace, CloneFlags::CLONE_NEWNET).expect("the namespace can be entered");
    }
}

/// A process that does nothing but keep a fresh namespace; it dies with the thread that made it.
fn holder() -> Child {
    let mut command = Command::new("sleep");
    command.arg("infinity").stdin(Stdio::null());
    // SAFETY: both are plain system calls.
    unsafe {
        command.pre_exec(|| {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(())
        });
    }
    command.spawn().expect("a namespace can be made")
}

fn enter_before_exec(command: &mut Command, holder: u32) {
    let namespace = File::open(format!("/proc/{holder}/ns/net")).expect("a namespace");
    // SAFETY: a plain system call on a descriptor that the closure owns.
    unsafe {
        command.pre_exec(move || Ok(setns(&namespace, CloneFlags::CLONE_NEWNET)?));
    }
}

#[track_caller]
fn ip(holder: u32, words: &str) {
    let mut command = Command::new("ip");
    command.args(words.split_whitespace());
    enter_before_exec(&mut command, holder);
    let done = command.output().expect("`ip` can be run");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {words}: {said}");
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage};
    use nix::sys::socket::{bind, connect, socket};

    use super::*;

    fn at(address: IpAddr, port: u16) -> SockaddrStorage {
        SocketAddr::new(address, port).into()
    }

    #[test]
    fn each_of_a_crowd_comes_from_an_address_of_their_own() {
        let crowd = Crowd::new();
        crowd.inside(|| {
            let listener = TcpListener::bind("[::]:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let server_v6 = crowd.stranger_v6(0, 1);
            for (from, to) in [
                (crowd.stranger(0), crowd.server()),
                (crowd.stranger(59_999), crowd.server()),
                (crowd.local(3), "127.0.0.1".parse().unwrap()),
                (crowd.stranger_v6(7, u64::MAX), server_v6),
            ] {
                let family =
                    if from.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
                let client = socket(family, SockType::Stream, SockFlag::empty(), None).unwrap();
                let raw = std::os::fd::AsRawFd::as_raw_fd(&client);
                bind(raw, &at(from, 0)).unwrap();
                connect(raw, &at(to, port)).unwrap();
                let mut client = std::net::TcpStream::from(client);
                let (mut stream, peer) = listener.accept().unwrap();
                assert_eq!(peer.ip().to_canonical(), from);
                stream.write_all(b"x").unwrap();
                client.read_exact(&mut [0]).unwrap();
            }
        });
        let outside = std::net::TcpListener::bind((crowd.server(), 0));
        assert!(outside.is_err(), "the address is the namespace's alone");
    }
}
