//! Collective operations between the ranks of a gang: all-reduce and friends.
//!
//! Plain threads and blocking calls; shared memory inside a node, TCP between nodes, NCCL for
//! buffers on GPUs. A rank that dies or hangs is an error on every rank, naming it: never a hang.
//!
//! It does not start ranks (agents do), does not restart anything after a failure (the engine
//! does), and does not encrypt: the gang's key keeps strangers out, no more.
//!
//! ```text
//! World::connect ─ rendezvous ─► peers ─┬─ control (heartbeats, one verdict for all) ─► health
//!                                       ├─ door (further connections) ─► mail: send, recv
//!        Group ─► lane (one per group) ─┴─► links: TCP, shared memory
//!          └► plan (cost model) ─► algo: ring, halving, tree, hierarchical, direct ─► kernel
//! ```

mod algo;
mod auth;
pub mod burn_in;
mod config;
mod control;
mod door;
mod element;
mod error;
mod group;
mod health;
mod idle;
mod kernel;
mod lane;
mod link;
mod mail;
pub mod nccl;
mod nodes;
mod peer;
mod pending;
mod plan;
mod probe;
mod rendezvous;
mod shm;
mod span;
mod sys;
mod wire;
mod world;

pub use config::Config;
pub use element::{DType, Element, Op};
pub use error::{Accused, Error, Result, Verb, Why};
pub use group::Group;
pub use half::{bf16, f16};
pub use pending::Pending;
pub use plan::{Algorithm, Choice, LinkCost, Links, UnknownAlgorithm};
pub use world::World;
