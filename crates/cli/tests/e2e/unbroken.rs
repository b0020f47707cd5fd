//! A training that loses a node and later has a rank that hangs, and ends as if nothing had been.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use tutti_model::{Command, GpuRequest, JobSpec, JobState, Launcher, TaskId};
use tutti_testkit::{Cluster, ClusterOptions, PATIENCE, Proc, processes_of, wait_for, wait_until};
use tutti_wire::api::{LogEvent, LogQuery};

use crate::TUTTI;

const NODES: u32 = 4;
const GPUS: u16 = 2;
const RANKS: usize = 8;
const STEPS: u64 = 300;
const EVERY: u64 = 20;
/// From the fault to the first step of the next attempt.
const PROMISE: Duration = Duration::from_secs(20);
/// Two stages share the layers, and four ranks see different data: the sums of four numbers depend on
/// their order, so that a run which adds otherwise than the other is found out.
const MODEL: &str = "--dp 4 --pp 2 --layers 2 --dim 16 --heads 2 --ffn 32 --seq 16 --batch 8 \
                     --micro-batch 1 --lr 0.01 --warmup 5";

fn job(dir: &Path) -> JobSpec {
    let (steps, every) = (STEPS.to_string(), EVERY.to_string());
    let words = [TUTTI, "train", "--json", "--all-ranks", "--steps", &steps]
        .into_iter()
        .chain(["--checkpoint", dir.to_str().unwrap(), "--every", &every])
        .chain(MODEL.split_whitespace());
    let mut spec = JobSpec::new(Command::Argv(words.map(str::to_owned).collect()));
    spec.nodes = Some(NODES);
    spec.gpus_per_node = Some(GpuRequest { model: None, count: GPUS.into() });
    spec.launcher = Launcher::Torch;
    spec
}

/// What all ranks of one attempt have said.
fn told(cluster: &Cluster, id: TaskId, attempt: u32) -> Vec<Value> {
    lines(cluster, id, LogQuery { attempt: Some(attempt), ..LogQuery::default() })
}

/// What rank 0 of one attempt has said lately: more than lies between two checkpoints.
fn latest(cluster: &Cluster, id: TaskId, attempt: u32) -> Vec<Value> {
    let (rank, tail) = (Some("0".to_owned()), Some(2 * EVERY as u32));
    lines(cluster, id, LogQuery { attempt: Some(attempt), rank, tail, ..LogQuery::default() })
}

fn lines(cluster: &Cluster, id: TaskId, query: LogQuery) -> Vec<Value> {
    let events = cluster.client().logs(id, &query).expect("the log can be read");
    events
        .filter_map(|event| match event.expect("an event") {
            // Who is killed may leave half a line.
            LogEvent::Line { text, partial: false, .. } => serde_json::from_str(&text).ok(),
            _ => None,
        })
        .collect()
}

fn of_kind<'a>(lines: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["event"] == kind)
}

fn highest(lines: &[Value], kind: &str) -> u64 {
    of_kind(lines, kind).map(|line| line["step"].as_u64().unwrap()).max().unwrap_or(0)
}

/// The loss after each step, by its bits. Ranks and attempts that tell the same step must agree.
fn add_losses(losses: &mut BTreeMap<u64, u64>, lines: &[Value]) {
    for line in of_kind(lines, "step") {
        let step = line["step"].as_u64().unwrap();
        let loss = line["loss"].as_f64().unwrap();
        let first = *losses.entry(step).or_insert(loss.to_bits());
        assert_eq!(f64::from_bits(first), loss, "step {step} has two losses");
    }
}

/// The loss that all ranks ended with.
fn last_loss(lines: &[Value]) -> f64 {
    let ends: Vec<&Value> = of_kind(lines, "ended").collect();
    assert_eq!(ends.len(), RANKS, "{ends:?}");
    assert!(ends.iter().all(|end| end["loss"] == ends[0]["loss"] && end["step"] == STEPS));
    ends[0]["loss"].as_f64().unwrap()
}

/// Trained, saved, and on the way to the next checkpoint: there is something to lose. Returns the
/// step that is safe.
fn has_work_at_risk(cluster: &Cluster, id: TaskId, attempt: u32, from: u64) -> u64 {
    wait_for("the training is between two checkpoints", PATIENCE, || {
        let job = cluster.job(id);
        assert!(!job.row.state.is_final(), "it ended before the fault: {}", job.row.note);
        let lines = latest(cluster, id, attempt);
        let saved = highest(&lines, "saved");
        (saved > from + EVERY && highest(&lines, "step") > saved).then_some(saved)
    })
}

/// Waits for the first step of the next attempt, and checks what the fault has cost. Returns the
/// step that it went on from. Prints the figures for whoever asks to see them.
#[allow(clippy::print_stdout)]
fn comes_back(
    cluster: &Cluster,
    id: TaskId,
    attempt: u32,
    (fault, began, safe): (&str, Instant, u64),
) -> u64 {
    let client = cluster.client();
    wait_until(&format!("a step after {fault}"), PATIENCE, || {
        let job = client.job(id).expect("the job is known");
        assert!(!job.row.state.is_final(), "{fault} ended it: {}", job.row.note);
        job.attempt > Some(attempt) && highest(&latest(cluster, id, attempt + 1), "step") > 0
    });
    let took = began.elapsed();
    let reached = highest(&told(cluster, id, attempt), "step");
    let again = told(cluster, id, attempt + 1);
    let from = highest(&again, "started");
    println!("{fault}: a step again after {took:.1?}, from {from}; it had reached {reached}");
    assert!(took <= PROMISE, "{fault}: it took {took:?}");
    assert!(from >= safe && from.is_multiple_of(EVERY), "{fault}: from {from}, {safe} was safe");
    assert!(reached - from <= EVERY, "{fault}: from {from} after it had reached {reached}");
    from
}

/// The process of a rank, wherever it is.
fn process_of(cluster: &Cluster, id: TaskId, rank: usize) -> Proc {
    let wanted = format!("RANK={rank}");
    let is_it = |p: &Proc| {
        let environment = fs::read(format!("/proc/{}/environ", p.pid)).unwrap_or_default();
        p.cmdline.contains(" train ")
            && environment.split(|b| *b == 0).any(|v| v == wanted.as_bytes())
    };
    let nodes = cluster.job(id).row.node_names;
    let all = nodes.iter().flat_map(|node| processes_of(&cluster.node_dir(node)));
    let found: Vec<Proc> = all.filter(is_it).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

#[test]
fn training_outlives_a_node_and_a_hung_rank_with_the_same_loss() {
    let options = ClusterOptions { nodes: 5, gpus_per_node: GPUS, ..ClusterOptions::default() };
    let mut cluster = Cluster::with(TUTTI, options);
    let calm = cluster.submit(job(&cluster.scratch().join("calm")));
    assert_eq!(cluster.wait_end(calm).state, JobState::Completed);
    let lines = told(&cluster, calm, 1);
    let (mut losses, wanted) = (BTreeMap::new(), last_loss(&lines));
    add_losses(&mut losses, &lines);
    assert_eq!(losses.len() as u64, STEPS);

    let id = cluster.submit(job(&cluster.scratch().join("disturbed")));
    let safe = has_work_at_risk(&cluster, id, 1, 0);
    // Rank 0 is on it, who speaks for all others.
    let dead = cluster.job(id).parts[0].node.clone();
    let began = Instant::now();
    cluster.kill_node(&dead);
    let from = comes_back(&cluster, id, 1, ("a node that died", began, safe));
    assert!(!cluster.job(id).row.node_names.contains(&dead));

    let safe = has_work_at_risk(&cluster, id, 2, from);
    let hung = process_of(&cluster, id, 5);
    let began = Instant::now();
    hung.signal(Signal::SIGSTOP);
    comes_back(&cluster, id, 2, ("a rank that hangs", began, safe));
    assert!(!hung.is_alive(), "a suspended rank must not be left behind");

    let row = cluster.wait_end(id);
    assert_eq!((row.state, row.exit_code), (JobState::Completed, Some(0)), "{row:?}");
    let restarts = cluster.job(id).restarts_by_cause;
    assert_eq!((restarts.node_failure, restarts.total()), (2, 2), "{restarts:?}");
    // Not the end alone: each step, told by whichever attempt, has the loss it had undisturbed.
    (1..=3).for_each(|attempt| add_losses(&mut losses, &told(&cluster, id, attempt)));
    let got = last_loss(&told(&cluster, id, 3));
    assert!(got == wanted, "{got} after two failures, {wanted} without");
}
