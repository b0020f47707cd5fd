//! What was served, counted once: over restarts of routers, whose counters begin anew, and of the
//! controller, which has told the engine of some of it already.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tutti_model::{RouterReport, Served, Span, Time, Traffic};

/// Routers that said nothing for so long do not come back.
const FORGOTTEN_AFTER: Span = Span::secs(7 * 86_400);

/// How far each router's counters are known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Accounts {
    pub routers: BTreeMap<String, Account>,
    /// By endpoint.
    #[serde(skip)]
    pending: BTreeMap<String, Pending>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Account {
    pub heard_at: Time,
    endpoints: BTreeMap<String, Served>,
}

/// What was served and the state may not have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pending {
    /// Not told to the engine yet.
    more: Served,
    telling: Option<Telling>,
}

/// On its way to the engine.
#[derive(Clone, Debug, PartialEq)]
struct Telling {
    more: Served,
    /// What the state has once it is there.
    then: Served,
}

impl Pending {
    /// What the state lacks. What is on its way is either there or here: what people see as the sum
    /// of both never falls.
    pub fn beyond(&self, state: &Served) -> Served {
        let mut more = self.more.clone();
        if let Some(telling) = self.telling.as_ref().filter(|telling| !telling.is_in(state)) {
            more.add(&telling.more);
        }
        more
    }

    fn tell(&mut self, state: &Served) -> Served {
        let more = self.beyond(state);
        let mut then = state.clone();
        then.add(&more);
        *self =
            Pending { telling: Some(Telling { more: more.clone(), then }), ..Pending::default() };
        more
    }
}

impl Telling {
    fn is_in(&self, state: &Served) -> bool {
        let counts =
            |s: &Served| [s.requests, s.errors, s.refused, s.prompt_tokens, s.output_tokens];
        counts(state).iter().zip(counts(&self.then)).all(|(has, then)| *has >= then)
    }
}

/// To be told to the engine, and what is true once it is.
pub struct Told {
    pub served: BTreeMap<String, Served>,
    pub(super) accounts: Accounts,
}

impl Accounts {
    pub fn note(&mut self, report: &RouterReport, now: Time) {
        let account = self.routers.entry(report.router.clone()).or_default();
        account.heard_at = now;
        // A router that has no such endpoint any more counts it from nothing if it ever comes back;
        // what it counted so far is in `pending`.
        account.endpoints.retain(|name, _| report.endpoints.contains_key(name));
        for (endpoint, said) in &report.endpoints {
            let counted = counters(&said.traffic);
            let known = account.endpoints.entry(endpoint.clone()).or_default();
            let more = since(&counted, known);
            *known = counted;
            if more != Served::default() {
                self.pending.entry(endpoint.clone()).or_default().more.add(&more);
            }
        }
    }

    pub fn pending(&self, endpoint: &str) -> Pending {
        self.pending.get(endpoint).cloned().unwrap_or_default()
    }

    /// Of an endpoint that is long gone nobody wants to know, least of all the next of its name.
    pub fn forget(&mut self, gone: impl Fn(&str) -> bool) {
        self.pending.retain(|name, _| !gone(name));
    }

    /// `has` is what the state has of every endpoint that there is, or was lately. Once the engine has the
    /// answer it must be [`Accounts::told`].
    pub fn take(&mut self, has: &BTreeMap<String, Served>, now: Time) -> Told {
        self.routers.retain(|_, account| now.since(account.heard_at) < FORGOTTEN_AFTER);
        self.pending.retain(|name, _| has.contains_key(name));
        let tell = |(name, pending): (&String, &mut Pending)| {
            let more = pending.tell(has.get(name)?);
            (more != Served::default()).then(|| (name.clone(), more))
        };
        let served = self.pending.iter_mut().filter_map(tell).collect();
        Told { served, accounts: self.clone() }
    }

    pub fn told(&mut self) {
        self.pending.values_mut().for_each(|pending| pending.telling = None);
        self.pending.retain(|_, pending| *pending != Pending::default());
    }
}

fn counters(traffic: &Traffic) -> Served {
    Served {
        requests: traffic.requests,
        errors: traffic.errors,
        refused: traffic.refused,
        prompt_tokens: traffic.prompt_tokens,
        output_tokens: traffic.output_tokens,
        ..Served::default()
    }
}

/// All of it if the router counts from nothing again.
fn since(now: &Served, then: &Served) -> Served {
    if now.requests < then.requests {
        return now.clone();
    }
    Served {
        requests: now.requests - then.requests,
        errors: now.errors.saturating_sub(then.errors),
        refused: now.refused.saturating_sub(then.refused),
        prompt_tokens: now.prompt_tokens.saturating_sub(then.prompt_tokens),
        output_tokens: now.output_tokens.saturating_sub(then.output_tokens),
        ..Served::default()
    }
}
