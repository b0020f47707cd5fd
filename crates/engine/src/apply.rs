//! The only way state changes: one record after another, live, on replay and in simulation.
//!
//! `apply` is total. Whether an event makes sense was settled by `decide`; here a record about
//! something that is not there changes nothing.

mod accounts;
mod attempts;
mod claims;
mod endpoints;
pub(crate) mod goodput;
mod health;
mod jobs;
mod keys;
mod suspend;

use tutti_model::{
    Attempt, Job, LeaseId, Link, Node, NodeFacts, NodeId, Part, PartState, Phase, State, Task,
    TaskId, Tasks, Time, Token,
};

use crate::event::{Event, Record};
use crate::index;
use crate::serve::RouteScope;

pub use goodput::{goodput_at, job_goodput_at, time_sums_at};

pub fn apply(state: &mut State, record: &Record) {
    state.seq = record.seq;
    state.at = record.at;
    let scope = goodput::scope(state, &record.event, record.at);
    let routes = RouteScope::before(state, &record.event);
    change(state, record);
    goodput::note(state, &scope, &record.event, record.at);
    if routes.changed(state) {
        state.routes = record.seq;
    }
}

fn change(state: &mut State, record: &Record) {
    let at = record.at;
    match &record.event {
        Event::ControllerStarted { epoch } => state.epoch = *epoch,
        Event::JournalRestored { epoch, next_job, next_generation } => {
            state.epoch = state.epoch.max(*epoch);
            skip_numbers(state, *next_job, *next_generation);
        }
        Event::NumbersSkipped { next_job, next_generation } => {
            skip_numbers(state, *next_job, *next_generation);
        }
        Event::PolicyChanged { policy, .. } => accounts::policy_changed(state, policy, at),

        Event::TextKept { digest, text } => {
            state.texts.insert(digest.clone(), text.clone());
        }
        Event::JobSubmitted { job, user, spec, key, team, replica_of, texts } => {
            let (team, key) = (team.as_deref(), key.as_deref());
            let who = jobs::Submitter { user, team, key, replica_of: replica_of.as_deref() };
            jobs::submitted(state, *job, &who, (spec, texts), at);
            let of = replica_of.as_deref().into_iter();
            of.for_each(|of| endpoints::replica_submitted(state, *job, of, at));
        }
        Event::JobHeld { job, .. } => index::change_job(state, *job, |j| j.held = true),
        Event::JobReleased { job, .. } => index::change_job(state, *job, |j| j.held = false),
        Event::PriorityChanged { job, priority, .. } => {
            index::change_job(state, *job, |j| j.priority = *priority);
        }
        Event::JobUpdated { job, update, team, default_time, .. } => {
            let (team, time) = (team.as_deref(), default_time.as_ref());
            jobs::updated(state, *job, update, team, time);
        }
        Event::WaitingEnded { job, ended } => jobs::waiting_ended(state, *job, ended),
        Event::JobsForgotten { jobs } => jobs.iter().for_each(|&j| jobs::forget(state, j)),
        Event::KeysForgotten { before } => state.keys.retain(|_, (_, at)| *at >= *before),

        Event::Placed { task, generation, parts } => {
            attempts::placed(state, LeaseId { task: *task, generation: *generation }, parts, at);
        }
        Event::PartPrepared { lease, node, port } => {
            attempts::set_part(state, *lease, *node, PartState::Prepared { port: *port });
            attempts::note_port(state, *lease, *node, *port);
        }
        Event::PartRunning { lease, node, exits } => {
            attempts::set_part(state, *lease, *node, PartState::Running { exits: exits.clone() });
            attempts::note_running(state, *lease, at);
        }
        Event::PartDone { lease, node, exits, error } => {
            let done = PartState::Done { exits: exits.clone(), error: error.clone() };
            attempts::set_part(state, *lease, *node, done);
            attempts::note_running(state, *lease, at);
            suspend::settle(state, *lease, at);
        }
        Event::PortOwned { lease, node, owner } => {
            let part = current_part(state, *lease, *node);
            part.into_iter().for_each(|p| p.port_owner = Some(Box::new(owner.clone())));
        }
        Event::OutputDropped { lease, bytes, .. } => change_task(state, lease.task, |t| {
            let dropped = &mut t.past_mut().output_dropped;
            *dropped = dropped.saturating_add(*bytes);
        }),
        Event::PartLost { lease, node } => {
            attempts::set_part(state, *lease, *node, PartState::Lost);
        }
        Event::Stopping { lease, why } => attempts::stopping(state, *lease, why, at),
        Event::Saved { lease, point } => attempts::saved(state, *lease, point.as_ref(), at),
        Event::Registered { task, point } => attempts::registered(state, *task, point),
        Event::LetGo { lease } => attempts::let_go(state, *lease),
        Event::Accused { lease, accusation } => attempts::accused(state, *lease, accusation),
        Event::PartHolds { .. }
        | Event::Suspending { .. }
        | Event::PartSuspended { .. }
        | Event::Waking { .. }
        | Event::PartWoken { .. }
        | Event::SuspensionHeld { .. }
        | Event::SuspensionReleased { .. }
        | Event::Disregarded { .. } => suspension_changed(state, &record.event, at),
        Event::Requeued { lease, .. } => attempts::requeued(state, *lease, &record.event, at),
        Event::TaskReleased { task, .. } => change_task(state, *task, |t| {
            t.past.iter_mut().for_each(|past| past.kept = None);
        }),
        Event::Ready { task } => change_task(state, *task, |t| {
            if let Phase::Pending { not_before, .. } = &mut t.phase {
                *not_before = Time(0);
            }
        }),
        Event::TaskEnded { task, ended } => jobs::task_ended(state, *task, ended, at),
        Event::Claimed { task, parts, cause, victims } => {
            claims::claimed(state, *task, parts, *cause, victims, at);
        }
        Event::Unclaimed { task } => claims::drop_of(state, *task),

        Event::NodeJoined { .. }
        | Event::NodeUp { .. }
        | Event::NodeAway { .. }
        | Event::NodeLost { .. }
        | Event::StaleGone { .. }
        | Event::NodeDrained { .. }
        | Event::NodeResumed { .. }
        | Event::FindingsChanged { .. }
        | Event::NodeReopened { .. }
        | Event::NodeKeyKnown { .. }
        | Event::NodeKeyShared { .. }
        | Event::NodeRemoved { .. }
        | Event::NodeMeasured { .. }
        | Event::GpusMeasured { .. } => node_changed(state, &record.event, at),

        // Only the ledger knows of these.
        Event::GpusIdle { .. } | Event::LedgerSettled | Event::LedgerDropped { .. } => {}

        Event::TokenAdded { token } => {
            state.tokens.insert(token.id.clone(), token.clone());
        }
        Event::TokenUsed { id, node, key } => {
            token_used(state, id);
            key.iter().for_each(|key| keys::held(state, node, key, at));
        }
        Event::TokenRevoked { id, .. } => {
            state.tokens.remove(id);
        }

        Event::EndpointCreated { .. }
        | Event::EndpointRevised { .. }
        | Event::EndpointBounded { .. }
        | Event::EndpointWants { .. }
        | Event::ReplicaChanged { .. }
        | Event::ReplicaFailed { .. }
        | Event::ReplicaSteady { .. }
        | Event::ReplicaGone { .. }
        | Event::RolloutBegan { .. }
        | Event::RolloutMoved { .. }
        | Event::RolloutEnded { .. }
        | Event::EndpointStopping { .. }
        | Event::EndpointGone { .. }
        | Event::EndpointServed { .. } => endpoints::changed(state, &record.event, at),
    }
}

fn skip_numbers(state: &mut State, next_job: u64, next_generation: u64) {
    state.next_job = state.next_job.max(next_job);
    state.next_generation = state.next_generation.max(next_generation);
}

fn suspension_changed(state: &mut State, event: &Event, at: Time) {
    match event {
        Event::PartHolds { lease, node, bytes } => {
            suspend::part_holds(state, *lease, *node, *bytes);
        }
        Event::Suspending { lease, why, stays, moved } => {
            suspend::suspending(state, *lease, why, *stays, moved, at);
        }
        Event::PartSuspended { lease, node, bytes } => {
            suspend::part_suspended(state, *lease, *node, *bytes, at);
        }
        Event::Waking { lease, parts, refused } => {
            suspend::waking(state, *lease, parts, refused.as_ref(), at);
        }
        Event::PartWoken { lease, node } => suspend::part_woken(state, *lease, *node, at),
        Event::SuspensionHeld { lease, by } => suspend::stays(state, *lease, Some(by), at),
        Event::SuspensionReleased { lease, .. } => suspend::stays(state, *lease, None, at),
        Event::Disregarded { lease, accusation } => {
            suspend::disregarded(state, *lease, accusation);
        }
        _ => {}
    }
}

fn node_changed(state: &mut State, event: &Event, at: Time) {
    match event {
        Event::NodeJoined { node, facts } => node_joined(state, *node, facts, at),
        Event::NodeUp { node, facts, stale } => with_node(state, *node, |n| {
            n.facts = (**facts).clone();
            if n.link != Link::Up {
                n.up_since = Some(at);
            }
            n.link = Link::Up;
            n.stale = stale.iter().copied().collect();
        }),
        Event::NodeAway { node } => with_node(state, *node, |n| n.link = Link::Away { since: at }),
        Event::NodeLost { node } => with_node(state, *node, |n| {
            health::lost(n, at);
            n.link = Link::Lost { since: at };
            n.stale.clear();
        }),
        Event::StaleGone { node, lease } => with_node(state, *node, |n| {
            n.stale.remove(lease);
        }),
        Event::NodeDrained { node, drain } => {
            with_node(state, *node, |n| n.drain = Some(drain.clone()));
        }
        Event::NodeResumed { node, .. } => {
            with_node(state, *node, |n| {
                n.drain = None;
                n.up_since = Some(at);
                n.strikes.clear();
            });
            keys::set_shared(state, *node, None);
        }
        Event::NodeKeyKnown { name, key } => keys::held(state, name, key, at),
        Event::NodeKeyShared { node, shared } => keys::set_shared(state, *node, Some(shared)),
        Event::NodeRemoved { name, node, by, .. } => keys::removed(state, name, *node, by, at),
        Event::FindingsChanged { node, findings } => {
            with_node(state, *node, |n| n.findings.clone_from(findings));
        }
        Event::NodeReopened { node } => with_node(state, *node, |n| {
            n.drain = None;
            n.up_since = Some(at);
        }),
        Event::NodeMeasured { node, burn_in } => {
            with_node(state, *node, |n| n.burn_in = Some((**burn_in).clone()));
        }
        Event::GpusMeasured { node, bench } => {
            with_node(state, *node, |n| n.gpu_bench = Some((**bench).clone()));
        }
        _ => {}
    }
}

fn node_joined(state: &mut State, id: NodeId, facts: &NodeFacts, at: Time) {
    state.next_node = state.next_node.max(id.0 + 1);
    state.index.node_names.insert(facts.name.clone(), id);
    let node = Node {
        id,
        facts: facts.clone(),
        link: Link::Away { since: at },
        drain: None,
        stale: Default::default(),
        joined_at: at,
        up_since: None,
        strikes: Vec::new(),
        good_at: None,
        burn_in: None,
        gpu_bench: None,
        findings: Vec::new(),
        used: Default::default(),
    };
    state.nodes.insert(id, node);
}

fn token_used(state: &mut State, id: &str) {
    if let Some(Token { grant: tutti_model::Grant::Join { uses: Some(n), .. }, .. }) =
        state.tokens.get_mut(id)
    {
        *n = n.saturating_sub(1);
    }
}

fn with_node(state: &mut State, id: NodeId, change: impl FnOnce(&mut Node)) {
    if let Some(node) = state.nodes.get_mut(&id) {
        change(node);
    }
}

/// Changes a task that has a record of its own and keeps the indexes right.
fn change_task(state: &mut State, id: TaskId, change: impl FnOnce(&mut Task)) {
    index::remove_task(state, id);
    if let Some(task) = state.jobs_mut(id.job).and_then(|j| task_mut(j, id.index)) {
        change(task);
    }
    index::add_task(state, id);
}

fn task_mut(job: &mut Job, index: Option<u32>) -> Option<&mut Task> {
    match (&mut job.tasks, index) {
        (Tasks::One(t), None) => Some(t),
        (Tasks::Array(a), Some(i)) => a.live.get_mut(&i),
        _ => None,
    }
}

/// The task, if this is the lease that it holds.
fn current_task(state: &mut State, lease: LeaseId) -> Option<&mut Task> {
    let task = task_mut(state.jobs_mut(lease.task.job)?, lease.task.index)?;
    task.attempt().is_some_and(|a| a.generation == lease.generation).then_some(task)
}

fn current_attempt(state: &mut State, lease: LeaseId) -> Option<&mut Attempt> {
    current_task(state, lease)?.attempt_mut()
}

fn current_part(state: &mut State, lease: LeaseId, node: NodeId) -> Option<&mut Part> {
    current_attempt(state, lease)?.parts.iter_mut().find(|p| p.node == node)
}
