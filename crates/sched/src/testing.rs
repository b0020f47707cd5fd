//! Small clusters and queues in a few words, for tests:
//! `case().nodes(2, 8).submit(gang(2, 4)).placed()` is `"1@n1:0,1,2,3+n2:0,1,2,3"`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use tutti_model::*;

pub(crate) const NOW: Time = Time(1_000_000_000);

pub(crate) struct Case {
    pub state: State,
    pub policy: Policy,
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

pub(crate) fn case() -> Case {
    Case { state: State::default(), policy: Policy::default() }
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

pub(crate) fn node(id: u32, gpus: &[&str]) -> Node {
    let gpu = |(i, model): (u16, &&str)| Gpu {
        index: GpuIndex(i),
        model: (*model).to_owned(),
        uuid: format!("gpu-{id}-{i}"),
        mem: Bytes::gib(80),
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
    };
    Node {
        id: NodeId(id),
        facts,
        link: Link::Up,
        drain: None,
        stale: Default::default(),
        joined_at: Time(0),
        used: Used::default(),
    }
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

    pub fn drain(self, id: u32) -> Case {
        let drain = Drain { by: "op".to_owned(), reason: "test".to_owned(), since: NOW };
        self.change_node(id, |n| n.drain = Some(drain))
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
        let job = Job {
            id,
            user: "ada".to_owned(),
            submitted_at: since,
            priority: spec.priority,
            held: spec.hold,
            spec: Arc::new(spec),
            tasks,
        };
        self.state.jobs.insert(id, Arc::new(job));
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

    /// Builds what `apply` would have kept.
    pub fn state(&self) -> State {
        let mut state = self.state.clone();
        reindex(&mut state);
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

    pub fn verdict(&self, task: &str) -> Option<Verdict> {
        crate::verdict(&self.state(), &self.plan(), task.parse().unwrap(), NOW)
    }

    pub fn explain(&self, task: &str) -> Explanation {
        let (state, plan) = (self.state(), self.plan());
        crate::explain(&state, &plan, &self.policy, task.parse().unwrap(), NOW).unwrap()
    }
}

fn show(placement: &Placement) -> String {
    let part = |p: &PartPlacement| {
        let gpus: Vec<String> = p.gpus.iter().map(ToString::to_string).collect();
        format!("n{}:{}", p.node, gpus.join(","))
    };
    let parts: Vec<String> = placement.parts.iter().map(part).collect();
    format!("{}@{}", placement.task, parts.join("+"))
}

fn run(task: &mut Task, demand: &Demand, parts: &[(u32, &[u16])]) {
    let parts = parts.iter().map(|&(node, gpus)| Part {
        node: NodeId(node),
        gpus: gpus.iter().map(|&g| GpuIndex(g)).collect(),
        cpus: demand.cpus_for(gpus.len() as u32),
        mem: demand.mem_for(gpus.len() as u32),
        first_rank: Rank(0),
        ranks: 1,
        phase: PartState::Running { exits: Vec::new() },
    });
    activate(task, parts.collect());
}

pub(crate) fn activate(task: &mut Task, parts: Vec<Part>) {
    task.attempts = 1;
    task.phase = Phase::Active(Box::new(Attempt {
        number: 1,
        generation: Generation(1),
        placed_at: Time(NOW.0 - 10_000),
        phase: AttemptPhase::Running { since: Time(NOW.0 - 10_000) },
        master_port: None,
        parts,
    }));
}

/// Derives the index and what nodes have in use from the jobs.
pub(crate) fn reindex(state: &mut State) {
    let jobs: Vec<Arc<Job>> = state.jobs.values().cloned().collect();
    for job in &jobs {
        let demand = Demand::of(&job.spec);
        let ready = !job.held && crate::verdict::unmet(state, job).is_empty();
        let key = |index| QueueKey { priority: Reverse(job.priority), job: job.id, index };
        if let Tasks::Array(array) = &job.tasks
            && ready
            && !array.waiting.is_empty()
        {
            state.index.queue.insert(demand.clone(), key(None));
        }
        for (id, task) in job.live_tasks() {
            match &task.phase {
                Phase::Pending { not_before, .. } if ready && *not_before <= NOW => {
                    state.index.queue.insert(demand.clone(), key(id.index));
                }
                Phase::Active(attempt) => {
                    state.index.active.insert(id);
                    hold(state, id, attempt);
                }
                _ => {}
            }
        }
    }
}

fn hold(state: &mut State, task: TaskId, attempt: &Attempt) {
    let lease = attempt.lease(task);
    for part in &attempt.parts {
        let used = &mut state.nodes.get_mut(&part.node).unwrap().used;
        used.gpus.extend(part.gpus.iter().map(|&g| (g, lease)));
        used.cpus += part.cpus;
        used.mem.0 += part.mem.0;
        used.leases.insert(lease);
    }
}
