//! Back ends for `bench/prefix`: model servers without a model, as vLLM is one in rough.
//!
//! `chat_backend SCALE CACHE_TOKENS PREFILL_TOKENS_PER_S PREFILL_OVERHEAD_S TOKEN_S SLOTS PORT…` listens on
//! each port of 127.0.0.1, each one a server of its own. It answers `POST /v1/chat/completions` with a stream
//! of `max_tokens` tokens. So many requests run at a time, the rest waits in the order in which it came.
//! Prefill goes one after another, since it is what a GPU is busy with; tokens come at a fixed pace. A
//! prefix cache of blocks, hashed in a chain over the text, spares prefill; the least recently used blocks go.
//! All waiting is by timers, SCALE times as fast as the figures say, so that no core is busy meanwhile.
//!
//! Not in it: prefill slows no decoding down, and requests that run do not pin their blocks.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

/// Of text. What a token is depends on the model; four bytes are about right for English.
const BYTES_PER_TOKEN: usize = 4;
/// vLLM's default.
const TOKENS_PER_BLOCK: usize = 16;
const BLOCK_BYTES: usize = BYTES_PER_TOKEN * TOKENS_PER_BLOCK;
/// Tokens of an answer that come as one event after the first one, as vLLM's `--stream-interval` does it.
const TOKENS_PER_EVENT: usize = 16;

#[derive(Clone, Copy)]
struct Figures {
    scale: f64,
    cache_blocks: usize,
    prefill_tokens_per_s: f64,
    prefill_overhead_s: f64,
    token_s: f64,
    slots: usize,
}

fn main() -> std::io::Result<()> {
    let args: Vec<f64> = std::env::args()
        .skip(1)
        .map(|arg| arg.parse().expect("all arguments are numbers"))
        .collect();
    let [scale, cache_tokens, prefill_tokens_per_s, prefill_overhead_s, token_s, slots, ports @ ..] =
        &args[..]
    else {
        panic!("six figures and ports are needed");
    };
    let figures = Figures {
        scale: *scale,
        cache_blocks: *cache_tokens as usize / TOKENS_PER_BLOCK,
        prefill_tokens_per_s: *prefill_tokens_per_s,
        prefill_overhead_s: *prefill_overhead_s,
        token_s: *token_s,
        slots: *slots as usize,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut listening = Vec::new();
        for (number, port) in ports.iter().enumerate() {
            let listener = TcpListener::bind(("127.0.0.1", *port as u16)).await?;
            listening.push(tokio::spawn(accept(listener, Arc::new(Server::new(number, figures)))));
        }
        for task in listening {
            task.await.expect("the accept loop runs for ever");
        }
        Ok(())
    })
}

async fn accept(listener: TcpListener, server: Arc<Server>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let server = server.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| answer(server.clone(), request));
            let http = hyper::server::conn::http1::Builder::new();
            // A client that went away is the client's affair.
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

struct Server {
    number: usize,
    figures: Figures,
    slots: Semaphore,
    prefill: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cache: Cache,
    running: usize,
    waiting: usize,
    requests: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    prefill_s: f64,
}

impl Server {
    fn new(number: usize, figures: Figures) -> Self {
        Server {
            number,
            figures,
            slots: Semaphore::new(figures.slots),
            prefill: Semaphore::new(1),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the state")
    }

    async fn takes(&self, seconds: f64) {
        tokio::time::sleep(Duration::from_secs_f64(seconds / self.figures.scale)).await;
    }

    /// Until the first token; says how many tokens of the prompt were in the cache.
    async fn prefill(&self, prompt: &[u64], tokens: usize) -> usize {
        let _turn = self.prefill.acquire().await.expect("nobody closes it");
        let (cached, seconds) = {
            let mut state = self.state();
            // The last token is always computed: its output is the first token of the answer.
            let cached = (state.cache.matched(prompt) * TOKENS_PER_BLOCK).min(tokens - 1);
            state.cache.touch(prompt, self.figures.cache_blocks);
            let fresh = (tokens - cached) as f64;
            let seconds =
                self.figures.prefill_overhead_s + fresh / self.figures.prefill_tokens_per_s;
            state.requests += 1;
            state.prompt_tokens += tokens as u64;
            state.cached_tokens += cached as u64;
            state.prefill_s += seconds;
            (cached, seconds)
        };
        self.takes(seconds).await;
        cached
    }

    /// Waits its turn and computes an answer, event by event, until the client has gone.
    async fn complete(self: Arc<Self>, ask: Ask, events: mpsc::Sender<Bytes>) {
        let mut here = Here::new(&self);
        let _slot = self.slots.acquire().await.expect("nobody closes it");
        let tokens = (ask.text.len() / BYTES_PER_TOKEN).max(1);
        let cached = self.prefill(&chain(&ask.text), tokens).await;
        here.runs();
        let mut said = String::new();
        let mut have = 0;
        while have < ask.answer_tokens {
            let more = if have == 0 { 1 } else { TOKENS_PER_EVENT.min(ask.answer_tokens - have) };
            if have > 0 {
                self.takes(self.figures.token_s * more as f64).await;
            }
            let words = words(&ask.text, have, more);
            have += more;
            said.push_str(&words);
            let event = json!({"object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {"content": words}}]});
            if events.send(sse(&event)).await.is_err() {
                return;
            }
        }
        let whole = format!("{}{}", ask.text, message("assistant", &said));
        self.state().cache.touch(&chain(&whole), self.figures.cache_blocks);
        let usage = json!({"object": "chat.completion.chunk", "choices": [],
            "system_fingerprint": format!("replica-{}", self.number),
            "usage": {"prompt_tokens": tokens, "completion_tokens": have,
                "total_tokens": tokens + have, "prompt_tokens_details": {"cached_tokens": cached}}});
        let _ = events.send(sse(&usage)).await;
        let _ = events.send(Bytes::from_static(b"data: [DONE]\n\n")).await;
    }

    fn metrics(&self) -> String {
        let state = self.state();
        let used = state.cache.used.len() as f64 / self.figures.cache_blocks as f64;
        format!(
            "vllm:num_requests_running {}\nvllm:num_requests_waiting {}\nvllm:kv_cache_usage_perc {used:.3}\n\
             vllm:cache_config_info{{block_size=\"{TOKENS_PER_BLOCK}\",num_gpu_blocks=\"{}\"}} 1\n",
            state.running, state.waiting, self.figures.cache_blocks
        )
    }

    fn stats(&self) -> Value {
        let state = self.state();
        json!({"requests": state.requests, "prompt_tokens": state.prompt_tokens,
            "cached_tokens": state.cached_tokens, "prefill_s": state.prefill_s,
            "running": state.running, "waiting": state.waiting})
    }
}

/// A request in the server's counts, until it is dropped.
struct Here<'a> {
    server: &'a Server,
    running: bool,
}

impl<'a> Here<'a> {
    fn new(server: &'a Server) -> Self {
        server.state().waiting += 1;
        Here { server, running: false }
    }

    fn runs(&mut self) {
        let mut state = self.server.state();
        state.waiting -= 1;
        state.running += 1;
        self.running = true;
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        let mut state = self.server.state();
        if self.running {
            state.running -= 1;
        } else {
            state.waiting -= 1;
        }
    }
}

struct Ask {
    text: String,
    answer_tokens: usize,
}

/// As a chat template puts it.
fn message(role: &str, content: &str) -> String {
    format!("<|{role}|>{content}<|end|>")
}

fn read_ask(body: &[u8]) -> Option<Ask> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let mut text = String::new();
    for said in body["messages"].as_array()? {
        text.push_str(&message(said["role"].as_str()?, said["content"].as_str()?));
    }
    Some(Ask { text, answer_tokens: body["max_tokens"].as_u64()?.max(1) as usize })
}

/// Each block's hash covers all before it. A last one that is not full is left out.
fn chain(text: &str) -> Vec<u64> {
    let mut before = 0u64;
    let blocks = text.as_bytes().chunks_exact(BLOCK_BYTES);
    let hashes = blocks.map(|block| {
        let mut hasher = DefaultHasher::new();
        (before, block).hash(&mut hasher);
        before = hasher.finish();
        before
    });
    hashes.collect()
}

/// The same prompt gets the same answer, wherever it is asked.
fn words(prompt: &str, from: usize, count: usize) -> String {
    let mut hasher = DefaultHasher::new();
    prompt.hash(&mut hasher);
    let seed = hasher.finish();
    let mut text = String::with_capacity(count * BYTES_PER_TOKEN);
    for at in from..from + count {
        let mut hasher = DefaultHasher::new();
        (seed, at).hash(&mut hasher);
        let letters = hasher.finish();
        (0..BYTES_PER_TOKEN - 1)
            .for_each(|n| text.push((b'a' + (letters >> (8 * n)) as u8 % 26) as char));
        text.push(' ');
    }
    text
}

fn sse(event: &Value) -> Bytes {
    format!("data: {event}\n\n").into()
}

/// Blocks by the number of their last use.
#[derive(Default)]
struct Cache {
    used: HashMap<u64, u64>,
    /// Uses in their order; one that is not its block's last says nothing.
    uses: VecDeque<(u64, u64)>,
    clock: u64,
}

impl Cache {
    fn matched(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.used.contains_key(block)).count()
    }

    /// From the end, so that a prompt's beginning outlives it.
    fn touch(&mut self, blocks: &[u64], most: usize) {
        for block in blocks.iter().rev() {
            self.clock += 1;
            self.used.insert(*block, self.clock);
            self.uses.push_back((self.clock, *block));
        }
        while self.used.len() > most {
            let Some((at, block)) = self.uses.pop_front() else { return };
            if self.used.get(&block) == Some(&at) {
                self.used.remove(&block);
            }
        }
    }
}

enum Answer {
    Whole(Option<Bytes>),
    Events(mpsc::Receiver<Bytes>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            Answer::Whole(bytes) => Poll::Ready(bytes.take()),
            Answer::Events(events) => events.poll_recv(cx),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

fn whole(status: StatusCode, text: String) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Some(text.into())));
    *response.status_mut() = status;
    response
}

async fn answer(
    server: Arc<Server>,
    request: Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    Ok(match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/chat/completions") => {
            let body = collect(request.into_body()).await;
            match body.as_deref().and_then(read_ask) {
                Some(ask) => stream(server, ask),
                None => whole(StatusCode::BAD_REQUEST, "messages and max_tokens are needed".into()),
            }
        }
        (_, "/health") => whole(StatusCode::OK, String::new()),
        (_, "/metrics") => whole(StatusCode::OK, server.metrics()),
        (_, "/stats") => whole(StatusCode::OK, server.stats().to_string()),
        (_, path) => whole(StatusCode::NOT_FOUND, format!("there is no {path}")),
    })
}

fn stream(server: Arc<Server>, ask: Ask) -> Response<Answer> {
    let (sender, events) = mpsc::channel(16);
    tokio::spawn(server.complete(ask, sender));
    let mut response = Response::new(Answer::Events(events));
    let kind = http::HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

async fn collect(mut body: Incoming) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        bytes.extend_from_slice(&frame.ok()?.into_data().ok()?);
    }
    Some(bytes)
}
