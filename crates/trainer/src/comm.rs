//! Which ranks this one meets, and tensors on their way to them.
//!
//! A group of one is no group: nothing is copied and nobody is asked. Otherwise data crosses host
//! memory. Waiting is counted: for a neighbour in the pipeline it is bubble, for anyone else it is
//! communication that nothing hid.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tutti_collectives::{Error, Group, Op, Pending};

use crate::layout::{Layout, Place};
use crate::tensor::{Device, FloatDType, Tensor, TensorData};

/// Time that a rank waited, since it was last asked.
#[derive(Debug, Default)]
pub struct Clock {
    comm: Cell<Duration>,
    bubble: Cell<Duration>,
}

impl Clock {
    pub fn comm<R>(&self, work: impl FnOnce() -> R) -> R {
        count(&self.comm, work)
    }

    pub fn bubble<R>(&self, work: impl FnOnce() -> R) -> R {
        count(&self.bubble, work)
    }

    /// Communication and bubble; both start again from zero.
    pub fn take(&self) -> (Duration, Duration) {
        (self.comm.take(), self.bubble.take())
    }
}

fn count<R>(total: &Cell<Duration>, work: impl FnOnce() -> R) -> R {
    let started = Instant::now();
    let result = work();
    total.set(total.get() + started.elapsed());
    result
}

/// The groups of one rank. None where it is alone.
pub struct Mesh {
    pub world: Option<Group>,
    /// Same data, same stage: other parts of the matrices.
    pub tensor: Option<Group>,
    /// Same part of the model, other data.
    pub data: Option<Group>,
    /// Same data, same part of the matrices: the other stages, in order.
    pub pipe: Option<Group>,
    /// The tensor ranks with the same key and value heads.
    pub kv: Option<Group>,
    /// First and last stage, when they share the embedding.
    pub ends: Option<Group>,
    pub clock: Clock,
}

impl Mesh {
    pub fn alone() -> Self {
        Mesh {
            world: None,
            tensor: None,
            data: None,
            pipe: None,
            kv: None,
            ends: None,
            clock: Clock::default(),
        }
    }

    /// All ranks of the world call this with the same layout.
    pub fn new(
        world: &Group,
        layout: &Layout,
        kv_sharers: usize,
        tied: bool,
    ) -> Result<Self, Error> {
        if world.size() == 1 {
            return Ok(Self::alone());
        }
        let Layout { dp, tp, pp, .. } = *layout;
        let rank = |pipe, data, tensor| layout.rank(Place { data, tensor, pipe });
        let join = |size: usize, groups: Vec<Vec<usize>>| join(world, size, groups);
        let each = |outer: usize, inner: usize| {
            (0..outer).flat_map(move |a| (0..inner).map(move |b| (a, b)))
        };
        let tensor = each(pp, dp).map(|(p, d)| (0..tp).map(|t| rank(p, d, t)).collect());
        let data = each(pp, tp).map(|(p, t)| (0..dp).map(|d| rank(p, d, t)).collect());
        let pipe = each(dp, tp).map(|(d, t)| (0..pp).map(|p| rank(p, d, t)).collect());
        let ends = each(dp, tp).map(|(d, t)| vec![rank(0, d, t), rank(pp - 1, d, t)]);
        let kv = each(pp, dp).flat_map(|(p, d)| {
            let firsts = (0..tp).step_by(kv_sharers);
            firsts.map(move |first| (first..first + kv_sharers).map(|t| rank(p, d, t)).collect())
        });
        Ok(Mesh {
            world: Some(world.clone()),
            tensor: join(tp, tensor.collect())?,
            data: join(dp, data.collect())?,
            pipe: join(pp, pipe.collect())?,
            kv: join(kv_sharers, kv.collect())?,
            ends: if tied && pp > 1 { join(2, ends.collect())? } else { None },
            clock: Clock::default(),
        })
    }

    /// The sum of everybody's tensor.
    pub fn sum<const D: usize>(
        &self,
        group: Option<&Group>,
        x: Tensor<D>,
    ) -> Result<Tensor<D>, Error> {
        self.reduce(group, x, Op::Sum)
    }

    pub fn max<const D: usize>(
        &self,
        group: Option<&Group>,
        x: Tensor<D>,
    ) -> Result<Tensor<D>, Error> {
        self.reduce(group, x, Op::Max)
    }

    fn reduce<const D: usize>(
        &self,
        group: Option<&Group>,
        x: Tensor<D>,
        op: Op,
    ) -> Result<Tensor<D>, Error> {
        let Some(group) = group else { return Ok(x) };
        let (dims, device) = (x.dims(), x.device());
        let mut numbers = to_host(x);
        self.clock.comm(|| group.all_reduce(&mut numbers, op))?;
        Ok(from_host(numbers, dims, &device))
    }

    pub fn sum_host(&self, group: Option<&Group>, numbers: &mut [f64]) -> Result<(), Error> {
        let Some(group) = group else { return Ok(()) };
        self.clock.comm(|| group.all_reduce(numbers, Op::Sum))
    }

    /// Waits for what was started; the waiting is communication that was not hidden.
    pub fn wait<T>(&self, pending: Pending<T>) -> Result<T, Error> {
        self.clock.comm(|| pending.wait())
    }

    pub fn receive<const D: usize>(
        &self,
        from: usize,
        tag: u64,
        dims: [usize; D],
        device: &Device,
    ) -> Result<Tensor<D>, Error> {
        let group = self.pipe.as_ref().expect("a stage with a neighbour is in a pipeline");
        let mut numbers = vec![0.0; dims.iter().product()];
        self.clock.bubble(|| group.recv::<f32>(&mut numbers, from, tag))?;
        Ok(from_host(numbers, dims, device))
    }

    pub fn send<const D: usize>(
        &self,
        to: usize,
        tag: u64,
        x: Tensor<D>,
    ) -> Result<Pending<Vec<f32>>, Error> {
        let group = self.pipe.as_ref().expect("a stage with a neighbour is in a pipeline");
        Ok(group.start_send(to_host(x), to, tag))
    }
}

/// Every rank offers every group, in the same order, and keeps the one that it is in.
fn join(world: &Group, size: usize, groups: Vec<Vec<usize>>) -> Result<Option<Group>, Error> {
    if size == 1 {
        return Ok(None);
    }
    let mut own = None;
    for members in groups {
        if let Some(group) = world.subgroup(&members)? {
            own = Some(group);
        }
    }
    Ok(own)
}

/// The numbers of a tensor as f32. Waits for the device.
pub fn to_host<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    let data = x.cast(FloatDType::F32).into_data();
    data.into_vec().expect("the tensor was cast to f32")
}

pub fn from_host<const D: usize>(
    numbers: Vec<f32>,
    dims: [usize; D],
    device: &Device,
) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers, dims), device)
}
