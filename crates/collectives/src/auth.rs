//! The handshake that opens every connection: both sides prove that they hold the gang's key.
//!
//! ```text
//! dial ── magic, nonce ─────────────────────────► accept
//!      ◄── nonce, MAC(key, "accept", nonces) ────
//!      ── hello, MAC(key, "dial", nonces, hello) ►
//!      ◄── 1 ────────────────────────────────────
//! ```
//! The key is derived from the gang's key and the world's id, so another job or attempt fails here
//! as well. What follows on the connection is neither signed nor encrypted: the key keeps strangers
//! and left-overs out, it does not protect a network on which packets are forged.

use std::io::{self, Read, Write};

use crate::error::{Error, Result};
use crate::wire::Reader;

const MAGIC: [u8; 8] = *b"tutti-c1";
const HELLO_MAX: usize = 64 << 10;

/// Proves membership of one world.
#[derive(Clone, Copy)]
pub(crate) struct Key([u8; 32]);

impl Key {
    pub fn of_world(secret: Option<[u8; 32]>, id: &str, world: usize) -> Self {
        let base = blake3::keyed_hash(&secret.unwrap_or_default(), id.as_bytes());
        Self(*blake3::keyed_hash(base.as_bytes(), &(world as u64).to_le_bytes()).as_bytes())
    }

    /// The key of one session of it: rank 0 draws a new number at every start.
    pub fn of_session(self, session: &[u8]) -> Self {
        Self(*blake3::keyed_hash(&self.0, session).as_bytes())
    }

    fn mac(&self, side: &[u8], nonces: &[u8; 32], hello: &[u8]) -> blake3::Hash {
        let mut h = blake3::Hasher::new_keyed(&self.0);
        h.update(side).update(nonces).update(hello);
        h.finalize()
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::io("no random numbers", io::Error::other(e.to_string())))?;
    Ok(bytes)
}

/// Opens a connection that was dialled. The stream must have a read timeout.
pub(crate) fn dial(s: &mut (impl Read + Write), key: Key, hello: &[u8], who: &str) -> Result<()> {
    let io = |e| Error::io(format!("handshake with {who}"), e);
    let mine: [u8; 16] = random()?;
    let mut first = [0; 24];
    first[..8].copy_from_slice(&MAGIC);
    first[8..].copy_from_slice(&mine);
    s.write_all(&first).map_err(io)?;
    let mut answer = [0; 48];
    s.read_exact(&mut answer).map_err(io)?;
    let mut nonces = [0; 32];
    nonces[..16].copy_from_slice(&mine);
    nonces[16..].copy_from_slice(&answer[..16]);
    let proof: [u8; 32] = answer[16..].try_into().expect("48 - 16");
    if key.mac(b"accept", &nonces, &[]) != proof {
        return Err(Error::Stranger { who: who.into() });
    }
    let mut last = (hello.len() as u32).to_le_bytes().to_vec();
    last.extend(hello);
    last.extend(key.mac(b"dial", &nonces, hello).as_bytes());
    s.write_all(&last).map_err(io)?;
    let mut ok = [0];
    s.read_exact(&mut ok).map_err(io)
}

/// Opens a connection that was accepted, and returns its hello.
pub(crate) fn accept(s: &mut (impl Read + Write), key: Key, who: &str) -> Result<Vec<u8>> {
    let io = |e| Error::io(format!("handshake with {who}"), e);
    let stranger = || Error::Stranger { who: who.into() };
    let mut first = [0; 24];
    s.read_exact(&mut first).map_err(io)?;
    if first[..8] != MAGIC {
        return Err(stranger());
    }
    let mut nonces = [0; 32];
    nonces[..16].copy_from_slice(&first[8..]);
    nonces[16..].copy_from_slice(&random::<16>()?);
    let mut answer = nonces[16..].to_vec();
    answer.extend(key.mac(b"accept", &nonces, &[]).as_bytes());
    s.write_all(&answer).map_err(io)?;
    let mut len = [0; 4];
    s.read_exact(&mut len).map_err(io)?;
    let len = Reader(&len).u32().expect("4 bytes") as usize;
    if len > HELLO_MAX {
        return Err(stranger());
    }
    let mut hello = vec![0; len + 32];
    s.read_exact(&mut hello).map_err(io)?;
    let proof: [u8; 32] = hello.split_off(len).try_into().expect("32 bytes");
    if key.mac(b"dial", &nonces, &hello) != proof {
        return Err(stranger());
    }
    s.write_all(&[1]).map_err(io)?;
    Ok(hello)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn meet(dialler: Key, acceptor: Key) -> (Result<()>, Result<Vec<u8>>) {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let other = thread::spawn(move || accept(&mut b, acceptor, "dialler"));
        let ours = dial(&mut a, dialler, b"hello", "acceptor");
        drop(a);
        (ours, other.join().unwrap())
    }

    #[test]
    fn the_same_world_meets() {
        let key = Key::of_world(Some([7; 32]), "1@1", 2);
        let (ours, theirs) = meet(key, key);
        ours.unwrap();
        assert_eq!(theirs.unwrap(), b"hello");
    }

    #[test]
    fn another_key_attempt_size_or_session_does_not() {
        let key = Key::of_world(Some([7; 32]), "1@1", 2);
        for other in [
            Key::of_world(Some([8; 32]), "1@1", 2),
            Key::of_world(None, "1@1", 2),
            Key::of_world(Some([7; 32]), "1@2", 2),
            Key::of_world(Some([7; 32]), "1@1", 3),
            key.of_session(b"another"),
        ] {
            let (ours, theirs) = meet(other, key);
            assert!(matches!(ours, Err(Error::Stranger { .. })));
            assert!(theirs.is_err());
        }
    }

    #[test]
    fn a_forged_proof_is_refused_by_the_listener() {
        let key = Key::of_world(Some([7; 32]), "1@1", 2);
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let other = thread::spawn(move || accept(&mut b, key, "dialler"));
        a.write_all(b"tutti-c1aaaaaaaaaaaaaaaa").unwrap();
        a.read_exact(&mut [0; 48]).unwrap();
        a.write_all(&[1, 0, 0, 0, b'x']).unwrap();
        a.write_all(&[0; 32]).unwrap();
        assert!(matches!(other.join().unwrap(), Err(Error::Stranger { .. })));
    }
}
