//! Scene: a node dies under the same training. The gang comes back on a spare, goes on from its
//! newest checkpoint, and ends with the loss of the undisturbed run.

use std::time::{Duration, Instant};

use tutti_model::{JobState, NodeState, TaskId};
use tutti_wire::api::JobDetail;

use super::report::{GangFigures, NodeLossFigures};
use super::stage::{Stage, check, ranks};
use super::summary::seconds_text;
use super::{GANG_NODES, GPUS_PER_NODE, training};
use crate::fail::Fail;
use crate::show::curve;

/// Far enough for the restart to have something to lose.
const KILL_AFTER_STEP: u64 = training::STEPS / 3;

pub fn play(stage: &mut Stage<'_>, undisturbed: &GangFigures) -> Result<NodeLossFigures, Fail> {
    let world = u32::from(GANG_NODES * GPUS_PER_NODE);
    stage.view.begin("node loss", &format!("the same training on {GANG_NODES} nodes, once more"));
    let id = stage.submit(training::job(stage, "train-again", "disturbed")?)?;
    let before = trained_for_a_while(stage, id)?;
    let victim = before.parts[0].node.clone();

    stage.broken = Some(victim.clone());
    let killed = stage.cluster.kill_node(&victim)?;
    stage.view.note(&format!(
        "killed {victim} with rank 0 on it: {} processes by SIGKILL, no goodbye",
        killed.processes
    ));
    let times = Times::watch(stage, id, &victim, killed.at)?;
    let after = stage.client().job(id)?;
    stage.view.note(&format!(
        "running again on {} after {}",
        after.row.node_names.join(" and "),
        seconds_text(times.running.as_secs_f64())
    ));

    let done = stage.completed(id, |job| stage.tell_progress(job))?;
    let trained = training::result(stage, id)?;
    let attempts = done.restarts_by_cause.total() + 1;
    let (first, second) = (losses(stage, id, 1)?, losses(stage, id, attempts)?);
    let reached = first.last().map_or(0, |(step, _)| *step);
    let repeated = reached.saturating_sub(trained.from_step);
    came_back(&trained, repeated, undisturbed)?;
    moved(&before, &after, &victim, &done)?;
    let back = comes_back(stage, &victim)?;
    let figures = NodeLossFigures {
        job: id,
        ranks: world,
        killed_node: victim.clone(),
        killed_processes: killed.processes,
        nodes_before: before.row.node_names.clone(),
        nodes_after: after.row.node_names.clone(),
        noticed_seconds: times.noticed.as_secs_f64(),
        running_again_seconds: times.running.as_secs_f64(),
        steps: trained.steps,
        reached_step: reached,
        resumed_after_step: trained.from_step,
        loss: trained.loss,
        curves: curve::halves([&values(&first), &values(&second)]),
        attempts,
        restarts: done.restarts_by_cause,
        exit_code: done.row.exit_code.unwrap_or_default(),
        node_back_seconds: back.as_secs_f64(),
    };
    stage.view.note(&format!("loss until the node died {}", figures.curves[0]));
    stage.view.note(&format!("and from step {} on     {}", trained.from_step, figures.curves[1]));
    stage.view.done(&format!(
        "went on after step {} of {} and ended with loss {:.4}, the same as undisturbed; {victim} \
         is back as well",
        trained.from_step, figures.steps, figures.loss
    ));
    Ok(figures)
}

fn losses(stage: &Stage<'_>, id: TaskId, attempt: u32) -> Result<Vec<(u64, f64)>, Fail> {
    let losses = training::losses(stage, id, attempt)?;
    check(losses.len() > 1, || format!("attempt {attempt} of job {id} told no losses"))?;
    Ok(losses)
}

fn values(losses: &[(u64, f64)]) -> Vec<f64> {
    losses.iter().map(|(_, loss)| *loss).collect()
}

/// From a checkpoint, with no more to do again than lies between two, to the very same end.
fn came_back(
    trained: &training::Trained,
    repeated: u64,
    undisturbed: &GangFigures,
) -> Result<(), Fail> {
    let from = trained.from_step;
    check(from > 0 && from.is_multiple_of(training::SAVE_EVERY), || {
        format!("the gang began again after step {from}, which is no checkpoint")
    })?;
    check(repeated <= training::SAVE_EVERY, || {
        format!("{repeated} steps were done again; checkpoints are {} apart", training::SAVE_EVERY)
    })?;
    check(trained.loss == undisturbed.loss, || {
        format!(
            "the loss is {} after the failure and {} without one",
            trained.loss, undisturbed.loss
        )
    })
}

/// Until the gang has something to lose.
fn trained_for_a_while(stage: &Stage<'_>, id: TaskId) -> Result<JobDetail, Fail> {
    stage.until(&format!("job {id} to train"), || {
        let job = stage.client().job(id)?;
        check(!job.row.state.is_final(), || {
            format!("job {id} {} too early: {}", job.row.state.as_str(), job.row.note)
        })?;
        if job.row.state != JobState::Running {
            return Ok(None);
        }
        let Some((step, loss)) = training::last_step(stage, id)? else { return Ok(None) };
        stage.view.now(&format!(
            "{} ranks on {}: step {step}, loss {loss:.3}",
            ranks(&job),
            job.row.node_names.join(" and ")
        ));
        Ok((step > KILL_AFTER_STEP).then_some(job))
    })
}

/// How long after the kill each thing was seen.
struct Times {
    noticed: Duration,
    running: Duration,
}

impl Times {
    fn watch(stage: &Stage<'_>, id: TaskId, victim: &str, killed: Instant) -> Result<Times, Fail> {
        let mut noticed = None;
        stage.until(&format!("job {id} to run again"), || {
            let node = stage.client().node(victim)?;
            let job = stage.client().job(id)?;
            let since = killed.elapsed();
            if node.state != NodeState::Ready {
                noticed.get_or_insert(since);
            }
            check(!job.row.state.is_final(), || {
                format!(
                    "job {id} {} instead of starting again: {}",
                    job.row.state.as_str(),
                    job.row.note
                )
            })?;
            stage.view.now(&format!(
                "{:.1} s after the kill: {victim} is {}, the gang is {}",
                since.as_secs_f64(),
                node.state.as_str(),
                job.row.state.as_str()
            ));
            let again = job.row.state == JobState::Running && job.attempt > Some(1);
            match (again, noticed) {
                (false, _) => Ok(None),
                (true, Some(noticed)) => Ok(Some(Times { noticed, running: since })),
                (true, None) => {
                    Err(Fail::new(format!("job {id} runs again, but {victim} is still ready")))
                }
            }
        })
    }
}

/// Elsewhere, for the right cause, with everything accounted for.
fn moved(
    before: &JobDetail,
    after: &JobDetail,
    victim: &str,
    done: &JobDetail,
) -> Result<(), Fail> {
    let nodes = &after.row.node_names;
    check(
        nodes.len() == before.row.node_names.len() && !nodes.iter().any(|n| n == victim),
        || format!("the gang should run on {GANG_NODES} nodes without {victim}, but has {nodes:?}"),
    )?;
    let restarts = done.restarts_by_cause;
    check(restarts.node_failure == 1 && restarts.total() == 1, || {
        format!("one restart for a node failure was expected, not {restarts:?}")
    })
}

fn comes_back(stage: &mut Stage<'_>, victim: &str) -> Result<Duration, Fail> {
    let began = Instant::now();
    stage.cluster.restart_node(victim)?;
    stage.broken = None;
    stage.view.now(&format!("starting {victim} again"));
    stage.until(&format!("{victim} to come back"), || {
        let ready = stage.client().node(victim)?.state == NodeState::Ready;
        Ok(ready.then(|| began.elapsed()))
    })
}
