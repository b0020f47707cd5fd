//! When a replica that fails is left alone, and when it is tried again.

use std::time::{Duration, Instant};

/// Failures one after another that open a breaker.
const FAILURES_MAX: u32 = 5;
/// Nothing is sent for this long.
const OPEN_FOR: Duration = Duration::from_secs(30);
/// Trials that must succeed before all is as before.
const TRIALS: u32 = 2;
/// Good probes one after another that end the wait early. One is too few: a server may well answer its
/// health path and fail at everything else.
const PROBES_TO_TRY: u32 = 5;

/// How a request ended, as far as the replica is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Any answer below 500, to its end.
    Ok,
    /// 5xx, a reset, a time-out, an answer broken off by the replica.
    Failed,
    /// The connection was refused: nobody listens there any more.
    Refused,
    /// The client left, or the request never got as far as the replica for other reasons.
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed {
        failures: u32,
    },
    /// Until the time; until a probe succeeds if there is none.
    Open {
        until: Option<Instant>,
        good_probes: u32,
    },
    HalfOpen {
        trial: bool,
        successes: u32,
    },
}

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    Free,
    /// One request, to see whether it works again.
    Trial,
    Shut,
}

#[derive(Clone, Debug)]
pub struct Breaker {
    state: State,
    failed_at: Option<Instant>,
}

impl Default for Breaker {
    fn default() -> Self {
        Breaker { state: State::Closed { failures: 0 }, failed_at: None }
    }
}

impl Breaker {
    pub fn passage(&self, now: Instant) -> Passage {
        match self.state {
            State::Closed { .. } => Passage::Free,
            State::Open { until: Some(until), .. } if now >= until => Passage::Trial,
            State::Open { .. } | State::HalfOpen { trial: true, .. } => Passage::Shut,
            State::HalfOpen { trial: false, .. } => Passage::Trial,
        }
    }

    /// Nothing but trials is sent there.
    pub fn is_broken(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }

    pub fn failed_at(&self) -> Option<Instant> {
        self.failed_at
    }

    /// A request is sent: a trial, unless the breaker is closed, or open and everything else too.
    pub fn sent(&mut self, now: Instant) {
        match &mut self.state {
            State::Open { until: Some(until), .. } if now >= *until => {
                self.state = State::HalfOpen { trial: true, successes: 0 };
            }
            State::HalfOpen { trial, .. } => *trial = true,
            State::Closed { .. } | State::Open { .. } => {}
        }
    }

    /// The answer has begun, and well. A stream may go on for minutes; its beginning is proof enough.
    pub fn answered(&mut self) {
        match &mut self.state {
            State::Closed { failures } => *failures = 0,
            State::HalfOpen { trial, successes } => {
                *trial = false;
                *successes += 1;
                if *successes >= TRIALS {
                    self.state = State::Closed { failures: 0 };
                }
            }
            // One that was sent although everything is open.
            State::Open { until: Some(_), .. } => {
                self.state = State::HalfOpen { trial: false, successes: 1 };
            }
            State::Open { until: None, .. } => {}
        }
    }

    pub fn ended(&mut self, outcome: Outcome, now: Instant) {
        match outcome {
            // The beginning of the answer has counted already; its end says nothing new.
            Outcome::Ok => match self.state {
                State::Closed { .. } | State::HalfOpen { trial: true, .. } => self.answered(),
                State::Open { .. } | State::HalfOpen { trial: false, .. } => {}
            },
            Outcome::Failed => self.failed(now),
            Outcome::Refused => {
                self.failed_at = Some(now);
                self.state = State::Open { until: None, good_probes: 0 };
            }
            Outcome::Cancelled => {
                if let State::HalfOpen { trial, .. } = &mut self.state {
                    *trial = false;
                }
            }
        }
    }

    pub fn probed(&mut self, good: bool) {
        let State::Open { until, good_probes } = &mut self.state else { return };
        *good_probes = if good { *good_probes + 1 } else { 0 };
        let enough = if until.is_some() { PROBES_TO_TRY } else { 1 };
        if *good_probes >= enough {
            self.state = State::HalfOpen { trial: false, successes: 0 };
        }
    }

    fn failed(&mut self, now: Instant) {
        self.failed_at = Some(now);
        match &mut self.state {
            State::Closed { failures } => {
                *failures += 1;
                if *failures >= FAILURES_MAX {
                    self.open(now);
                }
            }
            State::HalfOpen { .. } => self.open(now),
            // Sent before it opened, or although it is; it does not wait any longer for that.
            State::Open { .. } => {}
        }
    }

    fn open(&mut self, now: Instant) {
        self.state = State::Open { until: Some(now + OPEN_FOR), good_probes: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            assert_eq!(breaker.passage(now), Passage::Free);
            breaker.ended(Outcome::Failed, now);
        }
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_it_for_half_a_minute() {
        let now = Instant::now();
        let breaker = opened(now);
        assert_eq!(breaker.passage(now + OPEN_FOR / 2), Passage::Shut);
        assert_eq!(breaker.passage(now + OPEN_FOR), Passage::Trial);
    }

    #[test]
    fn a_success_between_failures_starts_the_count_again() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        for n in 0..20 {
            let outcome = if n % 5 == 4 { Outcome::Ok } else { Outcome::Failed };
            breaker.ended(outcome, now);
        }
        assert!(!breaker.is_broken());
    }

    #[test]
    fn one_trial_at_a_time_and_two_successes_close_it() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + OPEN_FOR;
        breaker.sent(later);
        assert_eq!(breaker.passage(later), Passage::Shut, "a trial is under way");
        breaker.ended(Outcome::Ok, later);
        assert_eq!(breaker.passage(later), Passage::Trial);
        breaker.sent(later);
        breaker.ended(Outcome::Cancelled, later);
        assert_eq!(breaker.passage(later), Passage::Trial, "nothing was learnt");
        breaker.sent(later);
        breaker.ended(Outcome::Ok, later);
        assert_eq!(breaker.passage(later), Passage::Free);
    }

    #[test]
    fn a_failed_trial_opens_it_again() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + OPEN_FOR;
        breaker.sent(later);
        breaker.ended(Outcome::Failed, later);
        assert_eq!(breaker.passage(later + OPEN_FOR / 2), Passage::Shut);
        assert_eq!(breaker.passage(later + OPEN_FOR), Passage::Trial);
    }

    #[test]
    fn a_refusal_opens_it_at_once_until_a_probe_succeeds() {
        let now = Instant::now();
        let mut breaker = Breaker::default();
        breaker.ended(Outcome::Refused, now);
        assert_eq!(breaker.passage(now + 10 * OPEN_FOR), Passage::Shut);
        breaker.probed(false);
        assert_eq!(breaker.passage(now), Passage::Shut);
        breaker.probed(true);
        assert_eq!(breaker.passage(now), Passage::Trial);
    }

    #[test]
    fn good_probes_end_the_wait_early_but_not_the_first() {
        let now = Instant::now();
        let mut breaker = opened(now);
        (1..PROBES_TO_TRY).for_each(|_| breaker.probed(true));
        assert_eq!(breaker.passage(now), Passage::Shut);
        breaker.probed(true);
        assert_eq!(breaker.passage(now), Passage::Trial);
    }
}
