//! What agents must be told after a record. Every order may be repeated.

use tutti_model::{
    Attempt, AttemptPhase, HealthAction, Host, Job, Launch, LeaseId, NodeId, Order, Part,
    PartState, SleepStep, Span, State, StopCause, Tasks, TimeLimit,
};

use crate::effect::Effect;
use crate::event::{Event, Record};
use crate::settings::Settings;

pub fn effects(state: &State, settings: &Settings, record: &Record) -> Vec<Effect> {
    match &record.event {
        Event::Placed { task, generation, .. }
        | Event::Stopping { lease: LeaseId { task, generation }, .. }
        | Event::Suspending { lease: LeaseId { task, generation }, .. }
        | Event::Waking { lease: LeaseId { task, generation }, .. } => {
            let lease = LeaseId { task: *task, generation: *generation };
            tell_all(state, settings, lease)
        }
        Event::PartPrepared { lease, .. } if all_prepared(state, *lease) => {
            tell_all(state, settings, *lease)
        }
        Event::PartDone { lease, node, .. } | Event::StaleGone { node, lease } => {
            vec![Effect::Tell { node: *node, order: Order::Forget { lease: *lease } }]
        }
        Event::NodeUp { node, stale, .. } => stale
            .iter()
            .map(|&lease| Effect::Tell {
                node: *node,
                order: Order::Stop { lease, grace: settings.failure_grace, signal: None },
            })
            .collect(),
        // Nobody will know it when it comes again, so this is the last word.
        Event::NodeRemoved { node: Some(node), leases, .. } => {
            let stop = |&lease: &LeaseId| Order::Stop {
                lease,
                grace: settings.failure_grace,
                signal: None,
            };
            leases.iter().map(|l| Effect::Tell { node: *node, order: stop(l) }).collect()
        }
        _ => Vec::new(),
    }
}

/// Everything that agents should be told as the state stands: what a new controller says.
pub fn reconcile(state: &State, settings: &Settings) -> Vec<Effect> {
    let leases = state.index.active.iter().filter_map(|&task| {
        let attempt = state.job(task.job)?.task(task.index)?.attempt()?;
        Some(attempt.lease(task))
    });
    leases.flat_map(|lease| tell_all(state, settings, lease)).collect()
}

fn tell_all(state: &State, settings: &Settings, lease: LeaseId) -> Vec<Effect> {
    let Some(attempt) = find_attempt(state, lease) else { return Vec::new() };
    let nodes = attempt.parts.iter().filter(|p| !p.phase.is_over()).map(|p| p.node);
    nodes
        .filter_map(|node| {
            let order = order_for(state, settings, lease, node)?;
            Some(Effect::Tell { node, order })
        })
        .collect()
}

/// The one order that moves this part on, if it needs any.
pub(crate) fn order_for(
    state: &State,
    settings: &Settings,
    lease: LeaseId,
    node: NodeId,
) -> Option<Order> {
    let job = state.job(lease.task.job)?;
    let attempt = find_attempt(state, lease)?;
    let part = attempt.part_on(node)?;
    if part.phase.is_over() {
        return None;
    }
    if let AttemptPhase::Stopping { why, .. } = &attempt.phase {
        return Some(stop(settings, job, lease, why));
    }
    if let Some(step) = part.sleep_step() {
        return match (&attempt.phase, step) {
            (AttemptPhase::Suspending { .. }, SleepStep::Going) => Some(Order::Suspend { lease }),
            (AttemptPhase::Waking { .. }, _) => {
                Some(Order::Wake { lease, gpus: part.gpus.clone() })
            }
            _ => None,
        };
    }
    match part.phase {
        PartState::Sent => {
            let limit = job.spec.runs_for().map(|left| time_limit(settings, job, left));
            let launch = launch(state, job, attempt, part, lease)?;
            Some(Order::Start(Box::new(Launch { limit, ..launch })))
        }
        PartState::Prepared { .. } => {
            let master_port = go_port(attempt)?;
            // A part that was prepared before ports were kept has none; its agent says so.
            let ports = attempt.parts.iter().map(|p| p.port).collect::<Option<_>>();
            Some(Order::Go { lease, master_port, ports: ports.unwrap_or_default() })
        }
        _ => None,
    }
}

/// A gang that was cancelled, preempted or ran out of time may save its work; one that has already
/// failed has nothing to wait for.
fn stop(settings: &Settings, job: &Job, lease: LeaseId, why: &StopCause) -> Order {
    let own = job.spec.grace.unwrap_or(settings.grace);
    match why {
        StopCause::Cancelled { at_once: true, .. } => {
            Order::Stop { lease, grace: Span(0), signal: None }
        }
        StopCause::Cancelled { .. }
        | StopCause::TimeLimit
        | StopCause::Preempted { .. }
        | StopCause::Resized { .. }
        | StopCause::Watched { .. }
        | StopCause::Evicted { .. } => save_and_stop(job, lease, own),
        // What a broken GPU holds is not worth saving. Others on the node have time to save.
        StopCause::Unhealthy { gpu, action, .. }
            if gpu.is_none()
                || matches!(action, HealthAction::FenceGpu | HealthAction::DrainNode) =>
        {
            save_and_stop(job, lease, own)
        }
        StopCause::RankFailed { .. }
        | StopCause::LaunchFailed { .. }
        | StopCause::NodeLost { .. }
        | StopCause::PeerFault { .. }
        | StopCause::Unhealthy { .. }
        | StopCause::Stalled { .. } => {
            Order::Stop { lease, grace: own.min(settings.failure_grace), signal: None }
        }
    }
}

fn save_and_stop(job: &Job, lease: LeaseId, own: Span) -> Order {
    let (grace, signal) = asked_to_save(job, own);
    Order::Stop { lease, grace, signal }
}

/// How long it may take to save its work, and the signal that asks it to.
fn asked_to_save(job: &Job, own: Span) -> (Span, Option<String>) {
    let checkpoint = job.spec.checkpoint.as_ref();
    let grace = checkpoint.and_then(|c| c.grace).unwrap_or(own);
    (grace, checkpoint.and_then(|c| c.signal.clone()))
}

/// What a node is told, so that it stops the job in the same way as we would, should we be away then.
pub(crate) fn time_limit(settings: &Settings, job: &Job, left: Span) -> TimeLimit {
    let (grace, signal) = asked_to_save(job, job.spec.grace.unwrap_or(settings.grace));
    TimeLimit { left, grace, signal }
}

fn all_prepared(state: &State, lease: LeaseId) -> bool {
    find_attempt(state, lease).is_some_and(|a| go_port(a).is_some())
}

/// The master's port, once every part is ready or already under way.
fn go_port(attempt: &Attempt) -> Option<u16> {
    if attempt.parts.iter().any(|p| matches!(p.phase, PartState::Sent | PartState::Lost)) {
        return None;
    }
    attempt.master_port
}

fn launch(
    state: &State,
    job: &Job,
    attempt: &Attempt,
    part: &Part,
    lease: LeaseId,
) -> Option<Launch> {
    let host = |p: &Part| {
        let node = state.node(p.node)?;
        let facts = &node.facts;
        Some(Host {
            name: facts.name.clone(),
            address: facts.address.clone(),
            gpus: p.gpus.len() as u32,
            ranks: p.ranks,
            rack: state.policy.topology.place_of(node).rack,
        })
    };
    let task = job.task(lease.task.index)?;
    Some(Launch {
        lease,
        attempt: attempt.number,
        restarts: task.restarts,
        user: job.user.clone(),
        spec: job.spec.clone(),
        submitted_at: job.submitted_at,
        gpus: part.gpus.clone(),
        cpus: part.cpus,
        mem: part.mem,
        first_rank: part.first_rank,
        ranks: part.ranks,
        world_size: attempt.world_size(),
        node_rank: attempt.parts.iter().position(|p| p.node == part.node)? as u32,
        hosts: attempt.parts.iter().map(host).collect::<Option<_>>()?,
        // A service waits as well: the port that its agent finds free is where it listens.
        wait_for_go: attempt.parts.len() > 1 || job.spec.service.is_some(),
        array_tasks: matches!(job.tasks, Tasks::Array(_)).then(|| job.spec.task_count()),
        saved: task.past().saved.clone(),
        key: None,
        limit: None,
    })
}

pub(crate) fn find_attempt(state: &State, lease: LeaseId) -> Option<&Attempt> {
    let attempt = state.job(lease.task.job)?.task(lease.task.index)?.attempt()?;
    (attempt.generation == lease.generation).then_some(attempt)
}

/// The part of a current attempt on this node, unless it is over.
pub(crate) fn find_part(state: &State, lease: LeaseId, node: NodeId) -> Option<&Part> {
    find_attempt(state, lease)?.part_on(node).filter(|p| !p.phase.is_over())
}
