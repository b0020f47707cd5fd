//! Memory of the fullest rank.

use crate::efficiency::{precision_on, traits};
use crate::split::{Held, Modules, Split, adapters, by_modules, gathers, recomputes};
use crate::{Arch, Gpu, Memory, Precision, Recompute, Setup, Sharding, Task};

/// As GPUs are sold: an H100 of 80 GB has 80 × 2³⁰ bytes.
pub(crate) const GB: f64 = (1_u64 << 30) as f64;
/// CUDA context and the buffers of a handful of NCCL communicators.
const CONTEXT_GB: f64 = 1.5;
/// What of a GPU's memory a trainer can use before the allocator begins to stall.
const USABLE: f64 = 0.95;

/// GB of a GPU that a plan may fill.
pub fn usable_gb(gpu: &Gpu) -> f64 {
    gpu.memory_gb * USABLE
}

/// Memory of the fullest rank: the first of a pipeline, which holds the most micro-batches, or the last, which holds the
/// logits.
pub fn memory(setup: &Setup) -> Memory {
    let split = Split::new(setup);
    let held = Held::new(setup, &split);
    let [weights, gradients, optimizer] = states(setup, &split, &held);
    let micro_batch = layer_bytes(setup, &split) * split.layers;
    let working = working_bytes(setup, &split);
    let logits = logit_bytes(setup, &split);
    let first = micro_batch * in_flight(&split, split.pp - 1.0);
    let last = micro_batch * in_flight(&split, 0.0) + logits;
    let (activations, logits) = match split.pp {
        1.0 => (first + working, logits),
        _ if first >= last => (first + working, 0.0),
        _ => (last - logits + working, logits),
    };
    let gathered = gathered_bytes(setup, &split, &held) + sequence_bytes(setup, &split);
    let buffers = CONTEXT_GB * GB + gathered;
    let fragmentation = traits(setup.stack).fragmentation * (activations + logits + gathered);
    Memory {
        weights: weights / GB,
        gradients: gradients / GB,
        optimizer: optimizer / GB,
        activations: activations / GB,
        logits: logits / GB,
        buffers: buffers / GB,
        fragmentation: fragmentation / GB,
    }
}

/// Bytes of weights, gradients and optimiser.
fn states(setup: &Setup, split: &Split, held: &Held) -> [f64; 3] {
    let shard =
        |bytes: f64, sharded: bool| bytes * if sharded { held.shared(split) } else { held.all() };
    if let Task::Lora { .. } = setup.workload.task {
        let adapters = adapters(setup, split);
        let weights = shard(2.0, gathers(setup));
        return [weights + 2.0 * adapters, 4.0 * adapters, 12.0 * adapters];
    }
    let level = setup.layout.sharding;
    // PyTorch's FSDP keeps one fp32 copy of the weights, Megatron a bf16 copy and an fp32 master.
    let kept = traits(setup.stack);
    let torch = kept.one_copy && level >= Sharding::Zero2;
    let working = if torch { 0.0 } else { shard(2.0, level == Sharding::Zero3) };
    // Over the micro-batches of a pipeline gradients are gathered whole.
    let gradients = shard(kept.gradient_kept, level >= Sharding::Zero2 && split.pp == 1.0);
    [working, gradients, shard(kept.optimizer_kept, level >= Sharding::Zero1)]
}

/// Micro-batches, in units of the rank's whole depth, that a rank holds at once with so many ranks after it: those that
/// Megatron-LM sends forward before the first comes back, and one more. When interleaved they are counted in chunks.
fn in_flight(split: &Split, after: f64) -> f64 {
    let held = match split.vp > 1.0 {
        true => (2.0 * after + (split.vp - 1.0) * split.pp + 1.0) / split.vp,
        false => after + 1.0,
    };
    held.min(split.micro_batches)
}

/// Bytes that one layer keeps of one micro-batch for the backward pass.
fn layer_bytes(setup: &Setup, split: &Split) -> f64 {
    if recomputes(setup) {
        return 2.0 * setup.arch.hidden as f64 * split.tokens / split.spread;
    }
    let kept = kept_bytes(setup, split, by_modules(setup));
    match setup.layout.recompute {
        Recompute::Selective => kept * traits(setup.stack).selective_keeps,
        _ => kept,
    }
}

/// What is made again of the layer that the backward pass is in, and half as much of gradients.
fn working_bytes(setup: &Setup, split: &Split) -> f64 {
    let all = kept_bytes(setup, split, Modules::default());
    let kept = if recomputes(setup) { 0.0 } else { kept_bytes(setup, split, by_modules(setup)) };
    1.5 * (all - kept)
}

fn kept_bytes(setup: &Setup, split: &Split, again: Modules) -> f64 {
    let arch = setup.arch;
    let traits = traits(setup.stack);
    let h = arch.hidden as f64;
    let dropout = if traits.dropout { 2.0 } else { 0.0 };
    let sparse = split.sparse / split.layers;
    // Inputs of both norms and what comes out of them, which tensor parallelism does not split.
    let before_attention = if again.latents { 2.0 } else { 4.0 };
    let before_mlp = match again {
        Modules { mlp: true, .. } => 2.0,
        Modules { experts: true, .. } => 4.0 - 2.0 * sparse,
        _ => 4.0,
    };
    let whole = (before_attention + before_mlp + dropout) * h / split.spread;
    let inside =
        (2.0 * attention_width(arch, again.latents) + mlp_bytes(setup, sparse, again)) / split.tp;
    let mut bytes = (whole + inside + routed_bytes(setup, split)) * split.tokens;
    if traits.written_attention && setup.layout.recompute == Recompute::None {
        let heads = f64::from(arch.heads) / split.tp;
        bytes += 5.0 * heads * setup.workload.seq as f64 * split.tokens;
    }
    bytes * stored(precision_on(&setup.cluster.gpu, setup.workload.precision))
}

/// Inputs of products are kept in the precision of the product.
fn stored(precision: Precision) -> f64 {
    match precision {
        Precision::Fp16 | Precision::Bf16 => 1.0,
        Precision::Fp8 | Precision::Mxfp8 | Precision::Nvfp4 => 0.85,
    }
}

/// Values of a token that attention keeps: query, key, value, and what comes out. Of latent attention only the latents if
/// the rest is made again.
fn attention_width(arch: &Arch, folded: bool) -> f64 {
    let heads = f64::from(arch.heads);
    match arch.latent {
        None => 2.0 * (heads + f64::from(arch.kv_heads)) * arch.head_dim as f64,
        Some(m) => {
            let (rope, nope, value) = (m.rope_dim as f64, m.nope_dim as f64, m.value_dim as f64);
            let latents = m.q_rank as f64 + m.kv_rank as f64 + rope;
            let made = if folded { 0.0 } else { heads * (2.0 * (rope + nope) + value) };
            made + heads * value + latents
        }
    }
}

/// Bytes of a token inside of an MLP; the mean of the rank's dense and sparse layers.
fn mlp_bytes(setup: &Setup, sparse: f64, again: Modules) -> f64 {
    let arch = setup.arch;
    // Before and after the activation, each of 2 bytes; three tensors where there is a gate.
    let before = if arch.gated { 4.0 } else { 2.0 };
    let both = before + 2.0;
    let dense = if again.mlp { 0.0 } else { both * arch.ffn as f64 * (1.0 - sparse) };
    let experts = arch.moe.map_or(0.0, |m| {
        let visited = if again.experts { before } else { both };
        // Those that are spread get their share of the tokens whole, which comes to the same.
        let values = visited * f64::from(m.topk) + both * f64::from(m.shared);
        sparse * values * m.ffn as f64
    });
    dense + experts
}

/// Tokens that were sent to experts, as they arrived.
fn routed_bytes(setup: &Setup, split: &Split) -> f64 {
    let sparse = split.sparse / split.layers;
    let h = setup.arch.hidden as f64;
    setup
        .arch
        .moe
        .map_or(0.0, |m| sparse * 2.0 * f64::from(m.topk) * h * split.expert_tp() / split.tp)
}

fn logit_bytes(setup: &Setup, split: &Split) -> f64 {
    let arch = setup.arch;
    let per_value = traits(setup.stack).logit_bytes;
    per_value * split.tokens * arch.vocab as f64 / split.tp
        + 2.0 * split.tokens * arch.hidden as f64 / split.spread
}

/// Weights that are put together for their use: two layers and the ends; over the micro-batches of a pipeline, or where
/// gradients alone are sharded, all that the rank does not hold anyway.
fn gathered_bytes(setup: &Setup, split: &Split, held: &Held) -> f64 {
    let one_copy = traits(setup.stack).one_copy;
    let all = match one_copy {
        true => 2.0 * held.all(),
        false => 2.0 * (held.all() - held.shared(split)),
    };
    match setup.layout.sharding {
        Sharding::Zero3 if split.pp == 1.0 => {}
        Sharding::Zero3 => return all,
        Sharding::Zero2 if one_copy => return all,
        _ => return 0.0,
    }
    // Weights of two layers and gradients of one, in fp32 while they are reduced.
    let layer = (held.body + held.experts) / split.layers;
    2.0 * 2.0 * layer + 4.0 * layer + 2.0 * held.ends
}

/// Under sequence parallelism inputs of products, and their gradients, are put together for each product.
fn sequence_bytes(setup: &Setup, split: &Split) -> f64 {
    if split.spread <= 1.0 {
        return 0.0;
    }
    2.0 * 2.0 * split.tokens * setup.arch.hidden as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::work;
    use crate::{Layout, Stack, catalogue, names};

    #[test]
    fn a_rank_holds_what_megatron_sends_ahead_and_one_more() {
        let arch = names::find("gpt-3-175b").unwrap();
        let (workload, cluster) =
            (work(Task::Pretrain, 2048, 64), catalogue::find("8xdgx-a100").unwrap());
        let of = |vp: u32, micro_batch: u64, after: f64| {
            let layout = Layout {
                tp: 8,
                pp: 8,
                vp,
                cp: 1,
                ep: 1,
                dp: 1,
                micro_batch,
                sharding: Sharding::None,
                sequence_parallel: true,
                recompute: Recompute::None,
            };
            let (arch, workload, cluster, stack) = (&arch, &workload, &cluster, Stack::Current);
            in_flight(
                &Split::new(&Setup { arch, workload, cluster, layout: &layout, stack }),
                after,
            )
        };
        assert_eq!((of(1, 1, 7.0), of(1, 1, 0.0)), (8.0, 1.0));
        // Chunks of a third: 2 × 7 + 2 × 8 + 1 and 2 × 8 + 1.
        assert_eq!((of(3, 1, 7.0), of(3, 1, 0.0)), (31.0 / 3.0, 17.0 / 3.0));
        // Of eight micro-batches never more than eight.
        assert_eq!((of(3, 8, 7.0), of(1, 64, 7.0)), (8.0, 1.0));
    }
}
