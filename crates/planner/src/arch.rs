//! What is trained: a transformer, by its numbers.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arch {
    /// As people call it.
    pub name: String,
    pub layers: u32,
    pub hidden: u64,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u64,
    /// Inner width of a dense MLP.
    pub ffn: u64,
    /// Three matrices (SwiGLU and kin) instead of two.
    pub gated: bool,
    pub vocab: u64,
    /// The head shares the input embedding's weights.
    pub tied: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moe: Option<Moe>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<Latent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Weights that are in no matrix and in no plain norm: biases, learned positions, norms beyond two a layer.
    #[serde(default)]
    pub extra: f64,
}

/// Mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moe {
    pub experts: u32,
    /// Experts that a token visits.
    pub topk: u32,
    /// Inner width of one expert.
    pub ffn: u64,
    /// Experts that every token visits, in units of `ffn`.
    pub shared: u32,
    /// Layers at the start that are dense.
    pub dense_layers: u32,
}

/// Multi-head latent attention (DeepSeek).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latent {
    /// 0: queries are not compressed.
    pub q_rank: u64,
    pub kv_rank: u64,
    pub rope_dim: u64,
    pub nope_dim: u64,
    pub value_dim: u64,
}

/// Layers that look back over a bounded number of tokens only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub tokens: u64,
    /// How many of the layers.
    pub layers: u32,
}

impl Arch {
    /// Weights of one layer's attention, norms not counted.
    pub fn attention_params(&self) -> f64 {
        let h = self.hidden as f64;
        let heads = f64::from(self.heads);
        match self.latent {
            None => {
                let d = self.head_dim as f64;
                2.0 * h * heads * d + 2.0 * h * f64::from(self.kv_heads) * d
            }
            Some(m) => {
                let (q, kv) = (m.q_rank as f64, m.kv_rank as f64);
                let (rope, nope, v) = (m.rope_dim as f64, m.nope_dim as f64, m.value_dim as f64);
                let query = if m.q_rank == 0 {
                    h * heads * (rope + nope)
                } else {
                    h * q + q * heads * (rope + nope)
                };
                query + h * (kv + rope) + kv * heads * (nope + v) + heads * v * h
            }
        }
    }

    fn matrices(&self) -> f64 {
        if self.gated { 3.0 } else { 2.0 }
    }

    /// Weights of a dense layer's MLP.
    pub fn mlp_params(&self) -> f64 {
        self.matrices() * self.hidden as f64 * self.ffn as f64
    }

    /// Weights of one expert.
    pub fn expert_params(&self) -> f64 {
        self.moe.map_or(0.0, |m| self.matrices() * self.hidden as f64 * m.ffn as f64)
    }

    /// Weights of one layer's LoRA adapters, beside the projections of attention and of the MLP.
    pub fn adapter_params(&self, rank: u32) -> f64 {
        let wide = f64::from(self.heads) * self.head_dim as f64;
        let inner = self.moe.map_or(self.ffn, |m| m.ffn) as f64;
        f64::from(rank) * (4.0 * self.hidden as f64 + 3.0 * wide + 3.0 * inner)
    }

    pub fn embedding_params(&self) -> f64 {
        self.vocab as f64 * self.hidden as f64
    }

    pub fn dense_layers(&self) -> u32 {
        self.moe.map_or(self.layers, |m| m.dense_layers.min(self.layers))
    }

    /// All weights.
    pub fn params(&self) -> f64 {
        self.count(|m| f64::from(m.experts))
    }

    /// Weights that one token passes, the input embedding among them.
    pub fn active_params(&self) -> f64 {
        self.count(|m| f64::from(m.topk))
    }

    fn count(&self, visited: impl Fn(Moe) -> f64) -> f64 {
        let h = self.hidden as f64;
        let layers = f64::from(self.layers);
        let dense = f64::from(self.dense_layers());
        let sparse = self.moe.map_or(0.0, |m| {
            (layers - dense)
                * (self.expert_params() * (visited(m) + f64::from(m.shared))
                    + h * f64::from(m.experts))
        });
        let embeddings = self.embedding_params() * if self.tied { 1.0 } else { 2.0 };
        layers * (self.attention_params() + 2.0 * h)
            + dense * self.mlp_params()
            + sparse
            + embeddings
            + h
            + self.extra
    }

    /// Weights of matrices that multiply a token: without the input embedding, with the head.
    pub fn matmul_params(&self) -> f64 {
        let input = if self.tied { 0.0 } else { self.embedding_params() };
        let norms = self.hidden as f64 * (2.0 * f64::from(self.layers) + 1.0);
        self.active_params() - input - norms - self.extra
    }

    /// Width of a head where queries meet keys, and where values are mixed.
    pub(crate) fn widths(&self) -> (f64, f64) {
        let d = self.head_dim as f64;
        self.latent.map_or((d, d), |m| ((m.rope_dim + m.nope_dim) as f64, m.value_dim as f64))
    }

    /// Keys that a query sees in all layers together, on average over a causal sequence.
    pub fn keys_seen(&self, seq: u64) -> f64 {
        let s = seq as f64;
        let (narrow, w) = self
            .window
            .map_or((0.0, s), |w| (f64::from(w.layers.min(self.layers)), (w.tokens as f64).min(s)));
        (f64::from(self.layers) - narrow) * s / 2.0 + narrow * (w - w * w / (2.0 * s.max(1.0)))
    }

    /// FLOPs of core attention for one token on its way forward, `keys` being the keys of all layers.
    pub fn attention_flops(&self, keys: f64) -> f64 {
        let (qk, v) = self.widths();
        2.0 * f64::from(self.heads) * (qk + v) * keys
    }

    /// FLOPs that the model asks for, for one token on its way forward: what is masked is not counted.
    pub fn forward_flops(&self, seq: u64) -> f64 {
        2.0 * self.matmul_params() + self.attention_flops(self.keys_seen(seq))
    }

    /// Values that one layer keeps of one token for those that follow.
    pub fn kv_width(&self) -> f64 {
        match self.latent {
            Some(m) => (m.kv_rank + m.rope_dim) as f64,
            None => 2.0 * f64::from(self.kv_heads) * self.head_dim as f64,
        }
    }

    /// Values that all layers keep of a sequence of this many tokens.
    pub fn kv_values(&self, tokens: f64) -> f64 {
        let (narrow, w) = self.window.map_or((0.0, tokens), |w| {
            (f64::from(w.layers.min(self.layers)), (w.tokens as f64).min(tokens))
        });
        self.kv_width() * ((f64::from(self.layers) - narrow) * tokens + narrow * w)
    }
}
