use tutti_model::*;

use crate::testing::*;

fn grown(c: Case) -> String {
    let old = |t: &mut Task| {
        let since = Time(NOW.0 - 3_600_000);
        t.attempt_mut().unwrap().phase = AttemptPhase::Running { since };
    };
    c.running(elastic(1, 3, 2), &[(1, &[0, 1])]).change_task(old).claimed()
}

#[test]
fn it_grows_into_idle_nodes() {
    let c = || case().nodes(4, 2);
    assert_eq!(grown(c()), "1@n1:0,1+n2:0,1+n3:0,1 resize [1]");
    assert_eq!(grown(c().drain(2).drain(3)), "1@n1:0,1+n4:0,1 resize [1]");
    assert_eq!(grown(c().drain(1)), "", "its own node would not take it again");
    assert_eq!(
        grown(c().team("default", |t| t.limit = Some(quota(5)))),
        "1@n1:0,1+n2:0,1 resize [1]"
    );
}

#[test]
fn not_while_others_wait_nor_too_often() {
    assert_eq!(grown(case().nodes(2, 2).submit(gpus(3))), "");
    let c = case().nodes(2, 2).running(elastic(1, 2, 2), &[(1, &[0, 1])]);
    assert_eq!(c.claimed(), "", "it has just started");
}

fn old(t: &mut Task) {
    let since = Time(NOW.0 - 3_600_000);
    t.attempt_mut().unwrap().phase = AttemptPhase::Running { since };
}

#[test]
fn two_that_grow_stay_within_their_limit() {
    let c = case().nodes(8, 2).team("default", |t| t.limit = Some(quota(12)));
    let c = c.running(elastic(1, 4, 2), &[(1, &[0, 1]), (2, &[0, 1])]).change_task(old);
    let c = c.running(elastic(1, 4, 2), &[(3, &[0, 1]), (4, &[0, 1])]).change_task(old);
    let gpus = |p: &PartPlacement| p.gpus.len();
    let grown: usize = c.plan().claims.iter().flat_map(|c| &c.parts).map(gpus).sum();
    assert_eq!(grown, 8, "one has 8 of 12 then, the other still 4: {}", c.claimed());
}

#[test]
fn the_nodes_of_a_head_are_left_alone() {
    let window = Reservation {
        name: "r".into(),
        nodes: ["n4".to_owned()].into(),
        from: Time(NOW.0 - 1000),
        until: NOW.plus(Span::secs(7200)),
        team: None,
    };
    let c = case().nodes(4, 2).policy(|p| p.reservations.push(window));
    let c = c.running(elastic(1, 3, 2), &[(1, &[0, 1])]).change_task(old);
    let c = c.running(time(Span::secs(1800), gpus(2)), &[(3, &[0, 1])]);
    let c = c.submit(time(Span::secs(600), gang(2, 2)));
    assert_eq!(c.plan().heads.len(), 1);
    assert_eq!(c.claimed(), "");
}
