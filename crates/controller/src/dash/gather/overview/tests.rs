//! A large cluster, and what its picture costs.

use std::time::Instant;

use tutti_engine::{Actor, Command, Engine, Settings};
use tutti_model::{Bytes, Gpu, GpuRequest, Greeting, JobSpec, NodeFacts, NodeSample, Role};
use tutti_web::Reader;

use super::*;
use crate::core::World;

const NODES: u16 = 1250;
const JOBS: u16 = 400;

fn facts(number: u16) -> NodeFacts {
    let name = format!("gpu-{number:04}");
    let gpu = |index| Gpu {
        index: GpuIndex(index),
        model: "h100".into(),
        uuid: format!("{name}-{index}"),
        mem: Bytes::gib(80),
        island: Some(index / 4),
    };
    NodeFacts {
        address: "127.0.0.1".into(),
        cpus: 128,
        mem: Bytes::gib(1024),
        gpus: (0..8).map(gpu).collect(),
        simulated: true,
        labels: [("rack".to_owned(), format!("r{}", number / 16))].into(),
        name,
        ..NodeFacts::default()
    }
}

fn sample(number: u16, at: u64) -> NodeSample {
    let gpu = |index: u16| GpuSample {
        index: GpuIndex(index),
        sm_active: Some(f32::from((number * 7 + index * 13 + at as u16) % 100) / 100.0),
        power_mw: Some(400_000),
        power_limit_mw: Some(700_000),
        temp: Some(60),
        ..GpuSample::default()
    };
    NodeSample { at: Time(at), gpus: (0..8).map(gpu).collect(), ..NodeSample::default() }
}

/// 10,000 GPUs, of which 6,400 are held by 400 jobs.
fn large() -> (World, Store) {
    let mut engine = Engine::new(Settings::default());
    let store = Store::default();
    for number in 0..NODES {
        let greeting = Box::new(Greeting::new(facts(number), Vec::new()));
        engine.step(Command::Hello { greeting, session: 1, key: None }, Time(1000)).reply.unwrap();
        store.push(&facts(number).name, sample(number, 1000), now());
    }
    let actor = Actor { user: "ada".into(), role: Role::Admin };
    for _ in 0..JOBS {
        let gpus_per_node = Some("8".parse::<GpuRequest>().unwrap());
        let spec = JobSpec { nodes: Some(2), gpus_per_node, ..JobSpec::shell("true") };
        let submit =
            Command::Submit { actor: actor.clone(), spec: Box::new(spec), user: None, key: None };
        engine.step(submit, Time(2000)).reply.unwrap();
    }
    while engine.wants_schedule() {
        engine.schedule(Time(3000)).reply.unwrap();
    }
    (World::new(engine), store)
}

fn view_of(world: &World, store: &Store) -> View {
    let (alerts, more_alerts) = alerts::now(world, ALERTS_MAX);
    View {
        figures: figures(world, store, now()),
        alerts,
        more_alerts,
        pulse: Default::default(),
        grid: grid(world.engine.state(), store, now()),
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "the guide's figures come from here")]
fn ten_thousand_gpus_are_quick_and_small() {
    let (world, store) = large();
    let began = Instant::now();
    let view = view_of(&world, &store);
    let gathered = began.elapsed();
    let reader = Reader {
        pace: None,
        user: "ada".into(),
        role: Role::Viewer,
        csrf: String::new(),
        simulated: true,
        version: String::new(),
        now: now(),
    };
    let page = tutti_web::overview::page(&reader, &view).into_string();
    let first = view.shown().changes(None);
    let made = began.elapsed();
    assert_eq!((view.grid.cells.len(), view.grid.jobs.len()), (10_000, 400));
    assert_eq!((view.figures.gpus, view.figures.gpus_held), (10_000, 6400));
    assert_eq!(view.grid.layout[0].racks.len(), 79);
    assert_eq!(view.grid.layout[0].racks[0].nodes[0].islands, [4, 4]);
    let payload: usize = first.iter().map(|event| event.data.len()).sum();

    // A second later every value is another.
    (0..NODES).for_each(|number| store.push(&facts(number).name, sample(number, 2033), now()));
    let began = Instant::now();
    let changes = view_of(&world, &store).shown().changes(Some(&view.shown()));
    let updated = began.elapsed();
    let update: usize = changes.iter().map(|event| event.data.len()).sum();
    eprintln!(
        "page {} bytes, first payload {payload}, gathered in {gathered:?}, all made in {made:?}; \
         update {update} bytes in {updated:?}",
        page.len()
    );
    assert!(page.len() < 20_000 && payload < 250_000 && update < 200_000);
    assert!(made.as_secs() < 1, "{made:?}: the overview arrives in under a second");
}
