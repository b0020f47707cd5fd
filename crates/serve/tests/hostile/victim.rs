//! The router under attack, and what can be seen of it from outside.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tutti_model::RouteTable;
use tutti_serve::{Router, RouterConfig, Timeouts, table_file};

use crate::replicas;
use crate::tally::ending;

/// Names the file with the table, for the process that is the router.
const TABLE: &str = "TUTTI_HOSTILE_TABLE";
/// How long a replica may be silent, in milliseconds.
const SILENCE: &str = "TUTTI_HOSTILE_SILENCE";
/// How long a client may stall. Short, so that the test is.
pub const STALL: Duration = Duration::from_millis(600);
/// Of large bodies, all together.
pub const KEPT_MAX: usize = 32 << 20;
/// A busy machine is slow, and that is not what is tested.
pub const PATIENCE: Duration = Duration::from_secs(90);
const SAYS: &str = "listens on ";
/// Probes, and what requests beside an attack leave open for a moment.
const FEW: usize = 12;

pub struct Victim {
    pub addr: SocketAddr,
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
    let mut config = RouterConfig::new("127.0.0.1:0".parse().unwrap());
    config.threads = 2;
    config.table_file = Some(table.into());
    config.limits.peek_total = KEPT_MAX;
    config.timeouts = Timeouts {
        head: STALL,
        body: STALL,
        answer: Duration::from_millis(std::env::var(SILENCE).unwrap().parse().unwrap()),
        probe_first: Duration::from_millis(50),
        ..Timeouts::default()
    };
    // As without a controller: what it knows is in the file.
    let (_tables, none) = watch::channel(Arc::new(RouteTable::default()));
    let router = Router::start(config, none).unwrap();
    println!("\n{SAYS}{}", router.addr);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

impl Victim {
    /// `silence`: how long a replica may say nothing. `files`: how many it may have open, if fewer than
    /// this process.
    pub async fn start(silence: Duration, files: Option<u32>) -> Victim {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("routes.json");
        table_file::save(&table, &replicas::table().await).unwrap();
        let limit = files.map_or("true".to_owned(), |n| format!("ulimit -n {n}"));
        let mut child = Command::new("sh")
            .args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")])
            .arg(std::env::current_exe().unwrap())
            .args(["victim::router_process", "--exact", "--ignored", "--nocapture"])
            .env(TABLE, &table)
            .env(SILENCE, silence.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let addr = lines.find_map(|line| line.unwrap().strip_prefix(SAYS)?.parse().ok());
        // After a minute the test harness in it has more to say, and would end if nobody listened.
        std::thread::spawn(move || lines.for_each(drop));
        let alive = child.stdin.take().unwrap();
        let addr = addr.expect("it says where it listens");
        let mut victim = Victim { addr, child, _alive: alive, _folder: folder, idle: 0 };
        victim.warm_up().await;
        victim
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

    /// It holds at least so many connections.
    pub async fn until_held(&self, held: usize) {
        self.until(|open, idle| open >= idle + held).await;
    }

    async fn until(&self, holds: impl Fn(usize, usize) -> bool) {
        let began = Instant::now();
        while !holds(self.descriptors(), self.idle) {
            let open = self.descriptors();
            assert!(began.elapsed() < PATIENCE, "{open} descriptors, {} when idle", self.idle);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// With a window so small that what is not read stays where it comes from.
    pub async fn connect_narrow(&self) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8 << 10).unwrap();
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
