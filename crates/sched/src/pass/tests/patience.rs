//! Who waits longest, and what it may keep from others.

use tutti_model::*;

use crate::testing::*;

const LONG: Span = Span::secs(3600);
const DAYS: Span = Span::secs(8 * 86_400);

fn starving_gang(with_head: bool) -> Case {
    let c = case().nodes(3, 1).running(time(LONG, gpus(1)), &[(1, &[0])]);
    let c = c.running(gpus(1), &[(2, &[0])]).running(gpus(1), &[(3, &[0])]);
    let c = c.submit_ago(DAYS, gang(3, 1));
    if with_head { c.submit(priority(5, gpus(1))) } else { c }
}
#[test]
fn who_starves_keeps_nodes() {
    assert_ne!(starving_gang(false).claimed(), "");
}
#[test]
fn who_starves_keeps_nodes_before_others_lead() {
    assert_ne!(starving_gang(true).claimed(), "");
}

fn shrinking(n: u32) -> Case {
    let one: &[u16] = &[0];
    let parts: Vec<(u32, &[u16])> = (1..=n).map(|n| (n, one)).collect();
    let mut c = case().nodes(n + 10, 1).running(class("scavenger", elastic(n - 2, n, 1)), &parts);
    for k in 0..10 {
        c = c.running(class("scavenger", gpus(1)), &[(n + 1 + k, one)]);
    }
    c.submit(class("urgent", gang(4, 1)))
}
#[test]
fn few_that_cost_nothing_hide_nobody() {
    assert_ne!(shrinking(40).claimed(), "");
}
#[test]
fn many_that_cost_nothing_hide_nobody() {
    assert_ne!(shrinking(100).claimed(), "");
}

fn lent_by_many(x: u32) -> Case {
    let one: &[u16] = &[0];
    let mut c = case().nodes(x + 10, 1).team("x", |t| t.guarantee = quota(x - 1)).team("y", |_| {});
    c = c.team("z", |t| t.guarantee = quota(4));
    for k in 1..=x {
        c = c.running(team("x", gpus(1)), &[(k, one)]);
    }
    for k in 1..=10 {
        c = c.running(team("y", gpus(1)), &[(x + k, one)]).change_task(|t| {
            let since = Time(NOW.0 - 3_000_000);
            let a = t.attempt_mut().unwrap();
            (a.placed_at, a.phase) = (since, AttemptPhase::Running { since });
        });
    }
    c.submit(team("z", gang(4, 1)))
}
#[test]
fn few_guaranteed_hide_no_borrower() {
    assert_ne!(lent_by_many(40).claimed(), "");
}
#[test]
fn many_guaranteed_hide_no_borrower() {
    assert_ne!(lent_by_many(70).claimed(), "");
}

#[test]
fn few_wait_with_nodes_of_their_own() {
    let mut c = case().nodes(8, 1);
    for n in 1..=8 {
        c = c.running(gpus(1), &[(n, &[0])]);
    }
    for user in ["a", "b", "c", "d"] {
        c = c.user(user).submit_ago(LONG, gang(2, 1));
    }
    let n = c.plan().claims.len();
    assert!(n <= 1, "{n} claims: {}", c.claimed());
}

fn at_a_limit(limit: GpuQuota) -> Case {
    let c = case().nodes(2, 4).team("t", |t| t.limit = Some(limit));
    let c = c.user("bob").running(team("t", gpus(3)), &[(1, &[0, 1, 2])]);
    c.user("ada").submit_ago(LONG, team("t", gpus(4))).user("bob").submit(team("t", gpus(1)))
}
#[test]
fn a_limit_is_kept_for_the_longest_wait() {
    assert_eq!(at_a_limit(quota(4)).placed(), "");
}
#[test]
fn a_limit_by_model_is_kept_for_the_longest_wait() {
    let limit = GpuQuota { any: 0, models: [("h100".to_owned(), 4)].into() };
    assert_eq!(at_a_limit(limit).placed(), "");
}

#[test]
fn not_for_one_without_hope() {
    let c = case().nodes(1, 8).node(|_| {}, &["a100"; 4]).drain(2);
    let c = c.team("t", |t| t.limit = Some(quota(8)));
    let c = c.user("bob").running(team("t", gpus(6)), &[(1, &[0, 1, 2, 3, 4, 5])]);
    let c = c.user("ada").submit_ago(LONG, team("t", model(gpus(4), "a100")));
    let c = c.user("bob").submit(team("t", gpus(1)));
    assert_ne!(c.placed(), "");
}

#[test]
fn a_claim_is_not_kept_again_beyond_a_limit() {
    let c = case().nodes(3, 4).team("t", |t| t.limit = Some(quota(8)));
    let all: &[u16] = &[0, 1, 2, 3];
    let c = c.running(class("urgent", gpus(4)), &[(1, all)]);
    let c = c.running(class("scavenger", gpus(4)), &[(2, all)]);
    let c = c.running(class("scavenger", gpus(4)), &[(3, all)]);
    let c = c.submit_ago(LONG, class("scavenger", team("t", gpus(4))));
    let c = c.claim("4", ClaimCause::Overdue, &[(1, all)]);
    let c = c.submit(class("urgent", team("t", gang(2, 4))));
    let plan = c.plan();
    assert!(
        plan.claims.is_empty() || !plan.dropped.is_empty(),
        "both: {} {:?}",
        c.claimed(),
        plan.dropped
    );
}
#[test]
fn who_was_made_room_for_goes_first() {
    let c = case().nodes(3, 4).team("t", |t| t.limit = Some(quota(8)));
    let all: &[u16] = &[0, 1, 2, 3];
    let c = c.running(class("urgent", gpus(4)), &[(1, all)]);
    let c = c.submit_ago(LONG, class("scavenger", team("t", gpus(4))));
    let c = c.claim("2", ClaimCause::Overdue, &[(1, all)]);
    let c = c.submit(class("urgent", team("t", gang(2, 4))));
    let c = c.claim("3", ClaimCause::Class, &[(2, all), (3, all)]);
    let plan = c.plan();
    assert_eq!(plan.dropped, ["2".parse().unwrap()]);
    assert_eq!(c.placed(), "3@n2:0,1,2,3+n3:0,1,2,3");
}

#[test]
fn an_array_that_reached_its_limit_meanwhile_keeps_no_room() {
    let c = case().nodes(2, 4).submit_ago(LONG, array("0-9%1", gpus(4)));
    let c = c.running_index(0, &[(1, &[0, 1, 2, 3])]);
    let c = c.claim("1_1", ClaimCause::Overdue, &[(2, &[0, 1, 2, 3])]);
    let plan = c.plan();
    assert_eq!((c.placed().as_str(), plan.dropped), ("", vec!["1_1".parse().unwrap()]));
}

#[test]
fn who_waits_for_the_end_of_a_gang_does_not_take_what_it_keeps_when_it_shrinks() {
    let (all, half): (&[u16], &[u16]) = (&[0, 1, 2, 3], &[0, 1]);
    let c = case().nodes(2, 4).submit(gang(1, 2)).submit_ago(LONG, gang(1, 4));
    let c = c.claim("1", ClaimCause::Resize, &[(1, half)]);
    let c = c.claim("2", ClaimCause::Overdue, &[(1, all)]);
    let plan = c.plan();
    assert_eq!(plan.dropped, ["2".parse().unwrap()]);
    assert_eq!(c.placed(), "1@n1:0,1 2@n2:0,1,2,3");
}

fn before_a_reservation(head: bool) -> Case {
    let c = case().nodes(1, 1).node(|_| {}, &["a100"]);
    let (name, nodes) = ("power".to_owned(), ["n1".to_owned()].into());
    let (from, until) = (NOW.plus(LONG), NOW.plus(Span::secs(7200)));
    let r = Reservation { name, nodes, from, until, team: None };
    let c = c.policy(|p| p.reservations.push(r));
    let c = c.running(class("scavenger", gpus(1)), &[(1, &[0])]);
    let c = c.running(class("urgent", time(LONG, gpus(1))), &[(2, &[0])]);
    let c = if head { c.submit(class("urgent", priority(5, model(gpus(1), "a100")))) } else { c };
    let c = c.user("ada2").submit(class("urgent", time(Span::secs(7000), gpus(1))));
    c.submit(class("urgent", time(Span::secs(600), gpus(1))))
}
#[test]
fn a_short_job_behind_a_long_one_may_stop_others() {
    assert_ne!(before_a_reservation(false).claimed(), "");
}
#[test]
fn also_behind_a_head() {
    assert_ne!(before_a_reservation(true).claimed(), "");
}

#[test]
fn a_straggler_keeps_no_nodes_idle() {
    let parts: Vec<(u32, &[u16])> = (1..5).map(|n| (n, &[0u16][..])).collect();
    let c = case().nodes(4, 1).running(time(Span::secs(36_000), gang(4, 1)), &parts);
    let c = c.change_task(|task| {
        let done = || PartState::Done { exits: Vec::new(), error: None };
        task.attempt_mut().unwrap().parts.iter_mut().take(3).for_each(|p| p.phase = done());
    });
    let c = c.submit(priority(5, gang(4, 1))).submit(time(Span::secs(600), gpus(1)));
    assert_ne!(c.placed(), "", "heads {:?}", c.plan().heads);
}

fn siblings(hope: bool) -> Case {
    // The overdue one of "kid" closes the parent, and with it a sibling team.
    let c = case().nodes(1, 8).node(|_| {}, &["a100"; 4]);
    let c = if hope { c } else { c.drain(2) };
    let c = c.team("top", |t| t.limit = Some(quota(8)));
    let c = c.team("kid", |t| t.parent = Some("top".to_owned()));
    let c = c.team("sib", |t| t.parent = Some("top".to_owned()));
    let c = c.user("bob").running(team("sib", gpus(6)), &[(1, &[0, 1, 2, 3, 4, 5])]);
    let c = c.user("ada").submit_ago(LONG, team("kid", model(gpus(4), "a100")));
    c.user("bob").submit(team("sib", gpus(1)))
}
#[test]
fn nor_for_its_siblings() {
    assert_ne!(siblings(false).placed(), "");
}

#[test]
fn of_an_array_that_starves_one_task_goes_first() {
    let c = case().nodes(1, 3).user("ada").submit_ago(DAYS, array("1-9", gpus(1)));
    let c = c.user("bob").submit(priority(5, gpus(1))).submit(priority(5, gpus(1)));
    assert_eq!(c.placed(), "1_1@n1:0 2@n1:1 3@n1:2");
}
