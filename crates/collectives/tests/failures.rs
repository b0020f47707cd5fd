//! Ranks that die, hang or stay away, at random moments of every operation: every other rank gets
//! an error that names them, within seconds.

#![allow(clippy::print_stdout, reason = "how a rank reports to its test")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{ranks, ranks_that_try};
use tutti_collectives::{
    Accused, Algorithm, Choice, Config, Error, Group, Op, Result, Verb, Why, World,
};

const OPS: [&str; 7] =
    ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier", "send"];

/// Not a test of its own: what a rank does when a test below starts this program again.
#[test]
fn rank_process() {
    let Ok(op) = std::env::var("TUTTI_TEST_OP") else { return };
    let world = World::connect(Config::from_env().unwrap()).unwrap();
    let g = world.group();
    println!("\nready");
    let error = loop {
        if let Err(e) = once(&g, &op) {
            break e;
        }
    };
    let again = g.barrier().unwrap_err().accused().unwrap();
    let accused = error.accused().unwrap_or_else(|| panic!("{error}"));
    assert_eq!((again.rank, &again.why), (accused.rank, &accused.why), "it stays the same");
    println!("\naccused {} {} {}", accused.rank, accused.node, accused.op);
}

fn once(g: &Group, op: &str) -> Result<()> {
    let (n, me, len) = (g.size(), g.rank(), 50_000);
    let mut x = vec![1f32; len];
    let mut all = vec![1f32; len * n];
    match op {
        "all_reduce" => g.all_reduce(&mut x, Op::Sum),
        "reduce_scatter" => g.reduce_scatter(&all, &mut x, Op::Sum),
        "all_gather" => g.all_gather(&x, &mut all),
        "broadcast" => g.broadcast(&mut x, 1),
        "all_to_all" => g.all_to_all(&all.clone(), &mut all),
        "barrier" => g.barrier(),
        _ => {
            let sent = g.start_send(x, (me + 1) % n, 7);
            g.recv(&mut all[..len], (me + n - 1) % n, 7)?;
            sent.wait().map(drop)
        }
    }
}

/// How patient ranks are is what these tests measure, and short, so that they are quick. A machine
/// that stops an innocent rank for as long makes it look guilty too: then all are more patient,
/// which helps nobody who is wrong.
fn holds_at_some_patience(seconds: [u64; 3], case: impl Fn(Duration) -> Outcome) {
    let mut failed = Vec::new();
    for seconds in seconds {
        match case(Duration::from_secs(seconds)) {
            Ok(()) => return,
            Err(why) => failed.push(format!("with {seconds} s: {why}")),
        }
    }
    panic!("{failed:#?}");
}

type Outcome = std::result::Result<(), String>;

struct Rank {
    child: Child,
    out: BufReader<ChildStdout>,
}

/// Four processes; over one, two or four nodes.
fn start(op: &str, nodes: usize, silence: Duration) -> Vec<Rank> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rank = |rank: usize| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_process", "--nocapture"])
            .env("TUTTI_TEST_OP", op)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", "4")
            .env("MASTER_PORT", port.to_string())
            .env("TUTTI_NODE", format!("n{}", rank * nodes / 4))
            .env("TUTTI_GANG_KEY", "5a".repeat(32))
            .env("TUTTI_HEARTBEAT", "0.3")
            .env("TUTTI_SILENCE", silence.as_secs().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Rank { child, out }
    };
    (0..4).map(rank).collect()
}

impl Rank {
    fn line(&mut self, start: &str) -> std::result::Result<String, String> {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            if self.out.read_line(&mut line).unwrap() == 0 {
                return Err(format!("no line {start:?}, but {seen}"));
            }
            if line.starts_with(start) {
                return Ok(line.trim().to_owned());
            }
            seen += &line;
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child that is not waited for yet.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }
}

/// Also one that is stopped ends.
impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is done to one of four ranks, and where.
struct Strike {
    op: &'static str,
    nodes: usize,
    victim: usize,
    signal: i32,
    delay: Duration,
}

impl Strike {
    /// The others must name it, all the same one, within this time.
    fn is_named(&self, silence: Duration, within: Duration) -> Outcome {
        let Strike { op, nodes, victim, .. } = *self;
        let mut ranks = start(op, nodes, silence);
        for rank in &mut ranks {
            rank.line("ready")?;
        }
        // Somewhere in the middle of the operations: which is the point, not a synchronisation.
        thread::sleep(self.delay);
        let hit = ranks.remove(victim);
        hit.signal(self.signal);
        let struck = Instant::now();
        let want = format!("accused {victim} n{} ", victim * nodes / 4);
        for rank in &mut ranks {
            let verdict = rank.line("accused")?;
            let named = if op == "send" { "recv" } else { op };
            let said = verdict.ends_with(named) || (op == "send" && verdict.ends_with("send"));
            if !verdict.starts_with(&want) || !said {
                return Err(format!("{op} over {nodes} nodes: {verdict:?}, not {want:?}"));
            }
        }
        let took = struck.elapsed();
        for rank in &mut ranks {
            let mut rest = String::new();
            rank.out.read_to_string(&mut rest).unwrap();
            if !rank.child.wait().unwrap().success() {
                return Err(format!("{op} over {nodes} nodes: {rest}"));
            }
        }
        let in_time = took < within;
        in_time.then_some(()).ok_or_else(|| format!("{op} over {nodes} nodes: {took:?}"))
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others_at_once() {
    for (i, op) in OPS.into_iter().enumerate() {
        for (j, nodes) in [1, 2, 4].into_iter().enumerate() {
            let (victim, signal) = ((i + j) % 4, libc::SIGKILL);
            let delay = Duration::from_millis((i * 13 + j * 7) as u64);
            let strike = Strike { op, nodes, victim, signal, delay };
            // Not by its silence.
            holds_at_some_patience([20, 60, 300], |silence| strike.is_named(silence, silence / 2));
        }
    }
}

#[test]
fn a_suspended_rank_is_named_by_all_others_within_seconds() {
    thread::scope(|scope| {
        for (i, op) in OPS.into_iter().enumerate() {
            scope.spawn(move || {
                let (nodes, victim, signal) = ([1, 2, 4][i % 3], i % 4, libc::SIGSTOP);
                let delay = Duration::from_millis(i as u64 * 11);
                let strike = Strike { op, nodes, victim, signal, delay };
                holds_at_some_patience([3, 15, 60], |silence| {
                    strike.is_named(silence, silence * 5)
                });
            });
        }
    });
}

/// Over TCP in a ring: the neighbour that is waited for is innocent, it waits itself.
fn in_a_ring(config: &mut Config) {
    config.shared_memory = false;
    config.choice = Some(Choice::Only(Algorithm::Ring));
}

/// Whom each rank accuses when rank 2 lives, but is busy with something else until the others have
/// given up.
fn accused_for_rank_2(patience: Duration, adjust: fn(&mut Config)) -> Vec<Result<Accused>> {
    let done = std::sync::Barrier::new(4);
    let impatient = |config: &mut Config| {
        adjust(config);
        config.op_timeout = patience;
    };
    ranks_that_try(4, impatient, |world| {
        let tried = world.map(|world| {
            let g = world.group();
            let planned = (g.rank() != 2).then(|| g.all_reduce(&mut vec![1f32; 200_000], Op::Sum));
            (g, planned)
        });
        // Whatever came of it, nobody waits for ever.
        done.wait();
        let (g, planned) = tried?;
        let error = planned.unwrap_or_else(|| g.barrier()).unwrap_err();
        error.accused().ok_or(error)
    })
}

#[test]
fn a_rank_that_does_not_come_is_named_and_not_the_one_that_waits_for_it() {
    let both: [fn(&mut Config); 2] = [|_| (), in_a_ring];
    for adjust in both {
        holds_at_some_patience([1, 10, 60], |patience| {
            let all = accused_for_rank_2(patience, adjust);
            let absent =
                |accused: &Accused| accused.rank == 2 && matches!(accused.why, Why::Absent(_));
            let named = all.iter().all(|one| one.as_ref().is_ok_and(absent));
            named.then_some(()).ok_or_else(|| format!("{all:?}"))
        });
    }
}

#[test]
fn one_who_leaves_is_named_by_those_who_still_wait_for_it() {
    for shared in [true, false] {
        let errors = ranks(
            3,
            |c| c.shared_memory = shared,
            |world| {
                let g = world.group();
                g.barrier().unwrap();
                if g.rank() == 1 { None } else { g.barrier().err().or(g.barrier().err()) }
            },
        );
        for error in errors.into_iter().flatten() {
            let accused = error.accused().unwrap();
            assert_eq!((accused.rank, accused.op), (1, Verb::Barrier));
            assert!(matches!(accused.why, Why::Left | Why::Died), "{accused:?}");
        }
    }
}

#[test]
fn a_stranger_is_refused_and_disturbs_nobody() {
    use std::io::Write;
    let listener = std::sync::Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    let config = |rank: usize, key: u8, id: &str| {
        let mut c = Config::new(rank, 2, ("127.0.0.1".into(), port));
        c.key = Some([key; 32]);
        c.id = id.into();
        (c.timeout, c.silence) = (Duration::from_secs(300), Duration::from_secs(60));
        c.listener = (rank == 0).then(|| std::sync::Arc::clone(&listener));
        c
    };
    thread::scope(|scope| {
        let zero = scope.spawn(|| World::connect(config(0, 1, "1@1")));
        // Silent ones, talkative ones, one with another key and one of another attempt.
        let silent = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut loud = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        loud.write_all(&[b'x'; 500]).unwrap();
        for other in [config(1, 2, "1@1"), config(1, 1, "1@2")] {
            holds_at_some_patience([1, 10, 60], |timeout| {
                let error = World::connect(Config { timeout, ..other.clone() }).err().unwrap();
                match &error {
                    Error::Unreachable { last, .. } if last.contains("not of this gang") => Ok(()),
                    _ => Err(error.to_string()),
                }
            });
        }
        let one = World::connect(config(1, 1, "1@1")).unwrap();
        let zero = zero.join().unwrap().unwrap();
        let other = scope.spawn(move || one.group().barrier());
        zero.group().barrier().unwrap();
        other.join().unwrap().unwrap();
        drop((silent, loud));
    });
}

#[test]
fn ranks_that_never_come_are_named() {
    let mut config = Config::new(0, 3, ("127.0.0.1".into(), 0));
    config.listener = Some(std::sync::Arc::new(TcpListener::bind("127.0.0.1:0").unwrap()));
    config.timeout = Duration::from_millis(300);
    let message = World::connect(config).err().unwrap().to_string();
    assert!(message.contains("1 of 3") && message.contains("missing: 1, 2"), "{message}");
}
