//! HTTP/2, and TLS.

mod common;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use common::*;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tutti_testkit::in_a_crowd;

/// Frames that a test sends one by one.
struct Sent(mpsc::UnboundedReceiver<Frame<Bytes>>);

impl Body for Sent {
    type Data = Bytes;
    type Error = std::convert::Infallible;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_closed() && self.0.is_empty()
    }
}

fn body(text: &'static str) -> Sent {
    let (sender, receiver) = mpsc::unbounded_channel();
    sender.send(Frame::data(Bytes::from_static(text.as_bytes()))).unwrap();
    Sent(receiver)
}

async fn handshake<S>(stream: S) -> SendRequest<Sent>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

/// A body of which nothing comes while what is returned with it lives.
fn stalled() -> (mpsc::UnboundedSender<Frame<Bytes>>, Sent) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Sent(receiver))
}

/// Only a request's body says for which of them it is.
async fn two() -> tutti_model::RouteTable {
    table(vec![endpoint("m", &[says("ok").await]), endpoint("n", &[])])
}

/// All requests that the router has seen the beginning of.
async fn until_active(router: &Running, n: usize) {
    let start = tokio::time::Instant::now();
    while router.handle.active() != n {
        assert!(start.elapsed() < LONG, "{} are under way, not {n}", router.handle.active());
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

fn request(path: &str, body: Sent) -> http::Request<Sent> {
    http::Request::post(format!("http://router{path}")).body(body).unwrap()
}

async fn next(body: &mut Incoming) -> Option<Result<Frame<Bytes>, hyper::Error>> {
    soon(poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx))).await
}

async fn text(mut body: Incoming) -> String {
    let mut all = Vec::new();
    while let Some(frame) = next(&mut body).await {
        if let Ok(data) = frame.unwrap().into_data() {
            all.extend_from_slice(&data);
        }
    }
    String::from_utf8(all).unwrap()
}

#[tokio::test]
async fn requests_over_http2_reach_replicas_over_http1() {
    let (seen, mut requests) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, mut request| {
        let seen = seen.clone();
        async move {
            while !request.ends_with(b"0\r\n\r\n") {
                stream.read_buf(&mut request).await.unwrap();
            }
            seen.send(String::from_utf8(request).unwrap()).unwrap();
            let answer = "HTTP/1.1 200 OK\r\nX-Served: yes\r\nTransfer-Encoding: chunked\r\n\r\n\
                2\r\nhi\r\n0\r\nx-sum: 5\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let router = start(table(vec![endpoint("m", &[address]), endpoint("n", &[])]));
    let mut client = handshake(router.connect().await).await;
    let asked = request("/v1/chat", body(r#"{"model":"m"}"#));
    let mut answer = soon(client.send_request(asked)).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["x-served"]),
        (200, &"yes".parse::<http::HeaderValue>().unwrap())
    );
    assert_eq!(next(answer.body_mut()).await.unwrap().unwrap().into_data().unwrap(), "hi");
    let trailers = next(answer.body_mut()).await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["x-sum"], "5");
    let got = soon(requests.recv()).await.unwrap();
    assert!(got.starts_with("POST /v1/chat HTTP/1.1\r\nhost: router\r\n"), "{got}");
    assert!(got.ends_with("\r\n\r\nd\r\n{\"model\":\"m\"}\r\n0\r\n\r\n"), "{got}");
    let answer =
        soon(client.send_request(request("/v1/x", body(r#"{"model":"q"}"#)))).await.unwrap();
    assert_eq!(answer.status(), 404);
    assert!(text(answer.into_body()).await.contains("m, n"));
}

/// Read before a replica is chosen (`/v1/…`) or passed on as it comes (`/e/m/…`).
#[tokio::test]
async fn a_key_in_a_trailer_over_http2_reaches_no_replica() {
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
    let mut client = handshake(router.connect().await).await;
    for (path, name) in [
        ("/v1/chat", "authorization"),
        ("/v1/chat", "x-mine"),
        ("/e/m/x", "x-api-key"),
        ("/e/m/x", "x-mine"),
    ] {
        let (frames, sent) = stalled();
        frames.send(Frame::data(Bytes::from_static(br#"{"model":"m"}"#))).unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert(http::HeaderName::from_static(name), KEY.parse().unwrap());
        frames.send(Frame::trailers(trailers)).unwrap();
        drop(frames);
        let answer = soon(client.send_request(request(path, sent))).await.unwrap();
        assert_eq!(answer.status().as_u16(), 400, "{path} {name}");
        assert!(text(answer.into_body()).await.contains("trailer"), "{path} {name}");
    }
    drop(client);
    router.until("m", |m| m.in_flight == 0).await;
    while let Ok(request) = requests.try_recv() {
        assert!(!request.contains("tutti_s_"), "{request}");
    }
}

#[tokio::test]
async fn a_long_upload_streams_over_http2() {
    let (seen, mut pieces) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, request| {
        let seen = seen.clone();
        async move {
            // What has come with the head already.
            seen.send(String::from_utf8_lossy(&request).into_owned()).unwrap();
            let mut bytes = [0; 1024];
            loop {
                let n = stream.read(&mut bytes).await.unwrap();
                let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                let last = text.ends_with("0\r\n\r\n");
                seen.send(text).unwrap();
                if last {
                    break;
                }
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        }
    })
    .await;
    let router = before(address);
    let mut client = handshake(router.connect().await).await;
    let (sender, receiver) = mpsc::unbounded_channel();
    let asking = tokio::spawn(client.send_request(request("/e/m/up", Sent(receiver))));
    for piece in ["one", "two"] {
        sender.send(Frame::data(Bytes::from_static(piece.as_bytes()))).unwrap();
        let mut got = String::new();
        while !got.contains(piece) {
            got.push_str(&soon(pieces.recv()).await.unwrap());
        }
    }
    drop(sender);
    let answer = soon(asking).await.unwrap().unwrap();
    assert_eq!(text(answer.into_body()).await, "ok");
}

#[tokio::test]
async fn broken_and_dropped_streams_are_noticed_on_both_sides() {
    let (closed, mut closings) = mpsc::unbounded_channel();
    let read = Arc::new(tokio::sync::Notify::new());
    let gate = read.clone();
    let address = replica(move |mut stream, mut request| {
        let (closed, gate) = (closed.clone(), gate.clone());
        async move {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n";
            stream.write_all(head).await.unwrap();
            if request.starts_with(b"POST /break") {
                // A reset may overtake what was sent before it.
                gate.notified().await;
            } else {
                while !request.ends_with(b"0\r\n\r\n") {
                    stream.read_buf(&mut request).await.unwrap();
                }
                closed.send(stream.read(&mut [0; 1]).await.unwrap_or(0)).unwrap();
            }
        }
    })
    .await;
    let router = before(address);
    let mut client = handshake(router.connect().await).await;
    let mut answer = soon(client.send_request(request("/break", body("x")))).await.unwrap();
    assert_eq!(next(answer.body_mut()).await.unwrap().unwrap().into_data().unwrap(), "hi");
    read.notify_one();
    assert!(next(answer.body_mut()).await.expect("no clean end").is_err());
    let mut answer = soon(client.send_request(request("/leave", body("x")))).await.unwrap();
    assert_eq!(next(answer.body_mut()).await.unwrap().unwrap().into_data().unwrap(), "hi");
    drop(answer);
    assert_eq!(soon(closings.recv()).await, Some(0), "the replica was told");
}

#[tokio::test]
async fn tls_speaks_what_was_agreed_on() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let mut server = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let mut settings = config();
    settings.tls = Some(Arc::new(server));
    let address = says("secret").await;
    let router = start_with(settings, table(vec![endpoint("m", &[address])]));
    for protocols in [vec![], vec![b"http/1.1".to_vec()], vec![b"h2".to_vec()]] {
        let mut client = rustls::ClientConfig::builder()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let h2 = protocols == [b"h2".to_vec()];
        client.alpn_protocols = protocols;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(client));
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, router.connect().await).await.unwrap();
        if h2 {
            let mut client = handshake(stream).await;
            let answer = soon(client.send_request(request("/x", body("")))).await.unwrap();
            assert_eq!(text(answer.into_body()).await, "secret");
        } else {
            stream
                .write_all(b"GET /x HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n")
                .await
                .unwrap();
            let mut all = Vec::new();
            soon(stream.read_to_end(&mut all)).await.unwrap();
            assert!(all.ends_with(b"\r\n\r\nsecret"), "{}", all.escape_ascii());
        }
    }
}

#[tokio::test]
async fn a_replica_that_fails_over_http2_is_left_alone() {
    let address = replica(|mut stream, _| async move {
        let answer = b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno";
        stream.write_all(answer).await.unwrap();
    })
    .await;
    let router = start(table(vec![endpoint("m", &[address])]));
    router.all_ready("m").await;
    let mut client = handshake(router.connect().await).await;
    for _ in 0..5 {
        let answer = soon(client.send_request(request("/x", body("x")))).await.unwrap();
        assert_eq!(answer.status(), 500);
        assert_eq!(text(answer.into_body()).await, "no");
    }
    router.until("m", |m| m.replicas.values().all(|r| r.errors == 5 && r.broken)).await;
}

#[tokio::test]
async fn an_answer_that_is_not_taken_does_not_hold_its_replica() {
    let address = replica(|mut stream, request| async move {
        if request.starts_with(b"POST /short") {
            let short = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            return stream.write_all(short).await.unwrap();
        }
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
        stream.write_all(head).await.unwrap();
        while stream.write_all(&[1; 4096]).await.is_ok() {}
    })
    .await;
    let mut settings = config();
    settings.timeouts.body = std::time::Duration::from_millis(100);
    let router = start_with(settings, table(vec![endpoint("m", &[address])]));
    router.all_ready("m").await;
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(1024);
    let io = TokioIo::new(router.connect().await);
    let (mut client, connection) = builder.handshake(io).await.unwrap();
    tokio::spawn(connection);
    let long = soon(client.send_request(request("/long", body("x")))).await.unwrap();
    assert_eq!(long.status(), 200);
    router.until("m", |m| m.in_flight == 0 && m.traffic.cancelled == 1).await;
    // Only that stream is ended.
    let short = soon(client.send_request(request("/short", body("x")))).await.unwrap();
    assert_eq!(text(short.into_body()).await, "ok");
    drop(long);
}

#[tokio::test]
async fn answers_over_http2_say_what_the_replica_said() {
    let address = says("ok").await;
    let router = start(table(vec![endpoint("m", &[address])]));
    let mut client = handshake(router.connect().await).await;
    let answer = soon(client.send_request(request("/x", body("x")))).await.unwrap();
    let names: Vec<&str> = answer.headers().keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["content-length"]);
}

#[tokio::test]
async fn a_request_without_a_body_takes_no_memory_for_one() {
    let address = says("ok").await;
    let mut settings = config();
    settings.limits.peek_total = 0;
    let router = start_with(settings, table(vec![endpoint("m", &[address])]));
    let mut client = handshake(router.connect().await).await;
    let (_, receiver) = mpsc::unbounded_channel();
    let empty = http::Request::get("http://router/x").body(Sent(receiver)).unwrap();
    let answer = soon(client.send_request(empty)).await.unwrap();
    assert_eq!(answer.status(), 200);
    let answer = soon(client.send_request(request("/x", body("x")))).await.unwrap();
    assert_eq!(answer.status(), 200, "nor does one with a small body");
}

#[tokio::test]
async fn an_upload_that_stalls_over_http2_is_not_the_replica_s_fault() {
    let address = replica(|mut stream, mut request| async move {
        while stream.read_buf(&mut request).await.unwrap_or(0) > 0 {}
    })
    .await;
    let mut settings = config();
    settings.timeouts.body = std::time::Duration::from_millis(100);
    let router = start_with(settings, table(vec![endpoint("m", &[address])]));
    router.all_ready("m").await;
    let mut client = handshake(router.connect().await).await;
    let (sender, receiver) = mpsc::unbounded_channel();
    sender.send(Frame::data(Bytes::from_static(b"some"))).unwrap();
    let answer = soon(client.send_request(request("/up", Sent(receiver)))).await.unwrap();
    assert_eq!(answer.status(), 408);
    let report = router.until("m", |m| m.traffic.requests == 1 && m.in_flight == 0).await;
    assert_eq!(report.replicas.values().map(|r| r.errors).sum::<u64>(), 0);
    drop(sender);
}

#[test]
fn a_connection_with_nothing_but_stalled_streams_is_a_silent_one() {
    in_a_crowd(async |crowd| {
        // Seven rooms, of which an address has five.
        let mut settings = config();
        settings.limits.connections = 8;
        let router = start_with(settings, two().await);
        let mut stalling = Vec::new();
        for n in 1..=5 {
            let mut client = handshake(router.connect_from(crowd.local(1)).await).await;
            let (sender, body) = stalled();
            let asking = tokio::spawn(client.send_request(request("/v1/x", body)));
            until_active(&router, n).await;
            stalling.push((client, sender, asking));
        }
        let mut another = handshake(router.connect_from(crowd.local(1)).await).await;
        let asked = request("/v1/x", body(r#"{"model":"m"}"#));
        assert_eq!(soon(another.send_request(asked)).await.unwrap().status(), 200);
        let (_client, _sender, oldest) = stalling.remove(0);
        assert!(soon(oldest).await.unwrap().is_err(), "it made room");
        until_active(&router, 4).await;
    });
}

#[tokio::test]
async fn a_body_that_stalls_ends_its_connection() {
    let mut settings = config();
    settings.timeouts.body = std::time::Duration::from_millis(100);
    let router = start_with(settings, two().await);
    let io = TokioIo::new(router.connect().await);
    let executor = TokioExecutor::new();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    let connection = tokio::spawn(connection);
    let (_sender, body) = stalled();
    let answer = soon(client.send_request(request("/v1/x", body))).await.unwrap();
    assert_eq!(answer.status(), 408);
    drop(answer);
    let _ = soon(connection).await.unwrap();
    assert!(client.is_closed(), "as it would be over HTTP/1.1");
}

#[tokio::test]
async fn streams_that_stall_make_room_for_others() {
    // A quarter of these may be half-sent, beside one for each connection.
    let mut settings = config();
    settings.limits.requests = 16;
    let router = start_with(settings, two().await);
    let mut client = handshake(router.connect().await).await;
    let mut stalling = Vec::new();
    for n in 1..=5 {
        let (sender, body) = stalled();
        stalling.push((sender, tokio::spawn(client.send_request(request("/v1/x", body)))));
        until_active(&router, n).await;
    }
    for _ in 0..20 {
        let (sender, body) = stalled();
        stalling.push((sender, tokio::spawn(client.send_request(request("/v1/x", body)))));
        // The first has none to lose.
        let (_sender, oldest) = stalling.remove(1);
        let refused = soon(oldest).await.unwrap().unwrap();
        assert_eq!(refused.status(), 503);
        let said = text(refused.into_body()).await;
        assert!(said.contains("others need room"), "{said}");
    }
    until_active(&router, 5).await;
    let asked = request("/v1/x", body(r#"{"model":"m"}"#));
    assert_eq!(soon(client.send_request(asked)).await.unwrap().status(), 200);
}
