//! Every GPU-second has one class. `World::step` checks the sums after every step.

use tutti_model::{
    Amounts, Day, ExitStatus, Finding, Goodput, GpuIndex, HealthAction, JobId, JobSpec, NodeId,
    Preempt, PreemptMode, ReportedPhase, Reservation, Span, Suspension, TaskId, Time, TimeClass,
    TimeSums,
};

use super::world::{World, admin, gang};
use crate::{Command, Rejected, apply, goodput_at, job_goodput_at, time_sums_at};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const OK: ExitStatus = ExitStatus::Code(0);
/// A second of one GPU.
const SECOND: u64 = 1_000_000;

/// The ledger as of now. Sums are the same without a copy of it.
fn ledger(world: &World) -> Goodput {
    let goodput = goodput_at(world.engine.state(), world.now);
    let mut sums = TimeSums::default();
    goodput.nodes.values().for_each(|book| sums.by_class.merge(&book.past));
    sums.unsaved = goodput.undecided().map(|(.., amount)| amount).sum();
    assert_eq!(time_sums_at(world.engine.state(), world.now), sums);
    goodput
}

fn spent(world: &World, job: JobId) -> Amounts {
    let goodput = ledger(world);
    let alone = job_goodput_at(world.engine.state(), job, world.now);
    assert_eq!(alone.of_job(job), goodput.of_job(job));
    goodput.of_job(job)
}

fn seconds(amounts: &Amounts) -> Vec<(TimeClass, u64)> {
    amounts.0.iter().map(|(class, amount)| (*class, amount / SECOND)).collect()
}

fn nobodys(world: &World, class: TimeClass) -> u64 {
    let goodput = ledger(world);
    let rows = goodput.days.values().flat_map(|rows| rows.iter());
    let rows = rows.filter(|(key, _)| key.user.is_empty());
    rows.map(|(_, amounts)| amounts.of(class)).sum::<u64>() / SECOND
}

/// A gang that took three seconds to start and has worked for ten.
fn at_work(world: &mut World, spec: JobSpec) -> JobId {
    let job = world.submit(spec);
    world.wait(3, &[]);
    world.run(job);
    world.wait(10, &[]);
    job
}

#[test]
fn work_that_ends_well_is_productive() {
    let mut world = World::new(&[4]);
    let job = at_work(&mut world, gang(1, 2));
    assert_eq!(seconds(&spent(&world, job)), [(TimeClass::Starting, 6)]);
    let lease = world.lease(TaskId::single(job));
    world.done(N1, lease, &[(0, OK)]);
    let all = [(TimeClass::Productive, 20), (TimeClass::Starting, 6)];
    assert_eq!(seconds(&spent(&world, job)), all);
    world.wait(5, &[]);
    assert_eq!(seconds(&spent(&world, job)), all);
    assert_eq!(nobodys(&world, TimeClass::Free), 2 * 13 + 4 * 5);
}

#[test]
fn a_failure_throws_away_what_was_not_safe() {
    let mut world = World::new(&[4, 4]);
    let mut spec = gang(2, 4);
    spec.retry.node_failure = 3;
    let job = at_work(&mut world, spec);
    world.step(Command::Saved { actor: admin(), task: TaskId::single(job) });
    // Silent for eight seconds, then lost.
    world.wait(8, &[N2]);
    let now = seconds(&spent(&world, job));
    assert!(now.contains(&(TimeClass::Productive, 80)), "{now:?}");
    let lease = world.lease(TaskId::single(job));
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    let now = seconds(&spent(&world, job));
    assert!(now.contains(&(TimeClass::LostToFailure, 8 * 8)), "{now:?}");
    world.wait(5, &[N2]);
    assert_eq!(nobodys(&world, TimeClass::Unhealthy), 4 * 5);
}

#[test]
fn preemption_is_told_from_failure() {
    let mut world = World::new(&[4]);
    let low = at_work(&mut world, JobSpec { class: Some("scavenger".into()), ..gang(1, 4) });
    let high = world.submit(gang(1, 4));
    world.wait(2, &[]);
    let lease = world.lease(TaskId::single(low));
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    let all = [(TimeClass::Starting, 12), (TimeClass::LostToPreemption, 48)];
    assert_eq!(seconds(&spent(&world, low)), all);
    world.run(high);
    world.wait(1, &[]);
    assert_eq!(seconds(&spent(&world, high)), []);
}

#[test]
fn what_its_owner_ends_is_not_done_again() {
    let mut world = World::new(&[4]);
    let job = at_work(&mut world, gang(1, 4));
    world.step(Command::Cancel { actor: admin(), target: TaskId::single(job) });
    let lease = world.lease(TaskId::single(job));
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    let all = [(TimeClass::Productive, 40), (TimeClass::Starting, 12)];
    assert_eq!(seconds(&spent(&world, job)), all);
}

#[test]
fn a_held_gpu_may_be_idle() {
    let mut world = World::new(&[4]);
    let job = at_work(&mut world, gang(1, 2));
    let gpus = world.engine.state().node(N1).unwrap().used.gpus.keys().copied().next();
    let idle = |gpu: Option<GpuIndex>| idle_since(gpu, None);
    assert_eq!(world.step(idle(gpus)).records.len(), 1);
    assert!(world.step(idle(gpus)).records.is_empty(), "a level says the same again");
    world.wait(5, &[]);
    assert_eq!(world.step(idle(None)).records.len(), 1);
    world.wait(1, &[]);
    let lease = world.lease(TaskId::single(job));
    world.done(N1, lease, &[(0, ExitStatus::Code(3))]);
    let all =
        [(TimeClass::Starting, 6), (TimeClass::LostToFailure, 20 + 5 + 2), (TimeClass::Idle, 5)];
    assert_eq!(seconds(&spent(&world, job)), all);
    assert!(world.step(idle(gpus)).records.is_empty(), "nobody holds it");
}

fn idle_since(gpus: impl IntoIterator<Item = GpuIndex>, since: Option<Time>) -> Command {
    Command::Activity { node: N1, idle: gpus.into_iter().collect(), since }
}

/// It takes minutes to tell that a GPU does nothing; they were no work either.
#[test]
fn idle_time_is_dated_back_to_when_it_began() {
    let mut world = World::new(&[4]);
    let job = at_work(&mut world, gang(1, 2));
    let gpus: Vec<GpuIndex> =
        world.engine.state().node(N1).unwrap().used.gpus.keys().copied().collect();
    world.wait(30, &[]);
    let since = Some(Time(world.now.0 - 20_000));
    world.step(idle_since(gpus[..1].iter().copied(), since));
    assert_eq!(spent(&world, job).of(TimeClass::Idle), 20 * SECOND, "one GPU, at once");
    world.wait(5, &[]);
    // The first goes on being idle: only the second is new.
    world.step(idle_since(gpus.iter().copied(), Some(Time(world.now.0 - 5_000))));
    assert_eq!(spent(&world, job).of(TimeClass::Idle), (20 + 5 + 5) * SECOND);
    // What it saved is safe, whatever is found out of that time later.
    world.step(idle_since([], None));
    world.wait(10, &[]);
    world.step(Command::Saved { actor: admin(), task: TaskId::single(job) });
    world.step(idle_since(gpus.iter().copied(), Some(Time(world.now.0 - 10_000))));
    assert_eq!(spent(&world, job).of(TimeClass::Idle), 30 * SECOND);
    let lease = world.lease(TaskId::single(job));
    world.done(N1, lease, &[(0, OK)]);
    let all = [
        (TimeClass::Productive, 2 * (10 + 30 + 5 + 10) - 30),
        (TimeClass::Starting, 6),
        (TimeClass::Idle, 30),
    ];
    assert_eq!(seconds(&spent(&world, job)), all, "nothing is lost or made up");
}

#[test]
fn a_suspension_costs_what_it_holds_while_it_moves() {
    let mut world = World::new(&[4]);
    world.can_suspend(N1);
    let preempt = Some(Preempt { mode: PreemptMode::Suspend });
    let job = at_work(&mut world, JobSpec { preempt, ..gang(1, 4) });
    let task = TaskId::single(job);
    world.step(Command::Suspend { actor: admin(), target: task });
    world.wait(2, &[]);
    let lease = world.lease(task);
    let running = || ReportedPhase::Running { exits: Vec::new() };
    let says = |suspension| tutti_model::PartReport {
        suspension,
        ..tutti_model::PartReport::new(lease, running())
    };
    let bytes = tutti_model::Bytes::gib(1);
    world.report_all(N1, says(Some(Suspension::Suspended { bytes })));
    world.wait(20, &[]);
    let all = [(TimeClass::Starting, 12), (TimeClass::Suspended, 8)];
    assert_eq!(seconds(&spent(&world, job)), all);
    assert_eq!(nobodys(&world, TimeClass::Free), 4 * 20);
    world.step(Command::Wake { actor: admin(), target: task });
    world.wait(1, &[]);
    world.report_all(N1, says(None));
    world.wait(1, &[]);
    world.done(N1, lease, &[(0, OK)]);
    let all = [(TimeClass::Productive, 44), (TimeClass::Starting, 12), (TimeClass::Suspended, 12)];
    assert_eq!(seconds(&spent(&world, job)), all);
}

/// Each counts by itself, and the last frees the GPUs of all.
#[test]
fn parts_of_a_gang_go_one_after_another() {
    let mut world = World::new(&[4, 4]);
    [N1, N2].into_iter().for_each(|node| world.can_suspend(node));
    let preempt = Some(Preempt { mode: PreemptMode::Suspend });
    let job = at_work(&mut world, JobSpec { preempt, ..gang(2, 4) });
    let task = TaskId::single(job);
    let lease = world.lease(task);
    let says = |suspension| tutti_model::PartReport {
        suspension,
        ..tutti_model::PartReport::new(lease, ReportedPhase::Running { exits: Vec::new() })
    };
    let bytes = tutti_model::Bytes::gib(1);
    world.step(Command::Suspend { actor: admin(), target: task });
    world.wait(2, &[]);
    world.report_all(N1, says(Some(Suspension::Suspended { bytes })));
    world.wait(3, &[]);
    assert_eq!(nobodys(&world, TimeClass::Free), 0, "the other is not out");
    world.report_all(N2, says(Some(Suspension::Suspended { bytes })));
    world.wait(20, &[]);
    let all = [(TimeClass::Starting, 24), (TimeClass::Suspended, 40)];
    assert_eq!(seconds(&spent(&world, job)), all);
    assert_eq!(nobodys(&world, TimeClass::Free), 8 * 20);
    world.step(Command::Wake { actor: admin(), target: task });
    world.wait(1, &[]);
    world.report_all(N1, says(None));
    world.wait(2, &[]);
    world.report_all(N2, says(None));
    world.wait(1, &[]);
    world.done(N1, lease, &[(0, OK)]);
    world.done(N2, lease, &[(1, OK)]);
    let all =
        [(TimeClass::Productive, 88), (TimeClass::Starting, 24), (TimeClass::Suspended, 40 + 24)];
    assert_eq!(seconds(&spent(&world, job)), all);
}

/// Whose activity it is nobody can tell.
#[test]
fn a_shared_gpu_is_not_idle_for_anybody_once_somebody_comes() {
    let mut world = World::new(&[1]);
    let share = || JobSpec { gpu_share: Some(0.3), ..JobSpec::shell("infer") };
    let first = at_work(&mut world, share());
    world.step(idle_since([GpuIndex(0)], None));
    world.wait(5, &[]);
    let second = world.submit(share());
    assert_eq!(world.nodes_of(second), [N1]);
    world.wait(5, &[]);
    let lease = world.lease(TaskId::single(first));
    world.done(N1, lease, &[(0, OK)]);
    let all = spent(&world, first);
    assert_eq!(all.of(TimeClass::Idle), 5 * SECOND * 3 / 10);
    assert_eq!(all.of(TimeClass::Productive), 15 * SECOND * 3 / 10);
}

#[test]
fn what_nobody_holds_is_free_reserved_or_unhealthy() {
    let mut world = World::new(&[4, 4]);
    let from = world.now.plus(Span::secs(10));
    world.set_policy(|policy| {
        policy.reservations.push(Reservation {
            name: "upgrade".into(),
            nodes: ["n2".to_owned()].into(),
            from,
            until: from.plus(Span::secs(5)),
            team: None,
        });
    });
    world.wait(30, &[]);
    assert_eq!(nobodys(&world, TimeClass::Reserved), 4 * 5);
    assert_eq!(nobodys(&world, TimeClass::Free), 4 * 30 + 4 * 25);
    let reason = "broken".to_owned();
    world.step(Command::Drain { actor: admin(), node: "n1".into(), reason, evict: false });
    let finding = Finding {
        key: "xid".into(),
        check: "xid".into(),
        gpu: Some(GpuIndex(1)),
        action: HealthAction::FenceGpu,
        text: "fell off the bus".into(),
        since: world.now,
        drill: false,
        by_job: false,
    };
    let session = world.session(N2);
    world.step(Command::Findings { node: N2, session, findings: vec![finding] });
    world.wait(10, &[]);
    assert_eq!(nobodys(&world, TimeClass::Unhealthy), 5 * 10);
}

#[test]
fn an_exclusive_job_pays_for_what_it_keeps_from_others() {
    let mut world = World::new(&[4]);
    let job = at_work(&mut world, JobSpec { exclusive: true, ..gang(1, 1) });
    let all = [(TimeClass::Starting, 3), (TimeClass::Idle, 3 * 13)];
    assert_eq!(seconds(&spent(&world, job)), all);
    assert_eq!(nobodys(&world, TimeClass::Free), 0);
}

#[test]
fn parts_of_a_gpu_are_counted_exactly() {
    let mut world = World::new(&[1]);
    let job = at_work(&mut world, JobSpec { gpu_share: Some(0.3), ..JobSpec::shell("infer") });
    let lease = world.lease(TaskId::single(job));
    world.done(N1, lease, &[(0, OK)]);
    assert_eq!(spent(&world, job).of(TimeClass::Productive), 10 * SECOND * 3 / 10);
    assert_eq!(spent(&world, job).of(TimeClass::Starting), 3 * SECOND * 3 / 10);
}

#[test]
fn a_day_is_dropped_when_it_is_final() {
    let mut world = World::new(&[4]);
    world.now = Time(Day::of(world.now).next().begins().0 - 20_000);
    world.wait(1, &[]);
    let day = Day::of(world.now);
    let job = at_work(&mut world, gang(1, 4));
    let refused = world.step(Command::DropLedger { day }).reply;
    assert_eq!(refused, Err(Rejected::DayNotSealed(day)));
    world.wait(20, &[]);
    assert!(world.engine.state().goodput.settled >= day.next().begins());
    assert!(world.engine.state().goodput.sealed_days().is_empty(), "its work is not judged");
    let lease = world.lease(TaskId::single(job));
    world.done(N1, lease, &[(0, OK)]);
    assert_eq!(world.engine.state().goodput.sealed_days(), [day]);
    let rows = world.engine.state().goodput.rows_of(day);
    assert!(rows.iter().any(|r| r.class == TimeClass::Productive && r.user == "ada"), "{rows:?}");
    assert_eq!(world.step(Command::DropLedger { day }).records.len(), 1);
    assert!(world.step(Command::DropLedger { day }).records.is_empty());
    assert!(world.engine.state().goodput.rows_of(day).is_empty());
}

/// A state from before there was a ledger: it begins with the next record, whatever runs.
#[test]
fn an_old_state_gets_its_books() {
    let mut world = World::new(&[4, 4]);
    at_work(&mut world, gang(2, 3));
    let mut old = world.engine.state().clone();
    old.goodput = Default::default();
    let record = crate::Record {
        seq: tutti_model::Seq(old.seq.0 + 1),
        at: world.now.plus(Span::secs(5)),
        event: crate::Event::NodeAway { node: N1 },
    };
    apply(&mut old, &record);
    assert_eq!(crate::invariants::check_all(&old), []);
    let later = crate::Record {
        at: record.at.plus(Span::secs(5)),
        event: crate::Event::LedgerSettled,
        ..record
    };
    apply(&mut old, &later);
    assert_eq!(crate::invariants::check_all(&old), []);
    let total: u64 = old.goodput.nodes.values().map(|book| book.past.total()).sum();
    let open: u64 = old.goodput.undecided().map(|(.., amount)| amount).sum();
    assert_eq!((total + open) / SECOND, 8 * 5);
}
