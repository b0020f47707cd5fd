//! Endpoints.

use std::collections::BTreeMap;

use tutti_engine::{EndpointRefused, Rejected};
use tutti_model::{Endpoint, Span, Time, Traffic};
use tutti_web::endpoint::{Curves, View};
use tutti_web::endpoints::{Entry, ListView, TokenPrice};
use tutti_wire::api::{EndpointRow, EndpointState};

use crate::api::auth::Caller;
use crate::api::{App, Problem};
use crate::clock::now;
use crate::dash::levels::{Level, SLOT, SLOTS_MAX, slot};
use crate::serving::Point;
use crate::views::{self, counted};

/// In the order of the page.
const STATES: [EndpointState; 6] = [
    EndpointState::Ready,
    EndpointState::Partial,
    EndpointState::Starting,
    EndpointState::Asleep,
    EndpointState::Failing,
    EndpointState::Stopping,
];

/// `user:ada team:vision state:ready words of a name`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted<'a> {
    user: Option<&'a str>,
    team: Option<&'a str>,
    state: Option<&'a str>,
    words: Vec<String>,
}

impl<'a> Wanted<'a> {
    fn of(q: &'a str) -> Wanted<'a> {
        let mut wanted = Wanted::default();
        for word in q.split_whitespace() {
            match word.split_once(':') {
                Some(("user", user)) => wanted.user = Some(user),
                Some(("team", team)) => wanted.team = Some(team),
                Some(("state", state)) => wanted.state = Some(state),
                _ => wanted.words.push(word.to_lowercase()),
            }
        }
        wanted
    }

    fn has(&self, row: &EndpointRow) -> bool {
        let is = |wanted: Option<&str>, value: &str| wanted.is_none_or(|wanted| wanted == value);
        let names = || std::iter::once(&row.name).chain(&row.models);
        is(self.user, &row.user)
            && is(self.team, &row.team)
            && is(self.state, row.state.as_str())
            && self.words.iter().all(|word| names().any(|name| name.to_lowercase().contains(word)))
    }
}

pub async fn list(app: &App, q: &str) -> Result<ListView, Problem> {
    let now = now();
    let entries = app.core.read(|world| {
        let state = world.engine.state();
        let entry = |endpoint: &Endpoint| {
            let seen = app.routers.seen(&endpoint.name, now);
            let served = views::served(state, endpoint, &seen.pending, now);
            Entry {
                row: views::endpoint_row(endpoint, seen),
                replicas: endpoint.replicas.values().cloned().collect(),
                price: TokenPrice::of(&served),
            }
        };
        state.endpoints.values().map(entry).collect::<Vec<Entry>>()
    });
    let mut endpoints = entries.await?;
    let count = |state| endpoints.iter().filter(|entry| entry.row.state == state).count() as u64;
    let totals = STATES.map(|state| (state, count(state))).into();
    let wanted = Wanted::of(q);
    endpoints.retain(|entry| wanted.has(&entry.row));
    endpoints.sort_by_cached_key(|entry| counted(&entry.row.name));
    Ok(ListView { endpoints, totals, query: q.to_owned() })
}

/// `caller`: whose page it is; for what is the same for everybody, nobody's.
pub async fn one(app: &App, name: &str, caller: Option<&Caller>) -> Result<View, Problem> {
    let now = now();
    let read = app.core.read(|world| {
        let endpoint = world.engine.state().endpoints.get(name)?;
        let inside = caller.is_some_and(|caller| caller.may_look_inside(&endpoint.user));
        Some((views::endpoint_detail(world, &app.routers, endpoint, inside, now), inside))
    });
    let unknown = || Rejected::from(EndpointRefused::Unknown(name.to_owned()));
    let (detail, inside) = read.await?.ok_or_else(unknown)?;
    let curves = curves(&app.routers.history(name, now), &app.dash.levels.of(name), now);
    Ok(View { detail, curves, at: now, inside })
}

/// What went by and what was there, on one line of time. A slot that has not ended yet is left out:
/// it would look like a fall.
fn curves(history: &[Point], levels: &[Level], now: Time) -> Curves {
    let mut traffic: BTreeMap<u64, &Point> = BTreeMap::new();
    traffic.extend(history.iter().map(|point| (slot(point.at), point)));
    let levels: BTreeMap<u64, &Level> = levels.iter().map(|level| (level.slot, level)).collect();
    let first = traffic.keys().chain(levels.keys()).min().copied();
    let slots = (slot(now).saturating_sub(SLOTS_MAX)..slot(now)).filter(|s| Some(*s) >= first);
    let mut out = Curves::default();
    for slot in slots.filter(|_| first.is_some()) {
        let point = traffic.get(&slot).copied();
        let rate =
            |n: fn(&Traffic) -> u64| point.map_or(0.0, |p| per_second(n(&p.traffic), p.over));
        let late = point.and_then(|point| point.traffic.first_byte.quantile(0.95));
        // Looks that came late have left a slot out.
        let level = levels.get(&slot).or_else(|| levels.get(&slot.checked_sub(1)?)).copied();
        out.t.push(slot * SLOT.0 / 1000);
        out.requests.push(Some(rate(|traffic| traffic.requests)));
        out.failed.push(Some(rate(|traffic| traffic.errors)));
        out.first_byte.push(late.map(|late| late.0 as f32));
        out.in_flight.push(level.map(|level| level.in_flight));
        out.queued.push(level.map(|level| level.queued));
        out.ready.push(level.map(|level| level.ready));
        out.want.push(level.map(|level| level.want));
    }
    out
}

fn per_second(n: u64, over: Span) -> f32 {
    let rate = n as f32 * 1000.0 / over.0.max(1) as f32;
    (rate * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str) -> EndpointRow {
        let json = serde_json::json!({
            "name": "Chat-large", "user": "ada", "team": "vision", "state": state, "revision": 1,
            "ready": 1, "want": 1, "min": 1, "max": 1, "gpus_per_replica": 1, "policy": "p2c",
            "models": ["llama-8b"], "in_flight": 0, "queued": 0, "figures": {}, "created_at": 0,
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn words_narrow_the_list_down() {
        let has = |q: &str| Wanted::of(q).has(&row("ready"));
        assert!(has("") && has("chat") && has("LLAMA large") && has("team:vision user:ada"));
        assert!(has("state:ready chat") && !has("state:partial") && !has("team:vis"));
        assert!(!has("chat other") && !has("user:bob"));
    }

    #[test]
    fn time_without_requests_is_drawn_and_what_is_not_over_is_not() {
        let mut traffic = Traffic { requests: 50, errors: 5, ..Traffic::default() };
        (0..50).for_each(|_| traffic.first_byte.add(4_000));
        let point =
            |slot: u64| Point { at: Time(slot * SLOT.0), over: SLOT, traffic: traffic.clone() };
        let level = |slot| Level { slot, in_flight: 7, queued: 2, ready: 1, want: 2 };
        let drawn = curves(&[point(11), point(13)], &[level(10)], Time(13 * SLOT.0 + 1));
        assert_eq!(drawn.t, [50, 55, 60]);
        assert_eq!(drawn.requests, [0.0, 10.0, 0.0].map(Some));
        assert_eq!(drawn.failed, [0.0, 1.0, 0.0].map(Some));
        assert!(drawn.first_byte[1].is_some_and(|ms| (3.0..=5.0).contains(&ms)), "{drawn:?}");
        assert_eq!((drawn.first_byte[0], drawn.first_byte[2]), (None, None), "nobody asked");
        assert_eq!(drawn.in_flight, [Some(7), Some(7), None], "one look may be late");
        assert_eq!(drawn.want, [Some(2), Some(2), None]);
        assert_eq!(curves(&[], &[], Time(1_000_000)), Curves::default());
        let old = curves(&[], &[level(10)], Time(10_000 * SLOT.0));
        assert_eq!(old.t.len() as u64, SLOTS_MAX, "five minutes");
    }
}
