//! The agent's side of the conversation with the controller.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;
use tutti_model::{Epoch, Greeting, IMAGES_LABEL, NodeFacts, SHARES_LABEL, UNABLE};
use tutti_wire::frame::{self, FrameError};
use tutti_wire::pki::{NodeIdentity, replace_file};
use tutti_wire::stream::{PROTOCOL, ToAgent, ToController};

use super::mps::Sharing;
use super::{Node, chain, file_error, log_error, span};
use crate::config::AgentError;
use crate::join;
use crate::link::{self, BackOff, FromLink, LinkError, Session};
use crate::machine::Input;
use crate::network;
use crate::telemetry::Samples;

/// A controller that does not answer the greeting is tried again after this long.
const WELCOME_WITHIN: Duration = Duration::from_secs(10);
/// A controller that refused us will hardly think otherwise soon.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);
/// With more than this unsent, shims are not listened to and no heartbeat is added.
const CLOGGED: usize = 4 << 20;
/// With more than this unsent, samples are left out: what jobs do comes first.
const BUSY: usize = 64 << 10;
/// How often it is looked whether the certificate is due.
const CHECK_CERTIFICATE: Duration = Duration::from_secs(3600);

enum State {
    Waiting {
        until: Instant,
    },
    Dialling(JoinHandle<Result<TlsStream<TcpStream>, LinkError>>),
    Greeted {
        session: Session,
        until: Instant,
    },
    Up {
        session: Session,
        heartbeat: Duration,
        heartbeat_at: Instant,
    },
    /// The agent is leaving.
    Closed,
}

pub struct Uplink {
    state: State,
    back_off: BackOff,
    out: Vec<u8>,
    identity: Arc<NodeIdentity>,
    identity_path: PathBuf,
    /// Tells this process from any other that has the same key.
    instance: Option<String>,
    /// The newest controller that was seen; an older one is a ghost.
    epoch: Epoch,
    epoch_path: PathBuf,
    check_certificate_at: Instant,
    /// What was last said about the outage, so that it is said once.
    complaint: Option<String>,
}

pub enum FromUplink {
    Dialled(Result<Box<TlsStream<TcpStream>>, LinkError>),
    Frame(ToAgent),
    Closed(Option<FrameError>),
}

impl Uplink {
    pub fn new(data_dir: &Path, identity: Arc<NodeIdentity>) -> Result<Uplink, AgentError> {
        let epoch_path = data_dir.join("epoch");
        let epoch = match std::fs::read_to_string(&epoch_path) {
            Ok(text) => Epoch(text.trim().parse().unwrap_or(0)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Epoch(0),
            Err(e) => return Err(file_error("read", &epoch_path)(e)),
        };
        Ok(Uplink {
            state: State::Waiting { until: Instant::now() },
            back_off: BackOff::new(),
            out: Vec::new(),
            identity,
            identity_path: join::identity_path(data_dir),
            instance: instance(),
            epoch,
            epoch_path,
            check_certificate_at: Instant::now() + CHECK_CERTIFICATE,
            complaint: None,
        })
    }

    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up { .. })
    }

    pub fn has_greeted(&self) -> bool {
        matches!(self.state, State::Greeted { .. })
    }

    pub fn is_clogged(&self) -> bool {
        matches!(&self.state, State::Up { session, .. } if session.unsent() > CLOGGED)
    }

    fn has_time_for_samples(&self) -> bool {
        matches!(&self.state, State::Up { session, .. } if session.unsent() <= BUSY)
    }

    pub fn close(&mut self) {
        self.state = State::Closed;
        self.out.clear();
    }

    /// Sent with the next flush. Only for a stream that is up.
    pub fn say(&mut self, message: &ToController) {
        if let Err(error) = frame::append(&mut self.out, message) {
            log_error("a message to the controller can't be sent", &error);
        }
    }

    pub fn flush(&mut self) {
        match &self.state {
            State::Up { session, .. } | State::Greeted { session, .. } => {
                if !self.out.is_empty() {
                    session.send(std::mem::take(&mut self.out));
                }
            }
            _ => self.out.clear(),
        }
    }

    pub async fn next(&mut self) -> FromUplink {
        match &mut self.state {
            State::Dialling(task) => FromUplink::Dialled(match task.await {
                Ok(dialled) => dialled.map(Box::new),
                Err(stopped) => std::panic::resume_unwind(stopped.into_panic()),
            }),
            State::Greeted { session, .. } | State::Up { session, .. } => {
                from_link(session.frames.recv().await)
            }
            State::Waiting { .. } | State::Closed => std::future::pending().await,
        }
    }

    pub fn try_next(&mut self) -> Option<FromUplink> {
        match &mut self.state {
            State::Greeted { session, .. } | State::Up { session, .. } => {
                session.frames.try_recv().ok().map(|frame| from_link(Some(frame)))
            }
            _ => None,
        }
    }

    pub fn next_alarm(&self) -> Instant {
        match &self.state {
            State::Waiting { until } | State::Greeted { until, .. } => *until,
            State::Up { heartbeat_at, .. } => *heartbeat_at,
            State::Dialling(_) | State::Closed => Instant::now() + WELCOME_WITHIN,
        }
    }

    fn wait(&mut self, why: String) {
        if self.complaint.is_none() {
            tracing::warn!("no connection to the controller, trying on: {why}");
        }
        self.complaint = Some(why);
        self.out.clear();
        self.state = State::Waiting { until: Instant::now() + self.back_off.wait() };
    }

    /// A refusal is worth a line whenever its reason is new.
    fn refused(&mut self, why: String) {
        if self.complaint.as_ref() != Some(&why) {
            tracing::error!("the controller refuses this node: {why}");
        }
        self.complaint = Some(why);
        self.out.clear();
        self.state = State::Waiting { until: Instant::now() + AFTER_REFUSAL };
    }

    fn welcome(&mut self, epoch: Epoch, heartbeat: Duration) -> bool {
        if epoch < self.epoch {
            self.refused(format!(
                "it is of epoch {epoch}, and this node has seen {}: an older controller, or one \
                 whose data was restored from a backup; remove {} to accept it",
                self.epoch,
                self.epoch_path.display()
            ));
            return false;
        }
        if epoch > self.epoch {
            let text = format!("{epoch}\n");
            if let Err(error) = replace_file(&self.epoch_path, text.as_bytes(), 0o600) {
                log_error("the controller's epoch can't be remembered", &error);
            }
            self.epoch = epoch;
        }
        let state = std::mem::replace(&mut self.state, State::Closed);
        let State::Greeted { session, .. } = state else {
            self.state = state;
            return false;
        };
        let heartbeat = heartbeat.max(Duration::from_millis(10));
        let heartbeat_at = Instant::now() + heartbeat;
        self.state = State::Up { session, heartbeat, heartbeat_at };
        self.back_off = BackOff::new();
        match self.complaint.take() {
            Some(_) => tracing::info!("connected to the controller again"),
            None => tracing::info!("connected to the controller"),
        }
        true
    }

    fn take_certificate(&mut self, certificate: &str) {
        let renewed = NodeIdentity::load(&self.identity_path)
            .and_then(|identity| identity.renewed(certificate))
            .and_then(|identity| identity.save(&self.identity_path).map(|()| identity));
        match renewed {
            Ok(identity) => self.identity = Arc::new(identity),
            Err(error) => log_error("the new certificate can't be used", &error),
        }
    }

    /// A request for the next certificate, when two thirds of this one's time are over.
    fn renewal(&self) -> Option<String> {
        let due = self.identity.validity().map(|v| v.two_thirds_over(SystemTime::now()));
        match due.and_then(|due| if due { self.identity.renewal().map(Some) } else { Ok(None) }) {
            Ok(request) => request,
            Err(error) => {
                log_error("no new certificate can be asked for", &error);
                None
            }
        }
    }
}

/// None where the system gives no random bytes: the controller goes by other signs then.
fn instance() -> Option<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn from_link(event: Option<FromLink>) -> FromUplink {
    match event {
        Some(FromLink::Frame(frame)) => FromUplink::Frame(frame),
        Some(FromLink::Closed(why)) => FromUplink::Closed(why),
        None => FromUplink::Closed(None),
    }
}

impl Node {
    pub(super) fn on_uplink(&mut self, event: FromUplink) {
        match event {
            FromUplink::Dialled(Ok(stream)) => self.greet(*stream),
            FromUplink::Dialled(Err(error)) => self.uplink.wait(chain(&error)),
            FromUplink::Frame(frame) => self.on_frame(frame),
            FromUplink::Closed(why) => {
                self.uplink.wait(why.map_or("it hung up".to_owned(), |e| chain(&e)));
                self.requests_gone();
            }
        }
    }

    fn greet(&mut self, stream: TlsStream<TcpStream>) {
        let findings = self.findings_for_greeting();
        let greeting = Greeting { facts: self.facts(), parts: self.reports(), findings };
        self.changed.clear();
        // Interfaces come and go; a new stream is a good moment to look again.
        self.network = None;
        let until = Instant::now() + WELCOME_WITHIN;
        self.uplink.state = State::Greeted { session: Session::open(stream), until };
        let hello = ToController::Hello {
            protocol: PROTOCOL,
            greeting: Box::new(greeting),
            epoch: self.uplink.epoch,
            renew: self.uplink.renewal(),
            instance: self.uplink.instance.clone(),
        };
        self.uplink.say(&hello);
    }

    pub(super) fn tell_samples(&mut self, samples: &Samples) {
        self.watch.sample(&samples.newest);
        if self.uplink.has_time_for_samples() {
            let sample = Box::new((*samples.newest).clone());
            self.uplink.say(&ToController::Telemetry { sample });
        }
    }

    fn facts(&mut self) -> NodeFacts {
        let config = &self.config;
        NodeFacts {
            name: config.name.clone(),
            address: config.address.clone(),
            cpus: config.cpus,
            mem: config.mem,
            gpus: config.gpus.clone(),
            simulated: config.simulated,
            isolation: self.isolation.describe().into(),
            lacks: self.isolation.lacks().to_vec(),
            runtimes: self.runtimes.iter().map(|f| f.runtime.name().to_owned()).collect(),
            agent_version: env!("CARGO_PKG_VERSION").into(),
            labels: self.labels(),
            files: self.files.tell(),
            hardware: config.hardware.clone(),
            can_suspend: self.suspending.can(),
            can_move: self.suspending.can_move(),
            suspend_note: self.suspending.why_not(),
            share_note: self.sharing.why_not(),
            keeps_limits: true,
            loopback: network::loopback_of(&config.address),
        }
    }

    /// The operator's, and what jobs can't have here.
    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.config.labels.clone();
        let lacks = [
            (self.runtimes.is_empty(), IMAGES_LABEL),
            (matches!(self.sharing, Sharing::Not { .. }), SHARES_LABEL),
        ];
        for (_, key) in lacks.into_iter().filter(|(lacks, _)| *lacks) {
            labels.insert(key.to_owned(), UNABLE.to_owned());
        }
        labels
    }

    fn on_frame(&mut self, frame: ToAgent) {
        match frame {
            ToAgent::Welcome { epoch, heartbeat, certificate, .. } => {
                if self.uplink.welcome(epoch, span(heartbeat))
                    && let Some(certificate) = certificate
                {
                    self.uplink.take_certificate(&certificate);
                }
            }
            ToAgent::Refused { reason } => self.uplink.refused(reason),
            // Before the welcome it is not known whose orders these are.
            _ if !self.uplink.is_up() => {}
            ToAgent::Order(order) => self.step(Input::Order(order)),
            ToAgent::Health { request, ask } => self.on_health(request, ask),
            ToAgent::Clock { sent, now } => self.on_clock(sent, now),
            ToAgent::ReadLog { request, read } => self.read_log(request, read),
            ToAgent::Exec { request, exec } => self.exec(request, exec),
            ToAgent::Stdin { task, rank, data, eof } => self.stdin(task, rank, data, eof),
            ToAgent::ExecInput { request, data, eof } => self.exec_input(request, data, eof),
            ToAgent::Abandon { request } => self.abandon(request),
            ToAgent::Signal { request, task, signal } => self.signal(request, task, signal),
            ToAgent::Warn { task, warning } => self.warn(task, warning),
        }
    }

    pub(super) fn uplink_alarm(&mut self, now: Instant) {
        match &mut self.uplink.state {
            State::Waiting { until } if *until <= now => self.dial(),
            State::Greeted { until, .. } if *until <= now => {
                self.uplink.wait("it does not answer the greeting".to_owned());
            }
            State::Up { session, heartbeat, heartbeat_at } if *heartbeat_at <= now => {
                *heartbeat_at = now + *heartbeat;
                if session.unsent() <= CLOGGED {
                    let parts = self.reports();
                    self.uplink.say(&ToController::Heartbeat { parts });
                    self.say_level();
                    self.compare_clocks(now);
                }
                self.check_certificate(now);
                self.tell_files(now);
            }
            _ => {}
        }
    }

    fn dial(&mut self) {
        match join::endpoint(&self.config.controller) {
            Ok(endpoint) => {
                let dialling = tokio::spawn(link::dial(endpoint, self.uplink.identity.clone()));
                self.uplink.state = State::Dialling(dialling);
            }
            Err(error) => self.uplink.wait(chain(&error)),
        }
    }

    /// Certificates are renewed in the greeting, so a stream that lasts for months is opened anew.
    fn check_certificate(&mut self, now: Instant) {
        if self.uplink.check_certificate_at <= now {
            self.uplink.check_certificate_at = now + CHECK_CERTIFICATE;
            if self.uplink.renewal().is_some() {
                tracing::info!("the node's certificate is due; connecting anew");
                self.connect_anew(now);
            }
        }
    }

    pub(super) fn connect_anew(&mut self, now: Instant) {
        self.uplink.state = State::Waiting { until: now };
        self.requests_gone();
    }
}
