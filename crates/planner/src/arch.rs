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
    }
}
