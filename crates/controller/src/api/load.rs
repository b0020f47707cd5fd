//! What GPUs do now, for screens that ask every second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use tutti_model::{Bytes, GpuIndex, GpuSample, Span, TaskId};
use tutti_wire::api::{GpuCell, GpuLoad, JobLoad, Load, LoadQuery, NodeLoad};

use super::App;
use super::body::Params;
use super::openapi::Problems;
use super::problem::Problem;
use crate::clock::{now, patience};
use crate::telemetry::{Newest, Store};
use crate::views::{self, HeldGpu, HeldNode};

/// Older values say nothing about now.
const OLD: Span = Span::secs(10);

/// What GPUs do now: summed up over the cluster, over each wanted job, and one by one of wanted nodes.
#[utoipa::path(get, path = "/api/v1/load", tag = "telemetry", params(LoadQuery),
    responses((status = 200, body = Load), Problems))]
pub async fn load(
    State(app): State<Arc<App>>,
    Params(query): Params<LoadQuery>,
) -> Result<Json<Load>, Problem> {
    let nodes: BTreeSet<&str> = words(query.nodes.as_deref()).collect();
    let jobs = words(query.jobs.as_deref())
        .map(|id| id.parse::<TaskId>().map_err(|bad| Problem::invalid(format!("jobs: {bad}"))));
    let jobs = jobs.collect::<Result<BTreeSet<TaskId>, _>>()?;
    let now = now();
    let held =
        app.core.read(|world| views::holdings(world.engine.state(), &nodes, &jobs, now)).await?;
    let seen = Seen::of(&app.telemetry, &held.nodes, now);
    let mut cluster = Sum::default();
    let mut wanted = Vec::new();
    for node in &held.nodes {
        node.gpus.iter().for_each(|gpu| cluster.add(gpu, seen.sample(&node.name, gpu.gpu)));
        if node.wanted {
            wanted.push(seen.node(node));
        }
    }
    let jobs = held.jobs.into_iter().map(|(id, gpus)| JobLoad { id, load: seen.some(&gpus) });
    Ok(Json(Load { cluster: cluster.done(), nodes: wanted, jobs: jobs.collect() }))
}

fn words(list: Option<&str>) -> impl Iterator<Item = &str> {
    list.into_iter().flat_map(|list| list.split(',')).map(str::trim).filter(|w| !w.is_empty())
}

/// The newest values of every node, and what the GPUs are.
struct Seen<'a> {
    newest: BTreeMap<&'a str, (Newest, Span)>,
    nodes: BTreeMap<&'a str, &'a HeldNode>,
}

impl<'a> Seen<'a> {
    fn of(store: &Store, nodes: &'a [HeldNode], now: tutti_model::Time) -> Seen<'a> {
        let newest = |node: &'a HeldNode| {
            let newest = store.newest(&node.name)?;
            let age = newest.age(now);
            Some((node.name.as_str(), (newest, age)))
        };
        Seen {
            newest: nodes.iter().filter_map(newest).collect(),
            nodes: nodes.iter().map(|node| (node.name.as_str(), node)).collect(),
        }
    }

    fn sample(&self, node: &str, gpu: GpuIndex) -> Option<&GpuSample> {
        let (newest, age) = self.newest.get(node)?;
        let samples = &newest.sample.gpus;
        // Nearly always they stand in order, and nothing is searched.
        let there = samples.get(usize::from(gpu.0)).filter(|s| s.index == gpu);
        there.or_else(|| samples.iter().find(|s| s.index == gpu)).filter(|_| *age < patience(OLD))
    }

    fn node(&self, node: &HeldNode) -> NodeLoad {
        let mut sum = Sum::default();
        let mut cells = Vec::with_capacity(node.gpus.len());
        for gpu in &node.gpus {
            let sample = self.sample(&node.name, gpu.gpu);
            sum.add(gpu, sample);
            cells.push(cell(gpu, sample));
        }
        let newest = self.newest.get(node.name.as_str());
        NodeLoad {
            node: node.name.clone(),
            age: newest.map(|(_, age)| *age),
            cpu: newest
                .filter(|(_, age)| *age < patience(OLD))
                .map(|(newest, _)| newest.sample.host.cpu),
            load: sum.done(),
            gpus: cells,
        }
    }

    fn some(&self, gpus: &[(String, GpuIndex)]) -> GpuLoad {
        let mut sum = Sum::default();
        for (node, gpu) in gpus {
            let held = self.nodes.get(node.as_str());
            if let Some(held) = held.and_then(|held| held.gpus.iter().find(|g| g.gpu == *gpu)) {
                sum.add(held, self.sample(node, *gpu));
            }
        }
        sum.done()
    }
}

fn cell(gpu: &HeldGpu, sample: Option<&GpuSample>) -> GpuCell {
    let watts = |mw: u32| (mw / 1000).min(u16::MAX.into()) as u16;
    let percent = |share: f32| (share * 100.0).round().clamp(0.0, 100.0) as u8;
    GpuCell {
        gpu: gpu.gpu,
        milli: gpu.milli,
        fenced: gpu.fenced,
        jobs: gpu.jobs.clone(),
        util: sample.and_then(|s| s.util),
        sm: sample.and_then(|s| s.sm_active).map(percent),
        mem: sample
            .and_then(|s| s.mem_used)
            .filter(|_| gpu.mem.0 > 0)
            .map(|used| percent(used.0 as f32 / gpu.mem.0 as f32)),
        power: sample.and_then(|s| s.power_mw).map(watts),
        power_limit: sample.and_then(|s| s.power_limit_mw).map(watts),
        temp: sample.and_then(|s| s.temp),
    }
}

/// GPUs being summed up.
#[derive(Default)]
struct Sum {
    load: GpuLoad,
    util: (f32, u32),
    sm: (f32, u32),
}

impl Sum {
    fn add(&mut self, gpu: &HeldGpu, sample: Option<&GpuSample>) {
        let load = &mut self.load;
        load.gpus += 1;
        load.used += u32::from(gpu.milli > 0);
        let Some(sample) = sample else { return };
        load.heard += 1;
        load.mem = Bytes(load.mem.0 + gpu.mem.0);
        load.mem_used = Bytes(load.mem_used.0 + sample.mem_used.unwrap_or_default().0);
        let more = |sum: &mut Option<f32>, mw: Option<u32>| {
            if let Some(mw) = mw {
                *sum = Some(sum.unwrap_or_default() + mw as f32 / 1e3);
            }
        };
        more(&mut load.power, sample.power_mw);
        more(&mut load.power_limit, sample.power_limit_mw);
        load.temp = load.temp.max(sample.temp);
        let mean = |mean: &mut (f32, u32), share: Option<f32>| {
            if let Some(share) = share {
                *mean = (mean.0 + share, mean.1 + 1);
            }
        };
        mean(&mut self.util, sample.util.map(|percent| f32::from(percent) / 100.0));
        mean(&mut self.sm, sample.sm_active);
    }

    fn done(self) -> GpuLoad {
        let mean = |(sum, n): (f32, u32)| (n > 0).then(|| sum / n as f32);
        GpuLoad { util: mean(self.util), sm: mean(self.sm), ..self.load }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u16, milli: u32) -> HeldGpu {
        let (mem, jobs) = (Bytes::gib(80), Vec::new());
        HeldGpu { gpu: GpuIndex(index), mem, milli, fenced: false, jobs }
    }

    #[test]
    fn sums_are_of_those_that_tell() {
        let busy = GpuSample {
            util: Some(90),
            sm_active: Some(0.5),
            mem_used: Some(Bytes::gib(40)),
            power_mw: Some(500_000),
            temp: Some(60),
            ..GpuSample::default()
        };
        let idle = GpuSample { util: Some(10), temp: Some(70), ..GpuSample::default() };
        let mut sum = Sum::default();
        sum.add(&gpu(0, 1000), Some(&busy));
        sum.add(&gpu(1, 250), Some(&idle));
        sum.add(&gpu(2, 0), None);
        let load = sum.done();
        assert_eq!((load.gpus, load.used, load.heard), (3, 2, 2));
        assert_eq!((load.util, load.sm), (Some(0.5), Some(0.5)));
        assert_eq!((load.mem_used, load.mem), (Bytes::gib(40), Bytes::gib(160)));
        assert_eq!((load.power, load.power_limit, load.temp), (Some(500.0), None, Some(70)));
        assert_eq!(Sum::default().done(), GpuLoad::default());
        let shown = cell(&gpu(0, 1000), Some(&busy));
        assert_eq!((shown.sm, shown.mem, shown.power), (Some(50), Some(50), Some(500)));
    }

    #[test]
    fn lists_have_commas() {
        assert_eq!(words(Some(" n1,,n2 ")).collect::<Vec<_>>(), ["n1", "n2"]);
        assert_eq!(words(None).count(), 0);
    }
}
