//! Follows each piece of advice and sees whether the task starts.

use std::sync::Arc;

use tutti_model::*;

use super::start_all;
use crate::testing::*;

/// The state after the pass, as the engine has it when somebody asks why.
fn settled(c: &Case) -> Case {
    let mut c = Case { state: c.state.clone(), policy: c.policy.clone() };
    c.policy.placements_max = 4096;
    start_all(&mut c);
    c
}

fn starts(c: &Case, job: JobId) -> bool {
    c.plan().placements.iter().any(|p| p.task.job == job)
}

fn pending(c: &Case) -> Vec<TaskId> {
    let state = c.state();
    let jobs = state.jobs.values();
    let ids = jobs.map(|job| match &job.tasks {
        Tasks::One(_) => TaskId::single(job.id),
        Tasks::Array(a) => TaskId { job: job.id, index: a.waiting.first() },
    });
    ids.filter(|t| state.job(t.job).unwrap().task_state(t.index) == Some(JobState::Pending))
        .collect()
}

pub(super) fn check(c: &Case) {
    let c = settled(c);
    for task in pending(&c) {
        let explained = c.explain(&task.to_string());
        for advice in &explained.advice {
            let changed = follow(&c, task.job, advice);
            let Some((after, job)) = changed else { continue };
            assert!(starts(&after, job), "{task}: {advice}: {:?}", after.plan());
        }
    }
}

/// The case with the advice followed, and the job that should start.
fn follow(c: &Case, job: JobId, advice: &str) -> Option<(Case, JobId)> {
    let mut after = Case { state: c.state.clone(), policy: c.policy.clone() };
    let words: Vec<&str> = advice.split([' ', ',', ':', '(']).filter(|w| !w.is_empty()).collect();
    if advice.contains("wait for its turn") {
        return None;
    }
    match words.as_slice() {
        ["release", ..] => after.state.jobs_mut(job)?.held = false,
        ["give", ..] => after.state.jobs_mut(job)?.priority = Priority(1000),
        ["resume" | "bring", ..] => {
            for node in after.state.nodes.values_mut() {
                if words.contains(&node.facts.name.as_str()) {
                    (node.link, node.drain) = (Link::Up, None);
                }
            }
        }
        _ => return resubmit(after, job, &words),
    }
    Some((after, job))
}

fn resubmit(mut c: Case, job: JobId, words: &[&str]) -> Option<(Case, JobId)> {
    // What waits of the old one is out of the way; what runs of it goes on.
    let old = c.state.jobs_mut(job)?;
    old.held = true;
    let mut spec = JobSpec::clone(&old.spec);
    spec.priority = old.priority;
    spec.array = None;
    let model = spec.gpus_per_node.as_ref().and_then(|g| g.model.clone());
    let number = || words[2].parse::<u32>().unwrap();
    match words {
        ["without", ..] => spec.gpus_per_node.as_mut()?.model = None,
        ["ask", "for", _, "CPU" | "CPUs", "per", "GPU", ..] => spec.cpus_per_gpu = Some(number()),
        ["ask", "for", _, "CPU" | "CPUs", "per", "node", ..] => {
            spec.cpus_per_node = Some(number());
        }
        ["ask", "for", mem, "of", "memory", ..] => spec.mem_per_node = Some(mem.parse().unwrap()),
        ["ask", "for", _, "GPU" | "GPUs", "per", "node", ..] => {
            spec.gpus_per_node = Some(GpuRequest { model, count: number() });
        }
        ["ask", "for", _, "GPU" | "GPUs", ..] => {
            (spec.nodes, spec.gpus) = (None, Some(number()));
        }
        ["ask", "for", _, "node" | "nodes", ..] => spec.nodes = Some(number()),
        other => panic!("unknown advice: {other:?}"),
    }
    let id = JobId(c.state.next_job + 1);
    Some((c.submit_ago(Span(0), spec), id))
}

/// Ends everybody whose limit is over by then, and sees whether the task starts.
pub(super) fn check_starts_by(c: &Case) {
    let c = settled(c);
    let limit =
        |task: &Task, spec: &JobSpec| Some(task.attempt()?.running_since()?.plus(spec.time?));
    for task in pending(&c) {
        let Some(by) = c.explain(&task.to_string()).starts_by else { continue };
        let mut after = Case { state: c.state.clone(), policy: c.policy.clone() };
        for job in after.state.jobs.values_mut() {
            let job = Arc::make_mut(job);
            let spec = job.spec.clone();
            let over = |t: &Task| limit(t, &spec).is_some_and(|end| end <= by);
            match &mut job.tasks {
                Tasks::One(t) if over(t) => t.phase = Phase::Ended(ended()),
                Tasks::One(_) => {}
                Tasks::Array(a) => a.live.retain(|_, t| !over(t)),
            }
        }
        let plan = crate::plan(&after.state(), &after.policy, by);
        assert!(plan.placements.iter().any(|p| p.task == task), "{task} by {by:?}: {plan:?}");
    }
}

fn ended() -> Ended {
    Ended {
        outcome: Outcome::Completed,
        exit_code: Some(0),
        reason: EndReason::Finished,
        started_at: None,
        ended_at: NOW,
        attempts: 1,
        restarts: Restarts::default(),
        nodes: Vec::new(),
        gpus: 0,
    }
}
