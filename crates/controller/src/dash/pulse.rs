//! The cluster over the last hours: a point every few seconds, thinned out as it gets older.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tutti_model::{State, TeamShare, Time};
use tutti_web::overview::{Figures, Pulse};
use tutti_web::teams::Past;

use super::gather::overview::figures;
use crate::api::App;
use crate::clock::now;
use crate::lock::lock;
use crate::telemetry::{Of, Range, Store};
use crate::views;

const EVERY: Duration = Duration::from_secs(15);
/// The newest points are all shown, of older ones one in so many.
const FINE: usize = 240;
const COARSE: usize = 8;
const KEPT: usize = 8 * 3600 / 15;
/// How far back telemetry is asked after a start, and in which steps.
const BACK: u64 = 8 * 3600;
const BACK_STEP: u64 = 120;
const LOOK_BACK_AT: u64 = 2;
/// Teams are counted once a minute, for eight hours, and those that held most are drawn.
const TEAMS_EVERY: u64 = 4;
const TEAM_POINTS: usize = 8 * 60;
const TEAMS_DRAWN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    t: u64,
    held: Option<f32>,
    active: Option<f32>,
    pending: Option<u64>,
    running: Option<u64>,
    power: Option<f32>,
}

impl Point {
    fn of(figures: &Figures, at: Time) -> Point {
        let gpus = figures.gpus.max(1) as f32;
        let held = figures.gpus_held as f32 / gpus;
        // Of all GPUs, so that it can be compared with how many are held.
        let active = figures.activity.map(|activity| held * activity as f32 * 100.0);
        Point {
            t: at.0 / 1000,
            held: (figures.gpus > 0).then_some(held * 100.0),
            active,
            pending: Some(figures.pending),
            running: Some(figures.running),
            power: figures.power.map(|watts| (watts / 1000.0) as f32),
        }
    }
}

/// The points, oldest first.
#[derive(Default)]
pub struct Ring {
    points: Mutex<VecDeque<Point>>,
    teams: Mutex<VecDeque<Held>>,
}

/// When, and how many GPUs each team held.
type Held = (u64, BTreeMap<String, f32>);

impl Ring {
    fn push(&self, point: Point) {
        let mut points = self.lock();
        points.push_back(point);
        let surplus = points.len().saturating_sub(KEPT);
        points.drain(..surplus);
    }

    /// What was before the first of ours.
    fn put_before(&self, older: Vec<Point>) {
        let mut points = self.lock();
        let first = points.front().map_or(u64::MAX, |point| point.t);
        for point in older.into_iter().rev().filter(|point| point.t < first) {
            points.push_front(point);
        }
    }

    pub fn shown(&self) -> Pulse {
        let points = self.lock();
        let coarse_until = points.len().saturating_sub(FINE);
        let mut pulse = Pulse::default();
        let is_shown = |i: usize, point: &Point| {
            i >= coarse_until || (point.t / 15).is_multiple_of(COARSE as u64)
        };
        for (_, point) in points.iter().enumerate().filter(|(i, point)| is_shown(*i, point)) {
            let round = |value: Option<f32>| value.map(|value| (value * 10.0).round() / 10.0);
            pulse.t.push(point.t);
            pulse.held.push(round(point.held));
            pulse.active.push(round(point.active));
            pulse.pending.push(point.pending);
            pulse.running.push(point.running);
            pulse.power.push(point.power.map(|kw| (kw * 100.0).round() / 100.0));
        }
        pulse
    }

    fn push_teams(&self, held: Held) {
        let mut teams = lock(&self.teams);
        teams.push_back(held);
        let surplus = teams.len().saturating_sub(TEAM_POINTS);
        teams.drain(..surplus);
    }

    /// The teams that held most, over all points.
    pub fn teams(&self) -> Past {
        let points = lock(&self.teams);
        let mut sums: BTreeMap<&str, f32> = BTreeMap::new();
        for (team, held) in points.iter().flat_map(|(_, held)| held) {
            *sums.entry(team).or_default() += held;
        }
        let mut names: Vec<&str> = sums.keys().copied().filter(|team| sums[team] > 0.0).collect();
        names.sort_by(|a, b| sums[b].total_cmp(&sums[a]).then(a.cmp(b)));
        names.truncate(TEAMS_DRAWN);
        let curve = |team: &&str| points.iter().map(|(_, held)| held.get(*team).copied()).collect();
        Past {
            t: points.iter().map(|(t, _)| *t).collect(),
            held: names.iter().map(curve).collect(),
            names: names.iter().map(|team| (*team).to_owned()).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Point>> {
        lock(&self.points)
    }
}

/// GPUs by team, those of teams below included.
fn held_by_teams(state: &State, at: Time) -> Held {
    let held = |share: TeamShare| (share.team, share.used as f32 / 1000.0);
    (at.0 / 1000, tutti_sched::shares(state, at).into_iter().map(held).collect())
}

/// Takes one point, of teams too if they are wanted. None if the controller stops.
pub fn beat(app: &App, at: Time, teams: bool) -> Option<Figures> {
    let seen = app.core.peek(|world| {
        let held = teams.then(|| held_by_teams(world.engine.state(), at));
        (figures(world, &app.telemetry, at), held)
    });
    let (figures, held) = seen.ok()?;
    app.dash.pulse.push(Point::of(&figures, at));
    held.into_iter().for_each(|held| app.dash.pulse.push_teams(held));
    Some(figures)
}

/// Takes points until the controller stops.
pub async fn keep_pulse(app: Arc<App>) {
    let mut stopping = app.stopping();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for tick in 0u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopping.wait_for(|s| *s) => return,
        }
        let Some(figures) = beat(&app, now(), tick.is_multiple_of(TEAMS_EVERY)) else { return };
        // By then what was kept on disk is back in memory, and nodes are connected again.
        if tick == LOOK_BACK_AT {
            let names = app.core.peek(|world| views::node_names(world.engine.state()));
            let Ok(names) = names else { return };
            let (app, gpus) = (Arc::clone(&app), figures.gpus);
            tokio::task::spawn_blocking(move || {
                app.dash.pulse.put_before(older(&app.telemetry, &names, gpus, now()));
            });
        }
    }
}

/// Activity and power of before the start, from what nodes have told.
fn older(store: &Store, names: &[String], gpus: u64, now: Time) -> Vec<Point> {
    let from = Time(now.0.saturating_sub(BACK * 1000));
    let range = Range::new(from, now, Some(BACK_STEP), now);
    let len = range.points() as usize;
    let (mut active, mut power, mut told) = (vec![0.0; len], vec![0.0; len], vec![0u32; len]);
    let wanted = |of: Of, name: &str| of != Of::Host && matches!(name, "sm" | "power");
    for name in names {
        let curves = store.curves(name, range, |of, cell| wanted(of, cell.name));
        for curve in curves.into_iter().flatten() {
            for (i, point) in curve.points.iter().enumerate().filter_map(|(i, p)| Some((i, (*p)?)))
            {
                match curve.cell.name {
                    "sm" => {
                        active[i] += point.mean;
                        told[i] += 1;
                    }
                    _ => power[i] += point.mean / 1000.0,
                }
            }
        }
    }
    let point = |i: usize| Point {
        t: range.from + i as u64 * range.step,
        held: None,
        active: Some((active[i] / gpus.max(1) as f64 * 100.0) as f32),
        pending: None,
        running: None,
        power: Some(power[i] as f32),
    };
    (0..len).filter(|i| told[*i] > 0).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_all_there_and_older_ones_are_fewer() {
        let ring = Ring::default();
        let figures = Figures {
            gpus: 8,
            gpus_held: 4,
            activity: Some(0.5),
            pending: 3,
            ..Figures::default()
        };
        for n in 0..KEPT as u64 + 100 {
            ring.push(Point::of(&figures, Time(n * 15_000)));
        }
        let pulse = ring.shown();
        assert_eq!(pulse.t.len(), FINE + (KEPT - FINE) / COARSE);
        assert!(pulse.t.is_sorted());
        assert_eq!(*pulse.t.last().unwrap(), (KEPT as u64 + 99) * 15);
        assert_eq!(
            (pulse.held[0], pulse.active[0], pulse.pending[0]),
            (Some(50.0), Some(25.0), Some(3))
        );
    }

    #[test]
    fn teams_that_held_most_are_drawn() {
        let ring = Ring::default();
        for n in 0..3 {
            let held = (0..12u8).map(|team| (format!("t{team}"), f32::from(team)));
            ring.push_teams((n * 60, held.collect()));
        }
        ring.push_teams((180, BTreeMap::from([("t11".to_owned(), 1.0)])));
        let past = ring.teams();
        assert_eq!(past.t, [0, 60, 120, 180]);
        assert_eq!(past.names, ["t11", "t10", "t9", "t8", "t7", "t6", "t5", "t4"]);
        assert_eq!(past.held[0], [Some(11.0), Some(11.0), Some(11.0), Some(1.0)]);
        assert_eq!(past.held[1][3], None);
    }

    #[test]
    fn what_was_before_goes_before() {
        let ring = Ring::default();
        let point = |t| Point {
            t,
            held: None,
            active: Some(1.0),
            pending: None,
            running: None,
            power: None,
        };
        ring.push(point(1000));
        ring.put_before(vec![point(800), point(920), point(1000), point(1040)]);
        assert_eq!(ring.lock().iter().map(|p| p.t).collect::<Vec<_>>(), [800, 920, 1000]);
    }
}
