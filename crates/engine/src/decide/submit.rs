//! Submission: everything that can be known to be wrong is said now, not at midnight.

use std::sync::Arc;

use tutti_model::{
    Bytes, Demand, HolderBytes, Impossible, Job, JobId, JobSpec, Policy, Priority, Role,
    SERVING_CLASS, Spread, TextRefs,
};

use super::spec::check_spec;
use super::{Decision, View, bad, on_behalf};
use crate::command::{Actor, Reply};
use crate::event::Event;
use crate::index::{DependencyState, dependency};
use crate::reject::{EndpointRefused, Rejected, SpecHolder};
use crate::texts::{is_of, refs_of};

const KEY_BYTES_MAX: usize = 200;

pub(super) fn submit(
    view: View<'_>,
    actor: &Actor,
    spec: &JobSpec,
    user: Option<&str>,
    key: Option<&str>,
) -> Decision {
    let user = on_behalf(actor, user)?;
    if let Some(job) = known_key(view, user, spec, key)? {
        return Ok((Reply::Submitted { job, repeated: true }, Vec::new()));
    }
    if spec.service.is_some() {
        return Err(EndpointRefused::MustBeServed.into());
    }
    not_serving(actor, spec)?;
    let team = check(view, actor, user, spec)?;
    let job = JobId(view.state.next_job.max(1));
    check_dependencies(view, spec, job)?;
    let spec = with_time_limit(view, spec, &team);
    let event = Event::JobSubmitted {
        job,
        user: user.to_owned(),
        spec: Arc::new(spec),
        key: key.map(str::to_owned),
        team: Some(team),
        replica_of: None,
        texts: TextRefs::default(),
    };
    Ok((Reply::Submitted { job, repeated: false }, vec![event]))
}

/// That class goes before standard work because somebody waits for an answer; nobody waits for a job.
pub(super) fn not_serving(actor: &Actor, spec: &JobSpec) -> Result<(), Rejected> {
    match spec.class.as_deref() == Some(SERVING_CLASS) && actor.role < Role::Admin {
        true => Err(bad("class", format!("{SERVING_CLASS} is for endpoints: use `tutti serve`"))),
        false => Ok(()),
    }
}

/// A job that names no limit has that of the policy as it is now: a later one is for later jobs.
pub(super) fn with_time_limit(view: View<'_>, spec: &JobSpec, team: &str) -> JobSpec {
    let mut spec = JobSpec { default_time_of: None, ..spec.clone() };
    if spec.time.is_none()
        && let Some((time, whose)) = view.state.policy.default_time(team, spec.class.as_deref())
    {
        (spec.time, spec.default_time_of) = (Some(time), Some(whose));
    }
    spec
}

/// What holds for everything that is to run. Says who pays.
pub(super) fn check(
    view: View<'_>,
    actor: &Actor,
    user: &str,
    spec: &JobSpec,
) -> Result<String, Rejected> {
    check_priority(actor, spec)?;
    check_spec(spec, &view.state.policy.submissions)?;
    check_class(view, actor, spec)?;
    let team = team_of(view, actor, user, spec)?;
    tutti_sched::impossible(view.state, &Demand::of(spec))?;
    within_team_limit(&view.state.policy, &team, spec)?;
    within_bytes(view, user, &team, spec, None)?;
    Ok(team)
}

/// What is larger than its team may ever have would wait for ever.
pub(crate) fn within_team_limit(
    policy: &Policy,
    team: &str,
    spec: &JobSpec,
) -> Result<(), Rejected> {
    let demand = Demand::of(spec);
    let wanted = match (demand.spread, demand.least_nodes) {
        (Spread::Nodes { gpus_each, .. }, Some(least)) => u64::from(least) * u64::from(gpus_each),
        _ => demand.total_gpus(),
    };
    let milli = wanted * u64::from(demand.share.0);
    for name in policy.line_of(team) {
        let limit = policy.teams.get(name).and_then(|t| t.limit.as_ref());
        let Some(limit) = limit.filter(|l| l.any > 0 || l.models.is_empty()) else { continue };
        if milli > u64::from(limit.any) * 1000 {
            let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
            let (team, limit) = (name.to_owned(), limit.any);
            return Err(Impossible::OverTeamLimit { team, limit, wanted }.into());
        }
    }
    Ok(())
}

/// Every job costs memory on the controller, and one user must not take all of it. `replaces` is the
/// job whose spec this is to be.
pub(super) fn within_bytes(
    view: View<'_>,
    user: &str,
    team: &str,
    spec: &JobSpec,
    replaces: Option<&Job>,
) -> Result<(), Rejected> {
    let (rule, held) = (&view.state.policy.submissions, &view.state.index.spec_bytes);
    // A change leaves the texts as they are stored.
    let texts = replaces.map_or_else(|| refs_of(spec), |job| job.texts.clone());
    let own = spec.bytes_beside(&texts);
    let before = replaces.map_or(0, |job| job.spec.bytes_beside(&job.texts));
    let of_team = if replaces.is_some_and(|job| job.team == team) { before } else { 0 };
    let holders = [
        (SpecHolder::User, user, held.users.get(user), rule.user_bytes, before),
        (SpecHolder::Team, team, held.teams.get(team), rule.team_bytes, of_team),
    ];
    let nothing = HolderBytes::default();
    for (whose, name, holder, limit, before) in holders {
        let holder = holder.unwrap_or(&nothing);
        let has = Bytes(holder.bytes.saturating_sub(before));
        let adds = Bytes(holder.adds(own, &texts));
        // What was there before is not judged again: the limit may have been another one.
        if adds.0 > before && has.0 + adds.0 > limit.0 {
            let name = name.to_owned();
            return Err(Rejected::TooManySpecBytes { whose, name, has, adds, limit });
        }
    }
    Ok(())
}

pub(super) fn check_key(key: Option<&str>) -> Result<(), Rejected> {
    match key.is_some_and(|key| key.is_empty() || key.len() > KEY_BYTES_MAX) {
        true => Err(bad("key", format!("an idempotency key has 1 to {KEY_BYTES_MAX} bytes"))),
        false => Ok(()),
    }
}

/// A repeated submission gets the job it made the first time.
fn known_key(
    view: View<'_>,
    user: &str,
    spec: &JobSpec,
    key: Option<&str>,
) -> Result<Option<JobId>, Rejected> {
    check_key(key)?;
    let Some(key) = key else { return Ok(None) };
    let Some((job, _)) = view.state.keys.get(&(user.to_owned(), key.to_owned())) else {
        return Ok(None);
    };
    match view.state.job(*job) {
        Some(known) if !is_of(known, spec) => Err(Rejected::KeyReused(*job)),
        _ => Ok(Some(*job)),
    }
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

pub(super) fn check_class(view: View<'_>, actor: &Actor, spec: &JobSpec) -> Result<(), Rejected> {
    let Some(class) = &spec.class else { return Ok(()) };
    let classes = &view.state.policy.classes;
    let known = || classes.keys().cloned().collect();
    let found = classes
        .get(class)
        .ok_or_else(|| Rejected::NoSuchClass { class: class.clone(), known: known() })?;
    if found.admins_only && actor.role < Role::Admin {
        return Err(bad("class", format!("{class} is for admins")));
    }
    Ok(())
}

/// Who pays. Where no teams are configured, anybody may name any.
pub(super) fn team_of(
    view: View<'_>,
    actor: &Actor,
    user: &str,
    spec: &JobSpec,
) -> Result<String, Rejected> {
    let policy = &view.state.policy;
    let Some(team) = &spec.team else { return Ok(policy.team_of_user(user).to_owned()) };
    if policy.teams.is_empty() {
        return Ok(team.clone());
    }
    if !policy.teams.contains_key(team) {
        let known = policy.teams.keys().cloned().collect();
        return Err(Rejected::NoSuchTeam { team: team.clone(), known });
    }
    if !policy.is_member(team, user) && actor.role < Role::Admin {
        return Err(Rejected::NotInTeam { user: user.to_owned(), team: team.clone() });
    }
    Ok(team.clone())
}

pub(super) fn check_dependencies(
    view: View<'_>,
    spec: &JobSpec,
    new: JobId,
) -> Result<(), Rejected> {
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
