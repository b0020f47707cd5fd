//! One seeded run: a storm, then a calm in which everything must heal.

mod serving;

use std::collections::BTreeMap;
use std::sync::Arc;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tutti_engine::{Actor, Command, Effect, Rejected, Reply, Settings, invariants};
use tutti_model::{
    GpuIndex, Grant, Job, JobId, JobSpec, JobState, Link as NodeLink, NodeId, NodeKeyRecord, Order,
    Priority, Role, State, Task, TaskId, Time, Token,
};

use crate::controller::{Controller, Counts, Crash};
use crate::net::{Link, ToController, Weather, chance};
use crate::node::Node;
use crate::workload::{USERS, random_policy, random_spec, random_update};
use serving::Serving;

const STEP_MS: u64 = 100;
const HEARTBEAT_MS: u64 = 1000;
const FINDINGS_MS: u64 = 5000;
const ACTIVITY_MS: u64 = 3000;

/// When every run begins: a storm crosses midnight (UTC) in its middle, where the ledger turns to
/// another day. Sometime in 2024, so that clocks have the size that they have elsewhere.
pub(crate) const START: Time = Time(20_000 * 86_400_000 - 20_000);

/// How rough a run is.
#[derive(Clone, Debug)]
pub struct Storm {
    pub nodes: u32,
    pub gpus_per_node: u16,
    pub jobs: usize,
    /// Steps of a tenth of a second each.
    pub stormy_steps: u32,
    pub calm_steps: u32,
    pub weather: Weather,
    /// Chances of a thousand, per step.
    pub controller_crash: u32,
    pub node_crash: u32,
    pub agent_restart: u32,
    pub node_wipe: u32,
    pub cut_off: u32,
    /// Ranks accuse others, or hang.
    pub accuse: u32,
    pub hang: u32,
    /// Parts of a node can't be suspended or can't wake, or can again.
    pub refuse: u32,
    /// A GPU or a node breaks, or is mended.
    pub illness: u32,
    pub clock_jump: u32,
    /// People cancel, change, hold, release, drain and resume.
    pub meddling: u32,
    /// So many endpoints come and go, in every fourth seed.
    pub endpoints: usize,
}

impl Default for Storm {
    fn default() -> Self {
        Storm {
            nodes: 4,
            gpus_per_node: 4,
            jobs: 16,
            stormy_steps: 500,
            calm_steps: 9000,
            weather: Weather { lose: 50, repeat: 50, delay_max_ms: 800 },
            controller_crash: 8,
            node_crash: 4,
            agent_restart: 6,
            node_wipe: 1,
            cut_off: 4,
            accuse: 6,
            hang: 6,
            refuse: 2,
            illness: 4,
            clock_jump: 3,
            meddling: 25,
            endpoints: 2,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub journal_hash: [u8; 32],
    pub records: usize,
    pub jobs: usize,
    pub restarts: u32,
    pub controller_crashes: u32,
    /// Leases that a node still ran when it came back, after they had been given up.
    pub stale_seen: u32,
    /// Claims for which others were stopped, and how many of their tasks started.
    pub preempting: u64,
    pub preempting_started: u64,
    pub counts: Counts,
}

/// What went wrong, with everything needed to see it again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("seed {seed}, step {step}: {found}")]
pub struct Failure {
    pub seed: u64,
    pub step: u32,
    pub found: String,
}

/// Runs one seed to the end.
pub fn run(seed: u64, storm: &Storm) -> Result<Summary, Failure> {
    World::new(seed, storm.clone()).play()
}

/// The same once more, to see that it writes the same journal. What held the first time is not looked
/// at again: a run that is the same is as sound.
pub fn run_again(seed: u64, storm: &Storm) -> Result<Summary, Failure> {
    World { examined: false, ..World::new(seed, storm.clone()) }.play()
}

/// The journal of one seed: encoded records, as they are stored.
pub fn journal(seed: u64, storm: &Storm) -> Result<Vec<Vec<u8>>, Failure> {
    let mut world = World::new(seed, storm.clone());
    world.storm()?;
    world.calm()?;
    Ok(world.controller.into_journal())
}

struct Request {
    spec: JobSpec,
    user: &'static str,
    key: String,
    answer: Option<Result<JobId, Rejected>>,
}

struct World {
    seed: u64,
    step: u32,
    storm: Storm,
    weather: Weather,
    rng: ChaCha8Rng,
    /// True time; the controller's clock may be off by `skew`.
    now: Time,
    skew: i64,
    controller: Controller,
    nodes: Vec<Node>,
    links: Vec<Link>,
    ids: BTreeMap<NodeId, usize>,
    next_session: u64,
    requests: Vec<Request>,
    crashes: u32,
    stale_seen: u32,
    before: State,
    /// Invariants are checked after every step.
    examined: bool,
    serving: Serving,
}

impl World {
    fn new(seed: u64, storm: Storm) -> World {
        let nodes: Vec<Node> =
            (1..=storm.nodes).map(|i| Node::new(&format!("n{i}"), storm.gpus_per_node)).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let settings = Settings { policy: random_policy(&mut rng), ..Settings::default() };
        World {
            seed,
            step: 0,
            weather: storm.weather,
            rng,
            now: START,
            skew: 0,
            controller: Controller::new(settings),
            links: nodes.iter().map(|_| Link::default()).collect(),
            nodes,
            ids: BTreeMap::new(),
            next_session: 1,
            requests: Vec::new(),
            crashes: 0,
            stale_seen: 0,
            before: State::default(),
            examined: true,
            serving: Serving::new(seed, if seed.is_multiple_of(4) { storm.endpoints } else { 0 }),
            storm,
        }
    }

    fn play(mut self) -> Result<Summary, Failure> {
        self.storm()?;
        self.calm()?;
        Ok(self.summary())
    }

    fn storm(&mut self) -> Result<(), Failure> {
        (0..self.nodes.len()).for_each(|i| self.connect(i));
        for _ in 0..self.storm.stormy_steps {
            self.make_trouble();
            if chance(&mut self.rng, self.storm.meddling) {
                self.meddle()?;
            }
            if self.requests.len() < self.storm.jobs && chance(&mut self.rng, 120) {
                self.new_request();
            }
            self.people_serve()?;
            self.tick()?;
        }
        Ok(())
    }

    /// No more faults: within a bounded time all is well.
    fn calm(&mut self) -> Result<(), Failure> {
        self.weather = Weather::CALM;
        for i in 0..self.nodes.len() {
            self.links[i].cut = false;
            self.nodes[i].down_until = None;
            self.nodes[i].findings.clear();
        }
        while self.requests.len() < self.storm.jobs {
            self.new_request();
        }
        self.put_right()?;
        for step in 0..self.storm.calm_steps {
            self.tick()?;
            self.release_held()?;
            self.wake_suspended()?;
            self.resume_taken_out()?;
            self.drop_sealed_days()?;
            self.serve_out(step)?;
            if self.healed().is_ok() {
                return self.final_checks();
            }
        }
        let found = self.healed().expect_err("the loop ends when all is well");
        Err(self.failure(format!("not healed: {found}")))
    }

    fn make_trouble(&mut self) {
        let storm = self.storm.clone();
        if chance(&mut self.rng, storm.clock_jump) {
            self.skew += self.rng.random_range(-30_000..30_000i64);
        }
        for i in 0..self.nodes.len() {
            if chance(&mut self.rng, storm.node_crash) {
                let down = self.rng.random_range(500..20_000);
                self.nodes[i].crash(Time(self.now.0 + down));
                self.links[i].break_session(self.now);
            }
            if chance(&mut self.rng, storm.node_wipe) {
                let down = self.rng.random_range(500..20_000);
                self.nodes[i].wipe(Time(self.now.0 + down));
                self.links[i].break_session(self.now);
            }
            if chance(&mut self.rng, storm.agent_restart) {
                self.links[i].break_session(self.now);
            }
            if chance(&mut self.rng, storm.accuse) {
                self.nodes[i].accuse(&mut self.rng, self.now);
            }
            if chance(&mut self.rng, storm.hang) {
                self.nodes[i].hang(self.now);
            }
            // For a while, nothing there can be suspended, or nothing can wake.
            if chance(&mut self.rng, storm.refuse) {
                self.nodes[i].refuses ^= 1;
            }
            if chance(&mut self.rng, storm.refuse) {
                self.nodes[i].fails_to_wake ^= 1;
            }
            if chance(&mut self.rng, storm.illness) {
                self.nodes[i].fall_ill(&mut self.rng, self.now);
            }
            if chance(&mut self.rng, storm.cut_off) {
                self.links[i].clear();
                self.links[i].cut = true;
            } else if self.links[i].cut && chance(&mut self.rng, 8) {
                self.links[i].cut = false;
                self.links[i].break_session(self.now);
            }
        }
    }

    fn new_request(&mut self) {
        let known: Vec<JobId> = self
            .requests
            .iter()
            .filter_map(|r| r.answer.as_ref()?.as_ref().ok())
            .copied()
            .collect();
        let spec = random_spec(&mut self.rng, &known, self.storm.nodes);
        let key = format!("key-{}", self.requests.len());
        let user = USERS[self.rng.random_range(0..USERS.len())];
        self.requests.push(Request { spec, user, key, answer: None });
    }

    /// Somebody does something to a random job or node.
    fn meddle(&mut self) -> Result<(), Failure> {
        let actor = Actor { user: "root".into(), role: Role::Admin };
        let jobs: Vec<JobId> = self.controller.engine.state().jobs.keys().copied().collect();
        let node = format!("n{}", self.rng.random_range(1..=self.storm.nodes));
        let job = match jobs.len() {
            0 => return Ok(()),
            n => jobs[self.rng.random_range(0..n)],
        };
        let command = match self.rng.random_range(0..19) {
            0 => Command::Cancel { actor, target: TaskId::single(job) },
            1 => {
                let index = Some(self.rng.random_range(0..6));
                Command::Cancel { actor, target: TaskId { job, index } }
            }
            2 => Command::Hold { actor, job },
            3 | 4 => Command::Release { actor, job },
            5 => {
                let priority = Priority(self.rng.random_range(-2..=2));
                Command::SetPriority { actor, job, priority }
            }
            6 => Command::Drain {
                actor,
                node,
                reason: "sim".into(),
                evict: self.rng.random_bool(0.5),
            },
            7 => Command::Saved { actor, task: TaskId::single(job) },
            8 => Command::SetPolicy { actor, policy: Box::new(random_policy(&mut self.rng)) },
            9 | 10 => Command::Suspend { actor, target: self.somebody_active(job) },
            11 => Command::Wake { actor, target: self.somebody_active(job) },
            12 => {
                let force = self.rng.random_bool(0.7);
                Command::RemoveNode { actor, node, force }
            }
            13 => return self.readmit(node),
            14..=17 => {
                let update = Box::new(random_update(&mut self.rng, &jobs));
                Command::Update { actor, job: self.somebody_waiting(job), update }
            }
            _ => Command::Resume { actor, node },
        };
        self.command(command)?;
        Ok(())
    }

    /// Somebody who was removed gets a key again, or whoever has a name gets another.
    fn readmit(&mut self, node: String) -> Result<(), Failure> {
        let actor = Actor { user: "root".into(), role: Role::Admin };
        let token = Token {
            id: format!("join-{node}"),
            hash: String::new(),
            grant: Grant::Join { node: Some(node.clone()), uses: None },
            created_at: self.now,
            created_by: actor.user.clone(),
            expires_at: None,
        };
        let (id, key) = (token.id.clone(), format!("key-{}", self.step));
        self.command(Command::AddToken { actor, token })?;
        self.command(Command::UseJoinToken { id, node, key })?;
        Ok(())
    }

    /// A task that has a lease, if any has one.
    fn somebody_active(&mut self, else_job: JobId) -> TaskId {
        let active = &self.controller.engine.state().index.active;
        match active.len() {
            0 => TaskId::single(else_job),
            n => {
                let at = self.rng.random_range(0..n);
                active.iter().nth(at).copied().unwrap_or(TaskId::single(else_job))
            }
        }
    }

    /// A job of which something waits, most of the time: little can change about the others.
    fn somebody_waiting(&mut self, else_job: JobId) -> JobId {
        let jobs = self.controller.engine.state().jobs.values();
        let waits = |j: &&Arc<Job>| j.state() == JobState::Pending;
        let waiting: Vec<JobId> = jobs.filter(waits).map(|j| j.id).collect();
        match waiting.len() {
            0 => else_job,
            _ if self.rng.random_range(0..4) == 0 => else_job,
            n => waiting[self.rng.random_range(0..n)],
        }
    }

    /// Undoes what people did that would keep work waiting for ever.
    fn put_right(&mut self) -> Result<(), Failure> {
        let actor = Actor { user: "root".into(), role: Role::Admin };
        let keys = self.controller.engine.state().node_keys.iter();
        let gone = keys.filter(|(_, record)| matches!(record, NodeKeyRecord::Removed { .. }));
        let gone: Vec<String> = gone.map(|(name, _)| name.clone()).collect();
        gone.into_iter().try_for_each(|node| self.readmit(node))?;
        let nodes: Vec<String> =
            self.controller.engine.state().nodes.values().map(|n| n.facts.name.clone()).collect();
        for node in nodes {
            self.command(Command::Resume { actor: actor.clone(), node })?;
        }
        Ok(())
    }

    /// The same for those that somebody suspended.
    fn wake_suspended(&mut self) -> Result<(), Failure> {
        let jobs = self.controller.engine.state().jobs.values();
        let asleep = jobs.flat_map(|j| j.live_tasks()).filter(|(_, t)| is_kept(t));
        let asleep: Vec<TaskId> = asleep.map(|(id, _)| id).collect();
        for target in asleep {
            let actor = Actor { user: "root".into(), role: Role::Admin };
            self.command(Command::Wake { actor, target })?;
        }
        Ok(())
    }

    /// Held jobs wait for people; in the calm somebody lets them go.
    fn release_held(&mut self) -> Result<(), Failure> {
        let held = |j: &&Arc<Job>| j.held && !j.is_over();
        let jobs = self.controller.engine.state().jobs.values();
        let held: Vec<JobId> = jobs.filter(held).map(|j| j.id).collect();
        for job in held {
            let actor = Actor { user: "root".into(), role: Role::Admin };
            self.command(Command::Release { actor, job })?;
        }
        Ok(())
    }

    /// Somebody looks after the nodes that were taken out, too.
    fn resume_taken_out(&mut self) -> Result<(), Failure> {
        let nodes = self.controller.engine.state().nodes.values();
        let out = nodes.filter(|n| n.drain.as_ref().is_some_and(|d| d.auto));
        let names: Vec<String> = out.map(|n| n.facts.name.clone()).collect();
        for node in names {
            let actor = Actor { user: "root".into(), role: Role::Admin };
            self.command(Command::Resume { actor, node })?;
        }
        Ok(())
    }

    /// What the archive has taken over leaves memory.
    fn drop_sealed_days(&mut self) -> Result<(), Failure> {
        for day in self.controller.engine.state().goodput.sealed_days() {
            self.command(Command::DropLedger { day })?;
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Failure> {
        self.step += 1;
        self.now.0 += STEP_MS;
        self.clients()?;
        self.agents();
        self.deliver()?;
        if self.now.0.is_multiple_of(HEARTBEAT_MS) {
            self.command(Command::Tick)?;
            self.routers()?;
        }
        if self.now.0.is_multiple_of(ACTIVITY_MS) {
            self.fall_idle()?;
        }
        if chance(&mut self.rng, 10) {
            self.controller.snapshot();
        }
        self.exclusive_gpus()
    }

    /// Samples of some node say that some of its GPUs do nothing now.
    fn fall_idle(&mut self) -> Result<(), Failure> {
        let turn = u64::from(self.step) / 100;
        let node = NodeId(1 + (turn % u64::from(self.storm.nodes)) as u32);
        let is_idle = |gpu: &u16| turn >> (gpu % 4) & 1 == 1;
        let idle = (0..self.storm.gpus_per_node).filter(is_idle).map(GpuIndex).collect();
        // Some are known to have done nothing for a while.
        let since = (turn % 3 > 0).then(|| Time(self.now.0.saturating_sub(turn % 7 * 1000)));
        self.command(Command::Activity { node, idle, since })?;
        Ok(())
    }

    /// Clients repeat what was not answered, with the same key.
    fn clients(&mut self) -> Result<(), Failure> {
        for i in 0..self.requests.len() {
            if self.requests[i].answer.is_some() || chance(&mut self.rng, self.weather.lose) {
                continue;
            }
            let (spec, key) = (self.requests[i].spec.clone(), self.requests[i].key.clone());
            // Only an admin may call a job urgent.
            let role = match spec.class.as_deref() {
                Some("urgent") => Role::Admin,
                _ => Role::User,
            };
            let actor = Actor { user: self.requests[i].user.into(), role };
            let command =
                Command::Submit { actor, spec: Box::new(spec), user: None, key: Some(key) };
            let reply = self.command(command)?;
            self.requests[i].answer = reply.map(|r| match r {
                Ok(Reply::Submitted { job, .. }) => Ok(job),
                Ok(other) => panic!("a submission was answered with {other:?}"),
                Err(rejected) => Err(rejected),
            });
        }
        Ok(())
    }

    fn agents(&mut self) {
        for i in 0..self.nodes.len() {
            if let Some(until) = self.nodes[i].down_until {
                if until > self.now {
                    continue;
                }
                self.nodes[i].down_until = None;
            }
            if self.links[i].session == 0 && !self.links[i].cut {
                self.connect(i);
            }
            for report in self.nodes[i].tick(self.now) {
                self.send_up(i, ToController::Report(report));
            }
            if self.now.0.is_multiple_of(HEARTBEAT_MS) {
                let parts = self.nodes[i].reports();
                self.send_up(i, ToController::Heartbeat(parts));
            }
            if self.now.0.is_multiple_of(FINDINGS_MS) {
                let findings = self.nodes[i].findings.clone();
                self.send_up(i, ToController::Findings(findings));
            }
        }
    }

    fn connect(&mut self, i: usize) {
        self.links[i].session = self.next_session;
        self.next_session += 1;
        let greeting = self.nodes[i].greeting();
        self.send_up(i, ToController::Hello(greeting));
    }

    fn send_up(&mut self, i: usize, message: ToController) {
        if self.links[i].session != 0 {
            self.links[i].send_up(&mut self.rng, self.weather, self.now, message);
        }
    }

    fn deliver(&mut self) -> Result<(), Failure> {
        for i in 0..self.nodes.len() {
            while let Some(order) = self.links[i].next_down(self.now) {
                self.obey(i, order);
            }
            while let Some((session, message)) = self.links[i].next_up(self.now) {
                self.hear(i, session, message)?;
            }
        }
        Ok(())
    }

    fn obey(&mut self, i: usize, order: Order) {
        if self.nodes[i].down_until.is_some() {
            return;
        }
        let stop = matches!(order, Order::Stop { .. }).then(|| order.lease());
        let mut reports = self.nodes[i].obey(order, self.now);
        reports.extend(stop.and_then(|lease| self.nodes[i].answer_unknown(lease)));
        for report in reports {
            self.send_up(i, ToController::Report(report));
        }
    }

    fn hear(&mut self, i: usize, session: u64, message: ToController) -> Result<(), Failure> {
        let node = self.ids.iter().find(|(_, at)| **at == i).map(|(id, _)| *id);
        match (message, node) {
            (ToController::Hello(greeting), _) => {
                match self.command(Command::Hello { greeting, session, key: None })? {
                    Some(Ok(Reply::Welcome { node })) => {
                        // After it was removed it is another node.
                        self.ids.retain(|_, at| *at != i);
                        self.ids.insert(node, i);
                    }
                    _ => self.hang_up(i, session),
                }
            }
            (ToController::Closed, node) => {
                if let Some(node) = node {
                    self.command(Command::Gone { node, session })?;
                }
                self.hang_up(i, session);
            }
            (_, None) => self.hang_up(i, session),
            (ToController::Heartbeat(parts), Some(node)) => {
                self.expect_session(i, session, Command::Heartbeat { node, session, parts })?;
            }
            (ToController::Findings(findings), Some(node)) => {
                let command = Command::Findings { node, session, findings };
                self.expect_session(i, session, command)?;
            }
            (ToController::Report(report), Some(node)) => {
                self.expect_session(i, session, Command::Report { node, session, report })?;
            }
        }
        Ok(())
    }

    /// The shell closes a stream whose session the engine does not know (any more).
    fn expect_session(&mut self, i: usize, session: u64, c: Command) -> Result<(), Failure> {
        if let Some(Err(Rejected::StaleSession(_))) = self.command(c)? {
            self.hang_up(i, session);
        }
        Ok(())
    }

    fn hang_up(&mut self, i: usize, session: u64) {
        if self.links[i].session == session {
            self.links[i].clear();
            self.links[i].session = 0;
        }
    }

    /// One command through the real engine, perhaps with a crash in the middle.
    fn command(&mut self, command: Command) -> Result<Option<Result<Reply, Rejected>>, Failure> {
        let calm = self.weather.lose == 0;
        let crash = if calm || !chance(&mut self.rng, self.storm.controller_crash) {
            Crash::No
        } else if chance(&mut self.rng, 500) {
            Crash::BeforeAppend
        } else {
            Crash::AfterAppend
        };
        let clock = Time(self.now.0.saturating_add_signed(self.skew));
        let done = self.controller.step(command, clock, crash);
        if crash != Crash::No {
            self.crashes += 1;
            self.links.iter_mut().for_each(|l| {
                l.clear();
                l.session = 0;
            });
        }
        self.check()?;
        for Effect::Tell { node, order } in done.effects {
            if let Some(&i) = self.ids.get(&node) {
                self.links[i].send_down(&mut self.rng, self.weather, self.now, order);
            }
        }
        Ok(done.reply)
    }

    fn check(&mut self) -> Result<(), Failure> {
        if let Some(breach) = self.controller.breach.clone() {
            return Err(self.failure(breach.to_string()));
        }
        let state = self.controller.engine.state();
        // The state is what its records made it: without a new one it is as it was.
        if state.seq == self.before.seq {
            return Ok(());
        }
        if self.examined {
            self.examine(state)?;
        }
        let stale = |s: &State| s.nodes.values().map(|n| n.stale.len()).sum::<usize>();
        self.stale_seen += stale(state).saturating_sub(stale(&self.before)) as u32;
        self.before = state.clone();
        Ok(())
    }

    fn examine(&self, state: &State) -> Result<(), Failure> {
        if let Some(breach) = invariants::check_all(state).into_iter().next() {
            return Err(self.failure(breach.to_string()));
        }
        if let Err(breach) = invariants::history_forward(&self.before, state) {
            return Err(self.failure(breach.to_string()));
        }
        if self.step.is_multiple_of(50) && *self.controller.replayed().state() != *state {
            return Err(self.failure("replayed state differs from live state".into()));
        }
        Ok(())
    }

    /// No GPU runs processes for more than the whole of it, whatever the controller believes.
    fn exclusive_gpus(&self) -> Result<(), Failure> {
        for node in &self.nodes {
            for (gpu, leases) in node.busy_gpus() {
                if leases.iter().map(|(_, milli)| milli).sum::<u32>() > 1000 {
                    let found = format!("GPU {gpu} of {} runs {leases:?}", node.facts.name);
                    return Err(self.failure(found));
                }
            }
            if let Some((lease, n)) = node.launched.iter().find(|(_, n)| **n > 1) {
                let found = format!("{lease} was launched {n} times on {}", node.facts.name);
                return Err(self.failure(found));
            }
        }
        Ok(())
    }

    fn healed(&self) -> Result<(), String> {
        let state = self.controller.engine.state();
        if let Some(n) =
            state.nodes.values().find(|n| n.link != NodeLink::Up || !n.stale.is_empty())
        {
            return Err(format!("node {} is {:?}, stale {:?}", n.facts.name, n.link, n.stale));
        }
        if let Some(n) = state.nodes.values().find(|n| !n.findings.is_empty()) {
            return Err(format!("node {} has findings: {:?}", n.facts.name, n.findings));
        }
        if self.requests.iter().any(|r| r.answer.is_none()) {
            return Err("a submission is unanswered".into());
        }
        if let Some(endpoint) = state.endpoints.values().next() {
            return Err(format!("endpoint {} is there: {endpoint:?}", endpoint.name));
        }
        if let Some(job) = state.jobs.values().find(|j| !j.is_over()) {
            return Err(format!("job {} is {:?}", job.id, job.tasks));
        }
        if let Err(breach) = self.controller.preemption.finish() {
            return Err(breach.to_string());
        }
        match self.nodes.iter().find(|n| !n.reports().is_empty()) {
            Some(n) => Err(format!("{} still remembers {:?}", n.facts.name, n.reports())),
            None => Ok(()),
        }
    }

    /// What is known only at the end.
    fn final_checks(&self) -> Result<(), Failure> {
        let state = self.controller.engine.state();
        let acknowledged = self
            .requests
            .iter()
            .filter_map(|r| r.answer.as_ref()?.as_ref().ok())
            .collect::<Vec<_>>();
        // Replicas nobody has asked for.
        let known = state.jobs.values().filter(|j| j.replica_of.is_none()).count();
        if acknowledged.len() != known {
            let found = format!("{} acknowledged, {known} known", acknowledged.len());
            return Err(self.failure(found));
        }
        for job in state.jobs.values() {
            for (index, ended) in endings(job) {
                let task = TaskId { job: job.id, index };
                let leases = self.leases_of(task);
                let moved = self.controller.moves.get(&task).copied().unwrap_or(0);
                let completed = ended.outcome == tutti_model::Outcome::Completed;
                let counted = leases.len() as u32 <= ended.attempts
                    && ended.attempts <= ended.restarts.total() + moved + 1
                    && (!completed || !leases.is_empty());
                if !counted {
                    return Err(self.failure(format!("{task} ran as {leases:?}: {ended:?}")));
                }
            }
        }
        Ok(())
    }

    fn leases_of(&self, task: TaskId) -> std::collections::BTreeSet<tutti_model::LeaseId> {
        let launched = self.nodes.iter().flat_map(|n| n.launched.keys());
        launched.filter(|l| l.task == task).copied().collect()
    }

    fn failure(&self, found: String) -> Failure {
        Failure { seed: self.seed, step: self.step, found }
    }

    fn summary(&self) -> Summary {
        let state = self.controller.engine.state();
        let restarts = |j: &tutti_model::Job| -> u32 {
            endings(j).into_iter().map(|(_, e)| e.restarts.total()).sum()
        };
        Summary {
            journal_hash: *self.controller.hash().as_bytes(),
            records: self.controller.records(),
            jobs: state.jobs.len(),
            restarts: state.jobs.values().map(|j| restarts(j)).sum(),
            controller_crashes: self.crashes,
            stale_seen: self.stale_seen,
            preempting: self.controller.preemption.claimed,
            preempting_started: self.controller.preemption.started,
            counts: self.controller.counts,
        }
    }
}

fn endings(job: &tutti_model::Job) -> Vec<(Option<u32>, tutti_model::Ended)> {
    match &job.tasks {
        tutti_model::Tasks::One(_) => {
            job.ended(None).map(|e| (None, e.clone())).into_iter().collect()
        }
        tutti_model::Tasks::Array(a) => {
            a.ended.iter().map(|(&i, e)| (Some(i), e.clone())).collect()
        }
    }
}

/// A person keeps it suspended, or did when it was lost.
fn is_kept(task: &Task) -> bool {
    let attempt = task.attempt();
    let asleep = attempt.is_some_and(|a| a.kept.is_some() || a.pause().is_some_and(|p| p.stays));
    asleep || task.attempt().is_none() && task.kept().is_some()
}
