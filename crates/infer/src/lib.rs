//! Serves what `tutti train` trained, over the OpenAI API.
//!
//! Requests share the model: one thread computes, and each of its steps makes one token for every
//! sequence that is under way, all in one pass. New ones join between two steps, piece by piece, and
//! those that are done leave. Keys and values of a sequence stay until its slot is needed, so what
//! begins the same way is not computed again.
//!
//! It does not authenticate (the router before it does), does not split a model over several GPUs, and
//! knows bytes as tokens: it is to the trainer what a test drive is to a workshop.
//!
//! ```text
//! socket ─► server ─► api: OpenAI's forms ─► engine (a thread)          │ pure:
//!              ▲          ▲                    ├─ schedule ─ prefix      │ schedule, prefix,
//!              │          └── events, text ────┤  └ sampling, text       │ sampling, text
//!           metrics ◄──────────────────────────┴─ model ─► trainer::Decoder
//! ```

mod api;
mod app;
mod engine;
mod metrics;
mod model;
mod options;
mod prefix;
mod request;
mod run;
mod sampling;
mod schedule;
mod server;
mod text;

pub use options::{Hardware, Options, OptionsError, Precision};
pub use run::{Told, run};
pub use server::{Ready, ServeError, serve};
