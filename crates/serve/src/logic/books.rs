//! What is counted for the controller and the dashboard.

use std::collections::BTreeMap;
use std::time::Duration;

use tutti_model::{EndpointReport, Histogram, Traffic};

use super::endpoint::ReplicaView;
use super::usage::Usage;

/// How a request ended, as its client saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// Anything below 500.
    #[default]
    Answered,
    /// 5xx or broken off, by the replica or for want of one.
    Failed,
    /// The client left before the end.
    Cancelled,
}

/// A request that was not refused, at its end.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    pub ending: Ending,
    /// Of the replica that answered or failed last; none if it never got one.
    pub revision: Option<u32>,
    pub usage: Usage,
    /// From its [`super::Choice`].
    pub prefix_blocks: u32,
    pub prefix_hit_blocks: u32,
    /// In the router's queue; zero if it did not wait.
    pub queue_wait: Duration,
    /// From its coming to the first byte of the answer's body.
    pub first_byte: Option<Duration>,
    /// Times between tokens, gathered while it streamed.
    pub per_token: Histogram,
    pub total: Duration,
}

/// One endpoint's books.
#[derive(Clone, Debug, Default)]
pub struct Books {
    in_flight: u32,
    queued: u32,
    peak: u32,
    traffic: Traffic,
    revisions: BTreeMap<u32, Traffic>,
}

impl Books {
    /// A request waits for a replica.
    pub fn queued(&mut self) {
        self.queued += 1;
        self.note_peak();
    }

    /// It waits no longer, whatever becomes of it.
    pub fn unqueued(&mut self) {
        self.queued = self.queued.saturating_sub(1);
    }

    /// It has a replica.
    pub fn started(&mut self) {
        self.in_flight += 1;
        self.note_peak();
    }

    /// It has no replica any more: it ended, or is tried again.
    pub fn stopped(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Answered with 429. Such a request is not counted among the others.
    pub fn refused(&mut self) {
        self.traffic.refused += 1;
    }

    /// Sent to another replica after one of this revision failed.
    pub fn retried(&mut self, revision: u32) {
        self.traffic.retried += 1;
        self.revisions.entry(revision).or_default().retried += 1;
    }

    /// Once for each request that was not refused.
    pub fn ended(&mut self, ended: &Ended) {
        record(&mut self.traffic, ended);
        if let Some(revision) = ended.revision {
            record(self.revisions.entry(revision).or_default(), ended);
        }
    }

    /// What is sent to the controller. The peak begins anew.
    pub fn report<'a>(
        &mut self,
        replicas: impl Iterator<Item = ReplicaView<'a>>,
    ) -> EndpointReport {
        let report = EndpointReport {
            in_flight: self.in_flight,
            queued: self.queued,
            peak: self.peak,
            traffic: self.traffic.clone(),
            revisions: self.revisions.clone(),
            // By key, so that of two generations of a job the newer one is what is said of it.
            replicas: replicas.map(|replica| (replica.key().job, replica.report())).collect(),
        };
        self.peak = self.in_flight + self.queued;
        report
    }

    fn note_peak(&mut self) {
        self.peak = self.peak.max(self.in_flight + self.queued);
    }
}

fn record(traffic: &mut Traffic, ended: &Ended) {
    traffic.requests += 1;
    match ended.ending {
        Ending::Answered => {}
        Ending::Failed => traffic.errors += 1,
        Ending::Cancelled => traffic.cancelled += 1,
    }
    traffic.prompt_tokens += ended.usage.prompt_tokens;
    traffic.output_tokens += ended.usage.output_tokens;
    traffic.prefix_hits += u64::from(ended.prefix_hit_blocks > 0);
    traffic.prefix_blocks += u64::from(ended.prefix_blocks);
    traffic.prefix_blocks_hit += u64::from(ended.prefix_hit_blocks);
    traffic.queue_wait.add(micros(ended.queue_wait));
    if let Some(first_byte) = ended.first_byte {
        traffic.first_byte.add(micros(first_byte));
    }
    traffic.per_token.merge(&ended.per_token);
    traffic.total.add(micros(ended.total));
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(ending: Ending, revision: Option<u32>) -> Ended {
        Ended {
            ending,
            revision,
            usage: Usage { prompt_tokens: 10, output_tokens: 5, exact: true },
            prefix_blocks: 4,
            prefix_hit_blocks: 3,
            first_byte: (ending == Ending::Answered).then_some(Duration::from_millis(20)),
            total: Duration::from_millis(90),
            ..Ended::default()
        }
    }

    #[test]
    fn each_request_is_counted_in_all_and_for_its_revision() {
        let mut books = Books::default();
        books.ended(&ended(Ending::Answered, Some(1)));
        books.ended(&ended(Ending::Failed, Some(2)));
        books.ended(&ended(Ending::Cancelled, Some(2)));
        books.ended(&ended(Ending::Failed, None));
        books.refused();
        books.retried(2);
        let report = books.report(std::iter::empty());
        let all = &report.traffic;
        assert_eq!((all.requests, all.errors, all.cancelled), (4, 2, 1));
        assert_eq!((all.refused, all.retried), (1, 1));
        assert_eq!((all.prompt_tokens, all.output_tokens), (40, 20));
        assert_eq!((all.prefix_hits, all.prefix_blocks, all.prefix_blocks_hit), (4, 16, 12));
        assert_eq!((all.first_byte.count(), all.total.count()), (1, 4));
        assert_eq!(report.revisions[&1].requests, 1);
        assert_eq!((report.revisions[&2].requests, report.revisions[&2].retried), (2, 1));
    }

    #[test]
    fn the_peak_is_that_since_the_last_report() {
        let mut books = Books::default();
        (0..5).for_each(|_| books.queued());
        (0..3).for_each(|_| {
            books.unqueued();
            books.started();
        });
        books.started();
        (0..3).for_each(|_| books.stopped());
        let first = books.report(std::iter::empty());
        assert_eq!((first.in_flight, first.queued, first.peak), (1, 2, 6));
        assert_eq!(books.report(std::iter::empty()).peak, 3);
    }
}
