//! Whether this node can suspend parts, and between GPUs as the controller counts them and as their
//! driver names them.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use tutti_model::{
    Blame, Bytes, Gpu, GpuIndex, Launch, LeaseId, PartError, PartReport, ReportedPhase,
    is_other_size,
};

use super::Node;
use crate::child::{self, ChildError};
use crate::config::AgentConfig;
use crate::machine::Moved;
use crate::messages::ToShim;
use crate::suspend::huge_pages::HugePages;
use crate::suspend::serve::{self, Probe};
use crate::suspend::{Ability, Level};
use crate::telemetry::Samples;

/// What a part on an imagined GPU is said to hold there, unless the job says otherwise.
const SIMULATED: Bytes = Bytes::gib(1);
/// The job's variable that does.
pub const SIMULATED_VARIABLE: &str = "TUTTI_SIM_GPU_MEM";
/// A driver that hangs must not keep the agent from starting.
const PROBE_WITHIN: Duration = Duration::from_secs(20);
/// The version of CUDA (13.0) whose driver can restore a program on other GPUs.
const MOVES_SINCE: i32 = 13_000;

pub enum Suspending {
    Simulated,
    Cuda {
        huge_pages: bool,
        /// Also to other GPUs than those that a part came from.
        moves: bool,
    },
    /// None: nobody would expect it to.
    Not {
        why: Option<String>,
    },
}

impl Suspending {
    pub fn find(config: &AgentConfig) -> Suspending {
        if config.simulated {
            return Suspending::Simulated;
        }
        if config.gpus.is_empty() {
            return Suspending::Not { why: None };
        }
        if let Err(error) = HugePages::new(&config.data_dir).mend() {
            tracing::warn!(%error, "the setting of huge pages can't be put back");
        }
        match probe() {
            Ok(probe) => {
                let moves = can_move(&probe);
                tracing::info!(cuda = probe.cuda, moves, "jobs can be suspended");
                Suspending::Cuda { huge_pages: config.huge_pages, moves }
            }
            Err(why) => {
                tracing::warn!("jobs can't be suspended on this node: {why}");
                Suspending::Not { why: Some(why) }
            }
        }
    }

    pub fn can(&self) -> bool {
        !matches!(self, Suspending::Not { .. })
    }

    /// Whether a part may come back on other GPUs than it had.
    pub fn can_move(&self) -> bool {
        matches!(self, Suspending::Simulated | Suspending::Cuda { moves: true, .. })
    }

    pub fn why_not(&self) -> Option<String> {
        match self {
            Suspending::Not { why } => why.clone(),
            _ => None,
        }
    }

    /// What a job says of imagined GPUs must make sense before it starts.
    pub fn check(&self, launch: &Launch, gpus: &[Gpu]) -> Result<(), PartError> {
        if !matches!(self, Suspending::Simulated) {
            return Ok(());
        }
        let blamed = |message| PartError { message, blame: Blame::Job };
        let each = told(launch).map_err(blamed)?.unwrap_or_default();
        let short = |g: &&Gpu| launch.gpus.contains(&g.index) && g.mem < each;
        match gpus.iter().find(short) {
            Some(gpu) => Err(blamed(format!(
                "{SIMULATED_VARIABLE}={each} is more than GPU {} has, {}",
                gpu.index, gpu.mem
            ))),
            None => Ok(()),
        }
    }

    /// `shares`: its GPU has other parts, by MPS.
    pub fn of_part(&self, launch: &Launch, shares: bool) -> Ability {
        if shares {
            let why =
                "it shares its GPU by MPS, and the driver can't move such programs".to_owned();
            return Ability::Not { why };
        }
        match self {
            Suspending::Simulated => Ability::Simulated { bytes: imagined(launch) },
            Suspending::Cuda { huge_pages, .. } => Ability::Cuda { huge_pages: *huge_pages },
            Suspending::Not { why } => {
                let why = why.clone().unwrap_or_else(|| "this node has no GPUs".to_owned());
                Ability::Not { why }
            }
        }
    }
}

fn can_move(probe: &Probe) -> bool {
    MOVES_SINCE <= probe.cuda
}

/// What the part holds on imagined GPUs.
fn imagined(launch: &Launch) -> Bytes {
    // What is no size never starts.
    let told = told(launch).ok().flatten();
    let each = told.unwrap_or(SIMULATED).0 as f64 * launch.spec.gpu_share.unwrap_or(1.0);
    Bytes(each as u64 * launch.gpus.len() as u64)
}

/// What the job says of each of its imagined GPUs.
fn told(launch: &Launch) -> Result<Option<Bytes>, String> {
    let Some(text) = launch.spec.env.get(SIMULATED_VARIABLE) else { return Ok(None) };
    let wrong = |error| format!("{SIMULATED_VARIABLE}={text} in the job's env: {error}");
    text.parse().map(Some).map_err(wrong)
}

/// In a process of its own: the driver's library stays out of the agent.
fn probe() -> Result<Probe, String> {
    let program = super::program().map_err(|e| super::chain(&e))?;
    let mut child = Command::new(program)
        .args([serve::VERB, "--probe"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("the CUDA driver can't be looked at: {e}"))?;
    let status = child::finish(&mut child, PROBE_WITHIN).map_err(|error| match error {
        ChildError::TooLong(_) => "the CUDA driver does not answer".to_owned(),
        error => error.to_string(),
    })?;
    let mut text = String::new();
    let read = |from: Option<&mut dyn Read>, text: &mut String| match from {
        Some(from) => from.read_to_string(text).map(|_| ()).map_err(|e| e.to_string()),
        None => Ok(()),
    };
    if !status.success() {
        read(child.stderr.as_mut().map(|s| s as &mut dyn Read), &mut text)?;
        let last = text.lines().last().unwrap_or("the CUDA helper says nothing");
        return Err(last.trim_start_matches("error: ").to_owned());
    }
    read(child.stdout.as_mut().map(|s| s as &mut dyn Read), &mut text)?;
    serde_json::from_str(&text).map_err(|e| format!("the CUDA helper speaks nonsense: {e}"))
}

impl Node {
    pub(super) fn uuids(&self, gpus: &[GpuIndex]) -> Vec<String> {
        let known = |index: &GpuIndex| self.config.gpus.iter().find(|g| g.index == *index);
        gpus.iter().filter_map(|index| known(index).map(|g| g.uuid.clone())).collect()
    }

    pub(super) fn moved(&self, level: Level) -> Moved {
        let index =
            |uuid: &String| self.config.gpus.iter().find(|g| g.uuid == *uuid).map(|g| g.index);
        Moved { suspension: level.suspension, gpus: level.gpus.iter().map(index).collect() }
    }

    pub(super) fn tell_suspend(&self, lease: LeaseId) {
        let counted = matches!(self.suspending, Suspending::Simulated) && self.config.mem.0 > 0;
        let room = counted.then(|| self.machine.room_for(lease, self.config.mem, imagined));
        self.shims.tell(lease, &ToShim::Suspend { room });
    }

    pub(super) fn tell_wake(&self, lease: LeaseId, gpus: &[GpuIndex]) {
        let devices = self.isolation.devices(gpus, &self.config);
        self.shims.tell(lease, &ToShim::Wake { gpus: self.uuids(gpus), devices });
    }

    /// Where a part stands, with what it holds on GPUs.
    pub(super) fn report(&self, lease: LeaseId) -> Option<PartReport> {
        self.machine.report(super::now(), lease).map(|report| self.with_levels(report))
    }

    pub(super) fn reports(&self) -> Vec<PartReport> {
        let reports = self.machine.reports(super::now());
        reports.into_iter().map(|report| self.with_levels(report)).collect()
    }

    /// Whether a job can be suspended for another depends on what it holds, so the controller hears
    /// at once what a heartbeat would tell it late.
    pub(super) fn notice_memory(&mut self, samples: &Samples) {
        self.told_memory.retain(|lease, _| samples.memory.contains_key(&lease.task));
        if samples.memory.is_empty() {
            return;
        }
        for report in self.machine.reports(super::now()) {
            let lease = report.lease;
            let Some(&bytes) = samples.memory.get(&lease.task) else { continue };
            let runs = matches!(report.phase, ReportedPhase::Running { .. });
            if runs && is_other_size(self.told_memory.get(&lease).copied(), bytes) {
                self.told_memory.insert(lease, bytes);
                self.changed.insert(lease);
            }
        }
    }

    /// With what its processes have on GPUs, or what they are said to have there, and with who listens on
    /// its port.
    fn with_levels(&self, report: PartReport) -> PartReport {
        let runs = matches!(report.phase, ReportedPhase::Running { .. });
        let gpu_mem = match self.suspending {
            Suspending::Simulated => {
                self.machine.launch(report.lease).filter(|_| runs).map(imagined)
            }
            _ => self.telemetry.memory_of(report.lease.task),
        };
        let port_owner = self.port_watch.owner(report.lease).filter(|_| runs);
        PartReport { gpu_mem, port_owner, ..report }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tutti_model::JobSpec;

    use super::*;

    #[test]
    fn only_a_driver_of_cuda_13_moves_programs_to_other_gpus() {
        assert!(!can_move(&Probe { cuda: 12_080 }) && !can_move(&Probe { cuda: 12_090 }));
        assert!(can_move(&Probe { cuda: 13_000 }) && can_move(&Probe { cuda: 13_010 }));
        assert!(Suspending::Simulated.can_move());
        assert!(!Suspending::Cuda { huge_pages: true, moves: false }.can_move());
        assert!(!Suspending::Not { why: None }.can_move());
    }

    #[test]
    fn what_a_job_says_of_imagined_gpus_must_make_sense() {
        let gpus = tutti_gpu::simulated::gpus(2, "h100");
        let with = |text: &str| {
            let mut launch = crate::testing::launch("1", 1);
            let mut spec = JobSpec::shell("true");
            spec.env.insert(SIMULATED_VARIABLE.to_owned(), text.to_owned());
            (launch.spec, launch.gpus) = (Arc::new(spec), vec![GpuIndex(0), GpuIndex(1)]);
            launch
        };
        assert_eq!(Suspending::Simulated.check(&with("20GiB"), &gpus), Ok(()));
        assert_eq!(imagined(&with("20GiB")), Bytes::gib(40));
        let wrong = |text: &str| Suspending::Simulated.check(&with(text), &gpus).unwrap_err();
        assert!(wrong("lots").message.contains("TUTTI_SIM_GPU_MEM=lots"), "{:?}", wrong("lots"));
        assert_eq!(wrong("lots").blame, Blame::Job);
        assert!(wrong("900GiB").message.contains("more than GPU 0 has, 80GiB"));
        // Real GPUs tell themselves.
        assert_eq!(Suspending::Not { why: None }.check(&with("lots"), &gpus), Ok(()));
    }
}
