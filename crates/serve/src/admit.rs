//! What happens to a request before it goes to a replica, and what is made of one that gave no answer: the
//! same over HTTP/1.1 and HTTP/2.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tutti_model::RoutePolicy;

use crate::access::{Admitted, Caller, identify, wall_clock};
use crate::answer::Answer;
use crate::desk::Lease;
use crate::fault::Fault;
use crate::find::{Found, find, find_by_model};
use crate::http::{RequestHead, ResponseHead};
use crate::logic::{AnswerKind, scan_request};
use crate::own;
use crate::retry::Verdict;
use crate::routes::{Entry, Routes};
use crate::shared::Shared;
use crate::visit::Visit;

/// A request that may be asked, as far as its head says.
pub struct Admission {
    pub caller: Caller,
    /// First bytes of the target that only name the endpoint.
    pub skip: usize,
    /// One of OpenAI's API.
    pub is_api: bool,
    routes: Arc<Routes>,
    started: Instant,
    to: To,
}

enum To {
    Endpoint(Box<Visit>),
    /// The body's `model` says.
    ByModel(Admitted),
}

impl Admission {
    /// An error is the answer to give, which may well be a good one of the router's own.
    pub fn new(
        head: &RequestHead,
        peer: IpAddr,
        shared: &Shared,
        started: Instant,
    ) -> Result<Admission, Answer> {
        let routes = shared.routes();
        let caller = identify(head, shared.arrival(peer), &routes, wall_clock)?;
        let most = shared.config.limits.body;
        if head.length().is_some_and(|length| most.is_some_and(|most| length > most)) {
            return Err(Fault::TooLarge.answer());
        }
        // Before its body is read, so that a key's limits hold for bodies too.
        let (to, skip) = match find(head, &routes, &caller)? {
            Found::Own => return Err(own::answer(head, shared, &routes, &caller)),
            Found::Endpoint { entry, skip } => {
                let visit = Visit::begin(&entry, &caller, None, started)?;
                (To::Endpoint(Box::new(visit)), skip)
            }
            Found::ByModel => (To::ByModel(Admitted::new(&caller, started)?), 0),
        };
        let is_api = head.path()[skip..].starts_with("/v1/");
        Ok(Admission { caller, skip, is_api, routes, started, to })
    }

    /// Its body says where it goes: it must be read before.
    pub fn needs_body(&self) -> bool {
        match &self.to {
            To::ByModel(_) => true,
            To::Endpoint(visit) => self.is_api && by_prompt(&visit.entry),
        }
    }

    /// `body` is what was read of it, if that was needed; `more` if that is not all. Here the client has
    /// said what it must before anything is done for it, and takes up room from now on.
    pub fn visit(
        self,
        shared: &Shared,
        head: &RequestHead,
        body: &[u8],
        more: bool,
    ) -> Result<Visit, Answer> {
        let by_body = self.needs_body();
        let mut visit = match self.to {
            To::ByModel(admitted) => {
                let entry = find_by_model(body, more, &self.routes, &self.caller)?;
                Visit::begin(&entry, &self.caller, Some(admitted), self.started)?
            }
            To::Endpoint(visit) => *visit,
        };
        visit.take_room(shared, !more)?;
        let route = &visit.entry.route;
        if by_body && by_prompt(&visit.entry) {
            visit.wish.prompt = Some(scan_request(body, true).blocks);
        } else if route.policy == RoutePolicy::Sticky {
            let value = head.fields.named(&route.sticky_header);
            visit.wish.sticky = value.map(|v| String::from_utf8_lossy(v).into_owned());
        }
        Ok(visit)
    }
}

fn by_prompt(entry: &Entry) -> bool {
    entry.route.policy == RoutePolicy::Prefix
}

/// How tokens are found in an answer.
pub fn answer_kind(answer: &ResponseHead, is_api: bool) -> AnswerKind {
    match is_api && answer.status < 400 {
        true if answer.is_event_stream() => AnswerKind::Events,
        true if answer.is_json() => AnswerKind::Json,
        _ => AnswerKind::Other,
    }
}

/// The replica gave no answer that can be passed on. An error: say this. Else another is asked.
pub fn judge(visit: &mut Visit, lease: Lease, verdict: Verdict) -> Result<(), Answer> {
    let choice = lease.choice.clone();
    lease.finish(verdict.outcome, Instant::now());
    if let Some(answer) = verdict.give_up {
        visit.failed();
        return Err(answer);
    }
    if verdict.elsewhere {
        visit.wish.tried.push(choice.key);
        visit.retried(choice.revision);
    }
    Ok(())
}
