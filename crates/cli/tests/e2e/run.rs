use std::fs;

use nix::sys::signal::Signal;
use tutti_testkit::{PATIENCE, Proc, wait_for, wait_until};

use crate::cluster;

#[test]
fn exit_codes_and_signals_are_the_commands() {
    let cluster = cluster(2);
    for (script, code) in [
        ("true", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("kill -SEGV $$", 139),
    ] {
        cluster.cli(&["run", "--", "sh", "-c", script]).call().exited(code);
    }
    let missing = cluster.cli(&["run", "--", "no-such-program"]).call();
    missing.exited(127).says(&["no-such-program"]);
    fs::write(cluster.scratch().join("no-program"), "text").unwrap();
    cluster.cli(&["run", "--", "./no-program"]).call().exited(126).says(&["no-program"]);
    // The first rank that fails decides.
    let gang = ["run", "-N", "2", "--", "sh", "-c", "[ $RANK = 1 ] && exit 9; sleep 600"];
    cluster.cli(&gang).call().exited(9).says(&["rank 1"]);
}

#[test]
fn output_is_exact_and_ranks_are_told_apart() {
    let cluster = cluster(2);
    let done = cluster.cli(&["run", "--", "sh", "-c", "echo out; echo err >&2; printf end"]).call();
    assert_eq!((done.out.as_str(), done.err.as_str()), ("out\nend", "err\n"), "{done}");
    done.exited(0);

    // Every byte, also those that are no text.
    let script =
        "printf 'a\\377\\000b\\n'; head -c 300000 /dev/zero | tr '\\0' x; echo; seq 1 20000";
    let out = cluster.cli(&["run", "--", "sh", "-c", script]).ok();
    let wanted = String::from_utf8_lossy(b"a\xff\0b\n").into_owned() + &"x".repeat(300_000);
    let wanted =
        wanted + "\n" + &(1..=20_000).map(|i| i.to_string()).collect::<Vec<_>>().join("\n");
    assert!(out == wanted, "{} bytes instead of {}", out.len(), wanted.len());

    let script = "for i in 1 2 3; do echo hello $i from $RANK of $WORLD_SIZE; done; echo warn >&2";
    let done = cluster.cli(&["run", "-N", "2", "--", "sh", "-c", script]).call();
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    let wanted: Vec<String> = (0..2)
        .flat_map(|r| (1..4).map(move |i| format!("[{r}] hello {i} from {r} of 2")))
        .collect();
    assert_eq!(lines, wanted);
    assert!(done.err.contains("[0] warn\n") && done.err.contains("[1] warn\n"), "{done}");
}

#[test]
fn environment_and_directory_are_as_promised() {
    let cluster = cluster(2);
    let script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR \
                  $CUDA_VISIBLE_DEVICES $TUTTI_NODE $TUTTI_NUM_NODES; test -n \"$MASTER_PORT\" && pwd";
    let args = ["run", "-N", "2", "-G", "2", "--ranks-per-node", "2", "--", "sh", "-c", script];
    let out = cluster.cli(&args).ok();
    let here = cluster.scratch().canonicalize().unwrap();
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    // Which node comes first is the scheduler's choice.
    let first = if out.contains("[0] 0 4 0 2 0 127.0.77.1") { [1, 2] } else { [2, 1] };
    let mut wanted = Vec::new();
    for rank in 0..4 {
        let (node, local) = (rank / 2, rank % 2);
        wanted.push(format!("[{rank}] {}", here.display()));
        wanted.push(format!(
            "[{rank}] {rank} 4 {local} 2 {node} 127.0.77.{} 0,1 n{} 2",
            first[0], first[node]
        ));
    }
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
    // What the caller's shell has in secret stays there; what a flag says goes.
    let run = cluster.cli(&["run", "--env", "A=1", "--", "sh", "-c", "echo $A-$SECRET"]);
    assert_eq!(run.env("SECRET", "x").ok(), "1-");
}

#[test]
fn standard_input_is_passed_on() {
    let cluster = cluster(1);
    let input: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(cluster.cli(&["run", "--", "wc", "-c"]).stdin(&input).ok().trim(), "1000000");
    assert_eq!(cluster.cli(&["run", "--", "cat"]).stdin(b"one\ntwo\n").ok(), "one\ntwo");
    // Neither one that ends early nor one that never reads is in trouble.
    assert_eq!(cluster.cli(&["run", "--", "head", "-c", "3"]).stdin(&input).ok().len(), 3);
    cluster.cli(&["run", "--", "true"]).stdin(&input).ok();
}

/// The tree: a rank that ends on SIGTERM, and a grandchild in a session of its own that does not.
#[test]
fn an_interrupt_cancels_and_kills_the_whole_tree() {
    let cluster = cluster(1);
    let pid_file = cluster.scratch().join("grandchild");
    let stubborn =
        format!("trap '' TERM; echo $$ > {}; while :; do sleep 1; done", pid_file.display());
    fs::write(cluster.scratch().join("stubborn.sh"), stubborn).unwrap();
    let script = "(setsid sh stubborn.sh >/dev/null 2>&1 &); echo ready; exec sleep 600";
    let mut run = cluster.cli(&["run", "--grace", "2s", "--", "sh", "-c", script]).spawn();
    assert_eq!(run.next_line(), "ready");
    let grandchild = wait_for("the grandchild runs", PATIENCE, || {
        Proc::of(fs::read_to_string(&pid_file).ok()?.trim().parse().ok()?)
    });
    run.signal(Signal::SIGINT);
    let done = run.finish();
    assert!([130, 143].contains(&done.code), "{done}");
    assert!(!grandchild.is_alive(), "a process is left behind");
    let row = cluster.cli(&["ps", "--all"]).ok();
    assert!(row.contains("cancelled"), "{row}");
    wait_until("nothing is left", PATIENCE, || cluster.processes_on("n1").is_empty());
}

#[test]
fn output_and_exit_code_come_through_a_restart_of_the_controller() {
    let mut cluster = cluster(1);
    let go = cluster.scratch().join("go");
    let script = format!(
        "echo before; while [ ! -e {} ]; do sleep 0.05; done; echo after; exit 6",
        go.display()
    );
    let mut run = cluster.cli(&["run", "--", "sh", "-c", &script]).spawn();
    assert_eq!(run.next_line(), "before");
    cluster.kill_controller();
    fs::write(&go, "").unwrap();
    cluster.start_controller();
    let done = run.finish();
    assert_eq!(done.out, "before\nafter\n", "{done}");
    done.exited(6);
}
