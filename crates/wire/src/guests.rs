//! Who may hold a connection at a port that strangers reach.
//!
//! A port has room for so many connections of people that it does not know, and each address has a
//! share of it. A newcomer always gets in where somebody keeps the port waiting: the connection that
//! has waited longest, of the address that has the most, goes instead. So whoever shows a token at
//! once is served, however many others are there; and an address that holds much pays first.
//!
//! ```text
//!  accept ─► Lobby::enter(address) ─► Room ─┬─ dropped(): somebody else needs it more
//!                                           ├─ working(true): not while the server owes an answer
//!                                           └─ Drop: room for the next
//! ```
//!
//! [`Pool`] decides and is pure; [`Lobby`] is the same with a lock and a word to whoever must go.
//! The key is an address for strangers (see [`client_address`]) and, say, a token for those known.

mod lobby;
mod turns;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

pub use lobby::{Lobby, Notice, Room};
pub use turns::{Turn, Turns};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Connections of all keys together.
    pub total: usize,
    /// Connections of one key.
    pub per_key: usize,
    /// Where every connection is being served: may one of the key with the most be dropped for a
    /// newcomer of a key that has fewer, and will still? Otherwise the newcomer is refused.
    pub drops_working: bool,
}

/// Names a connection within its pool; a later one has a larger number.
pub type GuestId = u64;

/// Connections by key. `T` is whatever the caller needs to end one.
#[derive(Debug)]
pub struct Pool<K, T> {
    limits: PoolLimits,
    next: GuestId,
    guests: BTreeMap<GuestId, Guest<K, T>>,
    keys: BTreeMap<K, Connections>,
    /// Keys with a connection that waits for its client: who has the most, then whose is oldest.
    silent: BTreeSet<(usize, Reverse<GuestId>, K)>,
    /// The same for keys with a connection that is being served.
    working: BTreeSet<(usize, Reverse<GuestId>, K)>,
}

#[derive(Debug)]
struct Guest<K, T> {
    key: K,
    works: bool,
    handle: T,
}

#[derive(Debug, Default)]
struct Connections {
    silent: BTreeSet<GuestId>,
    working: BTreeSet<GuestId>,
}

impl Connections {
    fn len(&self) -> usize {
        self.silent.len() + self.working.len()
    }
}

/// A newcomer got in.
#[derive(Debug, PartialEq, Eq)]
pub struct Entered<T> {
    pub id: GuestId,
    /// Whose connection has to end for it; it is no longer in the pool.
    pub dropped: Option<T>,
}

/// Nobody keeps the server waiting: the newcomer has to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("every connection is being served, and there is no room for more")]
pub struct PoolFull;

impl<K: Ord + Clone, T> Pool<K, T> {
    pub fn new(limits: PoolLimits) -> Pool<K, T> {
        Pool {
            limits,
            next: 0,
            guests: BTreeMap::new(),
            keys: BTreeMap::new(),
            silent: BTreeSet::new(),
            working: BTreeSet::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.guests.len()
    }

    pub fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    pub fn of_key(&self, key: &K) -> usize {
        self.keys.get(key).map_or(0, Connections::len)
    }

    /// A new connection, which waits for its client.
    pub fn enter(&mut self, key: K, handle: T) -> Result<Entered<T>, PoolFull> {
        let victim = if self.of_key(&key) >= self.limits.per_key {
            Some(self.own_victim(&key).ok_or(PoolFull)?)
        } else if self.guests.len() >= self.limits.total {
            Some(self.any_victim(&key).ok_or(PoolFull)?)
        } else {
            None
        };
        let dropped = victim.and_then(|id| self.leave(id));
        let id = self.next;
        self.next += 1;
        self.guests.insert(id, Guest { key: key.clone(), works: false, handle });
        self.change(&key, |all| {
            all.silent.insert(id);
        });
        Ok(Entered { id, dropped })
    }

    /// The connection has ended, or is a guest no more. None if it had to go before.
    pub fn leave(&mut self, id: GuestId) -> Option<T> {
        let Guest { key, handle, .. } = self.guests.remove(&id)?;
        self.change(&key, |all| {
            all.silent.remove(&id);
            all.working.remove(&id);
        });
        Some(handle)
    }

    /// Gives up whichever connection would go first for a newcomer from elsewhere, if one waits for
    /// its client: for when the system has no room for more.
    pub fn shed(&mut self) -> Option<T> {
        let (_, Reverse(id), _) = self.silent.last()?;
        self.leave(*id)
    }

    /// Whether the server owes it an answer. Waiting for bytes of the client, or for the client to
    /// take some, is no work.
    pub fn set_working(&mut self, id: GuestId, works: bool) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        if guest.works == works {
            return;
        }
        guest.works = works;
        let key = guest.key.clone();
        self.change(&key, |all| {
            let (from, to) = match works {
                true => (&mut all.silent, &mut all.working),
                false => (&mut all.working, &mut all.silent),
            };
            from.remove(&id);
            to.insert(id);
        });
    }

    fn own_victim(&self, key: &K) -> Option<GuestId> {
        self.keys.get(key)?.silent.first().copied()
    }

    fn any_victim(&self, newcomer: &K) -> Option<GuestId> {
        if let Some((_, Reverse(id), _)) = self.silent.last() {
            return Some(*id);
        }
        let (most, Reverse(id), _) = self.working.last()?;
        // Of two that have the same, neither takes from the other in turns.
        let more = *most > self.of_key(newcomer) + 1;
        (self.limits.drops_working && more).then_some(*id)
    }

    /// Changes what a key has, and where it stands among the others.
    fn change(&mut self, key: &K, how: impl FnOnce(&mut Connections)) {
        let all = self.keys.entry(key.clone()).or_default();
        let place = |all: &Connections, ids: &BTreeSet<GuestId>| {
            ids.first().map(|first| (all.len(), Reverse(*first), key.clone()))
        };
        for (ranks, ids) in [(&mut self.silent, &all.silent), (&mut self.working, &all.working)] {
            if let Some(old) = place(all, ids) {
                ranks.remove(&old);
            }
        }
        how(all);
        for (ranks, ids) in [(&mut self.silent, &all.silent), (&mut self.working, &all.working)] {
            ranks.extend(place(all, ids));
        }
        if all.len() == 0 {
            self.keys.remove(key);
        }
    }
}

/// What counts as one address: with IPv6 one machine usually has a whole /64. Each address of
/// loopback is one as well: whoever shares this machine is no more trusted than others.
pub fn client_address(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into()
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests;
