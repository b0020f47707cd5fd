//! What every journal must do. Panics with what it found instead.

use tutti_model::Seq;

use crate::{Batch, BoxError, Journal, JournalError, Loaded, MemoryJournal, Replay, Stats};

/// A place that keeps a journal while nobody has it open.
pub trait Store {
    /// The journal of the one before must be gone.
    fn open(&mut self) -> Box<dyn Journal>;
}

impl Store for MemoryJournal {
    fn open(&mut self) -> Box<dyn Journal> {
        Box::new(self.clone())
    }
}

/// Remembers what it was handed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub snapshot: Option<(Seq, Vec<u8>)>,
    pub batches: Vec<Batch>,
    pub refuse: Vec<Seq>,
}

impl Replay for Seen {
    fn snapshot(&mut self, seq: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        if self.refuse.contains(&seq) {
            return Err("refused".into());
        }
        self.snapshot = Some((seq, bytes.to_vec()));
        Ok(())
    }
    fn batch(&mut self, first: Seq, last: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        if self.refuse.contains(&first) {
            return Err("refused".into());
        }
        self.batches.push(Batch { first, last, bytes: bytes.to_vec() });
        Ok(())
    }
}

pub fn batch(first: u64, last: u64) -> Batch {
    let bytes = (first..=last).flat_map(|s| s.to_le_bytes()).collect();
    Batch { first: Seq(first), last: Seq(last), bytes }
}

pub fn load(journal: &mut dyn Journal) -> (Seen, Loaded) {
    let mut seen = Seen::default();
    let loaded = journal.load(&mut seen).expect("the journal loads");
    (seen, loaded)
}

fn fill(journal: &mut dyn Journal, batches: &[(u64, u64)]) {
    for &(first, last) in batches {
        journal.append(&batch(first, last)).expect("the batch is next");
    }
}

/// Runs every case, each on a store of its own.
pub fn run_all(fresh: &mut dyn FnMut() -> Box<dyn Store>) {
    empty(&mut *fresh());
    appends_come_back(&mut *fresh());
    gaps_are_refused(&mut *fresh());
    snapshots_shorten_the_log(&mut *fresh());
    a_straddling_batch_stays(&mut *fresh());
    wrong_snapshots_are_refused(&mut *fresh());
    a_refused_snapshot_is_skipped(&mut *fresh());
    a_refused_batch_ends_the_load(&mut *fresh());
    a_copy_is_restored(&mut *fresh());
    large_values(&mut *fresh());
}

fn empty(store: &mut dyn Store) {
    let mut journal = store.open();
    let (seen, loaded) = load(&mut *journal);
    assert_eq!(seen, Seen::default());
    assert_eq!((loaded.snapshot, loaded.last, loaded.batches), (None, Seq(0), 0));
    let stats = journal.stats().expect("stats");
    assert_eq!(
        stats,
        Stats { bytes: stats.bytes, disk_bytes: stats.disk_bytes, ..Stats::default() }
    );
}

fn appends_come_back(store: &mut dyn Store) {
    let spans = [(1, 1), (2, 5), (6, 6), (7, 20)];
    let expected: Vec<Batch> = spans.iter().map(|&(a, b)| batch(a, b)).collect();
    let mut journal = store.open();
    fill(&mut *journal, &spans);
    assert_eq!(load(&mut *journal).0.batches, expected, "same journal");
    drop(journal);
    let mut journal = store.open();
    let (seen, loaded) = load(&mut *journal);
    assert_eq!(seen.batches, expected, "after opening again");
    assert_eq!((loaded.last, loaded.batches), (Seq(20), 4));
    let stats = journal.stats().expect("stats");
    assert_eq!((stats.entries, stats.first, stats.last), (4, Some(Seq(1)), Seq(20)));
    assert!(stats.bytes >= 160, "{stats:?}");
    fill(&mut *journal, &[(21, 21)]);
}

fn gaps_are_refused(store: &mut dyn Store) {
    let mut journal = store.open();
    let gap = |r: Result<(), JournalError>| match r {
        Err(JournalError::Gap { last, first }) => (last.0, first.0),
        other => panic!("expected a gap, got {other:?}"),
    };
    assert_eq!(gap(journal.append(&batch(2, 2))), (0, 2));
    fill(&mut *journal, &[(1, 3)]);
    assert_eq!(gap(journal.append(&batch(3, 4))), (3, 3));
    assert_eq!(gap(journal.append(&batch(5, 5))), (3, 5));
    for (first, last) in [(0, 0), (0, 4), (4, 3)] {
        let bad = Batch { first: Seq(first), last: Seq(last), bytes: vec![] };
        let answer = journal.append(&bad);
        assert!(matches!(answer, Err(JournalError::BadBatch { .. })), "{answer:?}");
    }
    drop(journal);
    let mut journal = store.open();
    assert_eq!(gap(journal.append(&batch(3, 3))), (3, 3), "without a load");
    fill(&mut *journal, &[(4, 4)]);
    assert_eq!(load(&mut *journal).0.batches, vec![batch(1, 3), batch(4, 4)]);
}

fn snapshots_shorten_the_log(store: &mut dyn Store) {
    let mut journal = store.open();
    fill(&mut *journal, &[(1, 4), (5, 8)]);
    journal.write_snapshot(Seq(4), b"four").expect("snapshot");
    assert_eq!(journal.stats().expect("stats").first, Some(Seq(1)), "the first one drops nothing");
    fill(&mut *journal, &[(9, 12)]);
    journal.write_snapshot(Seq(8), b"eight").expect("snapshot");
    let stats = journal.stats().expect("stats");
    assert_eq!((stats.first, stats.last), (Some(Seq(5)), Seq(12)));
    assert_eq!((stats.snapshot, stats.snapshots), (Some(Seq(8)), 2));
    journal.write_snapshot(Seq(12), b"twelve").expect("snapshot");
    drop(journal);
    let mut journal = store.open();
    let (seen, loaded) = load(&mut *journal);
    assert_eq!(seen.snapshot, Some((Seq(12), b"twelve".to_vec())));
    assert_eq!((seen.batches.len(), loaded.last), (0, Seq(12)));
    let stats = journal.stats().expect("stats");
    assert_eq!((stats.entries, stats.first, stats.snapshots), (1, Some(Seq(9)), 2));
    fill(&mut *journal, &[(13, 13)]);
    assert_eq!(load(&mut *journal).0.batches, vec![batch(13, 13)]);
}

fn a_straddling_batch_stays(store: &mut dyn Store) {
    let mut journal = store.open();
    fill(&mut *journal, &[(1, 10), (11, 20)]);
    journal.write_snapshot(Seq(5), b"five").expect("snapshot");
    journal.write_snapshot(Seq(15), b"fifteen").expect("snapshot");
    let (seen, loaded) = load(&mut *journal);
    assert_eq!(seen.snapshot, Some((Seq(15), b"fifteen".to_vec())));
    assert_eq!((seen.batches, loaded.last), (vec![batch(11, 20)], Seq(20)));
    assert_eq!(
        journal.stats().expect("stats").first,
        Some(Seq(1)),
        "5 lies within the first batch"
    );
}

fn wrong_snapshots_are_refused(store: &mut dyn Store) {
    let mut journal = store.open();
    fill(&mut *journal, &[(1, 10)]);
    let ahead = journal.write_snapshot(Seq(11), b"");
    assert!(matches!(ahead, Err(JournalError::SnapshotAhead { .. })), "{ahead:?}");
    journal.write_snapshot(Seq(10), b"ten").expect("snapshot");
    let old = journal.write_snapshot(Seq(9), b"");
    assert!(matches!(old, Err(JournalError::SnapshotOld { .. })), "{old:?}");
    journal.write_snapshot(Seq(10), b"again").expect("the same record may be written again");
    assert_eq!(load(&mut *journal).0.snapshot, Some((Seq(10), b"again".to_vec())));
    assert_eq!(journal.stats().expect("stats").snapshots, 1);
}

fn a_refused_snapshot_is_skipped(store: &mut dyn Store) {
    let mut journal = store.open();
    fill(&mut *journal, &[(1, 4), (5, 8), (9, 12), (13, 16)]);
    for seq in [4, 8, 12] {
        journal.write_snapshot(Seq(seq), &[seq as u8]).expect("snapshot");
    }
    let mut seen = Seen { refuse: vec![Seq(12)], ..Seen::default() };
    let loaded = journal.load(&mut seen).expect("the older one serves");
    assert_eq!((loaded.snapshot, loaded.last), (Some(Seq(8)), Seq(16)));
    assert_eq!(loaded.skipped.iter().map(|s| s.seq).collect::<Vec<_>>(), vec![Seq(12)]);
    assert_eq!(seen.batches, vec![batch(9, 12), batch(13, 16)]);
    // The next snapshot pushes out the bad one, not the good one.
    journal.write_snapshot(Seq(16), b"16").expect("snapshot");
    let mut seen = Seen { refuse: vec![Seq(16)], ..Seen::default() };
    let loaded = journal.load(&mut seen).expect("8 is still there");
    assert_eq!((loaded.snapshot, loaded.last), (Some(Seq(8)), Seq(16)));
}

fn a_refused_batch_ends_the_load(store: &mut dyn Store) {
    let mut journal = store.open();
    fill(&mut *journal, &[(1, 4), (5, 8), (9, 12)]);
    let mut seen = Seen { refuse: vec![Seq(5)], ..Seen::default() };
    match journal.load(&mut seen) {
        Err(JournalError::BadRecords { first: Seq(5), last: Seq(8), .. }) => {}
        other => panic!("expected bad records, got {other:?}"),
    }
    assert_eq!(seen.batches, vec![batch(1, 4)]);
}

fn a_copy_is_restored(store: &mut dyn Store) {
    let mut journal = store.open();
    journal.write_snapshot(Seq(100), b"copy").expect("an empty journal takes any");
    assert!(matches!(journal.append(&batch(1, 1)), Err(JournalError::Gap { .. })));
    drop(journal);
    let mut journal = store.open();
    fill(&mut *journal, &[(101, 102)]);
    let (seen, loaded) = load(&mut *journal);
    assert_eq!(seen.snapshot, Some((Seq(100), b"copy".to_vec())));
    assert_eq!((seen.batches, loaded.last), (vec![batch(101, 102)], Seq(102)));
    let mut refuse = Seen { refuse: vec![Seq(100)], ..Seen::default() };
    match journal.load(&mut refuse) {
        Err(JournalError::Missing { after: Seq(0), found: Seq(101) }) => {}
        other => panic!("expected missing records, got {other:?}"),
    }
}

fn large_values(store: &mut dyn Store) {
    let bytes: Vec<u8> =
        (0..5_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut journal = store.open();
    let big = Batch { first: Seq(1), last: Seq(1000), bytes: bytes.clone() };
    journal.append(&big).expect("a large batch");
    let empty = Batch { first: Seq(1001), last: Seq(1001), bytes: vec![] };
    journal.append(&empty).expect("an empty one: the bytes are not ours to judge");
    journal.write_snapshot(Seq(1000), &bytes).expect("a large snapshot");
    journal.write_snapshot(Seq(1001), b"").expect("an empty snapshot");
    drop(journal);
    let mut journal = store.open();
    assert_eq!(load(&mut *journal).0.snapshot, Some((Seq(1001), vec![])));
    let mut seen = Seen { refuse: vec![Seq(1001)], ..Seen::default() };
    let answer = journal.load(&mut seen);
    assert!(matches!(answer, Err(JournalError::BadRecords { .. })), "{answer:?}");
    assert_eq!(seen.snapshot, Some((Seq(1000), bytes)));
}
