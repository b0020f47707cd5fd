use tutti_engine::{Engine, Settings};
use tutti_model::RankExit;

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
    let progress = Box::new(PartProgress { ranks, ..PartProgress::default() });
    let state = Engine::new(Settings::default()).state().clone();
    book.note(&state, Said { lease: lease(generation), progress }, Time(now));
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
    assert_eq!(progress.age, Some(Span(190)));
    assert_eq!((progress.loss, progress.tokens), (Some(2.5), Some(1000)));
    assert_eq!(kept(&book).progress(None).age, None, "it is over");
    let loss = RankProgress { loss: Some(f64::NAN), ..rank(0, 13, 0) };
    note(&mut book, 1, vec![loss], 11_000);
    assert_eq!(kept(&book).progress(None).loss, None);
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
fn what_is_over_is_forgotten_in_the_end() {
    let mut book = Book::default();
    let state = Engine::new(Settings::default()).state().clone();
    for job in 0..OVER_MAX as u64 + 5 {
        let lease = LeaseId { task: TaskId::single(JobId(job)), ..lease(1) };
        let progress = PartProgress { ranks: vec![rank(0, 1, 0)], ..PartProgress::default() };
        book.note(&state, Said { lease, progress: Box::new(progress) }, Time(job));
    }
    assert_eq!(book.tasks.len(), OVER_MAX);
    assert_eq!(book.tasks.keys().next(), Some(&TaskId::single(JobId(5))));
    book.forget(&[JobId(5), JobId(6)]);
    assert_eq!(book.tasks.len(), OVER_MAX - 2);
}

#[test]
fn only_current_attempts_are_listened_to() {
    let state = Engine::new(Settings::default()).state().clone();
    let exits: Vec<RankExit> = Vec::new();
    let phase = tutti_model::ReportedPhase::Running { exits };
    let progress = PartProgress { ranks: vec![rank(0, 1, 0)], ..PartProgress::default() };
    let report =
        PartReport { progress: Some(Box::new(progress)), ..PartReport::new(lease(1), phase) };
    let command = Command::Report { node: tutti_model::NodeId(1), session: 1, report };
    assert!(said(&state, &command).is_empty());
}
