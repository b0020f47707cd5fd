//! The helper of docs/guide/progress.md, as it stands there, in real jobs.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tutti_model::{JobSpec, JobState, NodeState, TaskId};
use tutti_testkit::{Cluster, ClusterOptions, PATIENCE, wait_for};
use tutti_wire::api::{JobProgress, LogQuery};

use crate::{TUTTI, gang};

/// The first block of Python in the guide.
pub fn helper() -> String {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/progress.md");
    let guide = fs::read_to_string(guide).unwrap();
    let block = guide.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(block.contains("def progress("), "{block}");
    block.to_owned()
}

/// Steps until it is told to end, then one with a loss that is told from all others.
const TRAIN: &str = "
import os, time
rank, step = int(os.environ['RANK']), 0
while not os.path.exists('end'):
    step += 1
    progress(step=step, loss=4.0 / step, tokens=step * 100)
    if rank == 0 and step % 20 == 0:
        progress(saved=step, path='/ckpt/%d' % step)
    time.sleep(0.02)
progress(step=1000000, loss=0.125)
";

fn train(cluster: &Cluster) -> TaskId {
    fs::write(cluster.scratch().join("train.py"), helper() + TRAIN).unwrap();
    let workdir = Some(cluster.scratch().to_str().unwrap().to_owned());
    cluster.submit(JobSpec { workdir, ..gang(2, "exec python3 train.py") })
}

/// Waits until the job is as far as that.
fn wait_progress(
    cluster: &Cluster,
    id: TaskId,
    what: &str,
    is: impl Fn(&JobProgress) -> bool,
) -> JobProgress {
    let client = cluster.client();
    wait_for(what, PATIENCE, || client.job(id).ok()?.row.progress.filter(|p| is(p)))
}

fn saved(progress: &JobProgress) -> u64 {
    progress.saved.as_ref().map_or(0, |point| point.step)
}

/// Everything that people see.
fn assert_shown(cluster: &Cluster, id: TaskId) {
    let client = cluster.client();
    let points = || client.progress(id).ok().filter(|p| p.history.len() >= 3);
    wait_for("there is a curve", PATIENCE, points);
    let ps = cluster.cli(&["ps"]).ok();
    assert!(ps.contains("PROGRESS") && ps.contains(" · loss "), "{ps}");
    let ps: Value = serde_json::from_str(&cluster.cli(&["ps", "--json"]).ok()).unwrap();
    assert!(ps[0]["progress"]["step"].as_u64() > Some(0), "{ps}");
    let show = cluster.cli(&["show", &id.to_string()]).ok();
    for want in
        ["progress   step ", " tokens/s", "last step", "durable    step ", ", at /ckpt/", "▁"]
    {
        assert!(show.contains(want), "{want} in {show}");
    }
    let detail = client.progress(id).unwrap();
    let mut nodes: Vec<&str> = detail.ranks.iter().filter_map(|r| r.node.as_deref()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["n1", "n2"], "{detail:?}");
    let steps: Vec<u64> = detail.history.iter().map(|p| p.step).collect();
    assert!(steps.len() >= 3 && steps.is_sorted(), "{steps:?}");
}

#[test]
fn progress_outlives_agents_and_the_last_durable_step_the_controller() {
    // Nobody is to be lost while the test has everything stopped.
    let controller_args = ["--heartbeat", "200ms", "--node-timeout", "10m"];
    let options = ClusterOptions {
        controller_args: controller_args.map(str::to_owned).into(),
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::with(TUTTI, options);
    let id = train(&cluster);
    let first = wait_progress(&cluster, id, "both ranks report", |p| {
        p.ranks == 2 && p.step >= Some(5) && p.tokens_per_s.is_some() && saved(p) > 0
    });
    assert!(first.loss.is_some() && first.pace.is_some(), "{first:?}");
    assert_shown(&cluster, id);
    let before = cluster.job(id);

    cluster.kill_agent("n1");
    cluster.start_agent("n1");
    cluster.wait_node("n1", NodeState::Ready);
    let first = saved(&before.row.progress.unwrap());
    let later = wait_progress(&cluster, id, "it goes on", |p| {
        p.step >= Some(first + 40) && saved(p) > first && p.ranks == 2
    });

    for node in ["n1", "n2"] {
        cluster.kill_agent(node);
    }
    cluster.kill_controller();
    cluster.start_controller();
    let known = cluster.job(id).row.progress.expect("the journal has the last durable step");
    assert_eq!(known.step, None, "{known:?}");
    assert!(saved(&known) >= saved(&later), "{known:?}");
    let point = known.saved.unwrap();
    assert_eq!(point.path.unwrap(), format!("/ckpt/{}", point.step));
    for node in ["n1", "n2"] {
        cluster.start_agent(node);
    }
    wait_progress(&cluster, id, "it is heard again", |p| p.ranks == 2 && p.step > later.step);

    fs::write(cluster.scratch().join("end"), "").unwrap();
    let row = cluster.wait_end(id);
    assert_eq!((row.state, row.restarts), (JobState::Completed, 0), "{row:?}");
    let last = row.progress.expect("it is remembered");
    assert_eq!((last.step, last.loss, last.age), (Some(1_000_000), Some(0.125), None));
    for node in ["n1", "n2"] {
        let left: Vec<_> = fs::read_dir(cluster.node_dir(node).join("run")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_shell_script_says_how_far_it_is_and_goes_on_from_there() {
    let cluster = Cluster::start(TUTTI, 1);
    let line = format!(
        "if [ -n \"$TUTTI_RESUME_STEP\" ]; then echo on from $TUTTI_RESUME_STEP at \
         $TUTTI_RESUME_PATH; exit 0; fi; {TUTTI} progress --step 3 --loss nan && {TUTTI} progress \
         --saved 3 --path /ckpt/3 && exit 7"
    );
    let mut spec = JobSpec::shell(line);
    spec.retry.job_failure = 1;
    let id = cluster.submit(spec);
    let row = cluster.wait_end(id);
    assert_eq!((row.state, row.restarts), (JobState::Completed, 1), "{row:?}");
    let log = cluster.log_of(id, &LogQuery::default());
    assert_eq!(log.last().unwrap().text, "on from 3 at /ckpt/3");
    let progress = row.progress.unwrap();
    assert_eq!((progress.step, progress.loss, saved(&progress)), (Some(3), None, 3));

    let outside = cluster.cli(&["progress", "--step", "1"]).call();
    outside.exited(2).says(&["TUTTI_PROGRESS is not set", "from a job's script"]);
}
