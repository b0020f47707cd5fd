//! Small clusters and queues in a few words, for tests:
//! `case().nodes(2, 8).submit(gang(2, 4)).placed()` is `"1@n1:0,1,2,3+n2:0,1,2,3"`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tutti_model::*;

mod index;
pub(crate) mod oracle;
pub(crate) mod random;
pub(crate) mod world;

pub(crate) use index::reindex;

pub(crate) const NOW: Time = Time(1_000_000_000);

pub(crate) struct Case {
    pub state: State,
    pub policy: Policy,
    /// Who submits.
    pub user: String,
}

/// Short, so that a failing random case can be read.
impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{:?}", self.policy)?;
        for n in self.state.nodes.values() {
            let models: Vec<&str> = n.facts.gpus.iter().map(|g| g.model.as_str()).collect();
            let (cpus, mem) = (n.facts.cpus, n.facts.mem);
            writeln!(f, "{} {models:?} {cpus} CPUs {mem} {:?}", n.facts.name, n.state())?;
        }
        for j in self.state.jobs.values() {
            let ago = NOW.since(j.submitted_at);
            let (held, time, array) = (j.held, j.spec.time, &j.spec.array);
            write!(f, "job {} {ago} ago, held {held}, {time:?}, {array:?}", j.id)?;
            writeln!(f, " {:?} {:?} {:?}", j.priority, Demand::of(&j.spec), j.tasks)?;
        }
        Ok(())
    }
}

/// The GPUs of a node with eight.
pub(crate) const ALL: &[u16] = &[0, 1, 2, 3, 4, 5, 6, 7];

pub(crate) fn case() -> Case {
    Case { state: State::default(), policy: Policy::default(), user: "ada".to_owned() }
}

pub(crate) fn cpus(n: u32) -> JobSpec {
    JobSpec { cpus_per_node: Some(n), ..JobSpec::shell("true") }
}

pub(crate) fn gpus(n: u32) -> JobSpec {
    gang(1, n)
}

pub(crate) fn gang(nodes: u32, gpus: u32) -> JobSpec {
    let gpus_per_node = Some(GpuRequest { model: None, count: gpus });
    JobSpec { nodes: Some(nodes), gpus_per_node, ..JobSpec::shell("true") }
}

pub(crate) fn model(spec: JobSpec, model: &str) -> JobSpec {
    let count = spec.gpus_per_node.as_ref().map_or(1, |g| g.count);
    let gpus_per_node = Some(GpuRequest { model: Some(model.to_owned()), count });
    JobSpec { gpus_per_node, ..spec }
}

pub(crate) fn total(gpus: u32) -> JobSpec {
    JobSpec { gpus: Some(gpus), ..JobSpec::shell("true") }
}

pub(crate) fn array(text: &str, spec: JobSpec) -> JobSpec {
    JobSpec { array: Some(text.parse().unwrap()), ..spec }
}

pub(crate) fn priority(n: i32, spec: JobSpec) -> JobSpec {
    JobSpec { priority: Priority(n), ..spec }
}

pub(crate) fn after(text: &str, spec: JobSpec) -> JobSpec {
    JobSpec { after: vec![text.parse().unwrap()], ..spec }
}

pub(crate) fn time(span: Span, spec: JobSpec) -> JobSpec {
    JobSpec { time: Some(span), ..spec }
}

pub(crate) fn team(name: &str, spec: JobSpec) -> JobSpec {
    JobSpec { team: Some(name.to_owned()), ..spec }
}

pub(crate) fn class(name: &str, spec: JobSpec) -> JobSpec {
    JobSpec { class: Some(name.to_owned()), ..spec }
}

pub(crate) fn within(topology: Topology, spec: JobSpec) -> JobSpec {
    JobSpec { topology: Some(topology), ..spec }
}

pub(crate) fn elastic(min_nodes: u32, max_nodes: u32, gpus: u32) -> JobSpec {
    JobSpec { elastic: Some(Elastic { min_nodes, max_nodes }), ..gang(max_nodes, gpus) }
}

/// A part of one GPU, in thousandths.
pub(crate) fn share(milli: u16) -> JobSpec {
    JobSpec { gpu_share: Some(f64::from(milli) / 1000.0), ..JobSpec::shell("true") }
}

pub(crate) fn exclusive(spec: JobSpec) -> JobSpec {
    JobSpec { exclusive: true, ..spec }
}

/// So many GPUs of any model.
/// One that has no replicas, and whose files are likely on these nodes.
pub(crate) fn endpoint(warm: &[u32]) -> Endpoint {
    Endpoint {
        name: "chat".into(),
        user: "ada".into(),
        team: "default".into(),
        created_at: Time(0),
        revisions: Default::default(),
        current: 1,
        rollout: None,
        want: 1,
        bounds: None,
        replicas: Default::default(),
        failures: 0,
        failed_at: Time(0),
        not_before: Time(0),
        last_failure: None,
        warm: warm.iter().copied().map(NodeId).collect(),
        key: None,
        stopping: false,
        served: Served::default(),
        chronicle: Vec::new(),
    }
}

pub(crate) fn quota(any: u32) -> GpuQuota {
    GpuQuota { any, models: BTreeMap::new() }
}

pub(crate) fn part(node: u32, gpus: &[u16], demand: &Demand) -> PartPlacement {
    let count = gpus.len() as u32;
    PartPlacement {
        node: NodeId(node),
        gpus: gpus.iter().map(|&g| GpuIndex(g)).collect(),
        cpus: demand.cpus_for(count),
        mem: demand.mem_for(count),
        ranks: demand.ranks_for(count),
        share: demand.share,
    }
}

pub(crate) fn node(id: u32, gpus: &[&str]) -> Node {
    let gpu = |(i, model): (u16, &&str)| Gpu {
        index: GpuIndex(i),
        model: (*model).to_owned(),
        uuid: format!("gpu-{id}-{i}"),
        mem: Bytes::gib(80),
        island: None,
    };
    let facts = NodeFacts {
        name: format!("n{id}"),
        address: format!("10.0.0.{id}"),
        cpus: 64,
        mem: Bytes::gib(512),
        gpus: (0..).zip(gpus).map(gpu).collect(),
        simulated: true,
        isolation: "process group".to_owned(),
        agent_version: "0".to_owned(),
        labels: BTreeMap::new(),
        ..NodeFacts::default()
    };
    Node {
        id: NodeId(id),
        facts,
        link: Link::Up,
        drain: None,
        stale: Default::default(),
        joined_at: Time(0),
        strikes: Vec::new(),
        up_since: None,
        good_at: None,
        burn_in: None,
        gpu_bench: None,
        findings: Vec::new(),
        used: Used::default(),
    }
}

/// A finding that keeps everybody from this GPU.
pub(crate) fn fenced(gpu: u16) -> Finding {
    Finding {
        key: format!("test/gpu{gpu}"),
        check: "test".to_owned(),
        gpu: Some(GpuIndex(gpu)),
        action: HealthAction::FenceGpu,
        text: "broken".to_owned(),
        since: NOW,
        drill: false,
        by_job: false,
    }
}

/// The loopback of a machine.
pub(crate) fn loopback_of(host: &str) -> LoopbackOf {
    LoopbackOf { host: host.to_owned(), id: host.to_owned() }
}

impl Case {
    /// So many nodes with so many H100s each. Names and ids go on from n1.
    pub fn nodes(mut self, count: u32, gpus: usize) -> Case {
        for _ in 0..count {
            self = self.node(|_| {}, &vec!["h100"; gpus]);
        }
        self
    }

    pub fn node(mut self, with: impl FnOnce(&mut Node), gpus: &[&str]) -> Case {
        self.state.next_node += 1;
        let mut node = node(self.state.next_node, gpus);
        with(&mut node);
        self.state.index.node_names.insert(node.facts.name.clone(), node.id);
        self.state.nodes.insert(node.id, node);
        self
    }

    pub fn change_node(mut self, id: u32, with: impl FnOnce(&mut Node)) -> Case {
        with(self.state.nodes.get_mut(&NodeId(id)).unwrap());
        self
    }

    /// Puts nodes into a rack.
    pub fn rack(mut self, name: &str, nodes: &[u32]) -> Case {
        for &id in nodes {
            let labels = |n: &mut Node| {
                n.facts.labels.insert("rack".to_owned(), name.to_owned());
            };
            self = self.change_node(id, labels);
        }
        self
    }

    pub fn policy(mut self, with: impl FnOnce(&mut Policy)) -> Case {
        with(&mut self.policy);
        self
    }

    pub fn team(self, name: &str, with: impl FnOnce(&mut Team)) -> Case {
        let mut team = Team::default();
        with(&mut team);
        self.policy(|p| {
            p.teams.insert(name.to_owned(), team);
        })
    }

    /// Jobs from here on are this user's.
    pub fn user(self, user: &str) -> Case {
        Case { user: user.to_owned(), ..self }
    }

    /// The team and the current user have had so many GPU-hours.
    pub fn had(mut self, team: &str, hours: u64) -> Case {
        let policy = self.policy.clone();
        let account = Account { line: policy.line_of(team), user: &self.user };
        let from = Time(NOW.0 - 3_600_000);
        let rate = hours as i64 * 1000;
        self.state.ledger.change(&account, from, policy.half_life, rate);
        self.state.ledger.change(&account, NOW, policy.half_life, -rate);
        self
    }

    /// Room that is kept for a task.
    pub fn claim(mut self, task: &str, cause: ClaimCause, parts: &[(u32, &[u16])]) -> Case {
        let task: TaskId = task.parse().unwrap();
        let demand = Demand::of(&self.state.job(task.job).unwrap().spec);
        let parts = parts.iter().map(|&(node, gpus)| part(node, gpus, &demand)).collect();
        let claim = Claim { parts, cause, made_at: NOW, victims: Vec::new() };
        self.state.claims.insert(task, claim);
        self
    }

    pub fn drain(self, id: u32) -> Case {
        let drain = Drain {
            by: "op".to_owned(),
            reason: "test".to_owned(),
            since: NOW,
            auto: false,
            finding: None,
        };
        self.change_node(id, |n| n.drain = Some(drain))
    }

    pub fn fence(self, id: u32, gpu: u16) -> Case {
        self.change_node(id, |n| n.findings.push(fenced(gpu)))
    }

    pub fn lose(self, id: u32) -> Case {
        self.change_node(id, |n| n.link = Link::Lost { since: NOW })
    }

    /// Jobs get the ids 1, 2, 3 in order, submitted a second ago.
    pub fn submit(self, spec: JobSpec) -> Case {
        self.submit_ago(Span::secs(1), spec)
    }

    pub fn submit_ago(mut self, ago: Span, spec: JobSpec) -> Case {
        self.state.next_job += 1;
        let id = JobId(self.state.next_job);
        let since = Time(NOW.0 - ago.0);
        let tasks = match &spec.array {
            Some(array) => {
                Tasks::Array(ArrayTasks { waiting: array.indices.clone(), ..ArrayTasks::default() })
            }
            None => Tasks::One(Task::pending(since)),
        };
        let named = spec.team.clone();
        let team = named.unwrap_or_else(|| self.policy.team_of_user(&self.user).to_owned());
        let job = Job {
            id,
            user: self.user.clone(),
            team,
            submitted_at: since,
            priority: spec.priority,
            held: spec.hold,
            rank: 0,
            replica_of: None,
            texts: TextRefs::default(),
            cut: TextRefs::default(),
            asked: None,
            spec: Arc::new(spec),
            tasks,
        };
        self.state.jobs.insert(id, Arc::new(job));
        self
    }

    pub fn endpoint(mut self, endpoint: Endpoint) -> Case {
        self.state.endpoints.insert(endpoint.name.clone(), endpoint);
        self
    }

    /// The newest job serves.
    pub fn replica_of(mut self, of: ReplicaOf) -> Case {
        let job = self.state.jobs_mut(JobId(self.state.next_job)).unwrap();
        job.replica_of = Some(Box::new(of));
        self
    }

    /// Changes the task of the newest job.
    pub fn change_task(mut self, with: impl FnOnce(&mut Task)) -> Case {
        let job = self.state.jobs_mut(JobId(self.state.next_job)).unwrap();
        match &mut job.tasks {
            Tasks::One(task) => with(task),
            Tasks::Array(_) => panic!("name the task of an array"),
        }
        self
    }

    /// A task of the newest array leaves the waiting rest.
    pub fn change_index(mut self, index: u32, with: impl FnOnce(&mut Task)) -> Case {
        let job = self.state.jobs_mut(JobId(self.state.next_job)).unwrap();
        let Tasks::Array(array) = &mut job.tasks else { panic!("no array") };
        array.waiting.remove(index);
        let task = array.live.entry(index).or_insert_with(|| Task::pending(Time(NOW.0 - 1000)));
        with(task);
        self
    }

    /// A job that already runs, on these nodes and GPUs, since ten seconds ago.
    pub fn running(self, spec: JobSpec, parts: &[(u32, &[u16])]) -> Case {
        let demand = Demand::of(&spec);
        self.submit(spec).change_task(|task| run(task, &demand, parts))
    }

    pub fn running_index(self, index: u32, parts: &[(u32, &[u16])]) -> Case {
        let job = self.state.job(JobId(self.state.next_job)).unwrap();
        let demand = Demand::of(&job.spec);
        self.change_index(index, |task| run(task, &demand, parts))
    }

    /// What `apply` would have built: policy, indexes, and who pays for what runs.
    pub fn state(&self) -> State {
        let mut state = self.state.clone();
        state.policy = Arc::new(self.policy.clone());
        reindex(&mut state);
        index::charge_running(&mut state);
        state
    }

    pub fn plan(&self) -> Plan {
        crate::plan(&self.state(), &self.policy, NOW)
    }

    /// The placements as text.
    pub fn placed(&self) -> String {
        let plan = self.plan();
        let shown: Vec<String> = plan.placements.iter().map(show).collect();
        shown.join(" ")
    }

    /// The claims as text.
    pub fn claimed(&self) -> String {
        self.plan().claims.iter().map(show_claim).collect::<Vec<_>>().join(" ")
    }

    pub fn verdict(&self, task: &str) -> Option<Verdict> {
        crate::verdict(&self.state(), &self.plan(), task.parse().unwrap(), NOW)
    }

    pub fn explain(&self, task: &str) -> Explanation {
        let (state, plan) = (self.state(), self.plan());
        crate::explain(&state, &plan, &self.policy, task.parse().unwrap(), NOW).unwrap()
    }
}

/// `1@n1:0,1+n2:0`; a part of a GPU is `n1:0/500`.
pub(crate) fn show(placement: &Placement) -> String {
    format!("{}@{}", placement.task, show_parts(&placement.parts))
}

pub(crate) fn show_parts(parts: &[PartPlacement]) -> String {
    let part = |p: &PartPlacement| {
        let gpus: Vec<String> = p.gpus.iter().map(ToString::to_string).collect();
        let share = if p.share.is_whole() { String::new() } else { format!("/{}", p.share.0) };
        format!("n{}:{}{share}", p.node, gpus.join(","))
    };
    parts.iter().map(part).collect::<Vec<_>>().join("+")
}

/// `2@n1:0 guarantee [1]`: for whom, where, why, and who is stopped; `1>n1` is shrunk to n1, `~1` suspended.
pub(crate) fn show_claim(claim: &NewClaim) -> String {
    let victim = |v: &Victim| match &v.how {
        Stop::Requeue => v.task.to_string(),
        Stop::Suspend { .. } => format!("~{}", v.task),
        Stop::Shrink { keep } => {
            let nodes: Vec<String> = keep.iter().map(|p| format!("n{}", p.node)).collect();
            format!("{}>{}", v.task, nodes.join("+"))
        }
    };
    let victims: Vec<String> = claim.victims.iter().map(victim).collect();
    let cause = format!("{:?}", claim.cause).to_lowercase();
    format!("{}@{} {cause} [{}]", claim.task, show_parts(&claim.parts), victims.join(" "))
}

fn run(task: &mut Task, demand: &Demand, parts: &[(u32, &[u16])]) {
    let parts = parts.iter().map(|&(node, gpus)| part(node, gpus, demand)).collect::<Vec<_>>();
    activate(task, &parts, Time(NOW.0 - 10_000));
}

/// Makes a task run on these parts since then.
pub(crate) fn activate(task: &mut Task, parts: &[PartPlacement], since: Time) {
    let part = |p: &PartPlacement| Part {
        node: p.node,
        gpus: p.gpus.clone(),
        cpus: p.cpus,
        mem: p.mem,
        share: p.share,
        first_rank: Rank(0),
        ranks: p.ranks,
        phase: PartState::Running { exits: Vec::new() },
        port: None,
        gpu_mem: None,
        port_owner: None,
        asleep: None,
    };
    task.attempts += 1;
    task.phase = Phase::Active(Box::new(Attempt {
        number: task.attempts,
        generation: Generation(u64::from(task.attempts)),
        placed_at: since,
        phase: AttemptPhase::Running { since },
        master_port: None,
        parts: parts.iter().map(part).collect(),
        charge: 0,
        saved_at: None,
        saved: None,
        advanced: false,
        let_go: false,
        accusations: Vec::new(),
        disregarded: Vec::new(),
        naps: Vec::new(),
        away: Span(0),
        kept: None,
    }));
}

/// A task of a job, one of an array included, which then leaves the waiting rest.
pub(crate) fn task_mut(job: &mut Job, index: Option<u32>) -> &mut Task {
    let submitted_at = job.submitted_at;
    match (&mut job.tasks, index) {
        (Tasks::One(task), None) => task,
        (Tasks::Array(array), Some(i)) => {
            array.waiting.remove(i);
            array.live.entry(i).or_insert_with(|| Task::pending(submitted_at))
        }
        _ => panic!("{} has no task {index:?}", job.id),
    }
}
