//! `tutti ckpt advise`: the cadence that loses least, from what was measured.

use std::process::ExitCode;

use serde::Serialize;
use tutti_checkpoint::advise::{Advice, Evidence, Loss, Question, advise};
use tutti_checkpoint::{Options, Store};
use tutti_model::{Span, TaskId};
use tutti_wire::api::{JobDetail, JobQuery};
use tutti_wire::client::Client;

use super::args::AdviseArgs;
use crate::fail::Fail;
use crate::show::time;
use crate::{session, terminal};

/// Jobs that failed are asked one by one for the cause; more than this tell nothing new.
const LOOK_AT: usize = 50;

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    question: Question,
    #[serde(flatten)]
    advice: Advice,
    #[serde(skip_serializing_if = "Option::is_none")]
    evidence: Option<Evidence>,
}

pub fn run(cluster: Option<&str>, args: &AdviseArgs) -> Result<ExitCode, Fail> {
    let job = match args.job {
        Some(id) => {
            let client = session::open(cluster)?;
            let detail = client.job(id)?;
            Some((client, detail))
        }
        None => None,
    };
    let evidence = match (&job, args.mtbf) {
        (Some((client, _)), None) => Some(evidence(client)?),
        _ => None,
    };
    let detail = job.as_ref().map(|(_, detail)| detail);
    let gpus = f64::from(args.gpus.or(detail.map(|d| d.row.gpus)).unwrap_or(1).max(1));
    let mtbf_s = match (args.mtbf, &evidence) {
        (Some(mtbf), _) => seconds(mtbf),
        (None, Some(evidence)) => evidence.mtbf_hours(gpus) * 3600.0,
        (None, None) => return Err(Fail::usage("name a job, or give --mtbf")),
    };
    let question = Question {
        save_s: save_time(args, detail)?,
        mtbf_s,
        restart_s: seconds(args.restart_time),
        gpus,
        interval_s: args.every.map(seconds).or_else(|| detail.and_then(usual_interval)),
    };
    let advice = advise(&question);
    if args.json {
        terminal::json(&Answer { question, advice, evidence })?;
    } else {
        terminal::say(&text(&question, &advice, evidence.as_ref()));
    }
    Ok(ExitCode::SUCCESS)
}

fn seconds(span: Span) -> f64 {
    span.0 as f64 / 1000.0
}

fn span(seconds: f64) -> String {
    time::short(Span((seconds * 1000.0) as u64))
}

fn save_time(args: &AdviseArgs, detail: Option<&JobDetail>) -> Result<f64, Fail> {
    if let Some(given) = args.save_time {
        return Ok(seconds(given));
    }
    let measured = detail
        .and_then(|d| d.row.progress.as_ref()?.saved.as_ref()?.save_ms)
        .map(|ms| ms as f64 / 1000.0);
    measured.ok_or_else(|| {
        let id: String = args.job.map_or_else(|| "it".to_owned(), |id: TaskId| format!("job {id}"));
        Fail::new(format!("{id} has not said how long a save takes"))
            .hint("let it report save_ms with `saved`, or give --save-time 30s")
    })
}

/// The median time between the checkpoints that are there.
fn usual_interval(detail: &JobDetail) -> Option<f64> {
    let dir = &detail.spec.checkpoint.as_ref()?.dir;
    let store = Store::open(dir, Options::default()).ok()?;
    let saved: Vec<u64> =
        store.list().ok()?.into_iter().filter_map(|l| Some(l.manifest.ok()?.created_ms)).collect();
    median_gap(saved)
}

pub fn median_gap(mut at_ms: Vec<u64>) -> Option<f64> {
    at_ms.sort_unstable();
    let mut gaps: Vec<u64> = at_ms.windows(2).map(|w| w[1] - w[0]).collect();
    gaps.sort_unstable();
    Some(*gaps.get(gaps.len() / 2)? as f64 / 1000.0)
}

/// Failures of all jobs that this cluster remembers. Preemptions are none: they save first.
fn evidence(client: &Client) -> Result<Evidence, Fail> {
    let query = JobQuery { tasks: true, newest: true, limit: Some(10_000), ..JobQuery::default() };
    let rows = client.jobs(&query)?.jobs;
    let now = time::now();
    let mut found = Evidence { failures: 0, gpu_hours: 0.0 };
    for row in &rows {
        if let Some(started) = row.started_at {
            let ended = row.ended_at.unwrap_or(now);
            let ms = ended.0.saturating_sub(started.0) as f64;
            found.gpu_hours += ms / 3_600_000.0 * f64::from(row.gpus);
        }
    }
    for row in rows.iter().filter(|r| r.restarts > 0).take(LOOK_AT) {
        let causes = client.job(row.id)?.restarts_by_cause;
        found.failures += causes.node_failure + causes.job_failure;
    }
    Ok(found)
}

pub fn text(question: &Question, advice: &Advice, evidence: Option<&Evidence>) -> String {
    let mut lines = vec![format!("save every {}", span(advice.interval_s)), String::new()];
    lines.push(format!("a save holds the work up for {:.1} s", question.save_s));
    let known = match evidence {
        Some(e) => format!(
            " ({} in {:.0} GPU-hours here, and what large runs report)",
            crate::show::count(u64::from(e.failures), "failure"),
            e.gpu_hours
        ),
        None => String::new(),
    };
    lines.push(format!("a failure is expected every {}{known}", span(question.mtbf_s)));
    lines.push(format!("coming back takes {}", span(question.restart_s)));
    lines.push(String::new());
    lines.push(format!("expected loss on {} GPUs:", question.gpus));
    lines.push(format!("  then  {}", loss(&advice.best)));
    match (question.interval_s, &advice.now) {
        (Some(every), Some(now)) => {
            lines.push(format!("  now   {}, saving every {}", loss(now), span(every)));
        }
        _ => lines.push("  now   not known: give --every".to_owned()),
    }
    lines.join("\n")
}

fn loss(loss: &Loss) -> String {
    format!(
        "{:.1} GPU-hours a day: {:.2} % saving, {:.2} % repeating, {:.2} % coming back",
        loss.gpu_hours_per_day,
        loss.saving * 100.0,
        loss.repeating * 100.0,
        loss.restarting * 100.0,
    )
}
