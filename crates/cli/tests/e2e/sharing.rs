use std::fs;
use std::path::PathBuf;

use tutti_model::{JobState, TaskId};
use tutti_testkit::{Cli, Cluster, ClusterOptions, PATIENCE, wait_for, wait_until};

use crate::TUTTI;

fn of(nodes: usize, gpus_per_node: u16) -> Cluster {
    Cluster::with(TUTTI, ClusterOptions { nodes, gpus_per_node, ..ClusterOptions::default() })
}

fn write(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.scratch().join(name);
    fs::write(&path, text).unwrap();
    path
}

fn apply(cluster: &Cluster, text: &str) -> String {
    let path = write(cluster, "policy.toml", text);
    cluster.cli(&["policy", "apply", path.to_str().unwrap()]).ok()
}

fn submit(cluster: &Cluster, args: &[&str]) -> TaskId {
    cluster.cli(&[&["submit"], args].concat()).ok().parse().expect("the id alone is printed")
}

fn lines(cluster: &Cluster, name: &str) -> usize {
    fs::read_to_string(cluster.scratch().join(name)).unwrap_or_default().lines().count()
}

fn json(cluster: &Cluster, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&cluster.cli(args).ok()).unwrap()
}

/// A column of `tutti quota --json`.
fn quota(cluster: &Cluster, team: &str, column: &str) -> u64 {
    let rows = json(cluster, &["quota", "--json"]);
    let row = rows.as_array().unwrap().iter().find(|r| r["team"] == team);
    row.unwrap_or_else(|| panic!("{team} in {rows}"))[column].as_u64().unwrap()
}

const TEAMS: &str = "[teams.lender]\nguarantee = 4\nmembers = ['*']\n\
    [teams.borrower]\nguarantee = 4\nmembers = ['*']\n";

#[test]
fn a_guarantee_takes_back_what_was_lent_and_nothing_is_lost() {
    let cluster = of(2, 4);
    let said = apply(&cluster, TEAMS);
    assert!(said.contains("+ teams.borrower = {") && said.contains("+ teams.lender"), "{said}");
    assert_eq!(apply(&cluster, TEAMS), "nothing changed");
    let job = "name = 'training'\nteam = 'borrower'\nnodes = 2\ngpus_per_node = 4\n\
        run = '''trap 'echo saved >> saved; exit 0' USR1; echo start >> starts; \
        while :; do sleep 0.05; done'''\n\
        [checkpoint]\ndir = '/tmp'\nsignal = 'USR1'\ngrace = '30s'\n\
        [preempt]\nmode = 'checkpoint'\n";
    let job = write(&cluster, "job.toml", job);
    let borrower = submit(&cluster, &[job.to_str().unwrap()]);
    wait_until("both ranks listen", PATIENCE, || lines(&cluster, "starts") == 2);
    cluster.wait_state(borrower, JobState::Running);
    assert_eq!(quota(&cluster, "borrower", "used"), 8000);
    assert_eq!(quota(&cluster, "borrower", "borrowed"), 4000);
    assert_eq!(quota(&cluster, "lender", "lent"), 4000);
    let table = cluster.cli(&["quota"]).ok();
    assert!(table.contains("BORROWED") && table.contains("lender"), "{table}");

    let owner = submit(&cluster, &["--wrap", "exec sleep 600", "-G", "4", "--team", "lender"]);
    cluster.wait_state(owner, JobState::Running);
    // The owner needs one of the two nodes, and may have it before the other is left.
    wait_until("both ranks were asked to save, and did", PATIENCE, || {
        lines(&cluster, "saved") == 2
    });
    let victim = cluster.wait_state(borrower, JobState::Pending);
    assert_eq!(victim.restarts_by_cause.preemption, 1);
    assert_eq!(quota(&cluster, "lender", "lent"), 0);
    let why = cluster.cli(&["why", &borrower.to_string()]).ok();
    assert!(why.contains("needs 2 nodes with 4 free GPUs"), "{why}");

    assert!(why.contains(&format!("job {owner} (")), "who has its GPUs: {why}");

    cluster.cli(&["cancel", &owner.to_string()]).ok();
    wait_until("it goes on", PATIENCE, || lines(&cluster, "starts") == 4);
    cluster.wait_state(borrower, JobState::Running);
    let shown = cluster.cli(&["show", &borrower.to_string()]).ok();
    assert!(shown.contains("1 after preemption") && shown.contains("team borrower"), "{shown}");
}

#[test]
fn an_elastic_job_shrinks_before_anybody_is_stopped() {
    let cluster = of(2, 4);
    apply(&cluster, TEAMS);
    let run = "trap 'exit 0' TERM; echo $WORLD_SIZE >> sizes; while :; do sleep 0.05; done";
    let elastic =
        submit(&cluster, &["--wrap", run, "-G", "4", "--elastic", "1-2", "--team", "borrower"]);
    wait_until("it runs on both nodes", PATIENCE, || lines(&cluster, "sizes") == 2);
    cluster.wait_state(elastic, JobState::Running);
    let owner = submit(&cluster, &["--wrap", "exec sleep 600", "-G", "4", "--team", "lender"]);
    cluster.wait_state(owner, JobState::Running);
    wait_until("it goes on with one", PATIENCE, || lines(&cluster, "sizes") == 3);
    let job = cluster.wait_state(elastic, JobState::Running);
    assert_eq!((job.row.nodes, job.restarts_by_cause.preemption), (1, 0));
    let sizes = fs::read_to_string(cluster.scratch().join("sizes")).unwrap();
    assert_eq!(sizes.lines().collect::<Vec<_>>(), ["2", "2", "1"]);
}

#[test]
fn a_bad_policy_leaves_the_running_one_alone() {
    let cluster = of(1, 4);
    apply(&cluster, TEAMS);
    let running = || json(&cluster, &["policy", "show", "--json"]);
    let before = running();
    let bad = "[teams.lender]\nguarantee = 4\n[teams.borrower]\nparent = 'lendr'\nweigth = 2\n";
    let bad = write(&cluster, "bad.toml", bad);
    let bad = bad.to_str().unwrap();
    for verb in ["check", "apply"] {
        let refused = cluster.cli(&["policy", verb, bad]).call();
        refused.exited(2).says(&["bad.toml:5:1", "weigth", "did you mean 'weight'?"]);
    }
    fs::write(bad, "[teams.borrower]\nparent = 'lendr'\n[teams.x]\nguarantee = 8\nlimit = 4\n")
        .unwrap();
    let refused = cluster.cli(&["policy", "apply", bad]).call();
    refused
        .exited(2)
        .says(&["bad.toml:2:10: teams.borrower.parent", "bad.toml:5:9: teams.x.limit"]);
    fs::write(bad, "[racks.r1]\nnodes = ['n1']\n[racks.r2]\nnodes = ['n[1-2]']\n").unwrap();
    let refused = cluster.cli(&["policy", "apply", "--topology", bad]).call();
    refused.exited(2).says(&["bad.toml:4:9: racks.r2.nodes", "n1 has a place already"]);
    assert_eq!(running(), before);

    // What is shown can be checked and applied again.
    let file = cluster.cli(&["policy", "show"]).ok();
    cluster.cli(&["policy", "check", "-"]).stdin(file.as_bytes()).ok();
    let again = cluster.cli(&["policy", "apply", "-"]).stdin(file.as_bytes()).ok();
    assert_eq!(again, "nothing changed");

    // Not for everybody; and it does not come and go with the controller.
    let token = cluster.cli(&["token", "create", "--user", "ada", "--role", "user"]).ok();
    let as_ada = |args: &[&str]| cluster.cli(args).env("TUTTI_TOKEN", &token).call();
    as_ada(&["policy", "show"]).exited(0);
    let good = cluster.scratch().join("policy.toml");
    as_ada(&["policy", "apply", good.to_str().unwrap()]).exited(4);
    let dir = cluster.scratch().join("other");
    fs::write(bad, "[teams.a]\nparent = 'b'\n").unwrap();
    let start = ["controller", "--listen", "127.0.0.1:0", "--policy", bad, "--data-dir"];
    let refused = Cli::new(cluster.binary(), &[&start[..], &[dir.to_str().unwrap()]].concat());
    refused.call().exited(2).says(&["bad.toml:2:10: teams.a.parent"]);
}

#[test]
fn four_jobs_share_one_gpu() {
    let cluster = of(1, 1);
    let run = "echo $CUDA_VISIBLE_DEVICES >> seen; while [ ! -e go ]; do sleep 0.05; done";
    let quarter = ["--wrap", run, "--gpu-share", "0.25"];
    let jobs: Vec<TaskId> = (0..4).map(|_| submit(&cluster, &quarter)).collect();
    for id in &jobs {
        cluster.wait_state(*id, JobState::Running);
    }
    wait_until("all four see a GPU", PATIENCE, || lines(&cluster, "seen") == 4);
    let seen = fs::read_to_string(cluster.scratch().join("seen")).unwrap();
    assert!(seen.lines().all(|l| l == "0"), "{seen}");
    let fifth = submit(&cluster, &quarter);
    let verdict = wait_for("it is judged", PATIENCE, || cluster.job(fifth).row.verdict);
    assert!(matches!(verdict, tutti_model::Verdict::Busy(_)), "{verdict:?}");
    let nodes = cluster.cli(&["nodes"]).ok();
    assert!(nodes.contains("GPU 0: 1 by 4 jobs"), "{nodes}");
    let shown = cluster.cli(&["show", &jobs[0].to_string()]).ok();
    assert!(shown.contains("0.25 of 0"), "{shown}");
    let listed = cluster.cli(&["ps"]).ok();
    assert_eq!(listed.matches(" 1  0.25 ").count(), 5, "{listed}");
    fs::write(cluster.scratch().join("go"), "").unwrap();
    for id in jobs.into_iter().chain([fifth]) {
        assert_eq!(cluster.wait_end(id).state, JobState::Completed);
    }
}

#[test]
fn an_exclusive_job_is_alone() {
    let cluster = of(1, 8);
    let alone = submit(&cluster, &["--wrap", "exec sleep 600", "-G", "1", "--exclusive"]);
    cluster.wait_state(alone, JobState::Running);
    let other = submit(&cluster, &["--wrap", "true", "-G", "1"]);
    wait_for("it is judged", PATIENCE, || cluster.job(other).row.verdict);
    assert_eq!(cluster.job(other).row.state, JobState::Pending);
    let nodes = cluster.cli(&["nodes"]).ok();
    assert!(nodes.contains(&format!("all for job {alone}")), "{nodes}");
    cluster.cli(&["cancel", &alone.to_string()]).ok();
    assert_eq!(cluster.wait_end(other).state, JobState::Completed);
}

/// A file of topology is put into whatever runs, so a whole policy that comes meanwhile stays.
#[test]
fn who_applies_topology_overwrites_nobody() {
    let cluster = of(1, 4);
    let racks = write(&cluster, "racks.toml", "[racks.r1]\nnodes = ['n1']\n");
    let apply = |args: &[&str]| cluster.cli(&[&["policy", "apply"], args].concat()).ok();
    for round in 0..10 {
        let whole = format!("[teams.t{round}]\nguarantee = 1\n");
        let whole = write(&cluster, "whole.toml", &whole);
        std::thread::scope(|scope| {
            scope.spawn(|| apply(&[whole.to_str().unwrap()]));
            scope.spawn(|| apply(&["--topology", racks.to_str().unwrap()]));
        });
        let teams = json(&cluster, &["policy", "show", "--json"])["teams"].clone();
        assert!(teams.get(format!("t{round}")).is_some(), "{teams}");
    }
}

#[test]
fn a_gang_stays_inside_its_rack() {
    let cluster = of(4, 2);
    let racks = write(
        &cluster,
        "racks.toml",
        "[racks.r1]\nnodes = ['n[1-2]']\n[racks.r2]\nnodes = ['n[3-4]']\n",
    );
    let said = cluster.cli(&["policy", "apply", "--topology", racks.to_str().unwrap()]).ok();
    assert!(said.contains("+ topology.racks.r1 = { nodes = [\"n[1-2]\"] }"), "{said}");
    let nodes = cluster.cli(&["nodes"]).ok();
    assert!(nodes.contains("PLACE") && nodes.contains("r2"), "{nodes}");
    for node in ["n2", "n3"] {
        cluster.cli(&["drain", node]).ok();
    }
    let gang = ["--wrap", "exec sleep 600", "-N", "2", "-G", "2"];
    let rack = submit(&cluster, &[&gang[..], &["--topology", "rack"]].concat());
    let why = wait_for("it is judged", PATIENCE, || {
        let why = cluster.cli(&["why", &rack.to_string()]).ok();
        why.contains("in one rack").then_some(why)
    });
    assert!(why.contains("needs 2 nodes with 2 free GPUs in one rack"), "{why}");
    let anywhere = submit(&cluster, &gang);
    let job = cluster.wait_state(anywhere, JobState::Running);
    assert_eq!(job.row.node_names.len(), 2);
    cluster.cli(&["cancel", &anywhere.to_string()]).ok();
    cluster.wait_end(anywhere);
    cluster.cli(&["resume", "n2"]).ok();
    let job = cluster.wait_state(rack, JobState::Running);
    assert_eq!(job.row.node_names, ["n1", "n2"]);
}

#[test]
fn a_limit_is_a_limit_and_a_class_goes_first() {
    let cluster = of(1, 4);
    apply(&cluster, "[teams.small]\nlimit = 2\nmembers = ['*']\n[teams.large]\n");
    let hold = ["--wrap", "exec sleep 600", "--team", "small"];
    let first = "team = 'small'\ngpus_per_node = 2\nrun = 'exec sleep 600'\n\
        [preempt]\nmode = 'requeue'\n";
    let first = write(&cluster, "first.toml", first);
    let first = submit(&cluster, &[first.to_str().unwrap()]);
    cluster.wait_state(first, JobState::Running);
    let second = submit(&cluster, &[&hold[..], &["-G", "1"]].concat());
    let why = wait_for("it is judged", PATIENCE, || {
        let why = cluster.cli(&["why", &second.to_string()]).ok();
        why.contains("team small").then_some(why)
    });
    assert!(why.contains("team small may have 2 GPUs at once, has 2"), "{why}");
    assert!(cluster.cli(&["ps"]).ok().contains("small"));
    let never = cluster.cli(&["submit", "--wrap", "true", "--team", "small", "-G", "3"]).call();
    never.exited(5).says(&["team small may have 2 at once", "`tutti quota`"]);
    cluster.cli(&["submit", "--wrap", "true", "--team", "nobody"]).call().exited(2);
    cluster.cli(&["submit", "--wrap", "true", "--class", "nope"]).call().exited(2);

    let urgent = ["--class", "urgent", "--team", "large"];
    let urgent =
        submit(&cluster, &[&["--wrap", "exec sleep 600", "-G", "4"], &urgent[..]].concat());
    cluster.wait_state(urgent, JobState::Running);
    assert_eq!(cluster.job(first).restarts_by_cause.preemption, 1);
    assert!(cluster.cli(&["ps"]).ok().contains("CLASS"));
}

/// The steps of somebody who was told "too few GPUs free" for ten minutes, and of an operator who wants
/// to know what a policy does before it does it.
#[test]
fn why_names_every_blocker_and_a_dry_run_who_would_be_stopped() {
    let cluster = of(1, 4);
    let teams = "default_time = '2h'\n[preemption]\nnot_again_within = '10m'\n\
        [teams.own]\nmembers = ['*']\n[teams.lent]\nmembers = ['*']\n";
    apply(&cluster, teams);
    let borrower = submit(&cluster, &["--wrap", "exec sleep 600", "-G", "4", "--team", "lent"]);
    cluster.wait_state(borrower, JobState::Running);
    let owner = submit(&cluster, &["--wrap", "exec sleep 600", "-G", "4", "--team", "own"]);
    let show = cluster.cli(&["show", &owner.to_string()]).ok();
    assert!(show.contains("at most 2h (the default of the cluster)"), "{show}");

    let promise = teams.replacen("[teams.own]", "[teams.own]\nguarantee = 4", 1);
    let path = write(&cluster, "promise.toml", &promise);
    let path = path.to_str().unwrap();
    let said = cluster.cli(&["policy", "apply", path, "--dry-run"]).ok();
    let stopped =
        said.lines().find(|l| l.starts_with("stopped")).unwrap_or_else(|| panic!("{said}"));
    assert!(stopped.contains(&borrower.to_string()), "{said}");
    assert!(stopped.ends_with(&format!("for job {owner}")), "{said}");
    assert!(
        said.contains("~ teams.own.guarantee") || said.contains("+ teams.own.guarantee"),
        "{said}"
    );
    let data = json(&cluster, &["policy", "apply", path, "--dry-run", "--json"]);
    assert_eq!(data["preempted"][0]["task"], borrower.to_string(), "{data}");
    assert_eq!(cluster.job(borrower).row.state, JobState::Running, "nothing was changed");

    // It does what was said: the owner has its GPUs, the borrower waits, and is preempted no more.
    apply(&cluster, &promise);
    cluster.wait_state(owner, JobState::Running);
    cluster.cli(&["cancel", &owner.to_string()]).ok();
    cluster.wait_state(borrower, JobState::Running);
    let again = submit(&cluster, &["--wrap", "exec sleep 600", "-G", "4", "--team", "own"]);
    let told = |args: &[&str], word: &str| {
        wait_until(word, PATIENCE, || cluster.cli(args).ok().contains(word));
    };
    let left_alone =
        format!("job {borrower} has 4 GPUs that it may take, but was preempted before");
    told(&["why", &again.to_string()], &left_alone);
    told(&["ps"], &format!("also job {borrower} was preempted before"));

    let reserved = promise.clone()
        + "[[reservations]]\nname = 'power work'\nnodes = ['n1']\nfrom = 2000-01-01T00:00:00Z\n\
           until = 2100-01-01T00:00:00Z\n";
    apply(&cluster, &reserved);
    for args in [&["why", &again.to_string()][..], &["ps"], &["nodes"]] {
        told(args, "maintenance 'power work'");
    }
    let list = cluster.cli(&["reservations"]).ok();
    assert!(list.contains("power work") && list.contains(&format!("job {borrower} (")), "{list}");
    let rows = json(&cluster, &["reservations", "--json"]);
    assert_eq!(rows[0]["state"], "now", "{rows}");

    let beyond = promise.replacen("guarantee = 4", "guarantee = 4000", 1);
    let path = write(&cluster, "beyond.toml", &beyond);
    let out = cluster.cli(&["policy", "apply", path.to_str().unwrap()]).call();
    assert!(out.err.contains("warning: teams.own.guarantee: promises 4,000 GPUs"), "{out:?}");
}
