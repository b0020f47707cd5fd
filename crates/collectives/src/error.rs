//! What can go wrong between ranks, and who is blamed for it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The operation that a rank was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verb {
    Connect,
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    AllToAll,
    Send,
    Recv,
    Barrier,
    Subgroup,
}

impl Verb {
    pub(crate) const ALL: [Self; 10] = [
        Self::Connect,
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::AllToAll,
        Self::Send,
        Self::Recv,
        Self::Barrier,
        Self::Subgroup,
    ];
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Barrier => "barrier",
            Self::Subgroup => "subgroup",
        })
    }
}

/// What a rank is accused of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its connections closed without a farewell.
    Died,
    /// Not even its background thread has been heard: suspended, or its machine is gone.
    Silent(Duration),
    /// It lives, but did not come to the operation that others wait in.
    Absent(Duration),
    /// It lives, but a connection to it broke.
    Broken(String),
    /// It left the world while others still needed it.
    Left,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Died => write!(f, "its process died (the connection closed without a farewell)"),
            Self::Silent(t) => {
                write!(f, "no sign of life for {:.1} s (suspended or hung)", t.as_secs_f64())
            }
            Self::Absent(t) => write!(
                f,
                "it lives but did not take part for {:.1} s (hung in its own code?)",
                t.as_secs_f64()
            ),
            Self::Broken(how) => write!(f, "the connection to it broke: {how}"),
            Self::Left => write!(f, "it left while others still waited for it"),
        }
    }
}

/// Who is blamed: the same on every rank, but for `op`, which is what this rank was doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accused {
    pub rank: usize,
    pub node: String,
    pub op: Verb,
    pub why: Why,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A rank failed. The world is of no use any more: every later operation says the same.
    #[error("rank {rank} on node {node} failed while this rank was in {op}: {why}")]
    Peer { rank: usize, node: String, op: Verb, why: Why },

    #[error("{name} is {value:?}: {expected}")]
    Environment { name: &'static str, value: String, expected: &'static str },

    #[error("could not reach rank 0 at {master} within {waited:?}: {last}")]
    Unreachable { master: String, waited: Duration, last: String },

    #[error("only {came} of {world} ranks came within {waited:?}; missing: {missing}{strangers}")]
    Missing { came: usize, world: usize, waited: Duration, missing: String, strangers: String },

    /// The other side does not hold the key of this gang, or is of another job or attempt.
    #[error("{who} is not of this gang: another job, attempt or key")]
    Stranger { who: String },

    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: Arc<io::Error>,
    },

    /// Ranks called different operations, or the same one with different sizes or types.
    #[error("rank {rank} is in {theirs} where this rank is in {ours}; all must call the same")]
    Mismatch { rank: usize, ours: String, theirs: String },

    /// An argument that can't be right; nothing was sent.
    #[error("{op}: {what}")]
    Usage { op: Verb, what: String },

    #[error("recv of tag {tag} from rank {from}: it sent {sent} bytes, {room} were expected")]
    Size { from: usize, tag: u64, sent: usize, room: usize },

    /// NCCL or the CUDA driver said no.
    #[error("{call} failed: {what}")]
    Device { call: &'static str, what: String },

    #[error("{library} could not be loaded: {what}")]
    NoLibrary { library: &'static str, what: String },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Who is to blame, if it was a rank.
    pub fn accused(&self) -> Option<Accused> {
        match self {
            Self::Peer { rank, node, op, why } => {
                Some(Accused { rank: *rank, node: node.clone(), op: *op, why: why.clone() })
            }
            _ => None,
        }
    }

    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source: Arc::new(source) }
    }

    pub(crate) fn usage(op: Verb, what: impl Into<String>) -> Self {
        Self::Usage { op, what: what.into() }
    }
}
