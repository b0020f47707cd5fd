//! Imagined GPUs: idle, or busy while a task has them. The same every time; they are called
//! simulated wherever the node is.

use std::time::Duration;

use tutti_model::{Bytes, Gpu, GpuSample};

use super::{DeviceProcess, Devices, Round};

/// Degrees.
const COOL: f64 = 31.0;
const HOT: f64 = 68.0;
/// How fast it warms and cools: this share of the way in a second.
const WARMS: f64 = 0.05;
const BOOST_MHZ: u32 = 1980;
const IDLE_MHZ: u32 = 345;
const MEMORY_MHZ: u32 = 2619;
/// NVML's bit for clocks that are low because nothing runs.
const REASON_IDLE: u64 = 1;
/// What a driver takes of an idle device.
const RESERVED: Bytes = Bytes(600 << 20);

pub struct Simulated {
    gpus: Vec<Imagined>,
}

struct Imagined {
    gpu: Gpu,
    limit_w: f64,
    heat: f64,
    energy_mj: f64,
    last: Option<Duration>,
}

impl Simulated {
    pub fn new(gpus: &[Gpu]) -> Simulated {
        let imagine = |gpu: &Gpu| Imagined {
            limit_w: limit_w(&gpu.model),
            gpu: gpu.clone(),
            heat: COOL,
            energy_mj: 0.0,
            last: None,
        };
        Simulated { gpus: gpus.iter().map(imagine).collect() }
    }
}

impl Devices for Simulated {
    fn read(&mut self, round: Round<'_>, gpus: &mut Vec<GpuSample>, on: &mut Vec<DeviceProcess>) {
        for imagined in &mut self.gpus {
            let index = imagined.gpu.index;
            let holders = || round.held.iter().filter(|held| held.gpu == index);
            let mut sample = imagined.go_on(round, holders().count() > 0);
            let wishes = holders().filter_map(|held| held.as_if);
            wishes.for_each(|as_if| as_if.put_on(&mut sample));
            let used = sample.mem_used.unwrap_or_default().0.saturating_sub(RESERVED.0);
            let each = used / holders().count().max(1) as u64;
            on.extend(holders().map(|held| DeviceProcess {
                gpu: index,
                pid: 0,
                mem: Bytes(each),
                task: Some(held.task),
            }));
            gpus.push(sample);
        }
    }
}

impl Imagined {
    fn go_on(&mut self, round: Round<'_>, busy: bool) -> GpuSample {
        let secs = self
            .last
            .replace(round.clock)
            .map_or(0.0, |last| round.clock.saturating_sub(last).as_secs_f64());
        // Training breathes: a slow wave, of another phase on each device.
        let phase = round.at.0 as f64 / 9_000.0 + f64::from(self.gpu.index.0);
        let wave = if busy { 0.5 + 0.5 * phase.sin() } else { 0.0 };
        let load = if busy { 0.82 + 0.12 * wave } else { 0.0 };
        let power_w = self.limit_w * (0.1 + 0.85 * load);
        let target = COOL + (HOT - COOL) * load;
        self.heat += (target - self.heat) * (1.0 - (1.0 - WARMS).powf(secs));
        self.energy_mj += power_w * secs * 1000.0;
        let used = if busy { (self.gpu.mem.0 as f64 * 0.78) as u64 } else { 0 } + RESERVED.0;
        let used = used.min(self.gpu.mem.0);
        let share = |most: f64| Some((load * most) as f32);
        let rate = |most: f64| Some((load * most) as u64);
        GpuSample {
            index: self.gpu.index,
            util: Some(if busy { (94.0 + 6.0 * wave) as u8 } else { 0 }),
            mem_util: Some((load * 60.0) as u8),
            mem_used: Some(Bytes(used)),
            mem_free: Some(Bytes(self.gpu.mem.0 - used)),
            power_mw: Some((power_w * 1000.0) as u32),
            power_limit_mw: Some((self.limit_w * 1000.0) as u32),
            energy_mj: Some(self.energy_mj as u64),
            temp: Some(self.heat as i16),
            mem_temp: Some(self.heat as i16 + 4),
            sm_clock: Some(if busy { BOOST_MHZ } else { IDLE_MHZ }),
            mem_clock: Some(MEMORY_MHZ),
            throttle: Some(if busy { 0 } else { REASON_IDLE }),
            engine_active: share(1.0),
            sm_active: share(0.9),
            occupancy: share(0.45),
            tensor_active: share(0.55),
            dram_active: share(0.6),
            pcie_tx: rate(2.0e9),
            pcie_rx: rate(4.0e9),
            nvlink_tx: rate(9.0e10),
            nvlink_rx: rate(9.0e10),
            pcie_replays: Some(0),
            nvlink_errors: Some(0),
            ecc_corrected: Some(0),
            ecc_uncorrected: Some(0),
            remapped_corrected: Some(0),
            remapped_uncorrected: Some(0),
            remap_pending: Some(false),
            remap_failed: Some(false),
            xid: None,
        }
    }
}

/// Watts that a device of this model may draw.
fn limit_w(model: &str) -> f64 {
    match model {
        "gb300" | "gb200" | "b300" => 1200.0,
        "b200" | "b100" => 1000.0,
        "h100" | "h200" | "h800" | "gh200" => 700.0,
        "a100" | "a800" => 400.0,
        "l4" | "t4" | "a2" => 72.0,
        _ => 300.0,
    }
}

#[cfg(test)]
mod tests {
    use tutti_model::{GpuIndex, JobId, TaskId, Time};

    use super::super::Held;
    use super::*;

    fn run(secs: u64, held: &[Held]) -> (Vec<GpuSample>, Vec<DeviceProcess>) {
        let mut devices = Simulated::new(&crate::simulated::gpus(2, "h100"));
        let (mut gpus, mut on) = (Vec::new(), Vec::new());
        for second in 0..secs {
            (gpus, on) = (Vec::new(), Vec::new());
            let clock = Duration::from_secs(second);
            devices.read(Round { at: Time(second * 1000), clock, held }, &mut gpus, &mut on);
        }
        (gpus, on)
    }

    #[test]
    fn a_held_device_is_busy_warm_and_full() {
        let task = TaskId::single(JobId(4));
        let (gpus, on) = run(120, &[Held { gpu: GpuIndex(1), task, as_if: None }]);
        let (idle, busy) = (&gpus[0], &gpus[1]);
        assert_eq!((idle.util, idle.throttle), (Some(0), Some(REASON_IDLE)));
        assert!(busy.util > Some(90) && busy.sm_active > Some(0.6));
        assert!(busy.temp > Some(55) && idle.temp < Some(35), "{:?} {:?}", busy.temp, idle.temp);
        assert!(busy.power_mw > Some(500_000) && busy.power_mw <= busy.power_limit_mw);
        assert!(busy.energy_mj > idle.energy_mj);
        assert_eq!(on.len(), 1);
        assert_eq!((on[0].gpu, on[0].task), (GpuIndex(1), Some(task)));
        assert!(on[0].mem > Bytes::gib(50), "{:?}", on[0].mem);
        for gpu in &gpus {
            let sum = gpu.mem_used.unwrap().0 + gpu.mem_free.unwrap().0;
            assert_eq!(Bytes(sum), Bytes::gib(80));
        }
    }

    #[test]
    fn the_same_history_gives_the_same_values() {
        let held = [Held { gpu: GpuIndex(0), task: TaskId::single(JobId(1)), as_if: None }];
        assert_eq!(run(50, &held), run(50, &held));
    }
}
