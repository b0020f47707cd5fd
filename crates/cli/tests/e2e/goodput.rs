//! Where GPU-seconds went, seen on real processes: a node is killed under a gang, and the steps that are
//! done again are the hours that the ledger calls lost.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use tutti_model::{Bytes, GpuRequest, JobSpec, Report, ReportLine, TaskId, TimeClass};
use tutti_testkit::{Cluster, ClusterOptions, PATIENCE, wait_until};
use tutti_wire::api::JobGoodput;

use crate::progress::helper;
use crate::{TUTTI, gang};

/// Goes on from its checkpoint, saves after every tenth step until it is told to stop saving, and
/// writes down each step with its attempt and time.
const TRAIN: &str = "
import os, time
rank, attempt = int(os.environ['RANK']), os.environ['TUTTI_ATTEMPT']
step = int(open('ckpt').read()) if os.path.exists('ckpt') else 0
book = open('steps.%d' % rank, 'a', buffering=1)
while not os.path.exists('end'):
    step += 1
    time.sleep(0.01)
    progress(step=step)
    book.write('%s %d %.3f\\n' % (attempt, step, time.time()))
    if rank == 0 and step % 10 == 0 and not os.path.exists('unsafe'):
        open('ckpt.new', 'w').write(str(step))
        os.replace('ckpt.new', 'ckpt')
        progress(saved=step)
";

const MEM_EACH: Bytes = Bytes(1 << 30);

/// For so many seconds it works without saving before a node dies.
const UNSAVED: f64 = 4.0;

/// Attempt, step and second of each step of rank 0.
fn steps(cluster: &Cluster) -> Vec<(u32, u64, f64)> {
    let text = fs::read_to_string(cluster.scratch().join("steps.0")).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let attempt = words.next()?.parse().ok()?;
        Some((attempt, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn start(cluster: &Cluster) -> TaskId {
    fs::write(cluster.scratch().join("train.py"), helper() + TRAIN).unwrap();
    let workdir = Some(cluster.scratch().to_str().unwrap().to_owned());
    let gpus_per_node = Some(GpuRequest { model: None, count: 2 });
    let mut spec = JobSpec { workdir, gpus_per_node, ..gang(2, "exec python3 train.py") };
    spec.name = Some("pretrain".into());
    spec.retry.node_failure = 3;
    spec.mem_per_node = Some(MEM_EACH);
    cluster.submit(spec)
}

fn line(goodput: &JobGoodput) -> &ReportLine {
    goodput.line.as_ref().unwrap_or_else(|| panic!("{goodput:?}"))
}

fn hours(goodput: &JobGoodput, class: TimeClass) -> f64 {
    line(goodput).gpu_hours.get(&class).copied().unwrap_or(0.0)
}

/// What rank 0 did in its first attempt after its last checkpoint: steps, and the seconds they took.
fn redone(steps: &[(u32, u64, f64)]) -> (u64, f64) {
    let first: Vec<_> = steps.iter().filter(|(attempt, ..)| *attempt == 1).collect();
    let again: BTreeSet<u64> = steps.iter().filter(|(a, ..)| *a > 1).map(|(_, n, _)| *n).collect();
    let lost: Vec<_> = first.iter().filter(|(_, n, _)| again.contains(n)).collect();
    let from = first.iter().rev().find(|(_, n, _)| !again.contains(n)).map_or(0.0, |s| s.2);
    (lost.len() as u64, lost.last().map_or(0.0, |last| last.2 - from))
}

#[test]
fn a_killed_node_costs_the_steps_that_are_done_again() {
    let controller_args = ["--heartbeat", "200ms", "--node-timeout", "2s"];
    let options = ClusterOptions {
        nodes: 3,
        gpus_per_node: 2,
        controller_args: controller_args.map(str::to_owned).into(),
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::with(TUTTI, options);
    let prices = cluster.scratch().join("policy.toml");
    fs::write(&prices, "[prices]\ncurrency = 'EUR'\n[prices.gpus]\nh100 = 3600\n").unwrap();
    cluster.cli(&["policy", "apply", prices.to_str().unwrap()]).ok();
    let id = start(&cluster);
    // Seconds of its own since it began: how many steps they are is for the machine to say.
    let at = |seconds: f64| {
        let steps = steps(&cluster);
        steps.first().zip(steps.last()).is_some_and(|(first, last)| last.2 - first.2 > seconds)
    };
    let saved = || cluster.scratch().join("ckpt").exists();
    wait_until("it has saved", PATIENCE, || saved() && at(1.0));
    fs::write(cluster.scratch().join("unsafe"), "").unwrap();
    let since = steps(&cluster);
    let since = since.last().unwrap().2 - since[0].2;
    wait_until("it has done much since", PATIENCE, || at(since + UNSAVED));
    let victim = cluster.job(id).row.node_names.last().unwrap().clone();
    cluster.kill_node(&victim);
    let again = || steps(&cluster).last().is_some_and(|(attempt, ..)| *attempt == 2);
    wait_until("it goes on elsewhere", PATIENCE, again);
    wait_until("it is beyond where it was", PATIENCE, || {
        let seen = steps(&cluster);
        let best = seen.iter().filter(|(a, ..)| *a == 1).map(|s| s.1).max();
        seen.last().map(|s| s.1) > best.map(|best| best + 20)
    });
    let measured = || cluster.client().job_goodput(id).is_ok_and(|goodput| goodput.mem.is_some());
    wait_until("its nodes have measured it", PATIENCE, measured);
    fs::write(cluster.scratch().join("end"), "").unwrap();
    cluster.wait_end(id);
    accounts_for(&cluster, id);
}

fn accounts_for(cluster: &Cluster, id: TaskId) {
    let (count, seconds) = redone(&steps(cluster));
    assert!(count > 10 && seconds > UNSAVED, "only {count} steps were done again, in {seconds} s");
    let goodput = cluster.client().job_goodput(id).unwrap();
    // Four GPUs; an attempt ends some moments after the last step that its first rank has noted, and
    // those of the dead node a little earlier or later.
    let lost = hours(&goodput, TimeClass::LostToFailure) * 3600.0 / 4.0;
    assert!(lost > seconds - 1.0 && lost < seconds + 3.0, "{lost} s lost, {seconds} s done again");
    assert!(hours(&goodput, TimeClass::Productive) > 0.0, "{goodput:?}");
    assert_eq!(line(&goodput).unsaved_hours, 0.0, "it is over: {goodput:?}");
    // Two interpreters of Python, which have megabytes each and sleep most of the time.
    let (mem, cpus) = goodput.mem.zip(goodput.cpus).expect("peaks are remembered");
    assert!((2 << 20..1 << 30).contains(&mem.peak.0) && mem.asked.0 == MEM_EACH.0 * 2, "{mem:?}");
    assert!(cpus.peak < 2.0 && cpus.asked == 2, "{cpus:?}");
    let over_asked = |advice: &String| advice.contains("half of the memory");
    assert!(goodput.advice.iter().any(over_asked), "{goodput:?}");

    // Everywhere the same.
    let json: Value = serde_json::from_str(&cluster.cli(&["report", "--json"]).ok()).unwrap();
    let report: Report = serde_json::from_value(json).unwrap();
    let all: f64 = report.total.gpu_hours.values().sum();
    assert!((all - report.total.total_hours).abs() < 1e-9, "{report:?}");
    let of_report = report.total.gpu_hours[&TimeClass::LostToFailure];
    assert!((of_report - hours(&goodput, TimeClass::LostToFailure)).abs() < 1e-9);
    let worst = report.wasters.first().map(|worst| (worst.id, worst.name.as_deref()));
    assert_eq!(worst, Some((id.job, Some("pretrain"))), "{report:?}");
    let cost = line(&goodput).cost.unwrap();
    // A GPU-second costs one.
    assert!((cost.held - line(&goodput).held_hours * 3600.0).abs() < 0.01, "{cost:?}");
    let text = cluster.cli(&["report", "--by", "user"]).ok();
    for word in ["PRODUCTIVE", "FAILURES", "EUR WASTED", "jobs that wasted most", "pretrain"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let csv = cluster.cli(&["report", "--csv", "--by", "model"]).ok();
    assert!(csv.starts_with("model,productive,") && csv.contains("\nh100,"), "{csv}");
    let page = cluster.cli(&["report", "--html", "--by", "day"]).ok();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("pretrain"), "{page}");
    let one = cluster.cli(&["report", &id.to_string()]).ok();
    assert!(one.contains("lost to failure") && one.contains("EUR"), "{one}");
    let show = cluster.cli(&["show", &id.to_string()]).ok();
    assert!(show.contains("goodput    ") && show.contains("mostly lost to failure"), "{show}");
    let bad = cluster.cli(&["report", "--since", "yesterday"]).call();
    bad.says(&["since=yesterday", "2026-11-01"]);
}
