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
        let why = StopCause::Preempted { for_job: JobId(9), not_suspended: None };
        let running_since = t.attempt().unwrap().running_since(NOW);
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

#[test]
fn an_elastic_claimant_takes_what_its_guarantee_covers() {
    let all: [(u32, &[u16]); 4] = [1, 2, 3, 4].map(|n| (n, &[0u16, 1, 2, 3][..]));
    let c = case().nodes(4, 4).team("a", |t| t.guarantee = quota(8)).team("b", |_| {});
    let c = c.running(team("b", gang(4, 4)), &all).change_task(since(60));
    let claimed = c.submit(team("a", elastic(2, 4, 4))).claimed();
    assert_eq!(claimed, "2@n1:0,1,2,3+n2:0,1,2,3 guarantee [1]");
}

#[test]
fn among_many_a_gang_may_be_cheaper_than_single_jobs() {
    let whole: &[u16] = &[0, 1, 2, 3];
    let c = scavenger(case().nodes(14, 4), 10, &[(1, whole), (2, whole)]);
    let c = (3..15).fold(c, |c, n| scavenger(c, 11, &[(n, whole)]));
    let c = c.submit(urgent(gang(2, 4)));
    assert_eq!(c.claimed(), "14@n1:0,1,2,3+n2:0,1,2,3 class [1]");
}

#[test]
fn whoever_wants_nodes_alone_takes_all_of_them() {
    let c = case().nodes(4, 4).team("a", |t| t.guarantee = quota(4)).team("b", |_| {});
    let c = (1..5).fold(c, |c, n| {
        c.running(team("b", gpus(4)), &[(n, &[0, 1, 2, 3])]).change_task(since(60))
    });
    let c = (0..4).fold(c, |c, _| c.submit(team("a", exclusive(gpus(1)))));
    assert_eq!(c.claimed(), "5@n1:0 guarantee [1]", "a guarantee of one node stops one job");
}

#[test]
fn nobody_is_stopped_who_would_delay_the_head() {
    let c = case().node(|_| {}, &["h100"; 6]);
    let c = c.running(time(Span::secs(1800), gpus(3)), &[(1, &[0, 1, 2])]);
    let c = scavenger(c, 60, &[(1, &[3])]);
    let c = c.submit(priority(5, time(Span::secs(600), gpus(4)))).submit(total(3));
    assert_eq!(c.plan().heads.len(), 1);
    assert_eq!(c.claimed(), "");
}

#[test]
fn before_maintenance_a_short_job_may_do_what_a_long_one_may_not() {
    let window = Reservation {
        name: "r".into(),
        nodes: ["n1".to_owned()].into(),
        from: NOW.plus(Span::secs(7200)),
        until: NOW.plus(Span::secs(9200)),
        team: None,
    };
    let c = case().nodes(1, 4).team("a", |t| t.guarantee = quota(4)).team("b", |_| {});
    let c = c.policy(|p| p.reservations.push(window));
    let c = c.running(team("b", gpus(4)), &[(1, &[0, 1, 2, 3])]).change_task(since(60));
    let c = c.submit(team("a", time(Span::secs(86_400), gpus(4))));
    let c = c.submit(team("a", time(Span::secs(600), gpus(4))));
    assert_eq!(c.claimed(), "3@n1:0,1,2,3 guarantee [1]");
}

#[test]
fn an_elastic_job_that_ends_does_not_shrink() {
    let c = case()
        .nodes(3, 2)
        .running(class("scavenger", elastic(1, 3, 2)), &[(1, &[0, 1]), (2, &[0, 1]), (3, &[0, 1])]);
    let c = c.change_task(|task| {
        since(60)(task);
        let done = PartState::Done { exits: Vec::new(), error: None };
        task.attempt_mut().unwrap().parts[0].phase = done;
    });
    let plan = c.submit(urgent(gang(2, 2))).plan();
    let victims = plan.claims.iter().flat_map(|c| &c.victims);
    assert!(victims.into_iter().all(|v| v.how == Stop::Requeue), "{:?}", plan.claims);
}

/// To change its size it would have to start again, and a held job does not.
#[test]
fn a_held_elastic_job_does_not_shrink() {
    let held = JobSpec { hold: true, ..class("scavenger", elastic(1, 2, 2)) };
    let c = case().nodes(2, 2).running(held, &[(1, &[0, 1]), (2, &[0, 1])]).change_task(since(60));
    let plan = c.submit(urgent(gang(1, 2))).plan();
    let victims: Vec<&Stop> = plan.claims.iter().flat_map(|c| &c.victims).map(|v| &v.how).collect();
    assert_eq!(victims, [&Stop::Requeue]);
}

#[test]
fn a_large_gang_may_stop_many() {
    let mut c = case().nodes(9, 8).team("a", |t| t.guarantee = quota(72)).team("b", |_| {});
    for (n, gpu) in (1..10).flat_map(|n| (0..8).map(move |gpu| (n, gpu))) {
        c = c.running(team("b", gpus(1)), &[(n, &[gpu])]).change_task(since(60));
    }
    let plan = c.submit(team("a", gang(9, 8))).plan();
    assert_eq!(plan.claims.iter().map(|c| c.victims.len()).sum::<usize>(), 72);
}

/// Eight GPUs, and teams that are promised a thousand and four: the thousand count as five of them.
#[test]
fn nobody_is_stopped_for_gpus_that_are_promised_but_not_there() {
    let all: [(u32, &[u16]); 2] = [(1, &[0, 1, 2, 3]), (2, &[0, 1, 2, 3])];
    let c = |asked: JobSpec| {
        let c = case().nodes(2, 4).team("a", |t| t.guarantee = quota(1000));
        let c = c.team("b", |t| t.guarantee = quota(4));
        c.running(team("guest", gang(2, 4)), &all).submit(team("a", asked))
    };
    assert_eq!(c(gang(2, 4)).claimed(), "", "eight are more than its part");
    assert_eq!(c(gpus(4)).claimed(), "2@n1:0,1,2,3 guarantee [1]");
    let enough = c(gang(2, 4)).team("a", |t| t.guarantee = quota(8)).team("b", |_| {});
    assert_eq!(enough.claimed(), "2@n1:0,1,2,3+n2:0,1,2,3 guarantee [1]");
}
