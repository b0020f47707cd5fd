//! How values become bytes: MessagePack with field names behind a version and a checksum.
//!
//! ```text
//!  0    1        2     3        7
//!  't'  version  body  crc32    MessagePack, plain or in an lz4 frame
//! ```
//! Field names cost space, but a newer tutti may add a field and still read what an older one
//! wrote. The version changes only when that is not enough: version 2 is a snapshot whose jobs refer
//! to texts that stand beside them.

use std::io::Read;

use lz4_flex::frame::{FrameDecoder, FrameEncoder};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The newest layout that this program reads.
pub const VERSION: u8 = 2;

/// What most values are written as.
const WRITTEN: u8 = 1;

const MAGIC: u8 = b't';
const PLAIN: u8 = 0;
const LZ4: u8 = 1;
const CHECKSUM: std::ops::Range<usize> = 3..7;
const HEADER: usize = 7;

#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    #[error("too short: {0} bytes, where even an empty value has {HEADER}")]
    TooShort(usize),
    #[error("not written by tutti: it starts with byte {0:#04x}")]
    NotOurs(u8),
    #[error(
        "version {found} is unknown here (this tutti reads up to {VERSION}): made by a newer tutti"
    )]
    UnknownVersion { found: u8 },
    #[error("checksum does not match: stored {stored:08x}, computed {computed:08x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("body of kind {0} is unknown")]
    UnknownBody(u8),
    #[error("the checksum holds but the value cannot be read")]
    Undecodable(#[source] rmp_serde::decode::Error),
    #[error("{0} bytes are left after the value")]
    Trailing(u64),
}

#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("the value cannot be written as MessagePack")]
    Value(#[source] rmp_serde::encode::Error),
    #[error("the value cannot be compressed")]
    Compress(#[source] lz4_flex::frame::Error),
}

/// For batches: quick to write, a few hundred bytes per record.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut out = header(WRITTEN, PLAIN);
    rmp_serde::encode::write_named(&mut out, value).map_err(EncodeError::Value)?;
    seal(&mut out);
    Ok(out)
}

/// For snapshots: compressed while it is written, so that the plain form never exists as a whole.
/// Field names repeat for every job, so it comes to a fraction of [`encode`].
pub fn encode_packed<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, EncodeError> {
    pack(WRITTEN, value)
}

/// The same for a value that a program which knows only version 1 would misread.
pub fn encode_packed_2<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, EncodeError> {
    pack(2, value)
}

fn pack<T: Serialize + ?Sized>(version: u8, value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut frame = FrameEncoder::new(header(version, LZ4));
    rmp_serde::encode::write_named(&mut frame, value).map_err(EncodeError::Value)?;
    let mut out = frame.finish().map_err(EncodeError::Compress)?;
    seal(&mut out);
    Ok(out)
}

/// Reads what [`encode`] or [`encode_packed`] wrote.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let body = open(bytes)?;
    match bytes[2] {
        PLAIN => read_value(body),
        LZ4 => read_value(FrameDecoder::new(body)),
        other => Err(CodecError::UnknownBody(other)),
    }
}

/// Checks version and checksum without reading the value.
pub fn check(bytes: &[u8]) -> Result<(), CodecError> {
    open(bytes).map(|_| ())
}

fn header(version: u8, body: u8) -> Vec<u8> {
    vec![MAGIC, version, body, 0, 0, 0, 0]
}

fn seal(out: &mut [u8]) {
    let crc = checksum(out);
    out[CHECKSUM].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..CHECKSUM.start]);
    crc.update(&bytes[HEADER..]);
    crc.finalize()
}

fn open(bytes: &[u8]) -> Result<&[u8], CodecError> {
    let Some((head, body)) = bytes.split_at_checked(HEADER) else {
        return Err(CodecError::TooShort(bytes.len()));
    };
    if head[0] != MAGIC {
        return Err(CodecError::NotOurs(head[0]));
    }
    // Before the checksum: a newer layout may well keep its checksum elsewhere.
    if !(1..=VERSION).contains(&head[1]) {
        return Err(CodecError::UnknownVersion { found: head[1] });
    }
    let stored = u32::from_le_bytes([head[3], head[4], head[5], head[6]]);
    let computed = checksum(bytes);
    if stored != computed {
        return Err(CodecError::Checksum { stored, computed });
    }
    Ok(body)
}

fn read_value<T: DeserializeOwned>(mut body: impl Read) -> Result<T, CodecError> {
    let value = rmp_serde::from_read(&mut body).map_err(CodecError::Undecodable)?;
    let left = std::io::copy(&mut body, &mut std::io::sink())
        .map_err(|e| CodecError::Undecodable(rmp_serde::decode::Error::InvalidDataRead(e)))?;
    if left > 0 {
        return Err(CodecError::Trailing(left));
    }
    Ok(value)
}

#[cfg(test)]
mod tests;
