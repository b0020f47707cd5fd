//! The scheduler with its view of the nodes kept between passes.

use tutti_model::{NodeId, Plan, State, Time};

#[derive(Debug, Default)]
pub struct Scheduler {}

impl Scheduler {
    pub fn plan(&mut self, state: &State, now: Time) -> Plan {
        crate::plan(state, &state.policy, now)
    }
    pub fn touch(&mut self, _node: NodeId) {}
    pub fn forget(&mut self) {}
}
