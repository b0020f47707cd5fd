//! A Hugging Face config.json.

mod error;
mod kinds;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use crate::family::{FAMILIES, Family, Narrow, Shape, family};
use crate::near::near;
use crate::numbers::{self, EXPERTS, HEADS, LAYERS, WIDTH};
use crate::{Arch, Latent, Moe, Window};

pub use error::ConfigError;

/// The language model that a config.json describes. Of a model that also sees, the part that writes.
pub fn from_config(json: &str) -> Result<Arch, ConfigError> {
    let value: Value =
        serde_json::from_str(json).map_err(|e| ConfigError::NotJson(e.to_string()))?;
    let object = value.as_object().ok_or(ConfigError::NoObject)?;
    let kind = kind(object)?;
    let inner = object.get("text_config").and_then(Value::as_object);
    let (family, keys) = match (family(kind), inner) {
        (Some(f), None) => (f, object),
        (_, Some(text)) => {
            let inner = text.get("model_type").and_then(Value::as_str).unwrap_or(kind);
            (known(inner)?, text)
        }
        (None, None) => (known(kind)?, object),
    };
    let name = object.get("_name_or_path").and_then(Value::as_str).unwrap_or_default();
    let name = name.rsplit('/').find(|part| !part.is_empty()).unwrap_or(kind);
    Keys { keys, family }.arch(name)
}

fn known(kind: &str) -> Result<&'static Family, ConfigError> {
    family(kind).ok_or_else(|| match kinds::other(kind) {
        Some(what) => ConfigError::OtherKind { kind: kind.to_owned(), what },
        None => ConfigError::Unknown {
            kind: kind.to_owned(),
            near: near(kind, FAMILIES.iter().map(|f| f.kind)).map(str::to_owned),
        },
    })
}

fn kind(object: &Map<String, Value>) -> Result<&str, ConfigError> {
    if let Some(class) = object.get("_class_name").and_then(Value::as_str) {
        let what = "part of a diffusion pipeline";
        return Err(ConfigError::OtherKind { kind: class.to_owned(), what });
    }
    let kind = object.get("model_type").and_then(Value::as_str).ok_or(ConfigError::NoKind)?;
    match kinds::other(kind) {
        Some(what) => Err(ConfigError::OtherKind { kind: kind.to_owned(), what }),
        None => Ok(kind),
    }
}

/// The same number has other names in other families.
const LAYER_KEYS: &[&str] = &["num_hidden_layers", "n_layer", "num_layers", "n_layers"];
const HIDDEN_KEYS: &[&str] = &["hidden_size", "n_embd", "d_model"];
const HEAD_KEYS: &[&str] = &["num_attention_heads", "n_head", "n_heads"];
const KV_KEYS: &[&str] = &["num_key_value_heads", "num_kv_heads"];
const FFN_KEYS: &[&str] =
    &["intermediate_size_mlp", "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"];
const EXPERT_KEYS: &[&str] = &["n_routed_experts", "num_local_experts", "num_experts"];
const TOPK_KEYS: &[&str] = &["num_experts_per_tok", "num_selected_experts"];
const POSITION_KEYS: &[&str] = &["max_position_embeddings", "n_positions", "n_ctx"];

struct Keys<'a> {
    keys: &'a Map<String, Value>,
    family: &'static Family,
}

impl Keys<'_> {
    fn arch(&self, name: &str) -> Result<Arch, ConfigError> {
        let layers = self.need(LAYER_KEYS, LAYERS)? as u32;
        let hidden = self.need(HIDDEN_KEYS, WIDTH)?;
        let heads = self.need(HEAD_KEYS, HEADS)? as u32;
        let latent = self.latent()?;
        let shape = Shape {
            layers,
            hidden,
            heads,
            kv_heads: self.kv_heads(heads)?,
            head_dim: self.head_dim(hidden, heads, latent)?,
            ffn: self.ffn(hidden)?,
            vocab: self.need(&["vocab_size"], WIDTH)?,
            tied: self.flag("tie_word_embeddings").unwrap_or(self.family.tied),
            positions: match self.family.positions {
                Some(_) => self.need(POSITION_KEYS, WIDTH)?,
                None => 0,
            },
            window: self.window(layers)?,
            moe: self.moe(layers)?,
            latent,
        };
        let mut arch = self.family.arch(name, &shape);
        arch.extra += self.narrow_embedding(&shape)?;
        numbers::check(&arch)?;
        Ok(arch)
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.keys.get(key).and_then(Value::as_bool)
    }

    /// The first of the keys that is there and is not null.
    fn number(&self, keys: &[&'static str], high: u64) -> Result<Option<u64>, ConfigError> {
        let found = keys
            .iter()
            .find_map(|k| self.keys.get(*k).map(|v| (*k, v)).filter(|(_, v)| !v.is_null()));
        let Some((key, value)) = found else {
            let default = self.family.defaults.iter().find(|(k, _)| keys.contains(k));
            return Ok(default.map(|(_, v)| *v));
        };
        let whole = value.as_u64().or_else(|| {
            value.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0 && *f <= 1e15).map(|f| f as u64)
        });
        match whole {
            Some(n) if n <= high => Ok(Some(n)),
            _ => Err(ConfigError::Bounds { key, value: error::short(value), high }),
        }
    }

    fn need(&self, keys: &[&'static str], high: u64) -> Result<u64, ConfigError> {
        match self.number(keys, high)? {
            Some(0) => Err(ConfigError::Bounds { key: keys[0], value: "0".into(), high }),
            Some(n) => Ok(n),
            None => Err(ConfigError::Missing { key: keys[0], kind: self.family.kind }),
        }
    }

    fn kv_heads(&self, heads: u32) -> Result<u32, ConfigError> {
        let grouped = self.flag("new_decoder_architecture") != Some(false);
        if self.flag("multi_query") == Some(true)
            && (self.keys.get("new_decoder_architecture").is_none() || !grouped)
        {
            return Ok(1);
        }
        let given = self.number(KV_KEYS, HEADS)?;
        Ok(given.unwrap_or(u64::from(heads)) as u32)
    }

    fn head_dim(
        &self,
        hidden: u64,
        heads: u32,
        latent: Option<Latent>,
    ) -> Result<u64, ConfigError> {
        if let Some(m) = latent {
            return Ok(m.value_dim);
        }
        match self.number(&["head_dim"], WIDTH)? {
            Some(d) => Ok(d),
            None if hidden.is_multiple_of(u64::from(heads)) => Ok(hidden / u64::from(heads)),
            None => Err(ConfigError::Heads { hidden, heads }),
        }
    }

    fn ffn(&self, hidden: u64) -> Result<u64, ConfigError> {
        match self.number(FFN_KEYS, WIDTH)? {
            Some(f) => Ok(f),
            None if !self.family.gated => Ok(4 * hidden),
            // A family of experts alone may say no dense width.
            None => match self.number(&["moe_intermediate_size"], WIDTH)? {
                Some(f) => Ok(f),
                None => {
                    Err(ConfigError::Missing { key: "intermediate_size", kind: self.family.kind })
                }
            },
        }
    }

    fn latent(&self) -> Result<Option<Latent>, ConfigError> {
        let Some(kv_rank) = self.number(&["kv_lora_rank"], WIDTH)? else { return Ok(None) };
        Ok(Some(Latent {
            q_rank: self.number(&["q_lora_rank"], WIDTH)?.unwrap_or(0),
            kv_rank,
            rope_dim: self.need(&["qk_rope_head_dim"], WIDTH)?,
            nope_dim: self.need(&["qk_nope_head_dim"], WIDTH)?,
            value_dim: self.need(&["v_head_dim"], WIDTH)?,
        }))
    }

    fn moe(&self, layers: u32) -> Result<Option<Moe>, ConfigError> {
        let Some(experts) = self.number(EXPERT_KEYS, EXPERTS)?.filter(|n| *n > 1) else {
            return Ok(None);
        };
        let topk = self.need(TOPK_KEYS, EXPERTS)?;
        let ffn = match self.number(&["moe_intermediate_size"], WIDTH)? {
            Some(f) => f,
            None => self.need(&["intermediate_size"], WIDTH)?,
        };
        let wide = self.number(&["shared_expert_intermediate_size"], WIDTH)?;
        let shared = match (self.number(&["n_shared_experts"], EXPERTS)?, wide) {
            (Some(n), _) => n,
            (None, Some(w)) => w.div_ceil(ffn.max(1)),
            (None, None) => u64::from(self.family.kind == "llama4_text"),
        };
        let first = self.number(&["first_k_dense_replace"], LAYERS)?.unwrap_or(0);
        let every = self.number(
            &["interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq"],
            LAYERS,
        )?;
        let skipped = u64::from(layers) - u64::from(layers) / every.unwrap_or(1).max(1);
        Ok(Some(Moe {
            experts: experts as u32,
            topk: topk as u32,
            ffn,
            shared: shared as u32,
            dense_layers: first.max(skipped) as u32,
        }))
    }

    fn window(&self, layers: u32) -> Result<Option<Window>, ConfigError> {
        if self.flag("use_sliding_window") == Some(false) {
            return Ok(None);
        }
        let tokens =
            self.number(&["sliding_window", "attention_chunk_size"], 1 << 40)?.unwrap_or(0);
        if let Some(types) = self.keys.get("layer_types").and_then(Value::as_array) {
            let narrow =
                types.iter().filter_map(Value::as_str).filter(|t| *t != "full_attention").count();
            let narrow = (narrow as u32).min(layers);
            return Ok((tokens > 0 && narrow > 0).then_some(Window { tokens, layers: narrow }));
        }
        let narrow = match (self.family.narrow, self.number(&["sliding_window_pattern"], LAYERS)?) {
            (Narrow::AllBut(_), Some(n)) if n > 0 => Narrow::AllBut(n as u32),
            (narrow, _) => narrow,
        };
        Ok(narrow.window(tokens, layers))
    }

    /// A few embed narrower than they compute (OPT-350M), with a matrix on the way in and on the way out.
    fn narrow_embedding(&self, s: &Shape) -> Result<f64, ConfigError> {
        let narrow = self.number(&["word_embed_proj_dim"], WIDTH)?.unwrap_or(s.hidden);
        if narrow >= s.hidden {
            return Ok(0.0);
        }
        let (h, n, v) = (s.hidden as f64, narrow as f64, s.vocab as f64);
        Ok(2.0 * h * n - v * (h - n))
    }
}
