//! The key of each gang: worked out from the cluster's secret whenever an order leaves, so that it
//! is in no journal and no snapshot, and a restarted controller gives the same one again.

use tutti_model::{GangKey, LeaseId, Order};

const PURPOSE: &str = "tutti 2026 keys of gangs";

pub struct GangKeys {
    secret: [u8; 32],
}

impl GangKeys {
    pub fn new(ca: &tutti_wire::pki::Ca) -> GangKeys {
        GangKeys { secret: ca.derive_secret(PURPOSE) }
    }

    #[cfg(test)]
    pub fn fixed(byte: u8) -> GangKeys {
        GangKeys { secret: [byte; 32] }
    }

    /// The same for all parts of an attempt; another for every attempt.
    pub fn of(&self, lease: LeaseId) -> GangKey {
        GangKey(*blake3::keyed_hash(&self.secret, lease.to_string().as_bytes()).as_bytes())
    }

    pub fn put_on(&self, order: &mut Order) {
        if let Order::Start(launch) = order {
            launch.key = Some(self.of(launch.lease));
        }
    }
}

#[cfg(test)]
mod tests {
    use tutti_model::{Generation, JobId, TaskId};

    use super::*;

    #[test]
    fn a_key_belongs_to_one_attempt_of_one_cluster() {
        let lease = |job, generation| LeaseId {
            task: TaskId::single(JobId(job)),
            generation: Generation(generation),
        };
        let keys = GangKeys::fixed(1);
        assert_eq!(keys.of(lease(1, 1)), GangKeys::fixed(1).of(lease(1, 1)));
        let others = [keys.of(lease(1, 2)), keys.of(lease(2, 1)), keys.of(lease(11, 1))];
        let elsewhere = GangKeys::fixed(2).of(lease(1, 1));
        assert!(others.iter().chain([&elsewhere]).all(|other| *other != keys.of(lease(1, 1))));
    }
}
