//! Directories that a part has for itself: `/tmp`, `/var/tmp` and `/dev/shm` are empty when it starts,
//! shared by its ranks, seen by nobody else, and gone with it.
//!
//! ```text
//! /tmp/.tutti-1f6e0c2a9b3d4857/12_3@7  ──bound over──►  /tmp      in the part's own mount namespace
//!   what the part needs of the real /tmp: its working directory, its socket   ──bound into it
//! ```
//!
//! The shim makes the namespace and stays outside; each rank enters it before it becomes the job's
//! user. The directories are on the file systems that they stand for, so that they are as large and as
//! fast as those.
//!
//! Everybody may put something into `/tmp`, also under the name that the agent is about to use. So a base
//! is used, listed and cleared by its handle only, and only if it is a directory of the agent's alone. If somebody
//! else has the name, the agent takes one that nobody can foresee, and finds it again by its beginning and its owner.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use serde::{Deserialize, Serialize};
use tutti_files::Folder;
use tutti_model::LeaseId;

use crate::plan::Identity;

/// Where everybody may write.
const SHARED: [&str; 2] = ["/tmp", "/var/tmp"];
const MEMORY: &str = "/dev/shm";

/// What a shim makes for its part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Private {
    /// Fresh directories, and what each is put over.
    pub dirs: Vec<(PathBuf, PathBuf)>,
    /// Its own `/dev/shm` as well.
    pub memory: bool,
    /// What stays reachable under its own name, if it is there.
    pub keep: Vec<Keep>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Keep {
    pub path: PathBuf,
    /// The job named it: only what its user can reach is bound, or this would be a way around the
    /// permissions of the directories above it.
    pub named: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("no private directories: can't {what} {path}")]
pub struct PrivateError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrivateError {
    let path = path.to_owned();
    move |source| PrivateError { what, path, source }
}

/// The agent's own directory in each of the shared ones.
#[derive(Clone, Debug)]
pub struct Rooms {
    bases: Vec<Base>,
}

#[derive(Clone, Debug)]
struct Base {
    /// Where new parts have theirs.
    dir: PathBuf,
    /// Where parts have theirs that began when another name was taken.
    older: Vec<PathBuf>,
    /// What it is put over.
    target: PathBuf,
}

impl Base {
    fn find(dir: PathBuf, target: PathBuf) -> Base {
        let older = others_of(&dir);
        Base { dir, older, target }
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        std::iter::once(&self.dir).chain(&self.older)
    }

    /// Makes sure that there is a directory of ours, under whatever name.
    fn settle(&mut self) -> Result<(), PrivateError> {
        let Err(refused) = own_folder(&self.dir) else { return Ok(()) };
        if let Some(n) = self.older.iter().position(|dir| own_folder(dir).is_ok()) {
            std::mem::swap(&mut self.dir, &mut self.older[n]);
            return Ok(());
        }
        let fresh = fresh_name(&self.dir).map_err(failed("name", &self.dir))?;
        own_folder(&fresh)?;
        tracing::warn!("{} is used instead: {}", fresh.display(), crate::node::chain(&refused));
        self.older.push(std::mem::replace(&mut self.dir, fresh));
        Ok(())
    }
}

/// Directories of ours whose name begins like this one.
fn others_of(dir: &Path) -> Vec<PathBuf> {
    let (above, name) = base_of(dir);
    let mut begins = name.as_os_str().as_encoded_bytes().to_vec();
    begins.push(b'-');
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    let others = entries.filter(|e| e.file_name().as_encoded_bytes().starts_with(&begins));
    others.map(|e| e.path()).filter(|path| Folder::open_own(path).is_ok()).collect()
}

/// One that nobody can have taken first.
fn fresh_name(dir: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let mut name = dir.as_os_str().to_owned();
    name.push(format!("-{:016x}", u64::from_ne_bytes(random)));
    Ok(name.into())
}

impl Rooms {
    pub fn new(data_dir: &Path) -> Rooms {
        let mark = blake3::hash(data_dir.as_os_str().as_encoded_bytes()).to_hex();
        let name = format!(".tutti-{}", &mark[..16]);
        // One may be a link to the other; and /var/tmp is not everywhere.
        let mut bases: Vec<Base> = Vec::new();
        for target in SHARED.map(PathBuf::from) {
            let Ok(real) = fs::canonicalize(&target) else { continue };
            if !bases.iter().any(|base| base.dir.starts_with(&real)) {
                bases.push(Base::find(real.join(&name), target));
            }
        }
        Rooms { bases }
    }

    /// Makes a namespace as for a part and forgets it, on a thread of its own: what is entered there
    /// is left with it.
    pub fn probe(&mut self) -> Result<(), PrivateError> {
        self.bases.iter_mut().try_for_each(Base::settle)?;
        let name = format!("probe-{}", std::process::id());
        let private = Private { dirs: self.dirs(&name), memory: true, keep: Vec::new() };
        let (dirs, tried) = (private.dirs.clone(), std::thread::spawn(move || private.enter(None)));
        let tried = tried.join().unwrap_or_else(|broken| std::panic::resume_unwind(broken));
        for (dir, _) in dirs {
            remove(&dir);
        }
        tried
    }

    /// `keep` is what the part needs, wherever that is.
    pub fn of_part(&mut self, lease: LeaseId, memory: bool, keep: Vec<Keep>) -> Private {
        for base in &mut self.bases {
            // Who cleans /tmp up may have removed it, and somebody else have taken the name.
            if let Err(error) = base.settle() {
                tracing::error!("{}", crate::node::chain(&error));
            }
        }
        Private { dirs: self.dirs(&lease.to_string()), memory, keep: self.hidden(keep) }
    }

    fn dirs(&self, name: &str) -> Vec<(PathBuf, PathBuf)> {
        self.bases.iter().map(|base| (base.dir.join(name), base.target.clone())).collect()
    }

    /// What would be out of sight, without what lies inside another.
    fn hidden(&self, mut keep: Vec<Keep>) -> Vec<Keep> {
        let below = |path: &Path, dir: &Path| path != dir && path.starts_with(dir);
        keep.retain(|k| SHARED.iter().any(|dir| below(&k.path, Path::new(dir))));
        keep.retain(|k| !k.path.components().any(|c| c.as_os_str() == ".."));
        keep.sort();
        let mut kept: Vec<Keep> = Vec::new();
        for k in keep {
            // One that the job named may turn out to be closed to it, and then it holds nothing.
            let inside =
                |outer: &Keep| k.path.starts_with(&outer.path) && (k.named || !outer.named);
            if !kept.iter().any(inside) {
                kept.push(k);
            }
        }
        kept
    }

    /// Whether this is one of the directories that parts have for themselves.
    pub fn hides(path: &str) -> bool {
        SHARED.iter().any(|dir| Path::new(path).starts_with(dir) && path != *dir)
    }

    /// Removes what a part had. May take long.
    pub fn sweep(&self, lease: LeaseId) {
        for dir in self.bases.iter().flat_map(Base::all) {
            remove(&dir.join(lease.to_string()));
        }
    }

    /// What is there and not of these. Parts that come later have other names.
    pub fn all_but(&self, live: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let mut over = Vec::new();
        for base in self.bases.iter().flat_map(Base::all) {
            match Folder::open_own(base).and_then(|folder| folder.list()) {
                Ok(entries) => {
                    let dead = entries.iter().filter(|e| !e.name.to_str().is_some_and(&live));
                    over.extend(dead.map(|entry| base.join(&entry.name)));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!("nothing is cleared in {}: {error}", base.display()),
            }
        }
        over
    }

    /// Removes the agent's own directories where nothing is in them. Never waits for long.
    pub fn leave(&self) {
        for base in self.bases.iter().flat_map(Base::all) {
            // Not empty while a part is there; and the next one makes it again.
            let _ = fs::remove_dir(base);
        }
    }
}

/// May take long.
pub fn remove_all(dirs: &[PathBuf]) {
    dirs.iter().for_each(|dir| remove(dir));
}

fn remove(dir: &Path) {
    let (base, name) = base_of(dir);
    match Folder::open_own(base).and_then(|folder| folder.remove_tree(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("{} stays behind: {error}", dir.display());
        }
        _ => {}
    }
}

fn base_of(dir: &Path) -> (&Path, &Path) {
    let name = dir.file_name().unwrap_or_default();
    (dir.parent().unwrap_or(Path::new("/")), Path::new(name))
}

impl Private {
    /// The part's namespace. This process is where it was before.
    pub fn make(&self, identity: Option<&Identity>) -> Result<OwnedFd, PrivateError> {
        let own = Path::new("/proc/self/ns/mnt");
        let back = File::open(own).map_err(failed("open", own))?;
        let here = std::env::current_dir().map_err(failed("find", Path::new(".")))?;
        let entered = self.enter(identity);
        let made = entered.and_then(|()| File::open(own).map_err(failed("open", own)));
        setns(&back, CloneFlags::CLONE_NEWNS).map_err(|e| failed("return to", own)(e.into()))?;
        std::env::set_current_dir(&here).map_err(failed("return to", &here))?;
        made.map(OwnedFd::from)
    }

    /// Leaves this thread in the new namespace, or half way to it.
    fn enter(&self, identity: Option<&Identity>) -> Result<(), PrivateError> {
        for (dir, _) in &self.dirs {
            make_dir(dir)?;
        }
        let root = Path::new("/");
        unshare(CloneFlags::CLONE_NEWNS).map_err(|e| failed("leave", root)(e.into()))?;
        // What the host mounts later appears here too, but not the other way round.
        attach(None, root, None, MsFlags::MS_SLAVE | MsFlags::MS_REC)?;
        // By descriptor: once the new directories are there, the names mean something else.
        let kept: Vec<(&Path, File)> =
            self.keep.iter().filter_map(|k| Some((k.path.as_path(), k.open(identity)?))).collect();
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        for (dir, target) in &self.dirs {
            attach(Some(dir), target, None, bind)?;
        }
        if self.memory && Path::new(MEMORY).is_dir() {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            attach(None, Path::new(MEMORY), Some("tmpfs"), flags)?;
        }
        for (path, file) in kept {
            make_place(path, &file)?;
            let from = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            attach(Some(&from), path, None, bind)?;
        }
        Ok(())
    }
}

impl Keep {
    /// None: it is not there, or closed to the job's user.
    fn open(&self, identity: Option<&Identity>) -> Option<File> {
        let open = || File::options().read(true).custom_flags(libc::O_PATH).open(&self.path).ok();
        match identity.filter(|_| self.named) {
            Some(identity) => identity.act(open).ok()?,
            None => open(),
        }
    }
}

fn attach(
    from: Option<&Path>,
    at: &Path,
    kind: Option<&str>,
    flags: MsFlags,
) -> Result<(), PrivateError> {
    let options = kind.map(|_| "mode=1777");
    mount(from.or(Some(Path::new("none"))), at, kind, flags, options)
        .map_err(|e| failed("mount over", at)(e.into()))
}

/// Made, if nothing is there.
fn own_folder(base: &Path) -> Result<Folder, PrivateError> {
    let folder = Folder::make_own(base, 0o700).map_err(failed("use", base))?;
    match folder.stat().map_err(failed("look at", base))?.st_mode & 0o077 {
        0 => Ok(folder),
        _ => Err(failed("trust", base)(io::ErrorKind::PermissionDenied.into())),
    }
}

/// Open to everybody inside a directory that nobody else can enter.
fn make_dir(dir: &Path) -> Result<(), PrivateError> {
    let (base, name) = base_of(dir);
    let folder = own_folder(base)?;
    if !folder.make_dir(name, 0o700).map_err(failed("make", dir))? {
        // Of a shim that was killed: whatever is in it, the part begins with an empty one.
        folder.remove_tree(name).map_err(failed("clear", dir))?;
        folder.make_dir(name, 0o700).map_err(failed("make", dir))?;
    }
    folder.folder(name).and_then(|own| own.set_mode(0o1777)).map_err(failed("open up", dir))
}

/// Something to bind over, of the same kind.
fn make_place(path: &Path, file: &File) -> Result<(), PrivateError> {
    let is_dir = file.metadata().map_err(failed("look at", path))?.is_dir();
    let dirs = if is_dir { path } else { path.parent().unwrap_or(path) };
    DirBuilder::new().recursive(true).mode(0o755).create(dirs).map_err(failed("make", dirs))?;
    if !is_dir {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|e| failed("name", path)(e.into()))?;
        // SAFETY: a valid C string.
        let made = unsafe { libc::mknod(name.as_ptr(), libc::S_IFREG | 0o600, 0) };
        if made != 0 && io::Error::last_os_error().kind() != io::ErrorKind::AlreadyExists {
            return Err(failed("make", path)(io::Error::last_os_error()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn rooms(dirs: &[PathBuf]) -> Rooms {
        let base = |dir: &PathBuf| Base::find(dir.clone(), PathBuf::from("/tmp"));
        Rooms { bases: dirs.iter().map(base).collect() }
    }

    fn keep(path: &str, named: bool) -> Keep {
        Keep { path: path.into(), named }
    }

    #[test]
    fn only_what_would_be_out_of_sight_is_kept_and_once() {
        let rooms = Rooms::new(Path::new("/var/lib/tutti"));
        let all = [
            "/home/a",
            "/tmp",
            "/tmpfile",
            "/tmp/../etc/secret",
            "/tmp/w",
            "/tmp/w/x",
            "/var/tmp/y",
        ];
        let kept = rooms.hidden(all.iter().map(|path| keep(path, true)).collect());
        assert_eq!(kept, [keep("/tmp/w", true), keep("/var/tmp/y", true)]);
        // The job may be unable to reach the outer one; the socket must be there all the same.
        let both = rooms.hidden(vec![keep("/tmp/w", true), keep("/tmp/w/run/1@1", false)]);
        assert_eq!(both.len(), 2);
    }

    #[test]
    fn each_part_has_its_own_and_no_other_user_of_the_machine_can_guess_into_it() {
        let data_dir = tempfile::tempdir().unwrap();
        let mut rooms = Rooms::new(data_dir.path());
        let lease = crate::testing::launch("12_3", 7).lease;
        let private = rooms.of_part(lease, true, Vec::new());
        let (dir, target) = &private.dirs[0];
        assert_eq!(target, Path::new("/tmp"));
        assert!(dir.ends_with("12_3@7") && dir.starts_with("/tmp/"), "{}", dir.display());
        rooms.leave();
        assert!(Rooms::hides("/tmp/x") && !Rooms::hides("/tmp") && !Rooms::hides("/scratch/tmp"));
    }

    #[test]
    fn who_leaves_removes_only_what_is_empty_and_what_is_left_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let rooms = rooms(&["a", "b"].map(|name| dir.path().join(name)));
        fs::create_dir_all(dir.path().join("a/1@1/deep")).unwrap();
        fs::create_dir_all(dir.path().join("a/2@1")).unwrap();
        fs::create_dir_all(dir.path().join("b")).unwrap();
        let left = rooms.all_but(|name| name == "2@1");
        assert_eq!(left, [dir.path().join("a/1@1")]);
        rooms.leave();
        assert!(dir.path().join("a/1@1/deep").is_dir(), "removing it may take long");
        assert!(!dir.path().join("b").exists());
        remove_all(&left);
        assert!(!dir.path().join("a/1@1").exists() && dir.path().join("a/2@1").is_dir());
    }

    /// The name of the base can be guessed, and an agent that starts clears what it finds there.
    #[test]
    fn a_link_in_place_of_the_base_is_not_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, base) = (dir.path().join("victim"), dir.path().join("base"));
        fs::create_dir_all(victim.join("1@1/precious")).unwrap();
        std::os::unix::fs::symlink(&victim, &base).unwrap();
        let rooms = rooms(std::slice::from_ref(&base));
        assert_eq!(rooms.all_but(|_| false), [] as [PathBuf; 0]);
        remove_all(&[base.join("1@1")]);
        rooms.sweep(crate::testing::launch("1", 1).lease);
        assert!(make_dir(&base.join("2@1")).is_err());
        assert!(victim.join("1@1/precious").is_dir() && !victim.join("2@1").exists());
    }

    /// Whatever is there under the name that can be guessed, the agent has its directory all the same, and the next
    /// agent finds what is left in it.
    #[test]
    fn who_takes_the_name_first_switches_nothing_off() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join(".tutti-1");
        let lease = crate::testing::launch("1", 1).lease;
        type Taking = fn(&Path);
        let takings: [Taking; 3] = [
            |name| fs::write(name, "").unwrap(),
            |name| std::os::unix::fs::symlink("/", name).unwrap(),
            |name| {
                fs::create_dir(name).unwrap();
                fs::set_permissions(name, fs::Permissions::from_mode(0o777)).unwrap();
            },
        ];
        for take in takings {
            take(&name);
            let mut first = rooms(std::slice::from_ref(&name));
            let private = first.of_part(lease, false, Vec::new());
            let own = &private.dirs[0].0;
            assert!(!own.starts_with(&name), "{}", own.display());
            make_dir(own).unwrap();
            fs::create_dir(own.join("left")).unwrap();
            // Another agent, with the name still taken, and with the name free again.
            let mut second = rooms(std::slice::from_ref(&name));
            assert_eq!(second.of_part(lease, false, Vec::new()), private, "no third directory");
            assert_eq!(second.all_but(|_| false).len(), 1);
            fs::remove_file(&name).or_else(|_| fs::remove_dir(&name)).unwrap();
            let mut third = rooms(std::slice::from_ref(&name));
            assert!(third.of_part(lease, false, Vec::new()).dirs[0].0.starts_with(&name));
            assert_eq!(third.all_but(|_| true).len(), 0);
            remove_all(&third.all_but(|_| false));
            third.leave();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "all is swept");
        }
    }

    /// Nobody else's directory is taken for ours, though its name begins like it.
    #[test]
    fn a_directory_of_somebody_else_is_not_cleared() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (name, theirs) = (dir.path().join(".tutti-1"), dir.path().join(".tutti-1-beef"));
        fs::create_dir_all(theirs.join("1@1/precious")).unwrap();
        std::os::unix::fs::chown(&theirs, Some(61_001), Some(61_001)).unwrap();
        fs::create_dir(&name).unwrap();
        std::os::unix::fs::chown(&name, Some(61_001), Some(61_001)).unwrap();
        let mut rooms = rooms(std::slice::from_ref(&name));
        let private = rooms.of_part(crate::testing::launch("1", 1).lease, false, Vec::new());
        let own = &private.dirs[0].0;
        assert!(!own.starts_with(&name) && !own.starts_with(&theirs), "{}", own.display());
        assert_eq!(rooms.all_but(|_| false), [] as [PathBuf; 0]);
        rooms.sweep(crate::testing::launch("1", 1).lease);
        assert!(theirs.join("1@1/precious").is_dir());
    }
}
