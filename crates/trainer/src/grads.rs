//! Gradients on their way from the backward pass to the optimiser.
//!
//! ```text
//! add (each micro-batch) ─► finish(unit) ─► bucket full? ─► reduce, while backward goes on ─► shards
//! ```

use tutti_collectives::{Error, Op, Pending};

use crate::bucket::Bucket;
use crate::comm::{Mesh, from_host, to_host};
use crate::params::{Param, Unit};
use crate::tensor::{FloatDType, Tensor};

/// Sums over the micro-batches of one step, then over the data ranks.
pub struct Gradients {
    sums: Vec<Option<Tensor<2>>>,
    flows: Vec<Option<Flow>>,
}

enum Flow {
    Here(Tensor<1>),
    Underway(Pending<Vec<f32>>),
}

/// Who takes part in the exchange.
pub struct Exchange<'a> {
    pub mesh: &'a Mesh,
    pub params: &'a [Param],
    pub buckets: &'a [Bucket],
    /// Each data rank gets its own shard alone.
    pub zero: bool,
}

impl Gradients {
    pub fn new(params: usize, buckets: usize) -> Self {
        Gradients {
            sums: std::iter::repeat_with(|| None).take(params).collect(),
            flows: std::iter::repeat_with(|| None).take(buckets).collect(),
        }
    }

    pub fn add(&mut self, param: usize, gradient: Tensor<2>) {
        let gradient = gradient.cast(FloatDType::F32);
        let sum = self.sums[param].take();
        self.sums[param] = Some(match sum {
            None => gradient,
            Some(sum) => sum.add(gradient),
        });
    }

    /// All micro-batches of `unit` are done: a bucket that ends with it starts on its way.
    pub fn finish(&mut self, unit: Unit, exchange: &Exchange<'_>) -> Result<(), Error> {
        for (index, bucket) in exchange.buckets.iter().enumerate() {
            if bucket.last == unit {
                let flow = self.start(bucket, exchange)?;
                self.flows[index] = Some(flow);
            }
        }
        Ok(())
    }

    fn start(&mut self, bucket: &Bucket, exchange: &Exchange<'_>) -> Result<Flow, Error> {
        let mut parts = Vec::with_capacity(bucket.slots.len() + 1);
        for slot in &bucket.slots {
            let spec = &exchange.params[slot.param];
            let sum = self.sums[slot.param].take();
            let sum = sum.expect("a unit is finished after each of its parameters got a gradient");
            let sum = share_sum(spec, sum, exchange.mesh)?;
            parts.push(sum.reshape([spec.len()]));
        }
        let Some(data) = &exchange.mesh.data else {
            return Ok(Flow::Here(if parts.len() == 1 {
                parts.remove(0)
            } else {
                Tensor::cat(parts, 0)
            }));
        };
        let mut flat = Vec::with_capacity(bucket.len);
        parts.into_iter().for_each(|part| flat.extend(to_host(part)));
        flat.resize(bucket.len, 0.0);
        Ok(Flow::Underway(if exchange.zero {
            data.start_reduce_scatter(flat, Op::Sum)
        } else {
            data.start_all_reduce(flat, Op::Sum)
        }))
    }

    /// Bucket by bucket, what this rank's optimiser needs of it.
    pub fn collect(
        self,
        exchange: &Exchange<'_>,
        device: &crate::tensor::Device,
    ) -> Result<Vec<Tensor<1>>, Error> {
        let flows = self.flows.into_iter();
        flows
            .map(|flow| match flow.expect("every unit was finished") {
                Flow::Here(tensor) => Ok(tensor),
                Flow::Underway(pending) => {
                    let numbers = exchange.mesh.wait(pending)?;
                    let len = numbers.len();
                    Ok(from_host(numbers, [len], device))
                }
            })
            .collect()
    }
}

/// Ranks that hold the same numbers each have a part of their gradient.
fn share_sum(spec: &Param, sum: Tensor<2>, mesh: &Mesh) -> Result<Tensor<2>, Error> {
    if spec.tied {
        return mesh.sum(mesh.ends.as_ref(), sum);
    }
    let shared: Vec<_> = spec.pieces.iter().filter(|piece| piece.shared).collect();
    let (Some(first), Some(kv)) = (shared.first(), &mesh.kv) else { return Ok(sum) };
    let columns = spec.shape[1];
    let row = first.at / columns;
    let rows = shared.iter().map(|piece| piece.extent[0]).sum();
    let own = sum.clone().narrow(0, 0, row);
    let common = mesh.sum(Some(kv), sum.narrow(0, row, rows))?;
    Ok(Tensor::cat(vec![own, common], 0))
}
