//! What a line that begins with `expect` says.

use tutti_model::{JobState, NodeState, Span, TaskId, Time, Topology};

use crate::policy::level_of;
use crate::words::{Read, Spot, names, number, span, spots, task, tasks, text, thousandths, time};

#[derive(Clone, Debug, PartialEq)]
pub enum Expect {
    /// The step before was refused, for a reason that contains this.
    Refused(String),
    Tasks {
        tasks: Vec<TaskId>,
        what: Of,
    },
    /// Tasks of an array in this state.
    Count {
        job: TaskId,
        count: usize,
        state: JobState,
    },
    Why {
        task: TaskId,
        what: Why,
    },
    /// Exactly these were suspended for it, up to now.
    SuspendedFor {
        task: TaskId,
        victims: Vec<TaskId>,
    },
    /// Exactly these were stopped for it, up to now.
    StoppedFor {
        task: TaskId,
        victims: Vec<TaskId>,
    },
    NoPreemption,
    /// They started one after another, or at once in this order.
    StartOrder(Vec<TaskId>),
    Quota {
        team: String,
        rows: Vec<(String, u64)>,
    },
    Node {
        node: String,
        state: NodeState,
    },
    FreeGpus {
        node: String,
        gpus: u32,
    },
    /// Why it is drained.
    Says {
        node: String,
        words: String,
    },
}

/// What is expected of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Of {
    State {
        state: JobState,
        verdict: Option<String>,
        on: Option<Vec<Spot>>,
    },
    /// The nodes in the order of its ranks.
    Ranks(Vec<String>),
    Spans(usize, Topology),
    OnNodes(usize),
    StartsBy(Option<Time>),
    StartedAt(Time),
    EndedAt(Time),
    Attempts(u32),
    Preempted(u32),
    NodeFailures(u32),
    ResizedTo(u32),
    AskedToStop {
        signal: Option<String>,
        grace: Span,
    },
    Saved(bool),
    /// How often it was out of its GPUs.
    Suspended(u32),
    /// In thousandths of a GPU.
    Charged(u64),
    Team(String),
    Claims(Vec<Spot>),
    Stalled,
    /// The reason of its end begins with these words.
    EndedBy(String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    Says(String),
    Advises(String),
    Holders(Vec<TaskId>),
    Ahead(u64),
    /// Earliest and latest start that is foretold.
    Forecast(Time, Option<Time>),
}

pub fn read(words: &[&str]) -> Read<Expect> {
    Ok(match words {
        ["refused", reason] => Expect::Refused(text(reason)),
        ["no", "preemption"] => Expect::NoPreemption,
        ["why", of, rest @ ..] => Expect::Why { task: task(of)?, what: why(rest)? },
        ["start", "order", rest @ ..] => {
            let ids = names(rest)?;
            Expect::StartOrder(ids.iter().map(|id| task(id)).collect::<Read<_>>()?)
        }
        ["suspended", "for", of, rest @ ..] => {
            let victims = if *rest == ["nobody"] { Vec::new() } else { tasks(rest)? };
            Expect::SuspendedFor { task: task(of.trim_end_matches(':'))?, victims }
        }
        ["stopped", "for", of, rest @ ..] => {
            let victims = if *rest == ["nobody"] { Vec::new() } else { tasks(rest)? };
            Expect::StoppedFor { task: task(of.trim_end_matches(':'))?, victims }
        }
        ["quota", team, rows @ ..] => Expect::Quota {
            team: (*team).to_owned(),
            rows: rows.chunks(2).map(row).collect::<Read<_>>()?,
        },
        [job, "has", n, state] if task(job).is_ok() => {
            let state = JobState::named(state).ok_or_else(|| format!("'{state}' is no state"))?;
            Expect::Count { job: task(job)?, count: number(n)?, state }
        }
        [node, "has", n, "gpus" | "gpu", "free"] => {
            Expect::FreeGpus { node: (*node).to_owned(), gpus: number(n)? }
        }
        [node, "says", words] => Expect::Says { node: (*node).to_owned(), words: text(words) },
        [node, state] if node_state(state).is_some() && task(node).is_err() => {
            let state = node_state(state).ok_or_else(|| format!("'{state}' is no state"))?;
            Expect::Node { node: (*node).to_owned(), state }
        }
        _ => of_tasks(words)?,
    })
}

fn row(pair: &[&str]) -> Read<(String, u64)> {
    match pair {
        [key @ ("share" | "target"), percent] => {
            let percent: u64 = number(percent.trim_end_matches('%'))?;
            Ok(((*key).to_owned(), percent * 10))
        }
        [key @ ("used" | "borrowed" | "lent"), gpus] => {
            Ok(((*key).to_owned(), thousandths(gpus)?.into()))
        }
        [key @ ("running" | "waiting" | "guarantee" | "limit"), n] => {
            Ok(((*key).to_owned(), number(n)?))
        }
        _ => Err(format!("'{}' is no column of the quota table with a value", pair.join(" "))),
    }
}

fn why(words: &[&str]) -> Read<Why> {
    Ok(match words {
        ["says", words] => Why::Says(text(words)),
        ["advises", words] => Why::Advises(text(words)),
        ["holders", rest @ ..] => Why::Holders(tasks(rest)?),
        ["ahead", n] => Why::Ahead(number(n)?),
        ["forecast", "from", early] => Why::Forecast(time(early)?, None),
        ["forecast", early, "to", late] => Why::Forecast(time(early)?, Some(time(late)?)),
        _ => return Err(format!("'{}' is no answer to why", words.join(" "))),
    })
}

fn of_tasks(words: &[&str]) -> Read<Expect> {
    let is_task = |w: &&&str| w.starts_with(|c: char| c.is_ascii_digit());
    let count = words.iter().take_while(is_task).count();
    let (left, rest) = words.split_at(count);
    let ids = names(left)?;
    let tasks = ids.iter().map(|id| task(id)).collect::<Read<Vec<_>>>()?;
    if tasks.is_empty() {
        return Err(format!("'{}' can't be expected", words.join(" ")));
    }
    Ok(Expect::Tasks { tasks, what: of(rest)? })
}

fn of(words: &[&str]) -> Read<Of> {
    let plain = |state| Of::State { state, verdict: None, on: None };
    Ok(match words {
        ["pending:", rest @ ..] => {
            Of::State { state: JobState::Pending, verdict: Some(rest.join(" ")), on: None }
        }
        [state, "on", rest @ ..] if JobState::named(state).is_some() => Of::State {
            state: JobState::named(state).unwrap_or(JobState::Running),
            verdict: None,
            on: Some(spots(rest)?),
        },
        [state] if JobState::named(state).is_some() => {
            plain(JobState::named(state).unwrap_or(JobState::Running))
        }
        ["ranks", rest @ ..] => Of::Ranks(names(rest)?),
        ["spans", n, level] => Of::Spans(number(n)?, level_of(level)?),
        ["on", n, "nodes" | "node"] => Of::OnNodes(number(n)?),
        ["starts", "by", at] => Of::StartsBy(Some(time(at)?)),
        ["has", "no", "time", "to", "start"] => Of::StartsBy(None),
        ["started", "at", at] => Of::StartedAt(time(at)?),
        ["ended", "at", at] => Of::EndedAt(time(at)?),
        ["tried", n, "times" | "time"] => Of::Attempts(number(n)?),
        ["preempted", n, "times" | "time"] => Of::Preempted(number(n)?),
        ["suspended", n, "times" | "time"] => Of::Suspended(number(n)?),
        ["lost", n, "nodes" | "node"] => Of::NodeFailures(number(n)?),
        ["resized", "to", n, "nodes" | "node"] => Of::ResizedTo(number(n)?),
        ["asked", "to", "stop", "within", grace] => {
            Of::AskedToStop { signal: None, grace: span(grace)? }
        }
        ["asked", "by", signal, "to", "stop", "within", grace] => {
            Of::AskedToStop { signal: Some((*signal).to_owned()), grace: span(grace)? }
        }
        ["saved", "its", "work"] => Of::Saved(true),
        ["lost", "its", "work"] => Of::Saved(false),
        ["charged", gpus, "gpus" | "gpu"] => Of::Charged(thousandths(gpus)?.into()),
        ["charged", "to", team] => Of::Team((*team).to_owned()),
        ["stalled"] => Of::Stalled,
        ["ended", "by", rest @ ..] => Of::EndedBy(rest.join(" ")),
        ["claims", rest @ ..] => Of::Claims(spots(rest)?),
        _ => return Err(format!("'{}' can't be expected of a job", words.join(" "))),
    })
}

fn node_state(word: &str) -> Option<NodeState> {
    let all = [
        NodeState::Ready,
        NodeState::Cleaning,
        NodeState::Draining,
        NodeState::Drained,
        NodeState::Away,
        NodeState::Lost,
    ];
    all.into_iter().find(|s| s.as_str() == word)
}
