//! Random clusters and queues, checked by code that shares nothing with the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use tutti_model::*;

use crate::testing::*;

mod advice;

fn any_node() -> impl Strategy<Value = Node> {
    let gpus = prop_oneof![
        Just(vec![]),
        (1..5usize).prop_map(|n| vec!["h100"; n]),
        (1..5usize).prop_map(|n| vec!["a100"; n]),
        vec(prop_oneof![Just("h100"), Just("a100")], 1..5),
    ];
    (gpus, 2..10u32, 4..20u64, 0..8u32).prop_map(|(gpus, cpus, mem, standing)| {
        let mut n = node(0, &gpus);
        (n.facts.cpus, n.facts.mem) = (cpus, Bytes::gib(mem));
        match standing {
            0 => n.link = Link::Lost { since: NOW },
            1 => n.drain = Some(Drain { by: String::new(), reason: String::new(), since: NOW }),
            _ => {}
        }
        n
    })
}

fn any_spec() -> impl Strategy<Value = JobSpec> {
    let shape = prop_oneof![
        (1..4u32, 0..4u32).prop_map(|(n, g)| gang(n, g)),
        (1..3u32, 1..3u32).prop_map(|(n, g)| model(gang(n, g), "h100")),
        (1..3u32).prop_map(|g| model(gpus(g), "h100|a100")),
        (1..9u32).prop_map(total),
        (1..6u32).prop_map(cpus),
    ];
    let extras = (-1..2i32, 0..3u32, 0..4u64, 0..4u64, 0..10u32, 0..10u32);
    (shape, extras).prop_map(|(spec, (prio, cpus, mem, hours, array, hold))| JobSpec {
        priority: Priority(prio),
        cpus_per_gpu: Some(cpus).filter(|c| *c > 0),
        mem_per_node: Some(Bytes::gib(mem)).filter(|m| m.0 > 0),
        time: Some(Span::secs(3600 * hours)).filter(|t| t.0 > 0),
        hold: hold == 0,
        array: match array {
            0 => "0-6".parse().ok(),
            1 => "3-5%2".parse().ok(),
            _ => None,
        },
        ..spec
    })
}

/// How a job of the case comes to be.
#[derive(Clone, Debug)]
struct Given {
    spec: JobSpec,
    minutes: u64,
    avoid: Option<u32>,
}

fn any_given() -> impl Strategy<Value = Given> {
    (any_spec(), 0..8u64, prop_oneof![3 => Just(None), 1 => (1..5u32).prop_map(Some)])
        .prop_map(|(spec, minutes, avoid)| Given { spec, minutes, avoid })
}

/// Some jobs run, where an earlier pass put them; the others wait.
fn any_case() -> impl Strategy<Value = Case> {
    let placements_max = prop_oneof![4 => Just(4096usize), 1 => 0..4usize];
    let requeued = vec(prop::option::weighted(0.2, 0..700i64), 8);
    let jobs = (vec(any_given(), 0..6), vec(any_given(), 0..8));
    (vec(any_node(), 0..7), jobs, requeued, placements_max).prop_map(
        |(nodes, (first, second), requeued, placements_max)| {
            let mut c = case();
            for n in nodes {
                let models: Vec<&str> = n.facts.gpus.iter().map(|g| g.model.as_str()).collect();
                let from = n.clone();
                c = c.node(
                    |to| {
                        (to.link, to.drain) = (from.link, from.drain);
                        (to.facts.cpus, to.facts.mem) = (from.facts.cpus, from.facts.mem);
                    },
                    &models,
                );
            }
            c = first.into_iter().fold(c, give);
            start_all(&mut c);
            requeue(&mut c, &requeued);
            c = second.into_iter().fold(c, give);
            c.policy.placements_max = placements_max;
            c
        },
    )
}

/// Some of the running tasks wait again, since so many seconds; some of those are in back-off.
fn requeue(c: &mut Case, requeued: &[Option<i64>]) {
    let active = c.state().index.active;
    for (task, seconds) in active.iter().zip(requeued) {
        let Some(seconds) = seconds.map(|s| Span::secs(s as u64)) else { continue };
        let job = c.state.jobs_mut(task.job).unwrap();
        let submitted_at = job.submitted_at;
        let task = match (&mut job.tasks, task.index) {
            (Tasks::One(task), _) => task,
            (Tasks::Array(array), index) => array.live.get_mut(&index.unwrap()).unwrap(),
        };
        let since = Time(NOW.0 - seconds.0).max(submitted_at);
        let not_before = Time(if seconds < Span::secs(60) { NOW.0 + 500 } else { 0 });
        task.avoid.extend(task.attempt().map(|a| a.parts[0].node));
        task.phase = Phase::Pending { since, not_before };
    }
}

fn give(c: Case, given: Given) -> Case {
    let is_array = given.spec.array.is_some();
    // Ids grow with time: an older job can't come after a younger one.
    let newest = c.state.jobs.values().map(|j| NOW.since(j.submitted_at)).min();
    let ago = Span::secs(60 * given.minutes).min(newest.unwrap_or(Span::secs(600)));
    let c = c.submit_ago(ago, given.spec);
    let avoid = given.avoid.map(NodeId);
    if is_array { c } else { c.change_task(|t| t.avoid.extend(avoid)) }
}

fn start_all(c: &mut Case) {
    for placement in c.plan().placements {
        let parts = placement.parts.into_iter().map(|p| Part {
            node: p.node,
            gpus: p.gpus,
            cpus: p.cpus,
            mem: p.mem,
            first_rank: Rank(0),
            ranks: p.ranks,
            phase: PartState::Running { exits: Vec::new() },
        });
        let job = c.state.jobs_mut(placement.task.job).unwrap();
        match (&mut job.tasks, placement.task.index) {
            (Tasks::One(task), _) => activate(task, parts.collect()),
            (Tasks::Array(array), Some(i)) => {
                array.waiting.remove(i);
                let task = array.live.entry(i).or_insert_with(|| Task::pending(NOW));
                activate(task, parts.collect());
            }
            (Tasks::Array(_), None) => panic!("an array is placed task by task"),
        }
    }
}

/// What is free, kept the slow and simple way.
#[derive(Clone)]
struct Free {
    nodes: BTreeMap<NodeId, FreeNode>,
}

#[derive(Clone)]
struct FreeNode {
    open: bool,
    gpus: BTreeMap<GpuIndex, String>,
    all_models: BTreeSet<String>,
    cpus: u32,
    mem: u64,
}

impl Free {
    fn of(state: &State, empty: bool) -> Free {
        let nodes = state.nodes.values().map(|n| {
            let used = |g: &Gpu| !empty && n.used.gpus.contains_key(&g.index);
            let gpus = n.facts.gpus.iter().filter(|g| !used(g));
            let free = FreeNode {
                open: n.accepts_work(),
                gpus: gpus.map(|g| (g.index, g.model.clone())).collect(),
                all_models: n.facts.gpus.iter().map(|g| g.model.clone()).collect(),
                cpus: if empty { n.facts.cpus } else { n.free_cpus() },
                mem: if empty { n.facts.mem.0 } else { n.free_mem().0 },
            };
            (n.id, free)
        });
        Free { nodes: nodes.collect() }
    }

    fn open(&self) -> impl Iterator<Item = (&NodeId, &FreeNode)> {
        self.nodes.iter().filter(|(_, n)| n.open)
    }

    fn fits(&self, d: &Demand) -> bool {
        match d.spread {
            Spread::Nodes { nodes, gpus_each } => {
                let fitting = self.open().filter(|(_, n)| n.holds(d, gpus_each)).count();
                fitting >= nodes as usize
            }
            Spread::Gpus { total } => self.open().map(|(_, n)| n.gives(d)).sum::<u32>() >= total,
        }
    }

    fn take(&mut self, d: &Demand, part: &PartPlacement) {
        let node = self.nodes.get_mut(&part.node).unwrap();
        assert!(node.open, "work on a closed node");
        for gpu in &part.gpus {
            let model = node.gpus.remove(gpu).expect("a GPU is given twice");
            assert!(wants(d, &model), "{model} given for {:?}", d.gpu_model);
        }
        let n = part.gpus.len() as u32;
        assert_eq!((part.cpus, part.mem), (d.cpus_for(n), d.mem_for(n)));
        assert_eq!(part.ranks, d.ranks_for(n));
        node.cpus = node.cpus.checked_sub(part.cpus).expect("too many CPUs");
        node.mem = node.mem.checked_sub(part.mem.0).expect("too much memory");
    }
}

impl FreeNode {
    fn matching(&self, d: &Demand) -> u32 {
        self.gpus.values().filter(|m| wants(d, m)).count() as u32
    }
    fn holds(&self, d: &Demand, gpus: u32) -> bool {
        let model = d.gpu_model.is_none() || self.all_models.iter().any(|m| wants(d, m));
        let room = self.cpus >= d.cpus_for(gpus) && self.mem >= d.mem_for(gpus).0;
        model && room && self.matching(d) >= gpus
    }
    fn gives(&self, d: &Demand) -> u32 {
        (1..=self.matching(d)).rev().find(|&g| self.holds(d, g)).unwrap_or(0)
    }
}

fn wants(d: &Demand, model: &str) -> bool {
    d.gpu_model.as_ref().is_none_or(|m| m.split('|').any(|m| m == model))
}

/// Every waiting task that may start, in the order of the queue.
fn in_order(state: &State) -> Vec<(QueueKey, TaskId)> {
    let mut keys: Vec<QueueKey> =
        state.index.queue.iter().flat_map(|(_, keys)| keys.iter().copied()).collect();
    keys.sort();
    let tasks = keys.into_iter().flat_map(|key| match &state.job(key.job).unwrap().tasks {
        Tasks::Array(a) if key.index.is_none() => {
            a.waiting.iter().map(|i| (key, TaskId::of_array(key.job, i))).collect()
        }
        _ => vec![(key, TaskId { job: key.job, index: key.index })],
    });
    tasks.collect()
}

fn check_shape(d: &Demand, placement: &Placement, free: &Free, avoid: &BTreeSet<NodeId>) {
    let parts = &placement.parts;
    assert!(parts.is_sorted_by(|a, b| a.node < b.node), "{parts:?}");
    let unwanted = |n: &NodeId| avoid.contains(n);
    match d.spread {
        Spread::Nodes { nodes, gpus_each } => {
            assert_eq!(parts.len(), nodes.max(1) as usize);
            assert!(parts.iter().all(|p| p.gpus.len() == gpus_each as usize));
            let fitting = || free.open().filter(|(_, n)| n.holds(d, gpus_each));
            let wanted = fitting().filter(|(id, _)| !unwanted(id)).count();
            let unwanted_used = parts.iter().filter(|p| unwanted(&p.node)).count();
            assert_eq!(unwanted_used, parts.len().saturating_sub(wanted));
            if parts.len() == 1 && unwanted_used == 0 {
                let good = fitting().filter(|(id, _)| !unwanted(id));
                let least = good.map(|(_, n)| n.gpus.len()).min();
                assert_eq!(Some(free.nodes[&parts[0].node].gpus.len()), least, "not the best fit");
            }
        }
        Spread::Gpus { total } => {
            assert_eq!(parts.iter().map(|p| p.gpus.len() as u32).sum::<u32>(), total);
            assert!(parts.iter().all(|p| !p.gpus.is_empty()));
            if avoid.is_empty() {
                let mut gives: Vec<u32> = free.open().map(|(_, n)| n.gives(d)).collect();
                gives.sort_by(|a, b| b.cmp(a));
                let fewest = (1..).find(|&n| gives.iter().take(n).sum::<u32>() >= total);
                assert_eq!(Some(parts.len()), fewest, "more nodes than needed");
            }
        }
    }
}

/// Walks the queue one task at a time and checks each decision where it was made.
fn check_plan(c: &Case) {
    let (state, plan) = (c.state(), c.plan());
    let placed: BTreeMap<TaskId, &Placement> =
        plan.placements.iter().map(|p| (p.task, p)).collect();
    assert_eq!(placed.len(), plan.placements.len(), "a task is placed twice");
    let mut free = Free::of(&state, false);
    let mut running: BTreeMap<JobId, u32> = BTreeMap::new();
    for task in &state.index.active {
        *running.entry(task.job).or_default() += 1;
    }
    let (mut seen, mut keeper) = (0, None);
    for (key, task) in in_order(&state) {
        let job = state.job(task.job).unwrap();
        let d = Demand::of(&job.spec);
        let limit = job.spec.array.as_ref().and_then(|a| a.max_running);
        let at_limit = limit.is_some_and(|n| running.get(&job.id).copied().unwrap_or(0) >= n);
        let none = BTreeSet::new();
        let own = job.task(key.index);
        if let Some(placement) = placed.get(&task) {
            assert!(keeper.is_none() && !at_limit && seen < c.policy.placements_max);
            check_shape(&d, placement, &free, own.map_or(&none, |t| &t.avoid));
            placement.parts.iter().for_each(|p| free.take(&d, p));
            *running.entry(job.id).or_default() += 1;
            seen += 1;
        } else if keeper.is_none() && !at_limit && seen < c.policy.placements_max {
            assert!(!free.fits(&d), "{task} would fit");
            let would_fit = plan.by_demand.get(&d);
            let since = match own.map(|t| &t.phase) {
                Some(Phase::Pending { since, .. }) => *since,
                _ => job.submitted_at,
            };
            let overdue = NOW.since(since) > c.policy.patience;
            if overdue && matches!(would_fit, Some(Verdict::Busy(_))) {
                keeper = Some(job.id);
            }
        }
    }
    assert_eq!(seen, placed.len(), "something was placed that does not wait");
}

fn check_verdicts(c: &Case) {
    let (state, plan) = (c.state(), c.plan());
    let placed: BTreeSet<TaskId> = plan.placements.iter().map(|p| p.task).collect();
    for job in state.jobs.values() {
        let indices: Vec<Option<u32>> = match &job.spec.array {
            None => vec![None],
            Some(a) => a.indices.iter().map(Some).collect(),
        };
        for task in indices.into_iter().map(|index| TaskId { job: job.id, index }) {
            let pending = job.task_state(task.index) == Some(JobState::Pending);
            let verdict = crate::verdict(&state, &plan, task, NOW);
            assert_eq!(verdict.is_some(), pending, "{task}: {verdict:?}");
            let full = plan.placements.len() >= c.policy.placements_max;
            if verdict == Some(Verdict::Next) {
                assert!(placed.contains(&task) || full, "{task} waits for no reason");
            }
            if let Some(v) = verdict {
                assert!(!crate::describe(&v).is_empty());
            }
        }
    }
}

fn check_shortages(c: &Case) {
    let (state, plan) = (c.state(), c.plan());
    let empty = Free::of(&state, true);
    for (d, verdict) in &plan.by_demand {
        let (s, busy) = match verdict {
            Verdict::Busy(s) => (s, true),
            Verdict::NodesUnavailable(s) => (s, false),
            Verdict::Behind { .. } => continue,
            other => panic!("{other:?} for a demand"),
        };
        let b = s.blocked;
        let away = b.draining + b.away + b.unsuitable;
        let counted = s.nodes_fitting + b.gpus_busy + b.cpus_busy + b.mem_busy + away;
        assert_eq!((counted, s.nodes_total), (s.nodes_total, state.nodes.len() as u32));
        assert_eq!(busy, empty.fits(d), "{d:?}");
    }
}

fn check_impossible(c: &Case) {
    let state = c.state();
    let mut all = Free::of(&state, true);
    all.nodes.values_mut().for_each(|n| n.open = true);
    for job in state.jobs.values() {
        let d = Demand::of(&job.spec);
        let possible = crate::impossible(&state, &d);
        assert_eq!(possible.is_ok(), all.fits(&d), "{possible:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn each_decision_of_a_pass_is_right(c in any_case()) {
        check_plan(&c);
    }

    #[test]
    fn every_pending_task_has_a_verdict(c in any_case()) {
        check_verdicts(&c);
    }

    #[test]
    fn shortages_add_up(c in any_case()) {
        check_shortages(&c);
    }

    #[test]
    fn only_the_impossible_is_refused(c in any_case()) {
        check_impossible(&c);
    }

    #[test]
    fn a_pass_gives_the_same_twice(c in any_case()) {
        prop_assert_eq!(c.plan(), c.plan());
    }

    #[test]
    fn advice_is_true(c in any_case()) {
        advice::check(&c);
    }

    #[test]
    fn what_starts_by_says_comes_true(c in any_case()) {
        advice::check_starts_by(&c);
    }
}
