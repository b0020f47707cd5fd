//! `tutti ckpt advise`: the cadence that loses least, from what was measured.

use std::process::ExitCode;

use serde::Serialize;
use tutti_checkpoint::advise::{Advice, Evidence, Loss, PRIOR_GPU_HOURS, Question, advise};
use tutti_model::{Span, TaskId};
use tutti_wire::api::{JobDetail, JobQuery};
use tutti_wire::client::Client;

use super::args::AdviseArgs;
use crate::fail::Fail;
use crate::show::{count, time};
use crate::{session, terminal};

/// Jobs that failed are asked one by one for the cause; more than this tell nothing new.
pub const LOOK_AT: usize = 50;

/// Where nothing says how long a save takes. The longest holds of large runs are about a minute,
/// those that copy first and write beside the work less than a second.
const ASSUMED_SAVE: f64 = 10.0;
const ASSUMED_RESTART: f64 = 60.0;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Given,
    Measured,
    Assumed,
}

/// What the answer rests on.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Basis {
    pub save: Source,
    pub mtbf: Source,
    pub restart: Source,
    /// Failures that were counted here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
}

#[derive(Serialize)]
struct Answer {
    save_every_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    save_every_steps: Option<u64>,
    save_s: f64,
    mtbf_s: f64,
    restart_s: f64,
    gpus: f64,
    /// As it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    now_every_s: Option<f64>,
    best: Loss,
    #[serde(skip_serializing_if = "Option::is_none")]
    now: Option<Loss>,
    basis: Basis,
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
    let (mtbf_s, mtbf) = match (args.mtbf, &evidence) {
        (Some(mtbf), _) => (seconds(mtbf), Source::Given),
        (None, Some(found)) => {
            let source = if found.failures > 0 { Source::Measured } else { Source::Assumed };
            (found.mtbf_hours(gpus) * 3600.0, source)
        }
        (None, None) => return Err(Fail::usage("name a job, or give --mtbf")),
    };
    let (save_s, save) = save_time(args, detail);
    let (restart_s, restart) = match args.restart_time {
        Some(given) => (seconds(given), Source::Given),
        None => (ASSUMED_RESTART, Source::Assumed),
    };
    let interval_s = args.every.map(seconds).or_else(|| detail.and_then(usual_interval));
    let question = Question { save_s, mtbf_s, restart_s, gpus, interval_s };
    let basis = Basis { save, mtbf, restart, evidence };
    answer(&question, &basis, detail, args.json)
}

fn answer(
    question: &Question,
    basis: &Basis,
    detail: Option<&JobDetail>,
    json: bool,
) -> Result<ExitCode, Fail> {
    let advice = advise(question);
    let pace = detail.and_then(|d| d.row.progress.as_ref()?.pace).map(seconds);
    let steps = pace.filter(|&pace| pace > 0.0).map(|pace| steps_in(advice.interval_s, pace));
    if json {
        let Question { save_s, mtbf_s, restart_s, gpus, interval_s } = *question;
        terminal::json(&Answer {
            save_every_s: advice.interval_s,
            save_every_steps: steps,
            save_s,
            mtbf_s,
            restart_s,
            gpus,
            now_every_s: interval_s,
            best: advice.best,
            now: advice.now,
            basis: *basis,
        })?;
    } else {
        terminal::say(&text(question, &advice, steps, basis));
    }
    Ok(ExitCode::SUCCESS)
}

fn steps_in(interval: f64, pace: f64) -> u64 {
    (interval / pace).round().max(1.0) as u64
}

fn seconds(span: Span) -> f64 {
    span.0 as f64 / 1000.0
}

fn span(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    time::short(Span((seconds * 1000.0) as u64))
}

/// The middle one of those that the job has reported.
fn save_time(args: &AdviseArgs, detail: Option<&JobDetail>) -> (f64, Source) {
    if let Some(given) = args.save_time {
        return (seconds(given), Source::Given);
    }
    let known = detail.map_or(&[][..], |d| &d.checkpoints[..]);
    let mut reported: Vec<u64> = known.iter().filter_map(|point| point.save_ms).collect();
    reported.sort_unstable();
    match reported.get(reported.len() / 2) {
        Some(&ms) => (ms as f64 / 1000.0, Source::Measured),
        None => (ASSUMED_SAVE, Source::Assumed),
    }
}

/// The median time between the checkpoints that were reported.
fn usual_interval(detail: &JobDetail) -> Option<f64> {
    median_gap(detail.checkpoints.iter().filter_map(|point| Some(point.at?.0)).collect())
}

pub fn median_gap(mut at_ms: Vec<u64>) -> Option<f64> {
    at_ms.sort_unstable();
    let mut gaps: Vec<u64> = at_ms.windows(2).map(|w| w[1] - w[0]).collect();
    gaps.sort_unstable();
    Some(*gaps.get(gaps.len() / 2)? as f64 / 1000.0)
}

/// Failures of the newest jobs. Preemptions are none: they save first.
fn evidence(client: &Client) -> Result<Evidence, Fail> {
    let query = JobQuery { tasks: true, newest: true, limit: Some(10_000), ..JobQuery::default() };
    let rows = client.jobs(&query)?.jobs;
    let now = time::now();
    let ran = rows.iter().map(|row| Ran {
        id: row.id,
        restarts: row.restarts,
        gpu_hours: row.started_at.map_or(0.0, |started| {
            let ms = row.ended_at.unwrap_or(now).0.saturating_sub(started.0) as f64;
            ms / 3_600_000.0 * f64::from(row.gpus)
        }),
    });
    count_up(ran, |id| {
        let causes = client.job(id)?.restarts_by_cause;
        Ok(causes.node_failure + causes.job_failure)
    })
}

/// What a job tells before it is asked for causes.
pub struct Ran {
    pub id: TaskId,
    pub restarts: u32,
    pub gpu_hours: f64,
}

/// Hours of a job count only if its failures do: where one ends, so does the other.
pub fn count_up(
    jobs: impl Iterator<Item = Ran>,
    mut failures: impl FnMut(TaskId) -> Result<u32, Fail>,
) -> Result<Evidence, Fail> {
    let mut found = Evidence { failures: 0, gpu_hours: 0.0 };
    let mut asked = 0;
    for job in jobs {
        if job.restarts > 0 {
            if asked == LOOK_AT {
                break;
            }
            asked += 1;
            found.failures += failures(job.id)?;
        }
        found.gpu_hours += job.gpu_hours;
    }
    Ok(found)
}

pub fn text(question: &Question, advice: &Advice, steps: Option<u64>, basis: &Basis) -> String {
    let steps = steps.map_or_else(String::new, |n| format!(", which is {}", count(n, "step")));
    let mut lines = vec![format!("save every {}{steps}", span(advice.interval_s)), String::new()];
    let save = match basis.save {
        Source::Given => "",
        Source::Measured => ", as the job reports",
        Source::Assumed => " (assumed: no save_ms was reported; --save-time says better)",
    };
    lines.push(format!("a save holds the work up for {}{save}", span(question.save_s)));
    let prior = PRIOR_GPU_HOURS as u64;
    let failures = match &basis.evidence {
        Some(e) if basis.mtbf == Source::Measured => format!(
            " ({} in {:.1} GPU-hours here, and one more in {prior}, as large runs report)",
            count(u64::from(e.failures), "failure"),
            e.gpu_hours
        ),
        Some(e) => format!(
            " (assumed: one in {prior} GPU-hours, as large runs report; none in {:.1} here)",
            e.gpu_hours
        ),
        None => String::new(),
    };
    lines.push(format!("a failure is expected every {}{failures}", span(question.mtbf_s)));
    let restart = match basis.restart {
        Source::Assumed => " (assumed; --restart-time says better)",
        _ => "",
    };
    lines.push(format!("coming back takes {}{restart}", span(question.restart_s)));
    lines.push(String::new());
    lines.push(format!("expected loss on {}:", count(question.gpus.round() as u64, "GPU")));
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
        "{:.2} GPU-hours a day: {:.2} % saving, {:.2} % repeating, {:.2} % coming back",
        loss.gpu_hours_per_day,
        loss.saving * 100.0,
        loss.repeating * 100.0,
        loss.restarting * 100.0,
    )
}
