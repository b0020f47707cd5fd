//! Asks replicas whether they are well, and what they say of their load.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tutti_model::{EndpointRoute, ReplicaRoute};

use crate::config::Timeouts;
use crate::desk::Desk;
use crate::http::{Framing, PASSED_ON, ResponseHead};
use crate::logic::{ReplicaKey, parse_metrics};
use crate::pool::connect;
use crate::shared::Shared;

/// Of an answer to a probe that is read. vLLM's metrics are some 100 KiB.
const ANSWER_MAX: usize = 1 << 20;
/// A server without metrics of a known kind is asked for them only this often.
const METRICS_RARE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    health: Option<Instant>,
    metrics: Option<Instant>,
    under_way: bool,
    /// Its metrics are of a kind that we know.
    speaks: bool,
    was_ready: bool,
}

/// An endpoint's place in memory stands for it: a job serves one, but nothing here depends on that.
type Whom = (usize, ReplicaKey);
type Book = Arc<Mutex<HashMap<Whom, Asked>>>;

/// Runs until the router ends.
pub async fn probe_all(shared: Arc<Shared>) {
    let timeouts = shared.config.timeouts;
    let book = Book::default();
    let mut tick = tokio::time::interval(timeouts.probe_first.min(timeouts.probe) / 2);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let now = Instant::now();
        let routes = shared.routes();
        let mut there = HashSet::new();
        for entry in &routes.entries {
            entry.desk.tick(now);
            for (key, address, ready) in entry.desk.to_probe(now) {
                let whom = (Arc::as_ptr(&entry.desk) as usize, key);
                there.insert(whom);
                let due = Due::at(&book, whom, ready, &timeouts, now);
                if due.health || due.metrics {
                    let probe = Probe {
                        desk: entry.desk.clone(),
                        whom,
                        address,
                        path: path_of(&entry.route, key),
                        listens: shared.bound,
                        timeouts,
                        book: book.clone(),
                    };
                    tokio::spawn(probe.run(due));
                }
            }
        }
        if let Ok(mut book) = book.lock() {
            book.retain(|whom, _| there.contains(whom));
        }
    }
}

/// Replicas of another revision may say how they are elsewhere.
fn path_of(route: &EndpointRoute, key: ReplicaKey) -> String {
    let same = |r: &&ReplicaRoute| r.job == key.job && r.generation == key.generation;
    let own = route.replicas.iter().find(same).and_then(|r| r.health.as_ref());
    own.unwrap_or(&route.health).clone()
}

#[derive(Clone, Copy)]
struct Due {
    health: bool,
    metrics: bool,
}

impl Due {
    fn at(book: &Book, whom: Whom, ready: bool, timeouts: &Timeouts, now: Instant) -> Due {
        let Ok(mut book) = book.lock() else { return Due { health: false, metrics: false } };
        let asked = book.entry(whom).or_default();
        if asked.under_way {
            return Due { health: false, metrics: false };
        }
        asked.was_ready |= ready;
        let every = if asked.was_ready { timeouts.probe } else { timeouts.probe_first };
        let past = |at: Option<Instant>, every| at.is_none_or(|at| now.duration_since(at) >= every);
        let rare = if asked.speaks { timeouts.metrics } else { timeouts.metrics.max(METRICS_RARE) };
        let due =
            Due { health: past(asked.health, every), metrics: ready && past(asked.metrics, rare) };
        asked.under_way = due.health || due.metrics;
        if due.health {
            asked.health = Some(now);
        }
        if due.metrics {
            asked.metrics = Some(now);
        }
        due
    }
}

struct Probe {
    desk: Arc<Desk>,
    whom: Whom,
    address: Arc<str>,
    path: String,
    /// Where the router does.
    listens: SocketAddr,
    timeouts: Timeouts,
    book: Book,
}

impl Probe {
    async fn run(self, due: Due) {
        if due.health {
            let result = match self.get(&self.path).await {
                Ok((200..=299, _)) => Ok(()),
                Ok((status, _)) => Err(format!("{} answers with {status}", self.path)),
                Err(error) => Err(error),
            };
            self.desk.probed(self.whom.1, result, Instant::now());
        }
        let mut speaks = None;
        if due.metrics {
            let page = self.get("/metrics").await;
            let text = page.as_ref().ok().filter(|(status, _)| *status == 200);
            let metrics = text.and_then(|(_, body)| parse_metrics(&String::from_utf8_lossy(body)));
            if let Some(metrics) = &metrics {
                self.desk.own_load(self.whom.1, metrics, Instant::now());
            }
            speaks = Some(metrics.is_some());
        }
        if let Ok(mut book) = self.book.lock()
            && let Some(asked) = book.get_mut(&self.whom)
        {
            asked.under_way = false;
            asked.speaks = speaks.unwrap_or(asked.speaks);
        }
    }

    async fn get(&self, path: &str) -> Result<(u16, Vec<u8>), String> {
        let within = self.timeouts.probe_answer;
        match tokio::time::timeout(within, get(&self.address, self.listens, path, within)).await {
            Ok(answer) => answer.map_err(|error| format!("{path} can't be asked: {error}")),
            Err(_) => Err(format!("{path} did not answer within {} ms", within.as_millis())),
        }
    }
}

/// A plain GET on a connection of its own: what is asked is whether a new client would get an answer.
async fn get(
    address: &str,
    listens: SocketAddr,
    path: &str,
    within: Duration,
) -> std::io::Result<(u16, Vec<u8>)> {
    let nonsense = || std::io::Error::new(std::io::ErrorKind::InvalidData, "that is no HTTP");
    let mut stream = connect(address, listens, within).await?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let request = format!(
        "GET {slash}{path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: tutti-router\r\n{PASSED_ON}: 1\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut bytes = Vec::with_capacity(1024);
    let mut head = ResponseHead::default();
    let len = loop {
        if stream.read_buf(&mut bytes).await? == 0 || bytes.len() > ANSWER_MAX {
            return Err(nonsense());
        }
        match head.read(&bytes) {
            Ok(Some(len)) if head.status / 100 == 1 => {
                bytes.drain(..len);
            }
            Ok(Some(len)) => break len,
            Ok(None) => {}
            Err(_) => return Err(nonsense()),
        }
    };
    let mut framing = head.framing("GET");
    let mut body = Vec::new();
    let mut used = len;
    loop {
        let n = framing.advance(&bytes[used..], |data| body.extend_from_slice(data));
        used += n.map_err(|_| nonsense())?;
        if framing.is_done() || body.len() > ANSWER_MAX {
            return Ok((head.status, body));
        }
        bytes.drain(..used);
        used = 0;
        if stream.read_buf(&mut bytes).await? == 0 {
            return match framing {
                Framing::UntilClose => Ok((head.status, body)),
                _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
            };
        }
    }
}
