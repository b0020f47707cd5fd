use tutti_model::{
    Checkpoint, ClaimCause, ExitStatus, JobId, JobSpec, JobState, NodeId, Order, Preempt,
    PreemptMode, Priority, Span, StopCause, TaskId, Verdict,
};

use super::world::{World, ada, admin, gang};
use crate::{Actor, Command, Event, Rejected, Reply};

const N1: NodeId = NodeId(1);
const TERM: ExitStatus = ExitStatus::Signal(15);

fn scavenger(spec: JobSpec) -> JobSpec {
    JobSpec { class: Some("scavenger".into()), ..spec }
}

fn verdict(world: &World, job: JobId) -> Option<Verdict> {
    let task = TaskId::single(job);
    tutti_sched::verdict(world.engine.state(), world.engine.plan(), task, world.now)
}

/// One node of four GPUs, full of a scavenger that has run for ten seconds.
fn full(spec: JobSpec) -> (World, JobId, tutti_model::LeaseId) {
    let mut world = World::new(&[4]);
    let low = world.submit(scavenger(spec));
    let lease = world.run(low);
    world.wait(10, &[]);
    world.take_orders();
    (world, low, lease)
}

#[test]
fn a_victim_is_told_to_go_and_the_claimant_gets_its_room_when_it_is_gone() {
    let (mut world, low, lease) = full(gang(1, 4));
    let high = world.submit(gang(1, 2));
    let stop = Order::Stop { lease, grace: Span::secs(30), signal: None };
    assert_eq!(world.take_orders(), [(N1, stop)]);
    assert_eq!(
        (world.state_of(low), world.state_of(high)),
        (JobState::Stopping, JobState::Pending)
    );
    let claim = world.engine.state().claims[&TaskId::single(high)].clone();
    assert_eq!((claim.cause, claim.victims), (ClaimCause::Class, vec![TaskId::single(low)]));
    let waits = verdict(&world, high);
    assert!(matches!(waits, Some(Verdict::Claimed { .. })), "{waits:?}");
    // Nobody slips in, and the lease is held to the end.
    let other = world.submit(scavenger(gang(1, 1)));
    assert_eq!(world.state_of(other), JobState::Pending);
    world.done(N1, lease, &[(0, TERM)]);
    assert_eq!(world.state_of(high), JobState::Starting);
    assert!(world.engine.state().claims.is_empty());
    let task = world.engine.state().job(low).unwrap().task(None).unwrap().clone();
    assert_eq!((task.restarts.preemption, task.preempted_at), (1, Some(world.now)));
    assert_eq!(task.served, 4 * 10_000);
}

#[test]
fn a_preempted_gang_gets_the_time_and_the_signal_that_it_asked_for() {
    let checkpoint = Checkpoint {
        dir: "/ckpt".into(),
        signal: Some("USR1".into()),
        grace: Some(Span::secs(120)),
    };
    let (mut world, _, lease) = full(JobSpec { checkpoint: Some(checkpoint), ..gang(1, 4) });
    world.submit(gang(1, 2));
    let signal = Some("USR1".to_owned());
    let stop = Order::Stop { lease, grace: Span::secs(120), signal };
    assert_eq!(world.take_orders(), [(N1, stop)]);
}

#[test]
fn who_must_never_be_preempted_is_not() {
    let preempt = Some(Preempt { mode: PreemptMode::Never });
    let (mut world, low, _) = full(JobSpec { preempt, ..gang(1, 4) });
    let high = world.submit(gang(1, 2));
    assert_eq!((world.state_of(low), world.state_of(high)), (JobState::Running, JobState::Pending));
}

#[test]
fn nobody_is_preempted_twice_within_the_time() {
    let (mut world, low, lease) = full(gang(1, 4));
    // Not because of its patience.
    world.set_policy(|p| p.patience = Span::secs(86_400));
    let first = world.submit(gang(1, 4));
    world.done(N1, lease, &[(0, TERM)]);
    let lease = world.run(first);
    world.done(N1, lease, &[(0, ExitStatus::Code(0))]);
    let lease = world.run(low);
    let second = world.submit(gang(1, 4));
    assert_eq!(world.state_of(low), JobState::Running, "it was preempted a moment ago");
    // Time alone makes it fair game again, and the pass comes without any other event.
    assert!(world.engine.next_wakeup().is_some());
    world.wait(1800, &[]);
    assert_eq!(world.state_of(low), JobState::Stopping);
    world.done(N1, lease, &[(0, TERM)]);
    assert_eq!(world.state_of(second), JobState::Starting);
}

#[test]
fn a_claim_ends_with_its_claimant() {
    let (mut world, low, lease) = full(gang(1, 4));
    let high = world.submit(gang(1, 2));
    world.step(Command::Cancel { actor: ada(), target: TaskId::single(high) }).reply.unwrap();
    assert!(world.engine.state().claims.is_empty());
    world.done(N1, lease, &[(0, TERM)]);
    assert_eq!(world.state_of(low), JobState::Starting, "the room is its own again");
}

#[test]
fn a_claim_ends_when_its_owner_is_held_or_a_node_of_it_is_lost() {
    let (mut world, _, _) = full(gang(1, 4));
    let high = world.submit(gang(1, 2));
    world.step(Command::Hold { actor: ada(), job: high }).reply.unwrap();
    assert!(world.engine.state().claims.is_empty());
    let (mut world, _, _) = full(gang(1, 4));
    world.submit(gang(1, 2));
    assert_eq!(world.engine.state().claims.len(), 1);
    world.gone(N1);
    world.wait(8, &[]);
    assert!(world.engine.state().claims.is_empty());
}

#[test]
fn a_cancelled_victim_is_not_started_again() {
    let (mut world, low, lease) = full(gang(1, 4));
    let high = world.submit(gang(1, 2));
    world.step(Command::Cancel { actor: ada(), target: TaskId::single(low) }).reply.unwrap();
    world.done(N1, lease, &[(0, TERM)]);
    assert_eq!(world.state_of(low), JobState::Cancelled);
    assert_eq!(world.state_of(high), JobState::Starting);
}

#[test]
fn a_guarantee_comes_back_on_demand() {
    let mut world = World::new(&[4, 4]);
    world.set_policy(|p| {
        for (name, member) in [("a", "ada"), ("b", "bob")] {
            let team = p.teams.entry(name.to_owned()).or_default();
            team.guarantee.any = 4;
            team.members.insert(member.to_owned());
        }
    });
    let bob = Actor { user: "bob".into(), role: tutti_model::Role::User };
    let jobs: Vec<JobId> = (0..2)
        .map(|_| {
            let spec = Box::new(JobSpec { priority: Priority::HIGH, ..gang(1, 4) });
            let command = Command::Submit { actor: bob.clone(), spec, user: None, key: None };
            match world.step(command).reply {
                Ok(Reply::Submitted { job, .. }) => job,
                other => panic!("{other:?}"),
            }
        })
        .collect();
    jobs.iter().for_each(|&job| {
        world.run(job);
        world.wait(1, &[]);
    });
    let own = world.submit(gang(1, 4));
    // The younger has less to lose.
    assert_eq!(
        jobs.iter().map(|&j| world.state_of(j)).collect::<Vec<_>>(),
        [JobState::Running, JobState::Stopping]
    );
    let (node, lease) = (world.nodes_of(jobs[1])[0], world.lease(TaskId::single(jobs[1])));
    world.done(node, lease, &[(0, TERM)]);
    assert_eq!(world.state_of(own), JobState::Starting);
    let more = world.submit(gang(1, 4));
    assert_eq!(world.state_of(jobs[0]), JobState::Running, "b keeps what is guaranteed to it");
    assert_eq!(world.state_of(more), JobState::Pending);
}

#[test]
fn what_is_saved_is_not_lost() {
    let mut world = World::new(&[4]);
    let low = world.submit(scavenger(gang(1, 2)));
    let other = world.submit(scavenger(gang(1, 2)));
    let task = TaskId::single(low);
    let refused = world.step(Command::Saved { actor: ada(), task }).reply;
    assert_eq!(refused, Err(Rejected::NotRunning(task)));
    world.run(low);
    world.run(other);
    world.wait(100, &[]);
    let bob = Actor { user: "bob".into(), role: tutti_model::Role::User };
    let refused = world.step(Command::Saved { actor: bob, task }).reply;
    assert!(matches!(refused, Err(Rejected::NotYours { .. })), "{refused:?}");
    let none = TaskId::of_array(low, 3);
    let refused = world.step(Command::Saved { actor: ada(), task: none }).reply;
    assert_eq!(refused, Err(Rejected::NoSuchTask(none)));
    world.step(Command::Saved { actor: admin(), task }).reply.unwrap();
    world.wait(1, &[]);
    world.submit(gang(1, 2));
    assert_eq!(world.state_of(low), JobState::Stopping, "it loses a second, the other a hundred");
    assert_eq!(world.state_of(other), JobState::Running);
}

#[test]
fn the_stop_of_a_victim_follows_the_claim_in_the_journal() {
    let (mut world, low, lease) = full(gang(1, 4));
    let command =
        Command::Submit { actor: ada(), spec: Box::new(gang(1, 2)), user: None, key: None };
    world.engine.step(command, world.now).reply.unwrap();
    let pass = world.engine.schedule(world.now);
    let high = JobId(low.0 + 1);
    let events: Vec<&Event> = pass.records.iter().map(|r| &r.event).collect();
    assert!(matches!(events[0], Event::Claimed { task, .. } if task.job == high), "{events:?}");
    let why = StopCause::Preempted { for_job: high, not_suspended: None };
    assert_eq!(events[1], &Event::Stopping { lease, why });
}

#[test]
fn a_claim_outlives_a_restart_and_an_agent_that_is_away_for_a_moment() {
    for disturb in [
        |w: &mut World| w.gone(N1),
        |w: &mut World| {
            w.step(Command::Start);
        },
    ] {
        let (mut world, low, lease) = full(gang(1, 4));
        let high = world.submit(gang(1, 2));
        disturb(&mut world);
        world.engine.schedule(world.now);
        assert!(world.engine.state().claims.contains_key(&TaskId::single(high)));
        let parts = world.reports_of(N1);
        world.hello("n1", 4, parts);
        world.done(N1, lease, &[(0, TERM)]);
        assert_eq!(world.state_of(high), JobState::Starting);
        assert_eq!(world.state_of(low), JobState::Pending);
    }
}

/// What an overdue task gives up when it starts elsewhere is seen by those tried before it.
#[test]
fn room_of_a_claim_that_is_dropped_is_seen() {
    let mut world = World::new(&[8, 4, 4, 4]);
    let first = world.submit(gang(1, 8));
    let rest = [(); 3].map(|()| world.submit(gang(1, 4)));
    rest.into_iter().chain([first]).for_each(|job| {
        world.run(job);
    });
    let homes = rest.map(|job| (world.nodes_of(job), job));
    let gang_of_two = world.submit(gang(2, 4));
    world.wait(302, &[]);
    assert_eq!(world.engine.state().claims.len(), 1, "it has waited longer than its patience");
    world.end_of(TaskId::single(first));
    world.engine.schedule(world.now);
    let large = world.submit(JobSpec { priority: Priority(50), ..gang(1, 8) });
    for node in [3, 4] {
        let (_, job) = homes.iter().find(|(home, _)| *home == [NodeId(node)]).unwrap();
        world.end_of(TaskId::single(*job));
    }
    while world.engine.wants_schedule() {
        world.engine.schedule(world.now);
    }
    assert_ne!(world.state_of(gang_of_two), JobState::Pending);
    assert_ne!(world.state_of(large), JobState::Pending);
}
