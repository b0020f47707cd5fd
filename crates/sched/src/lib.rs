//! What runs where: the order of the queue, whether a gang fits, which nodes and GPUs it gets, and
//! a reason for everything that is left waiting.
//!
//! Pure: state in, plan out. It changes nothing, keeps nothing between passes, reads no clock and
//! knows no agents. Turning a plan into leases, and checking it first, is `engine`.
//!
//! ```text
//! State.index.queue ──► pass ──► Plan { placements, verdicts }
//!                        │ ▲
//!           Ask (demand) ▼ │ shares
//!                        fit ──► Cluster: what is free, nodes sorted by it
//!
//! verdict, explain, impossible: the same Ask and Cluster, for people who ask why
//! ```

mod ask;
mod cluster;
mod describe;
mod explain;
mod fit;
mod impossible;
mod pass;
mod scheduler;
mod shares;
mod shortage;
mod verdict;

#[cfg(test)]
mod props;
#[cfg(test)]
mod testing;

pub use describe::describe;
pub use explain::explain;
pub use impossible::impossible;
pub use pass::plan;
pub use scheduler::Scheduler;
pub use shares::shares;
pub use verdict::verdict;
