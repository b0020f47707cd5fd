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
            "disk.action",
            "notify.webhook",
            "notify.command",
            "notify.email",
        ]
    );
    assert_eq!(found[1].1, "is a share such as 3%, not 14d");
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
fn addresses_are_whole_and_have_no_user() {
    for url in [
        "http://127.0.0.1:8080/hook?x=1",
        "https://hooks.example.org/T00/B00/secret",
        "https://[::1]:9/",
        "http://host_1",
        "https://example.org?token=a%20b",
    ] {
        assert_eq!(bad_address(url), None, "{url}");
    }
    for url in [
        "",
        "example.org/x",
        "ftp://example.org/",
        "http://",
        "http:///x",
        "http://:80/",
        "http://a:0/",
        "http://a:+80/",
        "http://a:65536/",
        "http://a:b:c/",
        "http://::1/",
        "http://[::1/",
        "http://[a]/",
        "http://exa mple/",
        "https://example.org/a b",
        "https://example.org/<x>",
        "https://example.org/\n",
        "https://exämple.org/",
        "https://user@example.org/",
        "https://user:secret@example.org/",
    ] {
        let problem = bad_address(url).unwrap_or_else(|| panic!("{url} must be refused"));
        assert!(!problem.contains("secret"), "{problem}");
    }
    // A path may have what looks like a user.
    assert_eq!(bad_address("https://example.org/@ops"), None);
    let long = format!("https://example.org/{}", "x".repeat(TEXT_MAX));
    assert!(bad_address(&long).is_some());
}

#[test]
fn what_follows_the_host_is_hidden_and_can_not_be_set_so() {
    for (url, shown) in [
        ("https://hooks.example.org/T00/secret", "https://hooks.example.org/…"),
        ("http://[::1]:80?secret", "http://[::1]:80/…"),
        ("https://example.org", "https://example.org/"),
        ("https://example.org/", "https://example.org/"),
        // As it could be set once.
        ("https://user:secret@example.org/", "…"),
        ("https://user:sec/ret@example.org/", "…"),
    ] {
        assert_eq!(only_host(url), shown, "{url}");
    }
    let email = vec!["ops@example.org".to_owned()];
    let whole =
        Notify { webhook: Some("https://example.org/secret".into()), email, ..Notify::default() };
    let shown = whole.without_secrets();
    assert_eq!(shown.email, whole.email);
    assert_eq!(shown.webhook.as_deref(), Some("https://example.org/…"));
    let problems = shown.problems();
    assert!(matches!(problems.as_slice(), [("webhook", problem)] if problem.contains("hidden")));
    assert!(whole.problems().is_empty());
}

#[test]
fn what_jobs_ask_for_is_told_to_others_only_if_the_operator_wants_it() {
    let alert = |asked_by| Alert {
        id: 1,
        rule: WatchRule::Idle,
        subject: Subject::Node { name: "n1".into() },
        asked_by,
        action: WatchAction::Tell,
        text: "its GPU does nothing".into(),
        job: None,
        since: Time(0),
        fired_at: Time(0),
        ended_at: None,
    };
    let (policy, job) = (alert(AskedBy::Policy), alert(AskedBy::Job));
    let usual = Notify::default();
    assert!(usual.wants(&policy) && !usual.wants(&job));
    let all: Notify = serde_json::from_str(r#"{"of_jobs": true}"#).unwrap();
    assert!(all.wants(&policy) && all.wants(&job));
    assert_eq!(serde_json::to_string(&usual).unwrap(), "{}");
    assert_eq!(serde_json::to_string(&all).unwrap(), r#"{"of_jobs":true}"#);
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
