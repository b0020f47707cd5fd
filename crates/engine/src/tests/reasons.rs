//! What is remembered of earlier attempts: why they ended, and when they were suspended.

use tutti_model::{
    Bytes, ExitStatus, JobId, JobSpec, LeaseId, NodeId, PartReport, Preempt, PreemptMode,
    ReportedPhase, Span, StopCause, Suspension, Task, TaskId,
};

use super::world::{World, ada, gang};
use crate::Command;

const N1: NodeId = NodeId(1);

fn task(world: &World, job: JobId) -> Task {
    world.engine.state().job(job).unwrap().task(None).unwrap().clone()
}

fn suspend(world: &mut World, job: JobId, lease: LeaseId) {
    let target = TaskId::single(job);
    world.step(Command::Suspend { actor: ada(), target }).reply.unwrap();
    let suspension = Some(Suspension::Suspended { bytes: Bytes::gib(1) });
    let phase = ReportedPhase::Running { exits: Vec::new() };
    world.report_all(N1, PartReport { suspension, ..PartReport::new(lease, phase) });
}

#[test]
fn a_lost_node_is_remembered_and_so_are_suspensions_of_all_attempts() {
    let mut world = World::new(&[2]);
    world.can_suspend(N1);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    suspend(&mut world, job, lease);
    world.gone(N1);
    world.wait(8, &[N1]);
    let why = task(&world, job).past().stopped.clone();
    assert_eq!(why.as_deref(), Some(&StopCause::NodeLost { node: N1 }));
    world.hello("n1", 2, Vec::new());
    world.can_suspend(N1);
    let target = TaskId::single(job);
    world.step(Command::Wake { actor: ada(), target }).reply.unwrap();
    let lease = world.run(job);
    suspend(&mut world, job, lease);
    let known = |world: &World| {
        let naps = task(world, job);
        naps.all_naps().map(|nap| (nap.attempt, nap.cut_at.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(known(&world), [(1, true), (2, false)]);
    world.step(Command::Cancel { actor: ada(), target: TaskId::single(job) }).reply.unwrap();
    world.done(N1, lease, &[(0, ExitStatus::Signal(9))]);
    assert_eq!(known(&world), [(1, true), (2, true)], "its end does not hide them");
}

#[test]
fn who_asks_to_be_suspended_and_is_stopped_is_told_why() {
    let why = |can: bool| {
        let mut world = World::new(&[4]);
        if can {
            world.can_suspend(N1);
        }
        let preempt = Some(Preempt { mode: PreemptMode::Suspend });
        let class = Some("scavenger".into());
        let job = world.submit(JobSpec { class, preempt, ..gang(1, 4) });
        let lease = world.run(job);
        let (phase, gpu_mem) =
            (ReportedPhase::Running { exits: Vec::new() }, Some(Bytes::gib(320)));
        world.report_all(N1, PartReport { gpu_mem, ..PartReport::new(lease, phase) });
        let other = world.submit(gang(1, 4));
        world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
        match task(&world, job).past().stopped.as_deref().cloned() {
            Some(StopCause::Preempted { for_job, not_suspended }) => {
                assert_eq!(for_job, other);
                not_suspended.expect("a reason")
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(
        why(false).starts_with("node n1 can't move GPU state to host memory"),
        "{}",
        why(false)
    );
    let memory = "its GPU state takes 320GiB of host memory on node n1, and 256GiB are free there";
    assert_eq!(why(true), memory);
}

#[test]
fn time_away_is_counted_over_all_attempts() {
    let mut world = World::new(&[2]);
    world.can_suspend(N1);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    let target = TaskId::single(job);
    suspend(&mut world, job, lease);
    world.wait(30, &[]);
    world.step(Command::Wake { actor: ada(), target }).reply.unwrap();
    let phase = ReportedPhase::Running { exits: Vec::new() };
    world.report_all(N1, PartReport::new(lease, phase));
    world.wait(20, &[]);
    assert_eq!(task(&world, job).away(world.now), Span::secs(30));
    suspend(&mut world, job, lease);
    world.wait(5, &[]);
    assert_eq!(task(&world, job).away(world.now), Span::secs(35), "it still is");
    world.step(Command::Cancel { actor: ada(), target }).reply.unwrap();
    world.wait(1, &[]);
    world.done(N1, lease, &[(0, ExitStatus::Signal(9))]);
    let ended = world.engine.state().job(job).unwrap().ended(None).unwrap().clone();
    assert_eq!(ended.away, Span::secs(35), "what stops is not suspended");
}
