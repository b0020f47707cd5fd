//! A model that was really trained, served over a real socket.

#[path = "common/client.rs"]
mod client;

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::mpsc::channel;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tutti_checkpoint::{Attempt, Writer};
use tutti_infer::{Hardware, Options, Precision, ServeError, serve};
use tutti_trainer::checkpoint::Checkpoints;
use tutti_trainer::comm::Mesh;
use tutti_trainer::data::{Batch, Corpus};
use tutti_trainer::tensor::{self, FloatDType};
use tutti_trainer::trainer::Wishes;
use tutti_trainer::{
    Decoder, DecoderOptions, Layout, ModelConfig, OptimConfig, Row, TrainConfig, Trainer, Weights,
};

use client::{Reply, get, metric, post};

/// Enough to have learnt some words: a model that says one letter alone proves little.
const STEPS: u64 = 300;
const BATCH: usize = 4;
const SEQ: usize = 48;
const CONTEXT: usize = 256;
/// `cuda` to have the same said by a GPU, with a build that can.
const DEVICE: &str = "TUTTI_TEST_DEVICE";

fn device() -> Hardware {
    std::env::var(DEVICE).map_or(Hardware::Cpu, |name| name.parse().unwrap())
}

/// Soon learnt by heart.
const TEXT: &str = "do re mi fa sol la ti do, one two three four five six seven eight; ";

struct Trained {
    dir: TempDir,
    /// One step's batch, and what the trainer lost on it with the weights that were saved last.
    batch: Batch,
    loss: f64,
}

/// Checkpoints of two steps, made once for all tests.
fn trained() -> &'static Trained {
    static TRAINED: OnceLock<Trained> = OnceLock::new();
    TRAINED.get_or_init(|| train(tempfile::tempdir().unwrap()))
}

fn checkpoint() -> &'static str {
    trained().dir.path().to_str().unwrap()
}

fn train(dir: TempDir) -> Trained {
    let text = dir.path().join("text");
    std::fs::write(&text, TEXT.repeat(20)).unwrap();
    let location = dir.path().to_str().unwrap();
    let config = TrainConfig {
        model: ModelConfig { layers: 2, dim: 32, heads: 4, kv_heads: 2, ffn: 64, tied: true },
        optim: OptimConfig { lr: 1e-2, ..OptimConfig::default() },
        steps: STEPS,
        batch: BATCH,
        micro_batch: BATCH,
        seq: SEQ,
        seed: 1,
        precision: tutti_trainer::Precision::F32,
        recompute: false,
        bucket_bytes: 1 << 20,
    };
    let corpus = Corpus::load(Some(&text), config.seq, config.seed).unwrap();
    let layout = Layout { dp: 1, tp: 1, pp: 1, zero: false, stages: vec![2] };
    let mut trainer = Trainer::new(config, layout, 0, Mesh::alone(), tensor::cpu()).unwrap();
    let attempt = Attempt { owner: "test".into(), generation: 1 };
    let writer = Writer { rank: 0, world: 1, attempt };
    let mut checkpoints = Checkpoints::open(location, writer, None).unwrap();
    for step in 0..STEPS {
        if step == 1 {
            save(&mut checkpoints, &trainer, step);
        }
        trainer.step(&corpus, step, Wishes::default()).unwrap();
    }
    save(&mut checkpoints, &trainer, STEPS);
    let loss = trainer.step(&corpus, STEPS, Wishes::default()).unwrap().loss.read();
    Trained { dir, batch: corpus.batch(STEPS, 0, BATCH), loss }
}

fn save(checkpoints: &mut Checkpoints, trainer: &Trainer, step: u64) {
    checkpoints.start(trainer, step).unwrap();
    let saved = checkpoints.publish(trainer).unwrap().unwrap();
    assert_eq!(saved.failed, None);
}

struct Server {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

fn options() -> Options {
    Options {
        location: checkpoint().to_owned(),
        step: None,
        names: vec!["small".into()],
        hardware: device(),
        precision: Precision::F32,
        max_batch: 8,
        max_context: Some(CONTEXT),
        queue: 64,
        chunk: 32,
    }
}

fn start(options: Options) -> Server {
    let (tell, ready) = channel();
    let (stop, stopped) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let stop = async {
                let _ = stopped.await;
            };
            let ended = serve(listener, options, stop, move |_| tell.send(address).unwrap()).await;
            ended.unwrap();
        });
    });
    Server { address: ready.recv().unwrap(), _stop: stop }
}

fn complete(server: &Server, body: &Value) -> Value {
    let reply = post(server.address, "/v1/completions", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

/// What a stream said, without its end.
fn events(reply: &Reply) -> Vec<Value> {
    let lines = reply.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut lines: Vec<&str> = lines.collect();
    assert_eq!(lines.pop(), Some("[DONE]"), "{}", reply.body);
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

fn decoder() -> Decoder {
    let weights = Weights::open(checkpoint(), None).unwrap();
    assert_eq!(weights.step, STEPS);
    let options = DecoderOptions {
        slots: BATCH,
        context: CONTEXT,
        dtype: FloatDType::F32,
        device: tensor::cpu(),
        padded: false,
    };
    Decoder::new(&weights, options)
}

/// The likeliest continuation, all of it computed again for each token.
fn without_cache(prompt: &str, tokens: usize) -> String {
    let mut decoder = decoder();
    let mut all = prompt.as_bytes().to_vec();
    for _ in 0..tokens {
        let logits = decoder.prefill(0, 0, &all, true).unwrap();
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        all.push(u8::try_from(best).unwrap());
    }
    String::from_utf8_lossy(&all[prompt.len()..]).into_owned()
}

#[test]
fn what_is_loaded_loses_as_much_as_what_was_trained() {
    let Trained { batch, loss, .. } = trained();
    let mut decoder = decoder();
    let mut sum = 0.0;
    for position in 0..SEQ {
        let token = |slot: usize| batch.inputs[slot * SEQ + position] as u8;
        let rows = (0..BATCH).map(|slot| Row { slot, token: token(slot), position });
        let logits = decoder.decode(&rows.collect::<Vec<_>>());
        for (slot, logits) in logits.chunks(logits.len() / BATCH).enumerate() {
            let target = logits[batch.targets[slot * SEQ + position] as usize];
            let all: f64 = logits.iter().map(|logit| f64::from(logit - target).exp()).sum();
            sum += all.ln();
        }
    }
    let found = sum / (BATCH * SEQ) as f64;
    assert!((found - loss).abs() < 1e-3, "{found} and {loss}");
    assert!(found < 1.5, "it has learnt something: {found}");
}

#[test]
fn with_a_cache_it_says_what_it_would_say_without() {
    let server = start(options());
    // Longer than a chunk, so that it comes in pieces.
    for prompt in ["do re ", "one two three four five six seven eight; do re mi fa so"] {
        let body = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0});
        let answer = complete(&server, &body);
        assert_eq!(text(&answer), without_cache(prompt, 40));
        let letters: std::collections::BTreeSet<char> = text(&answer).chars().collect();
        assert!(letters.len() > 4, "{answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        let usage = &answer["usage"];
        assert_eq!(usage["prompt_tokens"], prompt.len());
        assert_eq!(usage["completion_tokens"], 40);
        assert_eq!(usage["total_tokens"], prompt.len() + 40);
    }
}

#[test]
fn eight_at_once_say_what_each_says_alone() {
    let bodies: Vec<Value> = (0..8)
        .map(|at| {
            let prompt = &TEXT[at..5 + 6 * at];
            let temperature = if at % 2 == 0 { 0.0 } else { 0.8 };
            json!({"prompt": prompt, "max_tokens": 30, "temperature": temperature, "seed": at, "top_k": 20})
        })
        .collect();
    let alone = start(Options { max_batch: 1, ..options() });
    let alone: Vec<Value> = bodies.iter().map(|body| complete(&alone, body)).collect();
    let server = start(options());
    let together: Vec<Value> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            bodies.iter().map(|body| scope.spawn(|| complete(&server, body))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (one, other) in alone.iter().zip(&together) {
        assert_eq!(text(one), text(other));
    }
    assert_eq!(metric(server.address, "tutti_infer_output_tokens_total"), 240.0);
    assert!(metric(server.address, "tutti_infer_steps_total") < 200.0, "passes are shared");
    assert_eq!(metric(server.address, "vllm:num_requests_running"), 0.0);
}

#[test]
fn a_stream_says_what_the_whole_says() {
    let server = start(options());
    let mut body = json!({"prompt": ["0x9?", "@@##"], "n": 2, "max_tokens": 25, "temperature": 2,
        "seed": 11, "logprobs": 2});
    let whole = complete(&server, &body);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let reply = post(server.address, "/v1/completions", &body);
    assert!(reply.head.contains("text/event-stream"), "{}", reply.head);
    let mut events = events(&reply);
    let usage = events.pop().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert_eq!(usage["usage"]["prompt_tokens"], 8);
    for choice in whole["choices"].as_array().unwrap() {
        let index = choice["index"].as_u64().unwrap();
        let pieces = events.iter().map(|event| &event["choices"][0]);
        let pieces: Vec<&Value> = pieces.filter(|piece| piece["index"] == index).collect();
        let text: String = pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
        assert_eq!(text, choice["text"].as_str().unwrap());
        assert_eq!(pieces.last().unwrap()["finish_reason"], choice["finish_reason"]);
        let tokens =
            pieces.iter().flat_map(|piece| piece["logprobs"]["tokens"].as_array().unwrap());
        let tokens: Vec<Value> = tokens.cloned().collect();
        assert_eq!(json!(tokens), choice["logprobs"]["tokens"]);
        assert_eq!(pieces[3]["logprobs"]["text_offset"], json!([3]));
    }
    let texts: Vec<&Value> =
        whole["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_ne!(texts[0], texts[1], "choices are drawn apart");
}

#[test]
fn stop_strings_end_it_and_are_not_shown() {
    let server = start(options());
    let mut body = json!({"prompt": "one ", "max_tokens": 40, "temperature": 0});
    let full = complete(&server, &body);
    let full = text(&full);
    let (before, _) = full.split_at(full.char_indices().nth(10).unwrap().0);
    let stop = &full[before.len()..full.char_indices().nth(13).unwrap().0];
    let expected = &full[..full.find(stop).unwrap()];
    body["stop"] = json!(["never", stop]);
    body["echo"] = true.into();
    let stopped = complete(&server, &body);
    assert_eq!(text(&stopped), format!("one {expected}"));
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["usage"]["completion_tokens"], expected.len() + stop.len());
}

#[test]
fn a_beginning_that_was_seen_is_not_computed_again() {
    let server = start(options());
    let first = "one two three four five six seven eight; do re mi fa sol la ti do";
    let body = |prompt: &str| json!({"prompt": prompt, "max_tokens": 4, "temperature": 0});
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    assert_eq!(cached(&complete(&server, &body(first))), 0);
    let longer = format!("{first}, six");
    let answer = complete(&server, &body(&longer));
    // What the first one made is there, too, but for its last token.
    let cached = usize::try_from(cached(&answer).as_u64().unwrap()).unwrap();
    assert!((first.len()..first.len() + 4).contains(&cached), "{cached}");
    assert_eq!(text(&answer), without_cache(&longer, 4));
    assert_eq!(metric(server.address, "tutti_infer_prefix_hits_total"), 1.0);
}

#[test]
fn a_conversation_is_answered_in_the_form_of_chats() {
    let server = start(options());
    let mut body = json!({"messages": [{"role": "user", "content": "play"}], "max_tokens": 12,
        "temperature": 0, "model": "small"});
    let whole = post(server.address, "/v1/chat/completions", &body).json();
    assert_eq!(whole["object"], "chat.completion");
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    assert_eq!(message["content"], without_cache("user: play\nassistant:", 12));
    body["stream"] = true.into();
    let events = events(&post(server.address, "/v1/chat/completions", &body));
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let pieces = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), message["content"].as_str().unwrap());
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn tokens_are_bytes_and_a_step_can_be_chosen() {
    let server = start(options());
    let body =
        json!({"prompt": [111, 110, 101, 32], "max_tokens": 8, "temperature": 0, "logprobs": 3});
    let answer = complete(&server, &body);
    assert_eq!(text(&answer), without_cache("one ", 8));
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 3);
    let first = start(Options { step: Some(1), max_context: None, ..options() });
    assert_eq!(get(first.address, "/v1/models").json()["data"][0]["max_model_len"], SEQ);
    assert_ne!(text(&complete(&first, &body)), text(&answer));
}

#[test]
fn a_checkpoint_that_is_not_there_ends_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let location = dir.path().to_str().unwrap().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = Options { location, ..options() };
        serve(listener, options, std::future::pending(), |_| panic!("there is no model")).await
    });
    assert!(matches!(ended, Err(ServeError::Load(_))), "{ended:?}");
}
