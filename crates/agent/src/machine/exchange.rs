//! What the machine hears of the shell around it, and what it has the shell do.

use tutti_model::{
    GpuIndex, LeaseId, LimitReport, Order, PartError, PartProgress, RankExit, Span, Suspension,
};

use crate::messages::{End, ToShim};
use crate::parts::{Fate, FoundState, Record};

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Order(Order),
    /// Answer to [`Action::Prepare`]: a free port, or why the part can't run.
    Prepared {
        lease: LeaseId,
        result: Result<u16, PartError>,
    },
    /// The part will not start any more: its record could not be written, or no shim could be
    /// made for it and it was revoked.
    LaunchFailed {
        lease: LeaseId,
        message: String,
    },
    Hello {
        lease: LeaseId,
        exits: Vec<RankExit>,
    },
    Exits {
        lease: LeaseId,
        exits: Vec<RankExit>,
    },
    Progress {
        lease: LeaseId,
        progress: Box<PartProgress>,
    },
    Ended {
        lease: LeaseId,
        end: End,
    },
    /// The shim's connection broke.
    Gone {
        lease: LeaseId,
    },
    /// Answer to [`Action::Look`]: what the disk says.
    Looked {
        lease: LeaseId,
        fate: Fate,
    },
    /// Answer to [`Action::Sweep`].
    Swept {
        lease: LeaseId,
    },
    /// A starting agent found this on disk.
    Found {
        record: Box<Record>,
        state: FoundState,
        /// How far it was with being suspended, and on which GPUs it is.
        moved: Option<Moved>,
    },
    /// The shim says how far its part is with being suspended.
    Suspension {
        lease: LeaseId,
        moved: Moved,
    },
    /// What the shim knows of its part's time limit.
    Limit {
        lease: LeaseId,
        level: Option<LimitReport>,
    },
    /// The node is being taken down with all that runs on it.
    Shutdown {
        grace: Span,
    },
}

/// Where a part stands that was told to leave its GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    pub suspension: Option<Suspension>,
    /// Where it is, or was; none if that is not known.
    pub gpus: Option<Vec<GpuIndex>>,
}

/// Ports that were free on the nodes of the gang when they prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// On the first node.
    pub master: u16,
    /// One on each node, in rank order; none if the controller is too old to say.
    pub all: Vec<u16>,
}

/// Something is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Look up the user, check the directory, find a port. The answer may come later.
    Prepare(LeaseId),
    /// Write the record of a part that waits for its gang.
    KeepPrepared(LeaseId),
    /// Write the record and ask the zygote for a shim.
    Launch {
        lease: LeaseId,
        ports: Ports,
    },
    /// Dropped if the shim is not connected: it is told when it says hello.
    Tell {
        lease: LeaseId,
        message: ToShim,
    },
    /// Out of its GPUs, if the node has room for what it has there.
    TellSuspend(LeaseId),
    /// Tell it to take these GPUs and go on.
    TellWake {
        lease: LeaseId,
        gpus: Vec<GpuIndex>,
    },
    /// Look at the part's record on disk after this long.
    Look {
        lease: LeaseId,
        after: Span,
    },
    /// Make sure that no shim can start it; then say `LaunchFailed`, or look again if one was
    /// faster.
    Revoke(LeaseId),
    /// Kill what a dead shim left behind.
    Sweep(LeaseId),
    /// Say it where the operator looks.
    Complain(String),
    /// Remember on disk that this lease must never start.
    Bar(LeaseId),
    Report(LeaseId),
    /// Remove the record.
    Remove(LeaseId),
}
