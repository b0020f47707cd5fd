//! One job or task, short and long.

use tutti_engine::Stalled;
use tutti_model::{
    Attempt, AttemptPhase, Demand, Ended, GpuIndex, Job, JobSpec, JobState, Nap, NodeId, Part,
    PartState, Refusal, Restarts, SleepStep, Span, State, StopCause, SuspendCause, Task, TaskId,
    Tasks, Time,
};
use tutti_wire::api::{JobDetail, JobProgress, JobRow, PartRow, ProgressDetail, SuspensionRow};

use super::words::{end_note, fault_words, meanwhile};
use crate::core::World;

/// The row of a job that is no array, of a whole array, or of one task. None if there is no such
/// task.
pub fn row(world: &World, job: &Job, index: Option<u32>, now: Time) -> Option<JobRow> {
    match (&job.tasks, index) {
        (Tasks::Array(_), None) => Some(array_row(world, job, now)),
        _ => task_row(world, job, index, now),
    }
}

fn task_row(world: &World, job: &Job, index: Option<u32>, now: Time) -> Option<JobRow> {
    let state = world.engine.state();
    let id = TaskId { job: job.id, index };
    let mut row = blank(job, id, job.task_state(index)?);
    if let Some(task) = job.task(index) {
        row.restarts = task.restarts.total();
        row.started_at = task.first_started_at;
        row.suspended_for = task.away(now);
        row.between_attempts = task.between_attempts(now);
        if let Some(attempt) = task.attempt() {
            held(state, &mut row, attempt);
        }
    }
    if let Some(ended) = job.ended(index) {
        over(state, &mut row, ended);
    }
    let asleep = |a: &Attempt| a.is_suspended();
    if row.state == JobState::Pending
        || job.task(index).and_then(|t| t.attempt()).is_some_and(asleep)
    {
        waiting(world, &mut row, id, now);
    }
    row.progress = world.progress.of_task(state, id, now);
    if let Some(stalled) = world.engine.stalled(id, now) {
        row.note = stall_note(state, &stalled);
        row.progress.iter_mut().for_each(|progress| progress.stalled = true);
    }
    if let Some(note) = world.alerts.note(id) {
        row.note = if row.note.is_empty() { note } else { format!("{}; {note}", row.note) };
    }
    Some(row)
}

/// The row of what has ended, with nothing but the names of nodes to go by.
pub fn ended_row(names: &State, job: &Job, index: Option<u32>, ended: &Ended) -> JobRow {
    let mut row = blank(job, TaskId { job: job.id, index }, ended.outcome.into());
    over(names, &mut row, ended);
    row
}

fn array_row(world: &World, job: &Job, now: Time) -> JobRow {
    let id = TaskId::single(job.id);
    let mut row = blank(job, id, JobState::Pending);
    let Some(sums) = world.reads.array(job.id) else { return row };
    row.state = sums.state();
    row.started_at = sums.started_at;
    row.restarts = sums.restarts.min(u32::MAX.into()) as u32;
    row.array = Some(sums.array_counts());
    if row.state.is_final() {
        row.ended_at = sums.ended_at;
        row.exit_code = sums.exit_code;
    } else if sums.counts.get(JobState::Pending) > 0 {
        waiting(world, &mut row, id, now);
    }
    row
}

fn blank(job: &Job, id: TaskId, state: JobState) -> JobRow {
    let demand = Demand::of(&job.spec);
    let (nodes, gpus) = demand.asked();
    JobRow {
        id,
        name: job.spec.display_name().to_owned(),
        user: job.user.clone(),
        team: Some(job.team.clone()),
        class: job.class().to_owned(),
        state,
        nodes,
        gpus,
        share: demand.share,
        priority: job.priority,
        submitted_at: job.submitted_at,
        started_at: None,
        ended_at: None,
        suspended_for: Span(0),
        between_attempts: Span(0),
        exit_code: None,
        restarts: 0,
        verdict: None,
        blockers: Vec::new(),
        note: String::new(),
        array: None,
        node_names: Vec::new(),
        progress: None,
    }
}

fn held(state: &State, row: &mut JobRow, attempt: &Attempt) {
    row.nodes = attempt.parts.len() as u32;
    row.gpus = attempt.gpu_count();
    row.node_names = names(state, attempt.parts.iter().map(|p| p.node));
    row.note = match &attempt.phase {
        AttemptPhase::Stopping { why, .. } => stop_note(state, why),
        AttemptPhase::Suspending { pause } => format!("leaves its GPUs: {}", cause(&pause.why)),
        AttemptPhase::Waking { then: Some(_), .. } => undone_note(state, attempt),
        AttemptPhase::Waking { .. } => "wakes".to_owned(),
        _ => return,
    };
}

fn over(state: &State, row: &mut JobRow, ended: &Ended) {
    row.started_at = ended.started_at;
    row.ended_at = Some(ended.ended_at);
    row.suspended_for = ended.away;
    row.between_attempts = ended.between;
    row.exit_code = ended.exit_code;
    row.restarts = ended.restarts.total();
    row.node_names = names(state, ended.nodes.iter().copied());
    if !ended.nodes.is_empty() {
        row.nodes = ended.nodes.len() as u32;
        row.gpus = ended.gpus;
    }
    row.note = end_note(state, ended);
}

fn waiting(world: &World, row: &mut JobRow, id: TaskId, now: Time) {
    let Some(outlook) = world.outlook(id, now) else { return };
    row.note = tutti_sched::describe_all(&outlook.verdict, &outlook.blockers);
    row.verdict = Some(outlook.verdict);
    row.blockers = outlook.blockers;
}

fn names(state: &State, nodes: impl Iterator<Item = NodeId>) -> Vec<String> {
    nodes.map(|n| state.node_name(n)).collect()
}

fn stall_note(state: &State, stalled: &Stalled) -> String {
    let Stalled { idle, pace, rank, node } = stalled;
    let (idle, pace) = (idle.short(), pace.fine());
    let behind = rank.zip(*node).map_or_else(String::new, |(rank, node)| {
        format!(", rank {rank} on {} is behind", state.node_name(node))
    });
    format!("stalled: no step for {idle}, usually one in {pace}{behind}")
}

fn cause(why: &SuspendCause) -> String {
    match why {
        SuspendCause::Preempted { for_job } => format!("makes room for job {for_job}"),
        SuspendCause::Asked { by } => format!("suspended by {by}"),
    }
}

fn undone_note(state: &State, attempt: &Attempt) -> String {
    let refused = attempt.naps.last().and_then(|nap| nap.refused.as_ref());
    let words = refused.map_or_else(String::new, |r| refusal(state, r));
    format!("can't be suspended and will be stopped: {words}")
}

fn refusal(state: &State, refusal: &Refusal) -> String {
    format!("{}: {}", state.node_name(refusal.node), refusal.why)
}

/// Of all attempts, as far as they are remembered.
pub fn suspensions(state: &State, task: &Task) -> Vec<SuspensionRow> {
    let row = |nap: &Nap| SuspensionRow {
        why: nap.why.clone(),
        since: nap.since,
        out_at: nap.out_at,
        back_at: nap.back_at,
        until: nap.until,
        bytes: nap.bytes,
        refused: nap.refused.as_ref().map(|r| refusal(state, r)),
        attempt: nap.attempt,
        cut_at: nap.cut_at,
    };
    task.all_naps().map(row).collect()
}

fn stop_note(state: &State, why: &StopCause) -> String {
    match why {
        StopCause::Cancelled { by, .. } => format!("being cancelled by {by}"),
        StopCause::TimeLimit => "ran out of its time limit".to_owned(),
        StopCause::RankFailed { rank, saw } => {
            format!("rank {rank} failed, the others are stopped{}", meanwhile(saw.as_deref()))
        }
        StopCause::LaunchFailed { node, error, ran } => launch_failed(state, *node, error, *ran),
        StopCause::NodeLost { node } => {
            format!("{} was lost, the rest is stopped", state.node_name(*node))
        }
        StopCause::Preempted { for_job, not_suspended } => {
            format!("makes room for job {for_job}{}", instead(not_suspended.as_deref()))
        }
        StopCause::PeerFault { rank, node, op, why } => {
            let (node, what) = (state.node_name(*node), fault_words(op, why));
            format!("rank {rank} on {node} is dead or hangs{what}; the rest is stopped")
        }
        StopCause::Stalled { rank: Some(rank), idle, .. } => {
            format!("no step for {}, rank {rank} is behind; started again", idle.short())
        }
        StopCause::Stalled { idle, .. } => format!("no step for {}; started again", idle.short()),
        StopCause::Evicted { node, by } => {
            format!("{} is cleared by {by}", state.node_name(*node))
        }
        StopCause::Unhealthy { node, gpu, text, .. } => {
            format!("{} is broken, it moves: {text}", unhealthy(state, *node, *gpu))
        }
        StopCause::Watched { text, again, .. } => {
            let then = if *again { "started again" } else { "stopped for good" };
            format!("{text}; {then}")
        }
        StopCause::Resized { nodes } => {
            format!("goes on with {}", tutti_model::count((*nodes).into(), "node"))
        }
    }
}

/// An agent could not start its part, or could not keep it running.
pub(super) fn launch_failed(state: &State, node: NodeId, error: &str, ran: bool) -> String {
    let what = if ran { "was cut off" } else { "did not start" };
    format!("{what} on {}: {error}", state.node_name(node))
}

/// Which thing is broken.
pub(super) fn unhealthy(state: &State, node: NodeId, gpu: Option<GpuIndex>) -> String {
    let name = state.node_name(node);
    gpu.map_or_else(|| name.clone(), |gpu| format!("GPU {gpu} of {name}"))
}

/// Why one that asks to be suspended is stopped.
fn instead(not_suspended: Option<&str>) -> String {
    not_suspended.map_or_else(String::new, |why| format!("; not suspended: {why}"))
}

/// Why the attempt before this one had to go.
pub(super) fn stopped_before(state: &State, why: &StopCause) -> String {
    match why {
        StopCause::NodeLost { node } => format!("{} was lost", state.node_name(*node)),
        StopCause::RankFailed { rank, saw } => {
            format!("rank {rank} failed{}", meanwhile(saw.as_deref()))
        }
        StopCause::Preempted { for_job, not_suspended } => {
            format!("made room for job {for_job}{}", instead(not_suspended.as_deref()))
        }
        StopCause::PeerFault { rank, node, op, why } => {
            let (node, what) = (state.node_name(*node), fault_words(op, why));
            format!("rank {rank} on {node} was dead or hung{what}")
        }
        StopCause::Evicted { node, by } => {
            format!("{} was cleared by {by}", state.node_name(*node))
        }
        StopCause::Unhealthy { node, gpu, text, .. } => {
            format!("{} was broken: {text}", unhealthy(state, *node, *gpu))
        }
        other => stop_note(state, other),
    }
}

const HIDDEN: &str = "(hidden)";

/// The spec as others see it: which variables are set, not to what. Environments carry keys and
/// passwords.
pub fn without_secrets(spec: &JobSpec) -> JobSpec {
    let mut spec = spec.clone();
    spec.env.values_mut().for_each(|value| HIDDEN.clone_into(value));
    spec
}

pub fn progress(world: &World, id: TaskId, now: Time) -> ProgressDetail {
    let (state, book) = (world.engine.state(), &world.progress);
    let stalled = world.engine.stalled(id, now).is_some();
    ProgressDetail {
        id,
        progress: book.of_task(state, id, now).map(|p| JobProgress { stalled, ..p }),
        ranks: book.ranks_of_task(state, id, now),
        history: book.history(id),
    }
}

/// `inside`: the reader may know everything about this job.
pub fn detail(
    world: &World,
    job: &Job,
    index: Option<u32>,
    inside: bool,
    now: Time,
) -> Option<JobDetail> {
    let state = world.engine.state();
    let row = row(world, job, index, now)?;
    let task = job.task(index);
    let attempt = task.and_then(|t| t.attempt());
    let ended = job.ended(index);
    let restarts = |e: Option<&Ended>| e.map_or_else(Restarts::default, |e| e.restarts);
    let time_left =
        job.spec.time.and_then(|limit| Some(Span(limit.0.saturating_sub(attempt?.ran(now)?.0))));
    Some(JobDetail {
        row,
        spec: if inside { (*job.spec).clone() } else { without_secrets(&job.spec) },
        attempt: task.map(|t| t.attempts).or(ended.map(|e| e.attempts)).filter(|&n| n > 0),
        generation: attempt.map(|a| a.generation.0),
        restarts_by_cause: task.map_or_else(|| restarts(ended), |t| t.restarts),
        parts: attempt.map_or_else(Vec::new, |a| part_rows(state, a)),
        end: ended.map(|e| e.reason.clone()),
        time_left,
        held: job.is_held(index),
        checkpoints: task.map_or_else(Vec::new, |t| t.past().points.clone()),
        suspensions: task.map_or_else(Vec::new, |t| suspensions(state, t)),
        // The ledger has one sum for all tasks of an array: it is no single task's.
        goodput: index
            .is_none()
            .then(|| super::job_line(state, job.id, now))
            .filter(|line| line.held_hours > 0.0),
        replica_of: job.replica_of.as_deref().cloned(),
        output_dropped: ended
            .map(|e| e.output_dropped)
            .or(task.map(|t| t.past().output_dropped))
            .unwrap_or_default(),
        stopped_before: task
            .and_then(|t| t.past().stopped.as_deref())
            .map(|why| stopped_before(state, why)),
    })
}

fn part_rows(state: &State, attempt: &Attempt) -> Vec<PartRow> {
    let row = |p: &Part| PartRow {
        node: state.node_name(p.node),
        address: state.node(p.node).map_or_else(String::new, |n| n.facts.address.clone()),
        gpus: p.gpus.iter().map(|g| g.0).collect(),
        share: p.share,
        cpus: p.cpus,
        mem: p.mem,
        first_rank: p.first_rank.0,
        ranks: p.ranks,
        phase: phase_word(p).to_owned(),
        exits: p.phase.exits().to_vec(),
    };
    attempt.parts.iter().map(row).collect()
}

fn phase_word(part: &Part) -> &'static str {
    match (&part.phase, part.sleep_step()) {
        (PartState::Running { .. }, Some(SleepStep::Going)) => return "suspending",
        (PartState::Running { .. }, Some(SleepStep::Out | SleepStep::Lent)) => return "suspended",
        (PartState::Running { .. }, Some(SleepStep::Coming)) => return "waking",
        _ => {}
    }
    match part.phase {
        PartState::Sent => "sent",
        PartState::Prepared { .. } => "prepared",
        PartState::Running { .. } => "running",
        PartState::Done { .. } => "done",
        PartState::Lost => "lost",
    }
}
