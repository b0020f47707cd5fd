//! Gradients and sharded weights between data-parallel ranks, as far as computation does not hide them.

use super::Body;
use super::machine::Machine;
use crate::collective::Group;
use crate::split::{Held, Split, adapters, gathers};
use crate::{Setup, Sharding, Task};

pub(super) fn exchange(
    setup: &Setup,
    split: &Split,
    machine: &Machine,
    held: &Held,
    body: &Body,
) -> f64 {
    if split.replicas() <= 1.0 {
        return 0.0;
    }
    if gathers(setup) && split.pp <= 1.0 {
        return sharded(setup, split, machine, held, body);
    }
    let mut rest = held.body + held.ends;
    let mut experts = held.experts;
    if let Task::Lora { .. } = setup.workload.task {
        (rest, experts) = (adapters(setup, split), 0.0);
    }
    let traits = &machine.traits;
    let (all, few) = groups(split);
    let reduce = machine.network.gather(traits.gradient_bytes * rest, all)
        + machine.network.gather(traits.gradient_bytes * experts, few);
    // Without sharding the second half of the all-reduce carries gradients, with it the new weights.
    let back = if setup.layout.sharding == Sharding::None { traits.gradient_bytes } else { 2.0 };
    let spread =
        machine.network.gather(back * rest, all) + machine.network.gather(back * experts, few);
    let stage = body.middle(split);
    let window = stage.seconds() / 3.0;
    // Gradients that are kept in shards are reduced with every micro-batch.
    let often = setup.layout.sharding == Sharding::Zero2 && split.pp <= 1.0;
    let times = if often { split.micro_batches } else { 1.0 };
    times * seen(reduce, 2.0 * window, traits.hides_data) + seen(spread, window, traits.hides_data)
}

fn groups(split: &Split) -> (Group, Group) {
    let experts = Group::new(split.expert_replicas(), split.expert_tp() * split.ep);
    (Group::new(split.replicas(), split.tp), experts)
}

/// What is left of a transfer beside so much computation, of which a share can be hidden at best.
fn seen(transfer: f64, beside: f64, hides: f64) -> f64 {
    (transfer - hides * beside).max((1.0 - hides) * transfer)
}

/// Every layer's weights are gathered for each pass of each micro-batch, and its gradients reduced.
fn sharded(setup: &Setup, split: &Split, machine: &Machine, held: &Held, body: &Body) -> f64 {
    let traits = &machine.traits;
    let (all, few) = groups(split);
    let layer = held.body / split.layers;
    let experts = held.experts / split.layers;
    let frozen = matches!(setup.workload.task, Task::Lora { .. });
    // A layer's tensors may be gathered one by one.
    let by_pieces =
        |bytes: f64| traits.gathers * machine.network.gather(bytes / traits.gathers, all);
    let gather = by_pieces(2.0 * layer) + machine.network.gather(2.0 * experts, few);
    let reduce = match frozen {
        true => 0.0,
        false => {
            by_pieces(traits.gradient_bytes * layer)
                + machine.network.gather(traits.gradient_bytes * experts, few)
        }
    };
    let stage = body.middle(split);
    let one = stage.seconds() / split.layers;
    let share = if body.full { 4.0 } else { 3.0 };
    let forward = seen(gather, one / share, traits.hides_data);
    let backward = seen(gather + reduce, one * (share - 1.0) / share, traits.hides_data);
    let ends = machine.network.gather(2.0 * held.ends, all) * 2.0
        + machine.network.gather(traits.gradient_bytes * held.ends, all);
    let per_micro_batch = split.layers * (forward + backward) + 0.5 * ends;
    per_micro_batch * split.micro_batches
}
