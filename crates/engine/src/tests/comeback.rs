use tutti_model::{
    Blame, Checkpoint, EndReason, ExitStatus, Fault, JobId, JobSpec, JobState, LeaseId, NodeId,
    Order, PartProgress, PartReport, Phase, Rank, RankProgress, ReportedPhase, Restarts, Retry,
    Role, SavedPoint, Span, StopCause, Task, TaskId, Team,
};

use super::world::{World, ada, admin, gang};
use crate::{Actor, Command, Reply};

const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const N3: NodeId = NodeId(3);
const FAILED: ExitStatus = ExitStatus::Code(1);
const TERM: ExitStatus = ExitStatus::Signal(15);

fn accuses(rank: u32) -> PartProgress {
    let fault = Fault { rank: Rank(rank), op: "all_reduce".into(), why: "no word for 5s".into() };
    PartProgress { fault: Some(fault), ..PartProgress::default() }
}

fn at_step(rank: u32, step: u64) -> PartProgress {
    let rank = RankProgress {
        rank: Rank(rank),
        step,
        loss: None,
        tokens: None,
        age: Span(0),
        pace: Some(Span::secs(1)),
    };
    PartProgress { ranks: vec![rank], ..PartProgress::default() }
}

fn saved(step: u64) -> PartProgress {
    let point = SavedPoint { step, at: None, path: None, save_ms: None, node: None };
    PartProgress { saved: Some(point), ..PartProgress::default() }
}

fn say(world: &mut World, node: NodeId, lease: LeaseId, said: PartProgress) {
    let phase = ReportedPhase::Running { exits: Vec::new() };
    world.report_all(
        node,
        PartReport { progress: Some(Box::new(said)), ..PartReport::new(lease, phase) },
    );
}

fn task(world: &World, job: JobId) -> &Task {
    world.engine.state().job(job).and_then(|j| j.task(None)).expect("the task exists")
}

fn reason(world: &World, job: JobId) -> EndReason {
    let job = world.engine.state().job(job).expect("the job exists");
    job.ended(None).expect("it has ended").reason.clone()
}

fn why(world: &World, job: JobId) -> Option<StopCause> {
    match &task(world, job).attempt()?.phase {
        tutti_model::AttemptPhase::Stopping { why, .. } => Some(why.clone()),
        _ => None,
    }
}

/// It fails on the node where it runs alone.
fn fail(world: &mut World, job: JobId) {
    let lease = world.run(job);
    let node = world.nodes_of(job)[0];
    world.done(node, lease, &[(0, FAILED)]);
    // Longer than any back-off in these tests.
    world.wait(5, &[]);
}

#[test]
fn an_accusation_stops_the_gang_and_the_suspects_node_pays_even_if_the_accuser_has_left() {
    let mut world = World::new(&[8, 8, 8]);
    let job = world.submit(gang(2, 8));
    let lease = world.run(job);
    // In one report: what it saw, and that it is gone.
    let exits = vec![world.exit(0, FAILED)];
    let phase = ReportedPhase::Done { exits, error: None };
    let progress = Some(Box::new(accuses(1)));
    world.report_all(N1, PartReport { progress, ..PartReport::new(lease, phase) });
    assert!(matches!(why(&world, job), Some(StopCause::PeerFault { rank: Rank(1), node: N2, .. })));
    world.done(N2, lease, &[(1, ExitStatus::Signal(9))]);
    assert_eq!(world.state_of(job), JobState::Starting);
    assert_eq!(world.nodes_of(job), [N1, N3], "the node of the suspect is avoided");
    assert_eq!(task(&world, job).restarts.node_failure, 1);
}

#[test]
fn an_accusation_that_comes_after_the_exit_still_explains_it() {
    let mut world = World::new(&[8, 8, 8]);
    let job = world.submit(gang(2, 8));
    let lease = world.run(job);
    let exits = vec![world.exit(0, FAILED)];
    world.report(N1, lease, ReportedPhase::Running { exits: exits.clone() });
    assert_eq!(why(&world, job), Some(StopCause::RankFailed { rank: Rank(0), saw: None }));
    let phase = ReportedPhase::Done { exits, error: None };
    let progress = Some(Box::new(accuses(1)));
    world.report_all(N1, PartReport { progress, ..PartReport::new(lease, phase) });
    world.done(N2, lease, &[(1, TERM)]);
    assert_eq!(world.nodes_of(job), [N1, N3]);
}

#[test]
fn an_accused_rank_on_a_node_that_is_away_is_lost_at_once_whatever_comes_first() {
    for away_first in [true, false] {
        let mut world = World::new(&[8, 8, 8]);
        let job = world.submit(gang(2, 8));
        let lease = world.run(job);
        if away_first {
            world.gone(N2);
            say(&mut world, N1, lease, accuses(1));
        } else {
            say(&mut world, N1, lease, accuses(1));
            world.gone(N2);
        }
        world.done(N1, lease, &[(0, FAILED)]);
        assert_eq!(world.state_of(job), JobState::Starting, "nobody waits for the timeout");
        assert_eq!(world.nodes_of(job), [N1, N3]);
        // Its agent comes back with the old ranks: it stops them before it gets anything.
        let running = PartReport::new(lease, ReportedPhase::Running { exits: Vec::new() });
        world.hello("n2", 8, vec![running]);
        assert!(world.engine.state().node(N2).unwrap().stale.contains(&lease));
    }
}

#[test]
fn a_job_that_fails_everywhere_ends_with_its_own_error_and_not_with_its_budget() {
    let mut world = World::new(&[8, 8, 8, 8, 8]);
    let spec = JobSpec { retry: Retry { node_failure: 10, ..Retry::default() }, ..gang(2, 8) };
    let job = world.submit(spec);
    for attempt in 1..=3 {
        assert_eq!(task(&world, job).attempts, attempt);
        let lease = world.run(job);
        let nodes = world.nodes_of(job);
        say(&mut world, nodes[0], lease, accuses(1));
        world.done(nodes[0], lease, &[(0, FAILED)]);
        world.done(nodes[1], lease, &[(1, TERM)]);
        world.wait(5, &[]);
    }
    let EndReason::CrashLoop { attempts: 3, nodes, last } = reason(&world, job) else {
        panic!("{:?}", reason(&world, job));
    };
    assert_eq!(nodes.len(), 3, "three nodes, so it is none of them");
    assert!(matches!(*last, EndReason::PeerFault { rank: Rank(1), .. }), "{last:?}");
}

#[test]
fn a_node_that_starts_nothing_is_not_the_jobs_fault_until_three_of_them_are() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 8));
    for _ in 0..5 {
        let lease = world.lease(TaskId::single(job));
        world.broken(N1, lease, Blame::Node);
        world.wait(20, &[]);
    }
    assert_eq!(world.state_of(job), JobState::Starting, "there is no other node to tell");
    let mut world = World::new(&[8, 8, 8, 8]);
    let job = world.submit(gang(1, 8));
    for _ in 0..3 {
        let (node, lease) = (world.nodes_of(job)[0], world.lease(TaskId::single(job)));
        world.broken(node, lease, Blame::Node);
        world.wait(5, &[]);
    }
    let EndReason::CrashLoop { last, .. } = reason(&world, job) else {
        panic!("{:?}", reason(&world, job));
    };
    assert!(matches!(*last, EndReason::LaunchFailed { .. }), "{last:?}");
}

#[test]
fn a_neighbours_crash_speaks_against_neither_the_job_nor_the_node() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(1, 8));
    for _ in 0..4 {
        let (node, lease) = (world.nodes_of(job)[0], world.lease(TaskId::single(job)));
        world.broken(node, lease, Blame::Neighbour);
        world.wait(20, &[]);
    }
    assert_eq!(world.state_of(job), JobState::Starting, "no circle of its own");
    assert_eq!(task(&world, job).attempts, 5);
    for node in world.engine.state().nodes.values() {
        assert_eq!((node.strikes.len(), node.drain.is_none()), (0, true), "{}", node.facts.name);
    }
}

#[test]
fn who_asks_for_more_retries_of_failures_gets_them() {
    let mut world = World::new(&[8, 8]);
    let retry = Retry { job_failure: 4, ..Retry::default() };
    let job = world.submit(JobSpec { retry, ..gang(1, 8) });
    for _ in 0..4 {
        fail(&mut world, job);
        world.wait(10, &[]);
    }
    assert_eq!(task(&world, job).attempts, 5);
    fail(&mut world, job);
    assert_eq!(
        reason(&world, job),
        EndReason::RankFailed { rank: Rank(0), signal: None, saw: None }
    );
}

#[test]
fn lost_nodes_alone_are_never_a_circle() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(1, 8));
    for n in 0..5 {
        let node = world.nodes_of(job)[0];
        world.run(job);
        world.gone(node);
        world.wait(8, &[]);
        world.hello(&format!("n{}", node.0), 8, Vec::new());
        world.wait(20, &[]);
        assert_eq!(world.state_of(job), JobState::Starting, "after {} lost nodes", n + 1);
    }
    assert_eq!(task(&world, job).past().spent.node_failure, 5);
}

#[test]
fn what_became_safe_is_paid_for() {
    let mut world = World::new(&[8, 8, 8]);
    let retry = Retry { node_failure: 1, ..Retry::default() };
    let job = world.submit(JobSpec { retry, ..gang(1, 8) });
    for step in [100, 200, 300] {
        let (lease, node) = (world.run(job), world.nodes_of(job)[0]);
        say(&mut world, node, lease, saved(step));
        world.gone(node);
        world.wait(8, &[]);
        assert_eq!(world.state_of(job), JobState::Starting, "and without a wait");
        world.hello(&format!("n{}", node.0), 8, Vec::new());
    }
    let restarts = Restarts { node_failure: 3, ..Restarts::default() };
    assert_eq!(
        (task(&world, job).restarts, task(&world, job).past().spent.node_failure),
        (restarts, 1)
    );
    assert_eq!(task(&world, job).past().saved.as_ref().map(|p| p.step), Some(300));
    // Going over the same ground again is nothing new.
    let (lease, node) = (world.run(job), world.nodes_of(job)[0]);
    say(&mut world, node, lease, saved(300));
    world.gone(node);
    world.wait(8, &[]);
    assert_eq!(reason(&world, job), EndReason::NodeFailures { last: node });
}

#[test]
fn a_job_that_gets_further_each_time_is_no_crash_loop() {
    let mut world = World::new(&[8, 8]);
    let retry = Retry { job_failure: 3, ..Retry::default() };
    let job = world.submit(JobSpec { retry, ..gang(1, 8) });
    for step in [10, 20, 20, 20] {
        let (lease, node) = (world.run(job), world.nodes_of(job)[0]);
        say(&mut world, node, lease, at_step(0, step));
        world.done(node, lease, &[(0, FAILED)]);
        world.wait(10, &[]);
    }
    assert_eq!(task(&world, job).past().best_step, Some(20));
    assert_eq!(
        reason(&world, job),
        EndReason::RankFailed { rank: Rank(0), signal: None, saw: None }
    );
}

fn evict(world: &mut World, node: NodeId) {
    let node = world.engine.state().node_name(node);
    let reason = "fan".to_owned();
    world.step(Command::Drain { actor: admin(), node, reason, evict: true }).reply.unwrap();
}

fn saving(nodes: u32, time: Option<Span>) -> JobSpec {
    let checkpoint = Checkpoint {
        dir: "/ckpt".into(),
        signal: Some("USR1".into()),
        grace: Some(Span::secs(60)),
    };
    JobSpec { time, checkpoint: Some(checkpoint), ..gang(nodes, 8) }
}

#[test]
fn what_is_evicted_may_save_and_starts_again_for_free_however_it_left() {
    for status in [ExitStatus::Code(0), FAILED, TERM] {
        let mut world = World::new(&[8, 8, 8]);
        let job = world.submit(saving(2, None));
        let lease = world.run(job);
        world.take_orders();
        evict(&mut world, N2);
        let stop = Order::Stop { lease, grace: Span::secs(60), signal: Some("USR1".into()) };
        assert_eq!(world.take_orders(), [(N1, stop.clone()), (N2, stop)]);
        world.done(N1, lease, &[(0, status)]);
        world.done(N2, lease, &[(1, status)]);
        assert_eq!((world.state_of(job), world.nodes_of(job)), (JobState::Starting, vec![N1, N3]));
        assert_eq!(task(&world, job).restarts, Restarts::default());
    }
}

#[test]
fn what_is_cancelled_while_it_is_evicted_stays_away() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(1, 8));
    let (lease, node) = (world.run(job), world.nodes_of(job)[0]);
    evict(&mut world, node);
    world.step(Command::Cancel { actor: ada(), target: TaskId::single(job) }).reply.unwrap();
    world.done(node, lease, &[(0, TERM)]);
    assert_eq!(world.state_of(job), JobState::Cancelled);
}

#[test]
fn what_can_save_is_asked_in_time_to_be_gone_by_its_limit() {
    let mut world = World::new(&[8]);
    let job = world.submit(saving(1, Some(Span::secs(300))));
    let lease = world.run(job);
    world.wait(239, &[]);
    assert_eq!(world.state_of(job), JobState::Running);
    world.take_orders();
    world.wait(1, &[]);
    let stop = Order::Stop { lease, grace: Span::secs(60), signal: Some("USR1".into()) };
    assert!(world.take_orders().contains(&(N1, stop)));
    world.done(N1, lease, &[(0, ExitStatus::Code(0))]);
    assert_eq!(reason(&world, job), EndReason::TimeLimit, "it was not through");
    let short = saving(1, Some(Span::secs(80)));
    assert_eq!(short.runs_for(), Some(Span::secs(40)), "half of its time is its own");
}

/// `bob` of a team that has had nothing waits for a node while a gang of ada's runs.
fn with_rival(gpus: &[u16], spec: JobSpec) -> (World, JobId, JobId) {
    let mut world = World::new(gpus);
    world.set_policy(|p| {
        for (team, member) in [("a", "ada"), ("b", "bob")] {
            let members = [member.to_owned()].into();
            p.teams.insert(team.into(), Team { members, ..Team::default() });
        }
    });
    let job = world.submit(spec);
    world.run(job);
    let bob = Actor { user: "bob".into(), role: Role::User };
    let spec = Box::new(gang(1, 8));
    let command = Command::Submit { actor: bob, spec, user: None, key: None };
    let Ok(Reply::Submitted { job: rival, .. }) = world.step(command).reply else {
        panic!("the rival is accepted");
    };
    assert_eq!(world.state_of(rival), JobState::Pending);
    (world, job, rival)
}

#[test]
fn nobody_moves_in_while_a_gang_stops_and_the_spare_is_its_own() {
    let (mut world, job, rival) = with_rival(&[8, 8], gang(2, 8));
    let lease = world.lease(TaskId::single(job));
    say(&mut world, N1, lease, accuses(1));
    world.done(N1, lease, &[(0, FAILED)]);
    assert_eq!(world.state_of(rival), JobState::Pending, "the room is kept");
    // A node comes free in the same moment in which the gang is gone.
    world.hello("n3", 8, Vec::new());
    assert_eq!(world.nodes_of(rival), [N3], "what it does not need is not kept");
    world.done(N2, lease, &[(1, TERM)]);
    assert_eq!(world.nodes_of(job), [N1, N2], "avoided, but there is nothing else");
}

#[test]
fn a_gang_that_returns_goes_before_other_teams_and_takes_the_free_node() {
    let (mut world, job, rival) = with_rival(&[8, 8], gang(2, 8));
    let lease = world.lease(TaskId::single(job));
    world.hello("n3", 8, Vec::new());
    let (other, rival) = (rival, world.submit(JobSpec { time: None, ..gang(1, 8) }));
    assert_eq!(world.nodes_of(other), [N3]);
    let busy = world.run(other);
    say(&mut world, N1, lease, accuses(1));
    world.done(N1, lease, &[(0, FAILED)]);
    world.gone(N2);
    assert_eq!(world.state_of(job), JobState::Pending);
    assert_eq!(world.state_of(rival), JobState::Pending, "n1 is kept for the gang");
    world.done(N3, busy, &[(0, ExitStatus::Code(0))]);
    assert_eq!((world.nodes_of(job), world.state_of(rival)), (vec![N1, N3], JobState::Pending));
}

#[test]
fn an_elastic_gang_goes_on_with_what_is_left_at_once() {
    let elastic = Some(tutti_model::Elastic { min_nodes: 1, max_nodes: 2 });
    let spec = JobSpec { nodes: None, elastic, ..gang(1, 8) };
    let (mut world, job, rival) = with_rival(&[8, 8], spec);
    let lease = world.lease(TaskId::single(job));
    world.gone(N2);
    world.wait(8, &[]);
    world.done(N1, lease, &[(0, TERM)]);
    assert_eq!((world.state_of(job), world.nodes_of(job)), (JobState::Starting, vec![N1]));
    assert_eq!(world.state_of(rival), JobState::Pending);
}

#[test]
fn room_is_not_kept_for_ever_for_a_gang_that_does_not_go() {
    let (mut world, job, rival) = with_rival(&[8, 8], gang(2, 8));
    let lease = world.lease(TaskId::single(job));
    say(&mut world, N1, lease, accuses(1));
    world.done(N1, lease, &[(0, FAILED)]);
    world.wait(29, &[]);
    assert_eq!(world.state_of(rival), JobState::Pending);
    world.wait(1, &[]);
    assert_eq!((world.state_of(rival), world.nodes_of(rival)), (JobState::Starting, vec![N1]));
    assert_eq!(world.state_of(job), JobState::Stopping);
}

/// The cluster was down between two attempts: that hour is nobody's running time.
#[test]
fn time_between_attempts_is_counted_apart() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 8));
    world.run(job);
    let began = task(&world, job).first_started_at.unwrap();
    world.wait(10, &[]);
    assert_eq!(task(&world, job).between_attempts(world.now), Span(0));
    world.gone(N1);
    world.wait(20, &[N1]);
    let Phase::Pending { since: stopped, .. } = task(&world, job).phase else {
        panic!("{:?}", task(&world, job))
    };
    world.now.0 += 3_600_000;
    assert_eq!(task(&world, job).between_attempts(world.now), world.now.since(stopped));
    world.step(Command::Start);
    world.hello("n1", 8, Vec::new());
    world.wait(60, &[]);
    let lease = world.run(job);
    let placed = task(&world, job).attempt().unwrap().placed_at;
    world.wait(5, &[]);
    let between = task(&world, job).between_attempts(world.now);
    assert_eq!(between, placed.since(stopped));
    assert!(between >= Span::secs(3600), "{between}");
    world.done(N1, lease, &[(0, ExitStatus::Code(0))]);
    let ended = world.engine.state().job(job).unwrap().ended(None).unwrap();
    assert_eq!((ended.started_at, ended.between), (Some(began), between));
}
