//! A client's HTTP/1.1 connection: request after request.

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::access::holds_token;
use crate::admit::{Admission, answer_kind, judge};
use crate::answer::Answer;
use crate::client::Client;
use crate::desk::Lease;
use crate::exchange::Exchange;
use crate::fault::Fault;
use crate::http::{Framing, RequestHead, ends_head};
use crate::kept::{Kept, SMALL_BODY};
use crate::logic::{AnswerKind, Outcome, Who};
use crate::pool::connect;
use crate::retry::{Broken, Tries, Verdict};
use crate::shared::{ClientRoom, Worker, count_request, unless_dropped, unless_given};
use crate::visit::Visit;

/// How long what a client still sends is listened to before its connection is closed.
const LINGER: Duration = Duration::from_secs(1);

pub struct Connection {
    worker: Arc<Worker>,
    client: Client,
    peer: IpAddr,
    room: Arc<ClientRoom>,
    /// It has asked something before.
    proven: bool,
    head: RequestHead,
    exchange: Exchange,
    /// Memory set aside for the body of the request under way.
    kept: Kept,
}

/// What to do with the connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Keep,
    /// What was written must still reach the client.
    Close,
    /// Cut off: the client must not think that the answer is whole.
    Cut,
    /// The client takes nothing: what is on its way to it is thrown away, or the system would keep it.
    Abort,
}

/// Why a request is not proxied to its end.
enum Stop {
    /// Nothing was said yet: say this.
    Answer(Answer),
    Cut,
}

impl From<Answer> for Stop {
    fn from(answer: Answer) -> Stop {
        Stop::Answer(answer)
    }
}

/// What became of one try.
enum Tried {
    Done(After),
    Again,
}

fn judged(visit: &mut Visit, lease: Lease, verdict: Verdict) -> Result<Tried, Stop> {
    judge(visit, lease, verdict)?;
    Ok(Tried::Again)
}

impl Connection {
    pub fn new(worker: Arc<Worker>, client: Client, peer: IpAddr, room: ClientRoom) -> Connection {
        let config = &worker.shared.config;
        let exchange = Exchange::new(config.limits, config.timeouts);
        Connection {
            worker,
            client,
            peer,
            room: Arc::new(room),
            proven: false,
            head: RequestHead::default(),
            exchange,
            kept: Kept::default(),
        }
    }

    pub async fn serve(mut self) {
        let room = self.room.clone();
        let served = unless_dropped(&room, self.requests()).await;
        match served {
            Some(After::Keep) => {}
            Some(After::Close) => {
                unless_dropped(&room, self.close()).await;
            }
            Some(After::Cut) => self.cut(),
            // One that loses its room within an answer must not think that it is whole.
            Some(After::Abort) | None => self.client.abort(),
        }
    }

    /// Until the client has no more requests, or must have none.
    async fn requests(&mut self) -> After {
        loop {
            match self.read_head().await {
                Ok(true) => {}
                Ok(false) => return After::Keep,
                Err(answer) => {
                    self.head = RequestHead::default();
                    return match self.say(&answer, false).await {
                        Ok(()) => After::Close,
                        Err(_) => After::Abort,
                    };
                }
            }
            let counted = count_request(&self.worker.shared);
            let after = self.request().await;
            drop(counted);
            self.room.working(false);
            self.proven = true;
            if after != After::Keep {
                return after;
            }
            self.client.inbuf.rest();
            self.exchange.rest();
            self.kept = Kept::default();
        }
    }

    /// True: there is a request. False: the client is done.
    async fn read_head(&mut self) -> Result<bool, Answer> {
        let Connection { client, head, worker, proven, .. } = self;
        let config = &worker.shared.config;
        let (limits, timeouts) = (config.limits, config.timeouts);
        client.ticker.restart();
        let mut begun = false;
        let mut seen = 0;
        poll_fn(|cx| {
            loop {
                if !client.inbuf.is_empty() {
                    // Parsed when there is an end to it, not at every byte that trickles in. The first bytes
                    // are looked at in any case: they may be no HTTP at all.
                    let bytes = client.inbuf.bytes();
                    let parse = seen == 0 || ends_head(bytes, seen);
                    seen = bytes.len();
                    let read = if parse { head.read(bytes) } else { Ok(None) };
                    match read {
                        Ok(Some(len)) => {
                            client.inbuf.consume(len);
                            return Poll::Ready(Ok(true));
                        }
                        Ok(None) => {}
                        Err(bad) => {
                            let answer =
                                Answer::error(bad.status(), "bad_request", &bad.to_string());
                            return Poll::Ready(Err(answer));
                        }
                    }
                    if !client.inbuf.has_room(limits.head) {
                        let message = format!("the headers are larger than {} bytes", limits.head);
                        return Poll::Ready(Err(Answer::error(431, "headers_too_large", &message)));
                    }
                    if !begun {
                        begun = true;
                        client.ticker.restart();
                    }
                }
                match client.inbuf.poll_fill(&mut client.io, limits.head, cx) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Ok(false)),
                    Poll::Ready(Ok(_)) => {}
                    Poll::Pending => break,
                }
            }
            // Bytes that trickle in do not count as movement: the head has its time, and no more.
            let limit = match begun {
                true => timeouts.head,
                false if *proven => timeouts.idle,
                false => timeouts.first,
            };
            let idle = !begun && worker.shared.stopping();
            match client.ticker.poll_still(limit, cx) || idle {
                true => Poll::Ready(Ok(false)),
                false => Poll::Pending,
            }
        })
        .await
    }

    async fn request(&mut self) -> After {
        let started = Instant::now();
        self.exchange.begin(&self.head);
        match self.route(started).await {
            Ok(after) => after,
            Err(Stop::Cut) => After::Cut,
            Err(Stop::Answer(answer)) => self.reply(&answer).await,
        }
    }

    async fn route(&mut self, started: Instant) -> Result<After, Stop> {
        let shared = self.worker.shared.clone();
        let admission = Admission::new(&self.head, self.peer, &shared, started)?;
        let (skip, is_api) = (admission.skip, admission.is_api);
        let needed = admission.needs_body();
        self.gather(admission.caller.who(), needed).await?;
        let more = !self.exchange.rest.is_done();
        let body = match needed {
            true => self.exchange.plain_body(&self.head),
            false => Default::default(),
        };
        let mut visit = admission.visit(&shared, &self.head, &body, more)?;
        drop(body);
        // From here on the client waits for us, and not the other way round.
        self.room.working(true);
        let proxied = unless_given(visit.notice(), self.proxy(&mut visit, skip, is_api)).await;
        // Something of an answer may be on its way, and must not look whole.
        proxied.unwrap_or(Ok(After::Abort))
    }

    /// Reads the body before a replica is chosen, where that is needed or worth it.
    async fn gather(&mut self, who: Who, needed: bool) -> Result<(), Stop> {
        let shared = self.worker.shared.clone();
        let peek = shared.config.limits.peek;
        let length = self.head.length().map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let small = length.is_some_and(|n| n <= SMALL_BODY.min(peek));
        if self.exchange.rest.is_done() || self.head.upgrade() || !needed && !small {
            if self.head.expects_continue() && !self.exchange.rest.is_done() {
                self.say_continue().await?;
            }
            return Ok(());
        }
        let wanted = length.unwrap_or(peek).min(peek);
        let here = length.is_some_and(|n| self.client.inbuf.len() >= n);
        if self.head.expects_continue() && !here {
            self.say_continue().await?;
        }
        while !self.exchange.rest.is_done() && self.exchange.body.len() < wanted {
            self.kept.grow(&shared.memory, who, wanted).await?;
            let reading = self.exchange.gather(&mut self.client, self.kept.most);
            let gathered = self.kept.unless_lost(who, reading).await?;
            gathered.map_err(|fault| self.fault(fault))?;
        }
        self.kept.settle();
        Ok(())
    }

    async fn say_continue(&mut self) -> Result<(), Stop> {
        let said = self.exchange.say(&mut self.client, b"HTTP/1.1 100 Continue\r\n\r\n").await;
        said.map_err(|fault| self.fault(fault))
    }

    async fn proxy(&mut self, visit: &mut Visit, skip: usize, is_api: bool) -> Result<After, Stop> {
        self.exchange.up_head.clear();
        let out = &mut self.exchange.up_head;
        self.head.write_upstream(out, skip, holds_token);
        let config = &self.worker.shared.config;
        let rule = visit.entry.route.retry;
        let path = &self.head.path()[skip..];
        let mut tries = Tries::new(rule, self.head.method(), path, config.limits.tries);
        loop {
            match self.attempt(visit, &mut tries, is_api).await? {
                Tried::Done(after) => return Ok(after),
                Tried::Again => {}
            }
        }
    }

    /// Sends the request to one replica.
    async fn attempt(
        &mut self,
        visit: &mut Visit,
        tries: &mut Tries,
        is_api: bool,
    ) -> Result<Tried, Stop> {
        let limit = self.worker.shared.config.limits.buffer;
        let lease = self.client.unless_gone(limit, visit.replica()).await;
        let lease = match lease.map_err(|_| Stop::Cut)? {
            Ok(lease) => lease,
            Err(answer) => return Err(tries.last_failure(answer).into()),
        };
        let pooled = !tries.wants_new();
        let pool = &self.worker.pool;
        let reused = pooled.then(|| pool.take(lease.choice.listing, visit.who())).flatten();
        let was_reused = reused.is_some();
        let mut up = match reused {
            Some(up) => up,
            None => {
                let shared = &self.worker.shared;
                let within = shared.config.timeouts.connect;
                let connecting = connect(&lease.choice.address, shared.bound, within);
                match self.client.unless_gone(limit, connecting).await.map_err(|_| Stop::Cut)? {
                    Ok(up) => up,
                    Err(error) => {
                        let verdict = tries.not_connected(&error);
                        return judged(visit, lease, verdict);
                    }
                }
            }
        };
        self.exchange.begin_try();
        match self.final_head(&mut up).await {
            Ok(()) => {}
            Err(Fault::Broken { before_answer: true }) => {
                let (repeatable, sent) = (self.exchange.can_repeat(), self.exchange.sent());
                let verdict = tries.broken(Broken { reused: was_reused, repeatable, sent });
                return judged(visit, lease, verdict);
            }
            Err(fault @ (Fault::Broken { .. } | Fault::BadAnswer(_) | Fault::Silent)) => {
                visit.failed();
                lease.finish(Outcome::Failed, Instant::now());
                return Err(self.fault(fault));
            }
            Err(fault) => return Err(self.fault(fault)),
        }
        let status = self.exchange.answer.status;
        if let Some(verdict) = tries.answered(status, self.exchange.can_repeat()) {
            return judged(visit, lease, verdict);
        }
        self.finish(visit, lease, up, is_api).await
    }

    /// The head of the answer that counts; those before it are passed on.
    async fn final_head(&mut self, up: &mut TcpStream) -> Result<(), Fault> {
        loop {
            self.exchange.head(&mut self.client, up).await?;
            let status = self.exchange.answer.status;
            if status / 100 != 1 || status == 101 {
                return Ok(());
            }
            // The router has said 100 itself, and HTTP/1.0 knows nothing of the kind.
            if status != 100 && self.head.minor == 1 {
                self.exchange.interim(&mut self.client).await?;
            }
        }
    }

    /// Passes the answer on.
    async fn finish(
        &mut self,
        visit: &mut Visit,
        lease: Lease,
        mut up: TcpStream,
        is_api: bool,
    ) -> Result<Tried, Stop> {
        let status = self.exchange.answer.status;
        let kind = answer_kind(&self.exchange.answer, is_api);
        visit.answer_begins(status, kind);
        if status == 101 {
            return self.upgraded(visit, lease, up).await;
        }
        if self.exchange.let_go() {
            self.kept = Kept::default();
        }
        if kind == AnswerKind::Events {
            // A stream may last for minutes; its replica is well from its beginning.
            lease.answered();
        }
        let keep = self.head.keep_alive() && !self.worker.shared.stopping();
        let delimited = self.exchange.begin_answer(&self.head, keep);
        let relayed = self.exchange.relay(&mut self.client, &mut up, visit).await;
        let now = Instant::now();
        match relayed {
            Ok(reusable) => {
                visit.answered();
                let outcome = if status >= 500 { Outcome::Failed } else { Outcome::Ok };
                if reusable {
                    self.worker.pool.put(lease.choice.listing, visit.who(), up, now);
                }
                lease.finish(outcome, now);
                let whole = self.exchange.body_is_over(&mut self.client);
                let after = if keep && delimited && whole { After::Keep } else { After::Close };
                Ok(Tried::Done(after))
            }
            Err(fault) => {
                if !fault.is_clients() {
                    visit.failed();
                    lease.finish(Outcome::Failed, now);
                }
                let slow = matches!(fault, Fault::Slow);
                Ok(Tried::Done(if slow { After::Abort } else { After::Cut }))
            }
        }
    }

    async fn upgraded(
        &mut self,
        visit: &mut Visit,
        lease: Lease,
        mut up: TcpStream,
    ) -> Result<Tried, Stop> {
        if !self.head.upgrade() || !self.exchange.answer.upgrade() {
            visit.failed();
            lease.finish(Outcome::Failed, Instant::now());
            let message = "the replica switched to a protocol that nobody asked for";
            return Err(Answer::error(502, "bad_answer", message).into());
        }
        lease.answered();
        self.exchange.begin_upgrade();
        let tunnelled = self.exchange.tunnel(&mut self.client, &mut up).await;
        if tunnelled.is_ok() {
            visit.answered();
        }
        lease.finish(Outcome::Ok, Instant::now());
        Ok(Tried::Done(After::Cut))
    }

    /// What a fault means for the client, while nothing of an answer was sent.
    fn fault(&self, fault: Fault) -> Stop {
        match fault {
            Fault::Gone => Stop::Cut,
            fault => Stop::Answer(fault.answer()),
        }
    }

    /// An answer of the router's own.
    async fn reply(&mut self, answer: &Answer) -> After {
        self.exchange.body_is_over(&mut self.client);
        // What lies here of the body already is no reason to close.
        let mut rest = self.exchange.rest.clone();
        if let Ok(n) = rest.advance(self.client.inbuf.bytes(), |_| {}) {
            self.client.inbuf.consume(n);
        }
        let keep = rest.is_done() && self.head.keep_alive() && self.head.minor == 1;
        let keep = keep && !self.worker.shared.stopping();
        match self.say(answer, keep).await {
            // Half an answer may be on its way, and another one must not follow it.
            Err(_) => After::Abort,
            Ok(()) if keep => After::Keep,
            Ok(()) => After::Close,
        }
    }

    async fn say(&mut self, answer: &Answer, keep: bool) -> Result<(), Fault> {
        let mut out = Vec::with_capacity(256 + answer.body.len());
        answer.write_to(&mut out, self.head.method(), keep);
        self.exchange.say(&mut self.client, &out).await
    }

    /// What the request took is given back before the client is waited for.
    async fn close(self) {
        let Connection { mut client, head, exchange, kept, .. } = self;
        drop((head, exchange, kept));
        client.close(LINGER).await;
    }

    /// A client of HTTP/1.0 knows by the end of the connection that an answer is whole, unless it is cut.
    fn cut(self) {
        if self.head.minor == 0 && self.exchange.rest == Framing::EMPTY {
            self.client.abort();
        }
    }
}
