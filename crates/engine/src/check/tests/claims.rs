use tutti_model::{Checkpoint, Preempt, PreemptMode};

use super::*;

fn all(node: NodeId) -> PartPlacement {
    part(node, &[0, 1, 2, 3])
}

/// A scavenger has n1 and has run for a minute; a job of the standard class wants it.
fn class_case() -> (Case, TaskId, TaskId, Plan) {
    let mut c = case();
    let low = c.running(of_class("scavenger", gang(1, 4)), vec![all(N1)]);
    let high = c.waiting(gang(1, 4));
    let plan = claim(high, vec![all(N1)], ClaimCause::Class, vec![requeue(low, 240_000)]);
    (c, low, high, plan)
}

/// Team b borrows n1 and n2 with jobs of four GPUs; team a is guaranteed four. There are more GPUs, so
/// that larger guarantees can be kept.
fn guarantee_case() -> (Case, [TaskId; 2], TaskId, Plan) {
    let mut c = Case { world: World::new(&[4, 4, 8]) };
    c.set_team("a", guaranteed(4));
    c.set_team("b", guaranteed(4));
    let first = c.running(of_team("b", gang(1, 4)), vec![all(N1)]);
    let second = c.running(of_team("b", gang(1, 4)), vec![all(N2)]);
    let owner = c.waiting(of_team("a", gang(1, 4)));
    let victims = vec![requeue(first, 2 * 240_000)];
    let plan = claim(owner, vec![all(N1)], ClaimCause::Guarantee, victims);
    (c, [first, second], owner, plan)
}

fn with(plan: &Plan, change: impl FnOnce(&mut NewClaim)) -> Plan {
    let mut plan = plan.clone();
    change(&mut plan.claims[0]);
    plan
}

#[test]
fn a_higher_class_may_take_from_a_lower_one_and_only_that() {
    let (c, low, high, plan) = class_case();
    c.accepts(&plan);
    let same = c.refuses_if(&plan, |s| spec_mut(s, low.job).class = None);
    assert_eq!(same, Violation::NotJustified(high, low, "its class is not lower"));
    let off = c.refuses_if(&plan, |s| policy_mut(s).preemption.enabled = false);
    assert_eq!(off, Violation::PreemptionOff(high));
    let many = c.refuses_if(&plan, |s| policy_mut(s).preemption.victims_max = 0);
    assert_eq!(many, Violation::TooManyVictims(high, 1, 0));
    let none = with(&plan, |claim| claim.victims.clear());
    assert!(matches!(c.refuses(&none), Violation::GpuTaken(..)), "the lower class still has it");
}

#[test]
fn a_claim_is_for_one_who_waits_and_has_none() {
    let (mut c, low, high, plan) = class_case();
    assert_eq!(c.refuses_if(&plan, |s| job_mut(s, high.job).held = true), Violation::Held(high));
    let mut both = plan.clone();
    both.placements.push(Placement { task: high, parts: vec![all(N2)] });
    assert_eq!(c.refuses(&both), Violation::ClaimedTwice(high));
    let closed = c.refuses_if(&plan, |s| {
        s.nodes.get_mut(&N1).unwrap().link = tutti_model::Link::Away { since: Time(0) };
    });
    assert_eq!(closed, Violation::NodeClosed(high, N1));
    c.carry_out(plan.clone());
    assert_eq!(c.refuses(&plan), Violation::ClaimedTwice(high));
    let next = c.waiting(gang(1, 4));
    let stopping = with(&plan, |claim| claim.task = next);
    assert_eq!(c.refuses(&stopping), Violation::NotRunning(next, low));
}

#[test]
fn a_guarantee_takes_back_what_was_lent_and_no_more() {
    let (mut c, [first, second], owner, plan) = guarantee_case();
    c.accepts(&plan);
    // With one of its jobs gone, b has only what is its own.
    let both = with(&plan, |claim| {
        claim.victims.push(requeue(second, 240_000));
    });
    let own = "its team has no more than it is guaranteed";
    assert_eq!(c.refuses(&both), Violation::NotJustified(owner, second, own));
    let lent = c.refuses_if(&plan, |s| policy_mut(s).teams.get_mut("b").unwrap().guarantee.any = 8);
    assert_eq!(lent, Violation::NotJustified(owner, first, own));
    let beyond =
        c.refuses_if(&plan, |s| policy_mut(s).teams.get_mut("a").unwrap().guarantee.any = 3);
    assert_eq!(beyond, Violation::BeyondGuarantee(owner));
    let class = c.refuses_if(&plan, |s| spec_mut(s, first.job).class = Some("urgent".into()));
    assert_eq!(class, Violation::NotJustified(owner, first, "its class is higher"));
    // What a has claimed counts as had, and what b was told to give up as gone.
    c.carry_out(plan.clone());
    let next = c.waiting(of_team("a", gang(1, 4)));
    let victims = vec![requeue(second, 240_000)];
    let more = claim(next, vec![all(N2)], ClaimCause::Guarantee, victims);
    assert_eq!(c.refuses(&more), Violation::BeyondGuarantee(next));
    let wide = c.refuses_if(&more, |s| policy_mut(s).teams.get_mut("a").unwrap().guarantee.any = 8);
    assert_eq!(wide, Violation::NotJustified(next, second, own));
}

#[test]
fn the_own_team_and_those_inside_a_guarantee_above_are_left_alone() {
    let (c, [first, _], owner, plan) = guarantee_case();
    let own = "its team has no more than it is guaranteed";
    let team = c.refuses_if(&plan, |s| {
        job_mut(s, first.job).team = "a".into();
        policy_mut(s).teams.get_mut("a").unwrap().guarantee.any = 8;
    });
    assert_eq!(team, Violation::NotJustified(owner, first, own));
    let above = c.refuses_if(&plan, |s| {
        let teams = &mut policy_mut(s).teams;
        teams.insert("lab".into(), guaranteed(8));
        let b = teams.get_mut("b").unwrap();
        b.parent = Some("lab".into());
        b.guarantee.any = 0;
    });
    assert_eq!(above, Violation::NotJustified(owner, first, own));
}

#[test]
fn victims_are_fair_game_only_once_in_a_while_and_if_they_allow_it() {
    let (c, low, high, plan) = class_case();
    let task = |s: &mut State| match &mut job_mut(s, low.job).tasks {
        tutti_model::Tasks::One(t) => t.preempted_at = Some(Time(1)),
        tutti_model::Tasks::Array(_) => unreachable!("it is no array"),
    };
    assert_eq!(c.refuses_if(&plan, task), Violation::PreemptedAgain(high, low));
    let never = c.refuses_if(&plan, |s| {
        spec_mut(s, low.job).preempt = Some(Preempt { mode: PreemptMode::Never });
    });
    assert_eq!(never, Violation::NeverPreempt(high, low));
    let twice = with(&plan, |claim| claim.victims.push(requeue(low, 240_000)));
    assert_eq!(c.refuses(&twice), Violation::NotJustified(high, low, "it is stopped already"));
    let gone = with(&plan, |claim| claim.victims[0].task = TaskId::single(JobId(99)));
    assert_eq!(c.refuses(&gone), Violation::NotRunning(high, TaskId::single(JobId(99))));
}

#[test]
fn the_cost_is_the_work_since_it_was_last_safe() {
    let (mut c, low, high, plan) = class_case();
    let cheap = with(&plan, |claim| claim.victims[0].cost = 1);
    assert_eq!(c.refuses(&cheap), Violation::WrongCost(high, low, 1, 240_000));
    let saves = c.refuses_if(&plan, |s| {
        spec_mut(s, low.job).checkpoint = Some(Checkpoint {
            dir: "/ckpt".into(),
            signal: Some("USR1".into()),
            grace: Some(Span::secs(10)),
        });
    });
    assert_eq!(saves, Violation::WrongCost(high, low, 240_000, 40_000));
    let saved = Command::Saved { actor: ada(), task: low };
    c.world.engine.step(saved, c.world.now).reply.unwrap();
    c.world.now.0 += 1000;
    let cost = |n| with(&plan, |claim| claim.victims[0].cost = n);
    c.accepts(&cost(4000));
}

#[test]
fn the_room_that_victims_leave_is_enough_and_each_is_needed() {
    let mut c = case();
    let low =
        |c: &mut Case, gpu| c.running(of_class("scavenger", gang(1, 1)), vec![part(N1, &[gpu])]);
    let (a, b) = (low(&mut c, 0), low(&mut c, 1));
    let high = c.waiting(gang(1, 3));
    let victims = vec![requeue(a, 120_000)];
    let plan = claim(high, vec![part(N1, &[0, 2, 3])], ClaimCause::Class, victims);
    c.accepts(&plan);
    let superfluous = with(&plan, |claim| claim.victims.push(requeue(b, 60_000)));
    assert_eq!(c.refuses(&superfluous), Violation::Superfluous(high, b));
    let short = with(&plan, |claim| claim.parts = vec![part(N1, &[0, 1, 2])]);
    assert_eq!(c.refuses(&short), Violation::GpuTaken(high, N1, GpuIndex(1)));
    // What is placed by the same plan is there first.
    let small = c.waiting(gang(1, 1));
    let mut both = plan.clone();
    both.placements.push(Placement { task: small, parts: vec![part(N1, &[2])] });
    assert_eq!(c.refuses(&both), Violation::GpuTaken(high, N1, GpuIndex(2)));
}

#[test]
fn two_claims_do_not_share_room() {
    let (mut c, _, high, plan) = class_case();
    let next = c.waiting(gang(1, 4));
    let other = c.running(of_class("scavenger", gang(1, 1)), vec![part(N2, &[0])]);
    let mut both = with(&plan, |claim| claim.victims[0].cost += 240_000);
    both.claims.push(NewClaim { task: next, ..both.claims[0].clone() });
    both.claims[1].victims = vec![requeue(other, 60_000)];
    assert_eq!(c.refuses(&both), Violation::GpuTaken(next, N1, GpuIndex(0)));
    both.claims[1].parts = vec![all(N2)];
    c.accepts(&both);
    assert_eq!(both.claims[0].task, high);
}

#[test]
fn an_overdue_claim_needs_patience_and_stops_nobody() {
    let mut c = case();
    let low = c.running(of_class("scavenger", gang(1, 4)), vec![all(N1)]);
    let task = c.waiting(gang(2, 4));
    let plan = claim(task, vec![all(N1), all(N2)], ClaimCause::Overdue, vec![]);
    assert_eq!(c.refuses(&plan), Violation::NotOverdue(task));
    c.world.now.0 += 301_000;
    c.accepts(&plan);
    let stops = with(&plan, |claim| claim.victims.push(requeue(low, 0)));
    let why = "a job that has waited long stops nobody";
    assert_eq!(c.refuses(&stops), Violation::NotJustified(task, low, why));
    let next = c.waiting(gang(1, 4));
    c.world.now.0 += 301_000;
    c.carry_out(plan);
    let over = claim(next, vec![all(N1)], ClaimCause::Overdue, vec![]);
    assert_eq!(c.refuses(&over), Violation::GpuTaken(next, N1, GpuIndex(0)));
}

#[test]
fn an_elastic_job_grows_for_itself_alone() {
    let mut c = case();
    let task = c.running(elastic(1, 2), vec![all(N1)]);
    let plan = claim(task, vec![all(N1), all(N2)], ClaimCause::Resize, vec![requeue(task, 0)]);
    c.accepts(&plan);
    let bad = |c: &Case, plan: &Plan| match c.refuses(plan) {
        Violation::BadResize(_, why) => why,
        other => panic!("{other}"),
    };
    let same = with(&plan, |claim| claim.parts = vec![all(N2)]);
    assert_eq!(bad(&c, &same), "it has that size");
    let none = with(&plan, |claim| claim.victims.clear());
    assert_eq!(bad(&c, &none), "others would be stopped for it");
    let rigid = c.refuses_if(&plan, |s| spec_mut(s, task.job).elastic = None);
    assert_eq!(rigid, Violation::BadResize(task, "it is not elastic"));
    c.placed(gang(1, 1), vec![part(N2, &[0])]);
    assert_eq!(c.refuses(&plan), Violation::GpuTaken(task, N2, GpuIndex(0)));
}

#[test]
fn an_elastic_victim_keeps_what_it_can_go_on_with() {
    let mut c = case();
    let spec = of_class("scavenger", elastic(1, 2));
    let low = c.running(spec, vec![all(N1), all(N2)]);
    let high = c.waiting(gang(1, 4));
    let shrink =
        |keep: Vec<PartPlacement>| Victim { task: low, how: Stop::Shrink { keep }, cost: 0 };
    let plan = claim(high, vec![all(N2)], ClaimCause::Class, vec![shrink(vec![all(N1)])]);
    c.accepts(&plan);
    let why = |c: &Case, keep: Vec<PartPlacement>| match c
        .refuses(&with(&plan, |claim| claim.victims = vec![shrink(keep)]))
    {
        Violation::BadShrink(_, _, why) => why,
        other => panic!("{other}"),
    };
    assert_eq!(why(&c, vec![]), "it needs 1 nodes");
    assert_eq!(why(&c, vec![all(N1), all(N2)]), "it gives nothing up");
    assert_eq!(why(&c, vec![part(N1, &[0])]), "it does not hold that part of node 1");
    // What it keeps is not free for the claimant.
    let kept = with(&plan, |claim| claim.parts = vec![all(N1)]);
    assert_eq!(c.refuses(&kept), Violation::GpuTaken(high, N1, GpuIndex(0)));
    let dear = with(&plan, |claim| claim.victims[0].cost = 1);
    assert_eq!(c.refuses(&dear), Violation::WrongCost(high, low, 1, 0));
    c.carry_out(plan);
    assert_eq!(c.state().claims.len(), 2);
}

#[test]
fn what_is_kept_for_the_overdue_is_not_kept_from_a_higher_class() {
    let mut c = case();
    c.running(gang(1, 1), vec![part(N1, &[0])]);
    let large = c.waiting(gang(1, 4));
    c.world.now.0 += 301_000;
    c.carry_out(claim(large, vec![all(N1)], ClaimCause::Overdue, vec![]));
    let task = c.waiting(gang(1, 1));
    let plan = place(task, vec![part(N1, &[1])]);
    assert_eq!(c.refuses(&plan), Violation::Kept(task, N1, large));
    let low = c.refuses_if(&plan, |s| spec_mut(s, task.job).class = Some("scavenger".into()));
    assert_eq!(low, Violation::Kept(task, N1, large));
    let mut state = c.state().clone();
    spec_mut(&mut state, task.job).class = Some("urgent".into());
    assert_eq!(check(&state, &plan, c.world.now), Ok(()));
}

#[test]
fn whoever_wants_a_node_alone_needs_a_guarantee_for_all_of_it() {
    let mut c = case();
    c.set_team("a", guaranteed(4));
    c.set_team("b", guaranteed(0));
    let lent = c.running(of_team("b", gang(1, 4)), vec![all(N1)]);
    let owner = c.waiting(JobSpec { exclusive: true, ..of_team("a", gang(1, 1)) });
    let victims = vec![requeue(lent, 240_000)];
    let plan = claim(owner, vec![part(N1, &[0])], ClaimCause::Guarantee, victims);
    c.accepts(&plan);
    let less = c.refuses_if(&plan, |s| policy_mut(s).teams.get_mut("a").unwrap().guarantee.any = 3);
    assert_eq!(less, Violation::BeyondGuarantee(owner));
}
