//! The environment of a rank. It is built from nothing: what the agent happened to be started with
//! does not leak into jobs.

mod devices;
mod frameworks;
mod hostlist;
mod slurm;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tutti_model::{Launch, PartError, Rank, Time};

use crate::network::Network;
use crate::progress::place;
use crate::user::Account;

/// Every variable that all ranks are given, and what it means. The documentation prints this table.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("RANK", "position of this process in the gang, from 0"),
    ("WORLD_SIZE", "how many processes the gang has"),
    ("LOCAL_RANK", "position of this process on its node, from 0"),
    ("LOCAL_WORLD_SIZE", "how many processes of the gang run on this node"),
    ("NODE_RANK", "position of this node in the gang, from 0"),
    ("MASTER_ADDR", "address of the gang's first node; the job may set its own"),
    ("MASTER_PORT", "a port that was free on the first node; the job may set its own"),
    (
        "CUDA_VISIBLE_DEVICES",
        "the GPUs of this part, comma separated; empty if it has none. By index, among those that the \
         part can open; by uuid for MIG instances, where a GPU of the node is missing, and under enroot",
    ),
    ("CUDA_DEVICE_ORDER", "PCI_BUS_ID, so that indices mean the same to CUDA"),
    ("TUTTI_JOB_ID", "the job"),
    ("TUTTI_TASK_ID", "the task: the job id, with _INDEX for a task of an array"),
    ("TUTTI_JOB_NAME", "the job's name"),
    ("TUTTI_ARRAY_INDEX", "index of this task in its array; not set outside arrays"),
    ("TUTTI_ARRAY_TASKS", "how many tasks the array has; not set outside arrays"),
    ("TUTTI_ATTEMPT", "which try at running the task this is, from 1"),
    ("TUTTI_RESTARTS", "how often the task was started again, for any cause"),
    ("TUTTI_GENERATION", "fences this attempt's lease: a larger one has replaced it"),
    ("TUTTI_USER", "who submitted the job"),
    ("TUTTI_NODE", "name of this node"),
    ("TUTTI_NODE_ADDR", "address of this node"),
    ("TUTTI_NODES", "names of the gang's nodes in rank order, comma separated"),
    ("TUTTI_NODE_ADDRS", "their addresses in the same order"),
    (
        "TUTTI_RACKS",
        "racks of those nodes, empty where nobody knows; not set if no rack is known at all",
    ),
    ("TUTTI_PORTS", "a port that was free on each of them, in the same order"),
    ("PORT", "where a replica of an endpoint listens; not set for other jobs"),
    ("TUTTI_PORT", "the same"),
    (
        "TUTTI_GANG_KEY",
        "64 hex digits that only processes of this attempt know: prove by it who you are",
    ),
    ("TUTTI_NUM_NODES", "how many nodes the gang has"),
    ("TUTTI_GPUS", "how many GPUs this part has"),
    ("TUTTI_CPUS", "how many CPUs this part was given"),
    ("TUTTI_SIMULATED", "1 if the GPUs are imagined, else 0"),
    ("TUTTI_PROGRESS", "a unix socket on which this process may say how far it is"),
    ("TUTTI_WARNINGS", "a file with what the job is warned of, one JSON object a line"),
    (
        "TUTTI_RESUME_STEP",
        "step of the newest checkpoint that earlier attempts reported, if any did",
    ),
    ("TUTTI_RESUME_PATH", "where that checkpoint is, if they said so"),
    ("TUTTI_PART", "marks every process of the part, so that none is left behind; leave it alone"),
    ("PATH", "the job's own, else a usual one"),
    ("HOME", "home directory of the user the rank runs as; the job may set its own"),
    ("USER", "that user; the job may set its own"),
    ("LOGNAME", "the same"),
    ("SHELL", "that user's shell; the job may set its own"),
    ("LANG", "C.UTF-8; the job may set its own"),
    ("TMPDIR", "the agent's, where it has one; the job may set its own"),
];

/// Where programs are, unless somebody says otherwise.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a launcher sets besides, and what GPUs of other vendors need. The documentation prints these
/// tables, too.
pub use devices::{Devices, Sees, VENDORS};
pub use frameworks::table as launcher_environment;
pub use slurm::{OF_JOB as SLURM_JOB, OF_TASK as SLURM_TASK};

/// What the environment is made from, beside the launch.
pub struct Surroundings<'a> {
    pub node: &'a str,
    pub address: &'a str,
    pub simulated: bool,
    pub account: &'a Account,
    pub master_port: u16,
    /// One on each node of the gang, in rank order; none from an older controller.
    pub ports: &'a [u16],
    pub network: &'a Network,
    pub devices: Devices<'a>,
    pub part: &'a Path,
    pub progress: &'a Path,
    pub tmpdir: Option<&'a str>,
    /// This binary.
    pub program: &'a str,
    pub as_root: bool,
    pub now: Time,
}

/// What the ranks of one part are given.
pub struct Environment {
    /// `NAME=value` for all of them.
    pub shared: Vec<String>,
    pub by_rank: ByRank,
}

/// Names of variables in which ranks differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByRank {
    /// These hold the position in the gang.
    pub global: Vec<String>,
    /// And these the position on the node.
    pub local: Vec<String>,
}

impl ByRank {
    fn of(launch: &Launch) -> ByRank {
        let (global, local) = frameworks::by_rank(launch);
        let tasks = slurm::has_tasks(launch.spec.launcher);
        let names = |first, more: Vec<&str>, slurm| {
            let slurm = tasks.then_some(slurm);
            [first].into_iter().chain(more).chain(slurm).map(str::to_owned).collect()
        };
        ByRank {
            global: names("RANK", global, slurm::PROCESS),
            local: names("LOCAL_RANK", local, slurm::LOCAL_PROCESS),
        }
    }

    /// `NAME=value` for one rank.
    pub fn values(&self, rank: Rank, first: Rank) -> impl Iterator<Item = String> {
        let local = rank.0 - first.0;
        let global = self.global.iter().map(move |name| format!("{name}={rank}"));
        global.chain(self.local.iter().map(move |name| format!("{name}={local}")))
    }
}

/// Three layers: what a login would give and what the launcher sets, then the job's own `env`, then
/// who the rank is. So a job may change `PATH` or bring its own `MASTER_PORT`, but a `RANK` left
/// over in the submitter's shell never confuses a gang.
pub fn of_part(launch: &Launch, around: &Surroundings<'_>) -> Result<Environment, PartError> {
    let mut env: BTreeMap<&str, String> = BTreeMap::new();
    login(&mut env, around);
    let own = &launch.spec.env;
    let own_conf = around.account.has_nccl_conf || own.contains_key("NCCL_CONF_FILE");
    env.extend(around.network.variables(&launch.gpus, own_conf));
    let first = launch.hosts.first().map_or(around.address, |h| h.address.as_str());
    env.insert("MASTER_ADDR", first.into());
    env.insert("MASTER_PORT", around.master_port.to_string());
    let chosen = |name: &str| own.get(name).unwrap_or(&env[name]).clone();
    let (address, port) = (chosen("MASTER_ADDR"), chosen("MASTER_PORT"));
    let master = match address.contains(':') {
        true => format!("[{address}]:{port}"),
        false => format!("{address}:{port}"),
    };
    env.extend(frameworks::variables(launch, around, &master)?);
    env.extend(own.iter().map(|(k, v)| (k.as_str(), v.clone())));
    identity(&mut env, launch, around);
    slurm::put(&mut env, launch, around.node, around.now);
    let by_rank = ByRank::of(launch);
    for name in by_rank.global.iter().chain(&by_rank.local) {
        env.remove(name.as_str());
    }
    let shared = env.into_iter().map(|(k, v)| format!("{k}={v}")).collect();
    Ok(Environment { shared, by_rank })
}

fn login(env: &mut BTreeMap<&str, String>, around: &Surroundings<'_>) {
    let account = around.account;
    env.insert("PATH", DEFAULT_PATH.into());
    env.insert("HOME", account.home.clone());
    env.insert("USER", account.name.clone());
    env.insert("LOGNAME", account.name.clone());
    env.insert("SHELL", account.shell.clone());
    env.insert("LANG", "C.UTF-8".into());
    if let Some(tmpdir) = around.tmpdir {
        env.insert("TMPDIR", tmpdir.into());
    }
}

fn identity(env: &mut BTreeMap<&str, String>, launch: &Launch, around: &Surroundings<'_>) {
    let task = launch.lease.task;
    let join = |parts: Vec<String>| parts.join(",");
    let hosts =
        |f: fn(&tutti_model::Host) -> &String| launch.hosts.iter().map(f).cloned().collect();
    env.insert("WORLD_SIZE", launch.world_size.to_string());
    env.insert("LOCAL_WORLD_SIZE", launch.ranks.to_string());
    env.insert("NODE_RANK", launch.node_rank.to_string());
    around.devices.put(env, &launch.gpus);
    env.insert("TUTTI_JOB_ID", task.job.to_string());
    env.insert("TUTTI_TASK_ID", task.to_string());
    env.insert("TUTTI_JOB_NAME", launch.spec.display_name().into());
    match task.index {
        Some(index) => {
            env.insert("TUTTI_ARRAY_INDEX", index.to_string());
            env.insert("TUTTI_ARRAY_TASKS", launch.array_tasks.unwrap_or(1).to_string());
        }
        None => {
            env.remove("TUTTI_ARRAY_INDEX");
            env.remove("TUTTI_ARRAY_TASKS");
        }
    }
    env.insert("TUTTI_ATTEMPT", launch.attempt.to_string());
    env.insert("TUTTI_RESTARTS", launch.restarts.total().to_string());
    env.insert("TUTTI_GENERATION", launch.lease.generation.to_string());
    env.insert("TUTTI_USER", launch.user.clone());
    env.insert("TUTTI_NODE", around.node.into());
    env.insert("TUTTI_NODE_ADDR", around.address.into());
    env.insert("TUTTI_NODES", join(hosts(|h| &h.name)));
    env.insert("TUTTI_NODE_ADDRS", join(hosts(|h| &h.address)));
    match launch.hosts.iter().any(|host| host.rack.is_some()) {
        true => {
            // A comma in a label would shift all that follow.
            let rack = |label: &String| label.replace(',', "_");
            let racks =
                launch.hosts.iter().map(|host| host.rack.as_ref().map_or(String::new(), rack));
            env.insert("TUTTI_RACKS", join(racks.collect()))
        }
        false => env.remove("TUTTI_RACKS"),
    };
    match around.ports.is_empty() {
        true => env.remove("TUTTI_PORTS"),
        false => {
            let ports = around.ports.iter().map(ToString::to_string).collect();
            env.insert("TUTTI_PORTS", join(ports))
        }
    };
    // What routers are told is what the replica must go by, so the job's own `env` has no say.
    match &launch.spec.service {
        Some(service) => {
            let port = service.port.unwrap_or(around.master_port).to_string();
            env.insert("PORT", port.clone());
            env.insert("TUTTI_PORT", port)
        }
        None => env.remove("TUTTI_PORT"),
    };
    match frameworks::slots(launch) {
        Some(slots) => {
            let slots = slots.iter().map(ToString::to_string).collect();
            env.insert("TUTTI_SLOTS", join(slots))
        }
        None => env.remove("TUTTI_SLOTS"),
    };
    match &launch.key {
        Some(key) => env.insert("TUTTI_GANG_KEY", key.to_hex()),
        None => env.remove("TUTTI_GANG_KEY"),
    };
    env.insert("TUTTI_NUM_NODES", launch.hosts.len().max(1).to_string());
    env.insert("TUTTI_GPUS", launch.gpus.len().to_string());
    env.insert("TUTTI_CPUS", launch.cpus.to_string());
    env.insert("TUTTI_SIMULATED", u8::from(around.simulated).to_string());
    let saved = launch.saved.as_ref();
    let resume = [
        ("TUTTI_RESUME_STEP", saved.map(|s| s.step.to_string())),
        ("TUTTI_RESUME_PATH", saved.and_then(|s| s.path.clone())),
    ];
    for (name, value) in resume {
        match value {
            Some(value) => env.insert(name, value),
            None => env.remove(name),
        };
    }
    env.insert("TUTTI_PROGRESS", around.progress.display().to_string());
    let warnings = place::warnings(around.progress);
    env.insert("TUTTI_WARNINGS", warnings.display().to_string());
    env.insert("TUTTI_PART", around.part.display().to_string());
}

#[cfg(test)]
mod tests;
