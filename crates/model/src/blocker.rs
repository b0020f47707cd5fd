//! Everything that keeps a waiting task from starting, as data. A verdict says what it runs into
//! first; behind that there may be more, and what ends last decides when it starts.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Dependency, JobId, TaskId, Time};

/// One thing that would keep a task waiting if it were the only one, or that holds some of the nodes
/// it could use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blocker {
    #[serde(flatten)]
    pub what: Obstacle,
    /// When it ends by itself; none if nobody knows, or if somebody has to do something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

impl Blocker {
    pub fn new(what: Obstacle, until: Option<Time>) -> Blocker {
        Blocker { what, until }
    }

    /// What ends last goes first: what nobody knows the end of, then the latest.
    pub fn last_first(blockers: &mut [Blocker]) {
        blockers.sort_by_key(|b| (b.until.is_some(), std::cmp::Reverse(b.until)));
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Obstacle {
    /// By its owner or an operator, or because it was lost while it was suspended.
    Held,
    /// This job must end first.
    Dependency { waiting_for: Dependency },
    /// It failed a moment ago.
    BackOff,
    /// Its array runs as many tasks at once as it may.
    ArrayLimit { max_running: u32 },
    /// Its team, or one above it, may not have more: of this model if one is named.
    TeamLimit {
        team: String,
        limit: u32,
        used: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
    },
    /// Nodes are reserved for others, or for maintenance if no team is named, before it would end.
    Reservation {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        team: Option<String>,
        from: Time,
        nodes: u32,
    },
    /// Free, but kept for somebody who waits for the rest of it, or who comes back.
    KeptFor { task: TaskId, gpus: u32, nodes: u32 },
    /// Nodes that stay empty for gangs that lose one.
    Spares { nodes: u32 },
    /// It would delay a job that is before it in line and has a time to start.
    Behind { job: JobId },
    /// It may be stopped for the task, but was so not long ago and is left alone for a while
    /// (`preemption.not_again_within`).
    LeftAlone { task: TaskId, gpus: u32, nodes: u32 },
    /// Others have what it needs; `gpus` of those it could use. `until` is when enough of them have
    /// used up their time limits.
    Busy { nodes: u32, gpus: u32 },
    /// Nodes take no new work.
    Draining { nodes: u32 },
    /// Nodes are lost, away or cleaning up.
    Away { nodes: u32 },
    /// Nodes have too few GPUs while some of them are fenced.
    Fenced { nodes: u32 },
    /// Somebody listens there on the fixed port that it would listen on.
    Port { nodes: u32 },
}
