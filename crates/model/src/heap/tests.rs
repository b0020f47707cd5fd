use serde_json::Value;

use super::*;
use crate::{DependOn, JobId, PreemptMode, StallAction, TextRef, TextRefs, WatchAction};

const LONG: usize = 1000;

fn long() -> String {
    "x".repeat(LONG)
}

fn labels() -> BTreeMap<String, String> {
    [(long(), long())].into()
}

/// Nothing is left out: each of these names all fields.
fn everything() -> JobSpec {
    JobSpec {
        name: Some(long()),
        run: Command::Argv(vec![long(), long()]).into(),
        nodes: Some(1),
        gpus: Some(1),
        gpus_per_node: Some(GpuRequest { model: Some(long()), count: 1 }),
        gpu_share: Some(0.5),
        cpus_per_gpu: Some(1),
        mem_per_gpu: Some(Bytes(1)),
        cpus_per_node: Some(1),
        mem_per_node: Some(Bytes(1)),
        ranks_per_node: Some(1),
        time: Some(Span(1)),
        default_time_of: Some(DefaultTimeOf::Team { team: long() }),
        team: Some(long()),
        priority: Priority::HIGH,
        elastic: Some(Elastic { min_nodes: 1, max_nodes: 2 }),
        class: Some(long()),
        gpu_mem: Some(Bytes(1)),
        labels: labels(),
        avoid_labels: labels(),
        exclusive: true,
        topology: Some(Topology::Rack),
        launcher: Launcher::Torch,
        after: vec![Dependency { job: JobId(1), on: DependOn::Ok }; 100],
        env: labels().into(),
        workdir: Some(long()),
        image: Some(long()),
        array: Some("0-198:2".parse().unwrap()),
        hold: true,
        grace: Some(Span(1)),
        checkpoint: Some(Checkpoint { dir: long(), signal: Some(long()), grace: Some(Span(1)) }),
        preempt: Some(Preempt { mode: PreemptMode::Auto }),
        retry: Retry { node_failure: 1, preemption: 1, job_failure: 1 },
        stall: Some(Stall { after: Some(Span(1)), action: StallAction::Restart }),
        watch: Some(Box::new(watch())),
        plan: Some(Box::new(plan())),
        service: Some(Box::new(service())),
        stdin: true,
    }
}

fn watch() -> JobWatch {
    let terms = || {
        Some(OwnTerms {
            limit: None,
            within: Some(Span(1)),
            lasts: Some(Span(1)),
            clear: Some(Span(1)),
            action: Some(WatchAction::Tell),
        })
    };
    JobWatch {
        idle: terms(),
        straggler: terms(),
        hang: terms(),
        memory: terms(),
        crash_loop: terms(),
    }
}

fn plan() -> DeclaredPlan {
    DeclaredPlan {
        model: long(),
        task: long(),
        lora_rank: Some(1),
        precision: long(),
        seq: 1,
        global_batch: 1,
        tp: 1,
        pp: 1,
        vp: 1,
        cp: 1,
        ep: 1,
        dp: 1,
        micro_batch: 1,
        zero: 1,
        recompute: long(),
        sequence_parallel: true,
        step_time_s: Some(1.0),
        memory_gb: Some(1.0),
    }
}

fn service() -> ServiceSpec {
    ServiceSpec {
        port: Some(8000),
        health: long(),
        models: vec![long(), long()],
        replicas: Replicas { min: 1, max: 2 },
        target_in_flight: 1,
        max_in_flight: Some(1),
        policy: RoutePolicy::Sticky,
        sticky_header: long(),
        warm_up: Span(1),
        hung_after: Span(1),
        slow_start: Span(1),
        drain: Span(1),
        queue: 1,
        queue_wait: Span(1),
        up_after: Span(1),
        down_after: Span(1),
        zero_after: Span(1),
        schedule: vec![
            ScheduledMin {
                from: TimeOfDay(1),
                until: TimeOfDay(2),
                days: vec![Weekday::Mon; 700],
                min: 1,
                utc_offset_minutes: 1,
            };
            10
        ],
        access: Access::Open,
        retry: RetryRule::Never,
        files: Some(long()),
        rollout: RolloutRule {
            surge: 1,
            canary: 1,
            bake: Span(1),
            max_errors: 1.0,
            max_slowdown: 1.0,
            min_requests: 1,
        },
    }
}

/// Every text that is as long as a user likes, by its place; names in tables too.
fn long_texts(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.len() >= LONG => found.push(at.to_owned()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(n, item)| long_texts(item, &format!("{at}/{n}"), found)),
        Value::Object(fields) => {
            for (key, value) in fields {
                long_texts(value, &format!("{at}/{key}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_text_of_a_job_file_counts() {
    let spec = everything();
    let written = serde_json::to_value(&spec).unwrap();
    let mut places = Vec::new();
    long_texts(&written, "", &mut places);
    assert!(places.iter().any(|at| at == "/service/files"), "{places:?}");
    for at in &places {
        let mut short = written.clone();
        *short.pointer_mut(at).unwrap() = Value::String("x".into());
        let short: JobSpec = serde_json::from_value(short).unwrap();
        assert_eq!(spec.bytes() - short.bytes(), LONG as u64 - 1, "{at}");
    }
    let named = 3 * LONG;
    let lists =
        100 * size_of::<Dependency>() + 100 * 8 * 2 + 10 * (700 + size_of::<ScheduledMin>());
    let boxes = size_of::<ServiceSpec>() + size_of::<DeclaredPlan>() + size_of::<JobWatch>();
    let least = places.len() * LONG + named + lists + boxes;
    assert!(spec.bytes() >= least as u64, "{} of {least}", spec.bytes());
}

#[test]
fn many_small_words_are_no_cheaper_than_they_are_in_memory() {
    let words = JobSpec::new(Command::Argv(vec![String::new(); 10_000]));
    assert!(words.bytes() >= 10_000 * size_of::<String>() as u64, "{}", words.bytes());
    let env: BTreeMap<_, _> = (0..10_000).map(|n| (n.to_string(), String::new())).collect();
    let variables = JobSpec { env: env.into(), ..JobSpec::shell("x") };
    assert!(variables.bytes() >= 20_000 * size_of::<String>() as u64, "{}", variables.bytes());
}

#[test]
fn what_is_stored_elsewhere_does_not_count_here() {
    let spec = everything();
    let stored = || Some(TextRef { digest: crate::TextDigest(String::new()), bytes: 0 });
    let texts = TextRefs { run: stored(), env: stored() };
    let both = (spec.run.heap() + spec.env.heap()) as u64;
    assert_eq!(spec.bytes_beside(&texts), spec.bytes() - both);
}

#[test]
fn every_text_of_an_update_counts() {
    let update = JobUpdate {
        name: Some(long()),
        priority: Some(Priority::HIGH),
        time: Some(Span(1)),
        no_time: true,
        hold: Some(true),
        team: Some(long()),
        class: Some(long()),
        after: Some(vec![Dependency { job: JobId(1), on: DependOn::Ok }; 100]),
        nodes: Some(1),
        gpus: Some(1),
        gpus_per_node: Some(GpuRequest { model: Some(long()), count: 1 }),
    };
    assert_eq!(update.bytes(), (4 * LONG + 100 * size_of::<Dependency>()) as u64);
}
