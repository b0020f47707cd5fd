//! A controller that is played by the test, and agents as real processes.
#![allow(dead_code)]

mod controller;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use controller::Controller;
use controller::WITHIN;
use tutti_model::{
    Bytes, Generation, GpuIndex, Host, JobSpec, Launch, LeaseId, Rank, Restarts, Time,
};

/// Waits until nothing is missing any more.
pub fn wait_while(mut missing: impl FnMut() -> Option<String>) {
    let deadline = Instant::now() + WITHIN;
    while let Some(what) = missing() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tutti-agent-test-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        TempDir(dir)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An agent process. Killed, not stopped, when dropped.
pub struct Agent {
    child: Child,
}

impl Agent {
    pub fn start(controller: &Controller, data_dir: &Path, options: &[&str]) -> Agent {
        Agent::spawn(controller, data_dir, options, None)
    }

    /// One that finds programs in this directory alone.
    pub fn start_with_path(
        controller: &Controller,
        data_dir: &Path,
        options: &[&str],
        path: &Path,
    ) -> Agent {
        Agent::spawn(controller, data_dir, options, Some(path))
    }

    fn spawn(
        controller: &Controller,
        data_dir: &Path,
        options: &[&str],
        path: Option<&Path>,
    ) -> Agent {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agent-for-tests"));
        command
            .arg(data_dir)
            .args([controller.address(), "n1".into(), controller.join_token()])
            .args(options)
            .envs(path.map(|path| ("PATH", path)));
        Agent { child: command.spawn().unwrap() }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        signal(self.child.id() as i32, libc::SIGTERM);
        self.wait()
    }

    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A node whose agents come and go, and the controller that it reports to.
pub struct Node {
    pub controller: Controller,
    pub dir: TempDir,
}

impl Node {
    pub fn new() -> Node {
        Node { controller: Controller::start(), dir: TempDir::new() }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("node")
    }

    /// Starts an agent and waits until it has greeted.
    pub fn agent(&mut self, options: &[&str]) -> Agent {
        let agent = Agent::start(&self.controller, &self.data_dir(), options);
        self.controller.wait_for_greeting();
        agent
    }
}

pub fn signal(pid: i32, signal: i32) {
    // SAFETY: a plain system call on a process of this test.
    unsafe { libc::kill(pid, signal) };
}

/// Alive, and no zombie.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

pub fn lease(task: &str, generation: u64) -> LeaseId {
    LeaseId { task: task.parse().unwrap(), generation: Generation(generation) }
}

/// One rank of this shell line, on one GPU.
pub fn shell(task: &str, generation: u64, line: &str) -> Launch {
    with_spec(task, generation, JobSpec::shell(line))
}

pub fn with_spec(task: &str, generation: u64, spec: JobSpec) -> Launch {
    Launch {
        lease: lease(task, generation),
        attempt: 1,
        restarts: Restarts::default(),
        user: me(),
        spec: Arc::new(spec),
        submitted_at: Time(0),
        gpus: vec![GpuIndex((generation % 8) as u16)],
        cpus: 1,
        mem: Bytes::gib(1),
        first_rank: Rank(0),
        ranks: 1,
        world_size: 1,
        node_rank: 0,
        hosts: vec![Host {
            name: "n1".into(),
            address: "127.0.0.1".into(),
            gpus: 1,
            ranks: 1,
            rack: None,
        }],
        wait_for_go: false,
        array_tasks: None,
        saved: None,
        key: None,
        limit: None,
    }
}

pub fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

fn me() -> String {
    if is_root() { "root".into() } else { std::env::var("USER").unwrap_or_else(|_| "me".into()) }
}
