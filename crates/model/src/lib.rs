//! The words of tutti as types: ids, units, job specs, nodes, leases, cluster state, plans and
//! the orders that agents carry out.
//!
//! Everything here is data. Nothing here decides (that is `sched` and `engine`), and nothing here
//! does IO. The same serde types go into the journal, over the API (JSON) and to agents
//! (MessagePack with field names), so there is one schema and no mirror structs.
//!
//! ```text
//! ids, units ─► spec ─► state (jobs, nodes, queue) ─► plan
//!                 └───► agent (orders, reports)
//! ```

pub mod access;
pub mod active;
pub mod agent;
pub mod bench;
pub mod blocker;
pub mod declared;
pub mod goodput;
pub mod hardware;
pub mod health;
mod heap;
pub mod identity;
pub mod ids;
pub mod job;
pub mod learned;
pub mod node;
pub mod plan;
pub mod policy;
pub mod preview;
pub mod progress;
pub mod queue;
pub mod reservation;
pub mod room;
pub mod server_names;
pub mod service;
pub mod serving;
pub mod shared;
pub mod spec;
pub mod stall;
mod state;
pub mod suspend;
pub mod telemetry;
pub mod text;
pub mod units;
pub mod update;
pub mod usage;
pub mod watch;
pub mod words;

pub use access::*;
pub use active::*;
pub use agent::*;
pub use bench::*;
pub use blocker::*;
pub use declared::*;
pub use goodput::*;
pub use hardware::*;
pub use health::*;
pub use identity::*;
pub use ids::*;
pub use job::*;
pub use learned::*;
pub use node::*;
pub use plan::*;
pub use policy::*;
pub use preview::*;
pub use progress::*;
pub use queue::*;
pub use reservation::*;
pub use room::*;
pub use server_names::*;
pub use service::*;
pub use serving::*;
pub use shared::*;
pub use spec::*;
pub use stall::*;
pub use state::*;
pub use suspend::*;
pub use telemetry::*;
pub use units::*;
pub use update::*;
pub use usage::*;
pub use watch::*;
pub use words::*;
