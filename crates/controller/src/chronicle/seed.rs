//! What a state still knows of the past.

use tutti_model::{Ended, Job, State, TaskId, Tasks, Time};

use super::{Chronicle, End, Stay};

/// Ended jobs that are looked at, the newest ones.
const ENDED_MAX: usize = 10_000;

impl Chronicle {
    pub fn of(state: &State) -> Chronicle {
        let mut chronicle = Chronicle::default();
        let newest = state.index.ended.iter().rev().take(ENDED_MAX);
        let mut ended: Vec<(TaskId, &Ended)> = Vec::new();
        for job in newest.filter_map(|(_, id)| state.job(*id)) {
            ended.extend(ended_tasks(job));
        }
        ended.sort_by_key(|(task, ended)| (ended.ended_at, *task));
        for (task, ended) in ended {
            chronicle.keep(last_stay(task, ended));
        }
        for (lease, stay) in state.index.active.iter().filter_map(|task| open_stay(state, *task)) {
            chronicle.open.insert(lease, stay);
        }
        for node in state.nodes.values().filter(|node| !node.findings.is_empty()) {
            chronicle.nodes.entry(node.id).or_default().stands(&node.findings);
        }
        chronicle
    }
}

fn ended_tasks(job: &Job) -> Vec<(TaskId, &Ended)> {
    match &job.tasks {
        Tasks::One(_) => {
            let ended = job.ended(None).filter(|ended| !ended.nodes.is_empty());
            ended.map(|ended| (TaskId::single(job.id), ended)).into_iter().collect()
        }
        Tasks::Array(array) => {
            let ran = array.ended.iter().filter(|(_, ended)| !ended.nodes.is_empty());
            ran.map(|(index, ended)| (TaskId::of_array(job.id, *index), ended)).collect()
        }
    }
}

/// Of what is over, only the last attempt is known, and not which GPUs it had.
fn last_stay(task: TaskId, ended: &Ended) -> Stay {
    let ran = ended.last_ran.map(|ran| Time(ended.ended_at.0.saturating_sub(ran.0)));
    let placed = ran.or(ended.started_at).unwrap_or(ended.ended_at);
    Stay {
        task,
        attempt: ended.attempts,
        parts: ended.nodes.iter().map(|node| (*node, Vec::new())).collect(),
        placed,
        running: ended.started_at.map(|_| placed),
        ended: Some(ended.ended_at),
        naps: Vec::new(),
        stopped: None,
        end: End::Ended(Box::new(ended.clone())),
    }
}

fn open_stay(state: &State, task: TaskId) -> Option<(tutti_model::LeaseId, Stay)> {
    let attempt = state.job(task.job)?.task(task.index)?.attempt()?;
    let stay = Stay {
        task,
        attempt: attempt.number,
        parts: attempt.parts.iter().map(|part| (part.node, part.gpus.clone())).collect(),
        placed: attempt.placed_at,
        running: attempt.running_since(state.at),
        ended: None,
        naps: attempt.naps.iter().map(|nap| (nap.since, nap.until)).collect(),
        stopped: None,
        end: End::Open,
    };
    Some((attempt.lease(task), stay))
}
