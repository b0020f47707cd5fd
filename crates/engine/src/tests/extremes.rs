//! Whatever a user may write into a job file, down to the largest number of each type, is refused or
//! scheduled. Nothing of it stops the engine: a pass that never ends or panics is an outage for all.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tutti_model::{JobId, JobSpec, JobState, JobUpdate, TaskId};

use super::world::{World, ada, admin};
use crate::Command;

fn numbers() -> Vec<Value> {
    [0u64, 1, 2, 8, 65_535, 1 << 31, u32::MAX as u64 - 1, u32::MAX as u64].map(Value::from).to_vec()
}

fn spans() -> Vec<Value> {
    ["0s", "1ms", "1s", "1h", "200000000000d", "213503982334d"].map(Value::from).to_vec()
}

fn sizes() -> Vec<Value> {
    ["0", "1", "1GiB", "15EiB", "18446744073709551615"].map(Value::from).to_vec()
}

/// Keys of a job file, and what is put there.
fn values() -> Vec<(&'static str, Vec<Value>)> {
    let ranges = |from: &str, to: &str| {
        let (numbers, key) = (numbers(), |name: &str| name.to_owned());
        let pairs = numbers.iter().flat_map(|a| numbers.iter().map(move |b| (a, b)));
        let range = |(a, b): (&Value, &Value)| {
            Value::Object([(key(from), a.clone()), (key(to), b.clone())].into_iter().collect())
        };
        pairs.map(range).collect::<Vec<Value>>()
    };
    vec![
        ("nodes", numbers()),
        ("gpus", numbers()),
        ("gpus_per_node", numbers()),
        ("gpu_share", [0.0, -1.0, 1e-300, 0.001, 0.5, 1.0, 1e300].map(Value::from).to_vec()),
        ("cpus_per_gpu", numbers()),
        ("mem_per_gpu", sizes()),
        ("cpus_per_node", numbers()),
        ("mem_per_node", sizes()),
        ("ranks_per_node", numbers()),
        ("time", spans()),
        ("priority", [i32::MIN, -1, 0, 100, i32::MAX].map(Value::from).to_vec()),
        ("gpu_mem", sizes()),
        ("elastic", ranges("min_nodes", "max_nodes")),
        ("exclusive", vec![json!(true)]),
        ("grace", spans()),
        ("retry", ranges("node_failure", "job_failure")),
        ("topology", ["island", "node", "rack", "any"].map(Value::from).to_vec()),
        (
            "array",
            ["0", "4294967295", "4294967290-4294967295", "0-4294967295:4294967295%1", "0-999999"]
                .map(Value::from)
                .to_vec(),
        ),
        ("checkpoint", spans().into_iter().map(|s| json!({ "dir": "/c", "grace": s })).collect()),
        (
            "stall",
            spans().into_iter().map(|s| json!({ "after": s, "action": "restart" })).collect(),
        ),
    ]
}

fn service_values() -> Vec<(&'static str, Vec<Value>)> {
    let bounds = numbers().into_iter().map(|n| json!([0, n])).collect();
    vec![
        ("replicas", bounds),
        ("target_in_flight", numbers()),
        ("max_in_flight", numbers()),
        ("queue", numbers()),
        ("warm_up", spans()),
        ("hung_after", spans()),
        ("slow_start", spans()),
        ("drain", spans()),
        ("queue_wait", spans()),
        ("up_after", spans()),
        ("down_after", spans()),
        ("zero_after", spans()),
        ("rollout", numbers().into_iter().map(|n| json!({ "surge": n, "bake": "1s" })).collect()),
    ]
}

/// Some of the keys, each with one of its values.
fn some_of(all: Vec<(&'static str, Vec<Value>)>) -> impl Strategy<Value = Map<String, Value>> {
    let most = all.len().min(5);
    proptest::sample::subsequence(all, 0..=most).prop_flat_map(|picked| {
        let one = |(key, values)| (Just(key), proptest::sample::select::<Value>(values));
        let pairs: Vec<_> = picked.into_iter().map(one).collect();
        pairs.prop_map(|pairs| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
    })
}

fn spec_of(mut keys: Map<String, Value>) -> Option<JobSpec> {
    keys.insert("run".to_owned(), json!("train"));
    serde_json::from_value(Value::Object(keys)).ok()
}

fn start_all(world: &mut World) {
    let is_one = |job: &&JobId| {
        let job = world.engine.state().job(**job).expect("it is listed");
        job.task(None).is_some() && job.state() == JobState::Starting
    };
    let jobs: Vec<JobId> = world.engine.state().jobs.keys().filter(is_one).copied().collect();
    for job in jobs {
        world.run(job);
    }
}

/// What people look at while it waits or runs.
fn look_at_all(world: &World) {
    let (state, plan) = (world.engine.state(), world.engine.plan());
    for job in state.jobs.values() {
        let task = TaskId::single(job.id);
        tutti_sched::explain(state, plan, &state.policy, task, world.now);
    }
    tutti_sched::shares(state, world.now);
    crate::preview(state, world.engine.settings(), &state.policy, world.now).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn jobs_are_refused_or_scheduled(
        specs in proptest::collection::vec(some_of(values()), 1..6),
        changes in proptest::collection::vec(some_of(values()), 0..3),
    ) {
        let mut world = World::new(&[8, 8]);
        let jobs: Vec<_> =
            specs.into_iter().filter_map(|keys| world.try_submit(spec_of(keys)?).ok()).collect();
        look_at_all(&world);
        for (job, keys) in jobs.iter().zip(changes) {
            if let Ok(update) = serde_json::from_value::<JobUpdate>(Value::Object(keys)) {
                // Refused or not.
                let update = Box::new(update);
                drop(world.step(Command::Update { actor: admin(), job: *job, update }));
            }
        }
        start_all(&mut world);
        world.wait(3, &[]);
        look_at_all(&world);
        for job in jobs {
            let target = TaskId::single(job);
            drop(world.step(Command::Cancel { actor: ada(), target }));
        }
    }

    #[test]
    fn endpoints_are_refused_or_served(
        keys in some_of(values()),
        service in some_of(service_values()),
    ) {
        let mut world = World::new(&[8, 8]);
        let mut keys = keys;
        keys.insert("name".to_owned(), json!("chat"));
        keys.insert("service".to_owned(), Value::Object(service));
        if let Some(Ok(_)) = spec_of(keys).map(|spec| world.try_serve(spec)) {
            world.serve_on(5, &Default::default());
            look_at_all(&world);
        }
    }
}

/// What never gets in is not tested.
#[test]
fn many_extremes_are_accepted() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut specs, mut taken) = (0, 0);
    for _ in 0..200 {
        let keys = some_of(values()).new_tree(&mut runner).unwrap().current();
        let mut world = World::new(&[8, 8]);
        if let Some(spec) = spec_of(keys) {
            specs += 1;
            taken += u32::from(world.try_submit(spec).is_ok());
        }
    }
    assert!(specs > 100 && taken > 20, "{taken} of {specs}");
}
