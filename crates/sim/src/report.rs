//! What a replay comes to: figures to compare, a table of jobs, a page to look at.

mod csv;
mod page;
mod plot;
mod series;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;
use tutti_model::Span;

use crate::replay::{Fate, JobRun, Run};

pub use csv::jobs as jobs_csv;
pub use page::page;
pub use series::{Series, series};

/// The figures of one run. Times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub policy: String,
    pub seed: u64,
    /// All that came, each task of an array as one: completed, failed, refused, stuck or hopeless.
    pub jobs: u64,
    pub completed: u64,
    pub failed: u64,
    /// Not accepted: this cluster can't run them.
    pub refused: u64,
    /// Never ran to their end, though nothing else was left to happen.
    pub stuck: u64,
    /// Given up: with nodes failing this often they never end.
    pub hopeless: u64,
    pub avg_jct_s: f64,
    pub median_jct_s: f64,
    pub p95_jct_s: f64,
    pub p99_jct_s: f64,
    pub avg_wait_s: f64,
    pub median_wait_s: f64,
    pub p95_wait_s: f64,
    pub p99_wait_s: f64,
    /// When the last job ended.
    pub makespan_s: f64,
    pub gpus: u64,
    /// GPU time held, as a part of all GPU time until the last end.
    pub utilisation: f64,
    pub gpu_hours: f64,
    /// GPU-hours of work that had to be done again.
    pub gpu_hours_lost: f64,
    pub queue_avg: f64,
    pub queue_max: u64,
    pub preemptions: u64,
    pub node_failures: u64,
    /// Jobs that ran on more racks than an empty cluster would have needed.
    pub spread_jobs: u64,
    pub racks_spanned: u64,
    pub racks_needed: u64,
    pub teams: BTreeMap<String, TeamFigures>,
    /// Records that the engine made.
    pub events: u64,
    /// Why jobs were refused, and how many for each reason.
    pub refusals: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TeamFigures {
    pub jobs: u64,
    pub gpu_hours: f64,
    /// Of all GPU-hours that were used.
    pub share: f64,
    pub avg_jct_s: f64,
}

/// Reasons that are listed one by one; a trace may have a million.
const REFUSALS_MAX: usize = 20;
const HOUR_MS: f64 = 3_600_000.0;

pub fn figures(policy: &str, seed: u64, run: &Run) -> Figures {
    let count = |fate: fn(&Fate) -> bool| run.jobs.iter().filter(|j| fate(&j.fate)).count() as u64;
    let sum = |of: fn(&JobRun) -> u64| run.jobs.iter().map(of).sum::<u64>();
    let jct = Spread::of(run.jobs.iter().filter_map(JobRun::jct));
    let wait = Spread::of(run.jobs.iter().filter_map(JobRun::wait));
    let end = run.jobs.iter().filter_map(|j| j.end).max().unwrap_or_default();
    let whole = series(run, 1);
    let racks = || run.jobs.iter().filter_map(|j| j.racks);
    let held: f64 = run.jobs.iter().map(gpu_hours).sum();
    Figures {
        policy: policy.to_owned(),
        seed,
        jobs: run.jobs.len() as u64,
        completed: count(|f| *f == Fate::Completed),
        failed: count(|f| *f == Fate::Failed),
        refused: count(|f| matches!(f, Fate::Refused(_))),
        stuck: count(|f| *f == Fate::Stuck),
        hopeless: count(|f| *f == Fate::Hopeless),
        avg_jct_s: jct.mean,
        median_jct_s: jct.at(0.5),
        p95_jct_s: jct.at(0.95),
        p99_jct_s: jct.at(0.99),
        avg_wait_s: wait.mean,
        median_wait_s: wait.at(0.5),
        p95_wait_s: wait.at(0.95),
        p99_wait_s: wait.at(0.99),
        makespan_s: seconds(Span(end.0)),
        gpus: run.gpus,
        utilisation: whole.utilisation.first().copied().unwrap_or(0.0),
        gpu_hours: held,
        gpu_hours_lost: sum(|j| j.lost) as f64 / HOUR_MS,
        queue_avg: whole.waiting.first().copied().unwrap_or(0.0),
        queue_max: run.samples.iter().map(|s| s.waiting).max().unwrap_or(0),
        preemptions: sum(|j| j.preemptions.into()),
        node_failures: run.failures,
        spread_jobs: racks().filter(|(spanned, needed)| spanned > needed).count() as u64,
        racks_spanned: racks().map(|(spanned, _)| u64::from(spanned)).sum(),
        racks_needed: racks().map(|(_, needed)| u64::from(needed)).sum(),
        teams: teams(run, held),
        events: run.events,
        refusals: refusals(run),
    }
}

fn gpu_hours(job: &JobRun) -> f64 {
    let held = |s: &crate::replay::Stint| s.until.since(s.from).0 as f64 * s.milli as f64;
    job.stints.iter().map(held).sum::<f64>() / 1000.0 / HOUR_MS
}

fn teams(run: &Run, all: f64) -> BTreeMap<String, TeamFigures> {
    let mut teams: BTreeMap<String, (TeamFigures, u64)> = BTreeMap::new();
    for job in run.jobs.iter().filter(|j| !matches!(j.fate, Fate::Refused(_))) {
        let (team, ended) = teams.entry(job.team.clone()).or_default();
        team.jobs += 1;
        team.gpu_hours += gpu_hours(job);
        if let Some(jct) = job.jct() {
            team.avg_jct_s += seconds(jct);
            *ended += 1;
        }
    }
    let finish = |(mut team, ended): (TeamFigures, u64)| {
        team.share = if all > 0.0 { team.gpu_hours / all } else { 0.0 };
        team.avg_jct_s /= ended.max(1) as f64;
        team
    };
    teams.into_iter().map(|(name, t)| (name, finish(t))).collect()
}

fn refusals(run: &Run) -> BTreeMap<String, u64> {
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    for job in &run.jobs {
        let Fate::Refused(reason) = &job.fate else { continue };
        let full = reasons.len() >= REFUSALS_MAX && !reasons.contains_key(reason);
        let reason = if full { "other reasons" } else { reason };
        *reasons.entry(reason.to_owned()).or_default() += 1;
    }
    reasons
}

pub(crate) fn seconds(span: Span) -> f64 {
    span.0 as f64 / 1000.0
}

/// Lengths of time in order.
struct Spread {
    sorted: Vec<u64>,
    mean: f64,
}

impl Spread {
    fn of(spans: impl Iterator<Item = Span>) -> Spread {
        let mut sorted: Vec<u64> = spans.map(|s| s.0).collect();
        sorted.sort_unstable();
        let sum: u128 = sorted.iter().map(|&ms| u128::from(ms)).sum();
        let mean = sum as f64 / 1000.0 / sorted.len().max(1) as f64;
        Spread { sorted, mean }
    }

    /// The published simulators take `sorted[int(part * n)]`.
    fn at(&self, part: f64) -> f64 {
        let index = (part * self.sorted.len() as f64) as usize;
        self.sorted.get(index).or(self.sorted.last()).map_or(0.0, |&ms| seconds(Span(ms)))
    }
}
