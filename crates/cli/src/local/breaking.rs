//! Breaking a node on purpose, and bringing it back: for those who show or test what follows.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::process::{Daemon, Proc};
use super::{CONTROLLER, ROUTER, RunningCluster};
use crate::fail::Fail;

/// SIGKILL needs no longer, unless the machine is in trouble itself.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// What was killed, and when.
pub struct Killed {
    pub processes: usize,
    pub at: Instant,
}

impl RunningCluster {
    /// As if the node's power failed: its agent and everything that the agent started are gone at
    /// once, without a word to anybody.
    pub fn kill_node(&mut self, node: &str) -> Result<Killed, Fail> {
        let agent = self.agent(node)?;
        let victims = halted_family(agent.proc);
        let at = Instant::now();
        victims.iter().for_each(|p| p.signal(Signal::SIGKILL));
        agent.finish(at + GONE_WITHIN);
        let left = victims.iter().filter(|p| !p.wait_gone(GONE_WITHIN)).count();
        if left > 0 {
            let left = crate::show::count(left as u64, "process");
            return Err(Fail::new(format!("{left} of node {node} survived SIGKILL")));
        }
        Ok(Killed { processes: victims.len(), at })
    }

    /// The power is back. The node joined before, so it needs no token.
    pub fn restart_node(&mut self, node: &str) -> Result<(), Fail> {
        self.agent(node)?.restart()?;
        self.write_record(None)
    }

    /// The first process of the cluster that is gone, other than that of the `broken` node.
    pub fn died(&self, broken: Option<&str>) -> Option<Fail> {
        let all = std::iter::once(&self.controller).chain(&self.agents).chain(&self.router);
        let dead = all.into_iter().find(|d| broken != Some(&d.name) && !d.proc.is_alive())?;
        let who = match dead.name.as_str() {
            CONTROLLER => "the controller".to_owned(),
            ROUTER => "the router".to_owned(),
            node => format!("the agent of node {node}"),
        };
        Some(
            Fail::new(format!("{who} has died")).hint(format!("its log is {}", dead.log.display())),
        )
    }

    fn agent(&mut self, node: &str) -> Result<&mut Daemon, Fail> {
        let found = self.agents.iter_mut().find(|a| a.name == node);
        found.ok_or_else(|| Fail::new(format!("no agent of node {node} was started here")))
    }
}

/// The process and all that descend from it, stopped first: nobody can start another one, or tell
/// the controller about it, while the others are killed.
fn halted_family(root: Proc) -> Vec<Proc> {
    let mut halted: Vec<Proc> = Vec::new();
    loop {
        let fresh: Vec<Proc> = root.family().into_iter().filter(|p| !halted.contains(p)).collect();
        if fresh.is_empty() {
            return halted;
        }
        fresh.iter().for_each(|p| p.signal(Signal::SIGSTOP));
        halted.extend(fresh);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_family_is_halted_to_the_last_grandchild() {
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'sleep 60 & echo ready; wait' & wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let family = halted_family(Proc::of(shell.id()).unwrap());
        assert_eq!(family.len(), 3);
        family.iter().for_each(|p| p.signal(Signal::SIGKILL));
        shell.wait().unwrap();
        assert!(family.iter().all(|p| p.wait_gone(GONE_WITHIN)));
    }
}
