use tutti_model::{
    Blame, ExitStatus, GpuRequest, JobId, JobSpec, JobState, NodeId, NodeState, Retry, TaskId, Time,
};

use super::*;
use crate::tests::world::{World, admin, gang};
use crate::{Actor, Command, Reply};

const N1: NodeId = NodeId(1);

fn by(user: &str) -> Actor {
    Actor { user: user.to_owned(), role: tutti_model::Role::User }
}

fn submit(world: &mut World, user: &str, spec: JobSpec) -> JobId {
    let command = Command::Submit { actor: by(user), spec: Box::new(spec), user: None, key: None };
    match world.step(command).reply {
        Ok(Reply::Submitted { job, .. }) => job,
        other => panic!("{other:?}"),
    }
}

fn drain_of(world: &World, node: NodeId) -> Option<Drain> {
    world.engine.state().node(node).and_then(|n| n.drain.clone())
}

/// It fails where it runs, by itself.
fn fail(world: &mut World, job: JobId) -> NodeId {
    let (lease, node) = (world.run(job), world.nodes_of(job)[0]);
    world.done(node, lease, &[(0, ExitStatus::Code(1))]);
    node
}

/// Can't start where it was placed, says the node; goes elsewhere and completes.
fn broken_then_fine(world: &mut World, user: &str) -> NodeId {
    let job = submit(world, user, gang(1, 8));
    let (lease, node) = (world.lease(TaskId::single(job)), world.nodes_of(job)[0]);
    world.broken(node, lease, Blame::Node);
    let (lease, other) = (world.run(job), world.nodes_of(job)[0]);
    assert_ne!(other, node);
    world.done(other, lease, &[(0, ExitStatus::Code(0))]);
    assert_eq!(world.state_of(job), JobState::Completed);
    node
}

#[test]
fn a_node_that_starts_nothing_for_three_jobs_is_taken_out_and_says_why() {
    let mut world = World::new(&[8, 8]);
    let bad = broken_then_fine(&mut world, "ada");
    assert_eq!(broken_then_fine(&mut world, "bob"), bad);
    assert_eq!(drain_of(&world, bad), None, "two jobs are not enough");
    world.wait(60, &[]);
    broken_then_fine(&mut world, "ada");
    let drain = drain_of(&world, bad).expect("it is taken out");
    assert_eq!((drain.by.as_str(), drain.auto), (NOBODY, true));
    let said = "3 jobs failed here and not elsewhere within 1h: 1 of ada 1m ago, 2 of bob 1m ago, \
                3 of ada just now";
    assert_eq!(drain.reason, said);
    assert_eq!(world.engine.state().node(bad).unwrap().state(), NodeState::Drained);
    let node = world.engine.state().node_name(bad);
    world.step(Command::Resume { actor: admin(), node }).reply.unwrap();
    let node = world.engine.state().node(bad).unwrap();
    assert_eq!((node.state(), node.strikes.len()), (NodeState::Ready, 0));
}

#[test]
fn one_user_alone_needs_the_nodes_word_not_his_own_failures() {
    let mut world = World::new(&[8, 8]);
    for _ in 0..4 {
        let job = submit(&mut world, "ada", gang(1, 8));
        assert_eq!(fail(&mut world, job), N1);
    }
    assert_eq!(drain_of(&world, N1), None, "they may well be his own");
    for _ in 0..3 {
        broken_then_fine(&mut world, "ada");
    }
    assert!(drain_of(&world, N1).is_some());
}

#[test]
fn failures_of_several_users_count_if_others_do_well() {
    let mut world = World::new(&[8, 8]);
    for user in ["ada", "bob", "eve"] {
        let job = submit(&mut world, user, gang(1, 8));
        assert_eq!(fail(&mut world, job), N1);
    }
    assert_eq!(drain_of(&world, N1), None, "nothing went well anywhere");
    let busy = submit(&mut world, "ada", gang(1, 8));
    let good = submit(&mut world, "ada", gang(1, 8));
    let (lease, other) = (world.run(good), world.nodes_of(good)[0]);
    assert_ne!(other, N1);
    world.done(other, lease, &[(0, ExitStatus::Code(0))]);
    assert_eq!(drain_of(&world, N1), None, "nothing new happened there");
    fail(&mut world, busy);
    assert!(drain_of(&world, N1).is_some());
}

#[test]
fn what_goes_well_on_a_node_speaks_for_it() {
    let mut world = World::new(&[8, 8]);
    for user in ["ada", "bob", "eve", "ada", "bob"] {
        let half = GpuRequest { model: None, count: 4 };
        let both = [0, 1].map(|_| {
            let spec = JobSpec { gpus_per_node: Some(half.clone()), ..gang(1, 4) };
            submit(&mut world, user, spec)
        });
        fail(&mut world, both[0]);
        let (lease, node) = (world.run(both[1]), world.nodes_of(both[1])[0]);
        world.done(node, lease, &[(0, ExitStatus::Code(0))]);
    }
    assert_eq!(drain_of(&world, N1), None);
}

#[test]
fn a_job_that_fails_elsewhere_too_is_no_strike() {
    let mut world = World::new(&[8, 8, 8]);
    let retry = Retry { job_failure: 1, ..Retry::default() };
    for user in ["ada", "bob", "eve", "ada"] {
        let job = submit(&mut world, user, JobSpec { retry, ..gang(1, 8) });
        let first = fail(&mut world, job);
        world.wait(2, &[]);
        assert_ne!(fail(&mut world, job), first, "it is tried elsewhere");
    }
    let strikes = |n: &Node| n.strikes.len();
    let all: usize = world.engine.state().nodes.values().map(strikes).sum();
    assert_eq!(all, 0);
}

#[test]
fn a_node_that_comes_and_goes_is_taken_out_but_never_the_last_one() {
    for (gpus, out) in [(vec![8, 8], true), (vec![8], false)] {
        let mut world = World::new(&gpus);
        for _ in 0..3 {
            world.gone(N1);
            world.wait(8, &[]);
            world.hello("n1", 8, Vec::new());
        }
        let drain = drain_of(&world, N1);
        assert_eq!(drain.is_some(), out, "{drain:?}");
        let node = world.engine.state().node(N1).unwrap();
        let said = trouble(world.engine.state(), world.engine.settings(), node, world.now);
        assert_eq!(said.unwrap(), "lost 3 times within 1h: 16s ago, 8s ago, just now");
    }
}

#[test]
fn old_strikes_are_forgiven_and_few_nodes_go_at_once() {
    let mut world = World::new(&[8, 8, 8]);
    let lose = |world: &mut World, n: u32| {
        world.gone(NodeId(n));
        world.wait(8, &[]);
        world.hello(&format!("n{n}"), 8, Vec::new());
    };
    lose(&mut world, 1);
    lose(&mut world, 1);
    world.now = Time(world.now.0 + 3_700_000);
    world.step(Command::Tick);
    lose(&mut world, 1);
    assert_eq!(drain_of(&world, N1), None);
    (0..3).for_each(|_| lose(&mut world, 2));
    assert!(drain_of(&world, NodeId(2)).is_some());
    (0..3).for_each(|_| lose(&mut world, 3));
    assert_eq!(drain_of(&world, NodeId(3)), None, "one of three is enough");
}
