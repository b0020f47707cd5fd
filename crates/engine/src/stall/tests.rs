use tutti_model::{
    JobId, JobSpec, JobState, PartProgress, PartReport, RankProgress, ReportedPhase, SavedPoint,
    Stall,
};

use super::*;
use crate::tests::world::{World, gang};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const N3: NodeId = NodeId(3);

/// What one rank says of itself.
#[derive(Clone, Copy)]
struct Said {
    rank: u32,
    step: u64,
    age: u64,
    pace: Option<u64>,
    saved: Option<u64>,
}

const WORKS: Said = Said { rank: 0, step: 10, age: 0, pace: Some(2), saved: None };

fn say(world: &mut World, node: NodeId, lease: LeaseId, said: Said) {
    let rank = RankProgress {
        rank: Rank(said.rank),
        step: said.step,
        loss: None,
        tokens: None,
        age: Span::secs(said.age),
        pace: said.pace.map(Span::secs),
    };
    let point = |step| SavedPoint { step, at: None, path: None, save_ms: Some(1000), node: None };
    let progress =
        PartProgress { ranks: vec![rank], saved: said.saved.map(point), ..Default::default() };
    let phase = ReportedPhase::Running { exits: Vec::new() };
    let report = PartReport { progress: Some(Box::new(progress)), ..PartReport::new(lease, phase) };
    world.report_all(node, report);
}

/// A gang on two nodes, both ranks at step 10.
fn training(spec: JobSpec) -> (World, JobId, LeaseId) {
    let mut world = World::new(&[8, 8, 8]);
    let job = world.submit(spec);
    let lease = world.run(job);
    say(&mut world, N1, lease, WORKS);
    say(&mut world, N2, lease, Said { rank: 1, ..WORKS });
    (world, job, lease)
}

/// Time passes; the ranks say the same again every second.
fn hang(world: &mut World, lease: LeaseId, secs: u64, said: [Said; 2]) {
    for n in 1..=secs {
        world.wait(1, &[]);
        for (node, said) in [N1, N2].into_iter().zip(said) {
            if find_attempt(world.engine.state(), lease).is_some() {
                say(world, node, lease, Said { age: said.age + n, ..said });
            }
        }
    }
}

fn stalls(world: &World, job: JobId) -> Option<Stalled> {
    world.engine.stalled(TaskId::single(job), world.now)
}

#[test]
fn no_step_for_many_times_the_usual_is_a_stall_and_it_is_shown() {
    let (mut world, job, lease) = training(gang(2, 8));
    let both = [WORKS, Said { rank: 1, ..WORKS }];
    hang(&mut world, lease, 29, both);
    assert_eq!(stalls(&world, job), None);
    hang(&mut world, lease, 1, both.map(|s| Said { age: 29, ..s }));
    let found = stalls(&world, job).expect("it is stalled");
    assert_eq!((found.idle, found.pace, found.rank), (Span::secs(30), Span::secs(2), None));
    hang(&mut world, lease, 700, both.map(|s| Said { age: 30, ..s }));
    assert_eq!(world.state_of(job), JobState::Running, "there is nothing to go on from");
}

#[test]
fn the_rank_behind_all_others_is_blamed_and_its_node_avoided() {
    let rule = Stall { after: Some(Span::secs(20)), action: StallAction::Restart };
    let (mut world, job, lease) = training(JobSpec { stall: Some(rule), ..gang(2, 8) });
    say(&mut world, N1, lease, Said { step: 11, ..WORKS });
    hang(&mut world, lease, 21, [Said { step: 11, ..WORKS }, Said { rank: 1, ..WORKS }]);
    let why = StopCause::Stalled { rank: Some(Rank(1)), node: Some(N2), idle: Span::secs(20) };
    let stopping = |w: &World| match &find_attempt(w.engine.state(), lease)?.phase {
        AttemptPhase::Stopping { why, .. } => Some(why.clone()),
        _ => None,
    };
    assert_eq!(stopping(&world), Some(why));
    world.done(N1, lease, &[(0, tutti_model::ExitStatus::Signal(15))]);
    world.done(N2, lease, &[(1, tutti_model::ExitStatus::Signal(9))]);
    assert_eq!(world.nodes_of(job), [N1, N3]);
}

#[test]
fn what_has_saved_is_started_again_but_not_soon() {
    let (mut world, job, lease) = training(gang(2, 8));
    let both = [Said { saved: Some(8), ..WORKS }, Said { rank: 1, ..WORKS }];
    hang(&mut world, lease, 599, both);
    assert_eq!(world.state_of(job), JobState::Running);
    hang(&mut world, lease, 2, both.map(|s| Said { age: 599, ..s }));
    assert_eq!(world.state_of(job), JobState::Stopping);
}

#[test]
fn nobody_is_judged_without_a_pace_or_while_his_node_is_away_or_if_he_says_so() {
    let off = Stall { after: None, action: StallAction::Off };
    let (mut world, job, lease) = training(JobSpec { stall: Some(off), ..gang(2, 8) });
    hang(&mut world, lease, 60, [WORKS, Said { rank: 1, ..WORKS }]);
    assert_eq!(stalls(&world, job), None, "it is off");

    let (mut world, job, lease) = training(gang(2, 8));
    let compiles = Said { pace: None, ..WORKS };
    hang(&mut world, lease, 60, [compiles, Said { rank: 1, ..compiles }]);
    assert_eq!(stalls(&world, job), None, "its first steps may take any time");

    let (mut world, job, lease) = training(gang(2, 8));
    hang(&mut world, lease, 28, [WORKS, Said { rank: 1, ..WORKS }]);
    world.gone(N2);
    world.wait(5, &[]);
    assert_eq!(stalls(&world, job), None, "what is known is old");

    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 8));
    world.run(job);
    world.wait(60, &[]);
    assert_eq!(stalls(&world, job), None, "it never said anything");
}

#[test]
fn the_rest_of_a_gang_that_ends_is_judged_only_if_somebody_wants_it_so() {
    for (action, stops) in [(StallAction::Auto, false), (StallAction::Restart, true)] {
        let stall = Some(Stall { after: Some(Span::secs(20)), action });
        let (mut world, job, lease) = training(JobSpec { stall, ..gang(2, 8) });
        world.done(N1, lease, &[(0, tutti_model::ExitStatus::Code(0))]);
        for age in 1..=21 {
            world.wait(1, &[]);
            say(&mut world, N2, lease, Said { rank: 1, age, ..WORKS });
        }
        assert_eq!(world.state_of(job) == JobState::Stopping, stops, "{action:?}");
    }
}

#[test]
fn a_pause_that_ended_by_itself_may_come_again() {
    let (mut world, job, lease) = training(gang(2, 8));
    hang(&mut world, lease, 100, [WORKS, Said { rank: 1, ..WORKS }]);
    assert!(stalls(&world, job).is_some());
    let later = Said { step: 11, ..WORKS };
    hang(&mut world, lease, 150, [later, Said { rank: 1, ..later }]);
    assert_eq!(stalls(&world, job), None, "it has evaluated before");
    let both = [later, Said { rank: 1, ..later }];
    hang(&mut world, lease, 60, both.map(|s| Said { age: 150, ..s }));
    assert!(stalls(&world, job).is_some());
}
