//! What counts as a failure of a job that fails, and then does not.

use tutti_engine::{Actor, Command, Settings};
use tutti_model::{
    Alert, AskedBy, Bytes, ExitStatus, Greeting, JobId, JobSpec, LeaseId, NodeFacts, PartProgress,
    PartReport, RankExit, RankProgress, ReportedPhase, Role, WatchAction,
};

use super::*;

const TASK: TaskId = TaskId { job: JobId(1), index: None };
const NODE: NodeId = NodeId(1);
/// Longer than the back-off of the first failures, and shorter than a node may be silent.
const LATER: Span = Span::secs(5);

fn hello(parts: Vec<PartReport>, session: u64) -> Command {
    let facts = NodeFacts {
        name: "n1".into(),
        address: "127.0.0.1".into(),
        cpus: 8,
        mem: Bytes::gib(8),
        simulated: true,
        isolation: "none".into(),
        agent_version: "test".into(),
        ..NodeFacts::default()
    };
    Command::Hello { greeting: Box::new(Greeting::new(facts, parts)), session, key: None }
}

fn step(engine: &mut Engine, command: Command, now: Time) {
    engine.step(command, now).reply.unwrap();
    engine.schedule(now);
}

fn task(engine: &Engine) -> &Task {
    engine.state().job(TASK.job).unwrap().task(TASK.index).unwrap()
}

fn known(engine: &Engine, now: Time) -> Option<u32> {
    failures(engine, TASK, task(engine), now)
}

/// What its node says of the attempt, with the step that it is at.
fn report(lease: LeaseId, at: Option<u64>, phase: ReportedPhase) -> PartReport {
    let rank = |step| RankProgress {
        rank: Rank(0),
        step,
        loss: None,
        tokens: None,
        age: Span(0),
        pace: None,
    };
    let said = |step| PartProgress { ranks: vec![rank(step)], ..PartProgress::default() };
    PartReport { progress: at.map(said).map(Box::new), ..PartReport::new(lease, phase) }
}

fn running() -> ReportedPhase {
    ReportedPhase::Running { exits: Vec::new() }
}

fn says(engine: &mut Engine, report: PartReport, now: Time) {
    step(engine, Command::Report { node: NODE, session: 1, report }, now);
}

/// A job that has failed twice at once, and is placed a third time.
fn failed_twice(now: &mut Time) -> (Engine, LeaseId) {
    let mut engine = Engine::new(Settings::default());
    let mut spec = JobSpec::shell("train");
    spec.retry.job_failure = 9;
    let actor = Actor { user: "ada".into(), role: Role::User };
    step(&mut engine, Command::Start, *now);
    step(&mut engine, hello(Vec::new(), 1), *now);
    let submit = Command::Submit { actor, spec: Box::new(spec), user: None, key: None };
    step(&mut engine, submit, *now);
    for _ in 0..2 {
        let lease = task(&engine).attempt().unwrap().lease(TASK);
        says(&mut engine, report(lease, None, running()), *now);
        let exits = vec![RankExit { rank: Rank(0), status: ExitStatus::Code(1), at: *now }];
        let done = ReportedPhase::Done { exits, error: None };
        says(&mut engine, report(lease, None, done), *now);
        *now = now.plus(LATER);
        step(&mut engine, Command::Tick, *now);
    }
    let lease = task(&engine).attempt().unwrap().lease(TASK);
    says(&mut engine, report(lease, None, running()), *now);
    (engine, lease)
}

#[test]
fn one_that_gets_further_has_made_its_failures_good() {
    let mut now = Time(1_000_000);
    let (mut engine, lease) = failed_twice(&mut now);
    assert_eq!(known(&engine, now), Some(2));
    says(&mut engine, report(lease, Some(1), running()), now);
    assert_eq!(known(&engine, now), Some(0));
    assert_eq!(task(&engine).past().fruitless, 2, "that is settled when the attempt ends");
    let eyed = circling(&engine, vec![TASK], now);
    assert_eq!(eyed.iter().map(|seen| seen.failures).collect::<Vec<_>>(), [Some(0)]);
    assert!(circling(&engine, Vec::new(), now).is_empty(), "nothing points to it");
}

#[test]
fn a_new_controller_waits_for_the_word_of_the_nodes() {
    let mut now = Time(1_000_000);
    let (mut engine, lease) = failed_twice(&mut now);
    says(&mut engine, report(lease, Some(1), running()), now);
    let mut next = Engine::restore(engine.state().clone(), Settings::default());
    step(&mut next, Command::Start, now);
    assert_eq!(known(&next, now), None);
    step(&mut next, hello(vec![report(lease, Some(1), running())], 2), now);
    assert_eq!(known(&next, now), Some(0));
}

#[test]
fn a_node_is_lost_until_it_is_back_or_drained_by_hand() {
    let mut engine = Engine::new(Settings::default());
    let seen = |engine: &Engine| lost(engine.state().node(NODE).unwrap());
    let start = Time(1_000_000);
    step(&mut engine, Command::Start, start);
    step(&mut engine, hello(Vec::new(), 1), start);
    assert_eq!(seen(&engine), None);
    let gone = start.plus(engine.settings().node_timeout);
    step(&mut engine, Command::Tick, gone);
    assert_eq!(seen(&engine), Some(gone));
    let actor = Actor { user: "ada".into(), role: Role::Admin };
    let (node, reason) = ("n1".to_owned(), "moved".to_owned());
    step(&mut engine, Command::Drain { actor: actor.clone(), node, reason, evict: false }, gone);
    assert_eq!(seen(&engine), None, "somebody knows");
    step(&mut engine, Command::Resume { actor, node: "n1".into() }, gone);
    assert_eq!(seen(&engine), Some(gone));
    step(&mut engine, hello(Vec::new(), 2), gone);
    assert_eq!(seen(&engine), None);
}

#[test]
fn what_is_said_of_a_job_ends_with_it() {
    let alert = |rule, id| Alert {
        id: 1,
        rule,
        subject: Subject::Job { id },
        asked_by: AskedBy::Policy,
        action: WatchAction::Tell,
        text: "its GPU does nothing".into(),
        job: None,
        since: Time(0),
        fired_at: Time(0),
        ended_at: None,
    };
    let standing = |rule, id| Standing { alert: alert(rule, id), era: 1, bad: true };
    let other = TaskId::single(JobId(2));
    let both = [standing(WatchRule::Idle, TASK), standing(WatchRule::CrashLoop, other)];
    assert_eq!(said_of(&both), [TASK], "a job was given up for a crash loop, and that stands");

    let mut now = Time(1_000_000);
    let (mut engine, _) = failed_twice(&mut now);
    assert!(!is_over(engine.state(), TASK), "it runs");
    assert!(is_over(engine.state(), other), "nobody knows it");
    let actor = Actor { user: "ada".into(), role: Role::User };
    step(&mut engine, Command::Cancel { actor, target: TASK }, now);
    let lease = task(&engine).attempt().unwrap().lease(TASK);
    let exits = vec![RankExit { rank: Rank(0), status: ExitStatus::Signal(15), at: now }];
    says(&mut engine, report(lease, None, ReportedPhase::Done { exits, error: None }), now);
    assert!(is_over(engine.state(), TASK));
}
