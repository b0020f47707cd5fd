//! The router under attack, and what can be seen of it from outside.

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tutti_model::RouteTable;
use tutti_serve::{Router, RouterConfig, Timeouts, table_file};
use tutti_testkit::Crowd;

use crate::common::connect_from;
use crate::tally::ending;
use crate::{replicas, tls};

/// Names the file with the table, for the process that is the router.
const TABLE: &str = "TUTTI_HOSTILE_TABLE";
/// How long a replica may be silent, in milliseconds. Without it all is as installed.
const SILENCE: &str = "TUTTI_HOSTILE_SILENCE";
/// Where it listens.
const LISTEN: &str = "TUTTI_HOSTILE_LISTEN";
/// Names the folder with a certificate and its key, if it speaks TLS.
const TLS: &str = "TUTTI_HOSTILE_TLS";
/// How long a client may stall. Short, so that the test is.
pub const STALL: Duration = Duration::from_millis(600);
/// Of large bodies, all together.
pub const KEPT_MAX: usize = 32 << 20;
/// A busy machine is slow, and that is not what is tested.
pub const PATIENCE: Duration = Duration::from_secs(90);
const SAYS: &str = "listens on ";
/// Probes, and what requests beside an attack leave open for a moment.
const FEW: usize = 12;
/// Addresses that attackers on loopback come from.
const ATTACKERS: u16 = 7;

pub struct Victim {
    pub addr: SocketAddr,
    /// Where its attackers come from, in turn.
    attackers: Vec<IpAddr>,
    turn: AtomicUsize,
    child: Child,
    /// It ends when this is closed, also when this process dies.
    _alive: ChildStdin,
    _folder: tempfile::TempDir,
    /// Descriptors that it has when nobody asks.
    idle: usize,
}

#[test]
#[ignore = "this is the router that the other test attacks, in a process of its own"]
#[allow(clippy::print_stdout, reason = "how else would the other process know")]
fn router_process() {
    let Ok(table) = std::env::var(TABLE) else { return };
    let mut config = RouterConfig::new(std::env::var(LISTEN).unwrap().parse().unwrap());
    config.threads = 2;
    config.names = vec!["r".to_owned()];
    config.table_file = Some(table.into());
    config.timeouts.probe_first = Duration::from_millis(50);
    if let Ok(silence) = std::env::var(SILENCE) {
        config.limits.peek_total = KEPT_MAX;
        config.timeouts = Timeouts {
            head: STALL,
            body: STALL,
            answer: Duration::from_millis(silence.parse().unwrap()),
            // Connections are gathered before they say anything, and replicas are in the attackers' process:
            // on a busy machine that takes as long as it takes.
            first: PATIENCE,
            connect: PATIENCE,
            probe_answer: PATIENCE,
            ..config.timeouts
        };
    }
    config.tls = std::env::var(TLS).ok().map(|folder| tls::server(folder.as_ref()));
    // As without a controller: what it knows is in the file.
    let (_tables, none) = watch::channel(Arc::new(RouteTable::default()));
    let router = Router::start(config, none).unwrap();
    println!("\n{SAYS}{}", router.addr);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// What a victim is like.
pub struct Kind {
    /// How long a replica may say nothing, and how long clients may; none: as installed.
    pub silence: Option<Duration>,
    /// How many files it may have open, if fewer than this process.
    pub files: Option<u32>,
    pub listen: SocketAddr,
    pub attackers: Vec<IpAddr>,
    pub tls: Option<PathBuf>,
}

impl Victim {
    /// On loopback, with several attackers there. See [`Kind`].
    pub async fn start(crowd: &Crowd, silence: Duration, files: Option<u32>) -> Victim {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let attackers = (0..ATTACKERS).map(|n| crowd.local(n)).collect();
        let kind = Kind { silence: Some(silence), files, listen, attackers, tls: None };
        let mut victim = Victim::of(kind, &replicas::table().await).await;
        victim.warm_up().await;
        victim
    }

    pub async fn of(kind: Kind, routes: &RouteTable) -> Victim {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("routes.json");
        table_file::save(&table, routes).unwrap();
        let limit = kind.files.map_or("true".to_owned(), |n| format!("ulimit -n {n}"));
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")])
            .arg(std::env::current_exe().unwrap())
            .args(["victim::router_process", "--exact", "--ignored", "--nocapture"])
            .env(TABLE, &table)
            .env(LISTEN, kind.listen.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.envs(kind.silence.map(|silence| (SILENCE, silence.as_millis().to_string())));
        command.envs(kind.tls.map(|folder| (TLS, folder)));
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let addr = lines.find_map(|line| line.unwrap().strip_prefix(SAYS)?.parse().ok());
        // After a minute the test harness in it has more to say, and would end if nobody listened.
        std::thread::spawn(move || lines.for_each(drop));
        Victim {
            addr: addr.expect("it says where it listens"),
            attackers: kind.attackers,
            turn: AtomicUsize::new(0),
            _alive: child.stdin.take().unwrap(),
            child,
            _folder: folder,
            idle: 0,
        }
    }

    /// Replicas are found out about, and everything was used once.
    async fn warm_up(&mut self) {
        for _ in 0..20 {
            good_request(self.addr).await;
        }
        self.idle = self.descriptors();
    }

    fn status(&self, name: &str) -> i64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_matches([':', ' ', '\t']).split(' ').next().unwrap().parse().unwrap()
    }

    /// In KiB, as the most that it ever was.
    pub fn resident(&self) -> i64 {
        self.status("VmRSS")
    }

    pub fn peak(&self) -> i64 {
        self.status("VmHWM")
    }

    /// The peak begins anew, from what is returned.
    pub fn forget_peak(&self) -> i64 {
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").unwrap();
        self.resident()
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// All connections but `held` are closed on its side.
    pub async fn until_left(&self, held: usize) {
        self.until(|open, idle| open <= idle + FEW + held).await;
    }

    pub async fn until_quiet(&self) {
        self.until_left(0).await;
    }

    /// It holds about so many connections. Some that it had when it was idle may be closed by now.
    pub async fn until_held(&self, held: usize) {
        self.until(|open, idle| open + FEW >= idle + held).await;
    }

    async fn until(&self, holds: impl Fn(usize, usize) -> bool) {
        let began = Instant::now();
        while !holds(self.descriptors(), self.idle) {
            let open = self.descriptors();
            assert!(began.elapsed() < PATIENCE, "{open} descriptors, {} when idle", self.idle);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn next_attacker(&self) -> IpAddr {
        self.attackers[self.turn.fetch_add(1, Ordering::Relaxed) % self.attackers.len()]
    }

    /// As one attacker after another.
    pub async fn connect(&self) -> TcpStream {
        connect_from(self.next_attacker(), self.addr).await.unwrap()
    }

    /// With a window so small that what is not read stays where it comes from.
    pub async fn connect_narrow(&self) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8 << 10).unwrap();
        socket.bind((self.next_attacker(), 0).into()).unwrap();
        socket.connect(self.addr).await.unwrap()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As far as the system lets it.
pub fn raise_file_limit(wanted: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer, and for what is read back.
    let failed = unsafe {
        let unknown = libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0;
        limit.rlim_cur = limit.rlim_max;
        unknown || libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) != 0
    };
    assert!(!failed && limit.rlim_max >= wanted, "{wanted} open files are needed: ulimit -Hn");
}

/// A request as anybody sends it. It must be answered, and says how long that took.
async fn good_request(router: SocketAddr) -> Duration {
    let began = Instant::now();
    let body = r#"{"model":"m","prompt":"be well"}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: r\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let asking = async {
        let mut stream = TcpStream::connect(router).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        ending(&mut stream).await
    };
    let status = tokio::time::timeout(PATIENCE, asking).await.expect("it is answered in time");
    assert_eq!(status, 200, "of a good request");
    began.elapsed()
}

/// Requests of somebody who means no harm, one after another, until it is enough: how many, and how long
/// the slowest took.
pub async fn beside(router: SocketAddr, mut enough: oneshot::Receiver<()>) -> (usize, Duration) {
    let (mut served, mut slowest) = (0, Duration::ZERO);
    loop {
        slowest = slowest.max(good_request(router).await);
        served += 1;
        let pause = tokio::time::sleep(Duration::from_millis(10));
        tokio::select! {
            _ = &mut enough => return (served, slowest),
            () = pause => {}
        }
    }
}
