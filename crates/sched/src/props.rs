//! Random clusters and queues, judged by code that shares nothing with the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tutti_model::*;

use crate::testing::oracle::*;
use crate::testing::random::any_case;
use crate::testing::*;

mod preempting;
mod time;

fn is_suspended(state: &State, task: TaskId) -> bool {
    let task = state.job(task.job).and_then(|j| j.task(task.index));
    task.and_then(Task::attempt).is_some_and(Attempt::is_suspended)
}

/// What those who wake get beyond what they have: their memory is theirs.
fn woken(state: &State, wake: &Wake) -> Vec<PartPlacement> {
    let attempt = state.job(wake.task.job).unwrap().task(wake.task.index).unwrap().attempt();
    let part = |w: &WakePart| {
        let part = attempt.unwrap().part_on(w.node).expect("it wakes where it is");
        let cpus = part.asleep.as_ref().unwrap().cpus;
        PartPlacement { gpus: w.gpus.clone(), cpus, mem: Bytes(0), ..PartPlacement::from(part) }
    };
    wake.parts.iter().map(part).collect()
}

/// Who wakes, or has room kept to wake, gets as many GPUs of its own nodes as it had: of the same
/// model, whole, and its own where the driver can't do otherwise.
fn check_back(state: &State, task: TaskId, parts: &[(NodeId, &[GpuIndex])]) {
    let attempt = state.job(task.job).unwrap().task(task.index).unwrap().attempt().unwrap();
    assert!(attempt.is_suspended() && !attempt.pause().unwrap().stays, "{task} must not wake");
    let nodes: Vec<NodeId> = attempt.parts.iter().map(|p| p.node).collect();
    assert_eq!(parts.iter().map(|(n, _)| *n).collect::<Vec<_>>(), nodes, "{task}");
    for (part, (node, gpus)) in attempt.parts.iter().zip(parts) {
        let node = &state.nodes[node];
        let models = |gpus: &[GpuIndex]| {
            let model = |i: &GpuIndex| node.facts.gpus.iter().find(|g| g.index == *i).unwrap();
            let mut models: Vec<&str> = gpus.iter().map(|i| model(i).model.as_str()).collect();
            models.sort_unstable();
            models
        };
        assert_eq!(models(gpus), models(part.home_gpus()), "{task}");
        let once: BTreeSet<&GpuIndex> = gpus.iter().collect();
        assert_eq!(once.len(), gpus.len(), "{task} gets a GPU twice");
        assert!(!gpus.iter().any(|i| node.is_fenced(*i)), "{task}: fenced GPU");
        let own = gpus.iter().all(|i| part.home_gpus().contains(i));
        assert!(own || node.facts.can_move, "{task} can't be moved to {gpus:?}");
        assert_eq!(node.link, Link::Up, "{task}");
    }
}

fn check_wakes(state: &State, plan: &Plan) {
    let tasks: BTreeSet<TaskId> = plan.wakes.iter().map(|w| w.task).collect();
    assert_eq!(tasks.len(), plan.wakes.len(), "a task wakes twice");
    for wake in &plan.wakes {
        let parts: Vec<_> = wake.parts.iter().map(|p| (p.node, p.gpus.as_slice())).collect();
        check_back(state, wake.task, &parts);
    }
    for claim in plan.claims.iter().filter(|c| is_suspended(state, c.task)) {
        assert!(!tasks.contains(&claim.task), "{} wakes and waits", claim.task);
        let parts: Vec<_> = claim.parts.iter().map(|p| (p.node, p.gpus.as_slice())).collect();
        check_back(state, claim.task, &parts);
    }
}

/// Nothing is given twice: not now, and not once everybody who is told to stop is gone.
fn check_room(state: &State, plan: &Plan) {
    let alone = |task: TaskId| state.job(task.job).unwrap().spec.exclusive;
    let placed: BTreeSet<TaskId> = plan.placements.iter().map(|p| p.task).collect();
    assert_eq!(placed.len(), plan.placements.len(), "a task is placed twice");
    let mut now = Load::of_leases(state, &|_| false);
    let goes = |task: TaskId| {
        let phase = state.job(task.job).and_then(|j| j.task(task.index)).and_then(Task::attempt);
        let stops = phase.is_some_and(|a| matches!(a.phase, AttemptPhase::Stopping { .. }));
        stops || plan.claims.iter().flat_map(|c| &c.victims).any(|v| v.task == task)
    };
    let mut then = Load::of_leases(state, &goes);
    for p in &plan.placements {
        for part in &p.parts {
            now.add(part, alone(p.task));
            then.add(part, alone(p.task));
        }
    }
    for wake in &plan.wakes {
        for part in woken(state, wake) {
            now.add(&part, false);
            then.add(&part, false);
        }
    }
    let starts =
        |task: &TaskId| placed.contains(task) || plan.wakes.iter().any(|w| w.task == *task);
    let old = state.claims.iter().map(|(task, c)| (*task, c.cause, &c.parts));
    let old = old.filter(|(task, ..)| !plan.dropped.contains(task) && !starts(task));
    let new = plan.claims.iter().map(|c| (c.task, c.cause, &c.parts));
    let mut kept = Load::default();
    for (task, cause, parts) in old.chain(new) {
        for part in parts {
            kept.add(part, alone(task));
            if cause != ClaimCause::Overdue {
                then.add(part, alone(task));
            }
        }
    }
    for claim in &plan.claims {
        for victim in &claim.victims {
            if let Stop::Shrink { keep } = &victim.how {
                keep.iter().for_each(|part| then.add(part, alone(victim.task)));
            }
        }
    }
    for (load, what) in [(now, "now"), (then, "once room is made"), (kept, "by claims alone")] {
        assert_eq!(load.excess(state), None, "{what}: {plan:?}");
    }
}

fn check_rules(state: &State, plan: &Plan) {
    let mut running: BTreeMap<JobId, u32> = BTreeMap::new();
    for task in &state.index.active {
        *running.entry(task.job).or_default() += 1;
    }
    for p in &plan.placements {
        let job = state.job(p.task.job).unwrap();
        check_shape(state, p.task, &p.parts);
        check_rank_order(state, &p.parts);
        assert_eq!(job.task_state(p.task.index), Some(JobState::Pending));
        assert!(!job.held);
        let count = running.entry(job.id).or_default();
        *count += 1;
        let limit = job.spec.array.as_ref().and_then(|a| a.max_running);
        assert!(limit.is_none_or(|most| *count <= most), "{} runs {count}", job.id);
        for part in &p.parts {
            assert!(!is_reserved(state, &state.nodes[&part.node], job, NOW), "{p:?}");
        }
    }
    let asks = |c: &&NewClaim| c.cause != ClaimCause::Resize && !is_suspended(state, c.task);
    for claim in plan.claims.iter().filter(asks) {
        check_shape(state, claim.task, &claim.parts);
        check_rank_order(state, &claim.parts);
    }
    check_limits(state, plan);
}

/// Ranks of one rack, rail and site are neighbours.
fn check_rank_order(state: &State, parts: &[PartPlacement]) {
    let place = |p: &PartPlacement| state.policy.topology.place_of(&state.nodes[&p.node]);
    let places: Vec<Place> = parts.iter().map(place).collect();
    let levels: [fn(&Place) -> Place; 3] = [
        |p| p.clone(),
        |p| Place { rack: None, ..p.clone() },
        |p| Place { rack: None, rail: None, site: p.site.clone() },
    ];
    for level in levels {
        let mut domains: Vec<Place> = places.iter().map(level).collect();
        domains.dedup();
        let different: BTreeSet<&Place> = domains.iter().collect();
        assert_eq!(different.len(), domains.len(), "a domain is left and entered again: {parts:?}");
    }
}

/// No team gets beyond its limit.
fn check_limits(state: &State, plan: &Plan) {
    let under = |task: TaskId, team: &str| {
        state.policy.line_of(&state.job(task.job).unwrap().team).contains(&team)
    };
    for (name, team) in &state.policy.teams {
        let Some(limit) = &team.limit else { continue };
        let placed =
            plan.placements.iter().filter(|p| under(p.task, name)).map(|p| milli(&p.parts));
        let claimed = plan.claims.iter().filter(|c| under(c.task, name));
        let wakes = plan.wakes.iter().filter(|w| under(w.task, name));
        let back = wakes.map(|w| milli(&woken(state, w)));
        let more: u64 = placed.chain(claimed.map(|c| more_milli(state, c))).chain(back).sum();
        let has = team_milli(state, name, &|_| true);
        assert!(more == 0 || has + more <= limit.total() * 1000, "{name}: {has} and {more} more");
    }
}

/// What a claim adds to what its task has already.
fn more_milli(state: &State, claim: &NewClaim) -> u64 {
    let task = state.job(claim.task.job).and_then(|j| j.task(claim.task.index));
    let attempt = task.and_then(Task::attempt).filter(|a| !a.is_suspended());
    let new = |p: &&PartPlacement| attempt.is_none_or(|a| a.part_on(p.node).is_none());
    milli(&claim.parts.iter().filter(new).cloned().collect::<Vec<_>>())
}

/// Whoever is said to wait for room finds none.
fn check_busy(state: &State, plan: &Plan) {
    if plan.placements.len() >= state.policy.placements_max {
        return;
    }
    let mut load = Load::of_leases(state, &|_| false);
    let parts = plan.placements.iter().map(|p| (p.task, &p.parts));
    for (task, parts) in parts {
        let alone = state.job(task.job).unwrap().spec.exclusive;
        parts.iter().for_each(|p| load.add(p, alone));
    }
    for wake in &plan.wakes {
        woken(state, wake).iter().for_each(|p| load.add(p, false));
    }
    for job in state.jobs.values() {
        for task in pending(job) {
            let verdict = crate::verdict(state, plan, task, NOW);
            let Some(Verdict::Busy(_) | Verdict::NodesUnavailable(_)) = verdict else { continue };
            let claimed = claimed_nodes(state, plan);
            let spares = !state.policy.spares.is_empty();
            let may_use = |n: &Node| !claimed.contains(&n.id) && !is_reserved(state, n, job, NOW);
            let fits = !spares && load.fits(state, &Demand::of(&job.spec), &may_use);
            assert!(!fits, "{task} fits: {plan:?}");
        }
    }
}

/// Nodes of which something is kept: for claimants, and for those who shrink for them.
fn claimed_nodes(state: &State, plan: &Plan) -> BTreeSet<NodeId> {
    let kept = plan.claims.iter().flat_map(|c| &c.victims).flat_map(|v| match &v.how {
        Stop::Shrink { keep } => keep.as_slice(),
        Stop::Requeue | Stop::Suspend { .. } => &[],
    });
    let old = state.claims.values().flat_map(|c| &c.parts);
    old.chain(plan.claims.iter().flat_map(|c| &c.parts)).chain(kept).map(|p| p.node).collect()
}

fn pending(job: &Job) -> Vec<TaskId> {
    let indices: Vec<Option<u32>> = match &job.spec.array {
        None => vec![None],
        Some(a) => a.indices.iter().map(Some).collect(),
    };
    let tasks = indices.into_iter().map(|index| TaskId { job: job.id, index });
    tasks.filter(|t| job.task_state(t.index) == Some(JobState::Pending)).collect()
}

fn check_verdicts(state: &State, plan: &Plan) {
    let placed: BTreeSet<TaskId> = plan.placements.iter().map(|p| p.task).collect();
    let full = plan.placements.len() >= state.policy.placements_max;
    for job in state.jobs.values() {
        for task in pending(job) {
            let verdict = crate::verdict(state, plan, task, NOW).expect("a verdict");
            if verdict == Verdict::Next {
                assert!(placed.contains(&task) || full, "{task} waits for no reason");
            }
        }
    }
}

fn check_impossible(state: &State) {
    let mut all = state.clone();
    for node in all.nodes.values_mut() {
        (node.link, node.drain) = (Link::Up, None);
        node.findings.clear();
    }
    for job in state.jobs.values() {
        let d = Demand::of(&job.spec);
        let possible = crate::impossible(state, &d);
        let fits = Load::default().fits(&all, &d, &|_| true);
        assert_eq!(possible.is_ok(), fits, "{possible:?}: {d:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_given_twice_and_every_rule_is_kept(c in any_case()) {
        let (state, plan) = (c.state(), c.plan());
        check_room(&state, &plan);
        check_rules(&state, &plan);
        check_wakes(&state, &plan);
    }

    #[test]
    fn whoever_waits_for_room_finds_none(c in any_case()) {
        let (state, plan) = (c.state(), c.plan());
        check_busy(&state, &plan);
        check_verdicts(&state, &plan);
    }

    #[test]
    fn only_the_impossible_is_refused(c in any_case()) {
        check_impossible(&c.state());
    }

    #[test]
    fn a_pass_gives_the_same_twice(c in any_case()) {
        prop_assert_eq!(c.plan(), c.plan());
    }
}

/// What never comes up is not tested.
#[test]
fn random_cases_know_suspended_tasks_and_broken_gpus() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut asleep, mut woken, mut kept, mut old, mut fenced) = (0, 0, 0, 0, 0);
    for _ in 0..300 {
        let c = any_case().new_tree(&mut runner).unwrap().current();
        let (state, plan) = (c.state(), c.plan());
        asleep += state.index.asleep.len();
        woken += plan.wakes.len();
        kept += plan.claims.iter().filter(|c| is_suspended(&state, c.task)).count();
        old += state.claims.keys().filter(|t| is_suspended(&state, **t)).count();
        fenced += state.nodes.values().filter(|n| !n.findings.is_empty()).count();
    }
    let found = [asleep, woken, kept, old, fenced];
    assert!(found.iter().zip([60, 30, 10, 3, 100]).all(|(n, least)| *n >= least), "{found:?}");
}
