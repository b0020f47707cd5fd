//! Each rule on real processes made to misbehave so, with times cut short: it fires in its time, says
//! what is wrong, ends when that is mended, and does to jobs only what somebody asked for.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use serde_json::Value;
use tutti_model::{
    Alert, JobSpec, JobState, Span, Stall, StallAction, Subject, TaskId, TimeClass, WatchAction,
    WatchRule,
};
use tutti_testkit::{Cluster, PATIENCE, wait_for, wait_until};
use tutti_wire::api::{AlertQuery, LogQuery};

use crate::cluster;

/// How late an alert may be on a machine with much else to do: looks are 300 ms apart.
const LATE: Span = Span::secs(3);

fn apply(cluster: &Cluster, policy: &str) {
    let path = cluster.scratch().join("policy.toml");
    std::fs::write(&path, format!("[watch]\nevery = \"300ms\"\n{policy}")).unwrap();
    cluster.cli(&["policy", "apply", path.to_str().unwrap()]).ok();
}

fn alerts(cluster: &Cluster, all: bool) -> Vec<Alert> {
    cluster.client().alerts(&AlertQuery { all }).expect("alerts can be read").alerts
}

fn find(cluster: &Cluster, rule: WatchRule, about: &Subject) -> Option<Alert> {
    alerts(cluster, false).into_iter().find(|a| a.rule == rule && a.subject == *about)
}

/// Waits for the alert, and checks that it came when it was due.
#[track_caller]
fn fires(cluster: &Cluster, rule: WatchRule, about: &Subject, after: Span) -> Alert {
    let what = format!("{} fires for {about}", rule.as_str());
    let alert = wait_for(&what, PATIENCE, || find(cluster, rule, about));
    let took = alert.fired_at.since(alert.since);
    assert!(took >= after, "{took} is too early: {alert:?}");
    assert!(took.0 <= after.0 + LATE.0, "{took} is too late: {alert:?}");
    alert
}

#[track_caller]
fn ends(cluster: &Cluster, rule: WatchRule, about: &Subject) {
    let what = format!("{} ends for {about}", rule.as_str());
    wait_until(&what, PATIENCE, || find(cluster, rule, about).is_none());
    let over = alerts(cluster, true);
    let past = over.iter().find(|a| a.rule == rule && a.subject == *about);
    assert!(past.is_some_and(|a| a.ended_at.is_some()), "it is remembered: {over:?}");
}

fn job(id: TaskId) -> Subject {
    Subject::Job { id }
}

fn node(name: &str) -> Subject {
    Subject::Node { name: name.to_owned() }
}

/// A file in which a job's imagined GPUs find what they do.
struct Device(PathBuf);

impl Device {
    fn new(cluster: &Cluster, name: &str, words: &str) -> Device {
        let device = Device(cluster.scratch().join(name));
        device.does(words);
        device
    }

    /// Replaced in one go: it is read meanwhile.
    fn does(&self, words: &str) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, words).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }

    fn spec(&self, gpus: u32, line: &str) -> JobSpec {
        let mut spec = JobSpec { gpus: Some(gpus), ..JobSpec::shell(line) };
        spec.env.insert("TUTTI_SIM_GPU".into(), self.0.display().to_string());
        spec
    }
}

const IDLE: &str = "util=0 sm=0 power=10 traffic=0";
const BUSY: &str = "util=99 sm=80 power=85 traffic=50";

/// Takes what is posted to it.
fn webhook() -> (String, mpsc::Receiver<Value>) {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/alerts", socket.local_addr().unwrap());
    let (out, inbox) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in socket.incoming() {
            let Ok(mut stream) = stream else { return };
            let (mut text, mut buffer) = (String::new(), [0; 8192]);
            while !text.ends_with("}}") {
                match stream.read(&mut buffer) {
                    Ok(n @ 1..) => text.push_str(&String::from_utf8_lossy(&buffer[..n])),
                    _ => break,
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
            let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            if out.send(serde_json::from_str(body).unwrap_or_default()).is_err() {
                return;
            }
        }
    });
    (url, inbox)
}

fn hook(cluster: &Cluster, name: &str, out: &Path) {
    let hooks = cluster.dir().join("hooks");
    std::fs::create_dir_all(&hooks).unwrap();
    let path = hooks.join(name);
    std::fs::write(&path, format!("#!/bin/sh\ncat >> {}\n", out.display())).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn idle_gpus_are_told_to_everybody_once_and_nothing_happens_to_the_job() {
    let mut cluster = cluster(1);
    let (url, posted) = webhook();
    let (mail, page) = (cluster.scratch().join("mail"), cluster.scratch().join("page"));
    hook(&cluster, "email", &mail);
    hook(&cluster, "page", &page);
    apply(
        &cluster,
        &format!(
            "[watch.idle]\nfor = \"2s\"\nclear = \"1s\"\n[watch.notify]\nwebhook = \"{url}\"\n\
             command = \"page\"\nemail = [\"ops@example.org\"]\n"
        ),
    );
    let device = Device::new(&cluster, "device", BUSY);
    let id = cluster.submit(device.spec(2, "sleep 1000"));
    cluster.wait_state(id, JobState::Running);
    device.does(IDLE);
    let alert = fires(&cluster, WatchRule::Idle, &job(id), Span::secs(2));
    assert_eq!(alert.text, "all of its 2 GPUs do nothing (under 3% busy)");
    assert_eq!(alert.action, WatchAction::Tell);
    let heard = posted.recv_timeout(PATIENCE).expect("the webhook is called");
    assert_eq!(
        (heard["event"].as_str(), heard["alert"]["rule"].as_str()),
        (Some("began"), Some("idle"))
    );
    wait_until("mail and page are sent", PATIENCE, || {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        read(&mail).starts_with("To: ops@example.org\r\nSubject: [tutti] job ")
            && read(&page).starts_with("{\"event\":\"began\"")
    });

    let list = cluster.cli(&["alerts"]).ok();
    assert!(list.contains("idle") && list.contains(&alert.text), "{list}");
    let json: Value = serde_json::from_str(&cluster.cli(&["alerts", "--json"]).ok()).unwrap();
    assert_eq!(json[0]["subject"]["kind"], "job");
    let rules = cluster.cli(&["alerts", "--rules"]).ok();
    assert!(rules.contains("idle") && rules.contains("certificate"), "{rules}");
    let ps: Value = serde_json::from_str(&cluster.cli(&["ps", "--json"]).ok()).unwrap();
    assert_eq!(ps[0]["note"], format!("alert: {}", alert.text));
    assert!(cluster.cli(&["show", &id.to_string()]).ok().contains(&alert.text));
    // Beside it nobody calls that work: its ledger is told as soon, and from when it began.
    wait_until("the idle time is in the ledger", PATIENCE, || {
        let goodput = cluster.client().job_goodput(id).unwrap().line.unwrap();
        goodput.goodput.is_some_and(|share| share < 1.0) && goodput.of(TimeClass::Idle) > 0.0
    });

    // A new controller goes on where the old one was, and tells nobody twice.
    cluster.kill_controller();
    cluster.start_controller();
    cluster.wait_ready();
    let same =
        wait_for("it is known again", PATIENCE, || find(&cluster, WatchRule::Idle, &job(id)));
    assert_eq!((same.id, same.fired_at), (alert.id, alert.fired_at));
    device.does(BUSY);
    ends(&cluster, WatchRule::Idle, &job(id));
    let heard = posted.recv_timeout(PATIENCE).expect("the end is told too");
    assert_eq!(
        (heard["event"].as_str(), heard["alert"]["id"].as_u64()),
        (Some("ended"), Some(alert.id))
    );
    assert_eq!(cluster.job(id).row.state, JobState::Running, "nobody asked for more than telling");
    let over = cluster.cli(&["alerts", "--all"]).ok();
    assert!(over.contains("ENDED") && over.contains(&alert.text), "{over}");
    let log = std::fs::read_to_string(cluster.dir().join("audit.log")).unwrap();
    assert!(log.contains("alert idle") && log.contains("alert ended idle"), "{log}");
}

#[test]
fn jobs_are_killed_requeued_or_warned_only_if_somebody_says_so() {
    let cluster = cluster(1);
    apply(&cluster, "[watch.idle]\nfor = \"1h\"\n");
    let device = Device::new(&cluster, "device", IDLE);
    // One asks for it in its own file, the other does not.
    let mut asks = device.spec(1, "sleep 1000");
    asks.watch = serde_json::from_str(r#"{"idle": {"for": "2s", "action": "kill"}}"#).unwrap();
    let (asks, silent) = (cluster.submit(asks), cluster.submit(device.spec(1, "sleep 1000")));
    let row = cluster.wait_end(asks);
    assert_eq!(row.state, JobState::Failed);
    let note = "stopped by the rule 'idle': its GPU does nothing (under 3% busy): n1 GPU ";
    assert!(row.note.starts_with(note), "{}", row.note);
    assert!(cluster.cli(&["show", &asks.to_string()]).ok().contains(note));
    assert_eq!(cluster.job(silent).row.state, JobState::Running);

    // The operator warns: the job finds it in a file, and does something about it.
    let line = "until [ -s \"$TUTTI_WARNINGS\" ]; do sleep 0.1; done; cat \"$TUTTI_WARNINGS\"; \
                sleep 2";
    let warned = cluster.submit(device.spec(1, line));
    cluster.wait_state(warned, JobState::Running);
    apply(&cluster, "[watch.idle]\nfor = \"2s\"\naction = \"warn\"\n");
    assert_eq!(cluster.wait_end(warned).state, JobState::Completed);
    let log = cluster.log_of(warned, &LogQuery::default());
    let text: String = log.iter().map(|line| format!("{}\n", line.text)).collect();
    assert!(
        text.contains("\"rule\":\"idle\"") && text.contains("[tutti: warning (idle):"),
        "{text}"
    );
    assert_eq!(cluster.job(silent).row.state, JobState::Running);

    // And has it started again.
    apply(&cluster, "[watch.idle]\nfor = \"2s\"\naction = \"requeue\"\n");
    wait_until("it is started again", PATIENCE, || cluster.job(silent).row.restarts > 0);
    let before = wait_for("why", PATIENCE, || cluster.job(silent).stopped_before);
    assert!(before.contains("GPU does nothing") && before.ends_with("; started again"), "{before}");
}

/// Makes a step whenever it may; rank 1 takes longer over each if it is told to.
const STEPS: &str = r#"
import os, socket, time
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ['TUTTI_PROGRESS'])
rank, step = int(os.environ['RANK']), 0
while True:
    words = open(os.environ['ORDERS']).read().split()
    if 'halt' not in words:
        step += 1
        s.sendall(b'{"rank": %d, "step": %d}\n' % (rank, step))
    time.sleep(0.6 if rank == 1 and 'slow' in words else 0.1)
"#;

fn stepping(cluster: &Cluster, device: &Device, orders: &Device, ranks: u32) -> TaskId {
    let script = cluster.scratch().join("steps.py");
    std::fs::write(&script, STEPS).unwrap();
    let mut spec = device.spec(1, &format!("exec python3 {}", script.display()));
    spec.ranks_per_node = Some(ranks);
    spec.stall = Some(Stall { after: Some(Span::secs(6)), action: StallAction::Note });
    spec.env.insert("ORDERS".into(), orders.0.display().to_string());
    let id = cluster.submit(spec);
    wait_until("all ranks have a pace", PATIENCE, || {
        let known = cluster.client().progress(id).unwrap().ranks;
        known.len() == ranks as usize && known.iter().all(|rank| rank.pace.is_some())
    });
    id
}

#[test]
fn a_stalled_job_a_hung_one_and_a_slow_rank_are_told_apart() {
    let cluster = cluster(1);
    apply(
        &cluster,
        "[watch.stalled]\nlimit = \"7s\"\nclear = \"1s\"\n[watch.straggler]\nfor = \"2s\"\n\
         clear = \"1s\"\n[watch.hang]\nfor = \"2s\"\nclear = \"1s\"\n",
    );
    let (device, orders) =
        (Device::new(&cluster, "device", BUSY), Device::new(&cluster, "orders", "go"));
    let id = stepping(&cluster, &device, &orders, 2);
    assert_eq!(alerts(&cluster, false), [], "steps are made");

    orders.does("go slow");
    let alert = fires(&cluster, WatchRule::Straggler, &job(id), Span::secs(2));
    assert!(alert.text.starts_with("rank 1 on n1 is "), "{}", alert.text);
    assert_eq!(find(&cluster, WatchRule::Stalled, &job(id)), None);
    cluster.client().cancel(id).unwrap();
    ends(&cluster, WatchRule::Straggler, &job(id));

    orders.does("go");
    let id = stepping(&cluster, &device, &orders, 2);
    orders.does("halt");
    let alert = fires(&cluster, WatchRule::Stalled, &job(id), Span(0));
    assert!(alert.text.starts_with("no step for "), "{}", alert.text);
    assert!(cluster.job(id).row.progress.is_some_and(|p| p.stalled), "the engine says the same");
    assert_eq!(find(&cluster, WatchRule::Hang, &job(id)), None, "its GPU draws power");
    device.does("util=100 sm=5 power=15 traffic=0");
    let alert = fires(&cluster, WatchRule::Hang, &job(id), Span::secs(2));
    assert!(
        alert.text.starts_with("it hangs: 1 GPU looks busy but draws 15% of"),
        "{}",
        alert.text
    );
    device.does(BUSY);
    orders.does("go");
    ends(&cluster, WatchRule::Hang, &job(id));
    ends(&cluster, WatchRule::Stalled, &job(id));
}

#[test]
fn memory_that_fills_and_a_job_that_fails_in_circles() {
    let cluster = cluster(1);
    apply(
        &cluster,
        "[watch.memory]\nlimit = \"80%\"\nwithin = \"15s\"\nfor = \"1s\"\nclear = \"1s\"\n",
    );
    let device = Device::new(&cluster, "device", "memory=40");
    // It takes more and more, and has enough a moment before nothing is left.
    let leaks = "for used in $(seq 45 5 95); do
        printf memory=$used > $TUTTI_SIM_GPU.new; mv $TUTTI_SIM_GPU.new $TUTTI_SIM_GPU; sleep 1
    done; sleep 1000";
    let id = cluster.submit(device.spec(1, leaks));
    let alert = fires(&cluster, WatchRule::Memory, &job(id), Span::secs(1));
    let text = &alert.text;
    assert!(text.starts_with("the memory of n1 GPU 0 is "), "{text}");
    assert!(text.contains("% full and grows: nothing is left in "), "{text}");
    // It stays where it is: that is how many work.
    ends(&cluster, WatchRule::Memory, &job(id));
    cluster.client().cancel(id).unwrap();

    let mut spec = JobSpec::shell("exit 3");
    spec.retry.job_failure = 50;
    spec.watch = serde_json::from_str(r#"{"crash_loop": {"limit": 3, "action": "kill"}}"#).unwrap();
    let id = cluster.submit(spec);
    let alert = fires(&cluster, WatchRule::CrashLoop, &job(id), Span(0));
    assert_eq!(alert.text, "failed 2 times in a row and got nowhere");
    let row = cluster.wait_end(id);
    assert_eq!(row.state, JobState::Failed);
    assert!(row.note.starts_with("stopped by the rule 'crash_loop': failed "), "{}", row.note);
    assert!(row.restarts < 10, "long before its budget was used up: {}", row.restarts);
}

#[test]
fn a_job_that_failed_twice_and_then_works_is_well_again() {
    let cluster = cluster(1);
    apply(&cluster, "[watch.crash_loop]\nclear = \"1s\"\n");
    let (tries, script) = (cluster.scratch().join("tries"), cluster.scratch().join("steps.py"));
    std::fs::write(&script, STEPS).unwrap();
    let line = format!(
        "echo once >> {0}; [ $(wc -l < {0}) -gt 2 ] || exit 3; exec python3 {1}",
        tries.display(),
        script.display()
    );
    let orders = Device::new(&cluster, "orders", "halt");
    let mut spec = JobSpec::shell(line);
    spec.retry.job_failure = 50;
    spec.env.insert("ORDERS".into(), orders.0.display().to_string());
    let id = cluster.submit(spec);
    let alert = fires(&cluster, WatchRule::CrashLoop, &job(id), Span(0));
    assert_eq!(alert.text, "failed 2 times in a row and got nowhere");
    // The third attempt makes steps, which none before it did.
    orders.does("go");
    ends(&cluster, WatchRule::CrashLoop, &job(id));
    assert_eq!(cluster.job(id).row.state, JobState::Running);
}

#[test]
fn nodes_teams_and_the_controller_are_watched_too() {
    let mut cluster = cluster(2);
    let budget = "[teams.vision]\nmembers = [\"*\"]\nbudget = { gpu_hours = 1, per = \"day\" }\n";
    apply(
        &cluster,
        &format!(
            "[watch.host_memory]\nlimit = \"0.1%\"\nfor = \"1s\"\nclear = \"1s\"\n[watch.disk]\n\
             limit = \"100%\"\nfor = \"1s\"\nclear = \"1s\"\n[watch.certificate]\nlimit = \"36500d\"\n\
             clear = \"1s\"\n[watch.budget]\nlimit = \"0.1%\"\nclear = \"1s\"\n[watch.flapping]\n\
             limit = 2\nwithin = \"10m\"\nclear = \"1s\"\n[watch.node_lost]\nfor = \"1s\"\n{budget}"
        ),
    );
    let own = |part: &str| Subject::Controller { part: part.to_owned() };
    fires(&cluster, WatchRule::HostMemory, &node("n1"), Span::secs(1));
    fires(&cluster, WatchRule::Disk, &node("n2"), Span::secs(1));
    let alert = fires(&cluster, WatchRule::Disk, &own("disk"), Span::secs(1));
    assert!(alert.text.contains("of the disk is free for "), "{}", alert.text);
    let alert = fires(&cluster, WatchRule::Certificate, &own("server certificate"), Span(0));
    assert!(alert.text.ends_with("restart the controller to renew it"), "{}", alert.text);

    // 3.6 seconds of a GPU are a thousandth of an hour.
    let team = Subject::Team { name: "vision".into() };
    assert_eq!(find(&cluster, WatchRule::Budget, &team), None);
    let id = cluster.submit(JobSpec { gpus: Some(8), ..JobSpec::shell("sleep 1000") });
    cluster.wait_state(id, JobState::Running);
    let alert = fires(&cluster, WatchRule::Budget, &team, Span(0));
    assert!(alert.text.contains(" of 1 GPU-hour today ("), "{}", alert.text);
    cluster.client().cancel(id).unwrap();

    assert_eq!(find(&cluster, WatchRule::Flapping, &node("n2")), None, "it came once");
    for for_long in [false, true] {
        cluster.kill_agent("n2");
        wait_until("it is away", PATIENCE, || {
            cluster.client().node("n2").is_ok_and(|n| n.state != tutti_model::NodeState::Ready)
        });
        if for_long {
            let alert = fires(&cluster, WatchRule::NodeLost, &node("n2"), Span::secs(1));
            assert!(alert.text.starts_with("is lost for "), "{}", alert.text);
        }
        cluster.start_agent("n2");
        cluster.wait_ready();
    }
    let alert = fires(&cluster, WatchRule::Flapping, &node("n2"), Span(0));
    assert_eq!(alert.text, "was gone 2 times within 10m");
    ends(&cluster, WatchRule::NodeLost, &node("n2"));
    // That the controller leaves is not the nodes' doing.
    for _ in 0..2 {
        cluster.kill_controller();
        cluster.start_controller();
        cluster.wait_ready();
    }
    wait_until("it looks again", PATIENCE, || !alerts(&cluster, false).is_empty());
    assert_eq!(find(&cluster, WatchRule::Flapping, &node("n1")), None);

    // With terms that can be met, all is well.
    let soon = |rule: &str| format!("[watch.{rule}]\nclear = \"1s\"\n");
    let soon: String = ["host_memory", "certificate", "budget", "flapping"].map(soon).concat();
    apply(&cluster, &format!("{soon}{budget}"));
    for (rule, about) in [
        (WatchRule::HostMemory, node("n1")),
        (WatchRule::Certificate, own("server certificate")),
        (WatchRule::Budget, team),
        (WatchRule::Flapping, node("n2")),
    ] {
        ends(&cluster, rule, &about);
    }
}

#[test]
fn work_as_usual_is_quiet_and_bad_terms_are_refused() {
    let cluster = cluster(1);
    let path = cluster.scratch().join("policy.toml");
    let bad = "[watch.disk]\naction = \"kill\"\n\n[watch.idle]\nlimit = 3\n\n[watch.crash_loop]\n\
               action = \"requeue\"\n";
    std::fs::write(&path, bad).unwrap();
    let refused = cluster.cli(&["policy", "apply", path.to_str().unwrap()]).call();
    refused.exited(2).says(&[
        "watch.disk.action",
        "watch.idle.limit: is a share such as 3%",
        "watch.crash_loop.action: a job that fails is started again anyway",
    ]);
    let file = cluster.scratch().join("job.toml");
    std::fs::write(&file, "run = \"true\"\n[watch.idle]\nlimit = \"1h\"\n").unwrap();
    let refused = cluster.cli(&["submit", file.to_str().unwrap()]).call();
    refused.exited(2).says(&["watch.idle.limit", "is a share such as 3%"]);
    std::fs::write(&file, "run = \"true\"\n[watch.idle]\nclear = \"0s\"\n").unwrap();
    let refused = cluster.cli(&["submit", file.to_str().unwrap()]).call();
    refused.exited(2).says(&["watch.idle.clear", "must be at least 1s in a job file"]);

    apply(&cluster, "");
    let id = cluster.submit(JobSpec { gpus: Some(8), ..JobSpec::shell("sleep 3") });
    assert_eq!(cluster.wait_end(id).state, JobState::Completed);
    let normal = |alert: &&Alert| !matches!(alert.rule, WatchRule::Disk | WatchRule::HostMemory);
    let all = alerts(&cluster, true);
    assert_eq!(all.iter().find(normal), None, "only this machine itself may have something");
    let metrics = cluster.cli(&["alerts", "--rules", "--json"]).ok();
    let rules: Value = serde_json::from_str(&metrics).unwrap();
    assert_eq!(rules.as_array().map(Vec::len), Some(WatchRule::ALL.len()));
    assert_eq!((rules[0]["rule"].as_str(), rules[0]["for"].as_str()), (Some("idle"), Some("15m")));
}
