//! What the agent adds to a job: `true` run N times through agent, zygote and shim, beside bare
//! `posix_spawn`.
//!
//! ```text
//! cargo run --release -p tutti-agent --example spawn_rate -- 2000 [cgroups]
//! ```
//!
//! The agent's rate is end to end on one node: an order over TLS, records on disk, one shim and
//! one rank per part, and the report that it is done. CPU is of agent, zygote, shims and ranks.
#![allow(clippy::print_stdout)]

#[path = "../tests/support/controller.rs"]
mod controller;

use std::path::{Path, PathBuf};
use std::time::Instant;

use tutti_agent::{AgentConfig, Controller, IsolationMode, Zygote, run};
use tutti_model::{
    Bytes, Command, Generation, Host, JobId, JobSpec, Launch, LeaseId, Order, Rank, Restarts,
    TaskId, Time,
};

pub struct TempDir(PathBuf);

impl TempDir {
    #[allow(clippy::new_without_default)]
    pub fn new() -> TempDir {
        let n = std::time::SystemTime::now();
        let n = n.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let dir = std::env::temp_dir().join(format!("tutti-spawn-rate-{n}"));
        std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
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

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: u64 = args.get(1).and_then(|a| a.parse().ok()).unwrap_or(2000);
    let cgroups = args.iter().any(|a| a == "cgroups");
    let (to_agent_read, to_agent_write) = nix::unistd::pipe().expect("a pipe");
    // So that the zygote, an orphan once the agent has ended, is ours to wait for and to count.
    nix::sys::prctl::set_child_subreaper(true).expect("to be a subreaper");
    // SAFETY: there is one thread.
    match unsafe { nix::unistd::fork() }.expect("to fork") {
        nix::unistd::ForkResult::Child => {
            drop(to_agent_write);
            agent(to_agent_read.into(), cgroups);
        }
        nix::unistd::ForkResult::Parent { child } => {
            drop(to_agent_read);
            measure(n, cgroups, child.as_raw(), to_agent_write.into());
        }
    }
}

fn agent(mut from: std::fs::File, cgroups: bool) {
    use std::io::Read;
    let zygote = Zygote::fork().expect("the zygote");
    let mut text = String::new();
    from.read_to_string(&mut text).expect("the address and the token");
    let mut words = text.split_whitespace();
    let mut word = || words.next().expect("three words").to_owned();
    let (dir, address, token) = (word(), word(), word());
    let config = AgentConfig {
        join_token: Some(token.parse().expect("a token")),
        simulated: true,
        isolation: if cgroups { IsolationMode::On } else { IsolationMode::Auto },
        ..AgentConfig::new(dir.into(), Controller::Address(address), "n1", "127.0.0.1")
    };
    run(config, zygote).expect("the agent runs");
}

fn measure(n: u64, cgroups: bool, agent: i32, mut to_agent: std::fs::File) {
    use std::io::Write;
    let (bare_rate, bare_cpu) = bare(n, 1);
    let (two_rate, _) = bare(n, 2);
    let dir = TempDir::new();
    let mut controller = controller::Controller::start();
    write!(
        to_agent,
        "{} {} {}",
        dir.path().display(),
        controller.address(),
        controller.join_token()
    )
    .expect("the agent reads");
    drop(to_agent);
    controller.wait_for_greeting();
    let before = cpu(libc::RUSAGE_SELF);
    let began = Instant::now();
    // As many at once as 16 nodes of 8 GPUs have.
    let (mut started, mut done) = (0, 0);
    while done < n {
        while started < n && started - done < 128 {
            started += 1;
            controller.order(Order::Start(Box::new(launch(started))));
        }
        done += controller.wait_for_some_done();
    }
    let took = began.elapsed().as_secs_f64();
    let own = cpu(libc::RUSAGE_SELF) - before;
    let children = cpu(libc::RUSAGE_CHILDREN);
    // SAFETY: plain system calls on our own children.
    unsafe {
        libc::kill(agent, libc::SIGTERM);
        libc::waitpid(agent, std::ptr::null_mut(), 0);
    }
    let agent_cpu = cpu(libc::RUSAGE_CHILDREN) - children;
    // SAFETY: as above.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) } > 0 {}
    let all = cpu(libc::RUSAGE_CHILDREN) - children;
    let micros = |seconds: f64| seconds * 1e6 / n as f64;
    println!(
        "posix_spawn of true, 1 thread    {bare_rate:7.0} per second, {:4.0} µs CPU each",
        micros(bare_cpu)
    );
    println!("posix_spawn of true, 2 threads   {two_rate:7.0} per second");
    let how = if cgroups { "with a cgroup" } else { "process group" };
    println!(
        "agent, {how}             {:7.0} per second, {:4.0} µs CPU each",
        n as f64 / took,
        micros(all)
    );
    println!(
        "  agent {:.0} µs; zygote, shim and rank beyond posix_spawn {:.0} µs; the test's controller \
         {:.0} µs more",
        micros(agent_cpu),
        micros(all - agent_cpu - bare_cpu),
        micros(own)
    );
}

fn launch(i: u64) -> Launch {
    Launch {
        lease: LeaseId { task: TaskId::single(JobId(i)), generation: Generation(i) },
        attempt: 1,
        restarts: Restarts::default(),
        user: "root".into(),
        spec: std::sync::Arc::new(JobSpec::new(Command::Argv(vec!["/bin/true".into()]))),
        submitted_at: Time(0),
        gpus: Vec::new(),
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

/// Rate, and CPU seconds for all.
fn bare(n: u64, threads: u64) -> (f64, f64) {
    let cpu_all = || cpu(libc::RUSAGE_CHILDREN) + cpu(libc::RUSAGE_SELF);
    let (before, began) = (cpu_all(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..n / threads {
                    let mut pid = 0;
                    let argv = [c"true".as_ptr().cast_mut(), std::ptr::null_mut()];
                    let env = [std::ptr::null_mut()];
                    // SAFETY: valid strings and arrays that end in null.
                    unsafe {
                        let path = c"/bin/true".as_ptr();
                        let (none, no_attr) = (std::ptr::null(), std::ptr::null());
                        assert_eq!(
                            libc::posix_spawn(
                                &mut pid,
                                path,
                                none,
                                no_attr,
                                argv.as_ptr(),
                                env.as_ptr()
                            ),
                            0
                        );
                        libc::waitpid(pid, std::ptr::null_mut(), 0);
                    }
                }
            });
        }
    });
    (n as f64 / began.elapsed().as_secs_f64(), cpu_all() - before)
}

/// User and system time in seconds.
fn cpu(who: libc::c_int) -> f64 {
    // SAFETY: a zeroed rusage is a valid place.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(who, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
