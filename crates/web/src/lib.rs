//! The dashboard's pages: pure functions from what is shown to markup, and the files they need.
//!
//! It reads no state, no clock and no socket, and knows nothing of roles beyond what it shows to
//! whom: the controller makes the views, serves the pages and refuses what is not allowed.
//!
//! ```text
//!  controller: state, telemetry ─► view ─► page(view)  ─► HTML, once
//!                                   └────► shown(view) ─► what of it is live
//!                                              │
//!                     Shown::changes(before) ──┴─► SSE: regions, rows, series, cells, bars ─► app.js
//! ```
//!
//! A page and its live updates come from the same functions, so that what is drawn later can't look
//! different from what was drawn first. The scripts put pieces in place; they make no markup of
//! their own except for canvases, logs and charts.
//!
//! | part | what |
//! |---|---|
//! | [`assets`] | scripts, styles and uPlot, in the binary |
//! | [`live`], [`grid`], [`gantt`] | what changes on a page, and how it is sent |
//! | [`shell`], [`login`] | the frame of every page, and the door |
//! | [`overview`], [`jobs`], [`job`], [`endpoints`], [`endpoint`], [`nodes`], [`teams`], [`cost`], [`alerts`], [`timeline`] | the pages |

pub mod alerts;
pub mod assets;
pub mod cost;
pub mod endpoint;
pub mod endpoints;
pub mod gantt;
pub mod grid;
pub mod job;
pub mod jobs;
pub mod live;
pub mod login;
pub mod nodes;
pub mod overview;
pub mod shell;
pub mod teams;
pub mod timeline;
pub mod topology;
mod words;

pub use words::stamp;

pub use live::{Event, Shown};
pub use maud::Markup;
pub use shell::{Reader, Tab};
