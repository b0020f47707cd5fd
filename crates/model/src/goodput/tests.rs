use proptest::prelude::*;

use super::*;

const DAY: u64 = 86_400_000;

fn lease() -> LeaseId {
    LeaseId { task: TaskId::single(JobId(7)), generation: Generation(1) }
}

/// An attempt of ada's with two GPUs of node 1, which works since then.
fn working(since: Time) -> Goodput {
    let slice = Slice { busy: 2000, ..Slice::new(NodeId(1), "h100", since) };
    let run = RunBook { team: "lab".into(), user: "ada".into(), kind: None, slices: vec![slice] };
    Goodput { runs: [(lease(), Arc::new(run))].into(), ..Goodput::default() }
}

#[test]
fn days_have_dates() {
    for (day, text) in [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29")] {
        assert_eq!(Day(day).to_string(), text);
        assert_eq!(text.parse::<Day>().unwrap(), Day(day));
    }
    assert_eq!(Day::of(Time(1_794_787_200_000)).to_string(), "2026-11-16");
    for text in ["2026-02-30", "2026-13-01", "1969-12-31", "today", "2026-1"] {
        assert!(text.parse::<Day>().is_err(), "{text}");
    }
}

#[test]
fn work_is_judged_by_what_becomes_of_it() {
    let mut it = working(Time(1000));
    it.close_run(lease(), None, Time(5000));
    assert!(it.days.is_empty(), "nobody knows yet: {:?}", it.days);
    assert_eq!(it.undecided().map(|(.., amount)| amount).sum::<u64>(), 4000 * 2000);
    it.judge(lease(), Time(2000), TimeClass::Productive);
    it.judge(lease(), Time(5000), TimeClass::LostToFailure);
    let amounts = &it.of_job(JobId(7));
    assert_eq!(amounts.of(TimeClass::Productive), 1000 * 2000);
    assert_eq!(amounts.of(TimeClass::LostToFailure), 3000 * 2000);
    assert_eq!(it.nodes[&NodeId(1)].past, *amounts);
    assert_eq!(it.undecided().count(), 0);
}

#[test]
fn a_day_is_sealed_when_nothing_of_it_is_undecided() {
    let mut it = working(Time(DAY - 1000));
    it.close_run(lease(), None, Time(DAY + 1000));
    it.settled = Time(DAY + 1000);
    assert!(!it.is_sealed(Day(0)));
    it.judge(lease(), Time(DAY + 500), TimeClass::Productive);
    assert_eq!(it.sealed_days(), [Day(0)]);
    let rows = it.rows_of(Day(0));
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].class, rows[0].gpu_micros), (TimeClass::Productive, 1000 * 2000));
    assert!(!it.is_sealed(Day(1)), "it goes on");
    it.drop_day(Day(0));
    assert_eq!(it.dropped.total(), 1000 * 2000);
    assert_eq!(it.days.keys().copied().collect::<Vec<_>>(), [Day(1)]);
}

#[test]
fn a_day_before_one_that_is_sealed_may_be_open() {
    let mut it = working(Time(DAY - 1000));
    it.close_run(lease(), None, Time(2 * DAY + 1000));
    let bill = Bill { key: RowKey::default(), node: NodeId(1), job: None };
    (0..4).for_each(|day| it.book(&bill, Day(day), TimeClass::Free, 1));
    it.settled = Time(3 * DAY);
    assert_eq!(it.sealed_days(), [], "work of all three is undecided");
    // Of the first day alone something is still undecided.
    let run = Arc::make_mut(it.runs.get_mut(&lease()).unwrap());
    run.slices[0].open.truncate(1);
    assert_eq!(it.sealed_days(), [Day(1), Day(2)]);
    assert!(it.sealed_days().into_iter().all(|day| it.is_sealed(day)));
    assert!(!it.is_sealed(Day(0)) && !it.is_sealed(Day(3)));
}

/// Who reads has what was the case; a copy is made of what changes, and of nothing else.
#[test]
fn a_clone_shares_what_does_not_change() {
    let mut it = working(Time(0));
    let bill = |job| Bill { key: RowKey::default(), node: NodeId(1), job: Some(JobId(job)) };
    it.book(&bill(1), Day(0), TimeClass::Free, 5);
    it.book(&bill(2), Day(1), TimeClass::Free, 7);
    let before = it.clone();
    it.close_run(lease(), None, Time(0));
    assert!(Arc::ptr_eq(&it.runs[&lease()], &before.runs[&lease()]), "nothing was due");
    it.close_run(lease(), None, Time(1000));
    it.book(&bill(2), Day(1), TimeClass::Free, 1);
    assert_eq!(before.of_job(JobId(2)).total(), 7);
    assert_eq!(it.of_job(JobId(2)).total(), 8);
    assert_eq!((before.undecided().count(), it.undecided().count()), (0, 1));
    assert!(Arc::ptr_eq(&it.days[&Day(0)], &before.days[&Day(0)]));
    assert!(Arc::ptr_eq(&it.jobs[&JobId(1)], &before.jobs[&JobId(1)]));
    assert!(!Arc::ptr_eq(&it.days[&Day(1)], &before.days[&Day(1)]));
}

/// Older controllers wrote them without it.
#[test]
fn an_arc_is_not_seen_in_what_is_stored() {
    let mut it = working(Time(0));
    it.close_run(lease(), None, Time(1000));
    it.judge(lease(), Time(500), TimeClass::Productive);
    let plain = |book: &JobBook| serde_json::to_value(book).unwrap();
    let stored = serde_json::to_value(&it.jobs).unwrap();
    assert_eq!(stored, serde_json::json!({ "7": plain(&it.jobs[&JobId(7)]) }));
    let back: BTreeMap<JobId, Arc<JobBook>> = serde_json::from_value(stored).unwrap();
    assert_eq!(back, it.jobs);
}

#[test]
fn what_is_free_of_a_reserved_node_is_reserved() {
    let lot = |class, milli| Lot {
        class,
        key: RowKey { model: "h100".into(), ..RowKey::default() },
        job: None,
        milli,
    };
    let unheld = vec![lot(TimeClass::Free, 1000), lot(TimeClass::Unhealthy, 500)];
    let book = NodeBook { since: Time(0), unheld, ..NodeBook::default() };
    let mut it = Goodput { nodes: [(NodeId(1), book)].into(), ..Goodput::default() };
    let window = Window { from: Time(100), until: Time(400), team: "lab".into() };
    let mut sums = TimeSums::default();
    it.nodes[&NodeId(1)].sum_up(std::slice::from_ref(&window), Time(1000), &mut sums);
    it.close_node(NodeId(1), &[window], Time(1000));
    assert_eq!(sums.by_class, it.nodes[&NodeId(1)].past, "the same without closing it");
    let past = &it.nodes[&NodeId(1)].past;
    assert_eq!(past.of(TimeClass::Reserved), 300 * 1000);
    assert_eq!(past.of(TimeClass::Free), 700 * 1000);
    assert_eq!(past.of(TimeClass::Unhealthy), 1000 * 500);
    let reserved: Vec<_> = it.rows_of(Day(0)).into_iter().filter(|r| r.team == "lab").collect();
    assert_eq!(reserved.len(), 1);
}

proptest! {
    /// However often a book is closed, and whatever is judged when: nothing is lost or doubled.
    #[test]
    fn nothing_is_lost(
        start in 0..3 * DAY,
        steps in prop::collection::vec((0..DAY, 0u32..3000, 0u32..3000, 0..DAY, any::<bool>()), 1..90)
    ) {
        let mut it = working(Time(start));
        let (mut now, mut held, mut rate) = (Time(start), 0u64, 2000u64);
        for (ms, busy, idle, back, lost) in steps {
            now.0 += ms;
            held += ms * rate;
            let mut sums = TimeSums { by_class: it.of_job(JobId(7)), unsaved: 0 };
            it.runs[&lease()].sum_up(now, &mut sums);
            it.close_run(lease(), None, now);
            let undecided: u64 = it.undecided().map(|(.., amount)| amount).sum();
            prop_assert_eq!((sums.by_class, sums.unsaved), (it.of_job(JobId(7)), undecided));
            let class = if lost { TimeClass::LostToFailure } else { TimeClass::Productive };
            it.judge(lease(), Time(now.0.saturating_sub(back)), class);
            let run = Arc::make_mut(it.runs.get_mut(&lease()).unwrap());
            let slice = &mut run.slices[0];
            (slice.busy, slice.idle) = (busy, idle);
            rate = slice.milli();
            let open: u64 = it.undecided().map(|(.., amount)| amount).sum();
            let booked = it.of_job(JobId(7)).total();
            prop_assert_eq!(booked + open, held);
            let rows: u64 = it.days.keys().flat_map(|d| it.rows_of(*d)).map(|r| r.gpu_micros).sum();
            prop_assert_eq!(rows, booked);
        }
    }

    #[test]
    fn dates_round_trip(day in 0u32..100_000) {
        let text = Day(day).to_string();
        prop_assert_eq!(text.parse::<Day>().unwrap(), Day(day));
    }
}
