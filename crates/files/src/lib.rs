//! File work at paths that somebody else controls.
//!
//! A path is only a name: whoever owns a directory on the way may put a link in its place at any
//! moment, also between a look and a deed. So nothing here is done by path. A [`Folder`] is a handle
//! of a directory; what is below it is reached one component at a time, and no link is followed:
//!
//! ```text
//! path ──resolve: only links that nobody else can have put there──► Folder
//! Folder ──openat(O_NOFOLLOW) for each component──► Folder ──► openat, unlinkat, renameat …
//! ```
//!
//! [`Acting`] says with whose rights that happens: a process of root takes on the rights of the
//! directory's owner or of a job's user, so that the kernel refuses what that user could not do.
//! [`OwnDir`] says whether a directory is ours alone, [`TrustedDir`] whether one is root's or ours.
//!
//! Component by component on every kernel, and not by openat2: there is one rule to get right, and
//! seccomp filters and old kernels do not change it.

mod acting;
mod folder;
mod others;
mod own_dir;
mod resolve;
mod tree;
mod trusted_dir;

pub use acting::{ActedFolder, Acting, UserIds, act_as, is_privileged};
pub use folder::{Entry, EntryKind, Folder};
pub use others::user_name;
pub use own_dir::{OwnDir, OwnDirError};
pub use trusted_dir::{NotTrusted, TrustedDir, is_trusted_user, read_trusted};

use std::io;
use std::path::PathBuf;

/// Why a path is not used. It comes as the source of an [`io::Error`] of the kind `PermissionDenied`.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{} is a link, and links are not followed here", path.display())]
    Link { path: PathBuf },
    #[error(
        "{} is a link that user {owner} can have put there: name the directory that is meant",
        path.display()
    )]
    ForeignLink { path: PathBuf, owner: u32 },
    #[error("{} is no plain file", path.display())]
    NoFile { path: PathBuf },
    #[error("{} is no path below a directory", path.display())]
    Outside { path: PathBuf },
    #[error(
        "{} belongs to user {owner}: run this command as that user, as in `sudo -u '#{owner}' …`",
        path.display()
    )]
    ForeignOwner { path: PathBuf, owner: u32 },
    #[error(
        "{} is not a directory of ours alone, but of user {owner} or open to others: remove it",
        path.display()
    )]
    NotOurs { path: PathBuf, owner: u32 },
    #[error("can't take on the rights of user {uid}")]
    NotThatUser { uid: u32 },
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, refused)
    }
}

/// Whether this error says that a path was not used for what it is.
pub fn is_refusal(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Refused>())
}
