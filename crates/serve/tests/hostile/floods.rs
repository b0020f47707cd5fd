//! More than there is room for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::MANY;
use crate::replicas::QUEUE;
use crate::tally::{Tally, each, ending};
use crate::victim::{STALL, Victim};

/// Requests beyond what a queue holds.
const CROWD: usize = 300;

pub async fn pipelined(victim: Arc<Victim>) -> Tally {
    const CONNECTIONS: usize = 20;
    const EACH: usize = 1000;
    let requests = "GET /-/healthy HTTP/1.1\r\nHost: r\r\n\r\n".repeat(EACH);
    let tally = each(CONNECTIONS, |_| {
        let (victim, requests) = (victim.clone(), requests.clone());
        async move {
            let (mut read, mut write) = victim.connect().await.into_split();
            let writing = tokio::spawn(async move {
                write.write_all(requests.as_bytes()).await.unwrap();
                write
            });
            let mut answers = Vec::new();
            while answers.windows(9).filter(|w| w == b"HTTP/1.1 ").count() < EACH {
                assert!(read.read_buf(&mut answers).await.unwrap() > 0, "all are answered");
                answers.reserve(64 << 10);
            }
            drop(writing.await);
            let good = answers.windows(13).filter(|w| w == b"HTTP/1.1 200 ").count();
            if good == EACH { 200 } else { 0 }
        }
    })
    .await;
    let mut requests = Tally::default();
    requests.count(200, tally.of(200) * EACH);
    assert_eq!(requests.len(), CONNECTIONS * EACH);
    requests
}

/// Who takes no answers gets no more of them.
pub async fn pipelined_unread(victim: Arc<Victim>) -> Tally {
    let requests = "GET /-/metrics HTTP/1.1\r\nHost: r\r\n\r\n".repeat(100);
    each(100, |_| {
        let (victim, requests) = (victim.clone(), requests.clone());
        async move {
            let mut stream = victim.connect_narrow().await;
            while stream.write_all(requests.as_bytes()).await.is_ok() {}
            ending(&mut stream).await.max(200)
        }
    })
    .await
}

/// With nothing said, half a head, a request whose answer is not waited for; politely and not.
pub async fn leave(victim: Arc<Victim>) -> Tally {
    each(2 * MANY, |at| {
        let victim = victim.clone();
        async move {
            let mut stream = victim.connect().await;
            let said = ["", "GET /e/m/o", "GET /e/m/endless HTTP/1.1\r\nHost: r\r\n\r\n"][at % 3];
            let _ = stream.write_all(said.as_bytes()).await;
            if at % 2 == 0 {
                let socket = socket2::SockRef::from(&stream);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
            }
            0
        }
    })
    .await
}

async fn get(mut stream: TcpStream, path: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    ending(&mut stream).await
}

async fn crowd(victim: Arc<Victim>, path: &'static str) -> Tally {
    each(CROWD, |_| {
        let victim = victim.clone();
        async move { get(victim.connect().await, path).await }
    })
    .await
}

/// One has the replica, some wait in vain, the others are told so at once.
pub async fn queue(victim: Arc<Victim>) -> Tally {
    let mut first = victim.connect().await;
    first.write_all(b"GET /e/full/x HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    let began = Instant::now();
    let tally = crowd(victim, "/e/full/x").await;
    // No more than the queue holds wait at the same time, for as long as they may.
    let spans = began.elapsed().div_duration_f64(STALL).ceil() as usize;
    let waited = QUEUE as usize;
    let in_vain = tally.of(503) + tally.of(504);
    assert!(in_vain >= waited && in_vain <= waited * (spans + 1), "{tally} in {spans} × {STALL:?}");
    tally
}

pub async fn dead(victim: Arc<Victim>) -> Tally {
    let tally = crowd(victim, "/e/dead/x").await;
    assert!(tally.of(503) >= 100, "as many as may wait: {tally}");
    tally
}

pub async fn stuck(victim: Arc<Victim>) -> Tally {
    crowd(victim, "/e/stuck/x").await
}
