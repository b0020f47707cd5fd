use tutti_model::*;

use crate::testing::*;

#[test]
fn the_team_that_had_least_for_its_weight_goes_first() {
    let c = || case().nodes(1, 1).team("a", |t| t.weight = 3000).team("b", |_| {});
    let both = |c: Case| c.submit(team("a", gpus(1))).submit(team("b", gpus(1))).placed();
    assert_eq!(both(c().had("a", 2).had("b", 1)), "1@n1:0", "two thirds of what it is due");
    assert_eq!(both(c().had("a", 4).had("b", 1)), "2@n1:0");
}

#[test]
fn what_runs_counts_at_once() {
    let c = case().nodes(1, 3).team("a", |_| {}).team("b", |_| {});
    let c = c.submit(team("a", gpus(1))).submit(team("a", gpus(1))).submit(team("b", gpus(1)));
    assert_eq!(c.submit(team("b", gpus(1))).placed(), "1@n1:0 3@n1:1 2@n1:2");
}

#[test]
fn above_the_teams_their_parents_are_weighed() {
    let c = case().nodes(1, 1).team("top", |_| {}).team("x", |_| {});
    let c = c.team("low", |t| t.parent = Some("top".to_owned())).had("low", 5).had("x", 1);
    let c = c.team("new", |t| t.parent = Some("top".to_owned()));
    assert_eq!(c.submit(team("new", gpus(1))).submit(team("x", gpus(1))).placed(), "2@n1:0");
}

#[test]
fn in_a_team_priority_then_the_user_who_had_least_then_age() {
    let c = || case().nodes(1, 1).user("ada").had("default", 9);
    let c2 = c().submit(gpus(1)).user("bob").submit(gpus(1));
    assert_eq!(c2.placed(), "2@n1:0", "bob had nothing");
    let c2 = c().submit(priority(1, gpus(1))).user("bob").submit(gpus(1));
    assert_eq!(c2.placed(), "1@n1:0");
    assert_eq!(c().submit(gpus(1)).submit(gpus(1)).placed(), "1@n1:0");
}

#[test]
fn the_shortest_first_where_the_order_says_so() {
    let c = case().nodes(1, 1).policy(|p| p.order = QueueOrder::Srtf);
    let c = c.submit(time(Span::secs(60), gpus(1))).submit(time(Span::secs(30), gpus(1)));
    assert_eq!(c.placed(), "2@n1:0");
}

#[test]
fn higher_classes_go_before_every_team() {
    let c = case().nodes(1, 1).team("a", |t| t.guarantee = quota(1)).had("default", 99);
    let c = c.submit(team("a", gpus(1))).submit(class("urgent", gpus(1)));
    assert_eq!(c.placed(), "2@n1:0");
}

#[test]
fn those_who_starve_go_before_their_class() {
    let c = case().nodes(1, 1).policy(|p| p.starve_after = Span::secs(60));
    let c = c.submit_ago(Span::secs(90), gpus(1)).submit(priority(9, gpus(1)));
    assert_eq!(c.placed(), "1@n1:0");
}

#[test]
fn an_old_backlog_takes_nobody_else_s_share() {
    let c = case().nodes(1, 4).team("a", |t| t.guarantee = quota(4)).team("b", |_| {});
    let old = |c: Case, _| c.submit_ago(Span::secs(8 * 86_400), team("b", gpus(1)));
    let c = (0..8).fold(c.had("b", 5000), old);
    let c = (0..4).fold(c, |c, _| c.submit(team("a", gpus(1))));
    assert_eq!(c.placed(), "9@n1:0 10@n1:1 11@n1:2 12@n1:3");
    let c = case().nodes(1, 2).team("a", |_| {}).team("b", |_| {}).had("b", 5000);
    let c = (0..4).fold(c, old);
    let c = c.submit(team("a", gpus(1))).submit(team("a", gpus(1)));
    assert_eq!(c.placed(), "5@n1:0 6@n1:1", "between teams, what they had counts");
}
