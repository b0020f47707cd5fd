//! The stream between an agent and the controller: length-prefixed MessagePack with field names,
//! over mutual TLS with ALPN [`ALPN_AGENT`], opened by the agent.
//!
//! ```text
//! agent ── Hello ─────────────► controller
//!       ◄─ Welcome | Refused ──
//!       ── Heartbeat, Report ─►
//!       ── Telemetry ─────────►     may be left out
//!       ◄─ Order ─────────────
//!       ◄─ ReadLog ─── Log ───►     pull: the reader sets the pace
//!       ◄─ Exec, Input ─ Output ►
//!       ◄─ Signal ──── Output ►
//!       ── Findings ──────────►     a level, on every change and with every heartbeat
//!       ◄─ Health ──── Health ►     fire drills, resolving, examining
//!       ── Clock ───── Clock ─►     how far apart the clocks are
//! ```

use serde::{Deserialize, Serialize};
use tutti_model::{
    ActiveReport, Epoch, Finding, GpuIndex, Greeting, HealthAction, NodeId, NodeSample, Order,
    PartReport, Rank, Span, TaskId, Time, WatchRule,
};

/// Chosen in the TLS handshake; anything else on the port is HTTP.
pub const ALPN_AGENT: &[u8] = b"tutti-agent/1";

/// Raised when an older peer could misunderstand a newer one. The controller refuses agents whose
/// protocol it does not know and says which version to install.
pub const PROTOCOL: u32 = 1;

/// No frame is larger; a longer one is an error, not an allocation.
pub const FRAME_MAX: usize = 16 << 20;

/// Names one request on the stream, chosen by the controller.
pub type RequestId = u64;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToController {
    Hello {
        protocol: u32,
        greeting: Box<Greeting>,
        /// The newest controller epoch that the agent has seen.
        epoch: Epoch,
        /// PEM of a certificate request, when two thirds of the certificate's time are over.
        renew: Option<String>,
        /// Made anew whenever an agent starts: whoever opens a second stream with another one is
        /// another process. None from agents that do not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instance: Option<String>,
    },
    /// Every `Welcome::heartbeat`, with everything not yet forgotten.
    Heartbeat {
        parts: Vec<PartReport>,
    },
    Report {
        report: PartReport,
    },
    /// What the machine does, about once a second. The first thing to be left out when there is
    /// much to say.
    Telemetry {
        sample: Box<NodeSample>,
    },
    /// Everything that is wrong with the machine now.
    Findings {
        findings: Vec<Finding>,
    },
    Health {
        request: RequestId,
        reply: HealthReply,
    },
    /// Answered with the controller's time at once.
    Clock {
        sent: Time,
    },
    Log {
        request: RequestId,
        reply: LogReply,
    },
    /// Output of an `Exec`.
    Output {
        request: RequestId,
        output: ExecOutput,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ToAgent {
    Welcome {
        node: NodeId,
        epoch: Epoch,
        heartbeat: Span,
        certificate: Option<String>,
    },
    /// The controller closes after this.
    Refused {
        reason: String,
    },
    Order(Order),
    ReadLog {
        request: RequestId,
        read: LogRead,
    },
    Health {
        request: RequestId,
        ask: HealthAsk,
    },
    Clock {
        /// As it was asked.
        sent: Time,
        now: Time,
    },
    Exec {
        request: RequestId,
        exec: Exec,
    },
    /// Input for a rank's standard input (`tutti run`, `tutti attach`).
    Stdin {
        task: TaskId,
        rank: Rank,
        #[serde(with = "bytes_serde")]
        data: Vec<u8>,
        eof: bool,
    },
    /// Input for a running `Exec`.
    ExecInput {
        request: RequestId,
        #[serde(with = "bytes_serde")]
        data: Vec<u8>,
        eof: bool,
    },
    /// A signal for the processes of a part, and nothing else. Answered like an `Exec`, with an exit of 0
    /// or a reason.
    Signal {
        request: RequestId,
        task: TaskId,
        signal: String,
    },
    /// The ranks of this task are to know.
    Warn {
        task: TaskId,
        warning: Warning,
    },
    /// Nobody waits for this request any more.
    Abandon {
        request: RequestId,
    },
}

/// What is wrong with a job, for the job itself: a line of `$TUTTI_WARNINGS`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    pub rule: WatchRule,
    pub text: String,
    /// By the controller's clock.
    pub at: Time,
}

/// What an operator asks of a node's agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum HealthAsk {
    /// A fire drill: as if this had been seen.
    Inject(Drill),
    /// Take findings off the board: those of one GPU, the one with this key, or all.
    /// Fenced GPUs are checked first, unless `unchecked`.
    Resolve {
        gpu: Option<GpuIndex>,
        key: Option<String>,
        by: String,
        #[serde(default)]
        unchecked: bool,
    },
    /// Make the GPUs that nobody uses compute something whose answer is known.
    Check,
    /// What is known of the machine, and what can't be.
    Examine,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drill {
    pub gpu: Option<GpuIndex>,
    pub what: DrillWhat,
    pub by: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "drill", rename_all = "snake_case")]
pub enum DrillWhat {
    /// A line of the kernel's log with this number.
    Xid {
        xid: u32,
    },
    Finding {
        check: String,
        action: HealthAction,
        text: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "health", rename_all = "snake_case")]
pub enum HealthReply {
    /// Everything that stands now, and what was put there or taken away.
    Board {
        findings: Vec<Finding>,
        touched: Vec<Finding>,
        /// GPUs that were checked before their fences were to go.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        active: Option<Box<ActiveReport>>,
    },
    Checked(Box<ActiveReport>),
    Examined(Box<Examination>),
    Refused {
        reason: String,
    },
}

/// What an agent knows of its machine's health.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default)]
pub struct Examination {
    pub findings: Vec<Finding>,
    /// What is watched, with what was last seen there.
    pub watched: Vec<Watched>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Watched {
    /// "kernel log", "telemetry", "check raid".
    pub what: String,
    /// None: it is watched. Else why it can't be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not: Option<String>,
    /// "12 records read", "580.159.04".
    pub note: String,
}

/// Asks for a piece of one rank's log. With `wait`, the answer comes when there is something after
/// `offset` or the rank has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRead {
    pub task: TaskId,
    /// Counts from 1; none is the newest.
    pub attempt: Option<u32>,
    pub rank: Rank,
    pub from: LogFrom,
    pub max_bytes: u32,
    pub wait: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFrom {
    /// Counts from the first byte ever written, over rotated files too.
    Offset(u64),
    /// The last so many lines.
    Tail(u32),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "log", rename_all = "snake_case")]
pub enum LogReply {
    Piece {
        lines: Vec<LogLine>,
        /// Where to go on.
        next: u64,
        /// The rank has ended and this was the last of it.
        end: bool,
        /// Bytes that rotation had removed before they were asked for.
        skipped: u64,
    },
    Missing {
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Milliseconds since 1970 by the node's clock.
    pub at: u64,
    pub stream: LogStream,
    #[serde(with = "bytes_serde")]
    pub text: Vec<u8>,
    /// The line goes on in the next entry (no newline was seen).
    pub partial: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    Out,
    Err,
}

/// Runs another program inside a running task, with its user, environment, directory and cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub task: TaskId,
    pub rank: Rank,
    pub argv: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "exec", rename_all = "snake_case")]
pub enum ExecOutput {
    Data {
        stream: LogStream,
        #[serde(with = "bytes_serde")]
        data: Vec<u8>,
    },
    Exited {
        status: tutti_model::ExitStatus,
    },
    Failed {
        reason: String,
    },
}

/// MessagePack's binary type instead of an array of numbers.
pub mod bytes_serde {
    use serde::{Deserializer, Serializer, de::Visitor};

    pub fn serialize<S: Serializer>(data: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(data)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl<'de> Visitor<'de> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, v: &[u8]) -> Result<Vec<u8>, E> {
                Ok(v.to_vec())
            }
            fn visit_byte_buf<E>(self, v: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(v)
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<Vec<u8>, A::Error> {
                let mut out = Vec::new();
                while let Some(b) = seq.next_element()? {
                    out.push(b);
                }
                Ok(out)
            }
        }
        d.deserialize_byte_buf(Bytes)
    }
}
