//! A directory by its handle, and what is below it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, openat, renameat, renameat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{Gid, LinkatFlags, Uid, UnlinkatFlags, fchownat, geteuid, linkat, unlinkat};

use crate::{Refused, resolve, tree};

/// For walking: neither read nor written through, so no permission of the directory itself is needed.
const HANDLE: OFlag = OFlag::O_PATH.union(OFlag::O_CLOEXEC).union(OFlag::O_DIRECTORY);

/// A directory. `path` is what people call it, and is only ever shown.
#[derive(Debug)]
pub struct Folder {
    handle: OwnedFd,
    path: PathBuf,
}

/// What is directly in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub kind: EntryKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Folder,
    File,
    Link,
    /// A socket, a pipe, a device.
    Other,
}

impl EntryKind {
    pub(crate) fn of(stat: &FileStat) -> EntryKind {
        match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFDIR => EntryKind::Folder,
            SFlag::S_IFREG => EntryKind::File,
            SFlag::S_IFLNK => EntryKind::Link,
            _ => EntryKind::Other,
        }
    }
}

impl Folder {
    /// As the kernel resolves the path, links and all: for paths that nobody else controls, and for
    /// processes without rights that somebody else lacks.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let handle = openat(AT_FDCWD, path, HANDLE, Mode::empty())?;
        Ok(Folder { handle, path: path.to_owned() })
    }

    /// Follows only links that nobody but root and this user can have put there.
    pub fn resolve(path: &Path) -> io::Result<Folder> {
        resolve::folder(path)
    }

    /// A directory that belongs to this process's user and that nobody else can write: in a place
    /// like /tmp, somebody else may have been there first.
    pub fn open_own(path: &Path) -> io::Result<Folder> {
        let (above, name) = above(path)?;
        Folder::resolve(above)?.step(name)?.if_own()
    }

    /// The same; made with exactly this mode if it is missing.
    pub fn make_own(path: &Path, mode: u32) -> io::Result<Folder> {
        let (above, name) = above(path)?;
        let above = Folder::resolve(above)?;
        let made = above.make_dir(name, mode)?;
        let folder = above.step(name)?.if_own()?;
        if made {
            folder.set_mode(mode)?;
        }
        Ok(folder)
    }

    fn if_own(self) -> io::Result<Folder> {
        let stat = self.stat()?;
        match stat.st_uid == geteuid().as_raw() && stat.st_mode & 0o022 == 0 {
            true => Ok(self),
            false => Err(Refused::NotOurs { path: self.path, owner: stat.st_uid }.into()),
        }
    }

    pub(crate) fn from_parts(handle: OwnedFd, path: PathBuf) -> Folder {
        Folder { handle, path }
    }

    /// For messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn stat(&self) -> io::Result<FileStat> {
        Ok(fstat(&self.handle)?)
    }

    pub fn owner(&self) -> io::Result<u32> {
        Ok(self.stat()?.st_uid)
    }

    /// A directory below this one. The empty path is this one.
    pub fn folder(&self, below: impl AsRef<Path>) -> io::Result<Folder> {
        let mut at = self.again()?;
        for name in components(below.as_ref())? {
            at = at.step(name)?;
        }
        Ok(at)
    }

    fn again(&self) -> io::Result<Folder> {
        Ok(Folder { handle: self.handle.try_clone()?, path: self.path.clone() })
    }

    /// One component down.
    pub(crate) fn step(&self, name: &OsStr) -> io::Result<Folder> {
        let path = self.path.join(name);
        match openat(&self.handle, name, HANDLE | OFlag::O_NOFOLLOW, Mode::empty()) {
            Ok(handle) => Ok(Folder { handle, path }),
            Err(e @ (Errno::ENOTDIR | Errno::ELOOP)) => Err(self.no_step(name, e)),
            Err(e) => Err(e.into()),
        }
    }

    /// Links have a sentence of their own.
    fn no_step(&self, name: &OsStr, error: Errno) -> io::Error {
        match self.stat_one(name).map(|stat| EntryKind::of(&stat)) {
            Ok(EntryKind::Link) => Refused::Link { path: self.path.join(name) }.into(),
            _ => error.into(),
        }
    }

    pub(crate) fn stat_one(&self, name: &OsStr) -> io::Result<FileStat> {
        Ok(fstatat(&self.handle, name, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// The directory in which something is, and its name there.
    fn place_of<'p>(&self, below: &'p Path) -> io::Result<(Folder, &'p OsStr)> {
        let mut names = components(below)?;
        let last = names.pop().ok_or_else(|| Refused::Outside { path: below.to_owned() })?;
        let mut at = self.again()?;
        for name in names {
            at = at.step(name)?;
        }
        Ok((at, last))
    }

    /// What is there, be it a link.
    pub fn stat_of(&self, below: impl AsRef<Path>) -> io::Result<FileStat> {
        let (at, name) = self.place_of(below.as_ref())?;
        at.stat_one(name)
    }

    /// The length of a plain file; None of anything else.
    pub fn file_len(&self, below: impl AsRef<Path>) -> io::Result<Option<u64>> {
        let stat = self.stat_of(below)?;
        let is_file = EntryKind::of(&stat) == EntryKind::File;
        Ok(is_file.then(|| u64::try_from(stat.st_size).unwrap_or(0)))
    }

    fn open_one(&self, below: &Path, flags: OFlag, mode: u32) -> io::Result<File> {
        let (at, name) = self.place_of(below)?;
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let path = || at.path.join(name);
        let file = match openat(&at.handle, name, flags, Mode::from_bits_truncate(mode)) {
            Ok(file) => File::from(file),
            Err(Errno::ELOOP) => return Err(Refused::Link { path: path() }.into()),
            // A socket, or a pipe that nobody reads.
            Err(Errno::ENXIO) => return Err(Refused::NoFile { path: path() }.into()),
            Err(e) => return Err(e.into()),
        };
        // Whoever put a pipe or a device there has somebody wait for it.
        if EntryKind::of(&fstat(&file)?) != EntryKind::File {
            return Err(Refused::NoFile { path: path() }.into());
        }
        Ok(file)
    }

    pub fn read(&self, below: impl AsRef<Path>) -> io::Result<File> {
        self.open_one(below.as_ref(), OFlag::O_RDONLY, 0)
    }

    /// A new file to be written: one of that name is an error, be it a link.
    pub fn create_new(&self, below: impl AsRef<Path>, mode: u32) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        self.open_one(below.as_ref(), flags, mode)
    }

    pub fn append(&self, below: impl AsRef<Path>, mode: u32) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_APPEND;
        self.open_one(below.as_ref(), flags, mode)
    }

    /// False: there is a directory of that name.
    pub fn make_dir(&self, below: impl AsRef<Path>, mode: u32) -> io::Result<bool> {
        let (at, name) = self.place_of(below.as_ref())?;
        match mkdirat(&at.handle, name, Mode::from_bits_truncate(mode)) {
            Ok(()) => Ok(true),
            // A link to a directory is none.
            Err(Errno::EEXIST) => at.step(name).map(|_| false),
            Err(e) => Err(e.into()),
        }
    }

    /// The directory, made with those above it where they are missing.
    pub fn make_dirs(&self, below: impl AsRef<Path>, mode: u32) -> io::Result<Folder> {
        let mut at = self.again()?;
        for name in components(below.as_ref())? {
            at = match at.step(name) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    at.make_dir(name, mode)?;
                    at.step(name)?
                }
                found => found?,
            };
        }
        Ok(at)
    }

    /// In the order of names.
    pub fn list(&self) -> io::Result<Vec<Entry>> {
        let mut found = self.entries()?.map(known).collect::<io::Result<Vec<_>>>()?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The same of a directory that anybody may have filled. None: there are more than `most`.
    pub fn list_up_to(&self, most: usize) -> io::Result<Option<Vec<Entry>>> {
        let some = self.entries()?.take(most.saturating_add(1)).map(known);
        let mut found = some.collect::<io::Result<Vec<_>>>()?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Some(found).filter(|found| found.len() <= most))
    }

    pub(crate) fn entries(&self) -> io::Result<std::fs::ReadDir> {
        std::fs::read_dir(self.through())
    }

    /// A path that means this very directory for as long as the handle is open: for calls of the
    /// kernel that take nothing but paths, such as binding a socket.
    pub fn through(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd()))
    }

    pub fn remove_file(&self, below: impl AsRef<Path>) -> io::Result<()> {
        let (at, name) = self.place_of(below.as_ref())?;
        Ok(unlinkat(&at.handle, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// One that is empty.
    pub fn remove_dir(&self, below: impl AsRef<Path>) -> io::Result<()> {
        let (at, name) = self.place_of(below.as_ref())?;
        Ok(unlinkat(&at.handle, name, UnlinkatFlags::RemoveDir)?)
    }

    /// With all that is in it; a link goes, and what it points to stays.
    pub fn remove_tree(&self, below: impl AsRef<Path>) -> io::Result<()> {
        let (at, name) = self.place_of(below.as_ref())?;
        tree::remove(&at, name)
    }

    /// What is of that name is replaced, and a link is replaced itself.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (old, old_name) = self.place_of(from.as_ref())?;
        let (new, new_name) = self.place_of(to.as_ref())?;
        Ok(renameat(&old.handle, old_name, &new.handle, new_name)?)
    }

    /// Never replaces: false if there is something of that name.
    pub fn rename_new(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<bool> {
        let (old, old_name) = self.place_of(from.as_ref())?;
        let (new, new_name) = self.place_of(to.as_ref())?;
        old.move_to(old_name, &new, new_name)
    }

    /// Moves one entry to another directory; false if there is something of that name.
    pub(crate) fn move_to(&self, name: &OsStr, to: &Folder, new_name: &OsStr) -> io::Result<bool> {
        let flags = RenameFlags::RENAME_NOREPLACE;
        match renameat2(&self.handle, name, &to.handle, new_name, flags) {
            Ok(()) => return Ok(true),
            Err(Errno::EEXIST) => return Ok(false),
            // A file system without it, NFS for one. A hard link never replaces either.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
        match linkat(&self.handle, name, &to.handle, new_name, LinkatFlags::empty()) {
            Ok(()) => Ok(unlinkat(&self.handle, name, UnlinkatFlags::NoRemoveDir).map(|()| true)?),
            Err(Errno::EEXIST) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Gives an entry to somebody; of a link, the link itself.
    pub fn give(&self, below: impl AsRef<Path>, uid: u32, gid: u32) -> io::Result<()> {
        let (at, name) = self.place_of(below.as_ref())?;
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        Ok(fchownat(&at.handle, name, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fchmod(self.readable()?, Mode::from_bits_truncate(mode))?)
    }

    /// What was made and removed in it is so for good.
    pub fn sync(&self) -> io::Result<()> {
        File::from(self.readable()?).sync_all()
    }

    /// Handles for walking take no other calls.
    fn readable(&self) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(openat(&self.handle, ".", flags, Mode::empty())?)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// The directory above a path, and the last name.
fn above(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let outside = || Refused::Outside { path: path.to_owned() };
    let name = path.file_name().ok_or_else(outside)?;
    let above = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((above, name))
}

fn known(entry: io::Result<std::fs::DirEntry>) -> io::Result<Entry> {
    let entry = entry?;
    let kind = entry.file_type()?;
    let kind = match (kind.is_dir(), kind.is_file(), kind.is_symlink()) {
        (true, ..) => EntryKind::Folder,
        (_, true, _) => EntryKind::File,
        (.., true) => EntryKind::Link,
        _ => EntryKind::Other,
    };
    Ok(Entry { name: entry.file_name(), kind })
}

/// Nothing but names: `..` and an absolute path would lead elsewhere.
fn components(below: &Path) -> io::Result<Vec<&OsStr>> {
    let name = |component| match component {
        Component::Normal(name) => Ok(name),
        _ => Err(Refused::Outside { path: below.to_owned() }.into()),
    };
    below.components().map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::is_refusal;

    #[test]
    fn no_link_below_a_folder_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (home, outside) = (dir.path().join("home"), dir.path().join("outside"));
        fs::create_dir_all(home.join("real")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "precious").unwrap();
        symlink(&outside, home.join("link")).unwrap();
        symlink(outside.join("precious"), home.join("file")).unwrap();
        let folder = Folder::open(&home).unwrap();
        let refusals = [
            folder.read("link/precious").map(drop),
            folder.read("file").map(drop),
            folder.append("file", 0o600).map(drop),
            folder.create_new("link/new", 0o600).map(drop),
            folder.make_dir("link/new", 0o700).map(drop),
            folder.make_dir("link", 0o700).map(drop),
            folder.make_dirs("link/new/deep", 0o700).map(drop),
            folder.remove_file("link/precious"),
            folder.remove_tree("link/precious"),
            folder.rename_new("link/precious", "real/precious").map(drop),
            folder.rename("real", "link/real"),
            folder.give("link/precious", 0, 0),
            folder.folder("link").map(drop),
            folder.folder("..").map(drop),
            folder.read("real/../../outside/precious").map(drop),
            folder.read("/etc/passwd").map(drop),
        ];
        for refused in refusals {
            let error = refused.unwrap_err();
            assert!(is_refusal(&error), "{error}");
        }
        assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "precious");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(folder.file_len("file").unwrap(), None);
        folder.remove_tree("link").unwrap();
        folder.remove_file("file").unwrap();
        assert!(outside.join("precious").exists());
    }

    #[test]
    fn a_pipe_in_place_of_a_file_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("pipe"), Mode::S_IRWXU).unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        for error in [folder.read("pipe").unwrap_err(), folder.append("pipe", 0o600).unwrap_err()] {
            assert!(error.to_string().ends_with("is no plain file"), "{error}");
        }
    }

    #[test]
    fn an_own_directory_is_no_link_and_closed_to_others() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        assert_eq!(Folder::open_own(&own).unwrap_err().kind(), io::ErrorKind::NotFound);
        let folder = Folder::make_own(&own, 0o711).unwrap();
        assert_eq!(folder.stat().unwrap().st_mode & 0o7777, 0o711);
        Folder::make_own(&own, 0o711).unwrap();
        Folder::open_own(&own).unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Folder::open_own(&own).unwrap_err();
        assert!(error.to_string().contains("not a directory of ours alone"), "{error}");
        symlink("/etc", dir.path().join("link")).unwrap();
        assert!(is_refusal(&Folder::make_own(&dir.path().join("link"), 0o700).unwrap_err()));
    }

    #[test]
    fn what_is_ours_is_made_renamed_listed_and_removed() {
        use std::io::Write;
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::resolve(dir.path()).unwrap();
        let deep = folder.make_dirs("a/b", 0o700).unwrap();
        assert!(!folder.make_dir("a", 0o700).unwrap());
        deep.create_new("x", 0o600).unwrap().write_all(b"12345").unwrap();
        assert_eq!(folder.file_len("a/b/x").unwrap(), Some(5));
        assert!(folder.rename_new("a/b/x", "a/y").unwrap());
        deep.create_new("x", 0o600).unwrap();
        assert!(!folder.rename_new("a/b/x", "a/y").unwrap());
        let listed = folder.folder("a").unwrap().list().unwrap();
        let names: Vec<_> = listed.iter().map(|e| (e.name.to_str().unwrap(), e.kind)).collect();
        assert_eq!(names, [("b", EntryKind::Folder), ("y", EntryKind::File)]);
        let a = folder.folder("a").unwrap();
        assert_eq!(a.list_up_to(2).unwrap(), Some(listed));
        assert_eq!(a.list_up_to(1).unwrap(), None);
        folder.sync().unwrap();
        folder.remove_tree("a").unwrap();
        assert_eq!(folder.list().unwrap(), []);
    }
}
