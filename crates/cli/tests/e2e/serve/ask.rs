//! Requests to a router, one at a time or as a steady load that judges every answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tutti_model::JobId;
use tutti_testkit::{PATIENCE, wait_until};

/// No answer for so long is a hang.
const HANG: Duration = Duration::from_secs(60);

/// An answer as it came.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub body: Vec<u8>,
}

/// What was wrong with an answer, and what had come of it.
#[derive(Debug)]
pub struct Broken {
    pub why: String,
    pub body: Vec<u8>,
}

pub fn ask(address: &str, method: &str, path: &str, body: &str) -> Result<Said, Broken> {
    let broken = |why: std::io::Error| Broken { why: why.to_string(), body: Vec::new() };
    let mut stream = TcpStream::connect(address).map_err(broken)?;
    stream.set_read_timeout(Some(HANG)).expect("a timeout can be set");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).map_err(broken)?;
    read(BufReader::new(stream))
}

/// A completion, which must come to its end.
#[track_caller]
pub fn post(address: &str, body: &str) -> Said {
    ask(address, "POST", "/v1/completions", body).unwrap_or_else(|e| panic!("{e:?}"))
}

fn read(mut from: impl BufRead) -> Result<Said, Broken> {
    let early = |why: &str| Broken { why: why.to_owned(), body: Vec::new() };
    let mut line = String::new();
    from.read_line(&mut line).map_err(|e| early(&e.to_string()))?;
    let status = line.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status = status.ok_or_else(|| early(&format!("no status in {line:?}")))?;
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        from.read_line(&mut line).map_err(|e| early(&e.to_string()))?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = Vec::new();
    let chunked = headers.get("transfer-encoding").is_some_and(|v| v == "chunked");
    let read = if chunked {
        read_chunks(&mut from, &mut body)
    } else {
        let length = headers.get("content-length").and_then(|v| v.parse().ok()).unwrap_or(0u64);
        from.take(length).read_to_end(&mut body).and_then(|n| match n as u64 == length {
            true => Ok(()),
            false => Err(std::io::ErrorKind::UnexpectedEof.into()),
        })
    };
    match read {
        Ok(()) => Ok(Said { status, body }),
        Err(error) => Err(Broken { why: error.to_string(), body }),
    }
}

fn read_chunks(from: &mut impl BufRead, body: &mut Vec<u8>) -> std::io::Result<()> {
    let cut = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let length = u64::from_str_radix(line.trim(), 16).map_err(|_| cut())?;
        let got = from.by_ref().take(length).read_to_end(body)?;
        let mut end = [0; 2];
        from.read_exact(&mut end)?;
        if got as u64 != length {
            return Err(cut());
        }
        if length == 0 {
            return Ok(());
        }
    }
}

/// Threads that ask one after another, some for streams of a second.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answers: AtomicU64,
    streams: AtomicU64,
    /// Replicas that were or will be killed: streams of theirs may break off.
    doomed: Mutex<BTreeSet<String>>,
    bad: Mutex<Vec<String>>,
}

#[derive(Debug)]
pub struct Report {
    pub answers: u64,
    pub streams: u64,
    pub bad: Vec<String>,
}

impl Load {
    pub fn start(address: &str, model: &str, short: usize, streams: usize) -> Load {
        let shared = Arc::new(Shared::default());
        let threads = (0..short + streams).map(|n| {
            let (shared, address) = (Arc::clone(&shared), address.to_owned());
            let body = match n < short {
                true => format!(r#"{{"model": "{model}", "think": 0.02}}"#),
                false => {
                    format!(r#"{{"model": "{model}", "stream": true, "chunks": 20}}"#)
                }
            };
            std::thread::spawn(move || shared.run(&address, &body, n >= short))
        });
        let threads = threads.collect();
        Load { shared, threads }
    }

    /// Streams of this replica may break off from now on.
    pub fn may_break(&self, job: JobId) {
        self.shared.doomed.lock().expect("no holder panics").insert(job.to_string());
    }

    /// Waits until more answers and more streams have come to their end, and all were good.
    #[track_caller]
    pub fn flows(&self) {
        let count = || {
            let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
            (read(&self.shared.answers), read(&self.shared.streams))
        };
        let (answers, streams) = count();
        wait_until("requests are answered", PATIENCE, || {
            let now = count();
            now.0 > answers + 10 && now.1 > streams + 3 || self.bad()
        });
        let bad = self.shared.bad.lock().expect("no holder panics").clone();
        assert!(bad.is_empty(), "{bad:#?}");
    }

    fn bad(&self) -> bool {
        !self.shared.bad.lock().expect("no holder panics").is_empty()
    }

    pub fn stop(self) -> Report {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("the load goes on to its end");
        }
        Report {
            answers: self.shared.answers.load(Ordering::Relaxed),
            streams: self.shared.streams.load(Ordering::Relaxed),
            bad: std::mem::take(&mut *self.shared.bad.lock().expect("no holder panics")),
        }
    }
}

impl Shared {
    fn run(&self, address: &str, body: &str, stream: bool) {
        while !self.stop.load(Ordering::Relaxed) {
            match ask(address, "POST", "/v1/completions", body) {
                Ok(said) if said.status == 200 && (!stream || ended(&said.body)) => {
                    let count = if stream { &self.streams } else { &self.answers };
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Err(broken) if stream && self.was_doomed(&broken) => {}
                Ok(said) => {
                    let text = String::from_utf8_lossy(&said.body).into_owned();
                    return self.is_bad(format!("{}: {text}", said.status));
                }
                Err(broken) => {
                    let text = String::from_utf8_lossy(&broken.body);
                    return self.is_bad(format!("{} after {text:?}", broken.why));
                }
            }
        }
    }

    fn is_bad(&self, what: String) {
        self.bad.lock().expect("no holder panics").push(what);
    }

    /// It broke off after its first byte, on a replica that was killed.
    fn was_doomed(&self, broken: &Broken) -> bool {
        let text = String::from_utf8_lossy(&broken.body);
        let doomed = self.doomed.lock().expect("no holder panics");
        doomed.iter().any(|job| text.contains(&format!("\"job\": \"{job}\"")))
    }
}

fn ended(body: &[u8]) -> bool {
    body.ends_with(b"data: [DONE]\n\n")
}
