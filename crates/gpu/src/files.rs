//! Small files of the kernel, below a root that tests bring themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Without the line's end; None where it is not there or says nothing.
pub fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

pub fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// As "0x10de".
pub fn hex(path: &Path) -> Option<u32> {
    u32::from_str_radix(text(path)?.trim_start_matches("0x"), 16).ok()
}

/// Sorted; none if it is not there.
pub fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(dir) else { return Vec::new() };
    let mut all: Vec<PathBuf> = read.filter_map(|e| Some(e.ok()?.path())).collect();
    all.sort();
    all
}

pub fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// The entries of a directory that are called `prefix` and a number, in the order of their numbers.
pub fn numbered(dir: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    let number = |path: &PathBuf| name(path)?.strip_prefix(prefix)?.parse().ok();
    let mut all: Vec<(u32, PathBuf)> =
        entries(dir).into_iter().filter_map(|path| Some((number(&path)?, path))).collect();
    all.sort();
    all
}

/// A value of a file of `Key: value` lines.
pub fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}
