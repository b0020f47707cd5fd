//! Jobs that change after they were submitted.

use tutti_model::{
    Bytes, DefaultTimeOf, ExitStatus, Job, JobId, JobSpec, JobState, JobUpdate, NodeId, Order,
    Priority, Role, Span, State, TaskId, Team,
};

use super::world::{World, ada, admin, gang};
use crate::{Actor, Command, Rejected, Reply};

const N1: NodeId = NodeId(1);

fn update(
    world: &mut World,
    actor: Actor,
    job: JobId,
    update: JobUpdate,
) -> Result<Reply, Rejected> {
    world.step(Command::Update { actor, job, update: Box::new(update) }).reply
}

fn nothing() -> JobUpdate {
    JobUpdate::default()
}

#[test]
fn what_waits_can_change_in_every_way() {
    let mut world = World::new(&[8]);
    let busy = world.submit(gang(1, 8));
    let job = world.submit(gang(1, 8));
    let all = JobUpdate {
        name: Some("better".into()),
        time: Some(Span::secs(60)),
        priority: Some(Priority::LOW),
        team: Some("vision".into()),
        gpus_per_node: Some("2".parse().unwrap()),
        after: Some(vec![format!("any:{busy}").parse().unwrap()]),
        ..nothing()
    };
    assert_eq!(update(&mut world, ada(), job, all), Ok(Reply::Done));
    let changed = world.engine.state().job(job).unwrap();
    assert_eq!(changed.spec.display_name(), "better");
    assert_eq!((changed.priority, changed.team.as_str()), (Priority::LOW, "vision"));
    assert_eq!(changed.spec.gpus_per_node.as_ref().unwrap().count, 2);
    // It now waits for the other, which frees its GPUs when it ends.
    let lease = world.run(busy);
    world.done(N1, lease, &[(0, ExitStatus::Code(0))]);
    assert_eq!(world.state_of(job), JobState::Starting);
    // And is stopped when its new time is over.
    world.run(job);
    world.wait(59, &[]);
    assert_eq!(world.state_of(job), JobState::Running);
    world.wait(1, &[]);
    assert_eq!(world.state_of(job), JobState::Stopping);
}

#[test]
fn smaller_jobs_start_at_once() {
    let mut world = World::new(&[8]);
    let busy = world.submit(gang(1, 6));
    world.run(busy);
    let job = world.submit(gang(1, 4));
    assert_eq!(world.state_of(job), JobState::Pending);
    let less = JobUpdate { gpus_per_node: Some("2".parse().unwrap()), ..nothing() };
    update(&mut world, ada(), job, less).unwrap();
    assert_eq!(world.state_of(job), JobState::Starting);
}

#[test]
fn what_others_go_by_stays_once_it_has_started() {
    let mut world = World::new(&[8]);
    let job = world.submit(JobSpec { time: Some(Span::secs(100)), ..gang(1, 1) });
    world.run(job);
    world.wait(10, &[]);
    for (key, change) in [
        ("gpus", JobUpdate { gpus: Some(4), ..nothing() }),
        ("gpus_per_node", JobUpdate { gpus_per_node: Some("4".parse().unwrap()), ..nothing() }),
        ("nodes", JobUpdate { nodes: Some(2), ..nothing() }),
        ("team", JobUpdate { team: Some("b".into()), ..nothing() }),
        ("class", JobUpdate { class: Some("scavenger".into()), ..nothing() }),
        ("after", JobUpdate { after: Some(Vec::new()), ..nothing() }),
    ] {
        let refused = update(&mut world, admin(), job, change);
        assert_eq!(refused, Err(Rejected::CantUpdate { job, key, why: "it runs" }));
    }
    // Sooner by its owner, later by an admin alone, and never before now.
    let time = |secs| JobUpdate { time: Some(Span::secs(secs)), ..nothing() };
    assert!(update(&mut world, ada(), job, time(50)).is_ok());
    for longer in [time(60), JobUpdate { no_time: true, ..nothing() }] {
        let refused = update(&mut world, ada(), job, longer.clone());
        assert!(matches!(refused, Err(Rejected::BadSpec { key: "time", .. })), "{refused:?}");
        assert!(update(&mut world, admin(), job, longer).is_ok());
    }
    let refused = update(&mut world, admin(), job, time(5));
    assert!(matches!(refused, Err(Rejected::BadSpec { key: "time", .. })), "{refused:?}");
    assert_eq!(world.state_of(job), JobState::Running);
    assert!(update(&mut world, ada(), job, time(11)).is_ok());
    world.wait(1, &[]);
    assert_eq!(world.state_of(job), JobState::Stopping, "the new limit counts");
}

#[test]
fn only_who_may_changes_it_and_nothing_changes_by_half() {
    let mut world = World::new(&[8]);
    let job = world.submit(JobSpec { hold: true, ..gang(1, 1) });
    let bob = Actor { user: "bob".into(), role: Role::User };
    let named = || JobUpdate { name: Some("x".into()), ..nothing() };
    let refused = update(&mut world, bob, job, named());
    assert!(matches!(refused, Err(Rejected::NotYours { .. })), "{refused:?}");
    assert!(update(&mut world, ada(), job, nothing()).is_err(), "nothing is no change");
    // A jump in the queue is not for its owner, so the name stays, too.
    let jump = JobUpdate { priority: Some(Priority::HIGH), ..named() };
    assert!(matches!(update(&mut world, ada(), job, jump), Err(Rejected::RoleTooLow { .. })));
    assert_ne!(world.engine.state().job(job).unwrap().spec.display_name(), "x");
    let impossible = JobUpdate { nodes: Some(9), ..nothing() };
    assert!(matches!(update(&mut world, ada(), job, impossible), Err(Rejected::Impossible(_))));
    // Released with a new name in one go.
    update(&mut world, ada(), job, JobUpdate { hold: Some(false), ..named() }).unwrap();
    assert_eq!(world.state_of(job), JobState::Starting);
    let gone = update(&mut world, ada(), JobId(99), named());
    assert_eq!(gone, Err(Rejected::NoSuchJob(JobId(99))));
}

#[test]
fn nobody_waits_in_circles() {
    let mut world = World::new(&[8]);
    let first = world.submit(JobSpec { hold: true, ..gang(1, 1) });
    let after = |job: JobId| vec![format!("ok:{job}").parse().unwrap()];
    let second = world.submit(JobSpec { after: after(first), ..gang(1, 1) });
    let third = world.submit(JobSpec { after: after(second), ..gang(1, 1) });
    let circle = JobUpdate { after: Some(after(third)), ..nothing() };
    assert_eq!(update(&mut world, ada(), first, circle), Err(Rejected::DependencyCycle(first)));
    // A job that is freed of what it waited for starts.
    let free = JobUpdate { after: Some(Vec::new()), ..nothing() };
    update(&mut world, ada(), third, free).unwrap();
    assert_eq!(world.state_of(third), JobState::Starting);
}

#[test]
fn killing_leaves_no_time_and_outranks_a_cancel() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 8));
    let lease = world.run(job);
    let target = TaskId::single(job);
    world.step(Command::Cancel { actor: ada(), target }).reply.unwrap();
    world.take_orders();
    world.step(Command::Kill { actor: ada(), target }).reply.unwrap();
    let stop = Order::Stop { lease, grace: Span(0), signal: None };
    assert_eq!(world.take_orders(), [(N1, stop)]);
    assert_eq!(world.state_of(job), JobState::Stopping);
}

/// A change is a small record, whatever the job carries.
#[test]
fn a_change_is_told_without_the_spec_and_old_records_load() {
    let mut world = World::new(&[8]);
    let mut spec = JobSpec { hold: true, ..gang(1, 1) };
    spec.env.insert("BIG".into(), "x".repeat(100_000));
    let job = world.submit(spec);
    let change = JobUpdate { name: Some("y".into()), ..nothing() };
    let step = world.step(Command::Update { actor: ada(), job, update: Box::new(change) });
    let text = serde_json::to_string(&step.records).unwrap();
    assert!(text.len() < 500, "{text}");
    let back: Vec<crate::Record> = serde_json::from_str(&text).unwrap();
    assert_eq!(back, step.records);
    let old = r#"{"cause":"cancelled","by":"ada"}"#;
    let old: tutti_model::StopCause = serde_json::from_str(old).unwrap();
    assert_eq!(old, tutti_model::StopCause::Cancelled { by: "ada".into(), at_once: false });
}

/// What a submission could not have, a change does not get.
#[test]
fn a_change_is_bounded_as_a_submission_is() {
    let mut world = World::new(&[8]);
    let first = world.submit(JobSpec { hold: true, ..gang(1, 1) });
    let job = world.submit(JobSpec { hold: true, ..gang(1, 1) });
    let after = |n: usize| JobUpdate {
        after: Some(vec![format!("any:{first}").parse().unwrap(); n]),
        ..nothing()
    };
    let refused = update(&mut world, ada(), job, after(1001)).unwrap_err();
    assert!(refused.to_string().contains("names 1001 jobs"), "{refused}");
    let used = world.engine.state().index.spec_bytes.users["ada"].bytes;
    world.set_policy(|p| {
        p.submissions.job_bytes = Bytes(1024);
        p.submissions.user_bytes = Bytes(used + 1024);
    });
    update(&mut world, ada(), job, after(1)).unwrap();
    let refused = update(&mut world, ada(), job, after(1000)).unwrap_err();
    assert!(matches!(refused, Rejected::TooManySpecBytes { .. }), "{refused}");
    // The same again is no more than it has.
    update(&mut world, ada(), job, after(2)).unwrap();
    update(&mut world, ada(), job, after(2)).unwrap();
}

/// Its nodes are kept for it by then, and others were told for how long.
#[test]
fn a_job_that_is_being_started_is_not_made_longer_by_its_owner() {
    let mut world = World::new(&[8]);
    let job = world.submit(JobSpec { time: Some(Span::secs(600)), ..gang(1, 8) });
    assert_eq!(world.state_of(job), JobState::Starting);
    let longer = || JobUpdate { no_time: true, ..nothing() };
    assert!(update(&mut world, ada(), job, longer()).is_err());
    assert!(update(&mut world, admin(), job, longer()).is_ok());
}

fn limit_of(world: &World, job: JobId) -> (Option<Span>, Option<DefaultTimeOf>) {
    let spec = &world.engine.state().job(job).unwrap().spec;
    (spec.time, spec.default_time_of.clone())
}

/// Who moves a job to a team or a class gets its default, as who submits it there.
#[test]
fn a_job_that_moves_has_the_default_time_of_where_it_goes() {
    let mut world = World::new(&[8]);
    let team = |hours: Option<u64>| Team {
        default_time: hours.map(|h| Span::secs(h * 3600)),
        members: ["ada".to_owned()].into(),
        ..Team::default()
    };
    world.set_policy(|p| {
        let teams = [("long", team(Some(100))), ("short", team(Some(1))), ("free", team(None))];
        p.teams = teams.map(|(name, team)| (name.to_owned(), team)).into();
        p.classes.get_mut("scavenger").unwrap().default_time = Some(Span::secs(60));
    });
    let to = |team: &str| JobUpdate { team: Some(team.into()), ..nothing() };
    let of = |team: &str| Some(DefaultTimeOf::Team { team: team.into() });
    let hours = |h: u64| Some(Span::secs(h * 3600));
    let held = || JobSpec { hold: true, team: Some("long".into()), ..gang(1, 1) };
    let job = world.submit(held());
    assert_eq!(limit_of(&world, job), (hours(100), of("long")));
    update(&mut world, ada(), job, to("short")).unwrap();
    assert_eq!(limit_of(&world, job), (hours(1), of("short")));
    update(&mut world, ada(), job, to("free")).unwrap();
    assert_eq!(limit_of(&world, job), (None, None));
    let class = JobUpdate { class: Some("scavenger".into()), ..nothing() };
    update(&mut world, ada(), job, class.clone()).unwrap();
    let of_class = Some(DefaultTimeOf::Class { class: "scavenger".into() });
    assert_eq!(limit_of(&world, job), (Some(Span::secs(60)), of_class));
    // From a team without a limit into one that has one, and none that only an admin may have.
    let free = world.submit(JobSpec { team: Some("free".into()), ..held() });
    let none = JobUpdate { no_time: true, ..to("short") };
    let refused = update(&mut world, ada(), free, none.clone());
    assert!(matches!(refused, Err(Rejected::BadSpec { key: "time", .. })), "{refused:?}");
    update(&mut world, ada(), free, to("short")).unwrap();
    assert_eq!(limit_of(&world, free), (hours(1), of("short")));
    update(&mut world, admin(), free, none).unwrap();
    assert_eq!(limit_of(&world, free), (None, None));
    // Its own limit is its own, given before or with the change.
    let own = world.submit(JobSpec { time: hours(7), ..held() });
    update(&mut world, ada(), own, to("short")).unwrap();
    assert_eq!(limit_of(&world, own), (hours(7), None));
    update(&mut world, ada(), own, JobUpdate { time: hours(8), ..to("long") }).unwrap();
    update(&mut world, ada(), own, class).unwrap();
    assert_eq!(limit_of(&world, own), (hours(8), None));
}

/// The answer to the first one was lost, and meanwhile somebody changed the job.
#[test]
fn a_submission_that_is_repeated_after_a_change_gets_its_job() {
    let mut world = World::new(&[8]);
    world.set_policy(|p| p.default_time = Some(Span::secs(3600)));
    let mut spec = JobSpec { hold: true, ..gang(1, 1) };
    spec.env.insert("BIG".into(), "x".repeat(100_000));
    let job = world.submit_with_key(spec.clone(), Some("k")).unwrap();
    let changes = [
        JobUpdate { name: Some("other".into()), ..nothing() },
        JobUpdate { gpus: Some(2), time: Some(Span::secs(60)), ..nothing() },
    ];
    for change in changes {
        update(&mut world, ada(), job, change.clone()).unwrap();
        assert_eq!(world.submit_with_key(spec.clone(), Some("k")), Ok(job), "{change:?}");
        // What it has become was never submitted.
        let now = (*world.engine.state().job(job).unwrap().spec).clone();
        assert_eq!(world.submit_with_key(now, Some("k")), Err(Rejected::KeyReused(job)));
    }
    // Also out of a snapshot, and when it is over and its texts are cut.
    let snapshot = crate::packed_state(world.engine.state().clone());
    let written = serde_json::to_string(&snapshot.jobs[&job]).unwrap();
    assert_eq!(serde_json::from_str::<Job>(&written).unwrap(), *snapshot.jobs[&job]);
    world.engine = crate::Engine::restore(snapshot, crate::Settings::default());
    assert_eq!(world.submit_with_key(spec.clone(), Some("k")), Ok(job));
    world.step(Command::Cancel { actor: ada(), target: TaskId::single(job) }).reply.unwrap();
    assert_eq!(world.submit_with_key(spec, Some("k")), Ok(job));
}

/// What was learned of a size is of jobs that have it.
#[test]
fn a_job_of_another_size_leaves_no_ghost_among_those_it_was_like() {
    let mut world = World::new(&[8]);
    let jobs: Vec<JobId> =
        (0..3).map(|_| world.submit(JobSpec { hold: true, ..gang(1, 1) })).collect();
    let big = world.submit(JobSpec { hold: true, ..gang(1, 8) });
    let more = JobUpdate { gpus_per_node: Some("8".parse().unwrap()), ..nothing() };
    update(&mut world, ada(), jobs[1], more).unwrap();
    let state = world.engine.state();
    let times = |state: &State| {
        let text = format!("{:?}", state.learned.service);
        text.matches(&format!("job: {:?},", jobs[1])).count()
    };
    assert_eq!(times(state), 1);
    let ranks = |job: JobId| state.job(job).unwrap().rank;
    assert!(ranks(jobs[1]) > ranks(jobs[2]), "eight times the size goes later");
    // The first of its new kin leads them.
    assert!(ranks(jobs[1]) <= ranks(big));
    let none = JobUpdate { gpus_per_node: Some("0".parse().unwrap()), ..nothing() };
    update(&mut world, ada(), jobs[1], none).unwrap();
    let state = world.engine.state();
    assert_eq!(times(state), 0);
    assert_eq!(state.job(jobs[1]).unwrap().rank, 0, "work without GPUs is not ranked");
}

/// An operator's lower bounds are for what comes: what is there can still be named, moved and ended.
#[test]
fn a_change_is_judged_by_what_it_changes() {
    let mut world = World::new(&[8]);
    let mut spec = JobSpec { hold: true, ..gang(1, 1) };
    spec.env.insert("BIG".into(), "x".repeat(3_000));
    let job = world.submit(spec.clone());
    world.set_policy(|p| {
        p.submissions.job_bytes = Bytes(1024);
        p.submissions.user_bytes = Bytes(2048);
    });
    assert!(world.try_submit(spec).is_err(), "no such job is taken any more");
    let time = JobUpdate { time: Some(Span::secs(60)), ..nothing() };
    update(&mut world, ada(), job, time).unwrap();
    let smaller = JobUpdate { nodes: Some(1), after: Some(Vec::new()), ..nothing() };
    update(&mut world, ada(), job, smaller).unwrap();
    // More than it has is more than there may be.
    let named = |n: usize| JobUpdate { name: Some("x".repeat(n)), ..nothing() };
    let refused = update(&mut world, ada(), job, named(100)).unwrap_err();
    assert!(matches!(refused, Rejected::TooManySpecBytes { .. }), "{refused}");
    // And every change is judged, whatever else is wrong.
    for (key, change) in [
        ("name", named(201)),
        ("team", JobUpdate { team: Some("a\nb".into()), ..nothing() }),
        ("time", JobUpdate { time: Some(Span(0)), ..nothing() }),
        ("nodes", JobUpdate { nodes: Some(0), ..nothing() }),
        (
            "gpus_per_node",
            JobUpdate { gpus_per_node: Some("h100:0".parse().unwrap()), ..nothing() },
        ),
    ] {
        let refused = update(&mut world, ada(), job, change);
        assert!(
            matches!(refused, Err(Rejected::BadSpec { key: k, .. }) if k == key),
            "{refused:?}"
        );
    }
}
