//! Huge pages for the time of a move. Most of it goes into touching fresh pages of the target: with
//! 2 MiB pages 16 GiB leave an H200 in 5 s instead of 9. The kernel's switch is one for the machine,
//! so it is put back afterwards, also by whoever comes next after a crash.
//!
//! Those who need it hold a shared lock on one file; the first writes down what was set, the last
//! puts it back. A lock is gone with its process.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Where the switch is, and where its setting is remembered.
#[derive(Clone, Debug)]
pub struct HugePages {
    switch: PathBuf,
    dir: PathBuf,
}

/// While this lives, huge pages are on.
pub struct Held {
    pages: HugePages,
    hold: Option<File>,
}

impl HugePages {
    /// `dir` is the agent's own.
    pub fn new(dir: &Path) -> HugePages {
        HugePages::at(Path::new(SWITCH), dir)
    }

    pub fn at(switch: &Path, dir: &Path) -> HugePages {
        HugePages { switch: switch.to_owned(), dir: dir.to_owned() }
    }

    pub fn switch_on(&self) -> io::Result<Held> {
        let _gate = self.gate()?;
        let hold = self.open("huge-pages.hold")?;
        lock(&hold, libc::LOCK_SH)?;
        if !self.was().exists() {
            let setting = chosen(&fs::read_to_string(&self.switch)?).ok_or_else(|| {
                io::Error::other(format!("{} is not understood", self.switch.display()))
            })?;
            if setting != "always" {
                // First on disk: a crash in between puts back what was there anyway.
                fs::write(self.was(), &setting)?;
                fs::write(&self.switch, "always").inspect_err(|_| {
                    let _ = fs::remove_file(self.was());
                })?;
            }
        }
        Ok(Held { pages: self.clone(), hold: Some(hold) })
    }

    /// Puts back what a crash left on, unless somebody uses it. True if something was put back.
    pub fn mend(&self) -> io::Result<bool> {
        if !self.was().exists() {
            return Ok(false);
        }
        let _gate = self.gate()?;
        let hold = self.open("huge-pages.hold")?;
        match lock(&hold, libc::LOCK_EX | libc::LOCK_NB) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        }
        let setting = match fs::read_to_string(self.was()) {
            Ok(setting) => setting,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        fs::write(&self.switch, setting.trim())?;
        fs::remove_file(self.was())?;
        Ok(true)
    }

    fn was(&self) -> PathBuf {
        self.dir.join("huge-pages.was")
    }

    fn gate(&self) -> io::Result<File> {
        let gate = self.open("huge-pages.gate")?;
        lock(&gate, libc::LOCK_EX)?;
        Ok(gate)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        File::options().create(true).append(true).open(self.dir.join(name))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.hold = None;
        // What fails here is tried again by the next agent that starts.
        let _ = self.pages.mend();
    }
}

/// `always [madvise] never` is `madvise`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(setting, _)| setting.to_owned())
}

/// BSD locks: each open of the file is an owner of its own, also within one process.
fn lock(file: &File, how: libc::c_int) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => {}
            e => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    /// A plain file in place of the kernel's: it shows what was written last.
    fn pages(dir: &TempDir, setting: &str) -> HugePages {
        let switch = dir.path().join("enabled");
        fs::write(&switch, setting).unwrap();
        HugePages::at(&switch, dir.path())
    }

    fn now(pages: &HugePages) -> String {
        fs::read_to_string(&pages.switch).unwrap()
    }

    #[test]
    fn the_last_one_puts_it_back() {
        let dir = TempDir::new("huge");
        let pages = pages(&dir, "always [madvise] never\n");
        let first = pages.switch_on().unwrap();
        assert_eq!(now(&pages), "always");
        // The kernel would show it like this.
        fs::write(&pages.switch, "[always] madvise never\n").unwrap();
        let second = pages.switch_on().unwrap();
        drop(first);
        assert_eq!(now(&pages), "[always] madvise never\n");
        assert!(!pages.mend().unwrap(), "somebody uses it");
        drop(second);
        assert_eq!(now(&pages), "madvise");
        assert!(!pages.mend().unwrap(), "nothing to put back");
    }

    #[test]
    fn what_a_crash_left_on_is_put_back() {
        let dir = TempDir::new("huge-crash");
        let pages = pages(&dir, "always madvise [never]\n");
        let mut held = pages.switch_on().unwrap();
        // As if the process had been killed: the lock is gone, nothing was put back.
        held.hold = None;
        std::mem::forget(held);
        assert_eq!(now(&pages), "always");
        assert!(pages.mend().unwrap());
        assert_eq!(now(&pages), "never");
    }

    #[test]
    fn a_machine_that_has_it_on_is_left_alone() {
        let dir = TempDir::new("huge-on");
        let pages = pages(&dir, "[always] madvise never\n");
        drop(pages.switch_on().unwrap());
        assert_eq!(now(&pages), "[always] madvise never\n");
    }
}
