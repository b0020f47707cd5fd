//! Active checks of this machine's GPUs: which may be checked now, who does it, and what is remembered of
//! it. What follows from figures is decided in `tutti_gpu::active`.
//!
//! ```text
//! idle GPUs ─► Measurer (a process of its own) ─► ActiveReport ─► judge ─► Seen ─► board
//!                                                     └─► active.json: speeds, and when it was
//! ```

mod process;
mod record;
mod simulated;

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tutti_gpu::active::Asked;
use tutti_gpu::active::judge::judge;
use tutti_gpu::health::Seen;
use tutti_gpu::health::rules::Thresholds;
use tutti_gpu::holdings::{Drivers, Holding, Holdings};
use tutti_model::{
    ActiveGpu, ActiveOutcome, ActiveReport, ActiveSum, Bytes, Gpu, GpuIndex, Hardware, Time, Vendor,
};

pub use process::{ARGUMENT, Process, serve};
pub use record::{Record, RecordError};
pub use simulated::Simulated;

use crate::release::is_server;

/// More than this on a GPU is somebody's; a driver keeps less for itself.
const IDLE: Bytes = Bytes(1 << 30);

/// Asks GPUs to do something. Tests bring their own.
pub trait Measurer: Debug + Send + Sync {
    /// Blocks until all is over, or is given up. GPUs without an outcome are left out.
    fn measure(&self, gpus: &[Asked]) -> Measured;
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    pub outcomes: Vec<(GpuIndex, ActiveOutcome)>,
    pub sum: ActiveSum,
}

/// One GPU of this machine.
#[derive(Clone, Debug)]
struct Known {
    index: GpuIndex,
    uuid: String,
    model: String,
    vendor: Vendor,
}

/// Checks GPUs of this machine.
#[derive(Clone, Debug)]
pub struct Checker {
    measurer: Arc<dyn Measurer>,
    /// None: nobody tells what is held on GPUs.
    holdings: Option<Arc<dyn Holdings>>,
    gpus: Vec<Known>,
    driver: String,
    limits: Thresholds,
    /// Where speeds are remembered. None: nowhere.
    dir: Option<PathBuf>,
    /// The start of the machine that this is.
    boot: String,
    simulated: bool,
}

/// What came of a check.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    pub report: ActiveReport,
    pub seen: Vec<Seen>,
}

impl Checker {
    /// Of real devices.
    pub fn new(gpus: &[Gpu], hardware: &Hardware, limits: Thresholds, program: PathBuf) -> Checker {
        let holdings = Arc::new(Drivers::new("/".into(), gpus, hardware));
        let known = |gpu: &Gpu| {
            let facts = hardware.gpus.iter().find(|facts| facts.index == gpu.index);
            let vendor = facts.map_or(Vendor::Simulated, |facts| facts.vendor);
            let (uuid, model) = (gpu.uuid.clone(), gpu.model.clone());
            Known { index: gpu.index, uuid, model, vendor }
        };
        Checker {
            measurer: Arc::new(Process::new(program)),
            holdings: Some(holdings),
            gpus: gpus.iter().map(known).collect(),
            driver: hardware.driver.clone().unwrap_or_default(),
            limits,
            dir: None,
            boot: String::new(),
            simulated: false,
        }
    }

    /// Others do the work.
    pub fn with(self, measurer: Arc<dyn Measurer>) -> Checker {
        Checker { measurer, ..self }
    }

    /// Somebody else says what is held on GPUs, or nobody.
    pub fn unseen(self, holdings: Option<Arc<dyn Holdings>>) -> Checker {
        Checker { holdings, ..self }
    }

    /// Of imagined devices: nothing is computed.
    pub fn simulated(self) -> Checker {
        Checker { simulated: true, holdings: None, ..self }
    }

    /// Speeds, and which GPUs have passed during this start of the machine.
    pub fn remember_in(self, dir: &Path, boot: &str) -> Checker {
        Checker { dir: Some(dir.to_owned()), boot: boot.to_owned(), ..self }
    }

    /// Whether there are checks for this GPU.
    pub fn can(&self, gpu: GpuIndex) -> bool {
        let known = self.gpus.iter().find(|known| known.index == gpu);
        known.is_some_and(|gpu| self.simulated || gpu.vendor == Vendor::Nvidia)
    }

    /// GPUs that have not passed since the machine was started, under this driver.
    pub fn due(&self) -> Vec<GpuIndex> {
        let record = self.record();
        let due = |gpu: &&Known| self.can(gpu.index) && !record.passed.contains(&gpu.uuid);
        self.gpus.iter().filter(due).map(|gpu| gpu.index).collect()
    }

    pub fn in_words(&self) -> String {
        if self.simulated {
            return "simulated: only fire drills fail".to_owned();
        }
        let (due, all) = (self.due().len(), self.gpus.iter().filter(|g| self.can(g.index)).count());
        let of = tutti_model::count(all as u64, "GPU");
        format!("{} of {of} passed since the machine was started", all - due)
    }

    /// Checks those of these GPUs that nobody uses. Blocks for as long as that takes. `taken`: GPUs
    /// that are known to be in use, and by whom.
    pub fn check(&self, gpus: &[GpuIndex], taken: &[(GpuIndex, String)], at: Time) -> Checked {
        let wanted: Vec<&Known> = self.gpus.iter().filter(|g| gpus.contains(&g.index)).collect();
        let mut outcomes: Vec<(GpuIndex, ActiveOutcome)> = Vec::new();
        let mut asked = Vec::new();
        for gpu in &wanted {
            match self.obstacle(gpu, taken) {
                Some(outcome) => outcomes.push((gpu.index, outcome)),
                None => asked.push(Asked { gpu: gpu.index, uuid: gpu.uuid.clone() }),
            }
        }
        let measured = match asked.is_empty() {
            true => Measured::default(),
            false => self.measurer.measure(&asked),
        };
        outcomes.extend(measured.outcomes);
        let of = |gpu: &&Known| {
            let found = outcomes.iter().find(|(index, _)| *index == gpu.index);
            let why = || "the check said nothing about it".to_owned();
            let outcome = found.map(|(_, outcome)| outcome.clone());
            ActiveGpu {
                gpu: gpu.index,
                uuid: gpu.uuid.clone(),
                model: gpu.model.clone(),
                outcome: outcome.unwrap_or_else(|| ActiveOutcome::NotRun { why: why() }),
            }
        };
        let gpus = wanted.iter().map(of).collect();
        let simulated = self.simulated;
        self.conclude(
            ActiveReport { gpus, all_reduce: measured.sum, simulated, ..Default::default() },
            at,
        )
    }

    /// What is said of GPUs whose check never came to an end by itself.
    pub fn broken_off(
        &self,
        gpus: &[GpuIndex],
        error: &(dyn std::error::Error + 'static),
    ) -> Checked {
        let why = format!("the check broke off: {}", crate::node::chain(error));
        let of = |gpu: &Known| ActiveGpu {
            gpu: gpu.index,
            uuid: gpu.uuid.clone(),
            model: gpu.model.clone(),
            outcome: ActiveOutcome::NotRun { why: why.clone() },
        };
        let gpus = self.gpus.iter().filter(|g| gpus.contains(&g.index)).map(of).collect();
        let report = ActiveReport { gpus, simulated: self.simulated, ..Default::default() };
        Checked { report, seen: Vec::new() }
    }

    /// Judges it by what was known, and learns from it.
    fn conclude(&self, mut report: ActiveReport, at: Time) -> Checked {
        let mut record = self.record();
        let seen = judge(&report, &record.known, &self.limits, at);
        report.findings = seen.iter().map(|seen| seen.finding.clone()).collect();
        record.learn(&report);
        self.remember(&record);
        Checked { report, seen }
    }

    /// Why this GPU can't be checked now.
    fn obstacle(&self, gpu: &Known, taken: &[(GpuIndex, String)]) -> Option<ActiveOutcome> {
        if let Some((_, why)) = taken.iter().find(|(index, _)| *index == gpu.index) {
            return Some(ActiveOutcome::Busy { why: why.clone() });
        }
        if !self.can(gpu.index) {
            let why = "there are active checks for NVIDIA's GPUs only".to_owned();
            return Some(ActiveOutcome::NotRun { why });
        }
        match self.holdings.as_ref()?.of(gpu.index) {
            Ok(holding) => busy(holding).map(|why| ActiveOutcome::Busy { why }),
            Err(error) => {
                let why =
                    format!("whether it is idle is not known: {}", crate::node::chain(&error));
                Some(ActiveOutcome::NotRun { why })
            }
        }
    }

    fn record(&self) -> Record {
        let Some(dir) = &self.dir else { return Record::default() };
        let record = Record::load(dir).unwrap_or_else(|error| {
            // Only speeds of earlier days are in it.
            crate::node::log_error("what GPUs did in earlier checks is not known", &error);
            Record::default()
        });
        record.under(&self.driver).since(&self.boot)
    }

    fn remember(&self, record: &Record) {
        let Some(dir) = &self.dir else { return };
        if let Err(error) = record.save(dir) {
            crate::node::log_error("what GPUs did in this check is not remembered", &error);
        }
    }
}

/// Whether somebody is on a GPU.
fn busy(mut holding: Holding) -> Option<String> {
    holding.pids.retain(|pid| !is_server(*pid));
    if !holding.pids.is_empty() {
        let pids: Vec<String> = holding.pids.iter().map(ToString::to_string).collect();
        return Some(format!("processes {} compute on it", pids.join(", ")));
    }
    let mib = holding.used.0 >> 20;
    (holding.used > IDLE).then(|| format!("{mib} MiB of its memory are in use"))
}

#[cfg(test)]
mod tests;
