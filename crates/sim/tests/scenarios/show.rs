//! The whole state in the words of the scenarios, for whoever reads a failure.

use std::fmt::Write;

use tutti_engine::Event;
use tutti_model::{
    Attempt, ClaimCause, EndReason, Job, Node, PartPlacement, State, StopCause, Task, TaskId,
    Tasks, Verdict,
};

use crate::words::{show_indices, since_epoch};
use crate::world::World;

/// Events shown, the newest.
const EVENTS_SHOWN: usize = 60;

pub fn state(world: &World) -> String {
    let mut out = format!("at {}\n", since_epoch(world.now));
    let state = world.state();
    for node in state.nodes.values() {
        let _ = writeln!(out, "  {}", node_line(node));
    }
    for job in state.jobs.values().filter(|job| !job.is_over()) {
        for task in tasks_of(job) {
            let _ = writeln!(out, "  {}", task_line(world, job, task));
        }
    }
    let over = state.jobs.values().filter(|job| job.is_over());
    let over: Vec<String> = over.map(|j| format!("{} {}", j.id, j.state().as_str())).collect();
    if !over.is_empty() {
        let _ = writeln!(out, "  {}", over.join(", "));
    }
    for (task, claim) in &state.claims {
        let (cause, parts) = (cause(claim.cause), placements(state, &claim.parts));
        let _ = writeln!(out, "  {task} claims {parts} ({cause})");
    }
    for head in &world.engine.plan().heads {
        let by = head.starts_by.map_or("some time".to_owned(), since_epoch);
        let nodes: Vec<String> = head.nodes.iter().map(|n| state.node_name(*n)).collect();
        let _ = writeln!(out, "  {} starts by {by} on {}", head.task, nodes.join(" "));
    }
    out.push_str("what happened\n");
    let told: Vec<String> = world
        .records
        .iter()
        .filter_map(|r| Some(format!("  {}: {}", since_epoch(r.at), event(state, &r.event)?)))
        .collect();
    let from = told.len().saturating_sub(EVENTS_SHOWN);
    out.push_str(&told[from..].join("\n"));
    out
}

fn node_line(node: &Node) -> String {
    let (free, all) = (node.free_gpu_count(), node.facts.gpus.len());
    let labels: String = node.facts.labels.iter().map(|(k, v)| format!(", {k}={v}")).collect();
    let state = node.state().as_str();
    format!("{}: {state}, {free} of {all} gpus free{labels}", node.facts.name)
}

pub fn tasks_of(job: &Job) -> Vec<TaskId> {
    match &job.tasks {
        Tasks::One(_) => vec![TaskId::single(job.id)],
        Tasks::Array(array) => {
            let waiting = (!array.waiting.is_empty()).then_some(TaskId::single(job.id));
            let indices = array.live.keys().chain(array.ended.keys());
            let own = indices.map(|&i| TaskId::of_array(job.id, i));
            own.chain(waiting).collect()
        }
    }
}

fn task_line(world: &World, job: &Job, task: TaskId) -> String {
    format!("{task} ({} of {}): {}", job.user, job.team, task_words(world, task))
}

/// Where a task stands: `running on n1:0-3`, `pending: busy (needs ...)`.
pub fn task_words(world: &World, task: TaskId) -> String {
    let state = world.state();
    let Some(job) = state.job(task.job) else { return "not there".to_owned() };
    if let Some(verdict) = verdict(world, task) {
        return format!("pending: {} ({})", label(&verdict), tutti_sched::describe(&verdict));
    }
    let words = match job.task_state(task.index) {
        Some(s) => s.as_str(),
        None => return format!("an array, {}", job.state().as_str()),
    };
    match job.task(task.index).and_then(Task::attempt) {
        Some(attempt) => format!("{words} on {}", parts(state, attempt)),
        None => words.to_owned(),
    }
}

pub fn verdict(world: &World, task: TaskId) -> Option<Verdict> {
    tutti_sched::verdict(world.state(), world.engine.plan(), task, world.now)
}

pub fn parts(state: &State, attempt: &Attempt) -> String {
    let part = |p: &tutti_model::Part| spot(state, p.node, &p.gpus);
    attempt.parts.iter().map(part).collect::<Vec<_>>().join(" ")
}

pub fn placements(state: &State, parts: &[PartPlacement]) -> String {
    parts.iter().map(|p| spot(state, p.node, &p.gpus)).collect::<Vec<_>>().join(" ")
}

fn spot(state: &State, node: tutti_model::NodeId, gpus: &[tutti_model::GpuIndex]) -> String {
    match gpus {
        [] => state.node_name(node),
        gpus => format!("{}:{}", state.node_name(node), show_indices(gpus)),
    }
}

/// The words after `pending:`.
pub fn label(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Held { .. } => "held".to_owned(),
        Verdict::Dependencies { .. } => "dependencies".to_owned(),
        Verdict::BackOff { .. } => "back-off".to_owned(),
        Verdict::ArrayLimit { .. } => "array limit".to_owned(),
        Verdict::Busy(_) => "busy".to_owned(),
        Verdict::NodesUnavailable(_) => "nodes unavailable".to_owned(),
        Verdict::Behind { job } => format!("behind {job}"),
        Verdict::TeamLimit { team, .. } => format!("team limit {team}"),
        Verdict::Reserved { reservation, .. } => format!("reserved {reservation}"),
        Verdict::Claimed { cause: of, .. } => format!("claimed {}", cause(*of)),
        Verdict::Suspended { .. } => "suspended".to_owned(),
        Verdict::Next => "next".to_owned(),
    }
}

/// The words after `ended by`.
pub fn reason(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Finished => "itself",
        EndReason::RankFailed { .. } => "a failed rank",
        EndReason::LaunchFailed { .. } => "a failed launch",
        EndReason::TimeLimit => "its time limit",
        EndReason::Cancelled { .. } => "a cancel",
        EndReason::DependencyUnmet { .. } => "a dependency",
        EndReason::NodeFailures { .. } => "node failures",
        EndReason::Preemptions => "preemptions",
        EndReason::PeerFault { .. } => "a peer fault",
        EndReason::Stalled { .. } => "a stall",
        EndReason::CrashLoop { .. } => "a crash loop",
        EndReason::Unhealthy { .. } => "a broken GPU",
        EndReason::Watched { .. } => "an alert",
    }
}

fn cause(cause: ClaimCause) -> &'static str {
    match cause {
        ClaimCause::Guarantee => "guarantee",
        ClaimCause::Class => "class",
        ClaimCause::Overdue => "overdue",
        ClaimCause::Resize => "resize",
    }
}

fn event(state: &State, event: &Event) -> Option<String> {
    Some(match event {
        Event::JobSubmitted { job, user, .. } => format!("{user} submits {job}"),
        Event::Placed { task, parts, .. } => {
            format!("{task} starts on {}", placements(state, parts))
        }
        Event::Stopping { lease, why } => format!("{} is stopped: {}", lease.task, stop(why)),
        Event::Claimed { task, parts, cause: of, .. } => {
            format!("{task} claims {} ({})", placements(state, parts), cause(*of))
        }
        Event::Suspending { lease, .. } => format!("{} is suspended", lease.task),
        Event::PartSuspended { lease, node, .. } => {
            format!("{} is out on {}", lease.task, state.node_name(*node))
        }
        Event::Waking { lease, refused: None, .. } => format!("{} wakes", lease.task),
        Event::Waking { lease, .. } => format!("{} can't be suspended", lease.task),
        Event::Unclaimed { task } => format!("{task} claims nothing more"),
        Event::Requeued { lease, cause, .. } => format!("{} waits again: {cause:?}", lease.task),
        Event::TaskEnded { task, ended } => format!("{task} ends: {:?}", ended.reason),
        Event::NodeLost { node } => format!("{} is lost", state.node_name(*node)),
        Event::NodeAway { node } => format!("{} is away", state.node_name(*node)),
        Event::NodeDrained { node, .. } => format!("{} is drained", state.node_name(*node)),
        Event::PolicyChanged { .. } => "the policy changes".to_owned(),
        _ => return None,
    })
}

fn stop(why: &StopCause) -> String {
    match why {
        StopCause::Preempted { for_job, .. } => format!("preempted for {for_job}"),
        StopCause::Resized { nodes } => format!("goes on with {nodes} nodes"),
        other => format!("{other:?}"),
    }
}
