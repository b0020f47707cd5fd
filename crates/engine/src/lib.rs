//! The engine: commands become events, events become state, state says what agents must be told.
//!
//! Pure: no clock, no files, no network, no randomness. The controller and the simulator own the
//! same [`Engine`] and differ only in where time, commands and storage come from.
//!
//! ```text
//!  Command ─► decide ─► Event ─► apply ─► State
//!                         │        └────► effects ─► Order to agents
//!                         └─ consequences ─► Event ...
//!  State ─► sched::plan ─► check ─► Event::Placed
//! ```
//!
//! What it does not do: store records (the journal), talk to anybody (the controller), or choose
//! where work runs (`sched`).

mod agenda;
mod apply;
mod carry_out;
mod check;
mod command;
mod consequences;
mod decide;
mod effect;
mod effects;
mod engine;
mod event;
mod health;
mod index;
pub mod invariants;
mod live;
mod preview;
mod reject;
mod serve;
mod settings;
mod stall;
mod texts;

pub use apply::{apply, goodput_at, job_goodput_at, time_sums_at};
pub use check::{Violation, check};
pub use command::*;
pub use decide::{forgettable, gives_up_at, warnings};
pub use effect::*;
pub use engine::*;
pub use event::*;
pub use health::{NOBODY, is_counted_out, most_out, trouble};
pub use live::{Level, Levels};
pub use preview::{policy_notes, preview};
pub use reject::*;
pub use serve::{address, route_table};
pub use settings::*;
pub use stall::Stalled;
pub use texts::{packed_records, packed_state};

#[cfg(test)]
pub(crate) mod tests;
