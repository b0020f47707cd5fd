//! The scheduler with its view of the nodes kept between passes: bringing it up to date costs what
//! changed. Its plan is the one that a scheduler without memory would make.

use std::collections::BTreeSet;
use std::sync::Arc;

use tutti_model::{NodeId, Plan, Policy, State, Time};

use crate::cluster::Claims;
use crate::pass::{self, View, WhatIf};

#[derive(Debug, Default)]
pub struct Scheduler {
    view: Option<View>,
    touched: BTreeSet<NodeId>,
    policy: Arc<Policy>,
}

/// The plan for a state, by a scheduler that remembers nothing.
pub fn plan(state: &State, policy: &Policy, now: Time) -> Plan {
    if is_idle(state) {
        return Plan::default();
    }
    let mut view = View::new(state, policy);
    pass::run(&mut view, state, policy, now, WhatIf::default())
}

/// Nothing waits, and nothing that runs wants more.
fn is_idle(state: &State) -> bool {
    let index = &state.index;
    index.queue.is_empty()
        && index.elastic.is_empty()
        && index.asleep.is_empty()
        && state.claims.is_empty()
}

impl Scheduler {
    pub fn plan(&mut self, state: &State, now: Time) -> Plan {
        self.plan_if(state, now, WhatIf::default())
    }

    /// The plan in another state of affairs.
    pub(crate) fn plan_if(&mut self, state: &State, now: Time, what_if: WhatIf) -> Plan {
        if is_idle(state) {
            return Plan::default();
        }
        let policy = state.policy.clone();
        let view = self.look(state);
        let read = view.cluster.log().len();
        let plan = pass::run(view, state, &policy, now, what_if);
        // What the pass took in its own view is taken again, or not, by what becomes of the plan.
        let changed = &view.cluster.log()[read..];
        let changed: Vec<NodeId> = changed.iter().map(|&no| view.cluster.get(no).node).collect();
        self.touched.extend(changed);
        plan
    }

    /// The nodes as of now.
    pub(crate) fn look(&mut self, state: &State) -> &mut View {
        self.bring_up_to_date(state);
        self.view.get_or_insert_with(|| View::new(state, &self.policy))
    }

    /// Something on this node changed: leases, claims, facts or whether it takes work.
    pub fn touch(&mut self, node: NodeId) {
        self.touched.insert(node);
    }

    /// Everything may have changed.
    pub fn forget(&mut self) {
        self.view = None;
    }

    fn bring_up_to_date(&mut self, state: &State) {
        let touched = std::mem::take(&mut self.touched);
        if self.policy != state.policy {
            self.policy = state.policy.clone();
            self.view = None;
        }
        let Some(view) = &mut self.view else { return };
        if view.valuer.is_old(state, &self.policy) || view.cluster.slots.len() != state.nodes.len()
        {
            self.view = None;
            return;
        }
        let claims = Claims::of(state);
        let known =
            touched.iter().all(|&node| view.cluster.refresh(state, &self.policy, &claims, node));
        if !known {
            self.view = None;
            return;
        }
        if view.cluster.log().len() > 4 * view.cluster.slots.len() + 1024 {
            view.book.catch_up_all(&view.cluster, &view.valuer);
            view.cluster.clear_log();
            view.book.restart_log();
        }
    }
}

#[cfg(test)]
mod tests;
