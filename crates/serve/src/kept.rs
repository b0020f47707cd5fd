//! Memory for bodies that are read before a replica is chosen.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::answer::Answer;
use crate::crowding::{Crowding, RequestRoom, no_memory};
use crate::logic::Who;

/// Bodies up to this size are read whole before they are sent on, so that they can be sent twice.
pub const SMALL_BODY: usize = 64 << 10;

/// What all larger bodies together may take, in pieces of [`SMALL_BODY`]. One half is for whoever comes; the
/// other is shared among callers, see [`Crowding`].
pub struct Memory {
    free: Arc<Semaphore>,
    shared: Arc<Semaphore>,
    crowding: Crowding,
}

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        let pieces = bytes / SMALL_BODY;
        let crowding = Crowding::of_memory(pieces);
        let shared = Arc::new(Semaphore::new(crowding.rooms()));
        Memory { free: Arc::new(Semaphore::new(pieces / 2)), shared, crowding }
    }
}

/// Memory for one body. What goes beyond a small one is set aside as it comes: whoever only says that much
/// will come must not keep others out.
#[derive(Default)]
pub struct Kept {
    /// How much may be read.
    pub most: usize,
    pieces: Option<OwnedSemaphorePermit>,
    /// Of pieces that are shared: whoever loses one of them must let go of all.
    rooms: Vec<RequestRoom>,
}

impl Kept {
    /// Lets twice as much be read, up to `wanted`; refuses if no others are to make room for it.
    pub async fn grow(&mut self, memory: &Memory, who: Who, wanted: usize) -> Result<(), Answer> {
        let more = (2 * self.most).max(SMALL_BODY).min(wanted);
        *self = Kept { most: more, ..Kept::default() };
        if more <= SMALL_BODY {
            return Ok(());
        }
        let pieces = more.div_ceil(SMALL_BODY) as u32;
        self.pieces = memory.free.clone().try_acquire_many_owned(pieces).ok();
        if self.pieces.is_some() {
            return Ok(());
        }
        self.rooms = memory.crowding.memory(pieces as usize, who)?;
        // There are as many as rooms; who has lost those needs a moment to let go.
        let acquired = memory.shared.clone().acquire_many_owned(pieces);
        self.pieces = self.unless_lost(who, acquired).await?.ok();
        Ok(())
    }

    /// Does it, unless others need the memory.
    pub async fn unless_lost<T>(
        &self,
        who: Who,
        work: impl Future<Output = T>,
    ) -> Result<T, Answer> {
        let mut notices: Vec<_> =
            self.rooms.iter().map(|room| Box::pin(room.notice().given())).collect();
        let lost = poll_fn(|cx| {
            match notices.iter_mut().any(|notice| notice.as_mut().poll(cx).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        tokio::select! {
            biased;
            () = lost => Err(no_memory(who)),
            done = work => Ok(done),
        }
    }

    /// All that is to be read was: nobody takes it away any more.
    pub fn settle(&self) {
        self.rooms.iter().for_each(|room| room.working(true));
    }
}
