//! Times scheduling passes on large clusters: a full one, and one more after an arrival or an end.
//! `cargo run -p tutti-sched --example pass [NODES]`
#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tutti_model::*;
use tutti_sched::Scheduler;

const NOW: Time = Time(1_000_000_000);
const PENDING: u64 = 100_000;
const RACK: u32 = 32;

fn main() {
    let nodes = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    println!("{nodes} nodes of 8 GPUs, {PENDING} jobs waiting");
    let mut state = cluster(nodes);
    (0..PENDING).for_each(|n| submit(&mut state, kind(n)));
    timed("the cluster is empty, a full pass", || tutti_sched::plan(&state, &state.policy, NOW));
    let mut scheduler = Scheduler::default();
    let started = Instant::now();
    let mut placed = 0;
    loop {
        let plan = scheduler.plan(&state, NOW);
        placed += plan.placements.len();
        if plan.placements.is_empty() {
            break;
        }
        plan.placements.iter().for_each(|p| start(&mut state, &mut scheduler, p));
    }
    println!("filled by {placed} placements in {:.2?}, their books included", started.elapsed());
    timed("the cluster is full, a full pass", || tutti_sched::plan(&state, &state.policy, NOW));
    timed("nothing changed", || scheduler.plan(&state, NOW));
    submit(&mut state, kind(7));
    timed("one more job came", || scheduler.plan(&state, NOW));
    if let Some(task) = state.index.active.first().copied() {
        end(&mut state, &mut scheduler, task);
    }
    timed("one job ended", || scheduler.plan(&state, NOW));
}

fn timed(what: &str, plan: impl FnOnce() -> Plan) {
    let started = Instant::now();
    let plan = plan();
    let took = started.elapsed();
    let (placed, waiting) = (plan.placements.len(), plan.by_lane.len());
    println!(
        "{what}: {took:.2?} ({placed} placed, {waiting} lanes wait, {} heads)",
        plan.heads.len()
    );
}

/// About the mix of a research cluster: mostly one GPU, few large gangs, some without limits.
fn kind(n: u64) -> JobSpec {
    let gpus = [1, 1, 1, 1, 1, 1, 2, 2, 4, 8][(n % 10) as usize];
    let nodes = if n.is_multiple_of(97) { 4 } else { 1 };
    let gpus_per_node = Some(GpuRequest { model: None, count: if nodes > 1 { 8 } else { gpus } });
    let time = (!n.is_multiple_of(3)).then(|| Span::secs(3600 * (1 + n % 24)));
    let cpus_per_gpu = Some(1 + (n / 20 % 3) as u32);
    let team = Some(format!("team{}", n / 7 % 15));
    JobSpec {
        nodes: Some(nodes),
        gpus_per_node,
        time,
        cpus_per_gpu,
        team,
        ..JobSpec::shell("true")
    }
}

fn cluster(nodes: u32) -> State {
    let mut state = State::default();
    let team = || Team { weight: 1000, ..Team::default() };
    let teams = (0..15).map(|n| (format!("team{n}"), team())).collect();
    state.policy = Arc::new(Policy { teams, ..Policy::default() });
    for id in 1..=nodes {
        let gpu = |i| Gpu {
            index: GpuIndex(i),
            model: "h100".to_owned(),
            uuid: format!("gpu-{id}-{i}"),
            mem: Bytes::gib(80),
            island: None,
        };
        let facts = NodeFacts {
            name: format!("n{id}"),
            address: "127.0.0.1".to_owned(),
            cpus: 128,
            // Real machines differ by a little.
            mem: Bytes(Bytes::gib(2000).0 + u64::from(id % 997) * 4096),
            gpus: (0..8).map(gpu).collect(),
            simulated: true,
            isolation: "process group".to_owned(),
            agent_version: "0".to_owned(),
            labels: BTreeMap::from([("rack".to_owned(), format!("r{}", id / RACK))]),
        };
        let node = Node {
            id: NodeId(id),
            facts,
            link: Link::Up,
            drain: None,
            stale: Default::default(),
            joined_at: Time(0),
            used: Used::default(),
        };
        state.nodes.insert(node.id, node);
    }
    state
}

fn submit(state: &mut State, spec: JobSpec) {
    state.next_job += 1;
    let id = JobId(state.next_job);
    let job = Job {
        id,
        user: format!("user{}", id.0 / 11 % 300),
        team: spec.team.clone().unwrap_or_default(),
        submitted_at: NOW,
        priority: spec.priority,
        held: false,
        rank: 0,
        spec: Arc::new(spec),
        tasks: Tasks::One(Task::pending(NOW)),
    };
    let key = QueueKey::of(&state.policy, &job, None, job.task(None));
    state.index.queue.insert(Lane::of(&job), key);
    state.index.waiting.insert((NOW, TaskId::single(id)));
    state.jobs.insert(id, Arc::new(job));
}

fn start(state: &mut State, scheduler: &mut Scheduler, placement: &Placement) {
    let id = placement.task;
    let Some(job) = state.jobs.get_mut(&id.job).map(Arc::make_mut) else { return };
    let key = QueueKey::of(&state.policy, job, None, job.task(None));
    state.index.queue.remove(&Lane::of(job), &key);
    state.index.waiting.remove(&(NOW, id));
    state.index.active.insert(id);
    state.index.limits.extend(job.spec.time.map(|limit| (NOW.plus(limit), id)));
    let lease = LeaseId { task: id, generation: Generation(1) };
    let part = |p: &PartPlacement| Part {
        node: p.node,
        gpus: p.gpus.clone(),
        cpus: p.cpus,
        mem: p.mem,
        share: p.share,
        first_rank: Rank(0),
        ranks: p.ranks,
        phase: PartState::Running { exits: Vec::new() },
    };
    let attempt = Attempt {
        number: 1,
        generation: lease.generation,
        placed_at: NOW,
        phase: AttemptPhase::Running { since: NOW },
        master_port: None,
        parts: placement.parts.iter().map(part).collect(),
        charge: 0,
        saved_at: None,
    };
    for part in &attempt.parts {
        scheduler.touch(part.node);
        let Some(node) = state.nodes.get_mut(&part.node) else { continue };
        for &gpu in &part.gpus {
            node.used.gpus.entry(gpu).or_default().leases.insert(lease, part.share);
        }
        node.used.cpus += part.cpus;
        node.used.leases.insert(lease);
    }
    if let Tasks::One(task) = &mut job.tasks {
        task.phase = Phase::Active(Box::new(attempt));
    }
}

fn end(state: &mut State, scheduler: &mut Scheduler, id: TaskId) {
    let Some(job) = state.jobs.remove(&id.job) else { return };
    state.index.active.remove(&id);
    state.index.limits.retain(|(_, task)| *task != id);
    for part in job.task(None).and_then(Task::attempt).into_iter().flat_map(|a| &a.parts) {
        scheduler.touch(part.node);
        let Some(node) = state.nodes.get_mut(&part.node) else { continue };
        node.used.gpus.retain(|_, user| user.leases.keys().all(|lease| lease.task != id));
        node.used.cpus -= part.cpus;
        node.used.leases.retain(|lease| lease.task != id);
    }
}
