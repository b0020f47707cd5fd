use tutti_model::*;

use crate::testing::*;

#[test]
fn a_team_keeps_its_limit_and_so_does_the_one_above() {
    let c = case().nodes(2, 8).team("top", |t| t.limit = Some(quota(3)));
    let c = c.team("low", |t| t.parent = Some("top".to_owned()));
    let c = c.running(team("low", gpus(2)), &[(1, &[0, 1])]);
    let c =
        c.submit(team("low", gpus(2))).submit(team("top", gpus(1))).submit(team("top", gpus(1)));
    assert_eq!(c.placed(), "3@n1:2");
    let limit =
        Verdict::TeamLimit { team: "top".to_owned(), limit: 3, used: 3, wanted: 2, model: None };
    assert_eq!(c.verdict("2"), Some(limit));
}

#[test]
fn a_limit_by_model_leaves_the_other_models() {
    let few = GpuQuota { any: 0, models: [("h100".to_owned(), 1)].into() };
    let c = case().nodes(1, 4).node(|_| {}, &["a100"; 4]).team("a", |t| t.limit = Some(few));
    let c = c.submit(team("a", gpus(2))).submit(team("a", model(gpus(2), "h100")));
    assert_eq!(c.placed(), "1@n2:0,1");
    let model = Some("h100".to_owned());
    let limit = Verdict::TeamLimit { team: "a".to_owned(), limit: 1, used: 0, wanted: 2, model };
    assert_eq!(c.verdict("2"), Some(limit));
}

#[test]
fn what_is_claimed_counts_for_the_limit() {
    let c = case().nodes(2, 4).team("a", |t| t.limit = Some(quota(4)));
    let c = c.running(gpus(4), &[(1, &[0, 1, 2, 3])]).submit(team("a", gpus(4)));
    let c = c.claim("2", ClaimCause::Guarantee, &[(1, &[0, 1, 2, 3])]).submit(team("a", gpus(1)));
    assert_eq!(c.placed(), "");
}

#[test]
fn a_guarantee_goes_first_and_by_model() {
    let two = GpuQuota { any: 0, models: [("h100".to_owned(), 2)].into() };
    let c = || case().nodes(1, 2).team("a", |_| {}).team("b", |t| t.guarantee = two.clone());
    let c =
        |spec| c().user("ada").had("b", 1000).submit(team("a", gpus(1))).submit(team("b", spec));
    assert_eq!(c(gpus(2)).placed(), "2@n1:0,1", "inside its guarantee");
    let c = case().node(|_| {}, &["a100", "a100"]).team("a", |_| {});
    let c = c.team("b", |t| t.guarantee = two.clone()).had("b", 1000);
    let c = c.submit(team("a", gpus(1))).submit(team("b", gpus(2)));
    assert_eq!(c.placed(), "1@n1:0", "there is none for this model");
}

#[test]
fn a_guarantee_covers_the_teams_below() {
    let c = case().nodes(1, 2).team("a", |_| {}).team("top", |t| t.guarantee = quota(2));
    let c = c.team("low", |t| t.parent = Some("top".to_owned())).had("low", 1000);
    assert_eq!(c.submit(team("a", gpus(1))).submit(team("low", gpus(2))).placed(), "2@n1:0,1");
}
