//! What is left of endpoints that were stopped.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::{Endpoint, Served, Time};

/// Endpoints that are remembered after their end.
pub const PAST_ENDPOINTS_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastEndpoint {
    pub name: String,
    pub user: String,
    pub team: String,
    pub created_at: Time,
    pub stopped_at: Time,
    pub served: Served,
}

impl PastEndpoint {
    pub fn of(endpoint: Endpoint, stopped_at: Time) -> PastEndpoint {
        let Endpoint { name, user, team, created_at, served, .. } = endpoint;
        PastEndpoint { name, user, team, created_at, stopped_at, served }
    }
}

/// In the order in which they ended. The oldest are forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PastEndpoints(VecDeque<PastEndpoint>);

impl PastEndpoints {
    pub fn add(&mut self, past: PastEndpoint) {
        self.0.push_back(past);
        let over = self.0.len().saturating_sub(PAST_ENDPOINTS_MAX);
        self.0.drain(..over);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The newest first.
    pub fn iter(&self) -> impl Iterator<Item = &PastEndpoint> {
        self.0.iter().rev()
    }

    /// The last one that had this name.
    pub fn last(&self, name: &str) -> Option<&PastEndpoint> {
        self.iter().find(|past| past.name == name)
    }

    pub fn last_mut(&mut self, name: &str) -> Option<&mut PastEndpoint> {
        self.0.iter_mut().rev().find(|past| past.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;

    fn past(n: u64) -> PastEndpoint {
        PastEndpoint {
            name: format!("e{}", n % 2),
            user: "ada".into(),
            team: "lab".into(),
            created_at: Time(n),
            stopped_at: Time(n + 1),
            served: Served { requests: n, ..Served::default() },
        }
    }

    #[test]
    fn the_newest_are_kept() {
        let mut all = PastEndpoints::default();
        let many = PAST_ENDPOINTS_MAX as u64 + 5;
        (0..many).for_each(|n| all.add(past(n)));
        assert_eq!(all.iter().count(), PAST_ENDPOINTS_MAX);
        let ends = [all.iter().next(), all.iter().last()].map(|p| p.unwrap().created_at.0);
        assert_eq!(ends, [many - 1, 5]);
        all.last_mut("e1").unwrap().served.requests = 7;
        assert_eq!(all.last("e1").map(|p| (p.created_at.0, p.served.requests)), Some((1003, 7)));
        assert_eq!(all.last("other"), None);
    }

    #[test]
    fn a_state_of_before_has_none() {
        let mut state = State::default();
        let old = serde_json::to_value(&state).unwrap();
        assert_eq!(old.get("past_endpoints"), None);
        assert_eq!(serde_json::from_value::<State>(old).unwrap(), state);
        state.past_endpoints.add(past(1));
        let new = serde_json::to_value(&state).unwrap();
        assert_eq!(new["past_endpoints"][0]["served"]["requests"], 1);
        assert_eq!(serde_json::from_value::<State>(new).unwrap(), state);
    }
}
