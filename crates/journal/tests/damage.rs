//! Any file, however damaged, is an answer: a whole prefix of what was written, or an error.

use std::path::Path;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tutti_journal::{Batch, BoxError, Entry, Journal, Options, RedbJournal, Replay, codec, verify};
use tutti_model::Seq;

#[derive(Default)]
struct Records(Vec<u64>);

impl Replay for Records {
    fn snapshot(&mut self, _seq: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        self.0 = codec::decode(bytes)?;
        Ok(())
    }
    fn batch(&mut self, _first: Seq, _last: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        let batch: Vec<u64> = codec::decode(bytes)?;
        let have = self.0.len() as u64;
        self.0.extend(batch.into_iter().filter(|s| *s > have));
        Ok(())
    }
}

fn check_entry(entry: Entry<'_>) -> Result<(), BoxError> {
    let (Entry::Snapshot { bytes, .. } | Entry::Batch { bytes, .. }) = entry;
    codec::decode::<Vec<u64>>(bytes)?;
    Ok(())
}

/// Two files with the same 400 records: one closed, one as a kill leaves it.
fn samples(folder: &Path) -> [Vec<u8>; 2] {
    let path = folder.join("sample");
    let mut journal = RedbJournal::open(&path, &Options::default()).unwrap();
    for (n, first) in (1..400u64).step_by(4).enumerate() {
        let batch: Vec<u64> = (first..first + 4).collect();
        let bytes = codec::encode(&batch).unwrap();
        journal.append(&Batch { first: Seq(first), last: Seq(first + 3), bytes }).unwrap();
        if n % 30 == 29 {
            let state: Vec<u64> = (1..=first + 3).collect();
            journal.write_snapshot(Seq(first + 3), &codec::encode(&state).unwrap()).unwrap();
        }
    }
    let killed = std::fs::read(&path).unwrap();
    drop(journal);
    [std::fs::read(&path).unwrap(), killed]
}

/// `Some` with the last record when it opens and loads.
fn try_it(path: &Path, bytes: &[u8], closed: bool) -> Option<usize> {
    std::fs::write(path, bytes).unwrap();
    let report = verify(path, &mut check_entry).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), bytes, "verify changes nothing");
    let mut records = Records::default();
    let outcome = RedbJournal::open(path, &Options::default())
        .and_then(|mut journal| journal.load(&mut records).map(|_| ()));
    match outcome {
        Ok(()) => {
            let whole: Vec<u64> = (1..=records.0.len() as u64).collect();
            assert_eq!(records.0, whole, "a prefix of what was written");
            if closed {
                assert_eq!(records.0.len(), 400, "closed cleanly: all or an error");
            }
            Some(records.0.len())
        }
        Err(error) => {
            assert!(!report.is_sound(), "doctor saw nothing wrong, but: {error}");
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

fn garble(bytes: &mut [u8], rng: &mut impl Rng) {
    let at = rng.random_range(0..bytes.len());
    let end = (at + rng.random_range(1..4096)).min(bytes.len());
    match rng.random_range(0..3) {
        0 => bytes[at] ^= 1 << rng.random_range(0..8),
        1 => bytes[at..end].fill(0),
        _ => rng.fill_bytes(&mut bytes[at..end]),
    }
}

#[test]
fn damaged_files_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.redb");
    let samples = samples(folder.path());
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (mut opened, mut refused) = (0, 0);
    for round in 0..rounds() {
        let closed = round % 2 == 0;
        let mut bytes = samples[round % 2].clone();
        let used = used_length(&bytes);
        match rng.random_range(0..4) {
            0 => bytes.truncate(rng.random_range(0..bytes.len())),
            1 => garble(&mut bytes[..320], &mut rng),
            2 => garble(&mut bytes[4096..used], &mut rng),
            _ => (0..5).for_each(|_| garble(&mut bytes[..used], &mut rng)),
        }
        // A cut to nothing is a new journal, which says so.
        if bytes.is_empty() {
            continue;
        }
        match try_it(&path, &bytes, closed) {
            Some(_) => opened += 1,
            None => refused += 1,
        }
    }
    assert!(opened > 0 && refused > 0, "{opened} opened, {refused} refused");
}

fn rounds() -> usize {
    std::env::var("TUTTI_TEST_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(300)
}

/// Beyond this the file is empty, and damage there says nothing.
fn used_length(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|b| *b != 0).map_or(bytes.len(), |at| at + 1)
}
