//! What can be known to be wrong with a job spec, whatever the cluster.

use tutti_model::{
    Command as Run, Demand, JobSpec, JobUpdate, Launcher, NAME_CHARS_MAX, PreemptMode, Spread,
    SubmissionRule, Topology, name_problem, variable_name_problem,
};

use super::bad;
use crate::reject::Rejected;

/// Bounds on what one spec may carry, beside those of the policy.
const RANKS_PER_NODE_MAX: u32 = 4096;
const IMAGE_BYTES_MAX: usize = 1000;

const LABELS_MAX: usize = 64;
const DEPENDENCIES_MAX: usize = 1000;
const PATH_BYTES_MAX: usize = 4096;

/// Signals that ask a program to save. Stopping and killing signals would not.
const SAVE_SIGNALS: [&str; 8] = ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "WINCH"];

pub(super) fn check_spec(spec: &JobSpec, rule: &SubmissionRule) -> Result<(), Rejected> {
    check_command(spec, rule)?;
    check_name("name", spec.name.as_deref())?;
    check_name("team", spec.team.as_deref())?;
    check_demand(spec)?;
    check_limit(spec)?;
    check_labels(spec)?;
    check_signal(spec)?;
    check_launcher(spec)?;
    if let Some((key, problem)) = spec.watch.iter().flat_map(|w| w.problems()).next() {
        return Err(bad("watch", format!("{key} {problem}")));
    }
    if let Some((key, problem)) = spec.plan.iter().flat_map(|p| p.problems()).next() {
        return Err(bad("plan", format!("{key} {problem}")));
    }
    check_after(spec)?;
    let paths = [
        ("workdir", spec.workdir.as_deref()),
        ("checkpoint", spec.checkpoint.as_ref().map(|c| c.dir.as_str())),
    ];
    if let Some((key, _)) = paths.iter().find(|(_, p)| p.is_some_and(|p| p.len() > PATH_BYTES_MAX))
    {
        return Err(bad(key, format!("has more than the {PATH_BYTES_MAX} bytes of a path")));
    }
    if spec.array.as_ref().is_some_and(|a| a.indices.is_empty()) {
        return Err(bad("array", "has no indices"));
    }
    Ok(())
}

/// What of this spec an update has changed. The rest was judged when it was submitted, by what held then:
/// a job must not be stuck with a mistake in one place because of another.
pub(super) fn check_changes(spec: &JobSpec, update: &JobUpdate) -> Result<(), Rejected> {
    // All that can change. Priority and hold are the job's, and whether there is such a class is said
    // where classes are known.
    let JobUpdate {
        name,
        priority: _,
        time,
        no_time: _,
        hold: _,
        team,
        class: _,
        after,
        nodes,
        gpus,
        gpus_per_node,
    } = update;
    check_name("name", name.as_deref())?;
    check_name("team", team.as_deref())?;
    if time.is_some() {
        check_limit(spec)?;
    }
    if after.is_some() {
        check_after(spec)?;
    }
    if nodes.is_some() || gpus.is_some() || gpus_per_node.is_some() {
        check_demand(spec)?;
    }
    Ok(())
}

fn check_name(key: &'static str, name: Option<&str>) -> Result<(), Rejected> {
    match name.and_then(name_problem) {
        Some(why) => Err(bad(key, why)),
        None => Ok(()),
    }
}

/// All that is about how many nodes and GPUs it is to have.
fn check_demand(spec: &JobSpec) -> Result<(), Rejected> {
    check_counts(spec)?;
    check_share(spec)?;
    check_elastic(spec)?;
    check_topology(spec)
}

fn check_limit(spec: &JobSpec) -> Result<(), Rejected> {
    match spec.time.is_some_and(|t| t.0 == 0) {
        true => Err(bad("time", "a limit of 0 would end the job at once")),
        false => Ok(()),
    }
}

fn check_after(spec: &JobSpec) -> Result<(), Rejected> {
    if spec.after.len() > DEPENDENCIES_MAX {
        let problem = format!(
            "names {} jobs, and at most {DEPENDENCIES_MAX} are taken: wait for an array instead",
            spec.after.len()
        );
        return Err(bad("after", problem));
    }
    Ok(())
}

fn check_command(spec: &JobSpec, rule: &SubmissionRule) -> Result<(), Rejected> {
    let words: Vec<&str> = match &*spec.run {
        Run::Shell(line) => vec![line],
        Run::Argv(words) => words.iter().map(String::as_str).collect(),
    };
    if words.first().is_none_or(|w| w.trim().is_empty()) {
        return Err(bad("run", "is empty: write the command to run"));
    }
    let env = spec.env.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()]);
    let texts = words.iter().copied().chain(env).chain(spec.workdir.as_deref());
    let mut total = 0;
    for text in texts {
        if text.contains('\0') {
            return Err(bad("run", "a command, path or variable can't contain a NUL byte"));
        }
        total += text.len();
    }
    let most = rule.job_bytes;
    if total as u64 > most.0 {
        let problem = format!(
            "command and environment have {total} bytes, and at most {} ({most}) are taken: put \
             them into a file that the job reads, or ask an admin to raise job_bytes in \
             [submissions] of the policy",
            most.0
        );
        return Err(bad("run", problem));
    }
    let problem = |name: &String| variable_name_problem(name).map(|why| (name.clone(), why));
    if let Some((name, why)) = spec.env.keys().find_map(problem) {
        return Err(bad("env", format!("{name:?}: {why}")));
    }
    if spec.workdir.as_deref().is_some_and(|d| !d.starts_with('/')) {
        return Err(bad("workdir", "must start with '/'"));
    }
    match &spec.image {
        Some(image) => check_image(image),
        None => Ok(()),
    }
}

/// It becomes one word of a command line.
fn check_image(image: &str) -> Result<(), Rejected> {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if image.is_empty() || image.starts_with('-') || image.contains(odd) {
        return Err(bad("image", "write the name of an image, or the path of one"));
    }
    if image.len() > IMAGE_BYTES_MAX {
        return Err(bad("image", format!("has more than {IMAGE_BYTES_MAX} bytes")));
    }
    Ok(())
}

fn check_counts(spec: &JobSpec) -> Result<(), Rejected> {
    if spec.nodes == Some(0) {
        return Err(bad("nodes", "0 nodes can't run anything: ask for at least 1"));
    }
    if spec.nodes.is_some() && spec.gpus.is_some() {
        return Err(bad(
            "gpus",
            "gives a total for the scheduler to spread; leave out nodes, or use gpus_per_node",
        ));
    }
    if spec.gpus.is_some() && spec.gpus_per_node.is_some() {
        return Err(bad("gpus", "and gpus_per_node exclude each other"));
    }
    if spec.gpus_per_node.as_ref().is_some_and(|g| g.model.is_some() && g.count == 0) {
        return Err(bad("gpus_per_node", "is 0 of a model: ask for at least 1, or leave it out"));
    }
    let model = spec.gpus_per_node.as_ref().and_then(|g| g.model.as_ref());
    if model.is_some_and(|m| m.len() > NAME_CHARS_MAX) {
        let problem = format!("names a model of more than {NAME_CHARS_MAX} letters");
        return Err(bad("gpus_per_node", problem));
    }
    check_cpus(spec)
}

/// What takes nothing of a node would fit there any number of times.
fn check_cpus(spec: &JobSpec) -> Result<(), Rejected> {
    let demand = Demand::of(spec);
    let gpus = match demand.spread {
        Spread::Nodes { gpus_each, .. } => gpus_each,
        Spread::Gpus { .. } => 1,
    };
    if demand.cpus_for(gpus) == 0 {
        let problem = "comes to 0 CPUs on a node with what cpus_per_gpu gives, and everything runs on at \
                       least one: ask for 1, or leave both out";
        return Err(bad("cpus_per_node", problem));
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    name.chars().count() <= NAME_CHARS_MAX && !name.chars().any(char::is_control)
}

fn check_share(spec: &JobSpec) -> Result<(), Rejected> {
    let Some(share) = spec.gpu_share else { return Ok(()) };
    if !(0.001..=1.0).contains(&share) {
        return Err(bad("gpu_share", "must be at least 0.001 and at most 1, such as 0.25"));
    }
    if spec.gpus.is_some() || spec.gpus_per_node.as_ref().is_some_and(|g| g.count != 1) {
        return Err(bad(
            "gpu_share",
            "is a part of one GPU: leave out gpus, and ask for gpus_per_node = 1 or nothing",
        ));
    }
    Ok(())
}

/// What a launcher can't make work.
fn check_launcher(spec: &JobSpec) -> Result<(), Rejected> {
    if spec.ranks_per_node.is_some_and(|n| n == 0 || n > RANKS_PER_NODE_MAX) {
        return Err(bad("ranks_per_node", format!("must be 1 to {RANKS_PER_NODE_MAX}")));
    }
    let ranks = |why: &str| match spec.ranks_per_node {
        Some(_) => Err(bad("ranks_per_node", why)),
        None => Ok(()),
    };
    match spec.launcher {
        Launcher::Torchrun => ranks(
            "torchrun starts a process for each GPU itself: leave it out, or set \
             PET_NPROC_PER_NODE in env",
        )?,
        Launcher::Tf => ranks(
            "TensorFlow uses all GPUs of a node from one process: leave it out, or use launcher = \
             \"none\" and your own TF_CONFIG",
        )?,
        Launcher::Ray => ranks(
            "Ray starts its workers itself: leave it out, and say in the program how many it wants",
        )?,
        Launcher::None | Launcher::Torch | Launcher::Mpi | Launcher::Jax | Launcher::Deepspeed => {}
    }
    let word = spec.program();
    match (spec.launcher, word) {
        (Launcher::Torch | Launcher::Deepspeed, "torchrun" | "deepspeed" | "accelerate") => {
            let with = if word == "torchrun" { "torchrun" } else { "none" };
            Err(bad(
                "run",
                format!(
                    "starts {word} once per GPU, and that starts more: write the program itself \
                     (python train.py), or use launcher = \"{with}\" for one {word} per node"
                ),
            ))
        }
        (launcher, "mpirun" | "mpiexec") if !matches!(launcher, Launcher::Mpi | Launcher::None) => {
            Err(bad("launcher", format!("{word} needs launcher = \"mpi\"")))
        }
        _ => Ok(()),
    }
}

fn check_elastic(spec: &JobSpec) -> Result<(), Rejected> {
    let Some(elastic) = &spec.elastic else { return Ok(()) };
    let (min, max) = (elastic.min_nodes, elastic.max_nodes);
    if min == 0 || min > max {
        return Err(bad("elastic", format!("{min} to {max} nodes is no range: 1 <= min <= max")));
    }
    if spec.gpus.is_some() {
        return Err(bad("elastic", "counts nodes: give gpus_per_node instead of a total of gpus"));
    }
    if spec.nodes.is_some_and(|n| n < min || n > max) {
        return Err(bad("elastic", format!("nodes must be from {min} to {max}, or be left out")));
    }
    Ok(())
}

fn check_labels(spec: &JobSpec) -> Result<(), Rejected> {
    for (key, labels) in [("labels", &spec.labels), ("avoid_labels", &spec.avoid_labels)] {
        if labels.len() > LABELS_MAX {
            return Err(bad(key, format!("has more than {LABELS_MAX}")));
        }
        for (label, value) in labels {
            let sane = !label.is_empty() && is_name(label) && is_name(value);
            if !sane || value.split('|').any(str::is_empty) {
                return Err(bad(key, format!("'{label} = {value}' is no label with a value")));
            }
        }
    }
    if let Some((label, value)) =
        spec.labels.iter().find(|(label, value)| spec.avoid_labels.get(*label) == Some(value))
    {
        return Err(bad("avoid_labels", format!("{label} = {value} is wanted as well")));
    }
    Ok(())
}

fn check_topology(spec: &JobSpec) -> Result<(), Rejected> {
    let nodes = spec.elastic.as_ref().map_or(spec.nodes.unwrap_or(1), |e| e.max_nodes);
    match spec.topology {
        Some(limit @ (Topology::Island | Topology::Node)) if nodes > 1 => Err(bad(
            "topology",
            format!("{nodes} nodes can't be inside one {}: ask for 1 node", limit.as_str()),
        )),
        _ => Ok(()),
    }
}

fn check_signal(spec: &JobSpec) -> Result<(), Rejected> {
    let Some(signal) = spec.checkpoint.as_ref().and_then(|c| c.signal.as_deref()) else {
        return Ok(());
    };
    if SAVE_SIGNALS.contains(&signal.strip_prefix("SIG").unwrap_or(signal)) {
        return Ok(());
    }
    let known = SAVE_SIGNALS.join(", ");
    Err(bad("checkpoint.signal", format!("'{signal}' is none of {known}")))
}

/// What is understood but not acted on yet: the submitter is told.
pub fn warnings(spec: &JobSpec) -> Vec<String> {
    let mut out = Vec::new();
    let asked = spec.checkpoint.as_ref().is_some_and(|c| c.signal.is_some());
    match spec.preempt.as_ref().map(|p| p.mode) {
        Some(PreemptMode::Suspend) if spec.gpu_share.is_some() => out.push(
            "preempt: a job with a part of a GPU is not suspended; it is stopped and put back into \
             the queue"
                .to_owned(),
        ),
        Some(PreemptMode::Checkpoint) if !asked => out.push(
            "preempt: without checkpoint.signal the job can't be asked to save before it is stopped"
                .to_owned(),
        ),
        _ => {}
    }
    out
}
