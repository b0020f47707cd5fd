//! Last scene: the controller's own account of it all must agree with what was seen.

use std::collections::BTreeMap;

use tutti_model::{JobState, NodeState, Restarts};
use tutti_wire::api::JobQuery;

use super::report::Totals;
use super::stage::{Stage, check};
use super::{GPUS_PER_NODE, NODES};
use crate::fail::Fail;

/// Two gangs, the small job, 200 array tasks, and a chain of three; its fourth was cancelled, and so
/// was the endpoint's replica when the endpoint was stopped.
const COMPLETED: u64 = 206;
const CANCELLED: u64 = 2;

pub fn play(stage: &mut Stage<'_>) -> Result<Totals, Fail> {
    stage.view.begin("totals", "asking the controller for its account");
    let client = stage.client();
    let info = client.cluster_info()?;
    let idle = info.gpus_used == 0 && info.gpus == u32::from(NODES * GPUS_PER_NODE);
    check(idle && info.simulated, || {
        format!("{} of {} GPUs are in use after everything has ended", info.gpus_used, info.gpus)
    })?;
    let nodes = client.nodes()?;
    check(nodes.iter().all(|n| n.state == NodeState::Ready), || {
        let states: Vec<_> = nodes.iter().map(|n| (&n.name, n.state)).collect();
        format!("every node should be ready: {states:?}")
    })?;
    let count = |state: JobState| info.tasks.get(state.as_str()).copied().unwrap_or_default();
    check(
        count(JobState::Completed) == COMPLETED && count(JobState::Cancelled) == CANCELLED,
        || {
            format!(
                "{COMPLETED} completed and {CANCELLED} cancelled were expected: {:?}",
                info.tasks
            )
        },
    )?;
    let page = client.jobs(&JobQuery { limit: Some(1000), ..JobQuery::default() })?;
    let mut restarts = Restarts::default();
    let mut exit_codes = BTreeMap::new();
    for row in &page.jobs {
        let of = client.job(row.id)?.restarts_by_cause;
        restarts.node_failure += of.node_failure;
        restarts.preemption += of.preemption;
        restarts.job_failure += of.job_failure;
        restarts.health += of.health;
        if let Some(code) = row.exit_code {
            *exit_codes.entry(code).or_insert(0) += row.array.as_ref().map_or(1, |a| a.completed);
        }
    }
    stage.view.done(&format!(
        "{} jobs with {} tasks, every GPU free, every node ready",
        page.jobs.len(),
        info.tasks.values().sum::<u64>()
    ));
    Ok(Totals { jobs: page.jobs.len() as u64, tasks: info.tasks, exit_codes, restarts })
}
