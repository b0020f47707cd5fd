//! Whether a directory is ours alone: what is in it decides what this process does, so nobody else
//! may have a hand in it.
//!
//! That is looked at once, when a process starts. It stays so, because what is looked for is exactly
//! what would let somebody else change it: an owner, a mode, a link that leads elsewhere.

use std::io;
use std::path::{Path, PathBuf};

use nix::sys::stat::FileStat;

use crate::folder::{EntryKind, Folder};
use crate::others::{self, my_name};
use crate::{acting, resolve, user_name};

const STICKY: u32 = 0o1000;
/// Group and others may write.
const OPEN: u32 = 0o022;
/// Group and others may look further down.
const ENTERED: u32 = 0o011;

#[derive(Debug, thiserror::Error)]
pub enum OwnDirError {
    #[error(
        "{} belongs to {owner}, and this runs as {me}: what is in it would be trusted with {me}'s rights; run it as {owner}, choose another directory, or, if all of it is yours: chown -R {me} {}",
        path.display(), path.display()
    )]
    ForeignOwner { path: PathBuf, owner: String, me: String },
    #[error(
        "{} can be written by others than {me} (mode {mode:04o}): look at what is in it, then chmod go-w {}",
        path.display(), path.display()
    )]
    Open { path: PathBuf, mode: u32, me: String },
    #[error(
        "{} is above the directory and others than root can change it (owner {owner}, group {group}, mode {mode:04o}): choose a directory that only root can move",
        path.display()
    )]
    OpenAbove { path: PathBuf, owner: String, group: String, mode: u32 },
    #[error(
        "{} is a link to {}: no link is followed inside of the directory; remove it, or put what it stands for in its place",
        path.display(), to.display()
    )]
    Link { path: PathBuf, to: PathBuf },
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl OwnDirError {
    /// The disk, and not what is on it.
    pub fn io(self) -> Result<io::Error, OwnDirError> {
        match self {
            OwnDirError::Io { source, .. } => Ok(source),
            other => Err(other),
        }
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> OwnDirError {
    let path = path.to_owned();
    move |source| OwnDirError::Io { path, source }
}

/// A directory that this process keeps its own files in.
#[derive(Clone, Copy, Debug)]
pub struct OwnDir<'a> {
    path: &'a Path,
    /// Names of directories in it whose contents other processes look after.
    left_out: &'a [&'a str],
}

impl<'a> OwnDir<'a> {
    pub fn new(path: &'a Path) -> OwnDir<'a> {
        OwnDir { path, left_out: &[] }
    }

    pub fn leaving_out(path: &'a Path, names: &'a [&'a str]) -> OwnDir<'a> {
        OwnDir { path, left_out: names }
    }

    /// Makes it if it is missing, and looks at all of it. The answer is its path without links.
    pub fn make(&self, mode: u32) -> Result<PathBuf, OwnDirError> {
        self.look(Some(mode))
    }

    /// Looks at one that is there.
    pub fn check(&self) -> Result<PathBuf, OwnDirError> {
        self.look(None)
    }

    fn look(&self, make: Option<u32>) -> Result<PathBuf, OwnDirError> {
        let found = resolve::nearest(self.path).map_err(failed(self.path))?;
        let (last, above) = match found.missing.as_os_str().is_empty() {
            true => found.visited.split_last().map_or((None, &[][..]), |(l, a)| (Some(l), a)),
            false => (None, &found.visited[..]),
        };
        above.iter().try_for_each(|dir| check_above(&dir.path, &dir.stat))?;
        if let Some(dir) = last {
            check_top(&dir.path, &dir.stat)?;
        }
        let folder = match make {
            Some(mode) => found.folder.make_dirs(&found.missing, mode),
            None => found.folder.folder(&found.missing),
        };
        let folder = folder.map_err(failed(self.path))?;
        let stat = folder.stat().map_err(failed(folder.path()))?;
        check_top(folder.path(), &stat)?;
        self.check_inside(&folder, &stat)?;
        Ok(folder.path().to_owned())
    }

    /// What is mounted in it, a cgroup hierarchy for one, is root's doing and not looked into.
    fn check_inside(&self, top: &Folder, about: &FileStat) -> Result<(), OwnDirError> {
        let entered = about.st_mode & ENTERED != 0;
        let mut waiting = vec![(None, PathBuf::new())];
        while let Some((stat, below)) = waiting.pop() {
            let path = top.path().join(&below);
            if let Some(stat) = stat {
                check_entry(&path, &stat, entered)?;
            }
            // What a process that ends removes meanwhile is no concern.
            let folder = match top.folder(&below) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                found => found.map_err(failed(&path))?,
            };
            for entry in folder.list().map_err(failed(&path))? {
                let (path, name) = (path.join(&entry.name), entry.name.to_str());
                let is_top = below.as_os_str().is_empty();
                if entry.kind == EntryKind::Link {
                    let to = std::fs::read_link(folder.through().join(&entry.name));
                    return Err(OwnDirError::Link { path, to: to.unwrap_or_default() });
                }
                let stat = match folder.stat_one(&entry.name) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    found => found.map_err(failed(&path))?,
                };
                if entry.kind != EntryKind::Folder
                    || stat.st_dev != about.st_dev
                    || (is_top && name.is_some_and(|n| self.left_out.contains(&n)))
                {
                    check_entry(&path, &stat, entered)?;
                } else {
                    waiting.push((Some(stat), below.join(&entry.name)));
                }
            }
        }
        Ok(())
    }
}

fn check_top(path: &Path, stat: &FileStat) -> Result<(), OwnDirError> {
    check_owner(path, stat)?;
    if stat.st_mode & OPEN != 0 {
        return Err(open(path, stat));
    }
    Ok(())
}

/// `entered`: others can come as far as this.
fn check_entry(path: &Path, stat: &FileStat, entered: bool) -> Result<(), OwnDirError> {
    check_owner(path, stat)?;
    let is_socket = EntryKind::of(stat) == EntryKind::Other;
    if entered && !is_socket && others::can_write(stat) {
        return Err(open(path, stat));
    }
    Ok(())
}

fn check_owner(path: &Path, stat: &FileStat) -> Result<(), OwnDirError> {
    if resolve::is_trusted(stat.st_uid) {
        return Ok(());
    }
    let (owner, me) = (user_name(stat.st_uid), my_name());
    Err(OwnDirError::ForeignOwner { path: path.to_owned(), owner, me })
}

/// Whoever can rename a directory above can put another in its place: others, or a group. For users without root's rights
/// that is for them to know: project directories of others are common.
fn check_above(path: &Path, stat: &FileStat) -> Result<(), OwnDirError> {
    let closed = !others::can_write(stat) || stat.st_mode & STICKY != 0;
    if !acting::is_privileged() || (resolve::is_trusted(stat.st_uid) && closed) {
        return Ok(());
    }
    let (owner, group) = (user_name(stat.st_uid), others::group_name(stat.st_gid));
    let mode = stat.st_mode & 0o7777;
    Err(OwnDirError::OpenAbove { path: path.to_owned(), owner, group, mode })
}

fn open(path: &Path, stat: &FileStat) -> OwnDirError {
    let (mode, me) = (stat.st_mode & 0o7777, my_name());
    OwnDirError::Open { path: path.to_owned(), mode, me }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use nix::unistd::geteuid;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refusal(path: &Path) -> String {
        OwnDir::new(path).make(0o700).unwrap_err().to_string()
    }

    #[test]
    fn it_is_made_found_again_and_reached_through_own_links() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("a/own");
        assert_eq!(OwnDir::new(&own).make(0o700).unwrap(), own);
        fs::create_dir_all(own.join("logs/1/1")).unwrap();
        fs::write(own.join("logs/1/1/0.log"), "").unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        assert_eq!(OwnDir::new(&dir.path().join("link/own")).make(0o700).unwrap(), own);
        // Others may read it.
        set_mode(&own, 0o755);
        OwnDir::new(&own).check().unwrap();
        assert!(OwnDir::new(&own.join("none")).check().unwrap_err().io().is_ok());
    }

    #[test]
    fn one_that_others_can_write_is_refused_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let own = OwnDir::new(&dir.path().join("own")).make(0o755).unwrap();
        for mode in [0o775, 0o757, 0o1777] {
            set_mode(&own, mode);
            let said = refusal(&own);
            assert!(said.contains(&format!("chmod go-w {}", own.display())), "{said}");
        }
        set_mode(&own, 0o755);
        fs::create_dir(own.join("logs")).unwrap();
        set_mode(&own.join("logs"), 0o777);
        assert!(refusal(&own).contains("logs can be written by others"), "{}", refusal(&own));
        set_mode(&own, 0o700);
        OwnDir::new(&own).make(0o700).unwrap();
    }

    /// A file deep inside decides as much as one at the top: part records say what runs as whom.
    #[test]
    fn a_file_deep_inside_that_others_have_a_hand_in_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let own = OwnDir::new(&dir.path().join("own")).make(0o755).unwrap();
        fs::create_dir_all(own.join("parts/7")).unwrap();
        let record = own.join("parts/7/record");
        fs::write(&record, "").unwrap();
        set_mode(&record, 0o666);
        assert!(refusal(&own).contains("parts/7/record can be written by others"));
        // Nobody else comes as far as that.
        set_mode(&own, 0o700);
        OwnDir::new(&own).make(0o700).unwrap();
        if geteuid().is_root() {
            chown(&record, Some(61_001), None).unwrap();
            assert!(refusal(&own).contains("parts/7/record belongs to user 61001"));
            OwnDir::leaving_out(&own, &["parts"]).make(0o700).unwrap();
        }
    }

    /// Whoever may rename `a` can put another `a/own` in its place.
    #[test]
    fn for_root_no_group_may_write_above() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let own = OwnDir::new(&dir.path().join("a/own")).make(0o700).unwrap();
        let above = dir.path().join("a");
        chown(&above, None, Some(61_001)).unwrap();
        set_mode(&above, 0o770);
        let said = refusal(&own);
        assert!(said.contains("is above the directory"), "{said}");
        assert!(said.contains("owner root, group 61001, mode 0770"), "{said}");
        // As in /tmp, nobody moves what is not theirs.
        set_mode(&above, 0o1770);
        OwnDir::new(&own).make(0o700).unwrap();
        set_mode(&above, 0o750);
        OwnDir::new(&own).make(0o700).unwrap();
    }

    #[test]
    fn a_link_anywhere_in_it_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let own = OwnDir::new(&dir.path().join("own")).make(0o700).unwrap();
        fs::create_dir_all(own.join("a/b")).unwrap();
        symlink("/etc/passwd", own.join("a/b/journal")).unwrap();
        let said = refusal(&own);
        assert!(said.contains("a/b/journal is a link to /etc/passwd"), "{said}");
        OwnDir::leaving_out(&own, &["a"]).make(0o700).unwrap();
    }

    #[test]
    fn what_somebody_else_owns_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let own = OwnDir::new(&dir.path().join("a/own")).make(0o700).unwrap();
        fs::write(own.join("journal"), "").unwrap();
        chown(own.join("journal"), Some(61_001), None).unwrap();
        let said = refusal(&own);
        assert!(said.contains("journal belongs to user 61001, and this runs as root"), "{said}");
        fs::remove_file(own.join("journal")).unwrap();
        chown(&own, Some(61_001), None).unwrap();
        assert!(refusal(&own).contains("own belongs to user 61001"));
        chown(&own, Some(0), None).unwrap();
        chown(dir.path().join("a"), Some(61_001), None).unwrap();
        let said = refusal(&own);
        assert!(said.contains("is above the directory") && said.contains("user 61001"), "{said}");
    }
}
