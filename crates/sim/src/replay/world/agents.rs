//! Agents that do as they are told at once, and what befalls their nodes.

use std::collections::VecDeque;

use tutti_engine::{Command, Effect, Reply, Step};
use tutti_model::{
    Attempt, ExitStatus, Finding, Greeting, LeaseId, NodeId, Order, PartProgress, PartReport, Rank,
    RankExit, RankProgress, ReportedPhase, SavedPoint, Span, TaskId,
};

use super::super::clock::Due;
use super::super::{Host, Misfortune, ReplayError, Restart};
use super::{Stretch, World, operator};
use crate::noise;

const SIGTERM: i32 = 15;
/// Tokens that a rank goes through in a step.
const TOKENS: u64 = 16_384;

impl<H: Host> World<'_, H> {
    pub(super) fn hello(&mut self, greeting: Box<Greeting>) -> Result<(), ReplayError> {
        let session = self.next_session;
        self.next_session += 1;
        let step = self.host.step(Command::Hello { greeting, session, key: None }, self.now);
        match step.reply {
            Ok(Reply::Welcome { node }) => {
                self.sessions.insert(node, session);
            }
            Ok(_) => {}
            Err(source) => return Err(ReplayError::Refused { what: "a node", source }),
        }
        self.obey(step)
    }

    /// Agents do as they are told, at once, and say so.
    pub(super) fn obey(&mut self, step: Step) -> Result<(), ReplayError> {
        let mut effects = VecDeque::from(step.effects);
        self.note(&step.records);
        while let Some(Effect::Tell { node, order }) = effects.pop_front() {
            let lease = order.lease();
            if self.gone.contains(&node) {
                continue;
            }
            let phase = match order {
                Order::Start(launch) if launch.wait_for_go => ReportedPhase::Prepared { port: 1 },
                Order::Start(_) | Order::Go { .. } => ReportedPhase::Running { exits: Vec::new() },
                Order::Stop { .. } => self.ended(lease, node, ExitStatus::Signal(SIGTERM)),
                _ => continue,
            };
            let step = self.report(node, lease, phase)?;
            effects.extend(step.effects);
            self.note(&step.records);
        }
        Ok(())
    }

    fn report(
        &mut self,
        node: NodeId,
        lease: LeaseId,
        phase: ReportedPhase,
    ) -> Result<Step, ReplayError> {
        let session = self.sessions.get(&node).copied().unwrap_or_default();
        let report = PartReport::new(lease, phase);
        let step = self.host.step(Command::Report { node, session, report }, self.now);
        match step.reply {
            Ok(_) => Ok(step),
            Err(source) => Err(ReplayError::Refused { what: "a report", source }),
        }
    }

    /// What a node says when all ranks of a part ended in this way.
    fn ended(&self, lease: LeaseId, node: NodeId, status: ExitStatus) -> ReportedPhase {
        let part = self.attempt(lease).and_then(|a| a.part_on(node));
        let ranks = part.map_or(0..0, |p| p.first_rank.0..p.first_rank.0 + p.ranks);
        let exit = |rank| RankExit { rank: Rank(rank), status, at: self.now };
        ReportedPhase::Done { exits: ranks.map(exit).collect(), error: None }
    }

    pub(super) fn attempt(&self, lease: LeaseId) -> Option<&Attempt> {
        let job = self.state().job(lease.task.job)?;
        job.task(lease.task.index)?.attempt().filter(|a| a.generation == lease.generation)
    }

    pub(super) fn finish(&mut self, lease: LeaseId) -> Result<(), ReplayError> {
        let nodes: Vec<NodeId> =
            self.attempt(lease).into_iter().flat_map(|a| a.parts.iter().map(|p| p.node)).collect();
        let job = self.index_of(lease.task).map(|index| self.work[index].job);
        let code = job.map_or(0, |job| self.trace.jobs[job].manner.exit);
        for node in nodes {
            let phase = self.ended(lease, node, ExitStatus::Code(code));
            let step = self.report(node, lease, phase)?;
            self.obey(step)?;
        }
        Ok(())
    }

    pub(super) fn save(&mut self, lease: LeaseId) -> Result<(), ReplayError> {
        let Restart::Checkpoint(every) = self.options.restart else { return Ok(()) };
        let now = self.now;
        let stretch = self.stretch(lease).filter(|s| s.halted_at.is_none());
        let Some(stretch) = stretch else { return Ok(()) };
        stretch.saved_at = now;
        self.agenda.add(now.plus(every), Due::Saved(lease));
        if self.says_steps(lease.task).is_some() {
            // It tells with its next words.
            return Ok(());
        }
        self.command(Command::Saved { actor: operator(), task: lease.task }, "a checkpoint")
    }

    fn stretch(&mut self, lease: LeaseId) -> Option<&mut Stretch> {
        let index = self.index_of(lease.task)?;
        self.work[index].now.as_mut().filter(|s| s.lease == lease)
    }

    /// The node forgets what it ran, and is out of order until it is repaired. Where agents speak it
    /// falls silent, where they do not it is drained.
    pub(super) fn fail(&mut self, node: NodeId, repair: Span) -> Result<(), ReplayError> {
        self.out.failures += 1;
        self.idle_failures += 1;
        let Some(known) = self.state().node(node) else { return Ok(()) };
        let leases: Vec<LeaseId> = known.used.leases.iter().copied().collect();
        let facts = known.facts.clone();
        let now = self.now;
        for lease in leases {
            let finish = self.stretch(lease).map(|stretch| {
                stretch.halted_at = Some(now);
                stretch.finish
            });
            finish.into_iter().for_each(|at| self.agenda.remove(at, Due::Finish(lease)));
        }
        self.agenda.add(now.plus(repair), Due::Repaired(node));
        if self.heartbeat.is_some() {
            self.gone.insert(node);
            // What a controller misses that has not looked for long may be its own absence.
            self.command(Command::Tick, "a tick")?;
            let patience = self.host.engine().settings().gone_timeout.unwrap_or_default();
            self.agenda.add(now.plus(patience), Due::Look);
            let session = self.session(node);
            return self.command(Command::Gone { node, session }, "that a node is gone");
        }
        let (name, reason) = (facts.name.clone(), "failed".to_owned());
        self.command(
            Command::Drain { actor: operator(), node: name, reason, evict: false },
            "to drain",
        )?;
        self.hello(Box::new(Greeting::new(facts, Vec::new())))
    }

    pub(super) fn repaired(&mut self, node: NodeId) -> Result<(), ReplayError> {
        if self.gone.remove(&node) {
            let facts = self.state().node(node).map(|known| known.facts.clone());
            if let Some(facts) = facts {
                self.hello(Box::new(Greeting::new(facts, Vec::new())))?;
            }
        } else {
            let node = self.state().node_name(node);
            self.command(Command::Resume { actor: operator(), node }, "to resume a node")?;
        }
        self.plan_failure(node);
        Ok(())
    }

    pub(super) fn plan_failure(&mut self, node: NodeId) {
        if self.options.failures > 0.0
            && let Some(after) = self.misfortune.next(node)
        {
            self.agenda.add(self.now.plus(after), Due::Fails(node));
        }
    }

    fn session(&self, node: NodeId) -> u64 {
        self.sessions.get(&node).copied().unwrap_or_default()
    }

    /// Something that the options say. What makes no sense any more is left out.
    pub(super) fn befall(&mut self, place: usize) -> Result<(), ReplayError> {
        let Some(incident) = self.options.incidents.get(place) else { return Ok(()) };
        let actor = operator();
        let command = match &incident.what {
            Misfortune::Fails { node, repair } => {
                let Some(node) = self.node(node) else { return Ok(()) };
                return self.fail(node, *repair);
            }
            Misfortune::Drain { node, reason } => {
                let (node, reason) = (node.clone(), reason.clone());
                Command::Drain { actor, node, reason, evict: false }
            }
            Misfortune::Resume { node } => Command::Resume { actor, node: node.clone() },
            Misfortune::Findings { node, findings } => {
                let Some(node) = self.node(node).filter(|node| !self.gone.contains(node)) else {
                    return Ok(());
                };
                let since = self.now;
                let seen = |found: &Finding| Finding { since, ..found.clone() };
                let (session, findings) = (self.session(node), findings.iter().map(seen).collect());
                Command::Findings { node, session, findings }
            }
            Misfortune::Cancel { job } | Misfortune::Hold { job } | Misfortune::Release { job } => {
                let Some(job) = self.job_of(*job) else { return Ok(()) };
                match &incident.what {
                    Misfortune::Hold { .. } => Command::Hold { actor, job },
                    Misfortune::Release { .. } => Command::Release { actor, job },
                    _ => Command::Cancel { actor, target: TaskId::single(job) },
                }
            }
        };
        let step = self.host.step(command, self.now);
        self.obey(step)
    }

    fn node(&self, name: &str) -> Option<NodeId> {
        let mut nodes = self.state().nodes.values();
        nodes.find(|node| node.facts.name == name).map(|node| node.id)
    }

    fn job_of(&self, place: usize) -> Option<tutti_model::JobId> {
        let mut ids = self.ids.iter();
        ids.find(|(_, first)| self.work[**first].job == place).map(|(id, _)| *id)
    }

    /// Every agent says how its parts are.
    pub(super) fn speak_up(&mut self) -> Result<(), ReplayError> {
        let Some(every) = self.heartbeat else { return Ok(()) };
        self.agenda.add(self.now.plus(every), Due::Heartbeat);
        let nodes: Vec<NodeId> =
            self.sessions.keys().copied().filter(|node| !self.gone.contains(node)).collect();
        for node in nodes {
            let session = self.session(node);
            let parts = self.parts_on(node);
            let step = self.host.step(Command::Heartbeat { node, session, parts }, self.now);
            if let Err(source) = step.reply {
                return Err(ReplayError::Refused { what: "a heartbeat", source });
            }
            self.obey(step)?;
        }
        Ok(())
    }

    fn parts_on(&self, node: NodeId) -> Vec<PartReport> {
        let Some(known) = self.state().node(node) else { return Vec::new() };
        let part = |lease: &LeaseId| {
            let phase = ReportedPhase::Running { exits: Vec::new() };
            let mut report = PartReport::new(*lease, phase);
            report.progress = self.progress(*lease, node).map(Box::new);
            report
        };
        known.used.leases.iter().map(part).collect()
    }

    /// How long a task takes for a step, if it says so.
    fn says_steps(&self, task: TaskId) -> Option<Span> {
        let index = self.index_of(task)?;
        self.trace.jobs[self.work[index].job].manner.step.filter(|step| step.0 > 0)
    }

    /// What the ranks on this node say: far enough for the work that is done.
    fn progress(&self, lease: LeaseId, node: NodeId) -> Option<PartProgress> {
        self.heartbeat?;
        let pace = self.says_steps(lease.task)?;
        let work = &self.work[self.index_of(lease.task)?];
        let stretch = work.now.as_ref().filter(|stretch| stretch.lease == lease)?;
        let part = self.attempt(lease)?.part_on(node)?;
        let ran = |until: tutti_model::Time| until.since(stretch.since).0 as f64 * stretch.speed;
        let step_at = |until| ((work.safe + ran(until)) / pace.0 as f64) as u64;
        let until = stretch.halted_at.unwrap_or(self.now);
        let (step, into) = (step_at(until), (work.safe + ran(until)) as u64 % pace.0);
        let rank = |rank: u32| RankProgress {
            rank: Rank(rank),
            step,
            loss: (rank == 0).then(|| noise::loss(lease.task.job.0, step)),
            tokens: Some(step * TOKENS),
            age: Span(into + self.now.since(until).0),
            pace: Some(pace),
        };
        let saved = (part.first_rank.0 == 0 && stretch.saved_at > stretch.since).then(|| {
            let (step, path) = (step_at(stretch.saved_at), self.checkpoints(lease.task));
            let path = path.map(|dir| format!("{dir}/step-{step}"));
            SavedPoint { step, at: None, path, save_ms: Some(4_000 + step % 900), node: None }
        });
        let saved_age = self.now.since(stretch.saved_at);
        Some(PartProgress {
            ranks: (part.first_rank.0..part.first_rank.0 + part.ranks).map(rank).collect(),
            saved_age: if saved.is_some() { saved_age } else { Span(0) },
            saved,
            fault: None,
        })
    }

    fn checkpoints(&self, task: TaskId) -> Option<&str> {
        let spec = &self.state().job(task.job)?.spec;
        spec.checkpoint.as_ref().map(|checkpoint| checkpoint.dir.as_str())
    }
}
