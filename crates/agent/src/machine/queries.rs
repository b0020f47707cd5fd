//! What the shell may ask of the machine. Nothing here changes it.

use std::collections::BTreeSet;

use tutti_model::{
    Bytes, GpuIndex, Launch, LeaseId, PartProgress, PartReport, ReportedPhase, Span, TaskId, Time,
};

use super::Machine;
use super::part::{Part, Phase};

impl Machine {
    /// Nothing runs or may still start.
    pub fn is_idle(&self) -> bool {
        self.parts.values().all(Part::is_over)
    }

    /// The GPUs that a part has now; a suspended one may have come back on others.
    pub fn gpus_of(&self, lease: LeaseId) -> &[GpuIndex] {
        let live = self.parts.get(&lease).filter(|part| !part.is_over() && !part.is_suspended());
        live.map_or(&[], Part::gpus)
    }

    /// Whether a part that is not over has this GPU, another one than `but`.
    pub fn is_held(&self, gpu: GpuIndex, but: Option<LeaseId>) -> bool {
        self.parts.iter().any(|(lease, part)| Some(*lease) != but && part.holds(gpu))
    }

    /// Parts that run or may still start.
    pub fn live(&self) -> BTreeSet<LeaseId> {
        self.parts.iter().filter(|(_, part)| !part.is_over()).map(|(lease, _)| *lease).collect()
    }

    pub fn is_preparing(&self, lease: LeaseId) -> bool {
        self.parts.get(&lease).is_some_and(|part| part.phase == Phase::Preparing)
    }

    pub fn is_over(&self, lease: LeaseId) -> bool {
        self.parts.get(&lease).is_some_and(Part::is_over)
    }

    /// The part should have a shim that is not connected now.
    pub fn is_unheard(&self, lease: LeaseId) -> bool {
        self.parts.get(&lease).is_some_and(|part| {
            matches!(part.phase, Phase::Launched { .. } | Phase::Running { connected: false, .. })
        })
    }

    /// Where one part stands, if there is anything to say about it yet.
    pub fn report(&self, now: Time, lease: LeaseId) -> Option<PartReport> {
        let part = self.parts.get(&lease)?;
        let phase = match &part.phase {
            Phase::Preparing => return None,
            Phase::Waiting { port } => ReportedPhase::Prepared { port: *port },
            Phase::Launched { .. } => ReportedPhase::Running { exits: Vec::new() },
            Phase::Running { exits, .. } => ReportedPhase::Running { exits: exits.clone() },
            Phase::Done { exits, error } => {
                ReportedPhase::Done { exits: exits.clone(), error: error.clone() }
            }
        };
        let aged = |(said, at): &(Box<PartProgress>, Time)| {
            let age = if part.is_paused() { Span(0) } else { now.since(*at) };
            Box::new((**said).clone().aged(age))
        };
        Some(PartReport {
            progress: part.progress.as_ref().map(aged),
            suspension: part.suspension.clone().filter(|_| !part.is_over()),
            limit: part.limit_at(now),
            output_dropped: part.output_dropped,
            ..PartReport::new(lease, phase)
        })
    }

    pub fn reports(&self, now: Time) -> Vec<PartReport> {
        self.parts.keys().filter_map(|&lease| self.report(now, lease)).collect()
    }

    /// Everything that runs, or may yet.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> + '_ {
        self.parts.values().filter(|p| !p.is_over()).filter_map(|p| p.launch.as_deref())
    }

    /// What is left of so much memory for the GPU state of one part: less what parts asked for, and
    /// what others have there that were suspended before. `out` is what a part has on its GPUs.
    pub fn room_for(&self, lease: LeaseId, mem: Bytes, out: impl Fn(&Launch) -> Bytes) -> Bytes {
        let live = self.parts.iter().filter(|(_, part)| !part.is_over());
        let taken = live.filter_map(|(other, part)| {
            let launch = part.launch.as_deref()?;
            let there = *other != lease && (part.told_out || part.is_paused());
            Some(launch.mem.0.saturating_add(if there { out(launch).0 } else { 0 }))
        });
        Bytes(taken.fold(mem.0, u64::saturating_sub))
    }

    /// Its end was asked for.
    pub fn is_stopping(&self, lease: LeaseId) -> bool {
        self.parts.get(&lease).is_some_and(|part| part.kill_at.is_some())
    }

    pub fn launch(&self, lease: LeaseId) -> Option<&Launch> {
        self.parts.get(&lease)?.launch.as_deref()
    }

    /// The port that was found for the part.
    pub fn port(&self, lease: LeaseId) -> Option<u16> {
        match self.parts.get(&lease)?.phase {
            Phase::Waiting { port } | Phase::Launched { port } => Some(port),
            _ => None,
        }
    }

    /// The newest part of the task that is not over.
    pub fn live_part(&self, task: TaskId) -> Option<&Launch> {
        let live = self.parts_of(task).filter(|(_, p)| !p.is_over());
        live.filter_map(|(_, p)| p.launch.as_deref()).last()
    }

    /// Tasks with a part here, over or not.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.parts.keys().map(|lease| lease.task)
    }
}
