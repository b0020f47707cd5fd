//! Checkpoints of jobs: of any framework, of the trainer, and on nodes that are lost.

use std::fs;

use serde_json::Value;
use tutti_model::{Checkpoint, JobSpec, JobState, Launcher, Span, TaskId};
use tutti_testkit::{Cluster, ClusterOptions, PATIENCE, wait_for, wait_until};
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
    // Nothing is left beside a directory of a job that is not there.
    cluster.cli(&["ckpt", "register", "999999", "ck/thirty", "--step", "50"]).call().exited(3);
    assert!(!ck.join("step-000000000050").exists());
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

fn last_loss(events: &[Value]) -> f64 {
    let ended = events.iter().find(|event| event["event"] == "ended").expect("it came to its end");
    ended["loss"].as_f64().unwrap()
}

/// Each node saves in a directory of its own, and one other node has a copy.
fn scattered(cluster: &Cluster, name: &str) -> JobSpec {
    let words = format!(
        "--steps 320 --every 20 --checkpoint {name}/$TUTTI_NODE --copies 1 --durable {name}/final"
    );
    let dir = cluster.scratch().join(name).join("final");
    training(cluster, 2, &words, dir.to_str().unwrap())
}

fn steps_in(cluster: &Cluster, dir: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(cluster.scratch().join(dir)) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.collect();
    found.sort();
    found
}

#[test]
fn a_lost_node_comes_back_from_its_peers_copy() {
    let controller_args = ["--heartbeat", "200ms", "--node-timeout", "2s"];
    let options = ClusterOptions {
        nodes: 3,
        controller_args: controller_args.map(str::to_owned).into(),
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::with(TUTTI, options);
    let whole = cluster.submit(scattered(&cluster, "whole"));
    assert_eq!(cluster.wait_end(whole).state, JobState::Completed);
    // Its log is on a node that may be the one to go.
    let undisturbed = last_loss(&events(&cluster, whole, 1));

    let id = cluster.submit(scattered(&cluster, "lost"));
    wait_until("it has saved twice", PATIENCE, || saved(&cluster, id) >= 40);
    // The node of rank 0, where checkpoints are published.
    let node = cluster.job(id).parts[0].node.clone();
    cluster.kill_node(&node);
    let kept = saved(&cluster, id);
    fs::remove_dir_all(cluster.scratch().join("lost").join(&node)).unwrap();
    let row = cluster.wait_end(id);
    let causes = cluster.job(id).restarts_by_cause;
    assert_eq!((row.state, causes.node_failure), (JobState::Completed, 1), "{row:?}");
    let again = events(&cluster, id, 2);
    let from = again.iter().find(|e| e["event"] == "started").expect("it says so")["step"].as_u64();
    assert!(from >= Some(kept), "it goes on after {from:?}, and {kept} was saved");
    assert_eq!(last_loss(&again), undisturbed);

    for name in ["whole", "lost"] {
        assert_eq!(steps_in(&cluster, &format!("{name}/final")), ["step-000000000320"]);
        for node in ["n1", "n2", "n3"] {
            let left = steps_in(&cluster, &format!("{name}/{node}"));
            assert_eq!(left, Vec::<String>::new(), "{name} on {node}");
        }
    }
    cluster.cli(&["ckpt", "verify", &id.to_string()]).ok();

    let mut spec = scattered(&cluster, "shared");
    let words = "--steps 5 --checkpoint shared --copies 1";
    spec.run = training(&cluster, 2, words, "shared").run;
    let wrong = cluster.submit(spec);
    assert_eq!(cluster.wait_end(wrong).state, JobState::Failed);
    let log = cluster.log_of(wrong, &LogQuery::default());
    assert!(log.iter().any(|l| l.text.contains("shared is one directory for n")), "{log:?}");
}

#[test]
fn where_the_last_checkpoint_was_taken_is_what_the_cluster_knows() {
    let cluster = Cluster::start(TUTTI, 2);
    let mut spec = scattered(&cluster, "told");
    spec.run = training(
        &cluster,
        2,
        "--steps 10 --every 5 --checkpoint told/$TUTTI_NODE --copies 1 --durable told/final",
        "-",
    )
    .run;
    spec.checkpoint = None;
    let id = cluster.submit(spec);
    assert_eq!(cluster.wait_end(id).state, JobState::Completed);
    let known = cluster.job(id).checkpoints;
    let newest = known.iter().max_by_key(|point| point.step).expect("it has said so");
    assert_eq!((newest.step, newest.path.as_deref()), (10, Some("told/final")), "{known:?}");
}

/// Empties both nodes of a job, and waits until it has left them.
fn move_away(cluster: &Cluster, id: TaskId) {
    wait_until("it has saved", PATIENCE, || saved(cluster, id) >= 20);
    let nodes: Vec<String> = cluster.job(id).parts.iter().map(|p| p.node.clone()).collect();
    cluster.cli(&["drain", &nodes[0], &nodes[1], "--evict"]).ok();
    wait_until("it is elsewhere, or over", PATIENCE, || {
        let job = cluster.job(id);
        let moved = job.parts.iter().all(|part| !nodes.contains(&part.node));
        job.row.state.is_final() || (job.attempt == Some(2) && moved)
    });
    cluster.cli(&["resume", &nodes[0], &nodes[1]]).ok();
}

#[test]
fn a_gang_that_moves_altogether_takes_its_checkpoint_along_or_says_that_it_is_lost() {
    let cluster = Cluster::start(TUTTI, 4);
    let words = "--steps 1000000 --every 20 --checkpoint moved/$TUTTI_NODE --copies 1";
    let durable = format!("{words} --durable moved/final");
    let id = cluster.submit(training(&cluster, 2, &durable, "moved/final"));
    move_away(&cluster, id);
    wait_until("it makes steps", PATIENCE, || !steps(&events(&cluster, id, 2)).is_empty());
    let (before, after) = (steps(&events(&cluster, id, 1)), steps(&events(&cluster, id, 2)));
    assert_eq!(after[0], before.last().unwrap() + 1, "no step twice, and none left out");
    cluster.cli(&["cancel", &id.to_string()]).ok();
    cluster.wait_end(id);
    // The job's own words are meant from where it runs.
    let elsewhere = cluster.cli(&["ckpt", "ls", &id.to_string(), "--json"]).dir("/".as_ref()).ok();
    let listed: Value = serde_json::from_str(&elsewhere).unwrap();
    assert_eq!(listed[0]["step"], *before.last().unwrap(), "{listed}");

    let words = words.replace("moved", "left");
    let id = cluster.submit(training(&cluster, 2, &words, "left"));
    move_away(&cluster, id);
    assert_eq!(cluster.wait_end(id).state, JobState::Failed);
    let log = cluster.log_of(id, &LogQuery::default());
    let said = "was saved, but no node of this gang has it";
    assert!(log.iter().any(|line| line.text.contains(said)), "{log:?}");
}

#[test]
fn at_its_time_limit_a_training_has_saved_its_last_step() {
    let cluster = Cluster::start(TUTTI, 2);
    let at = cluster.scratch().join("ck");
    let at = at.to_str().unwrap();
    let words = format!("--steps 1000000 --every 0 --checkpoint {at}");
    let mut spec = training(&cluster, 2, &words, at);
    // Asked in the middle of it: nothing was saved before.
    spec.time = Some(Span::secs(15));
    let id = cluster.submit(spec);
    let row = cluster.wait_end(id);
    assert_eq!(row.state, JobState::Failed, "it is out of time: {}", row.note);
    let last = *steps(&events(&cluster, id, 1)).last().unwrap();
    let listed = json(&cluster, &["ckpt", "ls", &id.to_string(), "--json"]);
    assert_eq!(listed[0]["step"], last, "{listed}");
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
}
