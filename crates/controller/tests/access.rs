//! Who is let in, and who is not.

mod common;

use common::agent::{self, FakeAgent, Ranks};
use common::{Cluster, split};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tutti_controller::api::{Access, ROUTES, document};
use tutti_model::Role;
use tutti_wire::frame;
use tutti_wire::stream::{ToAgent, ToController};

/// Every operation of the document, with made-up names in its path.
fn operations() -> Vec<(String, String, String)> {
    let document = serde_json::to_value(document()).unwrap();
    let mut out = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let concrete =
                path.replace("{id}", "1").replace("{name}", "n1").replace("{session}", "s");
            out.push((method.to_uppercase(), path.clone(), concrete));
        }
    }
    out
}

#[test]
fn the_document_and_the_table_have_the_same_routes() {
    let mut documented: Vec<_> = operations().into_iter().map(|(m, p, _)| (m, p)).collect();
    let mut declared: Vec<_> =
        ROUTES.iter().map(|(m, p, _)| (m.to_string(), (*p).to_owned())).collect();
    documented.sort();
    declared.sort();
    assert_eq!(documented, declared);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_needs_a_token_and_its_role() {
    let cluster = Cluster::start().await;
    let viewer = cluster.access("vera", "viewer").await;
    let user = cluster.access("ulla", "user").await;
    let join = cluster.token(json!({ "grants": "join", "node": null, "uses": null })).await;
    let router = cluster.token(json!({ "grants": "router" })).await;
    let key = cluster.token(json!({ "grants": "serve", "user": "eve" })).await;
    let (rest, last) = user.split_at(user.len() - 1);
    let wrong = format!("{rest}{}", if last == "0" { "1" } else { "0" });
    for (method, template, path) in operations() {
        let find =
            |(m, p, _): &&(http::Method, &str, Access)| m.as_str() == method && *p == template;
        let (_, _, access) = ROUTES.iter().find(find).unwrap();
        let nobody = cluster.raw(&method, &path, &[], None).await;
        assert_eq!(nobody.status, 401, "{method} {path}");
        assert_eq!(nobody.json()["exit"], 4);
        for bad in ["", "x", "tutti_u_0", wrong.as_str()] {
            let status = cluster.call_as(bad, &method, &path, None).await.status;
            assert_eq!(status, 401, "{method} {path} with '{bad}'");
        }
        let status = |token: String| {
            let (cluster, method, path) = (&cluster, method.clone(), path.clone());
            async move { cluster.call_as(&token, &method, &path, None).await.status }
        };
        let (low, high) = match access {
            Access::Join => (vec![&viewer, &user, &cluster.admin, &router], vec![]),
            Access::Router => (vec![&viewer, &user, &join], vec![&router]),
            Access::Role(Role::Admin) => (vec![&viewer, &user, &join, &router], vec![]),
            Access::Role(Role::User) => (vec![&viewer, &join, &router], vec![&user]),
            Access::Role(Role::Viewer) => (vec![&join, &router], vec![&viewer, &user]),
        };
        for token in low.into_iter().chain([&key]) {
            assert_eq!(status(token.clone()).await, 403, "{method} {path}");
        }
        // The streams of /events never end by themselves; the table is tested above.
        if template != "/api/v1/events" {
            for token in high {
                let status = status(token.clone()).await;
                assert!(![401, 403].contains(&status), "{method} {path}: {status}");
            }
        }
    }
    let nowhere =
        [("GET", "/nope", 404), ("GET", "/api/v1/nope", 404), ("PATCH", "/api/v1/jobs", 405)];
    for (method, path, status) in nowhere {
        assert_eq!(cluster.raw(method, path, &[], None).await.status, 401, "{method} {path}");
        let known = cluster.call(method, path, None).await;
        assert_eq!(known.status, status, "{method} {path}");
        assert!(known.json()["code"].is_string());
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_and_expired_tokens_open_nothing() {
    let cluster = Cluster::start().await;
    let user = cluster.access("ulla", "user").await;
    let id = user.split('_').nth(3).unwrap();
    assert_eq!(cluster.call_as(&user, "GET", "/api/v1/jobs", None).await.status, 200);
    let path = format!("/api/v1/tokens/{id}");
    assert_eq!(cluster.call("DELETE", &path, None).await.status, 200);
    assert_eq!(cluster.call_as(&user, "GET", "/api/v1/jobs", None).await.status, 401);
    assert_eq!(cluster.call("DELETE", &path, None).await.status, 404);
    let grant = json!({ "grants": "access", "user": "x", "role": "admin" });
    let body = json!({ "grant": grant, "expires_in": "0s" });
    let expired = cluster.call("POST", "/api/v1/tokens", Some(body)).await.json();
    let expired = expired["secret"].as_str().unwrap();
    assert_eq!(cluster.call_as(expired, "GET", "/api/v1/jobs", None).await.status, 401);
    let list = cluster.get("/api/v1/tokens").await.to_string();
    assert!(!list.contains("hash") && !list.contains(expired));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_act_on_their_own_jobs_only() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Stay).await;
    let ada = cluster.access("ada", "user").await;
    let bob = cluster.access("bob", "user").await;
    let body = json!({ "spec": { "run": "x", "stdin": true } });
    let answer = cluster.call_as(&ada, "POST", "/api/v1/jobs", Some(body.clone())).await;
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    for (method, what, body) in [
        ("POST", "cancel", None),
        ("POST", "hold", None),
        ("POST", "release", None),
        ("PUT", "stdin", None),
        ("GET", "logs", None),
        ("POST", "exec", Some(json!({ "argv": ["id"] }))),
    ] {
        let path = format!("/api/v1/jobs/{id}/{what}");
        let answer = cluster.call_as(&bob, method, &path, body).await;
        assert_eq!(answer.status, 403, "{what}");
        assert_eq!(answer.json()["exit"], 4);
    }
    let vera = cluster.access("vera", "viewer").await;
    let path = format!("/api/v1/jobs/{id}/logs");
    assert_eq!(cluster.call_as(&vera, "GET", &path, None).await.status, 403);
    let mut as_other = body;
    as_other["user"] = json!("ada");
    assert_eq!(cluster.call_as(&bob, "POST", "/api/v1/jobs", Some(as_other)).await.status, 403);
    let path = format!("/api/v1/jobs/{id}/priority");
    for (token, priority, status) in [(&ada, "low", 200), (&ada, "high", 403), (&bob, "low", 403)] {
        let body = Some(json!({ "priority": priority }));
        assert_eq!(cluster.call_as(token, "POST", &path, body).await.status, status, "{priority}");
    }
    let body = Some(json!({ "spec": { "run": "x", "priority": 101 } }));
    let jump = cluster.call_as(&ada, "POST", "/api/v1/jobs", body).await;
    assert_eq!(jump.status, 400);
    assert!(jump.json()["message"].to_string().contains("priority: 101 is for admins"));
    let path = format!("/api/v1/jobs/{id}/cancel");
    assert_eq!(cluster.call_as(&ada, "POST", &path, None).await.status, 200);
    let dir = cluster.stop().await;
    let log = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    let has = |user: &str, action: &str, result: &str| {
        log.lines().any(|l| {
            let v: serde_json::Value = serde_json::from_str(l).unwrap();
            v["user"] == user && v["action"] == action && v["result"] == result
        })
    };
    assert!(has("ada", "POST /api/v1/jobs", "ok"));
    assert!(has("bob", "POST /api/v1/jobs/{id}/cancel", "denied"));
    assert!(has("bob", "GET /api/v1/jobs/{id}/logs", "denied"));
    assert!(has("ada", "POST /api/v1/jobs/{id}/cancel", "ok"));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_origins_are_refused() {
    let cluster = Cluster::start().await;
    let port = cluster.addr().port();
    let bearer = format!("Authorization: Bearer {}", cluster.admin);
    let evil = "Host: evil.example:80".to_owned();
    let rebound = format!("Host: evil.example:{port}");
    for host in [evil, rebound, "Host: localhost".into(), format!("Host: localhost:{}", port ^ 1)] {
        let answer = cluster.raw("GET", "/api/v1/jobs", &[&bearer, &host], None).await;
        assert_eq!(answer.status, 403, "{host}");
    }
    let host = format!("Host: localhost:{port}");
    assert_eq!(cluster.raw("GET", "/api/v1/jobs", &[&bearer, &host], None).await.status, 200);
    for (origin, status) in [
        (format!("Origin: http://localhost:{port}"), 200),
        ("Origin: https://evil.example".to_owned(), 403),
        ("Origin: null".to_owned(), 403),
    ] {
        let answer = cluster.raw("GET", "/api/v1/jobs", &[&bearer, &host, &origin], None).await;
        assert_eq!(answer.status, status, "{origin}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_refused_with_a_reason() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let old = |protocol| match agent::hello(agent::facts("n1", 1)) {
        ToController::Hello { greeting, epoch, renew, instance, .. } => {
            ToController::Hello { protocol, greeting, epoch, renew, instance }
        }
        other => other,
    };
    let mut wordy = agent::facts("n1", 1);
    wordy.labels.insert("k".to_owned(), "x".repeat(300_000));
    let hellos = [
        (agent::hello(wordy), "describes its node in 300"),
        (old(99), "agent speaks protocol 99, this controller 1: install tutti"),
        (agent::hello(agent::facts("n2", 1)), "certificate is for node 'n1'"),
        (ToController::Heartbeat { parts: Vec::new() }, "start with hello"),
    ];
    for (hello, word) in hellos {
        let mut stream = agent::dial(cluster.addr(), &identity).await.unwrap();
        frame::write(&mut stream, &hello).await.unwrap();
        match frame::read::<ToAgent, _>(&mut stream).await.unwrap() {
            Some(ToAgent::Refused { reason }) => assert!(reason.contains(word), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    // A token for any node can't take over one that is there.
    let connected = agent::connect(cluster.addr(), &identity, 1).await;
    let key = tutti_wire::pki::NodeKey::generate().unwrap();
    for (only, status) in [(None, 403), (Some("n1"), 200)] {
        let token = cluster.token(json!({ "grants": "join", "node": only, "uses": 1 })).await;
        let body = json!({ "node": "n1", "csr": key.csr().unwrap() });
        let answer = cluster.call_as(&token, "POST", "/api/v1/join", Some(body)).await;
        assert_eq!(answer.status, status, "{only:?}");
        if status == 403 {
            let message = answer.json()["message"].to_string();
            assert!(message.contains("tutti token create --join --node n1"), "{message}");
        }
    }
    drop(connected);
    // A join token is used up after its one use.
    let token = cluster.token(json!({ "grants": "join", "node": "n3", "uses": 1 })).await;
    let another = tutti_wire::pki::NodeKey::generate().unwrap();
    // Who did not hear the answer may ask again with the same key, and gets no more by it.
    for (node, key, status) in
        [("other", &key, 403), ("n3", &key, 200), ("n3", &another, 403), ("n3", &key, 200)]
    {
        let body = json!({ "node": node, "csr": key.csr().unwrap() });
        let answer = cluster.call_as(&token, "POST", "/api/v1/join", Some(body)).await;
        assert_eq!(answer.status, status, "{node}");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_plain_text_from_elsewhere() {
    // Two ends on loopback are let in; what the machine itself can't reach is a unit of `listener`.
    let cluster = Cluster::start().await;
    let mut socket = tokio::net::TcpStream::connect(cluster.addr()).await.unwrap();
    socket.write_all(b"GET /api/v1/jobs HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    // Without a Host header it is turned away before anything is looked at.
    assert_eq!(split(&answer).status, 403);
    cluster.stop().await;
}

/// The socket of the data dir has no address: the log names the user of the machine instead.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_push_nothing_out_of_the_audit_log() {
    let cluster = Cluster::start().await;
    let path = format!("/api/v1/{}", "x".repeat(4000));
    let form = "x".repeat(5000);
    for _ in 0..150 {
        let refused = cluster.raw("GET", &path, &[], None).await;
        let unread = cluster.raw("POST", "/login", &[], Some(&form)).await;
        assert_eq!((refused.status, unread.status), (401, 413));
    }
    cluster.access("ada", "user").await;
    let dir = cluster.stop().await;
    let log = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    assert!(log.lines().count() < 150 && log.len() < 40_000, "{log}");
    assert!(log.contains("more were refused") && log.contains("POST /api/v1/tokens"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_says_who_came_over_the_socket() {
    let cluster = Cluster::start().await;
    let path = cluster.dir.path().join(tutti_wire::client::SOCKET_FILE);
    let mut socket = tokio::net::UnixStream::connect(path).await.unwrap();
    let body =
        json!({ "grant": { "grants": "access", "user": "ada", "role": "user" } }).to_string();
    let request = format!(
        "POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Authorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
        cluster.admin,
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    assert_eq!(split(&answer).status, 201, "{}", String::from_utf8_lossy(&answer));
    cluster.access("bob", "viewer").await;
    let dir = cluster.stop().await;
    let log = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let made: Vec<_> = lines.iter().filter(|l| l["action"] == "POST /api/v1/tokens").collect();
    let [by_socket, by_port] = made[..] else { panic!("{log}") };
    let me = nix::unistd::getuid().as_raw();
    assert_eq!((&by_socket["peer"], &by_socket["uid"]), (&json!("local"), &json!(me)));
    let port = by_port["peer"].as_str().unwrap().to_owned();
    assert!(port.starts_with("127.0.0.1:"), "{port}");
    assert!(by_port.get("uid").is_none());
}
