//! From a model and a cluster to a layout, a time and a price. Pure: no clock, no files, no network.
//!
//! ```text
//!  config.json, a name, numbers ─► Arch ─┐
//!  catalogue, file, running one ─► Cluster ─┤
//!  task, sequence, batch, precision ─► Workload ─┤
//!                                               ▼
//!            search: every legal Layout ─► estimate(Setup) ─► Estimate { memory, time }
//!                                               ▼
//!                         ranked, explained, what if ─► a job file, flags of trainers
//! ```
//! `estimate` is one function for planning, for checking a job and for scoring published runs: what is
//! planned is what is measured against.

mod arch;
mod cluster;
pub mod emit;
mod estimate;
mod layout;
mod workload;

pub use arch::{Arch, Latent, Moe};
pub use cluster::{Cluster, Gpu, Stack};
pub use estimate::{Estimate, Memory, Part, Setup, StepTime};
pub use layout::{Layout, Recompute, Sharding};
pub use workload::{Precision, Task, Workload};
