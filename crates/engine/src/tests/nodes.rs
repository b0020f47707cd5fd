use tutti_model::{
    BurnInFigures, Bytes, GpuBenchFigures, GpuRates, JobState, Link, MatmulPrecision, MatmulRate,
    NodeId, NodeState, ReportedPhase, Role, TaskId,
};

use super::world::{World, admin, gang};
use crate::{Actor, Command, Engine, Rejected, Settings};

const N1: NodeId = NodeId(1);

#[test]
fn a_draining_node_finishes_its_work_and_gets_no_more() {
    let mut world = World::new(&[8, 8]);
    let job = world.submit(gang(1, 8));
    let node = world.nodes_of(job)[0];
    let name = world.engine.state().node_name(node);
    let drain =
        Command::Drain { actor: admin(), node: name.clone(), reason: "fan".into(), evict: false };
    world.step(drain).reply.unwrap();
    assert_eq!(world.engine.state().node(node).unwrap().state(), NodeState::Draining);
    let next = world.submit(gang(1, 8));
    assert_ne!(world.nodes_of(next)[0], node);
    let waits = world.submit(gang(1, 8));
    let lease = world.run(job);
    world.done(node, lease, &[(0, tutti_model::ExitStatus::Code(0))]);
    assert_eq!(world.state_of(waits), JobState::Pending);
    world.step(Command::Resume { actor: admin(), node: name }).reply.unwrap();
    assert_eq!(world.nodes_of(waits), [node]);
}

#[test]
fn a_node_keeps_what_an_admin_measured() {
    let mut world = World::new(&[8]);
    let figures = |slow: &[&str]| {
        Box::new(BurnInFigures {
            job: "3".parse().unwrap(),
            ranks: 8,
            inside: None,
            outside: None,
            copy: 1,
            slow: slow.iter().map(|s| (*s).to_owned()).collect(),
        })
    };
    let node = || "n1".to_owned();
    let measured =
        |actor, slow: &[&str]| Command::Measured { actor, node: node(), figures: figures(slow) };
    world.step(measured(admin(), &["copy"])).reply.unwrap();
    world.step(measured(admin(), &[])).reply.unwrap();
    let user = Actor { role: Role::User, ..admin() };
    assert!(matches!(
        world.step(measured(user, &["links"])).reply,
        Err(Rejected::RoleTooLow { .. })
    ));
    let long = world.step(measured(admin(), &["copy"; 17])).reply;
    assert!(matches!(long, Err(Rejected::BadSpec { key: "slow", .. })), "{long:?}");
    let kept = world.engine.state().node(N1).unwrap().burn_in.clone().unwrap();
    assert_eq!((kept.figures, kept.by, kept.at), (*figures(&[]), admin().user, world.now));
}

#[test]
fn a_node_keeps_what_its_gpus_were_measured_to_do_beside_its_links() {
    let mut world = World::new(&[8]);
    let figures = |shapes: usize, rate: u64| {
        let shape = MatmulRate { precision: MatmulPrecision::Bf16, m: 1, n: 1, k: 1, rate };
        Box::new(GpuBenchFigures {
            job: "3".parse().unwrap(),
            gpu: "NVIDIA H100 80GB HBM3".into(),
            gpus: 8,
            matmul: Some(GpuRates { median: rate, worst: rate }),
            fp8: None,
            copy: None,
            shapes: vec![shape; shapes],
            slow: Vec::new(),
        })
    };
    let measured = |actor, figures| Command::GpusMeasured { actor, node: "n1".into(), figures };
    world.step(measured(admin(), figures(0, 5))).reply.unwrap();
    world.step(measured(admin(), figures(16, 7))).reply.unwrap();
    let user = Actor { role: Role::User, ..admin() };
    let refused = world.step(measured(user, figures(0, 9))).reply;
    assert!(matches!(refused, Err(Rejected::RoleTooLow { .. })), "{refused:?}");
    let long = world.step(measured(admin(), figures(17, 9))).reply;
    assert!(matches!(long, Err(Rejected::BadSpec { key: "shapes", .. })), "{long:?}");
    let mut slow = figures(0, 9);
    slow.slow = vec![String::new(); 17];
    let long = world.step(measured(admin(), slow)).reply;
    assert!(matches!(long, Err(Rejected::BadSpec { key: "slow", .. })), "{long:?}");
    for (shapes, rate) in [(0, 0), (0, u64::MAX), (1, 100_000_000_000_000_001)] {
        let odd = world.step(measured(admin(), figures(shapes, rate))).reply.unwrap_err();
        let words = format!("{rate} a second is not possible");
        assert!(odd.to_string().contains(&words), "{odd}");
    }
    let mut fast = figures(0, 9);
    fast.copy = Some(GpuRates { median: 9, worst: 100_000_000_000_001 });
    let odd = world.step(measured(admin(), fast)).reply;
    assert!(matches!(odd, Err(Rejected::BadSpec { key: "copy", .. })), "{odd:?}");
    let mut many = figures(0, 9);
    many.gpus = u32::MAX;
    let odd = world.step(measured(admin(), many)).reply;
    assert!(matches!(odd, Err(Rejected::BadSpec { key: "gpus", .. })), "{odd:?}");
    let node = world.engine.state().node(N1).unwrap().clone();
    let kept = node.gpu_bench.unwrap();
    assert_eq!((kept.figures, kept.by, kept.at), (*figures(16, 7), admin().user, world.now));
    assert_eq!(node.burn_in, None);
    let again = Engine::restore(world.engine.state().clone(), Settings::default());
    assert_eq!(again.state().node(N1).unwrap().gpu_bench.as_ref().unwrap().by, admin().user);
}

#[test]
fn a_silent_node_is_lost_after_its_time_and_its_old_session_counts_no_more() {
    let mut world = World::new(&[8, 8]);
    world.wait(7, &[N1]);
    assert_eq!(world.engine.state().node(N1).unwrap().link, Link::Up);
    world.wait(1, &[N1]);
    assert!(matches!(world.engine.state().node(N1).unwrap().link, Link::Lost { .. }));
    assert_eq!(world.beat(N1, Vec::new()).reply, Err(Rejected::StaleSession(N1)));
}

#[test]
fn an_old_session_cannot_end_a_new_one() {
    let mut world = World::new(&[8]);
    world.hello("n1", 8, Vec::new());
    world.step(Command::Gone { node: N1, session: 1 });
    assert_eq!(world.engine.state().node(N1).unwrap().link, Link::Up);
}

#[test]
fn a_new_controller_gives_every_node_time_to_come_back() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 8));
    let lease = world.run(job);
    let mut engine = Engine::restore(world.engine.state().clone(), Settings::default());
    assert_eq!(engine.state(), world.engine.state(), "indexes are rebuilt as they were");
    // The controller was gone for an hour; nobody is blamed for that.
    world.now.0 += 3_600_000;
    engine.step(Command::Start, world.now);
    engine.step(Command::Tick, world.now);
    assert!(matches!(engine.state().node(N1).unwrap().link, Link::Away { .. }));
    world.engine = engine;
    let phase = ReportedPhase::Running { exits: Vec::new() };
    world.hello("n1", 8, vec![tutti_model::PartReport::new(lease, phase)]);
    assert_eq!(world.state_of(job), JobState::Running);
    assert_eq!(world.lease(TaskId::single(job)), lease);
}

#[test]
fn a_node_with_fewer_gpus_than_before_does_not_break_the_books() {
    let mut world = World::new(&[8]);
    let job = world.submit(gang(1, 8));
    let lease = world.run(job);
    let phase = ReportedPhase::Running { exits: Vec::new() };
    world.hello("n1", 4, vec![tutti_model::PartReport::new(lease, phase)]);
    assert_eq!(world.engine.state().node(N1).unwrap().free_gpu_count(), 0);
}

#[test]
fn a_node_with_less_memory_than_before_does_not_stop_the_others() {
    let mut world = World::new(&[8, 8]);
    let spec = tutti_model::JobSpec { mem_per_node: Some(Bytes::gib(200)), ..gang(1, 4) };
    let big = world.submit(spec);
    let lease = world.run(big);
    let node = world.nodes_of(big)[0];
    let mut facts = super::world::facts(&world.engine.state().node_name(node), 8);
    facts.mem = Bytes::gib(100);
    let phase = ReportedPhase::Running { exits: Vec::new() };
    let parts = vec![tutti_model::PartReport::new(lease, phase)];
    let greeting = Box::new(tutti_model::Greeting::new(facts, parts));
    world.step(Command::Hello { greeting, session: 99, key: None }).reply.unwrap();
    let small = world.submit(gang(1, 4));
    assert_eq!(world.state_of(small), JobState::Starting);
}
