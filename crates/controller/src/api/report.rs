//! Where GPU-hours and money went.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tutti_engine::Rejected;
use tutti_model::{
    Attempt, Bytes, Day, Demand, GpuIndex, PartState, Policy, Prices, Rank, Report, ReportLine,
    Span, State as Cluster, TaskId, Time,
};
use tutti_wire::api::{CpuUse, IdleGpu, JobGoodput, MemUse, ReportQuery};

use super::App;
use super::body::{Named, Params};
use super::openapi::Problems;
use super::problem::Problem;
use super::team::must_be_known;
use crate::clock::now;
use crate::core::World;
use crate::views::{self, Wanted};

/// Of a report that names no first day.
const DAYS: u64 = 30;
const DAY_MS: u64 = 86_400_000;

/// Where GPU-hours went: every one in exactly one class, by day, team, user or GPU model, in hours and
/// in money, the jobs that wasted most, and what endpoints did. Days are in UTC.
#[utoipa::path(get, path = "/api/v1/report", tag = "report", params(ReportQuery),
    responses((status = 200, body = Report), Problems))]
pub async fn report(
    State(app): State<Arc<App>>,
    Params(query): Params<ReportQuery>,
) -> Result<Json<Report>, Problem> {
    let now = now();
    let wanted = wanted(query, now)?;
    let (mut report, policy) = of_ledger(&app, &wanted, now).await?;
    if let Some(team) = wanted.team.as_deref().filter(|_| report.total.total_hours <= 0.0) {
        app.core.peek(|world| must_be_known(world.engine.state(), team))??;
    }
    views::add_wasters(&mut report, app.archive.wasters(wanted, policy).await?);
    Ok(Json(report))
}

/// First the days that have left memory, which takes long and holds nobody up, then the others.
async fn of_ledger(
    app: &App,
    wanted: &Wanted,
    now: Time,
) -> Result<(Report, Arc<Policy>), Problem> {
    // Again if a day has left for the archive between the two looks.
    loop {
        let (before, policy) = app.core.peek(|world| (days_here(world), policy(world)))?;
        let sums = app.archive.sums(wanted.clone(), Arc::clone(&policy), before.clone());
        let archived = sums.await?;
        let look = |world: &World| {
            let state = world.engine.state();
            let mut report = views::report(state, wanted, &archived, now);
            report.served = views::served_lines(state, &app.routers, wanted, now);
            (report, days_here(world))
        };
        let (report, after) = app.core.read(look).await?;
        if before.is_subset(&after) {
            return Ok((report, policy));
        }
    }
}

fn days_here(world: &World) -> BTreeSet<Day> {
    world.engine.state().goodput.days.keys().copied().collect()
}

fn policy(world: &World) -> Arc<Policy> {
    Arc::clone(&world.engine.state().policy)
}

pub(crate) fn wanted(query: ReportQuery, now: Time) -> Result<Wanted, Problem> {
    let today = Day::of(now);
    let ago = |ago: Span| Day::of(Time(now.0.saturating_sub(ago.0)));
    let until = day("until", query.until.as_deref(), ago)?.unwrap_or(today);
    let since = day("since", query.since.as_deref(), |long| first_of(days_in(long), today))?;
    let since = since.unwrap_or_else(|| first_of(DAYS, until.min(today)));
    if since > until {
        return Err(Problem::invalid(format!("since={since} is after until={until}")));
    }
    let by = query.by.unwrap_or_default();
    Ok(Wanted { by, since, until, team: query.team, user: query.user })
}

/// Of so many days, with their last one.
fn first_of(days: u64, last: Day) -> Day {
    let before = u32::try_from(days.saturating_sub(1)).unwrap_or(u32::MAX);
    Day(last.0.saturating_sub(before))
}

/// A day that has begun counts.
fn days_in(span: Span) -> u64 {
    span.0.div_ceil(DAY_MS)
}

/// A date, or a length of time, of which the caller knows what day it stands for.
fn day(
    key: &str,
    text: Option<&str>,
    of_span: impl FnOnce(Span) -> Day,
) -> Result<Option<Day>, Problem> {
    let Some(text) = text else { return Ok(None) };
    if let Ok(day) = text.parse::<Day>() {
        return Ok(Some(day));
    }
    // Bare numbers are minutes elsewhere, which nobody means here.
    let span = text.parse::<Span>().ok().filter(|_| !text.bytes().all(|b| b.is_ascii_digit()));
    span.map(|span| Some(of_span(span))).ok_or_else(|| {
        let problem = format!("{key}={text} is neither a day nor a length of time");
        Problem::invalid(problem).hint("write a day such as 2026-11-01, or a length of time: 7d")
    })
}

/// What a job made of the GPUs that it had: its GPU-hours by class, GPUs that do nothing, and what it
/// asked for and never used.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/goodput", tag = "report",
    params(("id" = TaskId, Path)),
    responses((status = 200, body = JobGoodput), Problems))]
pub async fn job(
    State(app): State<Arc<App>>,
    Named(id): Named<TaskId>,
) -> Result<Json<JobGoodput>, Problem> {
    Ok(Json(job_goodput(&app, id).await?))
}

pub(crate) async fn job_goodput(app: &App, id: TaskId) -> Result<JobGoodput, Problem> {
    let now = now();
    let seen = app.core.read(|world| in_memory(world.engine.state(), id, now)).await?;
    let (mut goodput, held) = match seen {
        Err(Rejected::NoSuchJob(_)) => archived(app, id).await?,
        seen => seen?,
    };
    if let Some(held) = held {
        goodput.gpu_mem = gpu_mem(app, &held, now);
        (goodput.mem, goodput.cpus) = of_hosts(app, &held, id).unzip();
    }
    goodput.advice = advice(&goodput);
    Ok(goodput)
}

/// What the ledger knows of a job, and what it holds or held.
type Seen = (JobGoodput, Option<Held>);

fn in_memory(state: &Cluster, id: TaskId, now: Time) -> Result<Seen, Rejected> {
    let job = state.job(id.job).ok_or(Rejected::NoSuchJob(id.job))?;
    if id.index.is_some() && !job.has_task(id.index) {
        return Err(Rejected::NoSuchTask(id));
    }
    let attempt = job.task(id.index).and_then(|task| task.attempt());
    let over = || {
        let ended = job.ended(id.index)?;
        let nodes = ended.nodes.iter().map(|node| state.node_name(*node)).collect();
        Some(had(&Demand::of(&job.spec), nodes, ended.gpus))
    };
    let line = id.index.is_none().then(|| views::job_line(state, id.job, now));
    let mut goodput = of_line(id, line, &state.policy.prices);
    goodput.idle = attempt.map_or_else(Vec::new, |attempt| idle(state, attempt));
    Ok((goodput, attempt.map(|attempt| held(state, attempt)).or_else(over)))
}

/// What has left memory is still known, at the prices that were in force when it left.
async fn archived(app: &App, id: TaskId) -> Result<Seen, Problem> {
    let job = app.archive.find(id).await?.ok_or(Rejected::NoSuchJob(id.job))?;
    let policy = app.core.peek(policy)?;
    let line = id.index.is_none().then(|| job.goodput.unwrap_or_default());
    let goodput = of_line(id, line, &policy.prices);
    Ok((goodput, Some(had(&Demand::of(&job.spec), job.row.node_names, job.row.gpus))))
}

fn of_line(id: TaskId, line: Option<ReportLine>, prices: &Prices) -> JobGoodput {
    JobGoodput {
        id,
        line,
        currency: (!prices.is_none()).then(|| prices.currency.clone()),
        idle: Vec::new(),
        gpu_mem: None,
        mem: None,
        cpus: None,
        advice: Vec::new(),
    }
}

/// GPUs of an attempt that the ledger counts as idle.
fn idle(state: &Cluster, attempt: &Attempt) -> Vec<IdleGpu> {
    let running = attempt.parts.iter().filter(|p| matches!(p.phase, PartState::Running { .. }));
    let of_part = |part: &tutti_model::Part| {
        let book = state.goodput.nodes.get(&part.node);
        let idle = |gpu: &&GpuIndex| book.is_some_and(|book| book.idle.contains(gpu));
        let last = Rank((part.first_rank.0 + part.ranks).saturating_sub(1));
        let ranks = (part.first_rank, last);
        let node = state.node_name(part.node);
        let row = |gpu: &GpuIndex| IdleGpu { node: node.clone(), gpu: *gpu, ranks };
        part.gpus.iter().filter(idle).map(row).collect::<Vec<_>>()
    };
    running.flat_map(of_part).collect()
}

/// What a task has, or had in its last attempt.
#[derive(Default)]
struct Held {
    since: Time,
    /// With the memory of each; unknown once it is over.
    gpus: Vec<(String, GpuIndex, Bytes)>,
    nodes: Vec<String>,
    cpus: u32,
    mem: Bytes,
}

fn held(state: &Cluster, attempt: &Attempt) -> Held {
    let of_part = |part: &tutti_model::Part| {
        let node = state.node(part.node)?;
        let gpus = node.facts.gpus.iter().filter(|g| part.gpus.contains(&g.index));
        Some(gpus.map(|g| (node.facts.name.clone(), g.index, g.mem)).collect::<Vec<_>>())
    };
    Held {
        since: attempt.placed_at,
        gpus: attempt.parts.iter().filter_map(of_part).flatten().collect(),
        nodes: attempt.parts.iter().map(|part| state.node_name(part.node)).collect(),
        cpus: attempt.parts.iter().map(|part| part.cpus).sum(),
        mem: Bytes(attempt.parts.iter().map(|part| part.mem.0).sum()),
    }
}

fn had(demand: &Demand, names: Vec<String>, gpus: u32) -> Held {
    let (nodes, gpus) = (names.len() as u64, u64::from(gpus));
    let total = |per_node: u64, per_gpu: u64| {
        per_node.saturating_mul(nodes).saturating_add(per_gpu.saturating_mul(gpus))
    };
    Held {
        nodes: names,
        cpus: total(demand.cpus_per_node.into(), demand.cpus_per_gpu.into()) as u32,
        mem: Bytes(total(demand.mem_per_node.0, demand.mem_per_gpu.0)),
        ..Held::default()
    }
}

fn gpu_mem(app: &App, held: &Held, now: Time) -> Option<MemUse> {
    let peak = |(node, gpu, _): &(String, GpuIndex, Bytes)| {
        app.telemetry.figures(node, *gpu, held.since, now).mem_max.map(|bytes| bytes.0)
    };
    let peaks: Vec<u64> = held.gpus.iter().filter_map(peak).collect();
    let asked = Bytes(held.gpus.iter().map(|(.., mem)| mem.0).sum());
    (!peaks.is_empty()).then(|| MemUse { asked, peak: Bytes(peaks.iter().sum()) })
}

/// What it asked for of its nodes, and the most that it took; known if each of them has seen it.
fn of_hosts(app: &App, held: &Held, id: TaskId) -> Option<(MemUse, CpuUse)> {
    let peaks = held.nodes.iter().map(|node| app.telemetry.peak(node, id));
    let peaks = peaks.collect::<Option<Vec<_>>>().filter(|peaks| !peaks.is_empty())?;
    let mem = MemUse { asked: held.mem, peak: Bytes(peaks.iter().map(|peak| peak.mem.0).sum()) };
    let cpus = CpuUse { asked: held.cpus, peak: peaks.iter().map(|peak| peak.cpus).sum() };
    Some((mem, cpus))
}

/// Below this part of what was asked for, somebody else could have had the rest.
const HARDLY_USED: f64 = 0.5;
/// And less than this is not worth a word.
const WORTH_CPUS: f64 = 4.0;
const WORTH_MEM: Bytes = Bytes(1 << 30);

fn advice(job: &JobGoodput) -> Vec<String> {
    use tutti_model::TimeClass as C;
    let mut advice = Vec::new();
    let much = |classes: &[C]| {
        job.line.as_ref().is_some_and(|line| {
            let hours: f64 = classes.iter().map(|class| line.of(*class)).sum();
            line.held_hours > 0.0 && hours / line.held_hours > 0.1
        })
    };
    if !job.idle.is_empty() || much(&[C::Idle]) {
        advice.push("GPUs that it holds do nothing: ask for fewer, or feed them faster".into());
    }
    if much(&[C::LostToFailure, C::LostToPreemption]) {
        advice.push(
            "what it had done was lost: save more often (`tutti ckpt advise` says how often)"
                .into(),
        );
    }
    if much(&[C::Starting]) {
        advice.push(
            "it spends long on starting: fewer restarts, or a smaller image, would help".into(),
        );
    }
    let hardly = |mem: &MemUse| {
        (mem.peak.0 as f64) < HARDLY_USED * mem.asked.0 as f64
            && mem.asked.0 - mem.peak.0 >= WORTH_MEM.0
    };
    if job.mem.as_ref().is_some_and(hardly) {
        advice.push(
            "it never used half of the memory that it asked for: mem_per_gpu, mem_per_node".into(),
        );
    }
    let cpus = |cpus: CpuUse| {
        let (asked, peak) = (f64::from(cpus.asked), f64::from(cpus.peak));
        peak < HARDLY_USED * asked && asked - peak >= WORTH_CPUS
    };
    if job.cpus.is_some_and(cpus) {
        advice.push("it never used half of its CPUs: cpus_per_gpu, cpus_per_node".into());
    }
    advice
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::ReportBy;

    const NOW: Time = Time(1_794_787_200_000 + 3_600_000);

    fn ask(since: Option<&str>, until: Option<&str>) -> Result<Wanted, String> {
        let text = |t: Option<&str>| t.map(str::to_owned);
        let query =
            ReportQuery { since: text(since), until: text(until), ..ReportQuery::default() };
        wanted(query, NOW).map_err(|problem| problem.error.message)
    }

    #[test]
    fn days_are_dates_or_ages() {
        let days = |w: Wanted| (w.since.to_string(), w.until.to_string());
        let wanted = ask(None, None).unwrap();
        assert_eq!(wanted.by, ReportBy::Team);
        assert_eq!(days(wanted), ("2026-10-18".into(), "2026-11-16".into()));
        let wanted = ask(Some("2d"), Some("2026-11-15")).unwrap();
        assert_eq!(days(wanted), ("2026-11-15".into(), "2026-11-15".into()));
        assert!(ask(Some("2026-11-16"), Some("2026-11-01")).unwrap_err().contains("is after"));
        for bad in ["yesterday", "7", ""] {
            assert!(ask(Some(bad), None).unwrap_err().contains("neither"), "{bad}");
        }
    }

    #[test]
    fn a_week_is_seven_days_with_today() {
        let since = |text| ask(Some(text), None).unwrap().since.to_string();
        assert_eq!(since("7d"), "2026-11-10");
        assert_eq!((since("1d"), since("12h")), ("2026-11-16".into(), "2026-11-16".into()));
        assert_eq!(since("36h"), "2026-11-15");
        let week_before = ask(Some("14d"), Some("7d")).unwrap();
        assert_eq!(week_before.until.0 - week_before.since.0 + 1, 7);
    }

    #[test]
    fn thirty_days_end_with_the_last_one_asked_for() {
        let since = |text| ask(None, Some(text)).unwrap().since.to_string();
        assert_eq!(since("2026-09-30"), "2026-09-01");
        assert_eq!(since("2027-01-01"), "2026-10-18", "nothing is known of days to come");
        assert_eq!(since("1970-01-02"), "1970-01-01");
    }
}
