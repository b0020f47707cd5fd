//! Real agents, real processes, a controller played by the test: what a part does from start to
//! end.

mod support;

use support::*;
use tutti_model::{Blame, Command, ExitStatus, JobSpec, Order, Rank, ReportedPhase};
use tutti_wire::stream::{ExecOutput, LogFrom, LogReply, LogStream, ToAgent};

struct Cluster {
    controller: Controller,
    agent: Agent,
    dir: TempDir,
}

fn cluster(options: &[&str]) -> Cluster {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let agent = Agent::start(&controller, &dir.path().join("node"), options);
    controller.wait_for_greeting();
    Cluster { controller, agent, dir }
}

#[test]
fn an_agent_joins_and_says_what_it_has() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let _agent = Agent::start(&controller, &dir.path().join("node"), &[]);
    let greeting = controller.wait_for_greeting();
    assert_eq!(greeting.facts.name, "n1");
    assert_eq!(greeting.facts.gpus.len(), 8);
    assert_eq!(greeting.facts.isolation, "process group");
    assert!(greeting.facts.mem.0 > 0 && greeting.parts.is_empty());
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(dir.path().join("node/node.pem")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn an_agent_says_which_of_its_files_are_there() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let here = dir.path().display().to_string();
    let options = [format!("files={here}"), format!("files={here}/gone")];
    let options = options.each_ref().map(String::as_str);
    let _agent = Agent::start(&controller, &dir.path().join("node"), &options);
    // It looks while it connects: if that takes longer, it greets again.
    let mut told = controller.wait_for_greeting().facts.files;
    while told.is_empty() {
        told = controller.wait_for_greeting().facts.files;
    }
    assert_eq!(told, [here]);
}

#[test]
fn exit_codes_and_signals_are_exact() {
    let mut c = cluster(&[]);
    for (generation, line, status) in [
        (1, "true", ExitStatus::Code(0)),
        (2, "exit 3", ExitStatus::Code(3)),
        (3, "kill -9 $$", ExitStatus::Signal(9)),
        (4, "kill -TERM $$", ExitStatus::Signal(15)),
        (5, "exit 255", ExitStatus::Code(255)),
        (6, "kill -SEGV $$", ExitStatus::Signal(11)),
    ] {
        let launch = shell(&generation.to_string(), generation, line);
        assert_eq!(c.controller.status_of(&launch), status, "{line}");
    }
}

#[test]
fn what_can_not_be_executed_says_so_in_its_log() {
    let mut c = cluster(&[]);
    let missing = JobSpec::new(Command::Argv(vec!["no-such-program".into()]));
    let launch = with_spec("1", 1, missing);
    assert_eq!(c.controller.status_of(&launch), ExitStatus::Code(127));
    let log = c.controller.whole_log(launch.lease.task, 0);
    assert_eq!(log, "tutti: can't run 'no-such-program': No such file or directory (os error 2)\n");
    let not_executable = JobSpec::new(Command::Argv(vec!["/etc/passwd".into()]));
    assert_eq!(c.controller.status_of(&with_spec("2", 2, not_executable)), ExitStatus::Code(126));
}

#[test]
fn a_part_runs_once_however_often_it_is_ordered() {
    let mut c = cluster(&[]);
    let file = c.dir.path().join("runs");
    let launch = shell("1", 1, &format!("echo run >> {}", file.display()));
    for _ in 0..3 {
        c.controller.run(&launch);
    }
    c.controller.wait_until_done(launch.lease);
    c.controller.run(&launch);
    c.controller.wait_until_done(launch.lease);
    c.controller.order(Order::Forget { lease: launch.lease });
    c.controller.run(&launch);
    let old = c.controller.wait_for_phase(launch.lease, |p| match p {
        ReportedPhase::Done { error: Some(e), .. } => Some(e.clone()),
        _ => None,
    });
    assert_eq!(old.blame, Blame::Node);
    assert_eq!(std::fs::read_to_string(file).unwrap(), "run\n");
}

#[test]
fn ranks_know_who_they_are_and_where() {
    let mut c = cluster(&[]);
    let line = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $TUTTI_NODE \
                gpus=$CUDA_VISIBLE_DEVICES $MINE $(pwd) ${MASTER_PORT:?} ${TUTTI_PART:?}; \
                test -z \"$CARGO\"";
    let mut spec = JobSpec::shell(line);
    spec.env.insert("MINE".into(), "yes".into());
    spec.workdir = Some("/usr".into());
    let mut launch = with_spec("5", 1, spec);
    (launch.ranks, launch.world_size) = (2, 2);
    c.controller.run(&launch);
    let (exits, error) = c.controller.wait_until_done(launch.lease);
    assert_eq!((exits.len(), error), (2, None));
    assert!(exits.iter().all(|e| e.status.is_success()), "nothing of the agent's environment");
    for rank in 0..2 {
        let log = c.controller.whole_log(launch.lease.task, rank);
        let wanted = format!("{rank}/2 {rank}/2 n1 gpus=1 yes /usr ");
        assert!(log.starts_with(&wanted), "{log:?}");
    }
}

#[test]
fn a_gang_starts_when_it_is_told() {
    let mut c = cluster(&[]);
    let mut launch = shell("1", 1, "echo port $MASTER_PORT");
    launch.wait_for_go = true;
    c.controller.run(&launch);
    let port = c.controller.wait_for_phase(launch.lease, |p| match p {
        ReportedPhase::Prepared { port } => Some(*port),
        _ => None,
    });
    assert!(port > 0);
    c.controller.order(Order::Go {
        lease: launch.lease,
        master_port: 4321,
        ports: vec![4321, 4322],
    });
    c.controller.wait_until_done(launch.lease);
    assert_eq!(c.controller.whole_log(launch.lease.task, 0), "port 4321\n");
}

#[test]
fn stop_kills_the_whole_tree() {
    for options in [&[][..], &["cgroups"][..]] {
        let mut c = cluster(options);
        // A daemon that has left the session, is nobody's child, and ignores SIGTERM.
        let line = "trap '' TERM; \
                    (setsid sh -c 'trap \"\" TERM; echo daemon $$; while :; do sleep 1; done' &); \
                    while :; do sleep 1; done";
        let launch = shell("1", 1, line);
        c.controller.run(&launch);
        let log = c.controller.wait_for_log(launch.lease.task, 0, "\n");
        let daemon: i32 = log.trim().strip_prefix("daemon ").unwrap().parse().unwrap();
        assert!(is_alive(daemon));
        c.controller.stop(launch.lease, 100);
        let (exits, error) = c.controller.wait_until_done(launch.lease);
        assert_eq!((exits[0].status, error), (ExitStatus::Signal(9), None), "{options:?}");
        assert!(!is_alive(daemon), "{options:?}");
    }
}

#[test]
fn stop_lets_a_program_clean_up() {
    let mut c = cluster(&[]);
    let line = "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.05; done";
    let launch = shell("1", 1, line);
    c.controller.run(&launch);
    c.controller.wait_for_log(launch.lease.task, 0, "up\n");
    c.controller.stop(launch.lease, 60_000);
    let (exits, _) = c.controller.wait_until_done(launch.lease);
    assert_eq!(exits[0].status, ExitStatus::Code(4));
    // The shell itself may say that its `sleep` was terminated.
    assert!(c.controller.whole_log(launch.lease.task, 0).contains("bye\n"));
}

#[test]
fn a_program_that_listens_is_asked_to_save_before_it_is_stopped() {
    let mut c = cluster(&[]);
    let file = c.dir.path().join("checkpoint");
    // Neither the shell around it nor its `sleep` listens, and the signal would kill both.
    let save = format!("echo step 7 > {}; exit 0", file.display());
    let inner = format!("trap \"{save}\" USR1; echo up; while :; do sleep 0.05; done");
    let launch = shell("1", 1, &format!("sh -c '{inner}'; exit $?"));
    c.controller.run(&launch);
    c.controller.wait_for_log(launch.lease.task, 0, "up\n");
    c.controller.ask_to_save(launch.lease, "USR1", 60_000);
    let (exits, _) = c.controller.wait_until_done(launch.lease);
    assert_eq!(exits[0].status, ExitStatus::Code(0));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "step 7\n");
}

#[test]
fn who_does_not_listen_or_does_not_leave_gets_sigterm() {
    let mut c = cluster(&[]);
    let mut asked = |generation: u64, line: &str, grace_ms| {
        let launch = shell(&generation.to_string(), generation, line);
        c.controller.run(&launch);
        c.controller.wait_for_log(launch.lease.task, 0, "up\n");
        c.controller.ask_to_save(launch.lease, "SIGUSR1", grace_ms);
        let (exits, _) = c.controller.wait_until_done(launch.lease);
        let log = c.controller.whole_log(launch.lease.task, 0);
        (exits[0].status, log.contains("saved\n"))
    };
    // Not at the end of its grace: at once.
    let deaf = asked(1, "echo up; while :; do sleep 0.05; done", 600_000);
    assert_eq!(deaf, (ExitStatus::Signal(15), false));
    // A machine that is slower than the grace is short gets more of it.
    let stays = "trap 'echo saved' USR1; echo up; while :; do sleep 0.05; done";
    let mut seen = Vec::new();
    let heard_both = [(2, 300), (3, 3_000), (4, 30_000)].into_iter().any(|(n, grace_ms)| {
        seen.push(asked(n, stays, grace_ms));
        seen.last() == Some(&(ExitStatus::Signal(15), true))
    });
    assert!(heard_both, "{seen:?}");
}

#[test]
fn nothing_stays_behind_when_a_rank_ends_by_itself() {
    let mut c = cluster(&[]);
    let launch = shell("1", 1, "(setsid sleep 1000 & echo $!) ; exit 0");
    assert_eq!(c.controller.status_of(&launch), ExitStatus::Code(0));
    let left: i32 = c.controller.whole_log(launch.lease.task, 0).trim().parse().unwrap();
    assert!(!is_alive(left));
}

#[test]
fn a_lease_that_was_stopped_first_never_starts() {
    let mut c = cluster(&[]);
    let file = c.dir.path().join("ran");
    let launch = shell("1", 1, &format!("touch {}", file.display()));
    c.controller.stop(launch.lease, 0);
    let (exits, error) = c.controller.wait_until_done(launch.lease);
    assert_eq!((exits.len(), error), (0, None));
    c.controller.order(Order::Forget { lease: launch.lease });
    // Also not after a restart.
    c.agent.kill();
    c.agent = Agent::start(&c.controller, &c.dir.path().join("node"), &[]);
    c.controller.wait_for_greeting();
    c.controller.run(&launch);
    let (_, error) = c.controller.wait_until_done(launch.lease);
    assert!(error.unwrap().message.contains("is old"));
    assert!(!file.exists());
}

#[test]
fn input_reaches_a_rank() {
    let mut c = cluster(&[]);
    let mut spec = JobSpec::new(Command::Argv(vec!["cat".into()]));
    spec.stdin = true;
    let launch = with_spec("1", 1, spec);
    let (task, rank) = (launch.lease.task, Rank(0));
    c.controller.run(&launch);
    // Before it runs and after.
    c.controller.tell(ToAgent::Stdin { task, rank, data: b"one\n".to_vec(), eof: false });
    c.controller.wait_for_log(task, 0, "one\n");
    let long = vec![b'x'; 3 << 20];
    c.controller.tell(ToAgent::Stdin { task, rank, data: long, eof: false });
    c.controller.tell(ToAgent::Stdin { task, rank, data: b"\nend".to_vec(), eof: true });
    let (exits, _) = c.controller.wait_until_done(launch.lease);
    assert_eq!(exits[0].status, ExitStatus::Code(0));
    let tail = c.controller.read_log(task, 0, LogFrom::Tail(1), false);
    let LogReply::Piece { lines, end, .. } = tail else { panic!("{tail:?}") };
    assert_eq!((lines[0].text.as_slice(), lines[0].partial, end), (&b"end"[..], true, true));
}

#[test]
fn without_input_standard_input_is_empty() {
    let mut c = cluster(&[]);
    assert_eq!(c.controller.status_of(&shell("1", 1, "cat")), ExitStatus::Code(0));
}

#[test]
fn a_program_can_be_run_inside_a_part() {
    let mut c = cluster(&[]);
    let launch = shell("1", 1, "echo up; sleep 1000");
    let task = launch.lease.task;
    c.controller.run(&launch);
    c.controller.wait_for_log(task, 0, "up\n");
    let exec = |line: &str| tutti_wire::stream::Exec {
        task,
        rank: Rank(0),
        argv: ["sh", "-c", line].map(String::from).to_vec(),
    };
    let request = c.controller.request();
    let line = "echo rank $RANK of $TUTTI_TASK_ID; cat; exit 5";
    c.controller.tell(ToAgent::Exec { request, exec: exec(line) });
    c.controller.tell(ToAgent::ExecInput { request, data: b"typed\n".to_vec(), eof: true });
    let (out, end) = c.controller.exec_result(request);
    assert_eq!(out, "rank 0 of 1\ntyped\n");
    assert_eq!(end, ExecOutput::Exited { status: ExitStatus::Code(5) });

    let abandoned = c.controller.request();
    c.controller.tell(ToAgent::Exec { request: abandoned, exec: exec("echo $$; sleep 1000") });
    let pid = c.controller.wait(|m| match m {
        tutti_wire::stream::ToController::Output { request, output } if *request == abandoned => {
            let ExecOutput::Data { data, stream: LogStream::Out } = output else { return None };
            Some(String::from_utf8_lossy(data).trim().parse::<i32>().unwrap())
        }
        _ => None,
    });
    c.controller.tell(ToAgent::Abandon { request: abandoned });
    c.controller.stop(launch.lease, 0);
    c.controller.wait_until_done(launch.lease);
    assert!(!is_alive(pid));
    let late = c.controller.request();
    c.controller.tell(ToAgent::Exec { request: late, exec: exec("true") });
    let (_, end) = c.controller.exec_result(late);
    assert!(matches!(end, ExecOutput::Failed { .. }), "{end:?}");
}

#[test]
fn logs_are_followed_line_by_line_and_over_rotation() {
    let mut c = cluster(&[]);
    let line = "printf 'prompt> '; read x; i=0; while [ $i -lt 20000 ]; do \
                echo line $i; i=$((i+1)); done; echo oops >&2";
    let mut spec = JobSpec::shell(line);
    spec.stdin = true;
    let launch = with_spec("1", 1, spec);
    let task = launch.lease.task;
    c.controller.run(&launch);
    assert_eq!(c.controller.wait_for_log(task, 0, "> "), "prompt> ", "seen without a newline");
    c.controller.tell(ToAgent::Stdin { task, rank: Rank(0), data: b"\n".to_vec(), eof: true });
    let (mut next, mut kept, mut skipped, mut bytes) = (0, Vec::new(), 0, 0);
    loop {
        let reply = c.controller.read_log(task, 0, LogFrom::Offset(next), true);
        let LogReply::Piece { lines, next: n, end, skipped: s } = reply else { panic!() };
        bytes += n - next - s;
        kept.extend(lines);
        skipped += s;
        next = n;
        if end {
            break;
        }
    }
    assert_eq!(next, bytes + skipped, "every byte is there or counted as gone");
    let last: Vec<_> = kept.iter().rev().take(2).map(|l| (l.text.clone(), l.stream)).collect();
    assert!(last.contains(&(b"oops".to_vec(), LogStream::Err)));
    assert!(last.contains(&(b"line 19999".to_vec(), LogStream::Out)));
}

#[test]
fn a_quiet_task_has_an_empty_log_also_after_it_is_forgotten() {
    let mut c = cluster(&[]);
    let launch = shell("1", 1, "true");
    c.controller.status_of(&launch);
    c.controller.order(Order::Forget { lease: launch.lease });
    assert_eq!(c.controller.whole_log(launch.lease.task, 0), "");
}

#[test]
fn jobs_run_as_their_user() {
    if !is_root() {
        return;
    }
    let mut c = cluster(&[]);
    let mut launch =
        shell("1", 1, "id -un; id -Gn; echo $USER; touch /root/x 2>/dev/null || echo no");
    launch.user = "nobody".into();
    assert_eq!(c.controller.status_of(&launch), ExitStatus::Code(0));
    let log = c.controller.whole_log(launch.lease.task, 0);
    assert_eq!(log, "nobody\nnogroup\nnobody\nno\n");
    let mut stranger = shell("2", 2, "true");
    stranger.user = "nobody-knows".into();
    c.controller.run(&stranger);
    let (_, error) = c.controller.wait_until_done(stranger.lease);
    let error = error.unwrap();
    assert_eq!(error.message, "user 'nobody-knows' does not exist on node n1");
    assert_eq!(error.blame, Blame::Job);
}

#[test]
fn a_missing_directory_is_the_jobs_fault() {
    let mut c = cluster(&[]);
    let mut spec = JobSpec::shell("true");
    spec.workdir = Some("/no/such/dir".into());
    c.controller.run(&with_spec("1", 1, spec));
    let (_, error) = c.controller.wait_until_done(lease("1", 1));
    let error = error.unwrap();
    assert_eq!(error.message, "the working directory '/no/such/dir' does not exist on node n1");
    assert_eq!(error.blame, Blame::Job);
}

#[test]
fn a_burst_of_parts_all_end() {
    let mut c = cluster(&[]);
    for generation in 1..=200 {
        let mut launch = shell(&format!("1_{generation}"), generation, "true");
        launch.gpus.clear();
        c.controller.run(&launch);
    }
    for generation in 1..=200 {
        let (exits, error) =
            c.controller.wait_until_done(lease(&format!("1_{generation}"), generation));
        assert_eq!((exits.len(), error), (1, None));
    }
}

#[test]
fn what_outlives_its_rank_may_tidy_up() {
    let mut c = cluster(&[]);
    // As Python's tracker of shared memory does, which ignores signals and ends a moment after the others.
    let line = "mkfifo gone; exec 9<>gone; \
                (trap '' TERM; exec 9>&- 8<gone; echo > ready; read x <&8; sleep 0.1; echo tidied > tidied) & \
                (while :; do sleep 0.02; done) & \
                while [ ! -e ready ]; do sleep 0.01; done; exit 0";
    let place = tempfile::tempdir().unwrap();
    let line = format!("cd {} && {line}", place.path().display());
    let launch = shell("1", 1, &line);
    assert_eq!(c.controller.status_of(&launch), ExitStatus::Code(0));
    let tidied = std::fs::read_to_string(place.path().join("tidied")).unwrap_or_default();
    assert_eq!(tidied, "tidied\n");
}

#[test]
fn a_background_writer_does_not_keep_a_part_alive() {
    let mut c = cluster(&[]);
    let launch = shell("1", 1, "yes & exit 0");
    assert_eq!(c.controller.status_of(&launch), ExitStatus::Code(0));

    let launch = shell("2", 2, "echo up; sleep 1000");
    let task = launch.lease.task;
    c.controller.run(&launch);
    c.controller.wait_for_log(task, 0, "up\n");
    // What it wrote may be seen before its shim has dialled.
    c.controller.wait_until_running(launch.lease);
    let argv = ["sh", "-c", "yes & exit 6"].map(String::from).to_vec();
    let exec = tutti_wire::stream::Exec { task, rank: Rank(0), argv };
    let request = c.controller.request();
    c.controller.tell(ToAgent::Exec { request, exec });
    let (out, end) = c.controller.exec_result(request);
    assert_eq!(end, ExecOutput::Exited { status: ExitStatus::Code(6) });
    assert!(out.len() < 8 << 20, "{} bytes", out.len());
    c.controller.stop(launch.lease, 0);
    let (exits, error) = c.controller.wait_until_done(launch.lease);
    assert_eq!((exits[0].status.signal().is_some(), error), (true, None));
}
