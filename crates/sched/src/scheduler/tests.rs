use tutti_model::*;

use crate::testing::*;
use crate::{Scheduler, plan};

#[test]
fn what_is_touched_is_looked_at_again() {
    let c = case().nodes(2, 1).submit(gpus(1)).submit(gpus(1));
    let mut state = c.state();
    let mut scheduler = Scheduler::default();
    assert_eq!(scheduler.plan(&state, NOW).placements.len(), 2);
    assert_eq!(
        scheduler.plan(&state, NOW),
        plan(&state, &c.policy, NOW),
        "nothing was carried out"
    );
    state.nodes.get_mut(&NodeId(1)).unwrap().link = Link::Lost { since: NOW };
    scheduler.touch(NodeId(1));
    assert_eq!(scheduler.plan(&state, NOW), plan(&state, &c.policy, NOW));
    assert_eq!(scheduler.plan(&state, NOW).placements.len(), 1);
}

#[test]
fn a_new_policy_or_node_is_noticed() {
    let c = case().nodes(1, 1).submit(gpus(1)).submit(gpus(1));
    let mut scheduler = Scheduler::default();
    scheduler.plan(&c.state(), NOW);
    let c = c.policy(|p| p.placements_max = 1).nodes(1, 1);
    assert_eq!(scheduler.plan(&c.state(), NOW).placements.len(), 1);
    let c = c.change_node(2, |n| n.facts.gpus[0].model = "a100".to_owned());
    let c = c.submit(model(gpus(1), "a100")).policy(|p| p.placements_max = 9);
    assert_eq!(scheduler.plan(&c.state(), NOW), c.plan());
}

#[test]
fn nothing_to_do_is_no_plan() {
    let c = case().nodes(1, 1).running(gpus(1), &[(1, &[0])]);
    assert_eq!(Scheduler::default().plan(&c.state(), NOW), Plan::default());
}
