//! What runs where: whose turn it is, whether a gang fits, which nodes and GPUs it gets, who is
//! stopped for whom, and a reason for everything that is left waiting.
//!
//! Pure: state in, plan out. It changes nothing, reads no clock and knows no agents. Turning a plan
//! into leases, and checking it first, is `engine`.
//!
//! ```text
//! State.index.queue ─► lanes, teams: whose turn        ┌─ backfill: a time to start for the head
//!                         │                            ├─ claims:   room kept until it is free
//!                         ▼                            ├─ preempt:  the cheapest victims
//!                       pass ──── does not fit ────────┴─ elastic:  more nodes when idle
//!                         │ fits
//!           candidates ─► fit: narrowest domain, best nodes (value), cards ─► Plan
//!               ▲
//!           cluster: what is free, kept between passes by `Scheduler`
//!
//! verdict, blockers, explain (ahead, forecast, advice, all on imagined states), shares, impossible:
//!                       the same parts, for people who ask
//! ```

mod advice;
mod ahead;
mod ask;
mod backfill;
mod blockers;
mod candidates;
mod claims;
mod cluster;
mod describe;
mod domains;
mod elastic;
mod explain;
mod fit;
mod forecast;
mod imagine;
mod impossible;
mod lanes;
mod near;
mod pass;
mod ports;
mod preempt;
#[cfg(test)]
mod props;
mod reservations;
mod scheduler;
mod shares;
mod teams;
#[cfg(test)]
mod testing;
mod value;
mod verdict;

pub use blockers::{Lookout, Outlook, describe_all, tell_blockers};
pub use describe::{Told, describe, tell};
pub use explain::explain;
pub use forecast::forecasts;
pub use impossible::impossible;
pub use reservations::{reservations, reservations_of};
pub use scheduler::{Scheduler, plan};
pub use shares::shares;
pub use verdict::verdict;
