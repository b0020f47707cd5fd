//! An agent without processes: it says at once that everything ran and ended well.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tutti_model::{
    Bytes, Epoch, ExitStatus, Gpu, GpuIndex, Greeting, Launch, LeaseId, NodeFacts, Order,
    PartReport, PortOwner, Rank, RankExit, ReportedPhase, Suspension, Time,
};
use tutti_wire::frame::{self, FrameReader};
use tutti_wire::pki::NodeIdentity;
use tutti_wire::stream::{
    ExecOutput, LogFrom, LogLine, LogReply, LogStream, PROTOCOL, ToAgent, ToController,
};
use tutti_wire::tls::{Purpose, Trust, client_config};

pub type Stream = TlsStream<TcpStream>;

pub async fn dial(addr: SocketAddr, identity: &NodeIdentity) -> std::io::Result<Stream> {
    let trust = Trust::Ca(identity.ca_pem().to_owned());
    let config = client_config(&trust, Purpose::Agent(identity)).unwrap();
    let socket = TcpStream::connect(addr).await?;
    socket.set_nodelay(true)?;
    let name = ServerName::from(addr.ip());
    TlsConnector::from(config).connect(name, socket).await
}

pub fn facts(name: &str, gpus: u16) -> NodeFacts {
    NodeFacts {
        name: name.to_owned(),
        address: "127.0.0.1".to_owned(),
        cpus: 64,
        mem: Bytes(64 << 30),
        gpus: (0..gpus)
            .map(|i| Gpu {
                index: GpuIndex(i),
                model: "h100".into(),
                uuid: format!("{name}-{i}"),
                mem: Bytes(80 << 30),
                island: None,
            })
            .collect(),
        simulated: true,
        isolation: "process group".into(),
        agent_version: "test".into(),
        labels: BTreeMap::new(),
        ..NodeFacts::default()
    }
}

pub fn hello(facts: NodeFacts) -> ToController {
    let greeting = Box::new(Greeting::new(facts, Vec::new()));
    let (epoch, renew, instance) = (Epoch(0), None, None);
    ToController::Hello { protocol: PROTOCOL, greeting, epoch, renew, instance }
}

/// Connects, says hello, and reads the welcome.
pub async fn connect(addr: SocketAddr, identity: &NodeIdentity, gpus: u16) -> Stream {
    connect_as(addr, identity, facts(identity.node(), gpus)).await
}

async fn connect_as(addr: SocketAddr, identity: &NodeIdentity, facts: NodeFacts) -> Stream {
    let mut stream = dial(addr, identity).await.unwrap();
    frame::write(&mut stream, &hello(facts)).await.unwrap();
    let welcome: ToAgent = frame::read(&mut stream).await.unwrap().unwrap();
    assert!(matches!(welcome, ToAgent::Welcome { .. }), "{welcome:?}");
    stream
}

/// How the pretended ranks behave.
#[derive(Clone, Copy, PartialEq)]
pub enum Ranks {
    /// End at once with 0.
    Finish,
    /// Run until they are stopped.
    Stay,
    /// The same, and have a GiB on GPUs that can be moved to host memory.
    Sleepy,
}

pub struct FakeAgent {
    pub task: JoinHandle<()>,
}

impl FakeAgent {
    pub async fn start(addr: SocketAddr, identity: NodeIdentity, gpus: u16, ranks: Ranks) -> Self {
        let can_suspend = ranks == Ranks::Sleepy;
        let facts =
            NodeFacts { can_suspend, can_move: can_suspend, ..facts(identity.node(), gpus) };
        let stream = connect_as(addr, &identity, facts).await;
        FakeAgent { task: tokio::spawn(serve(stream, ranks)) }
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: Stream, ranks: Ranks) {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = FrameReader::new(reader);
    let mut parts = Parts::default();
    let mut beat = tokio::time::interval(std::time::Duration::from_millis(500));
    loop {
        let message = tokio::select! {
            message = reader.next::<ToAgent>() => message,
            _ = beat.tick() => {
                let all = parts.launches.keys().map(|lease| parts.report(*lease, ranks));
                let beat = ToController::Heartbeat { parts: all.collect() };
                if frame::write(&mut writer, &beat).await.is_err() { return }
                continue;
            }
        };
        let Ok(Some(first)) = message else { return };
        let mut out = Vec::new();
        let mut next = Some(first);
        while let Some(message) = next {
            answer(message, ranks, &mut parts, &mut out);
            next = reader.buffered().unwrap();
        }
        use tokio::io::AsyncWriteExt;
        if writer.write_all(&out).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}

#[derive(Default)]
struct Parts {
    launches: BTreeMap<LeaseId, Arc<Launch>>,
    done: BTreeSet<LeaseId>,
    asleep: BTreeSet<LeaseId>,
}

impl Parts {
    fn report(&self, lease: LeaseId, ranks: Ranks) -> PartReport {
        let ended = self.launches.get(&lease).filter(|_| self.done.contains(&lease));
        let phase = ended.map_or_else(running, |launch| self::ended(launch));
        let gib = Bytes(1 << 30);
        let suspension =
            self.asleep.contains(&lease).then_some(Suspension::Suspended { bytes: gib });
        let gpu_mem = (ranks == Ranks::Sleepy).then_some(gib);
        PartReport { suspension, gpu_mem, ..PartReport::new(lease, phase) }
    }
}

fn running() -> ReportedPhase {
    ReportedPhase::Running { exits: Vec::new() }
}

fn ended(launch: &Launch) -> ReportedPhase {
    let first = launch.first_rank.0;
    let exit = |r| RankExit { rank: Rank(r), status: ExitStatus::Code(0), at: Time(0) };
    ReportedPhase::Done { exits: (first..first + launch.ranks).map(exit).collect(), error: None }
}

fn report(out: &mut Vec<u8>, lease: LeaseId, phase: ReportedPhase) {
    let runs = matches!(phase, ReportedPhase::Running { .. });
    let port_owner = runs.then_some(PortOwner::Part);
    let report = PartReport { port_owner, ..PartReport::new(lease, phase) };
    frame::append(out, &ToController::Report { report }).unwrap();
}

fn answer(message: ToAgent, ranks: Ranks, parts: &mut Parts, out: &mut Vec<u8>) {
    if let ToAgent::Order(Order::Suspend { lease } | Order::Wake { lease, .. }) = &message {
        match &message {
            ToAgent::Order(Order::Suspend { .. }) => parts.asleep.insert(*lease),
            _ => parts.asleep.remove(lease),
        };
        let report = parts.report(*lease, ranks);
        frame::append(out, &ToController::Report { report }).unwrap();
        return;
    }
    let Parts { launches, done, .. } = parts;
    let mut run = |launch: &Launch, out: &mut Vec<u8>| {
        report(out, launch.lease, running());
        if ranks == Ranks::Finish {
            done.insert(launch.lease);
            report(out, launch.lease, ended(launch));
        }
    };
    match message {
        ToAgent::Order(Order::Start(launch)) => {
            let launch = Arc::new(*launch);
            if launches.insert(launch.lease, Arc::clone(&launch)).is_some() {
                return;
            }
            if launch.wait_for_go {
                report(out, launch.lease, ReportedPhase::Prepared { port: 4000 });
            } else {
                run(&launch, out);
            }
        }
        ToAgent::Order(Order::Go { lease, .. }) => {
            if let Some(launch) = launches.get(&lease) {
                run(launch, out);
            }
        }
        ToAgent::Order(Order::Stop { lease, .. }) => {
            done.insert(lease);
            let exits = launches.get(&lease).map_or_else(Vec::new, |l| {
                let status = ExitStatus::Signal(15);
                vec![RankExit { rank: l.first_rank, status, at: Time(0) }]
            });
            report(out, lease, ReportedPhase::Done { exits, error: None });
        }
        ToAgent::Order(Order::Forget { lease }) => {
            launches.remove(&lease);
        }
        ToAgent::ReadLog { request, read } => {
            let text = format!("hello from rank {} of {}", read.rank, read.task);
            let fresh = read.from != LogFrom::Offset(1);
            let line =
                LogLine { at: 7, stream: LogStream::Out, text: text.into_bytes(), partial: false };
            let lines = if fresh { vec![line] } else { Vec::new() };
            let reply = LogReply::Piece { lines, next: 1, end: !fresh, skipped: 0 };
            frame::append(out, &ToController::Log { request, reply }).unwrap();
        }
        ToAgent::Exec { request, exec } => {
            let data = exec.argv.join(" ").into_bytes();
            for output in [
                ExecOutput::Data { stream: LogStream::Out, data },
                ExecOutput::Exited { status: ExitStatus::Code(3) },
            ] {
                frame::append(out, &ToController::Output { request, output }).unwrap();
            }
        }
        _ => {}
    }
}
