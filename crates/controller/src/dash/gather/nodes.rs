//! Nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tutti_engine::Rejected;
use tutti_model::{GpuIndex, Node, NodeId, Span, Time};
use tutti_web::job::{Moment, Tone};
use tutti_web::nodes::{Card, Curves, Entry, ListView, View};

use super::overview::activity;
use crate::api::{App, Problem};
use crate::chronicle::{Befell, Fate};
use crate::clock::now;
use crate::core::World;
use crate::lock::lock;
use crate::telemetry::{Of, Range, Store};
use crate::views::{self, KeptByNode, counted, node_row};

const CURVE_SPAN: Span = Span::secs(3600);
const CURVE_STEP: u64 = 30;
const HISTORY_MAX: usize = 100;
const READ_EVERY: Duration = Duration::from_secs(5);

/// What the GPUs of a node do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measured {
    activity: Option<f64>,
    power: Option<f64>,
    hottest: Option<i16>,
}

/// What the list says of all nodes. It is read no more often than somebody can: else every row would
/// change with every job that starts anywhere.
#[derive(Default)]
pub struct Readings {
    last: Mutex<Option<(Instant, Arc<Known>)>>,
}

type Known = BTreeMap<NodeId, Measured>;

impl Readings {
    fn known(&self, now: Instant, read: impl FnOnce() -> Known) -> Arc<Known> {
        let mut last = lock(&self.last);
        if let Some((at, known)) = &*last
            && now.duration_since(*at) < READ_EVERY
        {
            return Arc::clone(known);
        }
        let known = Arc::new(read());
        *last = Some((now, Arc::clone(&known)));
        known
    }
}

fn measured(store: &Store, node: &Node) -> Measured {
    let newest = store.newest(&node.facts.name);
    let samples = newest.as_ref().map_or(&[] as &[_], |newest| &newest.sample.gpus);
    let known: Vec<f64> = samples.iter().filter_map(activity).collect();
    let watts: Vec<f64> =
        samples.iter().filter_map(|s| Some(f64::from(s.power_mw?) / 1000.0)).collect();
    // Whole per cents and tens of watts: less is no change.
    let mean = (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64);
    Measured {
        activity: mean.map(|mean| (mean * 100.0).round() / 100.0),
        power: (!watts.is_empty()).then(|| (watts.iter().sum::<f64>() / 10.0).round() * 10.0),
        hottest: samples.iter().filter_map(|sample| sample.temp).max(),
    }
}

fn kept(world: &World) -> KeptByNode {
    views::kept(world.engine.state(), world.engine.plan())
}

fn entry(world: &World, node: &Node, kept: &KeptByNode, measured: Measured) -> Entry {
    let Measured { activity, power, hottest } = measured;
    Entry { row: node_row(world, node, kept, now()), activity, power, hottest }
}

pub async fn list(app: &App) -> Result<ListView, Problem> {
    let nodes = app.core.read(|world| {
        let nodes = &world.engine.state().nodes;
        let read = |node: &Node| measured(&app.telemetry, node);
        let all = || nodes.values().map(|node| (node.id, read(node))).collect::<Known>();
        let known = app.dash.readings.known(Instant::now(), all);
        // Who has joined since is read now.
        let reading = |node: &Node| known.get(&node.id).copied().unwrap_or_else(|| read(node));
        let kept = kept(world);
        let mut list: Vec<Entry> =
            nodes.values().map(|node| entry(world, node, &kept, reading(node))).collect();
        list.sort_by_cached_key(|entry| counted(&entry.row.name));
        list
    });
    Ok(ListView { nodes: nodes.await?, query: String::new() })
}

pub async fn one(app: &App, name: &str) -> Result<View, Problem> {
    let view = app.core.read(|world| {
        let node = world.engine.state().node_named(name)?;
        let history = world.chronicle.fates_of(node.id).take(HISTORY_MAX).map(told).collect();
        Some(View {
            entry: entry(world, node, &kept(world), measured(&app.telemetry, node)),
            gpus: cards(&app.telemetry, node),
            history,
            curves: Curves::default(),
        })
    });
    let mut view = view.await?.ok_or_else(|| Rejected::NoSuchNode(name.to_owned()))?;
    view.curves = curves(&app.telemetry, name);
    Ok(view)
}

fn cards(store: &Store, node: &Node) -> Vec<Card> {
    let newest = store.newest(&node.facts.name);
    let sample = |index: GpuIndex| {
        newest.as_ref()?.sample.gpus.iter().find(|sample| sample.index == index).cloned()
    };
    let jobs = |index: GpuIndex| {
        let used = node.used.gpus.get(&index);
        used.iter().flat_map(|used| used.leases.keys().map(|lease| lease.task)).collect()
    };
    let card = |gpu: &tutti_model::Gpu| Card {
        index: gpu.index.0,
        model: gpu.model.clone(),
        jobs: jobs(gpu.index),
        sample: sample(gpu.index),
    };
    node.facts.gpus.iter().map(card).collect()
}

fn told(befell: &Befell) -> Moment {
    let (tone, text) = match &befell.what {
        Fate::Joined => (Tone::Good, "joined the cluster".to_owned()),
        Fate::Up => (Tone::Good, "its agent is connected".to_owned()),
        Fate::Away => (Tone::Bad, "its stream broke".to_owned()),
        Fate::Lost => (Tone::Bad, "lost: nothing was heard of it for too long".to_owned()),
        Fate::Drained { by, reason } if reason.is_empty() => {
            (Tone::Plain, format!("drained by {by}"))
        }
        Fate::Drained { by, reason } => (Tone::Plain, format!("drained by {by}: {reason}")),
        Fate::Resumed { by } => (Tone::Good, format!("resumed by {by}")),
        Fate::Reopened => {
            (Tone::Good, "takes work again: what asked for the drain is gone".to_owned())
        }
        Fate::Measured { by } => (Tone::Plain, format!("its links were measured by {by}")),
        Fate::GpusMeasured { by } => (Tone::Plain, format!("its GPUs were measured by {by}")),
        Fate::Found(finding) => {
            (Tone::Bad, format!("{} ({})", finding.text, finding.action.in_words()))
        }
        Fate::Gone(finding) => (Tone::Good, format!("no longer: {}", finding.text)),
    };
    Moment { at: befell.at, tone, text }
}

/// Means, sums and the hottest over the GPUs of a node.
fn curves(store: &Store, name: &str) -> Curves {
    let now = now();
    let range = Range::new(Time(now.0.saturating_sub(CURVE_SPAN.0)), now, Some(CURVE_STEP), now);
    let len = range.points() as usize;
    let mut out = Curves {
        t: (0..len as u64).map(|i| range.from + i * range.step).collect(),
        active: vec![None; len],
        power: vec![None; len],
        temp: vec![None; len],
    };
    let mut told = vec![0u32; len];
    let wanted = |of: Of, name: &str| of != Of::Host && matches!(name, "sm" | "power" | "temp");
    let curves = store.curves(name, range, |of, cell| wanted(of, cell.name));
    for curve in curves.into_iter().flatten() {
        for (i, mean) in
            curve.points.iter().enumerate().filter_map(|(i, p)| Some((i, p.as_ref()?.mean as f32)))
        {
            match curve.cell.name {
                "sm" => {
                    *out.active[i].get_or_insert(0.0) += mean * 100.0;
                    told[i] += 1;
                }
                "power" => *out.power[i].get_or_insert(0.0) += mean,
                _ => out.temp[i] = Some(out.temp[i].unwrap_or(0.0).max(mean)),
            }
        }
    }
    for (active, told) in out.active.iter_mut().zip(told) {
        *active = active.map(|sum| (sum / told.max(1) as f32).round());
    }
    out.power.iter_mut().flatten().for_each(|watts| *watts = watts.round());
    out.temp.iter_mut().flatten().for_each(|temp| *temp = temp.round());
    // Nothing was heard before that.
    let first = out.power.iter().zip(&out.active).position(|(p, a)| p.is_some() || a.is_some());
    let known = first.unwrap_or(len);
    out.t.drain(..known);
    out.active.drain(..known);
    out.power.drain(..known);
    out.temp.drain(..known);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_stand_for_a_while() {
        let (readings, start) = (Readings::default(), Instant::now());
        let at = |secs: u64, hottest: i16| {
            let read = || {
                let measured = Measured { hottest: Some(hottest), ..Measured::default() };
                BTreeMap::from([(NodeId(1), measured)])
            };
            readings.known(start + Duration::from_secs(secs), read)[&NodeId(1)].hottest
        };
        assert_eq!([at(0, 60), at(4, 70), at(5, 80), at(9, 90)], [60, 60, 80, 80].map(Some));
    }
}
