//! A disk that is soon full.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A tmpfs of a given size. Needs root; gone when dropped.
pub struct SmallDisk {
    at: PathBuf,
    _place: tempfile::TempDir,
}

impl SmallDisk {
    #[track_caller]
    pub fn new(bytes: u64) -> SmallDisk {
        let place = tempfile::Builder::new().prefix("tutti-disk-").tempdir().expect("a temp dir");
        let at = place.path().to_owned();
        let disk = SmallDisk { at, _place: place };
        disk.mount(MsFlags::empty(), bytes);
        disk
    }

    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Makes room without touching what is there.
    #[track_caller]
    pub fn grow(&self, bytes: u64) {
        self.mount(MsFlags::MS_REMOUNT, bytes);
    }

    #[track_caller]
    fn mount(&self, flags: MsFlags, bytes: u64) {
        let (kind, options) = (Some("tmpfs"), format!("size={bytes},mode=755"));
        mount(Some("tutti-test"), &self.at, kind, flags, Some(options.as_str()))
            .expect("a tmpfs can be mounted");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Still in use is no reason to stay: it goes with its last user.
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}
