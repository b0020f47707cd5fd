//! What is wrong with this machine: a board of findings that outlives the agent, and what feeds it.
//!
//! ```text
//! kernel log, NVML ─┐
//! samples, rules ───┼─► Board ─► findings, a level ─► controller
//! operator's checks ┤      └──► health.json
//! fire drills ──────┘
//! ```
//! What a line or a sample means is decided in `tutti_gpu::health`; here it is read, and kept.

mod board;
mod checks;
mod drill;
mod driver;
mod here;
pub mod inventory;
mod kernel_log;
mod store;

pub use board::Board;
pub use checks::{Checked, ChecksConfig, run_for_ever, run_once};
pub use drill::{drill, imagined_address};
pub use driver::{DriverEvents, PAUSE as LISTEN_AGAIN};
pub use here::examine as examine_here;
pub use kernel_log::{Entry as KernelEntry, KernelLog, PATH as KERNEL_LOG, booted_at};
pub use store::{StoreError, Stored, boot_id};
