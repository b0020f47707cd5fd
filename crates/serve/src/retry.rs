//! Whether a request that a replica did not answer goes to another one.

use std::io;

use tutti_model::RetryRule;

use crate::answer::Answer;
use crate::logic::Outcome;

/// One request's tries.
pub struct Tries {
    rule: RetryRule,
    /// Doing it twice is the same as once, or it only computes.
    harmless: bool,
    left: usize,
    /// Connections that turned out to be closed already. Each is found once.
    stale: usize,
    last: Option<Answer>,
}

/// What to think of a replica that gave no answer, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Verdict {
    pub outcome: Outcome,
    /// The next try must go to another replica.
    pub elsewhere: bool,
    /// No more tries: say this.
    pub give_up: Option<Answer>,
}

impl Tries {
    /// `most` replicas at most are asked.
    pub fn new(rule: RetryRule, method: &str, is_api: bool, most: usize) -> Tries {
        let idempotent = matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE");
        let harmless = idempotent || method == "POST" && is_api;
        Tries { rule, harmless, left: most.max(1), stale: 0, last: None }
    }

    fn may_repeat(&self, repeatable: bool) -> bool {
        let allowed = match self.rule {
            RetryRule::Safe => self.harmless,
            RetryRule::Always => true,
            RetryRule::Never => false,
        };
        allowed && repeatable && self.left > 1
    }

    fn elsewhere(&mut self, outcome: Outcome, again: bool, answer: Answer) -> Verdict {
        self.left -= 1;
        self.last = Some(answer.clone());
        Verdict { outcome, elsewhere: true, give_up: (!again).then_some(answer) }
    }

    /// Nobody was reached, so nothing can have been done. A replica that refuses is gone and is asked no
    /// more, so this costs no try: the request may wait for those that take its place.
    pub fn not_connected(&mut self, error: &io::Error) -> Verdict {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            return Verdict { outcome: Outcome::Refused, elsewhere: true, give_up: None };
        }
        let outcome = Outcome::Failed;
        let message = format!("the replica can't be reached: {error}");
        let answer = Answer::error(502, "replica_unreachable", &message);
        self.elsewhere(outcome, self.left > 1, answer)
    }

    /// The connection broke before anything of an answer came.
    pub fn broken(&mut self, reused: bool, repeatable: bool) -> Verdict {
        let again = self.may_repeat(repeatable);
        let answer =
            Answer::error(502, "replica_broke_off", "the replica broke off before it answered");
        if reused && self.harmless && repeatable && self.rule != RetryRule::Never && self.stale < 3
        {
            // Most likely it had closed an idle connection. That is not a failure, and it may be asked again.
            self.stale += 1;
            return Verdict { outcome: Outcome::Cancelled, elsewhere: false, give_up: None };
        }
        self.elsewhere(Outcome::Failed, again, answer)
    }

    /// An answer has begun. None: pass it on.
    pub fn answered(&mut self, status: u16, repeatable: bool) -> Option<Verdict> {
        if !matches!(status, 502..=504) || !self.may_repeat(repeatable) {
            return None;
        }
        let message = format!("the replica answered with {status}, and no other could be asked");
        let answer = Answer::error(status, "replica_failed", &message);
        Some(self.elsewhere(Outcome::Failed, true, answer))
    }

    /// There is no other replica: what the last one did says more.
    pub fn last_failure(&mut self, otherwise: Answer) -> Answer {
        self.last.take().unwrap_or(otherwise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(rule: RetryRule, method: &str) -> Tries {
        Tries::new(rule, method, true, 3)
    }

    #[test]
    fn what_never_reached_a_replica_is_always_tried_again() {
        let mut tries = Tries::new(RetryRule::Never, "PATCH", false, 3);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        for _ in 0..10 {
            let verdict = tries.not_connected(&refused);
            assert_eq!((verdict.outcome, verdict.give_up), (Outcome::Refused, None));
        }
        let late = io::Error::from(io::ErrorKind::TimedOut);
        for left in [true, true, false] {
            let verdict = tries.not_connected(&late);
            assert_eq!(verdict.outcome, Outcome::Failed);
            assert_eq!(verdict.give_up.is_none(), left);
        }
    }

    #[test]
    fn only_harmless_requests_are_sent_twice_unless_the_rule_says_more() {
        for (rule, method, again) in [
            (RetryRule::Safe, "POST", true),
            (RetryRule::Safe, "GET", true),
            (RetryRule::Safe, "PATCH", false),
            (RetryRule::Always, "PATCH", true),
            (RetryRule::Never, "GET", false),
        ] {
            assert_eq!(tries(rule, method).broken(false, true).give_up.is_none(), again);
            assert_eq!(tries(rule, method).answered(503, true).is_some(), again);
            assert_eq!(tries(rule, method).answered(500, true), None);
            assert_eq!(tries(rule, method).answered(503, false), None, "the body is gone");
        }
        let mut elsewhere = Tries::new(RetryRule::Safe, "POST", false, 3);
        assert!(elsewhere.broken(false, true).give_up.is_some(), "who knows what it does");
    }

    #[test]
    fn a_connection_closed_while_idle_is_no_failure_of_the_replica() {
        let mut tries = tries(RetryRule::Safe, "POST");
        let verdict = tries.broken(true, true);
        assert_eq!((verdict.outcome, verdict.elsewhere), (Outcome::Cancelled, false));
        assert_eq!(verdict.give_up, None);
    }

    #[test]
    fn the_third_failure_is_passed_on() {
        let mut tries = tries(RetryRule::Safe, "POST");
        assert!(tries.answered(503, true).is_some());
        assert!(tries.answered(503, true).is_some());
        assert_eq!(tries.answered(503, true), None);
    }
}
