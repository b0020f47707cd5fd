//! Ten thousand strangers at the port, of every kind: whoever has a token is served all the same.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tutti_wire::tls::{Purpose, Trust, client_config};

use crate::common::agent::{self, FakeAgent, Ranks};
use crate::common::{Cluster, split};

const STRANGERS: usize = 10_000;
/// That many are being opened at the same time.
const AT_ONCE: usize = 8;
/// Of one who reads no answer.
const PIPELINED: usize = 40;
const A_SECOND: Duration = Duration::from_secs(1);
/// What the controller and this test need besides those of strangers and of the attacker.
const OTHER_DESCRIPTORS: usize = 500;

#[derive(Clone, Copy, Debug)]
enum Hostility {
    /// Connects, and says nothing.
    Silent,
    /// Begins a TLS handshake.
    HalfHandshake,
    /// Begins the head of a request.
    HalfHead,
    /// Begins a log-in form.
    HalfForm,
    /// Asks for much and reads none of it.
    NeverReads,
    /// Asks for the log-in page, reads it, and stays.
    Stays,
}

const KINDS: [Hostility; 6] = [
    Hostility::Silent,
    Hostility::HalfHandshake,
    Hostility::HalfHead,
    Hostility::HalfForm,
    Hostility::NeverReads,
    Hostility::Stays,
];

/// What the attackers say.
struct Attack {
    to: SocketAddr,
    words: Vec<u8>,
    reads: bool,
}

impl Attack {
    async fn new(cluster: &Cluster, kind: Hostility) -> Attack {
        let host = format!("Host: {}\r\n", cluster.addr());
        let words = match kind {
            Hostility::Silent => Vec::new(),
            Hostility::HalfHandshake => client_hello(&cluster.ca()),
            Hostility::HalfHead => format!("GET /login HTTP/1.1\r\n{host}X: ").into_bytes(),
            Hostility::HalfForm => format!(
                "POST /login HTTP/1.1\r\n{host}Origin: http://{}\r\nContent-Length: 1000\r\n\r\nto",
                cluster.addr()
            )
            .into_bytes(),
            Hostility::NeverReads => {
                let asset = asset(cluster).await;
                format!("GET {asset} HTTP/1.1\r\n{host}\r\n").repeat(PIPELINED).into_bytes()
            }
            Hostility::Stays => format!("GET /login HTTP/1.1\r\n{host}\r\n").into_bytes(),
        };
        Attack { to: cluster.addr(), words, reads: matches!(kind, Hostility::Stays) }
    }

    /// One connection that is held open. The controller may hang up at any moment.
    async fn open(&self, from: Ipv4Addr) -> io::Result<std::net::TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.set_zero_linger()?;
        socket.set_recv_buffer_size(4096)?;
        socket.bind(SocketAddr::from((from, 0)))?;
        let mut stream = socket.connect(self.to).await?;
        let _ = stream.write_all(&self.words).await;
        if self.reads {
            let mut piece = [0; 4096];
            let _ = tokio::time::timeout(A_SECOND, stream.read(&mut piece)).await;
        }
        // Not looked at any more: only held.
        stream.into_std()
    }
}

fn client_hello(ca: &str) -> Vec<u8> {
    let config = client_config(&Trust::Ca(ca.to_owned()), Purpose::Http).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(config, name).unwrap();
    let mut words = Vec::new();
    client.write_tls(&mut words).unwrap();
    words
}

/// A large file that everybody may have.
async fn asset(cluster: &Cluster) -> String {
    let page = cluster.raw("GET", "/login", &[], None).await;
    let text = String::from_utf8(page.body).unwrap();
    let paths = text.split('"').filter(|part| part.starts_with("/assets/"));
    paths.into_iter().find(|path| path.ends_with("app.css")).unwrap().to_owned()
}

/// Opens them all, from these addresses, in a thread of its own: attackers are no part of the
/// controller. They are open until what it gives is dropped.
fn besiege(attack: Arc<Attack>, from: &'static [u8]) -> JoinHandle<Vec<std::net::TcpStream>> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(open_all(attack, from))
    })
}

async fn open_all(attack: Arc<Attack>, from: &'static [u8]) -> Vec<std::net::TcpStream> {
    let openers: Vec<_> = (0..AT_ONCE)
        .map(|opener| {
            let attack = Arc::clone(&attack);
            tokio::spawn(async move {
                let mut held = Vec::new();
                for n in 0..STRANGERS / AT_ONCE {
                    let last = from[(n * AT_ONCE + opener) % from.len()];
                    match attack.open(Ipv4Addr::new(127, 0, 0, last)).await {
                        Ok(stream) => held.push(stream),
                        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                        Err(error) => panic!("after {}: {error}", held.len()),
                    }
                }
                held
            })
        })
        .collect();
    let mut held = Vec::new();
    for opener in openers {
        held.extend(opener.await.unwrap());
    }
    held
}

/// People who are let in, and how long each waited.
struct Welcome<'c> {
    cluster: &'c Cluster,
    tls: TlsConnector,
    waited: Vec<Duration>,
}

impl Welcome<'_> {
    async fn measure(&mut self, kind: Hostility) {
        for (what, from) in [("http", 1), ("https", 1), ("http", 99), ("https", 99)] {
            let begun = Instant::now();
            let served = tokio::time::timeout(A_SECOND * 5, self.ask_on(what, from)).await;
            let status = served.unwrap_or_else(|_| panic!("{kind:?}: {what} hangs"));
            assert_eq!(status, 200, "{kind:?}: {what} from 127.0.0.{from}");
            self.waited.push(begun.elapsed());
        }
    }

    /// Everybody was served; and, however busy this machine is otherwise, nearly all at once.
    fn judge(&mut self, kind: Hostility) {
        self.waited.sort();
        let most = self.waited[self.waited.len() * 9 / 10];
        assert!(most < A_SECOND, "{kind:?}: {:?}", self.waited);
        self.waited.clear();
    }

    /// On a machine that is busy otherwise, more than the share of an address may come between two
    /// steps of a client at the same one. It tries again, as people's programs do.
    async fn ask_on(&self, what: &str, from: u8) -> u16 {
        loop {
            match self.ask(what, from).await {
                Ok(status) => return status,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    async fn ask(&self, what: &str, from: u8) -> io::Result<u16> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, from), 0)))?;
        let stream = socket.connect(self.cluster.addr()).await?;
        if what == "http" {
            return self.exchange(stream).await;
        }
        let name = ServerName::from(self.cluster.addr().ip());
        self.exchange(self.tls.connect(name, stream).await?).await
    }

    async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(&self, mut stream: S) -> io::Result<u16> {
        let head = format!(
            "GET /api/v1/cluster HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            self.cluster.addr(),
            self.cluster.admin
        );
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        // TLS may be ended without a word.
        let read = stream.read_to_end(&mut answer).await;
        match split(&answer).status {
            0 => read.and(Err(io::ErrorKind::UnexpectedEof.into())),
            status => Ok(status),
        }
    }
}

/// A connection that has shown a token and is kept.
struct Regular {
    stream: TcpStream,
    head: String,
}

impl Regular {
    async fn new(cluster: &Cluster) -> Regular {
        let head = format!(
            "GET /api/v1/nodes/n1 HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
            cluster.addr(),
            cluster.admin
        );
        let mut regular =
            Regular { stream: TcpStream::connect(cluster.addr()).await.unwrap(), head };
        regular.ask().await;
        regular
    }

    async fn ask(&mut self) {
        self.stream.write_all(self.head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 16 << 10];
        let n = self.stream.read(&mut answer).await.unwrap();
        let text = String::from_utf8_lossy(&answer[..n]);
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"ready\""), "{text}");
    }
}

/// Nobody else is there, so that nothing but the time ends them.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_have_only_so_long() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 1, Ranks::Finish).await;
    let mut regular = Regular::new(&cluster).await;
    let mut all = Vec::new();
    for (kind, most) in KINDS.into_iter().zip([5, 10, 15, 5, 15, 15]) {
        let attack = Attack::new(&cluster, kind).await;
        let stream = attack.open(Ipv4Addr::LOCALHOST).await.unwrap();
        all.push(tokio::spawn(async move {
            let mut stream = TcpStream::from_std(stream).unwrap();
            // One that reads at last finds its answers cut off.
            if matches!(kind, Hostility::NeverReads) {
                tokio::time::sleep(Duration::from_secs(most + 1)).await;
            }
            let (begun, mut answer) = (Instant::now(), Vec::new());
            // It may be reset, with what was on the way.
            let _ = stream.read_to_end(&mut answer).await;
            (kind, begun.elapsed(), most, answer)
        }));
    }
    for one in all {
        let (kind, took, most, answer) = one.await.unwrap();
        assert!(took < Duration::from_secs(most + 2), "{kind:?} was there for {took:?}");
        let text = String::from_utf8_lossy(&answer);
        match kind {
            Hostility::HalfForm => assert!(text.starts_with("HTTP/1.1 408"), "{text}"),
            Hostility::NeverReads => {
                let answers = text.matches("HTTP/1.1 200").count();
                assert!(answers < PIPELINED, "{answers} answers had been kept for it");
            }
            _ => {}
        }
    }
    regular.ask().await;
    cluster.stop().await;
}

fn raise_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let needed = STRANGERS + 2048 + OTHER_DESCRIPTORS;
    assert!(hard >= needed as u64, "this test needs {needed} open files: raise the hard limit");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

async fn everybody_known_is_served(from: &'static [u8]) {
    raise_descriptors();
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Finish).await;
    let config = client_config(&Trust::Ca(cluster.ca()), Purpose::Http).unwrap();
    let tls = TlsConnector::from(config);
    let mut welcome = Welcome { cluster: &cluster, tls, waited: Vec::new() };
    let mut regular = Regular::new(&cluster).await;
    for (round, kind) in KINDS.into_iter().enumerate() {
        let attack = Arc::new(Attack::new(&cluster, kind).await);
        let siege = besiege(attack, from);
        // While they come, and when they are all there.
        while !siege.is_finished() {
            welcome.measure(kind).await;
        }
        let held = siege.join().unwrap();
        assert!(held.len() > STRANGERS * 9 / 10, "{kind:?}: only {} were opened", held.len());
        for _ in 0..5 {
            welcome.measure(kind).await;
        }
        welcome.judge(kind);
        regular.ask().await;
        let taken = open_descriptors() - held.len();
        assert!(taken < 2048 + OTHER_DESCRIPTORS, "{kind:?}: {taken} are held by the controller");
        // A node that comes now is let in, and work runs there.
        let name = format!("late{round}");
        let late = cluster.join(&name).await;
        let late = tokio::time::timeout(A_SECOND, agent::connect(cluster.addr(), &late, 1)).await;
        assert!(late.is_ok(), "{kind:?}: an agent is kept out");
        drop(late);
        let id = cluster.submit(json!({ "run": "true", "gpus_per_node": 8 })).await;
        assert_eq!(cluster.wait(&id).await["state"], "completed", "{kind:?}");
    }
    assert!(!agent.task.is_finished(), "the agent's stream is the first one still");
    drop(agent);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_at_the_same_address_shut_nobody_out() {
    everybody_known_is_served(&[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_at_many_addresses_shut_nobody_out() {
    everybody_known_is_served(&[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]).await;
}
