//! Scene: a gang trains on four nodes, and a job that does not fit beside it learns why it waits.

use std::time::Instant;

use tutti_model::{GpuRequest, JobState, Time, Verdict};
use tutti_wire::api::JobDetail;

use super::report::{GangFigures, WaitingFigures};
use super::stage::{Stage, check, ranks};
use super::summary::seconds_text;
use super::{GANG_NODES, GPUS_PER_NODE, training};
use crate::fail::Fail;

pub fn play(stage: &mut Stage<'_>) -> Result<GangFigures, Fail> {
    let world = u32::from(GANG_NODES * GPUS_PER_NODE);
    stage.view.begin("gang", &format!("{world} ranks on {GANG_NODES} nodes, all or nothing"));
    let spec = training::job(stage, "train", training::UNDISTURBED)?;
    let asked = Instant::now();
    let id = stage.submit(spec)?;
    let running = stage.until(&format!("job {id} to run"), || {
        let job = stage.client().job(id)?;
        let there = job.row.state == JobState::Running || job.row.state.is_final();
        Ok(there.then_some(job))
    })?;
    let start_seconds = asked.elapsed().as_secs_f64();
    let nodes = running.row.node_names.len() as u32;
    check(ranks(&running) == world && nodes == u32::from(GANG_NODES), || {
        format!("{} ranks on {nodes} nodes run, not {world} on {GANG_NODES}", ranks(&running))
    })?;
    stage.view.note(&format!(
        "all {world} ranks on {nodes} nodes run, {} after submission",
        seconds_text(start_seconds)
    ));

    let mut pair = stage.shell("pair", "echo our turn");
    pair.nodes = Some(2);
    pair.gpus_per_node = Some(GpuRequest { model: None, count: GPUS_PER_NODE.into() });
    let waiting = stage.submit(pair)?;
    let note = said_why(stage, waiting)?;
    stage.view.note(&format!("meanwhile job {waiting} wants 2 whole nodes and waits: {note}"));

    let done = stage.completed(id, |job| stage.tell_progress(job))?;
    let trained = training::result(stage, id)?;
    let losses = training::losses(stage, id, 1)?;
    let first_loss = losses.first().map(|(_, loss)| *loss).unwrap_or(f64::NAN);
    training::check_falls(first_loss, trained.loss)?;
    let pair = stage.completed(waiting, |_| Ok(()))?;
    let figures = GangFigures {
        job: id,
        nodes,
        ranks: world,
        start_seconds,
        steps: trained.steps,
        first_loss,
        loss: trained.loss,
        tokens_per_s: trained.tokens_per_s,
        exit_code: done.row.exit_code.unwrap_or_default(),
        waiting: WaitingFigures {
            job: waiting,
            note,
            waited_seconds: seconds(Some(pair.row.submitted_at), pair.row.started_at)?,
        },
    };
    stage.view.done(&format!(
        "a transformer, {} by data, tensor and pipeline, trained {} steps: loss {:.2} to {:.4}",
        training::LAYOUT,
        figures.steps,
        figures.first_loss,
        figures.loss
    ));
    Ok(figures)
}

/// The verdict of a job that can't start because too much is taken.
fn said_why(stage: &Stage<'_>, id: tutti_model::TaskId) -> Result<String, Fail> {
    let job: JobDetail = stage.until(&format!("a verdict for job {id}"), || {
        let job = stage.client().job(id)?;
        Ok((job.row.verdict != Some(Verdict::Next)).then_some(job))
    })?;
    match (job.row.state, job.row.verdict) {
        (JobState::Pending, Some(Verdict::Busy(_))) => Ok(job.row.note),
        (state, verdict) => Err(Fail::new(format!(
            "job {id} should wait for a busy cluster, but it is {} ({verdict:?})",
            state.as_str()
        ))),
    }
}

/// Between two times of the controller's clock.
pub fn seconds(from: Option<Time>, to: Option<Time>) -> Result<f64, Fail> {
    match (from, to) {
        (Some(from), Some(to)) => Ok(to.since(from).0 as f64 / 1000.0),
        _ => Err(Fail::new("the controller did not say when the job started and ended")),
    }
}
