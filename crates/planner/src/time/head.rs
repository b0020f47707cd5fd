//! The vocabulary: embedding, logits and loss of one micro-batch, both directions.

use super::machine::Machine;
use super::matmul::Product;
use crate::split::Split;
use crate::{Setup, Task};

pub(super) fn head(setup: &Setup, split: &Split, machine: &Machine) -> f64 {
    let arch = setup.arch;
    let (vocab, h) = (arch.vocab as f64 / split.tp, arch.hidden as f64);
    let logits = Product::new(split.tokens, (vocab / 64.0).ceil() * 64.0, h);
    let rate = machine.bf16_rate;
    let mut seconds = logits.seconds(machine, rate, 2.0, 2.0)
        + logits.input_gradient().seconds(machine, rate, 2.0, 2.0);
    if !matches!(setup.workload.task, Task::Lora { .. }) {
        seconds += logits.weight_gradient().seconds(machine, rate, 2.0, 8.0);
    }
    let loss = machine.traits.loss_bytes * split.tokens * vocab;
    let embedding = 12.0 * split.tokens * h;
    seconds + machine.stream(loss + embedding)
}
