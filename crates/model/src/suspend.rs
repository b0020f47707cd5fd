//! Attempts that give their GPUs up for a while and go on later: same lease, same nodes, same
//! processes, their GPU state in the hosts' memory meanwhile.
//!
//! ```text
//!  running ─► suspending ─► suspended ─► waking ─► running
//!                 │ a part refuses, or takes too long     ▲
//!                 └──────────► waking, on its own GPUs ───┘  then stopped, or left alone
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Attempt, AttemptPhase, Bytes, GpuIndex, Job, JobId, NodeId, Part, Span, Task, Time};

/// Why an attempt is suspended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum SuspendCause {
    /// Somebody else needs its GPUs.
    Preempted { for_job: JobId },
    /// A person wanted it.
    Asked { by: String },
}

/// A break in the life of an attempt. Its clock stands still from its first moment to its last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// When it began to be suspended.
    pub at: Time,
    /// How long the attempt had run until then.
    pub ran: Span,
    pub why: SuspendCause,
    /// A person wants it to stay suspended: it does not wake by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
    /// Who wants that, if it was suspended for another reason before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<String>,
    /// When a person let it go on: hope for broken GPUs begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
}

/// A person keeps a task suspended that has lost its attempt: it does not start again by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// Unknown in journals from before this was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The node that took its state in memory with it, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
}

/// A part on its way out of its GPUs, out of them, or on its way back. While it is away, the part's
/// own `gpus` and `cpus` are empty and its `mem` includes what its GPU state takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asleep {
    pub step: SleepStep,
    /// What its GPU state takes of the host's memory: what is expected, then what it is.
    pub bytes: Bytes,
    /// What it holds when it is awake.
    pub gpus: Vec<GpuIndex>,
    pub cpus: u32,
    pub mem: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SleepStep {
    /// Told to leave its GPUs. Room for its state is kept in the host's memory.
    Going,
    /// Nothing of it is on a GPU. It keeps them until all parts are out.
    Out,
    /// Its GPUs and CPUs are there for others.
    Lent,
    /// It has GPUs again and was told to go on.
    Coming,
}

/// What is on record about one suspension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Nap {
    pub why: SuspendCause,
    /// When it was told to leave, when its GPUs were free, when it was told to go on, and when it
    /// did.
    pub since: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// What its GPU state took of the hosts' memory, on all nodes.
    pub bytes: Bytes,
    /// It came to nothing: where, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    /// Which attempt; 0 in snapshots from before this was kept.
    #[serde(default)]
    pub attempt: u32,
    /// The attempt ended before it went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_at: Option<Time>,
}

/// A part that could not be suspended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    pub node: NodeId,
    pub why: String,
}

/// A gang that was suspended finds its pace again within this time.
pub const HARDLY_AWAKE: Span = Span::secs(60);

/// So many suspensions of an attempt are remembered in full.
pub const NAPS_MAX: usize = 16;

/// What a part is expected to take of its host's memory, beyond what was last heard: it may have
/// grown since.
const GROWTH_PART: u64 = 10;
const GROWTH_LEAST: u64 = 1 << 30;

/// Changes that matter: more than a tenth, and more than a GiB.
pub fn is_other_size(known: Option<Bytes>, now: Bytes) -> bool {
    let Some(known) = known else { return true };
    let slack = (known.0 / GROWTH_PART).max(GROWTH_LEAST);
    known.0.abs_diff(now.0) > slack
}

impl Part {
    /// What suspending it would take of its host's memory: what it was last heard to have on its
    /// GPUs and what may have come since, in whole GiB, or all that they hold (`full`).
    pub fn bytes_when_out(&self, full: Bytes) -> Bytes {
        let Some(heard) = self.gpu_mem else { return full };
        let slack = (heard.0 / GROWTH_PART).max(GROWTH_LEAST);
        let whole = heard.0.saturating_add(slack).div_ceil(GROWTH_LEAST);
        Bytes(whole.saturating_mul(GROWTH_LEAST)).min(full)
    }

    /// GPUs that it has, or had before it was suspended.
    pub fn home_gpus(&self) -> &[GpuIndex] {
        self.asleep.as_deref().map_or(&self.gpus, |a| &a.gpus)
    }

    pub fn sleep_step(&self) -> Option<SleepStep> {
        self.asleep.as_deref().map(|a| a.step)
    }

    /// Leaves its GPUs; room for them is kept in memory.
    pub fn go_out(&mut self, bytes: Bytes) {
        let (gpus, cpus, mem) = (self.gpus.clone(), self.cpus, self.mem);
        let asleep = Asleep { step: SleepStep::Going, bytes, gpus, cpus, mem };
        self.mem = Bytes(mem.0.saturating_add(bytes.0));
        self.asleep = Some(Box::new(asleep));
    }

    /// Nothing of it is on a GPU, and this much is in memory.
    pub fn is_out(&mut self, bytes: Bytes) {
        if let Some(asleep) = self.asleep.as_deref_mut() {
            asleep.step = SleepStep::Out;
            asleep.bytes = bytes;
            self.mem = Bytes(asleep.mem.0.saturating_add(bytes.0));
        }
    }

    pub fn lend(&mut self) {
        if let Some(asleep) = self.asleep.as_deref_mut() {
            asleep.step = SleepStep::Lent;
            self.gpus = Vec::new();
            self.cpus = 0;
        }
    }

    /// It has GPUs again.
    pub fn come_back(&mut self, gpus: &[GpuIndex]) {
        if let Some(asleep) = self.asleep.as_deref_mut() {
            asleep.step = SleepStep::Coming;
            self.gpus = gpus.to_vec();
            self.cpus = asleep.cpus;
        }
    }

    /// It runs, on what it has now.
    pub fn wake_up(&mut self) {
        if let Some(asleep) = self.asleep.take() {
            self.mem = asleep.mem;
        }
    }
}

impl Attempt {
    pub fn pause(&self) -> Option<&Pause> {
        match &self.phase {
            AttemptPhase::Suspending { pause }
            | AttemptPhase::Suspended { pause, .. }
            | AttemptPhase::Waking { pause, .. } => Some(pause),
            _ => None,
        }
    }

    pub fn pause_mut(&mut self) -> Option<&mut Pause> {
        match &mut self.phase {
            AttemptPhase::Suspending { pause }
            | AttemptPhase::Suspended { pause, .. }
            | AttemptPhase::Waking { pause, .. } => Some(pause),
            _ => None,
        }
    }

    /// How long it was suspended so far.
    pub fn away(&self, now: Time) -> Span {
        let open = self.pause().map_or(Span(0), |pause| now.since(pause.at));
        Span(self.away.0.saturating_add(open.0))
    }

    /// Who keeps it suspended, if a person does. One that could not be suspended by hand goes on.
    pub fn kept_asleep(&self) -> Option<Kept> {
        let pause = match &self.phase {
            AttemptPhase::Suspending { pause }
            | AttemptPhase::Suspended { pause, .. }
            | AttemptPhase::Waking { pause, then: Some(_), .. } => pause,
            _ => return None,
        };
        let asked = match &pause.why {
            SuspendCause::Asked { by } => Some(by),
            SuspendCause::Preempted { .. } => None,
        };
        let by = pause.kept_by.as_ref().or(asked).cloned();
        pause.stays.then_some(Kept { by, node: None })
    }

    /// All of it is out of its GPUs, and they are others'.
    pub fn is_suspended(&self) -> bool {
        matches!(self.phase, AttemptPhase::Suspended { .. })
    }

    /// Its GPUs are about to be given back: it is being stopped or suspended.
    pub fn leaves(&self) -> bool {
        matches!(self.phase, AttemptPhase::Stopping { .. } | AttemptPhase::Suspending { .. })
    }

    /// When it last took GPUs. Those of a suspension that was undone it never gave up.
    pub fn took_at(&self) -> Time {
        let naps = self.naps.iter().filter(|n| n.out_at.is_some());
        naps.filter_map(|n| n.back_at).max().unwrap_or(self.placed_at)
    }

    /// When its last suspension was over.
    pub fn woke_at(&self) -> Option<Time> {
        self.naps.iter().filter_map(|n| n.until).max()
    }

    /// It is suspended, or was a moment ago: who waits for whom says nothing yet.
    pub fn is_hardly_awake(&self, now: Time) -> bool {
        let lately = |at: Time| now.since(at) < HARDLY_AWAKE;
        self.pause().is_some() || self.woke_at().is_some_and(lately)
    }

    /// The host memory that its GPU state takes, on all nodes.
    pub fn asleep_bytes(&self) -> Bytes {
        let live = self.parts.iter().filter(|p| !p.phase.is_over());
        Bytes(live.filter_map(|p| p.asleep.as_deref()).map(|a| a.bytes.0).sum())
    }
}

impl Task {
    /// It was lost while a person kept it suspended.
    pub fn kept(&self) -> Option<&Kept> {
        self.past.as_deref()?.kept.as_deref()
    }
}

impl Job {
    /// Somebody keeps this task from starting: by a hold of its job, or by a suspension that lost
    /// what was suspended.
    pub fn is_held(&self, index: Option<u32>) -> bool {
        self.held || self.task(index).is_some_and(|task| task.kept().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Milli, PartState, Rank};

    const GIB: u64 = 1 << 30;

    fn part() -> Part {
        Part {
            node: NodeId(1),
            gpus: vec![GpuIndex(2), GpuIndex(3)],
            cpus: 8,
            mem: Bytes(10),
            share: Milli::WHOLE,
            first_rank: Rank(0),
            ranks: 1,
            phase: PartState::Running { exits: Vec::new() },
            port: None,
            gpu_mem: None,
            port_owner: None,
            asleep: None,
        }
    }

    #[test]
    fn a_part_gives_up_its_gpus_and_takes_memory_meanwhile() {
        let (awake, mut it) = (part(), part());
        it.go_out(Bytes(100));
        assert_eq!((it.gpus.len(), it.cpus, it.mem), (2, 8, Bytes(110)));
        it.is_out(Bytes(70));
        assert_eq!((it.gpus.len(), it.cpus, it.mem), (2, 8, Bytes(80)));
        it.lend();
        assert_eq!((it.gpus.len(), it.cpus, it.mem), (0, 0, Bytes(80)));
        assert_eq!(it.home_gpus(), awake.gpus);
        it.come_back(&[GpuIndex(0), GpuIndex(1)]);
        assert_eq!((it.cpus, it.mem), (8, Bytes(80)));
        it.wake_up();
        assert_eq!(it, Part { gpus: vec![GpuIndex(0), GpuIndex(1)], ..awake });
    }

    #[test]
    fn what_a_part_will_take_leaves_room_for_what_was_not_heard_yet() {
        let full = Bytes(80 * GIB);
        let of = |heard: Option<u64>| {
            Part { gpu_mem: heard.map(|g| Bytes(g * GIB)), ..part() }.bytes_when_out(full).0 / GIB
        };
        assert_eq!(
            [of(None), of(Some(0)), of(Some(4)), of(Some(40)), of(Some(79))],
            [80, 1, 5, 44, 80]
        );
        assert!(is_other_size(None, Bytes(0)));
        assert!(!is_other_size(Some(Bytes(4 * GIB)), Bytes(5 * GIB)));
        assert!(is_other_size(Some(Bytes(4 * GIB)), Bytes(5 * GIB + 1)));
        assert!(is_other_size(Some(Bytes(40 * GIB)), Bytes(30 * GIB)));
    }
}
