//! A scenario file taken apart: the cluster, the policy, and what happens when.

use tutti_model::{JobId, NodeFacts, Policy, Priority, Rank, Span, TaskId};

use crate::expect::{self, Expect};
use crate::job::{self, JobText};
use crate::words::{Read, named_attributes, names, number, span, split, task, without_comment};
use crate::{cluster, policy};

#[derive(Debug, Default)]
pub struct Script {
    pub nodes: Vec<NodeFacts>,
    pub policy: Policy,
    pub moments: Vec<Moment>,
}

#[derive(Debug)]
pub struct Moment {
    pub line: usize,
    pub at: Span,
    pub steps: Vec<(usize, Step)>,
}

#[derive(Debug)]
pub enum Step {
    Submit {
        id: JobId,
        job: Box<JobText>,
    },
    Cancel(TaskId),
    Hold(JobId),
    Release(JobId),
    Priority(JobId, Priority),
    Saved(TaskId),
    Fail(TaskId),
    /// A rank of the task, or all of them, make no steps any more.
    Hang(TaskId, Option<Rank>),
    /// The rank says that the other is dead or hangs, and leaves.
    Accuse(TaskId, Rank, Rank),
    Drain(String),
    Evict(String),
    Resume(String),
    Suspend(TaskId),
    Wake(TaskId),
    Node(String, Mishap),
    RestartController,
    /// Changes of the running policy.
    Policy(Vec<String>),
    Expect(Expect),
}

/// What can happen to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// No power: everything on it is gone.
    Lost,
    /// No network: what runs on it goes on.
    CutOff,
    /// The agent is there and says nothing more.
    Hangs,
    /// The agent lives, and does nothing that it is told.
    Stuck,
    /// Nothing can be started on it.
    Broken,
    /// Nothing on it can be suspended.
    Refuses,
    /// Nothing on it can wake.
    FailsToWake,
    /// All is well again, and the agent connects.
    Back,
    /// Only the agent: what runs on the node goes on.
    AgentRestarted,
    /// GPUs beyond this many are broken: the agent starts again and finds the others.
    Gpus(usize),
}

/// What is wrong with a file, and in which line.
#[derive(Debug)]
pub struct BadLine {
    pub line: usize,
    pub problem: String,
}

enum Section {
    None,
    Cluster,
    Policy,
    Moment,
}

impl Script {
    pub fn read(text: &str) -> Result<Script, BadLine> {
        let mut script = Script::default();
        let mut section = Section::None;
        // How far the lines of a policy inside a moment are to the right.
        let mut inner: Option<usize> = None;
        for (line, raw) in (1..).zip(text.lines()) {
            let raw = without_comment(raw);
            if raw.trim().is_empty() {
                continue;
            }
            let indent = raw.len() - raw.trim_start().len();
            let in_policy = inner.is_some_and(|by| indent > by);
            inner = inner.filter(|_| in_policy);
            let read = if indent == 0 {
                script.begin(line, raw).map(|new| section = new)
            } else if in_policy {
                script.more_policy(raw.trim())
            } else {
                if matches!(section, Section::Moment) && raw.trim() == "policy" {
                    inner = Some(indent);
                }
                script.line(&section, line, raw.trim())
            };
            read.map_err(|problem| BadLine { line, problem })?;
        }
        Ok(script)
    }

    fn begin(&mut self, line: usize, text: &str) -> Read<Section> {
        match split(text).as_slice() {
            ["cluster"] => Ok(Section::Cluster),
            ["policy"] => Ok(Section::Policy),
            ["at", at] => {
                let at = span(at)?;
                if self.moments.last().is_some_and(|m| m.at >= at) {
                    return Err(format!("'at {at}' does not come after the moment before it"));
                }
                self.moments.push(Moment { line, at, steps: Vec::new() });
                Ok(Section::Moment)
            }
            _ => Err(format!("'{text}' is none of cluster, policy, at TIME")),
        }
    }

    fn line(&mut self, section: &Section, line: usize, text: &str) -> Read<()> {
        match section {
            Section::None => Err("comes before cluster, policy or at".to_owned()),
            Section::Cluster => {
                self.nodes.extend(cluster::nodes(text)?);
                Ok(())
            }
            Section::Policy => policy::line(&mut self.policy, text),
            Section::Moment => {
                let steps = steps(text)?;
                if let Some(moment) = self.moments.last_mut() {
                    moment.steps.extend(steps.into_iter().map(|step| (line, step)));
                }
                Ok(())
            }
        }
    }

    fn more_policy(&mut self, text: &str) -> Read<()> {
        // Read on a copy now, so that a slip of the pen is found in its line.
        policy::line(&mut Policy::default(), text)?;
        let last = self.moments.last_mut().and_then(|m| m.steps.last_mut());
        if let Some((_, Step::Policy(lines))) = last {
            lines.push(text.to_owned());
        }
        Ok(())
    }
}

fn steps(line: &str) -> Read<Vec<Step>> {
    let words = split(line);
    let step = match words.as_slice() {
        ["submit", ..] => return submit(line),
        ["expect", rest @ ..] => Step::Expect(expect::read(rest)?),
        ["policy"] => Step::Policy(Vec::new()),
        ["cancel", of] => Step::Cancel(task(of)?),
        ["hold", job] => Step::Hold(JobId(number(job)?)),
        ["release", job] => Step::Release(JobId(number(job)?)),
        ["priority", job, p] => {
            Step::Priority(JobId(number(job)?), p.parse().map_err(|e| format!("{e}"))?)
        }
        ["saved", of] => Step::Saved(task(of)?),
        ["fail", of] => Step::Fail(task(of)?),
        ["rank", rank, "of", of, "hangs"] => Step::Hang(task(of)?, Some(Rank(number(rank)?))),
        [of, "hangs"] if task(of).is_ok() => Step::Hang(task(of)?, None),
        ["rank", by, "of", of, "accuses", "rank", rank] => {
            Step::Accuse(task(of)?, Rank(number(by)?), Rank(number(rank)?))
        }
        ["evict", node] => Step::Evict((*node).to_owned()),
        ["drain", node] => Step::Drain((*node).to_owned()),
        ["suspend", of] => Step::Suspend(task(of)?),
        ["resume", of] if task(of).is_ok() => Step::Wake(task(of)?),
        [node, "refuses", "to", "suspend"] => Step::Node((*node).to_owned(), Mishap::Refuses),
        [node, "fails", "to", "wake"] => Step::Node((*node).to_owned(), Mishap::FailsToWake),
        ["resume", node] => Step::Resume((*node).to_owned()),
        ["restart", "controller"] => Step::RestartController,
        ["restart", "agent", node] => Step::Node((*node).to_owned(), Mishap::AgentRestarted),
        ["lose", node] => Step::Node((*node).to_owned(), Mishap::Lost),
        ["cut", "off", node] => Step::Node((*node).to_owned(), Mishap::CutOff),
        [node, "hangs"] => Step::Node((*node).to_owned(), Mishap::Hangs),
        [node, "is", "stuck"] => Step::Node((*node).to_owned(), Mishap::Stuck),
        [node, "is", "broken"] => Step::Node((*node).to_owned(), Mishap::Broken),
        [node, "is", "left", "with", n, "gpus" | "gpu"] => {
            Step::Node((*node).to_owned(), Mishap::Gpus(number(n)?))
        }
        [node, "is", "back"] => Step::Node((*node).to_owned(), Mishap::Back),
        _ => return Err(format!("'{line}' is nothing that can happen")),
    };
    Ok(vec![step])
}

/// `submit 3: ...`, or `submit 3..8: ...` for jobs that are alike.
fn submit(line: &str) -> Read<Vec<Step>> {
    let (left, attributes) = named_attributes(line)?;
    let ids = names(&split(left)[1..])?;
    let job = job::job(&attributes)?;
    let step =
        |id: &String| Ok(Step::Submit { id: JobId(number(id)?), job: Box::new(job.clone()) });
    ids.iter().map(step).collect()
}
