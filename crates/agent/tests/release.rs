//! A part is over when its GPUs are free.

mod support;

use std::time::{Duration, Instant};

use support::*;
use tutti_wire::stream::LogFrom;

#[test]
fn the_end_of_a_part_waits_for_the_memory_of_its_gpus() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let held = dir.path().join("held");
    // Replaced in one step, so that nobody reads half a number.
    let hold = |mib: u32| {
        std::fs::write(dir.path().join("new"), mib.to_string()).unwrap();
        std::fs::rename(dir.path().join("new"), &held).unwrap();
    };
    let looks = |mib: u32| {
        let text = std::fs::read_to_string(held.with_extension("looks")).unwrap_or_default();
        text.lines().filter(|line| *line == mib.to_string()).count()
    };
    let wait_for_looks = |mib: u32, count: usize| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while looks(mib) < count {
            assert!(Instant::now() < deadline, "nobody looks");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    hold(600);
    let option = format!("held={}", held.display());
    let _agent = Agent::start(&controller, &dir.path().join("node"), &[&option]);
    controller.wait_for_greeting();
    // It has seen all eight when they are idle.
    wait_for_looks(600, 8);
    let launch = shell("1", 1, "sleep 1000");
    controller.run(&launch);
    controller.wait_until_running(launch.lease);
    hold(60_000);
    controller.stop(launch.lease, 0);
    wait_for_looks(60_000, 3);
    // An answer comes after all that was said before.
    controller.read_log(launch.lease.task, 0, LogFrom::Offset(0), false);
    assert!(!controller.has_heard_end(launch.lease));
    // The driver has cleaned up, as far as it ever does.
    hold(700);
    let (_, error) = controller.wait_until_done(launch.lease);
    assert_eq!(error, None);
    // A part without GPUs waits for nobody.
    hold(60_000);
    let mut launch = shell("2", 2, "true");
    launch.gpus.clear();
    assert!(controller.status_of(&launch).is_success());
}
