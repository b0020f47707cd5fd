//! What the engine tells agents and what agents tell the engine. The stream around it (hello,
//! heartbeats, logs, exec) is in `wire::stream`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    Bytes, Finding, GpuIndex, JobSpec, LeaseId, NodeFacts, PartProgress, Rank, Restarts,
    SavedPoint, Span, Time,
};

/// An order of the engine to an agent. Each may arrive twice; the second time changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Prepare this part; run it at once unless it waits for `Go`.
    Start(Box<Launch>),
    /// Every part of the gang is prepared: start the ranks.
    Go {
        lease: LeaseId,
        master_port: u16,
        /// A port that is free on each node of the gang, in rank order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ports: Vec<u16>,
    },
    /// SIGTERM, then SIGKILL after `grace`, to every process of the part. If the agent does not
    /// know the lease, it must never start it later and reports it as done.
    Stop {
        lease: LeaseId,
        grace: Span,
        /// Sent first instead of SIGTERM, to those processes that listen for it; SIGTERM and SIGKILL
        /// follow when the grace runs out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<String>,
    },
    /// Moves the part's GPU state to host memory and freezes its processes, or changes nothing and
    /// says why not.
    Suspend { lease: LeaseId },
    /// Gives a suspended part these GPUs, in the order of those it had, and lets it go on.
    Wake { lease: LeaseId, gpus: Vec<GpuIndex> },
    /// How long the part may run on from now, in place of what its node was told before. Only for nodes
    /// that report limits.
    Limit { lease: LeaseId, limit: Option<TimeLimit> },
    /// The end of this part is on record; the agent may drop its own.
    Forget { lease: LeaseId },
}

impl Order {
    pub fn lease(&self) -> LeaseId {
        match self {
            Order::Start(l) => l.lease,
            Order::Go { lease, .. }
            | Order::Stop { lease, .. }
            | Order::Suspend { lease }
            | Order::Wake { lease, .. }
            | Order::Limit { lease, .. }
            | Order::Forget { lease } => *lease,
        }
    }
}

/// Everything an agent needs to run its part of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub lease: LeaseId,
    /// Counts from 1.
    pub attempt: u32,
    pub restarts: Restarts,
    pub user: String,
    pub spec: Arc<JobSpec>,
    pub submitted_at: Time,
    pub gpus: Vec<GpuIndex>,
    pub cpus: u32,
    pub mem: Bytes,
    pub first_rank: Rank,
    pub ranks: u32,
    pub world_size: u32,
    pub node_rank: u32,
    /// Name and address of every node of the gang, in rank order; the first is the master.
    pub hosts: Vec<Host>,
    /// Wait for `Go` after preparing. False for a gang on one node.
    pub wait_for_go: bool,
    /// How many tasks the array has, for the rank's environment.
    pub array_tasks: Option<u64>,
    /// The newest checkpoint of the attempts before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedPoint>,
    /// What the gang's own processes know each other by. The engine does not know it: it is put on
    /// the order when that leaves the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<GangKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<TimeLimit>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub name: String,
    pub address: String,
    /// GPUs of the gang on this node.
    #[serde(default)]
    pub gpus: u32,
    /// Processes of the gang that are started on this node.
    #[serde(default)]
    pub ranks: u32,
    /// What it may fail together with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}

/// A secret that all nodes of one attempt share, and nobody else. 64 hex digits where it is text.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GangKey(pub [u8; 32]);

impl GangKey {
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn from_hex(text: &str) -> Option<GangKey> {
        let mut key = [0; 32];
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(GangKey(key))
    }
}

/// Never in a log.
impl std::fmt::Debug for GangKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GangKey(..)")
    }
}

/// Where one part stands, as its agent sees it. Sent on every change, with every heartbeat and
/// after every reconnect, until the controller says `Forget`: losing one loses nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartReport {
    pub lease: LeaseId,
    pub phase: ReportedPhase,
    /// What the ranks said of themselves, if they said anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Box<PartProgress>>,
    /// How far it is with being suspended; none if it runs as usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Suspension>,
    /// What its processes hold on GPUs, as far as the driver says: what suspending it would take of
    /// host memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_mem: Option<Bytes>,
    /// Whose server listens where routers reach it. None: it serves nothing, or its agent has not
    /// looked yet, which says nothing new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_owner: Option<PortOwner>,
    /// What its node knows of its time limit. None: it has none, or its agent knows of no limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitReport>,
    /// Bytes of its ranks' output that were not kept, because the node's disk had no room. Known when
    /// it is over.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub output_dropped: u64,
}

/// Whose sockets listen on the address and port where routers reach a part, by the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "owner", rename_all = "snake_case")]
pub enum PortOwner {
    /// Processes of the part, and nobody else.
    Part,
    Nobody,
    /// The part listens on this port, but only on addresses that routers do not ask.
    Elsewhere {
        addresses: Vec<String>,
    },
    /// Somebody else, alone or beside the part.
    Stranger {
        /// "process 4711 (python3) of user bob".
        who: String,
    },
}

impl PortOwner {
    /// Whether they say the same, whoever the stranger is.
    pub fn is_like(&self, other: &PortOwner) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// How long a part may run on, and how it is stopped then. Its node enforces it when the controller
/// does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeLimit {
    /// From when its ranks start, or from when the node hears of it; time in which it is suspended
    /// does not count.
    pub left: Span,
    pub grace: Span,
    /// As in [`Order::Stop`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// A part's time limit as its node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "limit", rename_all = "snake_case")]
pub enum LimitReport {
    Left {
        left: Span,
    },
    /// Its time was over, the controller did not stop it, and so the node did.
    Over,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Where a part is on its way out of its GPUs and back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "suspension", rename_all = "snake_case")]
pub enum Suspension {
    Suspending,
    /// Nothing of it is on a GPU; this much is in host memory.
    Suspended {
        bytes: Bytes,
    },
    Waking,
    /// It runs on as before, because it can't be suspended.
    Refused {
        why: String,
    },
}

impl PartReport {
    pub fn new(lease: LeaseId, phase: ReportedPhase) -> PartReport {
        PartReport {
            lease,
            phase,
            progress: None,
            suspension: None,
            gpu_mem: None,
            port_owner: None,
            limit: None,
            output_dropped: 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum ReportedPhase {
    /// Ready to start; `port` is free on this node for the gang's rendezvous.
    Prepared {
        port: u16,
    },
    Running {
        exits: Vec<RankExit>,
    },
    /// No process of the part is left. `error` says why ranks without an exit never ran.
    Done {
        exits: Vec<RankExit>,
        error: Option<PartError>,
    },
}

/// Why a part could not run, and whose fault it is: that decides which retry budget pays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartError {
    pub message: String,
    pub blame: Blame,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Blame {
    Job,
    Node,
    /// Somebody took the node down on purpose: neither failed.
    Operator,
    /// Another program that shares a GPU with it: neither the job nor the machine.
    Neighbour,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RankExit {
    pub rank: Rank,
    pub status: ExitStatus,
    /// By the node's clock.
    pub at: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

impl ExitStatus {
    pub fn is_success(self) -> bool {
        self == ExitStatus::Code(0)
    }
    /// As a shell would say it.
    pub fn code(self) -> i32 {
        match self {
            ExitStatus::Code(c) => c,
            ExitStatus::Signal(s) => 128 + s,
        }
    }
    pub fn signal(self) -> Option<i32> {
        match self {
            ExitStatus::Signal(s) => Some(s),
            ExitStatus::Code(_) => None,
        }
    }
}

/// An agent's first word on a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Greeting {
    pub facts: NodeFacts,
    pub parts: Vec<PartReport>,
    /// What is wrong with the machine, as far as its agent knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
}

impl Greeting {
    /// Of a machine with which nothing is wrong.
    pub fn new(facts: NodeFacts, parts: Vec<PartReport>) -> Greeting {
        Greeting { facts, parts, findings: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gang_keys_are_hex_and_stay_out_of_logs() {
        let key = GangKey(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(GangKey::from_hex(&key.to_hex()), Some(key));
        assert_eq!(format!("{key:?}"), "GangKey(..)");
        let (short, odd) = ("0".repeat(63), format!("{}+1", "0".repeat(62)));
        for text in ["", short.as_str(), odd.as_str(), &"é".repeat(32)] {
            assert_eq!(GangKey::from_hex(text), None, "{text}");
        }
    }
}
