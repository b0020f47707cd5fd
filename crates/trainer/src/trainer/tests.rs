//! The gradients that are written out, against those of Burn's own differentiation of the same
//! model, written as one graph in the plainest way.

use std::collections::BTreeMap;

use burn_tensor::Bool;

use super::*;
use crate::config::{ModelConfig, OptimConfig, VOCAB};
use crate::cut::cuts;
use crate::tensor::{Int, TensorData, activation};

type Named = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn config(tied: bool, kv_heads: usize, recompute: bool) -> TrainConfig {
    TrainConfig {
        model: ModelConfig { layers: 2, dim: 16, heads: 4, kv_heads, ffn: 24, tied },
        optim: OptimConfig::default(),
        steps: 10,
        batch: 4,
        micro_batch: 2,
        seq: 6,
        seed: 3,
        precision: Precision::F32,
        recompute,
        bucket_bytes: 4000,
    }
}

fn alone(config: TrainConfig) -> Trainer {
    let stages = vec![config.model.layers];
    let layout = Layout { dp: 1, tp: 1, pp: 1, zero: false, stages };
    Trainer::new(config, layout, 0, Mesh::alone(), tensor::cpu()).unwrap()
}

/// Flat buckets as named tensors.
fn named(trainer: &Trainer, flats: Vec<Tensor<1>>) -> Named {
    let mut named = Named::new();
    for (bucket, flat) in trainer.buckets.iter().zip(flats) {
        let numbers = to_host(flat);
        for cut in cuts(bucket, &trainer.params, &(0..bucket.len)) {
            let shape = cut.shape.iter().map(|&n| n as usize).collect();
            named.insert(cut.name, (shape, numbers[cut.at].to_vec()));
        }
    }
    named
}

fn weights(trainer: &Trainer) -> Named {
    named(trainer, trainer.shards.iter().map(|shard| shard.weights.clone()).collect())
}

fn our_gradients(trainer: &Trainer, corpus: &Corpus) -> (f64, Named) {
    let mut gradients = Gradients::new(trainer.params.len(), trainer.buckets.len());
    let loss = trainer.passes(corpus, 0, &mut gradients).unwrap().unwrap();
    let flats = gradients.collect(&trainer.exchange(), &trainer.device).unwrap();
    let loss = f64::from(to_host(loss)[0]) * trainer.stage.token_weight;
    (loss, named(trainer, flats))
}

/// The model as one graph.
struct Plain<'a> {
    model: &'a ModelConfig,
    batch: usize,
    seq: usize,
    device: Device,
    leaves: BTreeMap<String, Tensor<2>>,
}

impl Plain<'_> {
    fn leaf(&self, name: &str) -> Tensor<2> {
        self.leaves[name].clone()
    }

    fn norm(&self, x: Tensor<2>, name: &str) -> Tensor<2> {
        let square = x.clone().mul(x.clone()).mean_dim(1).add_scalar(1e-5);
        x.div(square.sqrt()).mul(self.leaf(name))
    }

    fn heads(&self, x: Tensor<2>, heads: usize) -> Tensor<4> {
        let size = self.model.head_dim();
        x.reshape([self.batch, self.seq, heads, size]).swap_dims(1, 2)
    }

    fn rotary(&self, x: Tensor<4>) -> Tensor<4> {
        let half = self.model.head_dim() / 2;
        let angle = |at: usize| {
            let (position, pair) = (at / half, at % half);
            position as f32 / 10_000_f32.powf(pair as f32 / half as f32)
        };
        let angles: Vec<f32> = (0..self.seq * half).map(angle).collect();
        let angles = TensorData::new(angles, [1, 1, self.seq, half]);
        let angles = Tensor::<4>::from_data(angles, &self.device);
        let (cos, sin) = (angles.clone().cos(), angles.sin());
        let left = x.clone().narrow(3, 0, half);
        let right = x.narrow(3, half, half);
        let turned_left = left.clone() * cos.clone() - right.clone() * sin.clone();
        Tensor::cat(vec![turned_left, right * cos + left * sin], 3)
    }

    fn attention(&self, x: Tensor<2>, layer: &str) -> Tensor<2> {
        let (heads, kv) = (self.model.heads, self.model.kv_heads);
        let project = |part: &str, heads| {
            let w = self.leaf(&format!("{layer}.{part}"));
            self.heads(x.clone().matmul(w.transpose()), heads)
        };
        let q = self.rotary(project("wq", heads));
        let repeat = |x: Tensor<4>| {
            let [batch, kv, seq, size] = x.dims();
            let x = x.reshape([batch, kv, 1, seq, size]).repeat_dim(2, heads / kv);
            x.reshape([batch, heads, seq, size])
        };
        let k = repeat(self.rotary(project("wk", kv)));
        let v = repeat(project("wv", kv));
        let scores = q.matmul(k.transpose()) / (self.model.head_dim() as f32).sqrt();
        let ahead = Tensor::<2>::ones([self.seq, self.seq], &self.device).triu(1);
        let ahead: Tensor<4, Bool> = ahead.bool().unsqueeze();
        let weights = activation::softmax(scores.mask_fill(ahead, f32::NEG_INFINITY), 3);
        let out = weights.matmul(v).swap_dims(1, 2);
        let out = out.reshape([self.batch * self.seq, self.model.dim]);
        out.matmul(self.leaf(&format!("{layer}.wo")).transpose())
    }

    fn loss(&self, batch: &Batch) -> Tensor<1> {
        let ids = |tokens: &[i32]| {
            let data = TensorData::new(tokens.to_vec(), [tokens.len()]);
            Tensor::<1, Int>::from_data(data, &self.device)
        };
        let mut x = self.leaf("embedding").select(0, ids(&batch.inputs));
        for layer in 0..self.model.layers {
            let name = format!("layers.{layer}");
            let normed = self.norm(x.clone(), &format!("{name}.attention_norm"));
            x = x + self.attention(normed, &name);
            let normed = self.norm(x.clone(), &format!("{name}.mlp_norm"));
            let part = |part: &str| self.leaf(&format!("{name}.{part}")).transpose();
            let gate = activation::silu(normed.clone().matmul(part("w1")));
            x = x + (gate * normed.matmul(part("w3"))).matmul(part("w2"));
        }
        let head = if self.model.tied { "embedding" } else { "head" };
        let logits = self.norm(x, "norm").matmul(self.leaf(head).transpose());
        let chosen = activation::log_softmax(logits, 1);
        chosen.gather(1, ids(&batch.targets).unsqueeze_dim(1)).mean().neg()
    }
}

fn plain_gradients(trainer: &Trainer, corpus: &Corpus) -> (f64, Named) {
    let device = Device::autodiff(tensor::cpu());
    let mut leaves = BTreeMap::new();
    let values = weights(trainer);
    for (name, (shape, numbers)) in &values {
        let shape = if shape.len() == 1 { [1, shape[0]] } else { [shape[0], shape[1]] };
        let data = TensorData::new(numbers.clone(), shape);
        leaves.insert(name.clone(), Tensor::<2>::from_data(data, &device).require_grad());
    }
    let (model, batch, seq) = (&trainer.config.model, trainer.config.batch, trainer.config.seq);
    let plain = Plain { model, batch, seq, device, leaves };
    let loss = plain.loss(&corpus.batch(0, 0, batch));
    let grads = loss.backward();
    let named = plain.leaves.iter().map(|(name, leaf)| {
        let gradient = to_host(leaf.grad(&grads).expect("each parameter has a gradient"));
        (name.clone(), (values[name].0.clone(), gradient))
    });
    let named = named.collect();
    (f64::from(to_host(loss.inner())[0]), named)
}

#[test]
fn gradients_are_those_of_one_plain_graph() {
    for (tied, kv_heads, recompute) in [(true, 4, false), (false, 2, false), (true, 1, true)] {
        let config = config(tied, kv_heads, recompute);
        let corpus = Corpus::load(None, config.seq, config.seed).unwrap();
        let trainer = alone(config);
        let (loss, ours) = our_gradients(&trainer, &corpus);
        let (plain_loss, plain) = plain_gradients(&trainer, &corpus);
        assert!((loss - plain_loss).abs() < 1e-5, "{loss} {plain_loss}");
        assert_eq!(ours.keys().collect::<Vec<_>>(), plain.keys().collect::<Vec<_>>());
        for (name, (_, expected)) in &plain {
            let scale = expected.iter().fold(0_f32, |top, x| top.max(x.abs()));
            assert!(scale > 0.0, "{name} has no gradient at all");
            for (at, (x, y)) in ours[name].1.iter().zip(expected).enumerate() {
                assert!((x - y).abs() <= 1e-4 * scale, "{name}[{at}]: {x} is not {y}");
            }
        }
    }
}

#[test]
fn the_first_loss_is_that_of_knowing_nothing() {
    let config = config(true, 2, false);
    let corpus = Corpus::load(None, config.seq, config.seed).unwrap();
    let (loss, _) = our_gradients(&alone(config), &corpus);
    assert!((loss - (VOCAB as f64).ln()).abs() < 0.05, "{loss}");
}

#[test]
fn clipping_bounds_the_norm_and_leaves_small_gradients_alone() {
    let scale =
        |square: f32| to_host(clip_scale(from_host(vec![square], [1], &tensor::cpu()), 1.0))[0];
    assert!((scale(16.0) - 0.25).abs() < 1e-6);
    assert!((scale(0.25) - 1.0).abs() < 1e-6);
}

#[test]
fn loss_falls_on_the_built_in_text() {
    let config = TrainConfig {
        model: ModelConfig { layers: 2, dim: 32, heads: 4, kv_heads: 2, ffn: 64, tied: true },
        optim: OptimConfig { lr: 1e-2, ..OptimConfig::default() },
        steps: 60,
        batch: 8,
        micro_batch: 8,
        seq: 32,
        ..config(true, 2, false)
    };
    let corpus = Corpus::load(None, config.seq, config.seed).unwrap();
    let mut trainer = alone(config);
    let mut losses = Vec::new();
    for step in 0..60 {
        let outcome = trainer.step(&corpus, step, Wishes::default()).unwrap();
        losses.push(outcome.loss.read());
    }
    assert!(losses[0] > 5.4, "{losses:?}");
    assert!(losses[59] < 3.0, "{losses:?}");
}
