//! What a job was planned to be: `[plan]` of a job file, as `tutti plan --write job` writes it. Nothing is decided by it
//! here: `tutti plan --check` and `tutti submit` say whether it fits, `tutti show` how it compares with what is seen.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Words are the planner's, which checks them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeclaredPlan {
    /// A model's name, or the path of its config.json.
    pub model: String,
    /// `pretrain`, `finetune` or `lora`.
    #[serde(default = "pretrain")]
    pub task: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<u32>,
    /// `fp16`, `bf16`, `fp8`, `mxfp8` or `nvfp4`.
    #[serde(default = "bf16")]
    pub precision: String,
    /// Tokens of one sequence.
    pub seq: u64,
    /// Sequences of one step, all GPUs together.
    pub global_batch: u64,
    #[serde(default = "one")]
    pub tp: u32,
    #[serde(default = "one")]
    pub pp: u32,
    #[serde(default = "one")]
    pub vp: u32,
    #[serde(default = "one")]
    pub cp: u32,
    #[serde(default = "one")]
    pub ep: u32,
    #[serde(default = "one")]
    pub dp: u32,
    /// Sequences.
    #[serde(default = "one_sequence")]
    pub micro_batch: u64,
    /// The stage of ZeRO: 0 to 3.
    #[serde(default)]
    pub zero: u8,
    /// `none`, `selective` or `full`.
    #[serde(default = "none")]
    pub recompute: String,
    #[serde(default)]
    pub sequence_parallel: bool,
    /// Seconds of one step, as planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_time_s: Option<f64>,
    /// Of the fullest GPU, in GB of 2³⁰ bytes as GPUs are sold, as planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gb: Option<f64>,
}

fn pretrain() -> String {
    "pretrain".to_owned()
}

fn bf16() -> String {
    "bf16".to_owned()
}

fn none() -> String {
    "none".to_owned()
}

fn one() -> u32 {
    1
}

fn one_sequence() -> u64 {
    1
}

/// Longer words are no names; they would be kept in the journal for good.
const WORD_MAX: usize = 4096;

impl DeclaredPlan {
    /// The key to blame, and why. What the words mean is the planner's to say.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let long = |text: &str| text.len() > WORD_MAX;
        let words = [
            ("model", &self.model),
            ("task", &self.task),
            ("precision", &self.precision),
            ("recompute", &self.recompute),
        ];
        let mut found: Vec<(&'static str, String)> = words
            .into_iter()
            .filter(|(_, text)| text.is_empty() || long(text))
            .map(|(key, _)| (key, format!("must have 1 to {WORD_MAX} bytes")))
            .collect();
        let degrees = [self.tp, self.pp, self.vp, self.cp, self.ep, self.dp];
        let names = ["tp", "pp", "vp", "cp", "ep", "dp"];
        let zeros = names.into_iter().zip(degrees).filter(|(_, n)| *n == 0);
        found.extend(zeros.map(|(key, _)| (key, "must be at least 1".to_owned())));
        let counts = [
            ("seq", self.seq),
            ("global_batch", self.global_batch),
            ("micro_batch", self.micro_batch),
        ];
        let zeros = counts.into_iter().filter(|(_, n)| *n == 0);
        found.extend(zeros.map(|(key, _)| (key, "must be at least 1".to_owned())));
        if self.zero > 3 {
            found.push(("zero", format!("{} is no stage of ZeRO: write 0, 1, 2 or 3", self.zero)));
        }
        let figures = [("step_time_s", self.step_time_s), ("memory_gb", self.memory_gb)];
        for (key, figure) in figures {
            if figure.is_some_and(|f| !(f.is_finite() && f > 0.0)) {
                found.push((key, "must be above 0".to_owned()));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn least() -> DeclaredPlan {
        serde_json::from_str(r#"{"model": "llama-3.1-8b", "seq": 4096, "global_batch": 64}"#)
            .unwrap()
    }

    #[test]
    fn what_is_left_out_is_one_gpu_that_trains_in_bf16() {
        let plan = least();
        assert_eq!((plan.task.as_str(), plan.precision.as_str()), ("pretrain", "bf16"));
        assert_eq!((plan.tp, plan.dp, plan.micro_batch, plan.zero), (1, 1, 1, 0));
        assert_eq!(plan.problems(), []);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<DeclaredPlan>(&text).unwrap(), plan);
        assert!(!text.contains("step_time_s"), "{text}");
    }

    #[test]
    fn numbers_out_of_bounds_are_named() {
        let plan = DeclaredPlan {
            model: String::new(),
            tp: 0,
            seq: 0,
            zero: 4,
            step_time_s: Some(f64::NAN),
            ..least()
        };
        let keys: Vec<_> = plan.problems().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["model", "tp", "seq", "zero", "step_time_s"]);
    }
}
