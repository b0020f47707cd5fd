//! Scene: a gang takes the whole cluster, and a small job learns why it has to wait.

use std::time::Instant;

use tutti_model::{JobState, Time, Verdict};
use tutti_wire::api::JobDetail;

use super::report::{GangFigures, WaitingFigures};
use super::stage::{Stage, check, ranks};
use super::summary::seconds_text;
use super::{GPUS_PER_NODE, NODES};
use crate::fail::Fail;

const STEPS: &str = "60";
const PACE: &str = "60ms";

pub fn play(stage: &mut Stage<'_>) -> Result<GangFigures, Fail> {
    let world = u32::from(NODES * GPUS_PER_NODE);
    stage.view.begin("gang", &format!("{world} ranks on {NODES} nodes, all or nothing"));
    let spec = stage.training("train-all", NODES.into(), &["--steps", STEPS, "--pace", PACE]);
    let asked = Instant::now();
    let id = stage.submit(spec)?;
    let running = stage.until(&format!("job {id} to run"), || {
        let job = stage.client().job(id)?;
        let there = job.row.state == JobState::Running || job.row.state.is_final();
        Ok(there.then_some(job))
    })?;
    let start_seconds = asked.elapsed().as_secs_f64();
    let nodes = running.row.node_names.len() as u32;
    check(ranks(&running) == world && nodes == u32::from(NODES), || {
        format!("{} ranks on {nodes} nodes run, not {world} on {NODES}", ranks(&running))
    })?;
    stage.view.note(&format!(
        "all {world} ranks on {nodes} nodes run, {} after submission",
        seconds_text(start_seconds)
    ));

    let waiting = stage.submit(stage.shell("small", "echo my turn"))?;
    let note = said_why(stage, waiting)?;
    stage.view.note(&format!("meanwhile job {waiting} wants 1 simulated GPU and waits: {note}"));

    let done = stage.completed(id, |job| stage.tell_progress(job))?;
    let results = stage.training_result(id, world)?;
    let small = stage.completed(waiting, |_| Ok(()))?;
    let figures = GangFigures {
        job: id,
        nodes,
        ranks: world,
        start_seconds,
        steps: results[0].steps,
        first_loss: results[0].first_loss,
        loss: results[0].loss,
        exit_code: done.row.exit_code.unwrap_or_default(),
        waiting: WaitingFigures {
            job: waiting,
            note,
            waited_seconds: seconds(Some(small.row.submitted_at), small.row.started_at)?,
        },
    };
    stage.view.done(&format!(
        "{world} ranks added gradients over TCP for {} steps: loss {:.2} to {:.6}, the same model \
         on every rank",
        figures.steps, figures.first_loss, figures.loss
    ));
    Ok(figures)
}

/// The verdict of a job that can't start because everything is taken.
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
