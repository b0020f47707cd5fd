//! Suspending a part: its GPU state goes to host memory, its processes are frozen, and later it goes
//! on where it was. A pure state machine that lives in the part's shim, so that a restarted agent
//! finds it as it was; `shim::suspend` carries out what it asks for.
//!
//! ```text
//!           survey      lock, in rank order      checkpoint, all at once      freeze
//! running ────────► … ─────────────────────► … ─────────────────────────► … ────────► suspended
//!    ▲                  │ a lock takes too long: settle all, wait, again                 │ thaw
//!    │◄── settle all ◄──┴── anything fails: refused, and it runs on as before            ▼
//!    └◄──────────────────────────── unlock all ◄──────────────── restore all, maybe elsewhere
//! ```
//!
//! The calls themselves are made by a helper process that can be killed ([`serve`]): the driver may
//! hang, and must not take a shim along. All processes of the part go, or none. What can't be undone
//! breaks the part.

pub mod calls;
pub mod huge_pages;
pub mod serve;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tutti_model::{Bytes, Suspension};

use calls::{Call, Failed, Reply};

/// How long work that a process has submitted may take to finish.
const LOCK_WITHIN: Duration = Duration::from_secs(10);
/// A collective may need a peer that is locked already; letting all go on for a moment helps.
const LOCK_TRIES: u32 = 4;
const BACK_OFF: Duration = Duration::from_millis(250);
/// Starting the driver and asking it about each process.
const SURVEY_WITHIN: Duration = Duration::from_secs(60);
/// What a call may take beyond what it has to move.
const CALL_WITHIN: Duration = Duration::from_secs(60);
/// The slowest that was seen moved 1.6 GiB in a second.
const PER_GIB: Duration = Duration::from_secs(5);
const RESTORE_TRIES: u32 = 3;
const RESTORE_AGAIN: Duration = Duration::from_secs(2);
/// An order that comes twice gets the same answer.
const REFUSAL_STANDS: Duration = Duration::from_secs(3);
const GIB: u64 = 1 << 30;

/// What a part's node can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ability {
    Not {
        why: String,
    },
    /// Imagined GPUs: processes are frozen, and this much is said to be moved.
    Simulated {
        bytes: Bytes,
    },
    /// Through the CUDA driver.
    Cuda {
        huge_pages: bool,
    },
}

/// Where a part stands: what the shim keeps on disk and tells its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    pub suspension: Option<Suspension>,
    /// The GPUs it is on, or was before it was suspended; their UUIDs, in its own order.
    pub gpus: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Suspend {
        /// What is left of the memory of a node whose GPUs are imagined.
        room: Option<Bytes>,
    },
    /// The GPUs in the order of those it had.
    Wake {
        gpus: Vec<String>,
    },
    /// The part is to end: whatever can be undone is.
    Stop,
    Answer {
        id: u64,
        result: Result<Reply, Failed>,
    },
    /// The helper ended, and with it every call it had.
    HelperGone {
        why: String,
    },
    Frozen(Result<(), String>),
    Thawed(Result<(), String>),
    Tick,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Find the part's processes, and ask the helper which of them use CUDA.
    Survey {
        id: u64,
    },
    Call {
        id: u64,
        call: Call,
    },
    /// It has nothing more to do.
    DismissHelper,
    KillHelper,
    /// The limit on the part's memory must not stop what comes from the GPUs.
    MakeRoom(u64),
    PutLimitBack,
    /// The answer is [`Input::Frozen`].
    Freeze,
    /// The answer is [`Input::Thawed`].
    Thaw,
    /// Neither forward nor back: the part ends.
    Break {
        why: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Running,
    Surveying,
    Locking {
        locked: usize,
        tries: u32,
    },
    Releasing {
        tries: u32,
    },
    BackingOff {
        until: Instant,
        tries: u32,
    },
    CheckingOut {
        failed: Option<String>,
    },
    Freezing,
    /// Back to running. None: nobody refused, it was called off.
    Undoing {
        why: Option<String>,
    },
    Suspended,
    Thawing,
    Restoring {
        failed: Option<String>,
        tries: u32,
    },
    RestoringAgain {
        at: Instant,
        tries: u32,
    },
    Unlocking {
        failed: bool,
    },
    /// An unlock failed: whoever is not running yet gets another chance.
    Settling,
    Broken,
}

pub struct Machine {
    ability: Ability,
    phase: Phase,
    /// Where it goes back to, or will as soon as it is out.
    to: Option<Vec<String>>,
    /// Ordered out while it was on its way back.
    again: bool,
    stopping: bool,
    /// The GPUs it is on, or was.
    gpus: Vec<String>,
    /// Those that use CUDA, in rank order.
    procs: Vec<i32>,
    bytes: u64,
    /// As the newest order said.
    room: Option<Bytes>,
    refused: Option<(String, Instant)>,
    /// Calls without an answer, and when they are too late.
    calls: BTreeMap<u64, Instant>,
    next_id: u64,
}

impl Machine {
    pub fn new(ability: Ability, gpus: Vec<String>) -> Machine {
        Machine {
            ability,
            phase: Phase::Running,
            to: None,
            again: false,
            stopping: false,
            gpus,
            procs: Vec::new(),
            bytes: 0,
            room: None,
            refused: None,
            calls: BTreeMap::new(),
            next_id: 0,
        }
    }

    pub fn level(&self) -> Level {
        let suspension = match &self.phase {
            Phase::Running => {
                self.refused.as_ref().map(|(why, _)| Suspension::Refused { why: why.clone() })
            }
            Phase::Suspended => Some(Suspension::Suspended { bytes: Bytes(self.bytes) }),
            Phase::Thawing
            | Phase::Restoring { .. }
            | Phase::RestoringAgain { .. }
            | Phase::Unlocking { .. }
            | Phase::Settling
            | Phase::Broken => Some(Suspension::Waking),
            _ => Some(Suspension::Suspending),
        };
        Level { suspension, gpus: self.gpus.clone() }
    }

    /// Its processes run as if nothing had been.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    fn is_waking(&self) -> bool {
        self.level().suspension == Some(Suspension::Waking)
    }

    /// Its processes can't hear a signal, other than the last one.
    pub fn is_out(&self) -> bool {
        matches!(self.phase, Phase::Suspended | Phase::Broken)
    }

    pub fn next_alarm(&self) -> Option<Instant> {
        let timer = match self.phase {
            Phase::BackingOff { until, .. } => Some(until),
            Phase::RestoringAgain { at, .. } => Some(at),
            _ => None,
        };
        self.calls.values().copied().chain(timer).min()
    }

    pub fn step(&mut self, now: Instant, input: Input) -> Vec<Action> {
        let mut out = Vec::new();
        match input {
            Input::Suspend { room } => {
                self.room = room;
                self.suspend(now, &mut out);
            }
            Input::Wake { gpus } => self.wake(gpus, &mut out),
            Input::Stop => self.stop(now, &mut out),
            Input::Answer { id, result } => {
                if self.calls.remove(&id).is_some() {
                    self.answered(now, result, &mut out);
                }
            }
            Input::HelperGone { why } => self.fail_calls(now, &why, &mut out),
            Input::Frozen(Ok(())) if self.phase == Phase::Freezing => {
                self.phase = Phase::Suspended;
                out.push(Action::DismissHelper);
                if let Some(gpus) = self.to.take() {
                    self.wake(gpus, &mut out);
                }
            }
            Input::Frozen(Err(why)) if self.phase == Phase::Freezing => {
                self.undo(now, Some(format!("its processes can't be frozen: {why}")), &mut out);
            }
            Input::Thawed(result) if self.phase == Phase::Thawing => match result {
                Ok(()) => self.restore(now, 1, &mut out),
                Err(why) => self.give_up(format!("its processes can't be thawed: {why}"), &mut out),
            },
            Input::Frozen(_) | Input::Thawed(_) => {}
            Input::Tick => self.tick(now, &mut out),
        }
        out
    }

    fn suspend(&mut self, now: Instant, out: &mut Vec<Action>) {
        let stands = self.refused.as_ref().is_some_and(|(_, at)| now < *at + REFUSAL_STANDS);
        match self.phase {
            Phase::Running if stands || self.stopping => {}
            Phase::Running => self.begin(now, out),
            _ if self.is_waking() => self.again = true,
            _ => self.to = None,
        }
    }

    fn begin(&mut self, now: Instant, out: &mut Vec<Action>) {
        (self.refused, self.to, self.again) = (None, None, false);
        match self.ability.clone() {
            Ability::Not { why } => self.back(now, Some(why), out),
            Ability::Simulated { bytes } if self.room.is_some_and(|room| room < bytes) => {
                let room = self.room.unwrap_or_default();
                let why = format!(
                    "no room in the node's memory: it has {bytes} on simulated GPUs, and {} is left",
                    human(room.0)
                );
                self.back(now, Some(why), out);
            }
            Ability::Simulated { bytes } => {
                (self.procs, self.bytes) = (Vec::new(), bytes.0);
                self.phase = Phase::Freezing;
                out.push(Action::Freeze);
            }
            Ability::Cuda { .. } => {
                self.phase = Phase::Surveying;
                let id = self.expect(now, SURVEY_WITHIN);
                out.push(Action::Survey { id });
            }
        }
    }

    fn wake(&mut self, gpus: Vec<String>, out: &mut Vec<Action>) {
        match self.phase {
            Phase::Suspended => {
                self.to = Some(gpus);
                self.phase = Phase::Thawing;
                out.push(Action::Thaw);
            }
            Phase::Running => self.refused = None,
            _ if self.is_waking() => self.again = false,
            _ => self.to = Some(gpus),
        }
    }

    fn stop(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.stopping = true;
        if matches!(self.phase, Phase::BackingOff { .. }) {
            self.back(now, None, out);
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.calls.values().any(|at| *at <= now) {
            out.push(Action::KillHelper);
            self.fail_calls(now, "the CUDA driver does not answer", out);
        }
        match self.phase {
            Phase::BackingOff { until, tries } if until <= now => self.lock(now, 0, tries, out),
            Phase::RestoringAgain { at, tries } if at <= now => self.restore(now, tries, out),
            _ => {}
        }
    }

    fn fail_calls(&mut self, now: Instant, why: &str, out: &mut Vec<Action>) {
        // None is outstanding any more, so one answer speaks for all.
        if !std::mem::take(&mut self.calls).is_empty() {
            let failed = Failed { why: why.to_owned(), timeout: false };
            self.answered(now, Err(failed), out);
        }
    }

    /// Notes that an answer is due.
    fn expect(&mut self, now: Instant, within: Duration) -> u64 {
        self.next_id += 1;
        self.calls.insert(self.next_id, now + within);
        self.next_id
    }

    fn call(&mut self, now: Instant, call: Call, out: &mut Vec<Action>) {
        let moving = PER_GIB * u32::try_from(self.bytes.div_ceil(GIB)).unwrap_or(u32::MAX);
        let within = match call {
            Call::Checkpoint { .. } | Call::Restore { .. } | Call::Settle { .. } => {
                CALL_WITHIN + moving
            }
            _ => CALL_WITHIN,
        };
        let id = self.expect(now, within);
        out.push(Action::Call { id, call });
    }

    fn call_all(&mut self, now: Instant, call: impl Fn(i32) -> Call, out: &mut Vec<Action>) {
        for pid in self.procs.clone() {
            self.call(now, call(pid), out);
        }
    }

    fn answered(&mut self, now: Instant, result: Result<Reply, Failed>, out: &mut Vec<Action>) {
        let failed = result.as_ref().err().map(|f| f.why.clone());
        let last = self.calls.is_empty();
        match &mut self.phase {
            Phase::Surveying => self.surveyed(now, result, out),
            Phase::Locking { locked, tries } => match result {
                Ok(_) => {
                    let (locked, tries) = (*locked + 1, *tries);
                    self.lock(now, locked, tries, out);
                }
                Err(f) if f.timeout && *tries < LOCK_TRIES && !self.stopping => {
                    self.phase = Phase::Releasing { tries: *tries };
                    self.call_all(now, |pid| Call::Settle { pid }, out);
                }
                Err(f) => self.undo(now, Some(f.why), out),
            },
            Phase::Releasing { tries } => match failed {
                Some(why) => self.give_up(why, out),
                None if last => {
                    let until = now + BACK_OFF * (1 << *tries);
                    self.phase = Phase::BackingOff { until, tries: *tries + 1 };
                }
                None => {}
            },
            Phase::CheckingOut { failed: known } => {
                let failed = known.take().or(failed);
                self.checked_out(now, failed, out);
            }
            Phase::Undoing { why } => match failed {
                Some(words) => self.give_up(words, out),
                None if last => {
                    let why = why.take();
                    self.back(now, why, out);
                }
                None => {}
            },
            Phase::Restoring { failed: known, tries } => {
                let (failed, tries) = (known.take().or(failed), *tries);
                self.restored(now, failed, tries, out);
            }
            Phase::Unlocking { failed: known } => {
                *known |= failed.is_some();
                match *known {
                    _ if !last => {}
                    false => self.back(now, None, out),
                    true => {
                        self.phase = Phase::Settling;
                        self.call_all(now, |pid| Call::Settle { pid }, out);
                    }
                }
            }
            Phase::Settling => match failed {
                Some(why) => self.give_up(why, out),
                None if last => self.back(now, None, out),
                None => {}
            },
            _ => {}
        }
    }

    /// One process is out of its GPUs, or could not be moved: `failed` is of all until now.
    fn checked_out(&mut self, now: Instant, failed: Option<String>, out: &mut Vec<Action>) {
        match failed {
            failed if !self.calls.is_empty() => self.phase = Phase::CheckingOut { failed },
            None if !self.stopping => {
                self.phase = Phase::Freezing;
                out.push(Action::Freeze);
            }
            failed => self.undo(now, failed, out),
        }
    }

    /// One process is back on its GPUs, or could not be moved: `failed` is of all until now.
    fn restored(
        &mut self,
        now: Instant,
        failed: Option<String>,
        tries: u32,
        out: &mut Vec<Action>,
    ) {
        match failed {
            failed if !self.calls.is_empty() => self.phase = Phase::Restoring { failed, tries },
            None => {
                self.arrive();
                self.phase = Phase::Unlocking { failed: false };
                self.call_all(now, |pid| Call::Unlock { pid }, out);
            }
            Some(why) if tries >= RESTORE_TRIES => self.give_up(why, out),
            Some(_) => {
                let at = now + RESTORE_AGAIN;
                self.phase = Phase::RestoringAgain { at, tries: tries + 1 };
            }
        }
    }

    fn surveyed(&mut self, now: Instant, result: Result<Reply, Failed>, out: &mut Vec<Action>) {
        let (procs, bytes, available) = match result {
            Ok(Reply::Surveyed { procs, bytes, available }) => (procs, bytes, available),
            Ok(Reply::Done) => {
                return self.back(now, Some("the helper answers something else".into()), out);
            }
            Err(f) => return self.back(now, Some(f.why), out),
        };
        (self.procs, self.bytes) = (procs, bytes);
        if let Some(why) = no_room(bytes, available) {
            return self.back(now, Some(why), out);
        }
        if self.procs.is_empty() && !self.stopping {
            self.phase = Phase::Freezing;
            out.push(Action::Freeze);
            return;
        }
        out.push(Action::MakeRoom(with_slack(bytes)));
        self.lock(now, 0, 1, out);
    }

    /// One after the other: each waits for the work of its process.
    fn lock(&mut self, now: Instant, locked: usize, tries: u32, out: &mut Vec<Action>) {
        if self.stopping {
            return self.undo(now, None, out);
        }
        match self.procs.get(locked) {
            Some(&pid) => {
                self.phase = Phase::Locking { locked, tries };
                let timeout_ms = LOCK_WITHIN.as_millis() as u32;
                self.call(now, Call::Lock { pid, timeout_ms }, out);
            }
            None => {
                self.phase = Phase::CheckingOut { failed: None };
                self.call_all(now, |pid| Call::Checkpoint { pid }, out);
            }
        }
    }

    /// Brings back whatever has gone some of the way.
    fn undo(&mut self, now: Instant, why: Option<String>, out: &mut Vec<Action>) {
        if self.phase == Phase::Freezing {
            // Some may have stopped already.
            out.push(Action::Thaw);
        }
        if self.procs.is_empty() {
            return self.back(now, why, out);
        }
        self.phase = Phase::Undoing { why };
        self.call_all(now, |pid| Call::Settle { pid }, out);
    }

    fn restore(&mut self, now: Instant, tries: u32, out: &mut Vec<Action>) {
        let to = self.to.clone().unwrap_or_else(|| self.gpus.clone());
        if self.procs.is_empty() {
            self.arrive();
            return self.back(now, None, out);
        }
        self.phase = Phase::Restoring { failed: None, tries };
        let moved = self.gpus != to && !to.is_empty();
        let moves: Vec<(String, String)> = match moved {
            true => self.gpus.iter().cloned().zip(to.iter().cloned()).collect(),
            false => Vec::new(),
        };
        self.call_all(now, |pid| Call::Restore { pid, moves: moves.clone() }, out);
    }

    /// All of it is on the GPUs where it shall be.
    fn arrive(&mut self) {
        if let Some(gpus) = self.to.take() {
            self.gpus = gpus;
        }
    }

    /// It runs.
    fn back(&mut self, now: Instant, refused: Option<String>, out: &mut Vec<Action>) {
        let again = self.is_waking() && self.again;
        self.phase = Phase::Running;
        self.to = None;
        self.procs.clear();
        self.refused = refused.map(|why| (why, now));
        out.extend([Action::DismissHelper, Action::PutLimitBack]);
        if again && !self.stopping {
            self.begin(now, out);
        }
    }

    fn give_up(&mut self, why: String, out: &mut Vec<Action>) {
        self.phase = Phase::Broken;
        self.calls.clear();
        out.extend([Action::KillHelper, Action::Break { why }]);
    }
}

/// Host memory that has to be free for so much from GPUs.
fn with_slack(bytes: u64) -> u64 {
    bytes + bytes / 20 + GIB
}

fn no_room(bytes: u64, available: Option<u64>) -> Option<String> {
    let available = available.filter(|a| bytes > 0 && *a < with_slack(bytes))?;
    Some(format!(
        "no room in host memory: it has {} on GPUs, {} are needed and {} are available",
        human(bytes),
        human(with_slack(bytes)),
        human(available)
    ))
}

/// `1.5 GiB`.
pub(crate) fn human(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / GIB as f64)
}

#[cfg(test)]
mod tests;
