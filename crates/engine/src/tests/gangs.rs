use tutti_model::{
    Blame, EndReason, ExitStatus, JobState, Link, NodeId, Order, Outcome, PartReport,
    ReportedPhase, Span, TaskId,
};

use super::world::{World, ada, gang};
use crate::Command;

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const N3: NodeId = NodeId(3);
const OK: ExitStatus = ExitStatus::Code(0);

#[test]
fn ranks_start_when_every_part_is_prepared_and_meet_at_the_first_ones_port() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(2, 8));
    let lease = world.lease(TaskId::single(job));
    world.take_orders();
    world.report(N2, lease, ReportedPhase::Prepared { port: 7002 });
    assert_eq!(world.take_orders(), []);
    world.report(N1, lease, ReportedPhase::Prepared { port: 7001 });
    let go = Order::Go { lease, master_port: 7001, ports: vec![7001, 7002] };
    assert_eq!(world.take_orders(), [(N1, go.clone()), (N2, go)]);
}

#[test]
fn a_lost_go_is_repeated_with_the_next_heartbeat() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(2, 8));
    let lease = world.lease(TaskId::single(job));
    let prepared = |port| ReportedPhase::Prepared { port };
    world.report(N1, lease, prepared(7001));
    world.report(N2, lease, prepared(7002));
    world.report(N1, lease, ReportedPhase::Running { exits: Vec::new() });
    world.take_orders();
    world.beat(N2, vec![PartReport::new(lease, prepared(7002))]);
    assert_eq!(
        world.take_orders(),
        [(N2, Order::Go { lease, master_port: 7001, ports: vec![7001, 7002] })]
    );
}

#[test]
fn one_failed_rank_stops_the_gang_at_once_and_is_the_one_that_is_blamed() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(2, 8));
    let lease = world.run(job);
    world.take_orders();
    let exits = vec![world.exit(1, ExitStatus::Code(7))];
    world.report(N2, lease, ReportedPhase::Done { exits, error: None });
    let orders = world.take_orders();
    assert!(
        orders.contains(&(N1, Order::Stop { lease, grace: Span::secs(2), signal: None })),
        "{orders:?}"
    );
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    let job = world.engine.state().job(job).unwrap();
    let end = job.ended(None).unwrap();
    assert_eq!((end.outcome, end.exit_code), (Outcome::Failed, Some(7)));
    assert_eq!(
        end.reason,
        EndReason::RankFailed { rank: tutti_model::Rank(1), signal: None, saw: None }
    );
}

#[test]
fn a_lost_node_restarts_the_gang_elsewhere_even_if_its_peers_died_first() {
    let mut world = World::new(&[8, 8, 8]);
    let job = world.submit(gang(2, 8));
    let lease = world.run(job);
    world.gone(N2);
    // The peer notices the broken connection long before the node counts as lost.
    world.done(N1, lease, &[(0, ExitStatus::Code(1))]);
    assert_eq!(world.state_of(job), JobState::Stopping);
    world.wait(8, &[]);
    assert_eq!(world.state_of(job), JobState::Starting);
    assert_eq!(world.nodes_of(job), [N1, N3]);
    assert!(world.lease(TaskId::single(job)).generation > lease.generation);
    let job = world.engine.state().job(job).unwrap();
    assert_eq!(job.task(None).unwrap().restarts.node_failure, 1);
}

#[test]
fn an_agent_that_comes_back_in_time_keeps_its_ranks() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(2, 8));
    let lease = world.run(job);
    world.gone(N2);
    world.wait(5, &[]);
    let running = PartReport::new(lease, ReportedPhase::Running { exits: Vec::new() });
    world.hello("n2", 8, vec![running]);
    world.wait(20, &[]);
    assert_eq!(world.state_of(job), JobState::Running);
    world.done(N1, lease, &[(0, OK)]);
    world.done(N2, lease, &[(1, OK)]);
    assert_eq!(world.state_of(job), JobState::Completed);
}

#[test]
fn a_node_that_was_given_up_cleans_up_before_it_gets_work() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 8));
    let lease = world.run(job);
    world.gone(N1);
    world.wait(8, &[]);
    assert!(matches!(world.engine.state().node(N1).unwrap().link, Link::Lost { .. }));
    world.take_orders();
    let running = PartReport::new(lease, ReportedPhase::Running { exits: Vec::new() });
    world.hello("n1", 8, vec![running]);
    let orders = world.take_orders();
    assert!(orders.iter().all(|(_, o)| matches!(o, Order::Stop { .. })), "{orders:?}");
    assert_eq!(world.state_of(job), JobState::Pending);
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    assert_eq!(world.state_of(job), JobState::Starting);
    assert!(world.lease(TaskId::single(job)).generation > lease.generation);
}

#[test]
fn a_part_that_its_node_no_longer_knows_is_lost() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(1, 8));
    let lease = world.run(job);
    let node = world.nodes_of(job)[0];
    world.beat(node, Vec::new());
    assert_eq!(world.state_of(job), JobState::Starting, "it was started again");
    assert!(world.lease(TaskId::single(job)).generation > lease.generation);
}

#[test]
fn an_order_that_got_lost_is_sent_again() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 8));
    world.take_orders();
    world.beat(N1, Vec::new());
    assert_eq!(world.take_orders(), [], "too early to be overdue");
    world.wait(3, &[]);
    let lease = world.lease(TaskId::single(job));
    let orders = world.take_orders();
    assert!(orders.iter().any(|(_, o)| matches!(o, Order::Start(l) if l.lease == lease)));
}

#[test]
fn who_is_to_blame_decides_which_budget_pays() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(1, 8));
    let first = world.nodes_of(job)[0];
    let lease = world.lease(TaskId::single(job));
    world.broken(first, lease, Blame::Node);
    assert_ne!(world.nodes_of(job)[0], first, "it goes elsewhere");
    let (node, lease) = (world.nodes_of(job)[0], world.lease(TaskId::single(job)));
    world.broken(node, lease, Blame::Job);
    assert_eq!(world.state_of(job), JobState::Failed);
}

#[test]
fn cancelling_a_gang_that_already_stops_keeps_it_from_starting_again() {
    let mut world = World::new(&[8, 8, 8]);
    let job = world.submit(gang(2, 8));
    let lease = world.run(job);
    world.gone(N2);
    world.wait(8, &[]);
    world.step(Command::Cancel { actor: ada(), target: TaskId::single(job) }).reply.unwrap();
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    assert_eq!(world.state_of(job), JobState::Cancelled);
}

#[test]
fn nodes_that_are_lost_together_are_one_failure() {
    let mut world = World::new(&[8, 8, 8, 8]);
    let job = world.submit(gang(2, 8));
    world.run(job);
    world.gone(N1);
    world.gone(N2);
    world.wait(8, &[]);
    assert_eq!(world.nodes_of(job), [N3, NodeId(4)]);
    let job = world.engine.state().job(job).unwrap();
    assert_eq!(job.task(None).unwrap().restarts.node_failure, 1);
}

#[test]
fn a_part_that_never_gets_ready_is_given_up_and_placed_elsewhere() {
    let mut world = World::new(&[8, 8, 8]);
    let job = world.submit(gang(2, 8));
    let lease = world.lease(TaskId::single(job));
    world.report(N1, lease, ReportedPhase::Prepared { port: 7001 });
    world.wait(120, &[]);
    assert_eq!(world.state_of(job), JobState::Stopping);
    world.done(N1, lease, &[]);
    world.done(N2, lease, &[]);
    assert_eq!(world.nodes_of(job), [N1, N3]);
}

#[test]
fn done_without_every_exit_is_not_success() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(1, 8));
    let lease = world.run(job);
    let node = world.nodes_of(job)[0];
    world.done(node, lease, &[]);
    assert_eq!(world.state_of(job), JobState::Starting);
    assert_ne!(world.nodes_of(job)[0], node);
}
