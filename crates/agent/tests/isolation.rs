//! What a part can't reach, on this very machine: device programs, limits, and what is left after
//! it. Needs root and a kernel with device programs; elsewhere it says so and does nothing.

mod support;

use support::*;
use tutti_model::{Bytes, ExitStatus, GpuIndex, JobSpec, Launch};

/// Stand for GPUs: devices that root can open and nobody needs.
const GPUS: [&str; 2] = ["gpu=/dev/loop0", "gpu=/dev/loop1"];

struct Node {
    controller: Controller,
    agent: Agent,
    dir: TempDir,
}

impl Node {
    /// What the agent's own directory in `/tmp` is called, or begins with.
    fn name_in_tmp(&self) -> String {
        let data = self.dir.path().join("node");
        let mark = blake3::hash(data.as_os_str().as_encoded_bytes()).to_hex();
        format!(".tutti-{}", &mark[..16])
    }

    fn in_tmp(&self) -> Vec<String> {
        let all = std::fs::read_dir("/tmp").unwrap().flatten();
        let names = all.filter_map(|e| e.file_name().into_string().ok());
        names.filter(|name| name.starts_with(&self.name_in_tmp())).collect()
    }
}

impl Drop for Node {
    /// In order, so that its groups go.
    fn drop(&mut self) {
        self.agent.terminate();
    }
}

/// None, with the reason printed, where this machine can't do it.
#[allow(clippy::print_stderr)]
fn node(options: &[&str], needs: &[&str]) -> Option<Node> {
    if !is_root() {
        eprintln!("not tried: needs root");
        return None;
    }
    let mut controller = Controller::start();
    let dir = TempDir::new();
    let options: Vec<&str> =
        ["real"].into_iter().chain(GPUS).chain(options.iter().copied()).collect();
    let agent = Agent::start(&controller, &dir.path().join("node"), &options);
    let facts = controller.wait_for_greeting().facts;
    if let Some(lack) =
        facts.lacks.iter().find(|l| needs.contains(&l.what.as_str()) || l.what == "cgroup")
    {
        eprintln!("not tried: {}: {}", lack.what, lack.why);
        return None;
    }
    Some(Node { controller, agent, dir })
}

fn part(task: &str, gpus: &[u16], line: &str) -> Launch {
    let mut launch = with_spec(task, task.parse().unwrap(), JobSpec::shell(line));
    launch.gpus = gpus.iter().map(|&i| GpuIndex(i)).collect();
    launch.cpus = 0;
    launch
}

/// Zero bytes are enough to be let in or not.
const LOOK: &str = "for d in loop0 loop1 null full; do \
                    (exec 3</dev/$d) 2>/dev/null && echo $d open || echo $d shut; done";

#[test]
fn a_part_opens_its_own_devices_and_no_others() {
    let Some(mut n) = node(&[], &["devices"]) else { return };
    for (task, gpus, wanted) in [
        ("1", &[0][..], "loop0 open\nloop1 shut\n"),
        ("2", &[1][..], "loop0 shut\nloop1 open\n"),
        ("3", &[][..], "loop0 shut\nloop1 shut\n"),
        ("4", &[0, 1][..], "loop0 open\nloop1 open\n"),
    ] {
        let launch = part(task, gpus, LOOK);
        assert_eq!(n.controller.status_of(&launch), ExitStatus::Code(0));
        let log = n.controller.whole_log(launch.lease.task, 0);
        assert_eq!(log, format!("{wanted}null open\nfull open\n"), "GPUs {gpus:?}");
    }
    // Another name for the same device is no way around it.
    let file = n.dir.path().join("alias");
    let line = format!("mknod {0} b 7 1 || exit 7; (exec 3<{0})", file.display());
    assert_eq!(n.controller.status_of(&part("5", &[0], &line)), ExitStatus::Code(7));
}

#[test]
fn a_part_is_held_to_its_memory_and_processes() {
    let Some(mut n) = node(&["pids=24"], &["memory", "pids"]) else { return };
    let mut greedy = part("1", &[], "head -c 400M /dev/zero | tail | wc -c");
    greedy.mem = Bytes(64 << 20);
    n.controller.run(&greedy);
    n.controller.wait_until_done(greedy.lease);
    let log = n.controller.whole_log(greedy.lease.task, 0);
    assert!(!log.contains(&(400u64 << 20).to_string()), "{log}");
    // Forty at once are too many; ten are not.
    let forks = |n: u32| format!("for i in $(seq {n}); do sleep 0.3 & done; wait");
    let many = part("2", &[], &forks(40));
    let status = n.controller.status_of(&many);
    assert_ne!(status, ExitStatus::Code(0), "{}", n.controller.whole_log(many.lease.task, 0));
    assert_eq!(n.controller.status_of(&part("3", &[], &forks(10))), ExitStatus::Code(0));
}

#[test]
fn a_part_runs_on_its_own_cpus() {
    let Some(mut n) = node(&[], &["cpuset"]) else { return };
    let mut first = part("1", &[0], "grep Cpus_allowed_list /proc/self/status; sleep 1000");
    first.cpus = 1;
    n.controller.run(&first);
    let mine = n.controller.wait_for_log(first.lease.task, 0, "Cpus_allowed_list");
    let one = mine.trim().rsplit_once('\t').unwrap().1.to_owned();
    assert!(one.parse::<u32>().is_ok(), "one CPU, not {one}");
    let mut second = part("2", &[1], "grep Cpus_allowed_list /proc/self/status");
    second.cpus = 1;
    assert_eq!(n.controller.status_of(&second), ExitStatus::Code(0));
    let other = n.controller.whole_log(second.lease.task, 0);
    if std::thread::available_parallelism().unwrap().get() > 1 {
        assert_ne!(other, mine, "each has its own");
    }
    n.controller.stop(first.lease, 0);
    n.controller.wait_until_done(first.lease);
}

#[test]
fn a_part_has_its_own_tmp_and_finds_what_it_needs() {
    let Some(mut n) = node(&[], &["private-tmp"]) else { return };
    // The data dir is below /tmp here, and so is the socket; and the working directory.
    let (host, work) = (n.dir.path().join("of-the-host"), n.dir.path().join("work"));
    std::fs::write(&host, "").unwrap();
    std::fs::create_dir(&work).unwrap();
    let mine = format!("tutti-mine-{}", std::process::id());
    let line = format!(
        "test -S $TUTTI_PROGRESS && test ! -e {host} \
         && touch {mine} /tmp/{mine} /var/tmp/{mine} /dev/shm/{mine} && touch /tmp/rank-$RANK \
         && until test -e /tmp/rank-0 -a -e /tmp/rank-1; do :; done && ls /dev/shm && pwd",
        host = host.display()
    );
    let mut launch = part("1", &[0], &line);
    let mut spec = (*launch.spec).clone();
    spec.workdir = Some(work.display().to_string());
    launch.spec = spec.into();
    (launch.ranks, launch.world_size) = (2, 2);
    n.controller.run(&launch);
    let (exits, error) = n.controller.wait_until_done(launch.lease);
    let log = n.controller.whole_log(launch.lease.task, 0);
    assert!(error.is_none() && exits.iter().all(|e| e.status.is_success()), "{error:?} {log}");
    assert_eq!(log, format!("{mine}\n{}\n", work.display()));
    assert!(work.join(&mine).exists(), "what it wrote to its directory stays");
    for dir in ["/tmp", "/var/tmp", "/dev/shm"] {
        assert!(!std::path::Path::new(dir).join(&mine).exists(), "{dir}");
    }
    // The next one starts with nothing but the agent's own program, and nothing stays behind.
    let agent = std::path::Path::new(env!("CARGO_BIN_EXE_agent-for-tests"));
    let kept = agent.strip_prefix("/tmp").ok().and_then(|path| path.components().next());
    let kept = kept.map_or("tutti-agent-test", |top| top.as_os_str().to_str().unwrap());
    let line = format!("test -z \"$(ls -A /tmp | grep -v -e tutti-agent-test -e {kept})\"");
    assert_eq!(n.controller.status_of(&part("2", &[0], &line)), ExitStatus::Code(0));
    n.agent.terminate();
    assert_eq!(n.in_tmp(), [] as [String; 0]);
}

/// The name of the directory can be worked out before the agent starts.
#[test]
fn a_directory_of_somebody_else_does_not_switch_private_tmp_off() {
    let Some(mut n) = node(&[], &["private-tmp"]) else { return };
    n.agent.terminate();
    let taken = std::path::Path::new("/tmp").join(n.name_in_tmp());
    std::fs::create_dir(&taken).unwrap();
    std::os::unix::fs::chown(&taken, Some(61_001), Some(61_001)).unwrap();
    let options: Vec<&str> = ["real"].into_iter().chain(GPUS).collect();
    n.agent = Agent::start(&n.controller, &n.dir.path().join("node"), &options);
    let lacks = n.controller.wait_for_greeting().facts.lacks;
    assert!(lacks.iter().all(|lack| lack.what != "private-tmp"), "{lacks:?}");
    let line = "test ! -e /tmp/.tutti-* && touch /tmp/mine";
    assert_eq!(n.controller.status_of(&part("1", &[0], line)), ExitStatus::Code(0));
    assert!(!std::path::Path::new("/tmp/mine").exists());
    n.agent.terminate();
    let left = n.in_tmp();
    let _ = std::fs::remove_dir(&taken);
    assert!(left.len() <= 1, "only the stranger's may be left: {left:?}");
}

/// A program that was built below /tmp, as in a clone that somebody tries out.
#[test]
fn a_part_finds_the_program_that_its_command_names() {
    use std::os::unix::fs::PermissionsExt;
    let Some(mut n) = node(&[], &["private-tmp"]) else { return };
    let (bin, data) = (n.dir.path().join("built/bin"), n.dir.path().join("built/data"));
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::write(&data, "").unwrap();
    let program = bin.join("train");
    let text = format!("#!/bin/sh\ntest ! -e {} && echo trains $1\n", data.display());
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = vec![program.display().to_string(), "7".to_owned()];
    let specs = [
        JobSpec::new(tutti_model::Command::Argv(words)),
        JobSpec::shell(format!("{} 7", program.display())),
        JobSpec::shell(format!("exec {} 7", program.display())),
    ];
    for (spec, task) in specs.into_iter().zip(["1", "2", "3"]) {
        let mut launch = with_spec(task, task.parse().unwrap(), spec);
        launch.gpus = vec![GpuIndex(0)];
        let status = n.controller.status_of(&launch);
        let log = n.controller.whole_log(launch.lease.task, 0);
        assert_eq!((status, log.as_str()), (ExitStatus::Code(0), "trains 7\n"));
    }
}

#[test]
fn a_directory_that_its_user_could_not_reach_stays_out_of_reach() {
    use std::os::unix::fs::PermissionsExt;
    let Some(mut n) = node(&[], &["private-tmp"]) else { return };
    // Below /tmp, where it has to be put back into sight; and closed further up.
    let open = |path: &std::path::Path, mode: u32| {
        std::fs::create_dir_all(path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let (theirs, own) = (n.dir.path().join("theirs"), n.dir.path().join("own"));
    open(&theirs, 0o700);
    open(&theirs.join("inner"), 0o777);
    open(&own, 0o777);
    let mut run = |task: &str, dir: &std::path::Path| {
        let mut spec = JobSpec::shell("id -u > who");
        spec.workdir = Some(dir.display().to_string());
        let mut launch = with_spec(task, task.parse().unwrap(), spec);
        (launch.user, launch.gpus) = ("nobody".to_owned(), Vec::new());
        n.controller.status_of(&launch)
    };
    assert_eq!(run("1", &own), ExitStatus::Code(0));
    assert_ne!(std::fs::read_to_string(own.join("who")).unwrap(), "0\n");
    assert_eq!(run("2", &theirs.join("inner")), ExitStatus::Code(126));
    assert!(!theirs.join("inner/who").exists());
}
