//! Pins one by one.

use super::Pins;
use crate::{Layout, Recompute, Sharding};

impl Pins {
    /// Each pin as the flag that sets it, with all others left as they are.
    pub(super) fn each(&self) -> Vec<(String, Pins)> {
        let p = *self;
        let number = |flag: &str, n: Option<u64>| n.map(|n| format!("--{flag} {n}"));
        let axis = |flag: &str, n: Option<u32>| number(flag, n.map(u64::from));
        let recompute = p.recompute.map(|r| match r {
            Recompute::None => "--recompute none".to_owned(),
            Recompute::Selective => "--recompute selective".to_owned(),
            Recompute::Full => "--recompute full".to_owned(),
        });
        let zero = p.sharding.map(|s| match s {
            Sharding::None => "--zero 0".to_owned(),
            Sharding::Zero1 => "--zero 1".to_owned(),
            Sharding::Zero2 => "--zero 2".to_owned(),
            Sharding::Zero3 => "--zero 3".to_owned(),
        });
        let sequence = p.sequence_parallel.map(|on| format!("--sequence-parallel {on}"));
        // What costs the least to give up comes first.
        let all = [
            (recompute, Pins { recompute: None, ..p }),
            (zero, Pins { sharding: None, ..p }),
            (sequence, Pins { sequence_parallel: None, ..p }),
            (number("micro-batch", p.micro_batch), Pins { micro_batch: None, ..p }),
            (axis("dp", p.dp), Pins { dp: None, ..p }),
            (axis("tp", p.tp), Pins { tp: None, ..p }),
            (axis("pp", p.pp), Pins { pp: None, ..p }),
            (axis("vp", p.vp), Pins { vp: None, ..p }),
            (axis("cp", p.cp), Pins { cp: None, ..p }),
            (axis("ep", p.ep), Pins { ep: None, ..p }),
        ];
        all.into_iter().filter_map(|(flag, without)| Some((flag?, without))).collect()
    }

    /// The pins alone. An axis whose rule depends on one that is not pinned is left out.
    pub(super) fn layout(&self) -> Layout {
        Layout {
            tp: self.tp.unwrap_or(1),
            pp: self.pp.unwrap_or(1),
            vp: self.pp.and(self.vp).unwrap_or(1),
            cp: self.cp.unwrap_or(1),
            ep: self.dp.and(self.ep).unwrap_or(1),
            dp: self.dp.unwrap_or(1),
            micro_batch: self.micro_batch.unwrap_or(1),
            sharding: Sharding::None,
            sequence_parallel: self.sequence_parallel.unwrap_or(false),
            recompute: Recompute::None,
        }
    }
}
