use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use tutti_model::{JobSpec, TaskId};
use tutti_testkit::{
    Cli, Cluster, ClusterOptions, SmallDisk, is_root, kill_processes, me, processes_of,
};
use tutti_wire::api::{JobQuery, Submit};

use crate::TUTTI;

/// Takes what is left of a disk, but for this much.
fn fill(disk: &SmallDisk, leave: u64) -> File {
    let mut file = File::create(disk.path().join("filler")).unwrap();
    let free = || {
        let found = nix::sys::statvfs::statvfs(disk.path()).unwrap();
        found.blocks_available() * found.fragment_size()
    };
    while free() > leave {
        let piece = vec![0; usize::try_from((free() - leave).min(1 << 20)).unwrap()];
        if file.write_all(&piece).is_err() {
            break;
        }
    }
    file
}

/// The processes of a cluster on a small disk, gone with the test.
struct OnDisk(SmallDisk);

impl OnDisk {
    fn tutti(&self, args: &[&str]) -> Cli {
        let dir = self.0.path().join("cluster");
        Cli::new(Path::new(TUTTI), &[args, &["--data-dir", dir.to_str().unwrap()]].concat())
    }
    fn ask(&self, args: &[&str]) -> Cli {
        let dir = self.0.path().join("cluster");
        Cli::new(Path::new(TUTTI), args).env("TUTTI_CLUSTER", dir)
    }
}

impl Drop for OnDisk {
    fn drop(&mut self) {
        kill_processes(self.0.path());
    }
}

/// Logs and journal on one small disk, and a job that writes more than there is: the log says what is
/// missing, and so does the job; the controller takes jobs as before. When the disk is filled by
/// somebody else, it takes no more, and goes on when there is room again.
#[test]
#[allow(clippy::print_stderr)]
fn output_leaves_room_for_the_journal_and_says_what_is_missing() {
    if !is_root() {
        eprintln!("SKIPPED: mounting a small disk needs root");
        return;
    }
    let cluster = OnDisk(SmallDisk::new(64 << 20));
    let up = ["up", "--nodes", "1", "--simulate", "--listen", "127.0.0.1:0", "-d"];
    cluster.tutti(&up).ok();
    let flood = "yes $(head -c 999 /dev/zero | tr '\\0' x) | head -c 100000000; echo the last line";
    let id = cluster.ask(&["submit", "--wrap", flood]).ok();
    let id = id.split_whitespace().find(|word| word.parse::<u64>().is_ok()).unwrap().to_owned();
    let finished = cluster.ask(&["logs", "-f", &id]).call();
    assert!(!finished.out.contains("the last line"), "100 MB are in 64 MiB");
    let said = finished.err.clone() + &finished.out;
    assert!(said.contains("output from here on is dropped"), "{}", &said[said.len() - 2000..]);
    assert!(said.contains("bytes of output"), "{}", &said[said.len() - 2000..]);
    let shown = cluster.ask(&["show", &id]).ok();
    assert!(shown.contains("completed") && shown.contains("bytes were dropped"), "{shown}");
    let json: serde_json::Value =
        serde_json::from_str(&cluster.ask(&["show", &id, "--json"]).ok()).unwrap();
    assert!(json["output_dropped"].as_u64().unwrap() > 30_000_000, "{json}");
    assert!(json["note"].as_str().unwrap().contains("output were dropped"), "{json}");
    // Nobody else is the worse for it.
    assert_eq!(cluster.ask(&["run", "--", "true"]).call().code, 0);

    let filler = fill(&cluster.0, 1 << 20);
    let refused = cluster.ask(&["submit", "--wrap", "true"]).call();
    refused.exited(1).says(&["takes no new jobs", "8 MiB are kept for the journal", "free some"]);
    let doctor = cluster.ask(&["doctor"]).call();
    assert!(doctor.out.contains("no new jobs are taken"), "{doctor}");
    cluster.ask(&["ps"]).ok();
    filler.set_len(0).unwrap();
    assert_eq!(cluster.ask(&["run", "--", "true"]).call().code, 0);

    // With no room at all, `up` says so, and not what could not be written for it.
    cluster.tutti(&["down"]).ok();
    assert!(processes_of(cluster.0.path()).is_empty());
    let _filler = fill(&cluster.0, 0);
    let refused = cluster.tutti(&up).call();
    assert_ne!(refused.code, 0);
    refused.says(&["the disk of", "is full", "free some space"]);
    assert!(!refused.err.contains("certificate"), "{refused}");
}

/// The disk fills up under a burst of submissions: nothing more is acknowledged and the controller
/// goes on. When somebody else takes the rest it ends and says what to do, and with room again it
/// knows every job that it acknowledged.
#[test]
#[allow(clippy::print_stderr)]
fn a_full_disk_stops_the_controller_and_loses_nothing() {
    if !is_root() {
        eprintln!("SKIPPED: mounting a small disk needs root");
        return;
    }
    let disk = SmallDisk::new(8 << 20);
    let data_dir = Some(disk.path().join("cluster"));
    let options = ClusterOptions { nodes: 1, data_dir, ..ClusterOptions::default() };
    let mut cluster = Cluster::with(TUTTI, options);
    let client = cluster.client().with_patience(std::time::Duration::ZERO);
    let mut acknowledged: BTreeSet<TaskId> = BTreeSet::new();
    // Large specs, held, so that only the journal grows.
    let filler = "x".repeat(64 << 10);
    let mut spec = JobSpec::shell("true");
    spec.hold = true;
    let mut submit = Submit { spec, user: Some(me()), key: None };
    let refused = loop {
        // Each of its own: equal ones are stored once.
        let own = format!("{}{filler}", acknowledged.len());
        submit.spec.env.insert("FILLER".to_owned(), own);
        match client.submit(&submit) {
            Ok(taken) => assert!(acknowledged.insert(taken.id)),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 1000, "8 MiB never fill up");
    };
    assert!(acknowledged.len() > 10, "{refused}");
    assert!(refused.to_string().contains("takes no new jobs"), "{refused}");
    assert!(cluster.answers(), "it goes on with those that it has");
    let filler = fill(&disk, 0);
    // What is no submission is still taken for as long as there is any room in the journal itself.
    let reason = "y".repeat(64 << 10);
    let failed = (0..1000).any(|_| client.drain("n1", &reason, false).is_err());
    assert!(failed, "8 MiB never fill up");
    assert_ne!(cluster.controller_ended(), 0);
    let log = cluster.log("controller");
    for word in ["error: ", "disk", "full", "start again"] {
        assert!(log.contains(word), "'{word}' is not said:\n{log}");
    }

    // Without any room it says so again, and does no harm.
    drop(filler);
    let _filler = fill(&disk, 0);
    cluster.launch_controller();
    assert_ne!(cluster.controller_ended(), 0);
    let log = cluster.log("controller");
    let last = log.rsplit("error: ").next().unwrap();
    assert!(last.contains("disk") && last.contains("full") && last.contains("free"), "{log}");
    disk.grow(256 << 20);
    cluster.start_controller();
    let page = cluster.client().jobs(&JobQuery { limit: Some(10_000), ..JobQuery::default() });
    let known: BTreeSet<TaskId> = page.unwrap().jobs.into_iter().map(|j| j.id).collect();
    assert!(known.is_superset(&acknowledged), "{:?}", acknowledged.difference(&known));
    // What was under way when the disk filled up may be there, for the client that repeats it.
    assert!(known.len() <= acknowledged.len() + 1, "{} {}", known.len(), acknowledged.len());
    assert!(cluster.client().submit(&submit).is_ok());
    cluster.cli(&["doctor"]).call().exited(0);
}
