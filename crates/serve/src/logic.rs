//! Which replica gets a request, who waits, who is refused: decided from what is known and the time,
//! without IO. The shell around it owns sockets and clocks, and one mutex per endpoint.
//!
//! ```text
//!  body ─► scan ─► Ask ─► Endpoint::pick ─► Choice ── the shell proxies ──► answered, finished
//!                            │  ▲                                              │
//!                     Busy,  │  │ probed, own_load, update                     ▼
//!                     Absent ▼  │                                            Books ─► report
//!                        FairQueue
//! ```
//!
//! How the shell goes about it:
//! - A request that comes while others wait in the [`FairQueue`] waits too; else it would pass them.
//! - After [`Endpoint::finished`], `probed`, `own_load` and `update`, and at least once a second (breakers
//!   and own load go by the clock), it takes from the queue while [`Endpoint::has_room`] says so.
//! - Every [`Choice`] is given back by exactly one `finished`.

mod books;
mod breaker;
mod endpoint;
mod json;
mod limits;
mod metrics;
mod policy;
mod prompt;
mod queue;
mod rate;
mod replica;
mod scan;
mod seen;
mod split;
mod usage;
mod who;

#[cfg(test)]
mod tests;

pub use books::{Books, Ended, Ending};
pub use breaker::{Breaker, Outcome};
pub use endpoint::{Ask, Choice, Endpoint, Pick, ReplicaView};
pub use limits::{Limit, Limited, Limiter};
pub use metrics::{ServerMetrics, parse_metrics};
pub use prompt::{BLOCK_BYTES, BLOCKS_MAX, PromptBlocks};
pub use queue::{FairQueue, Offered, PushedOut, Ticket};
pub use replica::{Listing, ReplicaKey};
pub use scan::{Scanned, scan_request};
pub use usage::{AnswerKind, AnswerScan, Usage};
pub use who::Who;
