//! The cluster at a glance.

use std::collections::BTreeMap;

use tutti_model::{Finding, GpuIndex, GpuSample, JobState, Link, Node, NodeState, State, Time};
use tutti_web::grid::{Cell, Grid, Holding, JobWords, NodeLayout, RackLayout, SiteLayout};
use tutti_web::overview::{Figures, View};

use super::alerts;
use crate::api::{App, Problem};
use crate::clock::{now, patience};
use crate::core::World;
use crate::telemetry::{Newest, Store};
use crate::views;

const ALERTS_MAX: usize = 12;
/// Values that are older say nothing of now.
const STALE: tutti_model::Span = tutti_model::Span::secs(30);

pub async fn view(app: &App) -> Result<View, Problem> {
    let view = app.core.read(|world| {
        let (alerts, more_alerts) = alerts::now(world, ALERTS_MAX);
        View {
            figures: figures(world, &app.telemetry, now()),
            alerts,
            more_alerts,
            pulse: app.dash.pulse.shown(),
            grid: grid(world.engine.state(), &app.telemetry, now()),
        }
    });
    Ok(view.await?)
}

/// What was heard of a node a moment ago.
fn fresh(store: &Store, node: &Node, now: Time) -> Option<Newest> {
    store.newest(&node.facts.name).filter(|newest| newest.age(now) < patience(STALE))
}

/// How busy a GPU is: its multiprocessors or, where they do not tell, that any kernel ran.
pub fn activity(sample: &GpuSample) -> Option<f64> {
    sample.sm_active.map(f64::from).or_else(|| Some(f64::from(sample.util?) / 100.0))
}

pub fn figures(world: &World, store: &Store, now: Time) -> Figures {
    let state = world.engine.state();
    let totals = world.reads.totals();
    let mut figures = Figures {
        nodes: state.nodes.len() as u64,
        running: [JobState::Starting, JobState::Running, JobState::Stopping]
            .iter()
            .map(|s| totals.get(*s))
            .sum(),
        pending: totals.get(JobState::Pending),
        suspended: totals.get(JobState::Suspended),
        waits_since: state.index.waiting.first().map(|(since, _)| *since),
        ..Figures::default()
    };
    let (mut busy, mut told, mut watts, mut powered) = (0.0, 0u32, 0.0, false);
    for node in state.nodes.values() {
        let fenced = node.fenced().len() as u64;
        let gpus = node.facts.gpus.len() as u64;
        figures.gpus += gpus;
        figures.gpus_held += node.used.gpus.len() as u64;
        figures.gpus_out += if node.accepts_work() {
            fenced
        } else {
            gpus - (node.used.gpus.len() as u64).min(gpus)
        };
        figures.nodes_ready += u64::from(node.state() == NodeState::Ready);
        let Some(newest) = fresh(store, node, now) else { continue };
        for sample in &newest.sample.gpus {
            if let Some(mw) = sample.power_mw {
                watts += f64::from(mw) / 1000.0;
                powered = true;
            }
            if let Some(activity) =
                activity(sample).filter(|_| node.used.gpus.contains_key(&sample.index))
            {
                busy += activity;
                told += 1;
            }
        }
    }
    figures.activity = (told > 0).then(|| busy / f64::from(told));
    figures.power = powered.then_some(watts);
    figures
}

/// Nodes by site, rack and name, as people count.
pub fn placed(state: &State) -> Vec<(String, String, &Node)> {
    let mut nodes: Vec<(String, String, &Node)> = state
        .nodes
        .values()
        .map(|node| {
            let place = state.policy.topology.place_of(node);
            (place.site.unwrap_or_default(), place.rack.unwrap_or_default(), node)
        })
        .collect();
    nodes.sort_by_cached_key(|(site, rack, node)| {
        (views::counted(site), views::counted(rack), views::counted(&node.facts.name))
    });
    nodes
}

fn grid(state: &State, store: &Store, now: Time) -> Grid {
    let mut grid = Grid::default();
    for (site, rack, node) in
        placed(state).into_iter().filter(|(_, _, node)| !node.facts.gpus.is_empty())
    {
        put_node(&mut grid.layout, site, rack, node);
        let newest = fresh(store, node, now);
        let samples: BTreeMap<GpuIndex, &GpuSample> = newest
            .as_ref()
            .map(|newest| newest.sample.gpus.iter().map(|sample| (sample.index, sample)).collect())
            .unwrap_or_default();
        for gpu in in_islands(node) {
            let cell = cell(node, gpu, samples.get(&gpu).copied());
            if cell.job != 0 && !grid.jobs.contains_key(&cell.job) {
                grid.jobs.extend(job_words(state, node, gpu).map(|words| (cell.job, words)));
            }
            grid.cells.push(cell);
        }
    }
    grid
}

/// The GPUs of a node, island by island.
fn in_islands(node: &Node) -> Vec<GpuIndex> {
    let mut gpus: Vec<_> = node.facts.gpus.iter().map(|gpu| (gpu.island, gpu.index)).collect();
    gpus.sort_unstable();
    gpus.into_iter().map(|(_, index)| index).collect()
}

fn put_node(layout: &mut Vec<SiteLayout>, site: String, rack: String, node: &Node) {
    if layout.last().is_none_or(|last| last.name != site) {
        layout.push(SiteLayout { name: site, racks: Vec::new() });
    }
    let racks = &mut layout.last_mut().expect("one was just pushed").racks;
    if racks.last().is_none_or(|last| last.name != rack) {
        racks.push(RackLayout { name: rack, nodes: Vec::new() });
    }
    let mut islands: BTreeMap<Option<u16>, u16> = BTreeMap::new();
    node.facts.gpus.iter().for_each(|gpu| *islands.entry(gpu.island).or_default() += 1);
    let gpus: Vec<u16> = in_islands(node).into_iter().map(|gpu| gpu.0).collect();
    let in_order = gpus.iter().copied().eq(0..gpus.len() as u16);
    racks.last_mut().expect("one was just pushed").nodes.push(NodeLayout {
        name: node.facts.name.clone(),
        model: node.facts.gpus.first().map_or_else(String::new, |gpu| gpu.model.clone()),
        islands: islands.into_values().collect(),
        gpus: if in_order { Vec::new() } else { gpus },
    });
}

fn cell(node: &Node, gpu: GpuIndex, sample: Option<&GpuSample>) -> Cell {
    let used = node.used.gpus.get(&gpu);
    let lease = used.and_then(|used| used.leases.keys().next());
    let is_shared = used.is_some_and(|used| used.leases.len() > 1 || used.milli() < 1000);
    let holding = match node.link {
        Link::Up if node.is_fenced(gpu) => Holding::Fenced,
        Link::Up if lease.is_none() && !node.accepts_work() => Holding::Closed,
        Link::Up if is_shared => Holding::Shared,
        Link::Up if lease.is_some() => Holding::Held,
        Link::Up => Holding::Free,
        Link::Away { .. } | Link::Lost { .. } => Holding::Gone,
    };
    let concerns = |found: &&Finding| found.gpu.is_none_or(|of| of == gpu);
    let worst = node.findings.iter().filter(concerns).map(|found| found.action).max();
    let power = |s: &GpuSample| {
        Some(f64::from(s.power_mw?) / f64::from(s.power_limit_mw.filter(|mw| *mw > 0)?))
    };
    Cell {
        holding,
        job: lease.map_or(0, |lease| lease.task.job.0 as u32),
        activity: Cell::share(sample.and_then(activity)),
        power: Cell::share(sample.and_then(power)),
        temp: Cell::degrees(sample.and_then(|sample| sample.temp)),
        health: worst.map_or(0, |action| action as u8 + 1),
    }
}

fn job_words(state: &State, node: &Node, gpu: GpuIndex) -> Option<JobWords> {
    let lease = node.used.gpus.get(&gpu)?.leases.keys().next()?;
    let job = state.job(lease.task.job)?;
    Some((job.spec.display_name().to_owned(), job.user.clone(), job.team.clone()))
}

#[cfg(test)]
mod tests;
