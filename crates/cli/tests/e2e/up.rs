use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tutti_testkit::{Cli, PATIENCE, Proc, kill_processes, processes_of, wait_until};

use crate::TUTTI;

/// A data dir whose processes die with the test.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::Builder::new().prefix("tutti-up-").tempdir().unwrap())
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
    /// A verb that takes `--data-dir`.
    fn tutti(&self, args: &[&str]) -> Cli {
        let dir = self.path().to_str().unwrap();
        Cli::new(Path::new(TUTTI), &[args, &["--data-dir", dir]].concat())
    }
    /// A verb that takes `--cluster`.
    fn ask(&self, args: &[&str]) -> Cli {
        Cli::new(Path::new(TUTTI), args).env("TUTTI_CLUSTER", self.path())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        kill_processes(self.path());
    }
}

const UP: [&str; 9] =
    ["up", "--nodes", "2", "--gpus-per-node", "4", "--simulate", "--listen", "127.0.0.1:0", "-d"];

#[test]
fn imagined_nodes_stand_in_racks_and_a_policy_is_there_from_the_start() {
    let place = Place::new();
    let policy = place.path().join("policy.toml");
    std::fs::write(&policy, "[teams.a]\nguarantee = 4\nlimit = 2\n").unwrap();
    let up = [&UP[..], &["--racks", "2", "--policy", policy.to_str().unwrap()]].concat();
    let refused = place.tutti(&up).call();
    refused.exited(2).says(&["policy.toml:3:9: teams.a.limit"]);
    assert!(processes_of(place.path()).is_empty());
    std::fs::write(&policy, "[teams.a]\nguarantee = 4\nmembers = ['*']\n").unwrap();
    place.tutti(&up).ok();
    assert!(place.ask(&["policy", "show"]).ok().contains("[teams.a]"));
    let nodes = place.ask(&["nodes", "--labels"]).ok();
    let row = |node: &str| nodes.lines().find(|l| l.starts_with(node)).unwrap().to_owned();
    assert!(row("n1").contains("rack=r1") && row("n2").contains("rack=r2"), "{nodes}");
    place.tutti(&["down"]).ok();
}

#[test]
fn up_and_down_leave_nothing_behind() {
    let place = Place::new();
    place.tutti(&UP).call().exited(0).says(&["2 nodes", "8 GPUs", "simulated", "tutti down"]);
    assert_eq!(place.ask(&["run", "-N", "2", "--", "echo", "hi"]).ok().lines().count(), 2);
    let again = place.tutti(&UP).call();
    assert_ne!(again.code, 0, "{again}");
    again.says(&["already", "tutti down"]);
    place.ask(&["ps"]).ok();

    // A job with a process that hides in a session of its own.
    let script = "(setsid sh -c 'trap \"\" TERM HUP; sleep 600; sleep 600' &); exec sleep 600";
    place.ask(&["submit", "-N", "2", "--wrap", script]).ok();
    wait_until("the job runs", PATIENCE, || {
        processes_of(place.path()).iter().filter(|p| p.cmdline.starts_with("sleep")).count() == 4
    });
    let all = processes_of(place.path());
    let began = Instant::now();
    place.tutti(&["down"]).call().exited(0).says(&["n1", "n2", "controller"]);
    let took = began.elapsed();
    let left: Vec<&Proc> = all.iter().filter(|p| p.is_alive()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(processes_of(place.path()).is_empty(), "{:?}", processes_of(place.path()));
    assert!(took < Duration::from_secs(9), "grace is 5 s; it took {took:?}");
    place.ask(&["ps"]).call().exited(75);
    assert_eq!(place.tutti(&["down"]).call().code, 3, "there is nothing to stop any more");

    // The same cluster comes back with its history.
    place.tutti(&UP).ok();
    assert!(place.ask(&["ps", "--all"]).ok().contains("echo"));
    let began = Instant::now();
    place.tutti(&["down"]).ok();
    assert!(began.elapsed() < Duration::from_secs(4), "an idle cluster stops at once");
    assert!(processes_of(place.path()).is_empty());
}

#[test]
fn up_in_the_foreground_restarts_what_dies_and_stops_on_an_interrupt() {
    let place = Place::new();
    let up = place.tutti(&UP[..8]).spawn();
    wait_until("the cluster is up", PATIENCE, || {
        place.ask(&["nodes"]).call().out.matches("ready").count() == 2
    });
    let named = |word: &str| {
        processes_of(place.path())
            .into_iter()
            .find(|p| p.name == "tutti" && p.cmdline.contains(word))
            .expect("it runs")
    };
    let (controller, agent) = (named(" controller "), named(" --name n2 "));
    controller.signal(Signal::SIGKILL);
    agent.signal(Signal::SIGKILL);
    wait_until("both are back", PATIENCE, || {
        place.ask(&["nodes"]).call().out.matches("ready").count() == 2 && !agent.is_alive()
    });
    assert_ne!(named(" controller ").pid, controller.pid);
    assert_ne!(named(" --name n2 ").pid, agent.pid);
    up.signal(Signal::SIGINT);
    up.finish().exited(0);
    assert!(processes_of(place.path()).is_empty(), "{:?}", processes_of(place.path()));
}

/// A detached cluster has nobody who restarts what dies; what is left says so and can be stopped.
#[test]
fn a_detached_cluster_that_lost_its_controller_is_told_how_to_go_on() {
    let place = Place::new();
    place.tutti(&UP).ok();
    let all = processes_of(place.path());
    let controller = all.iter().find(|p| p.cmdline.contains(" controller ")).unwrap();
    controller.signal(Signal::SIGKILL);
    wait_until("it is gone", PATIENCE, || !controller.is_alive());
    place.ask(&["ps"]).call().exited(75).says(&["can't be reached", "tutti up"]);
    let again = place.tutti(&UP).call();
    if again.code != 0 {
        again.says(&["tutti down"]);
        place.tutti(&["down"]).ok();
        assert!(processes_of(place.path()).is_empty(), "{:?}", processes_of(place.path()));
        place.tutti(&UP).ok();
    }
    assert_eq!(place.ask(&["run", "--", "echo", "hi"]).ok(), "hi");
    place.tutti(&["down"]).ok();
    assert!(processes_of(place.path()).is_empty(), "{:?}", processes_of(place.path()));
}
