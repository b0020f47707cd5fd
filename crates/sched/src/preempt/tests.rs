use tutti_model::*;

use crate::testing::*;

fn since(minutes: u64) -> impl FnOnce(&mut Task) {
    move |task| {
        let since = Time(NOW.0 - minutes * 60_000);
        let attempt = task.attempt_mut().unwrap();
        (attempt.placed_at, attempt.phase) = (since, AttemptPhase::Running { since });
    }
}

fn scavenger(c: Case, minutes: u64, parts: &[(u32, &[u16])]) -> Case {
    let spec = class("scavenger", gang(parts.len() as u32, parts[0].1.len() as u32));
    c.running(spec, parts).change_task(since(minutes))
}

fn urgent(spec: JobSpec) -> JobSpec {
    class("urgent", spec)
}

#[test]
fn the_cheapest_set_that_is_enough() {
    let c = scavenger(case().nodes(2, 2), 50, &[(1, &[0, 1])]);
    let c = scavenger(scavenger(c, 60, &[(2, &[0])]), 30, &[(2, &[1])]);
    assert_eq!(c.submit(urgent(gpus(2))).claimed(), "4@n2:0,1 class [2 3]");
    let c = scavenger(case().nodes(2, 2), 50, &[(1, &[0, 1])]);
    let c = scavenger(scavenger(c, 90, &[(2, &[0])]), 30, &[(2, &[1])]);
    assert_eq!(c.submit(urgent(gpus(2))).claimed(), "4@n1:0,1 class [1]");
}

#[test]
fn saved_work_costs_nothing() {
    let c = scavenger(case().nodes(2, 1), 50, &[(1, &[0])]);
    let c = c.change_task(|t| t.attempt_mut().unwrap().saved_at = Some(Time(NOW.0 - 1000)));
    let c = scavenger(c, 10, &[(2, &[0])]).submit(urgent(gpus(1)));
    assert_eq!(c.claimed(), "3@n1:0 class [1]");
    assert_eq!(c.plan().claims[0].victims[0].cost, 1000);
}

#[test]
fn a_gang_is_stopped_whole() {
    let c = scavenger(case().nodes(2, 2), 5, &[(1, &[0, 1]), (2, &[0, 1])]).submit(urgent(gpus(1)));
    assert_eq!(c.claimed(), "2@n1:0 class [1]");
    let c = c.submit(urgent(gpus(1)));
    assert_eq!(c.claimed(), "2@n1:0 class [1] 3@n1:1 class []", "nobody else need be stopped");
}

#[test]
fn an_elastic_gang_shrinks_before_anybody_is_stopped() {
    let c = scavenger(case().nodes(3, 2), 1, &[(3, &[0, 1])]);
    let spec = class("scavenger", elastic(1, 2, 2));
    let c = c.running(spec, &[(1, &[0, 1]), (2, &[0, 1])]).submit(urgent(gpus(2)));
    assert_eq!(c.claimed(), "3@n1:0,1 class [2>n2]");
}

#[test]
fn nobody_is_stopped_for_nothing() {
    let c =
        scavenger(case().nodes(2, 2), 5, &[(1, &[0, 1])]).running(urgent(gpus(1)), &[(2, &[0])]);
    assert_eq!(c.submit(urgent(gang(2, 2))).claimed(), "", "the other node stays busy");
    let c = scavenger(case().nodes(1, 2), 5, &[(1, &[0, 1])]).submit(gpus(2));
    assert_eq!(c.policy(|p| p.preemption.enabled = false).claimed(), "");
    let c = scavenger(scavenger(case().nodes(1, 2), 5, &[(1, &[0])]), 5, &[(1, &[1])]);
    let c = c.submit(urgent(gpus(2))).policy(|p| p.preemption.victims_max = 1);
    assert_eq!(c.claimed(), "", "too many victims");
}

#[test]
fn some_are_left_alone() {
    let never = |spec| JobSpec { preempt: Some(Preempt { mode: PreemptMode::Never }), ..spec };
    let c = case().nodes(1, 1).running(never(class("scavenger", gpus(1))), &[(1, &[0])]);
    assert_eq!(c.submit(urgent(gpus(1))).claimed(), "");
    let again = |t: &mut Task| t.preempted_at = Some(Time(NOW.0 - 60_000));
    let c = scavenger(case().nodes(1, 1), 5, &[(1, &[0])]).change_task(again);
    assert_eq!(c.submit(urgent(gpus(1))).claimed(), "", "not twice within half an hour");
    let c = scavenger(case().nodes(1, 1), 31, &[(1, &[0])]).change_task(again);
    assert_eq!(c.submit(urgent(gpus(1))).claimed(), "2@n1:0 class [1]");
}

fn lent() -> Case {
    let c = case().nodes(1, 4).team("a", |t| t.guarantee = quota(2)).team("b", |_| {});
    c.running(team("b", gpus(2)), &[(1, &[0, 1])]).running(team("b", gpus(2)), &[(1, &[2, 3])])
}

#[test]
fn what_was_lent_comes_back_on_demand() {
    assert_eq!(lent().submit(team("a", gpus(2))).claimed(), "3@n1:0,1 guarantee [1]");
    assert_eq!(lent().submit(team("a", gpus(3))).claimed(), "", "more than is guaranteed");
    let c = lent().submit(team("a", gpus(2))).submit(team("a", gpus(1)));
    assert_eq!(c.claimed(), "3@n1:0,1 guarantee [1]", "no more than that");
}

#[test]
fn what_is_guaranteed_is_not_taken_back() {
    let c = lent().team("b", |t| t.guarantee = quota(4)).submit(team("a", gpus(2)));
    assert_eq!(c.claimed(), "");
    let c = lent().team("b", |t| t.guarantee = quota(2)).submit(team("a", gpus(2)));
    assert_eq!(c.claimed(), "3@n1:0,1 guarantee [1]");
    let c = c.team("a", |t| t.guarantee = quota(4)).submit(team("a", gpus(2)));
    assert_eq!(c.claimed(), "3@n1:0,1 guarantee [1]", "the second is b's own");
}

#[test]
fn those_who_leave_already_are_not_replaced() {
    let stopping = |t: &mut Task| {
        let why = StopCause::Preempted { for_job: JobId(9) };
        let running_since = t.attempt().unwrap().running_since();
        t.attempt_mut().unwrap().phase = AttemptPhase::Stopping { since: NOW, running_since, why };
    };
    let c = lent().team("b", |t| t.guarantee = quota(2)).change_task(stopping);
    let c = c.submit(team("a", gpus(2)));
    assert_eq!(c.claimed(), "3@n1:2,3 guarantee []", "b keeps its own");
}

#[test]
fn siblings_are_no_borrowers() {
    let child = |t: &mut Team| t.parent = Some("top".to_owned());
    let c = case().nodes(1, 4).team("top", |t| t.guarantee = quota(4)).team("x", child);
    let c = c.team("y", child).running(team("x", gpus(2)), &[(1, &[0, 1])]);
    let c = c.running(gpus(2), &[(1, &[2, 3])]).submit(team("y", gpus(2)));
    assert_eq!(c.claimed(), "3@n1:2,3 guarantee [2]");
}
