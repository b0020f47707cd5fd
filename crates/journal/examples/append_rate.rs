//! How fast the journal appends, beside a plain file with the same bytes and as many fsyncs.
//!
//! `cargo run --release -p tutti-journal --example append_rate [folder]`

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use tutti_journal::{Batch, Journal, Options, RedbJournal, codec};
use tutti_model::Seq;

const RECORD_BYTES: usize = 400;
const SECONDS: u64 = 2;

#[derive(Serialize)]
struct Record {
    seq: u64,
    at: u64,
    event: String,
}

struct Rate {
    commits: u64,
    wall: Duration,
    cpu: Duration,
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let folder = tempfile::tempdir_in(folder)?;
    let mut out = std::io::stdout();
    writeln!(out, "records of {RECORD_BYTES} bytes, one fsync per commit, {SECONDS} s each")?;
    writeln!(out, "batch  store   commits/s  records/s  us/commit  cpu us/commit")?;
    for size in [1, 16, 256] {
        let plain = plain_file(&folder.path().join("plain"), size)?;
        let redb = journal(&folder.path().join("journal.redb"), size)?;
        for (name, rate) in [("plain", plain), ("redb", redb)] {
            let per_s = rate.commits as f64 / rate.wall.as_secs_f64();
            let wall = rate.wall.as_micros() as f64 / rate.commits as f64;
            let cpu = rate.cpu.as_micros() as f64 / rate.commits as f64;
            let records = per_s * size as f64;
            writeln!(
                out,
                "{size:>5}  {name:<6} {per_s:>10.0} {records:>10.0} {wall:>10.0} {cpu:>14.0}"
            )?;
        }
    }
    Ok(())
}

fn bytes_of(first: u64, size: u64) -> Result<Vec<u8>, codec::EncodeError> {
    let event = "x".repeat(RECORD_BYTES - 30);
    let records: Vec<Record> =
        (first..first + size).map(|seq| Record { seq, at: 0, event: event.clone() }).collect();
    codec::encode(&records)
}

fn plain_file(path: &Path, size: u64) -> Result<Rate, Box<dyn Error>> {
    let mut file = File::create(path)?;
    measure(|commit| {
        file.write_all(&bytes_of(commit * size + 1, size)?)?;
        Ok(file.sync_data()?)
    })
}

fn journal(path: &Path, size: u64) -> Result<Rate, Box<dyn Error>> {
    if path.exists() {
        std::fs::remove_file(path)?;
    }
    let mut journal = RedbJournal::open(path, &Options::default())?;
    measure(|commit| {
        let first = commit * size + 1;
        let bytes = bytes_of(first, size)?;
        Ok(journal.append(&Batch { first: Seq(first), last: Seq(first + size - 1), bytes })?)
    })
}

fn measure(
    mut commit: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<Rate, Box<dyn Error>> {
    let (start, cpu) = (Instant::now(), cpu_time()?);
    let mut commits = 0;
    while start.elapsed() < Duration::from_secs(SECONDS) {
        commit(commits)?;
        commits += 1;
    }
    Ok(Rate { commits, wall: start.elapsed(), cpu: cpu_time()?.saturating_sub(cpu) })
}

/// Processor time of this process, from the scheduler's own account in nanoseconds.
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanos = text.split_whitespace().next().ok_or("empty schedstat")?.parse()?;
    Ok(Duration::from_nanos(nanos))
}
