use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tutti_model::{JobSpec, TaskId};
use tutti_testkit::{PATIENCE, me, wait_until};
use tutti_wire::api::Submit;

use crate::cluster;

const CLIENTS: usize = 8;
const JOBS: usize = 1000;
const KILLS: usize = 20;

/// Every acknowledged job runs exactly once, though the controller dies twenty times meanwhile;
/// some deaths come while it is still starting.
#[test]
fn a_controller_killed_twenty_times_loses_no_job_and_runs_none_twice() {
    let mut cluster = cluster(2);
    let ran = cluster.scratch().join("ran");
    let acknowledged = AtomicUsize::new(0);
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| cluster.client().with_patience(PATIENCE * 3)).collect();
    let mut ids: Vec<TaskId> = Vec::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(n, client)| {
                let spec = JobSpec::shell(format!("echo $TUTTI_TASK_ID >> {}", ran.display()));
                let acknowledged = &acknowledged;
                scope.spawn(move || {
                    let submit = |i| {
                        let key = Some(format!("client {n} job {i}"));
                        let job = Submit { spec: spec.clone(), user: Some(me()), key };
                        let taken = client.submit(&job).expect("taken in the end");
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                        taken.id
                    };
                    (0..JOBS / CLIENTS).map(submit).collect::<Vec<_>>()
                })
            })
            .collect();
        for kill in 1..=KILLS {
            // Spread over the whole burst, however fast it is.
            let due = kill * JOBS / (KILLS + 1);
            wait_until("the burst goes on", PATIENCE, || {
                acknowledged.load(Ordering::Relaxed) >= due
            });
            cluster.kill_controller();
            if kill % 5 == 0 {
                cluster.launch_controller();
                cluster.kill_controller();
            }
            cluster.start_controller();
        }
        ids.extend(workers.into_iter().flat_map(|w| w.join().expect("a client")));
    });
    every_job_once(&cluster, &ids, &ran);
}

fn every_job_once(cluster: &tutti_testkit::Cluster, ids: &[TaskId], ran: &std::path::Path) {
    let unique: BTreeSet<TaskId> = ids.iter().copied().collect();
    assert_eq!(unique.len(), JOBS, "each submission got a job of its own");
    let client = cluster.client();
    let mut totals = Default::default();
    wait_until("every job has ended", Duration::from_secs(120), || {
        totals = client.cluster_info().expect("the controller answers").tasks;
        let over = |s: &str| totals.get(s).copied().unwrap_or(0);
        over("completed") + over("failed") + over("cancelled") >= JOBS as u64
    });
    assert_eq!(totals.values().sum::<u64>(), JOBS as u64, "no job was made twice: {totals:?}");
    assert_eq!(totals["completed"], JOBS as u64, "{totals:?}");
    let text = std::fs::read_to_string(ran).expect("jobs have run");
    let mut lines: Vec<TaskId> = text.lines().map(|l| l.parse().expect("a task id")).collect();
    lines.sort_unstable();
    assert_eq!(lines, unique.into_iter().collect::<Vec<_>>(), "each has run exactly once");
}
