//! The production engine under a virtual clock.
//!
//! Holds no scheduling logic of its own: [`tutti_engine::Engine`] decides, this crate plays
//! everything around it. It does no IO: the caller reads the files.
//!
//! **Storms** ([`run`]): a seed for everything that can go wrong.
//! ```text
//! clients ─► net (late, lost, repeated) ─► controller { Engine, journal } ─► net ─► nodes
//!                                               ▲ crash and replay              ▲ crash, cut off
//!                   after every step: invariants ┘   a GPU runs one lease ──────┘
//! ```
//! A run has a stormy part and a calm part. In the storm messages are lost, late and repeated,
//! nodes and the controller crash, links are cut and the clock jumps. In the calm everything must
//! heal: every job ends, every node is ready, nothing is held.
//!
//! **Replays** ([`replay`]): what would this cluster have done with that trace?
//! ```text
//! text ─► trace ──┐
//! text ─► cluster ┴► replay ─► report: figures, CSV, a page
//! ```
//!
//! **A day and a night** ([`shared`]): one endpoint and many trainings on the same GPUs.

pub mod cluster;
mod controller;
pub mod day;
mod net;
mod node;
mod noise;
pub mod replay;
pub mod report;
mod run;
pub mod shape;
pub mod shared;
pub mod trace;
pub mod vitals;
mod workload;

pub use controller::Counts;
pub use run::{Failure, Storm, Summary, journal, run, run_again};
