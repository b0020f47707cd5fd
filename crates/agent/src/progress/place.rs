//! Where the socket of a part is: a path that its ranks can reach and name (the kernel allows 107
//! bytes), and nobody else can.
//!
//! ```text
//! DATA_DIR/run/12_3@7             ranks run as the agent's own user; the data dir is closed
//! /run/tutti-1f6e0c2a9b3d4857/…   ranks run as somebody else, or the data dir's path is too long
//! ```
//!
//! The second kind of directory may be entered but not listed, and each socket in it belongs to
//! the user of its job.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, geteuid};
use tutti_model::LeaseId;

use crate::plan::Identity;

/// The longest path of a socket.
const PATH_MAX: usize = 107;

/// The two directories of one agent.
#[derive(Clone, Debug)]
pub struct Places {
    own: PathBuf,
    shared: PathBuf,
}

impl Places {
    pub fn new(data_dir: &Path) -> Places {
        let base = if geteuid().is_root() && Path::new("/run").is_dir() { "/run" } else { "/tmp" };
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
        for dir in [&self.own, &self.shared] {
            remove(&dir.join(lease.to_string()));
        }
    }

    /// Removes the directories, as far as they are empty.
    pub fn leave(&self) {
        for dir in [&self.own, &self.shared] {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

/// Most often there is nothing to remove; and what can't be removed is in nobody's way.
pub fn remove(socket: &Path) {
    let _ = std::fs::remove_file(socket);
}

/// Listens at this path. `identity` is whom the ranks run as, if that is not us.
pub fn listen(path: &Path, identity: Option<&Identity>) -> io::Result<UnixListener> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let listener = match bind(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            make_dir(dir)?;
            bind(path)
        }
        // A part starts once, so this is of a shim that was killed.
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            std::fs::remove_file(path)?;
            bind(path)
        }
        bound => bound,
    }?;
    let opened = check_dir(dir).and_then(|()| hand_over(path, identity));
    if let Err(error) = opened {
        remove(path);
        return Err(error);
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Nobody but us, from the first moment on.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let before = umask(Mode::from_bits_truncate(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    bound
}

fn hand_over(path: &Path, identity: Option<&Identity>) -> io::Result<()> {
    let Some(identity) = identity else { return Ok(()) };
    Ok(nix::unistd::chown(
        path,
        Some(Uid::from_raw(identity.uid)),
        Some(Gid::from_raw(identity.gid)),
    )?)
}

fn make_dir(dir: &Path) -> io::Result<()> {
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    let before = umask(Mode::empty());
    let made = DirBuilder::new().mode(mode).create(dir);
    umask(before);
    match made {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// In a place like /tmp somebody else may have been there first.
fn check_dir(dir: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(dir)?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = format!("{} is not a directory of ours alone: remove it", dir.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// The process at the other end, if it may speak for this part. The file's mode says so already;
/// this is for one that somebody has changed.
pub fn may_speak(stream: &UnixStream, identity: Option<&Identity>) -> Option<i32> {
    let peer = getsockopt(stream, PeerCredentials).ok()?;
    let wanted = identity.map_or(geteuid().as_raw(), |i| i.uid);
    (peer.uid() == wanted || peer.uid() == 0).then_some(peer.pid())
}
