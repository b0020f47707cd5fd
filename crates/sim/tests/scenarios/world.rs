//! The production engine under a virtual clock, with agents that obey at once. After every step
//! the invariants must hold, and every plan must be the one that a scheduler without memory makes.

use std::collections::{BTreeMap, VecDeque};

use tutti_engine::invariants::{self, PreemptionPays, SuspensionKept};
use tutti_engine::{
    Actor, Command, Effect, Engine, Event, Record, Rejected, Reply, Settings, Step,
};
use tutti_model::{
    Greeting, JobId, LeaseId, Link, NodeFacts, NodeId, Order, PartReport, Placement, Plan, Policy,
    Rank, Role, Span, State, TaskId, Time, WakePart,
};

use crate::agents::{Agent, Work};
use crate::job::JobText;
use crate::policy;
use crate::script::Mishap;
use crate::words::{EPOCH, since_epoch};

/// Passes in one moment, and moments between two of the scenario: more is a loop.
const PASSES_MAX: usize = 1000;
const MOMENTS_MAX: usize = 100_000;
/// Longer than any grace in the scenarios.
const LAST_WAIT: Span = Span::secs(3600);

pub struct World {
    pub engine: Engine,
    pub now: Time,
    pub records: Vec<Record>,
    pub work: Work,
    /// Every order to stop: when, whom, the signal and the grace.
    pub stops: Vec<(LeaseId, Option<String>, Span)>,
    agents: BTreeMap<NodeId, Agent>,
    orders: VecDeque<(NodeId, Order)>,
    next_session: u64,
    pays: PreemptionPays,
    kept: SuspensionKept,
}

/// Something that must never be.
#[derive(Debug)]
pub struct Broken(pub String);

pub fn admin() -> Actor {
    Actor { user: "root".to_owned(), role: Role::Admin }
}

impl World {
    pub fn new(nodes: &[NodeFacts], policy: &Policy) -> Result<World, Broken> {
        let settings = Settings { policy: policy.clone(), ..Settings::default() };
        let mut world = World {
            engine: Engine::new(settings),
            now: EPOCH,
            records: Vec::new(),
            work: Work::default(),
            stops: Vec::new(),
            agents: BTreeMap::new(),
            orders: VecDeque::new(),
            next_session: 1,
            pays: PreemptionPays::default(),
            kept: SuspensionKept::default(),
        };
        let problems = policy.problems();
        if !problems.is_empty() {
            return Err(Broken(format!("the policy is not valid: {problems:?}")));
        }
        accepted(world.command(Command::Start)?)?;
        for facts in nodes {
            world.join(Agent::new(facts.clone()))?;
        }
        Ok(world)
    }

    pub fn state(&self) -> &State {
        self.engine.state()
    }

    pub fn node_id(&self, name: &str) -> Result<NodeId, Broken> {
        let node = self.state().node_named(name);
        node.map(|n| n.id).ok_or_else(|| Broken(format!("there is no node {name}")))
    }

    fn join(&mut self, mut agent: Agent) -> Result<(), Broken> {
        let session = self.next_session;
        self.next_session += 1;
        agent.session = Some(session);
        let greeting = Greeting::new(agent.facts.clone(), agent.reports());
        let known = self.state().node_named(&agent.facts.name).map(|n| n.id);
        let id = known.unwrap_or(NodeId(self.state().next_node.max(1)));
        // Before the answer, so that the orders in it find the agent.
        self.agents.insert(id, agent);
        match self.command(Command::Hello { greeting: Box::new(greeting), session, key: None })? {
            Ok(Reply::Welcome { node }) if node == id => Ok(()),
            other => Err(Broken(format!("an agent was answered with {other:?}"))),
        }
    }

    /// One command, and all that agents do about it.
    pub fn command(&mut self, command: Command) -> Result<Result<Reply, Rejected>, Broken> {
        let before = self.state().clone();
        let step = self.engine.step(command, self.now);
        let reply = self.note(&before, step)?;
        self.deliver()?;
        Ok(reply)
    }

    fn note(&mut self, before: &State, step: Step) -> Result<Result<Reply, Rejected>, Broken> {
        for Effect::Tell { node, order } in step.effects {
            if let Order::Stop { lease, grace, signal } = &order {
                self.stops.push((*lease, signal.clone(), *grace));
            }
            self.orders.push_back((node, order));
        }
        for record in step.records {
            self.pays.note(&record).map_err(|b| Broken(b.to_string()))?;
            self.kept.note(&record).map_err(|b| Broken(b.to_string()))?;
            self.records.push(record);
        }
        if let Some(breach) = invariants::check_all(self.state()).first() {
            return Err(Broken(breach.to_string()));
        }
        invariants::history_forward(before, self.state()).map_err(|b| Broken(b.to_string()))?;
        Ok(step.reply)
    }

    fn deliver(&mut self) -> Result<(), Broken> {
        while let Some((node, order)) = self.orders.pop_front() {
            let Some(agent) = self.agents.get_mut(&node) else { continue };
            let Some(session) = agent.session else { continue };
            let Some(report) = agent.obey(order, self.now, &mut self.work) else { continue };
            self.report(node, session, report)?;
        }
        Ok(())
    }

    fn report(&mut self, node: NodeId, session: u64, report: PartReport) -> Result<(), Broken> {
        let before = self.state().clone();
        let step = self.engine.step(Command::Report { node, session, report }, self.now);
        accepted(self.note(&before, step)?)
    }

    /// Passes until there is nothing left to plan.
    pub fn settle(&mut self) -> Result<(), Broken> {
        for _ in 0..PASSES_MAX {
            if !self.engine.wants_schedule() {
                return Ok(());
            }
            self.pass()?;
        }
        Err(Broken(format!("{PASSES_MAX} passes, and still something to plan")))
    }

    fn pass(&mut self) -> Result<(), Broken> {
        let before = self.state().clone();
        let fresh = tutti_sched::plan(&before, &before.policy, self.now);
        let step = self.engine.schedule(self.now);
        let made = made(&step.records);
        if step.reply.is_ok() && (made, self.engine.plan()) != (asked(&fresh), &said(&fresh)) {
            let kept = (self.engine.plan(), &step.records);
            return Err(Broken(format!(
                "the scheduler with a memory plans otherwise than the one without\n\
                 with: {kept:#?}\nwithout: {fresh:#?}"
            )));
        }
        let refused = |e: Rejected| Broken(e.to_string());
        self.note(&before, step)?.map_err(refused)?;
        self.deliver()
    }

    /// Lets time pass, and everything happen that is due.
    pub fn wait_until(&mut self, at: Time) -> Result<(), Broken> {
        for _ in 0..MOMENTS_MAX {
            let ends = self.agents.values().filter_map(Agent::next);
            let wakeup = self.engine.next_wakeup().filter(|t| *t > self.now);
            // A node that does not answer is watched second by second.
            let watch = self.someone_is_missing().then(|| self.now.plus(Span::secs(1)));
            let next = ends.chain(wakeup).chain(watch).min().unwrap_or(at).max(self.now);
            self.now = next.min(at);
            self.moment()?;
            if self.now == at && next >= at {
                return Ok(());
            }
        }
        Err(Broken(format!("{MOMENTS_MAX} moments before {}", since_epoch(at))))
    }

    fn someone_is_missing(&self) -> bool {
        let missing = |(id, agent): (&NodeId, &Agent)| {
            let link = self.state().node(*id).map(|n| n.link);
            let lost = matches!(link, Some(Link::Lost { .. }));
            let starting =
                agent.stuck && self.state().node(*id).is_some_and(|n| !n.used.leases.is_empty());
            (!lost && (agent.session.is_none() || agent.silent)) || starting
        };
        // What hangs is found by how long it has.
        self.agents.iter().any(missing) || self.agents.values().any(Agent::hangs)
    }

    fn moment(&mut self) -> Result<(), Broken> {
        let nodes: Vec<NodeId> = self.agents.keys().copied().collect();
        for node in &nodes {
            let Some(agent) = self.agents.get_mut(node) else { continue };
            agent.speak(self.now, &mut self.work);
            let reports = agent.end(self.now, &mut self.work);
            let Some(session) = agent.session.filter(|_| !agent.silent) else { continue };
            for report in reports {
                self.report(*node, session, report)?;
            }
        }
        self.deliver()?;
        accepted(self.command(Command::Tick)?)?;
        for node in nodes {
            let Some(agent) = self.agents.get(&node) else { continue };
            let Some(session) = agent.session.filter(|_| !agent.silent) else { continue };
            let parts = agent.reports();
            accepted(self.command(Command::Heartbeat { node, session, parts })?)?;
        }
        self.settle()
    }

    pub fn submit(&mut self, job: &JobText) -> Result<Result<JobId, Rejected>, Broken> {
        let own = || Actor { user: job.user.clone(), role: Role::User };
        let actor = if job.by_admin { admin() } else { own() };
        let spec = Box::new(job.spec.clone());
        let user = Some(job.user.clone());
        // Agents are told only after a pass, so the fate is known in time.
        match self.command(Command::Submit { actor, spec, user, key: None })? {
            Ok(Reply::Submitted { job: id, .. }) => {
                self.work.fates.insert(id, job.fate);
                Ok(Ok(id))
            }
            Ok(other) => Err(Broken(format!("a submission was answered with {other:?}"))),
            Err(rejected) => Ok(Err(rejected)),
        }
    }

    pub fn change_policy(&mut self, lines: &[String]) -> Result<Result<Reply, Rejected>, Broken> {
        let mut policy = Policy::clone(&self.state().policy);
        for line in lines {
            policy::line(&mut policy, line).map_err(Broken)?;
        }
        self.command(Command::SetPolicy { actor: admin(), policy: Box::new(policy) })
    }

    pub fn save(&mut self, task: TaskId) -> Result<Result<Reply, Rejected>, Broken> {
        for agent in self.agents.values() {
            agent.save(task, self.now, &mut self.work);
        }
        self.command(Command::Saved { actor: admin(), task })
    }

    pub fn fail(&mut self, task: TaskId) -> Result<(), Broken> {
        let now = self.now;
        let found = self
            .agents
            .iter_mut()
            .find_map(|(node, agent)| Some((*node, agent.session?, agent.fail(task, now)?)));
        let Some((node, session, report)) = found else {
            return Err(Broken(format!("{task} does not run and can't fail")));
        };
        self.report(node, session, report)?;
        self.deliver()
    }

    pub fn hang(&mut self, task: TaskId, rank: Option<Rank>) -> Result<(), Broken> {
        let now = self.now;
        let hung = self.agents.values_mut().map(|agent| agent.hang(task, rank, now));
        let hung = hung.filter(|hung| *hung).count();
        if hung == 0 { Err(Broken(format!("{task} does not run and can't hang"))) } else { Ok(()) }
    }

    pub fn accuse(&mut self, task: TaskId, by: Rank, rank: Rank) -> Result<(), Broken> {
        let now = self.now;
        let mut agents = self.agents.iter_mut();
        let found = agents.find_map(|(node, agent)| {
            Some((*node, agent.session?, agent.accuse(task, by, rank, now)?))
        });
        let Some((node, session, report)) = found else {
            return Err(Broken(format!("{task} does not run and accuses nobody")));
        };
        self.report(node, session, report)?;
        self.deliver()
    }

    pub fn mishap(&mut self, name: &str, what: Mishap) -> Result<(), Broken> {
        let node = self.node_id(name)?;
        let Some(mut agent) = self.agents.remove(&node) else { return Ok(()) };
        match what {
            Mishap::Lost => agent.lose_everything(),
            Mishap::Hangs => agent.silent = true,
            Mishap::Stuck => agent.stuck = true,
            Mishap::Broken => agent.broken = true,
            Mishap::Refuses => agent.refuses = true,
            Mishap::FailsToWake => agent.fails_to_wake = true,
            Mishap::CutOff | Mishap::AgentRestarted => {}
            Mishap::Gpus(left) => agent.facts.gpus.truncate(left),
            Mishap::Back => {
                (agent.silent, agent.stuck, agent.broken) = (false, false, false);
                (agent.refuses, agent.fails_to_wake) = (false, false);
            }
        }
        let breaks = matches!(
            what,
            Mishap::Lost | Mishap::CutOff | Mishap::AgentRestarted | Mishap::Gpus(_)
        );
        let session = if breaks { agent.session.take() } else { None };
        self.agents.insert(node, agent);
        if let Some(session) = session {
            accepted(self.command(Command::Gone { node, session })?)?;
        }
        match (what, self.agents.remove(&node)) {
            (Mishap::Back | Mishap::AgentRestarted | Mishap::Gpus(_), Some(agent)) => {
                self.join(agent)
            }
            (_, Some(agent)) => {
                self.agents.insert(node, agent);
                Ok(())
            }
            (_, None) => Ok(()),
        }
    }

    /// A new controller replays the journal, and must come to the same state.
    pub fn restart_controller(&mut self) -> Result<(), Broken> {
        let mut engine = Engine::new(self.engine.settings().clone());
        self.records.iter().for_each(|record| engine.replay(record));
        if engine.state() != self.state() {
            return Err(Broken("the replayed journal gives another state".to_owned()));
        }
        self.engine = engine;
        accepted(self.command(Command::Start)?)?;
        for agent in std::mem::take(&mut self.agents).into_values() {
            let (silent, there) = (agent.silent, agent.session.is_some());
            if there && !silent {
                self.join(agent)?;
            } else {
                let node = self.node_id(&agent.facts.name)?;
                self.agents.insert(node, agent);
            }
        }
        // Controllers tick every second: it has seen that everybody is there.
        accepted(self.command(Command::Tick)?)
    }

    /// At the end: nobody was stopped in vain. Room that is still being made is waited for.
    pub fn finish(&mut self) -> Result<(), Broken> {
        if self.pays.finish().is_err() {
            self.wait_until(self.now.plus(LAST_WAIT))?;
        }
        self.pays.finish().map_err(|b| Broken(b.to_string()))
    }
}

fn accepted(reply: Result<Reply, Rejected>) -> Result<(), Broken> {
    reply.map(|_| ()).map_err(|e| Broken(format!("an agent or the clock was refused: {e}")))
}

type Doings = (Vec<Placement>, Vec<TaskId>, Vec<TaskId>, Vec<(TaskId, Vec<WakePart>)>);

/// What a pass did, by its records.
fn made(records: &[Record]) -> Doings {
    let mut made = Doings::default();
    let mut shrunk = Vec::new();
    for record in records {
        match &record.event {
            Event::Placed { task, parts, .. } => {
                made.0.push(Placement { task: *task, parts: parts.clone() });
            }
            // A victim that shrinks claims what it keeps, right after its claimant's claim.
            Event::Claimed { task, .. } if shrunk.contains(task) => {}
            Event::Claimed { task, victims, .. } => {
                made.1.push(*task);
                shrunk.extend(victims.iter().copied().filter(|v| v != task));
            }
            Event::Unclaimed { task } => made.2.push(*task),
            Event::Waking { lease, parts, .. } => made.3.push((lease.task, parts.clone())),
            _ => {}
        }
    }
    made
}

/// The same, by a plan.
fn asked(plan: &Plan) -> Doings {
    let claimed = plan.claims.iter().map(|c| c.task).collect();
    let woken = plan.wakes.iter().map(|w| (w.task, w.parts.clone())).collect();
    (plan.placements.clone(), claimed, plan.dropped.clone(), woken)
}

/// What stays of a plan once it is carried out: its verdicts and heads.
fn said(plan: &Plan) -> Plan {
    Plan {
        placements: Vec::new(),
        claims: Vec::new(),
        wakes: Vec::new(),
        dropped: Vec::new(),
        ..plan.clone()
    }
}
