//! Writes the journal of one seed to standard output, for the tests of old journals.

use std::io::Write;

use tutti_sim::{Storm, journal};

fn main() {
    let seed = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(7);
    let storm = Storm { stormy_steps: 200, ..Storm::default() };
    let records = journal(seed, &storm).unwrap_or_else(|failure| panic!("{failure}"));
    let bytes = rmp_serde::to_vec(&records).expect("bytes encode");
    std::io::stdout().write_all(&bytes).expect("standard output takes it");
}
