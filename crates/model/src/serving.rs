//! Endpoints: a model behind one address, served by replicas that are jobs like any other.
//!
//! ```text
//!  ServiceSpec (job file) ─► Endpoint (state) ─► RouteTable ─► routers
//!                                  ▲                              │
//!                                  └──── EndpointLoad ◄── RouterReport
//! ```

mod check;
mod endpoint;
mod histogram;
mod load;
mod past;
mod route;
mod spec;
mod verdict;

pub use check::*;
pub use endpoint::*;
pub use histogram::*;
pub use load::*;
pub use past::*;
pub use route::*;
pub use spec::*;
pub use verdict::*;
