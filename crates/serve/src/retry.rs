//! Whether a request that a replica did not answer goes to another one.

use std::io;
use std::time::Duration;

use tutti_model::RetryRule;

use crate::answer::Answer;
use crate::logic::Outcome;

/// How the paths end where a `POST` computes and changes nothing: those of OpenAI's and Anthropic's API,
/// vLLM, SGLang, TGI, TEI and Triton.
const COMPUTING: [&str; 20] = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/moderations",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/generate",
    "/generate_stream",
    "/infer",
    "/embed",
    "/rerank",
    "/score",
    "/classify",
    "/pooling",
    "/tokenize",
    "/detokenize",
];

/// One request's tries.
pub struct Tries {
    rule: RetryRule,
    /// Doing it twice is the same as once, or it only computes.
    harmless: bool,
    left: usize,
    /// A connection that was used before broke, most likely since it was closed while idle.
    stale: bool,
    last: Option<Answer>,
}

/// How far a request got on a connection that broke before anything of an answer came.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    /// It was used before.
    pub reused: bool,
    /// All that was sent can be sent again.
    pub repeatable: bool,
    pub sent: Sent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Nothing,
    Some,
    All,
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
    /// `most` replicas at most are asked. `path` is the replica's, without a query.
    pub fn new(rule: RetryRule, method: &str, path: &str, most: usize) -> Tries {
        let idempotent = matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE");
        let computes = || COMPUTING.iter().any(|end| path.ends_with(end));
        let harmless = idempotent || method == "POST" && computes();
        Tries { rule, harmless, left: most.max(1), stale: false, last: None }
    }

    /// The next connection must be a new one: what one that was used before is worth is known by now.
    pub fn wants_new(&self) -> bool {
        self.stale
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
            if self.stale {
                // Its old connection was not closed for being idle, then: it died, perhaps of this.
                self.left = 1;
            }
            return Verdict { outcome: Outcome::Refused, elsewhere: true, give_up: None };
        }
        if is_ours(error) {
            let message = format!("this router can't open a connection: {error}");
            let answer = Answer::error(503, "router_busy", &message);
            let answer = answer.retry_after(Duration::from_secs(1));
            return self.elsewhere(Outcome::Cancelled, self.left > 1, answer);
        }
        let outcome = Outcome::Failed;
        let message = format!("the replica can't be reached: {error}");
        let answer = Answer::error(502, "replica_unreachable", &message);
        self.elsewhere(outcome, self.left > 1, answer)
    }

    /// The connection broke before anything of an answer came.
    pub fn broken(&mut self, how: Broken) -> Verdict {
        let untouched = how.sent == Sent::Nothing && how.repeatable;
        let harmless = self.harmless && how.repeatable && self.rule != RetryRule::Never;
        if how.reused && !self.stale && (harmless || untouched) {
            // Most likely it had closed an idle connection. That is not a failure, and it may be asked again.
            self.stale = true;
            return Verdict { outcome: Outcome::Cancelled, elsewhere: false, give_up: None };
        }
        if how.sent == Sent::All {
            // What kills one server kills the next: once more, and then no more.
            self.left = self.left.min(2);
        }
        let again = self.may_repeat(how.repeatable) || untouched && self.left > 1;
        let answer =
            Answer::error(502, "replica_broke_off", "the replica broke off before it answered");
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

/// The router has no descriptors or ports left, which says nothing of a replica.
fn is_ours(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::EADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tries(rule: RetryRule, method: &str) -> Tries {
        Tries::new(rule, method, "/v1/completions", 3)
    }

    fn broke(reused: bool, sent: Sent) -> Broken {
        Broken { reused, repeatable: true, sent }
    }

    fn refused() -> io::Error {
        io::ErrorKind::ConnectionRefused.into()
    }

    #[test]
    fn what_never_reached_a_replica_is_always_tried_again() {
        let mut tries = Tries::new(RetryRule::Never, "PATCH", "/x", 3);
        for _ in 0..10 {
            let verdict = tries.not_connected(&refused());
            assert_eq!((verdict.outcome, verdict.give_up), (Outcome::Refused, None));
        }
        assert_eq!(tries.broken(broke(true, Sent::Nothing)).give_up, None);
        let late = io::Error::from(io::ErrorKind::TimedOut);
        for left in [true, true, false] {
            let verdict = tries.not_connected(&late);
            assert_eq!(verdict.outcome, Outcome::Failed);
            assert_eq!(verdict.give_up.is_none(), left);
        }
    }

    #[test]
    fn what_the_router_lacks_is_not_the_replica_s_fault() {
        let mut tries = tries(RetryRule::Safe, "POST");
        for errno in [libc::EMFILE, libc::ENFILE, libc::EADDRNOTAVAIL] {
            let verdict = tries.not_connected(&io::Error::from_raw_os_error(errno));
            assert_eq!(verdict.outcome, Outcome::Cancelled, "{errno}");
            let last = verdict.give_up.map(|answer| answer.status);
            assert_eq!(last, (errno == libc::EADDRNOTAVAIL).then_some(503), "the third is told");
        }
    }

    #[test]
    fn only_harmless_requests_are_sent_twice_unless_the_rule_says_more() {
        let half = broke(false, Sent::Some);
        for (rule, method, again) in [
            (RetryRule::Safe, "POST", true),
            (RetryRule::Safe, "GET", true),
            (RetryRule::Safe, "PATCH", false),
            (RetryRule::Always, "PATCH", true),
            (RetryRule::Never, "GET", false),
        ] {
            assert_eq!(tries(rule, method).broken(half).give_up.is_none(), again);
            assert_eq!(tries(rule, method).answered(503, true).is_some(), again);
            assert_eq!(tries(rule, method).answered(500, true), None);
            assert_eq!(tries(rule, method).answered(503, false), None, "the body is gone");
        }
    }

    #[test]
    fn a_post_is_harmless_only_where_it_computes() {
        for (path, again) in [
            ("/v1/chat/completions", true),
            ("/openai/v1/embeddings", true),
            ("/v2/models/m/infer", true),
            ("/v1/files", false),
            ("/v1/fine_tuning/jobs", false),
            ("/v1/completions/7/cancel", false),
            ("/x", false),
        ] {
            for reused in [false, true] {
                let mut tries = Tries::new(RetryRule::Safe, "POST", path, 3);
                let verdict = tries.broken(broke(reused, Sent::Some));
                assert_eq!(verdict.give_up.is_none(), again, "{path}");
            }
        }
    }

    #[test]
    fn a_connection_closed_while_idle_is_no_failure_of_the_replica() {
        let mut tries = tries(RetryRule::Safe, "POST");
        let verdict = tries.broken(broke(true, Sent::All));
        assert_eq!((verdict.outcome, verdict.elsewhere), (Outcome::Cancelled, false));
        assert_eq!(verdict.give_up, None);
        assert!(tries.wants_new());
    }

    #[test]
    fn what_kills_a_server_is_sent_to_one_more_at_most() {
        let mut fresh = tries(RetryRule::Always, "POST");
        assert_eq!(fresh.broken(broke(false, Sent::All)).give_up, None);
        assert!(fresh.broken(broke(false, Sent::All)).give_up.is_some());
        let mut reused = tries(RetryRule::Safe, "POST");
        assert_eq!(reused.broken(broke(true, Sent::All)).give_up, None);
        assert_eq!(reused.not_connected(&refused()).give_up, None, "so it died of that");
        assert!(reused.wants_new());
        assert!(reused.broken(broke(false, Sent::All)).give_up.is_some());
    }

    #[test]
    fn the_third_failure_is_passed_on() {
        let mut tries = tries(RetryRule::Safe, "POST");
        assert!(tries.answered(503, true).is_some());
        assert!(tries.answered(503, true).is_some());
        assert_eq!(tries.answered(503, true), None);
    }
}
