//! The controller's end of the agent stream, under the test's control.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tutti_model::{
    Epoch, ExitStatus, Greeting, Launch, LeaseId, NodeId, Order, PartError, PartProgress,
    PartReport, Rank, RankExit, RankProgress, ReportedPhase, Span, TaskId,
};
use tutti_wire::api::{JoinRequest, JoinResponse};
use tutti_wire::frame::{self, FrameReader};
use tutti_wire::pki::{Ca, ServerIdentity};
use tutti_wire::stream::{
    ExecOutput, HealthAsk, HealthReply, LogFrom, LogLine, LogRead, LogReply, RequestId, ToAgent,
    ToController,
};
use tutti_wire::tls::{self, Peer};
use tutti_wire::token::{Kind, TokenText};

use super::TempDir;

/// Longer than anything here takes, also on a machine that stops processes for seconds; only a
/// failure waits for it.
pub const WITHIN: Duration = Duration::from_secs(300);

pub struct Controller {
    ca: Arc<Ca>,
    port: u16,
    said: Receiver<ToController>,
    /// Heard while waiting for something else.
    kept: VecDeque<ToController>,
    shared: Arc<(Mutex<Shared>, Condvar)>,
    next_request: RequestId,
    _dir: TempDir,
    _runtime: tokio::runtime::Runtime,
}

struct Shared {
    epoch: Epoch,
    to_agent: Option<UnboundedSender<ToAgent>>,
}

impl Controller {
    pub fn start() -> Controller {
        let dir = TempDir::new();
        let ca = Arc::new(Ca::create_in(dir.path()).unwrap());
        let names = ["127.0.0.1".to_owned()];
        let server = ServerIdentity::issue(&ca, &names).unwrap();
        let acceptor = TlsAcceptor::from(tls::server_config(&ca, &server).unwrap());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (heard, said) = channel();
        let shared =
            Arc::new((Mutex::new(Shared { epoch: Epoch(1), to_agent: None }), Condvar::new()));
        let (for_task, ca_for_task) = (shared.clone(), ca.clone());
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, heard) = (acceptor.clone(), heard.clone());
                let (shared, ca) = (for_task.clone(), ca_for_task.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    match Peer::of(stream.get_ref().1) {
                        Peer::Http => join(stream, &ca).await,
                        _ => serve(stream, heard, shared).await,
                    }
                });
            }
        });
        Controller {
            ca,
            port,
            said,
            kept: VecDeque::new(),
            shared,
            next_request: 0,
            _dir: dir,
            _runtime: runtime,
        }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn join_token(&self) -> String {
        TokenText::mint(Kind::Join, self.ca.pin()).unwrap().to_string()
    }

    pub fn set_epoch(&self, epoch: u64) {
        self.shared.0.lock().unwrap().epoch = Epoch(epoch);
    }

    pub fn tell(&self, message: ToAgent) {
        let shared = self.shared.0.lock().unwrap();
        shared.to_agent.as_ref().expect("an agent is connected").send(message).unwrap();
    }

    /// Waits until the agent has hung up.
    pub fn wait_until_dropped(&self) {
        let deadline = Instant::now() + WITHIN;
        let mut shared = self.shared.0.lock().unwrap();
        while !shared.to_agent.as_ref().is_some_and(UnboundedSender::is_closed) {
            assert!(Instant::now() < deadline, "the agent stays");
            shared = self.shared.1.wait_timeout(shared, WITHIN).unwrap().0;
        }
    }

    pub fn order(&self, order: Order) {
        self.tell(ToAgent::Order(order));
    }

    pub fn run(&self, launch: &Launch) {
        self.order(Order::Start(Box::new(launch.clone())));
    }

    /// For an agent that may hang up at any moment.
    pub fn run_if_connected(&self, launch: &Launch) {
        let shared = self.shared.0.lock().unwrap();
        let order = ToAgent::Order(Order::Start(Box::new(launch.clone())));
        let _ = shared.to_agent.as_ref().expect("an agent has connected").send(order);
    }

    pub fn stop(&self, lease: LeaseId, grace_ms: u64) {
        self.order(Order::Stop { lease, grace: Span::millis(grace_ms), signal: None });
    }

    /// Asks the part to save first.
    pub fn ask_to_save(&self, lease: LeaseId, signal: &str, grace_ms: u64) {
        let (grace, signal) = (Span::millis(grace_ms), Some(signal.to_owned()));
        self.order(Order::Stop { lease, grace, signal });
    }

    /// The first message for which `pick` has an answer; others are kept for later.
    pub fn wait<T>(&mut self, mut pick: impl FnMut(&ToController) -> Option<T>) -> T {
        for i in 0..self.kept.len() {
            if let Some(found) = pick(&self.kept[i]) {
                self.kept.remove(i);
                return found;
            }
        }
        let deadline = Instant::now() + WITHIN;
        loop {
            match self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(message) => match pick(&message) {
                    Some(found) => return found,
                    None => self.kept.push_back(message),
                },
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("the agent did not say it; it said {:#?}", self.kept)
                }
            }
        }
    }

    /// From here on only what the agent says now counts.
    pub fn forget_past(&mut self) {
        self.kept.clear();
        self.said.try_iter().for_each(drop);
    }

    pub fn wait_for_greeting(&mut self) -> Greeting {
        self.wait(|m| match m {
            ToController::Hello { greeting, .. } => Some((**greeting).clone()),
            _ => None,
        })
    }

    pub fn wait_for_phase<T>(
        &mut self,
        lease: LeaseId,
        pick: impl Fn(&ReportedPhase) -> Option<T>,
    ) -> T {
        self.wait(|m| reports_of(m, lease).find_map(|r| pick(&r.phase)))
    }

    /// The first report of this part with progress for which `pick` has an answer.
    pub fn wait_for_progress<T>(
        &mut self,
        lease: LeaseId,
        pick: impl Fn(&PartProgress, &ReportedPhase) -> Option<T>,
    ) -> T {
        self.wait(|m| reports_of(m, lease).find_map(|r| pick(r.progress.as_deref()?, &r.phase)))
    }

    /// Waits until a rank is at this step.
    pub fn wait_for_step(&mut self, lease: LeaseId, rank: u32, step: u64) -> RankProgress {
        self.wait_for_progress(lease, |p, _| {
            p.ranks.iter().find(|r| r.rank == Rank(rank) && r.step == step).cloned()
        })
    }

    /// Whether the agent has said that the part is over, of all that it has said and nobody waited for.
    pub fn has_heard_end(&mut self, lease: LeaseId) -> bool {
        self.kept.extend(self.said.try_iter());
        let is_end = |r: &PartReport| matches!(r.phase, ReportedPhase::Done { .. });
        self.kept.iter().any(|m| reports_of(m, lease).any(is_end))
    }

    pub fn wait_until_running(&mut self, lease: LeaseId) {
        self.wait_for_phase(lease, |p| matches!(p, ReportedPhase::Running { .. }).then_some(()));
    }

    pub fn wait_until_done(&mut self, lease: LeaseId) -> (Vec<RankExit>, Option<PartError>) {
        self.wait_for_phase(lease, |p| match p {
            ReportedPhase::Done { exits, error } => Some((exits.clone(), error.clone())),
            _ => None,
        })
    }

    /// Waits for the end of any part and forgets it; how many ended.
    pub fn wait_for_some_done(&mut self) -> u64 {
        let done: Vec<LeaseId> = self.wait(|m| match m {
            ToController::Report { report } => match &report.phase {
                ReportedPhase::Done { exits, error: None } => {
                    assert!(exits.iter().all(|e| e.status.is_success()));
                    Some(vec![report.lease])
                }
                ReportedPhase::Done { error: Some(e), .. } => panic!("{e:?}"),
                _ => Some(Vec::new()),
            },
            // Each end is reported by itself too.
            _ => Some(Vec::new()),
        });
        done.iter().for_each(|&lease| self.order(Order::Forget { lease }));
        done.len() as u64
    }

    /// Runs a part of one rank to its end.
    pub fn status_of(&mut self, launch: &Launch) -> ExitStatus {
        self.run(launch);
        let (exits, error) = self.wait_until_done(launch.lease);
        assert_eq!(error, None);
        assert_eq!(exits.len(), 1);
        exits[0].status
    }

    pub fn request(&mut self) -> RequestId {
        self.next_request += 1;
        self.next_request
    }

    /// Asks the agent something about the health of its machine.
    pub fn health(&mut self, ask: HealthAsk) -> HealthReply {
        let request = self.request();
        self.tell(ToAgent::Health { request, ask });
        self.wait(|m| match m {
            ToController::Health { request: r, reply } if *r == request => Some(reply.clone()),
            _ => None,
        })
    }

    pub fn read_log(&mut self, task: TaskId, rank: u32, from: LogFrom, wait: bool) -> LogReply {
        let request = self.request();
        let read =
            LogRead { task, attempt: None, rank: Rank(rank), from, max_bytes: 1 << 20, wait };
        self.tell(ToAgent::ReadLog { request, read });
        self.wait(|m| match m {
            ToController::Log { request: r, reply } if *r == request => Some(reply.clone()),
            _ => None,
        })
    }

    /// Everything a rank wrote, as bytes, followed to its end.
    pub fn whole_log(&mut self, task: TaskId, rank: u32) -> String {
        let (mut next, mut all) = (0, Vec::new());
        loop {
            match self.read_log(task, rank, LogFrom::Offset(next), true) {
                LogReply::Piece { lines, next: n, end, .. } => {
                    all.extend(lines);
                    next = n;
                    if end {
                        return text(&all);
                    }
                }
                LogReply::Missing { reason } => panic!("{reason}"),
            }
        }
    }

    /// Follows a rank's log until it contains this.
    pub fn wait_for_log(&mut self, task: TaskId, rank: u32, wanted: &str) -> String {
        let (mut next, mut all) = (0, Vec::new());
        loop {
            match self.read_log(task, rank, LogFrom::Offset(next), true) {
                LogReply::Piece { lines, next: n, end, .. } => {
                    all.extend(lines);
                    next = n;
                    let text = text(&all);
                    if text.contains(wanted) {
                        return text;
                    }
                    assert!(!end, "the log ended without {wanted:?}: {text:?}");
                }
                LogReply::Missing { reason } => panic!("{reason}"),
            }
        }
    }

    /// Output of an exec up to its end.
    pub fn exec_result(&mut self, request: RequestId) -> (String, ExecOutput) {
        let mut out = Vec::new();
        loop {
            let output = self.wait(|m| match m {
                ToController::Output { request: r, output } if *r == request => {
                    Some(output.clone())
                }
                _ => None,
            });
            match output {
                ExecOutput::Data { data, .. } => out.extend(data),
                end => return (String::from_utf8(out).unwrap(), end),
            }
        }
    }
}

/// What the program wrote.
pub fn text(lines: &[LogLine]) -> String {
    let mut out = Vec::new();
    for line in lines {
        out.extend_from_slice(&line.text);
        if !line.partial {
            out.push(b'\n');
        }
    }
    String::from_utf8(out).unwrap()
}

/// `POST /api/v1/join`, and nothing else of HTTP.
async fn join(mut stream: TlsStream<TcpStream>, ca: &Ca) {
    let mut request = Vec::new();
    let body = loop {
        let mut buf = [0; 4096];
        let n = stream.read(&mut buf).await.unwrap();
        assert!(n > 0, "the request ends early");
        request.extend_from_slice(&buf[..n]);
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.to_ascii_lowercase();
        let length = length.split("content-length:").nth(1).and_then(|l| l.lines().next());
        if length.is_some_and(|l| l.trim().parse::<usize>().unwrap() <= body.len()) {
            break body.to_owned();
        }
    };
    let asked: JoinRequest = serde_json::from_str(&body).unwrap();
    let certificate = ca.sign_node_csr(&asked.csr, &asked.node).unwrap();
    let answer = JoinResponse { certificate, ca: ca.pem().to_owned() };
    let answer = serde_json::to_string(&answer).unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    stream.write_all(format!("{head}{answer}").as_bytes()).await.unwrap();
    let _ = stream.shutdown().await;
}

async fn serve(
    stream: TlsStream<TcpStream>,
    heard: Sender<ToController>,
    shared: Arc<(Mutex<Shared>, Condvar)>,
) {
    serve_one(stream, heard, &shared.0).await;
    // Under the lock, so that who looks and then waits does not miss it.
    let _guard = shared.0.lock().unwrap();
    shared.1.notify_all();
}

async fn serve_one(
    stream: TlsStream<TcpStream>,
    heard: Sender<ToController>,
    shared: &Mutex<Shared>,
) {
    let (read, mut write) = tokio::io::split(stream);
    let mut reader = FrameReader::new(read);
    let Ok(Some(hello)) = reader.next::<ToController>().await else { return };
    let (to_agent, mut orders): (_, UnboundedReceiver<ToAgent>) = unbounded_channel();
    let welcome = {
        let mut shared = shared.lock().unwrap();
        shared.to_agent = Some(to_agent);
        ToAgent::Welcome {
            node: NodeId(1),
            epoch: shared.epoch,
            heartbeat: Span::secs(1),
            certificate: None,
        }
    };
    if frame::write(&mut write, &welcome).await.is_err() || heard.send(hello).is_err() {
        return;
    }
    loop {
        tokio::select! {
            message = reader.next::<ToController>() => match message {
                Ok(Some(message)) => if heard.send(message).is_err() { return },
                _ => return,
            },
            order = orders.recv() => match order {
                Some(order) => if frame::write(&mut write, &order).await.is_err() { return },
                None => return,
            },
        }
    }
}

/// What a message says of one part.
fn reports_of(message: &ToController, lease: LeaseId) -> impl Iterator<Item = &PartReport> {
    let reports: &[PartReport] = match message {
        ToController::Report { report } => std::slice::from_ref(report),
        ToController::Heartbeat { parts } => parts,
        ToController::Hello { greeting, .. } => &greeting.parts,
        _ => &[],
    };
    reports.iter().filter(move |r| r.lease == lease)
}
