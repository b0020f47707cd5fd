//! What agents say. Reports are level-triggered: each says where a part stands, so one that is
//! lost, late or repeated does no harm.

use std::collections::BTreeSet;

use tutti_model::{
    Accusation, AttemptPhase, BurnIn, BurnInFigures, Drain, Fault, GpuBench, GpuBenchFigures,
    Greeting, LeaseId, LimitReport, Link, Node, NodeId, Order, Part, PartReport, PartState,
    PortOwner, ReportedPhase, Role, SavedPoint, Span, State, StopCause, Time,
};

use super::{Decision, View, done, findings, keys, need_role, restored, suspend};
use crate::command::{Actor, Command, Reply};
use crate::effect::Effect;
use crate::effects::{find_attempt, find_part, order_for, time_limit};
use crate::event::Event;
use crate::index::out_of_time_at;
use crate::reject::Rejected;

pub(super) fn hello(view: View<'_>, greeting: &Greeting, key: Option<&str>) -> Decision {
    let facts = &greeting.facts;
    let known = view.state.node_named(&facts.name).map(|n| n.id);
    let node = known.unwrap_or(NodeId(view.state.next_node.max(1)));
    let mut events: Vec<Event> =
        keys::admitted(view.state, &facts.name, key)?.into_iter().collect();
    events.extend(restored::skipped(view, &greeting.parts));
    if known.is_none() {
        events.push(Event::NodeJoined { node, facts: Box::new(facts.clone()) });
    }
    let stale = greeting
        .parts
        .iter()
        .filter(|r| !is_done(r) && find_part(view.state, r.lease, node).is_none())
        .map(|r| r.lease)
        .collect();
    events.push(Event::NodeUp { node, facts: Box::new(facts.clone()), stale });
    // First, because what is wrong with a GPU explains what became of those on it.
    events.extend(findings::changes(view, node, &greeting.findings));
    events.extend(changes(view, node, &greeting.parts));
    events.extend(missing(view.state, node, &greeting.parts));
    Ok((Reply::Welcome { node }, events))
}

pub(super) fn heartbeat(
    view: View<'_>,
    node: NodeId,
    session: u64,
    parts: &[PartReport],
) -> Decision {
    need_session(view, node, session)?;
    let mut events = changes(view, node, parts);
    events.extend(missing(view.state, node, parts));
    events.extend(stale_gone(view.state, node, parts));
    done(events)
}

pub(super) fn report(view: View<'_>, node: NodeId, session: u64, report: &PartReport) -> Decision {
    need_session(view, node, session)?;
    done(changes(view, node, std::slice::from_ref(report)))
}

/// The node that speaks, and of which parts, if what it says counts.
pub(crate) fn said_by_node<'a>(
    view: View<'_>,
    command: &'a Command,
) -> Option<(NodeId, &'a [PartReport])> {
    match command {
        Command::Hello { greeting, key, .. } => {
            let name = &greeting.facts.name;
            keys::admitted(view.state, name, key.as_deref()).ok()?;
            Some((view.state.node_named(name)?.id, &greeting.parts))
        }
        Command::Heartbeat { node, session, parts } => {
            need_session(view, *node, *session).ok()?;
            Some((*node, parts))
        }
        Command::Report { node, session, report } => {
            need_session(view, *node, *session).ok()?;
            Some((*node, std::slice::from_ref(report)))
        }
        _ => None,
    }
}

pub(super) fn need_session(view: View<'_>, node: NodeId, session: u64) -> Result<(), Rejected> {
    let up = view.state.node(node).is_some_and(|n| n.link == Link::Up);
    if up && view.live.is_session(node, session) {
        Ok(())
    } else {
        Err(Rejected::StaleSession(node))
    }
}

fn is_done(report: &PartReport) -> bool {
    matches!(report.phase, ReportedPhase::Done { .. })
}

/// The events that bring the state to what the node reports.
fn changes(view: View<'_>, node: NodeId, reports: &[PartReport]) -> Vec<Event> {
    let sleeps = |r: &PartReport| {
        let part = find_part(view.state, r.lease, node);
        part.map_or_else(Vec::new, |part| suspend::heard(view, node, part, r))
    };
    let of = |r| {
        let first = said(view, node, r).into_iter().chain(dropped(view.state, node, r));
        let first = first.chain(timed_out(view.state, node, r));
        let owned = port_owned(view.state, node, r);
        first.chain(change(view.state, node, r)).chain(sleeps(r)).chain(owned)
    };
    reports.iter().flat_map(of).collect()
}

/// The node stopped it at its time limit, because this controller was not there to do so. Comes before
/// what became of its ranks: they did not end of themselves.
fn timed_out(state: &State, node: NodeId, report: &PartReport) -> Option<Event> {
    let lease = report.lease;
    find_part(state, lease, node).filter(|_| report.limit == Some(LimitReport::Over))?;
    let stops = matches!(find_attempt(state, lease)?.phase, AttemptPhase::Stopping { .. });
    (!stops).then_some(Event::Stopping { lease, why: StopCause::TimeLimit })
}

/// Only the first part of what is served is asked by routers.
fn port_owned(state: &State, node: NodeId, report: &PartReport) -> Option<Event> {
    let (lease, owner) = (report.lease, report.port_owner.as_ref()?);
    find_part(state, lease, node)?;
    state.job(lease.task.job)?.spec.service.as_ref()?;
    let first = find_attempt(state, lease)?.parts.first().filter(|part| part.node == node)?;
    let known = first.port_owner.as_deref().unwrap_or(&PortOwner::Nobody);
    (!known.is_like(owner)).then(|| Event::PortOwned { lease, node, owner: owner.clone() })
}

/// Of a text that a job made, so much goes on record.
const SAID_CHARS_MAX: usize = 200;

/// What the ranks said that matters beyond this moment. Comes before what became of them: an accuser
/// that leaves right afterwards has not failed.
fn said(view: View<'_>, node: NodeId, report: &PartReport) -> Vec<Event> {
    let state = view.state;
    let (lease, mut events) = (report.lease, Vec::new());
    let Some(said) = report.progress.as_deref() else { return events };
    let Some(attempt) = find_attempt(state, lease) else { return events };
    if find_part(state, lease, node).is_none() {
        return events;
    }
    if let Some(point) = &said.saved
        && attempt.saved.as_ref().is_none_or(|old| is_news(point, old, &state.node_name(node)))
    {
        let at = Time(view.now.0.saturating_sub(said.saved_age.0)).max(attempt.placed_at);
        let node = Some(state.node_name(node));
        let point = SavedPoint { at: Some(at), node, ..point.clone() };
        events.push(Event::Saved { lease, point: Some(point) });
    }
    if let Some(fault) = &said.fault
        && attempt.part_of(fault.rank).is_some()
        && attempt.accusations.iter().all(|a| a.by != node)
    {
        let clip = |text: &str| text.chars().take(SAID_CHARS_MAX).collect();
        let fault = Fault { rank: fault.rank, op: clip(&fault.op), why: clip(&fault.why) };
        let accusation = Accusation { by: node, fault };
        if attempt.is_hardly_awake(view.now) {
            let news = !attempt.disregarded.contains(&accusation);
            events.extend(news.then_some(Event::Disregarded { lease, accusation }));
        } else if !attempt.disregarded.contains(&accusation) {
            events.push(Event::Accused { lease, accusation });
        }
    }
    events
}

/// Output of a part that ends now which is in no log.
fn dropped(state: &State, node: NodeId, report: &PartReport) -> Option<Event> {
    let (lease, bytes) = (report.lease, report.output_dropped);
    let news = bytes > 0 && is_done(report) && find_part(state, lease, node).is_some();
    news.then_some(Event::OutputDropped { lease, node, bytes })
}

/// A newer step, or that the node which told of this one has it elsewhere now. Other nodes may have
/// paths of their own for the same step: they don't take turns.
fn is_news(point: &SavedPoint, old: &SavedPoint, node: &str) -> bool {
    let moved = || point.path.is_some() && point.path != old.path;
    point.step > old.step
        || (point.step == old.step && old.node.as_deref() == Some(node) && moved())
}

fn change(state: &State, node: NodeId, report: &PartReport) -> Option<Event> {
    let lease = report.lease;
    let Some(part) = find_part(state, lease, node) else {
        let stale = state.node(node).is_some_and(|n| n.stale.contains(&lease));
        return (stale && is_done(report)).then_some(Event::StaleGone { node, lease });
    };
    match (&report.phase, &part.phase) {
        (ReportedPhase::Prepared { port }, PartState::Sent) => {
            Some(Event::PartPrepared { lease, node, port: *port })
        }
        (ReportedPhase::Running { exits }, PartState::Sent | PartState::Prepared { .. }) => {
            Some(Event::PartRunning { lease, node, exits: exits.clone() })
        }
        (ReportedPhase::Running { exits }, PartState::Running { exits: known })
            if exits.len() > known.len() =>
        {
            Some(Event::PartRunning { lease, node, exits: exits.clone() })
        }
        (ReportedPhase::Done { exits, error }, _) => {
            Some(Event::PartDone { lease, node, exits: exits.clone(), error: error.clone() })
        }
        _ => None,
    }
}

/// Parts that the node had acknowledged and no longer has: a full report without them means that
/// they are gone (a node that was reinstalled, say).
fn missing(state: &State, node: NodeId, reports: &[PartReport]) -> Vec<Event> {
    let reported: BTreeSet<LeaseId> = reports.iter().map(|r| r.lease).collect();
    held_parts(state, node)
        .filter(|(lease, part)| part.phase != PartState::Sent && !reported.contains(lease))
        .map(|(lease, _)| Event::PartLost { lease, node })
        .collect()
}

/// The same for what should not have been there: its agent may have forgotten it, told to before we
/// knew that it was stale.
fn stale_gone(state: &State, node: NodeId, reports: &[PartReport]) -> Vec<Event> {
    let stale = state.node(node).into_iter().flat_map(|n| &n.stale);
    let gone = stale.filter(|lease| !reports.iter().any(|r| r.lease == **lease));
    gone.map(|&lease| Event::StaleGone { node, lease }).collect()
}

/// Every part on this node that is not over.
pub(super) fn held_parts(state: &State, node: NodeId) -> impl Iterator<Item = (LeaseId, &Part)> {
    let leases = state.node(node).into_iter().flat_map(|n: &Node| n.used.leases.iter().copied());
    leases.filter_map(move |lease| Some((lease, find_part(state, lease, node)?)))
}

/// What to tell a node beyond what follows from new records: stop what is not current, forget what
/// is on record, and repeat orders that had no effect.
pub(crate) fn answer(view: View<'_>, command: &Command) -> Vec<Effect> {
    let (node, reports, full, resend_now) = match command {
        Command::Hello { greeting, .. } => {
            let Some(node) = view.state.node_named(&greeting.facts.name) else { return Vec::new() };
            (node.id, greeting.parts.as_slice(), true, true)
        }
        Command::Heartbeat { node, parts, .. } => (*node, parts.as_slice(), true, false),
        Command::Report { node, report, .. } => (*node, std::slice::from_ref(report), false, false),
        _ => return Vec::new(),
    };
    let mut orders: Vec<Order> =
        reports.iter().filter_map(|r| answer_report(view, node, r, full)).collect();
    if full {
        let reported: BTreeSet<LeaseId> = reports.iter().map(|r| r.lease).collect();
        let unheard = held_parts(view.state, node).filter(|(l, _)| !reported.contains(l));
        orders.extend(unheard.filter_map(|(lease, _)| {
            let placed_at = find_attempt(view.state, lease)?.placed_at;
            let overdue = view.now.since(placed_at) >= view.settings.resend_after;
            (resend_now || overdue).then(|| order_for(view.state, view.settings, lease, node))?
        }));
    }
    orders.into_iter().map(|order| Effect::Tell { node, order }).collect()
}

fn answer_report(view: View<'_>, node: NodeId, report: &PartReport, full: bool) -> Option<Order> {
    let lease = report.lease;
    if find_part(view.state, lease, node).is_some() {
        // Repeating is for heartbeats; a single report is answered by what it brings about.
        if !full {
            return None;
        }
        let order = order_for(view.state, view.settings, lease, node);
        let order = order.or_else(|| suspend::correction(view.state, node, report));
        let order = order.or_else(|| limit_correction(view, node, report));
        return order.filter(|order| !suspend::is_under_way(order, report));
    }
    Some(if is_done(report) {
        Order::Forget { lease }
    } else {
        Order::Stop { lease, grace: view.settings.failure_grace, signal: None }
    })
}

/// What clocks, heartbeats and the way of a message add up to at most; nodes wait longer than that
/// before they act.
const LIMIT_TOLERANCE: Span = Span::secs(2);

/// A node that goes by another time limit than we do: it was changed, or the part was suspended.
fn limit_correction(view: View<'_>, node: NodeId, report: &PartReport) -> Option<Order> {
    let lease = report.lease;
    view.state.node(node).filter(|n| n.facts.keeps_limits)?;
    let (job, attempt) = (view.state.job(lease.task.job)?, find_attempt(view.state, lease)?);
    if !matches!(attempt.phase, AttemptPhase::Running { .. }) {
        return None;
    }
    let left = out_of_time_at(job, attempt).map(|at| at.since(view.now));
    let agrees = match (left, report.limit) {
        (None, None) | (_, Some(LimitReport::Over)) => true,
        (Some(ours), Some(LimitReport::Left { left: theirs })) => {
            ours.0.abs_diff(theirs.0) <= LIMIT_TOLERANCE.0
        }
        _ => false,
    };
    let limit = left.map(|left| time_limit(view.settings, job, left));
    (!agrees).then_some(Order::Limit { lease, limit })
}

pub(super) fn gone(view: View<'_>, node: NodeId, session: u64) -> Vec<Event> {
    let up = view.state.node(node).is_some_and(|n| n.link == Link::Up);
    if up && view.live.is_session(node, session) {
        vec![Event::NodeAway { node }]
    } else {
        Vec::new()
    }
}

pub(super) fn named<'a>(view: View<'a>, name: &str) -> Result<&'a Node, Rejected> {
    view.state.node_named(name).ok_or_else(|| Rejected::NoSuchNode(name.to_owned()))
}

pub(super) fn drain(
    view: View<'_>,
    actor: &Actor,
    name: &str,
    reason: &str,
    evict: bool,
) -> Decision {
    need_role(actor, Role::Admin)?;
    let node = named(view, name)?;
    let drain = Drain {
        by: actor.user.clone(),
        reason: reason.to_owned(),
        since: view.now,
        auto: false,
        finding: None,
    };
    let mut events = vec![Event::NodeDrained { node: node.id, drain }];
    if evict {
        events.extend(evicted(view.state, actor, node.id));
    }
    done(events)
}

/// Everything that runs there and is not being stopped already.
fn evicted(state: &State, actor: &Actor, node: NodeId) -> impl Iterator<Item = Event> {
    let stays = |lease: &LeaseId| {
        let attempt = find_attempt(state, *lease);
        attempt.is_some_and(|a| !matches!(a.phase, AttemptPhase::Stopping { .. }))
    };
    held_parts(state, node).map(|(lease, _)| lease).filter(stays).map(move |lease| {
        let why = StopCause::Evicted { node, by: actor.user.clone() };
        Event::Stopping { lease, why }
    })
}

pub(super) fn resume(view: View<'_>, actor: &Actor, name: &str) -> Decision {
    need_role(actor, Role::Admin)?;
    let node = named(view, name)?;
    if node.drain.is_none() {
        return done(Vec::new());
    }
    done(vec![Event::NodeResumed { node: node.id, by: actor.user.clone() }])
}

/// It is in every snapshot, and in every list of nodes.
const SLOW_MAX: usize = 16;
const SLOW_CHARS_MAX: usize = 400;

pub(super) fn measured(
    view: View<'_>,
    actor: &Actor,
    name: &str,
    figures: &BurnInFigures,
) -> Decision {
    need_role(actor, Role::Admin)?;
    let node = named(view, name)?.id;
    check_slow(&figures.slow)?;
    let burn_in = BurnIn { at: view.now, by: actor.user.clone(), figures: figures.clone() };
    done(vec![Event::NodeMeasured { node, burn_in: Box::new(burn_in) }])
}

const SHAPES_MAX: usize = 16;
const GPU_CHARS_MAX: usize = 100;
const GPUS_MAX: u32 = 1024;
/// Far above what anything does, so that a slip of the unit is noticed: operations and bytes a second.
const OPERATIONS_MAX: u64 = 100_000_000_000_000_000;
const BYTES_MAX: u64 = 100_000_000_000_000;

pub(super) fn gpus_measured(
    view: View<'_>,
    actor: &Actor,
    name: &str,
    figures: &GpuBenchFigures,
) -> Decision {
    need_role(actor, Role::Admin)?;
    let node = named(view, name)?.id;
    check_slow(&figures.slow)?;
    if figures.shapes.len() > SHAPES_MAX {
        let problem =
            format!("{} are too many: at most {SHAPES_MAX} are kept", figures.shapes.len());
        return Err(Rejected::BadSpec { key: "shapes", problem });
    }
    if figures.gpu.chars().count() > GPU_CHARS_MAX {
        let problem = format!("at most {GPU_CHARS_MAX} characters are kept");
        return Err(Rejected::BadSpec { key: "gpu", problem });
    }
    if figures.gpus > GPUS_MAX {
        let problem = format!("{} are too many: a node has at most {GPUS_MAX}", figures.gpus);
        return Err(Rejected::BadSpec { key: "gpus", problem });
    }
    check_rates(figures)?;
    let bench = GpuBench { at: view.now, by: actor.user.clone(), figures: figures.clone() };
    done(vec![Event::GpusMeasured { node, bench: Box::new(bench) }])
}

/// Plans are made with them.
fn check_rates(figures: &GpuBenchFigures) -> Result<(), Rejected> {
    let over_gpus = [
        ("matmul", figures.matmul, OPERATIONS_MAX),
        ("fp8", figures.fp8, OPERATIONS_MAX),
        ("copy", figures.copy, BYTES_MAX),
    ];
    let each = over_gpus
        .into_iter()
        .filter_map(|(key, rates, most)| Some((key, rates?, most)))
        .flat_map(|(key, rates, most)| [(key, rates.median, most), (key, rates.worst, most)]);
    let shapes = figures.shapes.iter().map(|shape| ("shapes", shape.rate, OPERATIONS_MAX));
    match each.chain(shapes).find(|(_, rate, most)| *rate == 0 || rate > most) {
        None => Ok(()),
        Some((key, rate, most)) => {
            let problem =
                format!("{rate} a second is not possible: it must be above 0 and at most {most}");
            Err(Rejected::BadSpec { key, problem })
        }
    }
}

fn check_slow(slow: &[String]) -> Result<(), Rejected> {
    let too_long = slow.iter().any(|words| words.chars().count() > SLOW_CHARS_MAX);
    if slow.len() > SLOW_MAX || too_long {
        let problem = format!("at most {SLOW_MAX} of {SLOW_CHARS_MAX} characters are kept");
        return Err(Rejected::BadSpec { key: "slow", problem });
    }
    Ok(())
}
