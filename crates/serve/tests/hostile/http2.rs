//! The same over HTTP/2, and what only HTTP/2 makes possible.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::frames::*;
use crate::tally::{Tally, each};
use crate::victim::{STALL, Victim};

/// Connections at a time.
const SOME: usize = 20;
const INITIAL_WINDOW: u16 = 4;

/// Sends all of it and reads what comes meanwhile. 200: all was taken and a last ping answered. 0: it was
/// told to go, or cut off.
async fn send_all(mut stream: TcpStream, bytes: Arc<[u8]>) -> u16 {
    begin(&mut stream, &[]).await;
    let (mut read, mut write) = stream.into_split();
    let writing = tokio::spawn(async move {
        let _ = write.write_all(&bytes).await;
        let _ = write.write_all(&frame(PING, 0, 0, b"the last")).await;
        write
    });
    let status = loop {
        match next(&mut read).await {
            None | Some(Frame { kind: GOAWAY, .. }) => break 0,
            Some(Frame { kind: PING, flags: ACK, payload, .. }) if payload == b"the last" => {
                break 200;
            }
            Some(_) => {}
        }
    };
    writing.abort();
    status
}

async fn flood(victim: Arc<Victim>, bytes: Vec<u8>) -> Tally {
    let bytes: Arc<[u8]> = bytes.into();
    each(SOME, |_| {
        let (victim, bytes) = (victim.clone(), bytes.clone());
        async move { send_all(victim.connect().await, bytes).await }
    })
    .await
}

pub async fn resets(victim: Arc<Victim>) -> Tally {
    let mut bytes = Vec::new();
    for n in 0..2000 {
        let stream = 2 * n + 1;
        let block = get("/e/m/hang");
        bytes.extend_from_slice(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &block));
        bytes.extend_from_slice(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
    }
    flood(victim, bytes).await
}

/// A head that never ends: 8 MB of it, in frames that are small enough each.
pub async fn headers(victim: Arc<Victim>) -> Tally {
    let mut bytes = frame(HEADERS, END_STREAM, 1, &get("/e/m/ok"));
    let part = frame(CONTINUATION, 0, 1, &header("x-long", 8000));
    (0..1000).for_each(|_| bytes.extend_from_slice(&part));
    flood(victim, bytes).await
}

pub async fn pings(victim: Arc<Victim>) -> Tally {
    let mut bytes = Vec::new();
    for _ in 0..5000 {
        bytes.extend_from_slice(&frame(PING, 0, 0, b"question"));
        bytes.extend_from_slice(&frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]));
    }
    flood(victim, bytes).await
}

/// The connection is well, but no stream may send anything.
pub async fn unread(victim: Arc<Victim>) -> Tally {
    const STREAMS: u32 = 50;
    let mut held = Vec::new();
    for _ in 0..SOME {
        let mut stream = victim.connect().await;
        begin(&mut stream, &[(INITIAL_WINDOW, 0)]).await;
        for n in 0..STREAMS {
            let block = get("/e/m/endless");
            let ask = frame(HEADERS, END_STREAM | END_HEADERS, 2 * n + 1, &block);
            stream.write_all(&ask).await.unwrap();
        }
        held.push(stream);
    }
    // On a busy machine that takes a while, and before it nothing is held: what is waited for next would be
    // there at once, and windows would be opened for streams that are well.
    let mut left = Vec::new();
    for mut stream in held {
        let open = all_begun(&mut stream, STREAMS).await;
        left.push((stream, open));
    }
    // Its replicas' connections are closed though nobody has left.
    victim.until_left(SOME).await;
    let mut ending = JoinSet::new();
    for (stream, open) in left {
        ending.spawn(all_reset(stream, open));
    }
    ending.join_all().await;
    let mut tally = Tally::default();
    tally.count(0, SOME * STREAMS as usize);
    tally
}

/// Waits for the head of an answer on each stream, which no window holds back, and says which of them go on.
async fn all_begun(stream: &mut TcpStream, streams: u32) -> BTreeSet<u32> {
    let mut open: BTreeSet<u32> = (0..streams).map(|n| 2 * n + 1).collect();
    let mut silent = open.clone();
    while !silent.is_empty() {
        let came = next(stream).await.expect("the connection stays");
        match came.kind {
            PING if came.flags & ACK == 0 => {
                stream.write_all(&frame(PING, ACK, 0, &came.payload)).await.unwrap();
            }
            HEADERS => {
                silent.remove(&came.stream);
            }
            RST_STREAM => {
                silent.remove(&came.stream);
                open.remove(&came.stream);
            }
            _ => {}
        }
    }
    open
}

/// Lets each stream send, and waits for all of them to say that they are over.
async fn all_reset(mut stream: TcpStream, mut open: BTreeSet<u32>) {
    while !open.is_empty() {
        // More than may lie in the router's memory for a stream, and for all of them together.
        let mut more = frame(WINDOW_UPDATE, 0, 0, &(16u32 << 20).to_be_bytes());
        for id in &open {
            more.extend_from_slice(&frame(WINDOW_UPDATE, 0, *id, &(256u32 << 10).to_be_bytes()));
        }
        stream.write_all(&more).await.unwrap();
        // One that was not over yet sends as much as it may, and is next time.
        while let Ok(came) = tokio::time::timeout(2 * STALL, next(&mut stream)).await {
            let came = came.expect("the connection stays");
            if came.kind == PING && came.flags & ACK == 0 {
                stream.write_all(&frame(PING, ACK, 0, &came.payload)).await.unwrap();
            }
            let whole = came.kind == DATA && came.flags & END_STREAM != 0;
            // An answer of the router's own, if the replica was too slow to give one.
            let refused = whole && came.payload.starts_with(b"{");
            assert!(!whole || refused, "stream {} looks whole", came.stream);
            if refused || came.kind == RST_STREAM {
                open.remove(&came.stream);
            }
            if open.is_empty() {
                break;
            }
        }
    }
}
