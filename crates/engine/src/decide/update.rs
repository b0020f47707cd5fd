//! Changes to a job that was submitted before. What others go by while it runs stays as it is: who
//! pays, how much it has, and how long at most, which only an admin makes longer.

use std::collections::BTreeSet;

use tutti_model::{
    Demand, Dependency, Job, JobId, JobSpec, JobUpdate, LimitByPolicy, Phase, Role, Span, State,
    Task, Tasks,
};

use super::spec::check_changes;
use super::submit::{
    check_class, check_dependencies, not_serving, team_of, with_time_limit, within_bytes,
    within_team_limit,
};
use super::{Decision, View, bad, jobs, own_job};
use crate::command::{Actor, Reply};
use crate::event::Event;
use crate::reject::Rejected;

pub(super) fn update(view: View<'_>, actor: &Actor, id: JobId, update: &JobUpdate) -> Decision {
    let job = own_job(view, actor, id)?;
    if job.is_over() {
        return Err(Rejected::AlreadyEnded(id));
    }
    if update.is_empty() {
        return Err(bad("update", "says nothing that is to change"));
    }
    if let Some(of) = &job.replica_of {
        let (job, endpoint) = (id, of.endpoint.clone());
        return Err(Rejected::IsReplica { job, endpoint });
    }
    let mut events = Vec::new();
    if update.changes_spec() {
        events.push(changed(view, actor, job, update)?);
    }
    if let Some(priority) = update.priority.filter(|p| *p != job.priority) {
        events.extend(jobs::set_priority(view, actor, id, priority)?.1);
    }
    match update.hold {
        Some(true) => events.extend(jobs::hold(view, actor, id)?.1),
        Some(false) => events.extend(jobs::release(view, actor, id)?.1),
        None => {}
    }
    Ok((Reply::Done, events))
}

/// What is new about the spec is checked as at submission.
fn changed(
    view: View<'_>,
    actor: &Actor,
    job: &Job,
    update: &JobUpdate,
) -> Result<Event, Rejected> {
    if let Some(key) = fixed_key(job, update) {
        return Err(Rejected::CantUpdate { job: job.id, key, why: started_words(job) });
    }
    let spec = update.applied(&job.spec);
    check_changes(&spec, update)?;
    if update.class.is_some() {
        not_serving(actor, &spec)?;
        check_class(view, actor, &spec)?;
    }
    let team = match &update.team {
        Some(_) => Some(team_of(view, actor, &job.user, &spec)?),
        None => None,
    };
    let payer = team.as_deref().unwrap_or(&job.team);
    let (spec, default_time) = with_default_time(view, update, spec, payer);
    check_time(view, actor, job, &spec, payer)?;
    if update.changes_demand() || team.is_some() {
        tutti_sched::impossible(view.state, &Demand::of(&spec))?;
        within_team_limit(&view.state.policy, payer, &spec)?;
    }
    within_bytes(view, &job.user, payer, &spec, Some(job))?;
    if let Some(after) = &update.after {
        check_dependencies(view, &spec, job.id)?;
        no_circle(view.state, after, job.id)?;
    }
    let update = JobUpdate { priority: None, hold: None, ..update.clone() };
    let by = actor.user.clone();
    Ok(Event::JobUpdated { job: job.id, update: Box::new(update), team, default_time, by })
}

/// A job that names no limit itself has that of its new team and class, as if it were submitted now.
fn with_default_time(
    view: View<'_>,
    update: &JobUpdate,
    spec: JobSpec,
    team: &str,
) -> (JobSpec, Option<LimitByPolicy>) {
    let names_one = update.no_time || spec.as_asked().time.is_some();
    if names_one || !(update.team.is_some() || update.class.is_some()) {
        return (spec, None);
    }
    let spec = with_time_limit(view, &spec.as_asked(), team);
    let default = LimitByPolicy { time: spec.time, of: spec.default_time_of.clone() };
    (spec, Some(default))
}

/// The first thing that can't change once something of the job has started.
fn fixed_key(job: &Job, update: &JobUpdate) -> Option<&'static str> {
    if !has_started(job) {
        return None;
    }
    let keys = [
        (update.gpus.is_some(), "gpus"),
        (update.gpus_per_node.is_some(), "gpus_per_node"),
        (update.nodes.is_some(), "nodes"),
        (update.team.is_some(), "team"),
        (update.class.is_some(), "class"),
        (update.after.is_some(), "after"),
    ];
    keys.into_iter().find(|(asked, _)| *asked).map(|(_, key)| key)
}

fn has_started(job: &Job) -> bool {
    match &job.tasks {
        Tasks::One(task) => task.attempts > 0 || !matches!(task.phase, Phase::Pending { .. }),
        Tasks::Array(array) => !array.live.is_empty() || !array.ended.is_empty(),
    }
}

fn started_words(job: &Job) -> &'static str {
    match &job.tasks {
        Tasks::Array(_) => "some of its tasks have started",
        Tasks::One(task) if task.attempt().is_some() => "it runs",
        Tasks::One(_) => "it has run before, and goes on from there",
    }
}

/// Others were told when it ends at the latest: it may only end sooner, but for admins.
fn check_time(
    view: View<'_>,
    actor: &Actor,
    job: &Job,
    spec: &JobSpec,
    team: &str,
) -> Result<(), Rejected> {
    let moves = job.team != team || job.spec.class != spec.class;
    if spec.time == job.spec.time && !moves {
        return Ok(());
    }
    if spec.time.is_none() && actor.role < Role::Admin {
        let default = view.state.policy.default_time(team, spec.class.as_deref());
        if let Some((default, _)) = default {
            let problem = format!("the policy has a default of {default}: write another limit");
            return Err(bad("time", problem));
        }
    }
    // One that is being started has its nodes already.
    let ran = |task: &Task| Some(task.attempt()?.ran(view.now).unwrap_or_default());
    let ran = job.live_tasks().filter_map(|(_, task): (_, &Task)| ran(task)).max();
    let Some(ran) = ran else { return Ok(()) };
    if spec.time.is_some_and(|limit| limit <= ran) {
        let problem = format!(
            "it has run for {} already: `tutti cancel {}` ends it now",
            Span(ran.0 / 1000 * 1000),
            job.id
        );
        return Err(bad("time", problem));
    }
    let longer = match (job.spec.time, spec.time) {
        (Some(old), Some(new)) => new > old,
        (Some(_), None) => true,
        (None, _) => false,
    };
    if longer && actor.role < Role::Admin {
        return Err(bad("time", "the limit of a job that runs is made longer by an admin only"));
    }
    Ok(())
}

/// Jobs that wait for each other would do so for ever.
fn no_circle(state: &State, after: &[Dependency], id: JobId) -> Result<(), Rejected> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<JobId> = after.iter().map(|dep| dep.job).collect();
    while let Some(job) = next.pop() {
        if job == id {
            return Err(Rejected::DependencyCycle(id));
        }
        if seen.insert(job) {
            next.extend(
                state.job(job).into_iter().flat_map(|j| j.spec.after.iter().map(|d| d.job)),
            );
        }
    }
    Ok(())
}
