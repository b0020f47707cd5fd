use super::super::{GpuQuota, Policy, Price, Prices, Reservation, Spare, Team};
use crate::{Span, Time, Topology};

fn quota(any: u32, models: &[(&str, u32)]) -> GpuQuota {
    GpuQuota { any, models: models.iter().map(|(m, n)| ((*m).to_owned(), *n)).collect() }
}

fn team(parent: Option<&str>, guarantee: u32) -> Team {
    let parent = parent.map(str::to_owned);
    Team { parent, guarantee: quota(guarantee, &[]), ..Team::default() }
}

fn teams(teams: &[(&str, Team)]) -> Policy {
    let teams = teams.iter().map(|(name, team)| ((*name).to_owned(), team.clone())).collect();
    Policy { teams, ..Policy::default() }
}

fn paths(policy: &Policy) -> Vec<String> {
    policy.problems().into_iter().map(|p| p.path).collect()
}

fn reservation(team: Option<&str>) -> Reservation {
    Reservation {
        name: "upgrade".into(),
        nodes: ["n1".to_owned()].into(),
        from: Time(10),
        until: Time(20),
        team: team.map(str::to_owned),
    }
}

#[test]
fn the_default_and_a_sound_tree_are_fine() {
    assert_eq!(Policy::default().problems(), []);
    let policy = teams(&[
        ("lab", team(None, 8)),
        ("vision", team(Some("lab"), 5)),
        ("speech", team(Some("lab"), 3)),
        ("guests", team(None, 0)),
    ]);
    assert_eq!(policy.problems(), []);
}

#[test]
fn a_list_price_is_of_its_own_gpu_and_currency() {
    let priced = |currency: &str, model: &str| {
        let price = Price::of_shape("aws p4d.24xlarge").unwrap();
        let gpus = [(model.to_owned(), price)].into();
        Policy { prices: Prices { currency: currency.into(), gpus }, ..Policy::default() }
    };
    for (currency, model) in [("USD", "a100"), ("usd", "A100")] {
        assert_eq!(priced(currency, model).problems(), []);
    }
    for (currency, model, why) in [
        ("EUR", "a100", "\"aws p4d.24xlarge\" is in USD, the currency is EUR: write a number"),
        (
            "USD",
            "h100",
            "\"aws p4d.24xlarge\" has a100 GPUs, not h100: write a number, or another shape",
        ),
    ] {
        let bad = priced(currency, model).problems();
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert_eq!(
            (bad[0].path.clone(), bad[0].problem.as_str()),
            (format!("prices.gpus.{model}"), why)
        );
    }
}

#[test]
fn a_parent_must_exist_and_not_lie_below_its_child() {
    assert_eq!(paths(&teams(&[("a", team(Some("b"), 0))])), ["teams.a.parent"]);
    let circle = teams(&[("a", team(Some("b"), 0)), ("b", team(Some("a"), 0))]);
    assert_eq!(paths(&circle), ["teams.a.parent", "teams.b.parent"]);
    let below = teams(&[("a", team(Some("b"), 0)), ("b", team(Some("b"), 0))]);
    assert_eq!(paths(&below), ["teams.a.parent", "teams.b.parent"]);
}

#[test]
fn children_are_not_promised_more_than_their_parent_has() {
    let over = teams(&[
        ("lab", team(None, 8)),
        ("vision", team(Some("lab"), 5)),
        ("speech", team(Some("lab"), 4)),
    ]);
    let problem = over.problems().remove(0);
    assert_eq!(
        problem.to_string(),
        "teams.lab.guarantee: the teams under it are guaranteed more: 9 GPUs against 8 GPUs"
    );
    let no_guarantee = teams(&[("lab", team(None, 0)), ("vision", team(Some("lab"), 5))]);
    assert_eq!(no_guarantee.problems(), []);
    let through = teams(&[
        ("site", team(None, 4)),
        ("lab", team(Some("site"), 0)),
        ("vision", team(Some("lab"), 5)),
    ]);
    assert_eq!(paths(&through), ["teams.site.guarantee"]);
}

#[test]
fn models_are_counted_each_and_any_fills_the_gap() {
    let with = |parent: GpuQuota, child: GpuQuota| {
        teams(&[
            ("lab", Team { guarantee: parent, ..Team::default() }),
            ("vision", Team { parent: Some("lab".into()), guarantee: child, ..Team::default() }),
        ])
    };
    let h100 = |n| quota(0, &[("h100", n)]);
    assert_eq!(with(quota(2, &[("h100", 4)]), h100(6)).problems(), []);
    assert_eq!(paths(&with(quota(2, &[("h100", 4)]), h100(7))), ["teams.lab.guarantee"]);
    assert_eq!(paths(&with(h100(8), quota(1, &[]))), ["teams.lab.guarantee"]);
}

#[test]
fn a_limit_is_no_less_than_the_guarantee_and_a_weight_is_more_than_nothing() {
    let bad = Team { limit: Some(quota(3, &[])), weight: 0, ..team(None, 4) };
    assert_eq!(paths(&teams(&[("a", bad)])), ["teams.a.weight", "teams.a.limit"]);
}

#[test]
fn reservations_have_a_length_nodes_a_known_team_and_a_name_of_their_own() {
    let with = |list: Vec<Reservation>| Policy {
        reservations: list,
        ..teams(&[("vision", team(None, 0))])
    };
    assert_eq!(with(vec![reservation(Some("vision"))]).problems(), []);
    assert_eq!(paths(&with(vec![reservation(Some("x"))])), ["reservations.upgrade.team"]);
    let backwards = Reservation { until: Time(10), nodes: [].into(), ..reservation(None) };
    assert_eq!(
        paths(&with(vec![backwards])),
        ["reservations.upgrade.until", "reservations.upgrade.nodes"]
    );
    assert_eq!(paths(&with(vec![reservation(None), reservation(None)])), ["reservations.upgrade"]);
}

#[test]
fn knobs_and_classes_are_sane() {
    let mut policy = Policy {
        placements_max: 0,
        half_life: Span(0),
        gpu_weights: [("t4".to_owned(), 0)].into(),
        spares: vec![Spare { per: Topology::Node, nodes: 1 }],
        ..Policy::default()
    };
    policy.classes.clear();
    assert_eq!(
        paths(&policy),
        ["placements_max", "half_life", "gpu_weights.t4", "classes", "spares.0.per"]
    );
}
