//! What nodes, GPUs and jobs do, now and before.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tutti_engine::Rejected;
use tutti_model::{GpuIndex, Span, TaskId, Time};
use tutti_wire::api::{
    GpuQuery, GpuRow, JobTelemetry, TelemetryCurve, TelemetryCurves, TelemetryQuery,
};

use super::App;
use super::body::{Named, Params};
use super::openapi::Problems;
use super::problem::Problem;
use crate::clock::now;
use crate::telemetry::series::{Cell, Layout};
use crate::telemetry::{Curve, Of, Range};
use crate::views;

/// Points in one answer, over all curves.
const POINTS_MAX: u64 = 500_000;
const SINCE: Span = Span::secs(600);

/// Curves of nodes and GPUs: seconds for an hour, minutes for a week.
#[utoipa::path(get, path = "/api/v1/telemetry", tag = "telemetry", params(TelemetryQuery),
    responses((status = 200, body = TelemetryCurves), Problems))]
pub async fn curves(
    State(app): State<Arc<App>>,
    Params(query): Params<TelemetryQuery>,
) -> Result<Json<TelemetryCurves>, Problem> {
    let wanted = Wanted::parse(&query)?;
    let names = match &query.node {
        Some(node) => vec![known(&app, node).await?],
        None => app.core.read(|world| views::node_names(world.engine.state())).await?,
    };
    let now = now();
    let ago = |span: Span| Time(now.0.saturating_sub(span.0));
    let (from, until) = (query.since.unwrap_or(SINCE), query.until.unwrap_or(Span(0)));
    if from <= until {
        return Err(Problem::invalid(format!("since={from} is not before until={until}")));
    }
    let step = query.step.map(|Span(ms)| ms.div_ceil(1000));
    let range = Range::new(ago(from), ago(until), step, now);
    let mut curves = Vec::new();
    let mut points = 0;
    for node in names {
        let of_node = app.telemetry.curves(&node, range, |of, cell| wanted.has(of, cell));
        for curve in of_node.into_iter().flatten() {
            points += range.points();
            if points > POINTS_MAX {
                return Err(too_many());
            }
            curves.push(shown(&node, &curve, range.step));
        }
    }
    if let (Some(Of::Gpu(gpu)), true) = (wanted.gpu, curves.is_empty()) {
        let only = |name: &str| query.node.as_ref().is_none_or(|node| node == name);
        let rows = app.core.read(|world| views::gpu_rows(world.engine.state(), only)).await?;
        let has: BTreeSet<GpuIndex> = rows.iter().map(|row| row.gpu).collect();
        if !has.contains(&gpu) {
            return Err(no_gpu(query.node.as_deref(), gpu, &has));
        }
    }
    let (from, step) = (Time(range.from * 1000), Span::secs(range.step));
    Ok(Json(TelemetryCurves { from, step, curves }))
}

/// It has none now, and had none in all that is remembered.
fn no_gpu(node: Option<&str>, gpu: GpuIndex, has: &BTreeSet<GpuIndex>) -> Problem {
    let who = node.map_or_else(|| "no node has a".to_owned(), |node| format!("{node} has no"));
    let has: Vec<String> = has.iter().map(ToString::to_string).collect();
    let hint = match has.as_slice() {
        [] => "there are none: gpu=none is the machine itself".to_owned(),
        has => format!("there are: {}", has.join(", ")),
    };
    Problem::not_found(format!("{who} GPU {gpu}")).hint(hint)
}

fn too_many() -> Problem {
    Problem::invalid(format!("these are more than {POINTS_MAX} points"))
        .hint("ask for one node, for fewer series, a shorter time or a longer step")
}

async fn known(app: &App, node: &str) -> Result<String, Problem> {
    let known = app.core.read(|world| world.engine.state().node_named(node).is_some()).await?;
    if known { Ok(node.to_owned()) } else { Err(Rejected::NoSuchNode(node.to_owned()).into()) }
}

/// Which curves somebody asked for.
struct Wanted {
    gpu: Option<Of>,
    series: Option<Vec<String>>,
}

impl Wanted {
    fn parse(query: &TelemetryQuery) -> Result<Wanted, Problem> {
        let gpu = match query.gpu.as_deref() {
            None => None,
            Some("none") => Some(Of::Host),
            Some(text) => {
                let bad = || Problem::invalid(format!("gpu={text}: an index such as 0, or none"));
                Some(Of::Gpu(GpuIndex(text.parse().map_err(|_| bad())?)))
            }
        };
        let split = |list: &String| list.split(',').map(|name| name.trim().to_owned()).collect();
        let series: Option<Vec<String>> = query.series.as_ref().map(split);
        let names = || Layout::gpu().cells.iter().chain(&Layout::host().cells).map(|c| c.name);
        if let Some(bad) = series.iter().flatten().find(|name| names().all(|n| n != **name)) {
            let all: Vec<&str> = names().collect();
            return Err(Problem::invalid(format!("there is no series '{bad}'"))
                .hint(format!("there are: {}", all.join(", "))));
        }
        Ok(Wanted { gpu, series })
    }

    fn has(&self, of: Of, cell: &Cell) -> bool {
        let named = |names: &Vec<String>| names.iter().any(|name| name == cell.name);
        self.gpu.is_none_or(|gpu| gpu == of) && self.series.as_ref().is_none_or(named)
    }
}

fn shown(node: &str, curve: &Curve, step: u64) -> TelemetryCurve {
    let points = curve.points.iter();
    let max = if step == 1 {
        Vec::new()
    } else {
        points.clone().map(|p| p.map(|p| p.max as f32)).collect()
    };
    TelemetryCurve {
        node: node.to_owned(),
        gpu: match curve.of {
            Of::Host => None,
            Of::Gpu(index) => Some(index),
        },
        series: curve.cell.name.to_owned(),
        unit: curve.cell.unit.to_owned(),
        mean: points.map(|p| p.map(|p| p.mean as f32)).collect(),
        max,
    }
}

/// Every GPU with who has it and what it did last.
#[utoipa::path(get, path = "/api/v1/gpus", tag = "telemetry", params(GpuQuery),
    responses((status = 200, body = Vec<GpuRow>), Problems))]
pub async fn gpus(
    State(app): State<Arc<App>>,
    Params(query): Params<GpuQuery>,
) -> Result<Json<Vec<GpuRow>>, Problem> {
    if let Some(node) = &query.node {
        known(&app, node).await?;
    }
    let only = |name: &str| query.node.as_ref().is_none_or(|node| node == name);
    let rows = app.core.read(|world| views::gpu_rows(world.engine.state(), only)).await?;
    let now = now();
    let with_sample = |mut row: GpuRow| {
        if let Some(newest) = app.telemetry.newest(&row.node) {
            row.age = Some(newest.age(now));
            row.sample = newest.sample.gpus.iter().find(|gpu| gpu.index == row.gpu).cloned();
        }
        row
    };
    Ok(Json(rows.into_iter().map(with_sample).collect()))
}

/// What the GPUs of a task did since its attempt began; nothing for one that has none now.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/telemetry", tag = "jobs",
    params(("id" = TaskId, Path)),
    responses((status = 200, body = JobTelemetry), Problems))]
pub async fn job(
    State(app): State<Arc<App>>,
    Named(id): Named<TaskId>,
) -> Result<Json<JobTelemetry>, Problem> {
    let held = app.core.read(|world| {
        let state = world.engine.state();
        let job = state.job(id.job).ok_or(Rejected::NoSuchJob(id.job))?;
        if id.index.is_some() && !job.has_task(id.index) {
            return Err(Rejected::NoSuchTask(id));
        }
        Ok(job.task(id.index).and_then(|task| views::held_gpus(state, task, now())))
    });
    let (since, held) = held.await??.unzip();
    let figures = |(node, gpu): (String, GpuIndex)| {
        let figures = app.telemetry.figures(&node, gpu, since.unwrap_or_default(), now());
        tutti_wire::api::JobGpu { node, gpu, figures }
    };
    let gpus: Vec<_> = held.into_iter().flatten().map(figures).collect();
    let total = crate::telemetry::total(gpus.iter().map(|gpu| gpu.figures));
    Ok(Json(JobTelemetry { id, since, total, gpus }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_not_there_is_answered_with_those_that_are() {
        let has = BTreeSet::from([GpuIndex(0), GpuIndex(1)]);
        let problem = no_gpu(Some("n1"), GpuIndex(9), &has).error;
        assert_eq!(
            (problem.code.as_str(), problem.message.as_str()),
            ("not_found", "n1 has no GPU 9")
        );
        assert_eq!(problem.hint.as_deref(), Some("there are: 0, 1"));
        let problem = no_gpu(None, GpuIndex(9), &BTreeSet::new()).error;
        assert_eq!(problem.message, "no node has a GPU 9");
    }
}
