use super::*;
use crate::{Subject, Time, WatchAction, WatchRule};

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
