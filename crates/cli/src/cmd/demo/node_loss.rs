//! Scene: a node dies under a running gang, and the gang goes on elsewhere from its last save.

use std::time::{Duration, Instant};

use tutti_controller::ControllerConfig;
use tutti_model::{JobState, NodeState, Span, TaskId};
use tutti_wire::api::JobDetail;

use super::GPUS_PER_NODE;
use super::report::NodeLossFigures;
use super::stage::{Stage, check, ranks};
use super::summary::seconds_text;
use crate::fail::Fail;

/// Two of four nodes, so that there is somewhere to go.
const GANG_NODES: u32 = 2;
const STEPS: &str = "60";
const PACE: &str = "100ms";
/// Far enough for the restart to have something to lose.
const KILL_AFTER_STEP: u32 = 15;

pub fn play(stage: &mut Stage<'_>) -> Result<NodeLossFigures, Fail> {
    let world = GANG_NODES * u32::from(GPUS_PER_NODE);
    stage.view.begin("node loss", &format!("a gang of {world} ranks on {GANG_NODES} nodes"));
    let id = stage.submit(training(stage)?)?;
    let before = trained_for_a_while(stage, id)?;
    let victim = before.parts[0].node.clone();

    stage.broken = Some(victim.clone());
    let killed = stage.cluster.kill_node(&victim)?;
    stage.view.note(&format!(
        "killed {victim} with rank 0 on it: {} processes by SIGKILL, no goodbye. A silent node is \
         given up after {}",
        killed.processes,
        usual_timeout(stage)
    ));
    let times = Times::watch(stage, id, &victim, killed.at)?;
    let after = stage.client().job(id)?;
    stage.view.note(&format!(
        "running again on {} after {}",
        after.row.node_names.join(" and "),
        seconds_text(times.running.as_secs_f64())
    ));

    let done = stage.completed(id, |job| stage.tell_progress(job))?;
    let results = stage.training_result(id, world)?;
    let resumed = results[0].first_step;
    check(resumed >= KILL_AFTER_STEP, || {
        format!("the gang began again at step {resumed}; it had saved step {KILL_AFTER_STEP}")
    })?;
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
        lost_seconds: times.lost.as_secs_f64(),
        running_again_seconds: times.running.as_secs_f64(),
        steps: results[0].steps,
        resumed_after_step: resumed,
        attempts: done.restarts_by_cause.total() + 1,
        restarts: done.restarts_by_cause,
        exit_code: done.row.exit_code.unwrap_or_default(),
        node_back_seconds: back.as_secs_f64(),
    };
    stage.view.done(&format!(
        "the gang went on after step {resumed} of {} and completed; {victim} is back as well",
        figures.steps
    ));
    Ok(figures)
}

/// The demo's controller was started with the usual settings.
fn usual_timeout(stage: &Stage<'_>) -> Span {
    ControllerConfig::new(stage.cluster.data_dir.clone()).settings.node_timeout
}

fn training(stage: &Stage<'_>) -> Result<tutti_model::JobSpec, Fail> {
    let path = stage.shared.join("checkpoint.json");
    let path = path.to_str().ok_or_else(|| Fail::new(format!("{path:?} is not UTF-8")))?;
    let arguments = ["--steps", STEPS, "--pace", PACE, "--checkpoint", path];
    Ok(stage.training("train-two", GANG_NODES, &arguments))
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
        let Some(line) = stage.last_word(id)? else { return Ok(None) };
        stage.view.now(&format!(
            "{} ranks on {}: {line}",
            ranks(&job),
            job.row.node_names.join(" and ")
        ));
        Ok((step_of(&line).is_some_and(|s| s > KILL_AFTER_STEP)).then_some(job))
    })
}

/// `step 12 of 60, loss 0.1`.
fn step_of(line: &str) -> Option<u32> {
    line.strip_prefix("step ")?.split(' ').next()?.parse().ok()
}

/// How long after the kill each thing was seen.
struct Times {
    noticed: Duration,
    lost: Duration,
    running: Duration,
}

impl Times {
    fn watch(stage: &Stage<'_>, id: TaskId, victim: &str, killed: Instant) -> Result<Times, Fail> {
        let (mut noticed, mut lost) = (None, None);
        stage.until(&format!("job {id} to run again"), || {
            let node = stage.client().node(victim)?;
            let job = stage.client().job(id)?;
            let since = killed.elapsed();
            if node.state != NodeState::Ready {
                noticed.get_or_insert(since);
            }
            if node.state == NodeState::Lost {
                lost.get_or_insert(since);
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
            match (again, noticed, lost) {
                (false, ..) => Ok(None),
                (true, Some(noticed), Some(lost)) => {
                    Ok(Some(Times { noticed, lost, running: since }))
                }
                (true, ..) => {
                    Err(Fail::new(format!("job {id} runs again, but {victim} is not lost")))
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
        || format!("the gang should run on two nodes without {victim}, but has {nodes:?}"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_from_what_rank_0_says() {
        assert_eq!(step_of("step 12 of 60, loss 0.1"), Some(12));
        assert_eq!(step_of("rank 0 of 16 on n1"), None);
    }
}
