//! What comes true over time: promised starts, shares, and that nobody waits for ever.

use proptest::collection::vec;

use super::*;
use crate::testing::world::World;
use crate::{Scheduler, plan};

const MINUTE: u64 = 60_000;

/// GPUs on how many nodes, minutes, and how many minutes after the last one it comes.
type Small = (u32, u32, u64, u64);

fn any_small() -> impl Strategy<Value = Small> {
    (1..3u32, 1..5u32, 1..90u64, 0..20u64)
}

fn limited((nodes, gpus, minutes, _): Small) -> (JobSpec, Option<Span>) {
    let run = Span(minutes * MINUTE);
    (time(run, gang(nodes, gpus)), Some(run))
}

/// Small jobs fill the cluster, a large one comes, and small ones of lower order go on coming.
fn check_promise(before: Vec<Small>, large: (u32, u32), after: Vec<Small>, heads: usize) {
    let mut world = World::new(&case().nodes(3, 4).policy(|p| p.reserved_heads = heads));
    for small in before {
        let (spec, run) = limited(small);
        world.submit("ada", spec, run);
        world.pass();
    }
    let (spec, run) = limited((large.0, large.1, 30, 0));
    let head = world.submit("ada", priority(10, spec), run);
    let mut promised: Option<Time> = None;
    let mut note = |plan: &Plan| {
        let found = plan.heads.iter().find(|h| h.task == head).and_then(|h| h.starts_by);
        promised = promised.or(found);
        if let (Some(new), Some(old)) = (found, promised) {
            assert!(new <= old, "promised {old:?}, and then {new:?}");
        }
    };
    note(&world.pass());
    for small in after {
        let next = Time(world.now.0 + small.3 * MINUTE);
        while let Some(at) = world.next_event().filter(|at| *at < next) {
            world.wait_until(at);
            note(&world.pass());
        }
        world.wait_until(next);
        let (spec, run) = limited(small);
        world.submit("ada", spec, run);
        note(&world.pass());
    }
    while let Some(at) = world.next_event() {
        world.wait_until(at);
        note(&world.pass());
    }
    let started = world.starts.get(&head).map(|times| times[0]);
    assert!(started.is_some(), "it never started");
    assert!(promised.is_none() || started <= promised, "{started:?} after {promised:?}");
}

/// Every team always has something waiting; what each had is integrated over time.
fn shares_of(weights: &[u32], sizes: &[Small]) -> Vec<f64> {
    let name = |team: usize| format!("t{team}");
    let mut c = case().nodes(4, 8).policy(|p| p.half_life = Span::secs(86_400));
    for (team, weight) in weights.iter().enumerate() {
        c = c.team(&name(team), |t| t.weight = weight * 1000);
    }
    let mut world = World::new(&c);
    let mut had = vec![0u64; weights.len()];
    let mut next = (0..weights.len()).map(|_| sizes.iter().cycle().copied()).collect::<Vec<_>>();
    let mut started = 0;
    while started < 2500 {
        for (team, next) in next.iter_mut().enumerate() {
            let jobs = world.state.jobs.values().filter(|j| j.team == name(team));
            let waiting = jobs.filter(|j| j.task_state(None) == Some(JobState::Pending)).count();
            for small in next.take(3usize.saturating_sub(waiting)) {
                let (spec, run) = limited((1, small.1, small.2, 0));
                world.submit("ada", crate::testing::team(&name(team), spec), run);
            }
        }
        started += world.pass().placements.len();
        let then = world.next_event().expect("something runs");
        let span = then.since(world.now).0;
        // The first part fills an empty cluster, and is not the long run.
        if started > 500 {
            for (team, had) in had.iter_mut().enumerate() {
                *had += team_milli(&world.state, &name(team), &|_| true) * span;
            }
        }
        world.wait_until(then);
    }
    let all: u64 = had.iter().sum();
    had.iter().map(|had| *had as f64 / all as f64).collect()
}

fn check_shares(weights: &[u32], sizes: &[Small]) {
    let all: u32 = weights.iter().sum();
    let shares = shares_of(weights, sizes);
    for (weight, share) in weights.iter().zip(&shares) {
        let due = f64::from(*weight) / f64::from(all);
        assert!((share - due).abs() < 0.02, "{shares:?} for {weights:?}");
    }
}

/// One change to a state, as the engine would make it and tell.
fn change(state: &mut State, scheduler: &mut Scheduler, what: (u8, u32, u32)) {
    let (kind, which, amount) = what;
    let nodes: Vec<NodeId> = state.nodes.keys().copied().collect();
    let Some(&node) = nodes.get(which as usize % nodes.len().max(1)) else { return };
    let active: Vec<TaskId> = state.index.active.iter().copied().collect();
    let victim = active.get(which as usize % active.len().max(1)).copied();
    match (kind, victim) {
        (0, _) => {
            state.nodes.get_mut(&node).unwrap().link = Link::Lost { since: NOW };
            scheduler.touch(node);
        }
        (1, _) => {
            let node = state.nodes.get_mut(&node).unwrap();
            (node.link, node.drain) = (Link::Up, None);
            scheduler.touch(node.id);
        }
        (2 | 3, Some(id)) => {
            let job = state.jobs_mut(id.job).unwrap();
            let task = task_mut(job, id.index);
            let parts: Vec<NodeId> = task.attempt().unwrap().parts.iter().map(|p| p.node).collect();
            task.phase = Phase::Pending { since: NOW, not_before: Time(0) };
            parts.into_iter().for_each(|node| scheduler.touch(node));
        }
        _ => {
            state.next_job += 1;
            let id = JobId(state.next_job);
            let spec = gang(1 + amount % 2, amount % 4);
            let job = Job {
                id,
                user: "ada".to_owned(),
                team: "a".to_owned(),
                submitted_at: NOW,
                priority: Priority(0),
                held: false,
                rank: 0,
                replica_of: None,
                texts: TextRefs::default(),
                cut: TextRefs::default(),
                asked: None,
                spec: std::sync::Arc::new(spec),
                tasks: Tasks::One(Task::pending(NOW)),
            };
            state.jobs.insert(id, std::sync::Arc::new(job));
        }
    }
}

/// A plan is carried out or not; either way the next pass sees the state alone.
fn check_memory(c: &Case, changes: Vec<((u8, u32, u32), bool)>) {
    let mut world = World::new(c);
    let mut scheduler = Scheduler::default();
    for (what, carried_out) in changes {
        change(&mut world.state, &mut scheduler, what);
        world.look();
        let kept = scheduler.plan(&world.state, world.now);
        let fresh = plan(&world.state, &world.state.policy.clone(), world.now);
        assert_eq!(kept, fresh);
        if carried_out {
            let claims = world.state.claims.clone();
            world.carry_out(&kept);
            let stopped = kept.claims.iter().flat_map(|c| &c.victims).map(|v| v.task);
            for id in stopped {
                let attempt = world.state.job(id.job).and_then(|j| j.task(id.index));
                let parts = attempt.and_then(Task::attempt).into_iter().flat_map(|a| &a.parts);
                parts.for_each(|p| scheduler.touch(p.node));
            }
            let all = claims.values().chain(world.state.claims.values()).flat_map(|c| &c.parts);
            all.for_each(|p| scheduler.touch(p.node));
        }
    }
}

/// Small jobs that never stop coming and say nothing of their time, until this task has started.
fn flood(world: &mut World, user: &str, small: impl Fn(u32) -> JobSpec, large: TaskId) {
    let one_more = |world: &mut World, n: u64| {
        let takes = Span::secs(60 + n * 37 % 540);
        world.submit(user, small(1 + (n % 2) as u32), Some(takes));
    };
    let bound = Time(world.now.0 + world.state.policy.patience.0 + 2 * 600_000);
    for n in 0.. {
        world.pass();
        if world.starts.contains_key(&large) || world.now > bound {
            break;
        }
        let at = world.next_event().unwrap_or(bound);
        world.wait_until(at);
        one_more(world, n);
        one_more(world, n + 7);
    }
    assert!(world.starts.contains_key(&large), "still waits at {:?}", world.now);
}

fn busy_world(c: &Case, user: &str, small: impl Fn(u32) -> JobSpec) -> World {
    let mut world = World::new(c);
    for n in 0..40u64 {
        world.submit(user, small(1 + (n % 2) as u32), Some(Span::secs(60 + n * 37 % 540)));
    }
    world.pass();
    world
}

/// A gang that needs everything starts after its patience and what runs then.
#[test]
fn nobody_starves() {
    let mut world = busy_world(&case().nodes(4, 4), "ada", gpus);
    let large = world.submit("ada", gang(4, 4), Some(Span::secs(600)));
    flood(&mut world, "ada", gpus, large);
}

/// Another job that waits for ever, for a card that is never given back, changes nothing.
#[test]
fn nobody_starves_behind_one_without_hope() {
    let small = |n| model(gpus(n), "h100");
    let c = case().nodes(4, 4).node(|_| {}, &["a100"]);
    let c = c.running(model(gpus(1), "a100"), &[(5, &[0])]);
    let mut world = busy_world(&c, "ada", small);
    world.submit("ada", priority(1, model(gpus(1), "a100")), None);
    let large = world.submit("ada", model(gang(4, 4), "h100"), Some(Span::secs(600)));
    flood(&mut world, "ada", small, large);
}

/// Nor does a limit that smaller jobs of the team use up again and again.
#[test]
fn nobody_starves_under_a_limit() {
    let small = |n| team("t", gpus(n));
    let c = case().nodes(4, 4).team("t", |t| t.limit = Some(quota(4)));
    let mut world = busy_world(&c, "bob", small);
    let large = world.submit("ada", team("t", gpus(4)), Some(Span::secs(600)));
    flood(&mut world, "bob", small, large);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_head_is_never_delayed(
        before in vec(any_small(), 0..8),
        large in (1..4u32, 1..5u32),
        after in vec(any_small(), 0..15),
        heads in 1..3usize,
    ) {
        check_promise(before, large, after, heads);
    }

    #[test]
    fn what_is_remembered_changes_no_plan(
        c in any_case(),
        changes in vec(((0..6u8, 0..20u32, 0..20u32), prop::bool::ANY), 1..8),
    ) {
        check_memory(&c, changes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    #[test]
    fn shares_follow_the_weights(
        weights in vec(1..5u32, 2..4),
        sizes in vec(any_small(), 5..12),
    ) {
        check_shares(&weights, &sizes);
    }
}
