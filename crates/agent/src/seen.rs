//! The newest generation per task, for as many tasks as matter.

use std::collections::BTreeMap;

use tutti_model::{Generation, LeaseId, TaskId};

/// Generations are never reused and grow with time, so dropping the smallest drops the oldest.
const KEEP: usize = 65_536;

#[derive(Debug, Default)]
pub struct Seen {
    newest: BTreeMap<TaskId, Generation>,
    by_age: BTreeMap<Generation, TaskId>,
}

impl Seen {
    pub fn insert(&mut self, lease: LeaseId) {
        match self.newest.get(&lease.task) {
            Some(&known) if known >= lease.generation => return,
            Some(known) => {
                self.by_age.remove(known);
            }
            None => {}
        }
        self.newest.insert(lease.task, lease.generation);
        self.by_age.insert(lease.generation, lease.task);
        if self.by_age.len() > KEEP
            && let Some((_, task)) = self.by_age.pop_first()
        {
            self.newest.remove(&task);
        }
    }

    pub fn get(&self, task: TaskId) -> Option<Generation> {
        self.newest.get(&task).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::JobId;

    fn lease(job: u64, generation: u64) -> LeaseId {
        LeaseId { task: TaskId::single(JobId(job)), generation: Generation(generation) }
    }

    #[test]
    fn only_the_newest_counts_and_the_oldest_are_dropped() {
        let mut seen = Seen::default();
        for g in [5, 9, 7] {
            seen.insert(lease(1, g));
        }
        assert_eq!(seen.get(TaskId::single(JobId(1))), Some(Generation(9)));
        for g in 10..10 + KEEP as u64 {
            seen.insert(lease(g, g));
        }
        assert_eq!(seen.get(TaskId::single(JobId(1))), None);
        assert_eq!(seen.newest.len(), KEEP);
        assert_eq!(seen.by_age.len(), KEEP);
    }
}
