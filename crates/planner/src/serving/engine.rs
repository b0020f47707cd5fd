//! One replica: its memory, its prefill, its decode.

use super::Serving;
use crate::collective::{Group, Network};
use crate::efficiency::{matmul_tflops, stream_gbps};
use crate::memory::GB;
use crate::{Illegal, Precision};

/// What a server takes of a GPU's memory, and what it needs besides weights and requests.
pub(crate) const USABLE: f64 = 0.92;
const WORKSPACE: f64 = 2.8 * GB;
/// Requests that a server writes to at once, whatever memory it has.
const MOST_REQUESTS: u64 = 256;
/// Of large products' speed, what prefill reaches.
const PREFILL: f64 = 0.85;
/// Bytes of what is kept of a token.
const KV_BYTES: f64 = 2.0;
/// Seconds of the host for each step.
const STEP: f64 = 1e-3;

/// Bytes of a weight, scales included.
fn weight_bytes(precision: Precision) -> f64 {
    match precision {
        Precision::Fp16 | Precision::Bf16 => 2.0,
        Precision::Fp8 => 1.0,
        Precision::Mxfp8 => 1.03,
        Precision::Nvfp4 => 0.5625,
    }
}

/// Bytes of one GPU for weights and requests.
pub(super) fn usable(s: &Serving) -> f64 {
    (s.cluster.gpu.memory_gb * GB * USABLE - WORKSPACE).max(0.0)
}

/// GB of all weights.
pub(super) fn weights(s: &Serving) -> f64 {
    s.arch.params() * weight_bytes(s.precision) / GB
}

pub(super) struct Engine {
    pub tp: u32,
    pub pp: u32,
    /// Bytes of all its GPUs together; what tensor parallelism cannot split is counted as often as it is kept.
    pub weights: f64,
    pub kv_per_request: f64,
    usable: f64,
}

/// What it does with so many requests at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    /// In all stages of the pipeline together.
    pub concurrency: u64,
    pub prefill: f64,
    pub decode: f64,
    pub ttft: f64,
    pub tpot: f64,
    pub tokens_per_s: f64,
}

impl Engine {
    pub(super) fn new(s: &Serving, tp: u32, pp: u32) -> Result<Engine, Illegal> {
        let arch = s.arch;
        if tp == 0 || pp == 0 {
            return Err(Illegal::Zero { what: if tp == 0 { "tp" } else { "pp" } });
        }
        if !arch.heads.is_multiple_of(tp) {
            return Err(Illegal::Heads { heads: arch.heads, tp });
        }
        if pp > arch.layers {
            return Err(Illegal::Layers { layers: arch.layers, pp, vp: 1 });
        }
        let (needed, there) = (u64::from(tp) * u64::from(pp), u64::from(s.cluster.gpus()));
        if needed > there && (s.tp.is_some() || s.pp.is_some()) {
            return Err(Illegal::TooManyGpus { needed, there, tp, pp, cp: 1, dp: 1 });
        }
        let tokens = (s.prompt + s.output) as f64;
        // Heads are split as far as there are any; a latent is kept whole by every rank.
        let split = if arch.latent.is_some() { 1 } else { tp.min(arch.kv_heads) };
        let copies = f64::from(tp) / f64::from(split);
        Ok(Engine {
            tp,
            pp,
            weights: weights(s) * GB,
            kv_per_request: arch.kv_values(tokens) * KV_BYTES * copies,
            usable: usable(s),
        })
    }

    pub(super) fn gpus(&self) -> u32 {
        self.tp.saturating_mul(self.pp)
    }

    /// Bytes beside the weights.
    pub(super) fn room(&self) -> f64 {
        (f64::from(self.tp) * f64::from(self.pp) * self.usable - self.weights).max(0.0)
    }

    /// Requests that there is room for.
    pub(super) fn requests(&self) -> u64 {
        let most = MOST_REQUESTS * u64::from(self.pp);
        ((self.room() / self.kv_per_request) as u64).min(most)
    }

    /// With the most requests at once that keep to the bounds; where there are none, as fast as it gets.
    pub(super) fn best(&self, s: &Serving) -> Result<Speed, Speed> {
        let keeps = |speed: &Speed| {
            let within = |is: f64, bound: Option<f64>| bound.is_none_or(|ms| is * 1e3 <= ms);
            within(speed.ttft, s.ttft_ms) && (s.output == 1 || within(speed.tpot, s.tpot_ms))
        };
        let alone = self.speed(s, 1);
        if !keeps(&alone) {
            return Err(alone);
        }
        // Slower for each with every request more: the last that keeps to the bounds is found by halving.
        let (mut low, mut high) = (1, self.requests().max(1));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if keeps(&self.speed(s, middle)) { low = middle } else { high = middle - 1 }
        }
        Ok(self.speed(s, low))
    }

    fn speed(&self, s: &Serving, concurrency: u64) -> Speed {
        let pp = f64::from(self.pp);
        let prefill = self.prefill(s);
        // Each stage has its own requests under way.
        let batch = (concurrency as f64 / pp).max(1.0);
        let decode = self.decode(s, batch);
        let output = s.output as f64;
        // While a request is written, everyone else of its batch is read once.
        let tpot = decode + (batch - 1.0) * prefill / pp / output;
        let per_request = prefill / pp + output * decode / batch / pp;
        let alone = concurrency as f64 / (prefill + output * tpot);
        Speed {
            concurrency,
            prefill,
            decode,
            ttft: prefill + if concurrency > 1 { decode } else { 0.0 },
            tpot,
            tokens_per_s: output * alone.min(1.0 / per_request),
        }
    }

    /// Seconds to read one prompt.
    fn prefill(&self, s: &Serving) -> f64 {
        let tokens = s.prompt as f64;
        let gpu = &s.cluster.gpu;
        let rate = |precision| matmul_tflops(gpu, precision) * 1e12 * PREFILL * f64::from(self.tp);
        let arch = s.arch;
        let products = 2.0 * arch.matmul_params() * tokens / rate(s.precision);
        let attention =
            arch.attention_flops(arch.keys_seen(s.prompt)) * tokens / rate(Precision::Bf16);
        let weights = self.weights / (f64::from(self.tp) * hbm(s));
        (products + attention).max(weights) + self.exchange(s, tokens) + STEP
    }

    /// Seconds for one token of each of `batch` requests.
    fn decode(&self, s: &Serving, batch: f64) -> f64 {
        let arch = s.arch;
        let tp = f64::from(self.tp);
        let context = s.prompt as f64 + s.output as f64 / 2.0;
        let whole = (s.prompt + s.output) as f64;
        let kept = self.kv_per_request * arch.kv_values(context) / arch.kv_values(whole);
        let read = touched(s, batch) * weight_bytes(s.precision) + batch * kept;
        let flops = batch * (2.0 * arch.matmul_params() + self.looking_back(s, context));
        let rate = matmul_tflops(&s.cluster.gpu, s.precision) * 1e12 * tp;
        (read / (tp * hbm(s))).max(flops / rate) + self.exchange(s, batch) + STEP
    }

    /// FLOPs of attention for one token with this many before it.
    fn looking_back(&self, s: &Serving, context: f64) -> f64 {
        let keys = s.arch.kv_values(context) / s.arch.kv_width();
        s.arch.attention_flops(keys)
    }

    /// Two all-reduces a layer, done in one go, and the hops from stage to stage.
    fn exchange(&self, s: &Serving, tokens: f64) -> f64 {
        let network = Network::new(s.cluster);
        let bytes = 2.0 * tokens * s.arch.hidden as f64;
        let group = Group::new(f64::from(self.tp), 1.0);
        let layers = f64::from(s.arch.layers);
        let hops = f64::from(self.pp - 1) * network.send(bytes, f64::from(self.tp));
        2.0 * layers * network.gather(2.0 * bytes, group) + hops
    }
}

/// Bytes per second.
fn hbm(s: &Serving) -> f64 {
    stream_gbps(&s.cluster.gpu) * 1e9
}

/// Weights that are read for a step: with many requests nearly all experts are visited.
fn touched(s: &Serving, batch: f64) -> f64 {
    let arch = s.arch;
    let input = if arch.tied { 0.0 } else { arch.embedding_params() };
    let Some(moe) = arch.moe else { return arch.params() - input };
    let (all, visited) = (f64::from(moe.experts), f64::from(moe.topk));
    let reached = all * (1.0 - (1.0 - visited / all).powf(batch));
    let sparse = f64::from(arch.layers - arch.dense_layers());
    arch.active_params() - input + sparse * arch.expert_params() * (reached - visited)
}
