use proptest::prelude::*;
use tutti_model::*;

use super::Lookout;
use crate::testing::random::any_case;
use crate::testing::world::World;
use crate::testing::*;

/// What blocks a task, a word each, and until how many seconds from now.
fn blockers(c: &Case, task: &str) -> Vec<String> {
    let until = |b: &Blocker| match b.until {
        Some(at) => format!(" {}s", at.since(NOW).0 / 1000),
        None => String::new(),
    };
    let found = c.explain(task).blockers;
    found.iter().map(|b| format!("{}{}", word(&b.what), until(b))).collect()
}

fn word(what: &Obstacle) -> String {
    match what {
        Obstacle::Reservation { name, nodes, .. } => format!("{name} on {nodes}"),
        Obstacle::KeptFor { task, gpus, .. } => format!("{gpus} kept for {task}"),
        Obstacle::LeftAlone { task, gpus, .. } => format!("{gpus} left to {task}"),
        Obstacle::Busy { nodes, gpus } => format!("{gpus} busy on {nodes}"),
        Obstacle::TeamLimit { team, .. } => format!("limit of {team}"),
        other => kind(other),
    }
}

/// The name of the kind alone.
fn kind(what: &Obstacle) -> String {
    let text = format!("{what:?}");
    text.split(' ').next().unwrap().to_owned()
}

fn reserve(nodes: &[u32], team: Option<&str>, name: &str, until: u64) -> Reservation {
    Reservation {
        name: name.to_owned(),
        nodes: nodes.iter().map(|n| format!("n{n}")).collect(),
        from: Time(NOW.0 - 1000),
        until: Time(NOW.0 + until * 1000),
        team: team.map(str::to_owned),
    }
}

/// A borrower that was preempted before has the whole cluster; its owner asks for its guarantee.
fn spared() -> Case {
    case()
        .nodes(1, 4)
        .policy(|p| p.preemption.not_again_within = Span::secs(600))
        .team("own", |t| t.guarantee = quota(4))
        .team("lent", |_| {})
        .running(team("lent", gpus(4)), &[(1, &[0, 1, 2, 3])])
        .change_task(|t| t.preempted_at = Some(Time(NOW.0 - 60_000)))
        .submit(team("own", gpus(4)))
}

/// The report that came in: ten minutes of "too few GPUs free", and no word of the reason.
#[test]
fn a_job_under_its_guarantee_is_told_who_is_left_alone_and_until_when() {
    let c = spared();
    assert_eq!(c.claimed(), "", "not yet");
    assert_eq!(blockers(&c, "2"), ["4 left to 1 590s"]);
    let e = c.explain("2");
    let [Blocker { until: Some(until), .. }] = e.blockers[..] else { panic!("{e:?}") };
    let then = crate::plan(&c.state(), &c.policy, until);
    assert_eq!(then.claims.len(), 1, "what it was told is true: {then:?}");
    let words = crate::describe_all(&e.verdict, &e.blockers);
    assert!(
        words.ends_with("; also job 1 was preempted before and may not be again yet"),
        "{words}"
    );
    let told = crate::tell_blockers(&e.blockers, &|at| format!("{}s", at.since(NOW).0 / 1000));
    assert_eq!(
        told,
        [
            "job 1 has 4 GPUs that it may take, but was preempted before and is left alone until 590s \
          (not_again_within)"
        ]
    );
}

#[test]
fn who_has_no_right_to_them_is_told_that_they_are_busy() {
    let c = spared().submit(team("lent", gpus(4)));
    assert_eq!(blockers(&c, "3"), ["4 busy on 1"]);
    let off = spared().policy(|p| p.preemption.enabled = false);
    assert_eq!(blockers(&off, "2"), ["4 busy on 1"]);
}

/// Something else blocks as well: each is named, and what ends last comes first.
#[test]
fn maintenance_kept_gpus_and_tenants_are_all_named() {
    let hour = Span::secs(3600);
    let c = case()
        .nodes(3, 4)
        .running(time(hour, gpus(4)), &[(1, &[0, 1, 2, 3])])
        .submit(gpus(4))
        .claim("2", ClaimCause::Overdue, &[(2, &[0, 1, 2, 3])])
        .running(gpus(2), &[(2, &[0, 1])])
        .policy(|p| p.reservations = vec![reserve(&[2, 3], None, "power work", 7200)])
        .submit(gpus(4));
    let found = blockers(&c, "4");
    assert_eq!(found, ["2 kept for 2", "power work on 2 7200s", "6 busy on 2 3590s"]);
    let e = c.explain("4");
    let words = crate::describe_all(&e.verdict, &e.blockers);
    for want in ["nodes are reserved (power work)", "; also 2 GPUs kept for job 2"] {
        assert!(words.contains(want), "{words}");
    }
    // It is over before that begins.
    let later = c.policy(|p| p.reservations[0].from = Time(NOW.0 + 7_000_000));
    let short = later.submit(time(Span::secs(60), gpus(4)));
    assert!(!blockers(&short, "5").iter().any(|b| b.contains("power work")));
}

/// What is kept and still in use is counted with those who have it, and what is kept and free is not
/// busy: no GPU and no node twice.
#[test]
fn what_is_kept_is_counted_once() {
    let taken = case().nodes(2, 8).running(gang(2, 8), &[(1, ALL), (2, ALL)]).submit(gang(2, 8));
    let taken = taken.claim("2", ClaimCause::Class, &[(1, ALL), (2, ALL)]).submit(gpus(8));
    assert_eq!(blockers(&taken, "3"), ["0 kept for 2", "16 busy on 2"]);
    let words = crate::tell_blockers(&taken.explain("3").blockers, &|_| String::new());
    assert!(words[0].starts_with("2 nodes kept for job 2"), "{words:?}");

    let free = case().nodes(2, 8).running(gpus(8), &[(2, ALL)]).submit(gang(2, 8));
    let free = free.claim("2", ClaimCause::Class, &[(1, ALL), (2, ALL)]).submit(gpus(8));
    assert_eq!(blockers(&free, "3"), ["8 kept for 2", "8 busy on 1"]);
    let (state, plan) = (free.state(), free.plan());
    let in_a_list = Lookout::new(&state, NOW).look(&state, &plan, "3".parse().unwrap()).unwrap();
    let words = crate::describe_all(&in_a_list.verdict, &in_a_list.blockers);
    assert!(words.contains("(1 busy, 1 kept for others)"), "{words}");
    assert_eq!(in_a_list.verdict, free.explain("3").verdict);
}

/// A gang that would run into it can't count on a node that is reserved, however free that is now.
#[test]
fn a_node_under_coming_maintenance_does_not_fit() {
    let coming = |p: &mut Policy| {
        p.reservations = vec![reserve(&[3], None, "power work", 7200)];
        p.reservations[0].from = Time(NOW.0 + 60_000);
    };
    let c = case().nodes(3, 8).running(gpus(8), &[(1, ALL)]).policy(coming);
    let c = c.submit(time(Span::secs(3600), gang(3, 8)));
    let verdict = c.explain("2").verdict;
    let Verdict::Busy(s) = &verdict else { panic!("{verdict:?}") };
    assert_eq!((s.nodes_fitting, s.gpus_free), (1, 8), "{s:?}");
    assert_eq!((s.blocked.gpus_busy, s.blocked.reserved), (1, 1), "{s:?}");
    let by_gpus = c.submit(time(Span::secs(3600), total(24)));
    let verdict = by_gpus.explain("3").verdict;
    let Verdict::Busy(s) = &verdict else { panic!("{verdict:?}") };
    assert_eq!((s.nodes_fitting, s.gpus_free, s.best_domain), (1, 8, 8), "{s:?}");
    // One that is over before that begins can have it.
    let short = by_gpus.submit(time(Span::secs(30), gang(3, 8)));
    let Verdict::Busy(s) = short.explain("4").verdict else { panic!("busy") };
    assert_eq!((s.nodes_fitting, s.blocked.reserved), (2, 0), "{s:?}");
}

#[test]
fn who_is_held_or_at_a_limit_learns_what_comes_after_that() {
    let full = || {
        case()
            .nodes(1, 2)
            .team("a", |t| t.limit = Some(quota(1)))
            .running(team("a", gpus(1)), &[(1, &[0])])
            .running(gpus(1), &[(1, &[1])])
    };
    let held = full().submit(JobSpec { hold: true, ..team("a", gpus(1)) });
    assert_eq!(blockers(&held, "3"), ["limit of a", "2 busy on 1", "Held"]);
    let behind = full().submit(after("1", team("a", gpus(1))));
    assert_eq!(blockers(&behind, "3"), ["limit of a", "2 busy on 1", "Dependency"]);
    let own = full().policy(|p| p.reservations = vec![reserve(&[1], Some("a"), "ours", 60)]);
    let own = own.submit(team("a", gpus(1)));
    assert_eq!(blockers(&own, "3"), ["limit of a", "2 busy on 1"], "it is its own");
}

#[test]
fn nodes_that_take_no_work_and_fences_are_named() {
    let c = case().nodes(4, 2).drain(1).lose(2).fence(3, 0).running(gpus(1), &[(4, &[0])]);
    let found = blockers(&c.submit(gpus(2)), "2");
    assert_eq!(found, ["1 busy on 1", "Draining", "Away", "Fenced"]);
    let spare = case().nodes(1, 2).policy(|p| {
        p.spares = vec![Spare { per: Topology::Rack, nodes: 1 }];
    });
    assert_eq!(blockers(&spare.submit(gpus(1)), "1"), ["Spares"]);
}

/// What waits for nothing has no blockers, and one that has enough room is not told of busy nodes.
#[test]
fn only_what_holds_is_named() {
    let c = case().nodes(2, 2).running(gpus(2), &[(1, &[0, 1])]);
    let c = c.submit(JobSpec { hold: true, ..gpus(2) });
    assert_eq!(blockers(&c, "2"), ["Held"]);
    let total = case().nodes(2, 4).running(gpus(3), &[(1, &[0, 1, 2])]).submit(total(6));
    assert_eq!(blockers(&total, "2"), ["3 busy on 1"], "a node that gives less than it could");
}

/// Carries plans out until there is nothing more to do at this moment.
fn settle(mut c: Case) -> (State, Plan) {
    c.policy.placements_max = 4096;
    let mut world = World::new(&c);
    for _ in 0..8 {
        let plan = world.pass();
        if plan.placements.is_empty()
            && plan.wakes.is_empty()
            && plan.dropped.is_empty()
            && plan.claims.is_empty()
        {
            break;
        }
    }
    let plan = crate::plan(&world.state, &world.state.policy, NOW);
    (world.state, plan)
}

fn pending(job: &Job) -> Vec<TaskId> {
    let live = job.live_tasks().filter(|(_, t)| t.state() == JobState::Pending).map(|(id, _)| id);
    let rest = match &job.tasks {
        Tasks::Array(array) => array.waiting.first().map(|i| TaskId::of_array(job.id, i)),
        Tasks::One(_) => None,
    };
    live.chain(rest).collect()
}

/// The state without these blockers, and without anybody else who waits: whose turn it is is not
/// what they are about.
fn without(state: &State, task: TaskId, blockers: &[Blocker]) -> State {
    let mut state = state.clone();
    let mut policy = Policy::clone(&state.policy);
    let named = |test: fn(&Obstacle) -> bool| blockers.iter().any(|b| test(&b.what));
    let mut gone: Vec<TaskId> = Vec::new();
    for b in blockers {
        match &b.what {
            Obstacle::Reservation { name, .. } => policy.reservations.retain(|r| r.name != *name),
            Obstacle::KeptFor { task, .. } => drop(state.claims.remove(task)),
            Obstacle::LeftAlone { task, .. } => gone.push(*task),
            Obstacle::TeamLimit { team, .. } => policy.teams.get_mut(team).unwrap().limit = None,
            Obstacle::Spares { .. } => policy.spares.clear(),
            _ => {}
        }
    }
    if named(|w| matches!(w, Obstacle::Busy { .. })) {
        let left = |id: &&TaskId| left_alone_as_named(blockers, **id).is_none();
        gone.extend(state.index.active.iter().filter(left));
    }
    for node in state.nodes.values_mut() {
        if named(|w| matches!(w, Obstacle::Away { .. })) {
            (node.link, node.stale) = (Link::Up, Default::default());
        }
        if named(|w| matches!(w, Obstacle::Draining { .. })) {
            node.drain = None;
        }
        if named(|w| matches!(w, Obstacle::Fenced { .. })) {
            node.findings.clear();
        }
    }
    for id in gone {
        let job = state.jobs_mut(id.job).unwrap();
        task_mut(job, id.index).phase = Phase::Pending { since: NOW, not_before: Time(u64::MAX) };
    }
    let (unheld, free) = (
        named(|w| matches!(w, Obstacle::Held)),
        named(|w| matches!(w, Obstacle::ArrayLimit { .. })),
    );
    let claims: Vec<JobId> = state.claims.keys().map(|t| t.job).collect();
    let ids: Vec<JobId> = state.jobs.keys().copied().collect();
    for id in ids {
        let job = state.jobs_mut(id).unwrap();
        for_each_asleep(job, |pause| pause.stays = true);
        if id != task.job {
            job.held = job.held || !claims.contains(&id);
            if let Tasks::Array(array) = &mut job.tasks {
                array.waiting = Default::default();
            }
            continue;
        }
        job.held &= !unheld;
        let mut spec = JobSpec::clone(&job.spec);
        spec.array.iter_mut().filter(|_| free).for_each(|a| a.max_running = None);
        job.spec = spec.into();
        if named(|w| matches!(w, Obstacle::BackOff))
            && let Phase::Pending { not_before, .. } = &mut task_mut(job, task.index).phase
        {
            *not_before = Time(0);
        }
    }
    state.policy = policy.into();
    reindex(&mut state);
    state
}

fn left_alone_as_named(blockers: &[Blocker], id: TaskId) -> Option<Time> {
    let named = |b: &&Blocker| matches!(b.what, Obstacle::LeftAlone { task, .. } if task == id);
    blockers.iter().find(named)?.until
}

fn for_each_asleep(job: &mut Job, mut with: impl FnMut(&mut Pause)) {
    let tasks: Vec<&mut Task> = match &mut job.tasks {
        Tasks::One(task) => vec![task],
        Tasks::Array(array) => array.live.values_mut().collect(),
    };
    for attempt in tasks.into_iter().filter_map(Task::attempt_mut) {
        if let AttemptPhase::Suspended { pause, .. } = &mut attempt.phase {
            with(pause);
        }
    }
}

/// Some of those that run were preempted before, some nodes are reserved, and room is kept.
fn any_blocked() -> impl Strategy<Value = Case> {
    let reserved =
        prop::collection::vec((1..6u32, 0..4u64, 0..5u64, prop::option::of(0..3usize)), 0..3);
    let spared = prop::collection::vec(any::<bool>(), 8);
    (any_case(), reserved, spared, 0..1200u64).prop_map(|(mut c, reserved, spared, window)| {
        c.policy.preemption.not_again_within = Span::secs(window);
        for (i, (node, from, lasts, team)) in reserved.into_iter().enumerate() {
            let from = Time(NOW.0 + from * 3_600_000 - 1_800_000);
            c.policy.reservations.push(Reservation {
                name: format!("r{i}"),
                nodes: [format!("n{node}")].into(),
                from,
                until: from.plus(Span::secs(1800 + 3600 * lasts)),
                team: team.map(|t| ["a", "b", "default"][t].to_owned()),
            });
        }
        let active = c.state().index.active;
        for (id, spared) in active.iter().zip(spared) {
            let job = c.state.jobs_mut(id.job).unwrap();
            task_mut(job, id.index).preempted_at = spared.then_some(Time(NOW.0 - 60_000));
        }
        c
    })
}

/// Each is about something that is there.
fn check_sound(state: &State, blockers: &[Blocker]) {
    for b in blockers {
        let fine = match &b.what {
            Obstacle::Reservation { name, nodes, .. } => {
                let r = state.policy.reservations.iter().find(|r| r.name == *name).unwrap();
                *nodes > 0 && Some(r.until) == b.until && r.until > NOW
            }
            Obstacle::KeptFor { task, nodes, .. } => state.claims.contains_key(task) && *nodes > 0,
            Obstacle::LeftAlone { task, .. } => {
                let task = state.job(task.job).unwrap().task(task.index).unwrap();
                task.preempted_at.is_some() && b.until.is_some_and(|at| at >= NOW)
            }
            Obstacle::TeamLimit { team, limit, used, .. } => {
                state.policy.teams[team].limit.is_some() && used <= limit
            }
            Obstacle::Busy { nodes, .. }
            | Obstacle::Draining { nodes }
            | Obstacle::Away { nodes }
            | Obstacle::Fenced { nodes }
            | Obstacle::Spares { nodes } => *nodes as usize <= state.nodes.len() && *nodes > 0,
            _ => true,
        };
        assert!(fine, "{b:?}");
    }
    let ends: Vec<_> = blockers.iter().map(|b| b.until.map_or(u64::MAX, |t| t.0)).collect();
    assert!(ends.is_sorted_by(|a, b| a >= b), "what ends last is not first: {blockers:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Everything that holds is named: without what is named, the task starts.
    #[test]
    fn without_its_blockers_a_task_starts(c in any_blocked()) {
        let (state, plan) = settle(c);
        let mut look = Lookout::new(&state, NOW);
        for task in state.jobs.values().flat_map(|job| pending(job)) {
            let verdict = crate::verdict(&state, &plan, task, NOW);
            let makes_room = plan.claims.iter().any(|claim| claim.task == task);
            if makes_room || matches!(verdict, None | Some(Verdict::Claimed { .. } | Verdict::Next)) {
                continue;
            }
            if crate::impossible(&state, &Demand::of(&state.job(task.job).unwrap().spec)).is_err() {
                continue;
            }
            let found = look.look(&state, &plan, task).map(|o| o.blockers).unwrap_or_default();
            prop_assert!(!found.is_empty(), "{} waits for no reason: {:?}", task, verdict);
            check_sound(&state, &found);
            let free = without(&state, task, &found);
            let starts = crate::plan(&free, &free.policy, NOW);
            // For whom something is kept elsewhere may have taken it: that is a matter of turns.
            let placed = starts.placements.iter().map(|p| p.task.job);
            let claimed = starts.claims.iter().map(|claim| claim.task.job);
            let overtaken = placed.chain(claimed).any(|job| job != task.job);
            let started = overtaken
                || starts.placements.iter().any(|p| p.task.job == task.job)
                || starts.claims.iter().any(|claim| claim.task.job == task.job);
            prop_assert!(started, "{} is told of {:?}, but waits on: {:?}", task, found,
                crate::verdict(&free, &starts, task, NOW));
        }
    }

    /// A list is told what a single question is.
    #[test]
    fn many_are_told_what_one_is(c in any_blocked()) {
        let (state, plan) = (c.state(), c.plan());
        let mut all = Lookout::new(&state, NOW);
        for task in state.jobs.values().flat_map(|job| pending(job)) {
            let alone = Lookout::new(&state, NOW).look(&state, &plan, task);
            prop_assert_eq!(all.look(&state, &plan, task), alone);
        }
    }
}

/// What never comes up is not tested.
#[test]
fn random_cases_know_every_kind() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut seen: std::collections::BTreeMap<String, u32> = Default::default();
    for _ in 0..400 {
        let (state, plan) = settle(any_blocked().new_tree(&mut runner).unwrap().current());
        let mut look = Lookout::new(&state, NOW);
        for task in state.jobs.values().flat_map(|job| pending(job)) {
            for b in look.look(&state, &plan, task).map(|o| o.blockers).unwrap_or_default() {
                *seen.entry(kind(&b.what)).or_default() += 1;
            }
        }
    }
    for kind in [
        "Reservation",
        "KeptFor",
        "LeftAlone",
        "Busy",
        "TeamLimit",
        "ArrayLimit",
        "Held",
        "Draining",
        "Away",
        "Fenced",
        "Spares",
        "BackOff",
    ] {
        assert!(seen.get(kind).is_some_and(|n| *n >= 3), "{kind} in {seen:?}");
    }
}
