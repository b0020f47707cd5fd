use serde_json::Value;

use crate::near::did_you_mean;
use crate::numbers::BadNumbers;
use crate::words::thousands;

/// Why a config.json cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("the config is not JSON: {0}")]
    NotJson(String),
    #[error("the config is JSON, but not an object; give a model's Hugging Face config.json")]
    NoObject,
    #[error(
        "the config has no model_type; give a model's Hugging Face config.json, or its numbers"
    )]
    NoKind,
    #[error("'{kind}' is {what}; only language models that write token after token are planned")]
    OtherKind { kind: String, what: &'static str },
    #[error("model_type '{kind}' is not known{}; give the model's numbers instead", did_you_mean(near.as_deref()))]
    Unknown { kind: String, near: Option<String> },
    #[error("{key} is missing, and a '{kind}' config needs it")]
    Missing { key: &'static str, kind: &'static str },
    #[error("{key} is {value}, not a whole number from 1 to {}", thousands(*.high))]
    Bounds { key: &'static str, value: String, high: u64 },
    #[error("hidden_size {hidden} does not divide by {heads} heads, and there is no head_dim")]
    Heads { hidden: u64, heads: u32 },
    #[error(transparent)]
    Numbers(#[from] BadNumbers),
}

/// As much of a value as fits into a sentence.
pub(super) fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
