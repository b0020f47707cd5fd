//! The whole loop of a broken GPU, by fire drills on simulated ones.

use serde_json::Value;
use tutti_model::{GpuRequest, Grant, JobSpec, JobState, NodeState, Role, TaskId};
use tutti_testkit::{Cluster, PATIENCE, wait_for, wait_until};
use tutti_wire::api::{InjectRequest, JobDetail, NewToken, ResolveRequest};

use crate::cluster;

fn one_gpu(run: &str) -> JobSpec {
    let mut spec = JobSpec::shell(run);
    spec.gpus_per_node = Some(GpuRequest { model: None, count: 1 });
    spec
}

/// Where it runs, in its nth attempt.
fn runs_again(cluster: &Cluster, id: TaskId, attempt: u32) -> JobDetail {
    wait_until(&format!("attempt {attempt} runs"), PATIENCE, || {
        let job = cluster.job(id);
        job.row.state == JobState::Running && job.attempt == Some(attempt)
    });
    cluster.job(id)
}

fn place(job: &JobDetail) -> (String, u16) {
    (job.parts[0].node.clone(), job.parts[0].gpus[0])
}

fn json(cluster: &Cluster, args: &[&str]) -> Value {
    serde_json::from_str(&cluster.cli(args).ok()).expect("it is JSON")
}

fn inject(cluster: &Cluster, (node, gpu): &(String, u16), xid: u32) {
    let (gpu, xid) = (gpu.to_string(), xid.to_string());
    cluster.cli(&["nodes", "inject", node, "--gpu", &gpu, "--xid", &xid]).ok();
}

#[test]
fn a_broken_gpu_is_fenced_its_job_moves_and_it_comes_back() {
    let cluster = cluster(3);
    let id = cluster.submit(one_gpu("exec sleep 600"));
    let first = cluster.wait_state(id, JobState::Running);
    let broken = place(&first);
    inject(&cluster, &broken, 48);
    let again = runs_again(&cluster, id, 2);
    assert_ne!(place(&again), broken);
    let restarts = again.restarts_by_cause;
    assert_eq!((restarts.health, restarts.total()), (1, 1), "it costs the job nothing");
    let told = again.stopped_before.expect("the job is told why");
    assert!(told.contains("XID 48") && told.contains("fire drill"), "{told}");
    let shown = cluster.cli(&["show", &id.to_string()]).ok();
    assert!(shown.contains("XID 48") && shown.contains("1 after broken GPUs"), "{shown}");
    let node = &json(&cluster, &["nodes", &broken.0, "--json"])[0];
    assert_eq!((&node["fenced"][0], &node["state"]), (&broken.1.into(), &"ready".into()));
    assert_eq!(node["findings"][0]["action"], "fence_gpu");
    let table = cluster.cli(&["nodes"]).ok();
    assert!(table.contains(&format!("GPU {} fenced", broken.1)), "{table}");
    let doctor = cluster.cli(&["doctor", &broken.0]).call();
    doctor.exited(2);
    assert!(doctor.out.contains("XID 48") && doctor.out.contains("kernel log"), "{doctor}");
    // Whoever needs all GPUs of every node waits, and is told for what.
    let mut all = one_gpu("true");
    all.nodes = Some(3);
    all.gpus_per_node = Some(GpuRequest { model: None, count: first_gpus(&cluster) });
    let waits = cluster.submit(all);
    wait_until("the reason is known", PATIENCE, || {
        cluster.job(waits).row.note.contains("1 fenced")
    });
    let why = cluster.cli(&["why", &waits.to_string()]).ok();
    assert!(why.contains(&format!("GPU {} of {}: ", broken.1, broken.0)), "{why}");
    let resumed = cluster.cli(&["resume", &broken.0]).call();
    resumed.exited(0).says(&["was not drained", "stays fenced"]);
    let unknown = cluster.cli(&["nodes", "resolve", &broken.0, "--key", "nosuch"]).call();
    unknown.exited(3).says(&["has no finding 'nosuch'", "there are: drill/xid-48/gpu"]);
    cluster.client().cancel(id).unwrap();
    let gpu = broken.1.to_string();
    let nowhere = cluster.cli(&["nodes", "resolve", &broken.0, "--gpu", "99"]).call();
    nowhere.exited(2).says(&["has no GPU 99"]);
    cluster.cli(&["nodes", "resolve", &broken.0, "--gpu", &gpu]).ok();
    assert_eq!(cluster.wait_end(waits).exit_code, Some(0), "the GPU is used again");
    assert_eq!(json(&cluster, &["nodes", &broken.0, "--json"])[0]["findings"], Value::Null);
}

fn first_gpus(cluster: &Cluster) -> u32 {
    cluster.client().nodes().unwrap()[0].facts.gpus
}

#[test]
fn a_contained_error_restarts_in_place_and_a_lost_gpu_clears_the_node() {
    let mut cluster = cluster(3);
    let id = cluster.submit(one_gpu("exec sleep 600"));
    let first = place(&cluster.wait_state(id, JobState::Running));
    inject(&cluster, &first, 94);
    let second = runs_again(&cluster, id, 2);
    assert_eq!((second.restarts_by_cause.node_failure, second.row.restarts), (1, 1));
    let at = place(&second);
    assert_eq!(json(&cluster, &["nodes", &at.0, "--json"])[0]["fenced"], Value::Null);
    // 79: off the bus. The node is cleared and stays closed over a restart of its agent.
    inject(&cluster, &at, 79);
    let third = runs_again(&cluster, id, 3);
    assert_ne!(place(&third).0, at.0);
    cluster.wait_node(&at.0, NodeState::Drained);
    cluster.kill_agent(&at.0);
    cluster.start_agent(&at.0);
    wait_until("it is back and still closed", PATIENCE, || {
        let node = cluster.client().node(&at.0).unwrap();
        node.state == NodeState::Drained && node.fenced == [at.1]
    });
    // Until the new agent has connected, the answer is: try again.
    let resolved = wait_for("the agent answers", PATIENCE, || {
        Some(cluster.cli(&["nodes", "resolve", &at.0]).call()).filter(|done| done.code != 75)
    });
    resolved.exited(0);
    cluster.wait_node(&at.0, NodeState::Ready);
    let audit = cluster.dir().join("audit.log");
    let audit = std::fs::read_to_string(&audit).unwrap_or_else(|e| panic!("{audit:?}: {e}"));
    assert!(audit.contains("XID 79") && audit.contains("/resolve"), "{audit}");
}

#[test]
fn a_gpu_that_fails_its_check_stays_fenced() {
    let cluster = cluster(1);
    let gpu = ("n1".to_owned(), 0);
    inject(&cluster, &gpu, 48);
    let drill = ["nodes", "inject", "n1", "--gpu", "0", "--check", "check-matmul"];
    cluster.cli(&drill).ok();
    let resolve = ["nodes", "resolve", "n1", "--key", "drill/xid-48/gpu0"];
    cluster.cli(&resolve).call().exited(1).says(&["stays fenced", "a matrix product was wrong"]);
    assert_eq!(cluster.client().node("n1").unwrap().fenced, [0]);
    let doctor = cluster.cli(&["doctor", "n1", "--active"]).call();
    doctor.exited(2);
    assert!(doctor.out.contains("WRONG") && doctor.out.contains("simulated"), "{doctor}");
    cluster.cli(&["nodes", "resolve", "n1", "--gpu", "0"]).ok();
    assert!(cluster.client().node("n1").unwrap().findings.is_empty());
    let doctor = json(&cluster, &["doctor", "n1", "--active", "--json"]);
    let outcomes = doctor["active"]["gpus"].as_array().expect("a list of GPUs");
    assert!(!outcomes.is_empty() && outcomes.iter().all(|g| g["outcome"]["outcome"] == "done"));
}

#[test]
fn drills_are_for_admins_and_say_what_is_wrong() {
    let cluster = cluster(1);
    let name = "n1";
    let refused = |args: &[&str], code: i32, words: &str| {
        let all: Vec<&str> = ["nodes", "inject", name].iter().chain(args).copied().collect();
        cluster.cli(&all).call().exited(code).says(&[words]);
    };
    refused(&["--gpu", "99", "--xid", "79"], 2, "has no GPU 99");
    refused(&["--xid", "79"], 2, "--gpu");
    refused(&["--check", "fan", "--action", "explode"], 2, "no action");
    refused(&["--check", "fan", "--action", "fence_gpu"], 2, "say which");
    let client = cluster.client();
    let request = InjectRequest { gpu: Some(0), xid: Some(48), ..InjectRequest::default() };
    let grant = Grant::Access { user: "eve".into(), role: Role::User };
    let token = client.create_token(&NewToken { grant, expires_in: None }).unwrap().secret;
    let eve = cluster.client_with(&token);
    assert_eq!(eve.inject(name, &request).unwrap_err().exit_code(), 4);
    assert_eq!(eve.resolve(name, &ResolveRequest::default()).unwrap_err().exit_code(), 4);
}
