use proptest::prelude::*;
use tutti_model::*;

use crate::testing::*;

fn child(parent: &str, guarantee: u32) -> impl FnOnce(&mut Team) {
    let parent = (!parent.is_empty()).then(|| parent.to_owned());
    move |team| {
        team.parent = parent;
        team.guarantee = quota(guarantee);
    }
}

fn row(c: &Case, team: &str) -> TeamShare {
    crate::shares(&c.state(), NOW).into_iter().find(|row| row.team == team).unwrap()
}

/// Two levels under research, next to product.
fn tree() -> Case {
    let c = case().nodes(4, 8).team("research", child("", 16)).team("product", child("", 8));
    let c = c.team("vision", child("research", 8)).team("speech", child("research", 4));
    c.team("ocr", child("vision", 4))
}

#[test]
fn rows_come_in_the_order_of_the_tree() {
    let c = tree().had("guests", 1).submit(team("walk-in", gpus(1)));
    let rows = crate::shares(&c.state(), NOW);
    let names: Vec<_> = rows.iter().map(|r| (r.team.as_str(), r.parent.as_deref())).collect();
    assert_eq!(
        names,
        [
            ("guests", None),
            ("product", None),
            ("research", None),
            ("speech", Some("research")),
            ("vision", Some("research")),
            ("ocr", Some("vision")),
            ("walk-in", None),
        ]
    );
}

/// What is left of a team that is gone is its usage; nobody owes it anything.
#[test]
fn a_team_that_is_gone_has_a_target_while_it_has_jobs() {
    let c = case().nodes(1, 8).team("research", child("", 4)).had("research", 1).had("gone", 1);
    let targets = |c: &Case| [row(c, "research").target, row(c, "gone").target];
    assert_eq!(targets(&c), [1000, 0]);
    assert_eq!(targets(&c.submit(team("gone", gpus(1)))), [500, 500]);
}

#[test]
fn use_counts_for_all_above() {
    let c = tree().running(team("ocr", gpus(6)), &[(1, &[0, 1, 2, 3, 4, 5])]);
    let c = c.submit(team("speech", array("0-4", gpus(8))));
    for (team, used, borrowed) in [
        ("ocr", 6000, 2000),
        ("vision", 6000, 0),
        ("research", 6000, 0),
        ("product", 0, 0),
        ("speech", 0, 0),
    ] {
        let row = row(&c, team);
        assert_eq!((row.used, row.borrowed), (used, borrowed), "{team}");
    }
    let research = row(&c, "research");
    assert_eq!((research.running, research.waiting), (1, 5));
    assert_eq!((research.guarantee, research.limit, research.weight), (16, None, 1000));
}

#[test]
fn parts_of_gpus_and_models_count() {
    let c = case().nodes(1, 2).node(|_| {}, &["a100", "a100"]).team("a", |t| {
        t.guarantee = GpuQuota { any: 1, models: [("a100".to_owned(), 1)].into() };
        t.limit = Some(quota(3));
        t.members = ["ada".to_owned()].into();
    });
    let c = c.running(share(500), &[(1, &[0])]).running(gpus(2), &[(2, &[0, 1])]);
    let row = row(&c, "a");
    assert_eq!((row.used, row.guarantee, row.limit), (2500, 2, Some(3)));
    assert_eq!(row.borrowed, 500, "an a100 beyond the one, half an h100, less one of any model");
    assert_eq!(row.members, ["ada"]);
}

#[test]
fn quotas_by_model_are_told_by_model() {
    let h100 = |n| [("h100".to_owned(), n)].into();
    let c = case().nodes(1, 8).team("a", |t| {
        t.guarantee = GpuQuota { any: 1, models: h100(2) };
        t.limit = Some(GpuQuota { any: 0, models: h100(4) });
    });
    let c = c.team("b", |t| t.limit = Some(GpuQuota { any: 6, models: h100(4) }));
    let a = row(&c, "a");
    assert_eq!((a.guarantee, a.guarantee_models), (3, h100(2)));
    assert_eq!((a.limit, a.limit_models), (None, h100(4)), "other models are not limited");
    let b = row(&c, "b");
    assert_eq!((b.limit, b.limit_models), (Some(6), h100(4)));
}

#[test]
fn idle_guarantees_are_lent_once_nothing_else_is_left() {
    let all: &[u16] = &[0, 1, 2, 3, 4, 5, 6, 7];
    let c = tree().running(team("product", gpus(8)), &[(1, all)]);
    let c = c.running(team("product", gpus(8)), &[(2, all)]);
    assert_eq!(row(&c, "product").borrowed, 8000);
    assert_eq!(row(&c, "research").lent, 0, "eight GPUs are nobody's");
    let c = c.running(team("product", gpus(8)), &[(3, all)]);
    assert_eq!(row(&c, "product").borrowed, 16000);
    assert_eq!(row(&c, "research").lent, 8000);
    let lent = ["vision", "speech", "ocr"].map(|team| row(&c, team).lent);
    assert_eq!(lent, [2666, 1334, 0], "four of research's sixteen are nobody's below it");
}

#[test]
fn share_and_target_are_among_siblings_that_take_part() {
    let c = case().nodes(1, 8).team("a", |t| t.weight = 3000).team("b", |_| {});
    let c = c.team("idle", |_| {}).had("a", 1).had("b", 3);
    let rows = ["a", "b", "idle"].map(|team| row(&c, team));
    assert_eq!(rows.each_ref().map(|r| (r.share, r.target)), [(250, 750), (750, 250), (0, 0)]);
}

proptest! {
    /// What is lent is what is borrowed beyond the GPUs that nobody is promised; nobody lends more
    /// than they have idle.
    #[test]
    fn lent_is_what_is_borrowed_from_guarantees(
        guarantees in prop::collection::vec(0u32..9, 4),
        runs in prop::collection::vec((0usize..4, 1u16..5), 0..8),
    ) {
        let names = ["a", "b", "c", "d"];
        let mut c = case().nodes(4, 8);
        for (name, guarantee) in names.iter().zip(&guarantees) {
            c = c.team(name, child("", *guarantee));
        }
        for (n, &(who, count)) in runs.iter().enumerate() {
            let first = n as u16 % 2 * 4;
            let held: Vec<u16> = (first..first + count).collect();
            c = c.running(team(names[who], gpus(count.into())), &[(n as u32 / 2 + 1, &held)]);
        }
        let rows = crate::shares(&c.state(), NOW);
        let sum = |pick: fn(&TeamShare) -> u64| rows.iter().map(pick).sum::<u64>();
        let counts = |r: &TeamShare| u64::from(r.guarantee_counts.unwrap_or(r.guarantee)) * 1000;
        let promised: u64 = rows.iter().map(counts).sum();
        let free_for_all = 32_000u64.saturating_sub(promised);
        prop_assert_eq!(sum(|r| r.lent), sum(|r| r.borrowed).saturating_sub(free_for_all));
        for r in &rows {
            let idle = counts(r).saturating_sub(r.used - r.borrowed);
            prop_assert!(r.lent <= idle, "{:?}", r);
            prop_assert!(r.borrowed <= r.used && r.lent + r.borrowed <= 32_000);
        }
    }
}

#[test]
fn what_is_suspended_does_not_run() {
    let c = tree().running(team("ocr", gpus(2)), &[(1, &[0, 1])]).change_task(|t| {
        let why = SuspendCause::Asked { by: "ada".into() };
        let pause =
            Pause { at: NOW, ran: Span(0), why, stays: true, kept_by: None, released_at: None };
        t.attempt_mut().unwrap().phase = AttemptPhase::Suspended { since: NOW, pause };
    });
    let row = row(&c, "ocr");
    assert_eq!((row.running, row.suspended, row.waiting), (0, 1, 0));
}
