//! Who is refused, and how.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tutti_model::{EndpointReport, EndpointRoute, KeyLimits, ReplicaReport, RouteTable, Span};

fn status(answer: &str) -> u16 {
    answer.get(9..12).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
}

#[tokio::test]
async fn a_model_that_is_not_there_is_named_with_those_that_are() {
    let mut second = endpoint("second", &[]);
    second.models = vec!["alias".to_owned()];
    let router = start(table(vec![endpoint("first", &[]), second]));
    let answer = router.post("/v1/completions", r#"{"model":"third"}"#).await;
    assert_eq!(status(&answer), 404);
    for word in ["'third'", "first, second, alias", "\"code\":\"model_not_found\""] {
        assert!(answer.contains(word), "{word} in {answer}");
    }
    assert_eq!(status(&router.get("/e/third/x").await), 404);
    assert_eq!(status(&router.get("/anything").await), 404, "which of the two?");
    let models = router.get("/v1/models").await;
    assert!(models.contains(r#""id":"alias""#) && models.contains(r#""id":"first""#), "{models}");
}

#[tokio::test]
async fn requests_find_their_endpoint_in_every_way() {
    let (one, two) = (says("one").await, says("two").await);
    let mut second = endpoint("b", &[two]);
    second.models = vec!["alias/b".to_owned()];
    let router = start(table(vec![endpoint("a", &[one]), second]));
    for (request, expected) in [
        (post("/v1/completions", r#"{"model":"a"}"#), "one"),
        (post("/v1/completions", r#"{"prompt":"\"model\": \"a\"","model":"alias/b"}"#), "two"),
        ("GET /e/b/v1/files HTTP/1.1\r\nHost: r\r\n\r\n".to_owned(), "two"),
        ("GET /e/a HTTP/1.1\r\nHost: r\r\n\r\n".to_owned(), "one"),
        ("GET /x HTTP/1.1\r\nHost: r\r\nX-Tutti-Endpoint: b\r\n\r\n".to_owned(), "two"),
    ] {
        let answer = router.ask(&request).await;
        assert!(answer.ends_with(&format!("\r\n\r\n{expected}")), "{request}: {answer}");
    }
}

#[tokio::test]
async fn keys_are_checked_counted_and_never_passed_on() {
    let (seen, mut requests) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, request| {
        seen.send(String::from_utf8_lossy(&request).into_owned()).unwrap();
        async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
    })
    .await;
    let mut table = table(vec![endpoint("m", &[address]), endpoint("n", &[address])]);
    let limits = KeyLimits {
        requests_per_minute: Some(2),
        endpoints: vec!["m".to_owned()],
        ..KeyLimits::default()
    };
    table.keys = vec![key(limits)];
    let router = start(table);
    let ask = |path: &str, header: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: r\r\n{header}\r\n\r\n");
        let router = &router;
        async move { router.ask(&request).await }
    };
    assert_eq!(status(&ask("/e/m/1", &format!("Authorization: Bearer {KEY}")).await), 200);
    assert_eq!(status(&ask("/e/m/2", &format!("x-api-key: {KEY}")).await), 200);
    for _ in 0..2 {
        let request = soon(requests.recv()).await.unwrap();
        assert!(!request.contains("tutti_s_"), "{request}");
    }
    let answer = ask("/e/m/3", &format!("x-api-key: {KEY}")).await;
    assert_eq!(status(&answer), 429);
    assert!(answer.contains("\r\nRetry-After: "), "{answer}");
    assert_eq!(status(&ask("/e/n/x", &format!("x-api-key: {KEY}")).await), 403);
    let wrong = KEY.replace("9c41", "9c42");
    for header in [
        format!("x-api-key: {wrong}"),
        "Authorization: Bearer tutti_u_0123456789abcdef_k3jx09tq2m_00".to_owned(),
        "Authorization: Bearer tutti_s_".to_owned(),
    ] {
        assert_eq!(status(&ask("/e/m/x", &header).await), 401, "{header}");
    }
    router.until("m", |m| m.traffic.refused == 1).await;
}

/// With two headers one of us reads the first and a replica the second, with a key in it that is not its own.
#[tokio::test]
async fn a_key_reaches_no_replica_wherever_it_stands() {
    let (seen, mut requests) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, request| {
        seen.send(String::from_utf8_lossy(&request).into_owned()).unwrap();
        async move {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        }
    })
    .await;
    let mut table = table(vec![endpoint("m", &[address])]);
    table.keys = vec![key(KeyLimits::default())];
    let router = start(table);
    let ask = |headers: &str| {
        let request = format!("GET /e/m/x HTTP/1.1\r\nHost: r\r\n{headers}\r\n\r\n");
        let router = &router;
        async move { router.ask(&request).await }
    };
    for headers in [
        format!("Authorization: Bearer sk-theirs\r\nAuthorization: Bearer {KEY}"),
        format!("Authorization: Bearer {KEY}\r\nauthorization: Bearer {KEY}"),
        format!("x-api-key: sk-theirs\r\nX-Api-Key: {KEY}"),
    ] {
        let answer = ask(&headers).await;
        assert_eq!(status(&answer), 400, "{headers}: {answer}");
        assert!(answer.contains("more than one"), "{answer}");
    }
    for headers in [
        format!("Authorization: Bearer sk-theirs, Bearer {KEY}"),
        format!("Authorization: {KEY}"),
        format!("Authorization: Bearer {KEY}\r\nx-api-key: {KEY}"),
        format!("api-key: {KEY}\r\nX-Theirs: kept"),
        format!("Cookie: a=b; key={KEY}"),
    ] {
        assert_eq!(status(&ask(&headers).await), 200, "{headers}");
        let request = soon(requests.recv()).await.unwrap();
        assert!(!request.contains("tutti_s_"), "{request}");
        assert_eq!(request.contains("X-Theirs: kept"), headers.contains("kept"), "{request}");
    }
    assert_eq!(status(&ask("Authorization: Bearer sk-theirs").await), 200);
    let request = soon(requests.recv()).await.unwrap();
    assert!(request.contains("sk-theirs"), "what is the replica's own is passed on: {request}");
}

/// Some servers read trailers as headers.
#[tokio::test]
async fn a_key_in_a_trailer_reaches_no_replica_either() {
    let (seen, mut requests) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, mut request| {
        let seen = seen.clone();
        async move {
            let _ = stream.read_to_end(&mut request).await;
            seen.send(String::from_utf8_lossy(&request).into_owned()).unwrap();
        }
    })
    .await;
    let router = start(table(vec![endpoint("m", &[address]), endpoint("n", &[])]));
    let head = |path: &str| {
        format!("POST {path} HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n")
    };
    let body = "d\r\n{\"model\":\"m\"}\r\n0\r\n";
    for trailer in [
        format!("Authorization: Bearer {KEY}"),
        format!("x-api-key: {KEY}"),
        format!("x-mine: {KEY}"),
        "Authorization: Bearer sk-theirs".to_owned(),
        "Transfer-Encoding: chunked".to_owned(),
        "X-Tutti-Endpoint: n".to_owned(),
    ] {
        let request = format!("{}{body}{trailer}\r\n\r\n", head("/v1/chat/completions"));
        let answer = router.ask(&request).await;
        assert_eq!(status(&answer), 400, "{trailer}: {answer}");
        assert!(answer.contains("trailer"), "{answer}");
        assert!(requests.try_recv().is_err(), "this body is read before a replica is chosen");
    }
    // Here the body is passed on as it comes, and so would be the trailers.
    let mut client = router.connect().await;
    client.write_all(format!("{}{body}", head("/e/m/x")).as_bytes()).await.unwrap();
    router.until("m", |m| m.in_flight == 1).await;
    client.write_all(format!("x-mine: {KEY}\r\n\r\n").as_bytes()).await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut client).await).unwrap();
    assert_eq!(status(&answer), 400, "{answer}");
    let request = soon(requests.recv()).await.unwrap();
    assert!(request.starts_with("POST /x ") && !request.contains("tutti_s_"), "{request}");
    let report = router.until("m", |m| m.in_flight == 0).await;
    assert_eq!(report.traffic.errors, 0, "it is not the replica's fault");
}

/// What a page in a browser on the router's machine can make it send, and what others send.
#[tokio::test]
async fn pages_of_others_reach_no_replica_without_a_key() {
    let address = says("secret").await;
    let mut table = table(vec![endpoint("m", &[address])]);
    table.keys = vec![key(KeyLimits::default())];
    let mut config = config();
    config.origins = vec!["https://app.example".to_owned()];
    let router = start_with(config, table);
    let port = router.handle.addr.port();
    let ask = |method: &str, host: &str, headers: &str| {
        let request = format!("{method} /e/m/x HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n");
        let router = &router;
        async move { router.ask(&request).await }
    };
    let here = format!("localhost:{port}");
    let rebound = format!("evil.example:{port}");
    let own = format!("Origin: http://{here}\r\n");
    let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\nOrigin: https://evil.example\r\n";
    for (method, host, headers) in [
        ("GET", &rebound, ""),
        ("POST", &rebound, &format!("Origin: http://{rebound}\r\n")),
        ("POST", &here, "Origin: https://evil.example\r\nContent-Type: text/plain\r\n"),
        ("POST", &here, "Origin: null\r\n"),
        ("GET", &here, "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n"),
        ("GET", &here, websocket),
    ] {
        let answer = ask(method, host, headers).await;
        assert_eq!(status(&answer), 403, "{method} {host} {headers}: {answer}");
        assert!(answer.contains("foreign_page") && !answer.contains("secret"), "{answer}");
        let keyed = format!("{headers}Authorization: Bearer {KEY}\r\n");
        let answer = ask(method, host, &keyed).await;
        assert_eq!(status(&answer), 200, "who shows a key is asked nothing else: {answer}");
    }
    for (host, headers) in [
        (here.as_str(), ""),
        ("127.0.0.1", ""),
        ("r", ""),
        (&here, own.as_str()),
        (&here, "Origin: https://app.example\r\nSec-Fetch-Site: cross-site\r\n"),
    ] {
        assert_eq!(status(&ask("POST", host, headers).await), 200, "{host} {headers}");
    }
    let listed = router.ask(&format!("GET /v1/models HTTP/1.1\r\nHost: {rebound}\r\n\r\n")).await;
    assert_eq!(status(&listed), 403, "{listed}");
    let report = router.ask(&format!("GET /-/endpoints HTTP/1.1\r\nHost: {rebound}\r\n\r\n")).await;
    assert_eq!(status(&report), 403, "{report}");
}

#[tokio::test]
async fn a_full_queue_and_a_long_wait_are_refused() {
    let address = replica(|stream, _| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let mut full = endpoint("m", &[address]);
    (full.max_in_flight, full.queue, full.queue_wait) = (Some(1), 1, Span(150));
    let router = start(table(vec![full]));
    let mut first = router.connect().await;
    first.write_all(b"GET /x HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    router.until("m", |m| m.in_flight == 1).await;
    let waiting = router.get("/x");
    let refused = async {
        router.until("m", |m| m.queued == 1).await;
        router.get("/x").await
    };
    let (late, refused) = soon(async { tokio::join!(waiting, refused) }).await;
    assert_eq!(status(&refused), 429);
    assert_eq!(status(&late), 503);
    for answer in [&late, &refused] {
        assert!(answer.contains("\r\nRetry-After: "), "{answer}");
    }
    router.until("m", |m| m.queued == 0 && m.traffic.refused == 1).await;
}

#[tokio::test]
async fn without_replicas_and_without_patience_there_is_nothing_to_wait_for() {
    let mut none = endpoint("m", &[]);
    none.hold = Span(0);
    let router = start(table(vec![none]));
    assert_eq!(status(&router.get("/x").await), 503);
}

#[tokio::test]
async fn what_can_be_read_in_two_ways_reaches_nobody() {
    let (seen, mut requests) = mpsc::unbounded_channel::<Vec<u8>>();
    let address = replica(move |_, request| {
        seen.send(request).unwrap();
        async {}
    })
    .await;
    let router = before(address);
    for (lines, expected) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
        ("Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501),
        ("Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
        ("X: y\n\r\n\r\n", 400),
        ("X: y\r\n z\r\n\r\n", 400),
    ] {
        let mut client = router.connect().await;
        let smuggled = "GET /smuggled HTTP/1.1\r\nHost: r\r\n\r\n";
        let request = format!("POST /x HTTP/1.1\r\nHost: r\r\n{lines}{smuggled}");
        client.write_all(request.as_bytes()).await.unwrap();
        let answer = String::from_utf8(read_to_end(&mut client).await).unwrap();
        assert_eq!(status(&answer), expected, "{lines:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "and the connection is closed");
    }
    assert!(requests.try_recv().is_err(), "a replica saw something");
}

#[tokio::test]
async fn malformed_chunks_are_refused_before_a_replica_has_them() {
    let address = says("never").await;
    let router = before(address);
    for chunks in ["5\nhello\r\n0\r\n\r\n", "zz\r\n", "5\r\nhelloX\r\n0\r\n\r\n", "-1\r\n\r\n"] {
        let request =
            format!("POST /v1/x HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        let answer = router.ask(&request).await;
        assert_eq!(status(&answer), 400, "{chunks:?}: {answer}");
    }
}

#[tokio::test]
async fn heads_and_bodies_have_limits() {
    let address = says("ok").await;
    let mut config = config();
    config.limits.head = 8 << 10;
    config.limits.body = Some(1000);
    let router = start_with(config, table(vec![endpoint("m", &[address])]));
    let long = format!("GET /x HTTP/1.1\r\nHost: r\r\nX: {}\r\n\r\n", "y".repeat(9 << 10));
    assert_eq!(status(&router.ask(&long).await), 431);
    assert_eq!(status(&router.post("/x", &"z".repeat(1001)).await), 413);
    assert_eq!(status(&router.post("/x", &"z".repeat(1000)).await), 200);
    let chunk = format!("3e9\r\n{}\r\n0\r\n\r\n", "z".repeat(1001));
    let chunked =
        format!("POST /x HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}");
    assert_eq!(status(&router.ask(&chunked).await), 413);
}

#[tokio::test]
async fn who_takes_for_ever_is_closed() {
    let address = says("ok").await;
    let mut config = config();
    config.timeouts.head = Duration::from_millis(80);
    config.timeouts.body = Duration::from_millis(80);
    config.timeouts.first = Duration::from_millis(80);
    config.timeouts.idle = Duration::from_millis(80);
    let router = start_with(config, table(vec![endpoint("m", &[address])]));
    let mut idle = router.connect().await;
    assert_eq!(read_to_end(&mut idle).await, b"", "nothing said");
    let mut slow = router.connect().await;
    slow.write_all(b"GET /x HTTP/1.1\r\nHost:").await.unwrap();
    assert_eq!(read_to_end(&mut slow).await, b"", "half a head");
    let mut stalled = router.connect().await;
    stalled.write_all(b"POST /x HTTP/1.1\r\nHost: r\r\nContent-Length: 5\r\n\r\nab").await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut stalled).await).unwrap();
    assert_eq!(status(&answer), 408);
    let mut kept = router.connect().await;
    kept.write_all(b"GET /x HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut kept).await).unwrap();
    assert!(answer.ends_with("\r\n\r\nok"), "answered, and closed when idle: {answer}");
}

#[tokio::test]
async fn own_paths_answer() {
    let address = says("ok").await;
    let router = before(address);
    assert_eq!(status(&router.get("/x").await), 200);
    router.until("m", |m| m.traffic.requests == 1).await;
    assert_eq!(status(&router.get("/-/healthy").await), 200);
    assert_eq!(status(&router.get("/-/ready").await), 200);
    let metrics = router.get("/-/metrics").await;
    assert!(metrics.contains("tutti_router_requests_total{endpoint=\"m\"} 1\n"), "{metrics}");
    assert!(
        metrics.contains("tutti_router_replica_ready{endpoint=\"m\",job=\"1\"} 1\n"),
        "{metrics}"
    );
    assert!(router.get("/-/endpoints").await.contains("\"in_flight\":0"));
    assert_eq!(status(&router.get("/-/nonsense").await), 404);
    assert_eq!(status(&router.post("/-/ready", "").await), 405);
}

#[tokio::test]
async fn a_key_shows_nothing_of_endpoints_that_it_is_not_for() {
    let address = says("ok").await;
    let mut table = table(vec![endpoint("mine", &[address]), endpoint("hidden", &[address])]);
    table.keys =
        vec![key(KeyLimits { endpoints: vec!["mine".to_owned()], ..KeyLimits::default() })];
    let router = start(table);
    router.all_ready("hidden").await;
    for path in ["/v1/models", "/-/endpoints", "/-/metrics"] {
        let keyed =
            format!("GET {path} HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {KEY}\r\n\r\n");
        let answer = router.ask(&keyed).await;
        assert_eq!(status(&answer), 200, "{path}: {answer}");
        assert!(answer.contains("mine") && !answer.contains("hidden"), "{path}: {answer}");
        let local = router.get(path).await;
        assert!(local.contains("mine") && local.contains("hidden"), "{path}: {local}");
    }
}

#[tokio::test]
async fn what_came_through_a_proxy_is_not_from_this_machine() {
    let address = says("ok").await;
    let router = start(table(vec![endpoint("m", &[address])]));
    assert_eq!(status(&router.get("/x").await), 200);
    for line in ["X-Forwarded-For: 10.0.0.9", "forwarded: for=10.0.0.9", "Via: 1.1 front"] {
        for path in ["/e/m/x", "/-/metrics"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: r\r\n{line}\r\n\r\n");
            assert_eq!(status(&router.ask(&request).await), 401, "{line}");
        }
    }
}

/// `loop` is said to be where a router listens, on whose machine nobody needs a key.
fn loops(address: SocketAddr, version: u64) -> RouteTable {
    let route = EndpointRoute {
        health: "/-/healthy".to_owned(),
        hold: Span(300),
        queue_wait: Span(300),
        ..endpoint("loop", &[address])
    };
    let limits = KeyLimits { endpoints: vec!["loop".to_owned()], ..KeyLimits::default() };
    RouteTable { version, keys: vec![key(limits)], ..table(vec![route]) }
}

const THROUGH_LOOP: &str = "/e/loop/e/fixed/x HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer";

#[tokio::test]
async fn a_router_does_not_ask_itself() {
    for listen in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
        let address = says("secret").await;
        let fixed = endpoint("fixed", &[address]);
        let mut config = config();
        config.listen = listen.parse().unwrap();
        let router = start_with(config, table(vec![fixed.clone()]));
        let own = SocketAddr::from(([127, 0, 0, 1], router.handle.addr.port()));
        let mut routes = loops(own, 2);
        routes.endpoints.push(fixed);
        router.set(routes);
        let changed = async {
            while router.handle.report().version != 2 {
                tokio::task::yield_now().await;
            }
        };
        soon(changed).await;
        let told = |m: &EndpointReport| {
            let why = |r: &ReplicaReport| r.why.as_ref().is_some_and(|w| w.contains("itself"));
            m.replicas.values().all(|r| r.ready || why(r))
        };
        let report = router.until("loop", told).await;
        let mut client = tokio::net::TcpStream::connect(own).await.unwrap();
        let request = format!("GET {THROUGH_LOOP} {KEY}\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let answer = String::from_utf8(read_to_end(&mut client).await).unwrap();
        assert_eq!(status(&answer), 503, "{listen}: {answer}");
        assert!(!answer.contains("secret"), "{listen}: {answer}");
        assert!(report.replicas.values().all(|r| !r.ready), "{listen}: {report:?}");
    }
}

#[tokio::test]
async fn what_comes_through_another_router_needs_a_key_here() {
    let other = start(table(vec![endpoint("fixed", &[says("secret").await])]));
    let router = start(loops(other.handle.addr, 1));
    router.all_ready("loop").await;
    let answer = router.ask(&format!("GET {THROUGH_LOOP} {KEY}\r\n\r\n")).await;
    assert_eq!(status(&answer), 401, "{answer}");
    assert!(!answer.contains("secret"), "{answer}");
}

#[tokio::test]
async fn a_key_s_limits_hold_while_a_body_is_read_for_its_model() {
    let address = says("ok").await;
    let mut table = table(vec![endpoint("m", &[address]), endpoint("n", &[address])]);
    table.keys = vec![key(KeyLimits { concurrent: Some(1), ..KeyLimits::default() })];
    let router = start(table);
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: r\r\nx-api-key: {KEY}\r\n");
    let mut slow = router.connect().await;
    let first = format!("{head}Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
    slow.write_all(first.as_bytes()).await.unwrap();
    read_until(&mut slow, b"100 Continue\r\n\r\n").await;
    let body = r#"{"model":"m"}"#;
    let second = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    assert_eq!(status(&router.ask(&second).await), 429);
    slow.write_all(b"d\r\n{\"model\":\"m\"}\r\n0\r\n\r\n").await.unwrap();
    read_until(&mut slow, b"\r\n\r\nok").await;
    let let_in = async {
        while status(&router.ask(&second).await) != 200 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(let_in).await;
}

#[tokio::test]
async fn a_model_that_comes_too_late_in_a_body_is_no_unknown_model() {
    let address = says("ok").await;
    let mut settings = config();
    settings.limits.peek = 1000;
    let router =
        start_with(settings, table(vec![endpoint("m", &[address]), endpoint("n", &[address])]));
    let body = format!(r#"{{"messages":"{}","model":"m"}}"#, "x".repeat(2000));
    let answer = router.post("/v1/chat/completions", &body).await;
    assert_eq!(status(&answer), 413, "{answer}");
    for word in ["x-tutti-endpoint", "1000 bytes"] {
        assert!(answer.contains(word), "{word} in {answer}");
    }
    let request =
        post("/v1/chat/completions", &body).replacen("\r\n", "\r\nx-tutti-endpoint: m\r\n", 1);
    assert_eq!(status(&router.ask(&request).await), 200);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_not_the_replica_s_fault() {
    let (seen, mut heads) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, _| {
        let seen = seen.clone();
        async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no").await.unwrap();
            seen.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    })
    .await;
    let mut settings = config();
    settings.limits.body = Some(1000);
    let router = start_with(settings, table(vec![endpoint("m", &[address])]));
    let mut client = router.connect().await;
    let head = "POST /x HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    soon(heads.recv()).await.unwrap();
    read_until(&mut client, b"\r\n\r\no").await;
    client.write_all("z".repeat(2000).as_bytes()).await.unwrap();
    let _ = read_to_end(&mut client).await;
    let report = router.until("m", |m| m.traffic.requests == 1 && m.in_flight == 0).await;
    assert_eq!(report.replicas.values().map(|r| r.errors).sum::<u64>(), 0);
}
