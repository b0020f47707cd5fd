//! Causal attention with rotary positions and grouped queries.
//!
//! Queries of one group are laid behind each other, `[batch * kv heads, group * seq, head]`, so
//! that they meet their common keys and values in one product, and nothing is repeated.

use super::{Geometry, linear, linear_weight};
use crate::tensor::{Device, FloatDType, Tensor, TensorData, activation};

pub(super) const ROTARY_BASE: f64 = 10_000.0;
/// What is added to the score of a token that is still to come.
pub(super) const MASKED: f32 = -1e9;

/// Made once per run.
#[derive(Clone)]
pub struct Tables {
    cos: Tensor<5>,
    sin: Tensor<5>,
    mask: Tensor<4>,
}

impl Tables {
    pub fn new(seq: usize, head_dim: usize, device: &Device) -> Self {
        let half = head_dim / 2;
        let angle = |at: usize| {
            let (position, pair) = (at / half, at % half);
            position as f64 * ROTARY_BASE.powf(-(pair as f64) / half as f64)
        };
        let angles = |f: fn(f64) -> f64| (0..seq * half).map(|at| f(angle(at)) as f32).collect();
        let cos: Vec<f32> = angles(f64::cos);
        let sin: Vec<f32> = angles(f64::sin);
        // The two halves of a head turn against each other.
        let sin: Vec<f32> = sin
            .chunks(half)
            .flat_map(|row| row.iter().map(|&s| -s).chain(row.iter().copied()))
            .collect();
        let mask: Vec<f32> =
            (0..seq * seq).map(|at| if at % seq > at / seq { MASKED } else { 0.0 }).collect();
        Tables {
            cos: Tensor::from_data(TensorData::new(cos, [1, seq, 1, 1, half]), device),
            sin: Tensor::from_data(TensorData::new(sin, [1, seq, 1, 2, half]), device),
            mask: Tensor::from_data(TensorData::new(mask, [1, 1, seq, seq]), device),
        }
    }

    fn rotate(&self, x: Tensor<5>) -> Tensor<5> {
        let (dtype, x) = (FloatDType::from(x.dtype()), x.cast(FloatDType::F32));
        let turned = x.clone().flip([3]).mul(self.sin.clone());
        x.mul(self.cos.clone()).add(turned).cast(dtype)
    }

    fn rotate_back(&self, x: Tensor<5>) -> Tensor<5> {
        let (dtype, x) = (FloatDType::from(x.dtype()), x.cast(FloatDType::F32));
        let turned = x.clone().flip([3]).mul(self.sin.clone());
        x.mul(self.cos.clone()).sub(turned).cast(dtype)
    }
}

pub struct Saved {
    input: Tensor<2>,
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    weights: Tensor<3>,
    context: Tensor<2>,
}

pub struct Grads {
    pub input: Tensor<2>,
    pub qkv: Tensor<2>,
    pub out: Tensor<2>,
}

impl Geometry {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// `[tokens, heads of q * head]` to `[batch * kv heads, group * seq, head]`.
    fn split_queries(&self, x: Tensor<2>) -> Tensor<3> {
        let (kv, group) = (self.kv_heads, self.group());
        x.reshape([self.batch, self.seq, kv, group, self.head_dim])
            .permute([0, 2, 3, 1, 4])
            .reshape([self.batch * kv, group * self.seq, self.head_dim])
    }

    fn join_queries(&self, x: Tensor<3>) -> Tensor<2> {
        let (kv, group) = (self.kv_heads, self.group());
        x.reshape([self.batch, kv, group, self.seq, self.head_dim])
            .permute([0, 3, 1, 2, 4])
            .reshape([self.batch * self.seq, self.heads * self.head_dim])
    }

    fn split_keys(&self, x: Tensor<2>) -> Tensor<3> {
        let kv = self.kv_heads;
        x.reshape([self.batch, self.seq, kv, self.head_dim]).permute([0, 2, 1, 3]).reshape([
            self.batch * kv,
            self.seq,
            self.head_dim,
        ])
    }

    fn join_keys(&self, x: Tensor<3>) -> Tensor<2> {
        let kv = self.kv_heads;
        x.reshape([self.batch, kv, self.seq, self.head_dim])
            .permute([0, 2, 1, 3])
            .reshape([self.batch * self.seq, kv * self.head_dim])
    }

    /// Turns the first `heads` heads of each token.
    fn pairs(&self, x: Tensor<2>) -> Tensor<5> {
        let heads = x.dims()[1] / self.head_dim;
        x.reshape([self.batch, self.seq, heads, 2, self.head_dim / 2])
    }

    fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }
}

pub fn forward(
    geometry: Geometry,
    tables: &Tables,
    input: Tensor<2>,
    qkv: Tensor<2>,
    out: Tensor<2>,
) -> (Tensor<2>, Saved) {
    let tokens = geometry.batch * geometry.seq;
    let (q_width, kv_width) =
        (geometry.heads * geometry.head_dim, geometry.kv_heads * geometry.head_dim);
    let all = linear(input.clone(), qkv);
    let turned = tables.rotate(geometry.pairs(all.clone().narrow(1, 0, q_width + kv_width)));
    let turned = turned.reshape([tokens, q_width + kv_width]);
    let q = geometry.split_queries(turned.clone().narrow(1, 0, q_width));
    let k = geometry.split_keys(turned.narrow(1, q_width, kv_width));
    let v = geometry.split_keys(all.narrow(1, q_width + kv_width, kv_width));
    let weights = softmax(geometry, tables, q.clone().matmul(k.clone().transpose()));
    let context = geometry.join_queries(weights.clone().matmul(v.clone()));
    let result = linear(context.clone(), out);
    (result, Saved { input, q, k, v, weights, context })
}

fn softmax(geometry: Geometry, tables: &Tables, scores: Tensor<3>) -> Tensor<3> {
    let dims = scores.dims();
    let seq = geometry.seq;
    let scores = scores.cast(FloatDType::F32).mul_scalar(geometry.scale());
    let scores = scores.reshape([dims[0], geometry.group(), seq, seq]).add(tables.mask.clone());
    activation::softmax(scores, 3).reshape(dims).cast(geometry.dtype)
}

pub fn backward(
    geometry: Geometry,
    tables: &Tables,
    dy: Tensor<2>,
    saved: Saved,
    qkv: Tensor<2>,
    out: Tensor<2>,
) -> Grads {
    let tokens = geometry.batch * geometry.seq;
    let out_grad = linear_weight(dy.clone(), saved.context.clone());
    let dcontext = dy.matmul(out);
    // Each row's sum of weight times gradient, from the much smaller context.
    let along = geometry.split_queries(dcontext.clone().mul(saved.context)).sum_dim(2);
    let dcontext = geometry.split_queries(dcontext);
    let dv = saved.weights.clone().transpose().matmul(dcontext.clone());
    let dweights = dcontext.matmul(saved.v.transpose());
    let dscores = saved.weights.mul(dweights.sub(along)).mul_scalar(geometry.scale());
    let dq = dscores.clone().matmul(saved.k);
    let dk = dscores.transpose().matmul(saved.q);
    let turned = Tensor::cat(vec![geometry.join_queries(dq), geometry.join_keys(dk)], 1);
    let width = turned.dims()[1];
    let straight = tables.rotate_back(geometry.pairs(turned)).reshape([tokens, width]);
    let dall = Tensor::cat(vec![straight, geometry.join_keys(dv)], 1);
    Grads { qkv: linear_weight(dall.clone(), saved.input), input: dall.matmul(qkv), out: out_grad }
}
