//! The keys of nodes: removed, copied, given once.

mod common;

use std::time::{Duration, Instant};

use common::Cluster;
use common::agent::{self, FakeAgent, Ranks, Stream};
use serde_json::{Value, json};
use tutti_wire::frame;
use tutti_wire::pki::{NodeIdentity, NodeKey};
use tutti_wire::stream::{ToAgent, ToController};

const PATIENCE: Duration = Duration::from_secs(20);

/// A hello of another process than all before it.
fn hello(identity: &NodeIdentity, instance: &str, renewal: Option<String>) -> ToController {
    match agent::hello(agent::facts(identity.node(), 8)) {
        ToController::Hello { protocol, greeting, epoch, .. } => {
            let instance = Some(instance.to_owned());
            ToController::Hello { protocol, greeting, epoch, renew: renewal, instance }
        }
        other => other,
    }
}

async fn greet(
    cluster: &Cluster,
    identity: &NodeIdentity,
    hello: ToController,
) -> (Stream, ToAgent) {
    let mut stream = agent::dial(cluster.addr(), identity).await.unwrap();
    frame::write(&mut stream, &hello).await.unwrap();
    let read = tokio::time::timeout(PATIENCE, frame::read(&mut stream));
    let answer = read.await.expect("an answer").unwrap().expect("an answer");
    (stream, answer)
}

async fn refusal(cluster: &Cluster, identity: &NodeIdentity, hello: ToController) -> String {
    match greet(cluster, identity, hello).await.1 {
        ToAgent::Refused { reason } => reason,
        other => panic!("{other:?}"),
    }
}

/// Looks until it is so; gives what was seen then.
async fn until(cluster: &Cluster, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let seen = cluster.get(path).await;
        if is_so(&seen) {
            return seen;
        }
        assert!(begun.elapsed() < PATIENCE, "{path} stays {seen}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn try_join(cluster: &Cluster, only: Option<&str>, node: &str) -> (u16, Value) {
    let token = cluster.token(json!({ "grants": "join", "node": only, "uses": 1 })).await;
    let body = json!({ "node": node, "csr": NodeKey::generate().unwrap().csr().unwrap() });
    let answer = cluster.call_as(&token, "POST", "/api/v1/join", Some(body)).await;
    (answer.status, answer.json())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_node_is_turned_away_with_its_key() {
    let cluster = Cluster::start().await;
    let first = cluster.join("n1").await;
    let (mut stream, welcome) = greet(&cluster, &first, hello(&first, "a", None)).await;
    assert!(matches!(welcome, ToAgent::Welcome { .. }), "{welcome:?}");
    let id = cluster.submit(json!({ "run": "sleep 100", "gpus_per_node": 8 })).await;
    let busy = cluster.call("DELETE", "/api/v1/nodes/n1", None).await;
    assert_eq!(busy.status, 409, "{}", busy.json());
    let viewer = cluster.access("ann", "user").await;
    let denied = cluster.call_as(&viewer, "DELETE", "/api/v1/nodes/n1?force=true", None).await;
    assert_eq!(denied.status, 403);
    let removed = cluster.call("DELETE", "/api/v1/nodes/n1?force=true", None).await;
    assert_eq!(removed.status, 200, "{}", removed.json());
    // Its agent is told to stop what it runs, then why, and then nothing more.
    let (mut stopped, mut told) = (false, String::new());
    while let Ok(Some(message)) = frame::read::<ToAgent, _>(&mut stream).await {
        match message {
            ToAgent::Order(tutti_model::Order::Stop { .. }) => stopped = true,
            ToAgent::Refused { reason } => told = reason,
            _ => {}
        }
    }
    assert!(stopped && told.contains("was removed"), "{told}");
    let gone = cluster.call("GET", "/api/v1/nodes/n1", None).await;
    assert_eq!((gone.status, &gone.json()["code"]), (404, &json!("node_removed")));
    let never = cluster.call("GET", "/api/v1/nodes/n2", None).await;
    assert_eq!((never.status, &never.json()["code"]), (404, &json!("not_found")));
    // Neither a new stream nor a renewal, for anybody who has the key.
    for renewal in [None, Some(first.renewal().unwrap())] {
        let why = refusal(&cluster, &first, hello(&first, "b", renewal)).await;
        assert!(why.contains("was removed") && why.contains("join"), "{why}");
    }
    // The same name with another key; the job goes on there, and the old key opens nothing still.
    let second = cluster.join("n1").await;
    let why = refusal(&cluster, &first, hello(&first, "c", None)).await;
    assert!(why.contains("another key"), "{why}");
    let _agent = FakeAgent::start(cluster.addr(), second, 8, Ranks::Finish).await;
    assert_eq!(cluster.wait(&id).await["state"], "completed");
    let dir = cluster.stop().await;
    // It is on record, not in memory.
    let cluster = Cluster::start_in(dir).await;
    let why = refusal(&cluster, &first, hello(&first, "d", None)).await;
    assert!(why.contains("another key"), "{why}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_key_is_noticed() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let copy = hello(&identity, "copy", None);
    let copied = copy_of(&identity);
    let agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Finish).await;
    for _ in 0..2 {
        let why = refusal(&cluster, &copied, copy.clone()).await;
        assert!(why.contains("key of node 'n1'") && why.contains("answers"), "{why}");
    }
    assert!(!agent.task.is_finished(), "whoever was there first stays");
    let row = cluster.get("/api/v1/nodes/n1").await;
    assert_eq!(row["state"], "drained");
    assert!(row["drain_reason"].to_string().contains("two agents"), "{row}");
    let doctor = cluster.get("/api/v1/doctor").await;
    assert!(doctor.to_string().contains("two agents hold its key"), "{doctor}");
    let stands = |seen: &Value| {
        let alerts = seen["alerts"].as_array().unwrap();
        alerts.iter().any(|alert| alert["rule"] == "shared_key")
    };
    let alerts = until(&cluster, "/api/v1/alerts", stands).await;
    assert!(alerts["alerts"].to_string().contains("tutti nodes remove n1"), "{alerts}");
    // Nothing new starts there, until somebody has looked.
    let id = cluster.submit(json!({ "run": "true", "gpus_per_node": 1 })).await;
    assert_eq!(cluster.get(&format!("/api/v1/jobs/{id}")).await["state"], "pending");
    assert_eq!(cluster.call("POST", "/api/v1/nodes/n1/resume", None).await.status, 200);
    assert_eq!(cluster.wait(&id).await["state"], "completed");
    until(&cluster, "/api/v1/alerts", |seen| !stands(seen)).await;
    cluster.stop().await;
}

/// As if somebody had read the file.
fn copy_of(identity: &NodeIdentity) -> NodeIdentity {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.pem");
    identity.save(&path).unwrap();
    NodeIdentity::load(&path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_that_come_again_are_no_copies() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    // The same process after a broken network: its old stream is open still, and nobody waits.
    let (old, _) = greet(&cluster, &identity, hello(&identity, "a", None)).await;
    let begun = Instant::now();
    let (again, welcome) = greet(&cluster, &identity, hello(&identity, "a", None)).await;
    assert!(matches!(welcome, ToAgent::Welcome { .. }), "{welcome:?}");
    assert!(begun.elapsed() < Duration::from_secs(1));
    // Another process after a restart: the old stream ends.
    drop((old, again));
    let (silent, welcome) = greet(&cluster, &identity, hello(&identity, "b", None)).await;
    assert!(matches!(welcome, ToAgent::Welcome { .. }), "{welcome:?}");
    // Another process after a machine died: its stream is open, and nothing comes.
    let (_now, welcome) = greet(&cluster, &identity, hello(&identity, "c", None)).await;
    assert!(matches!(welcome, ToAgent::Welcome { .. }), "{welcome:?}");
    drop(silent);
    assert_eq!(cluster.get("/api/v1/nodes/n1").await["state"], "ready");
    let doctor = cluster.get("/api/v1/doctor").await.to_string();
    assert!(!doctor.contains("two agents"), "{doctor}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_for_its_own_key_alone() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let other = NodeKey::generate().unwrap().csr().unwrap();
    let why = refusal(&cluster, &identity, hello(&identity, "a", Some(other))).await;
    assert!(why.contains("no other"), "{why}");
    let own = identity.renewal().unwrap();
    let (_stream, welcome) = greet(&cluster, &identity, hello(&identity, "a", Some(own))).await;
    let ToAgent::Welcome { certificate: Some(next), .. } = welcome else { panic!("{welcome:?}") };
    let key = identity.key_id().unwrap();
    assert_eq!(identity.renewed(&next).unwrap().key_id().unwrap(), key);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_given_once_and_has_to_be_one() {
    let cluster = Cluster::start().await;
    // Its agent never connects.
    cluster.join("n1").await;
    let (status, problem) = try_join(&cluster, None, "n1").await;
    assert_eq!(status, 403, "{problem}");
    assert!(problem.to_string().contains("tutti token create --join --node n1"), "{problem}");
    assert_eq!(try_join(&cluster, Some("n1"), "n1").await.0, 200);
    for odd in [".", "..", "-x", "--force", "a/b", "", "a\u{202e}b"] {
        let (status, problem) = try_join(&cluster, None, odd).await;
        assert_eq!(status, 400, "{odd:?}: {problem}");
        let grant = json!({ "grant": { "grants": "join", "node": odd, "uses": 1 } });
        assert_eq!(
            cluster.call("POST", "/api/v1/tokens", Some(grant)).await.status,
            400,
            "{odd:?}"
        );
    }
    cluster.stop().await;
}
