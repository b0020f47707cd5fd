//! The controller's shell, without IO: journal, crash, replay.

use std::collections::{BTreeMap, BTreeSet};

use tutti_engine::invariants::{Breach, PreemptionPays, SuspensionKept};
use tutti_engine::{Command, Effect, Engine, Event, Record, Rejected, Reply, RetryCause, Settings};
use tutti_model::{EndReason, ReplicaPhase, RolloutStage, State, StopCause, TaskId, Time};

use crate::node::NOT_WOKEN;
use crate::run::START;

/// When the controller dies during a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    No,
    /// Nothing of the step is on disk.
    BeforeAppend,
    /// It is on disk, but nobody was told.
    AfterAppend,
}

pub struct Controller {
    pub engine: Engine,
    settings: Settings,
    /// What is durable: encoded records, as the journal has them.
    journal: Vec<Vec<u8>>,
    snapshot: Option<(usize, State)>,
    hasher: blake3::Hasher,
    pub preemption: PreemptionPays,
    kept: SuspensionKept,
    /// The first plan that was refused, or claim that came to nothing.
    pub breach: Option<Breach>,
    /// Attempts that ended only to go on with more or fewer nodes, or elsewhere.
    pub moves: BTreeMap<TaskId, u32>,
    /// Endpoints whose new revision is taken back: what ends then is no rollout.
    going_back: BTreeSet<String>,
    pub counts: Counts,
}

/// How often things happened that a storm must bring about to prove anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub resizes: u32,
    pub evictions: u32,
    /// Attempts that had to leave a broken GPU or node.
    pub broken: u32,
    pub peer_faults: u32,
    pub stalls: u32,
    pub crash_loops: u32,
    pub taken_out: u32,
    /// Jobs that were changed.
    pub updated: u32,
    /// Nodes that were removed.
    pub removed: u32,
    /// Suspensions for others and by hand, those that came to nothing, and parts that could not wake.
    pub suspensions: u32,
    pub refusals: u32,
    pub not_woken: u32,
    pub woken: u32,
    /// Attempts that were lost while a person kept them suspended.
    pub kept: u32,
    /// Days of the ledger that were final and left memory.
    pub days_dropped: u32,
    /// Replicas that became ready, those that failed, revisions that took over, those that were taken
    /// back, endpoints that were as they should be in the end, and those that were stopped.
    pub replicas_ready: u32,
    pub replicas_failed: u32,
    pub rolled_out: u32,
    pub taken_back: u32,
    pub endpoints_settled: u32,
    pub endpoints_gone: u32,
}

pub struct Done {
    pub reply: Option<Result<Reply, Rejected>>,
    pub effects: Vec<Effect>,
}

/// A scheduler that changes its mind for ever would fill the journal.
const PASSES_MAX: u32 = 25;

impl Controller {
    pub fn new(settings: Settings) -> Controller {
        let mut controller = Controller {
            engine: Engine::new(settings.clone()),
            settings,
            journal: Vec::new(),
            snapshot: None,
            hasher: blake3::Hasher::new(),
            preemption: PreemptionPays::default(),
            kept: SuspensionKept::default(),
            breach: None,
            moves: BTreeMap::new(),
            going_back: BTreeSet::new(),
            counts: Counts::default(),
        };
        controller.step(Command::Start, START, Crash::No);
        controller
    }

    pub fn step(&mut self, command: Command, now: Time, crash: Crash) -> Done {
        let step = self.engine.step(command, now);
        let (mut records, mut effects) = (step.records, step.effects);
        let mut passes = 0;
        while self.engine.wants_schedule() {
            passes += 1;
            if passes > PASSES_MAX {
                let found = format!("{PASSES_MAX} passes at {now:?} did not bring it to rest");
                self.breach.get_or_insert(Breach { property: "comes_to_rest", found });
                break;
            }
            let pass = self.engine.schedule(now);
            if let Err(refused) = &pass.reply {
                let found = refused.to_string();
                self.breach.get_or_insert(Breach { property: "plan_accepted", found });
            }
            records.extend(pass.records);
            effects.extend(pass.effects);
        }
        if crash == Crash::BeforeAppend {
            self.restart(now);
            return Done { reply: None, effects: Vec::new() };
        }
        records.iter().for_each(|r| self.append(r));
        if crash == Crash::AfterAppend {
            self.restart(now);
            return Done { reply: None, effects: Vec::new() };
        }
        Done { reply: Some(step.reply), effects }
    }

    fn append(&mut self, record: &Record) {
        let bytes = rmp_serde::to_vec_named(record).expect("a record encodes");
        self.hasher.update(&bytes);
        self.journal.push(bytes);
        for found in [self.preemption.note(record), self.kept.note(record)] {
            if let Err(breach) = found {
                self.breach.get_or_insert(breach);
            }
        }
        self.counts.kept = self.kept.lost;
        self.count(&record.event);
    }

    fn count(&mut self, event: &Event) {
        let counts = &mut self.counts;
        match event {
            Event::Requeued { lease, cause, .. } => {
                match cause {
                    RetryCause::Resize => counts.resizes += 1,
                    RetryCause::Eviction => counts.evictions += 1,
                    RetryCause::Health => counts.broken += 1,
                    _ => return,
                }
                *self.moves.entry(lease.task).or_default() += 1;
            }
            Event::Stopping { why: StopCause::PeerFault { .. }, .. } => counts.peer_faults += 1,
            Event::Suspending { .. } => counts.suspensions += 1,
            Event::Waking { refused, .. } => match refused {
                Some(_) => counts.refusals += 1,
                None => counts.woken += 1,
            },
            Event::Stopping { why: StopCause::LaunchFailed { error, .. }, .. }
                if error.contains(NOT_WOKEN) =>
            {
                counts.not_woken += 1;
            }
            Event::Stopping { why: StopCause::Stalled { .. }, .. } => counts.stalls += 1,
            Event::NodeDrained { drain, .. } if drain.auto => counts.taken_out += 1,
            Event::NodeRemoved { .. } => counts.removed += 1,
            Event::JobUpdated { .. } => counts.updated += 1,
            Event::LedgerDropped { .. } => counts.days_dropped += 1,
            Event::ReplicaChanged { phase: ReplicaPhase::Ready, .. } => counts.replicas_ready += 1,
            Event::ReplicaFailed { .. } => counts.replicas_failed += 1,
            Event::RolloutMoved { endpoint, stage: RolloutStage::Back, .. } => {
                counts.taken_back += 1;
                self.going_back.insert(endpoint.clone());
            }
            Event::RolloutBegan { endpoint, .. }
            | Event::EndpointRevised { endpoint, rollout: Some(_), .. } => {
                self.going_back.remove(endpoint);
            }
            Event::RolloutEnded { endpoint, .. } => {
                counts.rolled_out += u32::from(!self.going_back.remove(endpoint));
            }
            Event::EndpointGone { endpoint } => {
                counts.endpoints_gone += 1;
                self.going_back.remove(endpoint);
            }
            Event::TaskEnded { ended, .. } => {
                let loops = matches!(ended.reason, EndReason::CrashLoop { .. });
                counts.crash_loops += u32::from(loops);
            }
            _ => {}
        }
    }

    /// Takes a snapshot as the real journal does: encoded, without the indexes.
    pub fn snapshot(&mut self) {
        let bytes = rmp_serde::to_vec_named(self.engine.state()).expect("a state encodes");
        let state = rmp_serde::from_slice(&bytes).expect("a state decodes");
        self.snapshot = Some((self.journal.len(), state));
    }

    /// Rebuilds the state from what is durable.
    pub fn replayed(&self) -> Engine {
        let (from, state) = self.snapshot.clone().unwrap_or_default();
        let mut engine = Engine::restore(state, self.settings.clone());
        for bytes in &self.journal[from..] {
            let record: Record = rmp_serde::from_slice(bytes).expect("a record decodes");
            engine.replay(&record);
        }
        engine
    }

    pub fn restart(&mut self, now: Time) {
        self.engine = self.replayed();
        let done = self.step(Command::Start, now, Crash::No);
        assert!(done.effects.is_empty(), "nobody is connected right after a start");
    }

    pub fn into_journal(self) -> Vec<Vec<u8>> {
        self.journal
    }

    pub fn records(&self) -> usize {
        self.journal.len()
    }

    pub fn hash(&self) -> blake3::Hash {
        self.hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use tutti_model::Rollout;

    use super::*;

    #[test]
    fn what_was_taken_back_has_not_taken_over() {
        let mut controller = Controller::new(Settings::default());
        let endpoint = || "chat".to_owned();
        let began = || Event::RolloutBegan {
            endpoint: endpoint(),
            rollout: Rollout { from: 1, to: 2, began_at: START, stage: RolloutStage::Rolling },
            by: "ada".to_owned(),
        };
        let back =
            || Event::RolloutMoved { endpoint: endpoint(), stage: RolloutStage::Back, why: None };
        let ended = |current| Event::RolloutEnded { endpoint: endpoint(), current };
        for (events, expected) in [
            (&[began(), back(), ended(1)][..], (0, 1)),
            (&[began(), ended(2)], (1, 1)),
            (&[began(), back(), began(), ended(2)], (2, 2)),
        ] {
            events.iter().for_each(|event| controller.count(event));
            let counts = &controller.counts;
            assert_eq!((counts.rolled_out, counts.taken_back), expected, "{events:?}");
        }
    }
}
