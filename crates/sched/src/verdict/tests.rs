use tutti_model::*;

use crate::testing::*;

const HOUR: Span = Span::secs(3600);

#[test]
fn held_comes_before_everything() {
    let spec = JobSpec { hold: true, ..after("1", gpus(1)) };
    let c = case().nodes(1, 1).submit(gpus(1)).submit(spec);
    assert_eq!(c.verdict("2"), Some(Verdict::Held { suspended: None }));
}

#[test]
fn dependencies_are_named_while_they_run() {
    let c = case().nodes(1, 8).submit(gpus(1)).submit(after("any:1", array("0-3", gpus(1))));
    let waiting_for = vec!["any:1".parse().unwrap()];
    assert_eq!(c.verdict("2_3"), Some(Verdict::Dependencies { waiting_for }));
    let c = case().nodes(1, 1).submit(after("99", gpus(1))).submit(gpus(1));
    assert_eq!(c.placed(), "1@n1:0", "a forgotten job had ended");
}

#[test]
fn back_off_says_until_when() {
    let until = Time(NOW.0 + 500);
    let wait = |t: &mut Task| t.phase = Phase::Pending { since: NOW, not_before: until };
    let c = case().nodes(1, 8).submit(gpus(1)).change_task(wait);
    assert_eq!(c.verdict("1"), Some(Verdict::BackOff { until }));
    let c = case().nodes(1, 8).submit(array("0-0", gpus(1))).change_index(0, wait);
    assert_eq!(c.verdict("1_0"), Some(Verdict::BackOff { until }));
    assert_eq!(c.verdict("1"), Some(Verdict::BackOff { until }), "the whole array");
}

#[test]
fn only_pending_tasks_have_one() {
    let c = case().nodes(1, 8).running(gpus(1), &[(1, &[0])]).submit(array("0-1", gpus(1)));
    for task in ["1", "1_0", "2_7", "9"] {
        assert_eq!(c.verdict(task), None, "{task}");
    }
    assert_eq!(c.verdict("2_0"), Some(Verdict::Next));
    assert_eq!(c.verdict("2"), Some(Verdict::Next));
}

#[test]
fn the_limit_of_an_array_holds_for_all_its_tasks() {
    let c = case().nodes(1, 8).submit(array("0-9%1", gpus(1))).running_index(0, &[(1, &[0])]);
    let c = c.change_index(4, |_| {});
    for task in ["1", "1_4", "1_7"] {
        assert_eq!(c.verdict(task), Some(Verdict::ArrayLimit { max_running: 1 }), "{task}");
    }
}

#[test]
fn all_that_are_alike_wait_for_the_same_reason() {
    let c = case().nodes(2, 8).running(gpus(8), &[(1, ALL)]).submit(gang(2, 8)).submit(gang(2, 8));
    let Some(Verdict::Busy(s)) = c.verdict("3") else { panic!("{:?}", c.verdict("3")) };
    assert_eq!(c.verdict("2"), Some(Verdict::Busy(s.clone())));
    assert_eq!((s.nodes_wanted, s.nodes_fitting, s.blocked.gpus_busy), (2, 1, 1));
    let c = c.drain(2);
    assert!(matches!(c.verdict("2"), Some(Verdict::NodesUnavailable(_))));
}

#[test]
fn one_behind_the_head_is_told_so_and_the_head_is_not() {
    let c = case().nodes(2, 8).running(time(HOUR, gpus(8)), &[(1, ALL)]);
    let c = c.submit(gang(2, 8)).submit(array("0-3", gpus(8)));
    assert_eq!(c.plan().heads[0].task.to_string(), "2");
    assert!(matches!(c.verdict("2"), Some(Verdict::Busy(_))));
    for task in ["3", "3_0", "3_3"] {
        assert_eq!(c.verdict(task), Some(Verdict::Behind { job: JobId(2) }), "{task}");
    }
}

#[test]
fn a_lane_at_its_teams_limit_is_told_so() {
    let c = case().nodes(2, 8).team("a", |t| t.limit = Some(quota(8)));
    let c = c.running(team("a", gpus(6)), &[(1, &[0, 1, 2, 3, 4, 5])]);
    let c = c.submit(team("a", gpus(4))).submit(team("a", gpus(4)));
    let limit =
        Verdict::TeamLimit { team: "a".to_owned(), limit: 8, used: 6, wanted: 4, model: None };
    assert_eq!(c.verdict("2"), Some(limit.clone()));
    assert_eq!(c.verdict("3"), Some(limit), "the lane went no further than its first");
}

#[test]
fn a_reservation_is_named() {
    let until = NOW.plus(HOUR);
    let c = case().nodes(1, 8).policy(|p| p.reservations.push(reservation("n1", until)));
    let c = c.submit(gpus(8));
    let Some(Verdict::Reserved { reservation, until: over, .. }) = c.verdict("1") else {
        panic!("{:?}", c.verdict("1"))
    };
    assert_eq!((reservation.as_str(), over), ("power work", until));
}

fn reservation(node: &str, until: Time) -> Reservation {
    let (name, nodes) = ("power work".to_owned(), [node.to_owned()].into());
    Reservation { name, nodes, from: Time(NOW.0 - 1000), until, team: None }
}

#[test]
fn a_claim_says_who_is_waited_for() {
    let c = case().nodes(1, 8).running(class("scavenger", gpus(8)), &[(1, ALL)]).submit(gpus(8));
    let c = c.claim("2", ClaimCause::Class, &[(1, ALL)]);
    let waiting_for = vec!["1".parse().unwrap()];
    let claimed = Verdict::Claimed { cause: ClaimCause::Class, waiting_for };
    assert_eq!(c.verdict("2"), Some(claimed));
    let c = case().nodes(1, 8).running(class("scavenger", gpus(8)), &[(1, ALL)]);
    let c = c.submit(array("0-3", gpus(8))).claim("2_0", ClaimCause::Class, &[(1, ALL)]);
    for task in ["2", "2_0"] {
        assert!(matches!(c.verdict(task), Some(Verdict::Claimed { .. })), "{task}");
    }
    assert!(!matches!(c.verdict("2_1"), Some(Verdict::Claimed { .. })), "{:?}", c.verdict("2_1"));
}

#[test]
fn a_node_that_a_fence_makes_too_small_now_is_said_to_be_fenced() {
    let c = case().nodes(2, 4).fence(2, 3).running(gpus(2), &[(2, &[0, 1])]);
    let c = c.running(gpus(4), &[(1, &[0, 1, 2, 3])]).submit(gang(2, 2));
    let Some(Verdict::Busy(s)) = c.verdict("3") else { panic!("{:?}", c.verdict("3")) };
    let blocked = Blocked { gpus_busy: 1, fenced_busy: 1, ..Blocked::default() };
    assert_eq!(s.blocked, blocked);
    let fences = c.explain("3").fences;
    assert_eq!(fences.iter().map(|f| (f.node.as_str(), f.gpu.0)).collect::<Vec<_>>(), [("n2", 3)]);
}

#[test]
fn who_wants_its_nodes_for_itself_waits_for_empty_ones() {
    let c = case().nodes(1, 4).running(gpus(1), &[(1, &[0])]).submit(exclusive(gpus(1)));
    let Some(verdict) = c.verdict("2") else { panic!("it waits") };
    let words = "needs a node with 1 free GPU, no node is empty (1 not empty)";
    assert_eq!(crate::describe(&verdict), words);
    let c = case().nodes(1, 4).running(exclusive(gpus(1)), &[(1, &[0])]).submit(gpus(1));
    let Some(verdict) = c.verdict("2") else { panic!("it waits") };
    let words = "needs a node with 1 free GPU, none fits now (1 all for others)";
    assert_eq!(crate::describe(&verdict), words);
}
