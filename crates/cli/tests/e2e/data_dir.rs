use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use tutti_testkit::{Cli, Done, is_root, processes_of};

use crate::TUTTI;

/// Everything that believes what is in a data dir.
fn starts(dir: &Path) -> Vec<Done> {
    let text = dir.to_str().unwrap();
    let up = ["up", "--nodes", "1", "--simulate", "--listen", "127.0.0.1:0", "-d"];
    let controller = ["controller", "--listen", "127.0.0.1:0"];
    let agent = ["agent", "--controller", "http://127.0.0.1:1", "--name", "n1", "--simulate"];
    let of = |args: &[&str]| {
        let args = [args, &["--data-dir", text]].concat();
        Cli::new(Path::new(TUTTI), &args).call()
    };
    vec![of(&up), of(&controller), of(&agent), of(&["down"]), of(&["restore"])]
}

/// Each way in which somebody else could have a hand in a data dir, and what is said of it.
#[test]
fn a_data_dir_that_others_can_change_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("data");
    fs::create_dir(&dir).unwrap();
    let refused = |words: &[&str]| {
        for done in starts(&dir) {
            assert_ne!(done.code, 0, "{done}");
            done.says(words);
        }
        assert!(processes_of(&dir).is_empty());
    };
    let mode = |mode| fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o777);
    refused(&["can't use", "can be written by others", "chmod go-w"]);
    mode(0o770);
    refused(&["can be written by others", "0770"]);
    mode(0o700);
    symlink("/etc/passwd", dir.join("journal.redb")).unwrap();
    refused(&["journal.redb is a link to /etc/passwd", "remove it"]);
    fs::remove_file(dir.join("journal.redb")).unwrap();
    if is_root() {
        chown(&dir, Some(61_001), Some(61_001)).unwrap();
        refused(&["belongs to user 61001, and this runs as root", "choose another directory"]);
        chown(&dir, Some(0), Some(0)).unwrap();
        fs::write(dir.join("admin.token"), "of somebody else").unwrap();
        chown(dir.join("admin.token"), Some(61_001), None).unwrap();
        refused(&["admin.token belongs to user 61001"]);
        fs::remove_file(dir.join("admin.token")).unwrap();
        chown(place.path(), Some(61_001), None).unwrap();
        refused(&["is above the directory", "choose a directory that only root can move"]);
        chown(place.path(), Some(0), None).unwrap();
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "nothing was written");
}

/// A user has root name their directory as the cluster, or look there with sudo: root's token would go to
/// whoever listens there.
#[test]
fn root_sends_no_token_to_a_cluster_of_somebody_else() {
    if !is_root() {
        return;
    }
    let cluster = crate::cluster(0);
    cluster.cli(&["ps"]).ok();
    chown(cluster.dir(), Some(61_001), Some(61_001)).unwrap();
    for verb in [&["ps"][..], &["submit", "--wrap", "true"], &["router"]] {
        let done = cluster.cli(verb).call();
        done.exited(4).says(&["belongs to user 61001, and this runs as root", "no token is sent"]);
        done.says(&["sudo -u '#61001'", "--cluster HOST:PORT", "TUTTI_TOKEN"]);
    }
    chown(cluster.dir(), Some(0), Some(0)).unwrap();
    cluster.cli(&["ps"]).ok();
}

/// One that is reached through a link of one's own, and that others may read, is as good as any.
#[test]
fn a_data_dir_behind_an_own_link_is_used() {
    let place = crate::up::Place::new();
    let real = place.path().join("real");
    fs::create_dir(&real).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&real, place.path().join("link")).unwrap();
    let link = place.path().join("link/data");
    let link = link.to_str().unwrap();
    let tutti = |args: &[&str]| Cli::new(Path::new(TUTTI), &[args, &["--data-dir", link]].concat());
    let up = ["up", "--nodes", "1", "--simulate", "--listen", "127.0.0.1:0", "-d"];
    tutti(&up).ok();
    let run = ["run", "--", "echo", "here"];
    let out = Cli::new(Path::new(TUTTI), &run).env("TUTTI_CLUSTER", link).ok();
    assert_eq!(out, "here");
    tutti(&["down"]).ok();
}
