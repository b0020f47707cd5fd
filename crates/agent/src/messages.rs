//! What an agent and its shims say to each other over the agent's unix socket. A shim dials, and
//! dials again when the agent was restarted.

use serde::{Deserialize, Serialize};
use tutti_model::{
    Bytes, ExitStatus, LeaseId, LimitReport, PartError, PartProgress, Rank, RankExit, Span,
    TimeLimit,
};
use tutti_wire::stream::{LogStream, RequestId, Warning, bytes_serde};

use crate::devices::Rules;
use crate::suspend::Level;

/// How a part ended: written behind the part's record on disk, then told to the agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub exits: Vec<RankExit>,
    pub error: Option<PartError>,
    /// What the ranks had said of themselves by then.
    #[serde(default)]
    pub progress: Option<Box<PartProgress>>,
    /// It was stopped here at its time limit, because nobody else had.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_of_time: bool,
    /// Bytes of output that the disk had no room for.
    #[serde(default)]
    pub output_dropped: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum FromShim {
    /// The first word on every connection: the ranks run, these have ended already.
    Hello {
        lease: LeaseId,
        exits: Vec<RankExit>,
        /// Shims of older versions know nothing of time limits.
        #[serde(default)]
        keeps_limits: bool,
        #[serde(default)]
        limit: Option<LimitReport>,
    },
    /// On every change of the time limit itself, and when it is over.
    Limit {
        level: Option<LimitReport>,
    },
    Exits {
        exits: Vec<RankExit>,
    },
    /// What the ranks say of themselves, at most twice a second unless it is urgent, and after
    /// every hello.
    Progress {
        progress: Box<PartProgress>,
    },
    /// How far it is with being suspended: on every change, and after a hello if it ever was.
    Suspension {
        level: Level,
    },
    /// No process of the part is left, and the end is on disk. The shim leaves after this.
    Ended(End),
    /// The log of this rank grew, or the rank ended, since the agent asked.
    Grew {
        rank: Rank,
    },
    ExecData {
        request: RequestId,
        stream: LogStream,
        #[serde(with = "bytes_serde")]
        data: Vec<u8>,
    },
    ExecExited {
        request: RequestId,
        status: ExitStatus,
    },
    ExecFailed {
        request: RequestId,
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToShim {
    /// SIGTERM to everything now, SIGKILL after `grace`. With a signal, those who listen for it get
    /// that instead, and SIGTERM shortly before the grace runs out. With `because`, that is the
    /// part's end, and what the ranks return after it does not count.
    Stop {
        grace: Span,
        #[serde(default)]
        signal: Option<String>,
        because: Option<PartError>,
    },
    /// GPU state to host memory, and all processes frozen; or a refusal.
    Suspend {
        /// What the node's memory has left, where the GPUs are imagined: what they are said to hold
        /// takes none of the real one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        room: Option<Bytes>,
    },
    /// Back, onto these GPUs, in the order of those it had.
    Wake {
        gpus: Vec<String>,
        /// What it may open from now on, where it is held to that.
        #[serde(default)]
        devices: Option<Rules>,
    },
    Stdin {
        rank: Rank,
        #[serde(with = "bytes_serde")]
        data: Vec<u8>,
        eof: bool,
    },
    /// More came than could be kept before the shim was there: the input ends here.
    StdinCut {
        rank: Rank,
    },
    /// Say `Grew` once, when this rank's log is longer than `seen` bytes.
    Watch {
        rank: Rank,
        seen: u64,
    },
    Exec {
        request: RequestId,
        rank: Rank,
        argv: Vec<String>,
    },
    ExecInput {
        request: RequestId,
        #[serde(with = "bytes_serde")]
        data: Vec<u8>,
        eof: bool,
    },
    ExecKill {
        request: RequestId,
    },
    /// How long it may run on from now. Only for a shim that keeps limits.
    Limit {
        limit: Option<TimeLimit>,
    },
    /// For every process of the part, or for those that listen; answered as an `Exec` is.
    Signal {
        request: RequestId,
        signal: String,
    },
    /// What is wrong with the job, for its ranks and their log.
    Warn {
        warning: Warning,
    },
}
