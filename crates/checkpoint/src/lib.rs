//! Checkpoints that are whole or not there at all.
//!
//! Each rank writes its pieces of the tensors into safetensors shards, hashed while they are
//! written, beside the training. One rank gathers what all of them report and publishes a manifest:
//! from that moment the checkpoint exists, everywhere and at once. A reader follows manifests only,
//! takes any box of any tensor out of whatever layout it was saved with, and trusts no byte whose
//! hash it has not compared.
//!
//! It does not decide when to save (the job does; [`advise`] helps), it does not move tensors to or
//! from a GPU, and it never executes what it reads: no pickle.
//!
//! ```text
//!  rank 0  save ─► shard ─┐                          ┌─ local dir ─┐
//!  rank 1  save ─► shard ─┼─ reports ─► publish ─► manifest        │
//!  rank 2  save ─► shard ─┘                          ├─ peers      ├─► load ─► slice(name, box)
//!                                                    └─ objects ───┘     else the one before
//! ```
//!
//! ```
//! use tutti_checkpoint::{Attempt, Dtype, Options, Selector, Store, Tensor, Writer};
//!
//! # let dir = tempfile::tempdir()?;
//! # let dir = dir.path().to_str().unwrap();
//! let attempt = Attempt { owner: "job 12".into(), generation: 1 };
//! let open = |rank| {
//!     let writer = Some(Writer { rank, world: 2, attempt: attempt.clone() });
//!     Store::open(dir, Options { writer, ..Options::default() })
//! };
//! let mut reports = Vec::new();
//! for rank in 0..2 {
//!     let mut save = open(rank)?.save(100)?;
//!     // Each rank has one row of a 2 × 2 tensor.
//!     let row = vec![rank as u8; 2];
//!     save.add(Tensor::piece("w", Dtype::U8, &[2, 2], &[u64::from(rank), 0], &[1, 2], row))?;
//!     reports.push(save.finish().wait()?);
//! }
//! open(0)?.publish(100, reports, serde_json::json!({"tokens": 4096}))?;
//!
//! // Each rank wants a column now.
//! let loaded = Store::open(dir, Options::default())?.load(Selector::Latest)?;
//! assert_eq!(loaded.slice("w", &[0, 1], &[2, 1])?.bytes, [0, 1]);
//! assert_eq!(loaded.meta()["tokens"], 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod advise;
mod dtype;
mod error;
mod export;
mod foreign;
mod geometry;
mod hash;
mod layout;
mod load;
mod location;
mod manifest;
pub mod peer;
mod retention;
mod save;
mod shard;
mod store;
pub mod tier;

pub use dtype::Dtype;
pub use error::Error;
pub use export::ExportError;
pub use foreign::ForeignError;
pub use geometry::Region;
pub use hash::{CHUNK, TreeHash};
pub use layout::Attempt;
pub use load::{Fallback, LoadReport, Loaded, TensorData};
pub use location::{Location, LocationError};
pub use manifest::{FileEntry, Kind, Manifest, ManifestError, Piece, TensorEntry, TensorProblem};
pub use retention::{Candidate, Keep};
pub use save::{AsyncSave, ReportedPiece, Save, ShardReport, Writer};
pub use shard::Tensor;
/// With whose rights directories are read and changed: [`Options::acting`].
pub use tutti_files::Acting;

pub use store::{BadCopy, Listed, Options, Published, Reading, Selector, Store, Swept, Verified};

/// An error with everything that caused it, in one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}
