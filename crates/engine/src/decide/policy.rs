//! The operator's policy is replaced as a whole, or not at all.

use std::sync::Arc;

use tutti_model::{Policy, Role};

use super::{Decision, View, done, need_role};
use crate::command::Actor;
use crate::event::Event;
use crate::reject::Rejected;

/// Nothing lies between the comparison and the change, so no change of somebody else is lost.
pub(super) fn replace(view: View<'_>, actor: &Actor, old: &Policy, policy: &Policy) -> Decision {
    need_role(actor, Role::Admin)?;
    if *old != *view.state.policy {
        return Err(Rejected::PolicyMoved);
    }
    set(view, actor, policy)
}

pub(super) fn set(view: View<'_>, actor: &Actor, policy: &Policy) -> Decision {
    need_role(actor, Role::Admin)?;
    let problems = policy.problems();
    if !problems.is_empty() {
        return Err(Rejected::BadPolicy(problems));
    }
    if *policy == *view.state.policy {
        return done(Vec::new());
    }
    let by = actor.user.clone();
    done(vec![Event::PolicyChanged { policy: Arc::new(policy.clone()), by }])
}
