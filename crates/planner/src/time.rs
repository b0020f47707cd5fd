//! Seconds of a step, part by part.
//!
//! ```text
//!  matmul: one product by its shape ─┐
//!  layer: forward and backward of a layer, with its collectives ─┤
//!                          head: embedding, vocabulary, loss ─┤
//!                                                          ▼
//!            pipeline of stages: busiest stage × micro-batches, and the bubble
//!                                                          ▼
//!                     exchange: gradients and sharded weights that nothing hides
//! ```

mod exchange;
mod head;
mod layer;
mod machine;
mod matmul;

use exchange::exchange;
use head::head;
use layer::{Pass, layer};
use machine::Machine;

use crate::split::{Held, Split, adapters, recomputes};
use crate::{Part, Setup, Sharding, StepTime, Task};

/// Seconds of one step.
pub fn step_time(setup: &Setup) -> StepTime {
    let split = Split::new(setup);
    let machine = Machine::new(setup);
    let body = Body::new(setup, &split, &machine);
    let m = split.micro_batches;
    let busy = body.busiest(&split);
    let transfers = transfers(setup, &split, &machine) * m;
    let stage = busy.seconds() + transfers / m;
    // Every other stage passes its first and last micro-batch on while the busiest waits.
    let others = (split.pp - 1.0) * (body.middle(&split).seconds() + transfers / m);
    let bubble = others.min(stage * (split.pp - 1.0)) / split.vp;
    let held = Held::new(setup, &split);
    let data = exchange(setup, &split, &machine, &held, &body);
    let optimizer = optimizer(setup, &split, &machine, &held);
    let mut parts = vec![
        (Part::Gemm, busy.work.gemm * m),
        (Part::Attention, busy.work.attention * m),
        (Part::Head, busy.head * m),
        (Part::Elementwise, busy.work.elementwise * m),
        (Part::Recompute, busy.again * m),
        (Part::TensorParallel, busy.work.tensor * m),
        (Part::ContextParallel, busy.work.context * m),
        (Part::ExpertParallel, busy.work.experts * m),
        (Part::PipelineTransfers, transfers),
        (Part::Bubble, bubble),
        (Part::DataParallel, data),
        (Part::Optimizer, optimizer),
    ];
    let sum: f64 = parts.iter().map(|(_, s)| s).sum();
    let launches = busy.work.launches * m;
    parts.push((
        Part::Overhead,
        launches + (sum + launches) * machine.traits.pauses + machine.traits.per_step,
    ));
    StepTime { parts }
}

/// One micro-batch through one stage, forward and backward.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    work: Pass,
    again: f64,
    head: f64,
}

impl Stage {
    fn seconds(&self) -> f64 {
        self.work.seconds() + self.again + self.head
    }
}

/// Passes of one layer of each kind, and of the head.
struct Body {
    dense: [Pass; 2],
    sparse: [Pass; 2],
    head: f64,
    full: bool,
}

impl Body {
    fn new(setup: &Setup, split: &Split, machine: &Machine) -> Body {
        Body {
            dense: layer(setup, split, machine, false),
            sparse: layer(setup, split, machine, true),
            head: head(setup, split, machine),
            full: recomputes(setup),
        }
    }

    /// Forward and backward of so many layers, of which some have experts.
    fn layers(&self, all: f64, sparse: f64) -> Stage {
        let sparse = sparse.min(all);
        let dense = all - sparse;
        let forward = self.dense[0].times(dense).plus(self.sparse[0].times(sparse));
        let backward = self.dense[1].times(dense).plus(self.sparse[1].times(sparse));
        let again = if self.full { forward.seconds() } else { 0.0 };
        Stage { work: forward.plus(backward), again, head: 0.0 }
    }

    fn middle(&self, split: &Split) -> Stage {
        self.layers(split.layers, split.sparse)
    }

    /// The rank with the head, which makes up for layers as far as others have room for them.
    fn last(&self, split: &Split) -> Stage {
        let one = self.middle(split).seconds() / split.layers;
        let layers = split.layers - (self.head / one).ceil().min(split.spare);
        Stage { head: self.head, ..self.layers(layers, split.sparse.min(layers)) }
    }

    fn busiest(&self, split: &Split) -> Stage {
        let (middle, last) = (self.middle(split), self.last(split));
        if split.pp > 1.0 && middle.seconds() > last.seconds() { middle } else { last }
    }
}

/// Activations forward and gradients backward over one boundary, for one micro-batch, as far as nothing hides them.
fn transfers(setup: &Setup, split: &Split, machine: &Machine) -> f64 {
    if split.pp <= 1.0 {
        return 0.0;
    }
    let bytes = 2.0 * split.tokens * setup.arch.hidden as f64 / split.tp;
    let stride = split.tp * split.cp * split.dp;
    let one = machine.network.send(bytes, stride);
    2.0 * split.vp * one * (1.0 - if split.vp > 1.0 { machine.traits.hides_transfers } else { 0.0 })
}

/// Reading and writing of gradients, weights, their masters and two moments.
fn optimizer(setup: &Setup, split: &Split, machine: &Machine, held: &Held) -> f64 {
    let params = match setup.workload.task {
        Task::Lora { .. } => adapters(setup, split),
        _ if setup.layout.sharding == Sharding::None => held.all(),
        _ => held.shared(split),
    };
    machine.traits.optimizer_bytes * params / machine.memory_rate
}
