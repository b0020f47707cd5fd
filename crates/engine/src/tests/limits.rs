//! Nodes know how long a job may run, and stop it then if the controller is away.

use tutti_model::{
    Blame, EndReason, ExitStatus, JobSpec, JobState, LeaseId, LimitReport, NodeId, Order, Outcome,
    PartError, PartReport, ReportedPhase, Span, TaskId, TimeLimit,
};

use super::world::{World, facts, gang};
use crate::Command;

const N1: NodeId = NodeId(1);

fn limited(seconds: u64) -> JobSpec {
    let mut spec = gang(1, 1);
    spec.time = Some(Span::secs(seconds));
    spec.grace = Some(Span::secs(7));
    spec
}

/// A node that keeps limits, and a job of a minute that runs there.
fn running() -> (World, LeaseId) {
    let mut world = World::new(&[]);
    let facts = tutti_model::NodeFacts { keeps_limits: true, ..facts("n1", 4) };
    world.join(facts);
    let job = world.submit(limited(60));
    let limits: Vec<_> = world.take_orders().into_iter().filter_map(start).collect();
    let left = TimeLimit { left: Span::secs(60), grace: Span::secs(7), signal: None };
    assert_eq!(limits, [Some(left)]);
    let lease = world.run(job);
    (world, lease)
}

fn start((_, order): (NodeId, Order)) -> Option<Option<TimeLimit>> {
    match order {
        Order::Start(launch) => Some(launch.limit),
        _ => None,
    }
}

fn report(lease: LeaseId, limit: Option<LimitReport>, phase: ReportedPhase) -> PartReport {
    PartReport { limit, ..PartReport::new(lease, phase) }
}

fn runs() -> ReportedPhase {
    ReportedPhase::Running { exits: Vec::new() }
}

fn left(seconds: u64) -> Option<LimitReport> {
    Some(LimitReport::Left { left: Span::secs(seconds) })
}

/// What a node that says this of the limit is told.
fn corrected(world: &mut World, lease: LeaseId, limit: Option<LimitReport>) -> Option<Span> {
    world.take_orders();
    world.beat(N1, vec![report(lease, limit, runs())]);
    world.take_orders().into_iter().find_map(|(_, order)| match order {
        Order::Limit { limit, .. } => Some(limit.map_or(Span(u64::MAX), |limit| limit.left)),
        _ => None,
    })
}

#[test]
fn what_its_node_stopped_in_our_absence_ran_out_of_time() {
    let (mut world, lease) = running();
    world.gone(N1);
    world.now.0 += 70_000;
    let exits = vec![world.exit(0, ExitStatus::Signal(15))];
    let done = ReportedPhase::Done { exits, error: None };
    let facts = tutti_model::NodeFacts { keeps_limits: true, ..facts("n1", 4) };
    world.join_with(facts, vec![report(lease, Some(LimitReport::Over), done)]);
    let job = world.engine.state().job(lease.task.job).unwrap();
    let ended = job.ended(None).expect("it is over");
    assert_eq!((ended.outcome, &ended.reason), (Outcome::Failed, &EndReason::TimeLimit));
}

/// A gang is stopped everywhere, by whoever is first.
#[test]
fn what_its_node_stops_is_stopped_by_us_too() {
    let (mut world, lease) = running();
    world.take_orders();
    world.report_all(N1, report(lease, Some(LimitReport::Over), runs()));
    assert_eq!(world.state_of(lease.task.job), JobState::Stopping);
    let stop = |(_, order): &(_, Order)| matches!(order, Order::Stop { .. });
    assert!(world.take_orders().iter().any(stop));
}

#[test]
fn a_node_that_goes_by_another_limit_is_told_ours() {
    let (mut world, lease) = running();
    world.now.0 += 10_000;
    assert_eq!(corrected(&mut world, lease, left(50)), None);
    assert_eq!(corrected(&mut world, lease, left(51)), None, "messages take their time");
    assert_eq!(corrected(&mut world, lease, left(20)), Some(Span::secs(50)));
    assert_eq!(corrected(&mut world, lease, None), Some(Span::secs(50)));
    assert_eq!(corrected(&mut world, lease, Some(LimitReport::Over)), None);
}

#[test]
fn a_limit_that_is_taken_away_is_taken_from_the_node() {
    let mut world = World::new(&[]);
    world.join(tutti_model::NodeFacts { keeps_limits: true, ..facts("n1", 4) });
    let job = world.submit(gang(1, 1));
    let lease = world.run(job);
    assert_eq!(corrected(&mut world, lease, None), None);
    assert_eq!(corrected(&mut world, lease, left(5)), Some(Span(u64::MAX)));
}

/// An order that it does not know would end its stream.
#[test]
fn an_agent_of_an_older_version_is_told_nothing() {
    let mut world = World::new(&[4]);
    let job = world.submit(limited(60));
    let lease = world.run(job);
    assert_eq!(corrected(&mut world, lease, None), None);
}

fn taken_down() -> Option<PartError> {
    Some(PartError { message: "the node was taken down".into(), blame: Blame::Operator })
}

#[test]
fn a_node_that_is_taken_down_on_purpose_has_not_failed() {
    let mut world = World::new(&[4]);
    let mut spec = gang(1, 1);
    spec.retry.node_failure = 0;
    let job = world.submit(spec);
    let lease = world.run(job);
    world.wait(5, &[]);
    world.gone(N1);
    let done = ReportedPhase::Done { exits: Vec::new(), error: taken_down() };
    world.hello("n1", 4, vec![PartReport::new(lease, done)]);
    assert_eq!(world.state_of(job), JobState::Starting, "it goes on, and it costs nothing");
    let task = world.engine.state().job(job).unwrap().task(None).unwrap();
    assert_eq!((task.restarts.node_failure, task.restarts.job_failure), (0, 0));
    let why = task.past().stopped.as_deref();
    assert!(matches!(why, Some(tutti_model::StopCause::Evicted { node: N1, .. })), "{why:?}");
    assert!(world.engine.state().node(N1).unwrap().strikes.is_empty());
}

/// The rest of its gang is stopped and goes with it.
#[test]
fn a_gang_whose_node_is_taken_down_moves_for_free() {
    let mut world = World::new(&[2, 2, 2]);
    let job = world.submit(gang(2, 2));
    let lease = world.run(job);
    let nodes = world.nodes_of(job);
    world.wait(5, &[]);
    let done = ReportedPhase::Done { exits: Vec::new(), error: taken_down() };
    world.report(nodes[0], lease, done);
    assert_eq!(world.state_of(job), JobState::Stopping);
    world.done(nodes[1], lease, &[(2, ExitStatus::Signal(15)), (3, ExitStatus::Signal(15))]);
    let task = world.engine.state().job(job).unwrap().task(None).unwrap();
    assert_eq!((task.restarts.node_failure, task.restarts.job_failure), (0, 0));
    assert_ne!(world.lease(TaskId::single(job)), lease);
}

#[test]
fn what_ran_and_was_cut_off_is_not_said_never_to_have_started() {
    let ends_with_ran = |seconds: u64| {
        let mut world = World::new(&[1]);
        let mut spec = gang(1, 1);
        spec.retry.job_failure = 0;
        let job = world.submit(spec);
        let lease = world.run(job);
        world.wait(seconds, &[]);
        world.broken(N1, lease, Blame::Job);
        match &world.engine.state().job(job).unwrap().ended(None).unwrap().reason {
            EndReason::LaunchFailed { ran, .. } => *ran,
            other => panic!("{other:?}"),
        }
    };
    assert!(ends_with_ran(5));
    assert!(!ends_with_ran(0));
}

impl World {
    fn join(&mut self, facts: tutti_model::NodeFacts) {
        self.join_with(facts, Vec::new());
    }

    fn join_with(&mut self, facts: tutti_model::NodeFacts, parts: Vec<PartReport>) {
        let name = facts.name.clone();
        // The session is what `hello` would have made of it.
        let node = self.hello(&name, facts.gpus.len() as u16, parts);
        let (session, parts) = (self.session(node), self.reports_of(node));
        let greeting = Box::new(tutti_model::Greeting::new(facts, parts));
        self.step(Command::Hello { greeting, session, key: None }).reply.expect("it is welcome");
    }
}
