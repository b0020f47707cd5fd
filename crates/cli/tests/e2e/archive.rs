//! Ended jobs leave memory for files, and are found there by us and by others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tutti_model::{JobSpec, JobState, TaskId};
use tutti_testkit::{Cluster, ClusterOptions, PATIENCE, SmallDisk, is_root, wait_until};
use tutti_wire::api::JobQuery;

use crate::TUTTI;

/// Everything that is over leaves at once.
fn forgetful(archive: Option<&Path>) -> ClusterOptions {
    let mut args = vec!["--keep-jobs-for".to_owned(), "0s".to_owned()];
    if let Some(folder) = archive {
        args.extend(["--archive".to_owned(), folder.to_str().unwrap().to_owned()]);
    }
    ClusterOptions { nodes: 1, controller_args: args, ..ClusterOptions::default() }
}

fn in_memory(cluster: &Cluster) -> Vec<TaskId> {
    let page = cluster.client().jobs(&JobQuery::default()).unwrap();
    page.jobs.into_iter().map(|job| job.id).collect()
}

fn since(cluster: &Cluster, more: &[&str]) -> Vec<Value> {
    let args = [&["ps", "--since", "1d", "--json"], more].concat();
    let list: Value = serde_json::from_str(&cluster.cli(&args).ok()).unwrap();
    list.as_array().unwrap().clone()
}

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let years = std::fs::read_dir(folder.join("jobs")).unwrap().map(|year| year.unwrap().path());
    years.flat_map(|y| std::fs::read_dir(y).unwrap().map(|f| f.unwrap().path())).collect()
}

/// The controller is killed again and again while jobs end and leave; none is lost and none is there
/// twice.
#[test]
fn jobs_that_left_are_found_and_none_is_lost_or_there_twice() {
    let mut cluster = Cluster::with(TUTTI, forgetful(None));
    let mut all = Vec::new();
    for round in 0..4 {
        for n in 0..6 {
            let mut spec = JobSpec::shell(if n == 5 {
                "exit 7".to_owned()
            } else {
                format!("echo hello {n}")
            });
            spec.name = Some(format!("round{round}"));
            spec.env.insert("PASSWORD".to_owned(), "open sesame".to_owned());
            all.push(cluster.submit(spec));
        }
        if round < 3 {
            // Somewhere between the end of a job, its file and its leave.
            wait_until("a job of this round has ended", PATIENCE, || {
                let ended = |id: &TaskId| cluster.client().job(*id).unwrap().row.state.is_final();
                all[round * 6..].iter().any(ended)
            });
            cluster.kill_controller();
            cluster.start_controller();
        }
    }
    let array = JobSpec { array: Some("0-9".parse().unwrap()), ..JobSpec::shell("true") };
    all.push(cluster.submit(array));
    wait_until("memory is empty", PATIENCE, || in_memory(&cluster).is_empty());

    let rows = since(&cluster, &[]);
    // In the order in which they ended, which is not quite the one in which they came.
    let mut listed = ids(&rows);
    listed.sort_by_key(|id| id.parse::<TaskId>().unwrap());
    assert_eq!(listed, all.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(since(&cluster, &["--state", "failed"]).len(), 4);
    assert_eq!(ids(&since(&cluster, &["--limit", "2"])), ids(&rows)[rows.len() - 2..]);
    assert_eq!(since(&cluster, &["--name", "round2"]).len(), 6);
    assert_eq!(since(&cluster, &["--user", "nobody-at-all"]).len(), 0);
    assert_eq!(since(&cluster, &["--until", "12h"]).len(), 0);
    assert_eq!(since(&cluster, &["--tasks"]).len(), all.len() - 1 + 10);

    let failed = cluster.job(all[5]);
    assert_eq!((failed.row.state, failed.row.exit_code), (JobState::Failed, Some(7)));
    assert_eq!(failed.row.node_names, ["n1"]);
    assert_eq!(failed.spec.run, JobSpec::shell("exit 7").run);
    let shown = cluster.cli(&["show", &all[5].to_string()]).ok();
    assert!(shown.contains("round0") && shown.contains("exit code 7"), "{shown}");
    let task = format!("{}_3", all.last().unwrap());
    assert!(cluster.cli(&["show", &task]).ok().contains("completed"));
    cluster.cli(&["show", "999999"]).call().exited(3);
    assert_eq!(cluster.cli(&["logs", &all[0].to_string()]).ok(), "hello 0");

    let files = files(&cluster.dir().join("archive"));
    for file in &files {
        let bytes = std::fs::read(file).unwrap();
        let secret = b"open sesame";
        assert!(!bytes.windows(secret.len()).any(|w| w == secret), "{file:?} tells secrets");
    }
    read_by_others(&files, all.len() - 1 + 10);
    let doctor = cluster.cli(&["doctor"]).ok();
    assert!(doctor.contains("archive"), "{doctor}");
}

/// DuckDB knows nothing of us.
#[allow(clippy::print_stderr)]
fn read_by_others(files: &[PathBuf], rows: usize) {
    let Ok(python) = std::env::var("TUTTI_TEST_DUCKDB") else {
        eprintln!("SKIPPED: TUTTI_TEST_DUCKDB names no python with duckdb; scripts/test sets it");
        return;
    };
    let script = "import duckdb, sys
t = duckdb.read_parquet(sys.argv[1:])
print(t.aggregate('count(*), count(distinct (job, task)), sum(tasks)').fetchall())
print(duckdb.sql(\"select count(*) from t where state = 'failed' and exit_code = 7 \"
    \"and started >= submitted and ended >= started and node_names = 'n1' \"
    \"and json_extract_string(spec, '$.name') like 'round%' \"
    \"and ended::date >= current_date - 1\").fetchall())";
    let out = Command::new(python).arg("-c").arg(script).args(files).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{complaint}");
    assert!(said.starts_with(&format!("[({rows}, {rows}, ")), "{said}");
    assert!(said.trim_end().ends_with("[(4,)]"), "{said}");
}

/// While the disk of the archive is full, jobs stay in memory and the doctor says why; with room again
/// they leave.
#[test]
#[allow(clippy::print_stderr)]
fn a_full_archive_keeps_jobs_in_memory() {
    if !is_root() {
        eprintln!("SKIPPED: mounting a small disk needs root");
        return;
    }
    let disk = SmallDisk::new(1 << 20);
    let filler = std::fs::File::create(disk.path().join("filler")).unwrap();
    let full = std::io::copy(&mut std::io::repeat(0), &mut &filler);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    let folder = disk.path().join("archive");
    let cluster = Cluster::with(TUTTI, forgetful(Some(&folder)));
    let job = cluster.submit(JobSpec::shell("true"));
    cluster.wait_end(job);
    let mut said = String::new();
    wait_until("the doctor complains", PATIENCE, || {
        let done = cluster.cli(&["doctor"]).call();
        said = done.out.clone();
        said.contains("stays in memory")
    });
    assert!(said.contains("jobs") && said.contains("space"), "{said}");
    assert_eq!(in_memory(&cluster), [job]);
    disk.grow(8 << 20);
    wait_until("it leaves", PATIENCE, || in_memory(&cluster).is_empty());
    assert_eq!(cluster.job(job).row.state, JobState::Completed);
    let there: BTreeSet<String> = ids(&since(&cluster, &[])).into_iter().collect();
    assert_eq!(there, [job.to_string()].into());
    wait_until("the doctor is content", PATIENCE, || {
        !cluster.cli(&["doctor"]).call().out.contains("stays in memory")
    });
}
