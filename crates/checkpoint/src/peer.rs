//! Copies on other nodes: a small service that keeps a peer's shards in memory or on its disk.
//!
//! Both ends prove that they have the gang's key, and every frame after that carries a code that only
//! they can make. Nothing is encrypted: who can listen on the gang's network sees its gradients too.
//!
//! ```text
//!  Client ──────────── TCP ────────────► Server ─► Memory (budget) or Dir
//!    hello  challenge, proof, proof
//!    frame  length ∣ body ∣ code(key of this session, direction, number, body)
//! ```

mod choose;
mod client;
mod server;
mod wire;

pub use choose::{Place, peers_of};
pub use client::Client;
pub use server::Server;
pub use wire::WireError;

/// A key as `TUTTI_GANG_KEY` has it: 64 hex digits.
pub fn parse_key(hex: &str) -> Option<[u8; 32]> {
    blake3::Hash::from_hex(hex.trim()).ok().map(|hash| *hash.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_hex_digits() {
        assert_eq!(parse_key(&"0f".repeat(32)), Some([15; 32]));
        assert_eq!(parse_key("0f"), None);
        assert_eq!(parse_key(&"xx".repeat(32)), None);
    }
}
