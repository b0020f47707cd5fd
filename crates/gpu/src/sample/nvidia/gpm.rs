//! Activity by the driver's own performance counters (Hopper and newer): the difference of two
//! samples, the newest and the one of the round before. That of the engine is dear: the driver is
//! asked again and again for it, 2 ms in all, where the others together take a tenth of that. It is
//! worked out every tenth time, over all of these rounds.

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::struct_wrappers::gpm::GpmMetricResult;
use nvml_wrapper::{Device, Nvml};

use super::card::refusal;
use super::{Activity, Refusal, Told};

/// Rounds between two looks at the engine's.
const ENGINE_EVERY: u32 = 10;

const METRICS: [GpmMetricId; 8] = [
    GpmMetricId::SmUtil,
    GpmMetricId::SmOccupancy,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::DramBwUtil,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::PcieRxPerSec,
    GpmMetricId::NvlinkTotalTxPerSec,
    GpmMetricId::NvlinkTotalRxPerSec,
];

pub struct Gpm {
    nvml: &'static Nvml,
    /// Of a MIG instance.
    instance: Option<u32>,
    supported: Option<bool>,
    before: Option<GpmSample<'static>>,
    engine: Engine,
}

/// The dear one: from when on it is to be worked out, and what it was.
#[derive(Default)]
struct Engine {
    before: Option<GpmSample<'static>>,
    /// Rounds since.
    age: u32,
    /// How often it was looked at.
    looks: u64,
    share: Option<f32>,
}

impl Gpm {
    pub fn new(nvml: &'static Nvml, instance: Option<u32>) -> Gpm {
        Gpm { nvml, instance, supported: None, before: None, engine: Engine::default() }
    }

    /// Not now, at the first call.
    pub fn activity(&mut self, device: &Device<'static>) -> Told<Activity> {
        if !self.is_supported(device)? {
            return Err(Refusal::NotSupported);
        }
        let now = self.sample(device)?;
        let before = self.before.replace(now).ok_or(Refusal::NotNow)?;
        let now = self.before.as_ref().ok_or(Refusal::NotNow)?;
        let told = gpm_metrics_get(self.nvml, &before, now, &METRICS).map_err(refusal)?;
        let told: Vec<_> = told.into_iter().flatten().collect();
        self.look_at_engine(device)?;
        Ok(Activity { engine: self.engine.share, ..activity(&told) })
    }

    fn sample(&self, device: &Device<'static>) -> Told<GpmSample<'static>> {
        let sample = match self.instance {
            Some(instance) => device.gpm_mig_sample(instance),
            None => device.gpm_sample(),
        };
        sample.map_err(refusal)
    }

    /// Fails only if the device is lost: the others are there without it.
    fn look_at_engine(&mut self, device: &Device<'static>) -> Told<()> {
        self.engine.age += 1;
        // Soon after the start, so that there is something to show.
        let due = if self.engine.looks < 2 { 1 } else { ENGINE_EVERY };
        if self.engine.age < due {
            return Ok(());
        }
        // Also if it fails: a refusal costs as much as an answer.
        (self.engine.age, self.engine.looks) = (0, self.engine.looks + 1);
        self.engine.share = match self.engine_since(device) {
            Err(Refusal::Lost) => return Err(Refusal::Lost),
            Err(Refusal::NotSupported | Refusal::NotNow) => None,
            Ok(share) => share,
        };
        Ok(())
    }

    /// Since it was asked the last time. None at the first.
    fn engine_since(&mut self, device: &Device<'static>) -> Told<Option<f32>> {
        let before = self.engine.before.replace(self.sample(device)?);
        let (Some(before), Some(now)) = (before, &self.engine.before) else { return Ok(None) };
        let metrics = [GpmMetricId::GraphicsUtil];
        let told = gpm_metrics_get(self.nvml, &before, now, &metrics).map_err(refusal)?;
        Ok(told.into_iter().flatten().find_map(|metric| share(&metric)))
    }

    fn is_supported(&mut self, device: &Device<'static>) -> Told<bool> {
        if let Some(known) = self.supported {
            return Ok(known);
        }
        let supported = device.gpm_support().map_err(refusal)?;
        self.supported = Some(supported);
        Ok(supported)
    }
}

fn activity(told: &[GpmMetricResult]) -> Activity {
    let of = |id| told.iter().find(|metric| metric.metric_id == id);
    let share = |id| of(id).and_then(share);
    let rate = |id| of(id).filter(|m| m.value.is_finite()).map(bytes_per_s);
    Activity {
        sm: share(GpmMetricId::SmUtil),
        occupancy: share(GpmMetricId::SmOccupancy),
        tensor: share(GpmMetricId::AnyTensorUtil),
        dram: share(GpmMetricId::DramBwUtil),
        pcie_tx: rate(GpmMetricId::PcieTxPerSec),
        pcie_rx: rate(GpmMetricId::PcieRxPerSec),
        nvlink_tx: rate(GpmMetricId::NvlinkTotalTxPerSec),
        nvlink_rx: rate(GpmMetricId::NvlinkTotalRxPerSec),
        ..Activity::default()
    }
}

/// None for what could not be worked out.
fn share(metric: &GpmMetricResult) -> Option<f32> {
    metric.value.is_finite().then_some((metric.value / 100.0) as f32)
}

/// The driver names the unit of each; it is MiB/s unless it says otherwise.
fn bytes_per_s(metric: &GpmMetricResult) -> u64 {
    let unit = metric.metric_info.unit.to_ascii_lowercase();
    let factor = match () {
        () if unit.starts_with("kib") || unit.starts_with("kb") => 1024.0,
        () if unit.starts_with("gib") || unit.starts_with("gb") => f64::from(1 << 30),
        () if unit.starts_with("byte") || unit.starts_with("b/") => 1.0,
        () => f64::from(1 << 20),
    };
    (metric.value * factor).max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use nvml_wrapper::struct_wrappers::gpm::GpmMetricInfo;

    use super::*;

    fn metric(metric_id: GpmMetricId, value: f64, unit: &str) -> GpmMetricResult {
        let (short_name, long_name, unit) = (String::new(), String::new(), unit.to_owned());
        let metric_info = GpmMetricInfo { short_name, long_name, unit };
        GpmMetricResult { metric_id, value, metric_info }
    }

    #[test]
    fn percents_become_shares_and_rates_bytes() {
        let told = activity(&[
            metric(GpmMetricId::SmUtil, 87.5, "%"),
            metric(GpmMetricId::AnyTensorUtil, f64::NAN, "%"),
            metric(GpmMetricId::PcieTxPerSec, 2.0, "MiB/s"),
            metric(GpmMetricId::PcieRxPerSec, 3.0, ""),
        ]);
        assert_eq!((told.sm, told.tensor, told.dram), (Some(0.875), None, None));
        assert_eq!((told.pcie_tx, told.pcie_rx), (Some(2 << 20), Some(3 << 20)));
    }
}
