//! A task, and what is known of its attempts so far.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Attempt, AttemptPhase, Ended, JobState, StopCause};
use crate::{Kept, NAPS_MAX, Nap, NodeId, SavedPoint, Span, Time};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    pub phase: Phase,
    /// Attempts made so far, the running one included.
    pub attempts: u32,
    pub restarts: Restarts,
    pub first_started_at: Option<Time>,
    /// Nodes where an attempt of this task failed; placed there again only if nothing else fits.
    pub avoid: BTreeSet<NodeId>,
    /// GPU-milliseconds that earlier attempts ran.
    #[serde(default)]
    pub served: u64,
    /// It waits because a node failed under it, and goes before everything else of its class: its
    /// other nodes are warm, and the spares are there for it.
    #[serde(default)]
    pub lost_node: bool,
    /// When it was last preempted.
    #[serde(default)]
    pub preempted_at: Option<Time>,
    /// How long the attempt before this wait lasted.
    #[serde(default)]
    pub last_ran: Option<Span>,
    /// What earlier attempts came to; none if nothing that matters is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past: Option<Box<Past>>,
}

/// So many checkpoints of a task are remembered. Where they are listed in full is with their files.
pub const KNOWN_POINTS_MAX: usize = 16;

/// What is known of the attempts of a task so far, beyond their number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Past {
    /// The newest point that a restart goes on from, as the job has said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedPoint>,
    /// The newest checkpoints that were heard of, in the order in which they were; at most
    /// [`KNOWN_POINTS_MAX`], each step once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<SavedPoint>,
    /// The highest step that it is known to have done, and the highest that was ever safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_saved: Option<u64>,
    /// Restarts since it last got further: what its budgets have paid. `restarts` counts all.
    #[serde(skip_serializing_if = "Restarts::is_none")]
    pub spent: Restarts,
    /// Attempts in a row that failed without getting anywhere.
    #[serde(skip_serializing_if = "is_zero")]
    pub fruitless: u32,
    /// Why the newest attempt before this one came to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Box<StopCause>>,
    /// When earlier attempts were suspended, oldest first; at most [`crate::NAPS_MAX`], the newest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub naps: Vec<Nap>,
    /// How long earlier attempts were suspended in all.
    #[serde(skip_serializing_if = "Span::is_zero")]
    pub away: Span,
    /// How long it waited between attempts in all, up to the newest placement.
    #[serde(skip_serializing_if = "Span::is_zero")]
    pub between: Span,
    /// Nodes where a rank of it failed, for whatever reason, since it last got further.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub failed_on: BTreeSet<NodeId>,
    /// It was lost while a person kept it suspended, and waits until it is resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Box<Kept>>,
    /// Bytes of its output that were not kept, because a node's disk had no room.
    #[serde(skip_serializing_if = "is_no_byte")]
    pub output_dropped: u64,
}

fn is_no_byte(bytes: &u64) -> bool {
    *bytes == 0
}

impl Past {
    /// A checkpoint that was not known, or is another one of the same step.
    pub fn learn(&mut self, point: &SavedPoint) {
        self.points.retain(|known| known.step != point.step);
        self.points.push(point.clone());
        if self.points.len() > KNOWN_POINTS_MAX {
            self.points.remove(0);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Restarts {
    pub node_failure: u32,
    pub preemption: u32,
    pub job_failure: u32,
    /// A GPU or node of it was broken. Nothing pays for these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub health: u32,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Restarts {
    fn is_none(&self) -> bool {
        self.total() == 0
    }
    pub fn total(&self) -> u32 {
        self.node_failure + self.preemption + self.job_failure + self.health
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Phase {
    /// Waiting since `since`, and not to be started before `not_before` (back-off after a failure).
    Pending {
        since: Time,
        not_before: Time,
    },
    Active(Box<Attempt>),
    Ended(Ended),
}

static NO_PAST: Past = Past {
    saved: None,
    points: Vec::new(),
    best_step: None,
    best_saved: None,
    stopped: None,
    naps: Vec::new(),
    away: Span(0),
    between: Span(0),
    spent: Restarts { node_failure: 0, preemption: 0, job_failure: 0, health: 0 },
    fruitless: 0,
    failed_on: BTreeSet::new(),
    kept: None,
    output_dropped: 0,
};

impl Task {
    /// Since when it counts as waiting, if it waits.
    pub fn waits_since(&self) -> Option<Time> {
        match self.phase {
            Phase::Pending { .. } if self.lost_node => Some(Time(0)),
            Phase::Pending { since, .. } => Some(since),
            _ => None,
        }
    }

    pub fn pending(since: Time) -> Task {
        Task {
            phase: Phase::Pending { since, not_before: Time(0) },
            attempts: 0,
            restarts: Restarts::default(),
            first_started_at: None,
            avoid: BTreeSet::new(),
            served: 0,
            lost_node: false,
            preempted_at: None,
            last_ran: None,
            past: None,
        }
    }

    /// The attempt is over: what is worth knowing of its suspensions stays with the task.
    pub fn keep_naps(&mut self, at: Time) {
        let away = self.attempt().map_or(Span(0), |a| a.away(at));
        if away > Span(0) {
            self.past_mut().away.0 += away.0;
        }
        let Some(attempt) = self.attempt_mut().filter(|a| !a.naps.is_empty()) else { return };
        let mut naps = std::mem::take(&mut attempt.naps);
        let open = naps.last_mut().filter(|nap| nap.until.is_none());
        open.into_iter().for_each(|nap| nap.cut_at = Some(at));
        let kept = &mut self.past_mut().naps;
        kept.append(&mut naps);
        kept.drain(..kept.len().saturating_sub(NAPS_MAX));
    }

    /// How long it was suspended in all attempts so far.
    pub fn away(&self, now: Time) -> Span {
        let here = self.attempt().map_or(Span(0), |a| a.away(now));
        Span(self.past().away.0.saturating_add(here.0))
    }

    /// How long it had no nodes since it first had some: time in which nothing of it ran.
    pub fn between_attempts(&self, now: Time) -> Span {
        let waits = match self.phase {
            Phase::Pending { since, .. } if self.first_started_at.is_some() => now.since(since),
            _ => Span(0),
        };
        Span(self.past().between.0.saturating_add(waits.0))
    }

    /// Every suspension that is remembered, oldest first.
    pub fn all_naps(&self) -> impl Iterator<Item = &Nap> {
        self.past().naps.iter().chain(self.attempt().into_iter().flat_map(|a| &a.naps))
    }

    pub fn past(&self) -> &Past {
        self.past.as_deref().unwrap_or(&NO_PAST)
    }
    pub fn past_mut(&mut self) -> &mut Past {
        self.past.get_or_insert_default()
    }

    pub fn state(&self) -> JobState {
        match &self.phase {
            Phase::Pending { .. } => JobState::Pending,
            Phase::Active(a) => match a.phase {
                AttemptPhase::Starting => JobState::Starting,
                AttemptPhase::Running { .. } => JobState::Running,
                AttemptPhase::Suspending { .. }
                | AttemptPhase::Suspended { .. }
                | AttemptPhase::Waking { .. } => JobState::Suspended,
                AttemptPhase::Stopping { .. } => JobState::Stopping,
            },
            Phase::Ended(e) => e.outcome.into(),
        }
    }

    pub fn attempt(&self) -> Option<&Attempt> {
        match &self.phase {
            Phase::Active(a) => Some(a),
            _ => None,
        }
    }

    pub fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match &mut self.phase {
            Phase::Active(a) => Some(a),
            _ => None,
        }
    }
}
