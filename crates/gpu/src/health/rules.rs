//! What samples say about a machine's health. Counters are judged by their rate; what is only now
//! and then over a limit is not a finding, and what was one stands for a while.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tutti_model::{
    Bytes, GpuIndex, GpuSample, HealthAction, HostSample, NicSample, NodeSample, Span, Time, count,
};

use super::{Keep, Seen, judge};

const MINUTE: Span = Span::secs(60);
const DAY: Span = Span::secs(86_400);

/// NVML's reasons for lower clocks that mean that the machine does not cool or feed the GPU.
const HW_SLOWDOWN: u64 = 0x08;
const HW_THERMAL: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;

/// Where the lines are. A file of the operator may set any of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Thresholds {
    /// A GPU that is held back by heat or power for this long is noted.
    pub throttle_for: Span,
    /// So many uncorrectable memory errors within a day are shown; more fence the GPU.
    pub ecc_uncorrected_per_day: u64,
    pub nvlink_errors_per_minute: u64,
    pub pcie_replays_per_minute: u64,
    pub ib_symbol_errors_per_minute: u64,
    pub ib_link_downed_per_day: u64,
    /// Of the disk with the agent's data: less than this is noted, and less than the second drains.
    pub disk_free_percent: u8,
    pub disk_drain_percent: u8,
    pub mem_available_percent: u8,
    pub clock_skew: Span,
    /// Telemetry that is silent for so long is noted, and for so long drains the node.
    pub silent_for: Span,
    pub silent_drain: Span,
    /// Active checks: less of what the memory's clock and width allow is noted.
    pub check_memory_percent: u8,
    /// Less than this part of what equal GPUs of the node do (the median of them) is noted.
    pub check_peers_percent: u8,
    /// Less than this part of what the same GPU, or the same GPUs together, did before is noted.
    pub check_before_percent: u8,
    /// A finding of a rule stands for this long after the rule last found it.
    pub linger: Span,
    /// Other actions than the usual, by the name of the check.
    pub actions: BTreeMap<String, HealthAction>,
}

/// What `actions` may name: findings from samples. What the driver says has its own actions.
const ACTED_ON: [&str; 13] = [
    "bus",
    "clock",
    "disk",
    "ecc",
    "ib-down",
    "ib-symbols",
    "memory",
    "nvlink",
    "pcie-replays",
    "row-remap",
    "row-remap-pending",
    "telemetry",
    "throttle",
];

impl Thresholds {
    /// What makes no sense, in words.
    pub fn check(&self) -> Result<(), String> {
        let percents = [
            ("disk_free_percent", self.disk_free_percent),
            ("disk_drain_percent", self.disk_drain_percent),
            ("mem_available_percent", self.mem_available_percent),
            ("check_memory_percent", self.check_memory_percent),
            ("check_peers_percent", self.check_peers_percent),
            ("check_before_percent", self.check_before_percent),
        ];
        if let Some((key, value)) = percents.iter().find(|(_, value)| *value > 100) {
            return Err(format!("{key} = {value}: is more than 100"));
        }
        let known = |key: &str| ACTED_ON.contains(&key) || key.starts_with("check-");
        match self.actions.keys().find(|key| !known(key)) {
            Some(key) => Err(format!(
                "actions.{key}: there is no such check; known: {}, check-…",
                ACTED_ON.join(" ")
            )),
            None => Ok(()),
        }
    }
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            throttle_for: Span::secs(60),
            ecc_uncorrected_per_day: 2,
            nvlink_errors_per_minute: 100,
            pcie_replays_per_minute: 100,
            ib_symbol_errors_per_minute: 120,
            ib_link_downed_per_day: 3,
            disk_free_percent: 10,
            disk_drain_percent: 2,
            mem_available_percent: 3,
            clock_skew: Span::secs(2),
            silent_for: Span::secs(30),
            silent_drain: Span::secs(300),
            check_memory_percent: 60,
            check_peers_percent: 80,
            check_before_percent: 80,
            linger: Span::secs(120),
            actions: BTreeMap::new(),
        }
    }
}

/// A GPU that has not answered for so long is gone: longer than a lost one is left alone, so that it was asked
/// twice.
const MISSING_FOR: Span = Span::secs(40);

/// What must be remembered from one sample to the next.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    thresholds: Thresholds,
    /// GPUs that the node offers and that samples should speak of.
    expected: BTreeSet<GpuIndex>,
    meters: BTreeMap<String, Meter>,
    throttled: BTreeMap<GpuIndex, Time>,
    /// Since when.
    missing: BTreeMap<GpuIndex, Time>,
    was_up: BTreeSet<String>,
}

/// How much a counter grew in a window that begins anew when it is over.
#[derive(Clone, Copy, Debug)]
struct Meter {
    from: Time,
    base: u64,
}

impl Rules {
    pub fn new(thresholds: Thresholds, expected: BTreeSet<GpuIndex>) -> Rules {
        Rules { thresholds, expected, ..Rules::default() }
    }

    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Everything that this sample, after those before it, shows.
    pub fn sample(&mut self, sample: &NodeSample) -> Vec<Seen> {
        let at = sample.at;
        let mut seen = Vec::new();
        for gpu in &sample.gpus {
            self.memory(gpu, at, &mut seen);
            self.links(gpu, at, &mut seen);
            self.throttle(gpu, at, &mut seen);
        }
        self.presence(sample, &mut seen);
        self.host(&sample.host, at, &mut seen);
        for nic in &sample.host.nics {
            self.nic(nic, at, &mut seen);
        }
        seen
    }

    /// No sample has come since `last`: the driver may hang.
    pub fn silence(&self, last: Time, now: Time) -> Option<Seen> {
        let silent = now.since(last);
        let action = if silent >= self.thresholds.silent_drain {
            HealthAction::DrainNode
        } else if silent >= self.thresholds.silent_for {
            HealthAction::Note
        } else {
            return None;
        };
        let text = format!("no telemetry for {}: the driver may hang", silent.short());
        Some(self.node("telemetry", "telemetry", action, text, now))
    }

    /// How far the controller's clock is ahead of this node's, in milliseconds, give or take `error`.
    pub fn clock(&self, ahead_ms: i64, error: Span, now: Time) -> Option<Seen> {
        let off = Span(ahead_ms.unsigned_abs().saturating_sub(error.0));
        (off > self.thresholds.clock_skew).then(|| {
            let which = if ahead_ms > 0 { "behind" } else { "ahead of" };
            let by = ahead_ms.unsigned_abs() as f64 / 1000.0;
            let text = format!("the clock is {by:.1} s {which} the controller's: is NTP running?");
            self.node("clock", "clock", HealthAction::Note, text, now)
        })
    }

    fn memory(&mut self, gpu: &GpuSample, at: Time, seen: &mut Vec<Seen>) {
        let index = gpu.index;
        if let Some(count) = gpu.ecc_uncorrected {
            let grew = self.grew(&format!("ecc/gpu{index}"), count, DAY, at);
            let fence = grew > self.thresholds.ecc_uncorrected_per_day;
            let action = if fence { HealthAction::FenceGpu } else { HealthAction::Note };
            let text =
                format!("{} within a day", tutti_model::count(grew, "uncorrectable memory error"));
            if grew > 0 {
                let mut found = self.gpu("ecc", index, action, &text, at);
                if fence {
                    found.keep = Keep::UntilReboot;
                }
                seen.push(found);
            }
        }
        if gpu.remap_failed == Some(true) {
            let text = "a row of memory could not be remapped: the card has to be replaced";
            let mut found = self.gpu("row-remap", index, HealthAction::FenceGpu, text, at);
            found.keep = Keep::UntilResolved;
            seen.push(found);
        } else if gpu.remap_pending == Some(true) {
            let text = "a row of memory is to be remapped: reset the GPU between jobs";
            seen.push(self.gpu("row-remap-pending", index, HealthAction::Note, text, at));
        }
    }

    fn links(&mut self, gpu: &GpuSample, at: Time, seen: &mut Vec<Seen>) {
        let (nvlink, pcie) =
            (self.thresholds.nvlink_errors_per_minute, self.thresholds.pcie_replays_per_minute);
        let counters = [
            ("nvlink", gpu.nvlink_errors, nvlink, "NVLink error"),
            ("pcie-replays", gpu.pcie_replays, pcie, "PCIe replay"),
        ];
        for (check, count, limit, what) in counters {
            let Some(count) = count else { continue };
            let grew = self.grew(&format!("{check}/gpu{}", gpu.index), count, MINUTE, at);
            if grew > limit {
                let text = format!("{} within a minute", tutti_model::count(grew, what));
                seen.push(self.gpu(check, gpu.index, HealthAction::Note, &text, at));
            }
        }
    }

    fn throttle(&mut self, gpu: &GpuSample, at: Time, seen: &mut Vec<Seen>) {
        let bits = gpu.throttle.unwrap_or(0) & (HW_SLOWDOWN | HW_THERMAL | POWER_BRAKE);
        if bits == 0 {
            self.throttled.remove(&gpu.index);
            return;
        }
        let since = *self.throttled.entry(gpu.index).or_insert(at);
        let held = at.since(since);
        if held < self.thresholds.throttle_for {
            return;
        }
        let why = match bits {
            b if b & HW_THERMAL != 0 => "heat",
            b if b & POWER_BRAKE != 0 => "the power brake of the machine",
            _ => "heat or power",
        };
        let temp = gpu.temp.map_or_else(String::new, |t| format!(" at {t} °C"));
        let text = format!("held back by {why}{temp} for {}", held.short());
        seen.push(self.gpu("throttle", gpu.index, HealthAction::Note, &text, at));
    }

    /// A device that was there and no longer answers.
    fn presence(&mut self, sample: &NodeSample, seen: &mut Vec<Seen>) {
        let there = sample.gpus.iter().filter(|gpu| answers(gpu)).map(|gpu| gpu.index);
        let there: BTreeSet<GpuIndex> = there.collect();
        self.missing.retain(|gpu, _| !there.contains(gpu));
        for &gpu in self.expected.difference(&there) {
            self.missing.entry(gpu).or_insert(sample.at);
        }
        for (&gpu, since) in &self.missing {
            if sample.at.since(*since) >= MISSING_FOR {
                let text = "the driver does not know it any more: it may have fallen off the bus";
                seen.push(self.gpu("bus", gpu, HealthAction::FenceGpu, text, sample.at));
            }
        }
    }

    fn host(&self, host: &HostSample, at: Time, seen: &mut Vec<Seen>) {
        let t = &self.thresholds;
        let part = |free: Bytes, all: Bytes| match all.0 {
            0 => None,
            all => Some((u128::from(free.0) * 100 / u128::from(all)) as u8),
        };
        if let Some(free) =
            part(host.disk_free, host.disk_total).filter(|p| *p < t.disk_free_percent)
        {
            let action = match free < t.disk_drain_percent {
                true => HealthAction::DrainNode,
                false => HealthAction::Note,
            };
            let text = format!("{free} % of the disk ({}) are free", host.disk_free);
            seen.push(self.node("disk", "disk", action, text, at));
        }
        let mem = part(host.mem_available, host.mem_total);
        if let Some(free) = mem.filter(|p| *p < t.mem_available_percent) {
            let text = format!("{free} % of the memory ({}) are available", host.mem_available);
            seen.push(self.node("memory", "memory", HealthAction::Note, text, at));
        }
    }

    fn nic(&mut self, nic: &NicSample, at: Time, seen: &mut Vec<Seen>) {
        let port = &nic.port;
        let key = |what: &str| format!("{what}/{port}");
        let symbols = self.grew(&key("ib-symbols"), nic.symbol_errors, MINUTE, at);
        if symbols > self.thresholds.ib_symbol_errors_per_minute {
            let text = format!("{port}: {} within a minute", count(symbols, "symbol error"));
            seen.push(self.node(&key("ib-symbols"), "ib-symbols", HealthAction::Note, text, at));
        }
        let downed = self.grew(&key("ib-down"), nic.link_downed, DAY, at);
        let limit = self.thresholds.ib_link_downed_per_day;
        if nic.up {
            self.was_up.insert(port.clone());
        }
        let text = match (nic.up, self.was_up.contains(port)) {
            (false, true) => format!("{port}: the link is down"),
            _ if downed > limit => {
                format!("{port}: the link went down {} in a day", count(downed, "time"))
            }
            _ => return,
        };
        seen.push(self.node(&key("ib-down"), "ib-down", HealthAction::Note, text, at));
    }

    /// Since the window began; a counter that went back was reset and begins anew.
    fn grew(&mut self, key: &str, value: u64, window: Span, at: Time) -> u64 {
        let meter = self.meters.entry(key.to_owned()).or_insert(Meter { from: at, base: value });
        if value < meter.base {
            *meter = Meter { from: at, base: value };
        }
        let grew = value - meter.base;
        if at.since(meter.from) >= window {
            *meter = Meter { from: at, base: value };
        }
        grew
    }

    fn gpu(&self, check: &str, gpu: GpuIndex, action: HealthAction, text: &str, at: Time) -> Seen {
        let (key, text) = (format!("{check}/gpu{gpu}"), format!("GPU {gpu}: {text}"));
        let mut seen = self.node(&key, check, action, text, at);
        seen.finding.gpu = Some(gpu);
        seen
    }

    fn node(&self, key: &str, check: &str, usual: HealthAction, text: String, at: Time) -> Seen {
        let action = self.thresholds.actions.get(check).copied().unwrap_or(usual);
        judge::node(key, check, action, text, Keep::For(self.thresholds.linger), at)
    }
}

/// Of a device that is lost there is a sample, too, without anything in it. What is asked for each time
/// counts; the rest may be from before.
fn answers(gpu: &GpuSample) -> bool {
    gpu.mem_used.is_some() || gpu.temp.is_some() || gpu.util.is_some() || gpu.power_mw.is_some()
}

#[cfg(test)]
mod tests;
