//! A part inside an image, with a program in podman's place that says how it was called and then runs
//! what it was given, on the host.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::*;
use tutti_model::{Blame, ExitStatus, JobSpec, Launch, Order, Suspension};
use tutti_wire::stream::{ExecOutput, ToAgent, ToController};

const PODMAN: &str = r#"#!/bin/sh
[ "$1" = ps ] && exit 0
for word in "$@"; do case "$word" in --env=*|--volume=*) ;; *) echo "$word" >> "$HERE/words";; esac; done
while [ "$1" != some/image:1 ]; do shift; done
shift
INSIDE=yes exec "$@"
"#;

/// Its own directory is all that it knows without a variable. `ps` has a container, and hangs if told so.
const OF_A_USER: &str = r#"#!/bin/sh
HERE=$(dirname "$0")
env > "$HERE/env-$1"
cat /proc/self/cgroup > "$HERE/groups-$1"
case "$1" in
ps) echo noise >&2; echo c0ffee; [ -e "$HERE/hang" ] && exec sleep 1000; exit 0;;
rm) echo "$*" > "$HERE/removed"; exit 0;;
esac
while [ "$1" != some/image:1 ]; do
  case "$1" in
  --env-file=*)
    ls -l "${1#--env-file=}" | cut -c 1-10 > "$HERE/mode"
    echo "${1#--env-file=}" > "$HERE/file"
    while IFS= read -r line; do export "$line"; done < "${1#--env-file=}";;
  --env=*) echo "$1" > "$HERE/by-name";;
  esac
  shift
done
shift
exec "$@"
"#;

fn agent(controller: &mut Controller, dir: &Path, runtime: &[&str]) -> Agent {
    agent_with(controller, dir, runtime, PODMAN, &[])
}

fn agent_with(
    controller: &mut Controller,
    dir: &Path,
    runtime: &[&str],
    text: &str,
    options: &[&str],
) -> Agent {
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::set_permissions(&bin, std::fs::Permissions::from_mode(0o777)).unwrap();
    for name in runtime {
        std::fs::write(bin.join(name), text).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bin.join(name), mode).unwrap();
    }
    let agent = Agent::start_with_path(controller, &dir.join("node"), options, &bin);
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

/// What one file beside the runtime says.
fn said(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join("bin").join(name)).unwrap_or_default()
}

#[test]
fn a_users_runtime_has_nothing_of_the_jobs_environment() {
    if !is_root() {
        return;
    }
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let _agent = agent_with(&mut controller, dir.path(), &["podman"], OF_A_USER, &[]);
    let mut launch = part("1", dir.path(), "echo $MINE $RANK $LD_PRELOAD");
    let mut spec = (*launch.spec).clone();
    spec.env.insert("MINE".into(), "my own = \"words\"".into());
    spec.env.insert("LD_PRELOAD".into(), "/no/such.so".into());
    (launch.user, launch.spec) = ("nobody".into(), spec.into());
    assert_eq!(controller.status_of(&launch), ExitStatus::Code(0));
    let log = controller.whole_log(launch.lease.task, 0);
    assert!(log.contains("my own = \"words\" 0 /no/such.so"), "{log}");
    let own = said(dir.path(), "env---cgroup-manager=cgroupfs");
    assert!(own.contains("XDG_RUNTIME_DIR=/run/tutti-containers/"), "{own}");
    for name in ["LD_PRELOAD=", "MINE=", "HERE=/", "TUTTI_GANG_KEY="] {
        assert!(!own.contains(name), "{name} in {own}");
    }
    assert_eq!(said(dir.path(), "mode"), "-r--------\n");
    assert_eq!(said(dir.path(), "by-name"), "");
    let file = said(dir.path(), "file");
    assert!(file.starts_with("/run/") && file.ends_with("/0\n"), "{file}");
    assert!(!Path::new(file.trim()).parent().unwrap().exists(), "it goes with the part");
    assert_eq!(said(dir.path(), "removed"), "", "it has ended by itself");
}

#[test]
fn a_variable_of_several_lines_is_refused_before_anything_starts() {
    if !is_root() {
        return;
    }
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let _agent = agent_with(&mut controller, dir.path(), &["podman"], OF_A_USER, &[]);
    let mut launch = part("1", dir.path(), "true");
    let mut spec = (*launch.spec).clone();
    spec.env.insert("KEY".into(), "one\nLD_PRELOAD=/x".into());
    (launch.user, launch.spec) = ("nobody".into(), spec.into());
    controller.run(&launch);
    let (_, error) = controller.wait_until_done(launch.lease);
    let error = error.unwrap();
    assert!(error.message.contains("the variable 'KEY'"), "{}", error.message);
    assert_eq!(error.blame, Blame::Job);
}

/// By the part's own shim, before the part is over, and not for ever.
#[test]
fn what_a_killed_runtime_left_is_removed_as_the_parts_user() {
    if !is_root() {
        return;
    }
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let _agent = agent_with(&mut controller, dir.path(), &["podman"], OF_A_USER, &[]);
    for (number, hangs) in [(1, false), (2, true)] {
        if hangs {
            std::fs::write(dir.path().join("bin/hang"), "").unwrap();
            std::fs::remove_file(dir.path().join("bin/removed")).unwrap();
        }
        let mut launch = part(&number.to_string(), dir.path(), "echo runs; sleep 1000");
        launch.user = "nobody".into();
        controller.run(&launch);
        controller.wait_for_log(launch.lease.task, 0, "runs");
        controller.stop(launch.lease, 0);
        controller.wait_until_done(launch.lease);
        if hangs {
            let log = controller.whole_log(launch.lease.task, 0);
            assert!(log.contains("podman ps did not end within 10 s"), "{log}");
            assert_eq!(said(dir.path(), "removed"), "");
        } else {
            assert_eq!(said(dir.path(), "removed"), "rm --force --time=0 --ignore c0ffee\n");
            let own = said(dir.path(), "env-rm");
            assert!(own.contains("USER=nobody\n") && !own.contains("CARGO"), "{own}");
        }
    }
}

/// Also of a part that is frozen, whose groups nothing can run in before they are thawed.
#[test]
fn what_removes_leftovers_is_held_like_the_part() {
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let shared = dir.path();
    let mut agent = agent_with(&mut controller, shared, &["podman"], OF_A_USER, &["cgroups"]);
    let mut launch = part("1", shared, "echo runs; sleep 1000");
    // Jobs have a /tmp of their own: there the test sees the same files as they.
    let mut spec = (*launch.spec).clone();
    spec.workdir = Some(shared.display().to_string());
    launch.spec = spec.into();
    let lease = launch.lease;
    controller.run(&launch);
    controller.wait_for_log(lease.task, 0, "runs");
    controller.order(Order::Suspend { lease });
    controller.wait(|m| match m {
        ToController::Report { report } if report.lease == lease => {
            matches!(report.suspension, Some(Suspension::Suspended { .. })).then_some(())
        }
        _ => None,
    });
    controller.stop(lease, 0);
    controller.wait_until_done(lease);
    let log = controller.whole_log(lease.task, 0);
    assert_eq!(said(shared, "removed"), "rm --force --time=0 --ignore c0ffee\n", "{log}");
    let groups = said(shared, "groups-rm").replace("/leftovers\n", "\n");
    assert_eq!(groups, said(shared, "groups---cgroup-manager=cgroupfs"), "the part's own");
    assert_ne!(groups, "");
    agent.terminate();
}
