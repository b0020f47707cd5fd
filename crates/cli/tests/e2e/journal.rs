//! What users can do to the journal, and what becomes of a controller that loses it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tutti_model::{Grant, JobSpec, NodeState, Role, TaskId};
use tutti_testkit::{Cli, Cluster, ClusterOptions, PATIENCE, processes_of, wait_until};
use tutti_wire::api::{NewToken, Submit};
use tutti_wire::client::{Client, ClientError};

use crate::up::Place;
use crate::{TUTTI, gang};

/// After the last snapshot with much in it, two more have to come.
const SHRINKS_WITHIN: Duration = Duration::from_secs(60);

fn as_user(cluster: &Cluster, user: &str) -> Client {
    let grant = Grant::Access { user: user.to_owned(), role: Role::User };
    let token = cluster.client().create_token(&NewToken { grant, expires_in: None }).unwrap();
    cluster.client_with(&token.secret).with_patience(Duration::ZERO)
}

/// Held, with an environment that no other job has.
fn heavy(client: &Client, number: usize, bytes: usize) -> Result<TaskId, ClientError> {
    let mut spec = JobSpec { hold: true, ..JobSpec::shell("true") };
    spec.env.insert("FILLER".to_owned(), format!("{number:08}").repeat(bytes / 8));
    client.submit(&Submit { spec, user: None, key: None }).map(|taken| taken.id)
}

fn resident_mib(dir: &Path) -> u64 {
    let pid = fs::read_to_string(dir.join("controller.pid")).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

fn journal_mib(dir: &Path) -> u64 {
    fs::metadata(dir.join("journal.redb")).unwrap().len() >> 20
}

/// 180 held jobs with 1 MB of environment each took 250 MB of memory and 270 MB of disk, for good.
#[test]
#[allow(clippy::print_stderr)]
fn one_user_can_not_fill_the_controller() {
    let mut cluster =
        Cluster::with(TUTTI, ClusterOptions { nodes: 1, ..ClusterOptions::default() });
    let dir = cluster.dir().to_owned();
    let (mallory, bob) = (as_user(&cluster, "mallory"), as_user(&cluster, "bob"));
    let before = (resident_mib(&dir), journal_mib(&dir));
    for number in 0..180 {
        let refused = heavy(&mallory, number, 1_000_000).unwrap_err().to_string();
        assert!(refused.contains("262144 (256KiB)"), "{refused}");
    }
    // Below what one job may have, so many until all of them are too much.
    let mut taken = Vec::new();
    let refused = loop {
        match heavy(&mallory, taken.len(), 240_000) {
            Ok(id) => taken.push(id),
            Err(error) => break error.to_string(),
        }
        assert!(taken.len() < 300, "nobody says stop");
    };
    assert!(refused.contains("user mallory") && refused.contains("64.0 MiB"), "{refused}");
    assert_eq!(taken.len(), 279);
    heavy(&bob, 0, 240_000).expect("others have room");
    let full = (resident_mib(&dir), journal_mib(&dir));
    assert!(full.1 > 60, "{full:?}");
    // After a restart the same holds, and what is there still counts.
    assert_eq!(cluster.stop_controller(), 0);
    cluster.start_controller();
    let mallory = as_user(&cluster, "mallory");
    heavy(&mallory, 1000, 240_000).unwrap_err();
    for id in taken {
        cluster.client().cancel(id).unwrap();
    }
    heavy(&mallory, 1001, 240_000).expect("there is room again");
    wait_until("memory and file shrink", SHRINKS_WITHIN, || {
        // Somebody always does something.
        std::thread::sleep(Duration::from_millis(200));
        let small = heavy(&mallory, 0, 8).unwrap();
        cluster.client().cancel(small).unwrap();
        journal_mib(&dir) < 8 && resident_mib(&dir) < before.0 + 48
    });
    eprintln!("before {before:?} MiB, full {full:?}, now {}", resident_mib(&dir));
    // Nothing was lost on the way.
    assert_eq!(cluster.stop_controller(), 0);
    cluster.start_controller();
    cluster.cli(&["doctor"]).call().exited(0);
}

#[test]
fn nothing_is_acknowledged_into_a_deleted_journal() {
    let mut cluster =
        Cluster::with(TUTTI, ClusterOptions { nodes: 1, ..ClusterOptions::default() });
    let client = cluster.client().with_patience(Duration::ZERO);
    let submit = Submit { spec: JobSpec::shell("true"), user: None, key: None };
    client.submit(&submit).unwrap();
    fs::remove_dir_all(cluster.dir()).unwrap();
    assert!(client.submit(&submit).is_err(), "nobody would find this job again");
    assert_eq!(cluster.controller_ended(), 74);
    let log = cluster.log("controller");
    for word in ["error: ", "journal is gone", "deleted or moved away", "start again"] {
        assert!(log.contains(word), "'{word}' is not said:\n{log}");
    }
}

/// Also when nobody asks for anything.
#[test]
fn a_replaced_journal_ends_the_controller_and_leaves_the_new_one_alone() {
    let mut cluster =
        Cluster::with(TUTTI, ClusterOptions { nodes: 1, ..ClusterOptions::default() });
    let journal = cluster.dir().join("journal.redb");
    let copy = cluster.scratch().join("copy");
    fs::copy(&journal, &copy).unwrap();
    // As another controller would, which was started on the copy.
    fs::write(cluster.dir().join("controller.pid"), "1\n").unwrap();
    fs::rename(&copy, &journal).unwrap();
    assert_eq!(cluster.controller_ended(), 74);
    assert!(cluster.log("controller").contains("another file has its name"));
    assert!(cluster.dir().join("controller.pid").exists(), "it is somebody else's");
}

#[test]
fn down_stops_what_is_left_of_a_deleted_cluster() {
    let place = Place::new();
    let dir = place.path().join("cluster");
    let text = dir.to_str().unwrap();
    let tutti = |args: &[&str]| {
        Cli::new(Path::new(TUTTI), &[args, &["--data-dir", text]].concat()).dir(place.path())
    };
    let up = ["up", "--nodes", "1", "--simulate", "--listen", "127.0.0.1:0", "--no-router"];
    tutti(&[&up[..], &["-d"]].concat()).ok();
    fs::remove_dir_all(&dir).unwrap();
    tutti(&["down"]).call().exited(0).says(&["stopped", "n1"]);
    assert_eq!(processes_of(&dir).len(), 0);
    tutti(&["down"]).call().exited(3).says(&["there is no cluster"]);

    // One in the foreground does not begin anew.
    let live = tutti(&up).spawn();
    // It looks after its processes once it is in the record itself.
    wait_until("it is up", PATIENCE, || {
        fs::read_to_string(dir.join("up.json")).is_ok_and(|up| up.contains("\"supervisor\": {"))
    });
    // Something may be written while it is deleted.
    wait_until("all of it is deleted", PATIENCE, || fs::remove_dir_all(&dir).is_ok());
    live.finish().exited(74).says(&["deleted or moved away", "restore"]);
    assert_eq!(processes_of(&dir).len(), 0);
    assert!(!dir.join("journal.redb").exists(), "no new cluster in its place");
}

/// Whoever comes later is told what became of it, and what to do.
#[test]
fn a_cluster_that_lost_its_journal_is_told_from_one_that_never_was() {
    let place = Place::new();
    let up = ["up", "--nodes", "1", "--simulate", "--listen", "127.0.0.1:0", "--no-router", "-d"];
    place.tutti(&up).ok();
    fs::remove_file(place.path().join("journal.redb")).unwrap();
    wait_until("the controller has ended", PATIENCE, || {
        let all = processes_of(place.path());
        !all.iter().any(|p| p.name == "tutti" && p.cmdline.contains(" controller "))
    });
    for verb in [&["ps"][..], &["submit", "--wrap", "true"]] {
        let told = place.ask(verb).call();
        told.exited(75).says(&["journal.redb was deleted or moved away", "n1 still runs"]);
        told.says(&["tutti down --data-dir", "tutti restore"]);
    }
    let doctor = place.ask(&["doctor"]).call();
    assert_eq!(doctor.code, 1, "{doctor}");
    assert!(doctor.out.contains("n1 still runs, with nobody to lead: tutti down"), "{doctor}");
    place.tutti(&["down"]).ok();
    place.ask(&["ps"]).call().exited(75).says(&["journal.redb was deleted or moved away"]);

    let nowhere = place.path().join("nowhere");
    let text = nowhere.to_str().unwrap();
    let told = place.ask(&["ps", "--cluster", text]).call();
    told.exited(75).says(&["there is no cluster in", "or its directory was deleted", "tutti up"]);
}

/// A CA without a journal is a cluster that lost everything, not a new one.
#[test]
fn a_missing_journal_is_not_begun_anew() {
    let mut cluster =
        Cluster::with(TUTTI, ClusterOptions { nodes: 1, ..ClusterOptions::default() });
    assert_eq!(cluster.stop_controller(), 0);
    fs::remove_file(cluster.dir().join("journal.redb")).unwrap();
    cluster.launch_controller();
    assert_ne!(cluster.controller_ended(), 0);
    let log = cluster.log("controller");
    assert!(log.contains("is missing, though this data dir has had a cluster"), "{log}");
}

fn copy_dir(from: &Path, to: &Path) {
    let done = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

/// By the guide: a backup, more work, a disaster, and the backup put back.
#[test]
fn a_restored_cluster_has_its_nodes_again() {
    let mut cluster =
        Cluster::with(TUTTI, ClusterOptions { nodes: 1, ..ClusterOptions::default() });
    let (dir, backup) = (cluster.dir().to_owned(), cluster.scratch().join("backup"));
    let kept = cluster.submit(gang(1, "true"));
    cluster.wait_end(kept);
    assert_eq!(cluster.stop_controller(), 0);
    copy_dir(&dir, &backup);
    cluster.start_controller();
    let lost = cluster.submit(gang(1, "sleep 1000"));
    wait_until("it runs", PATIENCE, || {
        cluster.processes_on("n1").iter().any(|p| p.cmdline.starts_with("sleep"))
    });
    let seen = cluster.job(lost).generation.unwrap();
    // Agents have seen more starts than the copy.
    cluster.kill_controller();
    cluster.start_controller();
    cluster.wait_node("n1", NodeState::Ready);
    cluster.kill_controller();

    // Put back without a word, it is taken for a ghost, and everybody is told so.
    fs::remove_dir_all(&dir).unwrap();
    copy_dir(&backup, &dir);
    cluster.start_controller();
    let doctor = wait_for_doctor(&cluster, "turned away");
    assert!(doctor.contains("tutti restore"), "{doctor}");
    assert!(!doctor.contains("not heard of: look at the machine"), "{doctor}");
    assert_eq!(cluster.stop_controller(), 0);

    let said = cluster.cli(&["restore"]).ok();
    for word in ["1 job: 0 running, 0 waiting, 1 ended", "1 node (n1)", "the last of", "ago"] {
        assert!(said.contains(word), "'{word}' is not said:\n{said}");
    }
    cluster.start_controller();
    // It would come by itself, a while after it was refused.
    cluster.kill_agent("n1");
    cluster.start_agent("n1");
    cluster.wait_node("n1", NodeState::Ready);
    assert!(cluster.processes_on("n1").is_empty(), "what the journal does not know is stopped");
    let new = cluster.submit(gang(1, "sleep 1000"));
    assert!(new.job > lost.job, "{new} is not the job {lost} that users remember");
    wait_until("it runs", PATIENCE, || cluster.job(new).generation.is_some());
    assert!(cluster.job(new).generation.unwrap() > seen, "generations are never used again");
    assert!(!dir.join("restored").exists(), "once is enough");
    assert_eq!(cluster.cli(&["restore"]).call().code, 1, "a controller runs here");
}

/// The data dir is lost under a cluster, and a backup put in its place without a word.
#[test]
fn up_on_an_older_copy_says_so_and_how_to_mean_it() {
    let place = Place::new();
    let (dir, backup) = (place.path().join("cluster"), place.path().join("backup"));
    let text = dir.to_str().unwrap();
    let tutti = |args: &[&str]| {
        Cli::new(Path::new(TUTTI), &[args, &["--data-dir", text]].concat()).dir(place.path())
    };
    let up = ["up", "--nodes", "1", "--simulate", "--listen", "127.0.0.1:0", "-d"];
    tutti(&up).ok();
    tutti(&["down"]).ok();
    copy_dir(&dir, &backup);
    // Its agents see more starts than the copy, and go on without the controller.
    for _ in 0..2 {
        tutti(&["up", "-d"]).ok();
        tutti(&["down"]).ok();
    }
    tutti(&["up", "-d"]).ok();
    wait_until("all of it is deleted", PATIENCE, || fs::remove_dir_all(&dir).is_ok());
    wait_until("the controller has ended", PATIENCE, || {
        let all = processes_of(&dir);
        !all.iter().any(|p| p.name == "tutti" && p.cmdline.contains(" controller "))
    });
    // What agents have put there meanwhile.
    wait_until("all of it is deleted", PATIENCE, || {
        fs::remove_dir_all(&dir).is_ok() || !dir.exists()
    });
    copy_dir(&backup, &dir);
    let refused = tutti(&["up", "-d"]).call();
    assert_eq!(refused.code, 1, "{refused}");
    refused.says(&["is older than what its nodes know: n1", "tutti restore --data-dir"]);
    tutti(&["down"]).ok();
    tutti(&["restore"]).ok();
    tutti(&["up", "-d"]).call().exited(0).says(&["1 node"]);
    tutti(&["down"]).ok();
}

fn wait_for_doctor(cluster: &Cluster, words: &str) -> String {
    let mut said = String::new();
    wait_until("doctor says why", PATIENCE, || {
        said = cluster.cli(&["doctor"]).call().out;
        said.contains(words)
    });
    said
}

#[test]
fn a_copy_without_records_is_no_backup() {
    let place = Place::new();
    let missing = place.tutti(&["restore"]).call();
    assert_eq!(missing.code, 1, "{missing}");
    missing.says(&["journal.redb is missing"]);
}
