//! Agents without latency: what they are told is done at once. Jobs run as long as their fate says
//! and leave when they are told to, within their grace.

use std::collections::BTreeMap;

use tutti_model::{
    Blame, ExitStatus, JobId, Launch, LeaseId, NodeFacts, Order, PartError, PartReport, Rank,
    RankExit, ReportedPhase, Span, TaskId, Time,
};

use crate::job::Fate;

/// What jobs do, and how far each task has come.
#[derive(Debug, Default)]
pub struct Work {
    pub fates: BTreeMap<JobId, Fate>,
    /// Run time that is safe: an attempt goes on from there.
    pub safe: BTreeMap<TaskId, Span>,
    /// Whether a stop found time to save, by task, newest stop.
    pub saved: BTreeMap<TaskId, bool>,
}

#[derive(Debug)]
pub struct Agent {
    pub facts: NodeFacts,
    /// None: not connected.
    pub session: Option<u64>,
    /// Says nothing, though it is connected.
    pub silent: bool,
    /// Does nothing that it is told.
    pub stuck: bool,
    /// Can't start anything.
    pub broken: bool,
    parts: BTreeMap<LeaseId, Part>,
}

#[derive(Debug)]
struct Part {
    launch: Box<Launch>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Prepared,
    Running(Run),
    Stopping { run: Run, at: Time, saves: bool },
    Done { status: Option<ExitStatus>, error: Option<PartError>, at: Time },
}

#[derive(Clone, Copy, Debug)]
struct Run {
    since: Time,
    /// Run time that earlier attempts had saved.
    safe: Span,
    ends: Option<(Time, ExitStatus)>,
}

impl Agent {
    pub fn new(facts: NodeFacts) -> Agent {
        Agent {
            facts,
            session: None,
            silent: false,
            stuck: false,
            broken: false,
            parts: BTreeMap::new(),
        }
    }

    pub fn reports(&self) -> Vec<PartReport> {
        self.parts.iter().map(|(&lease, part)| part.report(lease)).collect()
    }

    /// No power: whatever ran is gone, and nothing tells of it.
    pub fn lose_everything(&mut self) {
        self.parts.clear();
    }

    pub fn obey(&mut self, order: Order, now: Time, work: &mut Work) -> Option<PartReport> {
        if self.stuck || self.silent {
            return None;
        }
        let lease = order.lease();
        match order {
            Order::Start(launch) if self.broken => {
                let message = "the GPUs are not there".to_owned();
                let error = Some(PartError { message, blame: Blame::Node });
                let phase = Phase::Done { status: None, error, at: now };
                self.parts.insert(lease, Part { launch, phase });
            }
            Order::Start(launch) => {
                let waits = launch.wait_for_go;
                let part = Part { launch, phase: Phase::Prepared };
                let part = self.parts.entry(lease).or_insert(part);
                if !waits {
                    part.go(lease, now, work);
                }
            }
            Order::Go { .. } => self.parts.get_mut(&lease)?.go(lease, now, work),
            Order::Stop { grace, .. } => match self.parts.get_mut(&lease) {
                // It was told before, and has said so.
                Some(Part { phase: Phase::Stopping { .. }, .. }) => return None,
                Some(part) => part.stop(lease, grace, now, work),
                None => {
                    let phase = ReportedPhase::Done { exits: Vec::new(), error: None };
                    return Some(PartReport::new(lease, phase));
                }
            },
            Order::Forget { .. } => {
                self.parts.remove(&lease);
                return None;
            }
        }
        Some(self.parts.get(&lease)?.report(lease))
    }

    /// When something ends here next.
    pub fn next(&self) -> Option<Time> {
        self.parts.values().filter_map(Part::ends_at).min()
    }

    /// What ends now.
    pub fn end(&mut self, now: Time, work: &mut Work) -> Vec<PartReport> {
        let due = |part: &Part| part.ends_at().is_some_and(|at| at <= now);
        let mut reports = Vec::new();
        for (&lease, part) in self.parts.iter_mut().filter(|(_, part)| due(part)) {
            part.finish(lease, now, work);
            reports.push(part.report(lease));
        }
        reports
    }

    /// The task writes a checkpoint of its own accord.
    pub fn save(&self, task: TaskId, now: Time, work: &mut Work) {
        for (_, part) in self.parts.iter().filter(|(lease, _)| lease.task == task) {
            if let Phase::Running(run) = &part.phase {
                work.safe.insert(task, Span(run.safe.0 + now.since(run.since).0));
            }
        }
    }

    /// A rank of the task fails.
    pub fn fail(&mut self, task: TaskId, now: Time) -> Option<PartReport> {
        let (&lease, part) = self.parts.iter_mut().find(|(lease, _)| lease.task == task)?;
        part.phase = Phase::Done { status: Some(ExitStatus::Code(1)), error: None, at: now };
        Some(part.report(lease))
    }
}

impl Part {
    fn go(&mut self, lease: LeaseId, now: Time, work: &mut Work) {
        if !matches!(self.phase, Phase::Prepared) {
            return;
        }
        let fate = work.fates.get(&lease.task.job).copied().unwrap_or_default();
        let safe = work.safe.get(&lease.task).copied().unwrap_or_default();
        let after = |span: Span| now.plus(Span(span.0.saturating_sub(safe.0)));
        let fails = fate.fails_after.map(|span| (after(span), ExitStatus::Code(1)));
        let ends = fate.runs.map(|span| (after(span), ExitStatus::Code(0)));
        let ends = fails.into_iter().chain(ends).min_by_key(|(at, _)| *at);
        self.phase = Phase::Running(Run { since: now, safe, ends });
    }

    fn stop(&mut self, lease: LeaseId, grace: Span, now: Time, work: &mut Work) {
        let run = match self.phase {
            Phase::Running(run) => run,
            Phase::Prepared => {
                self.phase = Phase::Done { status: None, error: None, at: now };
                return;
            }
            _ => return,
        };
        let fate = work.fates.get(&lease.task.job).copied().unwrap_or_default();
        let takes = if fate.ignores_stop { grace } else { fate.saves_in.unwrap_or_default() };
        let saves = fate.saves_in.is_some_and(|takes| takes <= grace);
        self.phase = Phase::Stopping { run, at: now.plus(takes.min(grace)), saves };
        if self.ends_at() == Some(now) {
            self.finish(lease, now, work);
        }
    }

    fn ends_at(&self) -> Option<Time> {
        match &self.phase {
            Phase::Running(run) => run.ends.map(|(at, _)| at),
            Phase::Stopping { run, at, .. } => Some(run.ends.map_or(*at, |(end, _)| end.min(*at))),
            _ => None,
        }
    }

    fn finish(&mut self, lease: LeaseId, now: Time, work: &mut Work) {
        let by_itself = |run: &Run| run.ends.filter(|(at, _)| *at <= now).map(|(_, how)| how);
        let status = match &self.phase {
            Phase::Running(run) => by_itself(run),
            Phase::Stopping { run, saves, .. } => {
                work.saved.insert(lease.task, *saves);
                if *saves {
                    let done = Span(run.safe.0 + now.since(run.since).0);
                    work.safe.insert(lease.task, done);
                }
                by_itself(run).or(Some(ExitStatus::Signal(15)))
            }
            _ => return,
        };
        self.phase = Phase::Done { status, error: None, at: now };
    }

    fn report(&self, lease: LeaseId) -> PartReport {
        let phase = match &self.phase {
            Phase::Prepared => ReportedPhase::Prepared { port: 20_000 },
            Phase::Running(_) | Phase::Stopping { .. } => {
                ReportedPhase::Running { exits: Vec::new() }
            }
            Phase::Done { status, error, at } => {
                let ranks = status.map_or(0, |_| self.launch.ranks);
                let status = status.unwrap_or(ExitStatus::Code(0));
                let first = self.launch.first_rank.0;
                let exit = |n| RankExit { rank: Rank(first + n), status, at: *at };
                ReportedPhase::Done { exits: (0..ranks).map(exit).collect(), error: error.clone() }
            }
        };
        PartReport::new(lease, phase)
    }
}
