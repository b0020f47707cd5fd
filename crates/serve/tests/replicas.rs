//! Replicas that fail, come and go.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tutti_model::{RetryRule, RoutePolicy};

/// One that is well by its health path and closes every other connection at once.
async fn closes(count: Arc<AtomicU32>) -> std::net::SocketAddr {
    replica(move |stream, _| {
        count.fetch_add(1, Ordering::Relaxed);
        async move { drop(stream) }
    })
    .await
}

#[tokio::test]
async fn what_one_replica_drops_another_answers() {
    let dropped = Arc::new(AtomicU32::new(0));
    let bad = closes(dropped.clone()).await;
    let good = says("good").await;
    let router = start(table(vec![endpoint("m", &[bad, good])]));
    router.all_ready("m").await;
    for _ in 0..6 {
        let answer = router.post("/v1/completions", r#"{"model":"m"}"#).await;
        assert!(answer.ends_with("\r\n\r\ngood"), "{answer}");
    }
    let traffic = router.until("m", |m| m.traffic.requests == 6).await.traffic;
    assert!(traffic.retried > 0, "the bad one was tried");
    assert_eq!(u64::from(dropped.load(Ordering::Relaxed)), traffic.retried);
    assert_eq!(traffic.errors, 0);
}

#[tokio::test]
async fn what_might_do_harm_is_sent_once() {
    let dropped = Arc::new(AtomicU32::new(0));
    let bad = closes(dropped.clone()).await;
    let router = start(table(vec![endpoint("m", &[bad])]));
    let answer = router.ask("PATCH /x HTTP/1.1\r\nHost: r\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    let mut never = endpoint("m", &[bad]);
    never.retry = RetryRule::Never;
    let mut table = table(vec![never]);
    table.version = 2;
    router.set(table);
    let changed = async {
        while router.handle.report().version != 2 {
            tokio::task::yield_now().await;
        }
    };
    soon(changed).await;
    assert!(router.get("/x").await.starts_with("HTTP/1.1 502 "));
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_overloaded_replica_s_503_is_tried_elsewhere_and_the_last_one_told() {
    let busy = replica(|mut stream, _| async move {
        let answer = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let good = says("good").await;
    let router = start(table(vec![endpoint("m", &[busy, good]), endpoint("n", &[busy])]));
    router.all_ready("m").await;
    for _ in 0..4 {
        let answer = router.post("/v1/completions", r#"{"model":"m"}"#).await;
        assert!(answer.ends_with("\r\n\r\ngood"), "{answer}");
    }
    let answer = router.post("/v1/completions", r#"{"model":"n"}"#).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

#[tokio::test]
async fn a_connection_closed_while_idle_costs_nobody_anything() {
    // Answers once per connection, says that it keeps it, and closes it.
    let address = replica(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    })
    .await;
    let router = before(address);
    for _ in 0..20 {
        let answer = router.post("/v1/completions", r#"{"model":"m"}"#).await;
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    }
    let report = router.until("m", |m| m.traffic.requests == 20).await;
    assert_eq!(report.traffic.errors, 0);
    assert!(!report.replicas.values().any(|r| r.broken));
}

/// Answers each head with its path and reads on: what it takes for the next request begins with the body.
async fn reads_no_bodies() -> std::net::SocketAddr {
    replica(|mut stream, mut bytes| async move {
        loop {
            while let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
                bytes.drain(..end + 4);
                let answer = ok(head.split(' ').nth(1).unwrap_or("?"));
                if stream.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
            }
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn what_a_replica_leaves_unread_becomes_no_part_of_another_s_request() {
    let address = reads_no_bodies().await;
    let mut one_thread = config();
    one_thread.threads = 1;
    let router = start_with(one_thread, table(vec![endpoint("m", &[address])]));
    let glue = "GET /smuggled HTTP/1.1\r\nX: ";
    for n in 1..=3u8 {
        // What it glues to its own next request is its own business: each time it is another one.
        let mut attacker = router.connect_from([127, 0, 0, 1 + n].into()).await;
        attacker.write_all(post("/e/m/mine", glue).as_bytes()).await.unwrap();
        read_until(&mut attacker, b"/mine").await;
        // By then its connection to the replica is idle.
        router.until("m", |m| m.traffic.requests == 2 * u64::from(n) - 1 && m.in_flight == 0).await;
        let answer = router.get("/e/m/other").await;
        assert!(answer.ends_with("\r\n\r\n/other"), "{answer}");
        router.until("m", |m| m.traffic.requests == 2 * u64::from(n)).await;
    }
}

#[tokio::test]
async fn a_connection_on_which_the_answer_came_before_the_request_is_closed() {
    let (closed, mut closings) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, mut bytes| {
        let closed = closed.clone();
        async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf").await.unwrap();
            while !bytes.ends_with(b"0\r\n\r\n") {
                assert!(stream.read_buf(&mut bytes).await.unwrap() > 0);
            }
            stream.write_all(b"more").await.unwrap();
            closed.send(stream.read(&mut [0]).await.unwrap_or(0)).unwrap();
        }
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    let head = "POST /e/m/x HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut client, b"half").await;
    client.write_all(b"0\r\n\r\n").await.unwrap();
    read_until(&mut client, b"more").await;
    assert_eq!(soon(closings.recv()).await, Some(0), "its end, and no further request");
    client.write_all(b"GET /e/m/y HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    read_until(&mut client, b"half").await;
}

#[tokio::test]
async fn a_request_is_held_until_a_replica_appears() {
    let router = start(table(vec![endpoint("m", &[])]));
    let held = async { router.post("/v1/completions", r#"{"model":"m"}"#).await };
    let appear = async {
        while router.handle.report().endpoints["m"].queued == 0 {
            tokio::task::yield_now().await;
        }
        let address = says("at last").await;
        let mut table = table(vec![endpoint("m", &[address])]);
        table.version = 2;
        router.set(table);
    };
    let (answer, ()) = soon(async { tokio::join!(held, appear) }).await;
    assert!(answer.ends_with("\r\n\r\nat last"), "{answer}");
    router.until("m", |m| m.traffic.queue_wait.count() == 1 && m.queued == 0).await;
}

#[tokio::test]
async fn a_draining_replica_finishes_what_it_has_and_gets_nothing_new() {
    let go_on = Arc::new(Notify::new());
    let gate = go_on.clone();
    let old = replica(move |mut stream, _| {
        let gate = gate.clone();
        async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nold").await.unwrap();
            gate.notified().await;
            stream.write_all(b"end").await.unwrap();
        }
    })
    .await;
    let router = start(table(vec![endpoint("m", &[old])]));
    let mut client = router.connect().await;
    client.write_all(b"GET /x HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    read_until(&mut client, b"old").await;
    let new = says("new").await;
    let mut second = table(vec![endpoint("m", &[old, new])]);
    second.version = 2;
    second.endpoints[0].replicas[0].draining = true;
    router.set(second.clone());
    let changed = async {
        while router.handle.report().version != 2 {
            tokio::task::yield_now().await;
        }
    };
    soon(changed).await;
    for _ in 0..4 {
        assert!(router.get("/x").await.ends_with("\r\n\r\nnew"));
    }
    // Even when it is no longer listed, what it has goes on.
    second.version = 3;
    second.endpoints[0].replicas.remove(0);
    router.set(second);
    go_on.notify_one();
    read_until(&mut client, b"end").await;
}

#[tokio::test]
async fn a_replica_that_is_not_listening_is_passed_over() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap();
    let good = says("good").await;
    let router = start(table(vec![endpoint("m", &[address, good])]));
    drop(nobody);
    for _ in 0..4 {
        assert!(router.get("/x").await.ends_with("\r\n\r\ngood"));
    }
    let report = router.handle.report();
    let replicas = &report.endpoints["m"].replicas;
    assert_eq!(replicas.values().map(|r| r.ready).collect::<Vec<_>>(), [false, true]);
}

#[tokio::test]
async fn the_last_table_holds_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config.table_file = Some(folder.path().join("routes.json"));
    let address = says("kept").await;
    let router = start_with(config.clone(), table(vec![endpoint("m", &[address])]));
    assert!(router.get("/x").await.ends_with("\r\n\r\nkept"));
    soon(router.handle.shutdown(LONG)).await;
    let router = start_with(config, tutti_model::RouteTable::default());
    assert!(router.get("/x").await.ends_with("\r\n\r\nkept"));
    assert_eq!(router.handle.report().version, 1);
}

#[tokio::test]
async fn requests_that_belong_together_go_to_the_same_replica() {
    let (one, two) = (says("one").await, says("two").await);
    let mut sticky = endpoint("s", &[one, two]);
    sticky.policy = RoutePolicy::Sticky;
    let mut prefix = endpoint("p", &[one, two]);
    prefix.policy = RoutePolicy::Prefix;
    let router = start(table(vec![sticky, prefix]));
    router.all_ready("s").await;
    router.all_ready("p").await;
    let body = |answer: String| answer.split("\r\n\r\n").nth(1).unwrap().to_owned();
    let mut seen = Vec::new();
    for session in 0..16 {
        let request =
            format!("GET /e/s/x HTTP/1.1\r\nHost: r\r\nX-Session-Id: user-{session}\r\n\r\n");
        let first = body(router.ask(&request).await);
        for _ in 0..3 {
            assert_eq!(body(router.ask(&request).await), first);
        }
        seen.push(first);
    }
    assert!(seen.contains(&"one".to_owned()) && seen.contains(&"two".to_owned()), "{seen:?}");
    let prompt = format!(r#"{{"model":"p","prompt":"{}"}}"#, "long words ".repeat(100));
    let first = body(router.post("/v1/completions", &prompt).await);
    for _ in 0..3 {
        assert_eq!(body(router.post("/v1/completions", &prompt).await), first);
    }
    let traffic = router.until("p", |p| p.traffic.requests == 4).await.traffic;
    assert_eq!(traffic.prefix_hits, 3);
    assert!(traffic.prefix_blocks_hit > 0 && traffic.prefix_blocks_hit < traffic.prefix_blocks);
}

#[tokio::test]
async fn what_a_server_says_of_its_load_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let Some(request) = read_head(&mut stream).await else { return };
                let page = match request.starts_with(b"GET /metrics ") {
                    true => "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n",
                    false => "",
                };
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", page.len());
                stream.write_all(format!("{head}{page}").as_bytes()).await.unwrap();
            });
        }
    });
    let router = before(address);
    let report =
        router.until("m", |m| m.replicas.values().all(|replica| replica.own.is_some())).await;
    let own = report.replicas.values().next().unwrap().own.unwrap();
    assert_eq!((own.running, own.waiting), (3, 2));
}

#[tokio::test]
async fn a_post_that_may_change_something_is_sent_once() {
    let dropped = Arc::new(AtomicU32::new(0));
    let (one, two) = (closes(dropped.clone()).await, closes(dropped.clone()).await);
    let router = start(table(vec![endpoint("m", &[one, two])]));
    router.all_ready("m").await;
    for path in ["/e/m/v1/fine_tuning/jobs", "/e/m/v1/files", "/e/m/orders"] {
        dropped.store(0, Ordering::Relaxed);
        let answer = router.post(path, "{}").await;
        assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
        assert_eq!(dropped.load(Ordering::Relaxed), 1, "{path}");
    }
}

#[tokio::test]
async fn a_prompt_that_kills_servers_kills_two_at_most() {
    let killed = Arc::new(AtomicU32::new(0));
    let mut addresses = Vec::new();
    for _ in 0..4 {
        addresses.push(closes(killed.clone()).await);
    }
    let router = start(table(vec![endpoint("m", &addresses)]));
    router.all_ready("m").await;
    let answer = router.post("/v1/completions", r#"{"model":"m"}"#).await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert_eq!(killed.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_older_table_holds_if_the_controller_says_so() {
    let address = says("ok").await;
    let mut newer = table(vec![endpoint("m", &[address])]);
    newer.version = 9;
    let router = start(newer);
    assert_eq!(router.handle.report().version, 9);
    // A journal was restored: the controller counts from an older state on.
    router.set(table(vec![endpoint("n", &[address])]));
    let changed = async {
        while router.handle.report().version != 1 {
            tokio::task::yield_now().await;
        }
    };
    soon(changed).await;
    assert!(router.get("/e/n/x").await.ends_with("\r\n\r\nok"));
    assert!(router.get("/e/m/x").await.starts_with("HTTP/1.1 404 "));
}
