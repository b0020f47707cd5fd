//! Many parts together.

mod chat;
mod in_flight;
pub mod make;
