//! One request at an endpoint, from its admission to the books.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tutti_model::Span;
use tutti_wire::guests::Notice;

use crate::access::{Admitted, Caller};
use crate::answer::Answer;
use crate::crowding::RequestRoom;
use crate::desk::{Asked, Got, Lease, Wish};
use crate::logic::{AnswerKind, Ended, Ending, Who};
use crate::routes::Entry;
use crate::shared::Shared;
use crate::tokens::Tokens;

/// Once every replica was tried, they are tried anew so often, after a pause that grows by this.
const ROUNDS_MAX: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// A request that was let in. Dropping it closes its account.
pub struct Visit {
    pub entry: Arc<Entry>,
    pub wish: Wish,
    admitted: Admitted,
    /// Where there is a crowd.
    room: Option<RequestRoom>,
    who: Who,
    started: Instant,
    ended: Ended,
    tokens: Option<Tokens>,
    last_token: Option<Instant>,
    /// For want of room, after it was let in.
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
        } else if !caller.may_ask(entry.is_open()) {
            return Err(caller.turned_away());
        }
        let admitted = match admitted {
            Some(admitted) => admitted,
            None => Admitted::new(caller, started).inspect_err(|_| entry.desk.refused())?,
        };
        Ok(Visit {
            entry: entry.clone(),
            wish: Wish::default(),
            admitted,
            room: None,
            who: caller.who(),
            started,
            ended: Ended { ending: Ending::Cancelled, ..Ended::default() },
            tokens: None,
            last_token: None,
            refused: false,
            rounds: 0,
        })
    }

    /// With whose requests this one is judged.
    pub fn who(&self) -> Who {
        self.who
    }

    /// `whole`: nothing more is to come from the client.
    pub fn take_room(&mut self, shared: &Shared, whole: bool) -> Result<(), Answer> {
        let under_way = shared.active.load(Ordering::Relaxed);
        let entered = shared.crowding.enter(under_way, self.who, whole);
        self.room = entered.inspect_err(|_| self.refused = true)?;
        Ok(())
    }

    /// Resolves when its room was given to somebody else: nothing more is done for it.
    pub fn notice(&self) -> Option<Notice> {
        self.room.as_ref().map(RequestRoom::notice)
    }

    /// A replica for it, at once or after waiting.
    pub async fn replica(&mut self) -> Result<Lease, Answer> {
        loop {
            let (now, waited) = (Instant::now(), self.ended.queue_wait);
            let got = match self.entry.desk.ask(&self.wish, self.who, waited, now) {
                Asked::Now(got) => Some(got),
                Asked::Waits(waiting) => {
                    let got = waiting.turn().await;
                    self.ended.queue_wait += now.elapsed();
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
            // Requests are held for nothing else.
            _ if self.entry.route.hold == Span(0) => {
                let message = format!("'{name}' is being stopped");
                Answer::error(503, "endpoint_closed", &message)
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
        if let Some(room) = &self.room {
            room.working(true);
        }
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
            // A server that dies inside a stream may end it in order.
            let failed = self.tokens.as_ref().is_some_and(Tokens::tells_of_an_error);
            self.ended.ending = if failed { Ending::Failed } else { Ending::Answered };
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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::desk::Desk;
    use crate::logic::{Outcome, ReplicaKey};
    use tutti_model::{
        Access, EndpointRoute, Generation, JobId, ReplicaRoute, RetryRule, RoutePolicy,
    };

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn route(hold: u64) -> EndpointRoute {
        let replica = ReplicaRoute {
            job: JobId(1),
            generation: Generation(1),
            revision: 1,
            address: "127.0.0.1:1".to_owned(),
            draining: false,
            health: None,
        };
        EndpointRoute {
            name: "m".to_owned(),
            models: Vec::new(),
            policy: RoutePolicy::RoundRobin,
            sticky_header: String::new(),
            health: "/".to_owned(),
            slow_start: Span(0),
            max_in_flight: None,
            target_in_flight: 1,
            queue: 10,
            queue_wait: Span(hold),
            hold: Span(hold),
            access: Access::Open,
            retry: RetryRule::Safe,
            replicas: vec![replica],
            split: Vec::new(),
        }
    }

    #[tokio::test]
    async fn who_asks_what_is_being_stopped_is_told_so() {
        let (route, now) = (EndpointRoute { replicas: Vec::new(), ..route(0) }, Instant::now());
        let desk = Arc::new(Desk::new(&route, now));
        let entry = Arc::new(Entry { route, desk });
        let caller = Caller { key: None, local: true, foreign: None, peer: HERE };
        let mut visit = Visit::begin(&entry, &caller, None, now).unwrap();
        let answer = visit.replica().await.err().expect("there is none");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == 503 && text.contains("'m' is being stopped"), "{text}");
    }

    #[tokio::test]
    async fn a_stream_that_tells_of_an_error_has_failed() {
        let (route, now) = (route(200), Instant::now());
        let desk = Arc::new(Desk::new(&route, now));
        let entry = Arc::new(Entry { route, desk });
        let caller = Caller { key: None, local: true, foreign: None, peer: HERE };
        let ending = |events: &str| {
            let mut visit = Visit::begin(&entry, &caller, None, now).unwrap();
            visit.answer_begins(200, AnswerKind::Events);
            visit.body(events.as_bytes());
            visit.answered();
            visit.ended.ending
        };
        let (good, end) = ("data: {\"choices\":[{\"text\":\"a\"}]}\n\n", "data: [DONE]\n\n");
        let dead = "data: {\"error\": {\"message\": \"the engine is dead\", \"code\": 500}}\n\n";
        assert_eq!(ending(&format!("{good}{end}")), Ending::Answered);
        assert_eq!(ending(&format!("{good}{dead}{end}")), Ending::Failed);
        assert_eq!(ending(&format!("{good}{}", dead.trim_end())), Ending::Failed, "cut off");
        let said = "data: {\"choices\":[{\"text\":\"{\\\"error\\\": {}}\"}]}\n\n";
        assert_eq!(ending(&format!("{said}{end}")), Ending::Answered);
    }

    #[tokio::test]
    async fn who_gets_one_dead_replica_after_another_still_waits_only_so_long() {
        let (route, now) = (route(200), Instant::now());
        let key = ReplicaKey::from(&route.replicas[0]);
        let desk = Arc::new(Desk::new(&route, now));
        desk.update(&route, now);
        let entry = Arc::new(Entry { route, desk: desk.clone() });
        let caller = Caller { key: None, local: true, foreign: None, peer: HERE };
        let mut visit = Visit::begin(&entry, &caller, None, now).unwrap();
        // Well by every probe, and dead for every request.
        let probes = tokio::spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_millis(30));
            loop {
                tick.tick().await;
                desk.probed(key, Ok(()), Instant::now());
            }
        });
        let trying = async {
            let mut dead = 0;
            loop {
                match visit.replica().await {
                    Ok(lease) => lease.finish(Outcome::Refused, Instant::now()),
                    Err(answer) => return (dead, answer.status),
                }
                dead += 1;
            }
        };
        let tried = tokio::time::timeout(Duration::from_secs(20), trying).await;
        let (dead, status) = tried.expect("its patience ends, however often it gets one");
        assert!(dead > 0 && status == 503, "{dead} dead ones, then {status}");
        assert!(visit.ended.queue_wait >= Duration::from_millis(200));
        probes.abort();
    }
}
