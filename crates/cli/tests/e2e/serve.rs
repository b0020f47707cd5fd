//! Endpoints: a model behind one address, while everything around it dies, moves and changes.

mod ask;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tutti_model::{JobId, TaskId};
use tutti_testkit::{Cluster, ClusterOptions, LiveCli, PATIENCE, wait_for, wait_until};
use tutti_wire::api::{EndpointDetail, EndpointState};

use super::TUTTI;
use super::browser::Browser;
use super::dashboard::{axe, log_in, no_barriers};
use ask::{Load, Said, ask, post};

/// A cluster, and a router beside it.
struct Stage {
    cluster: Cluster,
    router: LiveCli,
    address: String,
}

impl Stage {
    fn new(nodes: usize, gpus_per_node: u16) -> Stage {
        let options = ClusterOptions { nodes, gpus_per_node, ..ClusterOptions::default() };
        let cluster = Cluster::with(TUTTI, options);
        let (router, address) = start_router(&cluster);
        Stage { cluster, router, address }
    }

    /// A job file with this in its `[service]` table.
    fn file(&self, name: &str, head: &str, service: &str) -> PathBuf {
        let server = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/serve/server.py");
        let path = self.cluster.scratch().join(format!("{name}.toml"));
        let text = format!(
            "name = \"{name}\"\nrun = \"exec python3 {server}\"\ngpus_per_node = 1\n{head}\n\
             [service]\nslow_start = \"0s\"\ndrain = \"20s\"\n{service}\n"
        );
        std::fs::write(&path, text).expect("a job file");
        path
    }

    fn serve(&self, name: &str, head: &str, service: &str) {
        let file = self.file(name, head, service);
        let out = self.cluster.cli(&["serve", file.to_str().unwrap()]).ok();
        assert_eq!(out, name, "the name alone");
    }

    fn show(&self, name: &str) -> EndpointDetail {
        self.cluster.client().endpoint_detail(name).expect("the endpoint is known")
    }

    #[track_caller]
    fn wait_show(&self, what: &str, name: &str, mut so: impl FnMut(&EndpointDetail) -> bool) {
        let mut last = None;
        let began = Instant::now();
        loop {
            let detail = self.show(name);
            if so(&detail) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}\n{last:#?}");
            last = Some(detail);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn wait_ready(&self, name: &str, replicas: u32) {
        self.wait_show(&format!("{replicas} replicas are ready"), name, |e| {
            e.row.ready == replicas && e.replicas.len() == replicas as usize
        });
    }

    /// The rank of a replica, and where it runs.
    fn rank_of(&self, job: JobId) -> (i32, String) {
        let shown = self.cluster.job(TaskId::single(job));
        let node = shown.parts.first().expect("it runs somewhere").node.clone();
        let wanted = format!("TUTTI_JOB_ID={job}\0").into_bytes();
        let is_it = |pid: i32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environ.windows(wanted.len()).any(|w| w == wanted)
        };
        let procs = self.cluster.processes_on(&node);
        let pid = procs.iter().map(|p| p.pid).find(|&pid| is_it(pid)).expect("its process");
        (pid, node)
    }
}

/// Once it answers.
fn start_router(cluster: &Cluster) -> (LiveCli, String) {
    let file = cluster.scratch().join("routes.json");
    let (file, url) = (file.to_str().unwrap(), cluster.scratch().join("router"));
    let _ = std::fs::remove_file(&url);
    let mut args = vec!["router", "--listen", "127.0.0.1:0", "--table-file", file];
    args.extend(["--address-file", url.to_str().unwrap()]);
    let router = cluster.cli(&args).spawn();
    let address = wait_for("the router listens", PATIENCE, || {
        let text = std::fs::read_to_string(&url).ok()?;
        Some(text.trim().strip_prefix("http://")?.to_owned())
    });
    wait_until("the router answers", PATIENCE, || {
        ask(&address, "GET", "/-/healthy", "").is_ok_and(|said| said.status == 200)
    });
    (router, address)
}

fn json(said: &Said) -> Value {
    serde_json::from_slice(&said.body).unwrap_or_else(|e| panic!("{e}: {said:?}"))
}

#[test]
fn an_endpoint_is_watched_on_its_page() {
    let stage = Stage::new(1, 3);
    stage.serve("chat", "", "replicas = [1, 3]");
    let base = format!("http://{}", stage.cluster.client().endpoint().authority());
    let admin = std::fs::read_to_string(stage.cluster.dir().join("admin.token")).unwrap();
    let mut browser = Browser::start();
    log_in(&mut browser, &base, admin.trim());
    browser.go(&format!("{base}/endpoints"));
    browser.click("tbody a[href='/endpoints/chat']");
    let says = |place: &str, what: &str| {
        format!("document.querySelector('[data-testid={place}]').textContent.includes({what:?})")
    };
    browser.wait(&says("state", "ready"));
    browser.eval("window.loadedOnce = true");
    // All that follows comes to the page by itself.
    let load = Load::start(&stage.address, "chat", 1, 1);
    browser.wait("parseFloat(document.querySelector('[data-testid=figures] dd').textContent) > 0");
    browser.wait("document.querySelector('#endpoint canvas')");
    stage.cluster.cli(&["endpoints", "scale", "chat", "3"]).ok();
    browser.wait("document.querySelectorAll('#replicas tbody tr').length === 3");
    browser.wait(&says("history", "wants 3 to 3 replicas"));
    assert_eq!(browser.eval("window.loadedOnce"), true);
    assert_eq!(load.stop().bad, [] as [String; 0]);
    let pages = ["/endpoints", "/endpoints/chat"].map(str::to_owned);
    no_barriers(&mut browser, &base, &pages, &axe());
    assert_eq!(browser.complaints(), [] as [String; 0], "the console has errors");
}

#[test]
fn a_served_model_answers_through_the_router_and_goes_when_it_is_stopped() {
    let stage = Stage::new(2, 2);
    stage.serve("chat", "", "replicas = 2\nmodels = [\"tiny\"]");
    let said = post(&stage.address, r#"{"model": "tiny", "prompt": "hello"}"#);
    assert_eq!((said.status, json(&said)["version"].as_str()), (200, Some("1")));
    let stream = post(&stage.address, r#"{"model": "chat", "prompt": "hello", "stream": true}"#);
    assert!(stream.body.ends_with(b"data: [DONE]\n\n"), "{stream:?}");
    let other = post(&stage.address, r#"{"model": "gpt-9", "prompt": "hello"}"#);
    let text = json(&other)["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(other.status == 404 && text.contains("gpt-9") && text.contains("chat"), "{other:?}");

    let rows = stage.cluster.cli(&["endpoints", "--json"]).ok();
    let rows: Value = serde_json::from_str(&rows).expect("JSON");
    assert_eq!((rows[0]["name"].as_str(), rows[0]["ready"].as_u64()), (Some("chat"), Some(2)));
    stage.wait_show("requests are counted", "chat", |e| {
        e.replicas.iter().map(|r| r.requests).sum::<u64>() >= 2
    });
    let table = stage.cluster.cli(&["endpoints"]).ok();
    assert!(table.contains("chat") && table.contains("ready"), "{table}");
    let twice = stage.file("chat", "", "");
    stage.cluster.cli(&["serve", twice.to_str().unwrap()]).call().says(&["chat", "--update"]);
    let typo = ["endpoints", "update", "caht", twice.to_str().unwrap()];
    stage.cluster.cli(&typo).call().says(&["caht", "this is served: chat"]);

    let jobs: Vec<JobId> = stage.show("chat").replicas.iter().map(|r| r.job).collect();
    stage.cluster.cli(&["endpoints", "stop", "chat"]).ok();
    wait_until("it is gone", PATIENCE, || stage.cluster.client().endpoint_detail("chat").is_err());
    for job in jobs {
        assert!(stage.cluster.wait_end(TaskId::single(job)).state.is_final());
    }
    assert_eq!(post(&stage.address, r#"{"model": "chat"}"#).status, 404);
}

#[test]
fn a_sleeping_endpoint_holds_the_first_request_until_a_replica_is_ready() {
    let stage = Stage::new(1, 2);
    stage.serve(
        "nap",
        "env = { WARM_UP = \"0.5\" }",
        "replicas = [0, 2]\nzero_after = \"1s\"\ndown_after = \"1s\"",
    );
    stage.wait_show("nobody asks, so it sleeps", "nap", |e| {
        e.row.state == EndpointState::Asleep && e.replicas.is_empty()
    });
    let said = post(&stage.address, r#"{"model": "nap"}"#);
    assert_eq!(said.status, 200, "{said:?}");
    stage.wait_show("it sleeps again", "nap", |e| e.replicas.is_empty());
}

#[test]
fn a_replica_that_can_never_start_is_explained() {
    let stage = Stage::new(1, 1);
    let path = stage.cluster.scratch().join("broken.toml");
    let text = "name = \"broken\"\nrun = \"echo no such model >&2; exit 3\"\n[service]\n";
    std::fs::write(&path, text).expect("a job file");
    let done = stage.cluster.cli(&["serve", path.to_str().unwrap()]).call();
    assert_ne!(done.code, 0);
    done.says(&["broken", "tutti logs"]);
    stage.wait_show("it counts as failing", "broken", |e| e.row.state == EndpointState::Failing);
    let why = stage.cluster.cli(&["why", "broken"]).ok();
    assert!(why.contains('3'), "the exit code is named: {why}");
}

/// Jobs share their node's address, and whoever listens where a replica should would get its requests.
#[test]
fn a_neighbour_can_not_pose_as_a_replica() {
    let stage = Stage::new(1, 3);
    let port = 18_000 + std::process::id() % 10_000;
    let server = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/serve/server.py");
    let thief = stage.cluster.scratch().join("thief.toml");
    let run = format!("PORT={port} REUSE=1 exec python3 {server}");
    std::fs::write(&thief, format!("name = 'thief'\nrun = '{run}'\n")).expect("a job file");
    let steal = || stage.cluster.cli(&["submit", thief.to_str().unwrap()]).ok();
    let routed = || {
        let text = std::fs::read(stage.cluster.scratch().join("routes.json")).unwrap_or_default();
        let table: Value = serde_json::from_slice(&text).unwrap_or_default();
        table["endpoints"][0]["replicas"].as_array().map(Vec::len)
    };
    let named = |job: &str| {
        let words = format!("(python3) of user root, job {job}");
        wait_until("the neighbour is named", PATIENCE, || {
            let why = stage.cluster.cli(&["why", "chat"]).ok();
            why.contains(&words) && why.contains(&port.to_string())
        });
    };

    // First, before there is any replica.
    let job = steal();
    wait_until("it listens", PATIENCE, || {
        let address = format!("127.0.77.1:{port}");
        ask(&address, "GET", "/health", "").is_ok_and(|said| said.status == 200)
    });
    let file = stage.file("chat", "env = { REUSE = \"1\" }", &format!("port = {port}"));
    stage.cluster.cli(&["serve", file.to_str().unwrap(), "--detach"]).ok();
    named(&job);
    assert_eq!((stage.show("chat").row.ready, routed()), (0, Some(0)));
    stage.cluster.cli(&["cancel", &job]).ok();
    stage.wait_ready("chat", 1);
    let own = stage.show("chat").replicas[0].job.to_string();
    let said = post(&stage.address, r#"{"model": "chat"}"#);
    assert_eq!((said.status, json(&said)["job"].as_str()), (200, Some(own.as_str())));

    // Then beside one that serves, as the kernel allows the same user.
    let job = steal();
    named(&job);
    stage.wait_show("it is not ready any more", "chat", |e| e.row.ready == 0);
    wait_until("routers are told", PATIENCE, || routed() == Some(0));
    stage.cluster.cli(&["cancel", &job]).ok();
    stage.wait_ready("chat", 1);
    let said = post(&stage.address, r#"{"model": "chat"}"#);
    assert_eq!((said.status, json(&said)["job"].as_str()), (200, Some(own.as_str())));

    let low = stage.file("low", "", "port = 22");
    let refused = stage.cluster.cli(&["serve", low.to_str().unwrap()]).call();
    refused.exited(2).says(&["service.port: 22 belongs to the system"]);
}

/// Everything that the issue of an endpoint's life may bring, one after another, under load.
#[test]
fn nothing_fails_but_the_streams_of_a_replica_that_is_killed() {
    let mut stage = Stage::new(4, 4);
    stage.serve("busy", "", "replicas = [1, 8]\ntarget_in_flight = 1000\ndown_after = \"1s\"");
    let scale = |stage: &Stage, to: &str, ready: u32| {
        stage.cluster.cli(&["endpoints", "scale", "busy", to]).ok();
        stage.wait_ready("busy", ready);
    };
    scale(&stage, "3", 3);
    let load = Load::start(&stage.address, "busy", 3, 3);
    load.flows();

    let victim = stage.show("busy").replicas[0].job;
    let (pid, _) = stage.rank_of(victim);
    load.may_break(victim);
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("the rank is there");
    stage.wait_show("it is replaced", "busy", |e| {
        e.row.ready == 3 && e.replicas.iter().all(|r| r.job != victim)
    });
    load.flows();

    let victim = stage.show("busy").replicas[0].job;
    let (_, node) = stage.rank_of(victim);
    for replica in &stage.show("busy").replicas {
        if stage.rank_of(replica.job).1 == node {
            load.may_break(replica.job);
        }
    }
    stage.cluster.kill_node(&node);
    load.flows();
    stage.cluster.wait_node(&node, tutti_model::NodeState::Lost);
    stage.wait_ready("busy", 3);
    load.flows();

    stage.cluster.kill_controller();
    load.flows();
    stage.cluster.start_controller();
    stage.wait_ready("busy", 3);
    load.flows();

    let next = stage.file(
        "busy",
        "env = { VERSION = \"2\" }",
        "replicas = [1, 8]\ntarget_in_flight = 1000\ndown_after = \"1s\"\nzero_after = \"1s\"",
    );
    stage.cluster.cli(&["endpoints", "update", "busy", next.to_str().unwrap()]).ok();
    stage.wait_show("all are new", "busy", |e| {
        e.row.ready == 3 && e.replicas.iter().all(|r| r.revision == 2)
    });
    load.flows();
    let said = post(&stage.address, r#"{"model": "busy"}"#);
    assert_eq!(json(&said)["version"].as_str(), Some("2"));

    scale(&stage, "1", 1);
    load.flows();
    scale(&stage, "8", 8);
    load.flows();
    scale(&stage, "1", 1);
    load.flows();
    let report = load.stop();
    assert!(report.bad.is_empty(), "{report:#?}");
    assert!(report.answers > 100 && report.streams > 10, "{report:?}");

    stage.cluster.cli(&["endpoints", "scale", "busy", "0..1"]).ok();
    stage.wait_show("none is left", "busy", |e| e.replicas.is_empty());
    let said = post(&stage.address, r#"{"model": "busy"}"#);
    assert_eq!(said.status, 200, "held until the first replica was back: {said:?}");
}

#[test]
fn a_bad_revision_is_taken_back_by_itself() {
    let stage = Stage::new(2, 4);
    let rule = "replicas = 2\n[service.rollout]\nbake = \"2s\"\nmin_requests = 5\n";
    stage.serve("safe", "", rule);
    let bad = stage.file("safe", "env = { FAIL = \"1\" }", rule);
    stage
        .cluster
        .cli(&["endpoints", "update", "safe", bad.to_str().unwrap(), "--canary", "50", "--detach"])
        .ok();
    let back = wait_for("the canary is taken back", PATIENCE, || {
        post(&stage.address, r#"{"model": "safe"}"#);
        let shown = stage.show("safe");
        let taken = shown.revisions.iter().find(|r| r.number == 2)?.taken_back.clone();
        taken.filter(|_| shown.row.rollout.is_none())
    });
    assert!(back.contains("fail"), "{back}");
    stage.wait_ready("safe", 2);
    for _ in 0..10 {
        assert_eq!(post(&stage.address, r#"{"model": "safe"}"#).status, 200);
    }
}

#[test]
fn a_router_goes_on_without_a_controller_even_after_a_restart() {
    let mut stage = Stage::new(1, 2);
    stage.serve("lone", "", "replicas = 1");
    assert_eq!(post(&stage.address, r#"{"model": "lone"}"#).status, 200);
    stage.cluster.kill_controller();
    assert_eq!(post(&stage.address, r#"{"model": "lone"}"#).status, 200);
    stage.router.signal(Signal::SIGTERM);
    let (router, address) = start_router(&stage.cluster);
    (stage.router, stage.address) = (router, address);
    wait_until("the new router serves from its file", PATIENCE, || {
        post(&stage.address, r#"{"model": "lone"}"#).status == 200
    });
    stage.cluster.start_controller();
    stage.wait_ready("lone", 1);
}
