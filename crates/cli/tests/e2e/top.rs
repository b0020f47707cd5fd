//! `tutti top` in a real terminal, which tmux is: at three sizes, resized while it runs, and however it
//! ends, the terminal is as it was.

use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;
use tutti_model::{Grant, JobSpec, JobState, Role, TaskId};
use tutti_testkit::{Cluster, PATIENCE, processes_of, wait_for};
use tutti_wire::api::NewToken;

use crate::{TUTTI, cluster, gang};

/// A terminal with a shell in it.
struct Tmux {
    socket: PathBuf,
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.call(&["kill-server"]);
    }
}

impl Tmux {
    fn start(cluster: &Cluster, name: &str, (width, height): (u16, u16)) -> Tmux {
        let tmux = Tmux { socket: cluster.scratch().join(format!("{name}.tmux")) };
        let home = format!("TUTTI_CLUSTER={}", cluster.dir().display());
        let (width, height) = (width.to_string(), height.to_string());
        let made = tmux.call(&[
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
            "-e",
            &home,
            "-e",
            "PS1=$ ",
            "-e",
            "LC_ALL=C.UTF-8",
            "sh",
        ]);
        assert!(made.is_some(), "tmux makes a session");
        tmux.write("echo what was 'here' before");
        tmux.shows(&["what was here before"]);
        tmux
    }

    /// None if it failed.
    fn call(&self, args: &[&str]) -> Option<String> {
        let mut tmux = Command::new("tmux");
        tmux.arg("-u").arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(args);
        let done = tmux.env_remove("TMUX").output().expect("tmux can be started");
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
    }

    fn screen(&self) -> String {
        self.call(&["capture-pane", "-p"]).unwrap_or_default()
    }

    /// A line for the shell.
    fn write(&self, line: &str) {
        self.call(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    /// By the names that tmux has for keys.
    fn press(&self, keys: &[&str]) {
        let words = [&["send-keys"], keys].concat();
        assert!(self.call(&words).is_some(), "tmux takes keys");
    }

    fn resize(&self, (width, height): (u16, u16)) {
        let (width, height) = (width.to_string(), height.to_string());
        let done = self.call(&["resize-window", "-x", &width, "-y", &height]);
        assert!(done.is_some(), "tmux resizes");
    }

    /// Waits until all of these are on the screen, and nothing of the others.
    #[track_caller]
    fn becomes(&self, wanted: &[&str], unwanted: &[&str]) -> String {
        let mut last = String::new();
        let what = format!("{wanted:?} and not {unwanted:?}");
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for(&what, PATIENCE, || {
                last = self.screen();
                let there = wanted.iter().all(|word| last.contains(word));
                (there && !unwanted.iter().any(|word| last.contains(word))).then_some(())
            });
        }));
        assert!(seen.is_ok(), "{what} in\n{last}");
        last
    }

    #[track_caller]
    fn shows(&self, wanted: &[&str]) -> String {
        self.becomes(wanted, &[])
    }

    fn top(&self, args: &str) {
        self.write(&format!("{TUTTI} top {args}; echo left with $?"));
    }

    /// It ended so, and the terminal is as it was: the screen of before, its cursor, its echo.
    #[track_caller]
    fn left(&self, code: u8) {
        self.shows(&[&format!("left with {code}"), "what was here before"]);
        let flags = self.call(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(flags.as_deref().map(str::trim), Some("0 1"), "{}", self.screen());
        self.write("stty -a | grep -ow -e '-*icanon' -e '-*echo' | tr '\\n' '.'");
        self.shows(&["icanon.echo."]);
    }
}

#[allow(clippy::print_stderr)]
fn no_tmux() -> bool {
    let missing = Command::new("tmux").arg("-V").output().is_err();
    if missing {
        eprintln!("SKIPPED: Debian's package tmux is not installed");
    }
    missing
}

/// On both nodes, a GPU each; says something in every rank, then stays.
fn training(cluster: &Cluster) -> TaskId {
    let line = "echo hello from rank $RANK; exec sleep 1000";
    let gpus = "h100:1".parse().ok();
    let spec = JobSpec { name: Some("train".into()), gpus_per_node: gpus, ..gang(2, line) };
    let id = cluster.submit(spec);
    cluster.wait_state(id, JobState::Running);
    id
}

#[test]
fn a_person_looks_around_at_80_by_24() {
    if no_tmux() {
        return;
    }
    let cluster = cluster(2);
    let id = training(&cluster);
    let waits =
        cluster.submit(JobSpec { nodes: Some(2), exclusive: true, ..JobSpec::shell("true") });
    let tmux = Tmux::start(&cluster, "small", (80, 24));
    tmux.top("");
    tmux.shows(&[
        "[1 cluster]",
        "simulated GPUs",
        "2 of 16",
        "2 of 2 ready",
        "n1",
        "n2",
        "·······",
    ]);
    tmux.press(&["2"]);
    tmux.shows(&["[2 jobs]", "▶ running", "… pending", "train", "%"]);
    tmux.press(&["Enter"]);
    let job = format!("job {id}");
    tmux.shows(&[&format!("[4 {job}]"), "RANK", "n1", "n2", "2 GPUs", "% busy"]);
    tmux.press(&["l"]);
    tmux.shows(&["hello from rank 0", "hello from rank 1", "following"]);
    tmux.press(&["/"]);
    tmux.write("rank 1");
    tmux.shows(&["· 'rank 1'", "›[1] hello from rank 1"]);
    tmux.press(&["Escape"]);
    tmux.becomes(&["logs"], &["'rank 1'"]);
    tmux.press(&["Escape"]);
    tmux.shows(&["RANK"]);
    tmux.press(&["Escape"]);
    tmux.shows(&["[2 jobs]"]);
    // Why another waits.
    tmux.press(&["Down", "Enter"]);
    tmux.shows(&[&format!("job {waits} is pending"), "what it needs is held by"]);
    tmux.press(&["2", "/"]);
    tmux.write("tra");
    tmux.becomes(&["filter: tra", "running"], &["pending "]);
    tmux.press(&["k"]);
    tmux.shows(&[&format!("cancel {job} (train of "), "? y or n"]);
    tmux.press(&["n"]);
    tmux.becomes(&["enter open"], &["y or n"]);
    assert_eq!(cluster.job(id).row.state, JobState::Running);
    tmux.press(&["k", "y"]);
    tmux.shows(&["cancelled"]);
    assert_eq!(cluster.wait_end(id).state, JobState::Cancelled);
    tmux.press(&["q"]);
    tmux.left(0);
}

#[test]
fn it_follows_the_size_of_its_terminal_and_outlives_the_controller() {
    if no_tmux() {
        return;
    }
    let mut cluster = cluster(2);
    training(&cluster);
    let tmux = Tmux::start(&cluster, "medium", (120, 40));
    tmux.top("--view jobs");
    tmux.becomes(&["TEAM", "train", "q quit"], &["POWER"]);
    tmux.resize((200, 60));
    tmux.shows(&["TEAM", "POWER", "PROGRESS", "q quit"]);
    tmux.resize((60, 20));
    tmux.shows(&["tutti top needs 80x24", "this terminal has 60x20"]);
    tmux.resize((80, 24));
    tmux.becomes(&["[2 jobs]", "train", "q quit"], &["TEAM", "needs 80x24"]);
    tmux.resize((200, 60));
    tmux.press(&["3"]);
    tmux.shows(&["[3 nodes]", "ready", "HEAT", "CPU"]);

    cluster.kill_controller();
    tmux.shows(&[" OLD ", "! since ", "can't be reached", "trying again", "n1"]);
    // It does not hang meanwhile.
    tmux.press(&["1"]);
    tmux.shows(&["[1 cluster]", " OLD "]);
    cluster.start_controller();
    tmux.becomes(&["[1 cluster]", "2 of 16"], &[" OLD ", "trying again"]);
    // Stopped, and back; what the shell does after a stop is its own business.
    tmux.press(&["C-z"]);
    tmux.shows(&["Stopped", "what was here before"]);
    tmux.write("fg; echo left with $?");
    tmux.becomes(&["[1 cluster]", "2 of 16"], &["Stopped"]);
    tmux.press(&["C-c"]);
    tmux.left(0);
}

#[test]
fn viewers_are_refused_and_the_terminal_is_given_back_however_it_ends() {
    if no_tmux() {
        return;
    }
    let cluster = cluster(2);
    let id = training(&cluster);
    let grant = Grant::Access { user: "guest".into(), role: Role::Viewer };
    let token = NewToken { grant, expires_in: None };
    let secret = cluster.client().create_token(&token).unwrap().secret;
    let tmux = Tmux::start(&cluster, "large", (200, 60));
    tmux.write(&format!("export TUTTI_TOKEN={secret}; clear; echo what was 'here' before"));
    tmux.top("--view jobs");
    tmux.shows(&["guest (viewer)", "▶ running"]);
    tmux.press(&["k"]);
    tmux.shows(&[&format!("cancel job {id}")]);
    tmux.press(&["y"]);
    tmux.shows(&["! ", "viewer", "user"]);
    assert_eq!(cluster.job(id).row.state, JobState::Running);

    let top = processes_of(cluster.dir());
    let top = top.iter().find(|p| p.name == "tutti" && p.cmdline.contains(" top "));
    top.expect("it runs").signal(Signal::SIGTERM);
    tmux.left(143);

    // Only in builds for tests.
    if cfg!(debug_assertions) {
        tmux.write("clear; echo what was 'here' before; export TUTTI_TEST_TOP_PANIC=1");
        tmux.top("");
        tmux.shows(&["asked to by TUTTI_TEST_TOP_PANIC"]);
        tmux.left(101);
    }
}

#[test]
fn one_frame_for_scripts() {
    let cluster = cluster(2);
    let id = training(&cluster);
    let busy = || {
        let frame = cluster.cli(&["top", "--once", "--size", "80x24"]).ok();
        frame.contains('%').then_some(frame)
    };
    let frame = wait_for("there are values", PATIENCE, busy);
    for word in ["[1 cluster]", "simulated GPUs", "2 of 16", "2 of 2 ready", "n1", "n2"] {
        assert!(frame.contains(word), "no {word} in\n{frame}");
    }
    assert!(!frame.contains('\u{1b}'), "{frame}");
    let job = cluster.cli(&["top", &id.to_string(), "--once"]).ok();
    assert!(job.contains("RANK") && job.contains("[4 job "), "{job}");
    let jobs = cluster.cli(&["top", "--view", "jobs", "--filter", "nothing", "--once"]).ok();
    assert!(jobs.contains("no job is like that"), "{jobs}");

    let json: Value = serde_json::from_str(&cluster.cli(&["top", "--json"]).ok()).unwrap();
    assert_eq!(json["cluster"]["simulated"], true);
    assert_eq!(json["load"]["cluster"]["gpus"], 16);
    assert_eq!(json["load"]["nodes"][0]["gpus"].as_array().map(Vec::len), Some(8));
    let one = cluster.cli(&["top", &id.to_string(), "--json"]).ok();
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!(one["job"]["detail"]["state"], "running");

    cluster.cli(&["top"]).call().exited(2).says(&["needs a terminal", "--once"]);
    cluster.cli(&["top", "99", "--once"]).call().exited(3).says(&["99"]);
    let away = cluster.cli(&["top", "--once"]).env("TUTTI_CLUSTER", "/nowhere/at/all").call();
    away.exited(75);
}
