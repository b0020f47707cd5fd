//! The same seed and the same batch give the same losses, however the ranks divide the work.

use crate::ranks::{layout, on_ranks, tiny, trainer, with_micro_batches};
use tutti_trainer::data::Corpus;
use tutti_trainer::trainer::Wishes;
use tutti_trainer::{Layout, TrainConfig};

fn losses(config: &TrainConfig, layout: &Layout) -> Vec<f64> {
    let corpus = Corpus::load(None, config.seq, config.seed).unwrap();
    let mut ranks = on_ranks(layout.world(), |world| {
        let mut trainer = trainer(config, layout, world);
        let step = |step| trainer.step(&corpus, step, Wishes::default()).unwrap().loss.read();
        (0..config.steps).map(step).collect::<Vec<f64>>()
    });
    let first = ranks.remove(0);
    for other in ranks {
        assert_eq!(first, other, "ranks of {layout} disagree on the loss");
    }
    first
}

fn compare(config: &TrainConfig, layout: &Layout, expected: &[f64]) {
    for (step, (loss, expected)) in losses(config, layout).iter().zip(expected).enumerate() {
        let difference = (loss - expected).abs() / expected;
        assert!(difference < 1e-3, "{layout}, step {step}: {loss}, alone {expected}");
    }
}

/// Every way to divide `world`, with and without ZeRO-1 where that makes a difference.
fn all_of(world: usize) {
    let config = with_micro_batches(&tiny(), 1, 1);
    let expected = losses(&config, &layout(&config, 1, 1, 1, false));
    assert!(expected[49] < 0.8 * expected[0], "it learns: {expected:?}");
    for dp in (1..=world).filter(|dp| world.is_multiple_of(*dp)) {
        for tp in (1..=world / dp).filter(|tp| (world / dp).is_multiple_of(*tp)) {
            for zero in [false, true] {
                let pp = world / dp / tp;
                if !zero || dp > 1 {
                    let config = with_micro_batches(&config, dp, pp);
                    compare(&config, &layout(&config, dp, tp, pp, zero), &expected);
                }
            }
        }
    }
}

#[test]
fn two_ranks_give_the_losses_of_one() {
    all_of(2);
}

#[test]
fn four_ranks_give_the_losses_of_one() {
    all_of(4);
}

#[test]
fn eight_ranks_give_the_losses_of_one() {
    all_of(8);
}

/// A head of its own, stages by hand, a vocabulary that three ranks must pad, layers run again.
#[test]
fn odd_layouts_give_the_losses_of_one_too() {
    let mut config = tiny();
    config.model.tied = false;
    config.model.heads = 6;
    config.model.kv_heads = 3;
    config.model.dim = 24;
    config.model.ffn = 18;
    config.recompute = true;
    config.steps = 10;
    let expected = losses(&config, &layout(&config, 1, 1, 1, false));
    let stages = Some(vec![2, 6]);
    let odd = Layout::new(6, (None, 3, 2), false, stages, &config).unwrap();
    compare(&config, &odd, &expected);
}
