//! Attention of tokens that come one after the other: keys and values of earlier ones are kept.
//!
//! A cache has a row of positions for each slot, allocated once: `[slots + 1, kv heads, context,
//! head]`. The slot behind the last is where rows write that stand for nobody.
//!
//! ```text
//! Span   many tokens of one slot: the beginning of a sequence
//! Each   one token of each of some slots, slot by slot: nothing is computed in vain
//! All    one token of each of the first slots in one product: few kernels, some work for nobody
//! ```

use super::attention::{MASKED, ROTARY_BASE};
use crate::tensor::{Device, FloatDType, IndexingUpdateOp, Int, Tensor, TensorData, activation};

/// Sizes of the heads.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Precision of the matrices and of what is kept.
    pub dtype: FloatDType,
}

/// What one token of each head is turned by, at every position of the context.
pub struct Rotary {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

/// The same at the positions of some tokens.
pub struct Turn {
    cos: Tensor<4>,
    sin: Tensor<4>,
}

impl Rotary {
    pub fn new(context: usize, head_dim: usize, device: &Device) -> Self {
        let half = head_dim / 2;
        let angle = |position: usize, pair: usize| {
            position as f64 * ROTARY_BASE.powf(-(pair as f64) / half as f64)
        };
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in 0..context {
            cos.extend((0..half).map(|pair| angle(position, pair).cos() as f32));
            // The two halves of a head turn against each other.
            for sign in [-1.0, 1.0] {
                sin.extend((0..half).map(|pair| sign * angle(position, pair).sin() as f32));
            }
        }
        Rotary {
            cos: Tensor::from_data(TensorData::new(cos, [context, half]), device),
            sin: Tensor::from_data(TensorData::new(sin, [context, head_dim]), device),
        }
    }

    pub fn at(&self, positions: Tensor<1, Int>) -> Turn {
        let ([tokens], half) = (positions.dims(), self.cos.dims()[1]);
        Turn {
            cos: self.cos.clone().select(0, positions.clone()).reshape([tokens, 1, 1, half]),
            sin: self.sin.clone().select(0, positions).reshape([tokens, 1, 2, half]),
        }
    }
}

impl Turn {
    /// `[tokens, heads * head]`, turned, to `[tokens, heads, head]`.
    fn rotate(&self, x: Tensor<2>, head_dim: usize) -> Tensor<3> {
        let [tokens, width] = x.dims();
        let dtype = FloatDType::from(x.dtype());
        let x = x.cast(FloatDType::F32);
        let x: Tensor<4> = x.reshape([tokens, width / head_dim, 2, head_dim / 2]);
        let turned = x.clone().flip([2]).mul(self.sin.clone());
        let x = x.mul(self.cos.clone()).add(turned).cast(dtype);
        x.reshape([tokens, width / head_dim, head_dim])
    }
}

/// Which tokens are computed, and which earlier ones each of them sees.
pub enum Batch {
    /// `count` tokens of one slot from `start` on; more than that are there to fill up.
    Span { slot: usize, start: usize, count: usize, len: usize, mask: Tensor<2> },
    /// Slot and position of each token.
    Each(Vec<(usize, usize)>),
    /// Where each key goes, as slot, head and position; and how much of the context is looked at.
    All { places: Tensor<2, Int>, len: usize, mask: Tensor<2> },
}

/// One row per token: nothing is added for positions up to its own, and much taken for later ones.
pub fn mask(positions: Tensor<1, Int>, len: usize, device: &Device) -> Tensor<2> {
    let keys = Tensor::<1, Int>::arange(0..len as i64, device);
    let later = keys.unsqueeze_dim::<2>(0).greater(positions.unsqueeze_dim::<2>(1));
    later.float().mul_scalar(MASKED)
}

/// Keys and values of one layer.
pub struct Cache {
    /// None only while it is being changed, so that this is the one reference to it.
    k: Option<Tensor<4>>,
    v: Option<Tensor<4>>,
}

impl Cache {
    pub fn new(slots: usize, context: usize, heads: Heads, device: &Device) -> Self {
        let shape = [slots + 1, heads.kv_heads, context, heads.head_dim];
        let zeros = || Some(Tensor::zeros(shape, (device, heads.dtype.into())));
        Cache { k: zeros(), v: zeros() }
    }

    /// The first `len` positions of one slot become those of another.
    pub fn copy(&mut self, from: usize, to: usize, len: usize) {
        for cache in [&mut self.k, &mut self.v] {
            let all = cache.as_ref().expect(HELD);
            let [_, heads, _, size] = all.dims();
            // Times one is a copy: a view would be a second reference, and all would be copied.
            let rows = all.clone().slice([from..from + 1, 0..heads, 0..len, 0..size]);
            let rows = rows.mul_scalar(1.0);
            change(cache, |x| x.slice_assign([to..to + 1, 0..heads, 0..len, 0..size], rows));
        }
    }

    /// Zeros in one slot.
    pub fn clear(&mut self, slot: usize) {
        for cache in [&mut self.k, &mut self.v] {
            let all = cache.as_ref().expect(HELD);
            let ([_, heads, context, size], dtype) = (all.dims(), all.dtype());
            let zeros = Tensor::zeros([1, heads, context, size], (&all.device(), dtype));
            let place = [slot..slot + 1, 0..heads, 0..context, 0..size];
            change(cache, |x| x.slice_assign(place, zeros));
        }
    }

    /// Nothing in it is a number any more.
    #[cfg(test)]
    pub fn spoil(&mut self) {
        for cache in [&mut self.k, &mut self.v] {
            change(cache, |x| x.mul_scalar(f32::NAN));
        }
    }

    fn write(&mut self, batch: &Batch, k: Tensor<3>, v: Tensor<3>) {
        for (cache, new) in [(&mut self.k, k), (&mut self.v, v)] {
            change(cache, |x| put(x, batch, new));
        }
    }

    /// Keys and values of some slots, as far as they are looked at. No copies.
    fn read(&self, slots: std::ops::Range<usize>, len: usize) -> (Tensor<4>, Tensor<4>) {
        let view = |cache: &Option<Tensor<4>>| {
            let all = cache.as_ref().expect(HELD).clone();
            all.narrow(0, slots.start, slots.len()).narrow(2, 0, len)
        };
        (view(&self.k), view(&self.v))
    }
}

const HELD: &str = "the cache is there between changes";

fn change(cache: &mut Option<Tensor<4>>, f: impl FnOnce(Tensor<4>) -> Tensor<4>) {
    *cache = Some(f(cache.take().expect(HELD)));
}

fn put(cache: Tensor<4>, batch: &Batch, new: Tensor<3>) -> Tensor<4> {
    let [tokens, heads, size] = new.dims();
    match batch {
        Batch::Span { slot, start, count, .. } => {
            let new = new.narrow(0, 0, *count).swap_dims(0, 1).unsqueeze_dim::<4>(0);
            let place = [*slot..slot + 1, 0..heads, *start..start + count, 0..size];
            cache.slice_assign(place, new)
        }
        Batch::Each(rows) => rows.iter().enumerate().fold(cache, |cache, (row, (slot, at))| {
            let one = new.clone().narrow(0, row, 1).reshape([1, heads, 1, size]);
            cache.slice_assign([*slot..slot + 1, 0..heads, *at..at + 1, 0..size], one)
        }),
        Batch::All { places, .. } => {
            let new = new.reshape([tokens * heads, size]);
            cache.scatter_nd(places.clone(), new, IndexingUpdateOp::Assign)
        }
    }
}

/// `qkv` is of all tokens, before they are turned. What comes back is one row per token.
pub fn attend(
    heads: Heads,
    turn: &Turn,
    batch: &Batch,
    cache: &mut Cache,
    qkv: Tensor<2>,
) -> Tensor<2> {
    let Heads { heads: all, kv_heads: kv, head_dim: size, .. } = heads;
    let tokens = qkv.dims()[0];
    let turned = turn.rotate(qkv.clone().narrow(1, 0, (all + kv) * size), size);
    let q = turned.clone().narrow(1, 0, all);
    let k = turned.narrow(1, all, kv);
    let v = qkv.narrow(1, (all + kv) * size, kv * size).reshape([tokens, kv, size]);
    cache.write(batch, k, v);
    let q: Tensor<4> = q.reshape([tokens, kv, all / kv, size]);
    match batch {
        Batch::Span { slot, len, mask, .. } => {
            let kept = cache.read(*slot..slot + 1, *len);
            span(heads, q, kept, mask.clone())
        }
        Batch::Each(rows) => {
            let each = rows.iter().enumerate().map(|(row, (slot, at))| {
                let kept = cache.read(*slot..slot + 1, at + 1);
                context(heads, q.clone().narrow(0, row, 1), kept, None)
            });
            let each: Vec<Tensor<4>> = each.collect();
            Tensor::cat(each, 0).reshape([tokens, all * size])
        }
        Batch::All { len, mask, .. } => {
            let kept = cache.read(0..tokens, *len);
            let mask = mask.clone().reshape([tokens, 1, 1, *len]);
            context(heads, q, kept, Some(mask)).reshape([tokens, all * size])
        }
    }
}

/// All tokens of a span are queries of one group, behind each other.
fn span(heads: Heads, q: Tensor<4>, kept: (Tensor<4>, Tensor<4>), mask: Tensor<2>) -> Tensor<2> {
    let [tokens, kv, group, size] = q.dims();
    let len = mask.dims()[1];
    let q = q.permute([1, 2, 0, 3]).reshape([1, kv, group * tokens, size]);
    let mask = mask.reshape([1, 1, 1, tokens, len]);
    let scores = scores(heads, q, kept.0);
    let scores: Tensor<5> = scores.reshape([1, kv, group, tokens, len]).add(mask);
    let weights = activation::softmax(scores, 4).reshape([1, kv, group * tokens, len]);
    let context = weights.cast(heads.dtype).matmul(kept.1);
    let context: Tensor<4> = context.reshape([kv, group, tokens, size]).permute([2, 0, 1, 3]);
    context.reshape([tokens, kv * group * size])
}

/// One query per head and row: `[rows, kv heads, group, head]`.
fn context(
    heads: Heads,
    q: Tensor<4>,
    kept: (Tensor<4>, Tensor<4>),
    mask: Option<Tensor<4>>,
) -> Tensor<4> {
    let scores = scores(heads, q, kept.0);
    let scores = match mask {
        Some(mask) => scores.add(mask),
        None => scores,
    };
    activation::softmax(scores, 3).cast(heads.dtype).matmul(kept.1)
}

fn scores(heads: Heads, q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
    let scale = 1.0 / (heads.head_dim as f64).sqrt();
    q.matmul(k.transpose()).cast(FloatDType::F32).mul_scalar(scale)
}
