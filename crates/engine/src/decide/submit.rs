//! Submission: everything that can be known to be wrong is said now, not at midnight.

use std::sync::Arc;

use tutti_model::{Command as Run, Demand, JobId, JobSpec, Launcher, Priority, Role};

use super::{Decision, View, need_role};
use crate::command::{Actor, Reply};
use crate::event::Event;
use crate::index::{DependencyState, dependency};
use crate::reject::Rejected;

/// Bounds on what one spec may carry: every job costs memory on the controller.
const SPEC_BYTES_MAX: usize = 1 << 20;
const RANKS_PER_NODE_MAX: u32 = 4096;
const NAME_CHARS_MAX: usize = 200;

pub(super) fn submit(
    view: View<'_>,
    actor: &Actor,
    spec: &JobSpec,
    user: Option<&str>,
    key: Option<&str>,
) -> Decision {
    need_role(actor, Role::User)?;
    let user = user.unwrap_or(&actor.user);
    if user != actor.user {
        need_role(actor, Role::Admin)?;
    }
    if let Some(job) = known_key(view, user, spec, key)? {
        return Ok((Reply::Submitted { job, repeated: true }, Vec::new()));
    }
    check_priority(actor, spec)?;
    check_spec(spec)?;
    let job = JobId(view.state.next_job.max(1));
    check_dependencies(view, spec, job)?;
    tutti_sched::impossible(view.state, &Demand::of(spec))?;
    let event = Event::JobSubmitted {
        job,
        user: user.to_owned(),
        spec: Arc::new(spec.clone()),
        key: key.map(str::to_owned),
    };
    Ok((Reply::Submitted { job, repeated: false }, vec![event]))
}

/// A repeated submission gets the job it made the first time.
fn known_key(
    view: View<'_>,
    user: &str,
    spec: &JobSpec,
    key: Option<&str>,
) -> Result<Option<JobId>, Rejected> {
    let Some(key) = key else { return Ok(None) };
    if key.is_empty() || key.len() > 200 {
        return Err(bad("key", "an idempotency key has 1 to 200 bytes"));
    }
    let Some((job, _)) = view.state.keys.get(&(user.to_owned(), key.to_owned())) else {
        return Ok(None);
    };
    match view.state.job(*job) {
        Some(known) if *known.spec != *spec => Err(Rejected::KeyReused(*job)),
        _ => Ok(Some(*job)),
    }
}

fn bad(key: &'static str, problem: impl Into<String>) -> Rejected {
    Rejected::BadSpec { key, problem: problem.into() }
}

/// Everybody may call their job urgent; only an admin lets somebody jump past all who did.
fn check_priority(actor: &Actor, spec: &JobSpec) -> Result<(), Rejected> {
    if spec.priority > Priority::HIGH && actor.role < Role::Admin {
        let problem = format!(
            "{} is for admins: ask for {} ({}) or less",
            spec.priority,
            Priority::HIGH,
            Priority::HIGH.0
        );
        return Err(bad("priority", problem));
    }
    Ok(())
}

fn check_spec(spec: &JobSpec) -> Result<(), Rejected> {
    check_command(spec)?;
    check_counts(spec)?;
    if spec.gpu_share.is_some() {
        return Err(bad(
            "gpu_share",
            "parts of a GPU can't be given out yet; ask for gpus_per_node = 1",
        ));
    }
    if !matches!(spec.launcher, Launcher::None | Launcher::Torch) {
        return Err(bad(
            "launcher",
            "only \"none\" and \"torch\" can be used yet; with \"none\" start the launcher yourself",
        ));
    }
    if spec.array.as_ref().is_some_and(|a| a.indices.is_empty()) {
        return Err(bad("array", "has no indices"));
    }
    Ok(())
}

fn check_command(spec: &JobSpec) -> Result<(), Rejected> {
    let words: Vec<&str> = match &spec.run {
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
    if total > SPEC_BYTES_MAX {
        return Err(bad(
            "run",
            format!(
                "command and environment have {total} bytes, at most {SPEC_BYTES_MAX} are taken: put them into a file"
            ),
        ));
    }
    if let Some(name) = spec.env.keys().find(|k| k.is_empty() || k.contains('=')) {
        return Err(bad("env", format!("'{name}' can't be the name of a variable")));
    }
    if spec.workdir.as_deref().is_some_and(|d| !d.starts_with('/')) {
        return Err(bad("workdir", "must start with '/'"));
    }
    let name_ok = |n: &str| n.chars().count() <= NAME_CHARS_MAX && !n.chars().any(char::is_control);
    if !spec.name.as_deref().is_none_or(name_ok) {
        return Err(bad("name", format!("has control characters or more than {NAME_CHARS_MAX}")));
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
    if spec.ranks_per_node.is_some_and(|n| n == 0 || n > RANKS_PER_NODE_MAX) {
        return Err(bad("ranks_per_node", format!("must be 1 to {RANKS_PER_NODE_MAX}")));
    }
    if spec.time.is_some_and(|t| t.0 == 0) {
        return Err(bad("time", "a limit of 0 would end the job at once"));
    }
    Ok(())
}

fn check_dependencies(view: View<'_>, spec: &JobSpec, new: JobId) -> Result<(), Rejected> {
    for dep in &spec.after {
        if dep.job == new {
            return Err(Rejected::DependencyCycle(new));
        }
        if view.state.job(dep.job).is_none() {
            return Err(Rejected::UnknownDependency(dep.job));
        }
        if dependency(view.state, dep) == DependencyState::Unmet {
            return Err(Rejected::DependencyUnmet(dep.job));
        }
    }
    Ok(())
}

/// Keys that are understood but not acted on yet: the submitter is told.
pub fn warnings(spec: &JobSpec) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(e) = &spec.elastic {
        out.push(format!(
            "elastic ({} to {} nodes) is not acted on yet: the job runs with a fixed number of nodes",
            e.min_nodes, e.max_nodes
        ));
    }
    if spec.topology.is_some() {
        out.push("topology is not acted on yet: nodes are chosen by free GPUs alone".to_owned());
    }
    if spec.checkpoint.is_some() {
        out.push("checkpoint is not acted on yet: no signal is sent before a stop".to_owned());
    }
    if spec.preempt.is_some() {
        out.push("preempt is not acted on yet: nothing is preempted".to_owned());
    }
    out
}
