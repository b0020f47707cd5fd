//! Whose requests are judged together.

use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// By its number.
    Key(u32),
    /// Without a key, as [`tutti_wire::guests::client_address`] has it.
    Address(IpAddr),
}
