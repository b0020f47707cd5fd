//! A directory that is read and believed, but not kept: what is in it says whom this process speaks to
//! and with which secret. Root may have made it, or this user, and nobody else.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, fstat};

use crate::folder::{EntryKind, Folder};
use crate::others::{self, my_name};
use crate::{Refused, resolve, user_name};

/// No file that is read here is longer.
const TEXT_MAX: u64 = 64 << 10;

/// Group and others may write.
const OPEN: u32 = 0o022;

#[derive(Debug, thiserror::Error)]
pub enum NotTrusted {
    #[error("{} belongs to {owner}, and this runs as {me}", path.display())]
    Foreign { path: PathBuf, owner: String, me: String },
    #[error("{} can be written by others than {me} (mode {mode:04o})", path.display())]
    Open { path: PathBuf, mode: u32, me: String },
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Held by its handle: what is looked at is what is read, whatever the path means meanwhile.
#[derive(Debug)]
pub struct TrustedDir {
    folder: Folder,
}

impl TrustedDir {
    pub fn open(path: &Path) -> Result<TrustedDir, NotTrusted> {
        let failed = |source| NotTrusted::Io { path: path.to_owned(), source };
        let folder = Folder::resolve(path).map_err(failed)?;
        let stat = folder.stat().map_err(failed)?;
        check(folder.path(), &stat, stat.st_mode & OPEN != 0)?;
        Ok(TrustedDir { folder })
    }

    /// The text of a file in it; a link is none.
    pub fn text(&self, name: &str) -> Result<String, NotTrusted> {
        let path = self.folder.path().join(name);
        text_of(self.folder.read(name), &path)
    }
}

/// The text of a file that root or this user has written, wherever it is. Links are followed: they lead
/// to another file that is believed, or to none.
pub fn read_trusted(path: &Path) -> Result<String, NotTrusted> {
    // Whoever put a pipe there would have this process wait.
    let opened = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    text_of(opened, path)
}

fn text_of(opened: io::Result<File>, path: &Path) -> Result<String, NotTrusted> {
    let failed = |source| NotTrusted::Io { path: path.to_owned(), source };
    let file = opened.map_err(failed)?;
    let stat = fstat(&file).map_err(|e| failed(e.into()))?;
    if EntryKind::of(&stat) != EntryKind::File {
        return Err(failed(Refused::NoFile { path: path.to_owned() }.into()));
    }
    check(path, &stat, others::can_write(&stat))?;
    let mut text = String::new();
    file.take(TEXT_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn check(path: &Path, stat: &FileStat, open: bool) -> Result<(), NotTrusted> {
    let path = path.to_owned();
    if !resolve::is_trusted(stat.st_uid) {
        return Err(NotTrusted::Foreign { path, owner: user_name(stat.st_uid), me: my_name() });
    }
    if open {
        return Err(NotTrusted::Open { path, mode: stat.st_mode & 0o7777, me: my_name() });
    }
    Ok(())
}

/// Whether this user may be told what only root and this process's user may know.
pub fn is_trusted_user(uid: u32) -> bool {
    resolve::is_trusted(uid)
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

    fn said(dir: &Path) -> String {
        match TrustedDir::open(dir).and_then(|dir| dir.text("endpoint")) {
            Ok(text) => text,
            Err(refused) => refused.to_string(),
        }
    }

    #[test]
    fn what_others_can_write_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, file) = (dir.path(), dir.path().join("endpoint"));
        fs::write(&file, "here").unwrap();
        assert_eq!(said(dir), "here");
        for mode in [0o770, 0o702, 0o1777] {
            set_mode(dir, mode);
            assert!(said(dir).contains(&format!("others than {} (mode", my_name())), "{mode:o}");
        }
        set_mode(dir, 0o755);
        set_mode(&file, 0o646);
        assert!(said(dir).contains("endpoint can be written by others"), "{}", said(dir));
        assert!(read_trusted(&file).is_err());
        set_mode(&file, 0o644);
        assert_eq!(said(dir), "here");
    }

    #[test]
    fn what_somebody_else_owns_is_not_believed() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (dir, file) = (dir.path(), dir.path().join("endpoint"));
        fs::write(&file, "here").unwrap();
        chown(&file, Some(61_001), None).unwrap();
        assert!(said(dir).contains("endpoint belongs to user 61001, and this runs as root"));
        assert!(read_trusted(&file).is_err());
        chown(&file, Some(0), None).unwrap();
        chown(dir, Some(61_001), None).unwrap();
        assert!(said(dir).contains("belongs to user 61001"), "{}", said(dir));
    }

    /// As an attacker's directory would have them: a link to somebody's secret, a pipe to wait at.
    #[test]
    fn links_and_pipes_in_it_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, file) = (dir.path(), dir.path().join("endpoint"));
        let secret = dir.join("secret");
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, &file).unwrap();
        assert!(said(dir).contains("is a link"), "{}", said(dir));
        assert_eq!(read_trusted(&file).unwrap(), "secret", "a place of one's own may be a link");
        fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(said(dir).contains("no plain file"), "{}", said(dir));
        assert!(read_trusted(&file).is_err());
    }
}
