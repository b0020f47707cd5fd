//! Time limits hold while the controller is away, and the agent too.

mod support;

use support::*;
use tutti_model::{Launch, LimitReport, Order, ReportedPhase, Span, TimeLimit};
use tutti_wire::stream::ToController;

fn limit(left_ms: u64) -> Option<TimeLimit> {
    Some(TimeLimit { left: Span::millis(left_ms), grace: Span::secs(60), signal: None })
}

/// Whether the end was by the limit, and what the rank made of being told.
fn wait_end(controller: &mut Controller, launch: &Launch) -> (Option<LimitReport>, i32) {
    let lease = launch.lease;
    controller.wait(|m| {
        let reports = match m {
            ToController::Report { report } => std::slice::from_ref(report),
            ToController::Heartbeat { parts } => parts,
            ToController::Hello { greeting, .. } => &greeting.parts,
            _ => return None,
        };
        let report = reports.iter().find(|r| r.lease == lease)?;
        match &report.phase {
            ReportedPhase::Done { exits, error: None } => {
                Some((report.limit, exits[0].status.code()))
            }
            ReportedPhase::Done { error, .. } => panic!("{error:?}"),
            _ => None,
        }
    })
}

/// A rank that saves its work when it is asked to.
const SAVES: &str = "trap 'echo saved; exit 9' TERM; echo up; while :; do sleep 0.05; done";

#[test]
fn a_part_is_stopped_at_its_limit_though_nobody_says_so() {
    let (mut controller, dir) = (Controller::start(), TempDir::new());
    let data_dir = dir.path().join("node");
    let mut agent = Agent::start(&controller, &data_dir, &[]);
    controller.wait_for_greeting();
    let launch = Launch { limit: limit(500), ..shell("1", 1, SAVES) };
    controller.run(&launch);
    controller.wait_for_log(launch.lease.task, 0, "up");
    // Both are away when the time is over.
    agent.kill();
    let record = data_dir.join("parts").join(format!("{}.running", launch.lease));
    let before = std::fs::metadata(&record).unwrap().len();
    wait_while(|| {
        let grown = std::fs::metadata(&record).unwrap().len() > before;
        (!grown).then(|| "the shim does not write the end of the part".to_owned())
    });
    let _agent = Agent::start(&controller, &data_dir, &[]);
    let end = wait_end(&mut controller, &launch);
    assert_eq!(end, (Some(LimitReport::Over), 9), "with its grace, and with the reason");
    let log = controller.whole_log(launch.lease.task, 0);
    assert!(log.contains("saved") && log.contains("its time limit is over"), "{log}");
}

#[test]
fn a_limit_is_given_changed_and_taken_away_while_the_part_runs() {
    let (mut controller, dir) = (Controller::start(), TempDir::new());
    let _agent = Agent::start(&controller, &dir.path().join("node"), &[]);
    assert!(controller.wait_for_greeting().facts.keeps_limits);
    let said = |controller: &mut Controller, launch: &Launch, so: fn(Option<Span>) -> bool| {
        let lease = launch.lease;
        controller.wait(|m| {
            let ToController::Heartbeat { parts } = m else { return None };
            let report = parts.iter().find(|r| r.lease == lease)?;
            let left = match report.limit {
                Some(LimitReport::Left { left }) => Some(left),
                Some(LimitReport::Over) => panic!("it has time left"),
                None => None,
            };
            so(left).then_some(())
        });
    };
    let spared = Launch { limit: limit(500), ..shell("1", 1, SAVES) };
    let caught = shell("2", 2, SAVES);
    for launch in [&spared, &caught] {
        controller.run(launch);
        controller.wait_for_log(launch.lease.task, 0, "up");
    }
    let order = |launch: &Launch, limit| Order::Limit { lease: launch.lease, limit };
    controller.order(order(&spared, limit(3_600_000)));
    said(&mut controller, &spared, |left| left.is_some_and(|left| left > Span::secs(3000)));
    controller.order(order(&spared, None));
    said(&mut controller, &spared, |left| left.is_none());
    controller.order(order(&caught, limit(0)));
    assert_eq!(wait_end(&mut controller, &caught), (Some(LimitReport::Over), 9));
    controller.stop(spared.lease, 60_000);
    assert_eq!(wait_end(&mut controller, &spared), (None, 9), "by our order, not by its limit");
}
