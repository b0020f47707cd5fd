//! Starts and stops the control daemons of MPS, and watches them. Starting takes a moment and may
//! hang, so it is done on a thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tutti_files::Folder;
use tutti_model::{Blame, GpuIndex, Launch, LeaseId, NodeSample, PartError, TaskId, Vendor};

use super::Node;
use crate::child;
use crate::config::AgentConfig;
use crate::machine::Input;
use crate::messages::End;
use crate::mps::{self, Daemons, Deed, Limits, SOON, Seen, Users};
use crate::parts::Fate;

const CONTROL: &str = "nvidia-cuda-mps-control";
const MULTI_USER: &str = "-multiuser-server";
/// Where it is, if not in the agent's own path.
const ELSEWHERE: [&str; 3] = ["/usr/bin", "/usr/local/nvidia/bin", "/usr/local/cuda/bin"];
const START_WITHIN: Duration = Duration::from_secs(20);
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// More of a log than that is not looked through at once.
const LOG_PIECE: u64 = 64 << 10;
/// Of a file that holds a pid.
const PID_MAX: u64 = 32;

/// How parts of a GPU are kept to their shares here.
pub enum Sharing {
    /// Not a matter of this node: it has no GPUs, or imagined ones.
    Free,
    /// The operator allows it without limits.
    Unlimited,
    Mps(Box<Mps>),
    Not {
        why: String,
    },
}

pub struct Mps {
    control: PathBuf,
    /// Below it a directory for each GPU.
    dir: PathBuf,
    daemons: Daemons,
    /// Where each log was read to.
    read: BTreeMap<PathBuf, u64>,
    faults: BTreeMap<GpuIndex, Seen>,
    users: Users,
    said: mpsc::UnboundedSender<Event>,
    events: mpsc::UnboundedReceiver<Event>,
}

pub enum Event {
    Started { gpu: GpuIndex, result: Result<(), String> },
    Stopped { gpu: GpuIndex, result: Result<(), String> },
}

/// One GPU's daemon.
#[derive(Clone)]
struct Place {
    control: PathBuf,
    dir: PathBuf,
    uuid: String,
}

impl Sharing {
    pub fn find(config: &AgentConfig) -> Sharing {
        if config.simulated || config.gpus.is_empty() {
            return Sharing::Free;
        }
        let cards = config.hardware.as_deref().map_or(&[][..], |h| &h.gpus);
        let why = match cards.iter().find(|card| card.vendor != Vendor::Nvidia) {
            Some(card) => format!("MPS is of NVIDIA, and GPU {} is not", card.index),
            None => match find_control() {
                Some(control) => return Sharing::Mps(Box::new(Mps::new(control, config))),
                None => format!("{CONTROL} is not installed"),
            },
        };
        if config.share_without_mps {
            tracing::warn!("parts of a GPU are given without limits: {why}");
            return Sharing::Unlimited;
        }
        Sharing::Not { why }
    }

    pub fn why_not(&self) -> Option<String> {
        match self {
            Sharing::Not { why } => Some(why.clone()),
            Sharing::Unlimited => Some("parts of a GPU are given without limits".to_owned()),
            Sharing::Free | Sharing::Mps(_) => None,
        }
    }

    /// For ever pending where there is no MPS.
    pub async fn next(&mut self) -> Event {
        if let Sharing::Mps(mps) = self
            && let Some(event) = mps.events.recv().await
        {
            return event;
        }
        std::future::pending().await
    }
}

/// The GPU that the part shares, if it does.
pub fn shared_gpu(launch: &Launch) -> Option<GpuIndex> {
    let share = launch.spec.gpu_share.filter(|share| *share < 1.0);
    share.and_then(|_| launch.gpus.first().copied())
}

fn find_control() -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let dirs = path.split(':').chain(ELSEWHERE).filter(|dir| !dir.is_empty());
    dirs.map(|dir| Path::new(dir).join(CONTROL)).find(|file| file.is_file())
}

impl Mps {
    fn new(control: PathBuf, config: &AgentConfig) -> Mps {
        let root = nix::unistd::geteuid().is_root();
        let base = if root && Path::new("/run").is_dir() { "/run" } else { "/tmp" };
        let mark = blake3::hash(config.data_dir.as_os_str().as_encoded_bytes()).to_hex();
        let (said, events) = mpsc::unbounded_channel();
        let mut mps = Mps {
            control,
            dir: Path::new(base).join(format!("tutti-mps-{}", &mark[..12])),
            daemons: Daemons::default(),
            read: BTreeMap::new(),
            faults: BTreeMap::new(),
            users: Users::default(),
            said,
            events,
        };
        for gpu in &config.gpus {
            if daemon_pid(&mps.gpu_dir(gpu.index)).is_some() {
                mps.daemons.adopt(gpu.index);
                // An earlier agent may have left its directories open to everybody.
                if let Err(error) = mps.place(gpu.index, config).open_up(root) {
                    tracing::warn!(gpu = %gpu.index, %error, "MPS: its directories stay as they are");
                }
            }
        }
        mps
    }

    fn gpu_dir(&self, gpu: GpuIndex) -> PathBuf {
        self.dir.join(gpu.to_string())
    }

    fn place(&self, gpu: GpuIndex, config: &AgentConfig) -> Place {
        let uuid = config.gpus.iter().find(|g| g.index == gpu).map(|g| g.uuid.clone());
        let (control, dir) = (self.control.clone(), self.gpu_dir(gpu));
        Place { control, dir, uuid: uuid.unwrap_or_default() }
    }

    fn act(&self, deed: Deed, config: &AgentConfig) {
        let (Deed::Start(gpu) | Deed::Stop(gpu)) = deed;
        let place = self.place(gpu, config);
        let said = self.said.clone();
        tokio::task::spawn_blocking(move || {
            // The node is gone only when the agent is.
            let _ = said.send(match deed {
                Deed::Start(_) => Event::Started { gpu, result: place.start() },
                Deed::Stop(_) => Event::Stopped { gpu, result: place.stop() },
            });
        });
    }

    /// What the logs of this GPU say since they were last read.
    fn look(&mut self, gpu: GpuIndex, tasks: &BTreeSet<TaskId>) {
        let dir = self.gpu_dir(gpu);
        let mut new = Vec::new();
        for name in ["server.log", "control.log"] {
            let path = dir.join("log").join(name);
            // What was there long before this agent is nobody's fault now.
            let read = self.read.entry(path.clone()).or_insert_with(|| old_part(&path));
            new.extend(mps::faults(&read_on(&path, read)));
        }
        if daemon_pid(&dir).is_none() && self.daemons.is_ready(gpu) {
            self.daemons.died(gpu);
            let line = "the control daemon is gone".to_owned();
            new.push(mps::Fault { pid: None, line });
        }
        for fault in new {
            let by = fault.pid.and_then(|pid| self.users.task(pid));
            tracing::warn!(%gpu, by = by.map(|t| t.to_string()), "MPS: {}", fault.line);
            let known = self.faults.get(&gpu).filter(|seen| seen.at.elapsed().as_secs() < 1);
            // Of several lines on one fault the one that names somebody counts.
            if by.is_some() || known.is_none_or(|seen| seen.by.is_none()) {
                let (at, tasks) = (Instant::now(), tasks.clone());
                self.faults.insert(gpu, Seen { at, line: fault.line, by, tasks });
            }
        }
    }
}

impl Place {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.control);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.dir.join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.dir.join("log"))
            .env("CUDA_VISIBLE_DEVICES", &self.uuid)
            .current_dir("/");
        command
    }

    fn start(&self) -> Result<(), String> {
        let root = nix::unistd::geteuid().is_root();
        let failed = |e: io::Error| format!("{}: {e}", self.dir.display());
        if daemon_pid(&self.dir).is_some() {
            return self.open_up(root).map_err(failed);
        }
        self.make_dirs(root).map_err(failed)?;
        let words = self.dir.join("start.log");
        let mut tried = Err(String::new());
        if root {
            tried = run(self.command().args(["-d", MULTI_USER]), "", &words, START_WITHIN);
        }
        if tried.is_err() {
            // An older driver, or an agent that runs all jobs as itself: one user.
            tried = run(self.command().arg("-d"), "", &words, START_WITHIN);
        }
        tried.map_err(|e| format!("{CONTROL} -d: {e}"))?;
        let deadline = Instant::now() + START_WITHIN;
        while daemon_pid(&self.dir).is_none() {
            if deadline <= Instant::now() {
                return Err(format!("{CONTROL} left no process behind"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.open_up(root).map_err(failed)
    }

    /// Root's alone until the daemon has made its files. A pipe that somebody else had put there, or a link in place of
    /// a log, would be used by root; so what is left of an earlier daemon goes, if others could write there.
    fn make_dirs(&self, root: bool) -> io::Result<()> {
        let mode = if root { 0o755 } else { 0o700 };
        Folder::make_own(self.dir.parent().unwrap_or(&self.dir), mode)?;
        let own = Folder::make_own(&self.dir, mode)?;
        for name in ["pipe", "log"] {
            // Logs that only a daemon wrote say of what it died.
            let is_open =
                own.folder(name).and_then(|found| found.stat()).map(|s| s.st_mode & 0o022);
            if name == "pipe" || is_open.is_ok_and(|open| open != 0) {
                match own.remove_tree(name) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    _ => {}
                }
            }
            own.make_dir(name, 0o700)?;
            own.folder(name)?.set_mode(0o700)?;
        }
        Ok(())
    }

    /// Programs of all users, and a server that runs as one of them, connect to the daemon's socket and write to its
    /// pipe, which it made for everybody. They make no file of their own, so nobody needs to write to the
    /// directories. The daemon lets everybody write its pid as well, and by that the agent stops it.
    fn open_up(&self, root: bool) -> io::Result<()> {
        if root {
            let pid = open_own(&self.dir.join(format!("pipe/{CONTROL}.pid")))?;
            pid.set_permissions(fs::Permissions::from_mode(0o644))?;
            let own = Folder::open_own(&self.dir)?;
            for name in ["pipe", "log"] {
                own.folder(name)?.set_mode(0o755)?;
            }
        }
        Ok(())
    }

    fn forget(&self) -> io::Result<()> {
        let base = Folder::open_own(self.dir.parent().unwrap_or(&self.dir))?;
        base.remove_tree(self.dir.file_name().unwrap_or_default())
    }

    fn stop(&self) -> Result<(), String> {
        let words = self.dir.join("stop.log");
        let asked = run(&mut self.command(), "quit\n", &words, STOP_WITHIN);
        let deadline = Instant::now() + STOP_WITHIN;
        while asked.is_ok() && daemon_pid(&self.dir).is_some() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let left = daemon_pid(&self.dir);
        if let Some(pid) = left {
            // SAFETY: a plain system call; the process is the daemon that the pid file names.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        // What stays behind is in nobody's way.
        let _ = self.forget();
        match (asked, left) {
            (Ok(()), None) => Ok(()),
            (Err(e), _) => Err(format!("{CONTROL} quit: {e}")),
            (_, Some(pid)) => Err(format!("the control daemon {pid} did not leave and was killed")),
        }
    }
}

/// The living daemon that has its pipes in this directory.
fn daemon_pid(dir: &Path) -> Option<i32> {
    let mut text = String::new();
    let file = open_own(&dir.join(format!("pipe/{CONTROL}.pid"))).ok()?;
    file.take(PID_MAX).read_to_string(&mut text).ok()?;
    let pid: i32 = text.trim().parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    is_control(name.trim_end_matches('\n')).then_some(pid)
}

/// By the name of a process, which the kernel cuts at 15 bytes.
fn is_control(name: &str) -> bool {
    name == &CONTROL[..15]
}

/// Every user could put files where the daemons of an earlier agent have theirs: only one that the agent's user or
/// root has written says anything, and a link or a pipe that was put there is not followed or waited for.
fn open_own(path: &Path) -> io::Result<fs::File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if found.is_file() && is_trusted(found.uid()) {
        return Ok(file);
    }
    let why = format!("{} is no file of the daemon's, but of user {}", path.display(), found.uid());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == nix::unistd::geteuid().as_raw()
}

/// Whether its server takes programs of all users at a time.
fn serves_all(dir: &Path) -> bool {
    let line = daemon_pid(dir).map(|pid| fs::read(format!("/proc/{pid}/cmdline")));
    let line = line.and_then(Result::ok).unwrap_or_default();
    line.split(|b| *b == 0).any(|word| word == MULTI_USER.as_bytes())
}

/// `words`: where its complaints go; a pipe would break under a daemon that keeps it.
fn run(command: &mut Command, input: &str, words: &Path, within: Duration) -> Result<(), String> {
    let stderr = fs::File::create(words).map_err(|e| format!("{}: {e}", words.display()))?;
    let told = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr);
    let mut child = told.spawn().map_err(|e| e.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|e| e.to_string())?;
    }
    let status = child::finish(&mut child, within).map_err(|e| e.to_string())?;
    if status.success() {
        return Ok(());
    }
    let text = fs::read_to_string(words).unwrap_or_default();
    Err(format!("{status} {}", text.trim()))
}

/// How much of a log is to be passed over when it is first read: all, if nothing was written lately.
fn old_part(path: &Path) -> u64 {
    let Ok(found) = open_own(path).and_then(|file| file.metadata()) else { return 0 };
    let age = found.modified().ok().and_then(|at| at.elapsed().ok());
    if age.is_some_and(|age| SOON < age) { found.len() } else { 0 }
}

/// What was written since; a log that was begun anew is read from its start.
fn read_on(path: &Path, read: &mut u64) -> String {
    let mut bytes = Vec::new();
    let mut read_it = || -> io::Result<()> {
        let mut file = open_own(path)?;
        let length = file.metadata()?.len();
        *read = if length < *read { 0 } else { (*read).max(length.saturating_sub(LOG_PIECE)) };
        file.seek(SeekFrom::Start(*read))?;
        *read += file.take(LOG_PIECE).read_to_end(&mut bytes)? as u64;
        Ok(())
    };
    match read_it() {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::debug!(%error, "{} can't be read", path.display()),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Node {
    /// Whether the part can start as far as sharing is concerned, or has to wait until a daemon runs.
    pub(super) fn may_share(&mut self, lease: LeaseId) -> Result<bool, PartError> {
        let Some(launch) = self.machine.launch(lease) else { return Ok(true) };
        let Some(gpu) = shared_gpu(launch) else { return Ok(true) };
        match &mut self.sharing {
            Sharing::Free | Sharing::Unlimited => Ok(true),
            Sharing::Not { why } => Err(PartError {
                message: format!(
                    "GPUs of node {} can't be shared: {why}; its operator installs MPS, or starts \
                     the agent with --share-without-mps",
                    self.config.name
                ),
                blame: Blame::Node,
            }),
            Sharing::Mps(mps) if mps.daemons.is_ready(gpu) => {
                let user = &launch.user;
                let other = self.machine.launches().find(|other| {
                    other.lease != lease && shared_gpu(other) == Some(gpu) && other.user != *user
                });
                match other.filter(|_| !serves_all(&mps.gpu_dir(gpu))) {
                    None => Ok(true),
                    Some(other) => Err(PartError {
                        message: format!(
                            "GPU {gpu} is shared by programs of {}, and the MPS of this driver \
                             serves one user at a time",
                            other.user
                        ),
                        blame: Blame::Node,
                    }),
                }
            }
            Sharing::Mps(mps) => {
                if let Some(deed) = mps.daemons.wait(gpu, lease) {
                    mps.act(deed, &self.config);
                }
                Ok(false)
            }
        }
    }

    pub(super) fn on_mps(&mut self, event: Event) {
        let Sharing::Mps(mps) = &mut self.sharing else { return };
        match event {
            Event::Started { gpu, result } => {
                if let Err(error) = &result {
                    tracing::error!(%gpu, "no MPS: {error}");
                }
                let waiting = mps.daemons.started(gpu, result.is_ok());
                for lease in waiting
                    .into_iter()
                    .filter(|l| self.machine.is_preparing(*l))
                    .collect::<Vec<_>>()
                {
                    let input = match &result {
                        Ok(()) => self.prepared(lease),
                        Err(error) => {
                            let message = format!("GPU {gpu} can't be shared: {error}");
                            let result = Err(PartError { message, blame: Blame::Node });
                            Input::Prepared { lease, result }
                        }
                    };
                    self.step(input);
                }
                self.tidy_mps();
            }
            Event::Stopped { gpu, result } => {
                if let Err(error) = result {
                    tracing::warn!(%gpu, "MPS: {error}");
                }
                if let Some(deed) = mps.daemons.stopped(gpu) {
                    mps.act(deed, &self.config);
                }
            }
        }
    }

    /// Who has a part of which GPU.
    fn sharers(&self) -> BTreeMap<GpuIndex, BTreeSet<TaskId>> {
        let mut all: BTreeMap<GpuIndex, BTreeSet<TaskId>> = BTreeMap::new();
        for launch in self.machine.launches().filter(|l| !self.is_leaving(l.lease)) {
            if let Some(gpu) = shared_gpu(launch) {
                all.entry(gpu).or_default().insert(launch.lease.task);
            }
        }
        all
    }

    /// Stops the daemons that nobody needs.
    pub(super) fn tidy_mps(&mut self) {
        let needed = self.sharers().into_keys().collect();
        if let Sharing::Mps(mps) = &mut self.sharing {
            for deed in mps.daemons.tidy(&needed) {
                mps.act(deed, &self.config);
            }
        }
    }

    /// Once a second: whose the processes are, and what the servers say.
    pub(super) fn watch_mps(&mut self, sample: &NodeSample) {
        let sharers = self.sharers();
        let Sharing::Mps(mps) = &mut self.sharing else { return };
        let shares = |task: &TaskId| sharers.values().any(|tasks| tasks.contains(task));
        let of_tasks = sample.processes.iter().filter_map(|p| Some((p.pid as i32, p.task?)));
        mps.users.saw(of_tasks.filter(|(_, task)| shares(task)), Instant::now());
        for (gpu, tasks) in sharers {
            mps.look(gpu, &tasks);
        }
    }

    /// A part that dies of a neighbour's crash is not to blame, however the agent hears of its end.
    pub(super) fn explain(&mut self, input: &mut Input) {
        let Some((lease, end)) = end_in(input) else { return };
        let sharers = self.sharers();
        let launch = self.machine.launch(lease).filter(|_| !self.machine.is_stopping(lease));
        let Some(gpu) = launch.and_then(shared_gpu) else { return };
        let Sharing::Mps(mps) = &mut self.sharing else { return };
        mps.look(gpu, sharers.get(&gpu).unwrap_or(&BTreeSet::new()));
        if let Some(seen) = mps.faults.get(&gpu)
            && let Some(error) = mps::explain(lease.task, gpu, end, seen, Instant::now())
        {
            end.error = Some(error);
        }
    }

    /// What the part is told of the GPU that it shares.
    pub(super) fn share_variables(&self, launch: &Launch) -> Option<Vec<String>> {
        let (gpu, share) = (shared_gpu(launch)?, launch.spec.gpu_share?);
        let Sharing::Mps(mps) = &self.sharing else { return None };
        let facts = self.config.gpus.iter().find(|g| g.index == gpu)?;
        let limits = Limits::new(share, launch.ranks, facts.mem);
        Some(mps::variables(&facts.uuid, &mps.gpu_dir(gpu).join("pipe"), limits))
    }
}

/// From its shim, or, where that could not be heard, from the disk.
fn end_in(input: &mut Input) -> Option<(LeaseId, &mut End)> {
    match input {
        Input::Ended { lease, end } | Input::Looked { lease, fate: Fate::Ended(end) } => {
            Some((*lease, end))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    /// A control program that keeps a `sleep` of the right name, and says what it was started with.
    fn place(dir: &TempDir, on_quit: &str) -> Place {
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let daemon = bin.join(CONTROL);
        fs::copy("/bin/sleep", &daemon).unwrap();
        let control = dir.path().join("control.sh");
        let script = format!(
            "#!/bin/sh\nF=$CUDA_MPS_PIPE_DIRECTORY/{CONTROL}.pid\n\
             if [ \"$1\" = -d ]; then\n\
               echo \"$* $CUDA_VISIBLE_DEVICES\" >> {}\n\
               stat -c '%a' $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY >> $CUDA_MPS_PIPE_DIRECTORY/modes\n\
               ls $CUDA_MPS_PIPE_DIRECTORY >> $CUDA_MPS_PIPE_DIRECTORY/seen\n\
               {} 1000 >/dev/null 2>&1 &\n echo $! > $F; chmod 666 $F\n\
             else\n read word; [ \"$word\" = quit ] || exit 9\n {on_quit}\nfi\n",
            dir.path().join("started").display(),
            daemon.display()
        );
        fs::write(&control, script).unwrap();
        fs::set_permissions(&control, fs::Permissions::from_mode(0o755)).unwrap();
        Place { control, dir: dir.path().join("run/3"), uuid: "GPU-3".into() }
    }

    #[test]
    fn a_daemon_is_started_once_and_stopped() {
        let dir = TempDir::new("mps");
        let place = place(&dir, "kill $(cat $F); rm $F");
        place.start().unwrap();
        let pid = daemon_pid(&place.dir).unwrap();
        place.start().unwrap();
        assert_eq!(daemon_pid(&place.dir), Some(pid), "it was there");
        let started = fs::read_to_string(dir.path().join("started")).unwrap();
        let root = nix::unistd::geteuid().is_root();
        assert_eq!(started, if root { "-d -multiuser-server GPU-3\n" } else { "-d GPU-3\n" });
        for name in ["pipe", "log"] {
            let mode = fs::metadata(place.dir.join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, if root { 0o755 } else { 0o700 }, "{name}");
        }
        assert!(!serves_all(&place.dir), "a sleep has no such flag");
        place.stop().unwrap();
        assert_eq!(daemon_pid(&place.dir), None);
        assert!(!place.dir.exists());
    }

    /// Somebody waits for the directory, to be the one that programs of others connect to.
    #[test]
    fn nobody_can_put_a_pipe_where_a_daemon_is_about_to_have_its_own() {
        let dir = TempDir::new("mps-planted");
        let place = place(&dir, "kill $(cat $F); rm $F");
        // As an earlier agent left it, open to everybody, with what somebody has put there.
        for name in ["pipe", "log"] {
            let open = place.dir.join(name);
            fs::create_dir_all(&open).unwrap();
            fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
            fs::write(open.join("control"), "planted").unwrap();
        }
        place.start().unwrap();
        let pipe = place.dir.join("pipe");
        assert_eq!(fs::read_to_string(pipe.join("modes")).unwrap(), "700\n700\n", "at its start");
        assert_eq!(fs::read_to_string(pipe.join("seen")).unwrap(), "modes\nseen\n");
        assert!(!place.dir.join("log/control").exists());
        // Whoever can write this file says which process the agent ends.
        let pid = fs::metadata(pipe.join(format!("{CONTROL}.pid"))).unwrap();
        if nix::unistd::geteuid().is_root() {
            assert_eq!(pid.permissions().mode() & 0o777, 0o644);
        }
        place.stop().unwrap();
    }

    #[test]
    fn one_that_does_not_leave_is_killed() {
        let dir = TempDir::new("mps-stays");
        let place = place(&dir, "echo no >&2; exit 5");
        place.start().unwrap();
        let pid = daemon_pid(&place.dir).unwrap();
        let why = place.stop().unwrap_err();
        assert!(why.contains("exit status: 5") && why.contains("no"), "{why}");
        let deadline = Instant::now() + Duration::from_secs(30);
        let runs =
            || fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| !c.is_empty());
        while runs() {
            assert!(Instant::now() < deadline, "it lives");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_agent_writes_nothing_where_others_can_put_links() {
        let dir = TempDir::new("mps-links");
        let place = place(&dir, "kill $(cat $F); rm $F");
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        place.make_dirs(nix::unistd::geteuid().is_root()).unwrap();
        for name in ["start.log", "stop.log"] {
            std::os::unix::fs::symlink(&victim, place.dir.join("log").join(name)).unwrap();
        }
        place.start().unwrap();
        place.stop().unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[test]
    fn a_pid_of_somebody_else_is_not_believed() {
        let dir = TempDir::new("mps-pid");
        let place = place(&dir, "kill $(cat $F); rm $F");
        place.start().unwrap();
        let file = place.dir.join(format!("pipe/{CONTROL}.pid"));
        let pid = daemon_pid(&place.dir).unwrap();
        let real = dir.path().join("real");
        fs::rename(&file, &real).unwrap();
        std::os::unix::fs::symlink(&real, &file).unwrap();
        assert_eq!(daemon_pid(&place.dir), None, "a link");
        fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(daemon_pid(&place.dir), None, "a pipe, which must not be waited for");
        fs::rename(&real, &file).unwrap();
        assert_eq!(daemon_pid(&place.dir), Some(pid));
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
            assert_eq!(daemon_pid(&place.dir), None, "of another user");
            std::os::unix::fs::chown(&file, Some(0), None).unwrap();
        }
        place.stop().unwrap();
    }

    #[test]
    fn only_the_control_daemon_has_its_name() {
        assert!(is_control("nvidia-cuda-mps"));
        for other in ["", "n", "nvidia", "nvidia-cuda-mp", "nvidia-cuda-mps-", "sleep"] {
            assert!(!is_control(other), "{other}");
        }
    }

    #[test]
    fn an_end_is_explained_from_the_shim_and_from_the_disk() {
        let lease = crate::testing::launch("7", 1).lease;
        let end = End { exits: Vec::new(), ..End::default() };
        let mut heard = Input::Ended { lease, end: end.clone() };
        let mut found = Input::Looked { lease, fate: Fate::Ended(end) };
        assert!(end_in(&mut heard).is_some() && end_in(&mut found).is_some());
        assert!(end_in(&mut Input::Looked { lease, fate: Fate::Dead }).is_none());
    }

    #[test]
    fn what_a_log_said_long_ago_is_passed_over() {
        let dir = TempDir::new("mps-old-log");
        let path = dir.path().join("server.log");
        assert_eq!(old_part(&path), 0);
        fs::write(&path, "fatal\n").unwrap();
        assert_eq!(old_part(&path), 0, "of a moment ago");
        let long_ago = std::time::SystemTime::now() - 10 * SOON;
        fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(old_part(&path), 6);
    }

    #[test]
    fn what_can_not_be_started_says_why() {
        let dir = TempDir::new("mps-no");
        let place = Place {
            control: dir.path().join("nothing"),
            dir: dir.path().join("run/3"),
            uuid: String::new(),
        };
        let why = place.start().unwrap_err();
        assert!(why.contains("nvidia-cuda-mps-control -d"), "{why}");
    }

    #[test]
    fn logs_are_read_on_from_where_they_were() {
        let dir = TempDir::new("mps-log");
        let (path, mut read) = (dir.path().join("server.log"), 0);
        assert_eq!(read_on(&path, &mut read), "");
        fs::write(&path, "one\n").unwrap();
        assert_eq!(read_on(&path, &mut read), "one\n");
        fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(read_on(&path, &mut read), "two\n");
        fs::write(&path, "new\n").unwrap();
        assert_eq!(read_on(&path, &mut read), "new\n");
    }
}
