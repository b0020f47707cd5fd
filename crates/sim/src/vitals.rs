//! What the machines of a replay would show: a sample of each node, made up from what runs there. The
//! same state and time give the same sample.
//!
//! Gangs keep their GPUs busy and hot, arrays a little less, a single GPU that somebody tries things
//! on is idle most of the time. Ranks of a gang differ slightly, and in some gangs one is slow and
//! all others wait for it.

use tutti_model::{
    Attempt, Bytes, Gpu, GpuIndex, GpuProcess, GpuSample, HostSample, Job, LeaseId, Link,
    NicSample, Node, NodeSample, Span, State, Time,
};

use crate::noise::{hash, unit, wobble};

/// A gang loads its data and code for so long before it computes.
const WARM_UP: Span = Span::secs(150);
/// Values change so often.
const FLICKER_MS: u64 = 5_000;
const IDLE_WATTS: f64 = 72.0;
/// Gangs of at least so many GPUs may have one that is slow; one gang of so many has.
const STRAGGLES_FROM: u64 = 16;
const ONE_STRAGGLES_IN: u64 = 4;

/// How a GPU is used.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Use {
    active: f64,
    tensor: f64,
    /// Of its memory.
    mem: f64,
    /// Gangs talk over links.
    links: f64,
}

/// A sample of every node that is up, by name.
pub fn samples(state: &State, now: Time) -> impl Iterator<Item = (&str, NodeSample)> {
    let up = state.nodes.values().filter(|node| node.link == Link::Up);
    up.map(move |node| (node.facts.name.as_str(), sample(state, node, now)))
}

fn sample(state: &State, node: &Node, now: Time) -> NodeSample {
    let uses: Vec<(&Gpu, Option<Use>)> =
        node.facts.gpus.iter().map(|gpu| (gpu, used(state, node, gpu.index, now))).collect();
    let busy = uses.iter().filter_map(|(_, used)| used.map(|used| used.active)).sum::<f64>();
    let share = busy / uses.len().max(1) as f64;
    NodeSample {
        at: now,
        gpus: uses.iter().map(|(gpu, used)| gpu_sample(node, gpu, *used, now)).collect(),
        host: host_sample(node, share, now),
        processes: processes(node, &uses),
        ..NodeSample::default()
    }
}

fn used(state: &State, node: &Node, gpu: GpuIndex, now: Time) -> Option<Use> {
    let lease = *node.used.gpus.get(&gpu)?.leases.keys().next()?;
    let job = state.job(lease.task.job)?;
    let attempt = job.task(lease.task.index)?.attempt()?;
    let ran = attempt.running_since(now).map_or(Span(0), |since| now.since(since));
    let rank = rank_of(attempt, node, gpu);
    Some(usage(job, lease, attempt.gpu_count().into(), rank, ran, now))
}

fn rank_of(attempt: &Attempt, node: &Node, gpu: GpuIndex) -> u64 {
    let before = attempt.parts.iter().take_while(|part| part.node != node.id);
    let first: usize = before.map(|part| part.gpus.len()).sum();
    let part = attempt.part_on(node.id);
    let within = part.and_then(|part| part.gpus.iter().position(|of| *of == gpu)).unwrap_or(0);
    (first + within) as u64
}

/// The rank that all others of the gang wait for.
fn straggler(job: u64, gpus: u64) -> Option<u64> {
    let has = gpus >= STRAGGLES_FROM && hash(&[job, 21]).is_multiple_of(ONE_STRAGGLES_IN);
    has.then(|| hash(&[job, 22]) % gpus)
}

fn usage(job: &Job, lease: LeaseId, gpus: u64, rank: u64, ran: Span, now: Time) -> Use {
    let id = lease.task.job.0;
    let own = unit(&[id, lease.task.index.unwrap_or(0).into(), 1]);
    let flicker = wobble(&[id, rank, now.0 / FLICKER_MS]);
    if gpus >= 4 && ran < WARM_UP {
        let mem = 0.2 + 0.5 * ran.0 as f64 / WARM_UP.0 as f64;
        return Use { active: 0.03 + 0.02 * flicker.abs(), tensor: 0.0, mem, links: 0.1 };
    }
    if gpus >= 2 {
        let wide = 0.97 - 0.012 * (gpus as f64).log2();
        let base = wide - 0.10 * own + 0.018 * wobble(&[id, rank, 2]);
        let active = match straggler(id, gpus) {
            Some(slow) if slow == rank => base - 0.34,
            Some(_) => base - 0.09,
            None => base,
        };
        let active = (active + 0.015 * flicker).clamp(0.05, 0.995);
        return Use { active, tensor: 0.62 * active, mem: 0.72 + 0.22 * own, links: 0.8 * active };
    }
    if job.spec.array.is_some() {
        let active = (0.62 + 0.3 * own + 0.05 * flicker).clamp(0.05, 0.99);
        return Use { active, tensor: 0.4 * active, mem: 0.25 + 0.3 * own, links: 0.0 };
    }
    let tries = job.spec.time.is_none() || job.spec.gpu_share.is_some();
    let bursts = unit(&[id, now.0 / 90_000, 3]) < 0.18;
    let active = match (tries, bursts) {
        (true, false) => 0.01 * unit(&[id, now.0 / FLICKER_MS]),
        (true, true) => 0.35 + 0.3 * own + 0.1 * flicker,
        (false, _) => 0.55 + 0.35 * own + 0.06 * flicker,
    };
    let active = active.clamp(0.0, 0.99);
    Use { active, tensor: 0.45 * active, mem: 0.1 + 0.6 * own, links: 0.0 }
}

/// Watts that a GPU of this model may draw.
fn power_limit(model: &str) -> f64 {
    match model {
        "b200" => 1000.0,
        "h100" | "h200" => 700.0,
        "mi300x" => 750.0,
        "a100" => 400.0,
        "v100" | "l40s" => 300.0,
        "t4" | "l4" => 72.0,
        _ => 350.0,
    }
}

fn gpu_sample(node: &Node, gpu: &Gpu, used: Option<Use>, now: Time) -> GpuSample {
    let seed = [node.id.0.into(), gpu.index.0.into()];
    let flicker = wobble(&[seed[0], seed[1], now.0 / FLICKER_MS]);
    let limit = power_limit(&gpu.model);
    let idle = IDLE_WATTS.min(limit * 0.2) * (1.0 + 0.06 * wobble(&[seed[0], seed[1]]));
    let drawn = used.map_or(0.0, |used| 0.25 * used.active + 0.75 * used.active.powf(1.4));
    let watts = idle + (0.93 * limit - idle) * drawn + 4.0 * flicker;
    // Some places in a rack get less air than others, and the last GPUs the warm air of the first.
    let air = 4.0 * unit(&[seed[0], 5]) + 0.6 * gpu.index.0 as f64;
    let temp = 27.0 + air + 36.0 * watts / limit;
    let share = |value: f64| Some(value.clamp(0.0, 1.0) as f32);
    let of = used.unwrap_or(Use { active: 0.0, tensor: 0.0, mem: 0.005, links: 0.0 });
    let mem_used = Bytes((gpu.mem.0 as f64 * of.mem) as u64);
    let rate = |gib: f64| Some((gib * of.links * (1u64 << 30) as f64) as u64);
    GpuSample {
        index: gpu.index,
        util: Some((of.active.powf(0.3) * 100.0).min(100.0) as u8),
        mem_util: Some((of.active * 55.0) as u8),
        mem_used: Some(mem_used),
        mem_free: Some(Bytes(gpu.mem.0.saturating_sub(mem_used.0))),
        power_mw: Some((watts * 1000.0) as u32),
        power_limit_mw: Some((limit * 1000.0) as u32),
        temp: Some(temp as i16),
        mem_temp: Some((temp + 7.0) as i16),
        sm_clock: Some(if of.active > 0.02 { 1_755 } else { 345 }),
        mem_clock: Some(2_619),
        throttle: Some(0),
        engine_active: share(of.active.powf(0.3)),
        sm_active: share(of.active),
        occupancy: share(0.5 * of.active),
        tensor_active: share(of.tensor),
        dram_active: share(0.6 * of.active),
        pcie_tx: rate(2.0),
        pcie_rx: rate(3.0),
        nvlink_tx: rate(160.0),
        nvlink_rx: rate(160.0),
        ecc_corrected: Some(hash(&seed) % 3),
        ecc_uncorrected: Some(0),
        ..GpuSample::default()
    }
}

fn host_sample(node: &Node, share: f64, now: Time) -> HostSample {
    let flicker = wobble(&[node.id.0.into(), now.0 / FLICKER_MS, 8]);
    let cpu = (0.02 + 0.3 * share + 0.02 * flicker).clamp(0.0, 1.0);
    let (mem, disk) = (node.facts.mem, Bytes::gib(28 * 1024));
    let part = |of: Bytes, share: f64| Bytes((of.0 as f64 * share) as u64);
    let wire = (share * 20.0 * (1u64 << 30) as f64) as u64;
    HostSample {
        cpu: cpu as f32,
        load1: (cpu * f64::from(node.facts.cpus)) as f32,
        mem_total: mem,
        mem_available: part(mem, 0.93 - 0.45 * share),
        disk_total: disk,
        disk_free: part(disk, 0.4 + 0.4 * unit(&[node.id.0.into(), 9])),
        disk_read: (share * 1.5e9) as u64,
        disk_write: (share * 2.0e8) as u64,
        net_rx: (share * 4.0e8) as u64,
        net_tx: (share * 2.0e8) as u64,
        nics: (0..8).map(|port| nic(port, wire)).collect(),
    }
}

fn nic(port: u32, wire: u64) -> NicSample {
    NicSample {
        port: format!("mlx5_{port}:1"),
        up: true,
        rx: wire,
        tx: wire,
        ..NicSample::default()
    }
}

fn processes(node: &Node, uses: &[(&Gpu, Option<Use>)]) -> Vec<GpuProcess> {
    let process = |(gpu, used): &(&Gpu, Option<Use>)| {
        let lease = node.used.gpus.get(&gpu.index)?.leases.keys().next()?;
        let mem = Bytes((gpu.mem.0 as f64 * used.as_ref()?.mem) as u64);
        let pid = 10_000 + (hash(&[lease.task.job.0, gpu.index.0.into()]) % 50_000) as u32;
        Some(GpuProcess { gpu: gpu.index, pid, mem, task: Some(lease.task) })
    };
    uses.iter().filter_map(process).collect()
}

#[cfg(test)]
mod tests {
    use tutti_engine::{Command, Engine, Settings};
    use tutti_model::Greeting;

    use super::*;
    use crate::shape::parse_lots;

    #[test]
    fn free_gpus_are_cool_and_say_the_same_every_time() {
        let mut engine = Engine::new(Settings::default());
        for facts in parse_lots("2xdgx-h100", "").unwrap() {
            let greeting = Box::new(Greeting::new(facts, Vec::new()));
            engine.step(Command::Hello { greeting, session: 1, key: None }, Time(1)).reply.unwrap();
        }
        let all = |now| samples(engine.state(), now).map(|(_, s)| s).collect::<Vec<_>>();
        assert_eq!(all(Time(5)), all(Time(5)));
        let gpus: Vec<GpuSample> = all(Time(5)).into_iter().flat_map(|s| s.gpus).collect();
        assert_eq!(gpus.len(), 16);
        for gpu in gpus {
            assert_eq!(gpu.sm_active, Some(0.0));
            assert!((60_000..90_000).contains(&gpu.power_mw.unwrap()), "{gpu:?}");
            assert!((25..45).contains(&gpu.temp.unwrap()), "{gpu:?}");
        }
    }

    #[test]
    fn one_rank_in_some_gangs_is_slow() {
        let slow = (0..100).filter_map(|job| straggler(job, 64)).collect::<Vec<_>>();
        assert!((10..50).contains(&slow.len()), "{}", slow.len());
        assert!(slow.iter().all(|rank| *rank < 64));
        assert!((0..100).all(|job| straggler(job, 8).is_none()));
    }
}
