//! A directory of one helper, gone with it.

use std::fs;
use std::path::{Path, PathBuf};

use super::{HelperError, io_error};

pub struct Scratch(PathBuf);

impl Scratch {
    /// Only this user can look into it. `base` is where.
    pub fn new(base: &Path) -> Result<Scratch, HelperError> {
        let template = base.join("tutti-XXXXXX");
        nix::unistd::mkdtemp(&template)
            .map(Scratch)
            .map_err(|e| io_error(format!("make a directory in {}", base.display()))(e.into()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Somebody may still write into it; it is only in the way of nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}
