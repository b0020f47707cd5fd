//! What people do to endpoints. What their replicas do is in [`crate::serve`].

use std::sync::Arc;

use tutti_model::{
    Endpoint, JobSpec, Replicas, Role, Rollout, RolloutRule, RolloutStage, SERVING_CLASS, Served,
    ServiceSpec, TextRefs,
};

use super::service::check_service;
use super::{Decision, View, bad, done, need_role, on_behalf, submit};
use crate::command::{Actor, Reply};
use crate::event::Event;
use crate::reject::{EndpointRefused, Rejected};
use crate::serve::floor;

pub(super) fn serve(
    view: View<'_>,
    actor: &Actor,
    spec: &JobSpec,
    user: Option<&str>,
    key: Option<&str>,
) -> Decision {
    let user = on_behalf(actor, user)?;
    submit::check_key(key)?;
    let name = check_service(spec)?;
    let spec = in_its_class(view, spec);
    if let Some(known) = view.state.endpoints.get(name) {
        let first = known.revisions.values().next().filter(|r| *r.spec == spec);
        return match first.filter(|_| key.is_some() && known.key.as_deref() == key) {
            Some(first) if known.user == user => Ok(revision_of(known, first.number)),
            _ if known.stopping => Err(EndpointRefused::Stopping(name.to_owned()).into()),
            _ => Err(EndpointRefused::Exists(name.to_owned()).into()),
        };
    }
    let team = submit::check(view, actor, user, &spec)?;
    let service = spec.service.as_deref().ok_or(EndpointRefused::NotAService)?;
    check_names(view, name, service)?;
    let event = Event::EndpointCreated {
        endpoint: name.to_owned(),
        user: user.to_owned(),
        team,
        want: floor(service, service.replicas, view.now),
        spec: Arc::new(spec.clone()),
        by: actor.user.clone(),
        key: key.map(str::to_owned),
        texts: TextRefs::default(),
    };
    Ok((
        Reply::Endpoint { name: name.to_owned(), revision: 1, passed_over: Vec::new() },
        vec![event],
    ))
}

/// What is served goes before ordinary work, where the policy has a class for it. Whose default its time
/// limit is can't be said by who writes the file.
fn in_its_class(view: View<'_>, spec: &JobSpec) -> JobSpec {
    let class = view.state.policy.classes.contains_key(SERVING_CLASS).then_some(SERVING_CLASS);
    let class = spec.class.clone().or_else(|| class.map(str::to_owned));
    JobSpec { class, default_time_of: None, ..spec.clone() }
}

/// Whoever asks for a model must not get somebody else's: no two endpoints have a name in common.
fn check_names(view: View<'_>, name: &str, service: &ServiceSpec) -> Result<(), Rejected> {
    let owner = |wanted: &str| {
        let mut others = view.state.endpoints.values().filter(|e| e.name != name);
        let owner = others.find(|e| e.is_asked_for_by(wanted))?;
        Some(format!("requests for '{wanted}' go to endpoint {} already", owner.name))
    };
    if let Some(problem) = owner(name) {
        return Err(bad("name", problem));
    }
    match service.models.iter().find_map(|model| owner(model)) {
        Some(problem) => {
            Err(EndpointRefused::BadService { key: "models".to_owned(), problem }.into())
        }
        None => Ok(()),
    }
}

fn revision_of(endpoint: &Endpoint, revision: u32) -> (Reply, Vec<Event>) {
    let name = endpoint.name.clone();
    (Reply::Endpoint { name, revision, passed_over: Vec::new() }, Vec::new())
}

/// The endpoint, if the actor may act on it: its owner, or an admin.
fn own<'a>(view: View<'a>, actor: &Actor, name: &str) -> Result<&'a Endpoint, Rejected> {
    need_role(actor, Role::User)?;
    let endpoint = view.state.endpoints.get(name);
    let endpoint = endpoint.ok_or_else(|| EndpointRefused::Unknown(name.to_owned()))?;
    if actor.role < Role::Admin && endpoint.user != actor.user {
        let (owner, user) = (endpoint.user.clone(), actor.user.clone());
        return Err(EndpointRefused::NotYours { endpoint: name.to_owned(), owner, user }.into());
    }
    Ok(endpoint)
}

fn own_and_going_on<'a>(
    view: View<'a>,
    actor: &Actor,
    name: &str,
) -> Result<&'a Endpoint, Rejected> {
    let endpoint = own(view, actor, name)?;
    if endpoint.stopping {
        return Err(EndpointRefused::Stopping(name.to_owned()).into());
    }
    Ok(endpoint)
}

pub(super) fn update(
    view: View<'_>,
    actor: &Actor,
    name: &str,
    spec: &JobSpec,
    canary: Option<u32>,
) -> Decision {
    let endpoint = own_and_going_on(view, actor, name)?;
    let given = check_service(spec)?;
    if given != name {
        let (endpoint, given) = (name.to_owned(), given.to_owned());
        return Err(EndpointRefused::OtherName { endpoint, given }.into());
    }
    let spec = in_its_class(view, spec);
    let team = submit::check(view, actor, &endpoint.user, &spec)?;
    if team != endpoint.team {
        let problem = format!("{name} is paid by {}: stop it and serve it anew", endpoint.team);
        return Err(bad("team", problem));
    }
    let service = spec.service.as_deref().ok_or(EndpointRefused::NotAService)?;
    check_names(view, name, service)?;
    let percent = canary.unwrap_or(service.rollout.canary);
    RolloutRule::check_canary(percent).map_err(EndpointRefused::from)?;
    let newest = endpoint.newest();
    let known = endpoint.revision(newest).map(|r| &r.spec);
    if known.is_some_and(|known| **known == spec) {
        let (reply, mut events) = revision_of(endpoint, newest);
        events.extend(canary.and_then(|percent| other_part(endpoint, percent)));
        return Ok((reply, events));
    }
    let revision = endpoint.revisions.keys().next_back().map_or(1, |last| last + 1);
    let same_as = known.is_some_and(|known| runs_the_same(known, &spec)).then_some(newest);
    let rollout = same_as.is_none().then(|| Rollout {
        from: endpoint.rollout.as_ref().map_or(endpoint.current, |r| r.from),
        to: revision,
        began_at: view.now,
        stage: first_stage(endpoint, percent),
    });
    let back_to = rollout.as_ref().map(|rollout| rollout.from);
    let passed_over = back_to.map_or_else(Vec::new, |to| endpoint.passed_over(to, revision));
    let by = actor.user.clone();
    let endpoint = name.to_owned();
    let (spec, texts) = (Arc::new(spec), TextRefs::default());
    let event = Event::EndpointRevised { endpoint, revision, spec, by, same_as, rollout, texts };
    Ok((Reply::Endpoint { name: name.to_owned(), revision, passed_over }, vec![event]))
}

/// Where nobody is served there is no part of the requests to look at.
fn first_stage(endpoint: &Endpoint, percent: u32) -> RolloutStage {
    match percent {
        1..=99 if endpoint.want > 0 => RolloutStage::Canary { percent, since: None },
        _ => RolloutStage::Rolling,
    }
}

/// The same revision again with another part of the requests: all of them is the person's promotion.
fn other_part(endpoint: &Endpoint, percent: u32) -> Option<Event> {
    let rollout = endpoint.rollout.as_ref()?;
    let RolloutStage::Canary { percent: now, .. } = rollout.stage else { return None };
    let stage = first_stage(endpoint, percent);
    let event = || Event::RolloutMoved { endpoint: endpoint.name.clone(), stage, why: None };
    (percent != now).then(event)
}

/// Whether a replica of one is a replica of the other: only routers and the endpoint itself read the
/// rest.
fn runs_the_same(old: &JobSpec, new: &JobSpec) -> bool {
    let without = |spec: &JobSpec| JobSpec { service: None, ..spec.clone() };
    let port = |spec: &JobSpec| spec.service.as_deref().and_then(|s| s.port);
    port(old) == port(new) && without(old) == without(new)
}

pub(super) fn scale(
    view: View<'_>,
    actor: &Actor,
    name: &str,
    bounds: Option<Replicas>,
) -> Decision {
    let endpoint = own_and_going_on(view, actor, name)?;
    let service = endpoint.service();
    service.check_bounds(bounds.unwrap_or(service.replicas)).map_err(EndpointRefused::from)?;
    if endpoint.bounds == bounds {
        return done(Vec::new());
    }
    let by = actor.user.clone();
    done(vec![Event::EndpointBounded { endpoint: name.to_owned(), bounds, by }])
}

pub(super) fn roll_back(view: View<'_>, actor: &Actor, name: &str, to: Option<u32>) -> Decision {
    let endpoint = own_and_going_on(view, actor, name)?;
    let newest = endpoint.newest();
    let target = match (to, &endpoint.rollout) {
        (Some(to), _) => to,
        (None, Some(rollout)) => rollout.from,
        (None, None) => last_good(endpoint, newest)?,
    };
    if endpoint.revision(target).is_none() {
        let endpoint = name.to_owned();
        return Err(EndpointRefused::NoSuchRevision { endpoint, revision: target }.into());
    }
    if target == newest && to.is_some() {
        let (endpoint, revision) = (name.to_owned(), target);
        return Err(EndpointRefused::AlreadyThere { endpoint, revision }.into());
    }
    // Who named a revision knows what lies between.
    let passed_over = match to {
        Some(_) => Vec::new(),
        None => endpoint.passed_over(target, endpoint.rollout.as_ref().map_or(newest, |r| r.to)),
    };
    let reply = Reply::Endpoint { name: name.to_owned(), revision: target, passed_over };
    let (endpoint_name, by) = (name.to_owned(), actor.user.clone());
    let event = match &endpoint.rollout {
        Some(rollout) if rollout.stage == RolloutStage::Back && target == rollout.from => None,
        Some(rollout) if target == rollout.from => {
            let why = Some(format!("{by} asked for it"));
            let stage = RolloutStage::Back;
            Some(Event::RolloutMoved { endpoint: endpoint_name, stage, why })
        }
        other => {
            let from = other.as_ref().map_or(endpoint.current, |r| r.from);
            let stage = RolloutStage::Rolling;
            let rollout = Rollout { from, to: target, began_at: view.now, stage };
            Some(Event::RolloutBegan { endpoint: endpoint_name, rollout, by })
        }
    };
    Ok((reply, event.into_iter().collect()))
}

fn last_good(endpoint: &Endpoint, before: u32) -> Result<u32, Rejected> {
    // Of revisions from before this was remembered nobody knows.
    let known = endpoint.revisions.values().any(|revision| revision.served);
    let mut older = endpoint.revisions.range(..before).rev();
    let good = older.find(|(_, r)| r.taken_back.is_none() && (r.served || !known));
    let none = || EndpointRefused::NothingToRollBackTo(endpoint.name.clone()).into();
    good.map(|(number, _)| *number).ok_or_else(none)
}

pub(super) fn stop(view: View<'_>, actor: &Actor, name: &str) -> Decision {
    let endpoint = own(view, actor, name)?;
    if endpoint.stopping {
        return done(Vec::new());
    }
    done(vec![Event::EndpointStopping { endpoint: name.to_owned(), by: actor.user.clone() }])
}

pub(super) fn served(view: View<'_>, name: &str, more: &Served) -> Decision {
    let there = view.state.endpoints.contains_key(name);
    if !there && view.state.past_endpoints.last(name).is_none() {
        return Err(EndpointRefused::Unknown(name.to_owned()).into());
    }
    if *more == Served::default() {
        return done(Vec::new());
    }
    done(vec![Event::EndpointServed { endpoint: name.to_owned(), more: more.clone() }])
}
