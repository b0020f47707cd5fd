use tutti_model::{
    Attempt, AttemptPhase, Bytes, ExitStatus, Fault, GpuIndex, JobId, JobSpec, JobState, LeaseId,
    NodeId, Order, PartProgress, PartReport, Preempt, PreemptMode, Rank, ReportedPhase, Role, Span,
    SuspendCause, Suspension, TaskId, Verdict,
};

use super::world::{World, ada, admin, gang};
use crate::{Actor, CantSuspend, Command, Event, Rejected, Reply};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);

fn task(job: JobId) -> TaskId {
    TaskId::single(job)
}

fn suspend(world: &mut World, job: JobId) -> Result<Reply, Rejected> {
    world.step(Command::Suspend { actor: ada(), target: task(job) }).reply
}

fn resume(world: &mut World, job: JobId) -> Result<Reply, Rejected> {
    world.step(Command::Wake { actor: ada(), target: task(job) }).reply
}

fn attempt(world: &World, job: JobId) -> Attempt {
    let job = world.engine.state().job(job).unwrap();
    job.task(None).and_then(|t| t.attempt()).unwrap().clone()
}

fn says(world: &mut World, node: NodeId, lease: LeaseId, suspension: Option<Suspension>) {
    let phase = ReportedPhase::Running { exits: Vec::new() };
    world.report_all(node, PartReport { suspension, ..PartReport::new(lease, phase) });
}

fn out(world: &mut World, node: NodeId, lease: LeaseId, gib: u64) {
    says(world, node, lease, Some(Suspension::Suspended { bytes: Bytes::gib(gib) }));
}

/// One job over all nodes, which runs and can be suspended.
fn running(nodes: &[u16], gpus: u32) -> (World, JobId, LeaseId) {
    let mut world = World::new(nodes);
    (1..=nodes.len() as u32).for_each(|n| world.can_suspend(NodeId(n)));
    let job = world.submit(gang(nodes.len() as u32, gpus));
    let lease = world.run(job);
    world.wait(10, &[]);
    world.take_orders();
    (world, job, lease)
}

#[test]
fn a_suspended_job_lends_its_gpus_and_goes_on_where_it_was() {
    let (mut world, job, lease) = running(&[4], 2);
    assert_eq!(suspend(&mut world, job), Ok(Reply::Tasks(1)));
    assert_eq!(world.take_orders(), [(N1, Order::Suspend { lease })]);
    assert_eq!(world.state_of(job), JobState::Suspended);
    let used = |w: &World| {
        let used = &w.engine.state().node(N1).unwrap().used;
        (used.gpus.len(), used.cpus, used.mem)
    };
    // Nothing is known of what it has on its GPUs: all of it is kept for it in memory.
    assert_eq!(used(&world), (2, 1, Bytes::gib(160)));
    out(&mut world, N1, lease, 30);
    assert_eq!(used(&world), (0, 0, Bytes::gib(30)));
    assert_eq!(attempt(&world, job).charge, 0);
    let other = world.submit(gang(1, 3));
    assert_eq!(world.state_of(other), JobState::Starting);
    let waiter = world.run(other);
    world.wait(100, &[]);
    // It stays so until somebody resumes it, and then waits for GPUs of its node.
    assert_eq!(resume(&mut world, job), Ok(Reply::Tasks(1)));
    assert_eq!(world.state_of(job), JobState::Suspended);
    world.done(N1, waiter, &[(0, ExitStatus::Code(0))]);
    let gpus = vec![GpuIndex(0), GpuIndex(1)];
    let orders = world.take_orders();
    assert!(orders.contains(&(N1, Order::Wake { lease, gpus })), "{orders:?}");
    says(&mut world, N1, lease, None);
    assert_eq!((world.state_of(job), used(&world)), (JobState::Running, (2, 1, Bytes(0))));
    let it = attempt(&world, job);
    assert_eq!((it.number, it.ran(world.now)), (1, Some(Span::secs(10))), "its clock stood still");
    assert!(it.charge > 0);
    let task = world.engine.state().job(job).unwrap().task(None).unwrap().clone();
    assert_eq!((task.restarts.total(), task.preempted_at), (0, None));
    let nap = &it.naps[0];
    assert_eq!((nap.bytes, nap.until), (Bytes::gib(30), Some(world.now)));
    assert_eq!(nap.why, SuspendCause::Asked { by: "ada".into() });
}

#[test]
fn it_wakes_on_other_gpus_of_its_node_if_its_own_are_taken() {
    let (mut world, job, lease) = running(&[4], 2);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 30);
    let other = world.submit(gang(1, 2));
    world.run(other);
    world.take_orders();
    resume(&mut world, job).unwrap();
    let gpus = vec![GpuIndex(2), GpuIndex(3)];
    assert_eq!(world.take_orders(), [(N1, Order::Wake { lease, gpus: gpus.clone() })]);
    says(&mut world, N1, lease, None);
    assert_eq!(attempt(&world, job).parts[0].gpus, gpus);
}

#[test]
fn an_older_driver_brings_it_back_on_its_own_gpus_alone() {
    let (mut world, job, lease) = running(&[4], 2);
    world.can_not_move(N1);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 30);
    let other = world.submit(gang(1, 1));
    let taken = world.run(other);
    assert_eq!(attempt(&world, other).parts[0].gpus, [GpuIndex(0)]);
    world.take_orders();
    resume(&mut world, job).unwrap();
    assert_eq!(world.take_orders(), [], "three are free, and one of its own is not");
    let (state, plan) = (world.engine.state(), world.engine.plan());
    let verdict = tutti_sched::verdict(state, plan, task(job), world.now).unwrap();
    let words = "suspended by ada; wakes when its own GPUs 0, 1 are free on n1";
    assert_eq!(tutti_sched::describe(&verdict), words);
    world.done(N1, taken, &[(0, ExitStatus::Code(0))]);
    let gpus = vec![GpuIndex(0), GpuIndex(1)];
    assert!(world.take_orders().contains(&(N1, Order::Wake { lease, gpus })));
}

/// It is on its way out when it is released, and does not stay held for that.
#[test]
fn a_release_while_it_is_stopped_counts() {
    let (mut world, job, lease) = running(&[2], 2);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 1);
    let drain =
        Command::Drain { actor: admin(), node: "n1".into(), reason: "fans".into(), evict: true };
    world.step(drain).reply.unwrap();
    assert_eq!(world.state_of(job), JobState::Stopping);
    world.step(Command::Release { actor: ada(), job }).reply.unwrap();
    world.done(N1, lease, &[(0, ExitStatus::Signal(9))]);
    assert_eq!(world.state_of(job), JobState::Pending);
    assert!(!world.engine.state().job(job).unwrap().is_held(None));
}

/// The one that is kept is its own, though others are free.
#[test]
fn an_older_driver_gets_its_own_gpus_kept() {
    let (mut world, job, lease) = running(&[4], 2);
    world.can_not_move(N1);
    world.set_policy(|p| p.patience = Span::secs(60));
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 30);
    let other = world.submit(gang(1, 1));
    world.run(other);
    resume(&mut world, job).unwrap();
    world.wait(70, &[]);
    let claim = &world.engine.state().claims[&task(job)];
    assert_eq!(claim.parts[0].gpus, [GpuIndex(0), GpuIndex(1)]);
}

#[test]
fn orders_are_repeated_until_they_are_carried_out() {
    let (mut world, job, lease) = running(&[4], 2);
    suspend(&mut world, job).unwrap();
    world.take_orders();
    let says = |s: Option<Suspension>| {
        let phase = ReportedPhase::Running { exits: Vec::new() };
        vec![PartReport { suspension: s, ..PartReport::new(lease, phase) }]
    };
    let suspended = || Some(Suspension::Suspended { bytes: Bytes::gib(3) });
    let told = |world: &mut World, s| {
        world.beat(N1, says(s));
        world.take_orders().into_iter().map(|(_, order)| order).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut world, None), [Order::Suspend { lease }]);
    assert_eq!(told(&mut world, Some(Suspension::Suspending)), []);
    assert_eq!(told(&mut world, suspended()), []);
    // An agent that forgot is told again: the GPUs may be others' by now.
    assert_eq!(told(&mut world, None), [Order::Suspend { lease }]);
    resume(&mut world, job).unwrap();
    world.take_orders();
    let wake = Order::Wake { lease, gpus: vec![GpuIndex(0), GpuIndex(1)] };
    assert_eq!(told(&mut world, suspended()), std::slice::from_ref(&wake));
    assert_eq!(told(&mut world, Some(Suspension::Waking)), []);
    assert_eq!(told(&mut world, None), []);
    assert_eq!(world.state_of(job), JobState::Running);
    assert_eq!(told(&mut world, suspended()), [wake], "a late order is undone");
}

#[test]
fn of_a_gang_all_are_suspended_or_none() {
    let (mut world, job, lease) = running(&[2, 2], 2);
    suspend(&mut world, job).unwrap();
    world.take_orders();
    out(&mut world, N1, lease, 10);
    assert!(matches!(attempt(&world, job).phase, AttemptPhase::Suspending { .. }));
    let refused = || Some(Suspension::Refused { why: "IPC is in use".into() });
    says(&mut world, N2, lease, refused());
    let own = vec![GpuIndex(0), GpuIndex(1)];
    let wake = Order::Wake { lease, gpus: own };
    assert_eq!(world.take_orders(), [(N1, wake.clone()), (N2, wake)]);
    says(&mut world, N1, lease, None);
    assert_eq!(world.state_of(job), JobState::Running, "it was asked for by hand: it goes on");
    let nap = attempt(&world, job).naps[0].clone();
    assert_eq!(nap.refused.map(|r| (r.node, r.why)), Some((N2, "IPC is in use".into())));
    assert_eq!(nap.out_at, None);
    // The refusal is on record; the agent need not repeat it.
    let phase = ReportedPhase::Running { exits: Vec::new() };
    world.beat(N2, vec![PartReport { suspension: refused(), ..PartReport::new(lease, phase) }]);
    assert!(matches!(world.take_orders()[..], [(N2, Order::Wake { .. })]));
}

#[test]
fn what_does_not_get_out_in_time_is_undone_and_what_does_not_wake_is_started_again() {
    let (mut world, job, lease) = running(&[2], 2);
    suspend(&mut world, job).unwrap();
    world.wait(180 + 2 * 80 * 8 + 1, &[]);
    assert!(matches!(attempt(&world, job).phase, AttemptPhase::Waking { .. }));
    says(&mut world, N1, lease, None);
    assert_eq!(world.state_of(job), JobState::Running);
    let again = suspend(&mut world, job);
    assert!(matches!(again, Err(Rejected::CantSuspend { why: CantSuspend::Refused { .. }, .. })));
    world.wait(11, &[]);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 1);
    resume(&mut world, job).unwrap();
    world.take_orders();
    says(&mut world, N1, lease, Some(Suspension::Refused { why: "out of memory".into() }));
    assert_eq!(world.state_of(job), JobState::Stopping);
    assert!(matches!(world.take_orders()[..], [(N1, Order::Stop { .. })]));
    world.done(N1, lease, &[(0, ExitStatus::Signal(9))]);
    let restarts = world.engine.state().job(job).unwrap().task(None).unwrap().restarts;
    assert_eq!((restarts.node_failure, restarts.total()), (1, 1));
}

#[test]
fn a_suspended_job_can_be_cancelled_evicted_and_lost() {
    let (mut world, job, lease) = running(&[2], 2);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 1);
    world.take_orders();
    world.step(Command::Cancel { actor: ada(), target: task(job) }).reply.unwrap();
    assert!(matches!(world.take_orders()[..], [(N1, Order::Stop { .. })]));
    assert_eq!(resume(&mut world, job), Err(Rejected::NotSuspended(task(job))));
    world.done(N1, lease, &[(0, ExitStatus::Signal(9))]);
    assert_eq!(world.state_of(job), JobState::Cancelled);

    let (mut world, job, lease) = running(&[2], 2);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 1);
    let drain =
        Command::Drain { actor: admin(), node: "n1".into(), reason: "fans".into(), evict: true };
    world.step(drain).reply.unwrap();
    assert_eq!(world.state_of(job), JobState::Stopping);

    let (mut world, job, lease) = running(&[2, 2], 2);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 1);
    out(&mut world, N2, lease, 1);
    world.gone(N2);
    world.wait(8, &[N2]);
    assert_eq!(world.state_of(job), JobState::Stopping);
    world.done(N1, lease, &[(0, ExitStatus::Signal(9))]);
    let restarts = world.engine.state().job(job).unwrap().task(None).unwrap().restarts;
    assert_eq!(restarts.node_failure, 1);
}

#[test]
fn on_a_drained_node_what_is_suspended_goes_on_to_its_end() {
    let (mut world, job, lease) = running(&[2], 2);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 1);
    let (node, reason) = ("n1".to_owned(), "fans".to_owned());
    world.step(Command::Drain { actor: admin(), node, reason, evict: false }).reply.unwrap();
    resume(&mut world, job).unwrap();
    assert!(matches!(attempt(&world, job).phase, AttemptPhase::Waking { .. }));
}

#[test]
fn who_can_t_be_suspended_is_told_why() {
    let why = |r: Result<Reply, Rejected>| match r {
        Err(Rejected::CantSuspend { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let mut world = World::new(&[4]);
    let job = world.submit(gang(1, 4));
    assert_eq!(why(suspend(&mut world, job)), CantSuspend::NotRunning);
    world.run(job);
    let cant = why(suspend(&mut world, job));
    assert!(matches!(&cant, CantSuspend::Node { node, .. } if node == "n1"), "{cant}");
    world.can_suspend(N1);
    // What it really has is known from its agent. 4 x 80 GiB do not fit into 256.
    let lease = world.lease(task(job));
    let holds = |world: &mut World, gib| {
        let phase = ReportedPhase::Running { exits: Vec::new() };
        let gpu_mem = Some(Bytes::gib(gib));
        world.report_all(N1, PartReport { gpu_mem, ..PartReport::new(lease, phase) });
    };
    holds(&mut world, 300);
    let memory =
        CantSuspend::Memory { node: "n1".into(), needs: Bytes::gib(320), free: Bytes::gib(256) };
    assert_eq!(why(suspend(&mut world, job)), memory);
    holds(&mut world, 100);
    assert_eq!(suspend(&mut world, job), Ok(Reply::Tasks(1)));
    assert_eq!(attempt(&world, job).asleep_bytes(), Bytes::gib(110));
    let eve = Actor { user: "eve".into(), role: Role::User };
    let asked = world.step(Command::Wake { actor: eve, target: task(job) }).reply;
    assert!(matches!(asked, Err(Rejected::NotYours { .. })), "{asked:?}");
    let idle = world.submit(gang(1, 4));
    assert_eq!(suspend(&mut world, idle), Err(Rejected::NotRunning(task(idle))));
    assert_eq!(resume(&mut world, idle), Err(Rejected::NotSuspended(task(idle))));
}

/// The agent looks before it moves anything.
#[test]
fn one_that_has_only_just_begun_is_tried_with_all_the_memory_there_is() {
    let (mut world, job, lease) = running(&[4], 4);
    assert_eq!(suspend(&mut world, job), Ok(Reply::Tasks(1)));
    assert_eq!(attempt(&world, job).asleep_bytes(), Bytes::gib(256));
    out(&mut world, N1, lease, 3);
    assert_eq!(attempt(&world, job).asleep_bytes(), Bytes::gib(3));
}

#[test]
fn a_time_limit_and_a_stall_do_not_see_the_break() {
    let mut world = World::new(&[2]);
    world.can_suspend(N1);
    let mut spec = gang(1, 2);
    spec.time = Some(Span::secs(60));
    let job = world.submit(spec);
    let lease = world.run(job);
    world.wait(20, &[]);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 1);
    world.wait(300, &[]);
    assert_eq!(world.state_of(job), JobState::Suspended);
    resume(&mut world, job).unwrap();
    says(&mut world, N1, lease, None);
    world.wait(39, &[]);
    assert_eq!(world.state_of(job), JobState::Running);
    world.wait(1, &[]);
    assert_eq!(world.state_of(job), JobState::Stopping);
}

#[test]
fn what_ranks_say_of_each_other_while_some_stand_still_does_not_count() {
    let (mut world, job, lease) = running(&[2, 2], 2);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 1);
    let fault = Fault { rank: Rank(0), op: "all_reduce".into(), why: "silent".into() };
    let progress = PartProgress { fault: Some(fault), ..PartProgress::default() };
    let report = |suspension| {
        let phase = ReportedPhase::Running { exits: Vec::new() };
        let progress = Some(Box::new(progress.clone()));
        PartReport { progress, suspension, ..PartReport::new(lease, phase) }
    };
    world.report_all(N2, report(None));
    world.report_all(N2, report(Some(Suspension::Suspended { bytes: Bytes::gib(1) })));
    resume(&mut world, job).unwrap();
    says(&mut world, N1, lease, None);
    world.report_all(N2, report(None));
    assert_eq!(world.state_of(job), JobState::Running);
    // Its agent goes on saying what was said then.
    world.wait(90, &[]);
    world.report_all(N2, report(None));
    assert_eq!(world.state_of(job), JobState::Running);
}

#[test]
fn why_says_what_a_suspended_job_waits_for() {
    let (mut world, job, lease) = running(&[4], 2);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 1);
    let say = |world: &World| {
        let (state, plan) = (world.engine.state(), world.engine.plan());
        let verdict = tutti_sched::verdict(state, plan, task(job), world.now).unwrap();
        assert!(matches!(verdict, Verdict::Suspended { .. }));
        tutti_sched::describe(&verdict)
    };
    assert_eq!(say(&world), "suspended by ada; wakes when it is resumed (`tutti resume`)");
    let other = world.submit(gang(1, 4));
    world.run(other);
    resume(&mut world, job).unwrap();
    assert_eq!(say(&world), "suspended by ada; wakes when 2 h100 are free on n1");
}

#[test]
fn a_restarted_controller_goes_on_where_it_was() {
    let (mut world, job, lease) = running(&[2], 2);
    suspend(&mut world, job).unwrap();
    let tell = |world: &World| {
        let mut state = world.engine.state().clone();
        state.index = Default::default();
        state.nodes.values_mut().for_each(|n| n.used = Default::default());
        let engine = crate::Engine::restore(state, crate::Settings::default());
        assert_eq!(engine.state(), world.engine.state());
        let crate::Effect::Tell { order, .. } = engine.reconcile().pop()?;
        Some(order)
    };
    assert_eq!(tell(&world), Some(Order::Suspend { lease }));
    out(&mut world, N1, lease, 1);
    assert_eq!(tell(&world), None);
    resume(&mut world, job).unwrap();
    assert_eq!(tell(&world), Some(Order::Wake { lease, gpus: vec![GpuIndex(0), GpuIndex(1)] }));
    let step = world.beat(N1, Vec::new());
    assert!(step.records.iter().any(|r| matches!(r.event, Event::PartLost { .. })));
}

fn scavenger(mode: Option<PreemptMode>, spec: JobSpec) -> JobSpec {
    let preempt = mode.map(|mode| Preempt { mode });
    JobSpec { class: Some("scavenger".into()), preempt, ..spec }
}

/// A scavenger that has so much on the GPUs of each node, and has run for a while.
fn scavenging(nodes: &[u16], mode: Option<PreemptMode>, gib: u64) -> (World, JobId, LeaseId) {
    let mut world = World::new(nodes);
    (1..=nodes.len() as u32).for_each(|n| world.can_suspend(NodeId(n)));
    let spec = scavenger(mode, gang(nodes.len() as u32, nodes[0].into()));
    let job = world.submit(spec);
    let lease = world.run(job);
    for n in 1..=nodes.len() as u32 {
        has(&mut world, NodeId(n), lease, gib);
    }
    world.wait(10, &[]);
    world.take_orders();
    (world, job, lease)
}

fn has(world: &mut World, node: NodeId, lease: LeaseId, gib: u64) {
    let phase = ReportedPhase::Running { exits: Vec::new() };
    let gpu_mem = Some(Bytes::gib(gib));
    world.report_all(node, PartReport { gpu_mem, ..PartReport::new(lease, phase) });
}

#[test]
fn a_higher_class_borrows_the_gpus_of_a_lower_one_and_nothing_is_lost() {
    let (mut world, low, lease) = scavenging(&[4], Some(PreemptMode::Suspend), 40);
    let high = world.submit(gang(1, 4));
    assert_eq!(world.take_orders(), [(N1, Order::Suspend { lease })]);
    assert_eq!(world.state_of(high), JobState::Pending);
    out(&mut world, N1, lease, 42);
    assert_eq!(world.state_of(high), JobState::Starting);
    let (other, waits) = (world.run(high), world.submit(scavenger(None, gang(1, 4))));
    world.wait(100, &[]);
    world.take_orders();
    world.done(N1, other, &[(0, ExitStatus::Code(0))]);
    let gpus = (0..4).map(GpuIndex).collect();
    let orders = world.take_orders();
    assert!(orders.contains(&(N1, Order::Wake { lease, gpus })), "{orders:?}");
    says(&mut world, N1, lease, None);
    assert_eq!(world.state_of(low), JobState::Running);
    assert_eq!(world.state_of(waits), JobState::Pending, "who was there before goes before");
    let task = world.engine.state().job(low).unwrap().task(None).unwrap().clone();
    assert_eq!((task.restarts.total(), task.attempts), (0, 1));
    assert_eq!(task.attempt().unwrap().ran(world.now), Some(Span::secs(10)));
    // It is left alone for a while now.
    let again = world.submit(gang(1, 4));
    assert_eq!(
        (world.state_of(low), world.state_of(again)),
        (JobState::Running, JobState::Pending)
    );
}

#[test]
fn where_memory_is_too_short_the_victim_is_stopped() {
    // 256 GiB are there.
    for (gib, mem, suspends) in [(200, 0, true), (250, 0, false), (200, 100, false)] {
        let (mut world, _, lease) = scavenging(&[4], Some(PreemptMode::Suspend), gib);
        let mut spec = gang(1, 4);
        spec.mem_per_node = Some(Bytes::gib(mem));
        world.submit(spec);
        let orders = world.take_orders();
        let suspended = orders == [(N1, Order::Suspend { lease })];
        assert_eq!(suspended, suspends, "{gib} {mem} {orders:?}");
        assert_eq!(orders.len(), 1);
    }
}

#[test]
fn by_default_it_is_suspended_if_that_is_cheaper_than_what_would_be_lost() {
    // 20 GiB and what may have come since take 19.5 s, out and back.
    for (secs, suspends) in [(5, false), (30, true)] {
        let (mut world, _, lease) = scavenging(&[4], None, 20);
        world.wait(secs, &[]);
        world.submit(gang(1, 4));
        let orders = world.take_orders();
        assert_eq!(orders == [(N1, Order::Suspend { lease })], suspends, "{secs} {orders:?}");
    }
    let (mut world, ..) = scavenging(&[4], Some(PreemptMode::Requeue), 20);
    world.wait(600, &[]);
    world.submit(gang(1, 4));
    assert!(matches!(world.take_orders()[..], [(N1, Order::Stop { .. })]));
}

#[test]
fn a_victim_that_refuses_is_asked_to_save_and_stopped() {
    let (mut world, low, lease) = scavenging(&[2, 2], Some(PreemptMode::Suspend), 10);
    let high = world.submit(gang(2, 2));
    out(&mut world, N1, lease, 10);
    world.take_orders();
    says(&mut world, N2, lease, Some(Suspension::Refused { why: "IPC".into() }));
    assert_eq!(world.state_of(high), JobState::Pending);
    assert!(matches!(
        world.take_orders()[..],
        [(N1, Order::Wake { .. }), (N2, Order::Wake { .. })]
    ));
    says(&mut world, N1, lease, None);
    let stop = Order::Stop { lease, grace: Span::secs(30), signal: None };
    assert_eq!(world.take_orders(), [(N1, stop.clone()), (N2, stop)]);
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    world.done(N2, lease, &[(1, ExitStatus::Signal(15))]);
    assert_eq!(world.state_of(high), JobState::Starting);
    let task = world.engine.state().job(low).unwrap().task(None).unwrap().clone();
    assert_eq!(task.restarts.preemption, 1);
}

#[test]
fn one_that_takes_more_memory_than_there_is_makes_room_all_the_same() {
    let (mut world, low, lease) = scavenging(&[4], Some(PreemptMode::Suspend), 100);
    let mut spec = gang(1, 4);
    spec.mem_per_node = Some(Bytes::gib(140));
    let high = world.submit(spec);
    out(&mut world, N1, lease, 200);
    assert_eq!(world.state_of(low), JobState::Stopping, "neither would ever run");
    world.done(N1, lease, &[(0, ExitStatus::Signal(9))]);
    assert_eq!(world.state_of(high), JobState::Starting);
}

#[test]
fn several_wake_in_the_order_in_which_they_went() {
    let mut world = World::new(&[2]);
    world.can_suspend(N1);
    let low = [0, 1].map(|_| {
        let job = world.submit(scavenger(Some(PreemptMode::Suspend), gang(1, 1)));
        let lease = world.run(job);
        has(&mut world, N1, lease, 10);
        (job, lease)
    });
    world.wait(10, &[]);
    let high = world.submit(gang(1, 2));
    for (_, lease) in low.iter().rev() {
        out(&mut world, N1, *lease, 10);
        world.wait(1, &[]);
    }
    let lease = world.run(high);
    let middle = world.submit(gang(1, 1));
    world.done(N1, lease, &[(0, ExitStatus::Code(0))]);
    assert_eq!(world.state_of(middle), JobState::Starting, "a higher class goes first");
    let phases = low.map(|(job, _)| attempt(&world, job).phase);
    assert!(matches!(phases[0], AttemptPhase::Suspended { .. }), "{phases:?}");
    assert!(matches!(phases[1], AttemptPhase::Waking { .. }), "{phases:?}");
}

#[test]
fn who_is_suspended_for_long_gets_its_gpus_kept() {
    let (mut world, low, lease) = scavenging(&[4], Some(PreemptMode::Suspend), 10);
    world.set_policy(|p| p.patience = Span::secs(60));
    let high = world.submit(gang(1, 4));
    out(&mut world, N1, lease, 10);
    let other = world.run(high);
    world.done(N1, other, &[(0, ExitStatus::Code(0))]);
    says(&mut world, N1, lease, None);
    // By hand, so that others of its class move in.
    suspend(&mut world, low).unwrap();
    out(&mut world, N1, lease, 10);
    let small: Vec<LeaseId> = (0..4)
        .map(|_| {
            let job = world.submit(scavenger(Some(PreemptMode::Never), gang(1, 1)));
            world.run(job)
        })
        .collect();
    resume(&mut world, low).unwrap();
    world.wait(70, &[]);
    assert!(world.engine.state().claims.contains_key(&task(low)), "its GPUs are kept for it");
    for (n, lease) in small.into_iter().enumerate() {
        let more = world.submit(scavenger(Some(PreemptMode::Never), gang(1, 1)));
        world.done(N1, lease, &[(0, ExitStatus::Code(0))]);
        assert_eq!(world.state_of(more), JobState::Pending, "{n}");
    }
    assert!(matches!(attempt(&world, low).phase, AttemptPhase::Waking { .. }));
    assert!(world.engine.state().claims.is_empty());
}

/// Who wants the node alone waits for what is suspended there, and that can't end while it sleeps.
#[test]
fn what_is_waited_for_wakes_though_its_room_is_kept_for_a_higher_class() {
    let mut world = World::new(&[4]);
    world.can_suspend(N1);
    world.set_policy(|p| p.patience = Span::secs(5));
    let job = world.submit(JobSpec { class: Some("scavenger".into()), ..gang(1, 2) });
    let lease = world.run(job);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 3);
    let alone = world.submit(JobSpec { exclusive: true, ..gang(1, 1) });
    world.wait(10, &[]);
    assert!(world.engine.state().claims.contains_key(&task(alone)));
    world.take_orders();
    resume(&mut world, job).unwrap();
    let gpus = vec![GpuIndex(0), GpuIndex(1)];
    assert_eq!(world.take_orders(), [(N1, Order::Wake { lease, gpus })]);
}

#[test]
fn one_that_has_its_nodes_alone_is_not_suspended() {
    let mut world = World::new(&[4]);
    world.can_suspend(N1);
    let job = world.submit(JobSpec { exclusive: true, ..gang(1, 2) });
    world.run(job);
    let asked = suspend(&mut world, job);
    assert!(
        matches!(&asked, Err(Rejected::CantSuspend { why: CantSuspend::Exclusive, .. })),
        "{asked:?}"
    );
}

/// What its GPUs held is in memory until it is back, and is not its own demand.
#[test]
fn waking_costs_what_running_costs() {
    let (mut world, job, lease) = running(&[4], 1);
    let before = attempt(&world, job).charge;
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 200);
    assert_eq!(attempt(&world, job).charge, 0);
    resume(&mut world, job).unwrap();
    assert!(matches!(attempt(&world, job).phase, AttemptPhase::Waking { .. }));
    assert_eq!(attempt(&world, job).charge, before);
}

fn fence(world: &mut World, gpu: GpuIndex) {
    let session = world.session(N1);
    let broken = tutti_model::Finding {
        key: format!("xid-48/gpu{gpu}"),
        check: "xid".into(),
        gpu: Some(gpu),
        action: tutti_model::HealthAction::FenceGpu,
        text: "XID 48".into(),
        since: world.now,
        drill: false,
        by_job: false,
    };
    world.step(Command::Findings { node: N1, session, findings: vec![broken] }).reply.unwrap();
}

/// Others are whole, and the driver can't bring it back there.
#[test]
fn who_can_t_move_starts_again_when_one_of_its_own_gpus_is_broken() {
    let (mut world, job, lease) = running(&[4], 2);
    world.can_not_move(N1);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 3);
    fence(&mut world, GpuIndex(1));
    resume(&mut world, job).unwrap();
    assert_eq!(world.state_of(job), JobState::Suspended, "it may be for a moment");
    world.wait(700, &[]);
    assert_eq!(world.state_of(job), JobState::Stopping);
}

/// A fence may be for a moment. One that stays leaves nothing to wait for.
#[test]
fn who_can_never_wake_starts_again_elsewhere() {
    let (mut world, job, lease) = running(&[2], 2);
    suspend(&mut world, job).unwrap();
    out(&mut world, N1, lease, 3);
    fence(&mut world, GpuIndex(1));
    world.wait(700, &[]);
    assert_eq!(world.state_of(job), JobState::Suspended, "nobody has asked for it");
    resume(&mut world, job).unwrap();
    world.wait(500, &[]);
    assert_eq!(world.state_of(job), JobState::Suspended, "there is time to mend its GPU");
    world.wait(200, &[]);
    assert_eq!(world.state_of(job), JobState::Stopping);
    let restarts = |w: &World| w.engine.state().job(job).unwrap().task(None).unwrap().restarts;
    world.done(N1, lease, &[(0, ExitStatus::Signal(9))]);
    assert_eq!(world.state_of(job), JobState::Pending);
    assert_eq!((restarts(&world).health, restarts(&world).total()), (1, 1), "it is not to blame");
}

#[test]
fn memory_that_is_kept_for_others_is_not_given_by_hand() {
    let (mut world, job, lease) = running(&[4], 2);
    let phase = ReportedPhase::Running { exits: Vec::new() };
    let gpu_mem = Some(Bytes::gib(100));
    world.report_all(N1, PartReport { gpu_mem, ..PartReport::new(lease, phase) });
    let claimant = JobSpec { mem_per_node: Some(Bytes::gib(200)), ..gang(1, 4) };
    let other = world.submit(JobSpec { class: Some("scavenger".into()), ..gang(1, 2) });
    world.run(other);
    world.set_policy(|p| p.preemption.enabled = false);
    world.set_policy(|p| p.patience = Span::secs(5));
    let waits = world.submit(claimant);
    world.wait(10, &[]);
    assert!(world.engine.state().claims.contains_key(&task(waits)));
    let asked = suspend(&mut world, job);
    assert!(
        matches!(&asked, Err(Rejected::CantSuspend { why: CantSuspend::Memory { .. }, .. })),
        "{asked:?}"
    );
}
