//! What is over, for years: ended jobs and past days of the ledger, in daily Parquet files.
//!
//! It knows files, columns and rows. It does not decide what leaves the controller's memory or when
//! (that is `controller` and `engine`), and it holds nothing in memory itself beyond what a page takes.
//!
//! ```text
//!  archive/jobs/2026/2026-11-16.parquet     a row for each job that ended on that day, UTC
//!  archive/ledger/2026/2026-11-16.parquet   where the GPU-time of that day went
//!
//!  controller ─► Table::add ─► the day's file, whole        Table::list, find ◄─ API
//!                                     └─► duckdb, pyarrow, polars, ...
//! ```
//! The columns are in `docs/reference/archive.md`.

mod day;
mod file;
mod fold;
pub mod jobs;
mod ledger;
mod search;
mod store;
mod table;
#[cfg(test)]
mod tests;
mod times;

pub use jobs::{JobEntry, More};
pub use search::{BadPosition, Page, Position, Search};
pub use store::{ArchiveError, Step, Table};
pub use table::{BadContent, Cell, Columns, Field, Key, Kind, Row};
pub use times::JobTime;
