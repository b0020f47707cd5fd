//! Finds processes of a data dir by their command lines, whoever started them: agents that were
//! restarted by hand, and shims that outlived an agent that was killed.
//!
//! A shim is forked from its agent without exec, so it carries the agent's command line, and the
//! ranks are below it in the process tree.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::process::{Proc, everybody, families, wait_all_gone};

/// How long shims may take to notice that their ranks are gone.
const RANKS_WAIT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub role: Role,
    pub proc: Proc,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Controller,
    Router,
    Agent {
        node: String,
    },
    /// A zygote or shim of this node.
    Helper {
        node: String,
    },
}

impl Found {
    pub fn name(&self) -> String {
        match &self.role {
            Role::Controller => super::CONTROLLER.to_owned(),
            Role::Router => super::ROUTER.to_owned(),
            Role::Agent { node } | Role::Helper { node } => node.clone(),
        }
    }
}

/// Everything that runs for this data dir. `dir` is absolute and without links, as `tutti up`
/// writes it on command lines.
pub fn find(dir: &Path) -> Vec<Found> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            // Most are somebody else's: of them one file is read.
            role(&line, "", dir)?;
            let proc = Proc::of(pid)?;
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
            Some(Found { role: role(&line, comm.trim(), dir)?, proc })
        })
        .collect()
}

fn role(cmdline: &[u8], comm: &str, dir: &Path) -> Option<Role> {
    let line = std::str::from_utf8(cmdline).ok()?;
    let words: Vec<&str> = line.split_terminator('\0').collect();
    let verb = *words.get(1)?;
    let value = |flag: &str| {
        let at = words.iter().position(|w| *w == flag)?;
        words.get(at + 1).map(Path::new)
    };
    // One that was started by hand has no such file, and is not ours to stop.
    if verb == super::ROUTER {
        let ours = value(super::router::ADDRESS_FLAG)? == dir.join(super::router::ADDRESS_FILE);
        return ours.then_some(Role::Router);
    }
    let its_dir = value("--data-dir")?;
    match verb {
        "controller" if its_dir == dir => Some(Role::Controller),
        "agent" if its_dir.parent()? == dir.join("nodes") => {
            let node = its_dir.file_name()?.to_str()?.to_owned();
            let helper = ["tutti-zygote", "tutti-shim"].contains(&comm);
            Some(if helper { Role::Helper { node } } else { Role::Agent { node } })
        }
        _ => None,
    }
}

/// Kills what these nodes still run: ranks first, while their shims still hold the tree together,
/// then the shims. Says how many processes that were.
pub fn kill_jobs(dir: &Path, node: impl Fn(&str) -> bool) -> usize {
    let helpers: Vec<Proc> = find(dir)
        .into_iter()
        .filter(|f| matches!(&f.role, Role::Helper { node: n } if node(n)))
        .map(|f| f.proc)
        .collect();
    let mut killed = BTreeSet::new();
    let deadline = Instant::now() + RANKS_WAIT;
    loop {
        // Who has none need not look at the whole machine.
        let below = if helpers.is_empty() { Vec::new() } else { descendants(&helpers) };
        if below.is_empty() || Instant::now() > deadline {
            break;
        }
        for proc in below {
            proc.signal(Signal::SIGKILL);
            killed.insert(proc.pid);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    helpers.iter().for_each(|proc| proc.signal(Signal::SIGKILL));
    wait_all_gone(&helpers, RANKS_WAIT);
    killed.len()
}

/// Everything below these, but none of them.
fn descendants(roots: &[Proc]) -> Vec<Proc> {
    let known: BTreeSet<u32> = roots.iter().map(|root| root.pid).collect();
    let mut all = families(roots, &everybody());
    all.retain(|proc| !known.contains(&proc.pid));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_known_by_their_command_lines() {
        let dir = Path::new("/data/c1");
        let is = |line: &str, comm: &str| role(line.replace(' ', "\0").as_bytes(), comm, dir);
        let agent = "/bin/tutti agent --controller /data/c1 --data-dir /data/c1/nodes/n1 --name n1";
        let node = || "n1".to_owned();
        assert_eq!(is(agent, "tutti"), Some(Role::Agent { node: node() }));
        assert_eq!(is(agent, "tutti-shim"), Some(Role::Helper { node: node() }));
        let controller = "/bin/tutti controller --data-dir /data/c1 --listen 127.0.0.1:0";
        assert_eq!(is(controller, "tutti"), Some(Role::Controller));
        let router = "/bin/tutti router --cluster /data/c1 --address-file /data/c1/router";
        assert_eq!(is(router, "tutti"), Some(Role::Router));
        for other in [
            "/bin/tutti router --cluster /data/c1 --listen 127.0.0.1:8080",
            "/bin/tutti router --cluster /data/c1 --address-file /data/c2/router",
            "/bin/tutti controller --data-dir /data/c2",
            "/bin/tutti agent --data-dir /data/c10/nodes/n1",
            "/bin/tutti ps --data-dir /data/c1",
            "vi --data-dir",
            "",
        ] {
            assert_eq!(is(other, "tutti"), None, "{other}");
        }
    }

    #[test]
    fn the_whole_tree_below_is_found() {
        let me = Proc::of(std::process::id()).unwrap();
        let mut shell =
            std::process::Command::new("sh").args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let shell_proc = Proc::of(shell.id()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        // The shell needs a moment to fork.
        while descendants(&[shell_proc]).is_empty() {
            assert!(Instant::now() < deadline, "the shell did not start its child");
            std::thread::yield_now();
        }
        assert!(descendants(&[me]).contains(&shell_proc));
        descendants(&[shell_proc]).iter().for_each(|p| p.signal(Signal::SIGKILL));
        shell.wait().unwrap();
    }
}
