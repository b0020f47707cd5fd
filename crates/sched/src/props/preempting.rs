//! Who is stopped for whom: enough, no more than enough, the cheapest, and never in vain.

use proptest::collection::vec;
use proptest::sample::select;

use super::*;
use crate::testing::world::World;

fn class_rank(state: &State, task: TaskId) -> i32 {
    let job = state.job(task.job).unwrap();
    state.policy.class_rank(job.class())
}

/// Every victim may be stopped, and without any one of them the claimant would not fit.
fn check_claims(state: &State, plan: &Plan) {
    let made = |c: &NewClaim| matches!(c.cause, ClaimCause::Class | ClaimCause::Guarantee);
    for (at, claim) in plan.claims.iter().enumerate().filter(|(_, c)| made(c)) {
        for victim in &claim.victims {
            let (own, other) = (class_rank(state, claim.task), class_rank(state, victim.task));
            let lower = if claim.cause == ClaimCause::Class { other < own } else { other <= own };
            assert!(lower, "{claim:?}");
            check_needed(state, plan, at, victim);
        }
    }
    let stopped: Vec<TaskId> =
        plan.claims.iter().flat_map(|c| &c.victims).map(|v| v.task).collect();
    let once: BTreeSet<&TaskId> = stopped.iter().collect();
    assert_eq!(once.len(), stopped.len(), "stopped twice: {stopped:?}");
}

/// Claims are made one after another: those that came later are nothing to this one.
fn check_needed(state: &State, plan: &Plan, at: usize, needed: &Victim) {
    let (claim, before) = (&plan.claims[at], &plan.claims[..at]);
    let told = || plan.claims[..=at].iter().flat_map(|c| &c.victims);
    let told = || told().filter(|v| v.task != needed.task);
    let goes = |task: TaskId| told().any(|v| v.task == task);
    let mut load = Load::of_leases(state, &goes);
    let alone = |task: TaskId| state.job(task.job).unwrap().spec.exclusive;
    for p in &plan.placements {
        p.parts.iter().for_each(|part| load.add(part, alone(p.task)));
    }
    for wake in &plan.wakes {
        woken(state, wake).iter().for_each(|part| load.add(part, false));
    }
    for (task, old) in state.claims.iter().filter(|(task, _)| !plan.dropped.contains(task)) {
        old.parts.iter().for_each(|part| load.add(part, alone(*task)));
    }
    for other in before {
        other.parts.iter().for_each(|part| load.add(part, alone(other.task)));
    }
    for victim in told() {
        if let Stop::Shrink { keep } = &victim.how {
            keep.iter().for_each(|part| load.add(part, alone(victim.task)));
        }
    }
    let job = state.job(claim.task.job).unwrap();
    let may_use = |n: &Node| !is_reserved(state, n, job, NOW);
    let fits = load.excess(state).is_none()
        && load.fits(state, &Demand::of(&job.spec), &may_use)
        && state.policy.spares.is_empty();
    assert!(!fits, "{} need not stop for {claim:?}", needed.task);
}

/// Once the victims are gone, the claimant starts where it was told.
fn check_follow_up(c: &Case) {
    let mut world = World::new(c);
    let plan = world.pass();
    world.wait_until(NOW.plus(world.grace));
    let after = world.pass();
    for claim in plan.claims.iter().filter(|c| c.cause != ClaimCause::Overdue) {
        let started = after.placements.iter().find(|p| p.task == claim.task);
        let parts = started.map(|p| &p.parts);
        assert_eq!(parts, Some(&claim.parts), "{claim:?}\n{after:?}");
    }
}

#[derive(Clone, Debug)]
struct Runner {
    nodes: Vec<u32>,
    gpus: u32,
    minutes: u64,
    saves: bool,
}

fn any_runner() -> impl Strategy<Value = Runner> {
    let nodes = prop_oneof![3 => vec(1..4u32, 1), 1 => Just(vec![1, 2]), 1 => Just(vec![2, 3])];
    (nodes, 1..4u32, 0..50u64, prop::bool::weighted(0.2))
        .prop_map(|(nodes, gpus, minutes, saves)| Runner { nodes, gpus, minutes, saves })
}

/// Scavengers that run, on three nodes of four GPUs, and an urgent job.
fn any_raid() -> impl Strategy<Value = Case> {
    let claimant =
        prop_oneof![(1..4u32, 1..5u32).prop_map(|(n, g)| gang(n, g)), (1..12u32).prop_map(total),];
    (vec(any_runner(), 1..8), claimant).prop_map(|(runners, claimant)| {
        let mut c = case().nodes(3, 4);
        let mut free: BTreeMap<u32, Vec<u16>> = (1..4).map(|n| (n, (0..4).collect())).collect();
        for runner in runners {
            if runner.nodes.iter().any(|n| free[n].len() < runner.gpus as usize) {
                continue;
            }
            let cards: Vec<(u32, Vec<u16>)> = runner
                .nodes
                .iter()
                .map(|n| (*n, free.get_mut(n).unwrap().drain(..runner.gpus as usize).collect()))
                .collect();
            let parts: Vec<(u32, &[u16])> = cards.iter().map(|(n, g)| (*n, g.as_slice())).collect();
            let spec = gang(parts.len() as u32, runner.gpus);
            let save = Checkpoint {
                dir: "/c".to_owned(),
                signal: Some("USR1".to_owned()),
                grace: Some(Span::secs(60)),
            };
            let spec = JobSpec { checkpoint: runner.saves.then_some(save), ..spec };
            let since = Time(NOW.0 - 60_000 * runner.minutes);
            c = c.running(class("scavenger", spec), &parts).change_task(|task| {
                let attempt = task.attempt_mut().unwrap();
                (attempt.placed_at, attempt.phase) = (since, AttemptPhase::Running { since });
            });
        }
        c.submit(class("urgent", claimant))
    })
}

/// What stopping each running task costs, from its spec.
fn costs(state: &State) -> Vec<(TaskId, u64)> {
    let cost = |id: &TaskId| {
        let job = state.job(id.job).unwrap();
        let attempt = job.task(id.index).unwrap().attempt().unwrap();
        let ran = NOW.since(attempt.running_since(NOW).unwrap()).0;
        let lost = if job.spec.checkpoint.is_some() { 60_000 } else { ran };
        (*id, lost * u64::from(attempt.gpu_count()))
    };
    state.index.active.iter().map(cost).collect()
}

/// The least that any set costs which makes the job fit.
fn least_cost(state: &State, job: &Job) -> Option<u64> {
    let costs = costs(state);
    let sets = 0..1u32 << costs.len();
    let fits = |set: &u32| {
        let stopped = |id: TaskId| {
            costs.iter().enumerate().any(|(n, (task, _))| *task == id && set & (1 << n) != 0)
        };
        Load::of_leases(state, &stopped).fits(state, &Demand::of(&job.spec), &|_| true)
    };
    let cost = |set: u32| {
        let of_set = costs.iter().enumerate().filter(|(n, _)| set & (1 << n) != 0);
        of_set.map(|(_, (_, cost))| cost).sum()
    };
    sets.filter(fits).map(cost).min()
}

/// A borrower fills the cluster, and a team asks for what it is guaranteed.
fn any_reclaim() -> impl Strategy<Value = Case> {
    let sizes = (vec((1..3u32, 1..5u32), 0..8), vec((1..3u32, 1..5u32), 1..5));
    (sizes, 1..12u32, select(vec![0u32, 2, 4])).prop_map(|((lent, asked), lend, own)| {
        let mut c = case().nodes(3, 4).team("a", |t| t.guarantee = quota(lend));
        c = c.team("b", |t| t.guarantee = quota(own));
        for (nodes, each) in lent {
            c = c.submit(team("b", gang(nodes, each)));
        }
        let mut world = World::new(&c);
        world.pass();
        world.look();
        c.state = State { ledger: c.state.ledger.clone(), ..world.state };
        for (nodes, each) in asked {
            c = c.submit(team("a", gang(nodes, each)));
        }
        c
    })
}

/// After the plan, no team below its guarantee waits for something that borrowers hold.
fn check_guarantees(c: &Case) {
    let (state, plan) = (c.state(), c.plan());
    let placed: BTreeSet<TaskId> = plan.placements.iter().map(|p| p.task).collect();
    let claimed: BTreeSet<TaskId> = plan.claims.iter().map(|c| c.task).collect();
    let of_a = |task: &TaskId| state.job(task.job).unwrap().team == "a";
    let given = plan.placements.iter().map(|p| (p.task, &p.parts));
    let given = given.chain(plan.claims.iter().map(|c| (c.task, &c.parts)));
    let has = team_milli(&state, "a", &|_| true)
        + given.filter(|(task, _)| of_a(task)).map(|(_, parts)| milli(parts)).sum::<u64>();
    let guarantee = u64::from(state.policy.teams["a"].guarantee.any) * 1000;
    let own = state.policy.teams["b"].guarantee.any;
    for job in state.jobs.values().filter(|j| j.team == "a") {
        let task = TaskId::single(job.id);
        let waits = job.task_state(None) == Some(JobState::Pending)
            && !placed.contains(&task)
            && !claimed.contains(&task);
        let d = Demand::of(&job.spec);
        if !waits || has + d.total_gpus() * 1000 > guarantee || own > 0 {
            continue;
        }
        let b = |id: TaskId| state.job(id.job).unwrap().team == "b";
        let mut load = Load::of_leases(&state, &b);
        let others = plan.placements.iter().map(|p| &p.parts);
        let others = others.chain(plan.claims.iter().map(|c| &c.parts));
        others.flatten().for_each(|part| load.add(part, false));
        assert!(!load.fits(&state, &d, &|_| true), "{task} waits for what was lent: {plan:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_victim_is_in_vain(c in any_case()) {
        check_claims(&c.state(), &c.plan());
    }

    #[test]
    fn every_preemption_is_followed_by_the_start_it_was_for(c in any_case()) {
        check_follow_up(&c);
    }

    #[test]
    fn the_victims_are_the_cheapest_there_are(c in any_raid()) {
        let (state, plan) = (c.state(), c.plan());
        check_room(&state, &plan);
        let job = state.jobs.values().last().unwrap();
        let fits_now = plan.placements.iter().any(|p| p.task.job == job.id);
        let claim = plan.claims.iter().find(|c| c.task.job == job.id);
        let cost = claim.map(|c| c.victims.iter().map(|v| v.cost).sum::<u64>());
        let least = least_cost(&state, job);
        prop_assert_eq!(cost.or(fits_now.then_some(0)), least);
    }

    #[test]
    fn guarantees_are_met_in_one_pass(c in any_reclaim()) {
        check_guarantees(&c);
        check_claims(&c.state(), &c.plan());
        check_follow_up(&c);
    }
}
