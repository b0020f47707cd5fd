//! With whose rights.
//!
//! Root takes on the identity of a user for the file system alone, for one thread, for as long as one
//! piece of work: the kernel then refuses what that user may not do, whatever links and mounts are in
//! the way.

use std::ffi::CString;
use std::io;
use std::path::Path;

use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist, getgroups};

use crate::folder::Folder;
use crate::{Refused, resolve};

/// A user, as the file system knows one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserIds {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl UserIds {
    /// None: this machine has no such user.
    pub fn of_name(name: &str) -> io::Result<Option<UserIds>> {
        User::from_name(name)?.map(UserIds::of).transpose()
    }

    /// A uid without an account has the group that is given, and no other.
    pub fn of_uid(uid: u32, gid: u32) -> io::Result<UserIds> {
        match User::from_uid(Uid::from_raw(uid))? {
            Some(user) => UserIds::of(user),
            None => Ok(UserIds { uid, gid, groups: vec![gid] }),
        }
    }

    fn of(user: User) -> io::Result<UserIds> {
        let name = CString::new(user.name)?;
        let groups = getgrouplist(&name, user.gid)?.into_iter().map(Gid::as_raw).collect();
        Ok(UserIds { uid: user.uid.as_raw(), gid: user.gid.as_raw(), groups })
    }
}

/// Whether this process may do what other users may not.
pub fn is_privileged() -> bool {
    geteuid().is_root()
}

/// Does this with a user's rights on files. Only this thread is that user meanwhile, and the threads
/// that it begins.
pub fn act_as<T>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T) -> io::Result<T> {
    let _back = Switched::to(uid, gid, groups)?;
    Ok(work())
}

/// Undoes itself, also when the work panics.
struct Switched {
    uid: libc::c_int,
    gid: libc::c_int,
    groups: Vec<u32>,
}

impl Switched {
    fn to(uid: u32, gid: u32, groups: &[u32]) -> io::Result<Switched> {
        let own: Vec<u32> = getgroups()?.into_iter().map(Gid::as_raw).collect();
        // SAFETY: plain system calls on valid lists. The raw call changes this thread only, where the
        // C library's function would change all of them.
        let switched = unsafe {
            if libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let gid = libc::setfsgid(gid);
            Switched { gid, uid: libc::setfsuid(uid), groups: own }
        };
        // They say no more than who it was before; asking again says who it is.
        // SAFETY: an invalid id changes nothing.
        let now = unsafe { (libc::setfsuid(u32::MAX), libc::setfsgid(u32::MAX)) };
        match now == (uid as libc::c_int, gid as libc::c_int) {
            true => Ok(switched),
            false => Err(Refused::NotThatUser { uid }.into()),
        }
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        // SAFETY: as above.
        let back = unsafe {
            libc::setfsuid(self.uid as u32);
            libc::setfsgid(self.gid as u32);
            let set = libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr());
            set == 0 && libc::setfsuid(u32::MAX) == self.uid
        };
        if !back {
            // Nothing that follows on this thread would be done as who it believes to be.
            std::process::abort();
        }
    }
}

/// Who does what is to be done to a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Acting {
    /// This process as it is: for programs that work on their own user's files.
    #[default]
    Myself,
    /// For tools that an administrator uses on directories of others: with the rights of the
    /// directory's owner; in one of root's own, never on what belongs to somebody else. The same as
    /// [`Acting::Myself`] for everybody but root.
    Owner,
    /// With the rights of this user; for everybody but root that is themselves.
    User(UserIds),
}

/// A directory, and who acts in it.
#[derive(Debug)]
pub struct ActedFolder {
    folder: Folder,
    user: Option<UserIds>,
    /// Nobody else's files are changed.
    only_of: Option<u32>,
}

impl Acting {
    /// The directory at this path.
    pub fn open(&self, path: &Path) -> io::Result<ActedFolder> {
        match self.for_whom() {
            Acting::Myself => Ok(Folder::open(path)?.into()),
            Acting::Owner => ActedFolder::as_owner(Folder::resolve(path)?),
            Acting::User(user) => {
                let folder = user.act(|| Folder::open(path))??;
                Ok(ActedFolder { folder, user: Some(user.clone()), only_of: None })
            }
        }
    }

    /// The same; what is missing of the path is made first.
    pub fn make(&self, path: &Path, mode: u32) -> io::Result<ActedFolder> {
        match self.for_whom() {
            Acting::Myself => {
                make_all(path, mode)?;
                self.open(path)
            }
            Acting::Owner => {
                let found = resolve::nearest(path)?;
                let above = ActedFolder::as_owner(found.folder)?;
                let made = above.act(|folder| folder.make_dirs(&found.missing, mode))?;
                ActedFolder::as_owner(made)
            }
            Acting::User(user) => {
                user.act(|| make_all(path, mode))??;
                self.open(path)
            }
        }
    }

    /// Anything else that is done by path, such as a look. With the rights of a user where one is
    /// named.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        match self.for_whom() {
            Acting::User(user) => user.act(work),
            _ => Ok(work()),
        }
    }

    fn for_whom(&self) -> &Acting {
        if is_privileged() { self } else { &Acting::Myself }
    }
}

fn make_all(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

impl UserIds {
    fn act<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        act_as(self.uid, self.gid, &self.groups, work)
    }
}

impl From<Folder> for ActedFolder {
    fn from(folder: Folder) -> ActedFolder {
        ActedFolder { folder, user: None, only_of: None }
    }
}

impl ActedFolder {
    fn as_owner(folder: Folder) -> io::Result<ActedFolder> {
        let stat = folder.stat()?;
        if stat.st_uid == geteuid().as_raw() {
            return Ok(ActedFolder { folder, user: None, only_of: Some(stat.st_uid) });
        }
        let user = UserIds::of_uid(stat.st_uid, stat.st_gid)?;
        Ok(ActedFolder { folder, user: Some(user), only_of: None })
    }

    /// Looks, reads, and makes what nobody else has.
    pub fn act<T>(&self, work: impl FnOnce(&Folder) -> io::Result<T>) -> io::Result<T> {
        match &self.user {
            Some(user) => user.act(|| work(&self.folder))?,
            None => work(&self.folder),
        }
    }

    /// Removes, renames, or makes something in the directory of `below`: refused where that or the
    /// directory belongs to somebody whom this process does not act for.
    pub fn change<T>(
        &self,
        below: &str,
        work: impl FnOnce(&Folder) -> io::Result<T>,
    ) -> io::Result<T> {
        if let Some(own) = self.only_of {
            self.refuse_others(Path::new(below), own)?;
        }
        self.act(work)
    }

    /// Root's directories stay root's while somebody looks: who is refused here owned it before.
    fn refuse_others(&self, below: &Path, own: u32) -> io::Result<()> {
        let mut at = std::path::PathBuf::new();
        for component in below.components() {
            at.push(component);
            let owner = match self.folder.stat_of(&at) {
                Ok(stat) => stat.st_uid,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(e) => return Err(e),
            };
            if owner != own {
                let path = self.folder.path().join(&at);
                return Err(Refused::ForeignOwner { path, owner }.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;
    use crate::is_refusal;

    const ALICE: u32 = 61_001;
    const BOB: u32 = 61_002;

    /// Readable to everybody, with a directory of each.
    fn two_homes() -> Option<tempfile::TempDir> {
        if !is_privileged() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for (name, uid) in [("alice", ALICE), ("bob", BOB)] {
            let home = dir.path().join(name);
            fs::create_dir(&home).unwrap();
            chown(&home, Some(uid), Some(uid)).unwrap();
        }
        Some(dir)
    }

    #[test]
    fn root_acts_with_the_rights_of_the_owner_and_is_root_again() {
        let Some(dir) = two_homes() else { return };
        let bob = dir.path().join("bob");
        fs::write(bob.join("private"), "").unwrap();
        fs::set_permissions(bob.join("private"), fs::Permissions::from_mode(0o600)).unwrap();
        let open = || fs::File::open(bob.join("private"));
        let refused = act_as(ALICE, ALICE, &[ALICE], open).unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(open().is_ok());
        let panicked = std::panic::catch_unwind(|| act_as(ALICE, ALICE, &[], || panic!("at work")));
        assert!(panicked.is_err() && open().is_ok());

        let alice = dir.path().join("alice");
        let made = Acting::Owner.make(&alice.join("a/b"), 0o755).unwrap();
        made.change("x", |folder| folder.create_new("x", 0o600)).unwrap();
        let owner = |below: &str| Folder::open(&alice).unwrap().stat_of(below).unwrap().st_uid;
        assert_eq!((owner("a"), owner("a/b"), owner("a/b/x")), (ALICE, ALICE, ALICE));
    }

    #[test]
    fn a_link_in_somebodys_home_leads_root_nowhere() {
        let Some(dir) = two_homes() else { return };
        let (alice, bob) = (dir.path().join("alice"), dir.path().join("bob"));
        symlink(&bob, alice.join("ckpt")).unwrap();
        // Made by root, but alice could have put another in its place.
        let error = Acting::Owner.open(&alice.join("ckpt")).unwrap_err();
        assert!(is_refusal(&error), "{error}");
        // As alice it is hers to follow, and bob's files are as closed to it as to her.
        let user = Acting::User(UserIds { uid: ALICE, gid: ALICE, groups: vec![ALICE] });
        let acted = user.open(&alice.join("ckpt")).unwrap();
        let error = acted.change("x", |folder| folder.create_new("x", 0o600)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn in_roots_own_directory_what_others_own_is_left_alone() {
        let Some(dir) = two_homes() else { return };
        fs::write(dir.path().join("alice/x"), "").unwrap();
        let acted = Acting::Owner.open(dir.path()).unwrap();
        let error = acted.change("alice/x", |folder| folder.remove_file("alice/x")).unwrap_err();
        assert!(is_refusal(&error), "{error}");
        assert!(error.to_string().contains("sudo -u '#61001'"), "{error}");
        assert!(dir.path().join("alice/x").exists());
        fs::write(dir.path().join("own"), "").unwrap();
        acted.change("own", |folder| folder.remove_file("own")).unwrap();
    }
}
