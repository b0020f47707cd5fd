//! Findings, fences, and what becomes of those who run there.

use tutti_model::{
    Bytes, EndReason, ExitStatus, Finding, GpuIndex, HealthAction, JobId, JobState, NodeId,
    NodeState, Order, PartReport, ReportedPhase, Restarts, StopCause, Suspension, TaskId, Time,
    Verdict,
};

use super::world::{World, admin, gang};
use crate::{Command, NOBODY};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
/// Counted, but not held against the job.
const FOR_FREE: Restarts = Restarts { node_failure: 0, preemption: 0, job_failure: 0, health: 1 };

fn finding(key: &str, gpu: Option<u16>, action: HealthAction) -> Finding {
    Finding {
        key: key.into(),
        check: "xid".into(),
        gpu: gpu.map(GpuIndex),
        action,
        text: format!("{key} was seen"),
        since: Time(1_000_000),
        drill: false,
        by_job: false,
    }
}

impl World {
    fn find(&mut self, node: NodeId, findings: &[Finding]) -> usize {
        let session = self.session(node);
        let findings = findings.to_vec();
        let step = self.step(Command::Findings { node, session, findings });
        step.reply.expect("the session is known");
        step.records.len()
    }

    fn gpus_of(&self, job: JobId) -> Vec<GpuIndex> {
        let job = self.engine.state().job(job).unwrap();
        job.task(None).unwrap().attempt().unwrap().parts[0].gpus.clone()
    }

    fn stop_of(&self, job: JobId) -> Option<StopCause> {
        let job = self.engine.state().job(job).unwrap();
        match &job.task(None)?.attempt()?.phase {
            tutti_model::AttemptPhase::Stopping { why, .. } => Some(why.clone()),
            _ => None,
        }
    }

    fn killed(&mut self, node: NodeId, lease: tutti_model::LeaseId) {
        self.done(node, lease, &[(0, ExitStatus::Signal(15))]);
    }
}

#[test]
fn a_fence_moves_the_job_and_costs_it_nothing() {
    let mut world = World::new(&[2, 2]);
    let (job, other) = (world.submit(gang(1, 1)), world.submit(gang(1, 1)));
    let lease = world.run(job);
    world.run(other);
    assert_eq!((world.nodes_of(job), world.gpus_of(job)), (vec![N1], vec![GpuIndex(0)]));
    let broken = finding("xid-48/gpu0", Some(0), HealthAction::ResetGpu);
    world.find(N1, std::slice::from_ref(&broken));
    let StopCause::Unhealthy { node, gpu, text, .. } = world.stop_of(job).unwrap() else {
        panic!("stopped for another reason");
    };
    assert_eq!((node, gpu, text.as_str()), (N1, Some(GpuIndex(0)), "xid-48/gpu0 was seen"));
    assert_eq!(world.stop_of(other), None, "its GPU is another one");
    assert_eq!(world.find(N1, std::slice::from_ref(&broken)), 0, "the same level is no news");
    world.killed(N1, lease);
    assert_ne!((world.nodes_of(job), world.gpus_of(job)), (vec![N1], vec![GpuIndex(0)]));
    let task = world.engine.state().job(job).unwrap().task(None).unwrap().clone();
    assert_eq!((task.restarts, task.attempts), (FOR_FREE, 2));
    assert_eq!(task.past().spent, Restarts::default());
    assert!(matches!(task.past().stopped.as_deref(), Some(StopCause::Unhealthy { .. })));
    // Everything else fills up; the fenced GPU stays empty.
    let filler: Vec<JobId> = (0..3).map(|_| world.submit(gang(1, 1))).collect();
    let waits = filler.iter().filter(|j| world.state_of(**j) == JobState::Pending).count();
    assert_eq!(waits, 2, "one GPU of four is left, another is fenced");
    assert_eq!(world.engine.state().node(N1).unwrap().free_gpu_count(), 0);
    world.find(N1, &[]);
    let waits = filler.iter().filter(|j| world.state_of(**j) == JobState::Pending).count();
    assert_eq!(waits, 1, "the GPU is used again");
}

#[test]
fn what_is_suspended_does_not_wake_on_a_fenced_gpu() {
    let mut world = World::new(&[4]);
    world.can_suspend(N1);
    let job = world.submit(gang(1, 2));
    let lease = world.run(job);
    assert_eq!(world.gpus_of(job), [GpuIndex(0), GpuIndex(1)]);
    let target = TaskId::single(job);
    world.step(Command::Suspend { actor: admin(), target }).reply.unwrap();
    let said = |world: &mut World, suspension| {
        let phase = ReportedPhase::Running { exits: Vec::new() };
        world.report_all(N1, PartReport { suspension, ..PartReport::new(lease, phase) });
    };
    said(&mut world, Some(Suspension::Suspended { bytes: Bytes::gib(1) }));
    let fence = |gpu: u16| finding(&format!("xid-48/gpu{gpu}"), Some(gpu), HealthAction::ResetGpu);
    world.find(N1, &[fence(0), fence(2), fence(3)]);
    assert_eq!(world.stop_of(job), None, "it is on no GPU");
    world.take_orders();
    world.step(Command::Wake { actor: admin(), target }).reply.unwrap();
    let woken = |world: &mut World| {
        world.take_orders().into_iter().find_map(|(_, order)| match order {
            Order::Wake { gpus, .. } => Some(gpus),
            _ => None,
        })
    };
    assert_eq!(woken(&mut world), None, "one GPU is left, and it needs two");
    assert_eq!(world.state_of(job), JobState::Suspended);
    world.find(N1, &[fence(0), fence(3)]);
    // What was on GPU 0 goes to 2; what was on 1 stays there.
    assert_eq!(woken(&mut world), Some(vec![GpuIndex(2), GpuIndex(1)]));
    said(&mut world, None);
    assert_eq!(world.state_of(job), JobState::Running);
    assert_eq!(world.gpus_of(job), [GpuIndex(2), GpuIndex(1)]);
}

#[test]
fn what_waits_because_of_a_fence_is_told_so() {
    let mut world = World::new(&[2]);
    world.find(N1, &[finding("ecc/gpu1", Some(1), HealthAction::FenceGpu)]);
    let job = world.submit(gang(1, 2));
    let (state, plan) = (world.engine.state(), world.engine.plan());
    let verdict = tutti_sched::verdict(state, plan, TaskId::single(job), world.now).unwrap();
    let Verdict::NodesUnavailable(shortage) = &verdict else { panic!("{verdict:?}") };
    assert_eq!((shortage.blocked.fenced, shortage.blocked.gpus_busy), (1, 0));
    let expected =
        "waits for nodes to come back: needs a node with 2 GPUs, none fits now (1 fenced)";
    assert_eq!(tutti_sched::describe(&verdict), expected);
}

#[test]
fn a_contained_error_restarts_the_job_where_it_is() {
    let mut world = World::new(&[1]);
    let job = world.submit(gang(1, 1));
    let lease = world.run(job);
    let mut contained = finding("xid-94/gpu0", Some(0), HealthAction::RestartJob);
    contained.since = world.now;
    world.find(N1, std::slice::from_ref(&contained));
    world.killed(N1, lease);
    assert_eq!(world.gpus_of(job), [GpuIndex(0)], "the GPU stays in use");
    let task = world.engine.state().job(job).unwrap().task(None).unwrap();
    assert_eq!(task.restarts.node_failure, 1);
    let lease = world.run(job);
    assert_eq!(world.find(N1, std::slice::from_ref(&contained)), 0);
    assert_eq!(world.stop_of(job), None);
    // The same again, later, is news.
    world.now.0 += 1000;
    contained.since = world.now;
    world.find(N1, std::slice::from_ref(&contained));
    assert!(world.stop_of(job).is_some());
    world.killed(N1, lease);
    assert_eq!(world.state_of(job), JobState::Pending, "the second waits a moment");
}

#[test]
fn an_error_of_the_program_is_left_to_the_program() {
    let mut world = World::new(&[1]);
    let job = world.submit(gang(1, 1));
    let lease = world.run(job);
    let mut own = finding("xid-31/gpu0", Some(0), HealthAction::RestartJob);
    (own.by_job, own.since) = (true, world.now);
    world.find(N1, &[own]);
    assert_eq!(world.stop_of(job), None);
    world.done(N1, lease, &[(0, ExitStatus::Code(1))]);
    assert_eq!(world.state_of(job), JobState::Failed);
}

#[test]
fn a_job_that_dies_of_a_broken_gpu_is_not_blamed_whoever_is_heard_first() {
    for finding_first in [true, false] {
        let mut world = World::new(&[1, 1]);
        let job = world.submit(gang(2, 1));
        let lease = world.run(job);
        let broken = finding("xid-79/gpu0", Some(0), HealthAction::ResetGpu);
        if finding_first {
            world.find(N2, std::slice::from_ref(&broken));
        }
        world.done(N2, lease, &[(1, ExitStatus::Code(1))]);
        if !finding_first {
            world.find(N2, std::slice::from_ref(&broken));
        }
        world.killed(N1, lease);
        assert_eq!(world.state_of(job), JobState::Pending, "first: {finding_first}");
        let task = world.engine.state().job(job).unwrap().task(None).unwrap();
        assert_eq!(task.restarts, FOR_FREE);
    }
}

#[test]
fn a_node_that_must_reboot_is_cleared_until_it_has() {
    let mut world = World::new(&[2, 2]);
    let (hit, beside) = (world.submit(gang(1, 1)), world.submit(gang(1, 1)));
    let leases = [world.run(hit), world.run(beside)];
    assert_eq!([world.nodes_of(hit), world.nodes_of(beside)], [[N1], [N1]]);
    let bus = finding("xid-79/gpu0", Some(0), HealthAction::RebootNode);
    world.find(N1, &[bus]);
    let gpu_of = |cause| match cause {
        Some(StopCause::Unhealthy { gpu, .. }) => gpu,
        other => panic!("{other:?}"),
    };
    assert_eq!(gpu_of(world.stop_of(hit)), Some(GpuIndex(0)));
    assert_eq!(gpu_of(world.stop_of(beside)), None, "it has to go, its GPU is fine");
    let drain = world.engine.state().node(N1).unwrap().drain.clone().unwrap();
    assert!(drain.auto && drain.by == NOBODY && drain.reason.contains("xid-79"));
    leases.into_iter().for_each(|lease| world.killed(N1, lease));
    assert_eq!([world.nodes_of(hit), world.nodes_of(beside)], [[N2], [N2]]);
    assert_eq!(world.engine.state().node(N1).unwrap().state(), NodeState::Drained);
    world.find(N1, &[]);
    assert_eq!(world.engine.state().node(N1).unwrap().state(), NodeState::Ready);
}

#[test]
fn an_operator_is_not_overruled_by_what_was_known() {
    let mut world = World::new(&[1, 1, 1]);
    let check = finding("check/raid", None, HealthAction::DrainNode);
    world.find(N1, std::slice::from_ref(&check));
    assert_eq!(world.engine.state().node(N1).unwrap().state(), NodeState::Drained);
    world.step(Command::Resume { actor: admin(), node: "n1".into() }).reply.unwrap();
    world.find(N1, std::slice::from_ref(&check));
    let other = finding("disk", None, HealthAction::Note);
    world.find(N1, &[check.clone(), other]);
    assert_eq!(world.engine.state().node(N1).unwrap().state(), NodeState::Ready);
    // What an operator drained is not opened by a finding that goes.
    let (node, reason) = ("n1".to_owned(), String::new());
    world.step(Command::Drain { actor: admin(), node, reason, evict: false }).reply.unwrap();
    world.find(N1, &[]);
    assert_eq!(world.engine.state().node(N1).unwrap().state(), NodeState::Drained);
}

#[test]
fn suspicion_closes_few_nodes_and_breakage_any() {
    let mut world = World::new(&[1, 1, 1]);
    let soft = |key: &str| finding(key, None, HealthAction::DrainNode);
    let drained =
        |world: &World| world.engine.state().nodes.values().filter(|n| n.drain.is_some()).count();
    for node in [1, 2, 3] {
        world.find(NodeId(node), &[soft("clock")]);
    }
    assert_eq!(drained(&world), 1, "a clock that all are measured by may be wrong itself");
    for node in [1, 2, 3] {
        let hard = finding("xid-79/gpu0", Some(0), HealthAction::RebootNode);
        world.find(NodeId(node), &[soft("clock"), hard]);
    }
    assert_eq!(drained(&world), 3);
}

#[test]
fn findings_come_with_the_greeting_and_stay_while_the_node_is_away() {
    let mut world = World::new(&[1]);
    world.find(N1, &[finding("ecc/gpu0", Some(0), HealthAction::FenceGpu)]);
    world.gone(N1);
    assert!(world.engine.state().node(N1).unwrap().is_fenced(GpuIndex(0)));
    world.hello("n1", 1, Vec::new());
    assert!(!world.engine.state().node(N1).unwrap().is_fenced(GpuIndex(0)), "it has none any more");
}

/// An agent may say anything; what is kept is bounded.
#[test]
fn a_flood_of_findings_is_cut() {
    let mut world = World::new(&[1]);
    let mut all: Vec<Finding> =
        (0..200).map(|n| finding(&format!("note-{n}"), None, HealthAction::Note)).collect();
    all.push(finding("zz/gpu0", Some(0), HealthAction::FenceGpu));
    all[0].text = "é".repeat(10_000);
    world.find(N1, &all);
    let node = world.engine.state().node(N1).unwrap();
    assert_eq!(node.findings.len(), 64);
    assert!(node.is_fenced(GpuIndex(0)), "the hardest are kept");
    assert!(node.findings.iter().all(|f| f.text.chars().count() <= 400));
}

/// What must be rebooted is not counted among those that may be closed on suspicion; what becomes a
/// mere suspicion is.
#[test]
fn a_node_that_is_no_longer_broken_counts_as_suspect_or_is_opened() {
    let mut world = World::new(&[2, 2, 2, 2]);
    let finding = |action| [finding("xid-79/gpu0", Some(0), action)];
    world.find(N1, &finding(HealthAction::RebootNode));
    world.find(N2, &finding(HealthAction::DrainNode));
    let state = |world: &World, node| world.engine.state().node(node).unwrap().state();
    assert_eq!([N1, N2].map(|n| state(&world, n)), [NodeState::Drained; 2]);
    world.find(N1, &finding(HealthAction::DrainNode));
    assert_eq!(state(&world, N1), NodeState::Ready, "another one is closed on suspicion");
    world.find(N2, &finding(HealthAction::Note));
    assert_eq!(state(&world, N2), NodeState::Ready, "a note closes nothing");
}

/// Both were heard in one greeting: why a rank died comes first.
#[test]
fn who_died_of_a_broken_gpu_while_nobody_listened_is_not_blamed() {
    let mut world = World::new(&[2, 2]);
    let job = world.submit(gang(1, 1));
    let lease = world.run(job);
    world.gone(N1);
    let exits = vec![world.exit(0, ExitStatus::Signal(6))];
    let phase = tutti_model::ReportedPhase::Done { exits, error: None };
    let parts = vec![tutti_model::PartReport::new(lease, phase)];
    let facts = world.engine.state().node(N1).unwrap().facts.clone();
    let findings = vec![finding("xid-79/gpu0", Some(0), HealthAction::ResetGpu)];
    let greeting = tutti_model::Greeting { findings, ..tutti_model::Greeting::new(facts, parts) };
    world
        .step(Command::Hello { greeting: Box::new(greeting), session: 77, key: None })
        .reply
        .unwrap();
    let task = world.engine.state().job(job).unwrap().task(None).unwrap().clone();
    assert_eq!((task.restarts, task.attempts), (FOR_FREE, 2), "{:?}", task.phase);
}

/// A program that fails by its own doing is told what the driver said of its GPU.
#[test]
fn a_failed_job_names_what_its_gpu_said_meanwhile() {
    let mut world = World::new(&[2, 2]);
    let (job, other) = (world.submit(gang(1, 1)), world.submit(gang(1, 1)));
    let (lease, lease_of_other) = (world.run(job), world.run(other));
    assert_eq!((world.gpus_of(job), world.gpus_of(other)), (vec![GpuIndex(0)], vec![GpuIndex(1)]));
    let since = world.now;
    let own = Finding {
        by_job: true,
        since,
        ..finding("xid-31/gpu0", Some(0), HealthAction::RestartJob)
    };
    let note = Finding { since, ..finding("xid-43/gpu0", Some(0), HealthAction::Note) };
    world.find(N1, &[own, note]);
    assert_eq!(world.stop_of(job), None, "it is left to the program");
    let why = |world: &World, job: JobId| {
        let ended = world.engine.state().job(job).unwrap().ended(None).cloned().unwrap();
        let EndReason::RankFailed { saw, .. } = ended.reason else { panic!("{ended:?}") };
        saw
    };
    world.done(N1, lease, &[(0, ExitStatus::Code(1))]);
    assert_eq!(why(&world, job).as_deref(), Some("on n1: xid-31/gpu0 was seen"));
    world.done(N1, lease_of_other, &[(0, ExitStatus::Code(1))]);
    assert_eq!(why(&world, other), None, "its GPU is another one");
}
