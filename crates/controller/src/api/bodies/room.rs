//! Memory for bodies while they come and are worked on. What is small needs none of it, since
//! connections are few enough; the rest is shared, so that no caller is in the way of others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::super::problem::Problem;
use crate::lock::lock;

/// Bytes of a body that need no room.
pub const SMALL: usize = 64 << 10;

/// Bytes for all larger bodies together.
#[derive(Clone)]
pub struct Room(Arc<Mutex<Book>>);

struct Book {
    free: usize,
    /// What each caller has; who has nothing is not in it.
    taken: HashMap<String, usize>,
}

/// What one body has of it, given back in the end.
pub struct Share {
    room: Room,
    who: String,
    bytes: usize,
}

impl Room {
    pub fn new(bytes: usize) -> Room {
        Room(Arc::new(Mutex::new(Book { free: bytes, taken: HashMap::new() })))
    }

    pub fn share(&self, who: String) -> Share {
        Share { room: self.clone(), who, bytes: 0 }
    }
}

impl Share {
    /// Room for a body of so many bytes. Nobody gets more than is left after that, so there is always
    /// some for who comes next.
    pub fn grow(&mut self, body: usize) -> Result<(), Problem> {
        let more = if body > SMALL { body.saturating_sub(self.bytes) } else { 0 };
        if more == 0 {
            return Ok(());
        }
        let mut book = lock(&self.room.0);
        let has = book.taken.get(&self.who).copied().unwrap_or(0) + more;
        if has.saturating_add(more) > book.free {
            return Err(full(&self.who));
        }
        book.free -= more;
        book.taken.insert(self.who.clone(), has);
        self.bytes += more;
        Ok(())
    }

    pub fn give_back(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let mut book = lock(&self.room.0);
        book.free += bytes;
        if let Some(has) = book.taken.get_mut(&self.who) {
            *has -= bytes;
            if *has == 0 {
                book.taken.remove(&self.who);
            }
        }
    }

    /// It has some.
    pub fn is_large(&self) -> bool {
        self.bytes > 0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn full(who: &str) -> Problem {
    let message = format!(
        "too many large requests are under way, and {who} has as much of the room for them as is left: try again"
    );
    Problem::unavailable(message).hint("send large batches one after another, or smaller ones")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn nobody_has_more_than_is_left_for_others() {
        let room = Room::new(64 * MIB);
        let mut held = Vec::new();
        let mut most = |who: &str| {
            let shares = std::iter::repeat_with(|| room.share(who.to_owned()));
            let mut got = shares.map_while(|mut share| share.grow(MIB).ok().map(|()| share));
            let got: Vec<Share> = got.by_ref().collect();
            let n = got.len();
            held.extend(got);
            n
        };
        assert_eq!(["ada", "bob", "cy", "ada"].map(&mut most), [32, 16, 8, 0]);
        let mut small = room.share("ada".to_owned());
        assert!(small.grow(SMALL).is_ok() && !small.is_large());
        let refused = small.grow(MIB).unwrap_err();
        assert_eq!(refused.status, 503);
        assert!(refused.error.message.contains("ada has as much"), "{}", refused.error.message);
        held.clear();
        assert!(small.grow(30 * MIB).is_ok() && small.grow(32 * MIB).is_ok());
        assert_eq!(lock(&room.0).free, 32 * MIB);
        drop(small);
        let book = lock(&room.0);
        assert_eq!((book.free, book.taken.len()), (64 * MIB, 0));
    }
}
