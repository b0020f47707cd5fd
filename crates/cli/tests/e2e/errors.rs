use std::fs;
use std::net::TcpListener;

use tutti_testkit::{Cli, Cluster, ClusterOptions};

use crate::{TUTTI, cluster};

#[test]
fn a_broken_job_file_is_named_by_line_column_and_key() {
    let cluster = cluster(1);
    for (name, text, place, words) in [
        ("a.toml", "name = 'x'\nnodes = 'two'\nrun = 'true'\n", ":2:", "nodes"),
        ("b.toml", "name = 'x'\nnods = 2\nrun = 'true'\n", ":2:1", "nods"),
        ("c.toml", "name = 'x'\n", "c.toml", "run"),
        ("d.toml", "run = 'true'\nnodes = = 2\n", ":2:9", "TOML"),
        ("e.yaml", "run: 'true'\nretry:\n  node_failure: often\n", ":3:", "node_failure"),
        ("f.json", "{\"run\": \"true\",\n \"time\": \"soon\"}", ":2:", "time"),
        ("g.sh", "#!/bin/sh\n#SBATCH --nodes=many\ntrue\n", ":2:", "nodes"),
    ] {
        fs::write(cluster.scratch().join(name), text).unwrap();
        let done = cluster.cli(&["submit", name]).call();
        done.exited(2).says(&[name, place, words]);
        assert_eq!(done.out, "", "{done}");
    }
    cluster.cli(&["submit", "no-such-file.toml"]).call().exited(2).says(&["no-such-file.toml"]);
}

#[test]
fn an_impossible_job_is_refused_with_the_demand_and_what_there_is() {
    let cluster = cluster(2);
    for (args, words) in [
        (&["-N", "3"][..], &["3", "2"][..]),
        (&["-G", "9"], &["9", "8"]),
        (&["--gpus", "17"], &["17", "16"]),
        (&["-G", "a100:1"], &["a100", "h100"]),
        (&["--mem-per-node", "100000GiB"], &["100000GiB", "1TiB"]),
        (&["--cpus-per-node", "5000"], &["5,000", "128"]),
        (&["--gpu-mem", "200GiB", "-G", "1"], &["200GiB", "the largest has 80GiB"]),
        (&["--label", "rack=r9"], &["rack=r9", "`tutti nodes --labels`"]),
    ] {
        let done = cluster.cli(&[&["submit", "--wrap", "true"], args].concat()).call();
        done.exited(5).says(words);
        let done = cluster.cli(&[&["run"], args, &["--", "true"]].concat()).call();
        done.exited(5).says(words);
    }
    for (args, words) in [
        (&["-G", "h100:0"][..], &["gpus_per_node", "0 of a model"][..]),
        (&["--gpu-share", "0.0001"], &["--gpu-share", "0.001"]),
        (&["-N", "-1"], &["'-1' for '--nodes <N>'"]),
    ] {
        let done = cluster.cli(&[&["submit", "--wrap", "true"], args].concat()).call();
        done.exited(2).says(words);
    }
}

/// Instead of the log of something else.
#[test]
fn a_log_that_never_was_is_refused() {
    let cluster = cluster(1);
    let id = cluster.cli(&["submit", "--wait", "--wrap", "echo hello"]).ok();
    let id = id.trim();
    assert!(cluster.cli(&["logs", id, "--attempt", "1", "--rank", "0"]).ok().contains("hello"));
    let attempt = cluster.cli(&["logs", id, "--attempt", "7"]).call();
    attempt.exited(2).says(&["no attempt 7", "one attempt"]);
    cluster.cli(&["logs", id, "--attempt", "0"]).call().exited(2).says(&["no attempt 0"]);
    cluster.cli(&["logs", id, "--rank", "3"]).call().exited(2).says(&["no rank 3", "last is 0"]);
}

#[test]
fn whoever_asks_in_the_wrong_place_is_told_the_right_one() {
    let mut cluster = cluster(1);
    let here = cluster.scratch().to_owned();
    let at =
        |cluster: &Cluster, place: &str| cluster.cli(&["ps"]).env("TUTTI_CLUSTER", place).call();
    let nowhere = here.join("nowhere");
    let done = at(&cluster, nowhere.to_str().unwrap());
    done.exited(75).says(&["nowhere", "tutti up"]);
    let empty = here.join("empty");
    fs::create_dir(&empty).unwrap();
    at(&cluster, empty.to_str().unwrap()).exited(75).says(&["empty", "tutti up"]);
    at(&cluster, "127.0.0.1:1").exited(4).says(&["TUTTI_TOKEN"]);

    for (args, word) in [
        (&["show", "4711"][..], "4711"),
        (&["logs", "4711"], "4711"),
        (&["cancel", "4711"], "4711"),
        (&["why", "4711"], "4711"),
        (&["exec", "4711", "--", "true"], "4711"),
        (&["drain", "n99"], "n99"),
    ] {
        cluster.cli(args).call().exited(3).says(&[word]);
    }
    let unknown = cluster.cli(&["show", "twelve"]).call();
    unknown.exited(3).says(&["there is no node 'twelve'", "a job's id is a number"]);
    for args in [&["ps", "--state", "asleep"][..], &["logs", "twelve"], &["frobnicate"]] {
        cluster.cli(args).call().exited(2);
    }

    // A token of another cluster, and one that is cut short.
    let admin = fs::read_to_string(cluster.dir().join("admin.token")).unwrap();
    let address = cluster.client().endpoint().authority();
    let with = |token: &str| {
        let cli = Cli::new(cluster.binary(), &["ps", "--cluster", &address]);
        cli.env("TUTTI_TOKEN", token).call()
    };
    with(admin.trim()).exited(0);
    with(&admin.trim()[..40]).exited(4);
    let wrong = admin.trim().rsplit_once('_').unwrap().0.to_owned() + "_" + &"0".repeat(64);
    with(&wrong).exited(4).says(&["token"]);

    cluster.kill_controller();
    cluster.cli(&["ps"]).call().exited(75).says(&["can't be reached", "tutti up"]);
    cluster.cli(&["submit", "--wrap", "true"]).call().exited(75);
}

#[test]
fn a_port_or_data_dir_in_use_is_said_so() {
    let cluster = cluster(1);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let other = cluster.scratch().join("other");
    let start = |dir: &str, listen: &str| {
        Cli::new(cluster.binary(), &["controller", "--data-dir", dir, "--listen", listen]).call()
    };
    let done = start(other.to_str().unwrap(), &port);
    assert_ne!(done.code, 0, "{done}");
    done.says(&[&port, "in use", "--listen"]);
    let done = start(cluster.dir().to_str().unwrap(), "127.0.0.1:0");
    assert_ne!(done.code, 0, "{done}");
    done.says(&[cluster.dir().to_str().unwrap()]);
    cluster.cli(&["ps"]).ok();

    let up = ["up", "--detach", "--nodes", "1", "--data-dir"];
    let third = cluster.scratch().join("third");
    let done = Cli::new(
        cluster.binary(),
        &[&up[..], &[third.to_str().unwrap(), "--listen", &port]].concat(),
    )
    .call();
    assert_ne!(done.code, 0, "{done}");
    done.says(&[&port, "in use"]);
    assert!(tutti_testkit::processes_of(&third).is_empty());
    let file = cluster.scratch().join("file");
    fs::write(&file, "").unwrap();
    let done = start(file.join("below").to_str().unwrap(), "127.0.0.1:0");
    assert_ne!(done.code, 0, "{done}");
    done.says(&["--data-dir"]);

    let node = cluster.node_dir("n1");
    let agent = ["agent", "--controller", cluster.dir().to_str().unwrap(), "--name", "n1"];
    let agent = [&agent[..], &["--data-dir", node.to_str().unwrap()]].concat();
    let done = Cli::new(cluster.binary(), &agent).call();
    assert_ne!(done.code, 0, "{done}");
    done.says(&["another agent", "--data-dir"]);
}

#[test]
fn doctor_finds_a_healthy_cluster_healthy_and_a_damaged_journal_damaged() {
    let mut cluster = cluster(1);
    cluster.wait_end(cluster.submit(tutti_model::JobSpec::shell("true")));
    cluster.cli(&["doctor"]).call().exited(0);
    assert_eq!(cluster.stop_controller(), 0);
    let at = cluster.dir().to_str().unwrap().to_owned();
    let done = cluster.cli(&["doctor"]).call();
    assert_eq!(done.code, 1, "a cluster without a controller is not well: {done}");
    for words in ["error    controller: does not answer", "records, all readable"] {
        assert!(done.out.contains(words), "{words}: {done}");
    }
    let done = cluster.cli(&["doctor", "--data-dir", &at]).call();
    assert_eq!(done.code, 0, "a stopped cluster's journal is whole: {done}");
    assert!(done.out.contains("warning  controller: does not answer"), "{done}");
    let journal = cluster.dir().join("journal.redb");
    let mut bytes = fs::read(&journal).unwrap();
    // All but the header: which pages are in use is the journal's own affair.
    bytes[4096..].fill(0xa5);
    fs::write(&journal, bytes).unwrap();
    let done = cluster.cli(&["doctor"]).call();
    assert_ne!(done.code, 0, "{done}");
    assert!(done.out.contains("journal") || done.err.contains("journal"), "{at}: {done}");
}

#[test]
fn a_controller_comes_back_where_it_was_and_counts_its_starts() {
    let mut cluster =
        Cluster::with(TUTTI, ClusterOptions { nodes: 1, ..ClusterOptions::default() });
    let before = cluster.client().cluster_info().unwrap();
    assert_eq!(cluster.stop_controller(), 0);
    assert!(!cluster.dir().join("endpoint").exists(), "a stopped controller is not pointed to");
    cluster.start_controller();
    cluster.wait_ready();
    let after = cluster.client().cluster_info().unwrap();
    assert!(after.epoch > before.epoch);
    assert_eq!(after.nodes, before.nodes);
}
