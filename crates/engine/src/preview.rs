//! What another policy would do, tried on a copy of the cluster by the engine itself: its scheduler
//! plans, its checker checks, and what it would tell nodes is thrown away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tutti_model::{
    BadPolicy, Demand, Job, LeaseId, NeverStarts, OverlappedReservation, Policy, PolicyEffects,
    PolicyNotes, PreemptedHow, PreemptedTask, Role, State, StopCause, TaskEffect, TaskId, Tasks,
    Time, gpus_built,
};
use tutti_sched::reservations;

use crate::command::{Actor, Command};
use crate::decide::within_team_limit;
use crate::engine::Engine;
use crate::event::{Event, Record};
use crate::reject::Rejected;
use crate::settings::Settings;

/// What starts in one pass may let more start in the next. It ends by itself long before.
const PASSES_MAX: usize = 16;

/// Only the policy itself can be refused. Nothing is changed.
pub fn preview(
    state: &State,
    settings: &Settings,
    policy: &Policy,
    now: Time,
) -> Result<PolicyEffects, Rejected> {
    let problems = policy.problems();
    if !problems.is_empty() {
        return Err(Rejected::BadPolicy(problems));
    }
    let before = Outlook::of(state, settings, None, now);
    let after = Outlook::of(state, settings, Some(policy), now);
    let effects = |tasks: &BTreeSet<TaskId>, not: &BTreeSet<TaskId>| {
        tasks.difference(not).filter_map(|task| effect(state, *task)).collect()
    };
    let new = after.preempted.iter().filter(|(task, _)| !before.preempted.contains_key(task));
    let preempted = new.filter_map(|(task, (for_task, how))| {
        let task = effect(state, *task)?;
        Some(PreemptedTask { task, for_task: *for_task, how: *how })
    });
    Ok(PolicyEffects {
        starts: effects(&after.started, &before.started),
        waits: effects(&before.started, &after.started),
        preempted: preempted.collect(),
        notes: policy_notes(state, policy, now),
    })
}

/// What is to be known of a policy that takes the place of this state's.
pub fn policy_notes(state: &State, policy: &Policy, now: Time) -> PolicyNotes {
    PolicyNotes {
        never: never(state, policy),
        overlaps: overlaps(state, policy, now),
        warnings: warnings(state, policy),
    }
}

/// What would be done at once.
struct Outlook {
    started: BTreeSet<TaskId>,
    preempted: BTreeMap<TaskId, (TaskId, PreemptedHow)>,
}

impl Outlook {
    fn of(state: &State, settings: &Settings, policy: Option<&Policy>, now: Time) -> Outlook {
        let mut engine = Engine::restore(state.clone(), settings.clone());
        if let Some(policy) = policy {
            let actor = Actor { user: "preview".to_owned(), role: Role::Admin };
            engine.step(Command::SetPolicy { actor, policy: Box::new(policy.clone()) }, now);
        }
        let mut records = Vec::new();
        for _ in 0..PASSES_MAX {
            records.extend(engine.schedule(now).records);
            if !engine.wants_schedule() {
                break;
            }
        }
        let (started, preempted) = read(&records);
        Outlook { started, preempted }
    }
}

fn read(records: &[Record]) -> (BTreeSet<TaskId>, BTreeMap<TaskId, (TaskId, PreemptedHow)>) {
    let (mut started, mut preempted) = (BTreeSet::new(), BTreeMap::new());
    // Whom a victim is stopped for is said by the claim, which comes first.
    let mut claimants: BTreeMap<TaskId, TaskId> = BTreeMap::new();
    let mut goes = |lease: &LeaseId, how, claimants: &BTreeMap<TaskId, TaskId>| {
        if let Some(claimant) = claimants.get(&lease.task).filter(|c| **c != lease.task) {
            preempted.insert(lease.task, (*claimant, how));
        }
    };
    for record in records {
        match &record.event {
            Event::Placed { task, .. } => {
                started.insert(*task);
            }
            Event::Claimed { task, victims, .. } => {
                let others = victims.iter().filter(|victim| *victim != task);
                claimants.extend(others.map(|victim| (*victim, *task)));
            }
            Event::Stopping { lease, why: StopCause::Preempted { .. } } => {
                goes(lease, PreemptedHow::Stopped, &claimants);
            }
            Event::Stopping { lease, why: StopCause::Resized { .. } } => {
                goes(lease, PreemptedHow::Shrunk, &claimants);
            }
            Event::Suspending { lease, .. } => goes(lease, PreemptedHow::Suspended, &claimants),
            _ => {}
        }
    }
    (started, preempted)
}

/// None of what the engine made up itself while it looked ahead.
fn effect(state: &State, task: TaskId) -> Option<TaskEffect> {
    let job = state.job(task.job)?;
    let held = job.task(task.index).and_then(|t| t.attempt()).map(|a| a.gpu_count());
    Some(TaskEffect {
        task,
        name: job.spec.display_name().to_owned(),
        user: job.user.clone(),
        team: job.team.clone(),
        gpus: held.unwrap_or_else(|| Demand::of(&job.spec).asked().1),
    })
}

fn is_waiting(job: &Job) -> bool {
    job.live_tasks().any(|(_, task)| task.waits_since().is_some())
        || matches!(&job.tasks, Tasks::Array(array) if !array.waiting.is_empty())
}

/// Jobs that wait and ask for more than their team may have, under this policy but not the old one.
fn never(state: &State, policy: &Policy) -> Vec<NeverStarts> {
    let reason = |job: &Arc<Job>| {
        let why = within_team_limit(policy, &job.team, &job.spec).err()?;
        within_team_limit(&state.policy, &job.team, &job.spec).ok()?;
        let task = effect(state, TaskId::single(job.id))?;
        Some(NeverStarts { task, why: why.to_string() })
    };
    state.jobs.values().filter(|job| is_waiting(job)).filter_map(reason).collect()
}

/// Of reservations that are new or changed.
fn overlaps(state: &State, policy: &Policy, now: Time) -> Vec<OverlappedReservation> {
    let of =
        |policy: &Policy, name: &str| policy.reservations.iter().find(|r| r.name == name).cloned();
    // Whoever would start or stop by then is another matter.
    let seen = State { policy: Arc::new(policy.clone()), ..state.clone() };
    let rows = reservations(&seen, now).into_iter();
    let changed = |name: &str| of(policy, name) != of(&state.policy, name);
    rows.filter(|row| !row.overlaps.is_empty() && changed(&row.name))
        .map(|row| OverlappedReservation { reservation: row.name, by: row.overlaps })
        .collect()
}

/// What a policy may say, but nobody is likely to mean: guarantees of GPUs that are not there, names
/// of nodes that nobody has, teams and classes that vanish under jobs.
fn warnings(state: &State, policy: &Policy) -> Vec<BadPolicy> {
    let mut found = policy.unkept_promises(&gpus_built(state.nodes.values()));
    for r in &policy.reservations {
        let unknown: Vec<&str> = r
            .nodes
            .iter()
            .map(String::as_str)
            .filter(|name| state.node_named(name).is_none())
            .collect();
        if !unknown.is_empty() {
            let path = format!("reservations.{}.nodes", r.name);
            found
                .push(BadPolicy { path, problem: format!("no node is called {}", some(&unknown)) });
        }
    }
    let mut gone: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for job in state.jobs.values().filter(|job| !job.is_over()) {
        let knew_team = state.policy.teams.contains_key(&job.team);
        if knew_team && !policy.teams.contains_key(&job.team) {
            *gone.entry(("teams", job.team.as_str())).or_default() += 1;
        }
        if !policy.classes.contains_key(job.class()) {
            *gone.entry(("classes", job.class())).or_default() += 1;
        }
    }
    found.extend(gone.into_iter().map(|((of, name), jobs)| {
        let jobs = if jobs == 1 { "1 job is".to_owned() } else { format!("{jobs} jobs are") };
        BadPolicy { path: format!("{of}.{name}"), problem: format!("is gone, but {jobs} in it") }
    }));
    found
}

/// The first few names, and how many more there are.
fn some(names: &[&str]) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
