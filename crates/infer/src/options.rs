//! What is served, and with how much.

use std::path::Path;
use std::str::FromStr;

use thiserror::Error;
use tutti_trainer::config::Device as Kind;
use tutti_trainer::tensor::{self, Device, FloatDType};
use tutti_trainer::{ConfigError, device};

#[derive(Debug, Error, PartialEq, Eq)]
pub enum OptionsError {
    #[error("--device {0} is not known: use auto, cpu, cuda or cuda:1")]
    Device(String),
    #[error("--{name} must be at least 1")]
    Zero { name: &'static str },
    #[error("--device {device} has no {precision} arithmetic: use --precision f32")]
    Precision { device: String, precision: &'static str },
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Where it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardware {
    /// A GPU if this binary can use one and there is one, else the CPU.
    Auto,
    Cpu,
    Cuda(usize),
}

impl FromStr for Hardware {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Hardware::Auto),
            None if text == "cpu" => Ok(Hardware::Cpu),
            None if text == "cuda" => Ok(Hardware::Cuda(0)),
            Some(("cuda", index)) => {
                let bad = |_| OptionsError::Device(text.to_owned());
                Ok(Hardware::Cuda(index.parse().map_err(bad)?))
            }
            _ => Err(OptionsError::Device(text.to_owned())),
        }
    }
}

/// Of matrices. Norms, sums, keys and values are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// bf16 on a GPU, f32 on the CPU.
    Auto,
    F32,
    Bf16,
    F16,
}

#[derive(Clone, Debug)]
pub struct Options {
    /// Where `tutti train --checkpoint` saved.
    pub location: String,
    /// The newest if not given.
    pub step: Option<u64>,
    /// Names by which requests may ask for it; the first is told to clients.
    pub names: Vec<String>,
    pub hardware: Hardware,
    pub precision: Precision,
    /// Sequences at the same time.
    pub max_batch: usize,
    /// Tokens of one, prompt and answer together; as many as it was trained with if not given.
    pub max_context: Option<usize>,
    /// Sequences that may wait; more are refused.
    pub queue: usize,
    /// Tokens of prompts between two tokens of those that are under way.
    pub chunk: usize,
}

impl Options {
    pub fn check(&self) -> Result<(), OptionsError> {
        let numbers = [
            ("max-batch", self.max_batch),
            ("max-context", self.max_context.unwrap_or(1)),
            ("queue", self.queue),
            ("prefill-chunk", self.chunk),
        ];
        match numbers.into_iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(OptionsError::Zero { name }),
            None => Ok(()),
        }
    }

    /// The device, whether it is an accelerator, and what it is called.
    pub(crate) fn open(&self) -> Result<Opened, OptionsError> {
        let (kind, index) = match self.hardware {
            Hardware::Auto if has_cuda() => (Kind::Cuda, 0),
            Hardware::Auto | Hardware::Cpu => (Kind::Cpu, 0),
            Hardware::Cuda(index) => (Kind::Cuda, index),
        };
        let accelerator = kind == Kind::Cuda;
        let opened = device::open(kind, index, tutti_trainer::Precision::F32)?;
        let name = if accelerator { format!("cuda:{index}") } else { "cpu".to_owned() };
        let (dtype, precision) = match self.precision {
            Precision::Auto if accelerator => (FloatDType::BF16, "bf16"),
            Precision::Auto | Precision::F32 => (FloatDType::F32, "f32"),
            Precision::Bf16 => (FloatDType::BF16, "bf16"),
            Precision::F16 => (FloatDType::F16, "f16"),
        };
        // The CPU would emulate the short ones number by number.
        let short = dtype != FloatDType::F32;
        if short && (!accelerator || !tensor::supports(&opened, dtype)) {
            return Err(OptionsError::Precision { device: name, precision });
        }
        Ok(Opened { device: opened, dtype, accelerator, name, precision })
    }
}

pub(crate) struct Opened {
    pub device: Device,
    pub dtype: FloatDType,
    pub accelerator: bool,
    pub name: String,
    pub precision: &'static str,
}

/// A job without GPUs has an empty list of them, whatever the node has.
fn has_cuda() -> bool {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES");
    let hidden = visible.is_ok_and(|list| matches!(list.trim(), "" | "-1"));
    cfg!(feature = "cuda") && !hidden && Path::new("/dev/nvidiactl").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_nonsense_is_named() {
        for (text, hardware) in [
            ("auto", Hardware::Auto),
            ("cpu", Hardware::Cpu),
            ("cuda", Hardware::Cuda(0)),
            ("cuda:3", Hardware::Cuda(3)),
        ] {
            assert_eq!(text.parse(), Ok(hardware));
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cpu:1"] {
            let error = text.parse::<Hardware>().unwrap_err().to_string();
            assert!(error.contains(&format!("--device {text} is not known")), "{error}");
        }
    }
}
