//! Clients that mean harm, against a router in a process of its own: each attack gets a defined answer,
//! requests beside it are served, and the process's memory stays flat. All of it is in a network namespace, in
//! which attackers come from several addresses. Needs root.
//!
//! `cargo test -p tutti-serve --test hostile -- --nocapture` prints what was measured.

#[path = "../common/mod.rs"]
mod common;
mod crowds;
mod floods;
mod frames;
mod http2;
mod malformed;
mod replicas;
mod slow;
mod tally;
mod tls;
mod victim;

use std::pin::Pin;
use std::sync::Arc;

use tally::Tally;
use victim::{PATIENCE, STALL, Victim, beside};

/// Connections that slow clients hold.
const MANY: usize = 1000;
const REPEATS: usize = 3;
/// Where memory seems to grow: what leaks goes on growing, what was chance does not.
const REPEATS_MAX: usize = 8;
/// The last peak may be above all others by this, in KiB, or by a fifth of what an attack takes. What is
/// resident afterwards says less: the allocator keeps what it likes, and uses it the next time.
const GROWTH_MAX: i64 = 4 << 10;

type Running = Pin<Box<dyn Future<Output = Tally> + Send>>;

struct Attack {
    name: &'static str,
    /// Statuses that may be said; 0 is a connection closed without a word.
    answers: &'static [u16],
    /// The most memory that it may take at its peak, in KiB for each connection.
    each_max: i64,
    run: fn(Arc<Victim>) -> Running,
}

macro_rules! attack {
    ($name:literal, $answers:expr, $each_max:expr, $run:path) => {
        Attack {
            name: $name,
            answers: &$answers,
            each_max: $each_max,
            run: |victim| Box::pin($run(victim)),
        }
    };
}

/// A head may take 64 KiB before it is refused, an answer on its way 32 KiB (and what the buffer was before it grew to that,
/// if replicas are fast), a body that is read before a
/// replica is chosen 64 KiB. Larger ones have 32 MiB together, for which others wait with what they have.
fn attacks() -> Vec<Attack> {
    vec![
        attack!("heads that dribble", [0], 32, slow::heads),
        attack!("heads of 60 KiB that stall", [0], 128, slow::long_heads),
        attack!("bodies that dribble", [408], 48, slow::bodies),
        attack!("large bodies that dribble", [408, 503], 160, slow::large_bodies),
        attack!("streamed bodies that stall", [408], 64, slow::streamed_bodies),
        attack!("answers that nobody reads", [200], 80, slow::unread),
        attack!("a header of 1 MB", [431], 128, malformed::long_header),
        attack!("10,000 headers", [431], 128, malformed::many_headers),
        attack!("malformed chunks", [0, 400], 64, malformed::chunks),
        attack!("two lengths", [400, 501], 64, malformed::lengths),
        attack!("pipelined requests", [200], 8, floods::pipelined),
        attack!("pipelined and unread", [200], 192, floods::pipelined_unread),
        attack!("connect and leave", [0], 32, floods::leave),
        attack!("more than the queue holds", [429, 503, 504], 48, floods::queue),
        attack!("all replicas dead", [429, 503], 48, floods::dead),
        attack!("a replica that hangs", [504], 64, floods::stuck),
        attack!("HTTP/2: opened and reset", [0, 200], 512, http2::resets),
        attack!("HTTP/2: endless headers", [0], 512, http2::headers),
        attack!("HTTP/2: pings and settings", [0, 200], 512, http2::pings),
        attack!("HTTP/2: answers that nobody reads", [0], 64, http2::unread),
    ]
}

/// What one repetition came to, in KiB.
struct Measured {
    tally: Tally,
    before: i64,
    peak: i64,
    after: i64,
    served: usize,
    slowest_ms: u128,
}

async fn repeat(attack: &Attack, victim: &Arc<Victim>) -> Measured {
    let before = victim.forget_peak();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let others = tokio::spawn(beside(victim.addr, stopped));
    let attacking = tokio::time::timeout(PATIENCE, (attack.run)(victim.clone())).await;
    let tally = attacking.unwrap_or_else(|_| panic!("{} did not end", attack.name));
    let _ = stop.send(());
    let (served, slowest) = others.await.expect("requests beside an attack are served");
    let peak = victim.peak();
    victim.until_quiet().await;
    let slowest_ms = slowest.as_millis();
    Measured { tally, before, peak, after: victim.resident(), served, slowest_ms }
}

fn took(all: &[Measured]) -> i64 {
    all[0].peak - all[0].before
}

/// Above all peaks before: on a busy machine the first ones may be low, since fewer came at the same time.
fn growth(all: &[Measured]) -> i64 {
    let Some((last, before)) = all.split_last() else { return 0 };
    last.peak - before.iter().map(|m| m.peak).max().unwrap_or(0)
}

fn is_flat(all: &[Measured]) -> bool {
    growth(all) <= GROWTH_MAX.max(took(all) / 5)
}

fn judge(attack: &Attack, all: &[Measured]) -> String {
    let last = &all[all.len() - 1];
    let (growth, took) = (growth(all), took(all));
    let count = last.tally.len().max(1) as i64;
    let served: usize = all.iter().map(|m| m.served).sum();
    let slowest = all.iter().map(|m| m.slowest_ms).max().unwrap_or(0);
    let name = attack.name;
    for measured in all {
        measured.tally.only(attack.answers, name);
    }
    assert!(is_flat(all), "{name}: memory grew by {growth} KiB");
    assert!(took / count <= attack.each_max, "{name}: {took} KiB for {count} connections");
    assert!(served >= all.len(), "{name}: {served} requests were served beside it");
    let (after, answers) = (last.after, last.tally.to_string());
    format!(
        "| {name} | {count} | {answers} | {took} | {} | {growth} | {after} | {served} | {slowest} |",
        took / count
    )
}

#[test]
fn every_attack_is_answered_and_memory_stays_flat() {
    victim::raise_file_limit(4 * MANY as u64);
    tally::print(&[
        "| attack | count | answers | took, KiB | each | growth | left | served beside | slowest, ms |"
            .to_owned(),
        "|---|---|---|---|---|---|---|---|---|".to_owned(),
    ]);
    tutti_testkit::in_a_crowd(async |crowd| {
        for attack in attacks() {
            // Each has a router of its own, so that none uses memory that another one left.
            let silence = if attack.answers.contains(&504) { 2 * STALL } else { PATIENCE };
            let victim = Arc::new(Victim::start(crowd, silence, None).await);
            let mut all = Vec::new();
            while all.len() < REPEATS || all.len() < REPEATS_MAX && !is_flat(&all) {
                all.push(repeat(&attack, &victim).await);
            }
            tally::print(&[judge(&attack, &all)]);
        }
    });
}

/// Without room for replicas' connections every one of them would look dead.
#[test]
fn clients_cannot_take_the_descriptors_that_replicas_need() {
    victim::raise_file_limit(4 * MANY as u64);
    tutti_testkit::in_a_crowd(async |crowd| {
        let victim = Arc::new(Victim::start(crowd, PATIENCE, Some(256)).await);
        let measured = repeat(&attack!("few files", [0], 64, slow::heads_unheld), &victim).await;
        measured.tally.only(&[0], "few files");
        assert!(measured.served > 0);
    });
}
