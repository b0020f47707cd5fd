//! A part inside an image, with a program in podman's place that says how it was called and then runs
//! what it was given, on the host.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::*;
use tutti_model::{Blame, ExitStatus, JobSpec, Launch};
use tutti_wire::stream::{ExecOutput, ToAgent};

const PODMAN: &str = r#"#!/bin/sh
[ "$1" = ps ] && exit 0
for word in "$@"; do case "$word" in --env=*|--volume=*) ;; *) echo "$word" >> "$HERE/words";; esac; done
while [ "$1" != some/image:1 ]; do shift; done
shift
INSIDE=yes exec "$@"
"#;

fn agent(controller: &mut Controller, dir: &Path, runtime: &[&str]) -> Agent {
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    for name in runtime {
        std::fs::write(bin.join(name), PODMAN).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bin.join(name), mode).unwrap();
    }
    let agent = Agent::start_with_path(controller, &dir.join("node"), &bin);
    let facts = controller.wait_for_greeting().facts;
    assert_eq!(facts.runtimes, runtime);
    agent
}

fn part(task: &str, dir: &Path, line: &str) -> Launch {
    let mut spec = JobSpec::shell(line);
    spec.image = Some("some/image:1".into());
    spec.env.insert("HERE".into(), dir.display().to_string());
    with_spec(task, task.parse().unwrap(), spec)
}

#[test]
fn ranks_and_execs_run_inside_the_image() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let _agent = agent(&mut controller, dir.path(), &["podman"]);
    let launch = part("1", dir.path(), "echo $INSIDE $RANK; read line; echo $line");
    let mut spec = (*launch.spec).clone();
    spec.stdin = true;
    let launch = Launch { spec: spec.into(), ..launch };
    controller.run(&launch);
    controller.wait_for_log(launch.lease.task, 0, "yes 0");
    let words = std::fs::read_to_string(dir.path().join("words")).unwrap();
    assert!(
        words.contains("--cgroups=disabled\n") && words.contains("\nsome/image:1\n/bin/sh\n-c\n"),
        "{words}"
    );
    let request = controller.request();
    let argv = ["sh", "-c", "echo exec $INSIDE"].map(str::to_owned).to_vec();
    let exec =
        tutti_wire::stream::Exec { task: launch.lease.task, rank: tutti_model::Rank(0), argv };
    controller.tell(ToAgent::Exec { request, exec });
    let (out, end) = controller.exec_result(request);
    assert_eq!(out, "exec yes\n");
    assert_eq!(end, ExecOutput::Exited { status: ExitStatus::Code(0) });
    controller.stop(launch.lease, 0);
    controller.wait_until_done(launch.lease);
}

#[test]
fn a_node_without_a_runtime_says_so_before_anything_starts() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let _agent = agent(&mut controller, dir.path(), &[]);
    let launch = part("1", dir.path(), "true");
    controller.run(&launch);
    let (exits, error) = controller.wait_until_done(launch.lease);
    let error = error.unwrap();
    assert!(exits.is_empty());
    assert_eq!(error.blame, Blame::Node);
    let wanted = "node n1 can't run image 'some/image:1': it has no podman, apptainer or enroot";
    assert_eq!(error.message, wanted);
}
