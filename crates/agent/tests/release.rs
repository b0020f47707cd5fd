//! A part is over when its GPUs are free.

mod support;

use std::path::PathBuf;

use support::*;
use tutti_model::ReportedPhase;
use tutti_wire::stream::LogFrom;

/// What imagined GPUs hold, and how often somebody looked.
struct Held {
    file: PathBuf,
}

impl Held {
    fn new(dir: &TempDir) -> Held {
        Held { file: dir.path().join("held") }
    }

    /// Replaced in one step, so that nobody reads half a number.
    fn hold(&self, mib: u32) {
        std::fs::write(self.file.with_extension("new"), mib.to_string()).unwrap();
        std::fs::rename(self.file.with_extension("new"), &self.file).unwrap();
    }

    fn wait_for_looks(&self, mib: u32, count: usize) {
        let looks = || {
            let text = std::fs::read_to_string(self.file.with_extension("looks"));
            text.unwrap_or_default().lines().filter(|line| *line == mib.to_string()).count()
        };
        wait_while(|| (looks() < count).then(|| "nobody looks".to_owned()));
    }

    fn option(&self) -> String {
        format!("held={}", self.file.display())
    }
}

#[test]
fn the_end_of_a_part_waits_for_the_memory_of_its_gpus() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let held = Held::new(&dir);
    held.hold(600);
    let _agent = Agent::start(&controller, &dir.path().join("node"), &[&held.option()]);
    controller.wait_for_greeting();
    // It has seen all eight when they are idle.
    held.wait_for_looks(600, 8);
    let launch = shell("1", 1, "sleep 1000");
    controller.run(&launch);
    controller.wait_until_running(launch.lease);
    held.hold(60_000);
    controller.stop(launch.lease, 0);
    held.wait_for_looks(60_000, 3);
    // An answer comes after all that was said before.
    controller.read_log(launch.lease.task, 0, LogFrom::Offset(0), false);
    assert!(!controller.has_heard_end(launch.lease));
    // The driver has cleaned up, as far as it ever does.
    held.hold(700);
    let (_, error) = controller.wait_until_done(launch.lease);
    assert_eq!(error, None);
    // A part without GPUs waits for nobody.
    held.hold(60_000);
    let mut launch = shell("2", 2, "true");
    launch.gpus.clear();
    assert!(controller.status_of(&launch).is_success());
}

#[test]
fn the_next_agent_looks_as_well_before_it_tells_of_an_end() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let (held, node) = (Held::new(&dir), dir.path().join("node"));
    held.hold(600);
    let mut agent = Agent::start(&controller, &node, &[&held.option()]);
    controller.wait_for_greeting();
    held.wait_for_looks(600, 8);
    let launch = shell("1", 1, "sleep 1000");
    controller.run(&launch);
    controller.wait_until_running(launch.lease);
    held.hold(60_000);
    controller.stop(launch.lease, 0);
    held.wait_for_looks(60_000, 1);
    agent.kill();
    let _agent = Agent::start(&controller, &node, &[&held.option()]);
    let greeting = controller.wait_for_greeting();
    let report = greeting.parts.iter().find(|r| r.lease == launch.lease).unwrap();
    assert!(matches!(report.phase, ReportedPhase::Running { .. }), "{report:?}");
    // Another one's GPU is free.
    assert!(controller.status_of(&shell("2", 2, "true")).is_success());
    assert!(!controller.has_heard_end(launch.lease));
    held.hold(700);
    let (_, error) = controller.wait_until_done(launch.lease);
    assert_eq!(error, None);
}

/// Of an agent that ended long ago, on this start of the machine.
fn leave_finding(node: &std::path::Path) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let stored = serde_json::json!({
        "boot": boot.trim(),
        "board": { "memory-held/gpu3": {
            "finding": {
                "key": "memory-held/gpu3", "check": "memory-held", "gpu": 3,
                "action": "reset_gpu", "text": "GPU 3 holds 60000 MiB", "since": 5,
            },
            "keep": { "for": 90_000 },
            "seen": 5,
        }},
    });
    std::fs::create_dir_all(node).unwrap();
    std::fs::write(node.join("health.json"), stored.to_string()).unwrap();
}

#[test]
fn what_was_left_on_a_gpu_is_not_taken_for_idle_by_the_next_agent() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let (held, node) = (Held::new(&dir), dir.path().join("node"));
    leave_finding(&node);
    held.hold(60_000);
    let _agent = Agent::start(&controller, &node, &[&held.option()]);
    let greeting = controller.wait_for_greeting();
    let keys: Vec<&str> = greeting.findings.iter().map(|f| f.key.as_str()).collect();
    assert_eq!(keys, ["memory-held/gpu3"]);
    // Seven others, and GPU 3 again and again.
    held.wait_for_looks(60_000, 10);
    let launch = shell("1", 3, "true");
    controller.run(&launch);
    controller.wait_until_running(launch.lease);
    assert!(controller.status_of(&shell("2", 4, "true")).is_success());
    assert!(!controller.has_heard_end(launch.lease));
    held.hold(700);
    let (_, error) = controller.wait_until_done(launch.lease);
    assert_eq!(error, None);
}
