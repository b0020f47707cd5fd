//! The load for `bench/router`, from one thread and one epoll.
//!
//! `load ADDR KIND CONNECTIONS SECONDS RATE` where KIND is `short`, `stream` or `paced` and RATE is
//! requests per second at fixed times (open loop), or 0: as fast as answers come (closed loop). In the
//! open loop a request's time counts from when it was due, so that a stall is not hidden. Prints one JSON
//! object.
#![allow(clippy::print_stdout)]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

struct Options {
    addr: String,
    kind: String,
    connections: usize,
    seconds: f64,
    rate: f64,
}

struct Conn {
    stream: TcpStream,
    /// When the request under way was due; None: free.
    due: Option<u64>,
    seen: Vec<u8>,
    events: u64,
}

#[derive(Default)]
struct Seen {
    latencies: Vec<u64>,
    chunks: Vec<u64>,
    events: u64,
    failed: u64,
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addr, kind, connections, seconds, rate] = &args[..] else {
        panic!("load ADDR short|stream|paced CONNECTIONS SECONDS RATE");
    };
    let options = Options {
        addr: addr.clone(),
        kind: kind.clone(),
        connections: connections.parse().expect("a number of connections"),
        seconds: seconds.parse().expect("seconds"),
        rate: rate.parse().expect("requests per second"),
    };
    // SAFETY: no memory is handed over. Timers at 50 µs of slack would be seen in the latencies.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    run(&options)
}

fn request(kind: &str) -> Vec<u8> {
    let stream = kind != "short";
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"You are a helpful assistant that answers in few words."}},{{"role":"user","content":"Is water wet? Say yes or no and then one sentence that says why."}}],"max_tokens":64,"temperature":0.7,"stream":{stream}}}"#
    );
    let gap = if kind == "paced" { "x-gap-us: 5000\r\n" } else { "" };
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load/1\r\nAccept: */*\r\nContent-Type: application/json\r\n{gap}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

fn run(options: &Options) -> std::io::Result<()> {
    let request = request(&options.kind);
    // SAFETY: plain system call; the result is checked.
    let epoll = unsafe { libc::epoll_create1(0) };
    assert!(epoll >= 0, "epoll_create1");
    let mut conns = Vec::new();
    for at in 0..options.connections {
        conns.push(open(&options.addr, epoll, at)?);
    }
    let mut free: VecDeque<usize> = (0..conns.len()).collect();
    let mut seen = Seen::default();
    let start = now_ns();
    let warm = start + (options.seconds * 0.15e9) as u64;
    let end = start + (options.seconds * 1e9) as u64;
    let gap = if options.rate > 0.0 { 1e9 / options.rate } else { 0.0 };
    let (mut sent, mut waiting) = (0u64, VecDeque::new());
    let mut ready = vec![libc::epoll_event { events: 0, u64: 0 }; 256];
    loop {
        let now = now_ns();
        if now >= end {
            break;
        }
        if gap > 0.0 {
            while start + (sent as f64 * gap) as u64 <= now {
                waiting.push_back(start + (sent as f64 * gap) as u64);
                sent += 1;
            }
            while !waiting.is_empty() && !free.is_empty() {
                let (Some(due), Some(at)) = (waiting.pop_front(), free.pop_front()) else { break };
                ask(&mut conns[at], due, &request)?;
            }
        } else {
            while let Some(at) = free.pop_front() {
                ask(&mut conns[at], now, &request)?;
            }
        }
        let next = if gap > 0.0 { start + (sent as f64 * gap) as u64 } else { end };
        let count = wait(epoll, &mut ready, next.min(end).saturating_sub(now_ns()));
        for event in &ready[..count] {
            let at = event.u64 as usize;
            match take(&mut conns[at], &mut seen, warm) {
                Ok(true) => free.push_back(at),
                Ok(false) => {}
                Err(_) => {
                    seen.failed += 1;
                    conns[at] = open(&options.addr, epoll, at)?;
                    free.push_back(at);
                }
            }
        }
    }
    print(options, &mut seen, (end - warm) as f64 / 1e9, waiting.len());
    Ok(())
}

fn open(addr: &str, epoll: i32, at: usize) -> std::io::Result<Conn> {
    let stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: at as u64 };
    // SAFETY: both descriptors are open and `event` outlives the call.
    unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, stream.as_raw_fd(), &raw mut event) };
    Ok(Conn { stream, due: None, seen: Vec::with_capacity(64 << 10), events: 0 })
}

fn ask(conn: &mut Conn, due: u64, request: &[u8]) -> std::io::Result<()> {
    conn.due = Some(due);
    conn.seen.clear();
    conn.events = 0;
    conn.stream.write_all(request)
}

/// Reads what there is. True: the answer is whole.
fn take(conn: &mut Conn, seen: &mut Seen, warm: u64) -> std::io::Result<bool> {
    let mut buffer = [0; 32 << 10];
    let n = match conn.stream.read(&mut buffer) {
        Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
        Ok(n) => n,
        Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
        Err(e) => return Err(e),
    };
    let now = now_ns();
    let Some(due) = conn.due else { return Err(ErrorKind::InvalidData.into()) };
    if due >= warm {
        note_events(&buffer[..n], now, seen);
    }
    if conn.seen.is_empty() && !buffer[..n].starts_with(b"HTTP/1.1 200") {
        return Err(ErrorKind::InvalidData.into());
    }
    conn.seen.extend_from_slice(&buffer[..n]);
    if !whole(&conn.seen) {
        return Ok(false);
    }
    if due >= warm {
        seen.latencies.push(now - due);
    }
    conn.due = None;
    Ok(true)
}

fn note_events(bytes: &[u8], now: u64, seen: &mut Seen) {
    let mark = b"data: {\"t\":";
    for (at, _) in bytes.windows(mark.len()).enumerate().filter(|(_, w)| w == mark) {
        seen.events += 1;
        let digits = bytes.get(at + mark.len()..at + mark.len() + 20);
        if let Some(written) = digits.and_then(|d| std::str::from_utf8(d).ok()?.parse::<u64>().ok())
        {
            seen.chunks.push(now.saturating_sub(written));
        }
    }
}

fn whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { return false };
    let head = std::str::from_utf8(&bytes[..end]).unwrap_or("").to_ascii_lowercase();
    match head.split("content-length: ").nth(1) {
        Some(rest) => {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            bytes.len() >= end + 4 + digits.parse::<usize>().unwrap_or(0)
        }
        None => bytes.ends_with(b"\r\n0\r\n\r\n"),
    }
}

fn wait(epoll: i32, ready: &mut [libc::epoll_event], ns: u64) -> usize {
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    // SAFETY: `ready` is as long as said, `time` outlives the call, no signal mask is given.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll,
            ready.as_mut_ptr(),
            ready.len() as i32,
            &raw const time,
            std::ptr::null::<libc::sigset_t>(),
            8usize,
        )
    };
    usize::try_from(count).unwrap_or(0)
}

fn print(options: &Options, seen: &mut Seen, seconds: f64, unsent: usize) {
    let quantile = |values: &mut Vec<u64>, part: f64| {
        values.sort_unstable();
        let at = ((values.len() as f64 * part) as usize).min(values.len().saturating_sub(1));
        values.get(at).map_or(0.0, |ns| *ns as f64 / 1000.0)
    };
    println!(
        r#"{{"kind":"{}","requests":{},"per_second":{:.1},"p50_us":{:.1},"p99_us":{:.1},"chunks_per_second":{:.1},"chunk_p50_us":{:.1},"chunk_p99_us":{:.1},"failed":{},"unsent":{unsent}}}"#,
        options.kind,
        seen.latencies.len(),
        seen.latencies.len() as f64 / seconds,
        quantile(&mut seen.latencies, 0.5),
        quantile(&mut seen.latencies, 0.99),
        seen.events as f64 / seconds,
        quantile(&mut seen.chunks, 0.5),
        quantile(&mut seen.chunks, 0.99),
        seen.failed,
    );
}

fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
