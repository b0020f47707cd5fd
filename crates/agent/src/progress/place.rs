//! Where the socket of a part is: a path that its ranks can reach and name (the kernel allows 107
//! bytes), and nobody else can.
//!
//! ```text
//! DATA_DIR/run/12_3@7             ranks run as the agent's own user; the data dir is closed
//! /run/tutti-1f6e0c2a9b3d4857/…   ranks run as somebody else, or the data dir's path is too long
//! ```
//!
//! The second kind of directory may be entered but not listed, and each socket in it belongs to
//! the user of its job. Somebody else may have put something there first, where it is in `/tmp`: so
//! what is done in it is done by the handle of a directory that was found to be ours alone.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{AccessFlags, access, geteuid};
use tutti_files::Folder;
use tutti_model::LeaseId;

use crate::plan::Identity;

/// The longest path of a socket.
const PATH_MAX: usize = 107;
/// How often a place is made ready.
const TRIES: u32 = 10;

/// The two directories of one agent.
#[derive(Clone, Debug)]
pub struct Places {
    own: PathBuf,
    shared: PathBuf,
}

impl Places {
    pub fn new(data_dir: &Path) -> Places {
        let run = geteuid().is_root() && access("/run", AccessFlags::W_OK).is_ok();
        let base = if run { "/run" } else { "/tmp" };
        let mark = blake3::hash(data_dir.as_os_str().as_encoded_bytes()).to_hex();
        Places {
            own: data_dir.join("run"),
            shared: Path::new(base).join(format!("tutti-{}", &mark[..16])),
        }
    }

    /// `switched`: the ranks run as another user than the agent.
    pub fn socket(&self, lease: LeaseId, switched: bool) -> PathBuf {
        let own = self.own.join(lease.to_string());
        if switched || own.as_os_str().len() > PATH_MAX {
            return self.shared.join(lease.to_string());
        }
        own
    }

    /// Removes what a shim left that was killed.
    pub fn sweep(&self, lease: LeaseId) {
        let name = lease.to_string();
        for dir in [&self.own, &self.shared] {
            let socket = dir.join(&name);
            remove(&socket);
        }
        let _ = std::fs::remove_dir(&self.shared);
    }

    /// Removes the agent's own directory, if it is empty.
    pub fn leave(&self) {
        let _ = std::fs::remove_dir(&self.own);
    }
}

/// The file beside the socket in which ranks find what they are warned of.
pub fn warnings(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".warn");
    PathBuf::from(name)
}

/// Makes it, empty.
pub fn open_warnings(socket: &Path, identity: Option<&Identity>) -> io::Result<File> {
    let path = warnings(socket);
    let (dir, name) = split(&path);
    let file = Folder::open_own(dir)?.append(name, 0o600)?;
    file.set_len(0)?;
    if let Some(identity) = identity {
        std::os::unix::fs::fchown(&file, Some(identity.uid), Some(identity.gid))?;
    }
    Ok(file)
}

/// Removes the socket, and the directory outside of `home` that it was the last in.
pub fn close(home: &Path, socket: &Path) {
    remove(socket);
    if let Some(dir) = socket.parent().filter(|dir| !dir.starts_with(home)) {
        let _ = std::fs::remove_dir(dir);
    }
}

fn split(path: &Path) -> (&Path, &OsStr) {
    (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default())
}

/// The socket and what is beside it. Most often there is nothing to remove; and what can't be removed
/// is in nobody's way.
fn remove(socket: &Path) {
    if let Ok(folder) = Folder::open_own(split(socket).0) {
        for path in [warnings(socket), socket.to_owned()] {
            let _ = folder.remove_file(split(&path).1);
        }
    }
}

/// Listens at this path. `identity` is whom the ranks run as, if that is not us.
pub fn listen(path: &Path, identity: Option<&Identity>) -> io::Result<UnixListener> {
    let (dir, name) = split(path);
    let mut tries = 0;
    let (folder, listener) = loop {
        tries += 1;
        match Folder::open_own(dir).and_then(|folder| bind(folder, name)) {
            // The last part to leave takes the directory along, perhaps in this very moment.
            Err(e) if e.kind() == io::ErrorKind::NotFound && tries < TRIES => make_dir(dir)?,
            // A part starts once, so this is of a shim that was killed.
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && tries < TRIES => remove(path),
            bound => break bound?,
        }
    };
    if let Some(identity) = identity
        && let Err(error) = folder.give(name, identity.uid, identity.gid)
    {
        remove(path);
        return Err(error);
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Nobody but us, from the first moment on.
fn bind(folder: Folder, name: &OsStr) -> io::Result<(Folder, UnixListener)> {
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(folder.through().join(name));
    umask(before);
    Ok((folder, bound?))
}

fn make_dir(dir: &Path) -> io::Result<()> {
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    Folder::make_own(dir, mode).map(drop)
}

/// The process at the other end, if it may speak for this part. The file's mode says so already;
/// this is for one that somebody has changed.
pub fn may_speak(stream: &UnixStream, identity: Option<&Identity>) -> Option<i32> {
    let peer = getsockopt(stream, PeerCredentials).ok()?;
    let wanted = identity.map_or(geteuid().as_raw(), |i| i.uid);
    (peer.uid() == wanted || peer.uid() == 0).then_some(peer.pid())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::testing::{TempDir, launch};

    #[test]
    fn a_socket_is_where_its_ranks_can_name_it() {
        let lease = launch("12_3", 7).lease;
        let places = Places::new(Path::new("/var/lib/tutti"));
        assert_eq!(places.socket(lease, false), Path::new("/var/lib/tutti/run/12_3@7"));
        let other = places.socket(lease, true);
        assert!(!other.starts_with("/var/lib/tutti"), "{}", other.display());
        let long = Places::new(Path::new(&format!("/home/{}", "x".repeat(100))));
        let elsewhere = long.socket(lease, false);
        assert!(elsewhere.as_os_str().len() <= PATH_MAX && elsewhere != other);
        let largest = launch(&format!("{}_{}", u64::MAX, u32::MAX), u64::MAX).lease;
        assert!(long.socket(largest, true).as_os_str().len() <= PATH_MAX);
    }

    #[test]
    fn what_is_there_already_is_replaced_or_refused() {
        let dir = TempDir::new("place");
        let places = Places::new(dir.path());
        let lease = launch("1", 1).lease;
        let socket = places.socket(lease, false);
        // As if the shim had been killed.
        drop(listen(&socket, None).unwrap());
        assert!(socket.exists());
        let listener = listen(&socket, None).unwrap();
        let stream = UnixStream::connect(&socket).unwrap();
        let (peer, _) = listener.accept().unwrap();
        assert_eq!(may_speak(&peer, None), Some(std::process::id() as i32));
        let own = geteuid().as_raw();
        let somebody = Identity { uid: own + 1, gid: 1, groups: Vec::new() };
        let refused = may_speak(&peer, Some(&somebody)).is_none();
        assert_eq!(refused, own != 0, "root may always");
        drop(stream);
        places.sweep(lease);
        places.leave();
        assert!(!socket.parent().unwrap().exists());
        // Somebody else could put anything there.
        let dir = socket.parent().unwrap();
        std::fs::create_dir(dir).unwrap();
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = listen(&socket, None).unwrap_err();
        assert!(error.to_string().contains("not a directory of ours alone"), "{error}");
        assert!(!socket.exists());
    }

    #[test]
    fn a_link_that_somebody_put_in_the_way_is_neither_used_nor_cleared() {
        let dir = TempDir::new("place-link");
        let victim = dir.path().join("victim");
        std::fs::create_dir(&victim).unwrap();
        let places = Places { own: dir.path().join("run"), shared: dir.path().join("shared") };
        let lease = launch("1", 1).lease;
        for name in ["1@1", "1@1.warn"] {
            std::fs::write(victim.join(name), "precious").unwrap();
        }
        std::os::unix::fs::symlink(&victim, &places.shared).unwrap();
        let socket = places.socket(lease, true);
        let error = listen(&socket, None).unwrap_err();
        assert!(error.to_string().contains("is a link"), "{error}");
        assert!(open_warnings(&socket, None).is_err());
        places.sweep(lease);
        close(Path::new("/elsewhere"), &socket);
        for name in ["1@1", "1@1.warn"] {
            assert_eq!(std::fs::read_to_string(victim.join(name)).unwrap(), "precious");
        }
    }
}
