//! Activity by the driver's own performance counters (Hopper and newer): the difference of two
//! samples, the newest and the one of the round before.

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::struct_wrappers::gpm::GpmMetricResult;
use nvml_wrapper::{Device, Nvml};

use super::card::refusal;
use super::{Activity, Refusal, Told};

const METRICS: [GpmMetricId; 9] = [
    GpmMetricId::GraphicsUtil,
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
}

impl Gpm {
    pub fn new(nvml: &'static Nvml, instance: Option<u32>) -> Gpm {
        Gpm { nvml, instance, supported: None, before: None }
    }

    /// Not now, at the first call.
    pub fn activity(&mut self, device: &Device<'static>) -> Told<Activity> {
        if !self.is_supported(device)? {
            return Err(Refusal::NotSupported);
        }
        let now = match self.instance {
            Some(instance) => device.gpm_mig_sample(instance),
            None => device.gpm_sample(),
        };
        let now = now.map_err(refusal)?;
        let before = self.before.replace(now).ok_or(Refusal::NotNow)?;
        let now = self.before.as_ref().ok_or(Refusal::NotNow)?;
        let told = gpm_metrics_get(self.nvml, &before, now, &METRICS).map_err(refusal)?;
        Ok(activity(&told.into_iter().flatten().collect::<Vec<_>>()))
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
    let share = |id| of(id).filter(|m| m.value.is_finite()).map(|m| (m.value / 100.0) as f32);
    let rate = |id| of(id).filter(|m| m.value.is_finite()).map(bytes_per_s);
    Activity {
        engine: share(GpmMetricId::GraphicsUtil),
        sm: share(GpmMetricId::SmUtil),
        occupancy: share(GpmMetricId::SmOccupancy),
        tensor: share(GpmMetricId::AnyTensorUtil),
        dram: share(GpmMetricId::DramBwUtil),
        pcie_tx: rate(GpmMetricId::PcieTxPerSec),
        pcie_rx: rate(GpmMetricId::PcieRxPerSec),
        nvlink_tx: rate(GpmMetricId::NvlinkTotalTxPerSec),
        nvlink_rx: rate(GpmMetricId::NvlinkTotalRxPerSec),
    }
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
