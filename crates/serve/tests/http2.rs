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

#[tokio::test]
async fn a_long_upload_streams_over_http2() {
    let (seen, mut pieces) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, _| {
        let seen = seen.clone();
        async move {
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
