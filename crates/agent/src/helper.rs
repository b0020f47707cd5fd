//! Helpers that run as ranks of a gang, or are called by its processes: they make of the gang what
//! MPI, Ray and DeepSpeed expect to find, without ssh and without a service on the nodes.
//!
//! They know nothing but their environment, run as the job's user, and die with the gang. They do
//! not speak to agents or the controller.
//!
//! ```text
//!  first node                                     other nodes
//!  __launch mpi ── mpirun ── __rsh n2 orted ────► __launch mpi ── orted ── ranks
//!  __launch ray ── ray start --head               __launch ray ── ray start --address
//!       └──────────── "leave", when the command has ended ─►┘
//! ```

mod hostfile;
mod mpi;
mod peer;
mod place;
mod ray;
mod run;
mod scratch;

use std::io;
use std::process::ExitCode;

/// The hidden verb that wraps a rank's command, and the one that `mpirun` calls instead of ssh.
pub const LAUNCH: &str = "__launch";
pub const RSH: &str = "__rsh";

#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("this runs only inside a job: {0} is not set, or makes no sense")]
    Environment(&'static str),
    #[error("there is no command")]
    NoCommand,
    #[error("'{0}' is no node of this gang")]
    NoSuchNode(String),
    #[error("can't {what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("node {node} does not answer at {address}")]
    NoAnswer {
        node: String,
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("who answers at {0} is not of this gang")]
    Stranger(String),
    #[error("{what} failed on node {node}: {status}")]
    Failed { what: String, node: String, status: std::process::ExitStatus },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> HelperError {
    let what = what.into();
    move |source| HelperError::Io { what, source }
}

/// What a rank of such a gang runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mpi,
    Ray,
    /// Only puts a host file before the command.
    Hostfile,
}

/// The whole life of a helper. Call it before the process has a second thread.
pub fn launch(kind: Kind, command: &[String]) -> Result<ExitCode, HelperError> {
    if command.is_empty() {
        return Err(HelperError::NoCommand);
    }
    match kind {
        Kind::Mpi => mpi::run(command),
        Kind::Ray => ray::run(command),
        Kind::Hostfile => hostfile::run(command),
    }
}

/// As `rsh HOST COMMAND...`, with the gang's nodes for hosts.
pub fn rsh(host: &str, command: &[String]) -> Result<ExitCode, HelperError> {
    mpi::rsh(host, command)
}
