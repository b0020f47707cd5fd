//! Agents without latency: what they are told is done at once. Jobs run as long as their fate says
//! and leave when they are told to, within their grace.

use std::collections::BTreeMap;

use tutti_model::{
    Blame, Bytes, ExitStatus, Fault, GpuIndex, JobId, Launch, LeaseId, NodeFacts, Order, PartError,
    PartProgress, PartReport, Rank, RankExit, RankProgress, ReportedPhase, SavedPoint, Span,
    Suspension, TaskId, Time,
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
    /// Nothing here can be suspended, or nothing can wake.
    pub refuses: bool,
    pub fails_to_wake: bool,
    parts: BTreeMap<LeaseId, Part>,
}

#[derive(Debug)]
struct Part {
    launch: Box<Launch>,
    phase: Phase,
    /// Ranks that make no steps, and since when; and what the ranks said.
    hung: BTreeMap<Rank, Time>,
    said: Option<Box<PartProgress>>,
    /// What its ranks have on its GPUs, if they say so.
    holds: Option<Bytes>,
    sleep: Sleep,
}

/// On the way out of its GPUs and back. Meanwhile it stands still.
#[derive(Clone, Copy, Debug, Default)]
enum Sleep {
    #[default]
    Awake,
    Going {
        at: Time,
        until: Time,
    },
    Out {
        at: Time,
    },
    Coming {
        at: Time,
        until: Time,
    },
    Refused,
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
            refuses: false,
            fails_to_wake: false,
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
                self.parts.insert(lease, Part::new(launch, phase));
            }
            Order::Start(launch) => {
                let waits = launch.wait_for_go;
                let part = Part::new(launch, Phase::Prepared);
                let part = self.parts.entry(lease).or_insert(part);
                if !waits {
                    part.go(lease, now, work);
                }
            }
            Order::Go { .. } => self.parts.get_mut(&lease)?.go(lease, now, work),
            Order::Suspend { .. } => self.parts.get_mut(&lease)?.suspend(self.refuses, now)?,
            Order::Wake { gpus, .. } => {
                let fails = self.fails_to_wake;
                self.parts.get_mut(&lease)?.wake(gpus, fails, now)?;
            }
            Order::Stop { grace, .. } => match self.parts.get_mut(&lease) {
                // It was told before, and has said so.
                Some(Part { phase: Phase::Stopping { .. }, .. }) => return None,
                Some(part) => part.stop(lease, grace, now, work),
                None => {
                    let phase = ReportedPhase::Done { exits: Vec::new(), error: None };
                    return Some(PartReport::new(lease, phase));
                }
            },
            Order::Limit { .. } => return None,
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
            if !part.turn_over(now) {
                part.finish(lease, now, work);
            }
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

    /// Ranks say how far they are; what they save is safe.
    pub fn speak(&mut self, now: Time, work: &mut Work) {
        for (lease, part) in &mut self.parts {
            let fate = work.fates.get(&lease.task.job).copied().unwrap_or_default();
            if let (Some(step), Phase::Running(run), true) =
                (fate.step, &part.phase, part.is_awake())
            {
                let safe = part.progress(*run, step, fate.saves_every, now);
                work.safe.extend(safe.map(|span| (lease.task, span)));
            }
        }
    }

    pub fn hangs(&self) -> bool {
        let running = |p: &Part| matches!(p.phase, Phase::Running(_)) && !p.hung.is_empty();
        self.parts.values().any(running)
    }

    /// Whether any rank of the task is here to hang.
    pub fn hang(&mut self, task: TaskId, rank: Option<Rank>, now: Time) -> bool {
        let of_task = self.parts.iter_mut().filter(|(lease, _)| lease.task == task);
        let mut any = false;
        for (_, part) in of_task {
            if !matches!(part.phase, Phase::Running(_)) {
                continue;
            }
            let hung = part.ranks().filter(|r| rank.is_none_or(|rank| rank == *r));
            let hung: Vec<Rank> = hung.collect();
            any |= !hung.is_empty();
            part.hung.extend(hung.into_iter().map(|r| (r, now)));
            if let Phase::Running(run) = &mut part.phase
                && !part.hung.is_empty()
            {
                run.ends = None;
            }
        }
        any
    }

    /// The rank's part says who is dead or hangs, and that the rank has left.
    pub fn accuse(&mut self, task: TaskId, by: Rank, rank: Rank, now: Time) -> Option<PartReport> {
        let here = |(l, p): &(&LeaseId, &mut Part)| l.task == task && p.ranks().any(|r| r == by);
        let (&lease, part) = self.parts.iter_mut().find(here)?;
        let fault = Some(Fault { rank, op: "all_reduce".into(), why: "scenario".into() });
        let said = part.said.take().map_or_else(PartProgress::default, |said| *said);
        part.said = Some(Box::new(PartProgress { fault, ..said }));
        part.phase = Phase::Done { status: Some(ExitStatus::Code(1)), error: None, at: now };
        Some(part.report(lease))
    }

    /// A rank of the task fails.
    pub fn fail(&mut self, task: TaskId, now: Time) -> Option<PartReport> {
        let (&lease, part) = self.parts.iter_mut().find(|(lease, _)| lease.task == task)?;
        part.phase = Phase::Done { status: Some(ExitStatus::Code(1)), error: None, at: now };
        Some(part.report(lease))
    }
}

impl Part {
    fn new(launch: Box<Launch>, phase: Phase) -> Part {
        let (hung, said, holds) = (BTreeMap::new(), None, None);
        Part { launch, phase, hung, said, holds, sleep: Sleep::Awake }
    }

    fn is_awake(&self) -> bool {
        matches!(self.sleep, Sleep::Awake | Sleep::Refused)
    }

    fn takes(&self, per_second: u64) -> Span {
        Span(self.holds.unwrap_or(Bytes::gib(1)).0 * 1000 / per_second)
    }

    fn suspend(&mut self, refuses: bool, now: Time) -> Option<()> {
        if !self.is_awake() || !matches!(self.phase, Phase::Running(_)) {
            return None;
        }
        let until = now.plus(self.takes(3 << 29));
        self.sleep = if refuses { Sleep::Refused } else { Sleep::Going { at: now, until } };
        Some(())
    }

    fn wake(&mut self, gpus: Vec<GpuIndex>, fails: bool, now: Time) -> Option<()> {
        self.sleep = match self.sleep {
            Sleep::Out { .. } if fails => Sleep::Refused,
            Sleep::Out { at } | Sleep::Going { at, .. } => {
                self.launch.gpus = gpus;
                Sleep::Coming { at, until: now.plus(self.takes(4 << 30)) }
            }
            Sleep::Refused => Sleep::Awake,
            _ => return None,
        };
        Some(())
    }

    /// It is out, or back as if the time in between had not been.
    fn turn_over(&mut self, now: Time) -> bool {
        match self.sleep {
            Sleep::Going { at, until } if until <= now => self.sleep = Sleep::Out { at },
            Sleep::Coming { at, until } if until <= now => {
                self.sleep = Sleep::Awake;
                if let Phase::Running(run) = &mut self.phase {
                    let away = now.since(at);
                    run.since = run.since.plus(away);
                    run.ends = run.ends.map(|(at, how)| (at.plus(away), how));
                }
            }
            _ => return false,
        }
        true
    }

    fn suspension(&self) -> Option<Suspension> {
        Some(match self.sleep {
            Sleep::Awake => return None,
            Sleep::Going { .. } => Suspension::Suspending,
            Sleep::Out { .. } => {
                Suspension::Suspended { bytes: self.holds.unwrap_or(Bytes::gib(1)) }
            }
            Sleep::Coming { .. } => Suspension::Waking,
            Sleep::Refused => Suspension::Refused { why: "scenario".to_owned() },
        })
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let first = self.launch.first_rank.0;
        (first..first + self.launch.ranks).map(Rank)
    }

    /// Where its ranks are. Gives the run time that is safe.
    fn progress(&mut self, run: Run, step: Span, saves: Option<u64>, now: Time) -> Option<Span> {
        let steps_at = |at: Time| {
            let moved = run.safe.0 + at.since(run.since).0;
            (moved / step.0, moved % step.0)
        };
        let of_rank = |rank: Rank| {
            let moved_until = self.hung.get(&rank).copied().unwrap_or(now);
            let (done, more) = steps_at(moved_until);
            let pace = (at_least_five(run, step, moved_until)).then_some(step);
            let age = Span(more + now.since(moved_until).0);
            RankProgress { rank, step: done, loss: None, tokens: None, age, pace }
        };
        let ranks: Vec<RankProgress> = self.ranks().map(of_rank).collect();
        let least = ranks.iter().map(|r| r.step).min().unwrap_or(0);
        let point = saves.map(|n| least / n * n).filter(|step| *step > 0);
        let saved =
            point.map(|step| SavedPoint { step, at: None, path: None, save_ms: None, node: None });
        let fault = self.said.take().and_then(|said| said.fault);
        self.said = Some(Box::new(PartProgress { ranks, saved, fault, ..Default::default() }));
        point.map(|steps| Span(steps * step.0))
    }

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
        self.holds = fate.holds;
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
        // What stands still can't save, and is killed as it is.
        let frozen = !self.is_awake();
        let takes = match fate.saves_in {
            _ if frozen => Span(0),
            _ if fate.ignores_stop => grace,
            saves_in => saves_in.unwrap_or_default(),
        };
        let saves = !frozen && fate.saves_in.is_some_and(|takes| takes <= grace);
        let run = if frozen { Run { ends: None, ..run } } else { run };
        self.sleep = Sleep::Awake;
        self.phase = Phase::Stopping { run, at: now.plus(takes.min(grace)), saves };
        if self.ends_at() == Some(now) {
            self.finish(lease, now, work);
        }
    }

    fn ends_at(&self) -> Option<Time> {
        match self.sleep {
            Sleep::Going { until, .. } | Sleep::Coming { until, .. } => return Some(until),
            Sleep::Out { .. } => return None,
            Sleep::Awake | Sleep::Refused => {}
        }
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
        let running = matches!(self.phase, Phase::Running(_));
        PartReport {
            progress: self.said.clone(),
            suspension: self.suspension().filter(|_| running),
            gpu_mem: self.holds.filter(|_| running),
            ..PartReport::new(lease, phase)
        }
    }
}

/// Before that there is no usual time of a step.
fn at_least_five(run: Run, step: Span, at: Time) -> bool {
    at.since(run.since).0 >= 5 * step.0
}
