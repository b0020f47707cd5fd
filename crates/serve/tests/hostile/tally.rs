//! How many connections ended how.

use std::collections::BTreeMap;
use std::fmt;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// By status; 0 is a connection closed without a word.
#[derive(Default)]
pub struct Tally(BTreeMap<u16, usize>);

impl Tally {
    pub fn add(&mut self, status: u16) {
        self.count(status, 1);
    }

    pub fn count(&mut self, status: u16, n: usize) {
        *self.0.entry(status).or_default() += n;
    }

    pub fn of(&self, status: u16) -> usize {
        self.0.get(&status).copied().unwrap_or(0)
    }

    pub fn len(&self) -> usize {
        self.0.values().sum()
    }

    pub fn only(&self, allowed: &[u16], what: &str) {
        assert!(self.len() > 0, "{what}: nothing happened");
        assert!(self.0.keys().all(|s| allowed.contains(s)), "{what}: {self}, not {allowed:?}");
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |(status, n): (&u16, &usize)| match status {
            0 => format!("{n} closed"),
            status => format!("{n} × {status}"),
        };
        f.write_str(&self.0.iter().map(part).collect::<Vec<_>>().join(", "))
    }
}

/// All of these clients at once.
pub async fn all<R>(clients: impl IntoIterator<Item = R>) -> Tally
where
    R: Future<Output = u16> + Send + 'static,
{
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(client);
    }
    let mut tally = Tally::default();
    while let Some(ended) = running.join_next().await {
        tally.add(ended.expect("a client runs to its end"));
    }
    tally
}

/// So many, each of which connects by itself.
pub async fn each<R>(n: usize, one: impl Fn(usize) -> R) -> Tally
where
    R: Future<Output = u16> + Send + 'static,
{
    let clients: Vec<R> = (0..n).map(one).collect();
    all(clients).await
}

/// The status that an answer begins with.
pub fn status(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(&answer[..answer.len().min(32)]);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// What is said until the connection ends, however it does.
pub async fn ending(stream: &mut TcpStream) -> u16 {
    let mut answer = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut bytes).await {
        answer.extend_from_slice(&bytes[..n.min(4096_usize.saturating_sub(answer.len()))]);
    }
    status(&answer)
}

#[allow(clippy::print_stdout, reason = "the figures are what the test is run for")]
pub fn print(rows: &[String]) {
    println!("{}", rows.join("\n"));
}
