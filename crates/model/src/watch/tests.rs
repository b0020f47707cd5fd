use super::*;

#[test]
fn limits_read_as_people_write_them() {
    for (text, limit) in [
        ("3%", Limit::percent(3)),
        ("0.5%", Limit::Percent(5)),
        ("100 %", Limit::percent(100)),
        ("7", Limit::Count(7)),
        ("14d", Limit::Time(Span::secs(14 * 86_400))),
    ] {
        let read: Limit = text.parse().unwrap();
        assert_eq!(read, limit, "{text}");
        assert_eq!(read.to_string().parse::<Limit>().unwrap(), limit, "{text}");
    }
    for text in ["", "%", "-3%", "0.05%", "3 %%", "soon", "2000%", "-1", "NaN%", "inf%"] {
        assert!(text.parse::<Limit>().is_err(), "{text}");
    }
}

#[test]
fn what_is_not_said_is_as_by_default() {
    let own: OwnTerms = serde_json::from_str(r#"{"for": "1h", "action": "kill"}"#).unwrap();
    let policy = WatchPolicy { idle: own, ..WatchPolicy::default() };
    let terms = policy.terms(WatchRule::Idle);
    assert_eq!((terms.lasts, terms.action), (Span::secs(3600), WatchAction::Kill));
    assert_eq!(terms.limit, WatchRule::Idle.defaults().limit);
    assert_eq!(policy.terms(WatchRule::Hang), WatchRule::Hang.defaults());
    let text = serde_json::to_string(&policy).unwrap();
    assert_eq!(text, r#"{"idle":{"for":"1h","action":"kill"}}"#);
    assert_eq!(serde_json::from_str::<WatchPolicy>(&text).unwrap(), policy);
}

#[test]
fn nothing_is_killed_or_requeued_by_default() {
    for rule in WatchRule::ALL {
        assert_eq!(rule.defaults().action, WatchAction::Tell, "{rule:?}");
    }
}

#[test]
fn terms_that_make_no_sense_are_named() {
    let policy: WatchPolicy = serde_json::from_str(
        r#"{"every": "1ms", "idle": {"limit": "14d", "within": "5m"}, "disk": {"action": "kill"},
            "flapping": {"limit": 0, "within": "0s"},
            "node_lost": {"limit": 0, "within": "5m", "action": "kill"},
            "notify": {"webhook": "ftp://x", "command": "../sh", "email": ["ops"]}}"#,
    )
    .unwrap();
    let found = policy.problems();
    let keys: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(
        keys,
        [
            "every",
            "idle.limit",
            "idle.within",
            "flapping.limit",
            "flapping.within",
            "node_lost.limit",
            "node_lost.within",
            "node_lost.action",
            "disk.action",
            "notify.webhook",
            "notify.command",
            "notify.email",
        ]
    );
    assert_eq!(found[1].1, "is a share such as 3%, not 14d");
    assert_eq!(found[5].1, "means nothing to node_lost");
    assert!(WatchPolicy::default().problems().is_empty());
}

#[test]
fn a_crash_loop_is_not_mended_by_starting_again() {
    let own = OwnTerms { action: Some(WatchAction::Requeue), ..OwnTerms::default() };
    let found = own.problems(WatchRule::CrashLoop);
    assert!(matches!(found.as_slice(), [("action", problem)] if problem.ends_with("warn or kill")));
    assert!(own.problems(WatchRule::Idle).is_empty());
    let policy = WatchPolicy { crash_loop: own.clone(), ..WatchPolicy::default() };
    assert_eq!(policy.problems()[0].0, "crash_loop.action");
    let job = JobWatch { crash_loop: Some(own), ..JobWatch::default() };
    assert_eq!(job.problems()[0].0, "crash_loop.action");
}

#[test]
fn a_job_asks_for_no_alert_that_fires_at_every_look() {
    let own: OwnTerms = serde_json::from_str(r#"{"for": "999ms", "clear": "0s"}"#).unwrap();
    let asks = |own: &OwnTerms| JobWatch { idle: Some(own.clone()), ..JobWatch::default() };
    let found = asks(&own).problems();
    let keys: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["idle.for", "idle.clear"]);
    assert_eq!(found[1].1, "must be at least 1s in a job file, not 0s");
    assert!(own.problems(WatchRule::Idle).is_empty(), "the operator may");
    let own: OwnTerms = serde_json::from_str(r#"{"for": "1s", "clear": "1s"}"#).unwrap();
    assert!(asks(&own).problems().is_empty());
}

#[test]
fn periods_begin_by_the_calendar() {
    // 2026-11-16 is a Monday, day 20,773.
    let monday = 20_773;
    assert_eq!(Period::Day.first_day(monday + 3), monday + 3);
    for weekday in 0..7 {
        assert_eq!(Period::Week.first_day(monday + weekday), monday);
    }
    assert_eq!(Period::Week.first_day(2), 0);
    assert_eq!(Period::Month.first_day(monday), monday - 15);
    // 2024-02-29 and 2024-03-01.
    assert_eq!(Period::Month.first_day(19_782), 19_754);
    assert_eq!(Period::Month.first_day(19_783), 19_783);
    assert_eq!(Period::Month.first_day(0), 0);
    assert_eq!(Period::Month.first_day(30), 0);
    assert_eq!(Period::Month.first_day(31), 31);
}
