use tutti_model::*;

use crate::testing::*;

const HOUR: Span = Span::secs(3600);

fn late(hours: u64) -> Option<Time> {
    Some(Time(NOW.0 - 10_000 + hours * HOUR.0))
}

#[test]
fn holders_come_in_the_order_of_their_ends() {
    let c = case().nodes(2, 8).running(gpus(8), &[(1, ALL)]);
    let c = c.running(time(HOUR, gpus(8)), &[(2, ALL)]).submit(gpus(1)).submit(gpus(8));
    let e = c.explain("4");
    let held: Vec<_> = e.holders.iter().map(|h| (h.task.to_string(), h.gpus, h.nodes)).collect();
    assert_eq!(held, [("2".to_owned(), 8, 1), ("1".to_owned(), 8, 1)]);
    assert_eq!((e.ahead, e.holders[1].ends_by), (1, None));
    assert_eq!(e.holders[0].ends_by, late(1));
}

#[test]
fn holders_hold_what_the_task_could_use() {
    let c = case().nodes(1, 1).node(|_| {}, &["a100"]).running(gpus(1), &[(1, &[0])]);
    let c = c.running(gpus(1), &[(2, &[0])]).submit(model(gpus(1), "a100"));
    let e = c.explain("3");
    assert_eq!(e.holders.iter().map(|h| h.task.to_string()).collect::<Vec<_>>(), ["2"]);
}

#[test]
fn a_class_goes_before_another_and_a_priority_inside_a_team() {
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).submit(gpus(1));
    let c = c.submit(class("urgent", gpus(1))).submit(priority(5, gpus(1)));
    let c = c.submit(class("scavenger", gpus(1)));
    let ahead: Vec<u64> = ["2", "3", "4", "5"].map(|task| c.explain(task).ahead).into();
    assert_eq!(ahead, [2, 0, 1, 3]);
}

#[test]
fn teams_take_turns() {
    let c = case().nodes(1, 8).team("a", |_| {}).team("b", |_| {}).running(gpus(8), &[(1, ALL)]);
    let mut c = c;
    for _ in 0..10 {
        c = c.submit(team("a", gpus(1)));
    }
    let c = c.submit(team("b", gpus(1))).submit(team("b", gpus(1)));
    assert_eq!(c.explain("12").ahead, 1, "b's first comes after a's first");
    assert_eq!(c.explain("13").ahead, 3);
    let c = c.had("b", 1000);
    assert_eq!(c.explain("12").ahead, 10, "b has had so much that it goes last");
}

#[test]
fn inside_a_team_the_user_who_has_had_less_goes_first() {
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).user("bob").had("default", 100);
    let c = c.submit(gpus(1)).user("eve").submit(gpus(1));
    assert_eq!((c.explain("2").ahead, c.explain("3").ahead), (1, 0));
}

#[test]
fn a_guarantee_goes_first() {
    let c = case().nodes(1, 8).team("a", |_| {}).team("b", |t| t.guarantee = quota(2));
    let c = c.had("b", 1000).submit(team("a", gpus(1))).submit(team("b", gpus(2)));
    let c = c.submit(team("b", gpus(1)));
    let ahead: Vec<u64> = ["1", "2", "3"].map(|task| c.explain(task).ahead).into();
    assert_eq!(ahead, [1, 0, 2], "the guarantee is used up by b's first");
}

#[test]
fn those_that_starve_go_first() {
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).submit(priority(9, gpus(1)));
    let c = c.submit_ago(HOUR, gpus(2)).policy(|p| p.starve_after = Span::secs(60));
    assert_eq!((c.explain("3").ahead, c.explain("2").ahead), (0, 1));
}

#[test]
fn tasks_of_an_array_count_each() {
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).submit(array("0-99", gpus(1)));
    let c = c.submit(gpus(2));
    assert_eq!((c.explain("2").ahead, c.explain("2_40").ahead), (0, 40));
    assert_eq!(c.explain("3").ahead, 100);
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).submit(array("0-99%1", gpus(1)));
    let c = c.running_index(7, &[]).submit(gpus(2));
    assert_eq!(c.explain("3").ahead, 0, "the array may not start another");
}

#[test]
fn the_far_end_of_a_long_queue_is_counted_too() {
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).submit(array("0-9999", gpus(1)));
    let c = c.submit(array("0-9999", gpus(2))).submit(gpus(4));
    assert_eq!(c.explain("4").ahead, 20_000);
}

#[test]
fn the_head_is_told_what_it_was_promised() {
    let c = case().nodes(2, 8).running(time(HOUR, gpus(8)), &[(1, ALL)]);
    let c = c.running(time(Span(2 * HOUR.0), gpus(8)), &[(2, ALL)]).submit(gang(2, 8));
    let e = c.explain("3");
    assert_eq!((e.starts_by, e.forecast.unwrap().late), (late(2), late(2)));
}

/// The head of the queue is not told two times for its start.
#[test]
fn the_promise_and_the_forecast_agree() {
    let all: Vec<(u32, &[u16])> = (1..5).map(|n| (n, &[0u16, 1][..])).collect();
    let c = case().nodes(4, 2).running(time(Span::secs(1200), gang(4, 2)), &all);
    let c = c.submit(priority(5, time(Span::secs(600), gang(3, 2))));
    let c = c.submit(exclusive(time(Span::secs(60), gpus(1)))).submit(gpus(1)).submit(gpus(1));
    let told = c.explain("2");
    let forecast = told.forecast.unwrap();
    assert_eq!((Some(forecast.early), forecast.late), (told.starts_by, told.starts_by));
}

/// What is free and not for it is not busy.
#[test]
fn gpus_that_are_kept_for_another_are_told_apart() {
    let c = case().nodes(2, 8).running(gpus(4), &[(1, &[0, 1, 2, 3])]);
    let c = c.running(gpus(8), &[(2, ALL)]).submit(gpus(8)).submit(gpus(2));
    let c = c.claim("3", ClaimCause::Class, &[(1, ALL)]);
    let e = c.explain("4");
    let Verdict::Busy(shortage) = &e.verdict else { panic!("{:?}", e.verdict) };
    assert_eq!((shortage.blocked.gpus_busy, shortage.blocked.kept), (1, 1));
    let kept: Vec<_> = e.kept.iter().map(|k| (k.task.to_string(), k.gpus, k.nodes)).collect();
    assert_eq!(kept, [("3".to_owned(), 4, 1)], "the other four are still held");
    // For more than what is kept it is busy all the same.
    let c = c.submit(gpus(6));
    let e = c.explain("5");
    let Verdict::Busy(shortage) = &e.verdict else { panic!("{:?}", e.verdict) };
    assert_eq!((shortage.blocked.gpus_busy, shortage.blocked.kept), (2, 0));
    assert_eq!(e.kept, []);
}
