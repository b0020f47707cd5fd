//! The request router: an HTTP reverse proxy that takes requests for endpoints and passes them to
//! replicas.
//!
//! It decides nothing about endpoints. Tables of them come in, reports of what happens go out; how they
//! travel between the controller and the router is not its business, nor is what is in requests beyond
//! `model`, the prompt's beginning and the tokens used.
//!
//! ```text
//!  tables ──► routes (keys, endpoints ─► desks)          ┌─► replica
//!                │                                       │
//!  client ──► connection ─► find ─► visit ─► desk ─► exchange ─► replica
//!             h1 │ h2       which?  may it?  whom?   bytes, both ways
//!                                            │
//!             health ── probes ──────────────┴──► report
//! ```
//!
//! `logic` holds what is decided, without IO: the choice of a replica, queues, limits, the books. The rest
//! is the shell: one thread looks after new connections, tables and probes, and as many as there are
//! cores serve requests, each with its own event loop and its own connections to replicas.
//!
//! HTTP/1.1 is spoken by code of our own (`http`, `exchange`, `h1`), since a stream of many small chunks
//! cost three times as much through a general library; HTTP/2 comes in through hyper.

mod access;
mod admit;
mod answer;
mod client;
mod config;
mod connection;
mod crowding;
mod descriptors;
mod desk;
mod exchange;
mod fault;
mod find;
mod h1;
mod h2;
mod health;
mod http;
mod kept;
pub mod logic;
mod own;
mod pipe;
mod pool;
mod report;
mod retry;
mod router;
mod routes;
mod shared;
pub mod table_file;
mod tokens;
mod visit;

pub use config::{RouterConfig, ServerLimits, Timeouts};
pub use router::{Handle, Reporter, Router, StartError};
