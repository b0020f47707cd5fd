//! What one rank holds and computes under a layout: numbers that memory and time share.

use crate::efficiency::traits;
use crate::{Arch, Recompute, Setup, Sharding, Task};

/// All as floats: they only ever meet in products.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    pub tp: f64,
    pub pp: f64,
    pub vp: f64,
    pub cp: f64,
    pub ep: f64,
    pub dp: f64,
    /// Micro-batches of one pipeline in a step.
    pub micro_batches: f64,
    /// Of a micro-batch on one context-parallel rank.
    pub tokens: f64,
    /// What sequence parallelism divides tokens by outside of the matrix products.
    pub spread: f64,
    /// Layers of the ranks in the middle of the pipeline, and how many the last may have less because all together have
    /// room for more than there are.
    pub layers: f64,
    pub spare: f64,
    /// Of `layers`, those with experts.
    pub sparse: f64,
}

impl Split {
    pub(crate) fn new(setup: &Setup) -> Split {
        let l = setup.layout;
        let arch = setup.arch;
        let (tp, cp) = (f64::from(l.tp.max(1)), f64::from(l.cp.max(1)));
        let chunks = l.pp.max(1).saturating_mul(l.vp.max(1));
        let depth = arch.layers.div_ceil(chunks).max(1).saturating_mul(l.vp.max(1));
        let layers = f64::from(depth.min(arch.layers.max(1)));
        let sparse_all = f64::from(arch.layers - arch.dense_layers());
        Split {
            tp,
            pp: f64::from(l.pp.max(1)),
            vp: f64::from(l.vp.max(1)),
            cp,
            ep: f64::from(l.ep.max(1)),
            dp: f64::from(l.dp.max(1)),
            micro_batches: l.micro_batches(setup.workload.global_batch) as f64,
            tokens: setup.workload.seq as f64 * l.micro_batch as f64 / cp,
            spread: if l.sequence_parallel { tp } else { 1.0 },
            layers,
            spare: (layers * f64::from(l.pp.max(1)) - f64::from(arch.layers))
                .clamp(0.0, layers - 1.0),
            sparse: sparse_all.min(layers),
        }
    }

    /// Ranks that share what is not an expert.
    pub(crate) fn replicas(&self) -> f64 {
        self.dp * self.cp
    }

    /// Ranks that share an expert, or a slice of it.
    pub(crate) fn expert_replicas(&self) -> f64 {
        (self.replicas() * self.tp / (self.ep * self.expert_tp())).max(1.0)
    }

    /// Experts that are spread over ranks stay whole; those that are not are cut like everything else.
    pub(crate) fn expert_tp(&self) -> f64 {
        if self.ep > 1.0 { 1.0 } else { self.tp }
    }
}

/// Weights on the fullest rank, those of experts apart, and the larger of embedding and head (both on one rank if there
/// is no pipeline).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub body: f64,
    pub experts: f64,
    pub ends: f64,
}

impl Held {
    pub(crate) fn new(setup: &Setup, split: &Split) -> Held {
        let arch = setup.arch;
        let h = arch.hidden as f64;
        let dense = split.layers - split.sparse;
        let mut body = split.layers * (arch.attention_params() / split.tp + 2.0 * h)
            + dense * arch.mlp_params() / split.tp;
        let mut experts = 0.0;
        if let Some(moe) = arch.moe {
            let one = arch.expert_params();
            let shared = one / split.tp * f64::from(moe.shared);
            body += split.sparse * (shared + h * f64::from(moe.experts));
            experts = split.sparse * one / split.expert_tp() * f64::from(moe.experts) / split.ep;
        }
        let both = split.pp == 1.0 && !arch.tied;
        let ends = arch.embedding_params() / split.tp * if both { 2.0 } else { 1.0 };
        Held { body, experts, ends }
    }

    pub(crate) fn all(&self) -> f64 {
        self.body + self.experts + self.ends
    }

    /// What is left of them where those that hold the same share it. Ranks that share an expert are fewer.
    pub(crate) fn shared(&self, split: &Split) -> f64 {
        (self.body + self.ends) / split.replicas() + self.experts / split.expert_replicas()
    }
}

/// Adapters' weights on a rank, for LoRA on every projection.
pub(crate) fn adapters(setup: &Setup, split: &Split) -> f64 {
    match setup.workload.task {
        Task::Lora { rank } => split.layers * setup.arch.adapter_params(rank) / split.tp,
        _ => 0.0,
    }
}

/// Weights are gathered when they are used.
pub(crate) fn gathers(setup: &Setup) -> bool {
    setup.layout.sharding == Sharding::Zero3
}

pub(crate) fn recomputes(setup: &Setup) -> bool {
    setup.layout.recompute == Recompute::Full
}

/// Parts of a layer that selective recomputation makes again, as Megatron-Core has them since flash attention has left
/// nothing to save on the scores.
///
/// Transformer Engine fuses a norm into the product behind it, and what is fused can't be made again alone: norms stand
/// by themselves before experts and before latents only. Nor can the activation function of a dense MLP, which is made
/// again whole or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modules {
    /// The dense MLP with its norm, where a model has no experts.
    pub mlp: bool,
    /// The activation functions of experts and the norm before them.
    pub experts: bool,
    /// What latents unfold to and the norm before them.
    pub latents: bool,
}

impl Modules {
    pub(crate) fn of(arch: &Arch) -> Modules {
        let experts = arch.moe.is_some();
        Modules { mlp: !experts, experts, latents: arch.latent.is_some() }
    }

    /// For `--recompute-modules`.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let all = [
            (self.mlp, "mlp"),
            (self.experts, "moe_act"),
            (self.experts || self.latents, "layernorm"),
            (self.latents, "mla_up_proj"),
        ];
        all.into_iter().filter(|(again, _)| *again).map(|(_, name)| name).collect()
    }
}

/// What is made again beyond nothing, and short of everything. Other software than Megatron-Core's of 2025 has no
/// modules.
pub(crate) fn by_modules(setup: &Setup) -> Modules {
    match setup.layout.recompute {
        Recompute::Selective if traits(setup.stack).modules => Modules::of(setup.arch),
        _ => Modules::default(),
    }
}
