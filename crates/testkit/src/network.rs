//! Several machines in one: a network namespace for each, joined by a bridge in one more. Nothing
//! of the host's own network is touched.
//!
//! A namespace lives as long as the process that holds it, so even a test that is killed leaves
//! none behind.

use std::fs::File;
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
