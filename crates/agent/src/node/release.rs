//! Holds the end of a part back until its GPUs are free, and fences those that are not.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use tutti_gpu::health::{Keep, Seen};
use tutti_gpu::holdings::{Drivers, Holdings};
use tutti_model::{GpuIndex, LeaseId, Span, Vendor};

use super::{Node, now};
use crate::config::AgentConfig;
use crate::machine::Input;
use crate::parts::Fate;
use crate::release::{Left, PATIENCE, Releases};

/// Longer than it takes to look again.
const STANDS: Span = Span(3 * PATIENCE.as_millis() as u64);

/// Parts whose processes are gone, and whose GPUs are being looked at.
pub struct Releasing {
    /// None on a node whose GPUs are imagined, or do not tell.
    releases: Option<Releases>,
    ends: BTreeMap<LeaseId, Input>,
    looked: mpsc::UnboundedSender<(LeaseId, Vec<Left>)>,
    looked_in: mpsc::UnboundedReceiver<(LeaseId, Vec<Left>)>,
}

impl Releasing {
    pub fn new(config: &AgentConfig) -> Releasing {
        let (looked, looked_in) = mpsc::unbounded_channel();
        let releases = holdings(config).map(Releases::new);
        Releasing { releases, ends: BTreeMap::new(), looked, looked_in }
    }

    pub async fn next(&mut self) -> Option<(LeaseId, Vec<Left>)> {
        self.looked_in.recv().await
    }
}

fn holdings(config: &AgentConfig) -> Option<Arc<dyn Holdings>> {
    if let Some(given) = &config.holdings {
        return Some(given.clone());
    }
    let hardware = config.hardware.as_deref().filter(|_| !config.simulated)?;
    let tells = |vendor| matches!(vendor, Vendor::Nvidia | Vendor::Amd);
    if !hardware.gpus.iter().any(|gpu| tells(gpu.vendor)) {
        return None;
    }
    Some(Arc::new(Drivers::new("/".into(), &config.gpus, hardware)))
}

impl Node {
    /// What GPUs hold when nobody uses them; those of running parts are left out.
    pub(super) fn measure_idle(&self) {
        if let Some(measure) = self.idle_measurement() {
            tokio::task::spawn_blocking(measure);
        }
    }

    /// That, for a thread that may be kept waiting by drivers.
    pub(super) fn idle_measurement(&self) -> Option<impl FnOnce() + Send + 'static> {
        let releases = self.releasing.releases.clone()?;
        let free = |index: &GpuIndex| !self.machine.is_held(*index, None);
        let gpus: Vec<GpuIndex> = self.config.gpus.iter().map(|g| g.index).filter(free).collect();
        Some(move || releases.measure_idle(&gpus))
    }

    /// Nothing, if this is the end of a part whose GPUs have to be looked at first.
    pub(super) fn hold_end(&mut self, input: Input) -> Option<Input> {
        let lease = match &input {
            Input::Ended { lease, .. } | Input::Swept { lease } => *lease,
            Input::Looked { lease, fate: Fate::Ended(_) } => *lease,
            _ => return Some(input),
        };
        if self.releasing.ends.contains_key(&lease) {
            return None;
        }
        let gpus = self.to_check(lease);
        if gpus.is_empty() {
            return Some(input);
        }
        self.watch.read_kernel_log();
        let looks = self.releasing.releases.is_some();
        if !looks && self.suspects(&gpus).is_empty() {
            return Some(input);
        }
        self.releasing.ends.insert(lease, input);
        // What held it to its share of a GPU is on that GPU itself.
        self.tidy_mps();
        match looks {
            true => self.look_at_gpus(lease, gpus),
            false => self.check_or_let_go(lease, &[]),
        }
        None
    }

    /// The GPUs that the part has now, without those that somebody else has a share of.
    fn to_check(&self, lease: LeaseId) -> Vec<GpuIndex> {
        let gpus = self.machine.gpus_of(lease).iter().copied();
        gpus.filter(|&gpu| !self.machine.is_held(gpu, Some(lease))).collect()
    }

    /// The part has no process any more.
    pub(super) fn is_leaving(&self, lease: LeaseId) -> bool {
        self.releasing.ends.contains_key(&lease)
    }

    fn look_at_gpus(&self, lease: LeaseId, gpus: Vec<GpuIndex>) {
        let Some(releases) = self.releasing.releases.clone() else { return };
        let looked = self.releasing.looked.clone();
        tokio::task::spawn_blocking(move || {
            // The node is gone only when the agent is.
            let _ = looked.send((lease, releases.wait(&gpus, PATIENCE)));
        });
    }

    /// A part does not wait for ever: after a while it ends, and what is not free is fenced for as
    /// long as that lasts.
    pub(super) fn on_looked_at_gpus(&mut self, lease: LeaseId, left: &[Left]) {
        // Somebody may have come meanwhile who shares it.
        let held = |one: &&Left| !self.machine.is_held(one.gpu, Some(lease));
        let left: Vec<&Left> = left.iter().filter(held).collect();
        for one in &left {
            let finding = one.finding(now());
            self.watch.put_after_reports(Seen { finding, keep: Keep::For(STANDS) });
        }
        let left: Vec<GpuIndex> = left.iter().map(|one| one.gpu).collect();
        self.check_or_let_go(lease, &left);
        if !left.is_empty() {
            self.look_at_gpus(lease, left);
        }
    }

    /// What is free of its GPUs is checked if there is reason to.
    fn check_or_let_go(&mut self, lease: LeaseId, left: &[GpuIndex]) {
        if !self.releasing.ends.contains_key(&lease) {
            return;
        }
        let mut free = self.to_check(lease);
        free.retain(|gpu| !left.contains(gpu));
        match self.suspects(&free) {
            suspects if suspects.is_empty() => self.let_go(lease),
            suspects => self.check_suspects(lease, suspects),
        }
    }

    /// The part is over.
    pub(super) fn let_go(&mut self, lease: LeaseId) {
        if let Some(end) = self.releasing.ends.remove(&lease) {
            self.take(end);
        }
    }
}
