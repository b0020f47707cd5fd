//! What goes wrong on a day: a node that falls silent and comes back, one that somebody works on, GPUs
//! that break, people who change their minds.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use tutti_model::{Finding, GpuIndex, HealthAction, Span, Time};

use crate::cluster::Cluster;
use crate::replay::{Incident, Misfortune};
use crate::trace::TraceJob;

const DAY_MIN: u64 = 24 * 60;
/// A day on which so many nodes fail once in so many hours: one of a hundred.
const NODES_PER_FAILURE: usize = 64;

pub fn of(rng: &mut ChaCha8Rng, cluster: &Cluster, jobs: &[TraceJob], days: u32) -> Vec<Incident> {
    let mut all = Vec::new();
    for day in 0..u64::from(days) {
        nodes(rng, cluster, day * DAY_MIN, &mut all);
    }
    people(rng, jobs, &mut all);
    all.sort_by_key(|incident| incident.after);
    all
}

fn at(minutes: u64, what: Misfortune) -> Incident {
    Incident { after: Span::secs(minutes * 60), what }
}

fn nodes(rng: &mut ChaCha8Rng, cluster: &Cluster, from: u64, all: &mut Vec<Incident>) {
    let names: Vec<&str> = cluster.nodes.iter().map(|node| node.name.as_str()).collect();
    if names.len() < 2 {
        return;
    }
    // Each trouble has a node of its own.
    let mut left = names.clone();
    let mut pick = |rng: &mut ChaCha8Rng| match left.len() {
        0 => names[0].to_owned(),
        n => left.swap_remove(rng.random_range(0..n)).to_owned(),
    };
    for n in 0..names.len().div_ceil(NODES_PER_FAILURE) as u64 {
        let when = from + (7 * 60 + n * 457) % DAY_MIN + rng.random_range(0..90);
        let repair = Span::secs(60 * rng.random_range(25..140));
        all.push(at(when, Misfortune::Fails { node: pick(rng), repair }));
    }
    let (node, reason) = (pick(rng), "replace the riser of GPU 3".to_owned());
    all.push(at(from + 13 * 60 + 20, Misfortune::Drain { node: node.clone(), reason }));
    all.push(at(from + 20 * 60, Misfortune::Resume { node }));
    let node = pick(rng);
    let worn = vec![fenced(5, "GPU 5 fell off the bus (XID 79)", "xid", HealthAction::ResetGpu)];
    all.push(at(from + 11 * 60 + 42, Misfortune::Findings { node, findings: worn }));
    let node = pick(rng);
    let text = "GPU 2 has 14 corrected memory errors in an hour";
    let hot = vec![fenced(2, text, "ecc", HealthAction::Note)];
    all.push(at(from + 15 * 60 + 7, Misfortune::Findings { node: node.clone(), findings: hot }));
    all.push(at(from + 23 * 60, Misfortune::Findings { node, findings: Vec::new() }));
}

fn fenced(gpu: u16, text: &str, check: &str, action: HealthAction) -> Finding {
    Finding {
        key: format!("{check}/gpu{gpu}"),
        check: check.to_owned(),
        gpu: Some(GpuIndex(gpu)),
        action,
        text: text.to_owned(),
        since: Time(0),
        drill: false,
        by_job: false,
    }
}

/// A few jobs are taken back or held soon after they came.
fn people(rng: &mut ChaCha8Rng, jobs: &[TraceJob], all: &mut Vec<Incident>) {
    for (place, job) in jobs.iter().enumerate().filter(|(_, job)| job.spec.checkpoint.is_none()) {
        let minutes = job.submit.0 / 60_000 + rng.random_range(2..40);
        match rng.random_range(0..60) {
            0..=2 => all.push(at(minutes, Misfortune::Cancel { job: place })),
            3 => {
                let held = job.submit.0 / 60_000 + 1;
                all.push(at(held, Misfortune::Hold { job: place }));
                let later = held + rng.random_range(60..480);
                all.push(at(later, Misfortune::Release { job: place }));
            }
            _ => {}
        }
    }
}
