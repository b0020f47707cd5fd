//! Elastic jobs take more nodes when nobody else wants them.

use std::collections::BTreeSet;

use tutti_model::{
    Attempt, AttemptPhase, ClaimCause, Job, NewClaim, Part, PartPlacement, Stop, TaskId, Topology,
    Verdict, Victim,
};

use crate::cluster::{Share, SlotNo, Standing};
use crate::fit;
use crate::pass::Pass;
use crate::teams::by_model;

/// Jobs resized in one pass: each is a restart, and room changes with each.
const AT_ONCE: usize = 4;

/// Grows running elastic jobs into nodes that are idle and that no waiting job could use.
pub(crate) fn grow(pass: &mut Pass<'_, '_>) {
    let wants_room = |v: &Verdict| match v {
        // One that lacks a port has all the room it could use.
        Verdict::Busy(shortage) => shortage.blocked.port == 0,
        Verdict::Behind { .. } | Verdict::NodesUnavailable(_) | Verdict::Suspended { .. } => true,
        _ => false,
    };
    if pass.state.index.elastic.is_empty() || pass.verdicts().any(wants_room) {
        return;
    }
    let mut grown = 0;
    for &task in &pass.state.index.elastic {
        let Some(job) = pass.state.job(task.job) else { continue };
        let Some(attempt) = job.task(task.index).and_then(|t| t.attempt()) else { continue };
        if grown < AT_ONCE
            && may_grow(pass, job, task, attempt)
            && grow_one(pass, job, task, attempt)
        {
            grown += 1;
        }
    }
}

fn may_grow(pass: &Pass<'_, '_>, job: &Job, task: TaskId, attempt: &Attempt) -> bool {
    let most = job.spec.elastic.as_ref().map_or(0, |e| e.max_nodes);
    let AttemptPhase::Running { since } = attempt.phase else { return false };
    !job.held
        && (attempt.parts.len() as u32) < most
        && pass.now.since(since) >= pass.policy.resize_every
        && !pass.victims.contains(&task)
        && !pass.state.claims.contains_key(&task)
        && attempt.parts.iter().all(|p| !p.phase.is_over() && stays(pass, job, task, p))
        && !is_waited_for(pass, attempt)
}

/// Somebody keeps nodes of it for when it ends: it must not start there again.
fn is_waited_for(pass: &Pass<'_, '_>, attempt: &Attempt) -> bool {
    let old = pass.state.claims.values().flat_map(|c| &c.parts);
    let new = pass.plan.claims.iter().flat_map(|c| &c.parts);
    old.chain(new).any(|kept| attempt.part_on(kept.node).is_some())
}

/// Whether the job can start again where this part is.
fn stays(pass: &Pass<'_, '_>, job: &Job, task: TaskId, part: &Part) -> bool {
    let cluster = &pass.view.cluster;
    cluster
        .slot_of(part.node)
        .is_some_and(|no| cluster.get(no).standing == Standing::Open && pass.may_use(no, job, task))
}

fn grow_one<'a>(pass: &mut Pass<'a, '_>, job: &'a Job, task: TaskId, attempt: &Attempt) -> bool {
    let demand = tutti_model::Demand::of(&job.spec);
    let page_no = pass.view.book.page_of(&demand);
    let own: BTreeSet<SlotNo> =
        attempt.parts.iter().filter_map(|p| pass.view.cluster.slot_of(p.node)).collect();
    let view = &mut *pass.view;
    let page = view.book.read(page_no, &view.cluster, &view.valuer);
    let fitting: Vec<SlotNo> = page.fitting().filter(|no| !own.contains(no)).collect();
    let within = demand.within.max(Topology::Rack);
    let home = own.first().map(|&no| view.cluster.get(no).path.at(within));
    let most = job.spec.elastic.as_ref().map_or(0, |e| e.max_nodes) as usize;
    let gpus = page.ask.least().gpus;
    let ask = page.ask.clone();
    let ports = pass.port_taken(job);
    let near = fitting.into_iter().filter(|&no| {
        Some(pass.view.cluster.get(no).path.at(within)) == home
            && pass.may_take(no, job, page_no, task, &ports)
    });
    let mut more: Vec<_> =
        near.take(most - attempt.parts.len()).map(|slot| Share { slot, gpus }).collect();
    let team = pass.teams.find(&job.team);
    let over = |more: &[Share]| {
        let cluster = &pass.view.cluster;
        let held = by_model(cluster, &fit::place(cluster, &pass.view.valuer, &ask, more));
        team.is_some_and(|team| pass.teams.over_limit(team, &held, &cluster.models).is_some())
    };
    while !more.is_empty() && over(&more) {
        more.pop();
    }
    if more.is_empty() {
        return false;
    }
    let mut parts: Vec<_> = attempt.parts.iter().map(PartPlacement::from).collect();
    let new = fit::place(&pass.view.cluster, &pass.view.valuer, &ask, &more);
    parts.extend(new);
    let rank = |node| pass.view.cluster.slot_of(node).map(|no| pass.view.cluster.get(no).rank);
    parts.sort_by_key(|p| rank(p.node));
    let victims = vec![Victim { task, how: Stop::Requeue, cost: 0 }];
    pass.claim(job, NewClaim { task, parts, cause: ClaimCause::Resize, victims });
    true
}

#[cfg(test)]
mod tests;
