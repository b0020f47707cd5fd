//! Journals written by earlier versions must load, and mean what they meant.
//!
//! A fixture is a journal of one seed, as MessagePack. When events gain fields, the old files stay
//! and a new one is added: `cargo run -p tutti-sim --example journal -- 7 > tests/fixtures/NAME`.

use tutti_engine::{Engine, Record, Settings, invariants};
use tutti_model::{JobState, State};

fn load(bytes: &[u8]) -> State {
    let records: Vec<Vec<u8>> = rmp_serde::from_slice(bytes).expect("the fixture is a list");
    let mut engine = Engine::new(Settings::default());
    for bytes in &records {
        let record: Record = rmp_serde::from_slice(bytes).expect("an old record is understood");
        engine.replay(&record);
    }
    engine.state().clone()
}

fn count(state: &State, wanted: JobState) -> usize {
    state.jobs.values().filter(|j| j.state() == wanted).count()
}

/// Records, nodes, and jobs that completed, failed and were cancelled.
fn found(state: &State) -> (u64, usize, [usize; 3]) {
    assert_eq!(invariants::check_all(state), []);
    let by_state = [JobState::Completed, JobState::Failed, JobState::Cancelled];
    (state.seq.0, state.nodes.len(), by_state.map(|s| count(state, s)))
}

#[test]
fn version_1_loads() {
    let state = load(include_bytes!("fixtures/journal-v1.mp"));
    assert_eq!(found(&state), (211, 4, [9, 4, 2]));
}

/// With teams, claims, preempted and resized jobs.
#[test]
fn version_2_loads() {
    let state = load(include_bytes!("fixtures/journal-v2.mp"));
    assert_eq!(found(&state), (244, 4, [9, 3, 3]));
    assert_eq!(state.policy.teams.len(), 4);
}
