//! A cluster in a test: nodes that answer when told to, and a clock that is moved by hand.

use std::collections::BTreeMap;

use tutti_model::{
    Blame, Bytes, ExitStatus, Gpu, GpuIndex, GpuRequest, Greeting, JobId, JobSpec, JobState,
    LeaseId, NodeFacts, NodeId, Order, PartError, PartReport, Plan, Policy, PortOwner, Rank,
    RankExit, ReportedPhase, Role, SleepStep, Suspension, TaskId, Time,
};

use crate::{Actor, Command, Effect, Engine, Rejected, Reply, Settings, Step, invariants};

pub struct World {
    pub engine: Engine,
    pub now: Time,
    sessions: BTreeMap<NodeId, u64>,
    next_session: u64,
    /// Orders since they were last taken.
    orders: Vec<(NodeId, Order)>,
}

pub fn facts(name: &str, gpus: u16) -> NodeFacts {
    let gpu = |i| Gpu {
        index: GpuIndex(i),
        model: "h100".into(),
        uuid: format!("{name}-{i}"),
        mem: Bytes::gib(80),
        island: None,
    };
    NodeFacts {
        name: name.into(),
        address: "127.0.1.1".into(),
        cpus: 32,
        mem: Bytes::gib(256),
        gpus: (0..gpus).map(gpu).collect(),
        simulated: true,
        isolation: "none".into(),
        agent_version: "test".into(),
        labels: BTreeMap::new(),
        ..NodeFacts::default()
    }
}

pub fn ada() -> Actor {
    Actor { user: "ada".into(), role: Role::User }
}

pub fn admin() -> Actor {
    Actor { user: "root".into(), role: Role::Admin }
}

pub fn gang(nodes: u32, gpus: u32) -> JobSpec {
    let mut spec = JobSpec::shell("train");
    spec.nodes = Some(nodes);
    spec.gpus_per_node = Some(GpuRequest { model: None, count: gpus });
    spec
}

/// Where the part stands; what runs listens on its own port.
fn says(lease: LeaseId, phase: ReportedPhase) -> PartReport {
    let runs = matches!(phase, ReportedPhase::Running { .. });
    PartReport { port_owner: runs.then_some(PortOwner::Part), ..PartReport::new(lease, phase) }
}

impl World {
    /// `n1`, `n2`, ... with so many GPUs each, all connected.
    pub fn new(gpus: &[u16]) -> World {
        let mut world = World {
            engine: Engine::new(Settings::default()),
            now: Time(1_000_000),
            sessions: BTreeMap::new(),
            next_session: 1,
            orders: Vec::new(),
        };
        world.step(Command::Start);
        for (i, &n) in gpus.iter().enumerate() {
            world.hello(&format!("n{}", i + 1), n, Vec::new());
        }
        world
    }

    pub fn step(&mut self, command: Command) -> Step {
        let step = self.engine.step(command, self.now);
        let pass = self.engine.schedule(self.now);
        assert!(pass.reply.is_ok(), "{:?}", pass.reply);
        self.keep_orders(&step);
        self.keep_orders(&pass);
        let breaches = invariants::check_all(self.engine.state());
        assert!(breaches.is_empty(), "{breaches:?}");
        step
    }

    fn keep_orders(&mut self, step: &Step) {
        for Effect::Tell { node, order } in &step.effects {
            self.orders.push((*node, order.clone()));
        }
    }

    pub fn hello(&mut self, name: &str, gpus: u16, parts: Vec<PartReport>) -> NodeId {
        let session = self.next_session;
        self.next_session += 1;
        let greeting = Box::new(Greeting::new(facts(name, gpus), parts));
        match self.step(Command::Hello { greeting, session, key: None }).reply {
            Ok(Reply::Welcome { node }) => {
                self.sessions.insert(node, session);
                node
            }
            other => panic!("hello was answered with {other:?}"),
        }
    }

    pub fn submit(&mut self, spec: JobSpec) -> JobId {
        self.try_submit(spec).expect("the job is accepted")
    }

    pub fn try_submit(&mut self, spec: JobSpec) -> Result<JobId, Rejected> {
        self.submit_with_key(spec, None)
    }

    pub fn submit_with_key(&mut self, spec: JobSpec, key: Option<&str>) -> Result<JobId, Rejected> {
        let key = key.map(str::to_owned);
        let spec = Box::new(spec);
        match self.step(Command::Submit { actor: ada(), spec, user: None, key }).reply? {
            Reply::Submitted { job, .. } => Ok(job),
            other => panic!("submit was answered with {other:?}"),
        }
    }

    /// Without a pass after it.
    pub fn carry_out(&mut self, plan: Plan) {
        let step = self.engine.carry_out(plan, self.now);
        self.keep_orders(&step);
    }

    /// Without a pass after it.
    pub fn set_policy_only(&mut self, policy: Policy) {
        let command = Command::SetPolicy { actor: admin(), policy: Box::new(policy) };
        self.engine.step(command, self.now).reply.expect("the policy is sound");
    }

    pub fn set_policy(&mut self, change: impl FnOnce(&mut Policy)) {
        let mut policy = (*self.engine.state().policy).clone();
        change(&mut policy);
        let command = Command::SetPolicy { actor: admin(), policy: Box::new(policy) };
        self.step(command).reply.expect("the policy is sound");
    }

    /// Every part of a job on one node runs; no pass.
    pub fn run_only(&mut self, job: JobId) {
        let lease = self.lease(TaskId::single(job));
        for node in self.nodes_of(job) {
            let phase = ReportedPhase::Running { exits: Vec::new() };
            let (session, report) = (self.sessions[&node], PartReport::new(lease, phase));
            let command = Command::Report { node, session, report };
            self.engine.step(command, self.now).reply.expect("the session is known");
        }
    }

    /// Every part of the task's attempt is gone, killed by SIGTERM; no pass.
    pub fn end_of(&mut self, task: TaskId) {
        let lease = self.lease(task);
        for node in self.nodes_of(task.job) {
            let exits = vec![self.exit(0, ExitStatus::Signal(15))];
            let phase = ReportedPhase::Done { exits, error: None };
            let (session, report) = (self.sessions[&node], PartReport::new(lease, phase));
            let command = Command::Report { node, session, report };
            self.engine.step(command, self.now).reply.expect("the session is known");
        }
    }

    /// The node says hello again with one more label.
    pub fn label(&mut self, node: NodeId, label: &str, value: &str) {
        let mut facts = self.engine.state().node(node).expect("the node exists").facts.clone();
        facts.labels.insert(label.to_owned(), value.to_owned());
        let session = self.sessions[&node];
        let parts = self.reports_of(node);
        let greeting = Box::new(Greeting::new(facts, parts));
        self.step(Command::Hello { greeting, session, key: None }).reply.expect("it is welcome");
    }

    /// From now on it can move GPU state to host memory.
    pub fn can_suspend(&mut self, node: NodeId) {
        let mut facts = self.engine.state().node(node).expect("the node exists").facts.clone();
        (facts.can_suspend, facts.can_move) = (true, true);
        self.greet_as(node, facts);
    }

    /// From now on only to the GPUs that it came from: an older driver.
    pub fn can_not_move(&mut self, node: NodeId) {
        let mut facts = self.engine.state().node(node).expect("the node exists").facts.clone();
        facts.can_move = false;
        self.greet_as(node, facts);
    }

    fn greet_as(&mut self, node: NodeId, facts: NodeFacts) {
        let (session, parts) = (self.sessions[&node], self.reports_of(node));
        let greeting = Box::new(Greeting::new(facts, parts));
        self.step(Command::Hello { greeting, session, key: None }).reply.expect("it is welcome");
    }

    pub fn take_orders(&mut self) -> Vec<(NodeId, Order)> {
        std::mem::take(&mut self.orders)
    }

    pub fn state_of(&self, job: JobId) -> JobState {
        self.engine.state().job(job).expect("the job exists").state()
    }

    pub fn lease(&self, task: TaskId) -> LeaseId {
        let job = self.engine.state().job(task.job).expect("the job exists");
        job.task(task.index).and_then(|t| t.attempt()).expect("it has an attempt").lease(task)
    }

    pub fn nodes_of(&self, job: JobId) -> Vec<NodeId> {
        let job = self.engine.state().job(job).expect("the job exists");
        let attempt = job.task(None).and_then(|t| t.attempt()).expect("it has an attempt");
        attempt.parts.iter().map(|p| p.node).collect()
    }

    pub fn report(&mut self, node: NodeId, lease: LeaseId, phase: ReportedPhase) -> Step {
        let session = self.sessions[&node];
        self.step(Command::Report { node, session, report: says(lease, phase) })
    }

    pub fn report_all(&mut self, node: NodeId, report: PartReport) {
        let session = self.sessions[&node];
        self.step(Command::Report { node, session, report });
    }

    pub fn session(&self, node: NodeId) -> u64 {
        self.sessions[&node]
    }

    pub fn gone(&mut self, node: NodeId) {
        let session = self.sessions[&node];
        self.step(Command::Gone { node, session });
    }

    pub fn beat(&mut self, node: NodeId, parts: Vec<PartReport>) -> Step {
        let session = self.sessions[&node];
        self.step(Command::Heartbeat { node, session, parts })
    }

    /// Every part of the job's attempt prepares and starts.
    pub fn run(&mut self, job: JobId) -> LeaseId {
        let lease = self.lease(TaskId::single(job));
        let nodes = self.nodes_of(job);
        let serves = self.engine.state().job(job).is_some_and(|j| j.spec.service.is_some());
        if nodes.len() > 1 || serves {
            for &node in &nodes {
                self.report(node, lease, ReportedPhase::Prepared { port: 4000 });
            }
        }
        for &node in &nodes {
            self.report(node, lease, ReportedPhase::Running { exits: Vec::new() });
        }
        lease
    }

    pub fn done(&mut self, node: NodeId, lease: LeaseId, statuses: &[(u32, ExitStatus)]) {
        let exits = statuses.iter().map(|&(rank, status)| self.exit(rank, status)).collect();
        self.report(node, lease, ReportedPhase::Done { exits, error: None });
    }

    pub fn broken(&mut self, node: NodeId, lease: LeaseId, blame: Blame) {
        let error = Some(PartError { message: "no such user".into(), blame });
        self.report(node, lease, ReportedPhase::Done { exits: Vec::new(), error });
    }

    pub fn exit(&self, rank: u32, status: ExitStatus) -> RankExit {
        RankExit { rank: Rank(rank), status, at: self.now }
    }

    /// Moves the clock, a second at a time; connected nodes other than `silent` are heard.
    pub fn wait(&mut self, seconds: u64, silent: &[NodeId]) {
        for _ in 0..seconds {
            self.now.0 += 1000;
            for (node, session) in self.sessions.clone() {
                let up =
                    self.engine.state().node(node).is_some_and(|n| n.link == tutti_model::Link::Up);
                if up && !silent.contains(&node) {
                    let parts = self.reports_of(node);
                    self.step(Command::Heartbeat { node, session, parts });
                }
            }
            self.step(Command::Tick);
        }
    }

    /// What a node that agrees with the state would report.
    pub fn reports_of(&self, node: NodeId) -> Vec<PartReport> {
        let state = self.engine.state();
        let leases = state.node(node).into_iter().flat_map(|n| n.used.leases.iter());
        leases
            .filter_map(|&lease| {
                let attempt = state.job(lease.task.job)?.task(lease.task.index)?.attempt()?;
                let phase = match &attempt.part_on(node)?.phase {
                    tutti_model::PartState::Prepared { port } => {
                        ReportedPhase::Prepared { port: *port }
                    }
                    tutti_model::PartState::Running { exits } => {
                        ReportedPhase::Running { exits: exits.clone() }
                    }
                    _ => return None,
                };
                let asleep = attempt.part_on(node)?.asleep.as_deref();
                let suspension = asleep.map(|asleep| match asleep.step {
                    SleepStep::Going => Suspension::Suspending,
                    SleepStep::Out | SleepStep::Lent => {
                        Suspension::Suspended { bytes: asleep.bytes }
                    }
                    SleepStep::Coming => Suspension::Waking,
                });
                Some(PartReport { suspension, ..says(lease, phase) })
            })
            .collect()
    }
}
