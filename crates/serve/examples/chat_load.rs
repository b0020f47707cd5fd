//! The load for `bench/prefix`: people who hold conversations, from one thread.
//!
//! `chat_load TALKS SCALE WARM_UP_S MEASURED_S ADDR` where TALKS is a file with one JSON object: the `systems`'
//! tokens, and the `talks`: when each first asks, on which system prompt, how many of its turns are `past`
//! then, and `[question tokens, answer tokens, pause]` of every turn. Talks begin when they are due, whether
//! others were answered or not; within one, the next question comes a pause after the answer. All seconds are
//! the model servers', SCALE of them in one of ours. A request counts from when it was due, and is part of the
//! measurement if that was after the warm-up. Prints one JSON object.
#![allow(clippy::print_stdout)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

/// After the end, for answers that are still on their way, in our seconds.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Deserialize)]
struct Trace {
    systems: Vec<usize>,
    talks: Vec<Talk>,
}

#[derive(Deserialize)]
struct Talk {
    at: f64,
    system: usize,
    past: usize,
    turns: Vec<(usize, usize, f64)>,
}

struct Plan {
    addr: String,
    scale: f64,
    began: Instant,
    warm_up_s: f64,
    end_s: f64,
    systems: Vec<usize>,
    seen: RefCell<Seen>,
}

/// What was asked after the warm-up.
#[derive(Default)]
struct Seen {
    asked: u64,
    answered: u64,
    failed: BTreeMap<String, u64>,
    /// To the first token, in the servers' seconds.
    first: Vec<f64>,
    /// How late requests were sent, in our seconds: what this machine adds.
    late: Vec<f64>,
    prompt_tokens: u64,
    cached_tokens: u64,
    per_replica: BTreeMap<String, u64>,
}

struct Answered {
    text: String,
    first: Instant,
    usage: Value,
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [talks, scale, warm_up_s, measured_s, addr] = &args[..] else {
        panic!("chat_load TALKS SCALE WARM_UP_S MEASURED_S ADDR");
    };
    let number = |text: &String| text.parse::<f64>().expect("seconds and the scale are numbers");
    let trace: Trace = serde_json::from_slice(&std::fs::read(talks)?)?;
    let plan = Rc::new(Plan {
        addr: addr.clone(),
        scale: number(scale),
        began: Instant::now(),
        warm_up_s: number(warm_up_s),
        end_s: number(warm_up_s) + number(measured_s),
        systems: trace.systems,
        seen: RefCell::default(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let tasks: Vec<_> = trace
        .talks
        .into_iter()
        .enumerate()
        .map(|(number, talk)| local.spawn_local(hold(plan.clone(), number, talk)))
        .collect();
    let all = async {
        for task in tasks {
            task.await.expect("a conversation does not panic");
        }
    };
    let until = plan.time(plan.end_s) + PATIENCE;
    let finished = local
        .block_on(&runtime, async { tokio::time::timeout_at(until.into(), all).await.is_ok() });
    plan.seen.borrow_mut().print(&plan, finished);
    Ok(())
}

impl Plan {
    fn time(&self, at_s: f64) -> Instant {
        self.began + Duration::from_secs_f64(at_s / self.scale)
    }

    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64() * self.scale
    }
}

/// One conversation, to its end or the end of the measurement.
async fn hold(plan: Rc<Plan>, number: usize, talk: Talk) {
    let mut said = vec![("system", text(&("system", talk.system), plan.systems[talk.system]))];
    let mut due_s = talk.at;
    for (turn, &(question, answer, pause_s)) in talk.turns.iter().enumerate() {
        if turn < talk.past {
            said.push(("user", text(&("question", number, turn), question)));
            said.push(("assistant", text(&("answer", number, turn), answer)));
            continue;
        }
        if due_s >= plan.end_s {
            return;
        }
        tokio::time::sleep_until(plan.time(due_s).into()).await;
        said.push(("user", text(&("question", number, turn), question)));
        plan.seen.borrow_mut().asked += u64::from(due_s >= plan.warm_up_s);
        let asked = ask(&plan.addr, &said, answer).await;
        plan.note(due_s, &asked);
        let Ok((_, asked)) = asked else { return };
        said.push(("assistant", asked.text));
        due_s = plan.now_s() + pause_s;
    }
}

type Asked = Result<(Instant, Answered), String>;

async fn ask(addr: &str, said: &[(&str, String)], answer_tokens: usize) -> Asked {
    let messages: Vec<Value> =
        said.iter().map(|(role, text)| json!({"role": role, "content": text})).collect();
    let body = json!({"model": "m", "messages": messages, "max_tokens": answer_tokens,
        "stream": true, "stream_options": {"include_usage": true}});
    let sent = Instant::now();
    let answered = exchange(addr, body.to_string().into()).await?;
    Ok((sent, answered))
}

async fn exchange(addr: &str, body: Bytes) -> Result<Answered, String> {
    let stream = TcpStream::connect(addr).await.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    let client = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = client.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let request = Request::post("/v1/chat/completions")
        .header("host", addr)
        .header("content-type", "application/json")
        .header("connection", "close")
        .body(Whole(Some(body)))
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    if response.status() != 200 {
        return Err(response.status().as_u16().to_string());
    }
    read(response.into_body()).await
}

async fn read(mut body: Incoming) -> Result<Answered, String> {
    let (mut text, mut first, mut usage) = (String::new(), None, None);
    let mut rest: Vec<u8> = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let frame = frame.map_err(|error| error.to_string())?;
        rest.extend_from_slice(&frame.into_data().unwrap_or_default());
        while let Some(end) = rest.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = rest.drain(..end + 2).collect();
            let Ok(event) = serde_json::from_slice::<Value>(event.get(6..).unwrap_or_default())
            else {
                continue;
            };
            if let Some(words) = event["choices"][0]["delta"]["content"].as_str() {
                first.get_or_insert_with(Instant::now);
                text.push_str(words);
            }
            if event["usage"].is_object() {
                usage = Some(event);
            }
        }
    }
    match (first, usage) {
        (Some(first), Some(usage)) => Ok(Answered { text, first, usage }),
        _ => Err("a stream that ends too early".to_owned()),
    }
}

impl Plan {
    fn note(&self, due_s: f64, asked: &Asked) {
        if due_s < self.warm_up_s {
            return;
        }
        let mut seen = self.seen.borrow_mut();
        let (sent, answered) = match asked {
            Ok(asked) => asked,
            Err(why) => return *seen.failed.entry(why.clone()).or_default() += 1,
        };
        let due = self.time(due_s);
        let usage = &answered.usage["usage"];
        seen.answered += 1;
        seen.late.push((*sent - due).as_secs_f64());
        seen.first.push((answered.first - due).as_secs_f64() * self.scale);
        seen.prompt_tokens += usage["prompt_tokens"].as_u64().unwrap_or(0);
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        seen.cached_tokens += cached.as_u64().unwrap_or(0);
        let replica = answered.usage["system_fingerprint"].as_str().unwrap_or("?");
        *seen.per_replica.entry(replica.to_owned()).or_default() += 1;
    }
}

impl Seen {
    fn print(&mut self, plan: &Plan, finished: bool) {
        self.first.sort_by(f64::total_cmp);
        self.late.sort_by(f64::total_cmp);
        let quantile = |values: &[f64], part: f64| {
            let at = (values.len() as f64 * part) as usize;
            values.get(at.min(values.len().saturating_sub(1))).copied()
        };
        let mean = self.first.iter().sum::<f64>() / self.first.len().max(1) as f64;
        let result = json!({
            "asked": self.asked, "answered": self.answered, "failed": self.failed,
            "finished": finished, "measured_s": plan.end_s - plan.warm_up_s,
            "prompt_tokens": self.prompt_tokens, "cached_tokens": self.cached_tokens,
            "first_mean_s": mean, "first_p50_s": quantile(&self.first, 0.5),
            "first_p90_s": quantile(&self.first, 0.9), "first_p99_s": quantile(&self.first, 0.99),
            "late_p99_ms": quantile(&self.late, 0.99).map(|s| s * 1e3),
            "per_replica": self.per_replica,
        });
        println!("{result}");
    }
}

/// The same words for the same things, four bytes a token.
fn text(what: &impl std::hash::Hash, tokens: usize) -> String {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    let mut state = hasher.finish() | 1;
    let mut text = String::with_capacity(tokens * 4);
    for _ in 0..tokens {
        // xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (0..3).for_each(|n| text.push((b'a' + (state >> (8 * n + 8)) as u8 % 26) as char));
        text.push(' ');
    }
    text
}

struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.0.as_ref().map_or(0, Bytes::len) as u64)
    }
}
