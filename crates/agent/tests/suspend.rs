//! Real processes on simulated GPUs, suspended and woken.

mod support;

use std::path::Path;

use support::*;
use tutti_model::{
    Bytes, ExitStatus, GpuIndex, JobSpec, Launch, LeaseId, Order, PartReport, Suspension,
};
use tutti_wire::stream::{ExecOutput, ToAgent, ToController};

struct Node {
    controller: Controller,
    dir: TempDir,
    /// The working directory of jobs: there they and the test see the same files, though jobs may have a
    /// /tmp of their own.
    shared: std::path::PathBuf,
}

impl Node {
    fn new() -> Node {
        let dir = TempDir::new();
        let shared = dir.path().join("shared");
        std::fs::create_dir_all(&shared).unwrap();
        Node { controller: Controller::start(), dir, shared }
    }

    fn agent(&mut self, options: &[&str]) -> Agent {
        let agent = Agent::start(&self.controller, &self.dir.path().join("node"), options);
        let greeting = self.controller.wait_for_greeting();
        assert!(greeting.facts.can_suspend && greeting.facts.can_move);
        agent
    }

    /// Counts into a file for as long as it lives, from a child of its own.
    fn counting(&mut self, task: &str, generation: u64) -> Launch {
        let count = self.count(task);
        let line = format!(
            "echo pid $$; (i=0; while :; do i=$((i+1)); echo $i >> {}; sleep 0.01; done); exit 3",
            count.display()
        );
        let mut spec = JobSpec::shell(line);
        spec.workdir = Some(self.shared.display().to_string());
        let launch = with_spec(task, generation, spec);
        self.controller.run(&launch);
        self.controller.wait_until_running(launch.lease);
        self.wait_for_more(task);
        launch
    }

    fn count(&self, task: &str) -> std::path::PathBuf {
        self.shared.join(format!("count-{task}"))
    }

    /// How far it has counted, without a gap.
    fn counted(&self, task: &str) -> usize {
        let text = std::fs::read_to_string(self.count(task)).unwrap_or_default();
        let whole: Vec<&str> = text.split_inclusive('\n').filter(|l| l.ends_with('\n')).collect();
        for (line, i) in whole.iter().zip(1..) {
            assert_eq!(line.trim().parse::<usize>().unwrap(), i, "started anew?");
        }
        whole.len()
    }

    /// Waits until it goes on counting.
    fn wait_for_more(&self, task: &str) {
        let before = self.counted(task);
        let waits = || self.counted(task) <= before;
        wait_while(|| waits().then(|| "it does not count on".to_owned()));
    }

    fn pid(&mut self, launch: &Launch) -> i32 {
        let log = self.controller.wait_for_log(launch.lease.task, 0, "pid ");
        log.lines().find_map(|l| l.strip_prefix("pid ")?.parse().ok()).unwrap()
    }

    fn wait_for(
        &mut self,
        lease: LeaseId,
        wanted: impl Fn(&Option<Suspension>) -> bool,
    ) -> PartReport {
        self.controller.wait(|m| match m {
            ToController::Report { report } if report.lease == lease => {
                wanted(&report.suspension).then(|| report.clone())
            }
            _ => None,
        })
    }

    fn suspend(&mut self, lease: LeaseId) -> Bytes {
        self.controller.order(Order::Suspend { lease });
        let report = self.wait_for(lease, |s| matches!(s, Some(Suspension::Suspended { .. })));
        match report.suspension {
            Some(Suspension::Suspended { bytes }) => bytes,
            _ => unreachable!("just looked"),
        }
    }

    fn wake(&mut self, lease: LeaseId, gpu: u16) {
        self.controller.order(Order::Wake { lease, gpus: vec![GpuIndex(gpu)] });
        self.wait_for(lease, |s| *s == Some(Suspension::Waking));
        self.wait_for(lease, Option::is_none);
    }
}

fn state_of(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

fn cgroup_is_frozen(pid: i32) -> Option<bool> {
    let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let own = own.lines().find_map(|l| l.strip_prefix("0::/"))?;
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let events = mounts.map(|m| Path::new(m).join(own).join("cgroup.events"));
    let text = events.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
    Some(text.lines().any(|line| line == "frozen 1"))
}

#[test]
fn a_suspended_part_stands_still_and_goes_on_at_the_next_number() {
    for options in [&[][..], &["cgroups"][..]] {
        let mut node = Node::new();
        let _agent = node.agent(options);
        let launch = node.counting("1", 1);
        let pid = node.pid(&launch);
        assert_eq!(node.suspend(launch.lease), Bytes::gib(1));
        let still = state_of(pid) == 'T' || cgroup_is_frozen(pid) == Some(true);
        assert!(still, "{options:?}: {} {:?}", state_of(pid), cgroup_is_frozen(pid));
        let stopped_at = node.counted("1");

        // Its GPU is free for somebody else, who ends before it comes back.
        let mut other = shell("2", 2, "true");
        other.gpus = launch.gpus.clone();
        assert_eq!(node.controller.status_of(&other), ExitStatus::Code(0));
        assert_eq!(node.counted("1"), stopped_at);
        node.wake(launch.lease, 5);
        node.wait_for_more("1");

        // Where it is now, nobody else starts; where it was, somebody may.
        let mut third = shell("3", 3, "true");
        third.gpus = vec![GpuIndex(5)];
        node.controller.run(&third);
        let (_, error) = node.controller.wait_until_done(third.lease);
        assert!(error.unwrap().message.contains("GPU 5 is still held by 1@1"));
        let mut fourth = shell("4", 4, "true");
        fourth.gpus = launch.gpus.clone();
        assert_eq!(node.controller.status_of(&fourth), ExitStatus::Code(0));
        node.controller.stop(launch.lease, 0);
        node.controller.wait_until_done(launch.lease);
    }
}

#[test]
fn an_agent_that_is_killed_finds_it_suspended() {
    let mut node = Node::new();
    let mut agent = node.agent(&[]);
    let mut launch = node.counting("1", 1);
    node.suspend(launch.lease);
    agent.kill();
    let stopped_at = node.counted("1");
    let _agent = Agent::start(&node.controller, &node.dir.path().join("node"), &[]);
    let greeting = node.controller.wait_for_greeting();
    let report = greeting.parts.iter().find(|r| r.lease == launch.lease).unwrap();
    assert_eq!(report.suspension, Some(Suspension::Suspended { bytes: Bytes::gib(1) }));
    assert_eq!(report.gpu_mem, Some(Bytes::gib(1)));
    assert_eq!(node.counted("1"), stopped_at);
    // The new agent knows that its GPU is free.
    let mut other = shell("2", 2, "true");
    other.gpus = std::mem::take(&mut launch.gpus);
    assert_eq!(node.controller.status_of(&other), ExitStatus::Code(0));
    node.wake(launch.lease, 1);
    node.wait_for_more("1");
    node.controller.stop(launch.lease, 0);
    node.controller.wait_until_done(launch.lease);
}

#[test]
fn a_suspended_part_is_killed_without_delay() {
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let launch = node.counting("1", 1);
    let pid = node.pid(&launch);
    node.suspend(launch.lease);
    // Much longer than the test may take.
    node.controller.stop(launch.lease, 3_600_000);
    let (exits, error) = node.controller.wait_until_done(launch.lease);
    assert_eq!((exits[0].status, error), (ExitStatus::Signal(9), None));
    assert!(!is_alive(pid));
}

#[test]
fn orders_may_come_twice_and_programs_can_not_enter_meanwhile() {
    let mut node = Node::new();
    let _agent = node.agent(&[]);
    let launch = node.counting("1", 1);
    let lease = launch.lease;
    node.suspend(lease);
    node.controller.order(Order::Suspend { lease });
    let request = node.controller.request();
    let exec = tutti_wire::stream::Exec {
        task: lease.task,
        rank: tutti_model::Rank(0),
        argv: vec!["true".into()],
    };
    node.controller.tell(ToAgent::Exec { request, exec });
    let (_, end) = node.controller.exec_result(request);
    assert!(
        matches!(&end, ExecOutput::Failed { reason } if reason.contains("suspended")),
        "{end:?}"
    );
    let gpus = launch.gpus.clone();
    node.controller.order(Order::Wake { lease, gpus: gpus.clone() });
    node.controller.order(Order::Wake { lease, gpus });
    node.wait_for(lease, |s| *s == Some(Suspension::Waking));
    node.wait_for(lease, Option::is_none);
    node.wait_for_more("1");
    node.controller.stop(lease, 0);
    node.controller.wait_until_done(lease);
}
