//! A process that appends is killed at any moment, again and again, over the same file.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tutti_journal::{Batch, BoxError, Journal, Options, RedbJournal, Replay, codec, verify};
use tutti_model::Seq;

const PATH: &str = "TUTTI_TEST_JOURNAL";
const ROUNDS: u64 = 60;

#[derive(Default)]
struct Numbers {
    last: u64,
}

impl Replay for Numbers {
    fn snapshot(&mut self, seq: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        let state: Vec<u64> = codec::decode(bytes)?;
        if state.last() != Some(&seq.0) {
            return Err("snapshot of another record".into());
        }
        self.last = seq.0;
        Ok(())
    }
    fn batch(&mut self, first: Seq, last: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        let records: Vec<(u64, String)> = codec::decode(bytes)?;
        if records.iter().map(|r| r.0).ne(first.0..=last.0) {
            return Err("records are not those of the batch".into());
        }
        self.last = last.0;
        Ok(())
    }
}

/// Runs in a process of its own; prints a record's number once it is durable.
#[test]
#[ignore = "started by the test below"]
fn append_until_killed() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let mut journal = RedbJournal::open(&PathBuf::from(path), &Options::default()).unwrap();
    let mut numbers = Numbers::default();
    journal.load(&mut numbers).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(numbers.last);
    let mut out = std::io::stdout();
    for round in 1u64.. {
        let first = numbers.last + 1;
        let last = first + rng.random_range(0..30);
        let records: Vec<(u64, String)> = (first..=last).map(|s| (s, "x".repeat(300))).collect();
        let bytes = codec::encode(&records).unwrap();
        journal.append(&Batch { first: Seq(first), last: Seq(last), bytes }).unwrap();
        writeln!(out, "\nacked {last}").unwrap();
        numbers.last = last;
        if round.is_multiple_of(20) {
            let state = codec::encode_packed(&(1..=last).collect::<Vec<u64>>()).unwrap();
            journal.write_snapshot(Seq(last), &state).unwrap();
        }
    }
}

/// Starts a writer, kills it after about `acks` acknowledgements, and answers with the last one.
fn run_and_kill(path: &Path, acks: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "append_until_killed", "--ignored", "--nocapture"])
        .env(PATH, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    let mut seen = 0;
    while seen < acks {
        let at = text.len();
        assert_ne!(lines.read_line(&mut text).unwrap(), 0, "the writer stopped:\n{text}");
        seen += usize::from(text[at..].starts_with("acked "));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The writer went on while this process was reading: the pipe still holds what it said.
    lines.read_to_string(&mut text).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _cut)| whole);
    let last = whole.lines().filter_map(|l| l.strip_prefix("acked ")).next_back();
    last.unwrap().parse().unwrap()
}

#[test]
fn acknowledged_records_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.redb");
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for round in 0..ROUNDS {
        let acked = run_and_kill(&path, rng.random_range(1..60));
        // What `tutti doctor` would say right after the kill.
        let report = verify(&path, &mut |_| Ok(())).unwrap();
        assert!(report.is_sound(), "round {round}: {report:?}");
        let mut journal = RedbJournal::open(&path, &Options::default()).unwrap();
        let mut numbers = Numbers::default();
        let loaded = journal.load(&mut numbers).unwrap();
        assert!(loaded.skipped.is_empty(), "round {round}: {loaded:?}");
        assert!(numbers.last >= acked, "round {round}: {} of {acked}", numbers.last);
        assert_eq!(report.stats.unwrap().last, loaded.last);
    }
}
