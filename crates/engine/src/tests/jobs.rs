use tutti_model::{
    Checkpoint, Elastic, EndReason, ExitStatus, Grant, Impossible, JobId, JobSpec, JobState,
    Launcher, NodeId, Order, Outcome, Priority, Role, Span, TaskId, Time, Token, Topology, Verdict,
};

use super::world::{World, ada, admin, gang};
use crate::{Actor, Command, Rejected, Reply};

const N1: NodeId = NodeId(1);
const OK: ExitStatus = ExitStatus::Code(0);

fn after(spec: JobSpec, on: &str) -> JobSpec {
    JobSpec { after: vec![on.parse().unwrap()], ..spec }
}

fn launched(launcher: Launcher, line: &str, ranks_per_node: Option<u32>) -> JobSpec {
    JobSpec { launcher, ranks_per_node, ..JobSpec::shell(line) }
}

fn end_of(world: &World, job: JobId) -> tutti_model::Ended {
    world.engine.state().job(job).unwrap().ended(None).expect("it has ended").clone()
}

#[test]
fn a_job_is_placed_run_and_completed() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 2));
    assert!(matches!(&world.take_orders()[..], [(N1, Order::Start(l))] if l.gpus.len() == 2));
    let lease = world.run(job);
    assert_eq!(world.state_of(job), JobState::Running);
    world.done(N1, lease, &[(0, OK)]);
    assert_eq!(world.state_of(job), JobState::Completed);
    assert_eq!(world.take_orders(), [(N1, Order::Forget { lease })]);
    assert_eq!(world.engine.state().node(N1).unwrap().free_gpu_count(), 8);
}

#[test]
fn the_same_key_gives_the_same_job() {
    let mut world = World::new(&[8]);
    let first = world.submit_with_key(gang(1, 1), Some("k")).unwrap();
    assert_eq!(world.submit_with_key(gang(1, 1), Some("k")).unwrap(), first);
    assert_eq!(world.submit_with_key(gang(1, 2), Some("k")), Err(Rejected::KeyReused(first)));
    assert_ne!(world.submit_with_key(gang(1, 1), Some("other")).unwrap(), first);
}

#[test]
fn what_can_never_run_is_refused_with_the_number_that_is_too_large() {
    let mut world = World::new(&[8, 8]);
    let refused = |world: &mut World, spec| match world.try_submit(spec) {
        Err(Rejected::Impossible(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(&mut world, gang(1, 9)),
        Impossible::TooManyGpusPerNode { wanted: 9, have: 8, model: None }
    );
    assert_eq!(
        refused(&mut world, gang(3, 1)),
        Impossible::TooManyNodes { wanted: 3, have: 2, model: None }
    );
    let spec = JobSpec { cpus_per_node: Some(33), ..gang(1, 1) };
    assert_eq!(refused(&mut world, spec), Impossible::TooManyCpus { wanted: 33, have: 32 });
}

fn elastic(min_nodes: u32, max_nodes: u32) -> Option<Elastic> {
    Some(Elastic { min_nodes, max_nodes })
}

fn checkpoint(signal: &str) -> Option<Checkpoint> {
    Some(Checkpoint { dir: "/ckpt".into(), signal: Some(signal.into()), grace: None })
}

#[test]
fn nonsense_is_refused_by_key() {
    let mut world = World::new(&[8]);
    let base = || gang(1, 1);
    let cases = [
        ("run", JobSpec { run: tutti_model::Command::Shell("  ".into()).into(), ..base() }),
        ("nodes", JobSpec { nodes: Some(0), ..base() }),
        ("gpus", JobSpec { gpus: Some(2), ..base() }),
        ("time", JobSpec { time: Some(Span(0)), ..base() }),
        ("gpu_share", JobSpec { gpu_share: Some(1.5), ..base() }),
        ("gpu_share", JobSpec { gpu_share: Some(0.0001), ..base() }),
        ("gpus_per_node", JobSpec { gpus_per_node: "h100:0".parse().ok(), ..base() }),
        ("gpu_share", JobSpec { gpu_share: Some(f64::NAN), ..base() }),
        ("gpu_share", JobSpec { gpu_share: Some(0.5), ..gang(1, 2) }),
        ("elastic", JobSpec { elastic: elastic(0, 2), nodes: None, ..base() }),
        ("elastic", JobSpec { elastic: elastic(3, 2), nodes: None, ..base() }),
        ("elastic", JobSpec { elastic: elastic(2, 3), nodes: Some(1), ..base() }),
        ("topology", JobSpec { topology: Some(Topology::Island), ..gang(2, 1) }),
        ("labels", JobSpec { labels: [("".into(), "a".into())].into(), ..base() }),
        ("labels", JobSpec { labels: [("zone".into(), "a||b".into())].into(), ..base() }),
        ("class", JobSpec { class: Some("urgent".into()), ..base() }),
        ("checkpoint.signal", JobSpec { checkpoint: checkpoint("KILL"), ..base() }),
        ("ranks_per_node", launched(Launcher::Torchrun, "torchrun a.py", Some(2))),
        ("ranks_per_node", launched(Launcher::Tf, "python a.py", Some(2))),
        ("ranks_per_node", launched(Launcher::Ray, "python a.py", Some(2))),
        ("run", launched(Launcher::Torch, "torchrun a.py", None)),
        ("run", launched(Launcher::Deepspeed, "/opt/bin/deepspeed a.py", None)),
        ("launcher", launched(Launcher::Jax, "mpirun ./a", None)),
        ("workdir", JobSpec { workdir: Some("here".into()), ..base() }),
        ("env", JobSpec { env: [("A=B".into(), "c".into())].into(), ..base() }),
        ("env", JobSpec { env: [("A B".into(), "1".into())].into(), ..base() }),
        ("env", JobSpec { env: [("A\nB".into(), "1".into())].into(), ..base() }),
        ("name", JobSpec { name: Some(String::new()), ..base() }),
        ("name", JobSpec { name: Some(" \t".into()), ..base() }),
        ("team", JobSpec { team: Some(String::new()), ..base() }),
    ];
    for (expected, spec) in cases {
        match world.try_submit(spec) {
            Err(Rejected::BadSpec { key, .. }) => assert_eq!(key, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn dependencies_start_when_met_and_cancel_when_they_cannot_be() {
    let mut world = World::new(&[8]);
    let first = world.submit(gang(1, 1));
    let on_ok = world.submit(after(gang(1, 1), &format!("ok:{first}")));
    let on_failed = world.submit(after(gang(1, 1), &format!("failed:{first}")));
    let then = world.submit(after(gang(1, 1), &format!("any:{on_failed}")));
    let chained = world.submit(after(gang(1, 1), &format!("ok:{on_failed}")));
    let verdict = tutti_sched::verdict(
        world.engine.state(),
        world.engine.plan(),
        TaskId::single(on_ok),
        world.now,
    );
    assert!(matches!(verdict, Some(Verdict::Dependencies { .. })), "{verdict:?}");
    let lease = world.run(first);
    world.done(N1, lease, &[(0, OK)]);
    assert_eq!(world.state_of(on_ok), JobState::Starting);
    assert_eq!(end_of(&world, on_failed).reason, EndReason::DependencyUnmet { job: first });
    assert_eq!(end_of(&world, chained).reason, EndReason::DependencyUnmet { job: on_failed });
    assert_eq!(world.state_of(then), JobState::Starting);
}

#[test]
fn unknown_own_and_hopeless_dependencies_are_refused() {
    let mut world = World::new(&[8]);
    let refused =
        |world: &mut World, on: &str| world.try_submit(after(gang(1, 1), on)).unwrap_err();
    assert_eq!(refused(&mut world, "1"), Rejected::DependencyCycle(JobId(1)));
    assert_eq!(refused(&mut world, "7"), Rejected::UnknownDependency(JobId(7)));
    let first = world.submit(gang(1, 1));
    let lease = world.run(first);
    world.done(N1, lease, &[(0, OK)]);
    assert_eq!(refused(&mut world, "failed:1"), Rejected::DependencyUnmet(first));
}

#[test]
fn a_held_job_waits_for_its_release() {
    let mut world = World::new(&[8]);
    let job = world.submit(JobSpec { hold: true, ..gang(1, 1) });
    assert_eq!(world.state_of(job), JobState::Pending);
    world.step(Command::Release { actor: ada(), job }).reply.unwrap();
    assert_eq!(world.state_of(job), JobState::Starting);
}

#[test]
fn only_the_owner_or_an_admin_acts_on_a_job() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 1));
    let bob = Actor { user: "bob".into(), role: Role::User };
    let target = TaskId::single(job);
    let refused = world.step(Command::Cancel { actor: bob, target }).reply;
    assert!(matches!(refused, Err(Rejected::NotYours { .. })), "{refused:?}");
    let viewer = Actor { user: "ada".into(), role: Role::Viewer };
    let refused = world.step(Command::Cancel { actor: viewer, target }).reply;
    assert!(matches!(refused, Err(Rejected::RoleTooLow { .. })), "{refused:?}");
    let priority = Priority::HIGH;
    let jump = world.step(Command::SetPriority { actor: ada(), job, priority }).reply;
    assert!(matches!(jump, Err(Rejected::RoleTooLow { .. })), "{jump:?}");
    assert_eq!(world.step(Command::Cancel { actor: admin(), target }).reply, Ok(Reply::Tasks(1)));
}

#[test]
fn cancelling_gives_grace_and_keeps_the_lease_until_the_processes_are_gone() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 8));
    let lease = world.run(job);
    world.take_orders();
    world.step(Command::Cancel { actor: ada(), target: TaskId::single(job) }).reply.unwrap();
    assert_eq!(
        world.take_orders(),
        [(N1, Order::Stop { lease, grace: Span::secs(30), signal: None })]
    );
    assert_eq!(world.state_of(job), JobState::Stopping);
    assert_eq!(world.engine.state().node(N1).unwrap().free_gpu_count(), 0);
    world.done(N1, lease, &[(0, ExitStatus::Signal(15))]);
    assert_eq!(world.state_of(job), JobState::Cancelled);
    assert_eq!(end_of(&world, job).exit_code, Some(143));
}

#[test]
fn a_time_limit_stops_the_job() {
    let mut world = World::new(&[8]);
    let job = world.submit(JobSpec { time: Some(Span::secs(5)), ..gang(1, 1) });
    let lease = world.run(job);
    world.wait(4, &[]);
    assert_eq!(world.state_of(job), JobState::Running);
    world.wait(1, &[]);
    assert_eq!(world.state_of(job), JobState::Stopping);
    world.done(N1, lease, &[(0, OK)]);
    let end = end_of(&world, job);
    assert_eq!((end.outcome, end.reason), (Outcome::Failed, EndReason::TimeLimit));
}

#[test]
fn a_failed_job_is_retried_within_its_budget_with_growing_waits() {
    let mut world = World::new(&[8]);
    let mut spec = gang(1, 1);
    spec.retry.job_failure = 2;
    let job = world.submit(spec);
    for wait in [1, 2] {
        let lease = world.run(job);
        world.done(N1, lease, &[(0, ExitStatus::Code(3))]);
        assert_eq!(world.state_of(job), JobState::Pending);
        world.wait(wait, &[]);
        assert_eq!(world.state_of(job), JobState::Starting, "after {wait} s");
    }
    let lease = world.run(job);
    world.done(N1, lease, &[(0, ExitStatus::Code(3))]);
    let end = end_of(&world, job);
    assert_eq!((end.outcome, end.exit_code, end.attempts), (Outcome::Failed, Some(3), 3));
}

#[test]
fn a_hundred_thousand_tasks_are_one_record_until_they_start() {
    let mut world = World::new(&[8]);
    let spec = JobSpec { array: Some("0-99999%3".parse().unwrap()), ..gang(1, 1) };
    let job = world.submit(spec);
    let tutti_model::Tasks::Array(array) = &world.engine.state().job(job).unwrap().tasks else {
        panic!("an array")
    };
    assert_eq!((array.live.len(), array.waiting.len()), (3, 99_997));
    let reply = world.step(Command::Cancel { actor: ada(), target: TaskId::single(job) });
    assert_eq!(reply.reply, Ok(Reply::Tasks(100_000)));
    assert!(reply.records.len() < 10, "{} records", reply.records.len());
    assert_eq!(
        world.engine.state().job(job).unwrap().task_state(Some(77_777)),
        Some(JobState::Cancelled)
    );
}

/// The successor of the largest index is none. It was 0: a pass then never ended, and nobody was served.
#[test]
fn an_array_may_end_at_the_largest_index() {
    let mut world = World::new(&[1]);
    let spec = JobSpec { array: Some("4294967294-4294967295".parse().unwrap()), ..gang(1, 1) };
    let job = world.submit(spec);
    let started = world.engine.state().job(job).unwrap().task_state(Some(u32::MAX - 1));
    assert_eq!(started, Some(JobState::Starting));
    let last = world.engine.state().job(job).unwrap().task_state(Some(u32::MAX));
    assert_eq!(last, Some(JobState::Pending));
}

/// A million tasks that take nothing would all start at once on one node.
#[test]
fn what_takes_no_cpu_is_refused() {
    let mut world = World::new(&[8]);
    let none = JobSpec { cpus_per_node: Some(0), ..JobSpec::shell("train") };
    let per_gpu = JobSpec { cpus_per_gpu: Some(2), ..JobSpec::shell("train") };
    let share = JobSpec { gpu_share: Some(0.001), cpus_per_node: Some(0), ..none.clone() };
    for spec in [none, share] {
        let refused = world.try_submit(spec).unwrap_err().to_string();
        assert!(refused.contains("comes to 0 CPUs on a node"), "{refused}");
    }
    let gpus = JobSpec { gpus: Some(1), cpus_per_node: Some(0), ..per_gpu.clone() };
    assert!(world.try_submit(gpus).is_ok());
    let job = world.submit(per_gpu);
    let job = world.engine.state().job(job).unwrap();
    assert_eq!(job.task(None).unwrap().attempt().unwrap().parts[0].cpus, 1);
}

#[test]
fn higher_priority_goes_first_then_the_older() {
    let mut world = World::new(&[8]);
    let running = world.submit(gang(1, 8));
    let older = world.submit(gang(1, 8));
    let urgent = world.submit(JobSpec { priority: Priority::HIGH, ..gang(1, 8) });
    let lease = world.run(running);
    world.done(N1, lease, &[(0, OK)]);
    assert_eq!(
        (world.state_of(urgent), world.state_of(older)),
        (JobState::Starting, JobState::Pending)
    );
}

#[test]
fn beyond_high_only_an_admin_submits() {
    let mut world = World::new(&[8]);
    let with = |priority| Box::new(JobSpec { priority, ..gang(1, 1) });
    let mut submit = |actor: Actor, priority| {
        let command = Command::Submit { actor, spec: with(priority), user: None, key: None };
        world.step(command).reply
    };
    let above = Priority(Priority::HIGH.0 + 1);
    assert!(matches!(submit(ada(), Priority::HIGH), Ok(Reply::Submitted { .. })));
    assert!(matches!(submit(ada(), above), Err(Rejected::BadSpec { key: "priority", .. })));
    assert!(matches!(submit(admin(), above), Ok(Reply::Submitted { .. })));
}

fn join_token(world: &World, node: Option<&str>) -> Token {
    Token {
        id: "t".into(),
        hash: "h".into(),
        grant: Grant::Join { node: node.map(str::to_owned), uses: Some(1) },
        created_at: world.now,
        created_by: "root".into(),
        expires_at: Some(Time(world.now.0 + 10_000)),
    }
}

#[test]
fn only_a_token_for_its_name_lets_a_node_join_again() {
    let mut world = World::new(&[8]);
    let join = |world: &mut World, token: Token, node: &str| {
        world.step(Command::AddToken { actor: admin(), token }).reply.unwrap();
        let (id, key) = ("t".into(), "another".into());
        world.step(Command::UseJoinToken { id, node: node.into(), key }).reply
    };
    let (any, named) = (join_token(&world, None), join_token(&world, Some("n1")));
    let refused = join(&mut world, any.clone(), "n1").unwrap_err();
    assert_eq!(refused, Rejected::NameTaken("n1".into()));
    assert!(refused.to_string().contains("tutti token create --join --node n1"), "{refused}");
    assert_eq!(join(&mut world, any, "n2"), Ok(Reply::Done));
    assert_eq!(join(&mut world, named, "n1"), Ok(Reply::Done));
}

#[test]
fn a_join_token_counts_down() {
    let mut world = World::new(&[]);
    let token = join_token(&world, Some("n1"));
    let add = Command::AddToken { actor: ada(), token: token.clone() };
    assert!(matches!(world.step(add).reply, Err(Rejected::RoleTooLow { .. })));
    world.step(Command::AddToken { actor: admin(), token }).reply.unwrap();
    let mut join = |node: &str, key: &str| {
        let (id, key) = ("t".into(), key.into());
        world.step(Command::UseJoinToken { id, node: node.into(), key }).reply
    };
    assert_eq!(join("n2", "k"), Err(Rejected::JoinRefused("n2".into())));
    assert_eq!(join("n1", "k"), Ok(Reply::Done));
    assert_eq!(join("n1", "other"), Err(Rejected::JoinRefused("n1".into())));
    assert_eq!(join("n1", "k"), Ok(Reply::Done), "who did not hear the answer may ask again");
}

#[test]
fn an_array_that_waits_for_two_jobs_which_fail_together_ends_once() {
    let mut world = World::new(&[8]);
    let first = world.submit(gang(1, 1));
    let second = world.submit(gang(1, 1));
    let (a, b) = (world.run(first), world.run(second));
    let mut spec = JobSpec { array: Some("0-9".parse().unwrap()), ..gang(1, 1) };
    spec.after =
        vec![format!("ok:{first}").parse().unwrap(), format!("ok:{second}").parse().unwrap()];
    let array = world.submit(spec);
    let failed = |world: &World, lease| {
        let exits = vec![world.exit(0, ExitStatus::Code(1))];
        let phase = tutti_model::ReportedPhase::Done { exits, error: None };
        tutti_model::PartReport::new(lease, phase)
    };
    let reports = vec![failed(&world, a), failed(&world, b)];
    world.beat(N1, reports);
    let job = world.engine.state().job(array).unwrap();
    assert_eq!(job.state(), JobState::Cancelled);
    assert!(job.has_task(Some(9)));
}

#[test]
fn a_task_to_be_retried_goes_before_the_rest_of_its_array() {
    let mut world = World::new(&[1]);
    let mut spec = JobSpec { array: Some("0-9".parse().unwrap()), ..gang(1, 1) };
    spec.retry.job_failure = 1;
    let job = world.submit(spec);
    let task = TaskId::of_array(job, 0);
    let lease = world.lease(task);
    world.done(N1, lease, &[(0, ExitStatus::Code(1))]);
    let next = TaskId::of_array(job, 1);
    world.wait(2, &[]);
    let lease = world.lease(next);
    world.done(N1, lease, &[(0, OK)]);
    assert!(world.lease(task).generation > lease.generation, "task 0 is next");
}
