//! Parameters in flat pieces: what is exchanged at once, and what the optimiser works on.
//!
//! Buckets follow the order in which the backward pass finishes, so that the exchange of one runs
//! while the gradients of the next are computed.

use std::ops::Range;

use crate::params::{Param, Unit};

#[derive(Clone, Debug)]
pub struct Bucket {
    /// Complete when this one is.
    pub last: Unit,
    pub slots: Vec<Slot>,
    /// Rounded up to a multiple of the shards.
    pub len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub param: usize,
    pub offset: usize,
}

impl Bucket {
    /// What shard `index` of `count` is of the bucket.
    pub fn shard(&self, index: usize, count: usize) -> Range<usize> {
        let size = self.len / count;
        index * size..(index + 1) * size
    }
}

/// Buckets of about `bytes`. The embedding is never with a layer: it is ready much later.
pub fn buckets(params: &[Param], shards: usize, bytes: usize) -> Vec<Bucket> {
    let mut units: Vec<Unit> = params.iter().map(|param| param.unit).collect();
    units.sort_by_key(|unit| backward_order(*unit));
    units.dedup();
    let mut buckets: Vec<Bucket> = Vec::new();
    for unit in units {
        let full = buckets.last().is_none_or(|bucket| 4 * bucket.len >= bytes);
        if full || unit == Unit::Embedding {
            buckets.push(Bucket { last: unit, slots: Vec::new(), len: 0 });
        }
        let bucket = buckets.last_mut().expect("one was just pushed");
        bucket.last = unit;
        for (param, spec) in params.iter().enumerate().filter(|(_, spec)| spec.unit == unit) {
            bucket.slots.push(Slot { param, offset: bucket.len });
            bucket.len += spec.len();
        }
    }
    for bucket in &mut buckets {
        bucket.len = bucket.len.next_multiple_of(shards);
    }
    buckets
}

fn backward_order(unit: Unit) -> (u8, usize) {
    match unit {
        Unit::Head => (0, 0),
        Unit::Layer(layer) => (1, usize::MAX - layer),
        Unit::Embedding => (2, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::layout::Layout;
    use crate::params::parameters;

    fn params() -> Vec<Param> {
        let model = ModelConfig { layers: 4, dim: 8, heads: 2, kv_heads: 1, ffn: 12, tied: true };
        let layout = Layout { dp: 1, tp: 1, pp: 1, zero: false, stages: vec![4] };
        parameters(&model, &layout, layout.place(0)).0
    }

    #[test]
    fn buckets_fill_in_the_order_of_the_backward_pass() {
        let params = params();
        let layer: usize = params.iter().filter(|p| p.unit == Unit::Layer(0)).map(Param::len).sum();
        let buckets = buckets(&params, 1, 4 * 2 * layer);
        let last: Vec<_> = buckets.iter().map(|bucket| bucket.last).collect();
        assert_eq!(last, [Unit::Layer(2), Unit::Layer(0), Unit::Embedding]);
    }

    #[test]
    fn each_parameter_is_in_one_bucket_and_shards_cover_it() {
        let params = params();
        for shards in [1, 2, 3, 8] {
            let buckets = buckets(&params, shards, 1000);
            let mut seen: Vec<_> =
                buckets.iter().flat_map(|b| &b.slots).map(|slot| slot.param).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..params.len()).collect::<Vec<_>>());
            for bucket in &buckets {
                assert_eq!(bucket.shard(shards - 1, shards).end, bucket.len);
            }
        }
    }
}
