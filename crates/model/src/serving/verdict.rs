//! Why an endpoint is not as it should be, as data and in words.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{JobId, Span, Time};

/// Nobody asks replicas whether they answer, and nobody sends them anything.
pub const NO_ROUTER: &str =
    "no router has spoken lately: start one with `tutti router`, or all with `tutti up`";

/// What keeps an endpoint from answering with as many replicas as it wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndpointVerdict {
    pub ready: u32,
    pub want: u32,
    /// Routers that spoke lately. None: nobody knows who answers.
    pub routers: u32,
    /// Replicas that are not ready, oldest first.
    pub replicas: Vec<ReplicaVerdict>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<Failing>,
    /// A rollout that does not get on, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaVerdict {
    pub job: JobId,
    pub revision: u32,
    #[serde(flatten)]
    pub why: NotReady,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum NotReady {
    /// For GPUs: its job has a verdict of its own.
    Waits {
        since: Time,
    },
    /// Somebody holds its job.
    Held,
    /// Its last attempt failed, and it is started again then.
    Retries {
        at: Time,
    },
    Starts {
        since: Time,
    },
    /// It runs and has not answered yet; it is given up then.
    Loads {
        since: Time,
        until: Time,
        /// What a router says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<String>,
    },
    /// It runs and answered, and does not any more; it is replaced then.
    Hangs {
        since: Time,
        until: Time,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<String>,
    },
    /// It runs, and no router has spoken.
    Unseen {
        since: Time,
    },
    Suspended,
    Stops,
    /// It is told to go, and finishes what it has until then.
    Drains {
        until: Time,
    },
}

/// Replicas fail one after another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failing {
    pub failures: u32,
    pub last: String,
    /// When the next one is tried.
    pub next: Time,
}

impl EndpointVerdict {
    /// A sentence for everything that is not as it should be. Times are said as of now.
    pub fn sentences(&self, now: Time) -> Vec<String> {
        let mut out = Vec::new();
        if self.routers == 0 {
            out.push(NO_ROUTER.to_owned());
        }
        if let Some(failing) = &self.failing {
            out.push(failing.sentence(now));
        }
        out.extend(self.replicas.iter().map(|replica| replica.sentence(now)));
        out.extend(self.rollout.clone());
        out
    }
}

impl Failing {
    fn sentence(&self, now: Time) -> String {
        let Failing { failures, last, next } = self;
        let next = match left(*next, now) {
            Span(0) => String::new(),
            wait => format!("; next in {wait}"),
        };
        match failures {
            1 => format!("a replica failed: {last}{next}"),
            n => format!("{n} replicas failed one after another, the last: {last}{next}"),
        }
    }
}

/// A wait, rounded up: what is not over is not nothing.
fn left(until: Time, now: Time) -> Span {
    until.since(now).short_up()
}

impl ReplicaVerdict {
    fn sentence(&self, now: Time) -> String {
        format!("replica {} {}", self.job, Said { why: &self.why, now })
    }
}

fn aside(said: &Option<String>) -> String {
    said.as_ref().map_or_else(String::new, |said| format!(" ({said})"))
}

struct Said<'a> {
    why: &'a NotReady,
    now: Time,
}

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ago = |at: &Time| self.now.since(*at).short();
        let until = |at: &Time| left(*at, self.now);
        match self.why {
            NotReady::Waits { since } => write!(f, "waits for GPUs since {}", ago(since)),
            NotReady::Held => f.write_str("is held: `tutti release` lets it start"),
            NotReady::Retries { at } => write!(f, "failed and starts again in {}", until(at)),
            NotReady::Starts { since } => write!(f, "starts since {}", ago(since)),
            NotReady::Loads { since, until: by, said } => {
                write!(f, "runs for {} and does not answer{}", ago(since), aside(said))?;
                write!(f, ", given up in {}", until(by))
            }
            NotReady::Hangs { since, until: by, said } => {
                write!(f, "does not answer any more since {}{}", ago(since), aside(said))?;
                write!(f, ", replaced in {}", until(by))
            }
            NotReady::Unseen { since } => {
                write!(f, "runs for {}, and no router has seen it", ago(since))
            }
            NotReady::Suspended => f.write_str("is suspended: others have its GPUs"),
            NotReady::Stops => f.write_str("is being stopped"),
            NotReady::Drains { until: by } => {
                write!(f, "goes, and finishes what it has within {}", until(by))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_count_right_and_round_spans() {
        let now = Time(1_000_000);
        let loads = NotReady::Loads { since: Time(995_013), until: Time(1_001_600), said: None };
        let mut verdict = EndpointVerdict {
            ready: 0,
            want: 1,
            routers: 1,
            replicas: vec![ReplicaVerdict { job: JobId(7), revision: 1, why: loads }],
            failing: Some(Failing { failures: 1, last: "rank 0 failed".into(), next: now }),
            rollout: None,
        };
        assert_eq!(
            verdict.sentences(now),
            [
                "a replica failed: rank 0 failed",
                "replica 7 runs for 4s and does not answer, given up in 2s",
            ]
        );
        let failing = Failing { failures: 2, last: "it hung".into(), next: Time(1_000_100) };
        (verdict.failing, verdict.replicas, verdict.routers) = (Some(failing), Vec::new(), 0);
        assert_eq!(
            verdict.sentences(now),
            [NO_ROUTER, "2 replicas failed one after another, the last: it hung; next in 1s"]
        );
    }
}
