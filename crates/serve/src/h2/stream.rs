//! One request over HTTP/2.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tutti_model::RoutePolicy;

use super::UnderWay;
use super::body::{AnswerBody, Passing, Sending, Slot, Up, Upload};
use super::request::{Asked, upload};
use crate::access::{Caller, identify, wall_clock};
use crate::answer::Answer;
use crate::desk::Lease;
use crate::fault::Fault;
use crate::find::{Found, find, find_by_model};
use crate::http::{BadHead, Buffer, ResponseHead, Ticker};
use crate::logic::{AnswerKind, Outcome, scan_request};
use crate::own;
use crate::pool::connect;
use crate::retry::{Tries, Verdict};
use crate::shared::{Kept, SMALL_BODY, Worker, count_request};
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
    Ok(stream.route(peer).await.unwrap_or_else(|answer| own_answer(answer, is_head)))
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
        shared.has_room()?;
        let routes = shared.routes();
        let head = &self.asked.head;
        let caller = identify(head, peer, &routes, wall_clock)?;
        let (entry, skip) = match find(head, &routes, &caller)? {
            Found::Own => return Err(own::answer(head, &shared, &routes, &caller)),
            Found::Endpoint { entry, skip } => (Some(entry), skip),
            Found::ByModel => (None, 0),
        };
        let is_api = head.path()[skip..].starts_with("/v1/");
        let by_prompt = entry.as_ref().is_some_and(|e| e.route.policy == RoutePolicy::Prefix);
        let mut visit = entry.map(|e| Visit::begin(&e, &caller, started)).transpose()?;
        let needed = visit.is_none() || is_api && by_prompt;
        let limits = shared.config.limits;
        let peek = if needed { limits.peek } else { SMALL_BODY.min(limits.peek) };
        let mut kept = Kept::default();
        if needed || head.length().is_some_and(|n| n <= peek as u64) {
            let patience = shared.config.timeouts.body;
            while !self.asked.ended && self.asked.body.len() < peek {
                kept.grow(&shared, peek)?;
                let gathered = self.asked.gather(kept.most, limits.body, patience).await;
                gathered.map_err(|fault| fault.answer())?;
            }
        }
        if visit.is_none() {
            let (entry, prompt) = find_by_model(&self.asked.body, &routes, &caller)?;
            let mut new = Visit::begin(&entry, &caller, started)?;
            new.wish.prompt = prompt;
            visit = Some(new);
        } else if let Some(visit) = visit.as_mut().filter(|_| by_prompt && is_api) {
            visit.wish.prompt = Some(scan_request(&self.asked.body, true).blocks);
        }
        let mut visit = visit.expect("it was just made if there was none");
        if visit.entry.route.policy == RoutePolicy::Sticky {
            let value = self.asked.head.fields.named(&visit.entry.route.sticky_header);
            visit.wish.sticky = value.map(|v| String::from_utf8_lossy(v).into_owned());
        }
        let (lease, head) = self.proxy(&mut visit, &caller, skip, is_api).await?;
        Ok(self.pass_on(visit, lease, head, is_api, counted))
    }

    async fn proxy(
        &mut self,
        visit: &mut Visit,
        caller: &Caller,
        skip: usize,
        is_api: bool,
    ) -> Result<(Lease, Head), Answer> {
        let mut out = Vec::new();
        self.asked.head.write_upstream(&mut out, skip, |known| caller.hidden.hides(known));
        self.asked.write_body(&mut out);
        let most = self.worker.shared.config.limits.tries;
        let rule = visit.entry.route.retry;
        let mut tries = Tries::new(rule, self.asked.head.method(), is_api, most);
        loop {
            let lease = visit.replica().await.map_err(|answer| tries.last_failure(answer))?;
            let reused = self.worker.pool.take(&lease.choice.address);
            let was_reused = reused.is_some();
            let within = self.worker.shared.config.timeouts.connect;
            let up = match reused {
                Some(up) => Ok(up),
                None => connect(&lease.choice.address, within).await,
            };
            let verdict = match up {
                Err(error) => tries.not_connected(&error),
                Ok(up) => match self.ask(up, &out).await {
                    Ok(head) => {
                        let repeatable = self.asked.ended;
                        match tries.answered(head.answer.status, repeatable) {
                            None => return Ok((lease, head)),
                            Some(verdict) => verdict,
                        }
                    }
                    Err(Fault::Broken { before_answer: true }) => {
                        tries.broken(was_reused, self.asked.ended)
                    }
                    Err(other) => {
                        visit.failed();
                        lease.finish(Outcome::Failed, Instant::now());
                        return Err(other.answer());
                    }
                },
            };
            judge(visit, lease, verdict)?;
        }
    }

    /// Sends the request, and waits for the head of an answer meanwhile.
    async fn ask(&mut self, stream: TcpStream, out: &[u8]) -> Result<Head, Fault> {
        let config = &self.worker.shared.config;
        let (limits, patience) = (config.limits, config.timeouts.answer);
        let rest = if self.asked.ended { None } else { self.asked.take_rest() };
        let (mut read, mut write) = stream.into_split();
        let Some(rest) = rest else {
            let whole = ask_whole(&mut read, &mut write, out, limits.head);
            let timed = tokio::time::timeout(patience, whole).await;
            let (answer, buffer, all_sent) = timed.map_err(|_| Fault::Silent)??;
            let up = Up { read, sending: Sending::Done(write) };
            return Ok(Head { up, answer, buffer, all_sent });
        };
        let out = out.to_vec();
        let (chunked, body_patience) = (self.asked.chunked, config.timeouts.body);
        let left = limits.body;
        let task = Upload(tokio::spawn(async move {
            let broken = |_| Fault::Broken { before_answer: true };
            write.write_all(&out).await.map_err(broken)?;
            upload(rest, write, chunked, left, body_patience).await
        }));
        let timed = tokio::time::timeout(patience, read_head(&mut read, limits.head)).await;
        let (answer, buffer) = timed.map_err(|_| Fault::Silent)??;
        let up = Up { read, sending: Sending::Rest { _upload: task } };
        Ok(Head { up, answer, buffer, all_sent: false })
    }

    fn pass_on(
        &mut self,
        mut visit: Visit,
        lease: Lease,
        head: Head,
        is_api: bool,
        counted: crate::shared::Count,
    ) -> Answered {
        let Head { up, answer, buffer, all_sent } = head;
        let kind = match is_api && answer.status < 400 {
            true if answer.is_event_stream() => AnswerKind::Events,
            true if answer.is_json() => AnswerKind::Json,
            _ => AnswerKind::Other,
        };
        visit.answer_begins(answer.status, kind);
        lease.answered();
        let config = &self.worker.shared.config;
        let under_way = self.under_way.take().expect("a request is answered once");
        let slot = Arc::new(Slot::new(None));
        under_way.watch(&slot);
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
            offered: Some(Instant::now()),
            _counted: (counted, under_way),
        };
        if passing.framing.is_done() {
            passing.finish();
        }
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(passing);
        let mut response = Response::new(AnswerBody::Passing(slot));
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

fn judge(visit: &mut Visit, lease: Lease, verdict: Verdict) -> Result<(), Answer> {
    let choice = lease.choice.clone();
    lease.finish(verdict.outcome, Instant::now());
    if let Some(answer) = verdict.give_up {
        visit.failed();
        return Err(answer);
    }
    if verdict.elsewhere {
        visit.wish.tried.push(choice.key);
        visit.retried(choice.revision);
    }
    Ok(())
}

/// Sends a request that is known to its end. Says whether all of it was taken before the answer came.
async fn ask_whole(
    read: &mut OwnedReadHalf,
    write: &mut OwnedWriteHalf,
    out: &[u8],
    head_max: usize,
) -> Result<(ResponseHead, Buffer, bool), Fault> {
    let mut sending = std::pin::pin!(write.write_all(out));
    let mut reading = std::pin::pin!(read_head(read, head_max));
    let mut sent = None;
    let (answer, buffer) = poll_fn(|cx| {
        if sent.is_none()
            && let Poll::Ready(result) = sending.as_mut().poll(cx)
        {
            // If that failed, there may be an answer all the same.
            sent = Some(result.is_ok());
        }
        reading.as_mut().poll(cx)
    })
    .await?;
    Ok((answer, buffer, sent == Some(true)))
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
