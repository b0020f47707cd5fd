//! When GPUs are checked actively: when the agent finds them for the first time since the machine was started,
//! before a fence is lifted, between jobs on suspicion, and when an operator asks. One check at a time; the
//! others wait.
//!
//! A GPU that is being checked is fenced by a finding, so that nothing is placed on it: from before the
//! greeting on, which is how a node joins with GPUs that were checked. One that a part has just left needs no fence: the
//! part's end is held back.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::mpsc;
use tutti_gpu::active::judge::{is_note_of_ours, is_suspicious, not_passed, passed, unchecked};
use tutti_gpu::health::{Keep, Seen};
use tutti_model::{
    ActiveOutcome, ActiveReport, ActiveSum, Finding, GpuIndex, HealthAction, LeaseId, Time,
};
use tutti_wire::stream::{HealthReply, RequestId, ToController};

use super::{Node, now};
use crate::active::{Checked, Checker, Simulated};
use crate::config::{ActiveChecks, AgentConfig};
use crate::health::boot_id;

/// The finding of a GPU that is being checked.
const CHECKING: &str = "checking";

/// Why GPUs are checked, and what waits for it.
#[derive(Clone, Debug)]
enum Cause {
    Start,
    /// Findings are resolved if the GPUs pass.
    Repair(Resolve),
    /// The end of this part is held back.
    Suspicion(LeaseId),
    Operator(RequestId),
}

/// What an operator wants to be gone: what stood when they asked, by when it began. What comes while
/// GPUs are checked was not meant.
#[derive(Clone, Debug)]
pub(super) struct Resolve {
    request: RequestId,
    by: String,
    meant: BTreeSet<(String, Time)>,
}

#[derive(Clone, Debug)]
struct Task {
    cause: Cause,
    gpus: Vec<GpuIndex>,
}

pub struct Checking {
    /// Or why there is none.
    checker: Result<Checker, String>,
    auto: bool,
    simulated: bool,
    running: Option<Task>,
    waiting: VecDeque<Task>,
    /// Not checked since the machine was started, and in use then: when their part ends.
    due: BTreeSet<GpuIndex>,
    /// Findings that were looked into, by when they began.
    cleared: BTreeSet<(String, Time)>,
    done: mpsc::UnboundedSender<Checked>,
    done_in: mpsc::UnboundedReceiver<Checked>,
}

impl Checking {
    pub fn find(config: &AgentConfig, program: &str) -> Checking {
        let (done, done_in) = mpsc::unbounded_channel();
        Checking {
            checker: checker(config, program),
            auto: config.active_checks == ActiveChecks::Auto,
            simulated: config.simulated && config.measurer.is_none(),
            running: None,
            waiting: VecDeque::new(),
            due: BTreeSet::new(),
            cleared: BTreeSet::new(),
            done,
            done_in,
        }
    }

    pub async fn next(&mut self) -> Option<Checked> {
        self.done_in.recv().await
    }

    /// The checker, where GPUs are checked without being asked for.
    fn automatic(&self) -> Option<&Checker> {
        self.checker.as_ref().ok().filter(|_| self.auto)
    }

    /// For an operator who looks: what is known of checks, or why there are none.
    pub fn in_words(&self) -> Result<String, String> {
        let checker = self.checker.as_ref().map_err(Clone::clone)?;
        match &self.running {
            Some(task) => Ok(format!("GPU {} is being checked", list(&task.gpus))),
            None if !self.auto => Err("only by hand (--active-checks off)".to_owned()),
            None => Ok(checker.in_words()),
        }
    }
}

fn checker(config: &AgentConfig, program: &str) -> Result<Checker, String> {
    if config.gpus.is_empty() {
        return Err("there are no GPUs".to_owned());
    }
    let hardware = config.hardware.as_deref().cloned().unwrap_or_default();
    let checker = Checker::new(&config.gpus, &hardware, config.health.clone(), program.into());
    let checker = if config.simulated { checker.simulated() } else { checker };
    let checker = match &config.measurer {
        Some(given) => checker.with(given.clone()).unseen(config.holdings.clone()),
        None if config.simulated => return Ok(checker),
        None => checker,
    };
    if !config.gpus.iter().any(|gpu| checker.can(gpu.index)) {
        return Err("there is no NVIDIA GPU".to_owned());
    }
    Ok(checker.remember_in(&config.data_dir, &boot_id()))
}

fn list(gpus: &[GpuIndex]) -> String {
    let names: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn being_checked(gpu: GpuIndex) -> Seen {
    let finding = Finding {
        key: format!("{CHECKING}/gpu{gpu}"),
        check: CHECKING.to_owned(),
        gpu: Some(gpu),
        action: HealthAction::FenceGpu,
        text: format!("GPU {gpu} is being checked"),
        since: now(),
        drill: false,
        by_job: false,
    };
    // A check takes as long as it takes, and others wait for it: whoever began it takes this away, and an
    // agent that starts takes away what another has left.
    Seen { finding, keep: Keep::UntilReboot }
}

impl Node {
    /// Before the greeting: GPUs that were not checked since the machine was started, or under this
    /// driver. What they hold when idle is measured first.
    pub(super) fn check_at_start(&mut self) {
        self.watch.forget(|finding| finding.check == CHECKING);
        let fenced = self.fenced();
        let due = match self.checking.automatic().filter(|_| !self.checking.simulated) {
            Some(checker) => checker.due(),
            None => Vec::new(),
        };
        let due = due.into_iter().filter(|gpu| !fenced.contains(gpu));
        let (held, gpus): (Vec<_>, Vec<_>) = due.partition(|gpu| self.machine.is_held(*gpu, None));
        self.checking.due = held.into_iter().collect();
        if gpus.is_empty() {
            self.measure_idle();
        } else {
            tracing::info!("checking GPU {}: nothing is placed there until then", list(&gpus));
            self.check_gpus(Cause::Start, gpus);
        }
    }

    /// By something else than a check that is under way.
    pub(super) fn fenced(&self) -> BTreeSet<GpuIndex> {
        let findings = self.watch.findings();
        findings.iter().filter(|f| f.check != CHECKING).filter_map(Finding::fences).collect()
    }

    fn check_gpus(&mut self, cause: Cause, gpus: Vec<GpuIndex>) {
        if !matches!(cause, Cause::Suspicion(_)) {
            let free = |gpu: &&GpuIndex| !self.machine.is_held(**gpu, None);
            let fences: Vec<Seen> = gpus.iter().filter(free).map(|g| being_checked(*g)).collect();
            self.watch.put(fences);
        }
        self.checking.waiting.push_back(Task { cause, gpus });
        self.check_next();
    }

    fn check_next(&mut self) {
        if self.checking.running.is_some() {
            return;
        }
        let Ok(checker) = self.checking.checker.clone() else { return };
        let Some(task) = self.checking.waiting.pop_front() else { return };
        let but = match task.cause {
            Cause::Suspicion(lease) => Some(lease),
            _ => None,
        };
        let held = |gpu: &&GpuIndex| self.machine.is_held(**gpu, but);
        let taken = task.gpus.iter().filter(held).map(|gpu| (*gpu, "a job is on it".to_owned()));
        let taken: Vec<(GpuIndex, String)> = taken.collect();
        let checker = match self.checking.simulated {
            true => checker.with(Arc::new(self.imagined(&task.cause))),
            false => checker,
        };
        let first = matches!(task.cause, Cause::Start).then(|| self.idle_measurement()).flatten();
        let (done, gpus) = (self.checking.done.clone(), task.gpus.clone());
        self.checking.running = Some(task);
        let (broken, asked) = (checker.clone(), gpus.clone());
        let check = tokio::task::spawn_blocking(move || {
            if let Some(measure) = first {
                measure();
            }
            checker.check(&gpus, &taken, now())
        });
        tokio::spawn(async move {
            let checked = check.await.unwrap_or_else(|error| broken.broken_off(&asked, &error));
            // The node is gone only when the agent is.
            let _ = done.send(checked);
        });
    }

    /// Drills make imagined GPUs fail; one that is about to be resolved is over.
    fn imagined(&self, cause: &Cause) -> Simulated {
        let mut findings = self.watch.findings();
        if let Cause::Repair(resolve) = cause {
            findings.retain(|finding| !resolve.means(finding));
        }
        Simulated::new(&findings)
    }

    pub(super) fn on_checked(&mut self, checked: Checked) {
        let Some(task) = self.checking.running.take() else { return };
        tell_operator(&checked.report);
        let right = passed(&checked.report);
        let summed = matches!(checked.report.all_reduce, ActiveSum::Done { .. });
        let ours = |f: &Finding| {
            let over = is_note_of_ours(f) && f.gpu.map_or(summed, |gpu| right.contains(&gpu));
            over || (f.check == CHECKING && f.gpu.is_some_and(|gpu| task.gpus.contains(&gpu)))
        };
        // In one step, so that no GPU is free in between.
        let mut seen = checked.seen;
        match task.cause {
            Cause::Start => {
                seen.extend(unchecked(&checked.report, now()));
                self.watch.replace(ours, seen);
            }
            Cause::Suspicion(lease) => {
                seen.extend(unchecked(&checked.report, now()));
                self.watch.replace(ours, []);
                seen.into_iter().for_each(|seen| self.watch.put_after_reports(seen));
                self.let_go(lease);
            }
            Cause::Operator(request) => {
                self.watch.replace(ours, seen);
                let reply = HealthReply::Checked(Box::new(checked.report));
                self.uplink.say(&ToController::Health { request, reply });
            }
            Cause::Repair(resolve) => {
                seen.extend(unchecked(&checked.report, now()));
                self.watch.replace(ours, seen);
                self.resolve(resolve, Some(checked.report));
            }
        }
        self.check_next();
    }

    /// GPUs of a part that ends which should be looked at before somebody else gets them.
    pub(super) fn suspects(&self, gpus: &[GpuIndex]) -> Vec<GpuIndex> {
        let Some(checker) = self.checking.automatic() else { return Vec::new() };
        let (findings, fenced) = (self.watch.findings(), self.fenced());
        let open = |f: &&Finding| {
            is_suspicious(f) && !self.checking.cleared.contains(&(f.key.clone(), f.since))
        };
        let suspicious: BTreeSet<GpuIndex> =
            findings.iter().filter(open).filter_map(|f| f.gpu).collect();
        let wanted = |gpu: &&GpuIndex| {
            let why = suspicious.contains(gpu) || self.checking.due.contains(gpu);
            why && !fenced.contains(gpu) && checker.can(**gpu)
        };
        gpus.iter().filter(wanted).copied().collect()
    }

    /// Holds the part's end until these GPUs are checked. What they were suspected of is looked into with that.
    pub(super) fn check_suspects(&mut self, lease: LeaseId, gpus: Vec<GpuIndex>) {
        let of = |f: &Finding| is_suspicious(f) && f.gpu.is_some_and(|gpu| gpus.contains(&gpu));
        let findings = self.watch.findings();
        // What does not stand any more needs not be remembered.
        self.checking.cleared.retain(|(key, _)| findings.iter().any(|f| f.key == *key));
        let looked_into = findings.iter().filter(|f| of(f)).map(|f| (f.key.clone(), f.since));
        self.checking.cleared.extend(looked_into);
        self.checking.due.retain(|gpu| !gpus.contains(gpu));
        tracing::info!(%lease, "GPU {} is suspect: checking it before the next job", list(&gpus));
        self.check_gpus(Cause::Suspicion(lease), gpus);
    }

    /// GPUs that are in use are named in the answer.
    pub(super) fn check_for_operator(&mut self, request: RequestId) {
        match &self.checking.checker {
            Ok(_) => {
                let gpus = self.config.gpus.iter().map(|gpu| gpu.index).collect();
                self.check_gpus(Cause::Operator(request), gpus);
            }
            Err(why) => {
                let reason = format!("nothing can be checked here: {why}");
                let reply = HealthReply::Refused { reason };
                self.uplink.say(&ToController::Health { request, reply });
            }
        }
    }

    /// GPUs whose fences an operator wants to be gone are checked first, unless they say otherwise.
    pub(super) fn check_before_resolve(&mut self, resolve: Resolve, unchecked: bool) {
        let findings = self.watch.findings();
        let fenced = findings.iter().filter(|f| resolve.means(f));
        let fenced: BTreeSet<GpuIndex> = fenced.filter_map(Finding::fences).collect();
        let checker = self.checking.automatic().filter(|_| !unchecked);
        let gpus: Vec<GpuIndex> = match checker {
            Some(checker) => fenced.into_iter().filter(|gpu| checker.can(*gpu)).collect(),
            None => Vec::new(),
        };
        if gpus.is_empty() {
            self.resolve(resolve, None);
        } else {
            tracing::info!(by = resolve.by, "checking GPU {} before it is used again", list(&gpus));
            self.check_gpus(Cause::Repair(resolve), gpus);
        }
    }

    /// What stands on GPUs that have not passed stays, also if they could not be checked.
    fn resolve(&mut self, resolve: Resolve, report: Option<ActiveReport>) {
        let not_passed = report.as_ref().map(not_passed).unwrap_or_default();
        let stays = |f: &Finding| f.gpu.is_some_and(|gpu| not_passed.contains_key(&gpu));
        let touched = self.watch.resolve(|f| resolve.means(f) && !stays(f));
        tracing::info!(by = resolve.by, count = touched.len(), "findings resolved");
        let (findings, active) = (self.watch.findings(), report.map(Box::new));
        let reply = HealthReply::Board { findings, touched, active };
        self.uplink.say(&ToController::Health { request: resolve.request, reply });
    }
}

impl Resolve {
    /// Of what stands now, what is on this GPU and has this key. The fence of a check that is under
    /// way is not an operator's to lift.
    pub(super) fn new(
        request: RequestId,
        by: String,
        standing: &[Finding],
        gpu: Option<GpuIndex>,
        key: Option<&str>,
    ) -> Resolve {
        let asked = |f: &&Finding| {
            gpu.is_none_or(|gpu| f.gpu == Some(gpu)) && key.is_none_or(|key| f.key == key)
        };
        let standing = standing.iter().filter(|f| f.check != CHECKING);
        let meant = standing.filter(asked).map(|f| (f.key.clone(), f.since)).collect();
        Resolve { request, by, meant }
    }

    fn means(&self, finding: &Finding) -> bool {
        self.meant.contains(&(finding.key.clone(), finding.since))
    }
}

fn tell_operator(report: &ActiveReport) {
    for gpu in &report.gpus {
        let index = gpu.gpu;
        match &gpu.outcome {
            ActiveOutcome::Done(figures) => tracing::info!(
                "GPU {index}: checked: memory {} GB/s, products {} TFLOP/s",
                figures.memory_rate / 1_000_000_000,
                figures.matmul.rate / 1_000_000_000_000
            ),
            ActiveOutcome::Busy { why } | ActiveOutcome::NotRun { why } => {
                tracing::warn!("GPU {index}: not checked: {why}");
            }
            ActiveOutcome::Failed { why, .. } => {
                tracing::error!("GPU {index}: failed its check: {why}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(key: &str, gpu: u16, since: u64) -> Finding {
        let mut finding = being_checked(GpuIndex(gpu)).finding;
        (finding.key, finding.check, finding.since) = (key.into(), "xid".into(), Time(since));
        finding
    }

    #[test]
    fn only_what_stood_when_it_was_asked_for_is_meant() {
        let standing = [
            found("xid-48/gpu0", 0, 10),
            found("xid-48/gpu1", 1, 10),
            being_checked(GpuIndex(0)).finding,
        ];
        let resolve = Resolve::new(1, "ada".into(), &standing, Some(GpuIndex(0)), None);
        assert!(resolve.means(&standing[0]));
        assert!(!resolve.means(&standing[1]) && !resolve.means(&standing[2]));
        assert!(!resolve.means(&found("xid-79/gpu0", 0, 20)), "it came later");
        assert!(!resolve.means(&found("xid-48/gpu0", 0, 20)), "it came again");
        let resolve = Resolve::new(1, "ada".into(), &standing, None, Some("xid-48/gpu1"));
        assert!(resolve.means(&standing[1]) && !resolve.means(&standing[0]));
    }

    #[test]
    fn the_fence_of_a_check_stands_until_the_check_is_over() {
        assert_eq!(being_checked(GpuIndex(3)).keep, Keep::UntilReboot);
    }
}
