//! Batches that divide among GPUs.

use crate::{Cluster, Task};

/// Tokens of a step of pretraining, and sequences of one of finetuning, where nobody says otherwise.
const PRETRAIN_TOKENS: u64 = 4 << 20;
const FINETUNE_SEQUENCES: u64 = 64;
/// So much more than usual a batch may be to give every GPU sequences of its own.
const STRETCH: f64 = 1.5;

/// Sequences of one step where nobody says otherwise: near what is usual, and dividing among all GPUs where it is known
/// how many there are.
pub fn usual_batch(task: Task, seq: u64, cluster: Option<&Cluster>) -> u64 {
    let usual = match task {
        Task::Pretrain => (PRETRAIN_TOKENS / seq.max(1)).max(1),
        Task::Finetune | Task::Lora { .. } => FINETUNE_SEQUENCES,
    };
    cluster.map_or(usual, |c| dividing(usual, u64::from(c.gpus())))
}

/// The batch close to this one that divides among so many ranks, and further into micro-batches. Where there are many
/// more ranks than sequences it divides among fewer of them, the others sharing the model's weights.
pub(super) fn dividing(near: u64, ranks: u64) -> u64 {
    let ranks = ranks.max(1);
    let odd = ranks >> ranks.trailing_zeros();
    let unit = if ranks as f64 <= STRETCH * near as f64 { ranks } else { odd };
    let times = (0..40).flat_map(|n| [1_u64 << n, 3 << n]);
    let far = |b: &u64| (*b as f64 / near.max(1) as f64).ln().abs();
    let closest = times.map(|t| t.saturating_mul(unit)).min_by(|a, b| far(a).total_cmp(&far(b)));
    closest.unwrap_or(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ask, work};
    use crate::{catalogue, names, search};

    #[test]
    fn the_usual_batch_has_a_plan_on_any_number_of_nodes() {
        let arch = names::find("llama-3.1-8b").unwrap();
        let racks = ["gb200-nvl72", "2xgb200-nvl72"].map(str::to_owned);
        let nodes = [1, 3, 5, 7, 10, 11, 18, 33, 100, 625].map(|n| format!("{n}xdgx-h100"));
        for on in racks.into_iter().chain(nodes) {
            let cluster = catalogue::find(&on).unwrap();
            for (task, seq) in [(Task::Pretrain, 4096), (Task::Finetune, 8192)] {
                let batch = usual_batch(task, seq, Some(&cluster));
                let usual = usual_batch(task, seq, None);
                let found = search(&ask(&arch, &work(task, seq, batch), &cluster));
                assert!(found.is_ok(), "{on}, {batch}: {}", found.unwrap_err());
                let odd = u64::from(cluster.gpus() >> cluster.gpus().trailing_zeros());
                assert!(batch <= 2 * usual.max(odd) && 2 * batch >= usual, "{on}: {batch}");
            }
        }
    }

    #[test]
    fn what_divides_already_stays() {
        let usual = |task, seq, on: &str| {
            let cluster = catalogue::find(on).unwrap();
            usual_batch(task, seq, Some(&cluster))
        };
        assert_eq!(usual(Task::Pretrain, 4096, "16xdgx-h100"), 1024);
        assert_eq!(usual(Task::Pretrain, 8192, "16384xh100"), 512);
        assert_eq!(usual(Task::Pretrain, 4096, "gb200-nvl72"), 1152);
        assert_eq!(usual(Task::Lora { rank: 16 }, 4096, "8xa100"), 64);
        assert_eq!(dividing(1000, 24), 1152);
    }
}
