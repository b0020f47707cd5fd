//! Clients that take all the time that they are given.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::MANY;
use crate::tally::{Tally, all, each, ending, status};
use crate::victim::{KEPT_MAX, Victim};

/// Between two bytes of one that dribbles: always in time for a clock that starts anew with each.
const DRIBBLE: Duration = Duration::from_millis(150);

/// Of each large body that comes, and how many those without a key have room for: a quarter is for keys.
const LARGE: usize = 100_000;
const ROOM: usize = KEPT_MAX / 4 * 3 / LARGE.next_power_of_two();

/// A byte now and then, until the connection ends.
async fn dribble(mut stream: TcpStream) -> u16 {
    let mut answer = Vec::new();
    let mut pace = tokio::time::interval(DRIBBLE);
    loop {
        tokio::select! {
            read = stream.read_buf(&mut answer) => match read {
                Ok(1..) => {}
                _ => return status(&answer),
            },
            _ = pace.tick() => drop(stream.try_write(b"a")),
        }
    }
}

/// Connections that are all there before the first of them says anything.
async fn held(victim: &Victim) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..MANY {
        streams.push(victim.connect_narrow().await);
    }
    victim.until_held(MANY).await;
    streams
}

async fn dribble_after(victim: Arc<Victim>, first: Vec<u8>) -> Tally {
    let first: Arc<[u8]> = first.into();
    let streams = held(&victim).await.into_iter();
    all(streams.map(|mut stream| {
        let first = first.clone();
        async move {
            // It may be refused before all is sent.
            let _ = stream.write_all(&first).await;
            dribble(stream).await
        }
    }))
    .await
}

pub async fn heads(victim: Arc<Victim>) -> Tally {
    dribble_after(victim, b"GET /e/m/ok HTTP/1.1\r\nHost: r\r\nX-Slow: ".to_vec()).await
}

/// More than the router takes at a time; the others wait until it has closed those.
pub async fn heads_unheld(victim: Arc<Victim>) -> Tally {
    each(MANY / 2, |_| {
        let victim = victim.clone();
        async move {
            let mut stream = victim.connect().await;
            let _ = stream.write_all(b"GET /e/m/ok").await;
            dribble(stream).await
        }
    })
    .await
}

pub async fn long_heads(victim: Arc<Victim>) -> Tally {
    let line = format!("X-Long: {}\r\n", "y".repeat(1012));
    let head = format!("GET /e/m/ok HTTP/1.1\r\nHost: r\r\n{}", line.repeat(60));
    dribble_after(victim, head.into_bytes()).await
}

pub async fn bodies(victim: Arc<Victim>) -> Tally {
    let head = "POST /v1/x HTTP/1.1\r\nHost: r\r\nContent-Length: 60000\r\n\r\n";
    dribble_after(victim, head.into()).await
}

/// Such as are read before a replica is chosen, up to a limit for all of them.
pub async fn large_bodies(victim: Arc<Victim>) -> Tally {
    let mut request = b"POST /v1/x HTTP/1.1\r\nHost: r\r\nContent-Length: 1048576\r\n\r\n".to_vec();
    request.extend_from_slice(&[b'a'; LARGE]);
    let tally = dribble_after(victim, request).await;
    // Two threads that ask for the last of it at once may both be sent on.
    assert!(tally.of(408) + 8 >= ROOM, "about as many as there is room for: {tally}");
    tally
}

pub async fn streamed_bodies(victim: Arc<Victim>) -> Tally {
    let streams = held(&victim).await.into_iter();
    all(streams.map(|mut stream| async move {
        let head =
            "POST /e/m/hang HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab";
        stream.write_all(head.as_bytes()).await.unwrap();
        ending(&mut stream).await
    }))
    .await
}

pub async fn unread(victim: Arc<Victim>) -> Tally {
    let mut streams = held(&victim).await;
    for stream in &mut streams {
        let request = b"GET /e/m/endless HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
    }
    victim.until_quiet().await;
    all(streams.into_iter().map(|mut stream| async move {
        let mut answer = Vec::with_capacity(64);
        let _ = stream.read_buf(&mut answer).await;
        status(&answer)
    }))
    .await
}
