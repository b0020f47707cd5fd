//! The agent: runs a node's part of every gang that is placed there.
//!
//! It decides nothing about the cluster: it carries out orders, says what became of them, and
//! keeps processes, logs and exit codes exact, through restarts of itself and of the controller.
//! It does not watch GPUs' health and does not collect metrics.
//!
//! ```text
//! controller ◄──TLS──► link ◄─► node (shell) ◄─► machine (pure)
//!                                 │   ▲
//!                  plans, one way ▼   │ unix socket, shims dial
//!                              zygote │
//!                                 └─fork─► shim ─exec─► ranks ─► logs/
//! ```
//!
//! `Zygote::fork` comes first in `main`, before any thread; then [`run`].

mod cgroup;
mod env;
pub mod frames;
mod logs;
mod machine;
mod messages;
mod parts;
mod plan;
mod seen;
mod shim;
mod spawn;
#[cfg(test)]
mod testing;
mod user;
mod zygote;

pub use cgroup::CgroupMode;
pub use env::ENVIRONMENT;
pub use logs::LogLimits;
pub use zygote::{Zygote, ZygoteError};

/// Where shims find their agent, in its data dir.
const SOCKET: &str = "agent.sock";
