//! Agents, shims and controllers that are killed while ranks run.

mod support;

use std::path::{Path, PathBuf};

use support::*;
use tutti_model::{Blame, ExitStatus, Launch, ReportedPhase};
use tutti_wire::stream::ToController;

impl Node {
    fn gate(&self, name: &str) -> Gate {
        Gate::new(&self.dir.path().join(name))
    }
}

/// A named pipe: ranks wait at it until the test opens it.
struct Gate(PathBuf);

impl Gate {
    fn new(path: &Path) -> Gate {
        let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a valid path.
        assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o666) }, 0);
        Gate(path.to_owned())
    }
    fn pass(&self) {
        std::fs::write(&self.0, "go\n").unwrap();
    }
    fn wait(&self) -> String {
        format!("read x < {}", self.0.display())
    }
}

/// Two ranks that write before and after the gates, then end with 0 and 7.
fn two_ranks(gates: [&Gate; 2]) -> Launch {
    let line = format!(
        "echo before $RANK; if [ $RANK = 0 ]; then {}; else {}; fi; \
         echo after $RANK; printf tail; exit $((RANK * 7))",
        gates[0].wait(),
        gates[1].wait()
    );
    let mut launch = shell("1", 1, &line);
    (launch.ranks, launch.world_size) = (2, 2);
    launch
}

fn assert_both_ended_well(node: &mut Node, launch: &Launch) {
    let (exits, error) = node.controller.wait_until_done(launch.lease);
    assert_eq!(error, None);
    let statuses: Vec<_> = exits.iter().map(|e| (e.rank.0, e.status)).collect();
    assert_eq!(statuses, [(0, ExitStatus::Code(0)), (1, ExitStatus::Code(7))]);
    for rank in 0..2 {
        let log = node.controller.whole_log(launch.lease.task, rank);
        assert_eq!(log, format!("before {rank}\nafter {rank}\ntail"));
    }
}

#[test]
fn ranks_outlive_their_agent_and_are_adopted() {
    let mut node = Node::new();
    let gates = [node.gate("g0"), node.gate("g1")];
    let launch = two_ranks([&gates[0], &gates[1]]);
    let mut agent = node.agent(&[]);
    node.controller.run(&launch);
    for rank in 0..2 {
        node.controller.wait_for_log(launch.lease.task, rank, "before");
    }
    agent.kill();
    let _agent = node.agent(&[]);
    node.controller.wait_until_running(launch.lease);
    // The order that started it comes again, as it does after a reconnect.
    node.controller.run(&launch);
    gates.iter().for_each(Gate::pass);
    assert_both_ended_well(&mut node, &launch);
}

#[test]
fn what_ends_while_the_agent_is_away_is_known_afterwards() {
    let mut node = Node::new();
    let gates = [node.gate("g0"), node.gate("g1")];
    let launch = two_ranks([&gates[0], &gates[1]]);
    let mut agent = node.agent(&[]);
    node.controller.run(&launch);
    for rank in 0..2 {
        node.controller.wait_for_log(launch.lease.task, rank, "before");
    }
    let shim = shim_of(&launch);
    agent.kill();
    gates.iter().for_each(Gate::pass);
    wait_until_gone(shim);
    let _agent = node.agent(&[]);
    assert_both_ended_well(&mut node, &launch);
}

#[test]
fn an_orderly_stop_of_the_agent_leaves_ranks_alone() {
    let mut node = Node::new();
    let gates = [node.gate("g0"), node.gate("g1")];
    let launch = two_ranks([&gates[0], &gates[1]]);
    let mut agent = node.agent(&[]);
    node.controller.run(&launch);
    for rank in 0..2 {
        node.controller.wait_for_log(launch.lease.task, rank, "before");
    }
    assert_eq!(agent.terminate(), Some(0));
    let _agent = node.agent(&[]);
    gates.iter().for_each(Gate::pass);
    assert_both_ended_well(&mut node, &launch);
}

#[test]
fn a_stop_ordered_while_the_shim_was_unheard_reaches_it() {
    let mut node = Node::new();
    let mut agent = node.agent(&[]);
    let launch = shell("1", 1, "echo up; sleep 1000");
    node.controller.run(&launch);
    node.controller.wait_for_log(launch.lease.task, 0, "up");
    agent.kill();
    let _agent = node.agent(&[]);
    node.controller.stop(launch.lease, 0);
    let (exits, error) = node.controller.wait_until_done(launch.lease);
    assert_eq!((exits[0].status.signal().is_some(), error), (true, None));
}

#[test]
fn a_killed_shim_takes_its_ranks_along_and_the_node_is_blamed() {
    for options in [&[][..], &["cgroups"][..]] {
        let mut node = Node::new();
        let _agent = node.agent(options);
        let line = "(setsid sh -c 'echo $$; while :; do sleep 1; done' &); sleep 1000";
        let launch = shell("1", 1, line);
        node.controller.run(&launch);
        let log = node.controller.wait_for_log(launch.lease.task, 0, "\n");
        let orphan: i32 = log.trim().parse().unwrap();
        signal(shim_of(&launch), libc::SIGKILL);
        let (_, error) = node.controller.wait_until_done(launch.lease);
        assert_eq!(error.unwrap().blame, Blame::Node);
        assert!(!is_alive(orphan), "{options:?}");
    }
}

#[test]
fn taking_a_node_down_takes_its_ranks_down_and_blames_nobody() {
    let mut node = Node::new();
    let mut agent = node.agent(&["kill-jobs"]);
    let launch = shell("1", 1, "trap '' TERM; echo $$; while :; do sleep 1; done");
    node.controller.run(&launch);
    let log = node.controller.wait_for_log(launch.lease.task, 0, "\n");
    let rank: i32 = log.trim().parse().unwrap();
    assert_eq!(agent.terminate(), Some(0));
    // The agent waits for it, but not for ever.
    wait_while(|| is_alive(rank).then(|| "the rank lives on".to_owned()));
    let _agent = node.agent(&[]);
    let (exits, error) = node.controller.wait_until_done(launch.lease);
    assert!(exits.is_empty());
    let error = error.unwrap();
    assert_eq!((error.message.as_str(), error.blame), ("the node was taken down", Blame::Operator));
}

#[test]
fn a_prepared_part_is_still_prepared_after_a_restart() {
    let mut node = Node::new();
    let mut agent = node.agent(&[]);
    let mut launch = shell("1", 1, "echo $MASTER_PORT");
    launch.wait_for_go = true;
    node.controller.run(&launch);
    let prepared = |p: &ReportedPhase| match p {
        ReportedPhase::Prepared { port } => Some(*port),
        _ => None,
    };
    let port = node.controller.wait_for_phase(launch.lease, prepared);
    agent.kill();
    let _agent = Agent::start(&node.controller, &node.data_dir(), &[]);
    let again = node.controller.wait(|m| match m {
        ToController::Hello { greeting, .. } => {
            greeting.parts.iter().find_map(|r| prepared(&r.phase))
        }
        _ => None,
    });
    assert_eq!(again, port);
    let lease = launch.lease;
    node.controller.order(tutti_model::Order::Go { lease, master_port: port, ports: vec![port] });
    node.controller.wait_until_done(lease);
    assert_eq!(node.controller.whole_log(lease.task, 0), format!("{port}\n"));
}

#[test]
fn a_controller_of_an_older_epoch_is_not_obeyed() {
    let mut node = Node::new();
    node.controller.set_epoch(5);
    let mut agent = node.agent(&[]);
    let first = shell("1", 1, "true");
    node.controller.status_of(&first);
    agent.kill();
    node.controller.set_epoch(4);
    let _agent = node.agent(&[]);
    let file = node.dir.path().join("ran");
    let launch = shell("2", 2, &format!("touch {}", file.display()));
    node.controller.run_if_connected(&launch);
    node.controller.wait_until_dropped();
    assert!(!file.exists());
}

#[test]
fn two_agents_can_not_share_a_data_dir() {
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let mut second = Agent::start(&node.controller, &node.data_dir(), &[]);
    assert_eq!(second.wait(), Some(1));
}

/// The process whose child leads the part: the shim holds the lock on the part's record.
fn shim_of(launch: &Launch) -> i32 {
    let mark = format!("/parts/{}", launch.lease);
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(environ) = std::fs::read(entry.path().join("environ")) else { continue };
        let environ = String::from_utf8_lossy(&environ);
        let marked = environ
            .split('\0')
            .any(|v| v.starts_with("TUTTI_PART=") && v.contains(&own_tmp()) && v.ends_with(&mark));
        if !marked {
            continue;
        }
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let parent: i32 = rest.split(' ').nth(1).unwrap().parse().unwrap();
        let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
        if name.trim() == "tutti-shim" {
            return parent;
        }
    }
    panic!("no shim of {}", launch.lease);
}

fn own_tmp() -> String {
    format!("tutti-agent-test-{}-", std::process::id())
}

/// Waits on the process itself.
fn wait_until_gone(pid: i32) {
    // SAFETY: plain system calls.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
        if fd < 0 {
            return;
        }
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        assert_eq!(libc::poll(&mut poll, 1, 30_000), 1, "{pid} does not end");
        libc::close(fd);
    }
}
