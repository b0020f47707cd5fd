use tutti_model::{Drain, GpuRequest, LoopbackOf, Reservation, Topology};

use super::*;

#[test]
fn a_good_placement_passes() {
    let mut c = case();
    let (a, b) = (c.waiting(gang(2, 4)), c.waiting(JobSpec::shell("cpu")));
    let mut plan = place(a, vec![part(N1, &[0, 1, 2, 3]), part(N2, &[0, 1, 2, 3])]);
    plan.placements.push(Placement { task: b, parts: vec![part(N1, &[])] });
    c.accepts(&plan);
}

#[test]
fn only_what_waits_is_placed_and_only_once() {
    let mut c = case();
    let task = c.waiting(gang(1, 1));
    let mut plan = place(task, vec![part(N1, &[0])]);
    c.accepts(&plan);
    let unknown = TaskId::single(JobId(99));
    assert_eq!(c.refuses(&place(unknown, vec![part(N1, &[0])])), Violation::NotPending(unknown));
    plan.placements.push(Placement { task, parts: vec![part(N2, &[0])] });
    assert_eq!(c.refuses(&plan), Violation::PlacedTwice(task));
    plan.placements.pop();
    assert_eq!(c.refuses_if(&plan, |s| job_mut(s, task.job).held = true), Violation::Held(task));
    c.carry_out(plan.clone());
    assert_eq!(c.refuses(&plan), Violation::NotPending(task));
}

#[test]
fn dependencies_and_array_limits_are_kept() {
    let mut c = case();
    let first = c.waiting(gang(1, 1));
    let after = JobSpec { after: vec![format!("ok:{first}").parse().unwrap()], ..gang(1, 1) };
    let second = c.waiting(after);
    let plan = place(second, vec![part(N1, &[0])]);
    assert_eq!(c.refuses(&plan), Violation::DependenciesOpen(second));
    let array = c.waiting(JobSpec { array: "0-3%1".parse().ok(), ..gang(1, 1) }).job;
    let of = |i, gpu| Placement { task: TaskId::of_array(array, i), parts: vec![part(N1, &[gpu])] };
    let one = Plan { placements: vec![of(0, 0)], ..Plan::default() };
    c.accepts(&one);
    let two = Plan { placements: vec![of(0, 0), of(1, 1)], ..Plan::default() };
    assert_eq!(c.refuses(&two), Violation::ArrayLimit(array, 2, 1));
}

#[test]
fn a_gang_gets_exactly_what_it_asked_for() {
    let mut c = case();
    let task = c.waiting(JobSpec { cpus_per_gpu: Some(2), ..gang(2, 2) });
    let good = |node| PartPlacement { cpus: 4, ..part(node, &[0, 1]) };
    c.accepts(&place(task, vec![good(N1), good(N2)]));
    let wrong = [
        vec![good(N1)],
        vec![good(N1), PartPlacement { cpus: 3, ..good(N2) }],
        vec![good(N1), PartPlacement { mem: Bytes(1), ..good(N2) }],
        vec![good(N1), PartPlacement { ranks: 2, ..good(N2) }],
        vec![good(N1), PartPlacement { share: Milli(500), ..good(N2) }],
        vec![good(N1), PartPlacement { cpus: 4, ..part(N2, &[1, 1]) }],
        vec![good(N1), PartPlacement { cpus: 6, ..part(N2, &[0, 1, 2]) }],
    ];
    for parts in wrong {
        let violation = c.refuses(&place(task, parts.clone()));
        assert!(matches!(violation, Violation::NotWhole(..)), "{parts:?}: {violation}");
    }
    let twice = c.refuses(&place(task, vec![good(N1), good(N1)]));
    assert_eq!(twice, Violation::NodeTwice(task, N1));
}

#[test]
fn an_elastic_gang_stays_in_its_range() {
    let mut c = case();
    let all = |node| part(node, &[0, 1, 2, 3]);
    let task = c.waiting(elastic(1, 2));
    c.accepts(&place(task, vec![all(N1)]));
    c.accepts(&place(task, vec![all(N1), all(N2)]));
    let large = c.waiting(elastic(2, 2));
    let violation = c.refuses(&place(large, vec![all(N1)]));
    assert!(matches!(violation, Violation::NotWhole(..)), "{violation}");
}

#[test]
fn nodes_and_gpus_are_there_and_of_the_right_kind() {
    let mut c = case();
    let spec = JobSpec {
        gpus_per_node: Some(GpuRequest { model: Some("h100|a100".into()), count: 1 }),
        gpu_mem: Some(Bytes::gib(80)),
        labels: [("zone".to_owned(), "a|b".to_owned())].into(),
        avoid_labels: [("old".to_owned(), "yes".to_owned())].into(),
        ..gang(1, 1)
    };
    c.world.label(N1, "zone", "b");
    let task = c.waiting(spec);
    let plan = place(task, vec![part(N1, &[0])]);
    c.accepts(&plan);
    let missing = c.refuses(&place(task, vec![part(N1, &[7])]));
    assert_eq!(missing, Violation::NoSuchGpu(task, N1, GpuIndex(7)));
    let gpu = |s: &mut State| s.nodes.get_mut(&N1).unwrap().facts.gpus[0].clone();
    let set = |s: &mut State, gpu| s.nodes.get_mut(&N1).unwrap().facts.gpus[0] = gpu;
    let model = c.refuses_if(&plan, |s| {
        let gpu = tutti_model::Gpu { model: "t4".into(), ..gpu(s) };
        set(s, gpu);
    });
    assert_eq!(model, Violation::WrongModel(task, N1, GpuIndex(0)));
    let small = c.refuses_if(&plan, |s| {
        let gpu = tutti_model::Gpu { mem: Bytes::gib(40), ..gpu(s) };
        set(s, gpu);
    });
    assert_eq!(small, Violation::GpuTooSmall(task, N1, GpuIndex(0)));
    for (label, value) in [("zone", "c"), ("old", "yes")] {
        let labels = c.refuses_if(&plan, |s| {
            s.nodes.get_mut(&N1).unwrap().facts.labels.insert(label.into(), value.into());
        });
        assert_eq!(labels, Violation::WrongLabels(task, N1), "{label}");
    }
    let fenced = c.refuses_if(&plan, |s| {
        let finding = tutti_model::Finding {
            key: "ecc/gpu0".into(),
            check: "ecc".into(),
            gpu: Some(GpuIndex(0)),
            action: tutti_model::HealthAction::FenceGpu,
            text: "broken".into(),
            since: Time(0),
            drill: false,
            by_job: false,
        };
        s.nodes.get_mut(&N1).unwrap().findings.push(finding);
    });
    assert_eq!(fenced, Violation::Fenced(task, N1, GpuIndex(0)));
    let drain = Drain {
        by: "root".into(),
        reason: "fan".into(),
        since: Time(0),
        auto: false,
        finding: None,
    };
    let closed = c.refuses_if(&plan, |s| s.nodes.get_mut(&N1).unwrap().drain = Some(drain));
    assert_eq!(closed, Violation::NodeClosed(task, N1));
}

#[test]
fn a_gang_spans_no_more_than_it_may() {
    let mut c = case();
    c.world.label(N1, "rack", "r1");
    c.world.label(N2, "rack", "r1");
    let task = c.waiting(JobSpec { topology: Some(Topology::Rack), ..gang(2, 1) });
    let plan = place(task, vec![part(N1, &[0]), part(N2, &[0])]);
    c.accepts(&plan);
    let apart = |s: &mut State| {
        s.nodes.get_mut(&N2).unwrap().facts.labels.insert("rack".into(), "r2".into());
    };
    assert_eq!(c.refuses_if(&plan, apart), Violation::TooWide(task, "rack"));
    // The operator's map outranks the labels.
    let mapped = c.refuses_if(&plan, |s| {
        let place = tutti_model::Place { rack: Some("r9".into()), ..Default::default() };
        policy_mut(s).topology.nodes.insert("n2".into(), place);
    });
    assert_eq!(mapped, Violation::TooWide(task, "rack"));
    let island = c.waiting(JobSpec { topology: Some(Topology::Island), ..gang(1, 2) });
    let plan = place(island, vec![part(N1, &[0, 1])]);
    c.accepts(&plan);
    let split = c.refuses_if(&plan, |s| {
        let gpus = &mut s.nodes.get_mut(&N1).unwrap().facts.gpus;
        gpus.iter_mut().for_each(|g| g.island = Some(g.index.0 % 2));
    });
    assert_eq!(split, Violation::TooWide(island, "island"));
}

#[test]
fn nothing_is_given_twice() {
    let mut c = case();
    let held =
        JobSpec { mem_per_node: Some(Bytes::gib(200)), cpus_per_node: Some(30), ..gang(1, 1) };
    let parts = PartPlacement { cpus: 30, mem: Bytes::gib(200), ..part(N1, &[0]) };
    c.placed(held, vec![parts]);
    let task = c.waiting(gang(1, 1));
    c.accepts(&place(task, vec![part(N1, &[1])]));
    let taken = c.refuses(&place(task, vec![part(N1, &[0])]));
    assert_eq!(taken, Violation::GpuTaken(task, N1, GpuIndex(0)));
    let many = c.waiting(JobSpec { cpus_per_node: Some(3), ..gang(1, 1) });
    let parts = vec![PartPlacement { cpus: 3, ..part(N1, &[1]) }];
    assert_eq!(c.refuses(&place(many, parts)), Violation::CpusTaken(many, N1));
    let large = c.waiting(JobSpec { mem_per_node: Some(Bytes::gib(100)), ..gang(1, 1) });
    let parts = vec![PartPlacement { mem: Bytes::gib(100), ..part(N1, &[1]) }];
    assert_eq!(c.refuses(&place(large, parts)), Violation::MemoryTaken(large, N1));
    // Nor by the plan itself.
    let other = c.waiting(gang(1, 1));
    let mut plan = place(task, vec![part(N2, &[0])]);
    plan.placements.push(Placement { task: other, parts: vec![part(N2, &[0])] });
    assert_eq!(c.refuses(&plan), Violation::GpuTaken(other, N2, GpuIndex(0)));
}

#[test]
fn shares_of_a_gpu_are_no_more_than_a_whole() {
    let mut c = case();
    let share = |n: u16| JobSpec { gpu_share: Some(f64::from(n) / 1000.0), ..JobSpec::shell("x") };
    let of = |n: u16, gpu| vec![PartPlacement { share: Milli(n), ..part(N1, &[gpu]) }];
    c.placed(share(600), of(600, 0));
    let (small, large) = (c.waiting(share(400)), c.waiting(share(401)));
    c.accepts(&place(small, of(400, 0)));
    let taken = Violation::GpuTaken(large, N1, GpuIndex(0));
    assert_eq!(c.refuses(&place(large, of(401, 0))), taken);
    let whole = c.waiting(gang(1, 1));
    let taken = Violation::GpuTaken(whole, N1, GpuIndex(0));
    assert_eq!(c.refuses(&place(whole, vec![part(N1, &[0])])), taken);
}

#[test]
fn an_exclusive_node_has_one_tenant() {
    let mut c = case();
    let exclusive = || JobSpec { exclusive: true, ..gang(1, 1) };
    let (alone, other) = (c.waiting(exclusive()), c.waiting(gang(1, 1)));
    let mut plan = place(alone, vec![part(N1, &[0])]);
    c.accepts(&plan);
    plan.placements.push(Placement { task: other, parts: vec![part(N1, &[1])] });
    assert_eq!(c.refuses(&plan), Violation::NotAlone(other, N1));
    c.carry_out(place(other, vec![part(N1, &[1])]));
    let plan = place(alone, vec![part(N1, &[0])]);
    assert_eq!(c.refuses(&plan), Violation::NotAlone(alone, N1));
}

#[test]
fn what_is_kept_for_one_is_not_given_to_another() {
    let mut c = case();
    let all = || part(N1, &[0, 1, 2, 3]);
    let low = c.running(of_class("scavenger", gang(1, 4)), vec![all()]);
    let high = c.waiting(gang(1, 2));
    let victims = vec![requeue(low, 60_000 * 4)];
    c.carry_out(claim(high, vec![part(N1, &[0, 1])], ClaimCause::Class, victims));
    c.world.end_of(low);
    let other = c.waiting(gang(1, 1));
    c.accepts(&place(other, vec![part(N1, &[2])]));
    c.accepts(&place(high, vec![part(N1, &[0, 1])]));
    c.accepts(&place(high, vec![part(N1, &[2, 3])]));
    let kept = c.refuses(&place(other, vec![part(N1, &[1])]));
    assert_eq!(kept, Violation::Kept(other, N1, high));
    // Once the owner has other room, or the claim is dropped, it is free.
    let mut plan = place(high, vec![part(N1, &[2, 3])]);
    plan.placements.push(Placement { task: other, parts: vec![part(N1, &[1])] });
    c.accepts(&plan);
    let mut plan = place(other, vec![part(N1, &[1])]);
    plan.dropped.push(high);
    c.accepts(&plan);
    plan.dropped.push(other);
    assert_eq!(c.refuses(&plan), Violation::NoClaim(other));
}

#[test]
fn nothing_runs_into_a_reservation_of_others() {
    let mut c = case();
    let now = c.world.now;
    c.set_policy(|p| {
        p.reservations.push(Reservation {
            name: "upgrade".into(),
            nodes: ["n1".to_owned()].into(),
            from: later(now, 3600),
            until: later(now, 7200),
            team: Some("vision".into()),
        });
    });
    let limit = |secs| JobSpec { time: Some(Span::secs(secs)), ..gang(1, 1) };
    let (short, long, open) =
        (c.waiting(limit(3600)), c.waiting(limit(3601)), c.waiting(gang(1, 1)));
    c.accepts(&place(short, vec![part(N1, &[0])]));
    c.accepts(&place(long, vec![part(N2, &[0])]));
    let reserved = |task| Violation::Reserved(task, N1, "upgrade".into());
    assert_eq!(c.refuses(&place(long, vec![part(N1, &[0])])), reserved(long));
    assert_eq!(c.refuses(&place(open, vec![part(N1, &[0])])), reserved(open));
    let theirs = c.waiting(of_team("vision", gang(1, 1)));
    c.accepts(&place(theirs, vec![part(N1, &[0])]));
}

#[test]
fn no_team_gets_more_than_its_limit_at_any_level() {
    let mut c = case();
    let limit = GpuQuota { any: 3, ..GpuQuota::default() };
    c.set_team("lab", Team { limit: Some(limit), ..guaranteed(0) });
    c.set_team("vision", Team { parent: Some("lab".into()), ..guaranteed(0) });
    c.placed(of_team("lab", gang(1, 2)), vec![part(N1, &[0, 1])]);
    let (one, two) =
        (c.waiting(of_team("vision", gang(1, 1))), c.waiting(of_team("vision", gang(1, 2))));
    c.accepts(&place(one, vec![part(N2, &[0])]));
    let over = |task| Violation::TeamLimit(task, "lab".into());
    assert_eq!(c.refuses(&place(two, vec![part(N2, &[0, 1])])), over(two));
    let mut plan = place(one, vec![part(N2, &[0])]);
    let more = c.waiting(of_team("lab", gang(1, 1)));
    plan.placements.push(Placement { task: more, parts: vec![part(N2, &[1])] });
    assert_eq!(c.refuses(&plan), over(more));
    let of_model = c.refuses_if(&place(one, vec![part(N2, &[0])]), |s| {
        let limit = GpuQuota { any: 0, models: [("h100".to_owned(), 2)].into() };
        policy_mut(s).teams.get_mut("lab").unwrap().limit = Some(limit);
    });
    assert_eq!(of_model, over(one));
}

#[test]
fn nobody_meets_on_a_fixed_port() {
    let mut c = case();
    let mut spec = gang(1, 1);
    spec.name = Some("chat".into());
    let replicas = tutti_model::Replicas { min: 3, max: 3 };
    let service = tutti_model::ServiceSpec { port: Some(8000), replicas, ..Default::default() };
    spec.service = Some(Box::new(service));
    let (spec, user, key) = (Box::new(spec), None, None);
    c.world.engine.step(Command::Serve { actor: ada(), spec, user, key }, c.world.now);
    let [a, b, d] = [1, 2, 3].map(|id| TaskId::single(JobId(id)));
    let both = |node| {
        let mut plan = place(a, vec![part(N1, &[0])]);
        plan.placements.extend(place(b, vec![part(node, &[1])]).placements);
        plan
    };
    c.accepts(&both(N2));
    assert_eq!(c.refuses(&both(N1)), Violation::PortTaken(b, N1, 8000, a));
    c.carry_out(place(a, vec![part(N1, &[0])]));
    let there = place(d, vec![part(N1, &[1])]);
    assert_eq!(c.refuses(&there), Violation::PortTaken(d, N1, 8000, a));
}

#[test]
fn nodes_of_a_gang_reach_each_other() {
    let mut c = case();
    let task = c.waiting(gang(2, 4));
    let plan = place(task, vec![part(N1, &[0, 1, 2, 3]), part(N2, &[0, 1, 2, 3])]);
    c.accepts(&plan);
    let loopback = |s: &mut State, id: NodeId| {
        let of = LoopbackOf { host: "x".to_owned(), id: "x".to_owned() };
        s.nodes.get_mut(&id).unwrap().facts.loopback = Some(of);
    };
    let wrong = Violation::Unreachable(task, N1, N2);
    assert_eq!(c.refuses_if(&plan, |s| loopback(s, N2)), wrong);
}
