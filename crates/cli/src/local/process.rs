//! One process that we started, and how to be sure that it still is that one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::fail::Fail;

/// A process by id and start time: an id that was given to somebody else has another start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proc {
    pub pid: u32,
    /// Clock ticks after boot, field 22 of `/proc/PID/stat`.
    pub started: u64,
}

impl Proc {
    pub fn of(pid: u32) -> Option<Proc> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let stat = Stat::parse(&stat)?;
        stat.is_alive().then_some(Proc { pid, started: stat.started })
    }

    /// Itself and everything that descends from it, parents first.
    pub fn family(self) -> Vec<Proc> {
        families(&[self], &everybody())
    }

    /// Why one that is there may not answer, and what to do.
    pub fn standstill(self) -> Option<String> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let (state, pid) = (Stat::parse(&stat)?.state, self.pid);
        Some(match state {
            'T' | 't' => format!(
                "its process {pid} was stopped, by SIGSTOP or a debugger: kill -CONT {pid} lets it go on"
            ),
            _ => format!(
                "its process {pid} is there: it is overloaded, waits for its disk, or hangs; \
                 kill {pid} stops it, and it can be started again"
            ),
        })
    }

    pub fn is_alive(self) -> bool {
        Proc::of(self.pid) == Some(self)
    }

    /// Of a process of somebody else that can't be told.
    pub fn has_open(self, file: &Path) -> bool {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten();
        open.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == file))
    }

    pub fn signal(self, signal: Signal) {
        if self.is_alive() {
            // Gone in between is what we want anyway.
            let _ = kill(Pid::from_raw(self.pid as i32), signal);
        }
    }

    /// True when it is gone.
    pub fn wait_gone(self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

/// Waits for all of them together. Says which are still there after that long.
pub fn wait_all_gone(procs: &[Proc], limit: Duration) -> Vec<Proc> {
    let deadline = Instant::now() + limit;
    let mut left: Vec<Proc> = procs.to_vec();
    loop {
        let began = Instant::now();
        left.retain(|proc| proc.is_alive());
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        let pause = (began.elapsed() * 4).max(Duration::from_millis(10));
        std::thread::sleep(pause.min(Duration::from_secs(1)));
    }
}

/// These, as far as they live, and everything that descends from them, parents first.
pub fn families(roots: &[Proc], all: &[(Proc, u32)]) -> Vec<Proc> {
    let alive: BTreeSet<(u32, u64)> = all.iter().map(|(p, _)| (p.pid, p.started)).collect();
    let mut children: BTreeMap<u32, Vec<Proc>> = BTreeMap::new();
    for (proc, parent) in all {
        children.entry(*parent).or_default().push(*proc);
    }
    let lives = |root: &&Proc| alive.contains(&(root.pid, root.started));
    let mut family: Vec<Proc> = roots.iter().filter(lives).copied().collect();
    let mut met: BTreeSet<u32> = family.iter().map(|p| p.pid).collect();
    let mut next = 0;
    while let Some(parent) = family.get(next).map(|p| p.pid) {
        let below = children.get(&parent).into_iter().flatten();
        family.extend(below.filter(|p| met.insert(p.pid)));
        next += 1;
    }
    family
}

/// Every live process of the machine, with its parent. One look at all of them serves any number of
/// questions.
pub fn everybody() -> Vec<(Proc, u32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: u32| {
        let stat = Stat::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        stat.is_alive().then_some((Proc { pid, started: stat.started }, stat.parent))
    };
    pids.filter_map(of).collect()
}

/// What we need of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: u32,
    started: u64,
}

impl Stat {
    /// The name is in parentheses and may hold anything, so fields count from the last one.
    fn parse(stat: &str) -> Option<Stat> {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        Some(Stat { state, parent, started: fields.nth(17)?.parse().ok()? })
    }

    fn is_alive(&self) -> bool {
        self.state != 'Z' && self.state != 'X'
    }
}

/// A process in its own session, its output in a log: a child of ours, or of a `tutti up` before us.
pub struct Daemon {
    pub name: String,
    pub proc: Proc,
    pub log: PathBuf,
    /// None: somebody else's, who reaps it when it ends.
    child: Option<Child>,
    args: Vec<String>,
    data_dir: PathBuf,
    /// Where this start's part of the log begins.
    log_from: u64,
}

/// Less than a page or two is left of the disk.
fn has_no_room(dir: &Path) -> bool {
    let disk = nix::sys::statvfs::statvfs(dir);
    disk.is_ok_and(|disk| disk.blocks_available() * disk.fragment_size() < 64 << 10)
}

pub fn full_disk(dir: &Path) -> String {
    format!("the disk of {} is full: free some space and start again", dir.display())
}

impl Daemon {
    /// `secrets` go by environment: command lines are for everybody to see.
    pub fn start(
        name: &str,
        data_dir: &Path,
        args: Vec<String>,
        secrets: &[(&str, String)],
    ) -> Result<Daemon, Fail> {
        let log = log_of(data_dir, name);
        let failed = |e: std::io::Error| Fail::new(format!("can't start {name}: {e}"));
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log)
            .map_err(|e| Fail::new(format!("can't write {}: {e}", log.display())))?;
        let log_from = file.metadata().map_err(failed)?.len();
        let err = file.try_clone().map_err(failed)?;
        let own = std::env::current_exe().map_err(failed)?;
        // An upgrade under a running cluster must not keep it from starting things again: when its
        // file was replaced, the program that runs now is still there.
        let program = if own.exists() { own.as_path() } else { Path::new("/proc/self/exe") };
        let mut command = Command::new(program);
        command.arg0(&own);
        command.args(&args).envs(secrets.iter().map(|(k, v)| (*k, v)));
        command.env_remove("TUTTI_CLUSTER").env_remove("TUTTI_TOKEN");
        command.stdin(Stdio::null()).stdout(file).stderr(err).current_dir("/");
        // We block Ctrl-C and SIGTERM to wait for them; a child with our mask would never see one.
        // SAFETY: both calls are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                SigSet::empty().thread_set_mask()?;
                nix::unistd::setsid().map(drop).map_err(Into::into)
            });
        }
        let child = command.spawn().map_err(failed)?;
        let proc = Proc::of(child.id()).unwrap_or(Proc { pid: child.id(), started: 0 });
        Ok(Daemon {
            name: name.to_owned(),
            proc,
            log,
            child: Some(child),
            args,
            data_dir: data_dir.to_owned(),
            log_from,
        })
    }

    /// One that runs already; `args` are for later starts.
    pub fn adopt(name: &str, data_dir: &Path, args: Vec<String>, proc: Proc) -> Daemon {
        let log = log_of(data_dir, name);
        let log_from = std::fs::metadata(&log).map_or(0, |m| m.len());
        let (name, data_dir) = (name.to_owned(), data_dir.to_owned());
        Daemon { name, proc, log, child: None, args, data_dir, log_from }
    }

    pub fn restart(&mut self) -> Result<(), Fail> {
        *self = Daemon::start(&self.name, &self.data_dir, self.args.clone(), &[])?;
        Ok(())
    }

    /// Replaces the value of a flag for later starts.
    pub fn set_argument(&mut self, flag: &str, value: String) {
        if let Some(at) = self.args.iter().position(|a| a == flag)
            && let Some(place) = self.args.get_mut(at + 1)
        {
            *place = value;
        }
    }

    /// Why it ended, if it has, in its own words.
    pub fn death(&mut self) -> Option<Fail> {
        let status = match &mut self.child {
            Some(child) => Some(child.try_wait().ok()??),
            None if self.proc.is_alive() => return None,
            None => None,
        };
        let (error, hint) = self.last_error();
        let how = || status.map_or_else(|| "it is gone".to_owned(), |s| s.to_string());
        // Its last words may have found no room themselves.
        let full = error.is_none() && has_no_room(&self.data_dir);
        let full = full.then(|| full_disk(&self.data_dir));
        let message = error.or(full).unwrap_or_else(how);
        let code = status.and_then(|s| s.code());
        let exit = code.and_then(|c| u8::try_from(c).ok()).filter(|&c| c != 0);
        let hint = hint.unwrap_or_else(|| format!("its log is {}", self.log.display()));
        Some(Fail::new(message).exit(exit.unwrap_or(1)).hint(hint))
    }

    /// The last `error:` line since this start, and the hint below it.
    fn last_error(&self) -> (Option<String>, Option<String>) {
        let mut text = String::new();
        let read = File::open(&self.log).and_then(|mut f| {
            f.seek(SeekFrom::Start(self.log_from))?;
            f.take(1 << 20).read_to_string(&mut text)
        });
        if read.is_err() {
            return (None, None);
        }
        let lines: Vec<&str> = text.lines().collect();
        let Some(at) = lines.iter().rposition(|l| l.starts_with("error: ")) else {
            return (None, None);
        };
        let hint = lines.get(at + 1).filter(|l| l.starts_with("  ")).map(|h| h.trim().to_owned());
        (Some(lines[at]["error: ".len()..].to_owned()), hint)
    }

    pub fn signal(&self, signal: Signal) {
        self.proc.signal(signal);
    }

    /// Waits, then kills. The child is reaped either way.
    pub fn stop(&mut self, limit: Duration) {
        self.signal(Signal::SIGTERM);
        self.finish(Instant::now() + limit);
    }

    pub fn finish(&mut self, deadline: Instant) {
        while !self.has_ended() {
            if Instant::now() > deadline {
                self.signal(Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn has_ended(&mut self) -> bool {
        match &mut self.child {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => !self.proc.is_alive(),
        }
    }
}

fn log_of(data_dir: &Path, name: &str) -> PathBuf {
    data_dir.join("logs").join(format!("{name}.log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let me = Proc::of(std::process::id()).unwrap();
        assert!(me.is_alive());
        assert!(!Proc { started: me.started + 1, ..me }.is_alive());
        assert!(Proc { started: me.started + 1, ..me }.wait_gone(Duration::ZERO));
    }

    #[test]
    fn a_process_of_somebody_else_is_watched_and_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let proc = Proc::of(sleeper.id()).unwrap();
        let mut daemon = Daemon::adopt("n1", dir.path(), Vec::new(), proc);
        assert!(!daemon.has_ended() && daemon.death().is_none());
        let reaper = std::thread::spawn(move || sleeper.wait());
        daemon.stop(Duration::from_secs(10));
        reaper.join().unwrap().unwrap();
        assert_eq!(daemon.death().unwrap().message, "it is gone");
    }

    #[test]
    fn families_of_many_are_found_in_one_look() {
        let proc = |pid| Proc { pid, started: u64::from(pid) };
        // A thousand agents below 1, each with a helper and its rank.
        let of = |n: u32| [(proc(n), 1), (proc(n + 10_000), n), (proc(n + 20_000), n + 10_000)];
        let all: Vec<(Proc, u32)> = (2..1002).flat_map(of).collect();
        let roots: Vec<Proc> = (2..1002).map(proc).collect();
        assert_eq!(families(&roots, &all).len(), 3000);
        let one = families(&[proc(7)], &all);
        assert_eq!(one, [proc(7), proc(10_007), proc(20_007)]);
        let nested = families(&[proc(7), proc(10_007)], &all);
        assert_eq!(nested.len(), 3, "nobody twice");
        assert!(families(&[Proc { pid: 7, started: 0 }], &all).is_empty(), "somebody else's now");
    }

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(Stat::parse(stat), Some(Stat { state: 'S', parent: 1, started: 777 }));
        assert_eq!(Stat::parse(""), None);
    }
}
