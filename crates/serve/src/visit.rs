//! One request at an endpoint, from its admission to the books.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::access::{Admitted, Caller, unauthorized};
use crate::answer::Answer;
use crate::desk::{Asked, Got, Lease, Wish};
use crate::logic::{AnswerKind, Ended, Ending};
use crate::routes::Entry;
use crate::tokens::Tokens;

/// Once every replica was tried, they are tried anew so often, after a pause that grows by this.
const ROUNDS_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// A request that was let in. Dropping it closes its account.
pub struct Visit {
    pub entry: Arc<Entry>,
    pub wish: Wish,
    admitted: Admitted,
    number: u32,
    started: Instant,
    ended: Ended,
    tokens: Option<Tokens>,
    last_token: Option<Instant>,
    /// With 429, after it was let in.
    refused: bool,
    /// How often every replica was tried.
    rounds: u32,
}

impl Visit {
    /// Lets a caller in, or says why not. `admitted` if its key's limits did before.
    pub fn begin(
        entry: &Arc<Entry>,
        caller: &Caller,
        admitted: Option<Admitted>,
        started: Instant,
    ) -> Result<Visit, Answer> {
        let name = &entry.route.name;
        if let Some(key) = &caller.key {
            if !key.good_for(name) {
                let message = format!("this key is not for '{name}': ask for one that is");
                return Err(Answer::error(403, "key_not_for_endpoint", &message));
            }
        } else if !caller.local && !entry.is_open() {
            return Err(unauthorized(
                "a key is needed: send it as 'Authorization: Bearer tutti_s_…'",
            ));
        }
        let admitted = match admitted {
            Some(admitted) => admitted,
            None => Admitted::new(caller, started).inspect_err(|_| entry.desk.refused())?,
        };
        Ok(Visit {
            entry: entry.clone(),
            wish: Wish::default(),
            admitted,
            number: caller.number(),
            started,
            ended: Ended { ending: Ending::Cancelled, ..Ended::default() },
            tokens: None,
            last_token: None,
            refused: false,
            rounds: 0,
        })
    }

    /// A replica for it, at once or after waiting.
    pub async fn replica(&mut self) -> Result<Lease, Answer> {
        let asked_at = Instant::now();
        loop {
            let got = match self.entry.desk.ask(&self.wish, self.number, Instant::now()) {
                Asked::Now(got) => Some(got),
                Asked::Waits(waiting) => {
                    let got = waiting.turn().await;
                    self.ended.queue_wait += asked_at.elapsed();
                    got
                }
            };
            match got {
                Some(Got::Lease(lease)) => {
                    self.ended.revision = Some(lease.choice.revision);
                    self.ended.prefix_blocks = lease.choice.prefix_blocks;
                    self.ended.prefix_hit_blocks = lease.choice.prefix_hit_blocks;
                    return Ok(lease);
                }
                Some(Got::Again) => tokio::task::yield_now().await,
                // Those that died are known by then, and it waits for others to take their place.
                Some(Got::Exhausted) if self.rounds < ROUNDS_MAX => {
                    self.rounds += 1;
                    self.wish.tried.clear();
                    tokio::time::sleep(PAUSE * self.rounds).await;
                }
                got => return Err(self.no_replica(got)),
            }
        }
    }

    fn no_replica(&mut self, got: Option<Got>) -> Answer {
        let name = &self.entry.route.name;
        self.ended.ending = Ending::Failed;
        match got {
            Some(Got::Refused { retry_after }) => {
                self.refused = true;
                let message = format!("'{name}' has as many requests waiting as it may: try again");
                Answer::error(429, "queue_full", &message).retry_after(retry_after)
            }
            Some(Got::Closed) => {
                let message = format!("'{name}' was taken away");
                Answer::error(503, "endpoint_closed", &message)
            }
            Some(Got::Exhausted) => {
                let message = format!("every replica of '{name}' that was asked failed");
                Answer::error(502, "replicas_failed", &message)
            }
            _ => {
                let message = format!("no replica of '{name}' became free in time: try again");
                let after = Duration::from_secs(5);
                Answer::error(503, "no_replica", &message).retry_after(after)
            }
        }
    }

    /// The request is sent to another replica than this one, which failed.
    pub fn retried(&mut self, revision: u32) {
        self.entry.desk.retried(revision);
    }

    /// An answer begins, with this status. `kind` says how tokens are found in it.
    pub fn answer_begins(&mut self, status: u16, kind: AnswerKind) {
        self.ended.ending = if status >= 500 { Ending::Failed } else { Ending::Cancelled };
        self.tokens = (kind != AnswerKind::Other).then(|| Tokens::new(kind));
    }

    /// A part of the answer's body. Says how many tokens end in it, about.
    pub fn body(&mut self, bytes: &[u8]) -> u64 {
        self.tokens.as_mut().map_or(0, |tokens| tokens.feed(bytes))
    }

    /// So much came at once, with so many tokens in it.
    pub fn came(&mut self, tokens: u64) {
        if tokens == 0 && self.ended.first_byte.is_some() {
            return;
        }
        let now = Instant::now();
        self.ended.first_byte.get_or_insert(now.duration_since(self.started));
        if tokens > 0
            && let Some(last) = self.last_token.replace(now)
        {
            // Those that came together were waited for together, and count once.
            self.ended.per_token.add(now.duration_since(last).as_micros() as u64 / tokens);
        }
    }

    /// The answer is whole.
    pub fn answered(&mut self) {
        if self.ended.ending == Ending::Cancelled {
            self.ended.ending = Ending::Answered;
        }
    }

    /// Broken off by the replica, or none could answer.
    pub fn failed(&mut self) {
        self.ended.ending = Ending::Failed;
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let now = Instant::now();
        if let Some(tokens) = self.tokens.take() {
            self.ended.usage = tokens.finish();
        }
        let usage = &self.ended.usage;
        self.admitted.charge(usage.prompt_tokens + usage.output_tokens, now);
        if self.refused {
            self.entry.desk.refused();
            return;
        }
        self.ended.total = now.duration_since(self.started);
        self.entry.desk.ended(&self.ended);
    }
}
