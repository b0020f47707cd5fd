//! Stops every process of a part where it stands, and lets it go on. By the part's cgroup where it
//! has one; else by SIGSTOP, which a program can see and others may undo.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::tree;
use crate::cgroup::PartCgroup;

/// A process that hangs in the kernel stops only when it comes back.
const FREEZE_WITHIN: Duration = Duration::from_secs(5);
/// What one try by signals may take of it.
const STOP_WITHIN: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(2);

pub struct Freezer<'a> {
    cgroup: Option<&'a PartCgroup>,
    raised: Vec<Raised>,
}

/// A limit that was raised.
struct Raised {
    path: PathBuf,
    was: String,
    /// The file that says how much is in use.
    used: PathBuf,
}

/// Where memory is limited, from below, and where it is counted; in both layouts.
const LIMITS: [(&str, &str); 4] = [
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("memory.soft_limit_in_bytes", "memory.usage_in_bytes"),
];

impl<'a> Freezer<'a> {
    pub fn new(cgroup: Option<&'a PartCgroup>) -> Freezer<'a> {
        Freezer { cgroup, raised: Vec::new() }
    }

    fn switch(&self) -> Option<PathBuf> {
        self.cgroup.map(|group| group.path.join("cgroup.freeze")).filter(|path| path.exists())
    }

    /// All but `helper`, which is no process of the part.
    pub fn freeze(&self, helper: Option<i32>) -> Result<(), String> {
        let deadline = Instant::now() + FREEZE_WITHIN;
        match (self.switch(), self.cgroup) {
            (Some(switch), Some(group)) => {
                let dir = &group.path;
                fs::write(&switch, "1").map_err(|e| format!("{}: {e}", switch.display()))?;
                let events = dir.join("cgroup.events");
                until(deadline, || match fs::read_to_string(&events) {
                    Ok(text) if text.lines().any(|line| line == "frozen 1") => None,
                    Ok(_) => Some(format!("{} is not frozen", dir.display())),
                    Err(e) => Some(format!("{}: {e}", events.display())),
                })
            }
            _ => until(deadline, || stop_all(helper)),
        }
    }

    pub fn thaw(&self, helper: Option<i32>) -> Result<(), String> {
        match self.switch() {
            Some(switch) => {
                fs::write(&switch, "0").map_err(|e| format!("{}: {e}", switch.display()))
            }
            None => {
                tree::signal_others(libc::SIGCONT, helper);
                Ok(())
            }
        }
    }

    /// What comes from the GPUs counts against the part's own limit.
    pub fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        for dir in self.groups() {
            for (name, used) in LIMITS {
                let path = dir.join(name);
                let Ok(limit) = fs::read_to_string(&path) else { continue };
                // "max", or in the older layout a number that no machine has.
                let old = limit.trim().parse::<u64>().ok();
                let Some(old) = old.filter(|old| *old < u64::MAX / 4) else {
                    continue;
                };
                fs::write(&path, (old + bytes).to_string())?;
                if !self.raised.iter().any(|known| known.path == path) {
                    let was = limit.trim().to_owned();
                    self.raised.push(Raised { path, was, used: dir.join(used) });
                }
            }
        }
        Ok(())
    }

    fn groups(&self) -> Vec<&'a Path> {
        let unified = self.cgroup.iter().map(|group| group.path.as_path());
        let older = self.cgroup.iter().flat_map(|group| &group.older);
        unified.chain(older.map(|group| group.path.as_path())).collect()
    }

    /// Unless the part would be killed for it: then the limit stays raised until the next time.
    pub fn put_limit_back(&mut self) -> io::Result<()> {
        while let Some(raised) = self.raised.last() {
            let used = fs::read_to_string(&raised.used)?;
            let fits = used.trim().parse::<u64>().ok() <= raised.was.parse::<u64>().ok();
            if !fits {
                return Err(io::Error::other(format!("{} bytes are in use", used.trim())));
            }
            fs::write(&raised.path, &raised.was)?;
            self.raised.pop();
        }
        Ok(())
    }
}

/// One try at stopping all; who does not stop, if somebody does not.
fn stop_all(helper: Option<i32>) -> Option<String> {
    let stopped = until(Instant::now() + STOP_WITHIN, || {
        tree::signal_others(libc::SIGSTOP, helper);
        let moving = tree::descendants()
            .into_iter()
            .find(|&pid| Some(pid) != helper && !tree::is_still(pid));
        moving.map(|pid| format!("process {pid} does not stop"))
    });
    // A process that has just started another one can't stop before that one runs its own program,
    // and that one is stopped already. So all go on for a moment.
    let why = stopped.err()?;
    tree::signal_others(libc::SIGCONT, helper);
    Some(why)
}

/// Asks again until there is no objection, or it is too late.
fn until(deadline: Instant, mut objection: impl FnMut() -> Option<String>) -> Result<(), String> {
    loop {
        match objection() {
            None => return Ok(()),
            Some(why) if deadline <= Instant::now() => return Err(why),
            Some(_) => std::thread::sleep(PAUSE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::OlderGroup;
    use crate::testing::TempDir;

    #[test]
    fn limits_are_raised_by_what_comes_and_put_back() {
        let dir = TempDir::new("room");
        let file = |name: &str| dir.path().join(name);
        let read = |name: &str| fs::read_to_string(file(name)).unwrap();
        fs::write(file("memory.max"), "1000\n").unwrap();
        fs::write(file("memory.high"), "max\n").unwrap();
        fs::write(file("memory.current"), "1200\n").unwrap();
        let older = dir.path().join("older");
        fs::create_dir(&older).unwrap();
        fs::write(older.join("memory.limit_in_bytes"), "7000\n").unwrap();
        fs::write(older.join("memory.soft_limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(older.join("memory.usage_in_bytes"), "100\n").unwrap();
        let older_limit = || fs::read_to_string(older.join("memory.limit_in_bytes")).unwrap();
        let group = PartCgroup {
            path: dir.path().to_owned(),
            older: vec![OlderGroup { path: older.clone(), limits: Vec::new() }],
            ..PartCgroup::default()
        };
        let mut freezer = Freezer::new(Some(&group));
        freezer.make_room(500).unwrap();
        assert_eq!((read("memory.max").as_str(), read("memory.high").as_str()), ("1500", "max\n"));
        assert_eq!(older_limit(), "7500");
        assert!(freezer.put_limit_back().is_err(), "it would be killed");
        assert_eq!((read("memory.max").as_str(), older_limit().as_str()), ("1500", "7000"));
        freezer.make_room(100).unwrap();
        fs::write(file("memory.current"), "900\n").unwrap();
        assert_eq!(read("memory.max"), "1600");
        freezer.put_limit_back().unwrap();
        assert_eq!(read("memory.max"), "1000");
    }
}
