//! What a person suspended and then lost its attempt waits for that person.

use tutti_model::{
    Attempt, Bytes, ExitStatus, Finding, HealthAction, JobId, JobSpec, JobState, Kept, LeaseId,
    NodeId, PartReport, Preempt, PreemptMode, ReportedPhase, SavedPoint, Span, Suspension, Task,
    TaskId, Time, Verdict,
};

use super::world::{World, ada, admin, gang};
use crate::{Command, Event, Record, Rejected, Reply};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);

fn one(job: JobId) -> TaskId {
    TaskId::single(job)
}

fn suspend(world: &mut World, target: TaskId) -> Result<Reply, Rejected> {
    world.step(Command::Suspend { actor: ada(), target }).reply
}

fn resume(world: &mut World, target: TaskId) -> Result<Reply, Rejected> {
    world.step(Command::Wake { actor: ada(), target }).reply
}

fn says(world: &mut World, node: NodeId, lease: LeaseId, suspension: Option<Suspension>) {
    let phase = ReportedPhase::Running { exits: Vec::new() };
    world.report_all(node, PartReport { suspension, ..PartReport::new(lease, phase) });
}

fn out(world: &mut World, node: NodeId, lease: LeaseId) {
    says(world, node, lease, Some(Suspension::Suspended { bytes: Bytes::gib(3) }));
}

fn task_of(world: &World, id: TaskId) -> Task {
    world.engine.state().job(id.job).unwrap().task(id.index).unwrap().clone()
}

fn attempt_of(world: &World, id: TaskId) -> Attempt {
    task_of(world, id).attempt().unwrap().clone()
}

fn why(world: &World, id: TaskId) -> String {
    let (state, plan) = (world.engine.state(), world.engine.plan());
    tutti_sched::describe(&tutti_sched::verdict(state, plan, id, world.now).unwrap())
}

fn evict(world: &mut World, node: &str) {
    let (node, reason) = (node.to_owned(), "new fans".to_owned());
    let drain = Command::Drain { actor: admin(), node, reason, evict: true };
    world.step(drain).reply.unwrap();
}

fn reopen(world: &mut World, node: &str) {
    world.step(Command::Resume { actor: admin(), node: node.to_owned() }).reply.unwrap();
}

/// One job over all nodes, suspended by its owner.
fn suspended(nodes: &[u16], gpus: u32) -> (World, JobId, LeaseId) {
    let mut world = World::new(nodes);
    (1..=nodes.len() as u32).for_each(|n| world.can_suspend(NodeId(n)));
    let job = world.submit(gang(nodes.len() as u32, gpus));
    let lease = world.run(job);
    suspend(&mut world, one(job)).unwrap();
    for n in 1..=nodes.len() as u32 {
        out(&mut world, NodeId(n), lease);
    }
    assert!(attempt_of(&world, one(job)).is_suspended());
    (world, job, lease)
}

#[test]
fn one_that_is_lost_with_its_node_waits_until_it_is_resumed() {
    let (mut world, job, _) = suspended(&[2], 2);
    world.gone(N1);
    world.wait(300, &[N1]);
    world.hello("n1", 2, Vec::new());
    world.wait(60, &[]);
    assert_eq!(world.state_of(job), JobState::Pending);
    let kept = Kept { by: Some("ada".into()), node: Some(N1) };
    assert_eq!(task_of(&world, one(job)).kept(), Some(&kept));
    let words = "suspended by ada; its state in memory was lost with node n1; starts again when it \
                 is resumed";
    assert_eq!(why(&world, one(job)), words);
    assert_eq!(world.engine.state().index.queue.len(), 0);
    // Suspending it once more changes nothing.
    assert_eq!(suspend(&mut world, one(job)), Ok(Reply::Tasks(1)));
    assert_eq!(resume(&mut world, one(job)), Ok(Reply::Tasks(1)));
    assert_eq!(world.state_of(job), JobState::Starting);
    assert_eq!(task_of(&world, one(job)).kept(), None);
    assert_eq!(resume(&mut world, one(job)), Err(Rejected::NotSuspended(one(job))));
}

#[test]
fn one_that_is_evicted_waits_and_says_where_it_goes_on() {
    let (mut world, job, lease) = suspended(&[2, 2], 2);
    let point = SavedPoint { step: 40, at: None, path: None, save_ms: None, node: None };
    world.step(Command::Register {
        actor: ada(),
        task: one(job),
        step: point.step,
        path: "/ckpt/40".into(),
    });
    evict(&mut world, "n2");
    assert!(!attempt_of(&world, one(job)).will_return(), "nothing is kept free for it");
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    world.done(N2, lease, &[(1, ExitStatus::Signal(15))]);
    reopen(&mut world, "n2");
    world.wait(60, &[]);
    assert_eq!(world.state_of(job), JobState::Pending);
    let task = task_of(&world, one(job));
    assert!(!task.lost_node && task.restarts.total() == 0, "{task:?}");
    let words = why(&world, one(job));
    assert!(words.ends_with("lost with node n2; starts again from step 40 when it is resumed"));
    // Whoever takes it for a held job is right as well.
    world.step(Command::Release { actor: ada(), job }).reply.unwrap();
    assert_eq!(world.state_of(job), JobState::Starting);
}

#[test]
fn a_node_that_is_taken_out_does_not_wake_it_either() {
    let mut world = World::new(&[2, 1]);
    world.can_suspend(N1);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    suspend(&mut world, one(job)).unwrap();
    out(&mut world, N1, lease);
    let broken = Finding {
        key: "reboot".into(),
        check: "bus".into(),
        gpu: None,
        action: HealthAction::DrainNode,
        text: "a GPU fell off the bus".into(),
        since: world.now,
        drill: false,
        by_job: false,
    };
    let session = world.session(N1);
    world.step(Command::Findings { node: N1, session, findings: vec![broken] }).reply.unwrap();
    assert_eq!(world.state_of(job), JobState::Stopping);
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    reopen(&mut world, "n1");
    assert_eq!(world.state_of(job), JobState::Pending);
}

/// While it still goes out, and after it has been resumed on its way down.
#[test]
fn a_resume_counts_while_it_is_being_stopped() {
    let mut world = World::new(&[2]);
    world.can_suspend(N1);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    suspend(&mut world, one(job)).unwrap();
    evict(&mut world, "n1");
    assert!(attempt_of(&world, one(job)).kept.is_some(), "it was on its way out");
    assert_eq!(suspend(&mut world, one(job)), Ok(Reply::Tasks(1)));
    assert_eq!(resume(&mut world, one(job)), Ok(Reply::Tasks(1)));
    assert_eq!(attempt_of(&world, one(job)).kept, None);
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    reopen(&mut world, "n1");
    assert_eq!(world.state_of(job), JobState::Starting);
}

#[test]
fn one_that_could_not_be_suspended_by_hand_starts_again_by_itself() {
    let mut world = World::new(&[2, 2]);
    [N1, N2].into_iter().for_each(|n| world.can_suspend(n));
    let job = world.submit(gang(2, 2));
    let lease = world.run(job);
    suspend(&mut world, one(job)).unwrap();
    says(&mut world, N2, lease, Some(Suspension::Refused { why: "IPC".into() }));
    evict(&mut world, "n1");
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    world.done(N2, lease, &[(1, ExitStatus::Signal(15))]);
    reopen(&mut world, "n1");
    assert_eq!(world.state_of(job), JobState::Starting);
}

/// What others had suspended starts again by itself, unless a person wanted it to stay.
#[test]
fn one_that_was_suspended_for_others_waits_only_if_a_person_says_so() {
    for stays in [false, true] {
        let mut world = World::new(&[2, 2]);
        [N1, N2].into_iter().for_each(|n| world.can_suspend(n));
        world.step(Command::Drain {
            actor: admin(),
            node: "n2".into(),
            reason: "later".into(),
            evict: false,
        });
        let preempt = Some(Preempt { mode: PreemptMode::Suspend });
        let low = JobSpec { class: Some("scavenger".into()), preempt, ..gang(1, 2) };
        let job = world.submit(low);
        let lease = world.run(job);
        world.set_policy(|p| p.preemption.not_again_within = Span(0));
        says(&mut world, N1, lease, None);
        let phase = ReportedPhase::Running { exits: Vec::new() };
        let gpu_mem = Some(Bytes::gib(1));
        world.report_all(N1, PartReport { gpu_mem, ..PartReport::new(lease, phase) });
        world.wait(600, &[]);
        world.submit(gang(1, 2));
        assert!(attempt_of(&world, one(job)).pause().is_some(), "{stays}");
        out(&mut world, N1, lease);
        if stays {
            suspend(&mut world, one(job)).unwrap();
        }
        evict(&mut world, "n1");
        world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
        reopen(&mut world, "n2");
        let want = if stays { JobState::Pending } else { JobState::Starting };
        assert_eq!(world.state_of(job), want, "{stays}");
        if stays {
            assert!(why(&world, one(job)).starts_with("suspended by ada; its state"));
        }
    }
}

#[test]
fn of_an_array_only_the_suspended_task_waits() {
    let mut world = World::new(&[2]);
    world.can_suspend(N1);
    let array = Some("0-2%1".parse().unwrap());
    let job = world.submit(JobSpec { array, ..gang(1, 2) });
    let first = TaskId::of_array(job, 0);
    let lease = world.lease(first);
    world.report(N1, lease, ReportedPhase::Prepared { port: 9000 });
    world.report(N1, lease, ReportedPhase::Running { exits: Vec::new() });
    suspend(&mut world, first).unwrap();
    out(&mut world, N1, lease);
    evict(&mut world, "n1");
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    reopen(&mut world, "n1");
    let state = |w: &World, i| w.engine.state().job(job).unwrap().task_state(Some(i)).unwrap();
    let states = |w: &World| [0, 1, 2].map(|i| state(w, i));
    assert_eq!(states(&world), [JobState::Pending, JobState::Starting, JobState::Pending]);
    let verdict =
        |w: &World, id| tutti_sched::verdict(w.engine.state(), w.engine.plan(), id, w.now).unwrap();
    assert!(matches!(verdict(&world, first), Verdict::Held { suspended: Some(_) }));
    let rest = verdict(&world, one(job));
    assert!(!matches!(rest, Verdict::Held { .. }), "{rest:?}");
    // All of its tasks are meant.
    assert_eq!(resume(&mut world, one(job)), Ok(Reply::Tasks(1)));
    assert_eq!(task_of(&world, first).kept(), None);
}

/// Journals from before say nothing of it, and load as they were written.
#[test]
fn old_records_load_and_keep_nobody_waiting() {
    let lease = r#"{"task":"1","generation":1}"#;
    let text = format!(
        r#"{{"seq":1,"at":5,"event":{{"event":"requeued","lease":{lease},"cause":"eviction",
            "avoid":null,"not_before":0}}}}"#
    );
    let record: Record = serde_json::from_str(&text).unwrap();
    assert_eq!(record.at, Time(5));
    assert!(matches!(record.event, Event::Requeued { kept: None, .. }));
}
