//! Follows each piece of advice and sees whether the task starts.

use std::sync::Arc;

use proptest::prelude::*;
use tutti_model::*;

use crate::testing::*;

const HOUR: Span = Span::secs(3600);
const HALF: &[u16] = &[0, 1, 2, 3];

/// The advice for the newest job; all of it must be true.
fn advice(c: &Case) -> Vec<String> {
    let task = TaskId::single(JobId(c.state.next_job));
    let advice = c.explain(&task.to_string()).advice;
    advice.iter().for_each(|a| assert_true(c, task, a));
    advice
}

fn assert_true(c: &Case, task: TaskId, advice: &str) {
    let Some(after) = follow(c, task.job, advice) else { return };
    let (state, policy) = (after.case.state(), &after.case.policy);
    let plan = crate::plan(&state, policy, after.at);
    let starts = plan.placements.iter().any(|p| p.task.job == after.job);
    assert!(starts, "{task}: {advice}: {plan:?}");
}

/// The case with the advice followed, the job that should start, and when.
struct After {
    case: Case,
    job: JobId,
    at: Time,
}

fn copy(c: &Case) -> Case {
    Case { state: c.state.clone(), policy: c.policy.clone(), user: c.user.clone() }
}

fn follow(c: &Case, job: JobId, advice: &str) -> Option<After> {
    let mut case = copy(c);
    let words: Vec<&str> =
        advice.split([' ', ',', ':', '(', ')']).filter(|w| !w.is_empty()).collect();
    let mut at = NOW;
    match words.as_slice() {
        _ if advice.contains("wait for its turn") => return None,
        ["release", ..] => case.state.jobs_mut(job)?.held = false,
        ["a", "priority", "of", n, ..] => {
            case.state.jobs_mut(job)?.priority = Priority(n.parse().unwrap());
        }
        ["team", team, .., "of", n, "GPUs", "now"] => {
            let limit = case.policy.teams.get_mut(*team)?.limit.as_mut()?;
            limit.any = n.parse().unwrap();
        }
        ["team", team, .., "of", n, model, "GPUs", "now"] => {
            let limit = case.policy.teams.get_mut(*team)?.limit.as_mut()?;
            *limit.models.get_mut(*model)? = n.parse().unwrap();
        }
        ["wait", "for", "reservation", ..] => at = case.policy.reservations[0].until,
        ["resume" | "bring", ..] => {
            for node in case.state.nodes.values_mut() {
                if words.contains(&node.facts.name.as_str()) {
                    (node.link, node.drain) = (Link::Up, None);
                }
            }
        }
        _ => {
            // What waits of the old one is out of the way; what runs of it goes on.
            let old = case.state.jobs_mut(job)?;
            old.held = true;
            let mut spec = JobSpec { array: None, ..JobSpec::clone(&old.spec) };
            spec.priority = old.priority;
            (spec.team, case.user) = (Some(old.team.clone()), old.user.clone());
            change(&mut spec, &words);
            let job = JobId(case.state.next_job + 1);
            return Some(After { case: case.submit_ago(Span(0), spec), job, at });
        }
    }
    Some(After { case, job, at })
}

fn change(spec: &mut JobSpec, words: &[&str]) {
    let number = |word: &str| word.parse::<u32>().unwrap();
    let model = spec.gpus_per_node.as_ref().and_then(|g| g.model.clone());
    match words {
        ["--topology", "any", "now"] => spec.topology = Some(Topology::Any),
        ["--topology", "rail", "now"] => spec.topology = Some(Topology::Rail),
        ["without", "the", "GPU", ..] => spec.gpus_per_node.as_mut().unwrap().model = None,
        ["without", "the", "label", ..] => spec.labels.clear(),
        ["on", "nodes", "with", "the", "label", ..] => spec.avoid_labels.clear(),
        ["GPUs", "with", mem, ..] => spec.gpu_mem = Some(mem.parse().unwrap()),
        ["on", "nodes", "that", "others", ..] => spec.exclusive = false,
        [n, "CPU" | "CPUs", "per", "GPU", ..] => spec.cpus_per_gpu = Some(number(n)),
        [n, "CPU" | "CPUs", "per", "node", ..] => spec.cpus_per_node = Some(number(n)),
        [mem, "of", "memory", "per", "GPU", ..] => spec.mem_per_gpu = Some(mem.parse().unwrap()),
        [mem, "of", "memory", "per", "node", ..] => spec.mem_per_node = Some(mem.parse().unwrap()),
        ["a", "time", "limit", "of", span, ..] => spec.time = Some(span.parse().unwrap()),
        ["elastic", "from", n, ..] => {
            let max_nodes = spec.elastic.as_ref().map_or(spec.nodes.unwrap_or(1), |e| e.max_nodes);
            spec.elastic = Some(Elastic { min_nodes: number(n), max_nodes });
        }
        [part, "of", "a", "GPU", ..] => spec.gpu_share = Some(part.parse().unwrap()),
        [n, "GPUs", "on", "any", "nodes", ..] => {
            (spec.nodes, spec.gpus) = (None, Some(number(n)));
        }
        [n, "GPU" | "GPUs", "per", "node", ..] => {
            spec.gpus_per_node = Some(GpuRequest { model, count: number(n) });
        }
        [n, "GPU" | "GPUs", "instead", ..] => spec.gpus = Some(number(n)),
        [n, "node" | "nodes", "instead", ..] => spec.nodes = Some(number(n)),
        other => panic!("unknown advice: {other:?}"),
    }
}

#[test]
fn a_held_job_is_to_be_released() {
    let held = |spec| JobSpec { hold: true, ..spec };
    let c = case().nodes(1, 8).submit(held(gpus(8)));
    assert_eq!(advice(&c), ["release it: tutti release 1 (it would start now)"]);
    let c = case().nodes(1, 8).lose(1).submit(held(gpus(8)));
    assert_eq!(advice(&c), ["release it: tutti release 1 (it would then wait for its turn)"]);
    let c = case().nodes(1, 8).submit(held(gpus(1))).submit(after("1", gpus(1)));
    assert_eq!(c.explain("2").advice, ["job 1, which it waits for, is held: tutti release 1"]);
}

#[test]
fn smaller_shapes_are_advised_when_they_fit() {
    let c = case().nodes(3, 8).running(gang(3, 4), &[(1, HALF), (2, HALF), (3, HALF)]);
    assert_eq!(advice(&c.submit(gang(2, 8))), ["4 GPUs per node instead of 8: now"]);
    let c = case().nodes(3, 8).running(gpus(4), &[(1, HALF)]).submit(gang(3, 8));
    let expected = [
        "elastic from 2 nodes: now",
        "4 GPUs per node instead of 8: now",
        "2 nodes instead of 3: now",
    ];
    assert_eq!(advice(&c), expected);
    let c = case().nodes(2, 8).running(gpus(4), &[(1, HALF)]).submit(total(16));
    assert_eq!(advice(&c), ["12 GPUs instead of 16: now"]);
    let c = case().nodes(2, 8).running(gang(2, 4), &[(1, HALF), (2, HALF)]).submit(gpus(8));
    assert_eq!(advice(&c), ["8 GPUs on any nodes: now", "4 GPUs per node instead of 8: now"]);
    let c = case().nodes(3, 8).running(gpus(8), &[(1, ALL)]).running(gpus(8), &[(2, ALL)]);
    let c = c.submit(elastic(2, 3, 8));
    assert_eq!(advice(&c), ["elastic from 1 node instead of 2: now"]);
}

#[test]
fn parts_of_a_gpu_can_be_smaller() {
    let c = case().nodes(1, 1).running(share(750), &[(1, &[0])]).submit(share(500));
    assert_eq!(advice(&c), ["0.25 of a GPU instead of 0.5: now"]);
}

#[test]
fn other_models_cpus_and_memory_are_advised_when_they_fit() {
    let c = case().nodes(1, 1).node(|_| {}, &["a100"]).running(gpus(1), &[(1, &[0])]);
    let c = c.submit(model(gpus(1), "h100"));
    assert_eq!(advice(&c), ["without the GPU model h100: now"]);
    let mem = |n, spec| JobSpec { mem_per_node: Some(Bytes::gib(n)), ..spec };
    let c = case().nodes(1, 8).running(mem(500, cpus(50)), &[(1, &[])]);
    assert_eq!(advice(&copy(&c).submit(cpus(20))), ["14 CPUs per node instead of 20: now"]);
    let c = c.submit(mem(100, gpus(1)));
    assert_eq!(advice(&c), ["12GiB of memory per node instead of 100GiB: now"]);
    let per_gpu = JobSpec { cpus_per_gpu: Some(16), ..gpus(4) };
    let c = case().nodes(1, 8).running(cpus(48), &[(1, &[])]).submit(per_gpu);
    let expected = ["4 CPUs per GPU instead of 16: now", "1 GPU per node instead of 4: now"];
    assert_eq!(advice(&c), expected);
}

#[test]
fn labels_gpu_memory_and_company_are_advised_when_they_help() {
    let label = |n: &mut Node| drop(n.facts.labels.insert("zone".to_owned(), "a".to_owned()));
    let zone = || [("zone".to_owned(), "a".to_owned())].into();
    let c = case().node(label, &["h100"]).nodes(1, 1).running(gpus(1), &[(1, &[0])]);
    let c = c.submit(JobSpec { labels: zone(), ..gpus(1) });
    assert_eq!(advice(&c), ["without the label zone=a: now"]);
    let c = case().node(label, &["h100"]).nodes(1, 1).running(gpus(1), &[(2, &[0])]);
    let c = c.submit(JobSpec { avoid_labels: zone(), ..gpus(1) });
    assert_eq!(advice(&c), ["on nodes with the label zone=a too: now"]);
    let small = |n: &mut Node| n.facts.gpus[0].mem = Bytes::gib(40);
    let c = case().node(small, &["a100"]).nodes(1, 1).running(gpus(1), &[(2, &[0])]);
    let c = c.submit(JobSpec { gpu_mem: Some(Bytes::gib(80)), ..gpus(1) });
    assert_eq!(advice(&c), ["GPUs with 40GiB instead of 80GiB: now"]);
    let c = case().nodes(1, 8).running(gpus(1), &[(1, &[0])]).submit(exclusive(gpus(1)));
    assert_eq!(advice(&c), ["on nodes that others use too (not exclusive): now"]);
}

#[test]
fn a_wider_domain_is_advised() {
    let c = case().nodes(4, 8).rack("r1", &[1, 2]).rack("r2", &[3, 4]);
    let c = c.running(gpus(8), &[(1, ALL)]).running(gpus(8), &[(3, ALL)]);
    let advice = advice(&c.submit(within(Topology::Rack, gang(2, 8))));
    assert_eq!(advice[0], "--topology any: now");
}

#[test]
fn a_time_limit_lets_it_run_before_others_start() {
    let c = case().nodes(2, 8).running(time(HOUR, gpus(8)), &[(1, ALL)]);
    let c = c.submit(gang(2, 8)).submit(gpus(8));
    assert_eq!(c.verdict("3"), Some(Verdict::Behind { job: JobId(2) }));
    let expected =
        ["a time limit of 59m, before job 2 starts: now", "a priority of 1, above job 2: now"];
    assert_eq!(advice(&c), expected);
    let c = reserved(NOW.plus(Span(3 * HOUR.0)), NOW.plus(Span(4 * HOUR.0))).submit(gpus(8));
    assert_eq!(advice(&c)[0], "a time limit of 3h, before reservation 'power work': now");
}

fn reserved(from: Time, until: Time) -> Case {
    let (name, nodes) = ("power work".to_owned(), ["n1".to_owned()].into());
    let reservation = Reservation { name, nodes, from, until, team: None };
    case().nodes(1, 8).policy(|p| p.reservations.push(reservation))
}

#[test]
fn a_reservation_is_to_be_waited_for() {
    let c = reserved(Time(NOW.0 - 1), NOW.plus(HOUR)).submit(gpus(8));
    assert_eq!(advice(&c), ["wait for reservation 'power work' to end: in 1h"]);
}

#[test]
fn a_team_at_its_limit_is_told_what_it_would_take() {
    let c = case().nodes(2, 8).team("a", |t| t.limit = Some(quota(8)));
    let c = c.running(team("a", gpus(4)), &[(1, HALF)]).submit(team("a", gpus(8)));
    let expected =
        ["4 GPUs per node instead of 8: now", "team a would have to get a limit of 12 GPUs: now"];
    assert_eq!(advice(&c), expected);
}

#[test]
fn a_limit_by_model_is_raised_for_that_model() {
    let limit = GpuQuota { any: 16, models: [("h100".to_owned(), 8)].into() };
    let c = case().nodes(2, 8).team("a", |t| t.limit = Some(limit));
    let c = c.running(team("a", gpus(4)), &[(1, HALF)]).submit(team("a", gpus(8)));
    let advice = advice(&c);
    assert_eq!(advice.last().unwrap(), "team a would have to get a limit of 12 h100 GPUs: now");
}

#[test]
fn nodes_are_to_be_resumed_if_that_really_helps() {
    let c = case().nodes(2, 8).drain(2).submit(gang(2, 8));
    assert_eq!(advice(&c)[0], "resume node n2: now");
    let c = case().nodes(3, 8).drain(2).drain(3).submit(gang(3, 8));
    assert_eq!(advice(&c)[0], "resume nodes n2, n3: now");
    let c = case().nodes(2, 8).lose(2).submit(gang(2, 8));
    assert_eq!(advice(&c)[0], "bring back node n2: now");
    let c = case().nodes(3, 8).lose(2).drain(3).submit(gang(3, 8));
    assert_eq!(advice(&c)[0], "resume node n3 and bring back node n2: now");
    let c = case().nodes(2, 1).drain(1).running(gpus(1), &[(2, &[0])]);
    let c = c.submit(gpus(1)).submit(gpus(1));
    assert_eq!(c.explain("2").advice, ["resume node n1: now"]);
    assert_eq!(advice(&c), Vec::<String>::new(), "job 2 would take it");
}

#[test]
fn what_was_kept_back_goes_before_a_new_submission() {
    let c = case().nodes(2, 8).running(time(HOUR, gpus(4)), &[(1, HALF)]);
    let c = c.submit(gang(2, 8)).submit(array("0-9", gpus(4)));
    assert_eq!(c.verdict("3_0"), Some(Verdict::Behind { job: JobId(2) }));
    assert_eq!(c.explain("2").advice, Vec::<String>::new(), "job 3 would take the room");
}

#[derive(Clone, Debug)]
struct Wish {
    nodes: u32,
    gpus: u32,
    cpus: u32,
    hours: Option<u64>,
    kind: u8,
}

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let hours = prop::option::of(1u64..6);
    let wish = (1u32..4, 1u32..9, 1u32..60, hours, 0u8..8);
    let wish =
        wish.prop_map(|(nodes, gpus, cpus, hours, kind)| Wish { nodes, gpus, cpus, hours, kind });
    prop::collection::vec(wish, 3..12)
}

fn spec(wish: &Wish) -> JobSpec {
    let spec = match wish.kind {
        0 => total(wish.gpus * wish.nodes),
        1 => elastic(wish.nodes, wish.nodes + 1, wish.gpus),
        2 => share(100 * wish.gpus as u16),
        3 => class("scavenger", gang(wish.nodes, wish.gpus)),
        4 => within(Topology::Rack, gang(wish.nodes, wish.gpus)),
        5 => model(gang(wish.nodes, wish.gpus), "h100"),
        6 => exclusive(gpus(wish.gpus)),
        _ => team(["a", "b"][wish.gpus as usize % 2], gang(wish.nodes, wish.gpus)),
    };
    let time = wish.hours.map(|n| Span(n * HOUR.0));
    JobSpec { time, cpus_per_node: Some(wish.cpus), ..spec }
}

/// The state after the pass, as the engine has it when somebody asks why.
fn settle(mut c: Case) -> Case {
    for _ in 0..4 {
        let plan = c.plan();
        for p in &plan.placements {
            let job = Arc::make_mut(c.state.jobs.get_mut(&p.task.job).unwrap());
            activate(task_mut(job, p.task.index), &p.parts, NOW);
            c.state.claims.remove(&p.task);
        }
        if plan.placements.is_empty() {
            break;
        }
    }
    c
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn advice_is_true(wishes in wishes(), drained in prop::bool::ANY) {
        let mut c = case().nodes(3, 8).node(|_| {}, &["a100"; 8]).rack("r1", &[1, 2]);
        c = c.rack("r2", &[3, 4]).team("a", |t| t.limit = Some(quota(12))).team("b", |_| {});
        if drained {
            c = c.drain(2);
        }
        for wish in &wishes {
            c = c.submit(spec(wish));
        }
        let c = settle(c);
        for (&id, job) in &c.state.jobs {
            if job.state() == JobState::Pending {
                let task = TaskId::single(id);
                let explained = c.explain(&task.to_string());
                explained.advice.iter().for_each(|a| assert_true(&c, task, a));
            }
        }
    }
}
