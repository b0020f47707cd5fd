//! Power fails at any moment: what was acknowledged is there, and nothing is there by half.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tutti_model::Seq;

use super::disk::{Disk, Op, after_power_loss};
use crate::conformance::{Seen, load};
use crate::{Batch, Journal};

fn filled(first: u64, last: u64, bytes: usize) -> Batch {
    let fill = (first..).flat_map(|s| s.to_le_bytes()).take(bytes.max(8)).collect();
    Batch { first: Seq(first), last: Seq(last), bytes: fill }
}

/// Appends of all sizes, and snapshots between them.
fn busy_disk(rng: &mut ChaCha8Rng) -> (Vec<Op>, Vec<Batch>) {
    let disk = Disk::default();
    let mut journal = disk.journal();
    disk.acknowledged(Seq(0));
    let mut written: Vec<Batch> = Vec::new();
    for _ in 0..120 {
        let first = written.last().map_or(1, |b| b.last.0 + 1);
        let bytes = if rng.random_bool(0.1) { 300_000 } else { rng.random_range(8..5000) };
        let batch = filled(first, first + rng.random_range(0..20), bytes);
        journal.append(&batch).unwrap();
        disk.acknowledged(batch.last);
        if rng.random_bool(0.1) {
            let size = rng.random_range(0..2_500_000);
            journal.write_snapshot(batch.last, &vec![batch.last.0 as u8; size]).unwrap();
        }
        written.push(batch);
    }
    // Killed, not closed.
    let ops = disk.ops();
    drop(journal);
    (ops, written)
}

fn check(ops: &[Op], written: &[Batch], rng: &mut ChaCha8Rng) {
    let acknowledged = ops.iter().rev().find_map(|op| match op {
        Op::Acknowledged(seq) => Some(*seq),
        _ => None,
    });
    let Some(acknowledged) = acknowledged else { return };
    let disk = Disk::with(after_power_loss(ops, rng));
    let mut journal = disk.journal();
    let (Seen { snapshot, batches, .. }, loaded) = load(&mut journal);
    assert!(loaded.skipped.is_empty(), "{loaded:?}");
    assert!(loaded.last >= acknowledged, "{} of {acknowledged}", loaded.last);
    if let Some((seq, bytes)) = &snapshot {
        assert!(bytes.iter().all(|b| *b == seq.0 as u8), "snapshot {seq} is not as written");
    }
    let start = snapshot.map_or(Seq(0), |(seq, _)| seq);
    let expected: Vec<&Batch> =
        written.iter().filter(|b| b.last > start && b.last <= loaded.last).collect();
    assert_eq!(batches.iter().collect::<Vec<_>>(), expected);
    let next = loaded.last.0 + 1;
    journal.append(&filled(next, next, 100)).unwrap();
}

#[test]
fn acknowledged_batches_survive() {
    for seed in 0..6 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (ops, written) = busy_disk(&mut rng);
        for _ in 0..40 {
            let at = rng.random_range(0..=ops.len());
            check(&ops[..at], &written, &mut rng);
        }
    }
}
