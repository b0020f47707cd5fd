//! Holds the end of a part back until its GPUs are free, and fences those that are not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::mpsc;
use tutti_gpu::health::{Keep, Seen};
use tutti_gpu::holdings::{Drivers, Holding, Holdings};
use tutti_model::{GpuIndex, LeaseId, Span, Vendor};

use super::{Node, now};
use crate::config::AgentConfig;
use crate::machine::Input;
use crate::parts::Fate;
use crate::release::{CHECK, Left, PATIENCE, Releases};

/// Longer than it takes to look again.
const STANDS: Span = Span(3 * PATIENCE.as_millis() as u64);

/// Parts whose processes are gone, and whose GPUs are being looked at.
pub struct Releasing {
    /// None on a node whose GPUs are imagined, or do not tell.
    releases: Option<Releases>,
    ends: BTreeMap<LeaseId, Input>,
    /// GPUs whose idle state is being measured, without those that a part has come to meanwhile.
    measuring: BTreeSet<GpuIndex>,
    looked: mpsc::UnboundedSender<Looked>,
    looked_in: mpsc::UnboundedReceiver<Looked>,
}

/// What a thread that drivers may keep waiting has seen.
pub enum Looked {
    /// What GPUs hold that nobody uses.
    Idle(Vec<(GpuIndex, Holding)>),
    /// What this part has left on its GPUs. None: somebody before this agent.
    Left { lease: Option<LeaseId>, left: Vec<Left> },
}

impl Releasing {
    pub fn new(config: &AgentConfig) -> Releasing {
        let (looked, looked_in) = mpsc::unbounded_channel();
        let releases = holdings(config).map(Releases::new);
        let (ends, measuring) = (BTreeMap::new(), BTreeSet::new());
        Releasing { releases, ends, measuring, looked, looked_in }
    }

    pub async fn next(&mut self) -> Option<Looked> {
        self.looked_in.recv().await
    }

    /// Whether it can be told when a GPU is free.
    pub fn looks(&self) -> bool {
        self.releases.is_some()
    }

    /// A part comes to these: what is being measured on them may be its own.
    pub fn disturb(&mut self, gpus: &[GpuIndex]) {
        self.measuring.retain(|gpu| !gpus.contains(gpu));
    }

    fn measured(&mut self, measured: Vec<(GpuIndex, Holding)>) {
        let undisturbed = std::mem::take(&mut self.measuring);
        if let Some(releases) = &self.releases {
            let idle = measured.into_iter().filter(|(gpu, _)| undisturbed.contains(gpu));
            releases.are_idle_with(idle);
        }
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
    /// What GPUs hold when nobody uses them.
    pub(super) fn measure_idle(&mut self) {
        if let Some(measure) = self.idle_measurement() {
            tokio::task::spawn_blocking(measure);
        }
    }

    /// That, for a thread that may be kept waiting by drivers. GPUs of running parts are left out, and
    /// fenced ones: something may be left on them.
    pub(super) fn idle_measurement(&mut self) -> Option<impl FnOnce() + Send + 'static + use<>> {
        let releases = self.releasing.releases.clone()?;
        let fenced = self.fenced();
        let idle = |gpu: &GpuIndex| !self.machine.is_held(*gpu, None) && !fenced.contains(gpu);
        let gpus: Vec<GpuIndex> = self.config.gpus.iter().map(|g| g.index).filter(idle).collect();
        self.releasing.measuring = gpus.iter().copied().collect();
        let looked = self.releasing.looked.clone();
        // The node is gone only when the agent is.
        Some(move || drop(looked.send(Looked::Idle(releases.measure(&gpus)))))
    }

    /// An earlier agent saw something left on GPUs; nobody has looked since.
    pub(super) fn look_again_at_start(&self) {
        let left = self.watch.findings().into_iter().filter(|f| f.check == CHECK && !f.drill);
        let gpus = left.filter_map(|f| f.gpu).filter(|gpu| !self.machine.is_held(*gpu, None));
        let gpus: Vec<GpuIndex> = gpus.collect();
        if !gpus.is_empty() {
            self.look_at_gpus(None, gpus);
        }
    }

    pub(super) fn on_looked(&mut self, looked: Looked) {
        match looked {
            Looked::Idle(measured) => self.releasing.measured(measured),
            Looked::Left { lease, left } => self.on_left(lease, &left),
        }
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
        let looks = self.releasing.looks();
        if !looks && self.suspects(&gpus).is_empty() {
            return Some(input);
        }
        self.releasing.ends.insert(lease, input);
        // What held it to its share of a GPU is on that GPU itself.
        self.tidy_mps();
        match looks {
            true => self.look_at_gpus(Some(lease), gpus),
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

    fn look_at_gpus(&self, lease: Option<LeaseId>, gpus: Vec<GpuIndex>) {
        let Some(releases) = self.releasing.releases.clone() else { return };
        let looked = self.releasing.looked.clone();
        tokio::task::spawn_blocking(move || {
            // The node is gone only when the agent is.
            let _ = looked.send(Looked::Left { lease, left: releases.wait(&gpus, PATIENCE) });
        });
    }

    /// A part does not wait for ever: after a while it ends, and what is not free is fenced for as
    /// long as that lasts.
    fn on_left(&mut self, lease: Option<LeaseId>, left: &[Left]) {
        // Somebody may have come meanwhile who shares it.
        let held = |one: &&Left| !self.machine.is_held(one.gpu, lease);
        let left: Vec<&Left> = left.iter().filter(held).collect();
        for one in &left {
            let finding = one.finding(now());
            self.watch.put_after_reports(Seen { finding, keep: Keep::For(STANDS) });
        }
        let left: Vec<GpuIndex> = left.iter().map(|one| one.gpu).collect();
        if let Some(lease) = lease {
            self.check_or_let_go(lease, &left);
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tutti_gpu::holdings::HoldingError;
    use tutti_model::Bytes;

    use super::*;

    #[derive(Debug)]
    struct Full;
    impl Holdings for Full {
        fn of(&self, _: GpuIndex) -> Result<Holding, HoldingError> {
            Ok(Holding { used: Bytes::gib(60), ..Holding::default() })
        }
    }

    #[test]
    fn what_a_part_may_have_put_there_meanwhile_is_not_idle() {
        let (looked, looked_in) = mpsc::unbounded_channel();
        let gpus = [GpuIndex(0), GpuIndex(1)];
        let releases = Releases::new(Arc::new(Full));
        let mut releasing = Releasing {
            releases: Some(releases.clone()),
            ends: BTreeMap::new(),
            measuring: gpus.into(),
            looked,
            looked_in,
        };
        let measured = releases.measure(&gpus);
        releasing.disturb(&[GpuIndex(0)]);
        releasing.measured(measured);
        let left = releases.wait(&gpus, Duration::ZERO);
        assert_eq!(left.iter().map(|one| one.gpu).collect::<Vec<_>>(), [GpuIndex(0)]);
    }
}
