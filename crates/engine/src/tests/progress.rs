//! What ranks report of themselves, as far as it is remembered.

use tutti_model::{
    JobId, JobState, LeaseId, NodeId, Order, PartProgress, PartReport, Rank, RankExit,
    ReportedPhase, SavedPoint, Span, Task, TaskId, Time,
};

use super::world::{World, ada, gang};
use crate::{Actor, Command, Engine, Event, Record, Rejected, Settings};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);

fn saved(step: u64, age: Span) -> PartProgress {
    let path = Some(format!("/ckpt/{step}"));
    let point = SavedPoint { step, at: None, path, save_ms: None, node: None };
    PartProgress { saved: Some(point), saved_age: age, ..PartProgress::default() }
}

/// A node beats, and its part of the lease reports this; the points that were recorded.
fn beat(world: &mut World, node: NodeId, lease: LeaseId, progress: PartProgress) -> Vec<Record> {
    let mut parts: Vec<PartReport> = world.reports_of(node);
    let part = parts.iter_mut().find(|p| p.lease == lease).expect("it runs there");
    part.progress = Some(Box::new(progress));
    let step = world.beat(node, parts);
    step.records.into_iter().filter(|r| matches!(r.event, Event::Saved { .. })).collect()
}

fn task(world: &World, job: JobId) -> &Task {
    world.engine.state().job(job).unwrap().task(None).unwrap()
}

fn step_of(world: &World, job: JobId) -> Option<u64> {
    task(world, job).past().saved.as_ref().map(|s| s.step)
}

#[test]
fn each_checkpoint_is_recorded_once_whoever_repeats_it() {
    let mut world = World::new(&[2, 2]);
    let job = world.submit(gang(2, 2));
    let lease = world.run(job);
    world.wait(60, &[]);
    let now = world.now;
    let records = beat(&mut world, N1, lease, saved(100, Span::secs(20)));
    let at = Some(Time(now.0 - 20_000));
    let (path, node) = (Some("/ckpt/100".into()), Some("n1".into()));
    let point = SavedPoint { step: 100, at, path, save_ms: None, node };
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].event, Event::Saved { lease, point: Some(point.clone()) });
    assert_eq!(task(&world, job).past().saved, Some(point));
    let attempt = task(&world, job).attempt().unwrap();
    assert_eq!(attempt.saved_at, at, "when it was saved, not when that was heard");
    // The same again, from either node, and what the other node has from before.
    assert_eq!(beat(&mut world, N1, lease, saved(100, Span::secs(21))), []);
    assert_eq!(beat(&mut world, N2, lease, saved(100, Span::secs(21))), []);
    assert_eq!(beat(&mut world, N2, lease, saved(90, Span::secs(40))), []);
    assert_eq!(beat(&mut world, N2, lease, saved(110, Span(0))).len(), 1);
    assert_eq!(step_of(&world, job), Some(110));
}

#[test]
fn the_next_attempt_knows_where_to_go_on() {
    let mut world = World::new(&[2, 2]);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    let home = world.nodes_of(job)[0];
    beat(&mut world, home, lease, saved(100, Span(0)));
    world.gone(home);
    world.wait(20, &[home]);
    assert_eq!(world.state_of(job), JobState::Starting);
    let orders = world.take_orders();
    let launch = orders.iter().rev().find_map(|(_, order)| match order {
        Order::Start(launch) => Some(launch),
        _ => None,
    });
    let launch = launch.expect("it starts again");
    assert_eq!(launch.saved.as_ref().map(|s| s.step), Some(100));
    let again = world.run(job);
    assert_ne!(lease, again);
    // It could not read the last one, and went on from an older.
    let node = world.nodes_of(job)[0];
    assert_eq!(beat(&mut world, node, again, saved(95, Span(0))).len(), 1);
    assert_eq!(step_of(&world, job), Some(95));
    let attempt = task(&world, job).attempt().unwrap();
    assert_eq!(attempt.saved.as_ref().map(|s| s.step), Some(95));
}

#[test]
fn checkpoints_are_remembered_a_few_and_can_be_registered() {
    let mut world = World::new(&[2]);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    for step in 1..=20 {
        beat(&mut world, N1, lease, saved(step, Span(0)));
    }
    let steps = |world: &World| -> Vec<u64> {
        task(world, job).past().points.iter().map(|p| p.step).collect()
    };
    assert_eq!(steps(&world), (5..=20).collect::<Vec<_>>());
    let id = TaskId::single(job);
    let mut register = |step, path: &str| {
        let path = path.to_owned();
        world.step(Command::Register { actor: ada(), task: id, step, path }).reply
    };
    assert!(matches!(register(30, "here"), Err(Rejected::BadSpec { key: "path", .. })));
    register(30, "/elsewhere/30").unwrap();
    register(7, "s3://bucket/7").unwrap();
    register(7, "s3://bucket/7").unwrap();
    assert_eq!(step_of(&world, job), Some(30), "the newest is where a restart goes on");
    assert_eq!(steps(&world)[14..], [30, 7], "a step is there once");
    assert!(task(&world, job).attempt().unwrap().advanced);
    beat(&mut world, N1, lease, saved(21, Span(0)));
    assert_eq!(step_of(&world, job), Some(30), "what was registered is further");
    beat(&mut world, N1, lease, saved(31, Span(0)));
    assert_eq!(step_of(&world, job), Some(31));
    let bob = Actor { user: "bob".into(), role: tutti_model::Role::User };
    let refused =
        world.step(Command::Register { actor: bob, task: id, step: 1, path: "/x".into() }).reply;
    assert!(matches!(refused, Err(Rejected::NotYours { .. })), "{refused:?}");
}

#[test]
fn a_point_survives_the_journal_and_an_old_record_has_none() {
    let mut world = World::new(&[2]);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    let before = world.engine.state().clone();
    let records = beat(&mut world, N1, lease, saved(7, Span(0)));
    let text = serde_json::to_string(&records[0]).unwrap();
    let mut engine = Engine::restore(before, Settings::default());
    engine.replay(&serde_json::from_str::<Record>(&text).unwrap());
    assert_eq!(engine.state().job(job), world.engine.state().job(job));
    let old = serde_json::json!({ "event": "saved", "lease": lease });
    let old: Event = serde_json::from_value(old).unwrap();
    assert_eq!(old, Event::Saved { lease, point: None });
}

#[test]
fn what_is_not_current_is_not_believed() {
    let mut world = World::new(&[2]);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    let stale = LeaseId { generation: tutti_model::Generation(0), ..lease };
    let mut parts = world.reports_of(N1);
    let phase = parts[0].phase.clone();
    let progress = Some(Box::new(saved(5, Span(0))));
    parts.push(PartReport { progress, ..PartReport::new(stale, phase) });
    world.beat(N1, parts);
    assert_eq!(step_of(&world, job), None);
    assert_eq!(world.lease(TaskId::single(job)), lease);
}

#[test]
fn output_that_is_in_no_log_is_counted_once_and_stays_with_the_job() {
    let mut world = World::new(&[2, 2]);
    let job = world.submit(gang(2, 2));
    let lease = world.run(job);
    let report = |rank: u32, bytes: u64| {
        let status = tutti_model::ExitStatus::Code(0);
        let exits = vec![RankExit { rank: Rank(rank), status, at: Time(1) }];
        let phase = ReportedPhase::Done { exits, error: None };
        PartReport { output_dropped: bytes, ..PartReport::new(lease, phase) }
    };
    world.report_all(N1, report(0, 100));
    world.report_all(N1, report(0, 100));
    assert_eq!(task(&world, job).past().output_dropped, 100);
    world.report_all(N2, report(1, 23));
    assert_eq!(world.state_of(job), JobState::Completed);
    let ended = world.engine.state().job(job).unwrap().ended(None).unwrap();
    assert_eq!(ended.output_dropped, 123);
}
