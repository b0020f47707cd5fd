//! What an alert may do to a job.

use tutti_model::{
    EndReason, ExitStatus, JobId, JobState, LeaseId, NodeId, Order, OwnTerms, PartProgress,
    PartReport, Rank, RankProgress, ReportedPhase, Retry, Span, StopCause, TaskId, WatchAction,
    WatchRule,
};

use super::world::{World, gang};
use crate::{Command, Rejected, Reply};

const N1: NodeId = NodeId(1);
const TEXT: &str = "all of its 2 GPUs do nothing (under 3% busy)";

fn intervene(world: &mut World, lease: LeaseId, again: bool) -> Reply {
    let LeaseId { task, generation } = lease;
    let (rule, text) = (WatchRule::Idle, TEXT.to_owned());
    let generation = Some(generation);
    let step = world.step(Command::Intervene { task, generation, rule, text, again });
    step.reply.unwrap()
}

fn reason(world: &World, job: JobId) -> EndReason {
    world.engine.state().job(job).unwrap().ended(None).unwrap().reason.clone()
}

#[test]
fn a_job_that_is_killed_by_an_alert_may_save_and_does_not_come_back() {
    let mut world = World::new(&[2]);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    world.take_orders();
    assert_eq!(intervene(&mut world, lease, false), Reply::Tasks(1));
    let orders = world.take_orders();
    assert!(matches!(orders.as_slice(), [(N1, Order::Stop { .. })]), "{orders:?}");
    // Said once more, it changes nothing.
    assert_eq!(intervene(&mut world, lease, false), Reply::Tasks(0));
    world.done(N1, lease, &[(0, ExitStatus::Code(0))]);
    assert_eq!(world.state_of(job), JobState::Failed);
    assert_eq!(
        reason(&world, job),
        EndReason::Watched { rule: WatchRule::Idle, text: TEXT.into() }
    );
}

#[test]
fn one_that_is_requeued_pays_and_is_not_requeued_for_ever() {
    let mut world = World::new(&[2]);
    let retry = Retry { node_failure: 1, ..Retry::default() };
    let job = world.submit(tutti_model::JobSpec { retry, ..gang(1, 2) });
    let first = world.run(job);
    assert_eq!(intervene(&mut world, first, true), Reply::Tasks(1));
    world.done(N1, first, &[(0, ExitStatus::Signal(15))]);
    let task = world.engine.state().job(job).unwrap().task(None).unwrap();
    let why = task.past().stopped.as_deref().cloned();
    assert!(matches!(why, Some(StopCause::Watched { again: true, .. })), "{why:?}");
    let second = world.run(job);
    assert_ne!(first.generation, second.generation);
    // An alert about the attempt before does nothing to this one.
    assert_eq!(intervene(&mut world, first, true), Reply::Tasks(0));
    assert_eq!(intervene(&mut world, second, true), Reply::Tasks(1));
    world.done(N1, second, &[(0, ExitStatus::Signal(15))]);
    assert_eq!(world.state_of(job), JobState::Failed);
    assert!(matches!(reason(&world, job), EndReason::Watched { rule: WatchRule::Idle, .. }));
}

#[test]
fn one_that_waits_to_fail_again_is_given_up() {
    let mut world = World::new(&[2]);
    let retry = Retry { job_failure: 9, ..Retry::default() };
    let job = world.submit(tutti_model::JobSpec { retry, ..gang(1, 2) });
    let lease = world.run(job);
    world.done(N1, lease, &[(0, ExitStatus::Code(1))]);
    assert_eq!(world.state_of(job), JobState::Pending);
    let command = |again| Command::Intervene {
        task: TaskId::single(job),
        generation: None,
        rule: WatchRule::CrashLoop,
        text: "failed once".into(),
        again,
    };
    assert_eq!(world.step(command(true)).reply, Ok(Reply::Tasks(0)), "it is on its way anyway");
    assert_eq!(world.step(command(false)).reply, Ok(Reply::Tasks(1)));
    assert_eq!(world.state_of(job), JobState::Failed);
}

fn patient(world: &mut World) -> JobId {
    let retry = Retry { job_failure: 9, ..Retry::default() };
    world.submit(tutti_model::JobSpec { retry, ..gang(1, 2) })
}

fn says_step(world: &mut World, lease: LeaseId, step: u64) {
    let (rank, age) = (Rank(0), Span(0));
    let rank = RankProgress { rank, step, loss: None, tokens: None, age, pace: None };
    let progress = Some(Box::new(PartProgress { ranks: vec![rank], ..PartProgress::default() }));
    let phase = ReportedPhase::Running { exits: Vec::new() };
    world.report_all(N1, PartReport { progress, ..PartReport::new(lease, phase) });
}

/// Longer than the back-off of the first failures.
fn fails(world: &mut World, lease: LeaseId) {
    world.done(N1, lease, &[(0, ExitStatus::Code(1))]);
    world.wait(5, &[]);
}

fn gets_further(world: &World, job: JobId) -> bool {
    world.engine.gets_further(TaskId::single(job), world.now)
}

fn fruitless(world: &World, job: JobId) -> u32 {
    world.engine.state().job(job).and_then(|j| j.task(None)).unwrap().past().fruitless
}

#[test]
fn a_silent_job_that_lasts_gets_further_before_it_ends() {
    let mut world = World::new(&[2]);
    let job = patient(&mut world);
    for _ in 0..2 {
        let lease = world.run(job);
        assert!(!gets_further(&world, job));
        fails(&mut world, lease);
    }
    let lease = world.run(job);
    world.wait(59, &[]);
    assert!(!gets_further(&world, job));
    assert_eq!(fruitless(&world, job), 2);
    world.wait(1, &[]);
    assert!(gets_further(&world, job));
    assert_eq!(fruitless(&world, job), 2, "that is counted when it ends");
    fails(&mut world, lease);
    assert_eq!(fruitless(&world, job), 0, "and then it is as was said");
}

#[test]
fn a_job_with_steps_gets_further_by_one_that_it_never_made() {
    let mut world = World::new(&[2]);
    let job = patient(&mut world);
    let lease = world.run(job);
    says_step(&mut world, lease, 10);
    assert!(gets_further(&world, job));
    fails(&mut world, lease);
    let lease = world.run(job);
    says_step(&mut world, lease, 10);
    assert!(!gets_further(&world, job), "it was there before");
    says_step(&mut world, lease, 11);
    assert!(gets_further(&world, job));
    assert!(!world.engine.gets_further(TaskId::single(JobId(99)), world.now));
}

#[test]
fn a_job_that_asks_for_nonsense_is_refused() {
    let mut world = World::new(&[2]);
    let limit = Some("14d".parse().unwrap());
    let idle = OwnTerms { limit, action: Some(WatchAction::Kill), ..OwnTerms::default() };
    let mut spec = gang(1, 1);
    spec.watch = Some(Box::new(tutti_model::JobWatch { idle: Some(idle), ..Default::default() }));
    let refused = world.try_submit(spec).unwrap_err();
    let Rejected::BadSpec { key: "watch", problem } = refused else { panic!("{refused:?}") };
    assert_eq!(problem, "idle.limit is a share such as 3%, not 14d");
}
