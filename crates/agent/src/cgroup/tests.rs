//! Plain files in place of the kernel's.

use super::older::{Hierarchy, find};
use super::tree::{enable, find_mount, may_enable};
use super::*;
use crate::testing::TempDir;

fn group(dir: &Path, kind: Option<&str>, procs: &str) {
    fs::create_dir_all(dir).unwrap();
    if let Some(kind) = kind {
        fs::write(dir.join("cgroup.type"), kind).unwrap();
    }
    fs::write(dir.join("cgroup.procs"), procs).unwrap();
    fs::write(dir.join("cgroup.subtree_control"), "").unwrap();
}

#[test]
fn controllers_are_not_handed_down_from_a_group_with_processes() {
    let dir = TempDir::new("cgroup");
    let (root, full, empty) =
        (dir.path().join("root"), dir.path().join("full"), dir.path().join("empty"));
    group(&root, None, "1\n2\n");
    group(&full, Some("domain\n"), "17\n");
    group(&empty, Some("domain\n"), "");
    assert!(may_enable(&root) && may_enable(&empty));
    assert!(!may_enable(&full));
}

#[test]
fn a_controller_that_stops_half_way_is_taken_back() {
    let dir = TempDir::new("cgroup-half");
    let levels = ["a", "b"].map(|name| dir.path().join(name));
    group(&levels[0], None, "");
    assert_eq!(enable(&levels, "memory"), None, "the second level is missing");
    let control = fs::read_to_string(levels[0].join("cgroup.subtree_control")).unwrap();
    assert_eq!(control, "-memory");
}

#[test]
fn what_others_have_handed_down_is_not_ours_to_take_back() {
    let dir = TempDir::new("cgroup-others");
    let levels = ["root", "ours", "node"].map(|name| dir.path().join(name));
    levels.iter().for_each(|level| group(level, None, ""));
    fs::write(levels[0].join("cgroup.subtree_control"), "cpu memory\n").unwrap();
    assert_eq!(enable(&levels, "memory"), Some(levels[1..].to_vec()));
    let control = fs::read_to_string(levels[0].join("cgroup.subtree_control")).unwrap();
    assert_eq!(control, "cpu memory\n");
}

const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

#[test]
fn the_unified_mount_is_found_in_both_layouts() {
    let find = |mounts| find_mount(mounts, Path::new("/data/n1/cgroup2"));
    assert_eq!(find(HYBRID).unwrap(), Path::new("/sys/fs/cgroup/unified"));
    let pure = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
    assert_eq!(find(pure).unwrap(), Path::new("/sys/fs/cgroup"));
    assert_eq!(find("proc /proc proc rw 0 0\n"), None);
    // Mounted by agents: another's may go at any time.
    let agents = "none /data/n2/cgroup2 cgroup2 rw 0 0\nnone /data/n1/cgroup2 cgroup2 rw 0 0\n";
    assert_eq!(find(agents).unwrap(), Path::new("/data/n1/cgroup2"));
}

#[test]
fn a_controller_is_found_in_its_own_hierarchy() {
    let own = "4:memory:/jobs/a\n3:cpuset:/\n1:cpu,cpuacct:/\n0::/\n";
    let memory = find(HYBRID, own, "memory").unwrap();
    let wanted = Hierarchy { mount: "/sys/fs/cgroup/memory".into(), own: "jobs/a".into() };
    assert_eq!(memory, wanted);
    assert_eq!(find(HYBRID, own, "cpu").unwrap().mount, Path::new("/sys/fs/cgroup/cpu,cpuacct"));
    assert_eq!(find(HYBRID, own, "cpuset").unwrap().own, "");
    assert_eq!(find(HYBRID, own, "pids"), None);
}

#[test]
fn an_older_group_is_below_our_own_or_at_the_root() {
    let dir = TempDir::new("cgroup-older");
    let mount = dir.path().to_owned();
    fs::create_dir(mount.join("own")).unwrap();
    let at = |own: &str| {
        let made = Hierarchy { mount: mount.clone(), own: own.into() }.make(&["tutti", "n1"]);
        made.unwrap().strip_prefix(&mount).unwrap().to_owned()
    };
    assert_eq!(at("own"), Path::new("own/tutti/n1"));
    assert_eq!(at("of/the/host"), Path::new("tutti/n1"));
}
