//! What GPUs did on the whole: for one job, since it began.

use tutti_model::{Bytes, GpuIndex, Time};
use tutti_wire::api::GpuFigures;

use super::series::Layout;
use super::track::Point;
use super::{Of, Store};

impl Store {
    /// Of one GPU over a span of time.
    pub fn figures(&self, node: &str, gpu: GpuIndex, from: Time, until: Time) -> GpuFigures {
        let point = |name: &str| {
            let cell = Layout::gpu().cell(name)?;
            self.mean(node, Of::Gpu(gpu), cell, from, until)
        };
        let mean = |name| point(name).map(|p: Point| p.mean as f32);
        let mem = point("mem");
        GpuFigures {
            util: mean("util"),
            sm: mean("sm"),
            tensor: mean("tensor"),
            dram: mean("dram"),
            throttled: mean("throttled"),
            mem: mem.map(|p| Bytes(p.mean as u64)),
            mem_max: mem.map(|p| Bytes(p.max as u64)),
            power: mean("power"),
        }
    }
}

/// Shares become their mean, memory and power their sum; of those that tell.
pub fn total(gpus: impl Iterator<Item = GpuFigures> + Clone) -> GpuFigures {
    let mean = |of: fn(&GpuFigures) -> Option<f32>| {
        let told: Vec<f32> = gpus.clone().filter_map(|gpu| of(&gpu)).collect();
        (!told.is_empty()).then(|| told.iter().sum::<f32>() / told.len() as f32)
    };
    let sum = |of: fn(&GpuFigures) -> Option<Bytes>| {
        gpus.clone().filter_map(|gpu| of(&gpu)).reduce(|a, b| Bytes(a.0 + b.0))
    };
    GpuFigures {
        util: mean(|gpu| gpu.util),
        sm: mean(|gpu| gpu.sm),
        tensor: mean(|gpu| gpu.tensor),
        dram: mean(|gpu| gpu.dram),
        throttled: mean(|gpu| gpu.throttled),
        mem: sum(|gpu| gpu.mem),
        mem_max: sum(|gpu| gpu.mem_max),
        power: gpus.clone().filter_map(|gpu| gpu.power).reduce(|a, b| a + b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_means_and_amounts_are_sums() {
        let gpu = |sm, mem, power| GpuFigures { sm, mem, power, ..GpuFigures::default() };
        let gpus = [
            gpu(Some(0.5), Some(Bytes(10)), Some(100.0)),
            gpu(Some(1.0), Some(Bytes(30)), None),
            gpu(None, None, Some(50.0)),
        ];
        let all = total(gpus.into_iter());
        assert_eq!((all.sm, all.mem, all.power), (Some(0.75), Some(Bytes(40)), Some(150.0)));
        assert_eq!(all.tensor, None);
        assert_eq!(total([].into_iter()), GpuFigures::default());
    }
}
