//! A cluster of processes on this machine: what `tutti up` starts and `tutti down` stops.
//!
//! Every process is this binary again, in a session of its own, its output in `logs/`. `up.json`
//! in the data dir says which they are, with their start times, so that a process id that was
//! given away since is never taken for one of ours. `setup.json` says what they were started with.
//!
//! ```text
//! start (all, or what is missing) ─► wait_ready ─► leave (detached)
//!                                              └─► supervise (restarts what dies) ─► stop
//! ```

mod breaking;
mod file;
mod found;
pub mod hardware;
mod memory;
mod names;
mod process;
mod ready;
mod record;
mod remains;
mod removed;
mod router;
mod setup;
mod stop;
mod supervise;
mod sweep;

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tutti_controller::DEFAULT_PORT;
use tutti_files::{OwnDir, OwnDirError};
use tutti_model::{Grant, NodeState, Policy, Span};
use tutti_wire::api::NewToken;
use tutti_wire::client::{Client, Endpoint};

use crate::cmd::agent::JOIN_VARIABLE;
use crate::fail::Fail;
use crate::session;
use hardware::Hardware;
use process::{Daemon, Proc};
use record::UpRecord;

pub use found::controller_process;
pub use names::{list as short_list, stopped as stopped_in_words};
pub use remains::Remains;
pub use router::RouterSetup;
pub use setup::Setup;
pub use stop::down;
pub use supervise::StopSignals;

/// What agents get between SIGTERM and SIGKILL of their jobs when the cluster goes down.
const JOB_GRACE: Span = Span::secs(5);

const CONTROLLER: &str = "controller";
const ROUTER: &str = "router";

/// Until the controller answers.
const CONTROLLER_WAIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct UpOptions {
    pub data_dir: PathBuf,
    /// None: the usual port, or a free one if that is taken.
    pub listen: Option<SocketAddr>,
    pub nodes: Vec<NodePlan>,
    pub node_timeout: Option<Span>,
    /// Becomes the running policy before the first node joins.
    pub policy: Option<Policy>,
    /// None: no router.
    pub router: Option<RouterSetup>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlan {
    pub name: String,
    pub address: String,
    pub gpus: u16,
    /// None: the machine's real GPUs.
    pub simulated_model: Option<String>,
    pub rack: Option<String>,
}

/// Nodes `n1`, `n2`, ..., each with an address of the loopback range, so that they are several
/// hosts to a job.
pub fn imagined_nodes(count: u16, hardware: &Hardware) -> Vec<NodePlan> {
    let model = hardware.gpus.first().map_or("h100", |g| g.model.as_str());
    (1..=count)
        .map(|i| NodePlan {
            name: format!("n{i}"),
            address: imagined_address(usize::from(i - 1)),
            gpus: hardware.gpus.len() as u16,
            simulated_model: Some(model.to_owned()),
            rack: None,
        })
        .collect()
}

/// The address of the loopback range that an imagined node has, counted from 0.
fn imagined_address(i: usize) -> String {
    format!("127.0.{}.{}", 1 + i / 250, 1 + i % 250)
}

/// Where the controller is reached from other machines, nodes are to be reached from them as well:
/// jobs may span them and nodes elsewhere.
pub fn at_addresses(mut nodes: Vec<NodePlan>, listen: Option<SocketAddr>) -> Vec<NodePlan> {
    let outer = listen.map(|at| at.ip()).filter(|ip| !ip.is_loopback());
    let outer = outer.and_then(|ip| if ip.is_unspecified() { own_address(ip) } else { Some(ip) });
    for (i, node) in nodes.iter_mut().enumerate() {
        node.address = match (outer, &node.simulated_model) {
            (Some(ip), _) => ip.to_string(),
            (None, Some(_)) => imagined_address(i),
            (None, None) => Ipv4Addr::LOCALHOST.to_string(),
        };
    }
    nodes
}

/// One of this machine's that others may reach, of the same kind.
fn own_address(like: IpAddr) -> Option<IpAddr> {
    let ip = |i: nix::ifaddrs::InterfaceAddress| {
        let address = i.address?;
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
        let v6 = || address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip()));
        v4.or_else(v6)
    };
    let outer = |ip: &IpAddr| match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let mut all = nix::ifaddrs::getifaddrs().ok()?.filter_map(ip).filter(outer);
    all.find(|ip| ip.is_ipv4() == like.is_ipv4())
}

/// Puts them into racks `r1`, `r2`, ... in equal blocks, as far as the numbers allow. No racks leave
/// them as they are.
pub fn in_racks(mut nodes: Vec<NodePlan>, racks: u16) -> Vec<NodePlan> {
    let (count, racks) = (nodes.len(), usize::from(racks));
    if racks > 0 {
        for (i, node) in nodes.iter_mut().enumerate() {
            node.rack = Some(format!("r{}", i * racks / count + 1));
        }
    }
    nodes
}

/// This machine as it is.
pub fn this_node(hardware: &Hardware) -> Result<NodePlan, Fail> {
    Ok(NodePlan {
        name: hardware::host_name()?,
        address: Ipv4Addr::LOCALHOST.to_string(),
        gpus: hardware.gpus.len() as u16,
        simulated_model: None,
        rack: None,
    })
}

/// Handle on what was started. Dropping it stops nothing.
pub struct RunningCluster {
    pub data_dir: PathBuf,
    /// Where a browser on this machine finds it: plain HTTP is only spoken over loopback.
    pub url: String,
    /// Where requests to endpoints go.
    pub router_url: Option<String>,
    /// Those that are part of the cluster.
    pub nodes: Vec<NodePlan>,
    /// Those that were to be, and were removed from it.
    pub removed: BTreeSet<String>,
    pub simulated: bool,
    pub client: Client,
    /// What `start` found running, by name; the others it has started.
    pub ran_already: Vec<String>,
    /// They ran without anybody who stops them on Ctrl-C.
    pub was_detached: bool,
    controller: Daemon,
    agents: Vec<Daemon>,
    router: Option<Daemon>,
}

/// Starts the controller, waits until it answers, and starts the agents; of a cluster that runs in
/// part, what is missing.
pub fn start(options: &UpOptions) -> Result<RunningCluster, Fail> {
    let dir = make_dir(&options.data_dir)?;
    let mut found = found::look(&dir, options)?;
    if !router::is_found(&dir) {
        let lost: Vec<_> =
            found.router.take().map(|proc| (ROUTER.to_owned(), proc)).into_iter().collect();
        stop::stop_procs(&lost);
    }
    let new = options.nodes.iter().filter(|node| !found.agents.contains_key(&node.name));
    memory::check(new.count())?;
    let listen = found.listen.or(options.listen).unwrap_or_else(usual_or_free_port);
    let args = controller_args(&dir, listen, options.node_timeout)?;
    let mut controller = match found.controller {
        Some(proc) => Daemon::adopt(CONTROLLER, &dir, args, proc),
        None => {
            forget_endpoint(&dir)?;
            Daemon::start(CONTROLLER, &dir, args, &[])?
        }
    };
    let answered = wait_for_controller(&dir, &mut controller, options.policy.as_ref());
    let with_removed = |client: Client| {
        let removed = removed::of(&client, &dir, &options.nodes)?;
        Ok((client, removed))
    };
    let (client, removed) = match answered.and_then(with_removed) {
        Ok(answered) => answered,
        Err(fail) => {
            if found.controller.is_none() {
                controller.stop(Duration::from_secs(5));
            }
            return Err(fail);
        }
    };
    // A controller that is started again comes back where it was.
    let listen = listens_again(listen, client.endpoint().port);
    controller.set_argument("--listen", listen.to_string());
    let (asked, nodes) = (options.listen, options.nodes.clone());
    let (node_timeout, router) = (options.node_timeout, options.router);
    let mut setup = Setup { asked, listen, node_timeout, nodes, removed: removed.clone(), router };
    setup.write(&dir)?;
    stop::stop_procs(&found.take_agents(&removed));
    let is_part = |node: &&NodePlan| !removed.contains(&node.name);
    let nodes: Vec<NodePlan> = options.nodes.iter().filter(is_part).cloned().collect();
    let mut cluster = RunningCluster {
        url: url(&client.endpoint()),
        router_url: None,
        nodes: Vec::new(),
        removed,
        simulated: options.nodes.iter().any(|n| n.simulated_model.is_some()),
        client,
        controller,
        agents: Vec::new(),
        router: None,
        data_dir: dir,
        ran_already: found.names(),
        was_detached: found.detached,
    };
    for node in &nodes {
        match cluster.agent_for(node, found.agents.get(&node.name).copied()) {
            Ok(agent) => cluster.agents.push(agent),
            Err(fail) => {
                cluster.give_up();
                return Err(fail);
            }
        }
    }
    cluster.nodes = nodes;
    if let Err(fail) = cluster.start_router(&mut setup, found.router) {
        cluster.give_up();
        return Err(fail);
    }
    cluster.write_record(None)?;
    Ok(cluster)
}

fn url(at: &Endpoint) -> String {
    let loopback = at.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    format!("{}://{}", if loopback { "http" } else { "https" }, at.authority())
}

/// The port is the one that was picked. The address is the one that was asked for: where a client
/// on this machine reaches it is not where others do.
fn listens_again(asked: SocketAddr, port: u16) -> SocketAddr {
    SocketAddr::new(asked.ip(), port)
}

impl RunningCluster {
    pub fn gpus(&self) -> u64 {
        self.nodes.iter().map(|n| u64::from(n.gpus)).sum()
    }

    /// Names of what `start` has started.
    pub fn started(&self) -> Vec<&str> {
        let ran: BTreeSet<&str> = self.ran_already.iter().map(String::as_str).collect();
        let all = self.agents.iter().chain([&self.controller]).chain(&self.router);
        all.map(|d| d.name.as_str()).filter(|name| !ran.contains(name)).collect()
    }

    /// The one that runs, or a new one.
    fn agent_for(&self, node: &NodePlan, runs: Option<Proc>) -> Result<Daemon, Fail> {
        let node_dir = self.data_dir.join(tutti_controller::NODES_DIR).join(&node.name);
        let args = agent_args(&self.data_dir, &node_dir, node)?;
        if let Some(proc) = runs {
            return Ok(Daemon::adopt(&node.name, &self.data_dir, args, proc));
        }
        let mut secret = Vec::new();
        if !removed::has_key(&self.data_dir, &node.name) {
            let grant = Grant::Join { node: Some(node.name.clone()), uses: Some(1) };
            let new = NewToken { grant, expires_in: Some(Span::secs(600)) };
            secret.push((JOIN_VARIABLE, self.client.create_token(&new)?.secret));
        }
        Daemon::start(&node.name, &self.data_dir, args, &secret)
    }

    /// What to know about nodes that were not started, if there are any.
    pub fn removed_in_words(&self) -> Option<String> {
        removed::in_words(&self.data_dir, &self.removed)
    }

    /// Nodes of an earlier start in this data dir that are not part of this one.
    pub fn left_over(&self) -> Result<Vec<String>, Fail> {
        let ours: BTreeSet<&str> = self.nodes.iter().map(|n| n.name.as_str()).collect();
        let was_here =
            |name: &str| self.data_dir.join(tutti_controller::NODES_DIR).join(name).is_dir();
        let nodes = self.client.nodes()?.into_iter();
        let left = nodes
            .filter(|n| !usable(n.state) && !ours.contains(n.name.as_str()) && was_here(&n.name));
        Ok(left.map(|n| n.name).collect())
    }

    /// When it did not come up. What ran before has jobs, and agents may have adopted some, so then
    /// everything is left as it is.
    pub fn give_up(&mut self) {
        if self.ran_already.is_empty() {
            self.stop();
        } else {
            // Without the record the next start finds them by their command lines.
            let _ = self.write_record(None);
        }
    }

    /// Leaves everything running without us.
    pub fn leave(&self) -> Result<(), Fail> {
        self.write_record(None)
    }

    /// Stops the router, agents with their jobs, then the controller. Says what was stopped.
    pub fn stop(&mut self) -> Vec<String> {
        let mut stopped = stop::stop_all(self.router.as_mut_slice());
        stopped.extend(stop::stop_all(&mut self.agents));
        stopped.extend(stop::stop_orphans(&self.data_dir));
        stopped.extend(stop::stop_all(std::slice::from_mut(&mut self.controller)));
        UpRecord::remove(&self.data_dir);
        stopped
    }

    fn write_record(&self, supervisor: Option<Proc>) -> Result<(), Fail> {
        let agents = self.agents.iter().map(|a| (a.name.clone(), a.proc)).collect();
        let (controller, router) = (self.controller.proc, self.router.as_ref().map(|r| r.proc));
        let dir = Some(self.data_dir.clone());
        UpRecord { supervisor, controller, agents, router, dir }.write(&self.data_dir)
    }
}

/// A drained node is as ready as its operator wants it.
fn usable(state: NodeState) -> bool {
    matches!(state, NodeState::Ready | NodeState::Draining | NodeState::Drained)
}

/// What is in it says which processes are ours and how they are started, so it must be this user's
/// alone. The answer is its path without links.
fn make_dir(dir: &Path) -> Result<PathBuf, Fail> {
    let own = OwnDir::leaving_out(dir, &[tutti_controller::NODES_DIR]).make(0o700);
    let dir = own.map_err(|error| not_own(dir, error))?;
    let failed = |e: std::io::Error| unusable(&dir, &e);
    DirBuilder::new().recursive(true).mode(0o700).create(dir.join("logs")).map_err(failed)?;
    Ok(dir)
}

/// What is in it names processes to be stopped and files to be opened, so it must be this user's alone.
/// The answer is its path without links.
pub fn check_own(dir: &Path) -> Result<PathBuf, Fail> {
    let own = OwnDir::leaving_out(dir, &[tutti_controller::NODES_DIR]).check();
    own.map_err(|error| not_own(dir, error))
}

fn not_own(dir: &Path, error: OwnDirError) -> Fail {
    match error.io() {
        Ok(source) => unusable(dir, &source),
        Err(refused) => Fail::new(format!("can't use {} as data dir: {refused}", dir.display()))
            .hint("or choose another with --data-dir"),
    }
}

fn unusable(dir: &Path, e: &std::io::Error) -> Fail {
    if e.kind() == std::io::ErrorKind::StorageFull {
        return Fail::new(process::full_disk(dir));
    }
    Fail::new(format!("can't use {} as data dir: {e}", dir.display()))
        .hint("choose another with --data-dir, or make it writable for this user")
}

/// Left by a controller that was killed; a reader would take it for a live one.
fn forget_endpoint(dir: &Path) -> Result<(), Fail> {
    match std::fs::remove_file(dir.join(tutti_controller::ENDPOINT_FILE)) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(unusable(dir, &e)),
    }
}

fn usual_or_free_port() -> SocketAddr {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT));
    match TcpListener::bind(usual) {
        Ok(_) => usual,
        Err(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    }
}

fn controller_args(
    dir: &Path,
    listen: SocketAddr,
    node_timeout: Option<Span>,
) -> Result<Vec<String>, Fail> {
    let mut args = vec![
        CONTROLLER.to_owned(),
        "--data-dir".to_owned(),
        path_text(dir)?,
        "--listen".to_owned(),
        listen.to_string(),
    ];
    if let Some(timeout) = node_timeout {
        args.extend(["--node-timeout".to_owned(), timeout.to_string()]);
    }
    Ok(args)
}

fn agent_args(dir: &Path, node_dir: &Path, node: &NodePlan) -> Result<Vec<String>, Fail> {
    let mut args = vec![
        "agent".to_owned(),
        "--controller".to_owned(),
        path_text(dir)?,
        "--data-dir".to_owned(),
        path_text(node_dir)?,
        "--name".to_owned(),
        node.name.clone(),
        "--address".to_owned(),
        node.address.clone(),
        "--stop-jobs".to_owned(),
        JOB_GRACE.to_string(),
    ];
    if let Some(model) = &node.simulated_model {
        args.push("--simulate".to_owned());
        args.extend(["--gpus-per-node".to_owned(), node.gpus.to_string()]);
        args.extend(["--gpu-model".to_owned(), model.clone()]);
    }
    if let Some(rack) = &node.rack {
        args.extend(["--label".to_owned(), format!("rack={rack}")]);
    }
    Ok(args)
}

/// Until it answers, and has the policy that it is to have.
fn wait_for_controller(
    dir: &Path,
    controller: &mut Daemon,
    policy: Option<&Policy>,
) -> Result<Client, Fail> {
    let deadline = Instant::now() + CONTROLLER_WAIT;
    loop {
        if let Some(dead) = controller.death() {
            return Err(dead);
        }
        let ready = dir.join(tutti_controller::ENDPOINT_FILE).exists();
        let answer = if ready {
            session::open_dir(dir).and_then(|c| c.cluster_info().map(|_| c).map_err(Fail::from))
        } else {
            Err(Fail::new("the controller has not begun to listen"))
        };
        match answer {
            Ok(client) => {
                if let Some(policy) = policy {
                    client.set_policy(policy)?;
                }
                return Ok(client);
            }
            Err(fail) if Instant::now() > deadline => {
                return Err(fail.hint(format!("its log is {}", controller.log.display())));
            }
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

fn path_text(path: &Path) -> Result<String, Fail> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Fail::usage(format!("{} is not UTF-8", path.display())))
}

/// A new directory for what is only needed for a while; only its owner sees into it.
pub fn temporary_dir(name: &str) -> Result<PathBuf, Fail> {
    let template = std::env::temp_dir().join(format!("{name}-XXXXXX"));
    nix::unistd::mkdtemp(&template).map_err(|e| {
        Fail::new(format!("can't make {}: {e}", template.display()))
            .hint("set TMPDIR to a directory that you may write to")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imagined_nodes_have_addresses_of_their_own() {
        let hardware = Hardware::simulated(8, "h100");
        let nodes = imagined_nodes(501, &hardware);
        let last = |i: usize| (nodes[i].name.as_str(), nodes[i].address.as_str());
        assert_eq!(last(0), ("n1", "127.0.1.1"));
        assert_eq!(last(249), ("n250", "127.0.1.250"));
        assert_eq!(last(250), ("n251", "127.0.2.1"));
        assert_eq!(last(500), ("n501", "127.0.3.1"));
        assert!(nodes.iter().all(|n| n.gpus == 8));
    }

    #[test]
    fn nodes_are_where_the_controller_is_reached() {
        let hardware = Hardware::simulated(8, "h100");
        let at = |listen: Option<&str>| -> Vec<String> {
            let listen = listen.map(|l| l.parse().unwrap());
            let nodes = at_addresses(imagined_nodes(2, &hardware), listen);
            nodes.into_iter().map(|n| n.address).collect()
        };
        assert_eq!(at(None), ["127.0.1.1", "127.0.1.2"]);
        assert_eq!(at(Some("127.0.0.1:0")), ["127.0.1.1", "127.0.1.2"]);
        assert_eq!(at(Some("10.0.0.1:7171")), ["10.0.0.1", "10.0.0.1"]);
        let again =
            at_addresses(imagined_nodes(1, &hardware), Some("10.0.0.1:7171".parse().unwrap()));
        assert_eq!(at_addresses(again, None)[0].address, "127.0.1.1", "back on loopback");
    }

    #[test]
    fn racks_are_equal_blocks() {
        let hardware = Hardware::simulated(8, "h100");
        let racks = |nodes, racks| -> Vec<String> {
            let nodes = in_racks(imagined_nodes(nodes, &hardware), racks);
            nodes.into_iter().map(|n| n.rack.unwrap_or_default()).collect()
        };
        assert_eq!(racks(6, 2), ["r1", "r1", "r1", "r2", "r2", "r2"]);
        assert_eq!(racks(5, 2), ["r1", "r1", "r1", "r2", "r2"]);
        assert_eq!(racks(3, 3), ["r1", "r2", "r3"]);
        assert_eq!(racks(2, 0), ["", ""]);
    }

    #[test]
    fn a_controller_comes_back_on_the_address_that_was_asked_for() {
        let again = |asked: &str| listens_again(asked.parse().unwrap(), 7411).to_string();
        assert_eq!(again("0.0.0.0:0"), "0.0.0.0:7411");
        assert_eq!(again("[::]:7411"), "[::]:7411");
        assert_eq!(again("127.0.0.1:0"), "127.0.0.1:7411");
    }

    #[test]
    fn an_endpoint_of_a_dead_controller_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = dir.path().join(tutti_controller::ENDPOINT_FILE);
        std::fs::write(&endpoint, "127.0.0.1:7410\n").unwrap();
        forget_endpoint(dir.path()).unwrap();
        forget_endpoint(dir.path()).unwrap();
        assert!(!endpoint.exists());
    }
}
