//! Replicas that fail, and how long the next one waits.

use proptest::prelude::*;
use tutti_model::{ExitStatus, JobId, JobState, Span, TaskId};

use super::serve::{Routers, chat, said};
use super::world::World;

fn crash(world: &mut World) {
    let running: Vec<JobId> = world
        .replicas()
        .into_iter()
        .map(|(id, _)| id)
        .filter(|id| world.state_of(*id) == JobState::Running)
        .collect();
    for job in running {
        let lease = world.lease(TaskId::single(job));
        for node in world.nodes_of(job) {
            world.done(node, lease, &[(0, ExitStatus::Code(3))]);
        }
    }
}

#[test]
fn replicas_that_fail_one_after_another_wait_longer_and_longer() {
    let mut world = World::new(&[8]);
    world.serve(chat(4, 4));
    let mute = Routers { mute: (1..100).map(JobId).collect(), ..Routers::default() };
    world.start_and_stop();
    crash(&mut world);
    assert_eq!(world.endpoint().failures, 1, "four at once are one failure");
    assert_eq!(world.replicas(), []);
    let mut gaps = Vec::new();
    for _ in 0..5 {
        let began = world.now;
        while world.replicas().is_empty() {
            world.serve_on(1, &mute);
        }
        gaps.push(world.now.since(began).0.div_ceil(1000));
        assert_eq!(world.replicas().len(), 1, "one at a time is tried");
        world.start_and_stop();
        crash(&mut world);
    }
    assert_eq!(gaps, [1, 2, 4, 8, 16]);
    assert!(said(&world, "6 in a row"), "{:?}", world.endpoint().chronicle);
    assert!(world.endpoint().last_failure.as_deref().unwrap().contains("exit code 3"));
    world.wait(40, &[]);
    world.serve_on(3, &Routers::default());
    assert_eq!((world.endpoint().failures, world.ready().len()), (6, 4), "one became ready");
    world.serve_on(60, &Routers::default());
    assert_eq!(world.endpoint().failures, 0, "and stayed");
}

#[test]
fn the_wait_after_failures_has_an_end() {
    let mut world = World::new(&[8]);
    world.serve(chat(1, 1));
    for _ in 0..14 {
        world.start_and_stop();
        crash(&mut world);
        let wait = world.endpoint().not_before.since(world.now);
        assert!(wait <= Span::secs(300), "{wait}");
        world.wait(wait.0.div_ceil(1000), &[]);
    }
    assert_eq!(world.replicas().len(), 1);
}

/// One that is ready for so long, crashes, and is awaited again: how long that took.
fn ready_then_crash(world: &mut World, ready_for: u64) -> Span {
    world.serve_on(ready_for, &Routers::default());
    assert_eq!(world.ready().len(), 1);
    crash(world);
    let began = world.now;
    while world.ready().is_empty() {
        world.serve_on(1, &Routers::default());
    }
    world.now.since(began)
}

#[test]
fn who_crashes_as_soon_as_it_is_ready_waits_longer_each_time() {
    let mut world = World::new(&[1]);
    world.serve(chat(1, 1));
    world.serve_on(1, &Routers::default());
    let gaps: Vec<u64> = (0..5).map(|_| ready_then_crash(&mut world, 5).0.div_ceil(1000)).collect();
    assert_eq!(gaps, [1, 2, 4, 8, 16]);
    let verdict = world.engine.endpoint_verdict("chat", world.now).unwrap();
    assert_eq!(verdict.failing, None, "it answers");
    assert!(ready_then_crash(&mut world, 61) <= Span::secs(2), "it had recovered");
}

#[test]
fn those_that_stay_do_not_excuse_the_one_that_does_not() {
    let mut world = World::new(&[2]);
    world.serve(chat(2, 2));
    world.serve_on(100, &Routers::default());
    let mut gaps = Vec::new();
    for _ in 0..4 {
        let job = *world.ready().last().unwrap();
        let (node, lease) = (world.nodes_of(job)[0], world.lease(TaskId::single(job)));
        world.done(node, lease, &[(0, ExitStatus::Code(3))]);
        let began = world.now;
        while world.ready().len() < 2 {
            world.serve_on(1, &Routers::default());
        }
        gaps.push(world.now.since(began).0.div_ceil(1000));
    }
    assert_eq!(gaps, [1, 2, 4, 8]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// However long each is ready: as long as none stays for a minute, nobody comes sooner than the one
    /// before, up to the longest wait.
    #[test]
    fn the_wait_grows_until_one_stays(ready_for in proptest::collection::vec(0u64..55, 1..12)) {
        let mut world = World::new(&[1]);
        world.serve(chat(1, 1));
        world.serve_on(1, &Routers::default());
        let mut last = Span(0);
        for seconds in ready_for {
            world.serve_on(seconds, &Routers::default());
            crash(&mut world);
            let wait = world.endpoint().not_before.since(world.now);
            prop_assert!(wait > last || wait == Span::secs(300), "{wait} after {last}");
            last = wait;
            world.wait(wait.0.div_ceil(1000), &[]);
            world.serve_on(1, &Routers::default());
            prop_assert_eq!(world.ready().len(), 1);
        }
    }
}
