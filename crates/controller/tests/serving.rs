//! Endpoints over the API: a pretended agent runs their replicas, a pretended router asks for the table
//! and says how they do.

mod common;

use std::time::{Duration, Instant};

use common::agent::{FakeAgent, Ranks};
use common::{Answer, Cluster};
use serde_json::{Value, json};
use tutti_engine::{Event, Record};
use tutti_journal::{BoxError, Journal, Options, RedbJournal, Replay, codec};
use tutti_model::Seq;

async fn one_node(ranks: Ranks) -> (Cluster, FakeAgent) {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let agent = FakeAgent::start(cluster.addr(), identity, 8, ranks).await;
    (cluster, agent)
}

fn chat(replicas: Value) -> Value {
    json!({
        "name": "chat", "run": "serve --port $PORT", "gpus_per_node": 2,
        "env": { "API_KEY": "hush" },
        "service": { "replicas": replicas, "models": ["llama"], "drain": "1s" },
    })
}

async fn serve(cluster: &Cluster, token: &str, body: Value) -> Answer {
    cluster.call_as(token, "POST", "/api/v1/endpoints", Some(body)).await
}

/// The table, newer than the one before.
async fn routes(cluster: &Cluster, token: &str, after: &Value) -> Value {
    let path = format!("/api/v1/routes?after={after}&seconds=20");
    let answer = cluster.call_as(token, "GET", &path, None).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.json()
}

/// The table once it has so many replicas.
async fn table_with(cluster: &Cluster, token: &str, replicas: usize) -> Value {
    let mut table = routes(cluster, token, &json!(0)).await;
    while table["endpoints"][0]["replicas"].as_array().map(Vec::len) != Some(replicas) {
        let newer = routes(cluster, token, &table["version"]).await;
        assert_ne!(newer["version"], table["version"], "it never has {replicas}: {table}");
        table = newer;
    }
    table
}

/// All that the table has answer, and so much was asked.
fn report(table: &Value, queued: u32, requests: u64) -> Value {
    let replicas = table["endpoints"][0]["replicas"].as_array().cloned().unwrap_or_default();
    let of_replica = |replica: &Value| {
        let said = json!({
            "generation": replica["generation"], "ready": true, "in_flight": 1,
            "requests": requests, "own": { "running": 1, "waiting": 0, "kv_used": 0.5 },
        });
        (replica["job"].to_string(), said)
    };
    let traffic = json!({
        "requests": requests, "errors": requests / 10, "prompt_tokens": 100 * requests,
        "output_tokens": 10 * requests,
        "first_byte": { "counts": [0, 0, requests], "sum_us": 2500 * requests },
    });
    let replicas: serde_json::Map<String, Value> = replicas.iter().map(of_replica).collect();
    json!({
        "router": "r1", "address": "http://127.0.0.1:9000", "version": table["version"],
        "endpoints": { "chat": {
            "in_flight": replicas.len(), "queued": queued, "traffic": traffic,
            "revisions": { "1": traffic }, "replicas": replicas,
        } },
    })
}

async fn say(cluster: &Cluster, token: &str, report: Value) {
    let answer = cluster.call_as(token, "POST", "/api/v1/routers", Some(report)).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
}

/// Says the same until the endpoint is as wanted, as routers do.
async fn until(
    cluster: &Cluster,
    router: &str,
    said: &Value,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let began = Instant::now();
    loop {
        say(cluster, router, said.clone()).await;
        let detail = cluster.get("/api/v1/endpoints/chat").await;
        if wanted(&detail) {
            return detail;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{detail:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_served_asked_and_stopped() {
    let (cluster, _agent) = one_node(Ranks::Stay).await;
    let ada = cluster.access("ada", "user").await;
    let router = cluster.token(json!({ "grants": "router" })).await;
    let created = serve(&cluster, &ada, json!({ "spec": chat(json!(2)) })).await;
    assert_eq!((created.status, created.json()["revision"].as_u64()), (201, Some(1)));
    let table = table_with(&cluster, &router, 2).await;
    let replica = &table["endpoints"][0]["replicas"][0];
    assert_eq!(
        (&replica["address"], &replica["draining"]),
        (&json!("127.0.0.1:4000"), &json!(false))
    );

    let mut said = report(&table, 0, 20);
    said["zone"] = json!("of a router that is newer than the controller");
    let detail = until(&cluster, &router, &said, |detail| detail["state"] == "ready").await;
    assert_eq!(
        (&detail["ready"], &detail["want"], &detail["in_flight"]),
        (&json!(2), &json!(2), &json!(2))
    );
    assert_eq!((&detail["gpus_per_replica"], &detail["user"]), (&json!(2), &json!("ada")));
    let row = &detail["replicas"][0];
    assert_eq!((&row["state"], &row["nodes"]), (&json!("running"), &json!(["n1"])));
    assert_eq!((&row["requests"], &row["own"]["kv_used"]), (&json!(20), &json!(0.5)));
    assert_eq!(detail["routers"][0]["address"], "http://127.0.0.1:9000");
    assert_eq!(detail["served"]["total"]["requests"], 20);
    assert_eq!(detail["revisions"][0]["command"], "serve --port $PORT");
    let listed = cluster.get("/api/v1/endpoints").await;
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["state"]), (1, &json!("ready")));

    let text = cluster.call("GET", "/metrics", None).await;
    let text = String::from_utf8(text.body).unwrap();
    for line in [
        "tutti_routers 1",
        "tutti_endpoint_replicas{endpoint=\"chat\",state=\"ready\"} 2",
        "tutti_endpoint_want{endpoint=\"chat\"} 2",
        "tutti_endpoint_requests_total{endpoint=\"chat\"} 20",
        "tutti_endpoint_output_tokens_total{endpoint=\"chat\"} 200",
        "tutti_endpoint_first_byte_seconds_count{endpoint=\"chat\"} 20",
        "tutti_endpoint_first_byte_seconds_bucket{endpoint=\"chat\",le=\"0.002\"} 0",
        "tutti_endpoint_first_byte_seconds_bucket{endpoint=\"chat\",le=\"0.003\"} 20",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    let stopped = cluster.call_as(&ada, "POST", "/api/v1/endpoints/chat/stop", None).await;
    assert_eq!(stopped.status, 200);
    let began = Instant::now();
    while cluster.call("GET", "/api/v1/endpoints/chat", None).await.status != 404 {
        assert!(began.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let past = cluster.call_as(&ada, "GET", "/api/v1/endpoints:stopped", None).await.json();
    let past = &past["endpoints"][0];
    assert_eq!((&past["name"], &past["user"]), (&json!("chat"), &json!("ada")));
    assert_eq!(
        (&past["total"]["requests"], &past["total"]["output_tokens"]),
        (&json!(20), &json!(200))
    );
    assert!(past["gpu_hours"].as_f64() > Some(0.0) && past["stopped_at"].is_u64(), "{past}");
    assert_eq!(&cluster.get("/api/v1/report").await["served"][0], past);
    let of_bob = cluster.get("/api/v1/report?user=bob").await;
    assert_eq!(of_bob.get("served"), None, "{of_bob}");
    let audit = std::fs::read_to_string(cluster.stop().await.path().join("audit.log")).unwrap();
    assert!(audit.contains("endpoint chat revision 1"), "{audit}");
    assert!(!audit.contains("/api/v1/routers"), "routers speak too often for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_served_outlives_the_controller() {
    let (cluster, agent) = one_node(Ranks::Stay).await;
    let router = cluster.token(json!({ "grants": "router" })).await;
    serve(&cluster, &cluster.admin, json!({ "spec": chat(json!(1)) })).await;
    let table = table_with(&cluster, &router, 1).await;
    say(&cluster, &router, report(&table, 0, 30)).await;
    drop(agent);
    let cluster = Cluster::start_in(cluster.stop().await).await;
    let detail = cluster.get("/api/v1/endpoints/chat").await;
    assert_eq!(detail["served"]["total"]["requests"], 30);
    // The router went on meanwhile, and its counters with it.
    say(&cluster, &router, report(&table, 0, 50)).await;
    let detail = cluster.get("/api/v1/endpoints/chat").await;
    assert_eq!(detail["served"]["total"]["requests"], 50);
    assert_eq!(detail["served"]["total"]["prompt_tokens"], 5000);
    cluster.stop().await;
}

/// Requests that the journal has of an endpoint, and whether it has its end.
#[derive(Default)]
struct Account {
    requests: u64,
    gone: bool,
}

impl Replay for Account {
    fn snapshot(&mut self, seq: Seq, _: &[u8]) -> Result<(), BoxError> {
        panic!("a snapshot at {seq} of so few records")
    }

    fn batch(&mut self, _: Seq, _: Seq, bytes: &[u8]) -> Result<(), BoxError> {
        for record in codec::decode::<Vec<Record>>(bytes)? {
            match record.event {
                Event::EndpointServed { more, .. } => self.requests += more.requests,
                Event::EndpointGone { .. } => self.gone = true,
                _ => {}
            }
        }
        Ok(())
    }
}

async fn account(cluster: Cluster) -> Account {
    let dir = cluster.stop().await;
    let mut account = Account::default();
    let mut journal =
        RedbJournal::open(&dir.path().join("journal.redb"), &Options::default()).unwrap();
    journal.load(&mut account).unwrap();
    account
}

async fn stop_and_see_it_go(cluster: &Cluster, said: Option<(&str, Value)>) {
    let stopped = cluster.call("POST", "/api/v1/endpoints/chat/stop", None).await;
    assert_eq!(stopped.status, 200);
    if let Some((router, said)) = said {
        say(cluster, router, said).await;
    }
    let began = Instant::now();
    while cluster.call("GET", "/api/v1/endpoints/chat", None).await.status != 404 {
        assert!(began.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One that sleeps, so that it is gone at once. The router that counted, and its table.
async fn asked_30_times_and_stopped(cluster: &Cluster) -> (String, Value) {
    let router = cluster.token(json!({ "grants": "router" })).await;
    serve(cluster, &cluster.admin, json!({ "spec": chat(json!([0, 1])) })).await;
    let table = routes(cluster, &router, &json!(0)).await;
    say(cluster, &router, report(&table, 0, 30)).await;
    stop_and_see_it_go(cluster, None).await;
    (router, table)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_served_is_told_before_an_endpoint_is_gone() {
    // Asleep: it is gone as soon as it is stopped.
    let (cluster, _agent) = one_node(Ranks::Stay).await;
    asked_30_times_and_stopped(&cluster).await;
    let Account { requests, gone } = account(cluster).await;
    assert_eq!((requests, gone), (30, true));

    // Gone: a router that has not heard of it yet goes on counting.
    let (cluster, _agent) = one_node(Ranks::Stay).await;
    let (router, table) = asked_30_times_and_stopped(&cluster).await;
    say(&cluster, &router, report(&table, 0, 33)).await;
    let began = Instant::now();
    let stopped = || cluster.get("/api/v1/endpoints:stopped");
    while stopped().await["endpoints"][0]["total"]["requests"] != 33 {
        assert!(began.elapsed() < Duration::from_secs(30), "{:#}", stopped().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(account(cluster).await.requests, 33);

    // Awake: what it still answers while it goes counts as well.
    let (cluster, _agent) = one_node(Ranks::Stay).await;
    let router = cluster.token(json!({ "grants": "router" })).await;
    let mut slow = chat(json!(1));
    slow["service"]["drain"] = json!("4s");
    serve(&cluster, &cluster.admin, json!({ "spec": slow })).await;
    let table = table_with(&cluster, &router, 1).await;
    let said = report(&table, 0, 30);
    until(&cluster, &router, &said, |detail| detail["state"] == "ready").await;
    stop_and_see_it_go(&cluster, Some((&router, report(&table, 0, 35)))).await;
    let Account { requests, gone } = account(cluster).await;
    assert_eq!((requests, gone), (35, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_sleeping_endpoint_wakes_it() {
    let (cluster, _agent) = one_node(Ranks::Stay).await;
    let router = cluster.token(json!({ "grants": "router" })).await;
    serve(&cluster, &cluster.admin, json!({ "spec": chat(json!([0, 2])) })).await;
    let asleep = cluster.get("/api/v1/endpoints/chat").await;
    assert_eq!((&asleep["state"], &asleep["want"]), (&json!("asleep"), &json!(0)));
    let table = routes(&cluster, &router, &json!(0)).await;
    say(&cluster, &router, report(&table, 1, 0)).await;
    // Not with the next second: what is asked of the engine after the report finds it awake.
    cluster.access("ulla", "user").await;
    assert_eq!(cluster.get("/api/v1/endpoints/chat").await["want"], 1);
    let table = table_with(&cluster, &router, 1).await;
    assert_eq!(table["endpoints"][0]["replicas"][0]["revision"], 1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_wait_for_something_new() {
    let (cluster, _agent) = one_node(Ranks::Stay).await;
    let router = cluster.token(json!({ "grants": "router" })).await;
    let table = routes(&cluster, &router, &json!(999_999)).await;
    let version = &table["version"];
    let began = Instant::now();
    let path = format!("/api/v1/routes?after={version}&seconds=1");
    let same = cluster.call_as(&router, "GET", &path, None).await.json();
    assert_eq!(&same["version"], version);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    // A key is on its way to routers as soon as it is made.
    let (newer, key) = tokio::join!(
        routes(&cluster, &router, version),
        cluster.token(json!({ "grants": "serve", "user": "eve", "limits": { "concurrent": 3 } })),
    );
    assert!(newer["version"].as_u64() > version.as_u64());
    assert_eq!(
        (&newer["keys"][0]["user"], &newer["keys"][0]["limits"]["concurrent"]),
        (&json!("eve"), &json!(3))
    );
    let hash = newer["keys"][0]["hash"].as_str().unwrap();
    let text: tutti_wire::token::TokenText = key.parse().unwrap();
    assert!(text.matches(hash));
    for path in ["/api/v1/tokens", "/api/v1/endpoints"] {
        assert!(!cluster.get(path).await.to_string().contains(hash), "{path}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_routers_open_their_own_doors_only() {
    let cluster = Cluster::start().await;
    let key = cluster.token(json!({ "grants": "serve", "user": "eve" })).await;
    let router = cluster.token(json!({ "grants": "router" })).await;
    let user = cluster.access("ulla", "user").await;
    for path in ["/api/v1/jobs", "/api/v1/endpoints", "/api/v1/routes"] {
        let answer = cluster.call_as(&key, "GET", path, None).await;
        assert_eq!(answer.status, 403, "{path}");
        let message = answer.json()["message"].to_string();
        assert!(message.contains("through a router"), "{message}");
    }
    assert_eq!(cluster.call_as(&router, "GET", "/api/v1/routes", None).await.status, 200);
    assert_eq!(cluster.call("GET", "/api/v1/routes", None).await.status, 200);
    for (token, path) in
        [(&user, "/api/v1/routes"), (&router, "/api/v1/jobs"), (&router, "/metrics")]
    {
        assert_eq!(cluster.call_as(token, "GET", path, None).await.status, 403, "{path}");
    }
    let odd = json!({ "router": "", "address": "", "version": 0, "endpoints": {} });
    let answer = cluster.call_as(&router, "POST", "/api/v1/routers", Some(odd)).await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (400, Some("invalid")));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_changes_an_endpoint_and_only_they_see_its_secrets() {
    let (cluster, _agent) = one_node(Ranks::Stay).await;
    let ada = cluster.access("ada", "user").await;
    let bob = cluster.access("bob", "user").await;
    let vera = cluster.access("vera", "viewer").await;
    let refused = serve(&cluster, &vera, json!({ "spec": chat(json!(1)) })).await;
    assert_eq!(refused.status, 403);
    assert_eq!(serve(&cluster, &ada, json!({ "spec": chat(json!(1)) })).await.status, 201);
    let secret = |detail: &Value| detail["spec"]["env"]["API_KEY"].clone();
    let path = "/api/v1/endpoints/chat";
    let seen = cluster.call_as(&vera, "GET", path, None).await.json();
    assert_eq!(secret(&seen), "(hidden)");
    assert_eq!(secret(&cluster.call_as(&ada, "GET", path, None).await.json()), "hush");
    for (what, body) in
        [("scale", json!({ "min": 2 })), ("rollback", json!({})), ("stop", Value::Null)]
    {
        let body = Some(body).filter(|body| !body.is_null());
        let answer = cluster.call_as(&bob, "POST", &format!("{path}/{what}"), body).await;
        assert_eq!(answer.status, 403, "{what}: {}", answer.json());
    }
    let again = serve(&cluster, &ada, json!({ "spec": chat(json!(1)) })).await;
    assert_eq!((again.status, again.json()["code"].as_str()), (409, Some("conflict")));
    let scaled = json!({ "min": 2, "max": 3 });
    let answer = cluster.call_as(&ada, "POST", &format!("{path}/scale"), Some(scaled)).await;
    assert_eq!(answer.status, 200);
    let detail = cluster.get(path).await;
    assert_eq!(
        (&detail["min"], &detail["max"], &detail["want"]),
        (&json!(2), &json!(3), &json!(2))
    );
    let mut other = chat(json!(1));
    other["run"] = json!("serve --port $PORT --fast");
    let updated = serve(&cluster, &ada, json!({ "spec": other, "update": true })).await;
    assert_eq!((updated.status, updated.json()["revision"].as_u64()), (200, Some(2)));
    let mut typo = chat(json!(1));
    typo["name"] = json!("caht");
    let only = json!({ "spec": typo, "update": true, "must_exist": true });
    let answer = serve(&cluster, &ada, only).await;
    assert_eq!((answer.status, answer.json()["code"].as_str()), (404, Some("not_found")));
    assert_eq!(answer.json()["hint"], "this is served: chat");
    assert_eq!(cluster.get("/api/v1/endpoints").await.as_array().unwrap().len(), 1);
    let detail = cluster.get(path).await;
    assert_eq!(detail["rollout"]["to"], 2);
    let back = cluster.call_as(&ada, "POST", &format!("{path}/rollback"), Some(json!({}))).await;
    assert_eq!((back.status, back.json()["revision"].as_u64()), (200, Some(1)));
    let odd = json!({ "spec": { "name": "x", "run": "x", "service": { "prot": 1 } } });
    let answer = serve(&cluster, &ada, odd).await;
    assert_eq!(answer.json()["message"], "spec.service.prot: unknown key");
    assert_eq!(cluster.call("GET", "/api/v1/endpoints/nope", None).await.status, 404);
    cluster.stop().await;
}
