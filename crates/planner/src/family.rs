//! Families of models: what their shape alone does not say.
//!
//! A config.json and the built-in names both give a [`Shape`]; the family adds biases, norms and positions, so that
//! both count the same weights.

use crate::{Arch, Latent, Moe, Window};

/// What a family's layers have besides matrices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// `model_type` of a config.json.
    pub kind: &'static str,
    pub gated: bool,
    /// What a config.json means that does not say `tie_word_embeddings`.
    pub tied: bool,
    pub bias: Bias,
    pub norm_bias: bool,
    /// Norms in a layer.
    pub norms: u32,
    pub qk_norm: QkNorm,
    /// A table of positions is learned; so many of its rows are no positions.
    pub positions: Option<u64>,
    pub narrow: Narrow,
    /// What a config.json means that leaves a key out.
    pub defaults: &'static [(&'static str, u64)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bias {
    None,
    /// Queries, keys and values.
    Qkv,
    /// All of attention.
    Attention,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QkNorm {
    None,
    /// One vector for all heads.
    Head,
    /// As wide as all heads together.
    Wide,
}

/// Which layers look back over a window, where the model has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Narrow {
    Never,
    All,
    /// All but each n-th.
    AllBut(u32),
}

/// The numbers of one model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub layers: u32,
    pub hidden: u64,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u64,
    pub ffn: u64,
    pub vocab: u64,
    pub tied: bool,
    pub positions: u64,
    pub window: Option<Window>,
    pub moe: Option<Moe>,
    pub latent: Option<Latent>,
}

const PLAIN: Family = Family {
    kind: "llama",
    gated: true,
    tied: false,
    bias: Bias::None,
    norm_bias: false,
    norms: 2,
    qk_norm: QkNorm::None,
    positions: None,
    narrow: Narrow::Never,
    defaults: &[],
};

const GPT: Family = Family {
    kind: "gpt2",
    gated: false,
    tied: true,
    bias: Bias::All,
    norm_bias: true,
    positions: Some(0),
    ..PLAIN
};

const GEMMA3: &[(&str, u64)] = &[
    ("vocab_size", 262_208),
    ("num_attention_heads", 8),
    ("num_key_value_heads", 4),
    ("head_dim", 256),
    ("sliding_window", 4096),
];

/// Every family that can be planned, by `model_type`.
pub(crate) const FAMILIES: &[Family] = &[
    PLAIN,
    Family { kind: "mistral", narrow: Narrow::All, ..PLAIN },
    Family { kind: "ministral", narrow: Narrow::All, ..PLAIN },
    Family { kind: "mixtral", narrow: Narrow::All, ..PLAIN },
    Family { kind: "qwen2", bias: Bias::Qkv, ..PLAIN },
    Family { kind: "qwen2_moe", bias: Bias::Qkv, ..PLAIN },
    Family { kind: "qwen2_5_vl", bias: Bias::Qkv, ..PLAIN },
    Family { kind: "qwen2_5_vl_text", bias: Bias::Qkv, ..PLAIN },
    Family { kind: "qwen3", qk_norm: QkNorm::Head, ..PLAIN },
    Family { kind: "qwen3_moe", qk_norm: QkNorm::Head, ..PLAIN },
    Family { kind: "qwen3_vl_text", qk_norm: QkNorm::Head, ..PLAIN },
    Family { kind: "qwen3_vl_moe_text", qk_norm: QkNorm::Head, ..PLAIN },
    Family { kind: "gemma", tied: true, ..PLAIN },
    Family { kind: "gemma2", tied: true, norms: 4, narrow: Narrow::AllBut(2), ..PLAIN },
    Family {
        kind: "gemma3_text",
        tied: true,
        norms: 4,
        qk_norm: QkNorm::Head,
        narrow: Narrow::AllBut(6),
        defaults: GEMMA3,
        ..PLAIN
    },
    Family { kind: "llama4_text", narrow: Narrow::AllBut(4), ..PLAIN },
    Family { kind: "phi", bias: Bias::All, gated: false, norm_bias: true, norms: 1, ..PLAIN },
    Family { kind: "phi3", narrow: Narrow::All, ..PLAIN },
    Family { kind: "phimoe", bias: Bias::Attention, norm_bias: true, narrow: Narrow::All, ..PLAIN },
    Family { kind: "deepseek_v2", ..PLAIN },
    Family { kind: "deepseek_v3", ..PLAIN },
    Family { kind: "kimi_k2", ..PLAIN },
    Family { kind: "gpt_oss", bias: Bias::Attention, narrow: Narrow::AllBut(2), ..PLAIN },
    Family { kind: "olmo", ..PLAIN },
    Family { kind: "olmo2", qk_norm: QkNorm::Wide, ..PLAIN },
    Family { kind: "olmo3", qk_norm: QkNorm::Wide, narrow: Narrow::AllBut(4), ..PLAIN },
    Family { kind: "olmoe", qk_norm: QkNorm::Wide, ..PLAIN },
    Family { kind: "nemotron", gated: false, norm_bias: true, ..PLAIN },
    Family { kind: "smollm3", tied: true, ..PLAIN },
    Family { kind: "stablelm", norm_bias: true, ..PLAIN },
    Family { kind: "starcoder2", narrow: Narrow::All, positions: None, ..GPT },
    Family { kind: "cohere", tied: true, norms: 1, ..PLAIN },
    Family { kind: "cohere2", tied: true, norms: 1, narrow: Narrow::AllBut(4), ..PLAIN },
    Family { kind: "granite", tied: true, ..PLAIN },
    Family { kind: "glm4_moe", bias: Bias::Qkv, qk_norm: QkNorm::Head, ..PLAIN },
    Family { kind: "internlm2", ..PLAIN },
    Family { kind: "baichuan", ..PLAIN },
    Family { kind: "grok-1", norms: 4, ..PLAIN },
    GPT,
    Family { kind: "gpt_bigcode", ..GPT },
    Family { kind: "gpt_neox", tied: false, positions: None, ..GPT },
    Family { kind: "gptj", tied: false, positions: None, bias: Bias::None, norms: 1, ..GPT },
    Family { kind: "opt", positions: Some(2), ..GPT },
    Family { kind: "bloom", positions: None, ..GPT },
    Family { kind: "falcon", positions: None, bias: Bias::None, ..GPT },
    Family { kind: "RefinedWeb", positions: None, bias: Bias::None, ..GPT },
    Family { kind: "RefinedWebModel", positions: None, bias: Bias::None, ..GPT },
];

pub(crate) fn family(kind: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|f| f.kind == kind)
}

impl Narrow {
    pub(crate) fn window(self, tokens: u64, layers: u32) -> Option<Window> {
        let layers = match self {
            Narrow::Never => 0,
            Narrow::All => layers,
            Narrow::AllBut(n) => layers - layers / n,
        };
        (tokens > 0 && layers > 0).then_some(Window { tokens, layers })
    }
}

impl Family {
    pub(crate) fn arch(&self, name: &str, s: &Shape) -> Arch {
        Arch {
            name: name.to_owned(),
            layers: s.layers,
            hidden: s.hidden,
            heads: s.heads,
            kv_heads: s.kv_heads,
            head_dim: s.head_dim,
            ffn: s.ffn,
            gated: self.gated,
            vocab: s.vocab,
            tied: s.tied,
            moe: s.moe,
            latent: s.latent,
            window: s.window,
            extra: f64::from(s.layers) * self.layer_extra(s) + self.once_extra(s),
        }
    }

    /// In each layer, beyond matrices and two norms.
    fn layer_extra(&self, s: &Shape) -> f64 {
        let h = s.hidden as f64;
        let d = s.head_dim as f64;
        let (q, kv) = (f64::from(s.heads) * d, f64::from(s.kv_heads) * d);
        let norms = (f64::from(self.norms) - 2.0) * h
            + if self.norm_bias { f64::from(self.norms) * h } else { 0.0 };
        let qk = match (self.qk_norm, s.latent) {
            (_, Some(m)) => (m.q_rank + m.kv_rank) as f64,
            (QkNorm::None, _) => 0.0,
            (QkNorm::Head, _) => 2.0 * d,
            (QkNorm::Wide, _) => q + kv,
        };
        let mlp = if self.gated { 2.0 } else { 1.0 } * s.ffn as f64 + h;
        let bias = match self.bias {
            Bias::None => 0.0,
            Bias::Qkv => q + 2.0 * kv,
            Bias::Attention => q + 2.0 * kv + h,
            Bias::All => q + 2.0 * kv + h + mlp,
        };
        norms + qk + bias
    }

    /// Besides the layers, beyond the embedding, the head and the last norm.
    fn once_extra(&self, s: &Shape) -> f64 {
        let h = s.hidden as f64;
        let last = if self.norm_bias { h } else { 0.0 };
        let positions = self.positions.map_or(0.0, |more| (s.positions + more) as f64 * h);
        let embedding_norm = if self.kind == "bloom" { 2.0 * h } else { 0.0 };
        last + positions + embedding_norm
    }
}
