//! A typed, blocking client of [`crate::api`].
//!
//! Built for a command that lives for a few milliseconds: nothing is set up before it is needed,
//! one request is one round trip on one connection, and a cluster that is found by its data
//! directory is spoken with over the socket in there, without TLS.
//!
//! ```text
//! Lookup ─► ClusterRef ─► Client ─┬─► one answer        submit, jobs, why, …
//!           (where, token)        ├─► Events            logs, exec, events
//!                                 └─► bytes up          put_stdin, exec_stdin
//! ```

mod cluster;
mod connect;
mod error;
mod events;
mod limits;
mod one_write;
mod routes;
mod unix;

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, Response, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tutti_model::{Span, Time};
use ureq::{Agent, AsSendBody, Body, SendBody};

use crate::api::NOW_HEADER;
use crate::tls::{refused_certificate, wrong_ca};

pub use cluster::{ClusterName, ClusterRef, Endpoint, Lookup, default_data_dir, endpoint_in};
pub use error::{ClientError, ForeignPeer, exit};
pub use events::{Events, ExecEvents, Logs};
pub use limits::{Limits, Notice};
pub use unix::{SOCKET_FILE, SOCKET_PATH_MAX};

const PREFIX: &str = "/api/v1";

/// No answer is larger; the largest is a page of 10,000 jobs.
const ANSWER_MAX: u64 = 256 << 20;

/// How long a submission is tried again while nobody answers.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub struct Client {
    cluster: ClusterRef,
    endpoint: Mutex<Endpoint>,
    bearer: String,
    /// Of the data directory. Looked for when the first request is made.
    socket: OnceLock<Option<PathBuf>>,
    agent: OnceLock<Agent>,
    patience: Duration,
    limits: Limits,
    /// What the cluster's clock said with its last answer; 0 before the first.
    told_at: AtomicU64,
}

/// A request, kept whole so that it can be sent again.
#[derive(Debug)]
struct Ask {
    method: Method,
    /// Below `/api/v1`, with its query.
    path: String,
    body: Option<Vec<u8>>,
    key: Option<String>,
    /// Only if what is there still has this tag.
    if_match: Option<HeaderValue>,
    /// The answer may come so much later than others: that is what was asked for.
    takes: Duration,
    /// The answer goes on without end.
    is_stream: bool,
}

impl Ask {
    fn plain(method: Method, path: &str) -> Self {
        Ask {
            method,
            path: path.to_owned(),
            body: None,
            key: None,
            if_match: None,
            takes: Duration::ZERO,
            is_stream: false,
        }
    }

    fn json<T: Serialize + ?Sized>(
        method: Method,
        path: &str,
        body: &T,
    ) -> Result<Self, ClientError> {
        let body = serde_json::to_vec(body).map_err(ClientError::Body)?;
        Ok(Ask { body: Some(body), ..Ask::plain(method, path) })
    }

    fn key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    fn takes(self, takes: Duration) -> Self {
        Ask { takes, ..self }
    }
}

impl Client {
    /// Opens nothing yet: the first request does.
    pub fn connect(cluster: &ClusterRef) -> Self {
        Client {
            endpoint: Mutex::new(cluster.endpoint.clone()),
            bearer: format!("Bearer {}", cluster.token),
            cluster: cluster.clone(),
            socket: OnceLock::new(),
            agent: OnceLock::new(),
            patience: PATIENCE,
            limits: Limits::default(),
            told_at: AtomicU64::new(0),
        }
    }

    /// One more, as patient as this one and with connections of its own.
    pub fn another(&self) -> Self {
        let other = Client::connect(&self.cluster).with_limits(self.limits);
        Client { patience: self.patience, ..other }
    }

    /// How long answers are waited for, and whom to tell.
    pub fn with_limits(self, limits: Limits) -> Self {
        Client { limits, agent: OnceLock::new(), ..self }
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// How long submissions are tried again while nobody answers.
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    pub fn cluster(&self) -> &ClusterRef {
        &self.cluster
    }

    /// By the cluster's clock, when it answered last. None before that, and of a controller that does
    /// not say it.
    pub fn told_at(&self) -> Option<Time> {
        Some(Time(self.told_at.load(Ordering::Relaxed))).filter(|at| *at != Time(0))
    }

    /// Where the last request went or the next will go.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn agent(&self) -> &Agent {
        let make = || {
            let socket = self.socket().cloned();
            connect::agent(self.cluster.token.ca, socket, &self.endpoint(), self.limits)
        };
        self.agent.get_or_init(make)
    }

    fn socket(&self) -> Option<&PathBuf> {
        let find = || self.cluster.data_dir.as_deref().and_then(unix::socket_in);
        self.socket.get_or_init(find).as_ref()
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let request = Request::builder().method(method).header(header::AUTHORIZATION, &self.bearer);
        if self.socket().is_some() {
            // An address, since a name would be looked up; nothing goes there.
            return request
                .uri(format!("http://127.0.0.1{PREFIX}{path}"))
                .header(header::HOST, "localhost");
        }
        request.uri(format!("{}{PREFIX}{path}", self.endpoint().url()))
    }

    /// Sends and looks at the status; the body is still to be read.
    fn send(&self, ask: &Ask) -> Result<Response<Body>, ClientError> {
        let mut request = self.request(ask.method.clone(), &ask.path);
        if let Some(key) = &ask.key {
            request = request.header("idempotency-key", key);
        }
        if let Some(tag) = &ask.if_match {
            request = request.header(header::IF_MATCH, tag);
        }
        let began = Instant::now();
        let sent = match &ask.body {
            Some(body) => {
                let json = request.header(header::CONTENT_TYPE, "application/json");
                self.run(ask, json.body(body.as_slice())?)
            }
            // A length of none must be said: an end that is sent on its own may find the connection
            // closed already, and then the answer is lost.
            None if ask.method == Method::POST => self.run(ask, request.body(&[][..])?),
            None => self.run(ask, request.body(())?),
        };
        self.checked(sent, began)
    }

    /// With limits of its own, where the usual ones do not do.
    fn run<B: AsSendBody>(
        &self,
        ask: &Ask,
        request: Request<B>,
    ) -> Result<Response<Body>, ureq::Error> {
        let (agent, answer) = (self.agent(), self.limits.answer);
        if ask.is_stream {
            let request = agent.configure_request(request).timeout_recv_body(None);
            return agent.run(request.timeout_per_read(Some(self.limits.silence())).build());
        }
        if ask.takes.is_zero() {
            return agent.run(request);
        }
        let longer = Some(answer + ask.takes);
        agent.run(agent.configure_request(request).timeout_recv_response(longer).build())
    }

    fn checked(
        &self,
        sent: Result<Response<Body>, ureq::Error>,
        began: Instant,
    ) -> Result<Response<Body>, ClientError> {
        let response = sent.map_err(|e| self.not_reached(e, began))?;
        let told = response.headers().get(NOW_HEADER).and_then(|at| at.to_str().ok()?.parse().ok());
        if let Some(at) = told {
            self.told_at.store(at, Ordering::Relaxed);
        }
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = self.whole(response)?;
        Err(ClientError::from_answer(status.as_u16(), &body))
    }

    fn whole(&self, response: Response<Body>) -> Result<Vec<u8>, ClientError> {
        let body = response.into_body().into_with_config().limit(ANSWER_MAX);
        let began = Instant::now();
        body.read_to_vec().map_err(|e| self.not_reached(e, began))
    }

    fn not_reached(&self, error: ureq::Error, began: Instant) -> ClientError {
        if let ureq::Error::Other(other) = &error
            && let Some(foreign) = other.downcast_ref::<ForeignPeer>()
        {
            return ClientError::ForeignPeer(foreign.clone());
        }
        let endpoint = self.endpoint().authority();
        let refused = match &error {
            // `source()` of these two does not lead to what is inside.
            ureq::Error::Io(io) => refused_certificate(io),
            ureq::Error::Rustls(tls) => refused_certificate(tls),
            other => refused_certificate(other),
        };
        match refused.map(|refused| (refused, wrong_ca(refused))) {
            Some((_, Some(source))) => ClientError::NotTrusted { endpoint, source: source.clone() },
            Some((refused, None)) => {
                ClientError::BadCertificate { endpoint, source: refused.clone().into() }
            }
            None if limits::is_timeout(&error) => {
                self.look_again();
                let silent_for = Span::secs(began.elapsed().as_secs_f64().round() as u64);
                ClientError::Silent { endpoint, silent_for }
            }
            None => {
                self.look_again();
                ClientError::Unreachable { endpoint, source: Box::new(error) }
            }
        }
    }

    /// A controller that started again may listen elsewhere; while it starts, the old address is
    /// as good as any.
    fn look_again(&self) {
        if let Ok(endpoint) = self.cluster.look_again() {
            *self.endpoint.lock().unwrap_or_else(PoisonError::into_inner) = endpoint;
        }
    }

    fn answer<T: DeserializeOwned>(&self, ask: &Ask) -> Result<T, ClientError> {
        let body = self.whole(self.send(ask)?)?;
        serde_json::from_slice(&body).map_err(ClientError::Answer)
    }

    fn events_of<T: DeserializeOwned>(
        &self,
        ask: Ask,
        is_last: fn(&T) -> bool,
    ) -> Result<Events<T>, ClientError> {
        let ask = &Ask { is_stream: true, ..ask };
        let body = self.send(ask)?.into_body();
        let silence = Span(self.limits.silence().as_millis() as u64);
        let (body, from) = (body.into_with_config(), self.endpoint().authority());
        Ok(Events::new(body.limit(u64::MAX).reader(), is_last, from, silence))
    }

    fn upload(&self, path: &str, input: impl Read) -> Result<(), ClientError> {
        let mut input = Watched { inner: input, failed: None };
        let began = Instant::now();
        let sent = {
            let request = self
                .request(Method::PUT, path)
                .header(header::CONTENT_TYPE, "application/octet-stream");
            let request = request.body(SendBody::from_reader(&mut input))?;
            // Answered when the input has ended and the job has taken it, which may be in hours.
            let request = self.agent().configure_request(request);
            let request = request.timeout_recv_response(None).timeout_send_body(None);
            self.agent().run(request.build())
        };
        if let Some(error) = input.failed {
            return Err(ClientError::Input(error));
        }
        self.checked(sent, began).map(|_| ())
    }

    /// Again and again while nobody answers. Only for what may be asked twice. Of several failures the
    /// one counts after which it is not known whether it was done.
    fn patiently<T>(&self, ask: impl Fn() -> Result<T, ClientError>) -> Result<T, ClientError> {
        let began = Instant::now();
        let mut pause = PAUSE_FIRST;
        let mut unsure = None;
        loop {
            let error = match ask() {
                Err(e) if e.is_unreachable() => e,
                result => return result,
            };
            if began.elapsed() + pause >= self.patience {
                return Err(if error.may_be_done() { error } else { unsure.unwrap_or(error) });
            }
            tracing::debug!(%error, "nobody answered; asking again");
            if error.may_be_done() {
                unsure = Some(error);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
            self.look_again();
        }
    }
}

/// Names one request for ever.
pub fn new_key() -> Result<String, ClientError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(ClientError::NoRandomness)?;
    Ok(crate::pki::hex(&random))
}

/// Remembers that the input failed, which the HTTP client reports like a broken connection.
struct Watched<R> {
    inner: R,
    failed: Option<io::Error>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).map_err(|error| {
            let copy = io::Error::new(error.kind(), error.to_string());
            if error.kind() != io::ErrorKind::Interrupted {
                self.failed = Some(error);
            }
            copy
        })
    }
}

#[cfg(test)]
mod tests;
