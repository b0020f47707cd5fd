//! The shell around the engine: it stamps time, keeps the journal, talks with agents and people.
//!
//! It decides nothing about jobs (that is `engine`), places nothing (`sched`), and runs no process
//! of a job (`agent`). Nothing leaves it before it is durable: not a reply, not an order, not an
//! answer to a question.
//!
//! ```text
//!            one port: TLS or plain loopback HTTP
//!  people ──► listener ─► api ──── commands ──► core: one engine thread ──► journal (fsync)
//!  agents ──► listener ─► links ── reports ───►   │                            │
//!         ◄── orders ──── links ◄── effects ──────┴──── once durable ◄─────────┘
//!  people ◄── JSON, SSE ─ api ◄──── views of the world, feed of records
//! ```
//!
//! | part | what |
//! |---|---|
//! | [`core`] | engine thread, batches, snapshots, ticks |
//! | [`links`] | agent streams |
//! | [`api`] | routes, tokens and roles, OpenAPI |
//! | [`views`], [`reads`], [`feed`] | what people see, and being woken when it changes |
//! | [`telemetry`] | what nodes and GPUs do, now and for a week |
//! | [`metrics`] | the same and the cluster, for Prometheus |
//! | [`archive`] | ended jobs in daily files, for years |
//! | [`chronicle`] | what became of attempts, jobs and nodes |
//! | [`dash`] | the pages, sessions of browsers, live streams |
//! | [`watch`] | rules, alerts, and who is told |
//! | [`serving`] | what routers say of endpoints |
//! | [`stage`] | a simulated cluster behind the same port |
//! | [`audit`], [`doctor`] | who did what; what is wrong |

pub mod api;
pub mod archive;
pub mod audit;
pub mod chronicle;
mod clock;
mod config;
pub mod core;
pub mod dash;
pub mod doctor;
mod error;
pub mod feed;
mod identity;
mod idle;
pub mod links;
mod listener;
mod lock;
mod memory;
pub mod metrics;
mod progress;
pub mod reads;
pub mod restore;
pub mod room;
pub mod serving;
mod stage;
mod start;
pub mod telemetry;
pub mod views;
pub mod watch;

pub use config::{ControllerConfig, DEFAULT_PORT};
pub use core::SnapshotRule;
pub use error::{ControllerError, chain};
pub use stage::{Stage, run_stage, stage};
pub use start::{
    AUDIT_FILE, ENDPOINT_FILE, Handle, JOURNAL_FILE, NODES_DIR, PID_FILE, RESTORED_FILE, run, start,
};
