//! Removes a directory with all that is in it, however deep its owner made it.

use std::ffi::{OsStr, OsString};
use std::fs::ReadDir;
use std::io;

use crate::folder::Folder;

/// So many levels are open at a time. What lies deeper is moved up first: a tree of a hundred
/// thousand levels, which anybody can make, would take as many handles otherwise.
const DEPTH_MAX: usize = 64;
const MOVED: &str = ".tutti-deep-";

struct Level {
    folder: Folder,
    entries: ReadDir,
    name: OsString,
}

/// What a pass over the tree has done.
#[derive(Default)]
struct Pass {
    removed: u64,
    moved: u64,
}

pub fn remove(parent: &Folder, name: &OsStr) -> io::Result<()> {
    if unlink(parent, name)? {
        return Ok(());
    }
    let top = parent.step(name)?;
    let mut moved = 0;
    loop {
        match parent.remove_dir(name) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
                let mut pass = Pass { moved, ..Pass::default() };
                empty(&top, &mut pass)?;
                if pass.removed == 0 && pass.moved == moved {
                    return Err(e);
                }
                moved = pass.moved;
            }
            done => return done,
        }
    }
}

/// False: it is a directory.
fn unlink(folder: &Folder, name: &OsStr) -> io::Result<bool> {
    match folder.remove_file(name) {
        // What Linux says of a directory, and what POSIX lets others say.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EISDIR | libc::EPERM)) => {
            folder.step(name).map(|_| false).map_err(|_| e)
        }
        removed => removed.map(|()| true),
    }
}

/// Removes what is in it, except for what comes up from below meanwhile.
fn empty(top: &Folder, pass: &mut Pass) -> io::Result<()> {
    let mut first = top.entries()?;
    let mut levels: Vec<Level> = Vec::new();
    loop {
        let next = levels.last_mut().map_or(&mut first, |level| &mut level.entries).next();
        match next.transpose()? {
            Some(entry) => {
                if let Some(level) = enter(top, &levels, entry.file_name(), pass)? {
                    levels.push(level);
                }
            }
            None => {
                let Some(level) = levels.pop() else { return Ok(()) };
                let above = levels.last().map_or(top, |level| &level.folder);
                match above.remove_dir(&level.name) {
                    Ok(()) => pass.removed += 1,
                    // A directory that changes while it is read may keep something back.
                    Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                    Err(e) => return Err(e),
                }
            }
        }
    }
}

/// Removes one entry; a directory is gone into, or moved to the top when it lies too deep.
fn enter(
    top: &Folder,
    levels: &[Level],
    name: OsString,
    pass: &mut Pass,
) -> io::Result<Option<Level>> {
    let folder = levels.last().map_or(top, |level| &level.folder);
    match unlink(folder, &name) {
        Ok(false) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        removed => {
            removed?;
            pass.removed += 1;
            return Ok(None);
        }
    }
    if levels.len() < DEPTH_MAX {
        let folder = folder.step(&name)?;
        let entries = folder.entries()?;
        return Ok(Some(Level { folder, entries, name }));
    }
    // Somebody may have had this name in mind.
    loop {
        pass.moved += 1;
        if folder.move_to(&name, top, OsStr::new(&format!("{MOVED}{}", pass.moved)))? {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_tree_deeper_than_there_are_handles_goes() {
        let dir = tempfile::tempdir().unwrap();
        let top = Folder::open(dir.path()).unwrap();
        top.make_dir("deep", 0o700).unwrap();
        // Names that the removal itself would use.
        top.make_dirs("deep/.tutti-deep-1/full", 0o700).unwrap();
        let mut at = top.folder("deep").unwrap();
        for level in 0..500 {
            at.create_new("file", 0o600).unwrap();
            at.make_dir("d", 0o700).unwrap();
            if level % 100 == 0 {
                std::os::unix::fs::symlink("/etc", at.through().join("link")).unwrap();
            }
            at = at.folder("d").unwrap();
        }
        top.remove_tree("deep").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(fs::exists("/etc/passwd").unwrap());
        assert_eq!(top.remove_tree("deep").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
