//! AdamW on flat shards, with clipping by the norm of all gradients together.

use std::ops::Range;

use crate::bucket::Bucket;
use crate::comm::{from_host, to_host};
use crate::config::OptimConfig;
use crate::params::Param;
use crate::tensor::{self, Device, Tensor};

/// Weights and moments of one bucket, or of this data rank's shard of it.
pub struct Shard {
    pub range: Range<usize>,
    pub weights: Tensor<1>,
    pub first: Tensor<1>,
    pub second: Tensor<1>,
    /// One where weights decay.
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
    pub fn step(&mut self, rates: &Rates, gradient: Tensor<1>, scale: Tensor<1>) {
        if self.weights.device() == tensor::cpu() {
            self.step_on_host(rates, gradient, scale);
        } else {
            self.step_on_device(rates, gradient, scale);
        }
    }

    /// Whole tensors at a time: an accelerator fuses this into a few kernels.
    fn step_on_device(&mut self, rates: &Rates, gradient: Tensor<1>, scale: Tensor<1>) {
        let gradient = gradient.mul(scale);
        self.first.inplace(|first| {
            first.mul_scalar(rates.beta1).add(gradient.clone().mul_scalar(1.0 - rates.beta1))
        });
        self.second.inplace(|second| {
            second.mul_scalar(rates.beta2).add(gradient.square().mul_scalar(1.0 - rates.beta2))
        });
        let root = self.second.clone().mul_scalar(1.0 / rates.fix2).sqrt().add_scalar(rates.eps);
        let update = self.first.clone().mul_scalar(rates.lr / rates.fix1).div(root);
        let keep = self.decay.clone().mul_scalar(-rates.lr * rates.weight_decay).add_scalar(1.0);
        self.weights.inplace(|weights| weights.mul(keep).sub(update));
    }

    /// The same in one pass: on the CPU each operation on tensors would be a pass of its own.
    fn step_on_host(&mut self, rates: &Rates, gradient: Tensor<1>, scale: Tensor<1>) {
        let (device, scale) = (self.weights.device(), to_host(scale)[0]);
        let gradient = to_host(gradient);
        let decay = to_host(self.decay.clone());
        let mut weights = to_host(tensor::take(&mut self.weights));
        let mut first = to_host(tensor::take(&mut self.first));
        let mut second = to_host(tensor::take(&mut self.second));
        let (beta1, beta2, eps) = (rates.beta1 as f32, rates.beta2 as f32, rates.eps as f32);
        let (up, root) = ((rates.lr / rates.fix1) as f32, (1.0 / rates.fix2) as f32);
        let down = (rates.lr * rates.weight_decay) as f32;
        let moments = first.iter_mut().zip(&mut second);
        let all = weights.iter_mut().zip(moments).zip(gradient.iter().zip(&decay));
        for ((weight, (first, second)), (gradient, decay)) in all {
            let gradient = gradient * scale;
            *first = beta1 * *first + (1.0 - beta1) * gradient;
            *second = beta2 * *second + (1.0 - beta2) * gradient * gradient;
            let update = up * *first / ((*second * root).sqrt() + eps);
            *weight = *weight * (1.0 - down * decay) - update;
        }
        let len = weights.len();
        self.weights = from_host(weights, [len], &device);
        self.first = from_host(first, [len], &device);
        self.second = from_host(second, [len], &device);
    }
}

/// AdamW's numbers at one step.
pub struct Rates {
    lr: f64,
    beta1: f64,
    beta2: f64,
    /// What makes up for moments that began at zero.
    fix1: f64,
    fix2: f64,
    eps: f64,
    weight_decay: f64,
}

impl Rates {
    /// Steps count from 0.
    pub fn at(config: &OptimConfig, lr: f64, step: u64) -> Self {
        let count = i32::try_from(step + 1).unwrap_or(i32::MAX);
        Rates {
            lr,
            beta1: config.beta1,
            beta2: config.beta2,
            fix1: 1.0 - config.beta1.powi(count),
            fix2: 1.0 - config.beta2.powi(count),
            eps: config.eps,
            weight_decay: config.weight_decay,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::layout::Layout;
    use crate::params::parameters;

    #[test]
    fn host_and_device_make_the_same_step() {
        let model = ModelConfig { layers: 1, dim: 8, heads: 2, kv_heads: 1, ffn: 12, tied: true };
        let layout = Layout { dp: 1, tp: 1, pp: 1, zero: false, stages: vec![1] };
        let (params, _) = parameters(&model, &layout, layout.place(0));
        let bucket = &crate::bucket::buckets(&params, 1, 1 << 20)[0];
        let device = tensor::cpu();
        let new = || {
            let range = 0..bucket.len;
            let values = Shard::initial(bucket, &params, &range, 5);
            Shard::new(bucket, &params, range, values, &device)
        };
        let (mut host, mut tensors) = (new(), new());
        for step in 0..5 {
            let rates = Rates::at(&OptimConfig::default(), 0.1, step);
            let gradient = host.weights.clone().mul_scalar(0.3).add_scalar(step as f32 - 2.0);
            let scale = from_host(vec![0.5], [1], &device);
            host.step_on_host(&rates, gradient.clone(), scale.clone());
            tensors.step_on_device(&rates, gradient, scale);
            for (a, b) in to_host(host.weights.clone()).iter().zip(to_host(tensors.weights.clone()))
            {
                assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "step {step}: {a} is not {b}");
            }
        }
    }
}
