//! Jobs that change after they were submitted.

use tutti_model::{
    Bytes, ExitStatus, JobId, JobSpec, JobState, JobUpdate, NodeId, Order, Priority, Role, Span,
    TaskId,
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
