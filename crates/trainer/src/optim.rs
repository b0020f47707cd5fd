//! AdamW on flat shards, with clipping by the norm of all gradients together.

use std::ops::Range;

use burn_tensor::{Device, Tensor};

use crate::bucket::Bucket;
use crate::comm::from_host;
use crate::config::OptimConfig;
use crate::params::Param;

/// Weights and moments of one bucket, or of this data rank's shard of it.
pub struct Shard {
    pub range: Range<usize>,
    pub weights: Tensor<1>,
    pub first: Tensor<1>,
    pub second: Tensor<1>,
    /// One where weights decay. None: nowhere else.
    decay: Tensor<1>,
    /// One where this rank speaks for the gradient. None: everywhere.
    counted: Option<Tensor<1>>,
}

/// The numbers of a shard on the host.
pub struct ShardValues {
    pub weights: Vec<f32>,
    pub first: Vec<f32>,
    pub second: Vec<f32>,
}

impl Shard {
    /// The first values of the shard, moments at zero.
    pub fn initial(
        bucket: &Bucket,
        params: &[Param],
        range: &Range<usize>,
        seed: u64,
    ) -> ShardValues {
        let mut weights = vec![0.0; bucket.len];
        for slot in &bucket.slots {
            for piece in &params[slot.param].pieces {
                let at = slot.offset + piece.at;
                piece.init(seed, &mut weights[at..at + piece.len()]);
            }
        }
        let len = range.len();
        let weights = weights[range.clone()].to_vec();
        ShardValues { weights, first: vec![0.0; len], second: vec![0.0; len] }
    }

    pub fn new(
        bucket: &Bucket,
        params: &[Param],
        range: Range<usize>,
        values: ShardValues,
        device: &Device,
    ) -> Self {
        let len = range.len();
        let (mut decay, mut counted) = (vec![0.0; bucket.len], vec![0.0; bucket.len]);
        for slot in &bucket.slots {
            let spec = &params[slot.param];
            if spec.decay {
                decay[slot.offset..slot.offset + spec.len()].fill(1.0);
            }
            for piece in spec.pieces.iter().filter(|piece| piece.owned) {
                let at = slot.offset + piece.at;
                counted[at..at + piece.len()].fill(1.0);
            }
        }
        // Padding has no gradient, so it may be counted as well.
        let all = params_owned(bucket, params);
        let mask = |mask: Vec<f32>| from_host(mask[range.clone()].to_vec(), [len], device);
        Shard {
            weights: from_host(values.weights, [len], device),
            first: from_host(values.first, [len], device),
            second: from_host(values.second, [len], device),
            decay: mask(decay),
            counted: (!all).then(|| mask(counted)),
            range,
        }
    }

    /// The sum of squares of what this rank speaks for.
    pub fn square_norm(&self, gradient: Tensor<1>) -> Tensor<1> {
        let square = gradient.square();
        match &self.counted {
            None => square.sum(),
            Some(counted) => square.mul(counted.clone()).sum(),
        }
    }

    /// One step of AdamW. `scale` is one number, on the device: what clipping leaves.
    pub fn step(
        &mut self,
        config: &OptimConfig,
        lr: f64,
        step: u64,
        gradient: Tensor<1>,
        scale: Tensor<1>,
    ) {
        let count = (step + 1) as i32;
        let (fix1, fix2) = (1.0 - config.beta1.powi(count), 1.0 - config.beta2.powi(count));
        let gradient = gradient.mul(scale);
        self.first.inplace(|first| {
            first.mul_scalar(config.beta1).add(gradient.clone().mul_scalar(1.0 - config.beta1))
        });
        self.second.inplace(|second| {
            second.mul_scalar(config.beta2).add(gradient.square().mul_scalar(1.0 - config.beta2))
        });
        let root = self.second.clone().mul_scalar(1.0 / fix2).sqrt().add_scalar(config.eps);
        let update = self.first.clone().mul_scalar(lr / fix1).div(root);
        let keep = self.decay.clone().mul_scalar(-lr * config.weight_decay).add_scalar(1.0);
        self.weights.inplace(|weights| weights.mul(keep).sub(update));
    }
}

fn params_owned(bucket: &Bucket, params: &[Param]) -> bool {
    let mut pieces = bucket.slots.iter().flat_map(|slot| &params[slot.param].pieces);
    pieces.all(|piece| piece.owned)
}

/// What clipping leaves of the gradients, as one number on the device.
pub fn clip_scale(square_norm: Tensor<1>, clip: f64) -> Tensor<1> {
    if clip <= 0.0 {
        return square_norm.ones_like();
    }
    square_norm.sqrt().add_scalar(1e-6).recip().mul_scalar(clip).clamp_max(1.0)
}
