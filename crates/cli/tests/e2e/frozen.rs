//! A controller that hangs: every client says that it waits, for whom, and gives up in time.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tutti_model::{JobSpec, JobState};
use tutti_testkit::{Cluster, PATIENCE, Proc, processes_of, wait_until};

use crate::cluster;

/// Stopped with SIGSTOP, as a debugger or a host that swaps would, and let go on when the test ends.
struct Frozen(Proc);

impl Frozen {
    fn controller(cluster: &Cluster) -> Frozen {
        let found = processes_of(cluster.dir())
            .into_iter()
            .find(|p| p.name == "tutti" && p.cmdline.contains(" controller "))
            .expect("a controller");
        found.signal(Signal::SIGSTOP);
        Frozen(found)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.0.signal(Signal::SIGCONT);
    }
}

#[test]
fn every_verb_says_that_it_waits_and_gives_up_with_a_sentence() {
    let cluster = cluster(1);
    let id = cluster.submit(JobSpec::shell("sleep 600")).to_string();
    cluster.wait_state(id.parse().unwrap(), JobState::Running);
    let frozen = Frozen::controller(&cluster);
    let began = Instant::now();
    let verbs: [&[&str]; 8] = [
        &["ps"],
        &["why", &id],
        &["nodes"],
        &["submit", "--wrap", "true"],
        &["cancel", &id],
        &["top", "--once"],
        &["logs", &id],
        &["doctor", "n1"],
    ];
    let running: Vec<_> = verbs
        .iter()
        .map(|args| (args, cluster.cli(args).env("TUTTI_TIMEOUT", "5s").spawn()))
        .collect();
    for (args, run) in running {
        let done = run.finish();
        assert_eq!(done.code, 75, "{args:?}: {done}");
        done.says(&["waiting for the controller at ", "has not answered for ", "TUTTI_TIMEOUT"]);
    }
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    let doctor = cluster.cli(&["doctor"]).env("TUTTI_TIMEOUT", "1s").call();
    assert_eq!(doctor.code, 1, "{doctor}");
    assert!(doctor.out.contains("has not answered for 1s; its process "), "{doctor}");
    assert!(doctor.out.contains("kill -CONT "), "{doctor}");
    // The flag counts more than the variable.
    let done = cluster.cli(&["ps", "--timeout", "1s"]).env("TUTTI_TIMEOUT", "1h").call();
    done.exited(75).says(&["has not answered for 1s"]);
    cluster.cli(&["ps", "--timeout", "0s"]).call().exited(2);
    cluster.cli(&["ps"]).env("TUTTI_TIMEOUT", "soon").call().exited(2).says(&["TUTTI_TIMEOUT"]);
    let lost =
        cluster.cli(&["submit", "--name", "once", "--wrap", "true", "--timeout", "1s"]).call();
    lost.exited(75).says(&["may have been taken all the same", "\n  tutti submit --key "]);
    drop(frozen);
    wait_until("it answers again", PATIENCE, || cluster.cli(&["ps"]).call().code == 0);
    // Word for word, as it was said; and once more.
    let line = lost.err.lines().last().unwrap().trim().to_owned();
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let ids: Vec<String> = (0..2).map(|_| cluster.cli(&words).ok().trim().to_owned()).collect();
    assert_eq!(ids[0], ids[1]);
    let all = cluster.cli(&["ps", "--all", "--name", "once", "--json"]).ok();
    assert_eq!(all.matches("\"name\": \"once\"").count(), 1, "{all}");
}

/// A list that is shown again and again does not look new while nobody answers.
#[test]
fn a_watched_list_says_how_old_it_is() {
    let cluster = cluster(1);
    let mut watched = cluster.cli(&["ps", "--watch"]).env("TUTTI_TIMEOUT", "30s").spawn();
    assert_eq!(watched.next_line(), "no jobs");
    let frozen = Frozen::controller(&cluster);
    let said = watched.next_note();
    assert!(said.contains(" old: the controller does not answer"), "{said}");
    drop(frozen);
    cluster.submit(JobSpec::shell("sleep 600"));
    wait_until("what is new is shown", PATIENCE, || watched.next_line().contains("sleep"));
    watched.signal(Signal::SIGKILL);
    watched.finish();
}
