//! Random clusters and queues for properties. Small, so that a failing one can be read.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tutti_model::*;

use super::*;

fn any_node() -> impl Strategy<Value = (Node, u32)> {
    let gpus = prop_oneof![
        1 => Just(vec![]),
        4 => (1..5usize).prop_map(|n| vec!["h100"; n]),
        2 => (1..5usize).prop_map(|n| vec!["a100"; n]),
        1 => vec(select(vec!["h100", "a100"]), 1..5),
    ];
    let net = select(vec!["ib", "eth"]);
    // Most nodes are reached from everywhere, some only on their own machine.
    let host = select(vec!["", "", "", "", "a", "b"]);
    let marks = (0..10u32, 0..2u16, 0..3u32, net, 0..12u16, any::<bool>(), host);
    (gpus, 2..12u32, 8..24u64, marks).prop_map(|(gpus, cpus, mem, marks)| {
        let (standing, split, rack, net, broken, can_move, host) = marks;
        let mut n = node(0, &gpus);
        n.facts.loopback = (!host.is_empty()).then(|| loopback_of(host));
        (n.facts.can_suspend, n.facts.can_move) = (true, can_move);
        (n.facts.cpus, n.facts.mem) = (cpus, Bytes::gib(mem));
        n.facts.labels.insert("net".to_owned(), net.to_owned());
        for gpu in &mut n.facts.gpus {
            gpu.island = Some(if split == 0 { 0 } else { gpu.index.0 / 2 });
        }
        if n.facts.gpus.iter().any(|g| g.index.0 == broken) {
            n.findings = vec![fenced(broken)];
        }
        match standing {
            0 => n.link = Link::Lost { since: NOW },
            1 => {
                n.drain = Some(Drain {
                    by: String::new(),
                    reason: String::new(),
                    since: NOW,
                    auto: false,
                    finding: None,
                })
            }
            _ => {}
        }
        (n, rack)
    })
}

fn any_shape() -> impl Strategy<Value = JobSpec> {
    prop_oneof![
        4 => (1..4u32, 0..4u32).prop_map(|(n, g)| gang(n, g)),
        2 => (1..3u32, 1..3u32).prop_map(|(n, g)| model(gang(n, g), "h100")),
        1 => (1..3u32).prop_map(|g| model(gpus(g), "h100|a100")),
        2 => (1..9u32).prop_map(total),
        1 => (1..6u32).prop_map(cpus),
        2 => select(vec![200u16, 500, 700]).prop_map(share),
        2 => (1..3u32, 1..3u32, 0..3u32).prop_map(|(min, more, g)| elastic(min, min + more, g)),
    ]
}

/// What a job asks for beside its GPUs.
fn any_extras(spec: JobSpec) -> impl Strategy<Value = JobSpec> {
    let amounts = (-1..2i32, 0..3u32, 0..4u64, 0..4u64);
    let domains = vec![Topology::Node, Topology::Rack, Topology::Any, Topology::Any, Topology::Any];
    let rare = (0..14u32, 0..12u32, 0..10u32, select(domains), 0..12u32);
    (Just(spec), amounts, rare).prop_map(|(spec, (prio, cpus, mem, hours), rare)| {
        let (array, hold, alone, domain, net) = rare;
        let rule = || [("net".to_owned(), "ib".to_owned())].into();
        let array = match array {
            0 => "0-6".parse().ok(),
            1 => "3-5%2".parse().ok(),
            _ => None,
        };
        JobSpec {
            priority: Priority(prio),
            cpus_per_gpu: Some(cpus).filter(|c| *c > 0),
            mem_per_node: Some(Bytes::gib(mem)).filter(|m| m.0 > 0),
            time: Some(Span::secs(3600 * hours)).filter(|t| t.0 > 0),
            hold: hold == 0,
            exclusive: alone == 0,
            topology: Some(domain).filter(|d| *d != Topology::Any && array.is_none()),
            labels: if net == 0 { rule() } else { Default::default() },
            avoid_labels: if net == 1 { rule() } else { Default::default() },
            array,
            ..spec
        }
    })
}

/// How a job of the case comes to be.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    spec: JobSpec,
    user: &'static str,
    minutes: u64,
    avoid: Option<u32>,
}

fn any_given() -> impl Strategy<Value = Given> {
    let teams = select(vec!["a", "b", "b1", "default"]);
    let classes = select(vec!["standard", "standard", "standard", "scavenger", "urgent"]);
    let who = (teams, classes, select(vec!["ada", "bob"]));
    let when = (0..8u64, prop_oneof![3 => Just(None), 1 => (1..5u32).prop_map(Some)]);
    (any_shape().prop_flat_map(any_extras), who, when).prop_map(|(spec, who, when)| {
        let (named, rank, user) = who;
        let spec = team(named, class(rank, spec));
        Given { spec, user, minutes: when.0, avoid: when.1 }
    })
}

/// Teams `a`, `b` and below it `b1`, sometimes with guarantees and limits.
fn any_policy() -> impl Strategy<Value = Policy> {
    let amounts = (0..6u32, 0..6u32, prop::option::weighted(0.3, 2..8u32));
    let knobs = (prop_oneof![6 => Just(4096usize), 1 => 1..4usize], 0..3usize, 0..8u32, 0..6u32);
    (amounts, knobs, 1..4u32).prop_map(|((a, b, limit), (most, heads, spare, kept), weight)| {
        let team = |parent: Option<&str>, guarantee, limit: Option<u32>| Team {
            parent: parent.map(str::to_owned),
            guarantee: quota(guarantee),
            limit: limit.map(quota),
            weight: weight * 1000,
            ..Team::default()
        };
        let teams = [
            ("a", team(None, a, None)),
            ("b", team(None, b, None)),
            ("b1", team(Some("b"), b / 2, limit.map(|l| l.max(b / 2)))),
        ];
        let spares = (spare == 0).then_some(Spare { per: Topology::Rack, nodes: 1 });
        let reservation = |team: Option<&str>, from: u64| Reservation {
            name: "r".to_owned(),
            nodes: ["n1".to_owned()].into(),
            from: Time(NOW.0 + from),
            until: Time(NOW.0 + 20_000_000),
            team: team.map(str::to_owned),
        };
        Policy {
            teams: teams.map(|(name, team)| (name.to_owned(), team)).into(),
            placements_max: most,
            reserved_heads: heads,
            spares: spares.into_iter().collect(),
            reservations: match kept {
                0 => vec![reservation(None, 5_000_000)],
                1 => vec![reservation(Some("a"), 0)],
                _ => Vec::new(),
            },
            ..Policy::default()
        }
    })
}

/// How a running task came to be suspended: for how many seconds, and whether a person wants it to
/// stay so.
type Nap = Option<(u64, bool)>;

/// Some jobs run, where an earlier pass put them, some are suspended, some GPUs are kept for who
/// waited long; the others wait. GPUs broke before and after.
pub(crate) fn any_case() -> impl Strategy<Value = Case> {
    let requeued = vec(prop::option::weighted(0.2, 0..700u64), 8);
    let jobs = (vec(any_given(), 0..8), vec(any_given(), 0..6), vec(any_given(), 0..8));
    let naps = vec(prop::option::weighted(0.6, (0..7200u64, prop::bool::weighted(0.2))), 8);
    let late = (vec(prop::option::weighted(0.2, 0..4u16), 7), any::<bool>());
    (vec(any_node(), 0..7), jobs, requeued, any_policy(), naps, late).prop_map(
        |(nodes, (first, middle, second), requeued, policy, naps, (broken, keeps))| {
            let mut c = case();
            for (from, rack) in nodes {
                let models: Vec<&str> = from.facts.gpus.iter().map(|g| g.model.as_str()).collect();
                c = c.node(
                    |to| {
                        let name = to.facts.name.clone();
                        (to.link, to.drain) = (from.link, from.drain.clone());
                        to.findings.clone_from(&from.findings);
                        to.facts = NodeFacts { name, ..from.facts.clone() };
                    },
                    &models,
                );
                let id = c.state.next_node;
                c = c.rack(&format!("r{rack}"), &[id]);
            }
            c.policy = Policy { placements_max: 4096, ..policy.clone() };
            c = first.into_iter().fold(c, give);
            start_all(&mut c);
            suspend(&mut c, &naps);
            c = middle.into_iter().fold(c, give);
            start_all(&mut c);
            requeue(&mut c, &requeued);
            break_free(&mut c, &broken);
            if keeps {
                keep(&mut c);
            }
            c = second.into_iter().fold(c, give);
            c.policy = policy;
            c
        },
    )
}

/// Some of the running tasks wait again, since so many seconds; some of those are in back-off.
fn requeue(c: &mut Case, requeued: &[Option<u64>]) {
    let active = c.state().index.active;
    for (id, seconds) in active.iter().zip(requeued) {
        let Some(seconds) = seconds.map(Span::secs) else { continue };
        let job = c.state.jobs_mut(id.job).unwrap();
        let submitted_at = job.submitted_at;
        let task = task_mut(job, id.index);
        if task.attempt().is_some_and(|a| a.is_suspended()) {
            continue;
        }
        let since = Time(NOW.0 - seconds.0).max(submitted_at);
        let not_before = Time(if seconds < Span::secs(60) { NOW.0 + 500 } else { 0 });
        task.avoid.extend(task.attempt().map(|a| a.parts[0].node));
        task.restarts.node_failure = 1;
        task.phase = Phase::Pending { since, not_before };
    }
}

/// Some of the running tasks are suspended, if the memory is there for what they had on their GPUs.
fn suspend(c: &mut Case, naps: &[Nap]) {
    let active = c.state().index.active;
    for (id, nap) in active.iter().zip(naps) {
        let Some((seconds, stays)) = *nap else { continue };
        let state = c.state();
        let job = state.job(id.job).unwrap();
        let attempt = job.task(id.index).and_then(Task::attempt).unwrap();
        let bytes = |p: &Part| Bytes::gib(p.gpus.len() as u64);
        let fits = |p: &Part| {
            !p.gpus.is_empty() && state.node(p.node).is_some_and(|n| n.free_mem() >= bytes(p))
        };
        let alone = job.spec.exclusive || job.spec.gpu_share.is_some();
        if alone || !attempt.parts.iter().all(fits) {
            continue;
        }
        let since = Time(NOW.0 - Span::secs(seconds).0);
        let attempt = task_mut(c.state.jobs_mut(id.job).unwrap(), id.index).attempt_mut().unwrap();
        for part in &mut attempt.parts {
            let bytes = bytes(part);
            part.go_out(bytes);
            part.is_out(bytes);
            part.lend();
        }
        let why = SuspendCause::Asked { by: "ada".to_owned() };
        let pause =
            Pause { at: since, ran: Span::secs(5), why, stays, kept_by: None, released_at: None };
        attempt.placed_at = Time(since.0 - 5_000);
        attempt.phase = AttemptPhase::Suspended { since, pause };
    }
}

/// GPUs that nobody has break: those of suspended tasks, too.
fn break_free(c: &mut Case, broken: &[Option<u16>]) {
    let used = c.state();
    for ((id, node), broken) in c.state.nodes.iter_mut().zip(broken) {
        let Some(gpu) = broken.map(GpuIndex) else { continue };
        let known = node.facts.gpus.iter().any(|g| g.index == gpu);
        if known && !used.nodes[id].used.gpus.contains_key(&gpu) && !node.is_fenced(gpu) {
            node.findings.push(fenced(gpu.0));
        }
    }
}

/// An earlier pass kept room for those who had waited long.
fn keep(c: &mut Case) {
    for claim in c.plan().claims {
        if claim.cause == ClaimCause::Overdue {
            let NewClaim { task, parts, cause, .. } = claim;
            let made_at = Time(NOW.0 - 1_000);
            c.state.claims.insert(task, Claim { parts, cause, made_at, victims: Vec::new() });
        }
    }
}

fn give(c: Case, given: Given) -> Case {
    let is_array = given.spec.array.is_some();
    // Ids grow with time: an older job can't come after a younger one.
    let newest = c.state.jobs.values().map(|j| NOW.since(j.submitted_at)).min();
    let ago = Span::secs(60 * given.minutes).min(newest.unwrap_or(Span::secs(600)));
    let c = c.user(given.user).submit_ago(ago, given.spec);
    let avoid = given.avoid.map(NodeId);
    if is_array { c } else { c.change_task(|t| t.avoid.extend(avoid)) }
}

fn start_all(c: &mut Case) {
    for placement in c.plan().placements {
        let job = c.state.jobs_mut(placement.task.job).unwrap();
        let task = task_mut(job, placement.task.index);
        activate(task, &placement.parts, Time(NOW.0 - 10_000));
    }
}
