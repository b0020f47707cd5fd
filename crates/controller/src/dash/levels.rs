//! How much each endpoint had to do over the last minutes, and with how many replicas: a look every few
//! seconds. What went by in between is counted by those who hear of it, see [`crate::serving`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tutti_model::{Span, Time};

use crate::api::App;
use crate::clock::now;
use crate::lock::lock;
use crate::serving::Seen;

/// As long as traffic is counted together, so that both fit on one line of time.
pub const SLOT: Span = Span::secs(5);
/// Five minutes.
pub const SLOTS_MAX: u64 = 60;

/// Slots from the beginning of time.
pub fn slot(at: Time) -> u64 {
    at.0 / SLOT.0
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub slot: u64,
    pub in_flight: u32,
    pub queued: u32,
    pub ready: u32,
    pub want: u32,
}

/// By endpoint, oldest first.
#[derive(Default)]
pub struct Levels {
    rings: Mutex<BTreeMap<String, VecDeque<Level>>>,
}

impl Levels {
    /// Takes what there is now. Endpoints that are not there any more are forgotten.
    fn push(&self, levels: BTreeMap<String, Level>) {
        let mut rings = lock(&self.rings);
        rings.retain(|name, _| levels.contains_key(name));
        for (name, level) in levels {
            let ring = rings.entry(name).or_default();
            // Two looks in one slot: the later one stands.
            if ring.back().is_some_and(|last| last.slot == level.slot) {
                ring.pop_back();
            }
            ring.push_back(level);
            let surplus = ring.len().saturating_sub(SLOTS_MAX as usize);
            ring.drain(..surplus);
        }
    }

    pub fn of(&self, endpoint: &str) -> Vec<Level> {
        lock(&self.rings).get(endpoint).map_or_else(Vec::new, |ring| ring.iter().copied().collect())
    }
}

/// Looks until the controller stops.
pub async fn keep_levels(app: Arc<App>) {
    let mut stopping = app.stopping();
    let mut ticks = tokio::time::interval(Duration::from_millis(SLOT.0));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopping.wait_for(|s| *s) => return,
        }
        let now = now();
        let seen = app.core.peek(|world| {
            let endpoints = world.engine.state().endpoints.values();
            let counts = |e: &tutti_model::Endpoint| (e.name.clone(), e.ready().count(), e.want);
            endpoints.map(counts).collect::<Vec<_>>()
        });
        let Ok(seen) = seen else { return };
        let level = |(name, ready, want): (String, usize, u32)| {
            let Seen { in_flight, queued, .. } = app.routers.seen(&name, now);
            (name, Level { slot: slot(now), in_flight, queued, ready: ready as u32, want })
        };
        app.dash.levels.push(seen.into_iter().map(level).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, slot: u64, in_flight: u32) -> BTreeMap<String, Level> {
        BTreeMap::from([(name.to_owned(), Level { slot, in_flight, ..Level::default() })])
    }

    #[test]
    fn five_minutes_are_kept_and_what_is_gone_is_forgotten() {
        let levels = Levels::default();
        (0..100).for_each(|slot| levels.push(one("chat", slot, 1)));
        levels.push(one("chat", 99, 7));
        let kept = levels.of("chat");
        assert_eq!((kept.len() as u64, kept[0].slot), (SLOTS_MAX, 40));
        assert_eq!(kept.last().map(|level| (level.slot, level.in_flight)), Some((99, 7)));
        levels.push(one("other", 100, 1));
        assert_eq!((levels.of("chat").len(), levels.of("other").len()), (0, 1));
    }
}
