//! Who hears about durable records: readers of `/events`, and whoever waits for one job.
//!
//! Nothing is pushed to anybody. The engine thread puts records into a bounded ring and wakes those
//! who wait; each reader pulls from its own position at its own pace. One that falls behind the
//! ring is told so and where to go on, and never holds anything up.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tutti_engine::Record;
use tutti_model::{JobId, Seq};

use crate::core::Stopped;
use crate::lock::lock;
use crate::reads::jobs_of;

/// Records kept for readers that come a little late, and what they may take.
const RING_MAX: usize = 16_384;
const RING_BYTES_MAX: u64 = 16 << 20;

pub struct Feed {
    ring: Mutex<Ring>,
    waiting: Mutex<HashMap<JobId, watch::Sender<Seq>>>,
    durable: watch::Sender<Durable>,
}

/// How far the disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    pub seq: Seq,
    /// No more will come: the engine thread has ended.
    pub stopped: bool,
}

/// What a reader gets when it asks for what comes after its position.
#[derive(Debug, PartialEq)]
pub enum Pulled {
    Records(Vec<Arc<Record>>),
    /// Records before this one are no longer in memory.
    Lagged {
        first: Seq,
    },
}

#[derive(Default)]
struct Ring {
    records: VecDeque<Arc<Record>>,
    bytes: u64,
}

impl Ring {
    fn push(&mut self, record: Record) {
        self.bytes += record.event.bytes();
        self.records.push_back(Arc::new(record));
        while self.records.len() > RING_MAX || self.bytes > RING_BYTES_MAX {
            let Some(oldest) = self.records.pop_front() else { return };
            self.bytes -= oldest.event.bytes();
        }
    }
}

impl Feed {
    pub fn new(durable: Seq) -> Feed {
        Feed {
            ring: Mutex::default(),
            waiting: Mutex::default(),
            durable: watch::Sender::new(Durable { seq: durable, stopped: false }),
        }
    }

    /// The newest record that is on disk, as it grows.
    pub fn durable(&self) -> watch::Receiver<Durable> {
        self.durable.subscribe()
    }

    /// Resolves once everything up to `seq` is on disk.
    pub async fn until_durable(&self, seq: Seq) -> Result<(), Stopped> {
        if self.durable.borrow().seq >= seq {
            return Ok(());
        }
        let mut durable = self.durable();
        let reached = durable.wait_for(|d| d.seq >= seq || d.stopped).await.map_err(|_| Stopped)?;
        if reached.seq >= seq { Ok(()) } else { Err(Stopped) }
    }

    /// Lets go of everyone who waits.
    pub fn stop(&self) {
        self.durable.send_modify(|d| d.stopped = true);
        lock(&self.waiting).clear();
    }

    /// Woken at every durable record about this job.
    pub fn watch_job(&self, job: JobId) -> watch::Receiver<Seq> {
        let mut waiting = lock(&self.waiting);
        // Forgets those who left, so that the map stays as small as the crowd.
        if waiting.len() % 64 == 63 {
            waiting.retain(|_, s| s.receiver_count() > 0);
        }
        waiting.entry(job).or_insert_with(|| watch::Sender::new(Seq(0))).subscribe()
    }

    /// Called by the engine thread with records that have just become durable.
    pub fn publish(&self, records: Vec<Record>) {
        let Some(last) = records.last().map(|r| r.seq) else { return };
        self.wake_waiting(&records);
        {
            let mut ring = lock(&self.ring);
            records.into_iter().for_each(|record| ring.push(record));
        }
        self.durable.send_modify(|d| d.seq = last);
    }

    fn wake_waiting(&self, records: &[Record]) {
        let mut waiting = lock(&self.waiting);
        if waiting.is_empty() {
            return;
        }
        for record in records {
            for job in jobs_of(&record.event) {
                let Some(sender) = waiting.get(&job) else { continue };
                if sender.receiver_count() == 0 {
                    waiting.remove(&job);
                } else {
                    sender.send_replace(record.seq);
                }
            }
        }
    }

    /// At most `max` records after `position`; empty when there are none yet.
    pub fn pull(&self, position: Seq, max: usize) -> Pulled {
        let ring = &lock(&self.ring).records;
        let durable = self.durable.borrow().seq;
        let Some(first) = ring.front().map(|r| r.seq) else {
            return match position < durable {
                true => Pulled::Lagged { first: Seq(durable.0 + 1) },
                false => Pulled::Records(Vec::new()),
            };
        };
        if position.0 + 1 < first.0 {
            return Pulled::Lagged { first };
        }
        let skip = (position.0 + 1 - first.0) as usize;
        Pulled::Records(ring.iter().skip(skip).take(max).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_engine::Event;
    use tutti_model::Time;

    fn record(seq: u64) -> Record {
        let event = Event::JobHeld { job: JobId(seq % 3), by: "a".into() };
        Record { seq: Seq(seq), at: Time(seq), event }
    }

    fn seqs(pulled: Pulled) -> Vec<u64> {
        match pulled {
            Pulled::Records(r) => r.iter().map(|r| r.seq.0).collect(),
            Pulled::Lagged { first } => panic!("lagged, first is {first}"),
        }
    }

    #[test]
    fn readers_pull_from_their_own_position() {
        let feed = Feed::new(Seq(4));
        assert_eq!(feed.pull(Seq(2), 10), Pulled::Lagged { first: Seq(5) });
        feed.publish((5..=9).map(record).collect());
        assert_eq!(seqs(feed.pull(Seq(4), 3)), [5, 6, 7]);
        assert_eq!(seqs(feed.pull(Seq(7), 3)), [8, 9]);
        assert_eq!(seqs(feed.pull(Seq(9), 3)), [] as [u64; 0]);
        assert_eq!(seqs(feed.pull(Seq(900), 3)), [] as [u64; 0]);
    }

    #[test]
    fn a_reader_behind_the_ring_is_told_where_to_go_on() {
        let feed = Feed::new(Seq(0));
        feed.publish((1..=RING_MAX as u64 + 10).map(record).collect());
        assert_eq!(feed.pull(Seq(0), 1), Pulled::Lagged { first: Seq(11) });
        assert_eq!(seqs(feed.pull(Seq(10), 1)), [11]);
    }

    #[test]
    fn the_ring_keeps_no_more_than_its_bytes() {
        let feed = Feed::new(Seq(0));
        let large = |seq: u64| {
            let run = tutti_model::Command::Shell("x".repeat(1 << 20)).into();
            let digest = tutti_model::TextDigest(seq.to_string());
            let event = Event::TextKept { digest, text: tutti_model::StoredText::Run(run) };
            Record { seq: Seq(seq), at: Time(seq), event }
        };
        feed.publish((1..=100).map(large).collect());
        assert_eq!(feed.pull(Seq(0), 1), Pulled::Lagged { first: Seq(86) });
        assert_eq!(seqs(feed.pull(Seq(85), 100)).len(), 15);
    }

    #[test]
    fn only_those_who_wait_for_the_job_wake() {
        let feed = Feed::new(Seq(0));
        let (mut zero, mut one) = (feed.watch_job(JobId(0)), feed.watch_job(JobId(1)));
        zero.mark_unchanged();
        one.mark_unchanged();
        feed.publish(vec![record(3)]);
        assert!(zero.has_changed().unwrap());
        assert!(!one.has_changed().unwrap());
    }
}
