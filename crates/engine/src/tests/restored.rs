//! A journal that was put back: no number that may have been given away since is given again.

use tutti_model::{Epoch, Generation, JobId, LeaseId, PartReport, ReportedPhase, TaskId, Time};

use super::world::{World, gang};
use crate::{Command, Engine, Event, Settings};

#[test]
fn every_number_jumps_above_what_was_given_since() {
    let mut world = World::new(&[8]);
    world.now = Time(1_790_000_000_000);
    let job = world.submit(gang(1, 1));
    let backup = world.engine.state().clone();
    // What the copy does not know: more jobs, more attempts, more starts of controllers.
    for _ in 0..500 {
        world.submit(gang(1, 1));
    }
    world.step(Command::Start);
    let lost = world.engine.state().clone();
    let mut restored = Engine::restore(backup, Settings::default());
    let now = Time(world.now.0 + 60_000);
    restored.step(Command::Restored, now);
    restored.step(Command::Start, now);
    let state = restored.state();
    assert!(state.epoch > lost.epoch, "{} {}", state.epoch, lost.epoch);
    assert!(state.next_job > lost.next_job, "{} {}", state.next_job, lost.next_job);
    assert!(state.next_generation > lost.next_generation);
    assert!(state.job(job).is_some());
    // From the same copy again, after the first one ran on for a while.
    let mut again = Engine::restore(lost, Settings::default());
    let later = Time(now.0 + 10_000);
    again.step(Command::Restored, later);
    assert!(again.state().epoch > state.epoch);
    assert!(again.state().next_generation > state.next_generation);
}

#[test]
fn numbers_that_only_a_node_knows_are_not_given_again() {
    let mut world = World::new(&[8]);
    world.now = Time(9_500_000_000);
    let lease =
        LeaseId { task: TaskId::single(JobId(7_000)), generation: Generation(9_000_000_000) };
    let report = PartReport::new(lease, ReportedPhase::Running { exits: Vec::new() });
    world.hello("n1", 8, vec![report]);
    let state = world.engine.state();
    assert_eq!((state.next_job, state.next_generation), (7_001, 9_000_000_001));
    assert!(state.node_named("n1").unwrap().stale.contains(&lease), "it is stopped");
    assert_eq!(world.submit(gang(1, 1)), JobId(7_001));
}

/// However often it says so, and under however many leases.
#[test]
fn a_node_does_not_choose_the_numbers_of_the_cluster() {
    let mut world = World::new(&[8]);
    world.now = Time(1_790_000_000_000);
    let claim = |job: u64, generation: u64| {
        let lease =
            LeaseId { task: TaskId::single(JobId(job)), generation: Generation(generation) };
        PartReport::new(lease, ReportedPhase::Running { exits: Vec::new() })
    };
    world.hello("n1", 8, vec![claim(1 << 39, 1 << 62), claim(u64::MAX, u64::MAX)]);
    assert_eq!(world.submit(gang(1, 1)), JobId(1));
    let (mut job, mut generation) = (900_000, world.now.0);
    for _ in 0..50 {
        world.hello("n1", 8, vec![claim(job, generation)]);
        (job, generation) = (job + 900_000, generation + 900_000);
    }
    let state = world.engine.state();
    assert!(state.next_job <= 1_000_002, "{}", state.next_job);
    assert!(state.next_generation <= world.now.0 + 1_000_001, "{}", state.next_generation);
}

#[test]
fn a_lone_event_is_enough_to_replay() {
    let event = Event::JournalRestored { epoch: Epoch(5), next_job: 10, next_generation: 20 };
    let mut state = tutti_model::State::default();
    crate::apply(&mut state, &crate::Record { seq: tutti_model::Seq(1), at: Time(1), event });
    assert_eq!((state.epoch, state.next_job, state.next_generation), (Epoch(5), 10, 20));
}
