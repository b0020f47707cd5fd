//! Nothing that a user names can paint an operator's screen, or make a line read as another.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use tutti_model::{JobSpec, JobState};
use tutti_testkit::Cluster;

use crate::{TUTTI, cluster};

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

/// What a terminal is sent by this verb.
fn on_a_terminal(cluster: &Cluster, args: &[&str]) -> String {
    let pty = nix::pty::openpty(None, None).unwrap();
    let screen = |stream: &std::os::fd::OwnedFd| Stdio::from(stream.try_clone().unwrap());
    let mut tutti = Command::new(TUTTI)
        .args(args)
        .env("TUTTI_CLUSTER", cluster.dir())
        .stdin(Stdio::null())
        .stdout(screen(&pty.slave))
        .stderr(screen(&pty.slave))
        .spawn()
        .unwrap();
    drop(pty.slave);
    let mut shown = Vec::new();
    // Once nobody has the other side any more, reading fails; what came before is there.
    let _ = File::from(pty.master).read_to_end(&mut shown);
    assert!(tutti.wait().unwrap().success(), "{}", String::from_utf8_lossy(&shown));
    String::from_utf8(shown).unwrap()
}

/// The program of somebody else's job sets the title, fills the clipboard and asks the terminal for an
/// answer, which it would give as if somebody had typed it.
#[test]
fn a_program_that_exec_starts_gets_no_hold_of_the_terminal() {
    let cluster = cluster(1);
    let id = cluster.submit(JobSpec::shell("exec sleep 600"));
    cluster.wait_state(id, JobState::Running);
    let id = id.to_string();
    let script = r"printf '\033[31mred\033]52;c;AAAA\007'; printf '\033[6n' >&2";
    let shown = on_a_terminal(&cluster, &["exec", &id, "--", "sh", "-c", script]);
    assert!(shown.contains("\x1b[31mred\\x1b]52;c;AAAA\\x07"), "{shown:?}");
    assert!(shown.contains("\\x1b[6n"), "{shown:?}");
    assert!(!shown.contains("\x1b]") && !shown.contains("\x1b[6n"), "{shown:?}");
    let raw = on_a_terminal(&cluster, &["exec", "--raw", &id, "--", "sh", "-c", script]);
    assert!(raw.contains("\x1b]52;c;AAAA\x07") && raw.contains("\x1b[6n"), "{raw:?}");
    let pipe = cluster.cli(&["exec", &id, "--", "sh", "-c", script]).call();
    assert_eq!(pipe.out, "\x1b[31mred\x1b]52;c;AAAA\x07");
}
