//! One request over HTTP/2.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::UnderWay;
use super::body::{AnswerBody, Passing, Up, Upload};
use super::request::{Asked, upload};
use super::taken::Taken;
use crate::access::holds_token;
use crate::admit::{Admission, answer_kind, judge};
use crate::answer::Answer;
use crate::crowding::{RequestRoom, lost_room};
use crate::desk::Lease;
use crate::fault::Fault;
use crate::http::{BadHead, Buffer, ResponseHead, Ticker};
use crate::kept::{Kept, SMALL_BODY};
use crate::logic::{AnswerKind, Outcome, Who};
use crate::pool::connect;
use crate::retry::{Broken, Sent, Tries};
use crate::shared::{Count, Shared, Worker, count_request, unless_given};
use crate::visit::Visit;

type Answered = Response<AnswerBody>;

pub async fn answer(
    worker: Arc<Worker>,
    peer: IpAddr,
    request: Request<Incoming>,
    under_way: UnderWay,
) -> Result<Answered, Infallible> {
    let is_head = request.method() == http::Method::HEAD;
    let mut stream = match Asked::new(request) {
        Ok(asked) => Stream { worker, asked, under_way: Some(under_way) },
        Err(bad) => {
            let answer = Answer::error(bad.status(), "bad_request", &bad.to_string());
            return Ok(own_answer(answer, is_head));
        }
    };
    let answered = stream.route(peer).await;
    Ok(answered.unwrap_or_else(|answer| {
        stream.answered_here(answer.status);
        own_answer(answer, is_head)
    }))
}

fn own_answer(answer: Answer, is_head: bool) -> Answered {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let retry_after = answer.retry_after_secs();
    let length = answer.body.len();
    let body = AnswerBody::Own((!is_head).then(|| Bytes::from(answer.body)));
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    headers.insert(header::CONTENT_LENGTH, length.into());
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

struct Stream {
    worker: Arc<Worker>,
    asked: Asked,
    under_way: Option<UnderWay>,
}

/// An answer's head has come.
struct Head {
    up: Up,
    answer: ResponseHead,
    buffer: Buffer,
    all_sent: bool,
}

impl Stream {
    async fn route(&mut self, peer: IpAddr) -> Result<Answered, Answer> {
        let started = Instant::now();
        let counted = count_request(&self.worker.shared);
        let shared = self.worker.shared.clone();
        let admission = Admission::new(&self.asked.head, peer, &shared, started)?;
        let (skip, is_api) = (admission.skip, admission.is_api);
        let needed = admission.needs_body();
        let who = admission.caller.who();
        let half = self.is_half().then(|| shared.crowding.half(who)).flatten();
        let notice = half.as_ref().map(RequestRoom::notice);
        let gathered = unless_given(notice, self.gather(&shared, who, needed)).await;
        let _kept = gathered.ok_or_else(|| lost_room(who))??;
        drop(half);
        let more = !self.asked.ended;
        let mut visit = admission.visit(&shared, &self.asked.head, &self.asked.body, more)?;
        if let Some(under_way) = &mut self.under_way {
            under_way.works();
        }
        let proxied = unless_given(visit.notice(), self.proxy(&mut visit, skip)).await;
        let (lease, head) = proxied.ok_or_else(|| lost_room(who))??;
        Ok(self.pass_on(visit, lease, head, is_api, counted))
    }

    /// More than one such stream of a connection takes up room: HTTP/1.1 has one.
    fn is_half(&self) -> bool {
        !self.asked.ended && self.under_way.as_ref().is_some_and(UnderWay::among_halves)
    }

    /// The router has answered itself.
    fn answered_here(&self, status: u16) {
        let Some(under_way) = &self.under_way else { return };
        match status {
            408 => under_way.stalled(),
            _ if self.asked.ended => under_way.asked(),
            _ => {}
        }
    }

    /// Reads the body before a replica is chosen, where that is needed or worth it.
    async fn gather(
        &mut self,
        shared: &Arc<Shared>,
        who: Who,
        needed: bool,
    ) -> Result<Kept, Answer> {
        let config = &shared.config;
        let limits = config.limits;
        let peek = if needed { limits.peek } else { SMALL_BODY.min(limits.peek) };
        let length = self.asked.head.length();
        let mut kept = Kept::default();
        if needed || length.is_some_and(|n| n <= peek as u64) {
            while !self.asked.ended && self.asked.body.len() < peek {
                kept.grow(&shared.memory, who, peek).await?;
                let reading = self.asked.gather(kept.most, limits.body, config.timeouts.body);
                let gathered = kept.unless_lost(who, reading).await?;
                gathered.map_err(|fault| fault.answer())?;
            }
            kept.settle();
        }
        Ok(kept)
    }

    async fn proxy(&mut self, visit: &mut Visit, skip: usize) -> Result<(Lease, Head), Answer> {
        let mut out = Vec::new();
        self.asked.head.write_upstream(&mut out, skip, holds_token);
        self.asked.write_body(&mut out);
        let most = self.worker.shared.config.limits.tries;
        let rule = visit.entry.route.retry;
        let path = &self.asked.head.path()[skip..];
        let mut tries = Tries::new(rule, self.asked.head.method(), path, most);
        loop {
            let lease = visit.replica().await.map_err(|answer| tries.last_failure(answer))?;
            let pooled = !tries.wants_new();
            let pool = &self.worker.pool;
            let reused = pooled.then(|| pool.take(lease.choice.listing, visit.who())).flatten();
            let was_reused = reused.is_some();
            let mut sent = Sent::Nothing;
            let shared = &self.worker.shared;
            let within = shared.config.timeouts.connect;
            let up = match reused {
                Some(up) => Ok(up),
                None => connect(&lease.choice.address, shared.bound, within).await,
            };
            let verdict = match up {
                Err(error) => tries.not_connected(&error),
                Ok(up) => match self.ask(up, &out, &mut sent).await {
                    Ok(head) => {
                        let repeatable = self.asked.ended;
                        match tries.answered(head.answer.status, repeatable) {
                            None => return Ok((lease, head)),
                            Some(verdict) => verdict,
                        }
                    }
                    Err(Fault::Broken { before_answer: true }) => {
                        let repeatable = self.asked.ended;
                        tries.broken(Broken { reused: was_reused, repeatable, sent })
                    }
                    Err(other) => {
                        if !other.is_clients() {
                            visit.failed();
                            lease.finish(Outcome::Failed, Instant::now());
                        }
                        return Err(other.answer());
                    }
                },
            };
            judge(visit, lease, verdict)?;
        }
    }

    /// Sends the request, and waits for the head of an answer meanwhile.
    async fn ask(
        &mut self,
        mut stream: TcpStream,
        out: &[u8],
        sent: &mut Sent,
    ) -> Result<Head, Fault> {
        let config = &self.worker.shared.config;
        let (limits, patience) = (config.limits, config.timeouts.answer);
        let rest = if self.asked.ended { None } else { self.asked.take_rest() };
        let Some(rest) = rest else {
            let whole = ask_whole(&mut stream, out, limits.head, sent);
            let timed = tokio::time::timeout(patience, whole).await;
            let (answer, buffer) = timed.map_err(|_| Fault::Silent)??;
            let all_sent = *sent == Sent::All;
            return Ok(Head { up: Up::Whole(stream), answer, buffer, all_sent });
        };
        *sent = Sent::Some;
        let (mut read, mut write) = stream.into_split();
        let out = out.to_vec();
        let (chunked, body_patience) = (self.asked.chunked, config.timeouts.body);
        let left = limits.body;
        let fault = Arc::new(OnceLock::new());
        let noted = fault.clone();
        let task = tokio::spawn(async move {
            let sending = async {
                let broken = |_| Fault::Broken { before_answer: true };
                write.write_all(&out).await.map_err(broken)?;
                upload(rest, &mut write, chunked, left, body_patience).await
            };
            match sending.await {
                // Dropping it would close this direction, which some servers take for the client's leaving.
                Ok(()) => write.forget(),
                // Before the replica learns of it, and breaks off too.
                Err(fault) => drop(noted.set(fault)),
            }
        });
        let upload = Upload { task, fault };
        let timed = tokio::time::timeout(patience, read_head(&mut read, limits.head)).await;
        let read_all = timed.unwrap_or(Err(Fault::Silent));
        let (answer, buffer) =
            read_all.map_err(|f| upload.clients_fault().cloned().unwrap_or(f))?;
        let up = Up::Uploading { read, upload };
        Ok(Head { up, answer, buffer, all_sent: false })
    }

    fn pass_on(
        &mut self,
        mut visit: Visit,
        lease: Lease,
        head: Head,
        is_api: bool,
        counted: Count,
    ) -> Answered {
        let Head { up, answer, buffer, all_sent } = head;
        let kind = answer_kind(&answer, is_api);
        visit.answer_begins(answer.status, kind);
        if kind == AnswerKind::Events {
            // A stream may last for minutes; its replica is well from its beginning.
            lease.answered();
        }
        let config = &self.worker.shared.config;
        let under_way = self.under_way.take().expect("a request is answered once");
        let taken = Taken::here();
        taken.may_lose(visit.notice());
        let mut passing = Passing {
            worker: self.worker.clone(),
            visit,
            lease: Some(lease),
            up: Some(up),
            buffer,
            framing: answer.framing(self.asked.head.method()),
            ticker: Ticker::new(config.timeouts.tick()),
            status: answer.status,
            reusable: answer.keep_alive() && all_sent,
            silence_max: config.timeouts.answer,
            buffer_max: config.limits.buffer,
            taken,
            _counted: (counted, under_way),
        };
        if passing.framing.is_done() {
            passing.finish();
        }
        let mut response = Response::new(AnswerBody::Passing(Box::new(passing)));
        *response.status_mut() =
            StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
        for (name, value) in answer.fields.passed() {
            let name = HeaderName::from_bytes(name);
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
                response.headers_mut().append(name, value);
            }
        }
        response
    }
}

/// Sends a request that is known to its end. `sent` says how much of it was taken by then.
async fn ask_whole(
    stream: &mut TcpStream,
    out: &[u8],
    head_max: usize,
    sent: &mut Sent,
) -> Result<(ResponseHead, Buffer), Fault> {
    let (mut read, mut write) = stream.split();
    let mut reading = std::pin::pin!(read_head(&mut read, head_max));
    let (mut at, mut refused) = (0, false);
    poll_fn(|cx| {
        while at < out.len() && !refused {
            match Pin::new(&mut write).poll_write(cx, &out[at..]) {
                Poll::Ready(Ok(n)) if n > 0 => at += n,
                // There may be an answer all the same.
                Poll::Ready(_) => refused = true,
                Poll::Pending => break,
            }
            *sent = match at {
                0 => Sent::Nothing,
                n if n == out.len() => Sent::All,
                _ => Sent::Some,
            };
        }
        reading.as_mut().poll(cx)
    })
    .await
}

/// The head of the answer that counts, and what came after it.
async fn read_head<R: tokio::io::AsyncRead + Unpin>(
    from: &mut R,
    head_max: usize,
) -> Result<(ResponseHead, Buffer), Fault> {
    let (mut head, mut buffer) = (ResponseHead::default(), Buffer::default());
    loop {
        if let Some(len) = head.read(buffer.bytes()).map_err(Fault::BadAnswer)? {
            buffer.consume(len);
            match head.status {
                101 => return Err(Fault::BadAnswer(BadHead::Unknown("another protocol"))),
                100..=199 => continue,
                _ => return Ok((head, buffer)),
            }
        }
        if !buffer.has_room(head_max) {
            return Err(Fault::BadAnswer(BadHead::TooMany));
        }
        let before_answer = buffer.is_empty();
        match poll_fn(|cx| buffer.poll_fill(from, head_max, cx)).await {
            Ok(0) | Err(_) => return Err(Fault::Broken { before_answer }),
            Ok(_) => {}
        }
    }
}
