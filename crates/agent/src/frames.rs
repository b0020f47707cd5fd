//! Frames between the processes of one node: a length (4 bytes, little endian), then MessagePack
//! with field names, because an upgraded agent talks to shims of the version before it.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Larger than any job spec the API accepts, smaller than what would hurt.
const FRAME_MAX: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes is longer than any valid one")]
    TooLong(usize),
    #[error("a frame can't be read")]
    Decode(#[from] rmp_serde::decode::Error),
}

/// Appends one frame.
pub fn put<T: Serialize>(out: &mut Vec<u8>, message: &T) {
    framed(out, |out| rmp_serde::encode::write_named(out, message));
}

/// The same without field names, for a reader of the same version.
pub fn put_compact<T: Serialize>(out: &mut Vec<u8>, message: &T) {
    framed(out, |out| rmp_serde::encode::write(out, message));
}

fn framed(
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), rmp_serde::encode::Error>,
) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out).expect("messages have no unserializable parts");
    let len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// Bytes that have arrived and are not read yet.
#[derive(Default)]
pub struct Inbox {
    buf: Vec<u8>,
    read: usize,
}

impl Inbox {
    pub fn push(&mut self, bytes: &[u8]) {
        if self.read > 0 && self.read == self.buf.len() {
            self.buf.clear();
            self.read = 0;
        }
        self.buf.extend_from_slice(bytes);
    }

    /// The body of the next whole frame.
    pub fn next_body(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let left = &self.buf[self.read..];
        let Some(head) = left.first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*head) as usize;
        if len > FRAME_MAX {
            return Err(FrameError::TooLong(len));
        }
        if left.len() < 4 + len {
            return Ok(None);
        }
        let start = self.read + 4;
        self.read = start + len;
        Ok(Some(&self.buf[start..start + len]))
    }

    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        match self.next_body()? {
            Some(body) => Ok(Some(rmp_serde::from_slice(body)?)),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let mut bytes = Vec::new();
        put(&mut bytes, &"one");
        put(&mut bytes, &"two");
        for cut in 0..bytes.len() {
            let mut inbox = Inbox::default();
            let mut seen: Vec<String> = Vec::new();
            for piece in [&bytes[..cut], &bytes[cut..]] {
                inbox.push(piece);
                while let Some(m) = inbox.next().unwrap() {
                    seen.push(m);
                }
            }
            assert_eq!(seen, ["one", "two"]);
        }
    }

    #[test]
    fn a_wild_length_is_an_error_not_an_allocation() {
        let mut inbox = Inbox::default();
        inbox.push(&[0xff; 8]);
        assert!(matches!(inbox.next::<String>(), Err(FrameError::TooLong(_))));
    }
}
