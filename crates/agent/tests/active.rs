//! GPUs are checked before they are offered, before a fence is lifted, and between jobs on suspicion.

mod support;

use std::path::PathBuf;

use support::*;
use tutti_model::{ActiveOutcome, Finding, GpuIndex, HealthAction, LeaseId, ReportedPhase};
use tutti_wire::stream::{Drill, DrillWhat, HealthAsk, HealthReply, ToAgent, ToController};

/// What imagined cards answer, and who was asked.
struct Cards {
    file: PathBuf,
}

impl Cards {
    fn new(dir: &TempDir) -> Cards {
        let cards = Cards { file: dir.path().join("answers") };
        cards.answer("right");
        cards
    }

    /// Replaced in one step, so that nobody reads half of it.
    fn answer(&self, how: &str) {
        std::fs::write(self.file.with_extension("new"), how).unwrap();
        std::fs::rename(self.file.with_extension("new"), &self.file).unwrap();
    }

    fn asked(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file.with_extension("asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn option(&self) -> String {
        format!("checks={}", self.file.display())
    }
}

fn inject(controller: &mut Controller, gpu: u16, what: DrillWhat) {
    let ask = HealthAsk::Inject(Drill { gpu: Some(GpuIndex(gpu)), what, by: "ada".into() });
    assert!(matches!(controller.health(ask), HealthReply::Board { .. }));
}

fn resolve(controller: &mut Controller, gpu: u16) -> (Vec<String>, Vec<String>) {
    let gpu = Some(GpuIndex(gpu));
    let ask = HealthAsk::Resolve { gpu, key: None, by: "ada".into(), unchecked: false };
    let HealthReply::Board { findings, touched, .. } = controller.health(ask) else {
        panic!("another answer");
    };
    let keys = |all: Vec<Finding>| all.into_iter().map(|f| f.key).collect();
    (keys(findings), keys(touched))
}

fn board(controller: &mut Controller) -> Vec<Finding> {
    match controller.health(HealthAsk::Examine) {
        HealthReply::Examined(examined) => examined.findings,
        other => panic!("{other:?}"),
    }
}

fn wait_until_clear(controller: &mut Controller) {
    wait_while(|| {
        let left = board(controller);
        (!left.is_empty()).then(|| format!("{left:?}"))
    });
}

#[test]
fn gpus_are_checked_once_before_they_are_offered() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let cards = Cards::new(&dir);
    cards.answer("wrong");
    let mut agent = Agent::start(&controller, &dir.path().join("node"), &[&cards.option()]);
    // From the greeting on: being checked, or found wrong already.
    let greeting = controller.wait_for_greeting();
    let fenced = greeting.findings.iter().filter(|f| f.fences().is_some()).count();
    assert_eq!(fenced, 8, "{:?}", greeting.findings);
    wait_while(|| {
        let found = board(&mut controller);
        let wrong = found.iter().filter(|f| f.check == "check-matmul").count();
        (wrong < 8).then(|| format!("{found:?}"))
    });
    assert_eq!(cards.asked(), ["0 1 2 3 4 5 6 7"]);
    // A GPU that still fails stays fenced; one that passes is used again.
    let (findings, touched) = resolve(&mut controller, 3);
    assert!(findings.contains(&"check-matmul/gpu3".to_owned()) && touched.is_empty());
    cards.answer("right");
    let (findings, touched) = resolve(&mut controller, 3);
    assert!(!findings.iter().any(|key| key.ends_with("gpu3")), "{findings:?}");
    assert_eq!(touched, ["check-matmul/gpu3"]);
    assert_eq!(cards.asked()[1..], ["3", "3"]);
    // Those that are fenced wait for somebody to resolve them; the one that passed is not asked again.
    agent.kill();
    let _agent = Agent::start(&controller, &dir.path().join("node"), &[&cards.option()]);
    let greeting = controller.wait_for_greeting();
    let fenced: Vec<GpuIndex> = greeting.findings.iter().filter_map(Finding::fences).collect();
    assert_eq!(fenced, [0, 1, 2, 4, 5, 6, 7].map(GpuIndex));
    assert_eq!(cards.asked().len(), 3);
}

#[test]
fn a_suspect_is_checked_before_the_next_job_and_an_operator_may_ask() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let cards = Cards::new(&dir);
    let _agent = Agent::start(&controller, &dir.path().join("node"), &[&cards.option()]);
    controller.wait_for_greeting();
    wait_until_clear(&mut controller);
    // Nothing speaks against GPU 1.
    let launch = shell("1", 1, "true");
    assert!(controller.status_of(&launch).is_success());
    assert_eq!(cards.asked().len(), 1);
    inject(&mut controller, 2, DrillWhat::Xid { xid: 94 });
    let launch = shell("2", 2, "true");
    assert!(controller.status_of(&launch).is_success());
    assert_eq!(cards.asked()[1..], ["2"]);
    // It was looked into; only something new is reason to do it again.
    let launch = shell("3", 10, "true");
    assert!(controller.status_of(&launch).is_success());
    assert_eq!(cards.asked().len(), 2);
    let (check, text) = ("throttle".to_owned(), "hot".to_owned());
    let what = DrillWhat::Finding { check, action: HealthAction::Note, text };
    inject(&mut controller, 2, what);
    cards.answer("wrong");
    let launch = shell("4", 18, "true");
    controller.run(&launch);
    // The end comes first, so that the part is not to blame.
    let fenced_after_end = after_end(&mut controller, launch.lease);
    assert_eq!(fenced_after_end, "check-matmul/gpu2");
    cards.answer("right");
    let launch = shell("5", 5, "sleep 1000");
    controller.run(&launch);
    controller.wait_until_running(launch.lease);
    let HealthReply::Checked(report) = controller.health(HealthAsk::Check) else {
        panic!("another answer");
    };
    let busy = |outcome: &ActiveOutcome| matches!(outcome, ActiveOutcome::Busy { .. });
    let busy: Vec<GpuIndex> =
        report.gpus.iter().filter(|g| busy(&g.outcome)).map(|g| g.gpu).collect();
    assert_eq!((busy, report.gpus.len(), report.simulated), (vec![GpuIndex(5)], 8, true));
    assert!(!board(&mut controller).iter().any(|f| f.check == "checking"));
    // Ranks outlive their agent.
    controller.stop(launch.lease, 0);
    controller.wait_until_done(launch.lease);
}

#[test]
fn a_fence_goes_only_if_the_gpu_was_checked_and_only_what_was_meant_goes() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let cards = Cards::new(&dir);
    let _agent = Agent::start(&controller, &dir.path().join("node"), &[&cards.option()]);
    controller.wait_for_greeting();
    wait_until_clear(&mut controller);
    inject(&mut controller, 2, DrillWhat::Xid { xid: 48 });
    // That no check could be made says nothing for the GPU.
    cards.answer("not run");
    let (findings, touched) = resolve(&mut controller, 2);
    assert!(findings.contains(&"drill/xid-48/gpu2".to_owned()), "{findings:?}");
    assert_eq!(touched, Vec::<String>::new());
    // What comes while the GPU is checked was not meant.
    cards.answer("wait");
    let (gpu, by) = (Some(GpuIndex(2)), "ada".to_owned());
    let ask = HealthAsk::Resolve { gpu, key: None, by, unchecked: false };
    let request = controller.request();
    controller.tell(ToAgent::Health { request, ask });
    wait_while(|| {
        let asked = cards.asked();
        (asked.len() < 3).then(|| format!("nobody checks: {asked:?}"))
    });
    inject(&mut controller, 2, DrillWhat::Xid { xid: 79 });
    cards.answer("right");
    let touched: Vec<String> = controller.wait(|m| match m {
        ToController::Health { request: r, reply: HealthReply::Board { touched, .. } }
            if *r == request =>
        {
            Some(touched.iter().map(|f| f.key.clone()).collect())
        }
        _ => None,
    });
    assert_eq!(touched, ["drill/xid-48/gpu2"]);
    let left: Vec<String> = board(&mut controller).into_iter().map(|f| f.key).collect();
    assert_eq!(left, ["drill/xid-79/gpu2"]);
}

/// The first fence that is told after the part's end.
fn after_end(controller: &mut Controller, lease: LeaseId) -> String {
    let mut ended = false;
    controller.wait(|m| match m {
        ToController::Report { report } => {
            ended |= report.lease == lease && matches!(report.phase, ReportedPhase::Done { .. });
            None
        }
        ToController::Findings { findings } => {
            let fence = findings.iter().find(|f| f.fences().is_some())?;
            assert!(ended, "told too early: {fence:?}");
            Some(fence.key.clone())
        }
        _ => None,
    })
}
