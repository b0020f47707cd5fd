//! The thread with a model that counts: after each byte comes the next one.

use std::sync::mpsc::{Receiver, Sender, channel};

use tutti_trainer::Row;

use super::*;
use crate::sampling::Sampling;

/// Computes only when it is told to, so that tests know where it stands.
struct Counting {
    go: Receiver<()>,
    steps: Sender<usize>,
}

/// Told instead of a number of rows, with the slot added.
const CLEARED: usize = 1000;

/// After z comes what is no number.
fn next(token: u8) -> Vec<f32> {
    if token == b'z' {
        return vec![f32::NAN; VOCAB];
    }
    let mut logits = vec![0.0; VOCAB];
    logits[usize::from(token.wrapping_add(1))] = 1.0;
    logits
}

impl Model for Counting {
    fn prefill(&mut self, _: usize, _: usize, tokens: &[u8], wanted: bool) -> Option<Vec<f32>> {
        wanted.then(|| next(tokens[tokens.len() - 1]))
    }
    fn decode(&mut self, rows: &[Row]) -> Vec<f32> {
        let _ = self.steps.send(rows.len());
        // Without anybody to tell, it goes on.
        let _ = self.go.recv();
        rows.iter().flat_map(|row| next(row.token)).collect()
    }
    fn copy(&mut self, _: usize, _: usize, _: usize) {}
    fn clear(&mut self, slot: usize) {
        let _ = self.steps.send(CLEARED + slot);
    }
}

struct Bench {
    engine: Engine,
    go: Sender<()>,
    steps: Receiver<usize>,
    metrics: Arc<Metrics>,
    thread: std::thread::JoinHandle<()>,
}

fn bench(slots: usize, queue: usize) -> Bench {
    let (engine, inbox) = Engine::new(queue);
    let metrics = Arc::new(Metrics::default());
    let ((go, wait), (tell, steps)) = (channel(), channel());
    let model = Counting { go: wait, steps: tell };
    let counts = metrics.clone();
    let schedule = Schedule::new(slots, 64);
    let thread = std::thread::spawn(move || run(model, inbox, schedule, 100, counts));
    Bench { engine, go, steps, metrics, thread }
}

fn request(prompt: &str, max_tokens: usize) -> Request {
    Request {
        id: SequenceId(0),
        prompt: prompt.as_bytes().into(),
        max_tokens,
        sampling: Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 },
        choice: 0,
        stops: Arc::new([]),
        logprobs: None,
    }
}

fn text(mut events: UnboundedReceiver<Event>) -> String {
    let mut text = String::new();
    while let Some(event) = events.blocking_recv() {
        text.push_str(&event.emission.text);
    }
    text
}

#[test]
fn sequences_decode_together_and_each_gets_its_own() {
    let Bench { engine, go, steps, metrics, thread } = bench(4, 8);
    let both = vec![request("a", 3), request("m", 3)];
    let mut events = engine.submit(both, Instant::now()).unwrap();
    let mut texts = [String::new(), String::new()];
    assert_eq!(steps.recv(), Ok(2), "one pass for two");
    drop(go);
    while let Some(event) = events.blocking_recv() {
        texts[event.index].push_str(&event.emission.text);
    }
    assert_eq!(texts, ["bcd", "nop"]);
    drop(engine);
    thread.join().unwrap();
    let counts = metrics.counts();
    assert_eq!((counts.prompt_tokens, counts.output_tokens, counts.steps), (2, 6, 2));
    assert_eq!((counts.running, counts.finished_length), (0, 2));
    assert_eq!((counts.first_token.count(), counts.per_token.count()), (2, 4));
}

#[test]
fn a_client_that_leaves_frees_its_slot_for_the_next() {
    let Bench { engine, go, steps, metrics, .. } = bench(1, 8);
    let first = engine.submit(vec![request("a", 1000)], Instant::now()).unwrap();
    assert_eq!(steps.recv(), Ok(1));
    let second = engine.submit(vec![request("x", 2)], Instant::now()).unwrap();
    assert_eq!(engine.waiting(), 1);
    drop(first);
    drop(go);
    assert_eq!(text(second), "yz");
    assert_eq!((metrics.counts().cancelled, engine.waiting()), (1, 0));
    assert!(metrics.counts().steps < 10, "the first would have made a thousand");
}

#[test]
fn a_full_queue_refuses_and_has_room_again_when_those_in_it_leave() {
    let Bench { engine, go, steps, .. } = bench(1, 2);
    let first = engine.submit(vec![request("a", 1000)], Instant::now()).unwrap();
    assert_eq!(steps.recv(), Ok(1));
    let waiting = engine.submit(vec![request("b", 1), request("c", 1)], Instant::now()).unwrap();
    let refused = engine.submit(vec![request("d", 1)], Instant::now()).unwrap_err();
    assert_eq!(refused, Refused::Full { waiting: 2 });
    drop(waiting);
    go.send(()).unwrap();
    assert_eq!(steps.recv(), Ok(1), "after this step's beginning those two are gone");
    let next = engine.submit(vec![request("d", 1)], Instant::now()).unwrap();
    drop((first, go));
    assert_eq!(text(next), "e");
}

#[test]
fn what_is_no_number_ends_its_own_sequence_and_leaves_nothing() {
    let bench = bench(2, 8);
    let mut broken = bench.engine.submit(vec![request("x", 9)], Instant::now()).unwrap();
    let mut fine = bench.engine.submit(vec![request("a", 5)], Instant::now()).unwrap();
    drop(bench.go);
    drop(bench.engine);
    bench.thread.join().unwrap();
    let heard = |events: &mut UnboundedReceiver<Event>| {
        let all: Vec<Emission> =
            std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.emission).collect();
        let ended = all.last().is_some_and(|emission| emission.finish.is_some());
        (all.iter().map(|emission| emission.token).collect::<Vec<_>>(), ended)
    };
    assert_eq!(heard(&mut broken), (b"yz".to_vec(), false));
    assert_eq!(heard(&mut fine), (b"bcdef".to_vec(), true));
    assert_eq!(bench.metrics.counts().broken, 1);
    assert!(bench.steps.try_iter().any(|told| told == CLEARED), "its slot is cleared");
}
