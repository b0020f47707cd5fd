//! Checkpoints of jobs: of any framework, of the trainer, and on nodes that are lost.

use std::fs;

use serde_json::Value;
use tutti_model::{Checkpoint, JobSpec, JobState, Launcher, Span, TaskId};
use tutti_testkit::{Cluster, PATIENCE, wait_for, wait_until};
use tutti_wire::api::LogQuery;

use crate::{TUTTI, gang};

/// A model whose step takes some milliseconds.
const TINY: &str = "--layers 2 --dim 16 --heads 2 --ffn 32 --seq 8 --batch 4 --json";

fn json(cluster: &Cluster, words: &[&str]) -> Value {
    serde_json::from_str(&cluster.cli(words).ok()).expect("it is JSON")
}

fn saved(cluster: &Cluster, id: TaskId) -> u64 {
    let progress = cluster.client().job(id).ok().and_then(|job| job.row.progress);
    progress.and_then(|p| p.saved).map_or(0, |point| point.step)
}

#[test]
fn a_job_of_any_framework_has_checkpoints() {
    let cluster = Cluster::start(TUTTI, 1);
    // Two saves, one of them a file; then it waits to be told to fail, and its next attempt to end.
    let line = format!(
        "echo from $TUTTI_RESUME_STEP at $TUTTI_RESUME_PATH; [ -z \"$TUTTI_RESUME_STEP\" ] || exit 0; \
         mkdir -p ck/10; echo weights > ck/10/model.bin; {TUTTI} progress --saved 10 --path ck/10; \
         while [ ! -e more ]; do sleep 0.05; done; echo more > ck/20.pt; {TUTTI} progress --saved 20 --path ck/20.pt --save-ms 70; \
         while [ ! -e fail ]; do sleep 0.05; done; exit 7"
    );
    let workdir = Some(cluster.scratch().to_str().unwrap().to_owned());
    let mut spec = JobSpec { workdir, ..JobSpec::shell(line) };
    spec.retry.job_failure = 1;
    let id = cluster.submit(spec);
    let known = || cluster.job(id).checkpoints.len();
    wait_until("one is known", PATIENCE, || known() == 1);
    fs::write(cluster.scratch().join("more"), "").unwrap();
    wait_until("both are known", PATIENCE, || known() == 2);
    let job = id.to_string();
    let ck = cluster.scratch().join("ck");

    let table = cluster.cli(&["ckpt", "ls", &job]).ok();
    let file = format!("reported by n1, not hashed: {}", ck.join("20.pt").display());
    assert!(table.lines().count() == 3 && table.contains(&file), "{table}");
    let rows = json(&cluster, &["ckpt", "ls", &job, "--json"]);
    assert_eq!((&rows[0]["step"], &rows[0]["bytes"]), (&10.into(), &8.into()), "{rows}");
    assert_eq!(rows[1]["standing"], "not_hashed", "{rows}");
    let shown = cluster.cli(&["ckpt", "show", &job, "10"]).ok();
    assert!(shown.contains(&format!("`tutti ckpt verify {job} 10`")), "{shown}");

    let first = cluster.cli(&["ckpt", "verify", &job]).ok();
    assert!(first.contains("step 10  recorded  1 file") && first.contains("step 20  recorded"));
    let again = cluster.cli(&["ckpt", "verify", &job]).ok();
    assert!(again.contains("step 10  good") && again.contains("step 20  good"), "{again}");
    fs::write(ck.join("20.pt"), "MORE\n").unwrap();
    cluster.cli(&["ckpt", "verify", &job]).call().exited(1);
    let manifest = json(&cluster, &["ckpt", "show", &job, "20", "--json"]);
    assert_eq!(manifest["meta"]["job"], job.as_str(), "{manifest}");

    fs::create_dir(ck.join("thirty")).unwrap();
    fs::write(ck.join("thirty/w"), "by hand").unwrap();
    let words = ["ckpt", "register", &job, "ck/thirty", "--step", "30"];
    cluster.cli(&words).call().exited(0).says(&["as step 30 of job", "1 file"]);
    let gone = ["ckpt", "register", &job, "/no/such/place", "--step", "40"];
    cluster.cli(&gone).call().exited(3).says(&["--by-name"]);
    let advice = cluster.cli(&["ckpt", "advise", &job]).ok();
    assert!(advice.contains("a save holds the work up for 70 ms, as the job reports"), "{advice}");

    fs::write(cluster.scratch().join("fail"), "").unwrap();
    let row = cluster.wait_end(id);
    assert_eq!((row.state, row.restarts), (JobState::Completed, 1), "{row:?}");
    let log = cluster.log_of(id, &LogQuery::default());
    assert_eq!(log[0].text, format!("from 30 at {}", ck.join("thirty").display()));
    assert_eq!(json(&cluster, &["ckpt", "ls", &job, "--json"])[2]["kind"], "foreign");
}

/// `tutti train` on so many nodes, one rank on each.
fn training(cluster: &Cluster, nodes: u32, words: &str, dir: &str) -> JobSpec {
    let line = format!("exec {TUTTI} train {TINY} {words}");
    let mut spec = gang(nodes, line);
    spec.launcher = Launcher::Torch;
    spec.workdir = Some(cluster.scratch().to_str().unwrap().to_owned());
    // Else each run chooses by the links that it measures, and the last bits may differ.
    spec.env.insert("TUTTI_ALGO".into(), "ring".into());
    let (signal, grace) = (Some("USR1".to_owned()), Some(Span::secs(30)));
    spec.checkpoint = Some(Checkpoint { dir: dir.to_owned(), signal, grace });
    spec
}

/// What rank 0 told in one attempt.
fn events(cluster: &Cluster, id: TaskId, attempt: u32) -> Vec<Value> {
    let query = LogQuery { rank: Some("0".into()), attempt: Some(attempt), ..LogQuery::default() };
    let lines = cluster.log_of(id, &query);
    lines.iter().filter_map(|line| serde_json::from_str(&line.text).ok()).collect()
}

fn steps(events: &[Value]) -> Vec<u64> {
    let steps = events.iter().filter(|event| event["event"] == "step");
    steps.map(|event| event["step"].as_u64().unwrap()).collect()
}

#[test]
fn a_drained_node_costs_no_step_and_advice_is_for_the_job() {
    let cluster = Cluster::start(TUTTI, 3);
    let dir = cluster.scratch().join("ck");
    let at = dir.to_str().unwrap();
    // Few saves: what is not repeated was saved when it was asked for.
    let words = format!("--steps 1000000 --every 50 --checkpoint {at}");
    let id = cluster.submit(training(&cluster, 2, &words, at));
    wait_until("it has saved twice", PATIENCE, || saved(&cluster, id) >= 100);
    let job = id.to_string();
    let advice = json(&cluster, &["ckpt", "advise", &job, "--json"]);
    assert_eq!(advice["basis"]["save"], "measured", "{advice}");
    assert_eq!(advice["basis"]["mtbf"], "assumed", "{advice}");
    assert!(advice["now_every_s"].as_f64() > Some(0.0), "{advice}");
    assert!(advice["save_every_steps"].as_u64() > Some(0), "{advice}");
    let text = cluster.cli(&["ckpt", "advise", &job]).ok();
    assert!(text.contains("(assumed: one in 50000 GPU-hours"), "{text}");
    assert!(text.contains("coming back takes 1m (assumed"), "{text}");

    let node = cluster.job(id).parts[0].node.clone();
    cluster.cli(&["drain", &node, "--evict", "--reason", "new fan"]).ok();
    let again = wait_for("it goes on elsewhere", PATIENCE, || {
        let job = cluster.job(id);
        let moved = job.attempt == Some(2) && job.parts.iter().all(|part| part.node != node);
        (moved && job.row.state == JobState::Running).then_some(job)
    });
    assert_eq!(again.restarts_by_cause, Default::default(), "it costs no retry");
    wait_until("it makes steps", PATIENCE, || !steps(&events(&cluster, id, 2)).is_empty());
    let (before, after) = (steps(&events(&cluster, id, 1)), steps(&events(&cluster, id, 2)));
    assert_eq!(after[0], before.last().unwrap() + 1, "no step twice, and none left out");
    assert!(before.iter().copied().eq(1..=before.len() as u64), "{before:?}");

    cluster.cli(&["cancel", &job]).ok();
    assert_eq!(cluster.wait_end(id).state, JobState::Cancelled);
    let listed = json(&cluster, &["ckpt", "ls", &job, "--json"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(3), "{listed}");
    let last = *steps(&events(&cluster, id, 2)).last().unwrap();
    assert_eq!(listed[2]["step"], last, "who is cancelled saves, too");
}
