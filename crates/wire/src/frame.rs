//! Frames of the agent stream: four bytes of length, most significant first, then MessagePack with
//! field names.
//!
//! Nothing here trusts the peer: a length over [`FRAME_MAX`] is refused before memory is asked for,
//! and a buffer grows with what has really come, not with what was announced.

use std::io;

use bytes::{Buf, BytesMut};
use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::stream::FRAME_MAX;

const HEAD: usize = 4;

/// Room asked for before a read: enough for hundreds of small frames in one system call.
const READ_SIZE: usize = 64 << 10;

/// Real messages nest less than half as deep; without a limit a peer could fill the stack.
const DEPTH_MAX: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes is over the limit of {FRAME_MAX}")]
    TooLong(usize),
    #[error("the stream ended inside a frame")]
    Truncated,
    #[error("a frame can't be read as a message")]
    Decode(#[source] rmp_serde::decode::Error),
    #[error("a message can't be written as a frame")]
    Encode(#[source] rmp_serde::encode::Error),
    #[error("the stream broke")]
    Io(#[from] io::Error),
}

/// The whole frame, length included.
pub fn encode<T: Serialize + ?Sized>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::with_capacity(256);
    append(&mut out, message)?;
    Ok(out)
}

/// Adds a frame to `out`, so that many go out in one write. On an error `out` is as it was.
pub fn append<T: Serialize + ?Sized>(out: &mut Vec<u8>, message: &T) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD]);
    if let Err(e) = rmp_serde::encode::write_named(out, message) {
        out.truncate(start);
        return Err(FrameError::Encode(e));
    }
    let len = out.len() - start - HEAD;
    if len > FRAME_MAX {
        out.truncate(start);
        return Err(FrameError::TooLong(len));
    }
    out[start..start + HEAD].copy_from_slice(&(len as u32).to_be_bytes());
    Ok(())
}

/// What is inside one frame.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, FrameError> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(payload);
    deserializer.set_max_depth(DEPTH_MAX);
    T::deserialize(&mut deserializer).map_err(FrameError::Decode)
}

/// Frames out of bytes that come in pieces. Does no IO, so that threads and tasks share it.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, or none until more bytes have come. After an error the stream is of no
    /// more use, except after `Decode`: then the bad frame is gone and the next one may be read.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(head) = self.buffer.first_chunk::<HEAD>() else { return Ok(None) };
        let len = u32::from_be_bytes(*head) as usize;
        if len > FRAME_MAX {
            return Err(FrameError::TooLong(len));
        }
        if self.buffer.len() < HEAD + len {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let payload = self.buffer.split_to(len);
        decode(&payload).map(Some)
    }

    /// Nothing is half read.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// Reads frames with one system call for as many as have come.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    decoder: Decoder,
}

impl<R> FrameReader<R> {
    pub fn new(inner: R) -> Self {
        FrameReader { inner, decoder: Decoder::new() }
    }

    /// A frame that has come already; none means that only waiting gives more.
    pub fn buffered<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        self.decoder.take()
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// The next frame, none when the peer closed between frames. Dropping the future loses nothing,
    /// so it may stand in a `select!`.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        loop {
            if let Some(message) = self.decoder.take()? {
                return Ok(Some(message));
            }
            self.decoder.buffer.reserve(READ_SIZE);
            if self.inner.read_buf(&mut self.decoder.buffer).await? == 0 {
                return if self.decoder.is_empty() { Ok(None) } else { Err(FrameError::Truncated) };
            }
        }
    }
}

/// One frame and not a byte more, for a handshake. None when the peer closed before it.
pub async fn read<T, R>(reader: &mut R) -> Result<Option<T>, FrameError>
where
    T: DeserializeOwned,
    R: AsyncRead + Unpin,
{
    let mut head = [0; HEAD];
    let mut have = 0;
    while have < HEAD {
        match reader.read(&mut head[have..]).await? {
            0 if have == 0 => return Ok(None),
            0 => return Err(FrameError::Truncated),
            n => have += n,
        }
    }
    let len = u32::from_be_bytes(head) as usize;
    if len > FRAME_MAX {
        return Err(FrameError::TooLong(len));
    }
    let mut payload = Vec::new();
    reader.take(len as u64).read_to_end(&mut payload).await?;
    if payload.len() < len {
        return Err(FrameError::Truncated);
    }
    decode(&payload).map(Some)
}

/// Writes one frame and flushes.
pub async fn write<T, W>(writer: &mut W, message: &T) -> Result<(), FrameError>
where
    T: Serialize + ?Sized,
    W: AsyncWrite + Unpin,
{
    writer.write_all(&encode(message)?).await?;
    writer.flush().await?;
    Ok(())
}

#[cfg(test)]
mod tests;
