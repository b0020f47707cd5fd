//! The life of a server, with a model that computes when it is told to.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use serde_json::json;
use tutti_trainer::Row;
use tutti_trainer::config::VOCAB;

use super::*;

#[path = "../../tests/common/client.rs"]
mod client;

use client::{get, metric, open, post, read};

/// After each byte comes the next one. Each pass needs a permit, unless nobody is there to give it.
struct Counting {
    permits: Receiver<()>,
}

fn next(token: u8) -> Vec<f32> {
    assert_ne!(token, b'!', "this one breaks it");
    let mut logits = vec![0.0; VOCAB];
    logits[usize::from(if token == b'z' { b'a' } else { token + 1 })] = 1.0;
    logits
}

impl Model for Counting {
    fn prefill(&mut self, _: usize, _: usize, tokens: &[u8], wanted: bool) -> Option<Vec<f32>> {
        wanted.then(|| next(tokens[tokens.len() - 1]))
    }
    fn decode(&mut self, rows: &[Row]) -> Vec<f32> {
        let _ = self.permits.recv();
        rows.iter().flat_map(|row| next(row.token)).collect()
    }
    fn copy(&mut self, _: usize, _: usize, _: usize) {}
    fn clear(&mut self, _: usize) {}
}

struct Server {
    address: SocketAddr,
    load: Sender<()>,
    permits: Sender<()>,
    stop: oneshot::Sender<()>,
    ready: Receiver<()>,
    thread: std::thread::JoinHandle<Result<(), ServeError>>,
}

/// One slot, one that may wait.
fn start() -> Server {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let ((load, may_load), (permits, taken)) = (channel(), channel());
    let ((stop, stopped), (tell, ready)) = (oneshot::channel(), channel());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let loader = move || {
                let _ = may_load.recv();
                Ok((Counting { permits: taken }, told()))
            };
            let stop = async {
                let _ = stopped.await;
            };
            let limits = Limits { names: vec!["m".into(), "alias".into()], queue: 1, chunk: 64 };
            let listener = TcpListener::from_std(listener).unwrap();
            serve_with(listener, limits, loader, stop, move |_| tell.send(()).unwrap()).await
        })
    });
    Server { address, load, permits, stop, ready, thread }
}

fn started() -> Server {
    let server = start();
    server.load.send(()).unwrap();
    server.ready.recv().unwrap();
    server
}

fn told() -> Ready {
    Ready {
        step: 1,
        parameters: 0,
        context: 1 << 40,
        slots: 1,
        cache_bytes: 0,
        device: "none".into(),
        precision: "f32",
        took: Duration::ZERO,
        warnings: vec![],
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "in vain: {what}");
        std::thread::yield_now();
    }
}

const ENDLESS: &str = r#"{"prompt": "a", "max_tokens": 1000000000, "temperature": 0}"#;

#[test]
fn it_is_ready_when_the_model_is_there_and_not_before() {
    let server = start();
    assert_eq!(get(server.address, "/health").status, 503);
    let reply = post(server.address, "/v1/completions", &json!({"prompt": "a"}));
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (503, Some("loading")));
    server.load.send(()).unwrap();
    server.ready.recv().unwrap();
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn a_client_that_leaves_frees_its_slot() {
    for body in [ENDLESS.to_owned(), ENDLESS.replace('{', "{\"stream\": true,")] {
        let server = started();
        drop(server.permits);
        let socket = open(server.address, "POST", "/v1/completions", &body);
        until("it runs", || metric(server.address, "vllm:num_requests_running") == 1.0);
        drop(socket);
        until("it is let go", || metric(server.address, "vllm:num_requests_running") == 0.0);
        assert_eq!(metric(server.address, "tutti_infer_cancelled_total"), 1.0);
        let next = post(
            server.address,
            "/v1/completions",
            &json!({"prompt": "x", "max_tokens": 2, "temperature": 0}),
        );
        assert_eq!(next.json()["choices"][0]["text"], "yz");
    }
}

#[test]
fn it_finishes_what_it_took_and_refuses_what_comes() {
    let server = started();
    let body = r#"{"prompt": "a", "max_tokens": 3, "stream": true, "temperature": 0}"#;
    let mut taken = BufReader::new(open(server.address, "POST", "/v1/completions", body));
    let mut line = String::new();
    while !line.starts_with("data:") {
        line.clear();
        taken.read_line(&mut line).unwrap();
    }
    server.stop.send(()).unwrap();
    until("it drains", || get(server.address, "/health").status == 503);
    let refused = post(server.address, "/v1/completions", &json!({"prompt": "a"}));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (503, Some("draining")));
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    drop(server.permits);
    let rest: Vec<String> = taken.lines().map(Result::unwrap).collect();
    assert!(rest.iter().any(|line| line == "data: [DONE]"), "{rest:?}");
    server.thread.join().unwrap().unwrap();
}

#[test]
fn too_many_are_refused_and_told_when_to_come_again() {
    let server = started();
    let first = open(server.address, "POST", "/v1/completions", ENDLESS);
    until("it runs", || metric(server.address, "vllm:num_requests_running") == 1.0);
    let second =
        open(server.address, "POST", "/v1/completions", &ENDLESS.replace("1000000000", "2"));
    until("it waits", || metric(server.address, "vllm:num_requests_waiting") == 1.0);
    let third = post(server.address, "/v1/completions", &json!({"prompt": "a"}));
    assert_eq!(third.status, 429);
    assert!(third.head.contains("retry-after: 1"), "{}", third.head);
    assert_eq!(third.json()["error"]["type"], "rate_limit_error");
    assert_eq!(metric(server.address, "tutti_infer_refused_total"), 1.0);
    drop((first, server.permits));
    assert_eq!(read(second).json()["choices"][0]["text"], "bc");
}

#[test]
fn when_the_model_breaks_the_server_ends_and_says_so() {
    let server = started();
    let reply = post(server.address, "/v1/completions", &json!({"prompt": "!"}));
    assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (500, Some("server_error")));
    assert!(matches!(server.thread.join().unwrap(), Err(ServeError::Died)));
}

#[test]
fn errors_have_openais_form() {
    let server = started();
    let model = json!({"prompt": "a", "model": "gpt-4"});
    for (reply, status, kind, code) in [
        (get(server.address, "/v2"), 404, "not_found_error", None),
        (get(server.address, "/v1/completions"), 405, "invalid_request_error", None),
        (
            post(server.address, "/v1/completions", &model),
            404,
            "not_found_error",
            Some("model_not_found"),
        ),
        (
            post(server.address, "/v1/chat/completions", &json!({"messages": 1})),
            422,
            "invalid_request_error",
            None,
        ),
    ] {
        let error = &reply.json()["error"];
        assert_eq!((reply.status, error["type"].as_str()), (status, Some(kind)), "{error}");
        assert_eq!(error["code"].as_str(), code);
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
    let alias = json!({"prompt": "a", "model": "alias", "max_tokens": 1});
    assert_eq!(post(server.address, "/v1/completions", &alias).status, 200);
    let models = get(server.address, "/v1/models").json();
    assert_eq!(models["data"][0]["id"], "m");
}
