//! The `[service]` table of a job file: what makes a job an endpoint.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::Span;
use crate::units::text_serde;

/// How an endpoint is served. GPUs, nodes and memory of one replica are those of the job file around
/// it; every key is optional.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ServiceSpec {
    /// Where each replica listens. Without it a free port is picked for each; `$PORT` says which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Asked by routers: a replica gets requests while this answers with 2xx.
    pub health: String,
    /// Names by which requests may ask for it in `model`, beside the endpoint's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// How many replicas: `2`, or `[min, max]`. Least 0 lets it sleep when nobody asks.
    #[schema(value_type = Vec<u32>)]
    pub replicas: Replicas,
    /// Requests under way or waiting per replica that autoscaling aims at.
    pub target_in_flight: u32,
    /// A replica never gets more than this at a time; the others wait in the router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    pub policy: RoutePolicy,
    /// The header that `policy = "sticky"` goes by.
    pub sticky_header: String,
    /// How long a replica may take from its start until it is ready.
    pub warm_up: Span,
    /// One that answered and does not any more is replaced after this long.
    pub hung_after: Span,
    /// For this long after it became ready a replica gets less than its share.
    pub slow_start: Span,
    /// How long a replica that goes may take for the requests it has.
    pub drain: Span,
    /// How many requests may wait in each router; one more is refused with 429.
    pub queue: u32,
    /// How long a request may wait for a replica; one that is held for the first replica of a sleeping
    /// endpoint waits for `warm_up` on top.
    pub queue_wait: Span,
    /// More is asked for this long before replicas are added
    pub up_after: Span,
    /// and less for this long before they are taken away
    pub down_after: Span,
    /// and nothing at all for this long before the last one is.
    pub zero_after: Span,
    /// At these hours there are at least so many replicas.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schedule: Vec<ScheduledMin>,
    pub access: Access,
    /// Which requests a router may send to another replica when the first one fails before it has
    /// answered anything.
    pub retry: RetryRule,
    /// A file or directory with the model. Nodes that have it are preferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<String>,
    pub rollout: RolloutRule,
}

impl Default for ServiceSpec {
    fn default() -> Self {
        ServiceSpec {
            port: None,
            health: "/health".to_owned(),
            models: Vec::new(),
            replicas: Replicas { min: 1, max: 1 },
            target_in_flight: 16,
            max_in_flight: None,
            policy: RoutePolicy::default(),
            sticky_header: "x-session-id".to_owned(),
            warm_up: Span::secs(600),
            hung_after: Span::secs(60),
            slow_start: Span::secs(10),
            drain: Span::secs(60),
            queue: 1000,
            queue_wait: Span::secs(60),
            up_after: Span::secs(10),
            down_after: Span::secs(300),
            zero_after: Span::secs(900),
            schedule: Vec::new(),
            access: Access::default(),
            retry: RetryRule::default(),
            files: None,
            rollout: RolloutRule::default(),
        }
    }
}

/// Least and most replicas. Written as `2` or `[0, 8]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    pub min: u32,
    pub max: u32,
}

impl Serialize for Replicas {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [self.min, self.max].serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Replicas {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Replicas, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of replicas, or [min, max] such as [0, 8]")]
        enum Written {
            One(u32),
            Range([u32; 2]),
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::One(n) => Replicas { min: n, max: n },
            Written::Range([min, max]) => Replicas { min, max },
        })
    }
}

/// Which replica gets a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RoutePolicy {
    /// The one with the fewest requests under way.
    #[default]
    LeastOutstanding,
    /// The less busy of two picked at random.
    P2c,
    /// The one that has seen the beginning of the prompt, unless it is much busier than others.
    Prefix,
    /// The same one for the same value of a header, while it is there and not overloaded.
    Sticky,
    /// Each in turn. For comparisons.
    RoundRobin,
}

impl RoutePolicy {
    pub const ALL: [RoutePolicy; 5] = [
        RoutePolicy::LeastOutstanding,
        RoutePolicy::P2c,
        RoutePolicy::Prefix,
        RoutePolicy::Sticky,
        RoutePolicy::RoundRobin,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RoutePolicy::LeastOutstanding => "least-outstanding",
            RoutePolicy::P2c => "p2c",
            RoutePolicy::Prefix => "prefix",
            RoutePolicy::Sticky => "sticky",
            RoutePolicy::RoundRobin => "round-robin",
        }
    }
}

/// Who may ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Whoever shows a key, and everybody on the router's own machine.
    #[default]
    Keys,
    /// Anybody who reaches a router.
    Open,
}

/// What may be sent twice. Never after the first byte of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RetryRule {
    /// What never reached a replica, idempotent methods, and `POST /v1/…`, which only computes.
    #[default]
    Safe,
    /// Every request.
    Always,
    /// Only what never reached a replica.
    Never,
}

/// At least `min` replicas from one hour to another: `{ from = "08:00", until = "20:00", min = 4 }`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduledMin {
    pub from: TimeOfDay,
    /// Earlier than `from`: on the next day.
    pub until: TimeOfDay,
    /// `mon` to `sun`; every day if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Weekday>,
    pub min: u32,
    /// Minutes that the clock of `from` and `until` is ahead of UTC.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub utc_offset_minutes: i32,
}

fn is_zero(n: &i32) -> bool {
    *n == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Weekday {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// Minutes after midnight, written as `08:30`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay(pub u16);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no time of day: write 08:30")]
pub struct BadTimeOfDay(pub String);

impl FromStr for TimeOfDay {
    type Err = BadTimeOfDay;
    fn from_str(s: &str) -> Result<Self, BadTimeOfDay> {
        let bad = || BadTimeOfDay(s.to_owned());
        let (hours, minutes) = s.split_once(':').ok_or_else(bad)?;
        let hours: u16 = hours.parse().map_err(|_| bad())?;
        let minutes: u16 = minutes.parse().map_err(|_| bad())?;
        let whole = hours == 24 && minutes == 0;
        if minutes >= 60 || hours >= 24 && !whole {
            return Err(bad());
        }
        Ok(TimeOfDay(hours * 60 + minutes))
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

text_serde!(TimeOfDay, "a time of day such as 08:30");

/// How a new revision takes over, and when it must not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RolloutRule {
    /// Replicas that may be there on top while they are exchanged. 0: an old one goes first, and requests
    /// wait for the new one if it was the last.
    pub surge: u32,
    /// Per cent of requests that a new revision gets first, for `bake`. 0: it takes over at once, replica
    /// by replica.
    pub canary: u32,
    /// How long the canary is looked at; and how long after the last exchange a rollout may still be
    /// taken back.
    pub bake: Span,
    /// Taken back if the new revision's share of errors exceeds the old one's by so many per cent
    pub max_errors: f64,
    /// or its median time to the first byte is so many times the old one's.
    pub max_slowdown: f64,
    /// Requests of the new revision that a judgement needs.
    pub min_requests: u64,
}

impl Default for RolloutRule {
    fn default() -> Self {
        RolloutRule {
            surge: 1,
            canary: 0,
            bake: Span::secs(60),
            max_errors: 2.0,
            max_slowdown: 3.0,
            min_requests: 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_a_number_or_a_range() {
        let read = |text| serde_json::from_str::<Replicas>(text);
        assert_eq!(read("2").unwrap(), Replicas { min: 2, max: 2 });
        assert_eq!(read("[0, 8]").unwrap(), Replicas { min: 0, max: 8 });
        let error = read("\"many\"").unwrap_err().to_string();
        assert!(error.contains("[min, max]"), "{error}");
    }

    #[test]
    fn times_of_day_round_trip_and_nonsense_is_named() {
        for text in ["00:00", "08:30", "24:00"] {
            assert_eq!(text.parse::<TimeOfDay>().unwrap().to_string(), text);
        }
        for text in ["", "8", "08:60", "25:00", "24:01", "ab:cd"] {
            assert_eq!(text.parse::<TimeOfDay>(), Err(BadTimeOfDay(text.to_owned())));
        }
    }

    #[test]
    fn an_empty_table_is_a_service_with_one_replica() {
        let spec: ServiceSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(spec, ServiceSpec::default());
        assert_eq!(spec.replicas, Replicas { min: 1, max: 1 });
    }
}
