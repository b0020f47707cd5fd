//! Large bodies: room while they come, and turns when they are here. The threads that answer requests are
//! few, and a megabyte of JSON is many milliseconds of work: what is large is parsed elsewhere, few at a
//! time.

mod room;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::problem::Problem;
use room::Room;

pub use room::{SMALL, Share};

/// What is parsed at once, by whoever has read it.
const AT_ONCE_MAX: usize = 256 << 10;
/// So many larger bodies are worked on at the same time.
const TURNS: usize = 2;

/// For all bodies together that are not small. One caller who is alone gets the half: two of the
/// largest.
const ROOM: usize = 128 << 20;

pub struct Bodies {
    room: Room,
    turns: Arc<Semaphore>,
}

impl Default for Bodies {
    fn default() -> Bodies {
        Bodies { room: Room::new(ROOM), turns: Arc::new(Semaphore::new(TURNS)) }
    }
}

/// While it is there, one large body fewer is worked on, and its room is taken.
pub struct Turn {
    _permit: Option<OwnedSemaphorePermit>,
    _share: Share,
}

impl Bodies {
    /// Room for a body of this caller.
    pub fn share(&self, who: &str) -> Share {
        self.room.share(who.to_owned())
    }

    /// What the bytes mean. With a turn, which belongs to the work and not to who waits for it: a
    /// client that leaves does not make room for one more.
    pub async fn parsed<T: Send + 'static>(
        &self,
        (bytes, share): (Bytes, Share),
        parse: impl FnOnce(&[u8]) -> Result<T, Problem> + Send + 'static,
    ) -> Result<(T, Turn), Problem> {
        if bytes.len() <= AT_ONCE_MAX {
            return Ok((parse(&bytes)?, Turn { _permit: None, _share: share }));
        }
        // Nobody closes it.
        let permit = Arc::clone(&self.turns).acquire_owned().await.ok();
        let turn = Turn { _permit: permit, _share: share };
        aside(move || parse(&bytes).map(|value| (value, turn))).await?
    }
}

/// Work that takes long, out of the way of other requests.
pub async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Problem::internal(format!("the request could not be worked on: {error}")))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn large_bodies_are_parsed_while_others_are_answered() {
        let bodies = Bodies::default();
        let (answered, waits) = channel();
        let parse = move |_: &[u8]| {
            waits.recv_timeout(Duration::from_secs(10)).map_err(|e| Problem::invalid(e.to_string()))
        };
        let large = Bytes::from(vec![b' '; AT_ONCE_MAX + 1]);
        // There is only one thread for both.
        let others = async { answered.send(()).unwrap() };
        let (parsed, ()) = tokio::join!(bodies.parsed((large, bodies.share("ada")), parse), others);
        let (_, turn) = parsed.unwrap();
        assert_eq!(bodies.turns.available_permits(), TURNS - 1);
        drop(turn);
        assert_eq!(bodies.turns.available_permits(), TURNS);
        let small = (Bytes::from_static(b"1"), bodies.share("ada"));
        let small = bodies.parsed(small, |_| Ok(())).await.unwrap();
        assert_eq!(bodies.turns.available_permits(), TURNS);
        drop(small);
    }
}
