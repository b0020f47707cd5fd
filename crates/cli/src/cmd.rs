//! One file per verb or noun: its flags and what it does.

pub mod agent;
pub mod alerts;
pub mod attach;
pub mod bench;
pub mod cancel;
pub mod change;
pub mod ckpt;
pub mod controller;
pub mod cuda;
pub mod demo;
pub mod doctor;
pub mod down;
pub mod drain;
pub mod endpoints;
pub mod exec;
pub mod generate;
pub mod health;
pub mod helper;
pub mod hints;
pub mod infer;
mod job_args;
pub mod logs;
pub mod nodes;
mod output;
pub mod plan;
pub mod policy;
pub mod progress;
pub mod ps;
pub mod quota;
pub mod report;
pub mod reservations;
pub mod restore;
pub mod router;
pub mod run;
pub mod serve;
pub mod show;
pub mod sim;
pub mod submit;
pub mod token;
pub mod top;
pub mod train;
pub mod up;
pub mod update;
pub mod wait;
pub mod why;

/// What happens goes to stderr: all of it in controller and agent, and what libraries warn of in
/// verbs that write. `TUTTI_LOG` chooses otherwise, in the form of `RUST_LOG`.
fn log_to_stderr(usual: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TUTTI_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(usual));
    let installed = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(crate::style::Style::of_stderr().is_coloured())
        .with_target(false)
        .try_init();
    if let Err(error) = installed {
        // A process that runs several verbs has its place for the log already.
        tracing::debug!(%error, "the log goes where it went before");
    }
}
