use tutti_model::*;

use crate::testing::*;

const LONG: Span = Span::secs(3600);

fn busy() -> Case {
    case().nodes(2, 2).running(gpus(1), &[(1, &[0])])
}

#[test]
fn a_claim_comes_true_when_everything_is_free() {
    let c = busy().submit(gpus(2)).claim("2", ClaimCause::Class, &[(2, &[0, 1])]);
    assert_eq!(c.placed(), "2@n2:0,1");
    let c = busy().submit(gpus(2)).claim("2", ClaimCause::Class, &[(1, &[0, 1])]);
    assert_eq!(c.placed(), "", "it waits, though there is room elsewhere");
    let waits =
        Verdict::Claimed { cause: ClaimCause::Class, waiting_for: vec!["1".parse().unwrap()] };
    assert_eq!(c.verdict("2"), Some(waits));
}

#[test]
fn what_is_claimed_is_kept_from_others() {
    let c = busy().submit(gpus(2)).claim("2", ClaimCause::Class, &[(1, &[0, 1])]);
    assert_eq!(c.submit(gpus(1)).placed(), "3@n2:0");
}

#[test]
fn an_overdue_task_starts_elsewhere_if_it_can() {
    let c = busy().submit(gpus(2)).claim("2", ClaimCause::Overdue, &[(1, &[0, 1])]);
    assert_eq!(c.placed(), "2@n2:0,1");
    assert_eq!(c.plan().dropped, ["2".parse().unwrap()]);
}

#[test]
fn a_claim_is_void_when_its_node_is_gone_or_nobody_waits() {
    let claim = |c: Case| c.claim("2", ClaimCause::Class, &[(2, &[0, 1])]);
    let dropped = |c: &Case| c.plan().dropped;
    let task: TaskId = "2".parse().unwrap();
    let c = claim(busy().submit(gpus(2)).drain(2));
    assert_eq!((dropped(&c), c.placed().as_str()), (vec![task], ""));
    let c = claim(busy().submit(JobSpec { hold: true, ..gpus(2) })).submit(gpus(2));
    assert_eq!((dropped(&c), c.placed().as_str()), (vec![task], "3@n2:0,1"), "given back at once");
    let c = claim(busy().submit(gpus(2))).change_node(2, |n| n.facts.gpus.truncate(1));
    assert_eq!(dropped(&c), [task]);
}

#[test]
fn a_claim_does_not_come_true_inside_a_reservation() {
    let kept = |p: &mut Policy| {
        p.reservations = vec![Reservation {
            name: "maintenance".to_owned(),
            nodes: ["n2".to_owned()].into(),
            from: Time(NOW.0 + 60_000),
            until: Time(NOW.0 + 120_000),
            team: None,
        }];
    };
    let c = busy().policy(kept).submit(gpus(2)).claim("2", ClaimCause::Class, &[(2, &[0, 1])]);
    assert_eq!(c.plan().dropped, ["2".parse().unwrap()]);
}

#[test]
fn the_overdue_keep_nodes_of_one_domain_with_most_free() {
    let c = case().nodes(4, 2).rack("a", &[1, 2]).rack("b", &[3, 4]);
    let c = c.running(gpus(2), &[(1, &[0, 1])]).running(gpus(1), &[(3, &[0])]);
    let c = c.running(gpus(1), &[(4, &[1])]).submit_ago(LONG, within(Topology::Rack, gang(2, 2)));
    assert_eq!(
        c.claimed(),
        "4@n1:0,1+n2:0,1 overdue []",
        "two free of four, and two of four: the first"
    );
    let c = case().nodes(2, 2).running(share(500), &[(1, &[0])]).running(share(300), &[(2, &[1])]);
    let c = c.submit_ago(LONG, exclusive(gpus(2)));
    assert_eq!(c.claimed(), "3@n1:0,1 overdue []");
}

#[test]
fn nodes_that_are_claimed_are_not_claimed_again() {
    let c = case().nodes(1, 2).running(gpus(2), &[(1, &[0, 1])]).policy(|p| p.reserved_heads = 2);
    let c = c.submit_ago(LONG, gpus(2)).claim("2", ClaimCause::Overdue, &[(1, &[0, 1])]);
    assert_eq!(c.submit_ago(LONG, gpus(1)).claimed(), "");
}

#[test]
fn an_array_task_with_a_claim_lets_its_siblings_go_on() {
    let c = busy().submit(array("0-2", gpus(1))).claim("2_0", ClaimCause::Class, &[(1, &[0])]);
    assert_eq!(c.placed(), "2_1@n1:1 2_2@n2:0");
}

#[test]
fn a_claim_outlives_an_agent_that_is_away_for_a_while() {
    let c = case().nodes(1, 2).submit(gpus(2)).claim("1", ClaimCause::Class, &[(1, &[0, 1])]);
    let c = c.change_node(1, |n| n.link = Link::Away { since: NOW });
    assert_eq!((c.plan().dropped, c.placed()), (vec![], String::new()));
    let c = c.change_node(1, |n| n.link = Link::Up);
    assert_eq!(c.placed(), "1@n1:0,1");
    let c = c.change_node(1, |n| n.link = Link::Lost { since: NOW });
    assert_eq!(c.plan().dropped.len(), 1);
}

#[test]
fn a_limit_that_was_lowered_ends_a_claim() {
    let c = case().nodes(2, 4).team("t", |t| t.limit = Some(quota(2)));
    let c = c.submit(team("t", gpus(4))).claim("1", ClaimCause::Class, &[(1, &[0, 1, 2, 3])]);
    assert_eq!((c.plan().dropped.len(), c.placed()), (1, String::new()));
}

#[test]
fn an_overdue_gang_takes_what_becomes_free_first() {
    // n1 has an endless tenant and most free; n3 has become free since.
    let c =
        case().nodes(3, 4).running(gpus(1), &[(1, &[0])]).running(gpus(4), &[(2, &[0, 1, 2, 3])]);
    let c = c.submit_ago(LONG, gang(2, 4));
    let c = c.claim("3", ClaimCause::Overdue, &[(1, &[0, 1, 2, 3]), (2, &[0, 1, 2, 3])]);
    assert_eq!(c.claimed(), "3@n1:0,1,2,3+n3:0,1,2,3 overdue []");
    assert_eq!(c.plan().dropped.len(), 1);
}
