//! The agent: runs a node's part of every gang that is placed there.
//!
//! It decides nothing about the cluster: it carries out orders, says what became of them, and
//! keeps processes, logs and exit codes exact, through restarts of itself and of the controller.
//! It takes samples of the machine once a second and says what is wrong with it; what follows from
//! that is decided elsewhere.
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

pub mod active;
mod barred;
mod cgroup;
mod child;
mod config;
mod container;
mod cpus;
mod devices;
mod env;
mod frames;
mod health;
pub mod helper;
mod isolation;
mod join;
mod launcher;
mod link;
mod logs;
mod machine;
mod messages;
mod mps;
mod network;
mod node;
mod parts;
mod plan;
mod port_owner;
mod private;
mod progress;
mod release;
mod seen;
mod shim;
mod spawn;
pub mod suspend;
pub mod telemetry;
#[cfg(test)]
mod testing;
mod user;
mod zygote;

pub use config::{ActiveChecks, AgentConfig, AgentError, Controller, LogRetention, total_memory};
pub use container::Runtime;
pub use env::{
    ENVIRONMENT, SLURM_JOB, SLURM_TASK, VENDORS as VENDOR_ENVIRONMENT, launcher_environment,
};
pub use health::{ChecksConfig, examine_here};
pub use isolation::IsolationMode;
pub use logs::LogLimits;
pub use mps::VARIABLES as SHARE_ENVIRONMENT;
pub use network::VARIABLES as NETWORK_ENVIRONMENT;
pub use node::run;
pub use zygote::{Zygote, ZygoteError};

/// Where shims find their agent, in its data dir.
const SOCKET: &str = "agent.sock";
