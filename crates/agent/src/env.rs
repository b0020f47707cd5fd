//! The environment of a rank. It is built from nothing: what the agent happened to be started with
//! does not leak into jobs.

use std::collections::BTreeMap;
use std::path::Path;

use tutti_model::{Launch, Rank};

use crate::user::Account;

/// Every variable that ranks are given, and what it means. The documentation prints this table.
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
        "the GPUs of this part by index, comma separated; empty if it has none",
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
    ("TUTTI_NUM_NODES", "how many nodes the gang has"),
    ("TUTTI_GPUS", "how many GPUs this part has"),
    ("TUTTI_CPUS", "how many CPUs this part was given"),
    ("TUTTI_SIMULATED", "1 if the GPUs are imagined, else 0"),
    ("TUTTI_PROGRESS", "a unix socket on which this process may say how far it is"),
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

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the environment is made from, beside the launch.
pub struct Surroundings<'a> {
    pub node: &'a str,
    pub address: &'a str,
    pub simulated: bool,
    pub account: &'a Account,
    pub master_port: u16,
    pub part: &'a Path,
    pub progress: &'a Path,
    pub tmpdir: Option<&'a str>,
}

/// `NAME=value` for everything that all ranks of the part share.
///
/// Three layers: what a login would give, then the job's own `env`, then who the rank is. So a job
/// may change `PATH` or bring its own `MASTER_PORT`, but a `RANK` left over in the submitter's
/// shell never confuses a gang.
pub fn of_part(launch: &Launch, around: &Surroundings<'_>) -> Vec<String> {
    let mut env: BTreeMap<&str, String> = BTreeMap::new();
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
    let master = launch.hosts.first().map_or(around.address, |h| h.address.as_str());
    env.insert("MASTER_ADDR", master.into());
    env.insert("MASTER_PORT", around.master_port.to_string());
    env.extend(launch.spec.env.iter().map(|(k, v)| (k.as_str(), v.clone())));
    identity(&mut env, launch, around);
    env.into_iter().map(|(k, v)| format!("{k}={v}")).collect()
}

fn identity(env: &mut BTreeMap<&str, String>, launch: &Launch, around: &Surroundings<'_>) {
    let task = launch.lease.task;
    let join = |parts: Vec<String>| parts.join(",");
    let hosts =
        |f: fn(&tutti_model::Host) -> &String| launch.hosts.iter().map(f).cloned().collect();
    let gpus = launch.gpus.iter().map(ToString::to_string).collect();
    // Ranks differ in these two; `of_rank` sets them, so the job's own must not stay.
    env.remove("RANK");
    env.remove("LOCAL_RANK");
    env.insert("WORLD_SIZE", launch.world_size.to_string());
    env.insert("LOCAL_WORLD_SIZE", launch.ranks.to_string());
    env.insert("NODE_RANK", launch.node_rank.to_string());
    env.insert("CUDA_VISIBLE_DEVICES", join(gpus));
    // In another order the same indices would be somebody else's GPUs.
    env.insert("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
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
    env.insert("TUTTI_PART", around.part.display().to_string());
}

/// What differs between the ranks of a part.
pub fn of_rank(rank: Rank, first: Rank) -> [String; 2] {
    [format!("RANK={rank}"), format!("LOCAL_RANK={}", rank.0 - first.0)]
}

#[cfg(test)]
mod tests {
    use tutti_model::{GpuIndex, SavedPoint, TaskId};

    use super::*;
    use crate::testing::launch;

    fn env(launch: &Launch) -> BTreeMap<String, String> {
        let account = Account::fake("ada");
        let around = Surroundings {
            node: "n1",
            address: "127.0.0.2",
            simulated: true,
            account: &account,
            master_port: 4711,
            part: Path::new("/data/parts/1@1"),
            progress: Path::new("/data/run/1@1"),
            tmpdir: Some("/scratch"),
        };
        let mut all = of_part(launch, &around);
        all.extend(of_rank(launch.first_rank, launch.first_rank));
        let pair = |s: &String| {
            let (k, v) = s.split_once('=').unwrap();
            (k.to_owned(), v.to_owned())
        };
        let map: BTreeMap<_, _> = all.iter().map(pair).collect();
        assert_eq!(map.len(), all.len(), "no name twice");
        map
    }

    #[test]
    fn the_table_lists_exactly_what_is_set() {
        let mut array = launch("7_3", 1);
        array.array_tasks = Some(10);
        let path = Some("/ckpt/40".into());
        array.saved = Some(SavedPoint { step: 40, at: None, path, save_ms: None });
        let set: Vec<String> = env(&array).into_keys().collect();
        let mut listed: Vec<String> = ENVIRONMENT.iter().map(|(n, _)| (*n).to_owned()).collect();
        listed.sort();
        assert_eq!(set, listed);
    }

    #[test]
    fn who_the_rank_is_can_not_be_overridden_but_the_rest_can() {
        let mut l = launch("7", 1);
        l.gpus = vec![GpuIndex(2), GpuIndex(5)];
        let spec = std::sync::Arc::make_mut(&mut l.spec);
        for (k, v) in [
            ("RANK", "9"),
            ("WORLD_SIZE", "9"),
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),
            ("TUTTI_ARRAY_INDEX", "9"),
            ("MASTER_PORT", "1234"),
            ("PATH", "/opt/bin"),
            ("MINE", "yes"),
        ] {
            spec.env.insert(k.into(), v.into());
        }
        let env = env(&l);
        assert_eq!(env["RANK"], "0");
        assert_eq!(env["WORLD_SIZE"], "1");
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "2,5");
        assert_eq!(env["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
        assert!(!env.contains_key("TUTTI_ARRAY_INDEX"));
        assert_eq!(env["MASTER_PORT"], "1234");
        assert_eq!(env["PATH"], "/opt/bin");
        assert_eq!(env["MINE"], "yes");
    }

    #[test]
    fn no_gpus_is_an_empty_list_so_that_cuda_sees_none() {
        let mut l = launch("7", 1);
        l.gpus.clear();
        l.lease.task = TaskId::single(l.lease.task.job);
        assert_eq!(env(&l)["CUDA_VISIBLE_DEVICES"], "");
    }
}
