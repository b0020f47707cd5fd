//! Forward and backward of one layer and one micro-batch.

use super::machine::Machine;
use super::matmul::Product;
use crate::collective::Group;
use crate::split::{Split, by_modules};
use crate::{Moe, Precision, Recompute, Setup, Task};

/// Seconds of one direction, by part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pass {
    pub gemm: f64,
    pub attention: f64,
    pub elementwise: f64,
    pub tensor: f64,
    pub context: f64,
    pub experts: f64,
    /// What the host needs beyond all of these to launch them.
    pub launches: f64,
}

impl Pass {
    pub(super) fn seconds(&self) -> f64 {
        self.computing() + self.tensor + self.context + self.experts + self.launches
    }

    pub(super) fn computing(&self) -> f64 {
        self.gemm + self.attention + self.elementwise
    }

    pub(super) fn times(&self, n: f64) -> Pass {
        Pass {
            gemm: self.gemm * n,
            attention: self.attention * n,
            elementwise: self.elementwise * n,
            tensor: self.tensor * n,
            context: self.context * n,
            experts: self.experts * n,
            launches: self.launches * n,
        }
    }

    pub(super) fn plus(&self, other: Pass) -> Pass {
        Pass {
            gemm: self.gemm + other.gemm,
            attention: self.attention + other.attention,
            elementwise: self.elementwise + other.elementwise,
            tensor: self.tensor + other.tensor,
            context: self.context + other.context,
            experts: self.experts + other.experts,
            launches: self.launches + other.launches,
        }
    }
}

/// Forward and backward.
pub(super) fn layer(setup: &Setup, split: &Split, machine: &Machine, sparse: bool) -> [Pass; 2] {
    if sparse && setup.arch.moe.is_none() {
        return [Pass::default(); 2];
    }
    let gemm = gemms(setup, split, machine, sparse);
    let attention = attention(setup, split, machine);
    let elementwise = elementwise(setup, split, machine, sparse);
    let tensor = tensor(setup, split, machine);
    // An MLP that is made again is put together and summed up again, as half of a layer is.
    let tensor = [tensor, if by_modules(setup).mlp { 1.5 * tensor } else { tensor }];
    let context = context(setup, split, machine, attention);
    let experts = if sparse { experts(setup, split, machine) } else { 0.0 };
    let traits = &machine.traits;
    let routed = if sparse { traits.routing * traits.routing_launch } else { 0.0 };
    let stall = if sparse { traits.routing_stall } else { 0.0 };
    let launched = traits.launches * traits.launch + routed;
    let pass = |back: usize, more: f64| {
        let mut pass = Pass {
            gemm: gemm[back],
            attention: attention[back],
            elementwise: elementwise[back],
            tensor: tensor[back],
            context: context[back],
            experts,
            launches: 0.0,
        };
        pass.launches = (launched * more - pass.seconds()).max(0.0) + stall;
        pass
    };
    [pass(0, 1.0), pass(1, 1.6)]
}

/// Products of a layer that every token passes.
fn products(setup: &Setup, split: &Split, sparse: bool) -> [Option<Product>; 8] {
    let arch = setup.arch;
    let (t, h, tokens) = (split.tp, arch.hidden as f64, split.tokens);
    let heads = f64::from(arch.heads);
    let gate = if arch.gated { 2.0 } else { 1.0 };
    let product = |n: f64, k: f64| Some(Product::new(tokens, n, k));
    let mut all = [None; 8];
    match arch.latent {
        None => {
            let d = arch.head_dim as f64;
            all[0] = product((heads + 2.0 * f64::from(arch.kv_heads)) * d / t, h);
            all[1] = product(h, heads * d / t);
        }
        Some(l) => {
            let (kv, rope) = (l.kv_rank as f64, l.rope_dim as f64);
            let (nope, value, q) = (l.nope_dim as f64, l.value_dim as f64, l.q_rank as f64);
            all[0] = product(q + kv + rope, h);
            all[1] = product(heads * (nope + rope) / t, if q > 0.0 { q } else { h });
            all[2] = product(heads * (nope + value) / t, kv);
            all[3] = product(h, heads * value / t);
        }
    }
    match arch.moe.filter(|_| sparse) {
        None => {
            all[4] = product(gate * arch.ffn as f64 / t, h);
            all[5] = product(h, arch.ffn as f64 / t);
        }
        Some(moe) => {
            if moe.shared > 0 {
                let inner = moe.ffn as f64 * f64::from(moe.shared) / t;
                all[4] = product(gate * inner, h);
                all[5] = product(h, inner);
            }
            let groups = (f64::from(moe.experts) / split.ep).max(1.0);
            let cut = split.expert_tp();
            let m = tokens * cut / t * f64::from(moe.topk) / groups;
            let inner = moe.ffn as f64 / cut;
            all[6] = Some(Product { groups, m, n: gate * inner, k: h });
            all[7] = Some(Product { groups, m, n: h, k: inner });
        }
    }
    all
}

fn gemms(setup: &Setup, split: &Split, machine: &Machine, sparse: bool) -> [f64; 2] {
    let frozen = matches!(setup.workload.task, Task::Lora { .. });
    let value = machine.value_bytes;
    let mut passes = [0.0; 2];
    for product in products(setup, split, sparse).into_iter().flatten() {
        let grouped = if product.groups > 1.0 { machine.traits.grouped } else { 1.0 };
        let rate = machine.matmul_rate * grouped;
        passes[0] += product.seconds(machine, rate, value, 2.0);
        passes[1] += product.input_gradient().seconds(machine, rate, value, 2.0);
        if !frozen {
            // Added to gradients in fp32.
            passes[1] += product.weight_gradient().seconds(machine, rate, value, 8.0);
        }
    }
    let modules = by_modules(setup);
    let again = |products: &[Option<Product>]| {
        let seconds = |p: &Product| p.seconds(machine, machine.matmul_rate, value, 2.0);
        products.iter().flatten().map(seconds).sum::<f64>()
    };
    if modules.latents {
        passes[1] += again(&products(setup, split, sparse)[1..3]);
    }
    if modules.mlp {
        passes[1] += again(&products(setup, split, sparse)[4..6]);
    }
    // Adapters are thin and bound by memory: a share of the products they stand beside.
    let adapters = if frozen { machine.traits.adapters } else { 1.0 };
    [passes[0] * adapters, passes[1] * adapters]
}

/// Rate of flash attention backward, of that forward.
const FLASH_BACK: f64 = 0.85;

fn attention(setup: &Setup, split: &Split, machine: &Machine) -> [f64; 2] {
    let arch = setup.arch;
    let seq = setup.workload.seq as f64;
    let (meet, value) = arch.widths();
    if !machine.traits.written_attention {
        // Of the mean layer: what is masked or beyond a window is left out.
        let keys = arch.keys_seen(setup.workload.seq) / f64::from(arch.layers.max(1));
        let flops = split.tokens * arch.attention_flops(keys) / split.tp;
        // Narrow heads and short sequences fill the processors less.
        let narrow = (meet / 128.0).min(1.0).powf(machine.profile.narrow);
        let traits = &machine.traits;
        let even = 1.0 + traits.context_waste * (1.0 - 1.0 / split.cp);
        let filled = narrow * seq / (seq + traits.flash_short) / even;
        let forward = flops / (machine.flash_rate * filled);
        // Two and a half times the products, at a lower rate.
        return [forward, 2.5 / FLASH_BACK * forward];
    }
    // The whole square, through memory.
    let scores = split.tokens * seq * f64::from(arch.heads) / split.tp;
    let flops = 2.0 * scores * (meet + value);
    let product = flops / (machine.bf16_rate * machine.traits.written_rate);
    let forward = product + machine.stream(machine.traits.score_bytes * scores);
    let backward = 2.0 * product + machine.stream(1.4 * machine.traits.score_bytes * scores);
    match setup.layout.recompute {
        Recompute::Selective => [forward, backward + forward],
        _ => [forward, backward],
    }
}

/// Norms, residuals, activations, rotary embeddings, and casts to narrower formats.
fn elementwise(setup: &Setup, split: &Split, machine: &Machine, sparse: bool) -> [f64; 2] {
    let arch = setup.arch;
    let h = arch.hidden as f64;
    let (meet, _) = arch.widths();
    let heads = f64::from(arch.heads + arch.kv_heads.min(arch.heads)) * meet / split.tp;
    let inner = if arch.gated { 6.0 } else { 4.0 };
    let (width, routed) = match arch.moe.filter(|_| sparse) {
        None => (arch.ffn as f64, 0.0),
        Some(m) => {
            (m.ffn as f64 * f64::from(m.topk + m.shared), f64::from(m.topk) * h * split.expert_tp())
        }
    };
    let streams = 20.0 * h / split.spread + (inner * width + 4.0 * heads) / split.tp;
    // Tokens are put in the order of experts and back.
    let permuted = 8.0 * routed / split.tp;
    let cast = match machine.precision {
        Precision::Fp16 | Precision::Bf16 => 0.0,
        _ => {
            machine.traits.cast_bytes
                * (2.0 * h / split.spread + (width + heads + routed) / split.tp)
        }
    };
    let bytes = (streams * machine.traits.streams + permuted + cast) * split.tokens;
    let forward = machine.stream(bytes);
    let again = match setup.layout.recompute {
        // Its half of the norms and residuals, and its own values.
        Recompute::Selective if by_modules(setup).mlp => {
            let streams = 10.0 * h / split.spread + inner * width / split.tp;
            machine.stream(streams * machine.traits.streams * split.tokens)
        }
        Recompute::Selective if !machine.traits.written_attention => {
            forward * machine.traits.selective_again
        }
        _ => 0.0,
    };
    [forward, machine.traits.streams_back * forward + again]
}

/// Two all-reduces of a micro-batch's activations, or as many gathers and scatters under sequence parallelism.
fn tensor(setup: &Setup, split: &Split, machine: &Machine) -> f64 {
    let bytes = 2.0 * split.tokens * setup.arch.hidden as f64;
    let group = Group::new(split.tp, 1.0);
    2.0 * machine.network.all_reduce(bytes, group) * (1.0 - machine.traits.hides_tensor)
}

/// Keys and values go round while attention works on the ones before.
fn context(setup: &Setup, split: &Split, machine: &Machine, attention: [f64; 2]) -> [f64; 2] {
    if split.cp <= 1.0 {
        return [0.0; 2];
    }
    let (meet, value) = setup.arch.widths();
    let heads = f64::from(setup.arch.kv_heads) / split.tp;
    let bytes = 2.0 * split.tokens * heads.max(1.0) * (meet + value);
    let group = Group::new(split.cp, split.tp);
    let around = machine.network.gather(bytes * split.cp, group);
    let seen = |comm: f64, behind: f64| (comm - behind).max(0.1 * comm);
    [seen(around, attention[0]), seen(2.0 * around, attention[1])]
}

/// To the experts and back.
fn experts(setup: &Setup, split: &Split, machine: &Machine) -> f64 {
    let Some(Moe { topk, .. }) = setup.arch.moe else {
        return 0.0;
    };
    let bytes = 2.0 * split.tokens / split.tp * setup.arch.hidden as f64;
    let group = Group::new(split.ep, 1.0);
    let once = machine.network.dispatch(bytes, f64::from(topk), group);
    2.0 * once * (1.0 - machine.traits.hides_experts)
}
