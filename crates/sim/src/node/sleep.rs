//! A simulated part on its way out of its GPUs and back. Frozen meanwhile: it makes no steps and does
//! not end.

use tutti_model::{Blame, Bytes, GpuIndex, PartError, Span, Suspension, Time};

use super::{Part, PartPhase};

/// How long the ways take.
const OUT: Span = Span(700);
const BACK: Span = Span(300);
/// On each GPU.
const HELD_GIB: u64 = 10;
/// How agents begin to say it.
pub(crate) const NOT_WOKEN: &str = "its GPU state could not be moved";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Sleep {
    #[default]
    Awake,
    Going {
        at: Time,
        until: Time,
    },
    Out {
        at: Time,
    },
    Coming {
        at: Time,
        until: Time,
    },
    Refused {
        why: &'static str,
    },
}

impl Part {
    fn is_running(&self) -> bool {
        matches!(self.phase, PartPhase::Running { .. })
    }

    /// Its ranks make steps.
    pub(super) fn is_awake(&self) -> bool {
        matches!(self.sleep, Sleep::Awake | Sleep::Refused { .. })
    }

    /// Something of it is on its GPUs.
    pub(super) fn is_on_gpus(&self) -> bool {
        !matches!(self.sleep, Sleep::Out { .. })
    }

    pub(super) fn held(&self) -> Bytes {
        Bytes::gib(HELD_GIB * self.launch.gpus.len() as u64)
    }

    pub(super) fn suspension(&self) -> Option<Suspension> {
        match &self.sleep {
            Sleep::Awake => None,
            Sleep::Going { .. } => Some(Suspension::Suspending),
            Sleep::Out { .. } => Some(Suspension::Suspended { bytes: self.held() }),
            Sleep::Coming { .. } => Some(Suspension::Waking),
            Sleep::Refused { why } => Some(Suspension::Refused { why: (*why).to_owned() }),
        }
    }

    pub(super) fn suspend(&mut self, refuses: bool, now: Time) {
        if !self.is_running() || !self.is_awake() {
            return;
        }
        self.sleep = match refuses {
            true => Sleep::Refused { why: "IPC is in use" },
            false => Sleep::Going { at: now, until: now.plus(OUT) },
        };
    }

    /// What can't wake ends: there is nothing that could go on.
    pub(super) fn wake(&mut self, gpus: Vec<GpuIndex>, fails: bool, now: Time) {
        self.sleep = match self.sleep {
            Sleep::Out { .. } if fails && self.is_running() => {
                let message = format!("{NOT_WOKEN}: no memory on the GPU");
                let error = Some(PartError { message, blame: Blame::Node });
                self.phase = PartPhase::Done { exits: Vec::new(), error };
                Sleep::Awake
            }
            Sleep::Going { at, .. } | Sleep::Out { at } => {
                self.launch.gpus = gpus;
                Sleep::Coming { at, until: now.plus(BACK) }
            }
            Sleep::Refused { .. } => Sleep::Awake,
            _ => return,
        };
    }

    /// True if there is something to tell.
    pub(super) fn turn_over(&mut self, now: Time) -> bool {
        match self.sleep {
            Sleep::Going { at, until } if until <= now => self.sleep = Sleep::Out { at },
            Sleep::Coming { at, until } if until <= now => {
                self.sleep = Sleep::Awake;
                self.shift(now.since(at));
            }
            _ => return false,
        }
        true
    }

    /// As if the time in between had not been.
    fn shift(&mut self, away: Span) {
        self.since = self.since.plus(away);
        self.hung = self.hung.map(|at| at.plus(away));
        if let PartPhase::Running { until, .. } = &mut self.phase {
            *until = until.plus(away);
        }
    }
}
