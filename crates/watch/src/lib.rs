//! What is worth an alert. A function of what is seen, the terms and the time; it reads no clock,
//! looks at nothing and does nothing. Seeing, telling and acting is the controller's.
//!
//! ```text
//!  Seen ─► judge: rule × subject ─► Bad | Between | Good, and a sentence
//!                                        │
//!             Track: bad for `for` ─► fires ─► good for `clear` ─► ends
//!                                        │
//!                     Watcher: what stands, what began, what ended
//! ```
//! Between what is bad and what is good again there is a band where nothing begins and nothing ends.
//! So a level that wavers around a limit makes one alert, not many.

mod judge;
mod seen;
mod track;
mod watcher;

pub use seen::{
    Certificate, CertificateSeen, CirclingSeen, DiskSeen, GpuSeen, Lag, NodeSeen, Seen, Steps,
    TaskSeen, TeamSeen,
};
pub use track::Signal;
pub use watcher::{Change, Standing, Watcher};

#[cfg(test)]
mod tests;
