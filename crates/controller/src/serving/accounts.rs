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
    /// Not told to the engine yet.
    #[serde(skip)]
    pending: BTreeMap<String, Served>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Account {
    pub heard_at: Time,
    endpoints: BTreeMap<String, Served>,
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
        for (endpoint, said) in &report.endpoints {
            let counted = counters(&said.traffic);
            let known = account.endpoints.entry(endpoint.clone()).or_default();
            let more = since(&counted, known);
            *known = counted;
            if more != Served::default() {
                self.pending.entry(endpoint.clone()).or_default().add(&more);
            }
        }
    }

    pub fn pending(&self, endpoint: &str) -> Served {
        self.pending.get(endpoint).cloned().unwrap_or_default()
    }

    pub fn take(&mut self, now: Time) -> Told {
        self.routers.retain(|_, account| now.since(account.heard_at) < FORGOTTEN_AFTER);
        let served = std::mem::take(&mut self.pending);
        Told { served, accounts: self.clone() }
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
