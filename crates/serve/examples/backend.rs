//! A back end for `bench/router`: as quick as it gets, so that the proxy before it is what is measured.
//!
//! `backend PORT…` listens on each port of 127.0.0.1. A request whose body has `"stream":true` gets 200
//! chunks of server-sent events, each with the time at which it was written; `x-gap-us` says how long to
//! wait between them. Everything else gets a short JSON answer.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CHUNKS: usize = 200;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut listening = Vec::new();
        for port in std::env::args().skip(1) {
            let port: u16 = port.parse().expect("ports are numbers");
            let listener = TcpListener::bind(("127.0.0.1", port)).await?;
            listening.push(tokio::spawn(accept(listener)));
        }
        for task in listening {
            task.await.expect("the accept loop runs for ever");
        }
        Ok(())
    })
}

async fn accept(listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let _ = serve(stream).await;
        });
    }
}

struct Asked {
    length: usize,
    stream: bool,
    gap: Duration,
}

async fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let body = r#"{"id":"cmpl-1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15}}"#;
    let short = format!(
        "HTTP/1.1 200 OK\r\nserver: backend\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut buffer = vec![0; 16 << 10];
    let mut have = 0;
    loop {
        while let Some(asked) = whole_request(&buffer[..have]) {
            buffer.copy_within(asked.length..have, 0);
            have -= asked.length;
            if asked.stream {
                events(&mut stream, asked.gap).await?;
            } else {
                stream.write_all(short.as_bytes()).await?;
            }
        }
        let n = stream.read(&mut buffer[have..]).await?;
        if n == 0 {
            return Ok(());
        }
        have += n;
    }
}

fn whole_request(bytes: &[u8]) -> Option<Asked> {
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let value = |name: &str| {
        head.split("\r\n")
            .filter_map(|line| line.split_once(':'))
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim())
    };
    let body: usize = value("content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
    let rest = bytes.get(end..end + body)?;
    let stream = rest.windows(13).any(|w| w == b"\"stream\":true");
    let gap = value("x-gap-us").and_then(|v| v.parse().ok()).unwrap_or(0);
    Some(Asked { length: end + body, stream, gap: Duration::from_micros(gap) })
}

async fn events(stream: &mut TcpStream, gap: Duration) -> std::io::Result<()> {
    let head = b"HTTP/1.1 200 OK\r\nserver: backend\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head).await?;
    for _ in 0..CHUNKS {
        if !gap.is_zero() {
            tokio::time::sleep(gap).await;
        }
        let event = format!(
            "data: {{\"t\":{:020},\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" word\"}}}}]}}\n\n",
            now_ns()
        );
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
    }
    stream.write_all(b"0\r\n\r\n").await
}

/// The clock that the load generator reads too.
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
