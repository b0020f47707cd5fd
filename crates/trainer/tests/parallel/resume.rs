//! A checkpoint of one layout, loaded under another.

use crate::ranks::{layout, on_ranks, tiny, trainer};
use tutti_checkpoint::{Attempt, Options, Selector, Store, Writer};
use tutti_collectives::World;
use tutti_trainer::checkpoint::Checkpoints;
use tutti_trainer::data::Corpus;
use tutti_trainer::trainer::Wishes;
use tutti_trainer::{Layout, TrainConfig, Trainer};

fn open(dir: &str, world: &World, generation: u64) -> Checkpoints {
    let writer = Writer {
        rank: world.rank() as u32,
        world: world.size() as u32,
        attempt: Attempt { owner: "test".into(), generation },
    };
    Checkpoints::open(dir, writer, None).unwrap()
}

fn train(trainer: &mut Trainer, config: &TrainConfig, steps: std::ops::Range<u64>) -> Vec<f64> {
    let corpus = Corpus::load(None, config.seq, config.seed).unwrap();
    let step = |step| trainer.step(&corpus, step, Wishes::default()).unwrap().loss.read();
    steps.map(step).collect()
}

fn save(checkpoints: &mut Checkpoints, trainer: &Trainer, step: u64) {
    checkpoints.start(trainer, step).unwrap();
    let saved = checkpoints.publish(trainer).unwrap().unwrap();
    assert_eq!((saved.step, saved.failed), (step, None));
}

/// Trains four steps under `layout` and saves. Returns the losses of six more.
fn train_and_save(dir: &str, config: &TrainConfig, layout: &Layout) -> Vec<f64> {
    let ranks = on_ranks(layout.world(), |world| {
        let mut trainer = trainer(config, layout, world);
        train(&mut trainer, config, 0..4);
        save(&mut open(dir, world, 1), &trainer, 4);
        train(&mut trainer, config, 4..10)
    });
    ranks.into_iter().next().unwrap()
}

/// Loads under `layout`, saves what was loaded to `copy`, and trains six steps more.
fn load_and_train(dir: &str, copy: &str, config: &TrainConfig, layout: &Layout) -> Vec<f64> {
    let ranks = on_ranks(layout.world(), |world| {
        // Other first values, so that what is not loaded is noticed.
        let mut trainer = trainer(&TrainConfig { seed: 99, ..config.clone() }, layout, world);
        assert_eq!(open(dir, world, 2).resume(&mut trainer).unwrap().step, Some(4));
        save(&mut open(copy, world, 2), &trainer, 4);
        train(&mut trainer, config, 4..10)
    });
    ranks.into_iter().next().unwrap()
}

fn same_tensors(a: &str, b: &str) {
    let load = |dir| Store::open(dir, Options::default()).unwrap().load(Selector::Latest).unwrap();
    let (a, b) = (load(a), load(b));
    let names: Vec<&str> = a.names().collect();
    assert_eq!(names, b.names().collect::<Vec<_>>());
    assert_eq!(names.len(), 3 * (1 + 8 * 9 + 1), "weights and two moments of each tensor");
    for name in names {
        let (a, b) = (a.tensor(name).unwrap(), b.tensor(name).unwrap());
        assert_eq!(a.shape, b.shape, "{name}");
        assert!(a.bytes == b.bytes, "{name} is not the same, bit by bit");
        assert!(a.bytes.iter().any(|&byte| byte != 0), "{name} is all zeros");
    }
}

#[test]
fn any_layout_loads_what_any_other_saved_bit_by_bit() {
    let config = tiny();
    let of = |dp, tp, pp, zero| layout(&config, dp, tp, pp, zero);
    for (from, to) in [
        (of(1, 1, 1, false), of(2, 2, 1, true)),
        (of(2, 2, 2, true), of(1, 1, 4, false)),
        (of(4, 1, 1, true), of(1, 8, 1, false)),
        (of(2, 4, 1, false), of(1, 1, 1, false)),
        (of(1, 2, 2, false), of(8, 1, 1, true)),
    ] {
        let dirs = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (dir, copy) = (dirs.0.path().to_str().unwrap(), dirs.1.path().to_str().unwrap());
        let expected = train_and_save(dir, &config, &from);
        let resumed = load_and_train(dir, copy, &config, &to);
        same_tensors(dir, copy);
        for (loss, expected) in resumed.iter().zip(&expected) {
            let difference = (loss - expected).abs() / expected;
            assert!(difference < 1e-3, "{from} to {to}: {resumed:?}, undisturbed {expected}");
        }
    }
}

#[test]
fn the_same_layout_goes_on_exactly() {
    let config = tiny();
    let layout = layout(&config, 2, 1, 1, true);
    let dirs = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (dir, copy) = (dirs.0.path().to_str().unwrap(), dirs.1.path().to_str().unwrap());
    let expected = train_and_save(dir, &config, &layout);
    assert_eq!(load_and_train(dir, copy, &config, &layout), expected);
}

#[test]
fn another_model_is_refused_on_every_rank_and_nothing_yet_is_a_fresh_start() {
    let config = tiny();
    let of = layout(&config, 2, 1, 1, false);
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    on_ranks(2, |world| {
        let mut trainer = trainer(&config, &of, world);
        assert_eq!(open(dir, world, 1).resume(&mut trainer).unwrap().step, None);
    });
    train_and_save(dir, &config, &of);
    let mut wider = config.clone();
    wider.model.ffn = 32;
    on_ranks(2, |world| {
        let mut trainer = trainer(&wider, &of, world);
        let error = open(dir, world, 2).resume(&mut trainer).unwrap_err().to_string();
        assert!(error.contains("another model") && error.contains("--ffn 8"), "{error}");
    });
}
