//! One line per job.

use std::fmt::Write as _;

use super::seconds;
use crate::replay::{Fate, JobRun, Run};

const HEAD: &str = "policy,seed,job,user,team,gpus,submit_s,start_s,end_s,wait_s,jct_s,fate,attempts,\
preemptions,node_failures,gpu_hours_lost,racks,racks_needed,nodes\n";

/// The jobs of several runs as one table with a head.
pub fn jobs<'r>(runs: impl IntoIterator<Item = (&'r str, u64, &'r Run)>) -> String {
    let mut out = HEAD.to_owned();
    for (policy, seed, run) in runs {
        for job in &run.jobs {
            line(&mut out, policy, seed, run, job);
        }
    }
    out
}

fn line(out: &mut String, policy: &str, seed: u64, run: &Run, job: &JobRun) {
    let time = |t: Option<f64>| t.map_or_else(String::new, |s| format!("{s:.3}"));
    let at = |t: tutti_model::Time| t.0 as f64 / 1000.0;
    let (racks, needed) = job.racks.map_or_else(Default::default, |(spanned, needed)| {
        (spanned.to_string(), needed.to_string())
    });
    let last = job.stints.last();
    let name = |id: &tutti_model::NodeId| {
        let node = (id.0 as usize).checked_sub(1).and_then(|i| run.nodes.get(i));
        node.map_or_else(|| id.to_string(), |(name, _)| name.clone())
    };
    let nodes: Vec<String> = last.into_iter().flat_map(|s| s.nodes.iter().map(name)).collect();
    let fields = [
        quoted(policy),
        seed.to_string(),
        quoted(&job.name),
        quoted(&job.user),
        quoted(&job.team),
        format!("{}", job.milli as f64 / 1000.0),
        time(Some(at(job.submit))),
        time(job.start.map(at)),
        time(job.end.map(at)),
        time(job.wait().map(seconds)),
        time(job.jct().map(seconds)),
        fate(&job.fate).to_owned(),
        job.attempts.to_string(),
        job.preemptions.to_string(),
        job.node_failures.to_string(),
        format!("{:.4}", job.lost as f64 / 3_600_000.0),
        racks,
        needed,
        quoted(&nodes.join(" ")),
    ];
    let written = writeln!(out, "{}", fields.join(","));
    debug_assert!(written.is_ok(), "a String takes everything");
}

fn fate(fate: &Fate) -> &'static str {
    match fate {
        Fate::Completed => "completed",
        Fate::Failed => "failed",
        Fate::Refused(_) => "refused",
        Fate::Stuck => "stuck",
        Fate::Hopeless => "hopeless",
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\"").replace(['\n', '\r'], " "))
    } else {
        text.to_owned()
    }
}
