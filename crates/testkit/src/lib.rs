//! A cluster in a test: `tutti controller` and `tutti agent` as real processes on loopback
//! addresses, in a directory of their own.
//!
//! Tests start it, break it and look at it through the API. When it is dropped, also by a panic,
//! every process that it started is gone. It knows nothing of what the program does inside, and
//! no test waits by sleeping: [`wait_until`] asks until something is so.
//!
//! ```text
//! Cluster ─┬─ controller ◄── Client, Cli
//!          └─ n1, n2, ... ── zygote ── shims ── ranks     found in /proc by their data dir
//! Network ── one namespace for each machine, joined by a bridge
//! Loopback ── one namespace for all of them, with nothing but loopback
//! Crowd ── one namespace with thousands of addresses, for a server and those who attack it
//! ```
//!
//! Everything panics with a sentence on failure: in a test that is the report.

mod cli;
mod cluster;
mod mount;
mod network;
mod process;
mod wait;

pub use cli::{Cli, Done, LiveCli};
pub use cluster::{Cluster, ClusterOptions, LineOfLog, me};
pub use mount::SmallDisk;
pub use network::{Crowd, Loopback, Machine, Network, in_a_crowd};
pub use process::{Proc, kill_processes, processes_of};
pub use wait::{PATIENCE, wait_for, wait_until};

/// True if tests that need root can run here.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
