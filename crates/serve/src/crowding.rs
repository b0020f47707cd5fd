//! Room for requests, and who gets it when there is little.
//!
//! HTTP/2 has hundreds of requests on a connection, so that connections' rooms do not bound them. While less
//! than half of what a router takes is under way, a request is counted and nobody asks whose it is. Beyond
//! that it needs a room:
//!
//! ```text
//!  ├──────── whoever comes ────────┼── with a key ──┼── without ───┤
//!  0                              1/2              3/4             1
//! ```
//!
//! Those with a key share the one part and addresses without a key the other, as addresses share connections:
//! when it is full, a newcomer takes the room of the caller with the most, first of all that of a request
//! whose client is waited for. So nobody without a key is in the way of those who have one, and nobody who
//! asks much is in the way of those who ask little.

use std::time::Duration;

use tutti_wire::guests::{Lobby, PoolLimits, Room};

use crate::answer::Answer;
use crate::logic::Who;

fn kind(who: Who) -> &'static str {
    match who {
        Who::Key(_) => "key",
        Who::Address(_) => "address without a key",
    }
}

/// A request's room.
pub type RequestRoom = Room<Who>;

pub struct Crowding {
    /// So many need no room.
    free: usize,
    /// So many rooms there are for each kind.
    quarter: usize,
    keys: Lobby<Who>,
    addresses: Lobby<Who>,
    /// Streams of HTTP/2 that have not said enough to be requests.
    halves: Lobby<Who>,
}

impl Crowding {
    pub fn of_requests(most: usize) -> Crowding {
        Crowding::new(most, true)
    }

    /// Of memory for large bodies, in pieces. Who has sent all of one keeps it until it is answered.
    pub fn of_memory(pieces: usize) -> Crowding {
        Crowding::new(pieces, false)
    }

    fn new(most: usize, drops_working: bool) -> Crowding {
        let quarter = (most / 4).max(1);
        // One who is alone may have all: others take it away.
        let limits = PoolLimits { total: quarter, per_key: quarter, drops_working };
        Crowding {
            free: most / 2,
            quarter,
            keys: Lobby::new(limits),
            addresses: Lobby::new(limits),
            halves: Lobby::new(limits),
        }
    }

    /// Lets a request in where so many are under way, itself included. `whole`: all of it is here. Else its
    /// client is waited for, perhaps in vain, and it needs a room earlier.
    pub fn enter(
        &self,
        under_way: usize,
        who: Who,
        whole: bool,
    ) -> Result<Option<RequestRoom>, Answer> {
        let free = if whole { self.free } else { self.free / 2 };
        if under_way <= free {
            return Ok(None);
        }
        let room = self.lobby(who).enter(who).map_err(|_| no_room(who))?;
        room.working(whole);
        Ok(Some(room))
    }

    /// Room for so many pieces of memory. Their client is waited for until they are said to be working.
    pub fn memory(&self, pieces: usize, who: Who) -> Result<Vec<RequestRoom>, Answer> {
        let rooms = (0..pieces).map(|_| self.lobby(who).enter(who));
        rooms.collect::<Result<_, _>>().map_err(|_| no_memory(who))
    }

    /// Of both kinds together.
    pub fn rooms(&self) -> usize {
        2 * self.quarter
    }

    fn lobby(&self, who: Who) -> &Lobby<Who> {
        match who {
            Who::Key(_) => &self.keys,
            Who::Address(_) => &self.addresses,
        }
    }

    /// For a stream that has begun to say its request, beyond the one that every connection may have. There
    /// always is room; somebody else's stream goes for it.
    pub fn half(&self, who: Who) -> Option<RequestRoom> {
        self.halves.enter(who).ok()
    }
}

/// Nobody of this kind has more than this one.
fn no_room(who: Who) -> Answer {
    let kind = kind(who);
    busy(&format!(
        "this router has as many requests as it takes, and no {kind} has more of them than yours: try again"
    ))
}

/// What is said to one who has lost a room.
pub fn lost_room(who: Who) -> Answer {
    let kind = kind(who);
    busy(&format!("no {kind} had more requests at this router, and others need room: try again"))
}

/// There is none for a large body, or others need it.
pub fn no_memory(who: Who) -> Answer {
    let kind = kind(who);
    busy(&format!("too many large requests at once, and no {kind} has more than yours: try again"))
}

pub fn busy(message: &str) -> Answer {
    Answer::error(503, "router_busy", message).retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn address(n: u8) -> Who {
        Who::Address(Ipv4Addr::new(10, 0, 0, n).into())
    }

    fn lost(room: &RequestRoom) -> bool {
        pin!(room.dropped()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// So many requests of each of these, one after another, with what they got.
    fn many(crowding: &Crowding, n: usize, who: &[Who]) -> Vec<(Who, RequestRoom)> {
        let all = (0..n).flat_map(|_| who.iter().copied());
        all.filter_map(|who| Some((who, crowding.enter(usize::MAX, who, true).ok()??))).collect()
    }

    #[test]
    fn while_there_is_plenty_nobody_is_asked() {
        let crowding = Crowding::of_requests(100);
        let needs = |n, whole| crowding.enter(n, address(1), whole).unwrap().is_some();
        assert!(!needs(50, true) && needs(51, true));
        assert!(!needs(25, false) && needs(26, false), "who is waited for needs one earlier");
    }

    #[test]
    fn those_without_a_key_fill_their_own_part_and_no_more() {
        let crowding = Crowding::of_requests(100);
        let crowd: Vec<Who> = (0..200).map(address).collect();
        let there = many(&crowding, 3, &crowd);
        assert_eq!(there.len(), 25, "one each, and nobody has more than another");
        let refused = crowding.enter(101, address(201), true).err().unwrap();
        let said = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(refused.status == 503 && said.contains("no address without a key"), "{said}");
        assert_eq!(many(&crowding, 30, &[Who::Key(1)]).len(), 25, "of a key");
        assert!(there.iter().all(|(_, room)| !lost(room)));
    }

    #[test]
    fn who_asks_much_makes_room_for_who_asks_little() {
        let crowding = Crowding::of_requests(100);
        let there = many(&crowding, 25, &[Who::Key(1)]);
        let more = many(&crowding, 5, &[Who::Key(2)]);
        let left = there.iter().filter(|(_, room)| !lost(room)).count();
        assert_eq!((more.len(), left), (5, 20));
        assert!(crowding.enter(101, Who::Key(1), true).is_err(), "not the other way round");
    }

    #[test]
    fn whose_client_is_waited_for_goes_first() {
        let crowding = Crowding::of_requests(100);
        let one = |n, whole| crowding.enter(101, address(n), whole).unwrap().unwrap();
        let (waited_for, well) = (one(1, false), many(&crowding, 24, &[address(2)]));
        let _newcomer = one(3, true);
        assert!(lost(&waited_for) && well.iter().all(|(_, room)| !lost(room)));
        let halves: Vec<RequestRoom> =
            (0..30).map(|_| crowding.half(address(1)).unwrap()).collect();
        assert_eq!(halves.iter().filter(|room| lost(room)).count(), 5);
    }
}
