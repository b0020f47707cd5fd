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
pub mod catalogue;
mod cluster;
mod collective;
mod config;
mod efficiency;
pub mod emit;
mod estimate;
mod family;
mod layout;
mod legal;
mod measured;
mod memory;
pub mod names;
mod near;
mod numbers;
mod pick;
pub mod predict;
mod run;
mod search;
mod serving;
mod split;
#[cfg(test)]
mod testing;
mod time;
mod what_if;
pub mod words;
mod workload;

pub use arch::{Arch, Latent, Moe, Window};
pub use catalogue::CatalogueError;
pub use cluster::{Cluster, Gpu, Stack};
pub use config::{ConfigError, from_config};
pub use estimate::{Estimate, Memory, Part, Setup, StepTime, estimate};
pub use layout::{Layout, Recompute, Sharding};
pub use legal::{Illegal, legal};
pub use measured::{BadMeasured, Measured, MeasuredLinks, MeasuredShape};
pub use memory::{memory, usable_gb};
pub use names::UnknownModel;
pub use numbers::{BadNumbers, Numbers};
pub use pick::{Aim, Pick, Picks, pick};
pub use run::{Run, run};
pub use search::{
    Answer, Candidate, Goal, NoPlan, Pins, Question, RunnerUp, candidate, search, usual_batch,
    usual_precision,
};
pub use serving::{Serving, ServingPlan, serve};
pub use time::step_time;
pub use what_if::{WhatIf, what_if};
pub use workload::{Precision, Task, Workload};
