//! `tutti train` as processes: ranks that meet, save, are asked to leave, and lose one another.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A model that takes a millisecond.
const TINY: &str = "--layers 2 --dim 16 --heads 2 --ffn 32 --seq 8 --batch 4 --json";

/// Where rank 0 will listen. The address is this process's own, so nobody else takes the port.
fn master() -> (String, u16) {
    let id = std::process::id();
    let address = format!("127.{}.{}.{}", 64 + id % 64, (id >> 6) % 256, 1 + (id >> 14) % 250);
    let listener = TcpListener::bind((address.as_str(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (address, port)
}

fn rank(rank: usize, world: usize, master: &(String, u16), args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tutti"));
    command.arg("train").args(TINY.split_whitespace()).args(args.split_whitespace());
    for (name, _) in std::env::vars() {
        if name.starts_with("TUTTI_") {
            command.env_remove(name);
        }
    }
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world.to_string())
        .env("MASTER_ADDR", &master.0)
        .env("MASTER_PORT", master.1.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn events(child: Child) -> (i32, Vec<Value>, String) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let events = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code().unwrap(), events, String::from_utf8(output.stderr).unwrap())
}

fn steps(events: &[Value]) -> Vec<u64> {
    let steps = events.iter().filter(|event| event["event"] == "step");
    steps.map(|event| event["step"].as_u64().unwrap()).collect()
}

/// Reads until the first step is reported; what follows can be read on.
fn first_step(child: &mut Child) -> BufReader<ChildStdout> {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended before its first step");
        if line.contains(r#""event":"step""#) {
            return lines;
        }
    }
}

#[test]
fn two_ranks_save_and_one_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let args = format!("--steps 6 --stop-after 3 --zero --checkpoint {}", dir.path().display());
    let master = master();
    let ranks: Vec<_> = (0..2).map(|r| rank(r, 2, &master, &args).spawn().unwrap()).collect();
    let mut results: Vec<_> = ranks.into_iter().map(events).collect();
    assert!(results.iter().all(|(code, ..)| *code == 0), "{results:?}");
    let (_, told, _) = results.remove(0);
    assert_eq!(steps(&told), [1, 2, 3]);
    assert!(told.iter().any(|event| event["event"] == "saved" && event["step"] == 3), "{told:?}");
    assert!(results[0].1.is_empty(), "rank 1 keeps quiet");

    let args = format!("--steps 6 --tp 1 --checkpoint {}", dir.path().display());
    let (code, told, errors) = events(rank(0, 1, &master, &args).spawn().unwrap());
    assert_eq!(code, 0, "{errors}");
    assert_eq!(steps(&told), [4, 5, 6]);
    let ended = told.last().unwrap();
    assert_eq!((&ended["event"], &ended["why"]), (&"ended".into(), &"done".into()));
}

#[test]
fn a_signal_saves_and_leaves_and_does_not_look_like_success() {
    let dir = tempfile::tempdir().unwrap();
    for (flag, signal, expected) in [
        ("", Signal::SIGUSR1, 138),
        ("", Signal::SIGTERM, 143),
        ("--exit-on-signal", Signal::SIGTERM, 0),
    ] {
        let args =
            format!("--steps 1000000 --every 0 {flag} --checkpoint {}", dir.path().display());
        let mut child = rank(0, 1, &master(), &args).spawn().unwrap();
        let mut lines = first_step(&mut child);
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(expected), "{rest}");
        let saved = rest.lines().rev().nth(1).unwrap();
        assert!(saved.contains(r#""event":"saved""#) && !saved.contains("failed"), "{saved}");
    }
}

/// What a rank said on its progress socket.
fn progress(listener: &UnixListener) -> Vec<Value> {
    let (stream, _) = listener.accept().unwrap();
    let lines = BufReader::new(stream).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

#[test]
fn a_rank_that_dies_is_named_and_accused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("progress");
    let listener = UnixListener::bind(&socket).unwrap();
    let told = std::thread::spawn(move || progress(&listener));
    let master = master();
    let args = "--steps 1000000";
    let mut first = rank(0, 2, &master, args).env("TUTTI_PROGRESS", &socket).spawn().unwrap();
    let mut second = rank(1, 2, &master, args).spawn().unwrap();
    let mut lines = first_step(&mut first);
    second.kill().unwrap();
    second.wait().unwrap();
    std::io::copy(&mut lines, &mut std::io::sink()).unwrap();
    let mut errors = String::new();
    first.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(76), "{errors}");
    assert!(errors.contains("rank 1 on node"), "{errors}");
    let lines = told.join().unwrap();
    assert_eq!((&lines[0]["rank"], &lines[0]["step"]), (&0.into(), &1.into()));
    assert!(lines[0]["loss"].as_f64().unwrap() > 5.0);
    assert_eq!(lines.last().unwrap()["fault"]["rank"], 1, "{lines:?}");
}

/// Not at the first save.
#[test]
fn a_place_that_can_not_be_written_is_refused_before_the_first_step() {
    let child = rank(0, 1, &master(), "--steps 4 --checkpoint /proc/nowhere").spawn().unwrap();
    let (code, events, said) = events(child);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains(
            "the checkpoints in /proc/nowhere can't be used: can't make the directory of"
        ),
        "{said}"
    );
    assert!(steps(&events).is_empty());
}

#[test]
fn an_impossible_layout_is_refused_before_anyone_is_met() {
    let child = rank(0, 2, &("127.0.0.1".into(), 1), "--tp 3").spawn().unwrap();
    let (code, told, errors) = events(child);
    assert_eq!(code, 2);
    assert!(told.is_empty());
    assert!(errors.contains("--tp 3 x --pp 1 does not divide the 2 ranks"), "{errors}");
    let child = rank(0, 1, &("127.0.0.1".into(), 1), "--device cuda").spawn().unwrap();
    let (code, _, errors) = events(child);
    if !cfg!(feature = "cuda") {
        assert_eq!(code, 2);
        assert!(errors.contains("--features cuda"), "{errors}");
    }
}
