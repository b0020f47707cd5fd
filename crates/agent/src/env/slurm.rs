//! What Slurm would tell a job: many frameworks read that and nothing else.
//!
//! Two names are left out on purpose. With `SLURM_JOBID` or `SLURM_STEPID` Open MPI takes itself to
//! be inside a real Slurm job, and calls `srun`.

use std::collections::BTreeMap;

use tutti_model::{Launch, Launcher, Time};

use super::hostlist;

/// Set by every launcher but `mpi`.
pub const OF_JOB: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "the job's number"),
    ("SLURM_JOB_NAME", "the job's name"),
    ("SLURM_JOB_USER", "who submitted it"),
    ("SLURM_NNODES", "how many nodes the gang has"),
    ("SLURM_JOB_NUM_NODES", "the same"),
    ("SLURM_JOB_NODELIST", "the gang's nodes in rank order, such as `n[1-4,7]`"),
    ("SLURM_NODELIST", "the same"),
    ("SLURM_NODEID", "position of this node in the gang, from 0"),
    ("SLURMD_NODENAME", "name of this node"),
    ("SLURM_TASKS_PER_NODE", "processes on each node, such as `8(x2),4`"),
    ("SLURM_CPUS_ON_NODE", "how many CPUs this part was given"),
    ("SLURM_GPUS_ON_NODE", "how many GPUs this part has; not set without GPUs"),
    ("SLURM_JOB_GPUS", "their indices; not set without GPUs"),
    ("SLURM_RESTART_COUNT", "how often the task was started again"),
    ("SLURM_SUBMIT_DIR", "where it runs; not set if the job does not say"),
    ("SLURM_JOB_START_TIME", "when this attempt started, in seconds since 1970"),
    ("SLURM_JOB_END_TIME", "when its time is over; not set without a limit"),
    ("SLURM_ARRAY_JOB_ID", "the job's number; not set outside arrays"),
    ("SLURM_ARRAY_TASK_ID", "index of this task; not set outside arrays"),
    ("SLURM_ARRAY_TASK_COUNT", "how many tasks the array has; not set outside arrays"),
    ("SLURM_ARRAY_TASK_MIN", "the smallest index; not set outside arrays"),
    ("SLURM_ARRAY_TASK_MAX", "the largest index; not set outside arrays"),
];

/// Set by those launchers whose ranks are the framework's own processes: `none`, `torch`, `jax`,
/// `tf` and `deepspeed`.
pub const OF_TASK: &[(&str, &str)] = &[
    ("SLURM_PROCID", "position of this process in the gang, from 0"),
    ("SLURM_LOCALID", "position of this process on its node, from 0"),
    ("SLURM_NTASKS", "how many processes the gang has"),
    ("SLURM_NPROCS", "the same"),
    ("SLURM_NTASKS_PER_NODE", "processes on each node; not set if nodes differ"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "as `SLURM_JOB_NODELIST`"),
    ("SLURM_STEP_NUM_NODES", "as `SLURM_NNODES`"),
    ("SLURM_STEP_NUM_TASKS", "as `SLURM_NTASKS`"),
    ("SLURM_STEP_TASKS_PER_NODE", "as `SLURM_TASKS_PER_NODE`"),
];

pub const PROCESS: &str = "SLURM_PROCID";
pub const LOCAL_PROCESS: &str = "SLURM_LOCALID";

/// `mpirun` would look for Slurm's daemons.
pub fn has_job(launcher: Launcher) -> bool {
    launcher != Launcher::Mpi
}

/// Processes that a launcher of its own makes would all read the number of their parent.
pub fn has_tasks(launcher: Launcher) -> bool {
    !matches!(launcher, Launcher::Mpi | Launcher::Torchrun | Launcher::Ray)
}

/// All but what differs between the ranks of a part.
pub fn put(env: &mut BTreeMap<&str, String>, launch: &Launch, node: &str, now: Time) {
    let launcher = launch.spec.launcher;
    for (name, _) in OF_JOB.iter().chain(OF_TASK) {
        env.remove(name);
    }
    if has_job(launcher) {
        of_job(env, launch, node, now);
    }
    if has_tasks(launcher) {
        of_tasks(env, launch);
    }
}

fn of_job(env: &mut BTreeMap<&str, String>, launch: &Launch, node: &str, now: Time) {
    let (job, spec) = (launch.lease.task.job.to_string(), &launch.spec);
    let (nodes, count) = (node_list(launch), launch.hosts.len().max(1).to_string());
    let seconds = |at: Time| (at.0 / 1000).to_string();
    env.insert("SLURM_JOB_ID", job.clone());
    env.insert("SLURM_JOB_NAME", spec.display_name().into());
    env.insert("SLURM_JOB_USER", launch.user.clone());
    env.insert("SLURM_NNODES", count.clone());
    env.insert("SLURM_JOB_NUM_NODES", count);
    env.insert("SLURM_JOB_NODELIST", nodes.clone());
    env.insert("SLURM_NODELIST", nodes);
    env.insert("SLURM_NODEID", launch.node_rank.to_string());
    env.insert("SLURMD_NODENAME", node.into());
    env.insert("SLURM_TASKS_PER_NODE", tasks_per_node(launch));
    env.insert("SLURM_CPUS_ON_NODE", launch.cpus.to_string());
    if !launch.gpus.is_empty() {
        let gpus: Vec<String> = launch.gpus.iter().map(ToString::to_string).collect();
        env.insert("SLURM_GPUS_ON_NODE", gpus.len().to_string());
        env.insert("SLURM_JOB_GPUS", gpus.join(","));
    }
    env.insert("SLURM_RESTART_COUNT", launch.restarts.total().to_string());
    if let Some(dir) = &spec.workdir {
        env.insert("SLURM_SUBMIT_DIR", dir.clone());
    }
    env.insert("SLURM_JOB_START_TIME", seconds(now));
    if let Some(limit) = spec.time {
        env.insert("SLURM_JOB_END_TIME", seconds(now.plus(limit)));
    }
    if let (Some(index), Some(array)) = (launch.lease.task.index, &spec.array) {
        let (first, last) = (array.indices.first(), array.indices.last());
        env.insert("SLURM_ARRAY_JOB_ID", job);
        env.insert("SLURM_ARRAY_TASK_ID", index.to_string());
        env.insert("SLURM_ARRAY_TASK_COUNT", array.indices.len().to_string());
        env.insert("SLURM_ARRAY_TASK_MIN", first.unwrap_or(index).to_string());
        env.insert("SLURM_ARRAY_TASK_MAX", last.unwrap_or(index).to_string());
    }
}

fn of_tasks(env: &mut BTreeMap<&str, String>, launch: &Launch) {
    let world = launch.world_size.to_string();
    env.insert("SLURM_NTASKS", world.clone());
    env.insert("SLURM_NPROCS", world.clone());
    if launch.hosts.iter().all(|h| h.ranks == launch.ranks) {
        env.insert("SLURM_NTASKS_PER_NODE", launch.ranks.to_string());
    }
    env.insert("SLURM_STEP_ID", "0".into());
    env.insert("SLURM_STEP_NODELIST", node_list(launch));
    env.insert("SLURM_STEP_NUM_NODES", launch.hosts.len().max(1).to_string());
    env.insert("SLURM_STEP_NUM_TASKS", world);
    env.insert("SLURM_STEP_TASKS_PER_NODE", tasks_per_node(launch));
}

fn node_list(launch: &Launch) -> String {
    hostlist::compress(launch.hosts.iter().map(|h| h.name.as_str()))
}

fn tasks_per_node(launch: &Launch) -> String {
    hostlist::counts(launch.hosts.iter().map(|h| h.ranks))
}
