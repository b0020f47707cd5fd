//! The model forward alone, for sequences that grow token by token.
//!
//! It has slots, each with room for one sequence. What is in a slot is the caller's to know: it says
//! which tokens go where, and positions before them must hold what belongs there.
//!
//! ```text
//! prefill(slot, start, tokens) ─┐
//! decode(one token per slot) ───┴► embedding ─► layers (nn::cached) ─► norm ─► head ─► logits
//! ```

use crate::comm::{from_host, to_host};
use crate::config::{ModelConfig, VOCAB};
use crate::nn::cached::{Batch, Cache, Heads, Rotary, attend, mask};
use crate::nn::{linear, mlp, norm};
use crate::params::{LayerRoles, Roles};
use crate::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use crate::weights::Weights;

/// How much is kept, where, and in which precision.
#[derive(Clone, Debug)]
pub struct DecoderOptions {
    /// Sequences at the same time.
    pub slots: usize,
    /// Tokens of one sequence.
    pub context: usize,
    /// Of the matrices.
    pub dtype: FloatDType,
    pub device: Device,
    /// Few shapes, at the price of computing for rows and positions that are not there: an
    /// accelerator compiles and tries kernels for each shape.
    pub padded: bool,
}

/// The next token of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub slot: usize,
    pub token: u8,
    /// How many tokens are before it.
    pub position: usize,
}

pub struct Decoder {
    options: DecoderOptions,
    heads: Heads,
    roles: Roles,
    weights: Vec<Tensor<2>>,
    caches: Vec<Cache>,
    rotary: Rotary,
}

/// Fewest positions that are looked at when shapes are to be few; also what a context is a multiple
/// of, so that parts of it are aligned.
const BLOCK: usize = 64;

impl Decoder {
    pub fn new(weights: &Weights, options: DecoderOptions) -> Self {
        let context = options.context.next_multiple_of(BLOCK);
        let options = DecoderOptions { context, ..options };
        let model = &weights.config.model;
        let heads = heads(model);
        let device = &options.device;
        let matrices = weights.params.iter().zip(&weights.values).map(|(param, values)| {
            let dtype = if param.decay { options.dtype } else { FloatDType::F32 };
            from_host(values.clone(), param.shape, device).cast(dtype)
        });
        let cache = || Cache::new(options.slots, context, heads, device);
        Decoder {
            weights: matrices.collect(),
            caches: (0..model.layers).map(|_| cache()).collect(),
            rotary: Rotary::new(context, heads.head_dim, device),
            roles: weights.roles.clone(),
            heads,
            options,
        }
    }

    /// Bytes that keys and values take: of all slots, and of the one that is nobody's.
    pub fn cache_bytes(&self) -> usize {
        let Heads { kv_heads, head_dim, .. } = self.heads;
        let per_token = 2 * self.caches.len() * kv_heads * head_dim * size_of::<f32>();
        per_token * self.options.context * (self.options.slots + 1)
    }

    /// Takes tokens of one sequence into its slot. The logits of what follows the last of them, if
    /// they are wanted.
    pub fn prefill(
        &mut self,
        slot: usize,
        start: usize,
        tokens: &[u8],
        wanted: bool,
    ) -> Option<Vec<f32>> {
        let count = tokens.len();
        let (rows, len) = match self.options.padded {
            true => (step_up(count, 16, 4), self.padded_len(start + count)),
            false => (count, start + count),
        };
        let mut padded: Vec<i32> = tokens.iter().map(|&token| i32::from(token)).collect();
        padded.resize(rows, 0);
        let last = self.options.context - 1;
        let positions = self.ints((0..rows).map(|row| (start + row).min(last) as i32).collect());
        let mask = mask(positions.clone(), len, &self.options.device);
        let batch = Batch::Span { slot, start, count, len, mask };
        let hidden = self.forward(padded, positions, &batch);
        wanted.then(|| to_host(self.head(hidden.narrow(0, count - 1, 1))))
    }

    /// One step of several sequences: the logits of what follows each row, one after the other.
    pub fn decode(&mut self, rows: &[Row]) -> Vec<f32> {
        if self.options.padded {
            return self.decode_padded(rows);
        }
        let tokens = rows.iter().map(|row| i32::from(row.token)).collect();
        let positions = self.ints(rows.iter().map(|row| row.position as i32).collect());
        let batch = Batch::Each(rows.iter().map(|row| (row.slot, row.position)).collect());
        let hidden = self.forward(tokens, positions, &batch);
        to_host(self.head(hidden))
    }

    /// One row for each slot up to the last that is used. Those that are not write behind the last
    /// slot, each to a place of its own.
    fn decode_padded(&mut self, rows: &[Row]) -> Vec<f32> {
        let DecoderOptions { slots, context, .. } = self.options;
        let last = rows.iter().map(|row| row.slot).max().unwrap_or(0);
        let longest = rows.iter().map(|row| row.position).max().unwrap_or(0);
        let (width, len) = (step_up(last + 1, 1, 4).min(slots), self.padded_len(longest + 1));
        let (mut tokens, mut positions) = (vec![0; width], vec![0; width]);
        let mut places: Vec<_> = (0..width).map(|row| (slots, row % context)).collect();
        for row in rows {
            tokens[row.slot] = i32::from(row.token);
            positions[row.slot] = row.position as i32;
            places[row.slot] = (row.slot, row.position);
        }
        let kv = self.heads.kv_heads;
        let places = places.into_iter().flat_map(|(slot, at)| {
            (0..kv).flat_map(move |head| [slot as i32, head as i32, at as i32])
        });
        let places = self.ints(places.collect()).reshape([width * kv, 3]);
        let positions = self.ints(positions);
        let mask = mask(positions.clone(), len, &self.options.device);
        let hidden = self.forward(tokens, positions, &Batch::All { places, len, mask });
        let logits = to_host(self.head(hidden));
        let of = |row: &Row| logits[row.slot * VOCAB..(row.slot + 1) * VOCAB].iter().copied();
        rows.iter().flat_map(of).collect()
    }

    /// The first `len` tokens of a slot also become those of another.
    pub fn copy(&mut self, from: usize, to: usize, len: usize) {
        self.caches.iter_mut().for_each(|cache| cache.copy(from, to, len));
    }

    /// Nothing is in a slot any more.
    pub fn clear(&mut self, slot: usize) {
        self.caches.iter_mut().for_each(|cache| cache.clear(slot));
    }

    /// Shapes that will be met, so that none is compiled while somebody waits. Nothing to do where
    /// shapes are not padded.
    pub fn warm_up(&mut self, chunk: usize) {
        if !self.options.padded {
            return;
        }
        let DecoderOptions { slots, context, .. } = self.options;
        let ends = steps(4 * BLOCK, 2, context);
        for &end in &ends {
            for size in steps(16, 4, chunk.min(context)) {
                let size = size.min(end);
                self.prefill(0, end - size, &vec![0; size], true);
            }
            for width in steps(1, 4, slots) {
                self.decode(&[Row { slot: width - 1, token: 0, position: end - 1 }]);
            }
        }
    }

    fn padded_len(&self, len: usize) -> usize {
        step_up(len, 4 * BLOCK, 2).min(self.options.context)
    }

    fn ints(&self, numbers: Vec<i32>) -> Tensor<1, Int> {
        let len = numbers.len();
        Tensor::from_data(TensorData::new(numbers, [len]), &self.options.device)
    }

    fn weight(&self, index: usize) -> Tensor<2> {
        self.weights[index].clone()
    }

    fn forward(&mut self, tokens: Vec<i32>, positions: Tensor<1, Int>, batch: &Batch) -> Tensor<2> {
        let embedding = self.roles.embedding.expect("a whole model has an embedding");
        let tokens = self.ints(tokens);
        let mut x = self.weight(embedding).select(0, tokens).cast(FloatDType::F32);
        let turn = self.rotary.at(positions);
        for layer in 0..self.roles.layers.len() {
            let roles = self.roles.layers[layer];
            let normed = self.norm(x.clone(), roles.attention_norm);
            let qkv = linear(normed, self.weight(roles.qkv)).cast(FloatDType::F32);
            let context = attend(self.heads, &turn, batch, &mut self.caches[layer], qkv);
            x = self.rest(roles, x, context.cast(self.options.dtype));
        }
        x
    }

    /// What follows attention in a layer.
    fn rest(&self, roles: LayerRoles, x: Tensor<2>, context: Tensor<2>) -> Tensor<2> {
        let part = linear(context, self.weight(roles.out));
        let middle = x.add(part.cast(FloatDType::F32));
        let normed = self.norm(middle.clone(), roles.mlp_norm);
        let (gate_up, down) = (self.weight(roles.gate_up), self.weight(roles.down));
        let (part, _) = mlp::forward(normed, gate_up, down);
        middle.add(part.cast(FloatDType::F32))
    }

    fn norm(&self, x: Tensor<2>, weight: usize) -> Tensor<2> {
        norm::forward(x, self.weight(weight)).0.cast(self.options.dtype)
    }

    fn head(&self, hidden: Tensor<2>) -> Tensor<2> {
        let norm = self.roles.norm.expect("a whole model has a last norm");
        let head = self.roles.head.expect("a whole model has a head");
        linear(self.norm(hidden, norm), self.weight(head)).cast(FloatDType::F32)
    }
}

/// Keys and values are f32 whatever the matrices are: with one query per head, Burn's kernels for
/// bf16 give wrong products on an H200, and those for f32 the same as the CPU.
fn heads(model: &ModelConfig) -> Heads {
    let dtype = FloatDType::F32;
    Heads { heads: model.heads, kv_heads: model.kv_heads, head_dim: model.head_dim(), dtype }
}

/// The smallest of first, first * factor, first * factor², … that is enough.
fn step_up(least: usize, first: usize, factor: usize) -> usize {
    let mut size = first;
    while size < least {
        size *= factor;
    }
    size
}

/// All sizes that [`step_up`] gives up to `most`, and `most` itself.
fn steps(first: usize, factor: usize, most: usize) -> Vec<usize> {
    let below = std::iter::successors(Some(first), |size| Some(size * factor));
    below.take_while(|&size| size < most).chain([most]).collect()
}

#[cfg(test)]
mod tests;
