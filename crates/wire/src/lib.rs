//! What goes over the network, and how. Controller, agents and command line meet here.
//!
//! Decides nothing and keeps no state: who may do what is the controller's, what a job needs is the
//! engine's. Server sockets are not opened here either.
//!
//! ```text
//!  command line ── client ── HTTP(S), SSE ──► api ─┐
//!       ▲             │                            │ controller
//!    jobfile     token, pki, tls                   │
//!                     │                            │
//!  agent ───────── frame ── mutual TLS ──► stream ─┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`api`] | the shapes of `/api/v1` |
//! | [`client`] | typed client of it, and how a command finds its cluster |
//! | [`sse`] | reading server-sent events |
//! | [`stream`], [`frame`] | messages between agent and controller, and their framing |
//! | [`pki`], [`tls`], [`token`] | who is who |
//! | [`guests`] | who may hold a connection before it is known whose it is |
//! | [`jobfile`], [`policyfile`] | what people write; [`textfile`] is what both are read with |

pub mod api;
pub mod client;
pub mod frame;
pub mod guests;
pub mod jobfile;
pub mod pki;
pub mod policyfile;
pub mod sse;
pub mod stream;
pub mod textfile;
pub mod tls;
pub mod token;
