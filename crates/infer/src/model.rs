//! What computes: the trainer's decoder, or anything else with slots.

use std::time::Instant;

use thiserror::Error;
use tutti_trainer::checkpoint::CheckpointError;
use tutti_trainer::{Decoder, DecoderOptions, Row, Weights};

use crate::options::{Options, OptionsError};
use crate::server::Ready;

#[derive(Debug, Error)]
pub enum LoadError {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error("the model can't be loaded")]
    Checkpoint(#[from] CheckpointError),
}

/// Logits are of one token, or of one token per row behind each other.
pub trait Model {
    fn prefill(
        &mut self,
        slot: usize,
        start: usize,
        tokens: &[u8],
        wanted: bool,
    ) -> Option<Vec<f32>>;
    fn decode(&mut self, rows: &[Row]) -> Vec<f32>;
    fn copy(&mut self, from: usize, to: usize, len: usize);
    /// Zeros: what is not a number would spread to whoever has the slot next, masked or not.
    fn clear(&mut self, slot: usize);
}

impl Model for Decoder {
    fn prefill(
        &mut self,
        slot: usize,
        start: usize,
        tokens: &[u8],
        wanted: bool,
    ) -> Option<Vec<f32>> {
        Decoder::prefill(self, slot, start, tokens, wanted)
    }

    fn decode(&mut self, rows: &[Row]) -> Vec<f32> {
        Decoder::decode(self, rows)
    }

    fn copy(&mut self, from: usize, to: usize, len: usize) {
        Decoder::copy(self, from, to, len);
    }

    fn clear(&mut self, slot: usize) {
        Decoder::clear(self, slot);
    }
}

/// Opens the device, reads the checkpoint, and computes once whatever must be compiled.
pub fn load(options: &Options) -> Result<(Decoder, Ready), LoadError> {
    let begun = Instant::now();
    let opened = options.open()?;
    let mut weights = Weights::open(&options.location, options.step)?;
    let trained = weights.config.seq;
    let context = options.max_context.unwrap_or(trained);
    let mut warnings = std::mem::take(&mut weights.warnings);
    if context > trained {
        warnings.push(format!(
            "--max-context {context} is more than the {trained} tokens that it was trained with: what comes after them is likely to be nonsense"
        ));
    }
    let model = weights.config.model.clone();
    let mut decoder = Decoder::new(
        &weights,
        DecoderOptions {
            slots: options.max_batch,
            context,
            dtype: opened.dtype,
            device: opened.device,
            padded: opened.accelerator,
        },
    );
    let step = weights.step;
    drop(weights);
    decoder.warm_up(options.chunk);
    let ready = Ready {
        step,
        parameters: model.parameters(),
        context,
        slots: options.max_batch,
        cache_bytes: decoder.cache_bytes() as u64,
        device: opened.name,
        precision: opened.precision,
        took: begun.elapsed(),
        warnings,
    };
    Ok((decoder, ready))
}
