//! What flows: input to ranks, records to readers, agents that come back, HTTPS.

mod common;

use std::time::Duration;

use common::Cluster;
use common::agent::{self, FakeAgent, Ranks, Stream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tutti_model::{
    Epoch, ExitStatus, Greeting, LeaseId, Order, PartReport, Rank, RankExit, ReportedPhase, Time,
};
use tutti_wire::client::{Client, ClusterRef};
use tutti_wire::frame;
use tutti_wire::stream::{PROTOCOL, ToAgent, ToController};

async fn next(stream: &mut Stream) -> ToAgent {
    let read = tokio::time::timeout(Duration::from_secs(10), frame::read(stream));
    read.await.unwrap().unwrap().unwrap()
}

async fn next_start(stream: &mut Stream) -> LeaseId {
    match next(stream).await {
        ToAgent::Order(Order::Start(launch)) => launch.lease,
        other => panic!("{other:?}"),
    }
}

async fn report(stream: &mut Stream, lease: LeaseId, phase: ReportedPhase) {
    let report = PartReport::new(lease, phase);
    frame::write(stream, &ToController::Report { report }).await.unwrap();
}

fn running() -> ReportedPhase {
    ReportedPhase::Running { exits: Vec::new() }
}

fn done() -> ReportedPhase {
    let exit = RankExit { rank: Rank(0), status: ExitStatus::Code(7), at: Time(1) };
    ReportedPhase::Done { exits: vec![exit], error: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn input_waits_for_the_job_and_reaches_its_rank() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let mut stream = agent::connect(cluster.addr(), &identity, 1).await;
    let id = cluster.submit(json!({ "run": "cat", "stdin": true })).await;
    let bearer = format!("Authorization: Bearer {}", cluster.admin);
    let path = format!("/api/v1/jobs/{id}/stdin");
    let headers = [bearer.as_str()];
    let send = cluster.raw("PUT", &path, &headers, Some("hello"));
    let serve = async {
        let lease = next_start(&mut stream).await;
        report(&mut stream, lease, running()).await;
        let mut input = Vec::new();
        loop {
            match next(&mut stream).await {
                ToAgent::Stdin { data, eof, .. } => {
                    input.extend(data);
                    if eof {
                        return input;
                    }
                }
                ToAgent::Order(_) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    let (answer, input) = tokio::join!(send, serve);
    assert_eq!((answer.status, answer.json()["changed"].as_u64()), (200, Some(5)));
    assert_eq!(input, b"hello");
    let without = cluster.submit(json!({ "run": "cat" })).await;
    let path = format!("/api/v1/jobs/{without}/stdin");
    assert_eq!(cluster.raw("PUT", &path, &headers, None).await.status, 409);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_comes_back_to_a_new_controller_with_its_job() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let mut stream = agent::connect(cluster.addr(), &identity, 1).await;
    let id = cluster.submit(json!({ "run": "sleep" })).await;
    let lease = next_start(&mut stream).await;
    report(&mut stream, lease, running()).await;
    while cluster.get(&format!("/api/v1/jobs/{id}")).await["state"] != "running" {
        tokio::task::yield_now().await;
    }
    let cluster = Cluster::start_in(cluster.stop().await).await;
    assert_eq!(cluster.get(&format!("/api/v1/jobs/{id}")).await["state"], "running");

    let mut stream = agent::dial(cluster.addr(), &identity).await.unwrap();
    let parts = vec![PartReport::new(lease, done())];
    let greeting = Box::new(Greeting::new(agent::facts("n1", 1), parts));
    let renew = Some(identity.renewal().unwrap());
    let (protocol, epoch, instance) = (PROTOCOL, Epoch(1), None);
    let hello = ToController::Hello { protocol, greeting, epoch, renew, instance };
    frame::write(&mut stream, &hello).await.unwrap();
    match next(&mut stream).await {
        ToAgent::Welcome { epoch, certificate, .. } => {
            assert_eq!(epoch, Epoch(2));
            identity.renewed(&certificate.unwrap()).unwrap();
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(next(&mut stream).await, ToAgent::Order(Order::Forget { lease }));
    let row = cluster.wait(&id).await;
    assert_eq!((row["state"].as_str(), row["exit_code"].as_i64()), (Some("failed"), Some(7)));
    cluster.stop().await;
}

/// Reads an event stream until `enough` is seen.
async fn read_events(cluster: &Cluster, path: &str, enough: impl Fn(&str) -> bool) -> String {
    open_events(cluster, path, enough).await.0
}

async fn open_events(
    cluster: &Cluster,
    path: &str,
    enough: impl Fn(&str) -> bool,
) -> (String, TcpStream) {
    open_events_as(cluster, &cluster.admin, path, enough).await
}

async fn open_events_as(
    cluster: &Cluster,
    token: &str,
    path: &str,
    enough: impl Fn(&str) -> bool,
) -> (String, TcpStream) {
    let mut socket = TcpStream::connect(cluster.addr()).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
        cluster.addr(),
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    let mut piece = [0; 4096];
    let read = async {
        while !enough(&text) {
            let n = socket.read(&mut piece).await.unwrap();
            assert!(n > 0, "{text}");
            text += &String::from_utf8_lossy(&piece[..n]);
        }
    };
    tokio::time::timeout(Duration::from_secs(10), read).await.unwrap();
    (text, socket)
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_streamed_and_a_late_reader_is_told() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let agent = FakeAgent::start(cluster.addr(), identity, 1, Ranks::Finish).await;
    let id = cluster.submit(json!({ "run": "true" })).await;
    let path = format!("/api/v1/events?since=0&job={id}");
    let text = read_events(&cluster, &path, |t| t.contains("task_ended")).await;
    assert!(text.contains("job_submitted") && text.contains("placed"));
    assert!(!text.contains("token_added"));
    let all = read_events(&cluster, "/api/v1/events?since=0", |t| t.contains("task_ended")).await;
    assert!(all.contains("token_added"));
    let hashes = all.lines().filter_map(|l| l.strip_prefix("data: "));
    for data in hashes.map(|d| serde_json::from_str::<Value>(d).unwrap()) {
        let hash = data.pointer("/event/token/hash").and_then(Value::as_str).unwrap_or("");
        assert_eq!(hash, "");
    }
    drop(agent);
    let cluster = Cluster::start_in(cluster.stop().await).await;
    let late =
        read_events(&cluster, "/api/v1/events?since=1", |t| t.contains("missed_after")).await;
    assert!(late.contains("event: lagged"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn environments_are_for_the_owner_and_admins() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 1, Ranks::Finish).await;
    let ada = cluster.access("ada", "user").await;
    let spec = json!({ "run": "true", "env": { "API_KEY": "s3cret" } });
    let body = Some(json!({ "spec": spec }));
    let answer = cluster.call_as(&ada, "POST", "/api/v1/jobs", body).await;
    let path = format!("/api/v1/jobs/{}", answer.json()["id"].as_str().unwrap());
    let admin = cluster.admin.clone();
    let readers = [
        (ada, "s3cret", false),
        (cluster.access("bob", "user").await, "(hidden)", false),
        (cluster.access("vera", "viewer").await, "(hidden)", false),
        (admin, "s3cret", true),
    ];
    for (token, value, tokens) in readers {
        let detail = cluster.call_as(&token, "GET", &path, None).await.json();
        assert_eq!(detail["spec"]["env"], json!({ "API_KEY": value }));
        let ended = |t: &str| t.contains("task_ended");
        let events = open_events_as(&cluster, &token, "/api/v1/events?since=0", ended).await.0;
        assert_eq!(events.contains("s3cret"), value == "s3cret");
        assert!(events.contains("API_KEY"));
        assert_eq!(events.contains("token_"), tokens);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_typed_client_speaks_https() {
    let cluster = Cluster::start().await;
    let address = format!("https://{}", cluster.addr());
    let token = cluster.admin.parse().unwrap();
    let client = Client::connect(&ClusterRef::new(&address, token).unwrap());
    let client = tokio::task::spawn_blocking(move || {
        assert_eq!(client.cluster_info().unwrap().nodes, 0);
        client
    });
    drop(client.await.unwrap());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_end_with_the_controller() {
    let cluster = Cluster::start().await;
    let path = "/api/v1/events?since=0";
    let (_, mut events) = open_events(&cluster, path, |t| t.contains("token_added")).await;
    assert_eq!(cluster.call("POST", "/api/v1/shutdown", None).await.status, 200);
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(5), events.read_to_end(&mut rest));
    ended.await.unwrap().unwrap();
    cluster.handle.ended().await.unwrap();
}
