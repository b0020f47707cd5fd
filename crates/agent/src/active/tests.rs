//! Which GPUs are asked, and what becomes of the answers.

use std::sync::Mutex;

use tutti_gpu::holdings::HoldingError;
use tutti_model::{ActiveFigures, ActivePart, ActiveProduct, HealthAction, Wrong};

use super::*;

/// Answers with these, and remembers who was asked.
#[derive(Debug)]
struct Script {
    figures: ActiveFigures,
    asked: Mutex<Vec<GpuIndex>>,
}

impl Measurer for Script {
    fn measure(&self, gpus: &[Asked]) -> Measured {
        self.asked.lock().unwrap().extend(gpus.iter().map(|g| g.gpu));
        let done = ActiveOutcome::Done(self.figures.clone());
        let outcomes = gpus.iter().map(|g| (g.gpu, done.clone())).collect();
        Measured { outcomes, sum: ActiveSum::default() }
    }
}

/// GPU 1 has a process, GPU 2 memory, and GPU 3 does not tell.
#[derive(Debug)]
struct Held;

impl Holdings for Held {
    fn of(&self, gpu: GpuIndex) -> Result<Holding, HoldingError> {
        match gpu.0 {
            1 => Ok(Holding { used: Bytes(0), pids: [4_000_000_000].into() }),
            2 => Ok(Holding { used: Bytes(9 << 30), pids: [].into() }),
            3 => Err(HoldingError::Unknown),
            _ => Ok(Holding { used: Bytes(600 << 20), pids: [].into() }),
        }
    }
}

fn checker(figures: ActiveFigures, dir: &std::path::Path) -> (Checker, Arc<Script>) {
    let script = Arc::new(Script { figures, asked: Mutex::default() });
    let known = |index| Known {
        index: GpuIndex(index),
        uuid: format!("GPU-{index}"),
        model: "h200".into(),
        vendor: if index == 5 { Vendor::Amd } else { Vendor::Nvidia },
    };
    let checker = Checker {
        measurer: script.clone(),
        holdings: Some(Arc::new(Held)),
        gpus: (0..6).map(known).collect(),
        driver: "580".into(),
        limits: Thresholds::default(),
        dir: Some(dir.to_owned()),
        boot: "one".into(),
        simulated: false,
    };
    (checker, script)
}

fn all() -> Vec<GpuIndex> {
    (0..6).map(GpuIndex).collect()
}

#[test]
fn only_idle_gpus_are_asked_and_of_the_others_it_is_said_why() {
    let dir = tempfile::tempdir().unwrap();
    let (checker, script) = checker(ActiveFigures::default(), dir.path());
    let checked = checker.check(&all(), &[(GpuIndex(4), "job 7 is on it".into())], Time(1));
    assert_eq!(*script.asked.lock().unwrap(), [GpuIndex(0)]);
    let words: Vec<String> = checked
        .report
        .gpus
        .iter()
        .map(|gpu| match &gpu.outcome {
            ActiveOutcome::Done(_) => "done".to_owned(),
            ActiveOutcome::Busy { why } => format!("busy: {why}"),
            ActiveOutcome::NotRun { why } => format!("not run: {why}"),
            ActiveOutcome::Failed { why, .. } => format!("failed: {why}"),
        })
        .collect();
    let expected = [
        "done",
        "busy: processes 4000000000 compute on it",
        "busy: 9216 MiB of its memory are in use",
        "not run: whether it is idle is not known: the driver of this GPU does not tell",
        "busy: job 7 is on it",
        "not run: there are active checks for NVIDIA's GPUs only",
    ];
    assert_eq!(words, expected);
    assert!(checked.seen.is_empty());
}

#[test]
fn a_wrong_answer_becomes_a_fence_and_is_no_passing() {
    let dir = tempfile::tempdir().unwrap();
    let mut figures = ActiveFigures::default();
    figures.matmul.wrong = Wrong { count: 1, first: "row 5 of the product is wrong".into() };
    let (checker, _) = checker(figures, dir.path());
    let checked = checker.check(&[GpuIndex(0)], &[], Time(1));
    let found = &checked.seen[0].finding;
    assert_eq!(
        (found.check.as_str(), found.action),
        (ActivePart::Matmul.check(), HealthAction::FenceGpu)
    );
    assert_eq!(checked.report.findings, std::slice::from_ref(found));
    assert!(Record::load(dir.path()).unwrap().passed.is_empty());
}

#[test]
fn a_card_that_was_faster_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let rate = |rate| ActiveFigures {
        matmul: ActiveProduct { rate, ..ActiveProduct::default() },
        ..ActiveFigures::default()
    };
    let check = |figures| {
        let (checker, _) = checker(figures, dir.path());
        checker.check(&[GpuIndex(0)], &[], Time(1)).seen
    };
    assert!(check(rate(1000)).is_empty());
    assert!(Record::load(dir.path()).unwrap().passed.contains("GPU-0"));
    assert_eq!(check(rate(700))[0].finding.check, "check-matmul-slow");
}

#[test]
fn a_check_that_breaks_off_speaks_for_no_gpu_and_against_none() {
    let dir = tempfile::tempdir().unwrap();
    let (checker, _) = checker(ActiveFigures::default(), dir.path());
    let checked = checker.broken_off(&[GpuIndex(2)], &std::io::Error::other("a panic"));
    assert!(checked.seen.is_empty() && checked.report.findings.is_empty());
    let why = "the check broke off: a panic".to_owned();
    assert_eq!(checked.report.gpus.len(), 1);
    assert_eq!(checked.report.gpus[0].outcome, ActiveOutcome::NotRun { why });
}
