//! What a look at the cluster finds, as far as rules go by it. Shares are 0 to 1; none is unknown,
//! and nobody is accused of what is not known.

use tutti_model::{AlertJob, Budget, JobWatch, Rank, Span, TaskId, Time};

#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub now: Time,
    /// Those that run; not those that start, stop or are suspended.
    pub tasks: Vec<TaskSeen>,
    /// Those that have failed without getting anywhere.
    pub circling: Vec<CirclingSeen>,
    pub nodes: Vec<NodeSeen>,
    pub teams: Vec<TeamSeen>,
    pub disks: Vec<DiskSeen>,
    pub certificates: Vec<CertificateSeen>,
}

#[derive(Clone, Debug)]
pub struct TaskSeen {
    pub id: TaskId,
    /// Which attempt: what is known of another one says nothing about it.
    pub era: u64,
    pub job: AlertJob,
    pub asks: Option<Box<JobWatch>>,
    pub gpus: Vec<GpuSeen>,
    /// None if it reports none, or none is known yet.
    pub steps: Option<Steps>,
}

/// Means over the last moments.
#[derive(Clone, Debug, Default)]
pub struct GpuSeen {
    pub node: String,
    pub gpu: u16,
    /// How much of it works, and in how much of the time anything runs on it at all.
    pub activity: Option<f64>,
    pub busy: Option<f64>,
    /// Of what it may draw.
    pub power: Option<f64>,
    /// How busy its memory is.
    pub traffic: Option<f64>,
    /// Of its memory: in use, and by how much that grew in a second.
    pub memory: Option<f64>,
    pub growth: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct Steps {
    /// Since the last one of the rank that is furthest behind.
    pub age: Span,
    /// The usual time of one, if it is known.
    pub pace: Option<Span>,
    /// The engine says that it makes none.
    pub stalled: bool,
    pub behind: Option<Lag>,
}

/// The rank that is behind the others.
#[derive(Clone, Debug)]
pub struct Lag {
    pub rank: Rank,
    pub node: Option<String>,
    pub steps: u64,
}

#[derive(Clone, Debug)]
pub struct CirclingSeen {
    pub id: TaskId,
    pub job: AlertJob,
    pub asks: Option<Box<JobWatch>>,
    /// In a row, without getting anywhere. None: nobody can tell yet whether it still gets nowhere.
    pub failures: Option<u32>,
    /// It has ended for that.
    pub over: bool,
}

#[derive(Clone, Debug, Default)]
pub struct NodeSeen {
    pub name: String,
    /// Of its memory, in use.
    pub memory: Option<f64>,
    /// When it left, newest first; not when the controller did.
    pub left: Vec<Time>,
    /// Since when it is lost. None also if somebody took it out, who needs not be told.
    pub lost: Option<Time>,
    /// Two agents hold its key, and from where they call.
    pub shared_key: Option<(String, String)>,
}

#[derive(Clone, Debug)]
pub struct TeamSeen {
    pub name: String,
    pub budget: Budget,
    pub used_hours: f64,
}

#[derive(Clone, Debug)]
pub struct DiskSeen {
    /// None: the controller's own.
    pub node: Option<String>,
    pub path: Option<String>,
    pub free: Option<f64>,
    pub free_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct CertificateSeen {
    pub which: Certificate,
    pub left: Span,
}

/// Each is mended in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    Server,
    Ca,
}

impl Certificate {
    pub fn as_str(self) -> &'static str {
        match self {
            Certificate::Server => "server certificate",
            Certificate::Ca => "CA",
        }
    }
}
