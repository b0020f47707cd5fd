//! Whose a connection is, as far as it has shown; and when it has to end for that.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tutti_wire::guests::{PoolFull, Room};

use super::rooms::Rooms;

/// How long a connection may stay that shows nothing that opens anything. It covers all that a
/// stranger sends and all that it is sent, so that an answer that nobody takes is dropped too. A
/// person who looks for a token meanwhile loses nothing: the browser opens another.
const STRANGER_MAX: Duration = Duration::from_secs(15);

/// Every request carries the one of its connection.
pub struct Standing {
    rooms: Arc<Rooms>,
    stage: Mutex<Stage>,
    changed: Notify,
    stranger_until: Instant,
}

struct Stage {
    room: StandingRoom,
    /// A request is being answered.
    works: bool,
}

enum StandingRoom {
    Stranger(Room<IpAddr>),
    Known(Room<String>),
}

impl Standing {
    pub(super) fn stranger(rooms: &Arc<Rooms>, room: Room<IpAddr>, since: Instant) -> Arc<Self> {
        Standing::with(rooms, StandingRoom::Stranger(room), since)
    }

    /// For the socket of the data dir: only its owner can open that.
    pub(super) fn owner(rooms: &Arc<Rooms>) -> Result<Arc<Self>, PoolFull> {
        let room = rooms.known.enter(String::new())?;
        Ok(Standing::with(rooms, StandingRoom::Known(room), Instant::now()))
    }

    fn with(rooms: &Arc<Rooms>, room: StandingRoom, since: Instant) -> Arc<Self> {
        Arc::new(Standing {
            rooms: Arc::clone(rooms),
            stage: Mutex::new(Stage { room, works: false }),
            changed: Notify::new(),
            stranger_until: since + STRANGER_MAX,
        })
    }

    /// A token or session that is good was shown: from now on strangers can't crowd it out.
    pub fn show(&self, token: &str) -> Result<(), PoolFull> {
        let mut stage = self.lock();
        if matches!(stage.room, StandingRoom::Known(_)) {
            return Ok(());
        }
        let room = self.rooms.known.enter(token.to_owned())?;
        room.working(stage.works);
        stage.room = StandingRoom::Known(room);
        self.changed.notify_one();
        Ok(())
    }

    /// A request has come; until the guard is dropped, its answer is on the way. Strangers are given
    /// no credit for that, since they decide how long it takes.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        self.set_working(true);
        Answering(Arc::clone(self))
    }

    fn set_working(&self, works: bool) {
        let mut stage = self.lock();
        stage.works = works;
        if let StandingRoom::Known(room) = &stage.room {
            room.working(works);
        }
    }

    /// Resolves when the connection has to end, with the reason.
    pub(super) async fn must_go(&self) -> &'static str {
        loop {
            let (notice, until) = match &self.lock().room {
                StandingRoom::Stranger(room) => (room.notice(), Some(self.stranger_until)),
                StandingRoom::Known(room) => (room.notice(), None),
            };
            let patience = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = notice.given() => return "its room was needed for another",
                () = patience => return "it has not shown who it is",
                () = self.changed.notified() => {}
            }
        }
    }

    // A panic elsewhere leaves it whole: every change is one step.
    fn lock(&self) -> MutexGuard<'_, Stage> {
        crate::lock::lock(&self.stage)
    }
}

/// An answer is on its way.
pub(super) struct Answering(Arc<Standing>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.set_working(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms() -> Arc<Rooms> {
        Arc::new(Rooms::new(4, None))
    }

    fn stranger(rooms: &Arc<Rooms>, last: u8) -> Arc<Standing> {
        let room = rooms.strangers.enter(IpAddr::from([10, 0, 0, last])).unwrap();
        Standing::stranger(rooms, room, Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_have_so_long_and_the_known_stay() {
        let rooms = rooms();
        let (mute, known) = (stranger(&rooms, 1), stranger(&rooms, 2));
        known.show("token").unwrap();
        assert_eq!((rooms.strangers.len(), rooms.known.len()), (1, 1));
        let begun = Instant::now();
        assert_eq!(mute.must_go().await, "it has not shown who it is");
        assert_eq!(begun.elapsed(), STRANGER_MAX);
        let longer = tokio::time::timeout(STRANGER_MAX * 100, known.must_go());
        assert!(longer.await.is_err());
    }

    #[tokio::test]
    async fn no_number_of_strangers_ends_who_is_known() {
        let rooms = rooms();
        let known = stranger(&rooms, 1);
        known.show("token").unwrap();
        let others: Vec<_> = (0..100).map(|n| stranger(&rooms, n)).collect();
        assert_eq!((rooms.strangers.len(), rooms.known.len()), (4, 1));
        assert_eq!(others[0].must_go().await, "its room was needed for another");
        let waits = tokio::time::timeout(Duration::ZERO, known.must_go());
        assert!(waits.await.is_err());
    }

    #[tokio::test]
    async fn of_the_known_whoever_has_the_most_makes_room() {
        let rooms = rooms();
        let known = |token: &str| {
            let one = stranger(&rooms, 1);
            one.show(token).map(|()| one)
        };
        let many: Vec<_> = (0..4).map(|_| known("many").unwrap()).collect();
        let busy: Vec<_> = many.iter().map(Standing::answering).collect();
        assert!(known("many").is_err(), "all of its own are being answered");
        let other = known("other").unwrap();
        assert_eq!(many[0].must_go().await, "its room was needed for another");
        drop(busy);
        let third = known("many").unwrap();
        assert_eq!(many[1].must_go().await, "its room was needed for another");
        drop((other, third));
        assert_eq!((rooms.strangers.len(), rooms.known.len()), (0, 2));
    }
}
