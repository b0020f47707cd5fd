//! Those who have not said who they are: only so many from one place at a time.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

/// From one address; a whole rack of agents behind one is let in by turns.
const FROM_ONE_PLACE: usize = 64;

#[derive(Default)]
pub struct Guests {
    by_place: Mutex<HashMap<IpAddr, usize>>,
}

/// Room for one guest, given back when dropped.
pub struct Room {
    guests: Arc<Guests>,
    place: Option<IpAddr>,
}

impl Guests {
    /// None if too many from there are being greeted. This machine itself is trusted with that.
    pub fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<Room> {
        let place = place(peer);
        if let Some(place) = place {
            let mut all = self.lock();
            let here = all.entry(place).or_default();
            if *here >= FROM_ONE_PLACE {
                return None;
            }
            *here += 1;
        }
        Some(Room { guests: Arc::clone(self), place })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        crate::lock::lock(&self.by_place)
    }
}

/// With IPv6 one machine usually has a whole /64.
fn place(peer: IpAddr) -> Option<IpAddr> {
    match peer.to_canonical() {
        ip if ip.is_loopback() => None,
        IpAddr::V6(ip) => Some(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into()),
        ip => Some(ip),
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let mut all = self.guests.lock();
        if let Some(here) = all.get_mut(&place) {
            *here -= 1;
            if *here == 0 {
                all.remove(&place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(guests: &Arc<Guests>, peer: &str) -> Option<Room> {
        guests.enter(peer.parse().unwrap())
    }

    #[test]
    fn one_place_does_not_take_the_room_of_others() {
        let guests = Arc::default();
        let mut rooms: Vec<_> = std::iter::from_fn(|| enter(&guests, "10.0.0.1")).collect();
        assert_eq!(rooms.len(), FROM_ONE_PLACE);
        assert!(enter(&guests, "::ffff:10.0.0.1").is_none());
        assert!(enter(&guests, "10.0.0.2").is_some());
        rooms.pop();
        assert!(enter(&guests, "10.0.0.1").is_some());
        drop(rooms);
        assert!(guests.lock().is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_place_and_this_machine_is_none() {
        let guests = Arc::default();
        let from = |n: usize| enter(&guests, &format!("2001:db8::{n:x}"));
        let rooms: Vec<_> = (0..100).map_while(from).collect();
        assert_eq!(rooms.len(), FROM_ONE_PLACE);
        assert!(enter(&guests, "2001:db8:0:1::1").is_some());
        let local: Vec<_> = (0..200).map_while(|_| enter(&guests, "127.0.0.1")).collect();
        assert_eq!(local.len(), 200);
    }
}
