//! An endpoint and training on the same GPUs for a day:
//! `cargo run --release -p tutti-sim --example shared`.
#![allow(clippy::print_stdout)]

use tutti_model::Span;
use tutti_sim::shared::{Outcome, Shared};

fn main() {
    let of = Shared::default();
    let gpus = f64::from(of.nodes * u32::from(of.gpus_per_node));
    let (together, alone) = (of.together(), of.training_alone());
    // What is served needs so much, however many replicas stand by for it.
    let serving: f64 = (0..of.hours * 60)
        .map(|minute| of.load(Span::secs(minute * 60)).div_ceil(of.target))
        .map(|replicas| f64::from(replicas) / 60.0)
        .sum();
    let part = |o: &Outcome| (o.trained + serving) / (gpus * of.hours as f64) * 100.0;
    println!("{gpus} GPUs, {} to {} requests at a time, {} h", of.night, of.noon, of.hours);
    println!(
        "together: {:.2}% of request time within the bound, {} to {} replicas, {:.0} GPU-hours of \
         training, {:.1} lost, {:.0} of replicas, {} suspensions, {} stopped, {:.1}% of all GPU time \
         used",
        together.within_bound * 100.0,
        together.least_ready,
        together.most_ready,
        together.trained,
        together.lost,
        together.served,
        together.suspensions,
        together.stopped,
        part(&together),
    );
    println!(
        "apart: {:.0} GPU-hours of training, {:.1}% of all GPU time used",
        alone.trained,
        part(&alone),
    );
}
