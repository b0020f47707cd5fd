use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tutti_testkit::{Cli, PATIENCE, Proc, kill_processes, processes_of, wait_until};

use crate::TUTTI;

/// A data dir whose processes die with the test.
pub struct Place(tempfile::TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::Builder::new().prefix("tutti-up-").tempdir().unwrap())
    }
    pub fn path(&self) -> &Path {
        self.0.path()
    }
    /// A verb that takes `--data-dir`.
    pub fn tutti(&self, args: &[&str]) -> Cli {
        let dir = self.path().to_str().unwrap();
        Cli::new(Path::new(TUTTI), &[args, &["--data-dir", dir]].concat())
    }
    /// A verb that takes `--cluster`.
    pub fn ask(&self, args: &[&str]) -> Cli {
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
    let drawn = place.ask(&["nodes", "--topology", "n2"]).ok();
    assert!(drawn.starts_with("n2  4 × h100, simulated\nNUMA 0  CPUs 0-31"), "{drawn}");
    assert!(drawn.contains("  GPU3  NV18  NV18  NV18  X"), "{drawn}");
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
fn what_a_planned_down_stops_goes_on_and_nothing_has_failed() {
    let place = Place::new();
    place.tutti(&UP).ok();
    let id = place.ask(&["submit", "-N", "2", "--wrap", "exec sleep 600"]).ok().trim().to_owned();
    let shown = || -> serde_json::Value {
        serde_json::from_str(&place.ask(&["show", &id, "--json"]).ok()).unwrap_or_default()
    };
    let runs = |attempt: u64| {
        let job = shown();
        job["state"] == "running" && job["attempt"].as_u64() == Some(attempt)
    };
    wait_until("the job runs", PATIENCE, || runs(1));
    place.tutti(&["down"]).ok();
    place.tutti(&UP).ok();
    wait_until("it runs again", PATIENCE, || runs(2));
    assert_eq!(shown()["restarts"], 0, "{}", shown());
    let words = place.ask(&["show", &id]).ok();
    assert!(words.contains("was cleared by its operator"), "{words}");
    assert!(!words.contains("did not start") && !words.contains("node failure"), "{words}");
    place.tutti(&["down"]).ok();
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

/// The processes of the cluster itself, by a word of their command line.
fn named(place: &Place, word: &str) -> Proc {
    let all = processes_of(place.path());
    all.into_iter().find(|p| p.name == "tutti" && p.cmdline.contains(word)).expect("it runs")
}

fn kill(victim: &Proc) {
    victim.signal(Signal::SIGKILL);
    wait_until("it is gone", PATIENCE, || !victim.is_alive());
}

/// A detached cluster has nobody who restarts what dies, so `tutti up` does: what is missing, as it
/// was, and nothing else. Jobs go on.
#[test]
fn up_starts_what_is_missing_and_jobs_go_on() {
    let place = Place::new();
    place.tutti(&[&UP[..], &["--racks", "2", "--node-timeout", "30s"]].concat()).ok();
    let endpoint = || std::fs::read_to_string(place.path().join("endpoint")).unwrap();
    let first = endpoint();
    let (at, end) = (place.path().join("at"), place.path().join("end"));
    let script = format!(
        "i=0; while [ ! -e {} ]; do i=$((i+1)); echo $i > {}; sleep 0.01; done; exit 7",
        end.display(),
        at.display()
    );
    // A whole node's GPUs each, so that both nodes have one.
    let ids: Vec<String> = (0..2)
        .map(|_| place.ask(&["submit", "-G", "4", "--wrap", &script]).ok().trim().to_owned())
        .collect();
    let running = || {
        let rows = place.ask(&["ps", "--json"]).call().out;
        let rows: Vec<serde_json::Value> = serde_json::from_str(&rows).unwrap_or_default();
        rows.iter().filter(|r| r["state"] == "running" && r["restarts"] == 0).count() == 2
    };
    wait_until("both jobs run", PATIENCE, running);
    let counted = || -> u64 {
        let text = std::fs::read_to_string(&at).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let generation = |id: &str| {
        let job: serde_json::Value =
            serde_json::from_str(&place.ask(&["show", id, "--json"]).ok()).unwrap();
        (job["generation"].clone(), job["attempt"].clone())
    };
    let before: Vec<_> = ids.iter().map(|id| generation(id)).collect();

    kill(&named(&place, " controller "));
    place.ask(&["ps"]).call().exited(75).says(&["can't be reached", "tutti up"]);
    // As the hint has it, so all that it was started with must be known.
    let mended = place.ask(&["up"]).call();
    mended.exited(0).says(&["started controller; n1, n2, router ran already", "2 nodes", "8 GPUs"]);
    assert_eq!(endpoint(), first, "clients find it where it was");
    assert!(named(&place, " controller ").cmdline.contains(" --node-timeout 30s"));

    kill(&named(&place, " --name n2 "));
    place.tutti(&["up", "--nodes", "3", "--simulate", "-d"]).call().exited(2).says(&["n1"]);
    // With the flags of the first start, too.
    let up = [&UP[..], &["--racks", "2"]].concat();
    place.tutti(&up).call().exited(0).says(&["started n2; n1, controller, router ran already"]);
    assert!(named(&place, " --name n2 ").cmdline.contains("rack=r2"));

    let router = || std::fs::read_to_string(place.path().join("router")).unwrap();
    let was = router();
    kill(&named(&place, " router "));
    place.tutti(&up).call().exited(0).says(&["started router; n1, n2, controller ran already"]);
    assert_eq!(router(), was, "those who ask find it where it was");
    place.tutti(&up).call().exited(2).says(&["already runs", "tutti down"]);

    wait_until("both jobs are known to run", PATIENCE, running);
    let from = counted();
    wait_until("they go on", PATIENCE, || counted() >= from + 30);
    assert_eq!(ids.iter().map(|id| generation(id)).collect::<Vec<_>>(), before);
    std::fs::write(&end, "").unwrap();
    for id in &ids {
        wait_until("it has ended", PATIENCE, || {
            place.ask(&["ps", "--json", id]).ok().contains("\"exit_code\": 7")
        });
    }
    place.tutti(&["down"]).ok();
    assert!(processes_of(place.path()).is_empty(), "{:?}", processes_of(place.path()));
}

/// In the foreground it also looks after what it did not start itself.
#[test]
fn up_in_the_foreground_takes_over_what_is_left() {
    let place = Place::new();
    let up = place.tutti(&UP[..8]).spawn();
    wait_until("the cluster is up", PATIENCE, || {
        place.ask(&["nodes"]).call().out.matches("ready").count() == 2
    });
    wait_until("somebody watches over it", PATIENCE, || {
        place.tutti(&["up", "-d"]).call().err.contains("tutti up, process")
    });
    up.signal(Signal::SIGKILL);
    up.finish().exited(137);
    kill(&named(&place, " controller "));
    let up = place.tutti(&["up"]).spawn();
    wait_until("the cluster is up", PATIENCE, || {
        place.ask(&["nodes"]).call().out.matches("ready").count() == 2
    });
    let agent = named(&place, " --name n1 ");
    wait_until("somebody watches over it", PATIENCE, || {
        place.tutti(&["up", "-d"]).call().err.contains("tutti up, process")
    });
    kill(&agent);
    wait_until("the agent is back", PATIENCE, || {
        let all = processes_of(place.path());
        all.iter().any(|p| p.name == "tutti" && p.cmdline.contains(" --name n1 "))
    });
    up.signal(Signal::SIGINT);
    up.finish().exited(0);
    assert!(processes_of(place.path()).is_empty(), "{:?}", processes_of(place.path()));
}

#[test]
fn up_again_is_as_it_was_and_names_nodes_that_are_left_over() {
    let place = Place::new();
    place.tutti(&UP).ok();
    place.tutti(&["down"]).ok();
    let again = place.tutti(&["up", "-d"]).call();
    again.exited(0).says(&["2 nodes, 8 GPUs"]);
    assert!(!again.err.contains("earlier start"), "{again}");
    place.tutti(&["down"]).ok();
    let one = ["up", "--nodes", "1", "--simulate", "-d"];
    place.tutti(&one).call().exited(0).says(&["1 node,", "n2 of an earlier start"]);
    place.tutti(&["down"]).ok();
}

/// Its key opens nothing any more, so whoever waits for it waits for ever.
#[test]
fn up_neither_starts_nor_misses_a_node_that_was_removed() {
    let place = Place::new();
    place.tutti(&UP).ok();
    place.ask(&["nodes", "remove", "n2"]).ok();
    place.ask(&["show", "n2"]).call().exited(3).says(&["was removed from the cluster by"]);
    place.tutti(&["down"]).ok();
    // With the flags of the first start and without.
    for up in [&UP[..], &["up", "-d"]] {
        let again = place.tutti(up).call();
        again.exited(0).says(&["1 node, 4 GPUs", "n2 was removed from the cluster", "node.pem"]);
        assert!(processes_of(place.path()).iter().all(|p| !p.cmdline.contains(" --name n2 ")));
        place.tutti(up).call().exited(2).says(&["already runs"]);
        place.tutti(&["down"]).ok();
    }
    // As it is said there.
    std::fs::remove_file(place.path().join("nodes/n2/node.pem")).unwrap();
    let joined = place.tutti(&["up", "-d"]).call();
    joined.exited(0).says(&["2 nodes, 8 GPUs"]);
    assert!(!joined.err.contains("was removed"), "{joined}");

    // Under a cluster that runs, when its agent has ended.
    place.ask(&["nodes", "remove", "n2"]).ok();
    kill(&named(&place, " router "));
    place.tutti(&["up", "-d"]).call().exited(0).says(&["started router; n1, controller ran"]);
    assert!(processes_of(place.path()).iter().all(|p| !p.cmdline.contains(" --name n2 ")));
    place.tutti(&["down"]).ok();
    std::fs::remove_file(place.path().join("nodes/n2/node.pem")).unwrap();
    place.tutti(&["up", "-d"]).ok();
    place.ask(&["nodes", "remove", "n2"]).ok();
    kill(&named(&place, " --name n2 "));
    let whole = place.tutti(&["up", "-d"]).call();
    whole
        .exited(0)
        .says(&["started nothing; n1, controller, router ran already", "n2 was removed"]);
    place.tutti(&["down"]).ok();
    assert!(processes_of(place.path()).is_empty(), "{:?}", processes_of(place.path()));
}

/// The cluster in the default data dir must outlive every `tutti down` that names another one.
#[test]
fn down_stops_the_cluster_that_was_named_or_none() {
    let place = Place::new();
    place.tutti(&UP).ok();
    let endpoint = std::fs::read_to_string(place.path().join("endpoint")).unwrap();
    let mistyped = format!("{}x", place.path().display());
    let tutti = |args: &[&str], cluster: &str| {
        Cli::new(Path::new(TUTTI), args)
            .env("TUTTI_DATA_DIR", place.path())
            .env("TUTTI_CLUSTER", cluster)
            .call()
    };
    tutti(&["down"], &mistyped).exited(3).says(&["there is no cluster in", &mistyped]);
    tutti(&["down"], "no-such-word").exited(3).says(&["there is no cluster in", "no-such-word"]);
    for verb in ["down", "up", "controller"] {
        let refused = tutti(&[verb], endpoint.trim());
        refused.exited(2).says(&["TUTTI_CLUSTER is ", endpoint.trim(), "--data-dir"]);
    }
    tutti(&["up"], "no-such-word").exited(2).says(&["./no-such-word"]);
    tutti(&["down", "--cluster", &mistyped], "").exited(3);
    tutti(&["down", "--cluster", ""], "").exited(2);
    let dir = place.path().to_str().unwrap();
    tutti(&["down", "--cluster", &mistyped, "--data-dir", dir], "")
        .exited(2)
        .says(&["two clusters"]);
    tutti(&["sim", "--format", "journal"], endpoint.trim()).exited(2).says(&["TUTTI_CLUSTER is "]);
    assert_eq!(tutti(&["nodes"], "").exited(0).out.matches("ready").count(), 2);
    assert!(!Path::new(&mistyped).exists());
    tutti(&["down"], "").exited(0);
    assert!(processes_of(place.path()).is_empty());
}
