//! How soon a job is expected to end, learned from jobs like it: the same user's jobs of the same
//! size, submitted just before and after it. Nobody has to say how long a job runs.
//!
//! The rank of a job is its Gittins index: over every point at which one could stop looking, the
//! best chance that it ends by then for the GPU-time that takes. Jobs that have run are compared
//! by how far they got; of a batch that nobody knows yet, every eighth goes ahead as a scout, and
//! what becomes of it tells about the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{JobId, Span, log2};

/// Run time is counted in levels: the first ends after `FIRST`, each next 1.5 times later.
const LEVELS: usize = 34;
const FIRST_SECS: f64 = 1000.0;
const STEP: f64 = 1.5;
/// Jobs of the same user and size on either side that count, by how near they are.
const KIN: u64 = 24;
/// Every so many submissions one goes ahead of its kin, by this factor.
const SCOUT: u64 = 8;
const AHEAD: f64 = 2.0;
/// Without any knowledge: the chance that a job ends within a level, and how many jobs that counts.
const PRIOR: f64 = 0.3;
const PRIOR_JOBS: f64 = 4.0;
/// How many jobs the table of all sizes counts in that of one size, and that in a job's own.
const ALL_JOBS: f64 = 16.0;
const SIZE_JOBS: f64 = 0.3;
/// Submissions remembered per user and size, and pairs of users and sizes.
const JOBS_KEPT: usize = 8192;
const LISTS_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// By log2 of GPUs.
    sizes: BTreeMap<u8, Levels>,
    lists: BTreeMap<(String, u8), List>,
}

/// How many jobs ended in a level, and how many ended in it or got past it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Levels {
    ended: BTreeMap<u8, u64>,
    at_risk: BTreeMap<u8, u64>,
}

/// A user's submissions of one size, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct List {
    /// How many were forgotten at the front: places are counted from the very first.
    forgotten: u64,
    jobs: Vec<Kin>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kin {
    job: JobId,
    level: u8,
    ended: bool,
}

/// Who a job is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Like<'a> {
    pub user: &'a str,
    pub gpus: u64,
}

impl Like<'_> {
    fn size(&self) -> u8 {
        log2(self.gpus)
    }
    /// Both are compared with the same jobs.
    pub fn is_like(&self, other: &Like<'_>) -> bool {
        self.user == other.user && self.gpus > 0 && other.gpus > 0 && self.size() == other.size()
    }
    fn key(&self) -> (String, u8) {
        (self.user.to_owned(), self.size())
    }
}

impl Service {
    pub fn submitted(&mut self, like: Like<'_>, job: JobId) {
        if self.lists.len() >= LISTS_MAX && !self.lists.contains_key(&like.key()) {
            self.lists.pop_first();
        }
        let list = self.lists.entry(like.key()).or_default();
        if list.jobs.len() >= JOBS_KEPT {
            list.jobs.remove(0);
            list.forgotten += 1;
        }
        // At the end, but for one that has changed its size.
        let at = list.jobs.partition_point(|kin| kin.job < job);
        list.jobs.insert(at, Kin { job, level: 0, ended: false });
    }

    /// The job is not of this size any more. It has not run: one that did tells something.
    pub fn left(&mut self, like: Like<'_>, job: JobId) {
        let Some(at) = self.place(like, job) else { return };
        let Some(list) = self.lists.get_mut(&like.key()) else { return };
        if list.jobs[at].level == 0 && !list.jobs[at].ended {
            list.jobs.remove(at);
        }
        if *list == List::default() {
            self.lists.remove(&like.key());
        }
    }

    /// The job has run for so long in all. True if that tells something new.
    pub fn ran(&mut self, like: Like<'_>, job: JobId, ran: Span) -> bool {
        let Some(at) = self.place(like, job) else { return false };
        let Some(kin) = self.lists.get_mut(&like.key()).map(|list| &mut list.jobs[at]) else {
            return false;
        };
        let (before, now) = (kin.level, level_of(ran));
        if kin.ended || now <= before {
            return false;
        }
        kin.level = now;
        let size = self.sizes.entry(like.size()).or_default();
        (before..now).for_each(|level| *size.at_risk.entry(level).or_default() += 1);
        true
    }

    pub fn ended(&mut self, like: Like<'_>, job: JobId, ran: Span) {
        self.ran(like, job, ran);
        let Some(at) = self.place(like, job) else { return };
        let Some(kin) = self.lists.get_mut(&like.key()).map(|list| &mut list.jobs[at]) else {
            return;
        };
        if std::mem::replace(&mut kin.ended, true) {
            return;
        }
        let level = kin.level;
        let size = self.sizes.entry(like.size()).or_default();
        *size.ended.entry(level).or_default() += 1;
        *size.at_risk.entry(level).or_default() += 1;
    }

    fn place(&self, like: Like<'_>, job: JobId) -> Option<usize> {
        let list = self.lists.get(&like.key())?;
        list.jobs.binary_search_by_key(&job, |kin| kin.job).ok()
    }

    /// Unfinished jobs whose rank may change when this one gets further or ends, itself included,
    /// with their ranks.
    pub fn ranks_of_kin(&self, like: Like<'_>, job: JobId) -> Vec<(JobId, u64)> {
        let (Some(at), Some(list)) = (self.place(like, job), self.lists.get(&like.key())) else {
            return Vec::new();
        };
        let usual = self.usual(like.size());
        let waiting = near(at, list.jobs.len()).filter(|&n| !list.jobs[n].ended);
        waiting.map(|n| (list.jobs[n].job, steps_below(list.index(n, like.gpus, &usual)))).collect()
    }

    /// Smaller goes first. Four steps per doubling of the index: finer says nothing.
    pub fn rank(&self, like: Like<'_>, job: JobId) -> u64 {
        let usual = self.usual(like.size());
        let index = match (self.place(like, job), self.lists.get(&like.key())) {
            (Some(at), Some(list)) => list.index(at, like.gpus, &usual),
            _ => best_chance(&Own::default(), like.gpus, &usual),
        };
        steps_below(index)
    }

    /// By level: the chance that a job of this size ends within it, given that it got there.
    fn usual(&self, size: u8) -> [f64; LEVELS] {
        std::array::from_fn(|level| self.chance(size, level))
    }

    /// The chance that a job of this size ends within this level, given that it got there.
    fn chance(&self, size: u8, level: usize) -> f64 {
        let level = level as u8;
        let count = |of: &BTreeMap<u8, u64>| of.get(&level).copied().unwrap_or(0) as f64;
        let (mut ended, mut at_risk) = (0.0, 0.0);
        for levels in self.sizes.values() {
            ended += count(&levels.ended);
            at_risk += count(&levels.at_risk);
        }
        let all = (ended + PRIOR_JOBS * PRIOR) / (at_risk + PRIOR_JOBS);
        let own = self.sizes.get(&size);
        let (ended, at_risk) = own.map_or((0.0, 0.0), |l| (count(&l.ended), count(&l.at_risk)));
        (ended + ALL_JOBS * all) / (at_risk + ALL_JOBS)
    }
}

impl List {
    /// The best chance of an end per GPU-second.
    fn index(&self, at: usize, gpus: u64, usual: &[f64; LEVELS]) -> f64 {
        let best = best_chance(&Own::of(&self.jobs, at), gpus, usual);
        let scout = (self.forgotten + at as u64).is_multiple_of(SCOUT);
        if scout { best * AHEAD } else { best }
    }
}

fn best_chance(own: &Own, gpus: u64, usual: &[f64; LEVELS]) -> f64 {
    let gpus = gpus.max(1) as f64;
    let (mut stays, mut ends, mut cost, mut best) = (1.0_f64, 0.0, 0.0, 0.0_f64);
    let mut begin = if own.level == 0 { 0.0 } else { end_of(own.level - 1) };
    for (level, usual) in usual.iter().enumerate().skip(own.level) {
        let chance = (own.ended[level] + SIZE_JOBS * usual) / (own.at_risk[level] + SIZE_JOBS);
        let end = end_of(level);
        ends += stays * chance;
        cost += stays * gpus * (end - begin) * (1.0 - chance / 2.0);
        stays *= 1.0 - chance;
        best = best.max(ends / cost);
        begin = end;
        if stays < 1e-4 {
            break;
        }
    }
    best
}

/// What became of a job's kin, weighted by how near they are.
struct Own {
    level: usize,
    ended: [f64; LEVELS],
    at_risk: [f64; LEVELS],
}

impl Default for Own {
    fn default() -> Self {
        Own { level: 0, ended: [0.0; LEVELS], at_risk: [0.0; LEVELS] }
    }
}

impl Own {
    fn of(jobs: &[Kin], at: usize) -> Own {
        let mut own = Own { level: jobs[at].level.into(), ..Own::default() };
        for n in near(at, jobs.len()).filter(|&n| n != at) {
            let weight = 1.0 / (2.0 * n.abs_diff(at) as f64 - 1.0);
            let level = usize::from(jobs[n].level);
            let through = if jobs[n].ended { level + 1 } else { level };
            if jobs[n].ended {
                own.ended[level] += weight;
            }
            (own.level..through).for_each(|l| own.at_risk[l] += weight);
        }
        own
    }
}

fn near(at: usize, len: usize) -> std::ops::Range<usize> {
    at.saturating_sub(KIN as usize)..(at + KIN as usize + 1).min(len)
}

/// When a level is over, in seconds of run time. Multiplied up, so that it is the same everywhere.
fn end_of(level: usize) -> f64 {
    (0..level).fold(FIRST_SECS, |end, _| end * STEP)
}

fn level_of(ran: Span) -> u8 {
    let secs = ran.0 as f64 / 1000.0;
    (0..LEVELS - 1).take_while(|&level| secs >= end_of(level)).count() as u8
}

/// How many quarter doublings below 2^64 a number is. By its bits: the same on every machine.
fn steps_below(index: f64) -> u64 {
    const QUARTERS: [f64; 3] =
        [1.189_207_115_002_721, std::f64::consts::SQRT_2, 1.681_792_830_507_429];
    let bits = index.max(f64::MIN_POSITIVE).to_bits();
    let exponent = (bits >> 52) & 0x7ff;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    let quarter = QUARTERS.iter().filter(|q| mantissa >= **q).count() as u64;
    (1023 + 64) * 4 - (exponent * 4 + quarter).min((1023 + 64) * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: Like<'_> = Like { user: "ada", gpus: 1 };

    fn secs(s: u64) -> Span {
        Span::secs(s)
    }

    #[test]
    fn without_history_small_jobs_go_first_and_scouts_lead() {
        let mut service = Service::default();
        (1..=9).for_each(|n| service.submitted(ADA, JobId(n)));
        let big = Like { gpus: 8, ..ADA };
        service.submitted(big, JobId(10));
        service.submitted(big, JobId(11));
        assert!(service.rank(ADA, JobId(2)) < service.rank(big, JobId(11)));
        assert!(service.rank(ADA, JobId(1)) < service.rank(ADA, JobId(2)), "the first is a scout");
        assert!(service.rank(ADA, JobId(9)) < service.rank(ADA, JobId(8)), "so is the ninth");
        assert_eq!(service.rank(ADA, JobId(2)), service.rank(ADA, JobId(3)));
    }

    #[test]
    fn a_job_is_expected_to_do_as_its_kin_did() {
        let mut service = Service::default();
        (1..=20).for_each(|n| service.submitted(ADA, JobId(n)));
        let before = service.rank(ADA, JobId(10));
        (1..=4).for_each(|n| service.ended(ADA, JobId(n), secs(100)));
        assert!(service.rank(ADA, JobId(10)) < before, "short kin make it go earlier");
        let mut service = Service::default();
        (1..=20).for_each(|n| service.submitted(ADA, JobId(n)));
        (1..=4).for_each(|n| assert!(service.ran(ADA, JobId(n), secs(1_000_000))));
        assert!(service.rank(ADA, JobId(10)) > before, "long kin make it go later");
    }

    #[test]
    fn what_has_run_long_goes_later() {
        let mut service = Service::default();
        (1..=3).for_each(|n| service.submitted(ADA, JobId(n)));
        let before = service.rank(ADA, JobId(2));
        assert!(!service.ran(ADA, JobId(2), secs(999)), "still in the first level");
        assert!(service.ran(ADA, JobId(2), secs(5000)));
        assert!(service.rank(ADA, JobId(2)) > before);
    }

    #[test]
    fn a_job_that_changes_its_size_leaves_its_kin_and_stands_in_order_among_the_new_ones() {
        let mut service = Service::default();
        let big = Like { gpus: 8, ..ADA };
        (1..=3).for_each(|n| service.submitted(ADA, JobId(n)));
        service.submitted(big, JobId(4));
        service.left(ADA, JobId(2));
        service.submitted(big, JobId(2));
        let jobs = |like: Like<'_>| -> Vec<u64> {
            service.lists[&like.key()].jobs.iter().map(|kin| kin.job.0).collect()
        };
        assert_eq!((jobs(ADA), jobs(big)), (vec![1, 3], vec![2, 4]));
        service.ended(big, JobId(2), secs(100));
        assert!(service.lists[&big.key()].jobs[0].ended, "it tells about those of its new size");
        [1, 3].into_iter().for_each(|n| service.left(ADA, JobId(n)));
        assert!(!service.lists.contains_key(&ADA.key()), "nobody is left");
    }

    #[test]
    fn ranks_fall_by_four_per_doubling() {
        for (index, steps) in [(1.0, 256), (2.0, 252), (0.5, 260), (1.5, 254), (1e-300, 4243)] {
            assert_eq!(steps_below(index), steps, "{index}");
        }
    }

    #[test]
    fn old_submissions_are_forgotten_and_scouts_stay_scouts() {
        let mut service = Service::default();
        (0..JOBS_KEPT as u64 + 3).for_each(|n| service.submitted(ADA, JobId(n)));
        let list = &service.lists[&ADA.key()];
        assert_eq!((list.jobs.len(), list.forgotten), (JOBS_KEPT, 3));
        assert!(service.rank(ADA, JobId(16)) < service.rank(ADA, JobId(17)));
    }
}
