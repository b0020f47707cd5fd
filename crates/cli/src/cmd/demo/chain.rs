//! Scene: jobs that wait for each other, and one whose turn never comes.

use tutti_model::{Dependency, EndReason, JobSpec, JobState, TaskId};
use tutti_wire::api::JobDetail;

use super::gang::seconds;
use super::report::{ChainFigures, ChainJob};
use super::stage::{Stage, check};
use crate::fail::Fail;

/// Each reads what the one before has written, so the last succeeds only after both. The short
/// sleeps let people see them wait.
const PREPARE: &str =
    "sleep 0.4; i=1; while [ $i -le 100 ]; do echo $i; i=$((i+1)); done > data; echo 100 numbers";
const TRAIN: &str = "sleep 0.4; s=0; while read n; do s=$((s+n)); done < data; echo $s > model; \
                     echo model $s";
const EVALUATE: &str = "sleep 0.4; read s < model; echo score $s; [ $s = 5050 ]";
const RESCUE: &str = "echo this never runs";

pub fn play(stage: &mut Stage<'_>) -> Result<ChainFigures, Fail> {
    stage.view.begin("chain", "prepare → train → evaluate, and rescue if train fails");
    let prepare = stage.submit(stage.shell("prepare", PREPARE))?;
    let train = stage.submit(after(stage.shell("train", TRAIN), "ok", prepare)?)?;
    let evaluate = stage.submit(after(stage.shell("evaluate", EVALUATE), "ok", train)?)?;
    let rescue = stage.submit(after(stage.shell("rescue", RESCUE), "failed", train)?)?;

    let mut ended = Vec::new();
    for id in [prepare, train, evaluate] {
        ended.push(stage.completed(id, |job| {
            stage.view.now(&format!("{} is {}", job.row.name, job.row.state.as_str()));
            Ok(())
        })?);
    }
    in_order(&ended)?;
    let rescue = cancelled(stage, rescue, train)?;
    stage.view.note(&format!("rescue (job {}) was cancelled: {}", rescue.row.id, rescue.row.note));
    let seconds = seconds(Some(ended[0].row.submitted_at), ended[2].row.ended_at)?;
    stage.view.done(&format!(
        "prepare → train → evaluate ran in this order in {seconds:.1} s, rescue never"
    ));
    ended.push(rescue);
    Ok(ChainFigures { jobs: ended.iter().map(link).collect(), seconds })
}

fn after(mut spec: JobSpec, on: &str, job: TaskId) -> Result<JobSpec, Fail> {
    let dependency: Dependency = format!("{on}:{job}")
        .parse()
        .map_err(|e| Fail::new(format!("the dependency can't be written: {e}")))?;
    spec.after = vec![dependency];
    Ok(spec)
}

/// By the controller's own times: nobody started before the one before had ended.
fn in_order(jobs: &[JobDetail]) -> Result<(), Fail> {
    for pair in jobs.windows(2) {
        let (first, second) = (&pair[0].row, &pair[1].row);
        check(first.ended_at.is_some() && first.ended_at <= second.started_at, || {
            format!("{} started before {} had ended", second.name, first.name)
        })?;
    }
    Ok(())
}

fn cancelled(stage: &Stage<'_>, id: TaskId, train: TaskId) -> Result<JobDetail, Fail> {
    let job = stage.ended(id, |_| Ok(()))?;
    let unmet = matches!(job.end, Some(EndReason::DependencyUnmet { job }) if job == train.job);
    check(job.row.state == JobState::Cancelled && unmet && job.row.started_at.is_none(), || {
        format!(
            "job {id} should be cancelled because {train} did not fail, but it {}: {}",
            job.row.state.as_str(),
            job.row.note
        )
    })?;
    Ok(job)
}

fn link(job: &JobDetail) -> ChainJob {
    ChainJob {
        job: job.row.id,
        name: job.row.name.clone(),
        after: job.spec.after.iter().map(ToString::to_string).collect(),
        state: job.row.state,
        exit_code: job.row.exit_code,
        note: job.row.note.clone(),
    }
}
