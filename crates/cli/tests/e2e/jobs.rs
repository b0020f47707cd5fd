use std::fs;

use tutti_model::{JobSpec, JobState, NodeState, TaskId};
use tutti_testkit::{Cluster, PATIENCE, Proc, me, wait_for, wait_until};

use crate::{cluster, gang};

fn submit(cluster: &Cluster, args: &[&str]) -> TaskId {
    let words: Vec<&str> = std::iter::once("submit").chain(args.iter().copied()).collect();
    cluster.cli(&words).ok().parse().expect("the id alone is printed")
}

fn wrap(cluster: &Cluster, line: &str, args: &[&str]) -> TaskId {
    submit(cluster, &[&["--wrap", line], args].concat())
}

#[test]
fn an_array_of_500_runs_every_task_once() {
    let cluster = cluster(2);
    let line = "echo $TUTTI_TASK_ID $TUTTI_ARRAY_INDEX >> ran; [ $TUTTI_ARRAY_INDEX != 77 ]";
    let id = wrap(&cluster, line, &["--array", "0-499"]);
    let row = cluster.wait_end(id);
    assert_eq!((row.state, row.exit_code), (JobState::Failed, Some(1)), "{row:?}");
    let counts = row.array.unwrap();
    assert_eq!((counts.completed, counts.failed, counts.pending), (499, 1, 0));
    let text = fs::read_to_string(cluster.scratch().join("ran")).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    let mut wanted: Vec<String> = (0..500).map(|i| format!("{id}_{i} {i}")).collect();
    lines.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
    let one: TaskId = format!("{id}_77").parse().unwrap();
    assert_eq!(cluster.job(one).row.state, JobState::Failed);
    assert!(cluster.cli(&["show", &one.to_string()]).ok().contains("failed"));
}

#[test]
fn dependencies_follow_the_outcome() {
    let cluster = cluster(1);
    let order = "echo $TUTTI_JOB_NAME >> order";
    let go = "while [ ! -e go ]; do sleep 0.05; done";
    let good = wrap(&cluster, &format!("{go}; {order}"), &["-J", "good"]);
    let bad = wrap(&cluster, &format!("{go}; {order}; exit 1"), &["-J", "bad"]);
    let after = |name: &str, on: &str| wrap(&cluster, order, &["-J", name, "--after", on]);
    let second = after("second", &format!("{good}"));
    let third = after("third", &format!("ok:{second},any:{bad}"));
    let mourner = after("mourner", &format!("failed:{bad}"));
    let never = after("never", &format!("ok:{bad}"));
    let heir = after("heir", &format!("any:{never}"));
    let pointless = after("pointless", &format!("failed:{good}"));
    fs::write(cluster.scratch().join("go"), "").unwrap();
    for (id, state) in [
        (good, JobState::Completed),
        (bad, JobState::Failed),
        (second, JobState::Completed),
        (third, JobState::Completed),
        (mourner, JobState::Completed),
        (never, JobState::Cancelled),
        (heir, JobState::Completed),
        (pointless, JobState::Cancelled),
    ] {
        let row = cluster.wait_end(id);
        assert_eq!(row.state, state, "{row:?}");
    }
    let note = cluster.job(never).row.note;
    assert!(note.contains(&bad.to_string()), "the reason names the job: {note}");
    let text = fs::read_to_string(cluster.scratch().join("order")).unwrap();
    let at =
        |name| text.lines().position(|l| l == name).unwrap_or_else(|| panic!("{name}: {text}"));
    assert!(at("good") < at("second") && at("second") < at("third"), "{text}");
    assert!(at("bad") < at("mourner") && at("bad") < at("third"), "{text}");
    assert_eq!(text.lines().count(), 6, "each has run once: {text}");
    // What can never be met is refused at once.
    for on in ["4711".to_owned(), format!("ok:{bad}"), format!("failed:{good}")] {
        let refused = cluster.cli(&["submit", "--wrap", "true", "--after", &on]).call();
        assert_ne!(refused.code, 0, "{refused}");
        refused.says(&[on.rsplit(':').next().unwrap(), "after"]);
    }
}

#[test]
fn held_jobs_wait_and_drained_nodes_rest() {
    let cluster = cluster(2);
    let held = wrap(&cluster, "true", &["--hold"]);
    let free = wrap(&cluster, "true", &[]);
    assert_eq!(cluster.wait_end(free).state, JobState::Completed);
    assert_eq!(cluster.job(held).row.state, JobState::Pending);
    let ps = cluster.cli(&["ps"]).ok();
    assert!(ps.contains("held"), "the verdict is shown: {ps}");
    cluster.cli(&["release", &held.to_string()]).ok();
    assert_eq!(cluster.wait_end(held).state, JobState::Completed);

    let stays = cluster.submit(gang(2, "exec sleep 600"));
    cluster.wait_state(stays, JobState::Running);
    cluster.cli(&["drain", "n1", "--reason", "new fan"]).ok();
    assert!(cluster.cli(&["nodes"]).ok().contains("new fan"));
    for _ in 0..4 {
        let row = cluster.wait_end(wrap(&cluster, "true", &["-G", "1"]));
        assert_eq!(row.node_names, ["n2"], "nothing new on a draining node");
    }
    assert_eq!(cluster.job(stays).row.state, JobState::Running, "what runs goes on");
    cluster.cli(&["cancel", &stays.to_string()]).ok();
    cluster.wait_node("n1", NodeState::Drained);
    let both = wrap(&cluster, "true", &["-N", "2"]);
    let why = cluster.cli(&["why", &both.to_string()]).ok();
    assert!(why.contains("drain"), "{why}");
    cluster.cli(&["resume", "n1"]).ok();
    assert_eq!(cluster.wait_end(both).state, JobState::Completed);
}

#[test]
fn cancel_gives_its_grace_and_then_kills() {
    let cluster = cluster(1);
    let polite = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    let ready = |id: TaskId| {
        let cli = cluster.cli(&["logs", "-f", &id.to_string()]);
        assert_eq!(cli.spawn().next_line(), "ready");
    };
    let (a, b) =
        (wrap(&cluster, polite, &["--grace", "60s"]), wrap(&cluster, stubborn, &["--grace", "1s"]));
    ready(a);
    ready(b);
    let pending = wrap(&cluster, "true", &["--hold"]);
    let ids = [a, b, pending].map(|id| id.to_string());
    cluster.cli(&["cancel", &ids[0], &ids[1], &ids[2]]).ok();
    let rows = [a, b, pending].map(|id| cluster.wait_end(id));
    assert!(rows.iter().all(|r| r.state == JobState::Cancelled), "{rows:?}");
    assert_eq!(rows[1].exit_code, Some(137), "killed after its grace: {:?}", rows[1]);
    assert_eq!(rows[2].exit_code, None, "it never ran");
    assert_eq!(cluster.cli(&["logs", &ids[0]]).ok(), "ready\nsaved");
    wait_until("nothing is left", PATIENCE, || cluster.processes_on("n1").is_empty());
}

#[test]
fn a_job_beyond_its_time_is_stopped() {
    let cluster = cluster(1);
    let line = "sleep 600 & echo $! > child; wait";
    let id = wrap(&cluster, line, &["--time", "2s", "--grace", "1s"]);
    let row = cluster.wait_end(id);
    assert_eq!(row.state, JobState::Failed, "{row:?}");
    assert!(row.note.contains("time"), "{}", row.note);
    let ran = row.ended_at.unwrap().since(row.started_at.unwrap());
    assert!(ran.0 >= 2000, "it had its time: {ran}");
    let pid = fs::read_to_string(cluster.scratch().join("child")).unwrap();
    assert_eq!(Proc::of(pid.trim().parse().unwrap()), None);
}

#[test]
fn logs_are_followed_from_elsewhere_while_the_job_runs() {
    let cluster = cluster(2);
    let go = cluster.scratch().join("go");
    let line = format!(
        "echo one from $RANK; while [ ! -e {} ]; do sleep 0.05; done; echo two from $RANK",
        go.display()
    );
    let id = wrap(&cluster, &line, &["-N", "2"]).to_string();
    let mut all = cluster.cli(&["logs", "-f", &id]).spawn();
    let mut second = cluster.cli(&["logs", "-f", "--rank", "1", &id]).spawn();
    let mut firsts = [all.next_line(), all.next_line()];
    firsts.sort();
    assert_eq!(firsts, ["[0] one from 0", "[1] one from 1"]);
    assert_eq!(second.next_line(), "one from 1");
    fs::write(&go, "").unwrap();
    assert_eq!(second.next_line(), "two from 1");
    second.finish().exited(0);
    let done = all.finish();
    assert!(done.out.contains("[0] two from 0") && done.out.contains("[1] two from 1"), "{done}");
    // Afterwards too, and the end alone.
    let tail = cluster.cli(&["logs", "--tail", "1", "--rank", "0", &id]).ok();
    assert_eq!(tail, "two from 0");
}

#[test]
fn exec_runs_inside_a_running_job() {
    let cluster = cluster(2);
    let id = wrap(&cluster, "exec sleep 600", &["-N", "2", "-G", "2", "--env", "MINE=yes"]);
    let node = cluster.wait_state(id, JobState::Running).parts[1].node.clone();
    let text = id.to_string();
    let script =
        "read x; echo $x $MINE $TUTTI_NODE $RANK $CUDA_VISIBLE_DEVICES; echo bad >&2; exit 5";
    let done = cluster
        .cli(&["exec", "--rank", "1", &text, "--", "sh", "-c", script])
        .stdin(b"hello\n")
        .call();
    assert_eq!(done.out, format!("hello yes {node} 1 0,1\n"), "{done}");
    assert_eq!(done.err, "bad\n", "{done}");
    done.exited(5);
    cluster.cli(&["cancel", &text]).ok();
    cluster.wait_end(id);
    let late = cluster.cli(&["exec", &text, "--", "true"]).call();
    assert_ne!(late.code, 0, "{late}");
    assert!(!late.err.is_empty());
}

#[test]
fn ps_json_has_the_promised_fields() {
    let cluster = cluster(1);
    let done = wrap(&cluster, "exit 3", &["--team", "red", "-J", "short"]);
    cluster.wait_end(done);
    let held = wrap(&cluster, "true", &["--hold", "-N", "1", "-G", "2"]);
    let text = cluster.cli(&["ps", "--json", "--all"]).ok();
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    let fields = "id name user team state nodes gpus submitted_at started_at ended_at exit_code \
                  restarts verdict";
    for row in rows {
        for field in fields.split_whitespace() {
            assert!(row.get(field).is_some(), "{field} is missing: {row}");
        }
    }
    let by_id = |id: TaskId| rows.iter().find(|r| r["id"] == id.to_string()).unwrap();
    let (ended, waits) = (by_id(done), by_id(held));
    assert_eq!((&ended["state"], &ended["exit_code"]), (&"failed".into(), &3.into()));
    assert_eq!((&ended["team"], &ended["name"]), (&"red".into(), &"short".into()));
    assert_eq!((&waits["state"], &waits["gpus"]), (&"pending".into(), &2.into()));
    assert!(waits["started_at"].is_null() && !waits["verdict"].is_null(), "{waits}");
    let object: serde_json::Value =
        serde_json::from_str(&cluster.cli(&["submit", "--json", "--wrap", "true"]).ok()).unwrap();
    assert!(object["id"].is_string(), "{object}");
}

#[test]
fn job_files_run_in_every_format() {
    let cluster = cluster(2);
    let files = [
        ("a.toml", "name = 'toml'\nnodes = 2\nrun = 'echo $RANK > out.toml.$RANK'\n"),
        ("b.yaml", "name: yaml\nnodes: 2\nrun: echo $RANK > out.yaml.$RANK\n"),
        ("c.json", r#"{"name": "json", "nodes": 2, "run": "echo $RANK > out.json.$RANK"}"#),
        ("d.sh", "#!/bin/sh\n#SBATCH --job-name=sh --nodes=2\necho $RANK > out.sh.$RANK\n"),
    ];
    for (name, text) in files {
        fs::write(cluster.scratch().join(name), text).unwrap();
        let id = submit(&cluster, &[name]);
        let row = cluster.wait_end(id);
        let kind = name.rsplit_once('.').unwrap().1;
        assert_eq!((row.state, row.name.as_str()), (JobState::Completed, kind), "{row:?}");
        for rank in 0..2 {
            let out = cluster.scratch().join(format!("out.{kind}.{rank}"));
            wait_for(&format!("{}", out.display()), PATIENCE, || fs::read_to_string(&out).ok());
        }
    }
    cluster.cli(&["submit", "--wait", "--wrap", "exit 4"]).call().exited(4);
}

/// What became of an array is told task by task: rows, failures with their codes, output.
#[test]
fn tasks_of_an_array_are_listed_named_and_heard() {
    let cluster = cluster(1);
    let line = "echo out of $TUTTI_ARRAY_INDEX; [ $TUTTI_ARRAY_INDEX != 2 ] || exit 7";
    let spec = JobSpec { array: Some("0-3".parse().unwrap()), ..JobSpec::shell(line) };
    let id = cluster.submit(spec);
    cluster.wait_end(id);
    let id = id.to_string();
    let rows = cluster.cli(&["ps", "--tasks", &id]).ok();
    let named = |i: u32| rows.lines().any(|l| l.trim_start().starts_with(&format!("{id}_{i} ")));
    assert!((0..4).all(named), "{rows}");
    let failed = cluster.cli(&["ps", "--tasks", &id, "--state", "failed", "--json"]).ok();
    let failed: serde_json::Value = serde_json::from_str(&failed).unwrap();
    assert_eq!((failed.as_array().unwrap().len(), &failed[0]["exit_code"]), (1, &7.into()));
    let shown = cluster.cli(&["show", &id]).ok();
    let want = format!("failed     2 (exit 7); `tutti ps --tasks {id} --state failed` lists all");
    assert!(shown.contains(&want), "{shown}");
    let logs = cluster.cli(&["logs", &id]).ok();
    assert_eq!(logs, (0..4).map(|i| format!("[{i}] out of {i}")).collect::<Vec<_>>().join("\n"));
    let mut followed: Vec<_> =
        cluster.cli(&["logs", "-f", &id]).ok().lines().map(str::to_owned).collect();
    followed.sort();
    assert_eq!(followed.join("\n"), logs);
}

#[test]
fn following_a_job_that_waits_says_why() {
    let cluster = cluster(1);
    let spec = JobSpec { hold: true, ..JobSpec::shell("echo at last") };
    let id = cluster.submit(spec).to_string();
    let mut follow = cluster.cli(&["logs", "-f", &id]).spawn();
    let said = follow.next_note();
    assert!(said.starts_with(&format!("tutti: job {id} waits: ")), "{said}");
    assert!(said.contains("held"), "{said}");
    cluster.cli(&["release", &id]).ok();
    assert_eq!(follow.next_line(), "at last");
    follow.finish().exited(0);
}

#[test]
fn a_job_that_waits_is_updated_and_one_that_runs_only_in_part() {
    let cluster = cluster(1);
    let id = wrap(&cluster, "sleep 600", &["--hold", "-G", "1"]).to_string();
    let update = |args: &[&str]| cluster.cli(&[&["update", &id], args].concat()).call();
    let done = update(&["--name", "better", "--time", "1h", "--priority", "low", "-G", "2"]);
    done.exited(0).says(&[&format!("updated {id}: name better, priority low, time 1h")]);
    let shown = cluster.cli(&["show", &id]).ok();
    for want in ["better", "priority   low", "2 GPUs", "at most 1h"] {
        assert!(shown.contains(want), "{want} in\n{shown}");
    }
    update(&["--release"]).exited(0);
    cluster.wait_state(id.parse().unwrap(), JobState::Running);
    let refused = update(&["-G", "1"]);
    refused.exited(1).says(&["gpus_per_node of job", "can't change any more: it runs"]);
    update(&["--time", "30m"]).exited(0);
    update(&["--after", &id]).exited(1);
    cluster.cli(&["update", "99", "--hold"]).call().exited(3);
    let audit = fs::read_to_string(cluster.dir().join("audit.log")).unwrap();
    assert!(audit.contains("/update"), "{audit}");
    update(&["--time", "1ms"]).exited(2).says(&["it has run for"]);
    // The new limit is what stops it.
    update(&["--time", "5s"]).exited(0);
    let row = cluster.wait_end(id.parse().unwrap());
    assert_eq!(row.state, JobState::Failed, "{row:?}");
    assert!(row.note.contains("time limit"), "{row:?}");
}

#[test]
fn jobs_are_cancelled_by_what_they_are() {
    let cluster = cluster(1);
    let held = |name: &str| wrap(&cluster, "sleep 600", &["--hold", "--name", name]).to_string();
    let (a, b, c) = (held("sweep-1"), held("sweep-2"), held("other"));
    let running = wrap(&cluster, "sleep 600", &["--name", "sweep-3"]);
    cluster.wait_state(running, JobState::Running);
    let said = cluster.cli(&["cancel", "--name", "sweep", "--state", "pending"]).ok();
    let want: Vec<String> = [&a, &b]
        .iter()
        .zip(1..)
        .map(|(id, i)| format!("cancelled {id} (sweep-{i} of {}, pending)", me()))
        .collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), want);
    assert_eq!(cluster.job(running).row.state, JobState::Running);
    assert_eq!(cluster.job(c.parse().unwrap()).row.state, JobState::Pending);
    cluster
        .cli(&["cancel", "--user", "nobody-has-this-name"])
        .call()
        .exited(0)
        .says(&["no job fits"]);
    cluster.cli(&["cancel", "--team", "default", "--yes"]).ok();
    cluster.wait_state(running, JobState::Cancelled);
    cluster.wait_state(c.parse().unwrap(), JobState::Cancelled);
}

#[test]
fn a_signal_is_sent_and_nothing_else() {
    let cluster = cluster(1);
    let line = "trap 'echo heard' USR1; echo ready; while :; do sleep 0.1; done";
    let id = wrap(&cluster, line, &[]).to_string();
    let mut follow = cluster.cli(&["logs", "-f", &id]).spawn();
    assert_eq!(follow.next_line(), "ready");
    let sent = cluster.cli(&["cancel", "--signal", "USR1", &id]).call();
    sent.exited(0).says(&[&format!("sent USR1 to {id}")]);
    assert_eq!(follow.next_line(), "heard");
    assert_eq!(cluster.job(id.parse().unwrap()).row.state, JobState::Running);
    let refused = cluster.cli(&["cancel", "--signal", "USR2", &id]).call();
    refused.exited(1).says(&["has a handler for SIGUSR2"]);
    cluster.cli(&["cancel", "--signal", "FOO", &id]).call().exited(2).says(&["'FOO' is no signal"]);
    // Nobody ignores this one.
    cluster.cli(&["cancel", "--now", &id]).ok();
    let row = cluster.wait_end(id.parse().unwrap());
    assert_eq!((row.state, row.exit_code), (JobState::Cancelled, Some(137)));
}

#[test]
fn wait_ends_with_the_jobs_and_their_code() {
    let cluster = cluster(1);
    let fine = wrap(&cluster, "true", &[]).to_string();
    let bad = wrap(&cluster, "exit 7", &[]).to_string();
    let long = wrap(&cluster, "sleep 600", &[]).to_string();
    let done = cluster.cli(&["wait", &fine, &bad]).call();
    done.exited(7);
    assert!(done.out.contains(&format!("{bad} failed (exit 7)")), "{done}");
    cluster.cli(&["wait", &fine]).call().exited(0);
    cluster.cli(&["wait", "--any", &long, &bad]).call().exited(7);
    let late = cluster.cli(&["wait", "--timeout", "1s", &long]).call();
    late.exited(124).says(&["has not ended within 1s"]);
    cluster.cli(&["wait", &fine, "99"]).call().exited(3);
    let rows = cluster.cli(&["wait", "--json", &fine]).ok();
    let rows: serde_json::Value = serde_json::from_str(&rows).unwrap();
    assert_eq!(rows[0]["state"], "completed");
    cluster.cli(&["cancel", &long]).ok();
    cluster.cli(&["wait", &long]).call().exited(143);
}

#[test]
fn a_node_is_shown_with_since_when_and_what_runs() {
    let cluster = cluster(1);
    let id = wrap(&cluster, "sleep 600", &["-G", "2", "--name", "train"]);
    cluster.wait_state(id, JobState::Running);
    let shown = cluster.cli(&["show", "n1"]).ok();
    assert!(shown.starts_with("node n1  ready since "), "{shown}");
    for want in ["2 in use: ", "agent      version ", "train", "1 job"] {
        assert!(shown.contains(want), "{want} in\n{shown}");
    }
    cluster.cli(&["drain", "n1", "--reason", "new fans"]).ok();
    let shown = cluster.cli(&["show", "n1"]).ok();
    assert!(shown.starts_with("node n1  draining since "), "{shown}");
    assert!(shown.contains(": new fans"), "{shown}");
    cluster.cli(&["show", "n9"]).call().exited(3).says(&["there is no node 'n9'"]);
    let json: serde_json::Value =
        serde_json::from_str(&cluster.cli(&["show", "n1", "--json"]).ok()).unwrap();
    assert!(json["since"].is_u64() && json["drain_reason"] == "new fans", "{json}");
}
