//! One job.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tutti_engine::{Rejected, RetryCause};
use tutti_model::{
    Attempt, JobState, Outcome, Part, Span, State, SuspendCause, TaskId, Tasks, Time,
};
use tutti_web::job::{Moment, RankCurve, Stay, Tone, View, Why};
use tutti_web::topology::{Card, Spot};
use tutti_wire::api::{JobDetail, JobQuery, JobRow, ProgressDetail};

use crate::api::auth::Caller;
use crate::api::{App, Problem};
use crate::chronicle::{self, End, Happened, What};
use crate::clock::now;
use crate::core::World;
use crate::dash::forecasts::WaitingTask;
use crate::telemetry::{Of, Range, Store};
use crate::views::{self, Filter, Page};

/// GPUs whose curves are drawn.
const CURVES_MAX: usize = 64;
const CURVE_SPAN: Span = Span::secs(600);
const CURVE_STEP: u64 = 10;
const SAVED_TOLD: usize = 3;
/// How long a page waits for what keeps its job, which may take a second in a large cluster.
const WHY_PATIENCE: Duration = Duration::from_secs(1);
/// Live, it can come a little later; and who makes a page for long rests for long.
const WHY_PATIENCE_LIVE: Duration = Duration::from_millis(50);
/// Tasks of an array that are listed.
const TASKS_MAX: u32 = 100;

/// A GPU of the job, and the rank that has it for itself.
struct Held {
    rank: Option<u32>,
    node: String,
    gpu: u16,
}

/// `caller`: whose page it is; for what is the same for everybody, nobody's.
pub async fn view(app: &Arc<App>, id: TaskId, caller: Option<&Caller>) -> Result<View, Problem> {
    let read = app.core.read(|world| {
        let job = world.engine.state().job(id.job).ok_or(Rejected::NoSuchJob(id.job))?;
        let inside = caller.is_some_and(|caller| caller.may_look_inside(&job.user));
        look(world, id, inside).ok_or(Rejected::NoSuchTask(id))
    });
    let (mut view, held) = match (read.await?, caller) {
        // Not for a live stream: nothing of it changes any more.
        (Err(Rejected::NoSuchJob(_)), Some(caller)) => return archived(app, id, caller).await,
        (read, _) => read?,
    };
    let patience = if caller.is_some() { WHY_PATIENCE } else { WHY_PATIENCE_LIVE };
    view.why = why(app, &view, patience).await;
    view.more_ranks = held.len().saturating_sub(CURVES_MAX);
    let from = view.stays.last().map_or(Time(0), |stay| stay.placed);
    view.ranks =
        held.into_iter().take(CURVES_MAX).map(|held| curve(&app.telemetry, held, from)).collect();
    Ok(view)
}

/// What has left memory is still known. Of its attempts the chronicle may know more than the archive.
async fn archived(app: &App, id: TaskId, caller: &Caller) -> Result<View, Problem> {
    let detail = app.archive.find(id).await?.ok_or(Rejected::NoSuchJob(id.job))?;
    let row = &detail.row;
    let read = app.core.read(|world| {
        let simulated = were_simulated(world.engine.state(), &row.node_names);
        (stays(world, id), moments(world, id), simulated)
    });
    let (mut stays, moments, simulated) = read.await?;
    if stays.is_empty() {
        stays.extend(only_stay(&detail));
    }
    Ok(View {
        until: until(row.submitted_at, row.ended_at),
        tasks: Vec::new(),
        stays,
        moments,
        why: None,
        progress: ProgressDetail { id, progress: None, ranks: Vec::new(), history: Vec::new() },
        ranks: Vec::new(),
        more_ranks: 0,
        spots: Vec::new(),
        simulated,
        inside: caller.may_look_inside(&row.user),
        left: true,
        detail,
    })
}

fn were_simulated(state: &State, names: &[String]) -> bool {
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let mut simulated = state.nodes.values().filter(|node| node.facts.simulated);
    simulated.any(|node| names.contains(node.facts.name.as_str()))
}

/// The attempt of a job that had no other. When its ranks began to run is not kept.
fn only_stay(detail: &JobDetail) -> Option<Stay> {
    let row = &detail.row;
    let (placed, ended) = row.started_at.zip(row.ended_at)?;
    let tone = match row.state {
        JobState::Completed => Tone::Good,
        JobState::Failed => Tone::Bad,
        _ => Tone::Plain,
    };
    let naps = detail.suspensions.iter().map(|nap| (nap.since, nap.until.or(nap.cut_at)));
    (detail.attempt == Some(1)).then(|| Stay {
        attempt: detail.attempt,
        nodes: row.node_names.clone(),
        placed,
        running: Some(placed),
        ended: Some(ended),
        naps: naps.collect(),
        how: if row.note.is_empty() { row.state.as_str().to_owned() } else { row.note.clone() },
        tone,
    })
}

fn look(world: &World, id: TaskId, inside: bool) -> Option<(View, Vec<Held>)> {
    let state = world.engine.state();
    let job = state.job(id.job)?;
    let detail = views::detail(world, job, id.index, inside, now())?;
    let attempt = job.task(id.index).and_then(|task| task.attempt());
    let parts = attempt.map_or(&[] as &[Part], |attempt: &Attempt| &attempt.parts);
    let simulated = |part: &Part| state.node(part.node).is_some_and(|node| node.facts.simulated);
    let is_array = id.index.is_none() && matches!(job.tasks, Tasks::Array(_));
    let view = View {
        until: until(detail.row.submitted_at, detail.row.ended_at),
        tasks: if is_array { tasks(world, id) } else { Vec::new() },
        stays: stays(world, id),
        moments: moments(world, id),
        why: None,
        progress: views::progress(world, id, now()),
        ranks: Vec::new(),
        more_ranks: 0,
        spots: parts.iter().map(|part| spot(state, part)).collect(),
        simulated: parts.iter().any(simulated),
        inside,
        left: false,
        detail,
    };
    let held = parts.iter().flat_map(|part| held(state, part)).collect();
    Some((view, held))
}

/// In steps that the eye can tell apart: a picture that moves by less is not sent again.
fn until(submitted: Time, ended: Option<Time>) -> Time {
    if let Some(ended) = ended {
        return ended;
    }
    let span = now().since(submitted).0;
    let step = (span / 200).max(5000);
    Time(submitted.0 + span.div_ceil(step) * step)
}

fn tasks(world: &World, id: TaskId) -> Vec<JobRow> {
    let query = JobQuery {
        id: Some(id.job.to_string()),
        tasks: true,
        newest: true,
        limit: Some(TASKS_MAX),
        ..JobQuery::default()
    };
    let found = |query: JobQuery| {
        let Ok(filter) = Filter::parse(query) else { return Vec::new() };
        let mut page = Page::new(filter);
        page.fill(world, now());
        page.rows.retain(|row| row.id.index.is_some());
        page.rows
    };
    let state = Some(JobState::Failed.as_str().to_owned());
    // Those that failed first, however long ago: they are what people look for.
    let mut rows = found(JobQuery { state, ..query.clone() });
    rows.extend(found(query).into_iter().filter(|row| row.state != JobState::Failed));
    rows.truncate(TASKS_MAX as usize);
    rows
}

fn stays(world: &World, id: TaskId) -> Vec<Stay> {
    let state = world.engine.state();
    let known = world.chronicle.stays_of(id).into_iter();
    known.map(|stay| shown_stay(state, stay)).collect()
}

fn shown_stay(state: &State, stay: &chronicle::Stay) -> Stay {
    let (how, tone) = ending(state, stay);
    Stay {
        attempt: (stay.attempt > 0).then_some(stay.attempt),
        nodes: stay.parts.iter().map(|(node, _)| state.node_name(*node)).collect(),
        placed: stay.placed,
        running: stay.running,
        ended: stay.ended,
        naps: stay.naps.clone(),
        how,
        tone,
    }
}

fn ending(state: &State, stay: &chronicle::Stay) -> (String, Tone) {
    match &stay.end {
        End::Open => (String::new(), Tone::Plain),
        End::Requeued(cause) => {
            let cause = match cause {
                RetryCause::NodeFailure => "a node failed",
                RetryCause::Preemption => "it made room for others",
                RetryCause::JobFailure => "it failed",
                RetryCause::Resize => "it changed its size",
                RetryCause::Eviction => "its node was cleared",
                RetryCause::Health => "a GPU or node was broken",
            };
            let why = stay.stopped.as_ref().map(|why| views::cause_words(state, why));
            (format!("started again: {}", why.unwrap_or_else(|| cause.to_owned())), Tone::Bad)
        }
        End::Ended(ended) => {
            let outcome = ended.outcome;
            let note = views::end_note(state, ended);
            let tone = match outcome {
                Outcome::Completed => Tone::Good,
                Outcome::Failed => Tone::Bad,
                Outcome::Cancelled => Tone::Plain,
            };
            let note =
                if note.is_empty() { JobState::from(outcome).as_str().to_owned() } else { note };
            (note, tone)
        }
    }
}

/// What happened, with the newest of its checkpoints alone: all are listed elsewhere.
fn moments(world: &World, id: TaskId) -> Vec<Moment> {
    let is_saved = |moment: &&Happened| matches!(moment.what, What::Saved { .. });
    let all: Vec<&Happened> = world.chronicle.moments_of(id).collect();
    let mut old = all.iter().copied().filter(|m| is_saved(m)).count().saturating_sub(SAVED_TOLD);
    let mut told = Vec::new();
    for moment in all {
        if is_saved(&moment) && old > 0 {
            old -= 1;
            continue;
        }
        told.push(shown_moment(world.engine.state(), moment));
    }
    told
}

fn shown_moment(state: &State, moment: &Happened) -> Moment {
    let (tone, text) = match &moment.what {
        What::Held { by } => (Tone::Plain, format!("held by {by}")),
        What::Released { by } => (Tone::Plain, format!("released by {by}")),
        What::Priority { priority, by } => (Tone::Plain, format!("priority {priority} by {by}")),
        What::Updated { words, by } => (Tone::Plain, format!("changed by {by}: {words}")),
        What::Saved { step } => (Tone::Good, format!("saved at step {step}")),
        What::Accused(accusation) => {
            let (rank, by) = (accusation.fault.rank, state.node_name(accusation.by));
            (Tone::Bad, format!("ranks on {by} say that rank {rank} is dead or hangs"))
        }
        What::Suspended { why: SuspendCause::Asked { by } } => {
            (Tone::Plain, format!("suspended by {by}"))
        }
        What::Suspended { why: SuspendCause::Preempted { for_job } } => {
            (Tone::Plain, format!("suspended to make room for job {for_job}"))
        }
        What::Woken => (Tone::Plain, "went on".to_owned()),
        What::Claimed { victims } if victims.is_empty() => {
            (Tone::Plain, "room is kept for it".to_owned())
        }
        What::Claimed { victims } => {
            let ids: Vec<String> = victims.iter().map(ToString::to_string).collect();
            (Tone::Plain, format!("room is made for it by {}", ids.join(", ")))
        }
    };
    Moment { at: moment.at, tone, text }
}

fn spot(state: &State, part: &Part) -> Spot {
    let node = state.node(part.node);
    let card = |gpu: &tutti_model::Gpu| Card {
        index: gpu.index.0,
        island: gpu.island,
        mine: part.gpus.contains(&gpu.index),
    };
    let mut gpus: Vec<Card> =
        node.map_or_else(Vec::new, |node| node.facts.gpus.iter().map(card).collect());
    gpus.sort_by_key(|card| (card.island, card.index));
    Spot {
        node: state.node_name(part.node),
        place: node.map(|node| state.policy.topology.place_of(node)).unwrap_or_default(),
        gpus,
        ranks: (part.first_rank.0, part.ranks),
    }
}

fn held(state: &State, part: &Part) -> Vec<Held> {
    let node = state.node_name(part.node);
    let own = part.ranks as usize == part.gpus.len();
    let rank = |i: usize| match part.ranks {
        _ if own => Some(part.first_rank.0 + i as u32),
        1 => Some(part.first_rank.0),
        _ => None,
    };
    let of = |(i, gpu): (usize, &tutti_model::GpuIndex)| Held {
        rank: rank(i),
        node: node.clone(),
        gpu: gpu.0,
    };
    part.gpus.iter().enumerate().map(of).collect()
}

/// The last minutes of one GPU: its multiprocessors or, where they do not tell, that any kernel ran.
fn curve(store: &Store, held: Held, placed: Time) -> RankCurve {
    let now = now();
    let from = Time(now.0.saturating_sub(CURVE_SPAN.0)).max(placed);
    let range = Range::new(from, now, Some(CURVE_STEP), now);
    let of = Of::Gpu(tutti_model::GpuIndex(held.gpu));
    let wanted = |device: Of, name: &str| device == of && matches!(name, "sm" | "util");
    let mut curves = store
        .curves(&held.node, range, |device, cell| wanted(device, cell.name))
        .unwrap_or_default();
    curves.sort_by_key(|curve| curve.cell.name);
    let told = curves.into_iter().find(|curve| curve.points.iter().any(Option::is_some));
    let points: Vec<Option<f32>> = told.map_or_else(Vec::new, |curve| {
        curve.points.iter().map(|point| point.map(|point| point.mean as f32)).collect()
    });
    let known: Vec<f32> = points.iter().flatten().copied().collect();
    let mean = (!known.is_empty()).then(|| known.iter().sum::<f32>() / known.len() as f32);
    RankCurve { rank: held.rank, node: held.node, gpu: held.gpu, points, mean }
}

async fn why(app: &Arc<App>, view: &View, patience: Duration) -> Option<Why> {
    let row = &view.detail.row;
    let verdict = row.verdict.as_ref()?;
    let forecasts = &app.dash.forecasts;
    let WaitingTask { ahead, advice, holders, kept, forecast } =
        forecasts.waiting(app, row.id, verdict, patience).await;
    let forecast = forecasts.known(app).get(&row.id).copied().or(forecast);
    let details = tutti_sched::tell(verdict, &|_| String::new()).details;
    let blockers = tutti_sched::tell_blockers(&row.blockers, &tutti_web::stamp);
    let sentence = row.note.clone();
    Some(Why { sentence, details, blockers, ahead, forecast, advice, holders, kept })
}

#[cfg(test)]
mod tests {
    use tutti_model::{JobId, JobSpec, Milli, Priority, Restarts};

    use super::*;

    fn over(state: JobState, attempt: Option<u32>) -> JobDetail {
        JobDetail {
            row: JobRow {
                id: TaskId::single(JobId(7)),
                name: "train".into(),
                user: "ada".into(),
                team: None,
                class: "standard".into(),
                state,
                nodes: 1,
                gpus: 1,
                share: Milli::WHOLE,
                priority: Priority(0),
                submitted_at: Time(1),
                started_at: attempt.map(|_| Time(5)),
                ended_at: Some(Time(9)),
                suspended_for: Span(0),
                between_attempts: Span(0),
                exit_code: None,
                restarts: 0,
                verdict: None,
                blockers: Vec::new(),
                note: String::new(),
                array: None,
                node_names: vec!["n1".into()],
                progress: None,
            },
            spec: JobSpec::shell("true"),
            attempt,
            generation: None,
            restarts_by_cause: Restarts::default(),
            parts: Vec::new(),
            end: None,
            time_left: None,
            held: false,
            checkpoints: Vec::new(),
            stopped_before: None,
            suspensions: Vec::new(),
            goodput: None,
            output_dropped: 0,
            replica_of: None,
        }
    }

    #[test]
    fn one_attempt_is_told_and_of_several_none_is_made_up() {
        let stay = only_stay(&over(JobState::Failed, Some(1))).unwrap();
        assert_eq!((stay.placed, stay.ended, stay.tone), (Time(5), Some(Time(9)), Tone::Bad));
        assert_eq!((stay.how.as_str(), stay.nodes.len()), ("failed", 1));
        assert_eq!(only_stay(&over(JobState::Completed, Some(3))), None);
        assert_eq!(only_stay(&over(JobState::Cancelled, None)), None, "it never started");
    }
}
