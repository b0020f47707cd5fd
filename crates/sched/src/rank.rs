//! What a queue key's rank means against those of other lanes.

use tutti_model::{Learned, Policy, QueueOrder};

#[derive(Debug)]
pub(crate) struct Ranks {
    order: QueueOrder,
}

impl Ranks {
    pub fn new(policy: &Policy, _learned: &Learned) -> Ranks {
        Ranks { order: policy.order }
    }

    /// Smaller goes first.
    pub fn of(&self, _gpus: u64, rank: u64) -> u64 {
        match self.order {
            QueueOrder::Fifo => 0,
            _ => rank,
        }
    }
}
