use tutti_model::{Drain, Finding, HealthAction, Milli, Seq};

use super::*;

fn put(chronicle: &mut Chronicle, at: u64, event: Event) {
    chronicle.note(&State::default(), &Record { seq: Seq(at), at: Time(at), event });
}

fn task(job: u64) -> TaskId {
    TaskId::single(JobId(job))
}

fn lease(job: u64, generation: u64) -> LeaseId {
    LeaseId { task: task(job), generation: Generation(generation) }
}

fn placed(job: u64, generation: u64, node: u32) -> Event {
    let part = PartPlacement {
        node: NodeId(node),
        gpus: vec![GpuIndex(0), GpuIndex(1)],
        cpus: 1,
        mem: tutti_model::Bytes(0),
        ranks: 1,
        share: Milli::WHOLE,
    };
    Event::Placed { task: task(job), generation: Generation(generation), parts: vec![part] }
}

fn running(job: u64, generation: u64) -> Event {
    Event::PartRunning { lease: lease(job, generation), node: NodeId(1), exits: Vec::new() }
}

fn over(job: u64, at: u64) -> Event {
    let ended = serde_json::json!({
        "outcome": "completed", "exit_code": 0, "reason": { "reason": "finished" }, "ended_at": at,
        "attempts": 2, "restarts": { "node_failure": 1, "preemption": 0, "job_failure": 0 },
        "nodes": [], "gpus": 2,
    });
    let ended = serde_json::from_value(ended).unwrap();
    Event::TaskEnded { task: task(job), ended }
}

#[test]
fn an_attempt_that_lost_its_node_and_the_one_after_it() {
    let mut chronicle = Chronicle::default();
    put(&mut chronicle, 10, placed(7, 1, 1));
    put(&mut chronicle, 12, running(7, 1));
    let why = StopCause::NodeLost { node: NodeId(1) };
    put(&mut chronicle, 20, Event::Stopping { lease: lease(7, 1), why: why.clone() });
    let requeued = serde_json::json!({
        "event": "requeued", "cause": "node_failure", "not_before": 0,
        "lease": { "task": "7", "generation": 1 },
    });
    let requeued = serde_json::from_value(requeued).unwrap();
    put(&mut chronicle, 25, requeued);
    put(&mut chronicle, 30, placed(7, 2, 2));
    put(&mut chronicle, 31, placed(8, 3, 1));
    let stays = chronicle.stays_of(task(7));
    assert_eq!(stays.len(), 2);
    assert_eq!((stays[0].running, stays[0].ended), (Some(Time(12)), Some(Time(25))));
    assert_eq!(stays[0].end, End::Requeued(RetryCause::NodeFailure));
    assert_eq!(stays[0].stopped, Some(why));
    assert_eq!((stays[1].end.clone(), stays[1].parts[0].0), (End::Open, NodeId(2)));
    put(&mut chronicle, 40, over(7, 40));
    let last = chronicle.stays_of(task(7))[1];
    assert!(matches!(last.end, End::Ended(_)));
    let ids = |from, max| -> Vec<(u64, u64)> {
        let stays = chronicle.stays_since(Time(from), max);
        stays.iter().map(|stay| (stay.task.job.0, stay.placed.0)).collect()
    };
    assert_eq!(ids(0, 10), [(7, 10), (7, 30), (8, 31)]);
    assert_eq!(ids(30, 10), [(7, 30), (8, 31)], "what was over before is left out");
    assert_eq!(ids(0, 1), [(8, 31)], "the newest, what goes on first");
}

#[test]
fn sleep_is_part_of_an_attempt_and_told() {
    let mut chronicle = Chronicle::default();
    put(&mut chronicle, 10, placed(7, 1, 1));
    let why = SuspendCause::Asked { by: "ada".into() };
    let moved = Vec::new();
    put(&mut chronicle, 20, Event::Suspending { lease: lease(7, 1), why, stays: true, moved });
    put(&mut chronicle, 30, Event::PartWoken { lease: lease(7, 1), node: NodeId(1) });
    assert_eq!(chronicle.stays_of(task(7))[0].naps, [(Time(20), Some(Time(30)))]);
    let told: Vec<_> = chronicle.moments_of(task(7)).map(|moment| moment.at.0).collect();
    assert_eq!(told, [20, 30]);
}

#[test]
fn jobs_remember_the_newest_and_are_forgotten() {
    let mut chronicle = Chronicle::default();
    for at in 0..100 {
        put(&mut chronicle, at, Event::JobHeld { job: JobId(7), by: "ada".into() });
    }
    assert_eq!(chronicle.moments_of(task(7)).count(), MOMENTS_MAX);
    assert_eq!(chronicle.moments_of(task(7)).next().unwrap().at, Time(36));
    put(&mut chronicle, 100, Event::JobsForgotten { jobs: vec![JobId(7)] });
    assert_eq!(chronicle.moments_of(task(7)).count(), 0);
}

#[test]
fn a_finding_comes_and_goes_once() {
    let mut chronicle = Chronicle::default();
    let finding = |key: &str| Finding {
        key: key.into(),
        check: "xid".into(),
        gpu: None,
        action: HealthAction::Note,
        text: "seen".into(),
        since: Time(1),
        drill: false,
        by_job: false,
    };
    let found = |keys: &[&str]| Event::FindingsChanged {
        node: NodeId(1),
        findings: keys.iter().map(|key| finding(key)).collect(),
    };
    put(&mut chronicle, 1, found(&["a"]));
    put(&mut chronicle, 2, found(&["a", "b"]));
    put(&mut chronicle, 3, found(&["b"]));
    let drain =
        Drain { by: "ada".into(), reason: "x".into(), since: Time(4), auto: false, finding: None };
    put(&mut chronicle, 4, Event::NodeDrained { node: NodeId(1), drain });
    let fates: Vec<_> = chronicle.fates_of(NodeId(1)).map(|b| (b.at.0, b.what.clone())).collect();
    let told = [
        (4, Fate::Drained { by: "ada".into(), reason: "x".into() }),
        (3, Fate::Gone(Box::new(finding("a")))),
        (2, Fate::Found(Box::new(finding("b")))),
        (1, Fate::Found(Box::new(finding("a")))),
    ];
    assert_eq!(fates, told);
}
