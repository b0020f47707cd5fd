//! Whether the key of a node is in one place only, and how often it is shown.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tutti_model::Span;

use super::link::Link;

/// Streams of one node that are welcomed within a while. An agent that comes and goes with its network
/// stays below it; each stream costs records.
const STREAMS_MAX: usize = 20;
const STREAMS_WITHIN: Duration = Duration::from_secs(10);

/// How long it is looked whether an older stream is alive, in heartbeats, and at most: agents wait
/// for their welcome no longer than 10 s.
const LOOK_BEATS: f64 = 2.5;
const LOOK_MAX: Duration = Duration::from_secs(6);
/// What an old stream says in this part of the time may have been on the way: the agent was
/// restarted, and its last words were late.
const MAY_BE_LATE: f64 = 0.4;

/// Whether the agent of this stream answers while another one wants to take its place. A process that
/// was replaced closes its stream or falls silent; one that goes on speaking is a second holder of
/// the same key. Says so at once where it is the same process that comes again.
pub(super) async fn is_another_alive(
    old: &Arc<Link>,
    newcomer: Option<&str>,
    heartbeat: Span,
) -> bool {
    if newcomer.is_some() && newcomer == old.instance() {
        return false;
    }
    let came = Instant::now();
    let look = Duration::from_millis(heartbeat.0).mul_f64(LOOK_BEATS).min(LOOK_MAX);
    let mut closed = old.closed();
    tokio::select! {
        _ = closed.wait_for(Option::is_some) => return false,
        () = tokio::time::sleep(look) => {}
    }
    old.heard_since(came + look.mul_f64(MAY_BE_LATE))
}

/// When each node was last welcomed.
#[derive(Default)]
pub(super) struct StreamTurns {
    by_node: HashMap<String, VecDeque<Instant>>,
}

impl StreamTurns {
    /// None: now. Otherwise how long to wait before asking again.
    pub fn take(&mut self, node: &str, now: Instant) -> Option<Duration> {
        let recent = |at: &Instant| now.duration_since(*at) < STREAMS_WITHIN;
        self.by_node.retain(|_, turns| {
            turns.retain(recent);
            !turns.is_empty()
        });
        let turns = self.by_node.entry(node.to_owned()).or_default();
        if turns.len() < STREAMS_MAX {
            turns.push_back(now);
            return None;
        }
        turns.front().map(|first| STREAMS_WITHIN.saturating_sub(now.duration_since(*first)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::{Greeting, LinkPeer};
    use super::*;

    const BEAT: Span = Span::secs(2);

    fn link(instance: Option<&str>) -> Arc<Link> {
        let words = Greeting { epoch: tutti_model::Epoch(1), heartbeat: BEAT, certificate: None };
        let instance = instance.map(str::to_owned);
        let peer = LinkPeer { name: "n1".into(), from: "10.0.0.1:5".into(), instance };
        Link::new(1, peer, words).0
    }

    async fn speaks(link: &Link, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            link.note_heard();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_stream_that_goes_on_speaking_is_a_second_holder() {
        let old = link(Some("a"));
        let beat = Duration::from_secs(2);
        for newcomer in [Some("b"), None] {
            tokio::select! {
                alive = is_another_alive(&old, newcomer, BEAT) => assert!(alive),
                () = speaks(&old, beat) => {}
            }
        }
        // Neither does an agent that does not say who it is get in beside one that answers.
        let nameless = link(None);
        tokio::select! {
            alive = is_another_alive(&nameless, None, BEAT) => assert!(alive),
            () = speaks(&nameless, beat) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_and_broken_networks_are_no_second_holders() {
        let begun = Instant::now();
        assert!(!is_another_alive(&link(Some("a")), Some("a"), BEAT).await, "the same process");
        assert_eq!(begun.elapsed(), Duration::ZERO, "and it does not wait");
        assert!(!is_another_alive(&link(Some("a")), Some("b"), BEAT).await, "a dead machine");
        // Words that were on the way, then nothing.
        let late = link(Some("a"));
        tokio::select! {
            alive = is_another_alive(&late, Some("b"), BEAT) => assert!(!alive),
            () = async {
                tokio::time::sleep(Duration::from_millis(900)).await;
                late.note_heard();
                std::future::pending().await
            } => {}
        }
        // A process that was killed: its stream ends while it is looked at.
        let killed = link(Some("a"));
        let begun = Instant::now();
        let (alive, ()) = tokio::join!(is_another_alive(&killed, Some("b"), BEAT), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            killed.note_heard();
            killed.close("the stream has ended");
        });
        assert!(!alive && begun.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_welcomed_so_often_and_others_do_not_wait_for_it() {
        let mut turns = StreamTurns::default();
        let now = Instant::now();
        (0..STREAMS_MAX).for_each(|_| assert_eq!(turns.take("mad", now), None));
        assert_eq!(turns.take("mad", now), Some(STREAMS_WITHIN));
        assert_eq!(turns.take("n1", now), None);
        assert_eq!(turns.take("mad", now + STREAMS_WITHIN), None);
        assert_eq!(turns.by_node.len(), 1, "who was quiet is forgotten");
    }
}
