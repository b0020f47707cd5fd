//! `$TUTTI_PROGRESS`: what ranks say of themselves, whatever they write and whoever dies meanwhile.

mod support;

use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::*;
use tutti_model::{ExitStatus, JobSpec, Launch, PartProgress, Rank, ReportedPhase};
use tutti_wire::stream::ToController;

struct Node {
    controller: Controller,
    agent: Agent,
    dir: TempDir,
}

/// A part that says where its socket is and runs until the test lets it go.
struct Part {
    launch: Launch,
    socket: PathBuf,
}

impl Node {
    fn new() -> Node {
        let mut controller = Controller::start();
        let dir = TempDir::new();
        let agent = Agent::start(&controller, &dir.path().join("node"), &[]);
        controller.wait_for_greeting();
        Node { controller, agent, dir }
    }

    fn agent_again(&mut self) {
        self.agent.kill();
        self.agent = Agent::start(&self.controller, &self.dir.path().join("node"), &[]);
    }

    fn gate(&self) -> PathBuf {
        self.dir.path().join("gate")
    }

    fn start(&mut self, more: &str) -> Part {
        let gate = std::ffi::CString::new(self.gate().to_str().unwrap()).unwrap();
        // SAFETY: a valid path.
        assert_eq!(unsafe { libc::mkfifo(gate.as_ptr(), 0o666) }, 0);
        let line =
            format!("echo at $TUTTI_PROGRESS; {more} read x < {}; exit 3", self.gate().display());
        let launch = shell("1", 1, &line);
        self.controller.run(&launch);
        let log = self.controller.wait_for_log(launch.lease.task, 0, "\n");
        let socket = log.lines().next().unwrap().strip_prefix("at ").unwrap();
        Part { launch, socket: socket.into() }
    }

    /// Lets the part end, and says what its last report was.
    fn finish(&mut self, part: &Part) -> PartProgress {
        std::fs::write(self.gate(), "go\n").unwrap();
        let (progress, exits) =
            self.controller.wait_for_progress(part.launch.lease, |progress, phase| match phase {
                ReportedPhase::Done { exits, error: None } => {
                    Some((progress.clone(), exits.clone()))
                }
                _ => None,
            });
        assert_eq!(exits[0].status, ExitStatus::Code(3), "the job is none the worse for it");
        assert!(!part.socket.exists(), "the socket goes with its part");
        progress
    }

    fn log(&mut self, part: &Part) -> String {
        self.controller.whole_log(part.launch.lease.task, 0)
    }
}

fn connect(part: &Part) -> UnixStream {
    UnixStream::connect(&part.socket).unwrap()
}

fn say(mut stream: &UnixStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

fn steps(progress: &PartProgress) -> Vec<(u32, u64)> {
    progress.ranks.iter().map(|r| (r.rank.0, r.step)).collect()
}

#[test]
fn steps_arrive_checkpoints_at_once_and_the_last_word_with_the_end() {
    let mut node = Node::new();
    let part = node.start("");
    let mode = std::fs::metadata(&part.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let stream = connect(&part);
    say(&stream, "{\"step\": 1, \"loss\": 2.5}\n{\"step\": 2, \"loss\": 2.25, \"tokens\": 64}\n");
    let rank = node.controller.wait_for_step(part.launch.lease, 0, 2);
    assert_eq!((rank.loss, rank.tokens), (Some(2.25), Some(64)));
    say(&stream, "{\"step\": 3, \"saved\": 3, \"path\": \"/ckpt/3\", \"save_ms\": 12}\n");
    let saved = node.controller.wait_for_progress(part.launch.lease, |p, _| p.saved.clone());
    assert_eq!((saved.step, saved.path.as_deref()), (3, Some("/ckpt/3")));
    // Half a line is no line; without a newline at the end it is one.
    say(&stream, "{\"step\": ");
    say(&stream, "4}\n{\"rank\": 5, \"step\": 9}");
    drop(stream);
    let last = node.finish(&part);
    assert_eq!(steps(&last), [(0, 4), (5, 9)]);
    assert_eq!(last.saved, Some(saved));
    assert_eq!(node.log(&part), format!("at {}\n", part.socket.display()));
}

#[test]
fn nonsense_is_dropped_and_said_once() {
    let mut node = Node::new();
    let part = node.start("");
    let stream = connect(&part);
    for nonsense in ["step 1\n", "{\"step\": -3}\n", "\u{0}\u{1}\n", "[]\n", "{\"step\": 1\n"] {
        say(&stream, nonsense);
    }
    // Longer than a line may be, in pieces, and the rest of it is not taken for a line.
    for _ in 0..20 {
        say(&stream, &"x".repeat(1000));
    }
    say(&stream, "\n\n\n{\"step\": 8}\n");
    node.controller.wait_for_step(part.launch.lease, 0, 8);
    assert_eq!(steps(&node.finish(&part)), [(0, 8)]);
    let log = node.log(&part);
    assert_eq!(log.matches("a line of progress was dropped").count(), 1, "{log}");
    assert!(log.contains("dropped: it is no JSON object: step 1]"), "{log}");
    assert!(log.contains("[tutti: 6 lines of progress were dropped]"), "{log}");
}

#[test]
fn too_many_connections_harm_nobody() {
    let mut node = Node::new();
    let part = node.start("");
    let first = connect(&part);
    say(&first, "{\"step\": 1}\n");
    node.controller.wait_for_step(part.launch.lease, 0, 1);
    let many: Vec<UnixStream> = (0..400).map(|_| connect(&part)).collect();
    let log = node.controller.wait_for_log(part.launch.lease.task, 0, "256 are open already");
    assert_eq!(log.matches("256 are open already").count(), 1, "{log}");
    say(&first, "{\"step\": 2}\n");
    node.controller.wait_for_step(part.launch.lease, 0, 2);
    drop(many);
    // Those that are gone make room.
    for step in 3..500u64 {
        say(&connect(&part), &format!("{{\"step\": {step}}}\n"));
    }
    assert_eq!(steps(&node.finish(&part)), [(0, 499)]);
}

#[test]
fn a_flood_waits_and_nothing_of_it_is_lost() {
    let mut node = Node::new();
    let part = node.start("");
    let stream = connect(&part);
    let line = "{\"loss\": 1.0}\n".repeat(1000);
    for _ in 0..200 {
        say(&stream, &line);
    }
    say(&stream, "{\"step\": 7}\n");
    node.controller.wait_for_step(part.launch.lease, 0, 7);
    assert_eq!(steps(&node.finish(&part)), [(0, 7)]);
    let log = node.log(&part);
    assert_eq!(log.matches("more than 1 MiB/s of progress").count(), 1, "{log}");
}

/// What a rank says without its number is known by whose child it is.
const PYTHON: &str = "import os, socket; s = socket.socket(socket.AF_UNIX); \
    s.connect(os.environ['TUTTI_PROGRESS']); s.sendall(b'{\"step\": %d}\\n' % \
    (10 + int(os.environ['RANK'])))";

/// Says its step and stays.
fn with_script(line: &str) -> Launch {
    let mut spec = JobSpec::shell(line);
    spec.env.insert("SCRIPT".into(), format!("{PYTHON}; import time; time.sleep(1000)"));
    with_spec("1", 1, spec)
}

#[test]
fn who_speaks_is_known_by_its_process() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let _agent = Agent::start(&controller, &dir.path().join("node"), &[]);
    controller.wait_for_greeting();
    // The shell stays the python's parent, so that there is something to look through.
    let mut launch = with_script("python3 -c \"$SCRIPT\"; true");
    (launch.first_rank, launch.ranks, launch.world_size) = (Rank(2), 2, 4);
    controller.run(&launch);
    for rank in [2, 3] {
        controller.wait_for_step(launch.lease, rank, 10 + u64::from(rank));
    }
    controller.stop(launch.lease, 0);
    controller.wait_until_done(launch.lease);
}

/// Who blames another and leaves at once has not failed first.
#[test]
fn an_accusation_comes_before_the_end_of_who_made_it() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let _agent = Agent::start(&controller, &dir.path().join("node"), &[]);
    controller.wait_for_greeting();
    let accuse = "import os, socket; s = socket.socket(socket.AF_UNIX); \
        s.connect(os.environ['TUTTI_PROGRESS']); \
        s.sendall(b'{\"fault\": {\"rank\": 0, \"op\": \"all_reduce\"}}\\n'); os._exit(1)";
    let mut spec =
        JobSpec::shell("if [ $RANK = 0 ]; then sleep 1000; else exec python3 -c \"$SCRIPT\"; fi");
    spec.env.insert("SCRIPT".into(), accuse.into());
    let mut launch = with_spec("1", 1, spec);
    (launch.ranks, launch.world_size) = (2, 2);
    controller.run(&launch);
    let first = controller.wait(|message| match message {
        ToController::Report { report } => match &report.phase {
            ReportedPhase::Running { exits } if !exits.is_empty() => Some(report.clone()),
            _ => None,
        },
        _ => None,
    });
    let fault = first.progress.and_then(|p| p.fault).expect("said before it left");
    assert_eq!(fault.rank, Rank(0));
    controller.stop(launch.lease, 0);
    controller.wait_until_done(launch.lease);
}

#[test]
fn progress_goes_on_while_the_agent_is_away() {
    let mut node = Node::new();
    let part = node.start("");
    let stream = connect(&part);
    say(&stream, "{\"step\": 1, \"saved\": 1}\n");
    node.controller.wait_for_step(part.launch.lease, 0, 1);
    node.agent.kill();
    say(&stream, "{\"step\": 2}\n{\"saved\": 2}\n");
    node.agent_again();
    node.controller.wait_for_step(part.launch.lease, 0, 2);
    node.controller.wait_for_progress(part.launch.lease, |p, _| {
        p.saved.as_ref().is_some_and(|s| s.step == 2).then_some(())
    });
    say(&stream, "{\"step\": 3}\n");
    node.controller.wait_for_step(part.launch.lease, 0, 3);
    assert_eq!(steps(&node.finish(&part)), [(0, 3)]);
}

#[test]
fn a_socket_does_not_outlive_a_shim_that_was_killed() {
    let mut node = Node::new();
    let part = node.start("");
    let stream = connect(&part);
    say(&stream, "{\"step\": 5}\n");
    node.controller.wait_for_step(part.launch.lease, 0, 5);
    signal(parent_of_ranks(&part), libc::SIGKILL);
    let last =
        node.controller.wait_for_progress(part.launch.lease, |progress, phase| match phase {
            ReportedPhase::Done { error: Some(_), .. } => Some(progress.clone()),
            _ => None,
        });
    assert_eq!(steps(&last), [(0, 5)], "what it had said before");
    assert!(!part.socket.exists());
}

/// The shim, by the environment of its children.
fn parent_of_ranks(part: &Part) -> i32 {
    let mark = format!("TUTTI_PROGRESS={}", part.socket.display());
    let marked = |dir: &Path| {
        let environ = std::fs::read(dir.join("environ")).unwrap_or_default();
        environ.split(|&b| b == 0).any(|var| var == mark.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let rank = entries.map(|e| e.path()).find(|dir| marked(dir)).expect("a rank runs");
    let stat = std::fs::read_to_string(rank.join("stat")).unwrap();
    let after_name = stat.rsplit_once(") ").unwrap().1;
    after_name.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn ranks_of_another_user_reach_their_socket_and_others_do_not() {
    if !is_root() {
        return;
    }
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let mut agent = Agent::start(&controller, &dir.path().join("node"), &[]);
    controller.wait_for_greeting();
    let mut launch = with_script("echo at $TUTTI_PROGRESS; exec python3 -c \"$SCRIPT\"");
    launch.user = "nobody".into();
    controller.run(&launch);
    controller.wait_for_step(launch.lease, 0, 10);
    let log = controller.wait_for_log(launch.lease.task, 0, "\n");
    let socket = PathBuf::from(log.lines().next().unwrap().strip_prefix("at ").unwrap());
    let found = std::fs::metadata(&socket).unwrap();
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    assert_eq!((found.mode() & 0o777, found.uid()), (0o600, nobody.uid.as_raw()));
    let shared = socket.parent().unwrap();
    assert_eq!(std::fs::metadata(shared).unwrap().mode() & 0o777, 0o711);
    let mut other = Command::new("python3");
    other.arg("-c").arg(PYTHON).env("TUTTI_PROGRESS", &socket).env("RANK", "0").uid(1).gid(1);
    let refused = String::from_utf8(other.output().unwrap().stderr).unwrap();
    assert!(refused.contains("PermissionError"), "{refused}");
    controller.stop(launch.lease, 0);
    controller.wait_until_done(launch.lease);
    let gone = UnixStream::connect(&socket).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert!(!shared.exists(), "the last part takes the directory along");
    agent.terminate();
}
