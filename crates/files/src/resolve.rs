//! From a path to a directory's handle, past everything that somebody else may have prepared.
//!
//! Links are followed as the kernel does, but only those that nobody except root and this user can
//! have put there: `/var/run` yes, a link in another user's home no.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::unistd::geteuid;

use crate::Refused;
use crate::folder::{EntryKind, Folder};

/// As many as the kernel follows.
const LINKS_MAX: u32 = 40;
const STICKY: u32 = 0o1000;

/// What was met on the way, the last directory included.
pub(crate) struct Visited {
    pub path: PathBuf,
    pub stat: FileStat,
}

pub(crate) struct Resolved {
    pub folder: Folder,
    /// What is not there yet.
    pub missing: PathBuf,
    pub visited: Vec<Visited>,
}

/// The directory at this path.
pub(crate) fn folder(path: &Path) -> io::Result<Folder> {
    let resolved = nearest(path)?;
    match resolved.missing.as_os_str().is_empty() {
        true => Ok(resolved.folder),
        false => Err(Errno::ENOENT.into()),
    }
}

/// The directory at this path, or the nearest above it that is there.
pub(crate) fn nearest(path: &Path) -> io::Result<Resolved> {
    let from = if path.is_absolute() { PathBuf::new() } else { std::env::current_dir()? };
    let mut names: VecDeque<OsString> = names(&from.join(path));
    let mut walk = Walk::start()?;
    while let Some(name) = names.pop_front() {
        match walk.go(&name)? {
            Went::On => {}
            Went::Link(to) => {
                if to.is_absolute() {
                    walk.restart()?;
                }
                for name in self::names(&to).into_iter().rev() {
                    names.push_front(name);
                }
            }
            Went::Missing => {
                names.push_front(name);
                break;
            }
        }
    }
    let missing: PathBuf = names.iter().collect();
    // `a/../b` where there is no `a` means nothing.
    if missing.components().any(|c| c == Component::ParentDir) {
        return Err(Errno::ENOENT.into());
    }
    let folder = Folder::from_parts(walk.handle, walk.path);
    Ok(Resolved { folder, missing, visited: walk.visited })
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

enum Went {
    On,
    Link(PathBuf),
    Missing,
}

struct Walk {
    handle: OwnedFd,
    path: PathBuf,
    links: u32,
    visited: Vec<Visited>,
}

impl Walk {
    fn start() -> io::Result<Walk> {
        let (handle, path) = root()?;
        let mut walk = Walk { handle, path, links: 0, visited: Vec::new() };
        walk.note()?;
        Ok(walk)
    }

    fn restart(&mut self) -> io::Result<()> {
        (self.handle, self.path) = root()?;
        Ok(())
    }

    fn note(&mut self) -> io::Result<()> {
        self.visited.push(Visited { path: self.path.clone(), stat: fstat(&self.handle)? });
        Ok(())
    }

    fn go(&mut self, name: &OsStr) -> io::Result<Went> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let found = match openat(&self.handle, name, flags, Mode::empty()) {
            Ok(found) => found,
            Err(Errno::ENOENT) => return Ok(Went::Missing),
            Err(e) => return Err(e.into()),
        };
        let stat = fstat(&found)?;
        match EntryKind::of(&stat) {
            EntryKind::Folder if name == ".." => {
                self.path.pop();
                self.handle = found;
                self.note()?;
                Ok(Went::On)
            }
            EntryKind::Folder => {
                self.path.push(name);
                self.handle = found;
                self.note()?;
                Ok(Went::On)
            }
            EntryKind::Link => self.link(name, &found, &stat).map(Went::Link),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    fn link(&mut self, name: &OsStr, link: &OwnedFd, stat: &FileStat) -> io::Result<PathBuf> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::ELOOP.into());
        }
        let (here, path) = (fstat(&self.handle)?, self.path.join(name));
        // In a directory like /tmp only the owner of a link can replace it; in any other whoever may
        // write there.
        let closed = here.st_mode & 0o022 == 0 || here.st_mode & STICKY != 0;
        for (owner, trusted) in [
            (here.st_uid, is_trusted(here.st_uid) && closed),
            (stat.st_uid, is_trusted(stat.st_uid)),
        ] {
            if !trusted {
                return Err(Refused::ForeignLink { path, owner }.into());
            }
        }
        Ok(PathBuf::from(readlinkat(link, "")?))
    }
}

fn root() -> io::Result<(OwnedFd, PathBuf)> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok((openat(AT_FDCWD, "/", flags, Mode::empty())?, PathBuf::from("/")))
}

/// Root and this user themselves: they need no link to do harm.
pub(crate) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;
    use crate::is_refusal;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn own_links_are_followed_and_what_is_missing_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        fs::create_dir_all(real.join("a")).unwrap();
        symlink("real", dir.path().join("relative")).unwrap();
        symlink(&real, dir.path().join("absolute")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        for link in ["relative/a", "absolute/a", "relative/../absolute/./a"] {
            let found = folder(&dir.path().join(link)).unwrap();
            assert_eq!(found.path(), real.join("a"), "{link}");
        }
        let found = nearest(&dir.path().join("relative/b/c")).unwrap();
        assert_eq!((found.folder.path(), found.missing.as_path()), (&*real, Path::new("b/c")));
        assert_eq!(folder(&real.join("b")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let error = folder(&dir.path().join("loop")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    }

    #[test]
    fn links_that_others_can_make_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let (open, real) = (dir.path().join("open"), dir.path().join("real"));
        fs::create_dir(&open).unwrap();
        fs::create_dir(&real).unwrap();
        symlink(&real, open.join("link")).unwrap();
        set_mode(&open, 0o777);
        let error = folder(&open.join("link")).unwrap_err();
        assert!(is_refusal(&error), "{error}");
        assert!(error.to_string().contains("name the directory that is meant"), "{error}");
        set_mode(&open, 0o1777);
        assert!(folder(&open.join("link")).is_ok(), "as in /tmp: it is our own");
        if geteuid().is_root() {
            lchown(open.join("link"), Some(12345), None).unwrap();
            assert!(is_refusal(&folder(&open.join("link")).unwrap_err()));
        }
    }
}
