use tutti_engine::{Actor, Engine, Settings};
use tutti_model::{Bytes, Greeting, JobSpec, NodeFacts, PartProgress, ReportedPhase, Role};

use super::*;

const TASK: TaskId = TaskId { job: JobId(1), index: None };

fn lease(generation: u64) -> LeaseId {
    LeaseId { task: TASK, generation: Generation(generation) }
}

fn rank(rank: u32, step: u64, age: u64) -> RankProgress {
    let (age, pace) = (Span(age), Some(Span(100 + u64::from(rank))));
    RankProgress { rank: Rank(rank), step, loss: None, tokens: None, age, pace }
}

fn kept(book: &Book) -> &Kept {
    &book.tasks[&TASK]
}

fn note(book: &mut Book, generation: u64, ranks: Vec<RankProgress>, now: u64) {
    let state = Engine::new(Settings::default()).state().clone();
    book.note(&state, Said { lease: lease(generation), ranks }, Time(now));
}

#[test]
fn the_slowest_rank_says_how_far_the_job_is() {
    let mut book = Book::default();
    let loss = RankProgress { loss: Some(2.5), tokens: Some(1000), ..rank(1, 12, 0) };
    note(&mut book, 1, vec![rank(0, 12, 50), loss], 10_000);
    note(&mut book, 1, vec![rank(2, 10, 40), rank(3, 10, 90)], 10_000);
    let progress = kept(&book).progress(Some(Time(10_100)));
    assert_eq!((progress.step, progress.step_max, progress.ranks), (Some(10), Some(12), 4));
    assert_eq!((progress.slowest, progress.pace), (Some(3), Some(Span(103))));
    assert_eq!(progress.behind, Some(3));
    assert_eq!(progress.age, Some(Span(190)));
    assert_eq!((progress.loss, progress.tokens), (Some(2.5), Some(1000)));
    assert_eq!(kept(&book).progress(None).age, None, "it is over");
    let loss = RankProgress { loss: Some(f64::NAN), ..rank(0, 13, 0) };
    note(&mut book, 1, vec![loss], 11_000);
    assert_eq!(kept(&book).progress(None).loss, None);
}

#[test]
fn who_was_heard_earlier_is_not_behind() {
    let mut book = Book::default();
    note(&mut book, 1, vec![rank(0, 100, 20)], 10_000);
    // Nineteen steps later.
    note(&mut book, 1, vec![rank(1, 120, 20)], 12_000);
    let progress = kept(&book).progress(Some(Time(12_000)));
    assert_eq!((progress.step, progress.slowest, progress.behind), (Some(100), Some(0), None));
    // It did nothing for a while before that.
    note(&mut book, 1, vec![rank(0, 100, 900)], 12_100);
    assert_eq!(kept(&book).progress(None).behind, Some(0));
    // Or it goes on, but more slowly.
    let slow = RankProgress { pace: Some(Span(300)), ..rank(0, 110, 50) };
    note(&mut book, 1, vec![slow], 12_200);
    assert_eq!(kept(&book).progress(None).behind, Some(0));
}

#[test]
fn tokens_per_second_are_those_of_late() {
    let mut book = Book::default();
    let tell = |book: &mut Book, generation, tokens, now| {
        let said = RankProgress { tokens: Some(tokens), ..rank(0, tokens / 100, 0) };
        note(book, generation, vec![said], now);
    };
    for i in 0..40 {
        // Slow at first.
        tell(&mut book, 1, i * 100, if i < 20 { i * 10_000 } else { 190_000 + i * 1000 });
    }
    let rate = kept(&book).progress(None).tokens_per_s.unwrap();
    assert!((rate - 100.0).abs() < 1e-9, "{rate}");
    tell(&mut book, 1, 3900, 900_000);
    assert_eq!(kept(&book).progress(None).tokens_per_s, Some(rate), "nothing new");
    // A new attempt goes on from a checkpoint.
    tell(&mut book, 2, 2000, 1_000_000);
    assert_eq!(kept(&book).progress(None).tokens_per_s, None);
    assert_eq!(kept(&book).progress(None).ranks, 1);
    assert_eq!(kept(&book).history.points().len(), 41, "the past stays");
}

#[test]
fn the_curve_waits_for_a_rank_that_is_heard_late_and_follows_one_that_goes_back() {
    let mut book = Book::default();
    let lossy = |n, step| RankProgress { loss: Some(4.0), ..rank(n, step, 0) };
    for (now, said) in [(1, lossy(1, 3)), (2, lossy(1, 5)), (3, lossy(0, 1)), (4, lossy(0, 4))] {
        note(&mut book, 1, vec![said], now * 1000);
    }
    let steps =
        |book: &Book| kept(book).history.points().iter().map(|p| p.step).collect::<Vec<_>>();
    assert_eq!(steps(&book), [3, 5]);
    note(&mut book, 1, vec![lossy(0, 6), lossy(1, 6)], 5000);
    // The program threw the last steps away by itself.
    note(&mut book, 1, vec![lossy(0, 2), lossy(1, 2)], 6000);
    assert_eq!(steps(&book), [3, 5, 6, 2]);
    note(&mut book, 2, vec![lossy(0, 1)], 7000);
    assert_eq!(steps(&book), [3, 5, 6, 2, 1], "a new attempt");
}

#[test]
fn what_is_over_is_forgotten_in_the_end() {
    let mut book = Book::default();
    let state = Engine::new(Settings::default()).state().clone();
    for job in 0..OVER_MAX as u64 + 5 {
        let lease = LeaseId { task: TaskId::single(JobId(job)), ..lease(1) };
        book.note(&state, Said { lease, ranks: vec![rank(0, 1, 0)] }, Time(job));
    }
    assert_eq!(book.tasks.len(), OVER_MAX);
    assert_eq!(book.tasks.keys().next(), Some(&TaskId::single(JobId(5))));
    book.forget(&[JobId(5), JobId(6)]);
    assert_eq!(book.tasks.len(), OVER_MAX - 2);
}

fn reports(lease: LeaseId, ranks: Vec<RankProgress>) -> Command {
    let phase = ReportedPhase::Running { exits: Vec::new() };
    let progress = Some(Box::new(PartProgress { ranks, ..PartProgress::default() }));
    let report = PartReport { progress, ..PartReport::new(lease, phase) };
    Command::Report { node: NodeId(1), session: 1, report }
}

/// An engine with a node and a job that is placed there.
fn engine() -> (Engine, LeaseId) {
    let mut engine = Engine::new(Settings::default());
    let facts = NodeFacts {
        name: "n1".into(),
        address: "127.0.0.1".into(),
        cpus: 8,
        mem: Bytes::gib(8),
        gpus: Vec::new(),
        simulated: true,
        isolation: "none".into(),
        agent_version: "test".into(),
        labels: BTreeMap::new(),
        ..NodeFacts::default()
    };
    let greeting = Box::new(Greeting::new(facts, Vec::new()));
    let actor = Actor { user: "ada".into(), role: Role::User };
    let spec = Box::new(JobSpec::shell("train"));
    for command in [
        Command::Start,
        Command::Hello { greeting, session: 1, key: None },
        Command::Submit { actor, spec, user: None, key: None },
    ] {
        engine.step(command, Time(1000)).reply.unwrap();
    }
    engine.schedule(Time(1000));
    let lease = attempt(engine.state(), TASK).unwrap().lease(TASK);
    (engine, lease)
}

#[test]
fn only_current_attempts_are_listened_to_and_shown() {
    let (engine, lease) = engine();
    let state = engine.state();
    let old = LeaseId { generation: Generation(0), ..lease };
    assert_eq!(said(state, &reports(old, vec![rank(0, 1, 0)])).len(), 0);
    assert_eq!(said(state, &reports(lease, Vec::new())).len(), 0);
    let mut book = Book::default();
    for said in said(state, &reports(lease, vec![rank(0, 7, 500)])) {
        book.note(state, said, Time(2000));
    }
    let progress = book.of_task(state, TASK, Time(3000)).unwrap();
    assert_eq!((progress.step, progress.age), (Some(7), Some(Span(1500))));
    let ranks = book.ranks_of_task(state, TASK, Time(3000));
    assert_eq!((ranks[0].node.as_deref(), ranks[0].age), (Some("n1"), Some(Span(1500))));
    // What an attempt before this one said is history.
    book.tasks.get_mut(&TASK).unwrap().generation = Generation(0);
    assert_eq!(book.of_task(state, TASK, Time(3000)), None);
    assert_eq!(book.ranks_of_task(state, TASK, Time(3000)), []);
    assert_eq!(book.history(TASK).len(), 1);
}

/// A node's key is enough to speak to the controller, and not to speak for the jobs of other nodes.
#[test]
fn a_node_speaks_for_its_own_ranks_alone() {
    let (engine, lease) = engine();
    let state = engine.state();
    let many = || (0..10_000).map(|n| rank(n, 999, 0)).collect::<Vec<_>>();
    let Command::Report { session, report, .. } = reports(lease, many()) else { panic!() };
    let foreign = Command::Report { node: NodeId(2), session, report };
    assert_eq!(said(state, &foreign).len(), 0);
    let own = said(state, &reports(lease, many()));
    assert_eq!(own[0].ranks.iter().map(|r| r.rank).collect::<Vec<_>>(), [Rank(0)]);
    let again = said(state, &reports(lease, vec![rank(0, 1, 0); 10_000]));
    assert_eq!(again[0].ranks.len(), 1);
}
