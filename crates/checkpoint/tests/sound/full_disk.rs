//! A disk that is really full: a small tmpfs in a mount namespace of its own.

use std::path::Path;
use std::process::Command;

use crate::common::{check_all, options, quick_dir, save_with, shards, text};
use tutti_checkpoint::Store;

/// Not a test of its own: it runs inside the namespace.
#[test]
fn child() {
    let Ok(dir) = std::env::var("FULL_DISK") else { return };
    let dir = Path::new(&dir);
    let open = |rank| Store::open(text(dir), options(rank, 2, 1));
    save_with(open, 2, 10, 64).unwrap();
    let before = shards(dir);
    // The first rank's half fits, the second's does not.
    let error = save_with(open, 2, 20, 400_000).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{} is full: step-000000000020/", text(dir))), "{error}");
    assert!(error.ends_with("free some room, or keep fewer checkpoints"), "{error}");
    assert_eq!(check_all(dir), [10]);
    let after = shards(dir);
    let left: Vec<_> = after.iter().filter(|f| !before.contains(f)).collect();
    assert!(left.iter().all(|f| f.contains("rank-00000")), "{left:?}");
    // The next attempt finds room again.
    let next = Store::open(text(dir), options(0, 1, 2)).unwrap();
    next.sweep().unwrap();
    assert_eq!(shards(dir), before);
    save_with(|_| Ok(next.clone()), 1, 20, 64).unwrap();
    assert_eq!(check_all(dir), [10, 20]);
}

#[test]
fn a_full_disk_costs_only_the_save_that_did_not_fit() {
    let dir = quick_dir();
    let can = Command::new("unshare").args(["-rm", "true"]).output();
    if !can.is_ok_and(|o| o.status.success()) {
        let why: &[u8] = b"skipped: this system lets nobody make a mount namespace\n";
        std::io::Write::write_all(&mut std::io::stderr(), why).unwrap();
        return;
    }
    let script =
        "mount -t tmpfs -o size=2m tmpfs \"$FULL_DISK\" && exec \"$0\" --exact full_disk::child";
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("FULL_DISK", dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}
