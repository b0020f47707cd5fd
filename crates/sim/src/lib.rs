//! The production engine under a virtual clock, with a seed for everything that can go wrong.
//!
//! Holds no scheduling logic of its own: [`tutti_engine::Engine`] decides, this crate plays the
//! network, the nodes, the clients, the disk and the clock around it.
//!
//! ```text
//! clients ─► net (late, lost, repeated) ─► controller { Engine, journal } ─► net ─► nodes
//!                                               ▲ crash and replay              ▲ crash, cut off
//!                   after every step: invariants ┘   a GPU runs one lease ──────┘
//! ```
//!
//! A run has a stormy part and a calm part. In the storm messages are lost, late and repeated,
//! nodes and the controller crash, links are cut and the clock jumps. In the calm everything must
//! heal: every job ends, every node is ready, nothing is held.

mod controller;
mod net;
mod node;
mod run;
mod workload;

pub use run::{Failure, Storm, Summary, journal, run};
