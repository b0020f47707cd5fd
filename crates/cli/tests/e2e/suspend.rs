//! Jobs that give their GPUs up and go on: real processes, frozen; the GPUs are simulated.

use std::fs;

use tutti_model::{JobState, TaskId};
use tutti_testkit::{Cluster, ClusterOptions, PATIENCE, wait_until};

use crate::TUTTI;

const COUNTS: &str = "n=0; while :; do n=$((n+1)); echo $n >> counts; sleep 0.02; done";

fn submit(cluster: &Cluster, text: &str) -> TaskId {
    let path = cluster.scratch().join("job.toml");
    fs::write(&path, text).unwrap();
    cluster.cli(&["submit", path.to_str().unwrap()]).ok().parse().expect("the id alone is printed")
}

fn counted(cluster: &Cluster) -> Vec<u64> {
    let text = fs::read_to_string(cluster.scratch().join("counts")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[test]
fn a_job_makes_room_and_goes_on_with_its_very_next_step() {
    let options = ClusterOptions { nodes: 1, gpus_per_node: 2, ..ClusterOptions::default() };
    let cluster = Cluster::with(TUTTI, options);
    let low = submit(
        &cluster,
        &format!(
            "class = 'scavenger'\ngpus_per_node = 2\nrun = '''{COUNTS}'''\n\
             [preempt]\nmode = 'suspend'\n"
        ),
    );
    wait_until("it counts", PATIENCE, || !counted(&cluster).is_empty());
    // What the controller does not know to run is stopped: it has nothing to lose.
    cluster.wait_state(low, JobState::Running);
    let high = submit(&cluster, "gpus_per_node = 2\nrun = 'exec sleep 600'\n");
    cluster.wait_state(high, JobState::Running);
    let job = cluster.wait_state(low, JobState::Suspended);
    let note = format!("suspended for job {high}; wakes when 2 ");
    assert!(job.row.note.starts_with(&note), "{}", job.row.note);
    let (why, ps) = (cluster.cli(&["why", &low.to_string()]).ok(), cluster.cli(&["ps"]).ok());
    assert!(why.contains(&format!("job {high} (")), "who has its GPUs: {why}");
    assert!(ps.contains("suspended"), "{ps}");
    let before = counted(&cluster).len();

    cluster.cli(&["cancel", &high.to_string()]).ok();
    cluster.wait_state(low, JobState::Running);
    wait_until("it goes on", PATIENCE, || counted(&cluster).len() > before + 5);
    let counts = counted(&cluster);
    assert!(counts.iter().copied().eq(1..=counts.len() as u64), "no step is lost or done twice");

    // By hand it stays so.
    let id = low.to_string();
    let undo = format!("`tutti resume {id}` lets it go on");
    cluster.cli(&["suspend", &id]).call().exited(0).says(&["leaves its GPUs", &undo]);
    cluster.wait_state(low, JobState::Suspended);
    let exec = cluster.cli(&["exec", &id, "--", "true"]).call();
    exec.exited(1).says(&["is suspended: its processes stand still", &undo]);
    wait_until("its GPUs are free", PATIENCE, || {
        cluster.cli(&["why", &id]).ok().contains("wakes when it is resumed")
    });
    cluster.cli(&["resume", &id]).ok();
    let job = cluster.wait_state(low, JobState::Running);
    assert_eq!((job.attempt, job.row.restarts, job.suspensions.len()), (Some(1), 0, 2));
    let shown = cluster.cli(&["show", &id]).ok();
    assert!(shown.contains(&format!(" for job {high}, for ")), "{shown}");
    cluster.cli(&["resume", &id]).call().exited(1).says(&["is not suspended"]);
    cluster.cli(&["resume", "nowhere"]).call().exited(3).says(&["no node 'nowhere'", "no job"]);
    is_kept_when_its_node_is_cleared(&cluster, low);
    cluster.cli(&["cancel", &id]).ok();
    cluster.wait_state(low, JobState::Cancelled);
}

/// Who suspended it did not want it to run elsewhere.
fn is_kept_when_its_node_is_cleared(cluster: &Cluster, job: TaskId) {
    let (id, node) = (job.to_string(), "n1");
    cluster.cli(&["suspend", &id]).ok();
    wait_until("it is out", PATIENCE, || {
        cluster.cli(&["why", &id]).ok().contains("wakes when it is resumed")
    });
    cluster.cli(&["drain", node, "--evict"]).ok();
    cluster.wait_state(job, JobState::Pending);
    cluster.cli(&["resume", node]).ok();
    let row = cluster.wait_state(job, JobState::Pending).row;
    let lost = format!("its state in memory was lost with node {node}; starts again when it is");
    assert!(row.note.contains(&lost), "{}", row.note);
    let why = cluster.cli(&["why", &id]).ok();
    assert!(why.contains(&format!("resume it: tutti resume {id} (it would start now)")), "{why}");
    cluster.cli(&["resume", &id]).ok();
    assert_eq!(cluster.wait_state(job, JobState::Running).attempt, Some(2));
}
