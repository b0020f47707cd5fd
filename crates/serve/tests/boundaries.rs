//! Where one request ends and the next begins, also when something goes wrong in between.

mod common;

use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// Tells what it reads of each request, and never answers.
async fn listens() -> (std::net::SocketAddr, mpsc::UnboundedReceiver<String>) {
    let (seen, pieces) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, request| {
        let seen = seen.clone();
        async move {
            let mut bytes = request;
            while !bytes.is_empty() {
                let _ = seen.send(String::from_utf8_lossy(&bytes).into_owned());
                bytes.clear();
                let _ = stream.read_buf(&mut bytes).await;
            }
        }
    })
    .await;
    (address, pieces)
}

async fn until_seen(pieces: &mut mpsc::UnboundedReceiver<String>, text: &str) {
    let mut all = String::new();
    while !all.contains(text) {
        all.push_str(&soon(pieces.recv()).await.expect("the replica is there"));
    }
}

const CHUNKED: &str = "POST /e/m/up HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n";
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: r\r\nX: ";

#[tokio::test]
async fn a_body_that_was_not_taken_is_no_request() {
    let (address, mut pieces) = listens().await;
    let mut settings = config();
    settings.limits.body = Some(1000);
    let router = start_with(settings, table(vec![endpoint("m", &[address])]));
    let mut client = router.connect().await;
    client.write_all(format!("{CHUNKED}7d0\r\n").as_bytes()).await.unwrap();
    until_seen(&mut pieces, "7d0\r\n").await;
    // The second piece is too much, with the body's end in it.
    let data = format!("{SMUGGLED}{}\r\n\r\n", "y".repeat(2000 - SMUGGLED.len() - 4));
    client.write_all(format!("{data}\r\n0\r\n\r\n").as_bytes()).await.unwrap();
    client
        .write_all(b"GET /-/healthy HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let all = String::from_utf8(read_to_end(&mut client).await).unwrap();
    assert!(all.starts_with("HTTP/1.1 413 "), "{all}");
    assert!(all.ends_with("\r\n\r\nok\n"), "the next request is the next one: {all}");
    assert_eq!(all.matches("HTTP/1.1 ").count(), 2, "{all}");
    while let Ok(piece) = pieces.try_recv() {
        assert!(!piece.contains("/smuggled"), "{piece}");
    }
}

#[tokio::test]
async fn nothing_is_read_after_a_malformed_chunk() {
    let (address, mut pieces) = listens().await;
    let router = start(table(vec![endpoint("m", &[address])]));
    let mut client = router.connect().await;
    client.write_all(format!("{CHUNKED}40\r\n").as_bytes()).await.unwrap();
    until_seen(&mut pieces, "40\r\n").await;
    // As data this is harmless. Read once more from the size of a chunk, it ends the body.
    let data = format!("0\r\n\r\n{SMUGGLED}");
    let data = format!("{data}{}\r\n\r\n", "y".repeat(64 - data.len() - 4));
    assert_eq!(data.len(), 0x40);
    client.write_all(format!("{data}\r\nZZ").as_bytes()).await.unwrap();
    let all = String::from_utf8(read_to_end(&mut client).await).unwrap();
    assert!(all.starts_with("HTTP/1.1 400 "), "{all}");
    assert_eq!(all.matches("HTTP/1.1 ").count(), 1, "and it is closed: {all}");
    while let Ok(piece) = pieces.try_recv() {
        assert!(!piece.contains("/smuggled"), "{piece}");
    }
}

#[tokio::test]
async fn a_request_of_http_1_0_gets_a_host() {
    let (address, mut pieces) = listens().await;
    let router = start(table(vec![endpoint("m", &[address])]));
    let mut client = router.connect().await;
    client.write_all(b"GET /x HTTP/1.0\r\n\r\n").await.unwrap();
    let got = soon(pieces.recv()).await.unwrap();
    assert_eq!(got, "GET /x HTTP/1.1\r\nHost: localhost\r\nx-tutti-router: 1\r\n\r\n");
}
