//! A replica becomes ready, does not answer any more, goes, fails.
//!
//! ```text
//!  submitted ─► coming ─► ready ─► draining ─► gone
//!                 ▲ │       │ its attempt ended, or it does not answer
//!                 └─┼───────┘
//!                   └─► failed: never ready within `warm_up`, not again within `hung_after`, or its job
//!                       is over; the next one comes later each time, until one has been ready for a minute
//! ```

use tutti_model::{
    EndReason, Ended, GpuMicros, JobId, Phase, ReplicaPhase, RolloutStage, Span, State, StopCause,
    TaskId, Time,
};

use super::look::{Look, Seen, Standing};
use crate::decide::ended_waiting;
use crate::event::Event;
use crate::health::NOBODY;

/// A replica that routers can't reach for so long is not ready any more.
const SILENT: Span = Span::secs(10);
/// The first wait after a failure; doubles with every further one.
const BACK_OFF: Span = Span::secs(1);
const BACK_OFF_MAX: Span = Span::secs(300);

/// One that has been ready for so long has not failed.
const STEADY: Span = Span::secs(60);

/// Jobs that are over.
pub(super) fn gone(look: &Look<'_>) -> Vec<Event> {
    let mut events = Vec::new();
    let mut failing = Failing::of(look);
    for seen in look.replicas.iter().filter(|r| r.standing == Standing::Over) {
        let ended = seen.job.and_then(|job| job.ended(None)).filter(|_| !seen.drains());
        let why = ended.map(|ended| match &ended.reason {
            EndReason::Cancelled { by } => format!("{by} cancelled its job"),
            _ => words(look.view.state, ended),
        });
        let cancelled = |e: &Ended| matches!(e.reason, EndReason::Cancelled { .. });
        let failed = ended.is_some_and(|e| !cancelled(e)) && !look.endpoint.stopping;
        if let Some(why) = why.as_ref().filter(|_| failed) {
            events.push(failing.failed(look, seen.id, why.clone()));
        }
        let (gpu_ms, cost_micro) = used(look.view.state, seen.id);
        let (endpoint, job) = (look.name(), seen.id);
        let why = why.filter(|_| !failed);
        events.push(Event::ReplicaGone { endpoint, job, gpu_ms, cost_micro, why });
    }
    events
}

/// What its job held of GPUs, and what that cost.
fn used(state: &State, job: JobId) -> (u64, u64) {
    let book = state.goodput.jobs.get(&job);
    let models = book.into_iter().flat_map(|book| book.iter());
    let held = models.map(|(model, amounts)| (model, amounts.held()));
    let add = |(time, cost): (GpuMicros, u128), (model, held): (&String, GpuMicros)| {
        (time + held, cost + state.policy.prices.of(model, held).unwrap_or(0))
    };
    let (micros, cost) = held.fold((0, 0), add);
    (micros / 1000, u64::try_from(cost).unwrap_or(u64::MAX))
}

/// Failures in a row. Those that come while the next one must wait anyway are of the same cause.
struct Failing {
    failures: u32,
    not_before: Time,
}

impl Failing {
    fn of(look: &Look<'_>) -> Failing {
        let endpoint = look.endpoint;
        Failing { failures: endpoint.failures, not_before: endpoint.not_before }
    }

    fn failed(&mut self, look: &Look<'_>, job: JobId, why: String) -> Event {
        let now = look.view.now;
        if self.not_before <= now {
            let wait = BACK_OFF.0.saturating_mul(1 << self.failures.min(20));
            self.failures += 1;
            self.not_before = now.plus(Span(wait).min(BACK_OFF_MAX));
        }
        let (failures, not_before) = (self.failures, self.not_before);
        Event::ReplicaFailed { endpoint: look.name(), job, why, failures, not_before }
    }
}

fn words(state: &State, ended: &Ended) -> String {
    let code = ended.exit_code.map_or_else(String::new, |code| format!(" (exit code {code})"));
    let node = |id| state.node_name(id);
    let what = match &ended.reason {
        EndReason::Finished => "it ended by itself".to_owned(),
        EndReason::RankFailed { signal: Some(signal), .. } => {
            format!("it was killed by signal {signal}")
        }
        EndReason::RankFailed { rank, .. } => format!("rank {rank} failed"),
        EndReason::LaunchFailed { node: id, error, ran: false } => {
            format!("it could not be started on {}: {error}", node(*id))
        }
        EndReason::LaunchFailed { node: id, error, ran: true } => {
            format!("it was cut off on {}: {error}", node(*id))
        }
        EndReason::TimeLimit => "it ran out of its time limit".to_owned(),
        EndReason::NodeFailures { last } => {
            format!("too many nodes failed under it, {} last", node(*last))
        }
        EndReason::Preemptions => "it was preempted too often".to_owned(),
        EndReason::Unhealthy { node: id, text, .. } => format!("{} is broken: {text}", node(*id)),
        EndReason::Watched { text, .. } => format!("an alert ended it: {text}"),
        EndReason::CrashLoop { attempts, .. } => {
            format!("it failed {} in a row", tutti_model::count((*attempts).into(), "time"))
        }
        EndReason::PeerFault { .. } | EndReason::Stalled { .. } => "its ranks hung".to_owned(),
        EndReason::Cancelled { .. } | EndReason::DependencyUnmet { .. } => {
            "it was cancelled".to_owned()
        }
    };
    format!("{what}{code}")
}

/// Those that answer, and those that do not any more.
pub(super) fn phases(look: &Look<'_>) -> Vec<Event> {
    let change = |seen: &Seen<'_>| {
        let (phase, why) = match seen.replica.phase {
            ReplicaPhase::Coming => (ReplicaPhase::Ready, became_ready(look, seen)?),
            ReplicaPhase::Ready => (ReplicaPhase::Coming, lost(look, seen)?),
            ReplicaPhase::Draining { .. } => return None,
        };
        let (endpoint, job) = (look.name(), seen.id);
        Some(Event::ReplicaChanged { endpoint, job, phase, why: Some(why) })
    };
    look.live().filter_map(change).collect()
}

/// After failures: a replica that came since and stays.
pub(super) fn steady(look: &Look<'_>) -> Option<Event> {
    let (at, job) = steady_at(look)?;
    (at <= look.view.now).then(|| Event::ReplicaSteady { endpoint: look.name(), job })
}

/// When the first of them has been ready for long enough.
pub(super) fn steady_at(look: &Look<'_>) -> Option<(Time, JobId)> {
    let endpoint = look.endpoint;
    if endpoint.failures == 0 {
        return None;
    }
    let since = look.ready().map(|seen| (seen.replica.since, seen.id));
    let first = since.filter(|(since, _)| *since >= endpoint.failed_at).min();
    first.map(|(since, job)| (since.plus(STEADY), job))
}

fn became_ready(look: &Look<'_>, seen: &Seen<'_>) -> Option<String> {
    seen.load.filter(|l| l.ready && seen.owns_its_port())?;
    let took = look.view.now.since(seen.loads_since(look.view.now)?);
    Some(format!("it took {}", took.short()))
}

fn lost(look: &Look<'_>, seen: &Seen<'_>) -> Option<String> {
    let generation = match seen.standing {
        Standing::Runs { generation } => generation,
        Standing::Waits { .. } => return Some("it waits for GPUs again".to_owned()),
        Standing::Starts => return Some("it starts again".to_owned()),
        Standing::Suspended => return Some("it is suspended".to_owned()),
        Standing::Stops => return Some(stops(look.view.state, seen)),
        Standing::Over => return None,
    };
    if seen.lost_its_port() {
        return Some(look.said(seen).unwrap_or_else(|| "nothing listens on its port".to_owned()));
    }
    let memory = look.memory.filter(|m| m.load(look.view.now).is_some())?;
    let since = memory.silent_since(seen.id, generation)?;
    let silent = look.view.now.since(since) >= SILENT;
    let why = seen.load.and_then(|l| l.why.clone());
    silent.then(|| why.unwrap_or_else(|| format!("it has not answered for {SILENT}")))
}

fn stops(state: &State, seen: &Seen<'_>) -> String {
    let why = seen.attempt().and_then(|a| match &a.phase {
        tutti_model::AttemptPhase::Stopping { why, .. } => Some(why),
        _ => None,
    });
    match why {
        Some(StopCause::NodeLost { node }) => format!("node {} is lost", state.node_name(*node)),
        Some(StopCause::Preempted { for_job, .. }) => format!("it is preempted for job {for_job}"),
        Some(StopCause::Evicted { node, .. }) => {
            format!("node {} is cleared", state.node_name(*node))
        }
        Some(StopCause::Cancelled { by, .. }) => format!("{by} cancels its job"),
        Some(StopCause::Unhealthy { node, text, .. }) => {
            format!("{} is broken: {text}", state.node_name(*node))
        }
        _ => "it is being stopped".to_owned(),
    }
}

/// Those that run for longer than they may take to become ready. Without routers nobody knows.
pub(super) fn overdue(look: &Look<'_>) -> Vec<Event> {
    let now = look.view.now;
    let mut events = Vec::new();
    let mut failing = Failing::of(look);
    let late = |seen: &&Seen<'_>| ready_by(look, seen).is_some_and(|by| by <= now);
    for seen in look.live().filter(late) {
        let said = look.said(seen);
        let said = said.map_or_else(String::new, |why| format!(": {why}"));
        let why = match seen.hangs(now) {
            true => {
                format!("it did not answer again within {}{said}", patience(look, seen).short())
            }
            false => format!("it was not ready within {}{said}", patience(look, seen).short()),
        };
        events.push(failing.failed(look, seen.id, why.clone()));
        let (endpoint, job, phase) = (look.name(), seen.id, ReplicaPhase::Draining { until: now });
        events.push(Event::ReplicaChanged { endpoint, job, phase, why: Some(why.clone()) });
        let rollout = look.endpoint.rollout.as_ref();
        if rollout.is_some_and(|r| r.stage != RolloutStage::Back && r.to == seen.replica.revision) {
            let (endpoint, stage) = (look.name(), RolloutStage::Back);
            let why = Some(format!("replica {job}: {why}"));
            events.push(Event::RolloutMoved { endpoint, stage, why });
            break;
        }
    }
    events
}

/// When a replica that is not ready counts as failed.
pub(super) fn ready_by(look: &Look<'_>, seen: &Seen<'_>) -> Option<Time> {
    if seen.replica.phase != ReplicaPhase::Coming {
        return None;
    }
    let heard = look.memory?.heard_since(look.view.now)?;
    Some(seen.loads_since(look.view.now)?.max(heard).plus(patience(look, seen)))
}

/// A model takes its time to load; a server that has one answers, however busy it is. If none answers any
/// more it may well be the routers that reach nobody, and models that are loaded are not thrown away for it.
fn patience(look: &Look<'_>, seen: &Seen<'_>) -> Span {
    let service = look.endpoint.service();
    let others_answer = look.ready().next().is_some();
    match seen.hangs(look.view.now) && others_answer {
        true => service.hung_after.min(service.warm_up),
        false => service.warm_up,
    }
}

/// It is told to go: at once if nothing is under way there.
pub(super) fn drain(look: &Look<'_>, seen: &Seen<'_>, why: &str) -> Event {
    let now = look.view.now;
    let busy = seen.is_ready() || seen.in_flight() > 0;
    let drain = look.endpoint.service().drain;
    let until = if busy { now.plus(drain) } else { now };
    let (endpoint, job, phase) = (look.name(), seen.id, ReplicaPhase::Draining { until });
    Event::ReplicaChanged { endpoint, job, phase, why: Some(why.to_owned()) }
}

/// Those that are on their way out and have nothing left to do.
pub(super) fn drained(look: &Look<'_>) -> Vec<Event> {
    let leave = |seen: &Seen<'_>| {
        let ReplicaPhase::Draining { until } = seen.replica.phase else { return None };
        let runs = matches!(seen.standing, Standing::Runs { .. });
        let idle = seen.load.is_some_and(|l| l.all_know_draining && l.in_flight == 0);
        let due = !runs || idle || until <= look.view.now;
        due.then(|| cancelled(look, seen)).flatten()
    };
    look.replicas.iter().filter_map(leave).collect()
}

fn cancelled(look: &Look<'_>, seen: &Seen<'_>) -> Option<Event> {
    let by = NOBODY.to_owned();
    let id = TaskId::single(seen.id);
    let task = seen.job?.task(None)?;
    match &task.phase {
        Phase::Ended(_) => None,
        Phase::Pending { .. } => {
            let ended = ended_waiting(task, EndReason::Cancelled { by }, look.view.now);
            Some(Event::TaskEnded { task: id, ended })
        }
        // It must not be started again, whatever it is stopped for.
        Phase::Active(attempt) => match &attempt.phase {
            tutti_model::AttemptPhase::Stopping { why: StopCause::Cancelled { .. }, .. } => None,
            _ => {
                let why = StopCause::Cancelled { by, at_once: false };
                Some(Event::Stopping { lease: attempt.lease(id), why })
            }
        },
    }
}
