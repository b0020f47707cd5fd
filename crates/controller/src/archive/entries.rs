//! An ended job as rows of the archive.

use std::sync::Arc;

use bytes::Bytes;
use tutti_archive::jobs::{reason_word, spec_json};
use tutti_archive::{JobEntry, More};
use tutti_model::{
    Amounts, Day, Demand, Ended, IndexRanges, Job, Node, NodeFacts, ReportLine, Shape, State, Task,
    Tasks,
};

use crate::views::{cause_words, ended_row, suspensions, without_secrets};

/// The day whose file has it: when the last of it ended.
pub fn day(job: &Job) -> Option<Day> {
    job.ended_at().map(Day::of)
}

/// How many rows it takes.
pub fn rows(job: &Job) -> usize {
    match &job.tasks {
        Tasks::One(_) => 1,
        Tasks::Array(a) => a.ended.len() + usize::from(a.never_started.is_some()),
    }
}

/// A job on its way out, and what became of its GPU-time.
pub struct Leaving {
    pub job: Arc<Job>,
    pub time: Amounts,
    pub goodput: Option<ReportLine>,
}

/// Made one by one: an array may have a million tasks. `names` knows the nodes, see [`names`].
pub fn entries<'a>(names: &'a State, leaving: &'a Leaving) -> impl Iterator<Item = JobEntry> + 'a {
    // Of the whole job, so that sums over rows come out right.
    let rows = of_job(names, &leaving.job).enumerate();
    rows.map(move |(n, entry)| if n == 0 { first(entry, leaving) } else { entry })
}

fn first(entry: JobEntry, leaving: &Leaving) -> JobEntry {
    let more = entry.more.map(|more| More { goodput: leaving.goodput.clone(), ..more });
    JobEntry { time: Some(leaving.time.clone()), more, ..entry }
}

fn of_job<'a>(names: &'a State, job: &'a Job) -> Box<dyn Iterator<Item = JobEntry> + 'a> {
    // Environments carry keys and passwords, and these files are for many eyes and many years.
    let spec = spec_json(&without_secrets(&job.spec));
    match &job.tasks {
        Tasks::One(task) => {
            let ended = job.ended(None).into_iter();
            Box::new(ended.map(move |e| entry(names, job, None, e, Some(task), spec.clone())))
        }
        Tasks::Array(array) => {
            let never = array.never_started.as_deref().into_iter();
            let (of_never, of_task) = (spec.clone(), spec);
            let never = never.map(move |(indices, ended)| {
                several(entry(names, job, None, ended, None, of_never.clone()), indices)
            });
            let task = move |(&i, ended)| entry(names, job, Some(i), ended, None, of_task.clone());
            Box::new(array.ended.iter().map(task).chain(never))
        }
    }
}

fn several(entry: JobEntry, indices: &IndexRanges) -> JobEntry {
    JobEntry { tasks: indices.len(), indices: Some(indices.clone()), ..entry }
}

fn entry(
    names: &State,
    job: &Job,
    index: Option<u32>,
    ended: &Ended,
    task: Option<&Task>,
    spec: Option<Bytes>,
) -> JobEntry {
    let row = ended_row(names, job, index, ended);
    let asked = Shape::of(&Demand::of(&job.spec));
    let first = ended.nodes.first().and_then(|node| names.node(*node));
    let gpu = first.and_then(|node| node.facts.gpus.first()).filter(|_| row.gpus > 0);
    let past = task.map(Task::past);
    JobEntry {
        tasks: 1,
        indices: None,
        reason: reason_word(&ended.reason).to_owned(),
        attempts: ended.attempts,
        restarts: ended.restarts,
        ran: ended.last_ran,
        gpu_model: gpu.map(|gpu| gpu.model.clone()),
        cpus_per_node: asked.cpus,
        mem_per_node: asked.mem.0,
        time: None,
        spec,
        more: Some(More {
            end: ended.reason.clone(),
            checkpoints: past.map_or_else(Vec::new, |past| past.points.clone()),
            suspensions: task.map_or_else(Vec::new, |task| suspensions(names, task)),
            stopped_before: past
                .and_then(|past| past.stopped.as_deref())
                .map(|why| cause_words(names, why)),
            goodput: None,
            replica_of: job.replica_of.as_deref().cloned(),
            output_dropped: ended.output_dropped,
        }),
        row,
    }
}

/// The names of the nodes and what GPUs they have, as a state that knows nothing else: rows are made
/// when nobody holds the lock any more.
pub fn names(state: &State) -> State {
    let bare = |node: &Node| Node {
        id: node.id,
        facts: NodeFacts {
            name: node.facts.name.clone(),
            gpus: node.facts.gpus.first().cloned().into_iter().collect(),
            ..NodeFacts::default()
        },
        link: node.link,
        drain: None,
        stale: Default::default(),
        joined_at: node.joined_at,
        strikes: Vec::new(),
        up_since: None,
        good_at: None,
        burn_in: None,
        gpu_bench: None,
        findings: Vec::new(),
        used: Default::default(),
    };
    let nodes = state.nodes.iter().map(|(id, node)| (*id, bare(node))).collect();
    State { nodes, ..State::default() }
}
