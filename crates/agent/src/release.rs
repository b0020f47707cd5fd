//! A GPU is given to the next part when nothing of the last one is left on it. Processes are gone by
//! then, but a driver may take a moment to clean up, or never do so.
//!
//! What a GPU holds when nobody uses it was measured while that was so; everything within a slack of
//! it counts as free.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tutti_gpu::holdings::{Holding, Holdings};
use tutti_model::{Bytes, Finding, GpuIndex, HealthAction, Time};

/// Contexts of monitors, and what a driver keeps for itself from one job to the next.
const SLACK: Bytes = Bytes(512 << 20);
/// Allowed on a GPU that was never seen idle.
const UNSEEN: Bytes = Bytes(1 << 30);
/// A driver that has not cleaned up by then hardly ever will.
pub const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The name of the finding.
pub const CHECK: &str = "memory-held";
/// Serves several jobs, and stays between them.
const SERVER: &str = "nvidia-cuda-mps";

/// What is left on a GPU that should be free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub gpu: GpuIndex,
    pub now: Holding,
    pub idle: Bytes,
}

impl Left {
    /// Names it on the board of the node.
    pub fn key(gpu: GpuIndex) -> String {
        format!("{CHECK}/gpu{gpu}")
    }

    pub fn finding(&self, since: Time) -> Finding {
        Finding {
            key: Left::key(self.gpu),
            check: CHECK.to_owned(),
            gpu: Some(self.gpu),
            action: HealthAction::ResetGpu,
            text: self.to_string(),
            since,
            drill: false,
            by_job: false,
        }
    }
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: Bytes| bytes.0 >> 20;
        let (gpu, used, idle) = (self.gpu, mib(self.now.used), mib(self.idle));
        write!(f, "GPU {gpu} holds {used} MiB after its job has ended, and {idle} MiB when idle")?;
        if !self.now.pids.is_empty() {
            let pids: Vec<String> = self.now.pids.iter().map(ToString::to_string).collect();
            write!(f, "; processes {} compute on it", pids.join(", "))?;
        }
        Ok(())
    }
}

/// Whether a GPU is as it is when idle; None if it is.
pub fn judge(gpu: GpuIndex, mut now: Holding, idle: Option<&Holding>) -> Option<Left> {
    let allowed = idle.map_or(UNSEEN, |idle| Bytes(idle.used.0 + SLACK.0));
    now.pids.retain(|pid| idle.is_none_or(|idle| !idle.pids.contains(pid)));
    let held = now.used > allowed || !now.pids.is_empty();
    held.then(|| Left { gpu, now, idle: idle.map_or(Bytes(0), |idle| idle.used) })
}

/// Looks at GPUs on behalf of the agent. Blocks as long as drivers do.
#[derive(Clone, Debug)]
pub struct Releases {
    holdings: Arc<dyn Holdings>,
    idle: Arc<std::sync::Mutex<BTreeMap<GpuIndex, Holding>>>,
}

impl Releases {
    pub fn new(holdings: Arc<dyn Holdings>) -> Releases {
        Releases { holdings, idle: Arc::default() }
    }

    /// What these hold now, without those that do not tell.
    pub fn measure(&self, gpus: &[GpuIndex]) -> Vec<(GpuIndex, Holding)> {
        let of = |&gpu: &GpuIndex| match self.holdings.of(gpu) {
            Ok(holding) => Some((gpu, holding)),
            Err(error) => {
                let why = crate::node::chain(&error);
                tracing::warn!("GPU {gpu} does not tell what it holds: {why}");
                None
            }
        };
        gpus.iter().filter_map(of).collect()
    }

    /// Nobody used these when that was measured.
    pub fn are_idle_with(&self, measured: impl IntoIterator<Item = (GpuIndex, Holding)>) {
        self.idle().extend(measured);
    }

    /// Waits until the GPUs are free, but not longer than `patience`; what is left then. A GPU that
    /// does not tell is not waited for: that it does not answer is a matter for the health checks.
    pub fn wait(&self, gpus: &[GpuIndex], patience: Duration) -> Vec<Left> {
        let deadline = Instant::now() + patience;
        let mut pause = PAUSE;
        loop {
            let left: Vec<Left> = gpus.iter().filter_map(|&gpu| self.look(gpu)).collect();
            if left.is_empty() || Instant::now() >= deadline {
                return left;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn look(&self, gpu: GpuIndex) -> Option<Left> {
        match self.holdings.of(gpu) {
            Ok(mut now) => {
                now.pids.retain(|pid| !is_server(*pid));
                judge(gpu, now, self.idle().get(&gpu))
            }
            Err(error) => {
                let why = crate::node::chain(&error);
                tracing::error!("whether GPU {gpu} is free can't be checked: {why}");
                None
            }
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, BTreeMap<GpuIndex, Holding>> {
        // Plain values: whoever panicked has left them whole.
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Serves several jobs, and is nobody's own.
pub fn is_server(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.starts_with(SERVER))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tutti_gpu::holdings::HoldingError;

    use super::*;

    fn holding(mib: u64, pids: &[u32]) -> Holding {
        Holding { used: Bytes(mib << 20), pids: pids.iter().copied().collect() }
    }

    #[test]
    fn within_the_slack_of_idle_is_free() {
        let idle = holding(600, &[7]);
        let held =
            |mib, pids: &[u32]| judge(GpuIndex(0), holding(mib, pids), Some(&idle)).is_some();
        assert!(!held(600, &[7]) && !held(1100, &[]));
        assert!(held(1200, &[]), "more than the slack");
        assert!(held(600, &[7, 8]), "somebody new");
        // Never seen idle: a driver may keep something, a job's memory is more.
        assert!(judge(GpuIndex(0), holding(900, &[]), None).is_none());
        assert!(judge(GpuIndex(0), holding(1100, &[]), None).is_some());
    }

    /// Answers in turn; the last again and again.
    #[derive(Debug)]
    struct Script(Mutex<Vec<Option<Holding>>>);
    impl Holdings for Script {
        fn of(&self, _: GpuIndex) -> Result<Holding, HoldingError> {
            let mut left = self.0.lock().unwrap();
            let next = if left.len() > 1 { left.remove(0) } else { left[0].clone() };
            next.ok_or(HoldingError::Unknown)
        }
    }

    fn releases(answers: Vec<Option<Holding>>) -> Releases {
        Releases::new(Arc::new(Script(Mutex::new(answers))))
    }

    #[test]
    fn a_driver_gets_a_moment_to_clean_up() {
        let answers =
            [holding(500, &[]), holding(70_000, &[]), holding(70_000, &[]), holding(510, &[])];
        let releases = releases(answers.into_iter().map(Some).collect());
        releases.are_idle_with(releases.measure(&[GpuIndex(3)]));
        assert_eq!(releases.wait(&[GpuIndex(3)], PATIENCE), []);
    }

    #[test]
    fn what_stays_becomes_a_finding_of_that_gpu() {
        let answers = vec![Some(holding(500, &[])), Some(holding(70_000, &[4_000_000_000]))];
        let releases = releases(answers);
        releases.are_idle_with(releases.measure(&[GpuIndex(3)]));
        let left = releases.wait(&[GpuIndex(3)], Duration::ZERO);
        let finding = left[0].finding(Time(5));
        assert_eq!((finding.gpu, finding.action), (Some(GpuIndex(3)), HealthAction::ResetGpu));
        assert_eq!(
            (finding.key.as_str(), finding.check.as_str()),
            ("memory-held/gpu3", "memory-held")
        );
        let wanted = "GPU 3 holds 70000 MiB after its job has ended, and 500 MiB when idle; \
                      processes 4000000000 compute on it";
        assert_eq!(finding.text, wanted);
    }

    #[test]
    fn a_gpu_that_does_not_tell_is_not_waited_for() {
        assert_eq!(releases(vec![None]).wait(&[GpuIndex(0)], PATIENCE), []);
    }
}
