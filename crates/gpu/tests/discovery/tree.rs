//! A machine's files, from a small text: one line for each.
//!
//! ```text
//! # a comment
//! [sys/class/drm/card0]                  what follows is below this directory
//! vendor = 0x10de                        a file with one line; \n makes several
//! driver -> sys/bus/pci/drivers/nvidia   a link to another place in the tree
//! empty/                                 a directory
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub fn expand(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("the temporary directory is writable");
    let mut below = PathBuf::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        match line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            Some(section) => below = PathBuf::from(section),
            None => put(dir.path(), &below, line),
        }
    }
    dir
}

fn put(root: &Path, below: &Path, line: &str) {
    let at = |name: &str| {
        let path = root.join(below).join(name.trim());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    if let Some((name, target)) = line.split_once(" -> ") {
        symlink(root.join(target.trim()), at(name)).unwrap();
    } else if let Some((name, value)) = line.split_once(" =") {
        let value = value.trim().replace("\\n", "\n");
        fs::write(at(name), format!("{value}\n")).unwrap();
    } else if let Some(name) = line.strip_suffix('/') {
        fs::create_dir_all(at(name)).unwrap();
    } else {
        panic!("not a file, a link or a directory: {line}");
    }
}

#[test]
fn a_tree_is_files_links_and_directories() {
    let dir = expand("# x\n[a/b]\nfile = 1\\n2\nempty =\nlink -> a/b/file\nsub/\n");
    let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
    assert_eq!(read("a/b/link"), "1\n2\n");
    assert_eq!(read("a/b/empty"), "\n");
    assert!(dir.path().join("a/b/sub").is_dir());
}
