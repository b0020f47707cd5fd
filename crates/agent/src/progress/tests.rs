use std::time::Duration;

use super::*;

/// A fold with a clock of its own.
struct Clocked {
    fold: Fold,
    now: Instant,
}

impl Clocked {
    fn new(ranks: u32) -> Clocked {
        Clocked { fold: Fold::new(ranks), now: Instant::now() }
    }
    fn after(&mut self, ms: u64) -> &mut Clocked {
        self.now += Duration::from_millis(ms);
        self
    }
    fn says(&mut self, rank: u32, line: &str) -> News {
        let line = read_line(line.as_bytes()).unwrap().unwrap();
        self.fold.take(Rank(rank), line, self.now).unwrap()
    }
    fn level(&self) -> PartProgress {
        self.fold.level(self.now).unwrap()
    }
    fn pace(&self) -> Option<u64> {
        self.level().ranks[0].pace.map(|p| p.0)
    }
}

#[test]
fn the_newest_step_of_each_rank_stays_and_grows_old() {
    let mut c = Clocked::new(2);
    assert_eq!(c.fold.level(c.now), None);
    c.says(1, r#"{"step": 1, "loss": 3.5, "tokens": 100}"#);
    c.says(0, r#"{"step": 2}"#);
    assert_eq!(c.after(40).says(1, r#"{"step": 2, "loss": 3.0}"#), News::Level);
    c.after(10);
    let [zero, one] = c.level().ranks.try_into().unwrap();
    assert_eq!((zero.rank, zero.step, zero.age, zero.loss), (Rank(0), 2, Span(50), None));
    assert_eq!((one.rank, one.step, one.age), (Rank(1), 2, Span(10)));
    assert_eq!((one.loss, one.tokens), (Some(3.0), Some(100)), "tokens as last said");
}

#[test]
fn the_pace_is_a_median_that_one_slow_step_does_not_move() {
    let mut c = Clocked::new(1);
    c.says(0, r#"{"step": 0}"#);
    for step in 1..=2 {
        c.after(100).says(0, &format!(r#"{{"step": {step}}}"#));
    }
    assert_eq!(c.pace(), None, "two steps say nothing");
    c.after(5000).says(0, r#"{"step": 3}"#);
    assert_eq!(c.pace(), Some(100));
    // Twenty that are slower: the old ones are forgotten.
    for step in 4..24 {
        c.after(300).says(0, &format!(r#"{{"step": {step}}}"#));
    }
    assert_eq!(c.pace(), Some(300));
}

#[test]
fn many_steps_at_once_count_evenly() {
    let mut c = Clocked::new(1);
    c.says(0, r#"{"step": 100}"#);
    c.after(2000).says(0, r#"{"step": 110}"#);
    assert_eq!(c.pace(), Some(200));
    // More than are kept.
    c.after(100_000).says(0, r#"{"step": 1110}"#);
    assert_eq!(c.pace(), Some(100));
    // Faster than a millisecond, and still some time.
    c.after(10).says(0, r#"{"step": 1000000}"#);
    assert_eq!(c.pace(), Some(1));
}

#[test]
fn the_same_step_again_is_no_step_and_going_back_is_none_either() {
    let mut c = Clocked::new(1);
    c.says(0, r#"{"step": 10}"#);
    for step in [11, 12, 13] {
        c.after(100).says(0, &format!(r#"{{"step": {step}}}"#));
    }
    c.after(700).says(0, r#"{"step": 13, "loss": 1.0}"#);
    assert_eq!((c.level().ranks[0].age, c.pace()), (Span(700), Some(100)));
    c.after(100).says(0, r#"{"step": 5}"#);
    let rank = &c.level().ranks[0];
    assert_eq!((rank.step, rank.age, rank.pace), (5, Span(0), Some(Span(100))));
}

#[test]
fn checkpoints_and_faults_are_urgent_once() {
    let mut c = Clocked::new(1);
    assert_eq!(c.says(0, r#"{"saved": 10, "save_ms": 70}"#), News::Urgent);
    c.after(500);
    assert_eq!(c.says(0, r#"{"saved": 10, "path": "/ckpt/10"}"#), News::Level);
    let point = SavedPoint {
        step: 10,
        at: None,
        path: Some("/ckpt/10".into()),
        save_ms: Some(70),
        node: None,
    };
    let level = c.level();
    assert_eq!((level.saved, level.saved_age), (Some(point), Span(500)));
    assert_eq!(c.says(0, r#"{"saved": 9}"#), News::Nothing, "somebody is late");
    assert_eq!(c.says(0, r#"{"saved": 20}"#), News::Urgent);
    assert_eq!(c.says(0, r#"{"fault": {"rank": 3, "op": "all_reduce"}}"#), News::Urgent);
    assert_eq!(c.says(0, r#"{"fault": {"rank": 4}}"#), News::Nothing, "the first counts");
    assert_eq!(c.level().fault.map(|f| f.rank), Some(Rank(3)));
    assert!(c.level().ranks.is_empty(), "no step was said");
}

#[test]
fn a_checkpoint_that_was_taken_elsewhere_is_there() {
    let mut c = Clocked::new(2);
    let path = |c: &Clocked| c.level().saved.unwrap().path.unwrap();
    assert_eq!(c.says(0, r#"{"saved": 10, "path": "/local/10"}"#), News::Urgent);
    assert_eq!(c.says(1, r#"{"saved": 10, "path": "/other/10"}"#), News::Level);
    assert_eq!(path(&c), "/local/10", "the first rank's word counts");
    assert_eq!(c.says(0, r#"{"saved": 10, "path": "/safe/10"}"#), News::Urgent);
    assert_eq!(c.says(0, r#"{"saved": 10, "path": "/safe/10"}"#), News::Level, "said before");
    assert_eq!(path(&c), "/safe/10");
}

#[test]
fn ranks_are_limited() {
    let mut fold = Fold::new(2);
    let line = |step| ProgressLine { step: Some(step), ..ProgressLine::default() };
    let now = Instant::now();
    for rank in 0..RANKS_MIN as u32 {
        fold.take(Rank(rank), line(1), now).unwrap();
    }
    let error = fold.take(Rank(9999), line(1), now).unwrap_err();
    assert_eq!(error.to_string(), "more than 64 ranks report on this node");
    assert_eq!(fold.take(Rank(0), line(2), now), Ok(News::Level), "the known ones go on");
}

#[test]
fn lines_that_python_writes_are_read() {
    assert_eq!(read_line(b" \r").unwrap(), None);
    let line = read_line(br#"{"step": 3, "loss": NaN, "path": null}"#).unwrap().unwrap();
    assert_eq!((line.step, line.loss.map(f64::is_nan)), (Some(3), Some(true)));
    let line = read_line(br#"{"loss": -Infinity, "saved": 4}"#).unwrap().unwrap();
    assert_eq!((line.saved, line.loss.map(f64::is_nan)), (Some(4), Some(true)));
    for bad in [&b"{\"step\": -1}"[..], b"step 3", b"[1]", b"{\"step\": NaN", b"\xff\xfe"] {
        assert!(read_line(bad).is_err(), "{bad:?}");
    }
}

proptest::proptest! {
    #[test]
    fn nothing_that_is_said_breaks_the_fold(
        lines in proptest::collection::vec((0u32..100, proptest::option::of(proptest::prelude::any::<u64>()), 0u64..10_000), 0..200)
    ) {
        let mut c = Clocked::new(4);
        for (rank, step, wait) in lines {
            c.after(wait);
            let line = ProgressLine { step, saved: step, ..ProgressLine::default() };
            let _ = c.fold.take(Rank(rank), line, c.now);
        }
        if let Some(level) = c.fold.level(c.now) {
            proptest::prop_assert!(level.ranks.len() <= RANKS_MIN);
            proptest::prop_assert!(level.ranks.is_sorted_by_key(|r| r.rank));
        }
    }
}

#[test]
fn a_part_that_can_not_run_does_not_grow_old() {
    let mut c = Clocked::new(1);
    for step in 1..=4 {
        c.after(100).says(0, &format!(r#"{{"step": {step}, "saved": {step}}}"#));
    }
    let paused_at = c.after(30).now;
    c.fold.pause(paused_at);
    let later = c.after(60_000).now;
    c.fold.pause(later);
    assert_eq!((c.level().ranks[0].age, c.level().saved_age), (Span(30), Span(30)));
    c.after(1000);
    c.fold.go_on(c.now);
    assert_eq!(c.after(70).level().ranks[0].age, Span(100));
    c.says(0, r#"{"step": 5}"#);
    assert_eq!(c.pace(), Some(100), "the step took no longer for it");
}
