//! Nothing that a user names can paint an operator's screen, or make a line read as another.

use tutti_model::{JobSpec, JobState};

use crate::cluster;

/// Clears the screen, sets the title, turns the line around, by both kinds of introducer, and begins a
/// line of its own.
const EVIL: &str = "evil\x1b[2J\x1b]0;owned\x07\u{9b}31m\u{202e}gnp.\u{2066}\njob 1 is fine";

/// What a name may have in it.
const TURNED: &str = "evil\u{202e}gnp.\u{2066}";

#[test]
fn no_verb_lets_a_name_through() {
    let cluster = cluster(1);
    let spec = JobSpec {
        name: Some(TURNED.to_owned()),
        workdir: Some(format!("/nonexistent/{EVIL}")),
        ..JobSpec::shell(format!("exit 3 # {EVIL}"))
    };
    let failed = cluster.submit(spec.clone());
    cluster.wait_state(failed, JobState::Failed);
    let waits = cluster.submit(JobSpec { hold: true, ..spec });
    let (failed, waits) = (failed.to_string(), waits.to_string());
    cluster.cli(&["drain", "n1", "--reason", EVIL]).ok();
    let verbs: [&[&str]; 14] = [
        &["ps", "--all"],
        &["ps", "--all", "--json"],
        &["ps", "--user", EVIL],
        &["show", &failed],
        &["show", &waits],
        &["show", &waits, "--json"],
        &["why", &failed],
        &["why", &waits],
        &["report"],
        &["report", &failed],
        &["nodes"],
        &["doctor", "n1"],
        &["top", "--once", "--view", "jobs", "--size", "160x40"],
        &["cancel", &waits],
    ];
    for args in verbs {
        let done = cluster.cli(args).call();
        for (what, text) in [("stdout", &done.out), ("stderr", &done.err)] {
            let bad = text.chars().find(|c| *c != '\n' && tutti_model::text::is_deceptive(*c));
            assert_eq!(bad, None, "{what} of {args:?}: {text:?}");
            assert!(!text.lines().any(|l| l.starts_with("job 1 is fine")), "{args:?}: {text}");
        }
    }
    let list = cluster.cli(&["ps", "--all"]).ok();
    assert!(list.contains("evil\\u{202e}gnp."), "{list}");
    let why = cluster.cli(&["why", &failed]).ok();
    assert!(why.contains("\\x1b[2J"), "the note names the directory: {why}");
    // What a program reads is what was written.
    let json: serde_json::Value =
        serde_json::from_str(&cluster.cli(&["show", &failed, "--json"]).ok()).unwrap();
    assert_eq!(json["name"], TURNED);
}
