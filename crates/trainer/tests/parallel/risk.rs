//! How many steps a failure may cost, at any moment of a run.

use std::sync::atomic::AtomicBool;

use tutti_checkpoint::{Attempt, Writer};
use tutti_collectives::World;
use tutti_trainer::{CheckpointOptions, Device, Event, RunOptions, TrainConfig, device};

use crate::ranks::{layout, on_ranks, tiny};

static NOBODY_ASKED: AtomicBool = AtomicBool::new(false);
const EVERY: u64 = 3;

fn options(dir: &str, world: &World, overlap: u64) -> RunOptions {
    let (rank, size) = (world.rank() as u32, world.size() as u32);
    let attempt = Attempt { owner: "test".into(), generation: 1 };
    let writer = Writer { rank, world: size, attempt };
    let location = dir.to_owned();
    RunOptions {
        data: None,
        checkpoint: Some(CheckpointOptions {
            location,
            every: EVERY,
            overlap,
            keep: None,
            writer,
            copies: None,
            durable: None,
            known_step: None,
        }),
        stop_after: None,
        unmeasured: 1,
        asked: &NOBODY_ASKED,
    }
}

/// The most steps that were ever done beyond the newest checkpoint, and the steps that were saved.
fn at_risk(dir: &str, config: &TrainConfig, world: &World, overlap: u64) -> (u64, Vec<u64>) {
    let layout = layout(config, 2, 1, 1, true);
    let (mut worst, mut saved) = (0, vec![0]);
    let mut tell = |event| match event {
        Event::Step(report) => worst = worst.max(report.step - saved.last().unwrap()),
        Event::Saved(report) => {
            assert_eq!(report.failed, None);
            saved.push(report.step);
        }
        Event::Started(_) | Event::Ended(_) => (),
    };
    let options = options(dir, world, overlap);
    let cpu = device::open(Device::Cpu, 0, config.precision).unwrap();
    tutti_trainer::run(config.clone(), layout, world, cpu, &options, &mut tell).unwrap();
    (worst, saved)
}

#[test]
fn never_more_is_at_risk_than_the_interval_and_the_overlap() {
    let config = TrainConfig { steps: 11, ..tiny() };
    for overlap in [0, 2, u64::MAX] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        for (worst, saved) in on_ranks(2, |world| at_risk(dir, &config, world, overlap)) {
            assert_eq!(saved, [0, 3, 6, 9, 11], "each is saved, whatever is still on its way");
            // The next one waits for the last, so more than two intervals it never is.
            let bound = EVERY + overlap.min(EVERY);
            assert!((EVERY..=bound).contains(&worst), "{worst} steps at risk with {overlap}");
        }
    }
}
