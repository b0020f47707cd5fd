//! The reference trainer: a decoder-only transformer under DP x TP x PP, on Burn.
//!
//! It is the acceptance test of a cluster: real tensors, real collectives, real checkpoints, and
//! losses that are the same however the ranks divide the work. It knows bytes as tokens and one
//! kind of model.
//!
//! It does not start ranks (agents do), does not come back from a failure (the engine does), does
//! not print, and is no rival to PyTorch.
//!
//! ```text
//! run ─► trainer.step ─► schedule (1F1B) ─► stage ─► nn: norm, attention, mlp, head
//!  │        │                                 └► comm: sums between tensor ranks
//!  │        └► grads: buckets, reduced while backward goes on ─► optim: AdamW on shards
//!  └► checkpoint ─► cut: shards as boxes of named tensors      progress: $TUTTI_PROGRESS
//!        └► copies: shards on other nodes
//! serving: weights (of a checkpoint, whole) ─► decoder: forward alone, keys and values are kept
//! ```

pub mod bucket;
pub mod checkpoint;
pub mod comm;
pub mod config;
pub mod copies;
pub mod cut;
pub mod data;
pub mod decoder;
pub mod device;
pub mod grads;
pub mod layout;
pub mod nn;
pub mod optim;
pub mod params;
pub mod progress;
pub mod rng;
pub mod run;
pub mod schedule;
pub mod stage;
pub mod tensor;
pub mod trainer;
pub mod weights;

pub use checkpoint::CheckpointOptions;
pub use config::{ConfigError, Device, ModelConfig, OptimConfig, Precision, TrainConfig};
pub use copies::CopiesOptions;
pub use decoder::{Decoder, DecoderOptions, Row};
pub use layout::{Layout, LayoutError};
pub use run::{Ended, Event, RunError, RunOptions, run};
pub use trainer::Trainer;
pub use weights::Weights;
