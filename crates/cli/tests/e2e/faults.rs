use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tutti_model::{GpuRequest, JobSpec, JobState, NodeState, TaskId};
use tutti_testkit::{Cluster, PATIENCE, wait_until};
use tutti_wire::api::LogQuery;

use crate::{cluster, gang};

/// Ranks that count aloud until they are told to end, each with its own code. How far they are
/// stands in `at.RANK`. None leaves before all have said their last: one that fails has the others
/// stopped.
fn counting(dir: &Path, codes: &str) -> String {
    let dir = dir.display();
    format!(
        "i=0; while [ ! -e {dir}/end ]; do i=$((i+1)); echo line $i; echo $i > {dir}/at.$RANK; \
         sleep 0.01; done; echo last $i; echo > {dir}/said.$RANK; \
         while [ $(ls {dir}/said.* | wc -l) -lt $WORLD_SIZE ]; do sleep 0.01; done; \
         set -- {codes}; shift $RANK; exit $1"
    )
}

fn counted(dir: &Path, rank: u32) -> u64 {
    let text = fs::read_to_string(dir.join(format!("at.{rank}"))).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn counts_on(dir: &Path, rank: u32) {
    let from = counted(dir, rank);
    wait_until(&format!("rank {rank} goes on"), PATIENCE, || counted(dir, rank) >= from + 30);
}

/// Lines 1, 2, 3, ... and the last one, of every rank.
fn assert_whole_log(cluster: &Cluster, id: TaskId, ranks: u32) {
    let log = cluster.log_of(id, &LogQuery::default());
    for rank in 0..ranks {
        let lines: Vec<&str> =
            log.iter().filter(|l| l.rank == rank).map(|l| l.text.as_str()).collect();
        let n = lines.len() - 1;
        let mut wanted: Vec<String> = (1..=n).map(|i| format!("line {i}")).collect();
        wanted.push(format!("last {n}"));
        assert_eq!(lines, wanted, "rank {rank}");
        assert!(n > 60, "rank {rank} has counted to {n} only");
    }
}

#[test]
fn ranks_outlive_their_agent_and_are_adopted() {
    let mut cluster = cluster(2);
    let dir = cluster.scratch().to_owned();
    let id = cluster.submit(gang(2, counting(&dir, "0 7")));
    cluster.wait_state(id, JobState::Running);
    let before = cluster.job(id);
    let follower = cluster.cli(&["logs", "-f", "--rank", "1", &id.to_string()]).spawn();
    for node in ["n1", "n2"] {
        (0..2).for_each(|rank| counts_on(&dir, rank));
        cluster.kill_agent(node);
        (0..2).for_each(|rank| counts_on(&dir, rank));
        cluster.start_agent(node);
        cluster.wait_node(node, NodeState::Ready);
    }
    let after = cluster.job(id);
    assert_eq!((after.attempt, after.generation), (before.attempt, before.generation));
    fs::write(dir.join("end"), "").unwrap();
    let row = cluster.wait_end(id);
    assert_eq!((row.state, row.exit_code, row.restarts), (JobState::Failed, Some(7), 0), "{row:?}");
    assert_whole_log(&cluster, id, 2);
    // Who followed all the while has seen the same.
    let seen = follower.finish();
    let log = cluster.log_of(id, &LogQuery { rank: Some("1".to_owned()), ..LogQuery::default() });
    let wanted: String = log.iter().map(|l| format!("{}\n", l.text)).collect();
    assert!(seen.out == wanted, "{seen}");
}

/// Only the ranks are left for a while; then controller and agents come back.
#[test]
fn ranks_outlive_everybody_and_are_adopted() {
    let mut cluster = cluster(2);
    let dir = cluster.scratch().to_owned();
    let id = cluster.submit(gang(2, counting(&dir, "0 5")));
    let before = cluster.wait_state(id, JobState::Running);
    (0..2).for_each(|rank| counts_on(&dir, rank));
    cluster.kill_controller();
    cluster.kill_agent("n1");
    cluster.kill_agent("n2");
    (0..2).for_each(|rank| counts_on(&dir, rank));
    cluster.start_controller();
    cluster.start_agent("n1");
    cluster.start_agent("n2");
    cluster.wait_ready();
    let after = cluster.job(id);
    assert_eq!((after.row.state, after.generation), (JobState::Running, before.generation));
    fs::write(dir.join("end"), "").unwrap();
    let row = cluster.wait_end(id);
    assert_eq!((row.exit_code, row.restarts), (Some(5), 0), "{row:?}");
    assert_whole_log(&cluster, id, 2);
}

/// Nobody is there to say that its time is over but those who run it.
#[test]
fn time_limits_hold_while_the_controller_is_away() {
    let mut cluster = cluster(2);
    let spec = |line: &str| {
        let mut spec = gang(2, line.to_owned());
        spec.time = Some(tutti_model::Span::secs(3));
        spec
    };
    let id = cluster.submit(spec("trap 'exit 0' TERM; while :; do sleep 0.05; done"));
    cluster.wait_state(id, JobState::Running);
    cluster.kill_controller();
    for node in ["n1", "n2"] {
        wait_until("its ranks are stopped", PATIENCE, || cluster.processes_on(node).is_empty());
    }
    cluster.start_controller();
    let row = cluster.wait_end(id);
    assert_eq!((row.state, row.exit_code, row.restarts), (JobState::Failed, Some(124), 0));
    assert_eq!(row.note, "ran out of its time limit");
}

/// Agents die at any point between hearing of a task and having told of its end.
#[test]
fn agents_killed_again_and_again_run_every_task_once() {
    const TASKS: u64 = 300;
    let mut cluster = cluster(2);
    let ran = cluster.scratch().join("ran");
    let mut spec = JobSpec::shell(format!("echo $TUTTI_TASK_ID >> {}; sleep 0.1", ran.display()));
    // So few at once that the array lasts through all kills.
    spec.array = Some(format!("0-{}%16", TASKS - 1).parse().unwrap());
    let id = cluster.submit(spec);
    let lines = || fs::read_to_string(&ran).unwrap_or_default().lines().count() as u64;
    for kill in 1..=12 {
        wait_until("tasks run", PATIENCE, || lines() >= kill * TASKS / 13);
        let node = if kill % 2 == 0 { "n1" } else { "n2" };
        cluster.kill_agent(node);
        cluster.start_agent(node);
    }
    let row = cluster.wait_end(id);
    // What an agent was about to start when it died is given back and started anew.
    assert_eq!(row.state, JobState::Completed, "{row:?}");
    let text = fs::read_to_string(&ran).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let mut wanted: Vec<String> = (0..TASKS).map(|i| format!("{id}_{i}")).collect();
    lines.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
}

#[test]
fn what_ended_while_the_agent_was_dead_is_known() {
    let mut cluster = cluster(2);
    let dir = cluster.scratch().to_owned();
    let id = cluster.submit(gang(2, counting(&dir, "0 0")));
    cluster.wait_state(id, JobState::Running);
    (0..2).for_each(|rank| counts_on(&dir, rank));
    for node in ["n1", "n2"] {
        cluster.kill_agent(node);
    }
    (0..2).for_each(|rank| counts_on(&dir, rank));
    fs::write(dir.join("end"), "").unwrap();
    for node in ["n1", "n2"] {
        wait_until("its ranks have ended", PATIENCE, || cluster.processes_on(node).is_empty());
        cluster.start_agent(node);
    }
    let row = cluster.wait_end(id);
    assert_eq!((row.exit_code, row.restarts), (Some(0), 0), "{row:?}");
    assert_whole_log(&cluster, id, 2);
}

/// The promise is 15 s with default settings.
#[test]
fn a_gang_runs_elsewhere_soon_after_its_node_died() {
    let mut cluster = cluster(4);
    let id = cluster.submit(gang(2, "echo $TUTTI_NODE; exec sleep 600"));
    let first = cluster.wait_state(id, JobState::Running);
    let (dead, survivor) = (first.parts[1].node.clone(), first.parts[0].node.clone());
    let client = cluster.client();
    let began = client.cluster_info().unwrap().now;
    cluster.kill_node(&dead);
    wait_until("the gang runs again", PATIENCE, || {
        let job = client.job(id).unwrap();
        job.row.state == JobState::Running && job.attempt == Some(2)
    });
    let took = client.cluster_info().unwrap().now.since(began);
    assert!(took.0 < 15_000, "it took {took}");
    let again = cluster.job(id);
    assert!(again.parts.iter().all(|p| p.node != dead), "{:?}", again.parts);
    assert!(again.generation > first.generation);
    assert_eq!((again.row.restarts, again.restarts_by_cause.node_failure), (1, 1));
    // The old attempt's rank on the node that lives is gone; the new one may be there.
    let runs_here = usize::from(again.parts.iter().any(|p| p.node == survivor));
    wait_until("one rank at most on the survivor", PATIENCE, || {
        let ranks = cluster.processes_on(&survivor);
        ranks.iter().filter(|p| p.name == "sleep").count() == runs_here
    });
    cluster.start_agent(&dead);
    cluster.wait_node(&dead, NodeState::Ready);
    assert_eq!(cluster.job(id).attempt, Some(2), "the node's return changes nothing");
}

/// A minute is the promise; `TUTTI_TEST_AWAY` (seconds) makes the test wait that long.
#[test]
fn jobs_run_on_without_a_controller_and_their_ends_are_known_afterwards() {
    let away = std::env::var("TUTTI_TEST_AWAY").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let away = Duration::from_secs(away);
    let mut cluster = cluster(2);
    let dir = cluster.scratch().to_owned();
    let until = |file: &str, code: i32| {
        let path = dir.join(file);
        let line = format!("while [ ! -e {} ]; do sleep 0.05; done; exit {code}", path.display());
        line.replace("exit 9", "kill -9 $$")
    };
    let good = cluster.submit(gang(2, until("now", 0)));
    let bad = cluster.submit(gang(1, until("now", 3)));
    let killed = cluster.submit(gang(1, until("now", 9)));
    let later = cluster.submit(gang(2, until("later", 4)));
    let all = [good, bad, killed, later];
    all.iter().for_each(|&id| drop(cluster.wait_state(id, JobState::Running)));

    let began = Instant::now();
    cluster.kill_controller();
    fs::write(dir.join("now"), "").unwrap();
    wait_until("the short jobs have ended", PATIENCE, || {
        let shims =
            |node| cluster.processes_on(node).iter().filter(|p| p.name == "tutti-shim").count();
        shims("n1") == 1 && shims("n2") == 1
    });
    // Being away is what is tested.
    std::thread::sleep(away.saturating_sub(began.elapsed()));
    cluster.start_controller();
    for (id, code) in [(good, 0), (bad, 3), (killed, 137)] {
        let row = cluster.wait_end(id);
        assert_eq!((row.exit_code, row.restarts), (Some(code), 0), "{row:?}");
    }
    cluster.wait_ready();
    let row = cluster.job(later).row;
    assert_eq!((row.state, row.restarts), (JobState::Running, 0), "{row:?}");
    fs::write(dir.join("later"), "").unwrap();
    assert_eq!(cluster.wait_end(later).exit_code, Some(4));
}

/// A whole node's GPUs.
fn with_gpus(line: &str) -> JobSpec {
    let gpus = GpuRequest { model: None, count: 8 };
    JobSpec { gpus_per_node: Some(gpus), ..gang(1, line) }
}

#[test]
fn a_hung_agent_delays_nobody_and_recovers() {
    let cluster = cluster(2);
    let long = cluster.submit(with_gpus("exec sleep 600"));
    let hung = cluster.wait_state(long, JobState::Running).parts[0].node.clone();
    let client = cluster.client();
    cluster.signal_agent(&hung, Signal::SIGSTOP);
    let began = Instant::now();
    for _ in 0..20 {
        let row = cluster.wait_end(cluster.submit(with_gpus("true")));
        assert_eq!(row.state, JobState::Completed, "{row:?}");
        assert_ne!(row.node_names, std::slice::from_ref(&hung));
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(6), "20 jobs of another node took {took:?}");
    cluster.wait_node(&hung, NodeState::Lost);
    wait_until("the long job runs elsewhere", PATIENCE, || {
        let job = client.job(long).unwrap();
        job.row.state == JobState::Running && job.attempt == Some(2)
    });
    assert!(!cluster.processes_on(&hung).is_empty(), "the old ranks know nothing yet");
    cluster.signal_agent(&hung, Signal::SIGCONT);
    cluster.wait_node(&hung, NodeState::Ready);
    wait_until("the old ranks are gone", PATIENCE, || cluster.processes_on(&hung).is_empty());
    let row = cluster.wait_end(cluster.submit(with_gpus("true")));
    assert_eq!(row.node_names, [hung], "the node takes work again");
    assert_eq!(cluster.job(long).attempt, Some(2));
}

/// Waits for a word, says that rank 1 is dead, and leaves as a program with a broken peer does.
const ACCUSER: &str = "
import json, os, socket, time
while not (os.environ['RANK'] == '0' and os.path.exists('accuse')):
    time.sleep(0.01)
os.remove('accuse')
line = {'fault': {'rank': 1, 'op': 'all_reduce', 'why': 'connection reset'}}
to = socket.socket(socket.AF_UNIX)
to.connect(os.environ['TUTTI_PROGRESS'])
to.sendall((json.dumps(line) + '\\n').encode())
to.close()
raise SystemExit(1)
";

/// Its peers notice long before the silence of the node is beyond doubt (8 s).
#[test]
fn a_gang_whose_ranks_accuse_a_dead_one_does_not_wait_for_its_node() {
    let mut cluster = cluster(4);
    fs::write(cluster.scratch().join("rank.py"), ACCUSER).unwrap();
    let workdir = Some(cluster.scratch().to_str().unwrap().to_owned());
    let id = cluster.submit(JobSpec { workdir, ..gang(2, "exec python3 rank.py") });
    let first = cluster.wait_state(id, JobState::Running);
    let dead = first.parts[1].node.clone();
    let client = cluster.client();
    let began = client.cluster_info().unwrap().now;
    cluster.kill_node(&dead);
    fs::write(cluster.scratch().join("accuse"), "").unwrap();
    wait_until("the gang runs again", PATIENCE, || {
        let job = client.job(id).unwrap();
        job.row.state == JobState::Running && job.attempt == Some(2)
    });
    let took = client.cluster_info().unwrap().now.since(began);
    assert!(took.0 < 8_000, "it took {took}");
    let again = cluster.job(id);
    assert!(again.parts.iter().all(|p| p.node != dead), "{:?}", again.parts);
    let restarts = again.restarts_by_cause;
    assert_eq!((restarts.node_failure, restarts.job_failure), (1, 0), "the accuser did not fail");
}
