use std::collections::BTreeSet;

use tutti_model::{JobSpec, TaskId};
use tutti_testkit::{Cluster, ClusterOptions, SmallDisk, is_root, me};
use tutti_wire::api::{JobQuery, Submit};

use crate::TUTTI;

/// The disk fills up under a burst of submissions: nothing more is acknowledged, the controller
/// says what to do, and with room again it knows every job that it acknowledged.
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
    spec.env.insert("FILLER".to_owned(), filler);
    let submit = Submit { spec, user: Some(me()), key: None };
    let refused = loop {
        match client.submit(&submit) {
            Ok(taken) => assert!(acknowledged.insert(taken.id)),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 1000, "8 MiB never fill up");
    };
    assert!(acknowledged.len() > 10, "{refused}");
    assert_ne!(cluster.controller_ended(), 0);
    let log = cluster.log("controller");
    for word in ["error: ", "disk", "full", "start again"] {
        assert!(log.contains(word), "'{word}' is not said:\n{log}");
    }

    // Without any room it says so again, and does no harm.
    let filler = std::fs::File::create(disk.path().join("filler")).unwrap();
    let full = std::io::copy(&mut std::io::repeat(0), &mut &filler);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
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
