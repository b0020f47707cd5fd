//! Several parts on one GPU, each held to its share, by NVIDIA's Multi-Process Service: what each part
//! is told, which of its daemons should run, and what a crash in one program means for the others.
//! Nothing here touches a process or a file; `node::mps` does.
//!
//! ```text
//! first part that shares GPU 3 ─► one control daemon for that GPU ─► parts connect, each with limits
//!                                              │ last part ended
//!                                              └─► quit
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use tutti_model::{Blame, Bytes, GpuIndex, LeaseId, PartError, TaskId};

use crate::messages::End;

/// A part that fails so soon after its server did has failed because of it.
pub const SOON: Duration = Duration::from_secs(10);

/// What a part may use of a GPU; each of its ranks gets the same part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of the GPU's threads.
    pub percent: u32,
    pub mib: u64,
}

impl Limits {
    pub fn new(share: f64, ranks: u32, mem: Bytes) -> Limits {
        let each = share / f64::from(ranks.max(1));
        Limits {
            percent: ((each * 100.0) as u32).clamp(1, 100),
            mib: ((mem.0 >> 20) as f64 * each) as u64,
        }
    }
}

/// What MPS reads in a program's environment; the documentation prints this table.
pub const VARIABLES: &[(&str, &str)] = &[
    ("CUDA_VISIBLE_DEVICES", "the GPU that is shared, by uuid"),
    ("CUDA_MPS_PIPE_DIRECTORY", "where the programs on this GPU meet"),
    ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "the part of the GPU's threads that a rank may use"),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "the memory that a rank may use: `0=35000M`"),
];

/// In the order of the table.
pub fn variables(uuid: &str, pipe: &Path, limits: Limits) -> Vec<String> {
    let values = [
        uuid.to_owned(),
        pipe.display().to_string(),
        limits.percent.to_string(),
        format!("0={}M", limits.mib),
    ];
    VARIABLES.iter().zip(values).map(|((name, _), value)| format!("{name}={value}")).collect()
}

/// The part's environment with these variables. What the job says of them does not count: its share
/// is what it was given.
pub fn put(env: &mut Vec<String>, variables: Vec<String>) {
    let name = |var: &str| var.split_once('=').map_or("", |(name, _)| name).to_owned();
    let ours: BTreeSet<String> = variables.iter().map(|var| name(var)).collect();
    env.retain(|var| !ours.contains(&name(var)) && !var.starts_with("CUDA_MPS_"));
    env.extend(variables);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Start(GpuIndex),
    Stop(GpuIndex),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Daemon {
    /// These parts wait for it.
    Starting {
        waiting: Vec<LeaseId>,
    },
    Ready,
    /// It is started again if somebody waits.
    Stopping {
        waiting: Vec<LeaseId>,
    },
}

/// The control daemons of a node, one per GPU that is shared.
#[derive(Debug, Default)]
pub struct Daemons {
    all: BTreeMap<GpuIndex, Daemon>,
}

impl Daemons {
    /// An agent before this one has started it.
    pub fn adopt(&mut self, gpu: GpuIndex) {
        self.all.insert(gpu, Daemon::Ready);
    }

    pub fn is_ready(&self, gpu: GpuIndex) -> bool {
        self.all.get(&gpu) == Some(&Daemon::Ready)
    }

    pub fn ready(&self) -> impl Iterator<Item = GpuIndex> + '_ {
        self.all.iter().filter(|(_, d)| **d == Daemon::Ready).map(|(gpu, _)| *gpu)
    }

    /// The part waits until the daemon is ready.
    pub fn wait(&mut self, gpu: GpuIndex, lease: LeaseId) -> Option<Deed> {
        match self.all.get_mut(&gpu) {
            Some(Daemon::Starting { waiting } | Daemon::Stopping { waiting }) => {
                waiting.push(lease);
                None
            }
            Some(Daemon::Ready) | None => {
                self.all.insert(gpu, Daemon::Starting { waiting: vec![lease] });
                Some(Deed::Start(gpu))
            }
        }
    }

    /// Who waited for it.
    pub fn started(&mut self, gpu: GpuIndex, well: bool) -> Vec<LeaseId> {
        let was = match well {
            true => self.all.insert(gpu, Daemon::Ready),
            false => self.all.remove(&gpu),
        };
        match was {
            Some(Daemon::Starting { waiting } | Daemon::Stopping { waiting }) => waiting,
            _ => Vec::new(),
        }
    }

    pub fn stopped(&mut self, gpu: GpuIndex) -> Option<Deed> {
        match self.all.remove(&gpu)? {
            Daemon::Stopping { waiting } if !waiting.is_empty() => {
                self.all.insert(gpu, Daemon::Starting { waiting });
                Some(Deed::Start(gpu))
            }
            Daemon::Stopping { .. } => None,
            other => {
                self.all.insert(gpu, other);
                None
            }
        }
    }

    /// Those that nobody needs go.
    pub fn tidy(&mut self, needed: &BTreeSet<GpuIndex>) -> Vec<Deed> {
        let idle: Vec<GpuIndex> = self.ready().filter(|gpu| !needed.contains(gpu)).collect();
        let stop = |gpu| {
            self.all.insert(gpu, Daemon::Stopping { waiting: Vec::new() });
            Deed::Stop(gpu)
        };
        idle.into_iter().map(stop).collect()
    }

    /// It is not there any more, though nobody stopped it.
    pub fn died(&mut self, gpu: GpuIndex) {
        self.all.remove(&gpu);
    }
}

/// Something that ended a server, or all programs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The client that caused it, where the log says so.
    pub pid: Option<i32>,
    pub line: String,
}

/// New lines of the logs of a control daemon and its server.
pub fn faults(text: &str) -> Vec<Fault> {
    text.lines().filter(|line| is_fault(line)).map(fault).collect()
}

/// A client that dies by itself is no fault: the server goes on with the others.
fn is_fault(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let status = lower.split("exited with status ").nth(1);
    lower.contains("fatal")
        || lower.contains("server faced")
        || status.is_some_and(|rest| !rest.trim_start().starts_with('0'))
}

fn fault(line: &str) -> Fault {
    let after = |mark: &str| {
        let rest = line.split(mark).nth(1)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let pid = after("{PID: ").or_else(|| after("lient "));
    Fault { pid, line: line.trim().to_owned() }
}

/// Whose processes used a shared GPU lately. The kernel gives a pid again, so one that was not seen
/// for a while says nothing.
#[derive(Debug, Default)]
pub struct Users {
    by_pid: BTreeMap<i32, (TaskId, Instant)>,
}

impl Users {
    pub fn saw(&mut self, users: impl Iterator<Item = (i32, TaskId)>, now: Instant) {
        self.by_pid.extend(users.map(|(pid, task)| (pid, (task, now))));
        self.by_pid.retain(|_, (_, at)| now.saturating_duration_since(*at) <= SOON);
    }

    pub fn task(&self, pid: i32) -> Option<TaskId> {
        self.by_pid.get(&pid).map(|(task, _)| *task)
    }
}

/// The newest fault on a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub at: Instant,
    pub line: String,
    /// Who caused it, if that is known.
    pub by: Option<TaskId>,
    /// Who had a part of the GPU then.
    pub tasks: BTreeSet<TaskId>,
}

/// What a part's end means, given the newest fault on its GPU: one that another program caused is not
/// its own.
pub fn explain(
    task: TaskId,
    gpu: GpuIndex,
    end: &End,
    seen: &Seen,
    now: Instant,
) -> Option<PartError> {
    let failed = end.exits.iter().any(|e| !e.status.is_success());
    let others: Vec<String> =
        seen.tasks.iter().filter(|t| **t != task).map(ToString::to_string).collect();
    let soon = now.saturating_duration_since(seen.at) <= SOON;
    if !failed || end.error.is_some() || !soon || seen.by == Some(task) || others.is_empty() {
        return None;
    }
    let who = match seen.by {
        Some(by) => format!("job {by}"),
        None => format!("perhaps of job {}", others.join(" or ")),
    };
    let message = format!(
        "another program on GPU {gpu} crashed the shared (MPS) server: {who}; the server said: {}",
        seen.line
    );
    Some(PartError { message, blame: Blame::Neighbour })
}

#[cfg(test)]
mod tests {
    use tutti_model::{ExitStatus, Generation, Rank, RankExit, Time};

    use super::*;

    fn lease(job: u64) -> LeaseId {
        LeaseId { task: task(job), generation: Generation(job) }
    }

    fn task(job: u64) -> TaskId {
        job.to_string().parse().unwrap()
    }

    const GPU: GpuIndex = GpuIndex(3);

    #[test]
    fn a_share_is_of_threads_and_memory_and_ranks_divide_it() {
        let mem = Bytes::gib(140);
        assert_eq!(Limits::new(0.5, 1, mem), Limits { percent: 50, mib: 70 << 10 });
        assert_eq!(Limits::new(0.25, 2, mem), Limits { percent: 12, mib: 17_920 });
        assert_eq!(Limits::new(0.001, 1, mem).percent, 1);
    }

    #[test]
    fn a_job_does_not_choose_its_own_share() {
        let limits = Limits { percent: 25, mib: 1000 };
        let vars = ["A=b", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", "CUDA_VISIBLE_DEVICES=0"];
        let mut env: Vec<String> = vars.map(str::to_owned).to_vec();
        env.push("CUDA_MPS_CLIENT_PRIORITY=0".into());
        put(&mut env, variables("GPU-1", Path::new("/run/x/pipe"), limits));
        let wanted = [
            "A=b",
            "CUDA_VISIBLE_DEVICES=GPU-1",
            "CUDA_MPS_PIPE_DIRECTORY=/run/x/pipe",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M",
        ];
        assert_eq!(env, wanted);
    }

    #[test]
    fn the_first_part_starts_a_daemon_and_the_last_stops_it() {
        let mut d = Daemons::default();
        assert_eq!(d.wait(GPU, lease(1)), Some(Deed::Start(GPU)));
        assert_eq!(d.wait(GPU, lease(2)), None, "it is being started");
        assert!(!d.is_ready(GPU));
        assert_eq!(d.started(GPU, true), [lease(1), lease(2)]);
        assert!(d.is_ready(GPU));
        assert_eq!(d.tidy(&[GPU].into()), []);
        assert_eq!(d.tidy(&BTreeSet::new()), [Deed::Stop(GPU)]);
        assert_eq!(d.tidy(&BTreeSet::new()), [], "it is being stopped");
        // Somebody comes meanwhile.
        assert_eq!(d.wait(GPU, lease(3)), None);
        assert_eq!(d.stopped(GPU), Some(Deed::Start(GPU)));
        assert_eq!(d.started(GPU, false), [lease(3)], "told that it failed");
        assert_eq!(d.wait(GPU, lease(4)), Some(Deed::Start(GPU)), "and tried again");
    }

    #[test]
    fn a_daemon_of_an_agent_before_is_used_and_a_dead_one_is_not() {
        let mut d = Daemons::default();
        d.adopt(GPU);
        assert!(d.is_ready(GPU));
        d.died(GPU);
        assert_eq!(d.wait(GPU, lease(1)), Some(Deed::Start(GPU)));
    }

    /// The second line is from a real driver (580); the others after NVIDIA's documentation.
    #[test]
    fn logs_tell_faults_from_the_end_of_a_client() {
        let text = "[2026-11-15 12:00:00.000 Control 100] NEW CLIENT 580 from user 0: Server already exists\n\
            [2026-11-15 12:00:01.000 Server 200] Client {PID: 580, Context ID: 1} exiting. Worker is in reset. Number of active client contexts is 1.\n\
            [2026-11-15 12:00:02.000 Control 100] Server 200 exited with status 0\n\
            [2026-11-15 12:00:03.000 Server 201] Client {PID: 581, Context ID: 2} caused a fatal GPU error\n\
            [2026-11-15 12:00:04.000 Control 100] Server 201 exited with status 1\n";
        let found = faults(text);
        let pids: Vec<Option<i32>> = found.iter().map(|f| f.pid).collect();
        assert_eq!(pids, [Some(581), None], "{found:?}");
    }

    #[test]
    fn a_pid_is_somebodys_only_while_it_is_seen() {
        let (mut users, start) = (Users::default(), Instant::now());
        users.saw([(580, task(12)), (581, task(13))].into_iter(), start);
        users.saw([(581, task(13))].into_iter(), start + SOON);
        assert_eq!(users.task(580), Some(task(12)), "it has ended a moment ago");
        users.saw([(581, task(13))].into_iter(), start + SOON + Duration::from_secs(1));
        assert_eq!((users.task(580), users.task(581)), (None, Some(task(13))));
        users.saw([(581, task(14))].into_iter(), start + SOON + Duration::from_secs(2));
        assert_eq!(users.task(581), Some(task(14)), "the pid was given again");
        users.saw(std::iter::empty(), start + 3 * SOON);
        assert!(users.by_pid.is_empty());
    }

    fn end(status: ExitStatus) -> End {
        let exits = vec![RankExit { rank: Rank(0), status, at: Time(0) }];
        End { exits, ..End::default() }
    }

    #[test]
    fn who_dies_of_another_programs_crash_is_not_to_blame() {
        let now = Instant::now();
        let tasks: BTreeSet<TaskId> = [task(12), task(13)].into();
        let seen = Seen { at: now, line: "fatal".into(), by: Some(task(12)), tasks };
        let failed = end(ExitStatus::Code(1));
        let error = explain(task(13), GPU, &failed, &seen, now).unwrap();
        assert_eq!(error.blame, Blame::Neighbour);
        let wanted = "another program on GPU 3 crashed the shared (MPS) server: job 12; ";
        assert!(error.message.starts_with(wanted), "{}", error.message);
        assert_eq!(explain(task(12), GPU, &failed, &seen, now), None, "its own doing");
        assert_eq!(explain(task(13), GPU, &end(ExitStatus::Code(0)), &seen, now), None);
        assert_eq!(explain(task(13), GPU, &failed, &seen, now + 2 * SOON), None, "long after");
        let unknown = Seen { by: None, ..seen.clone() };
        let error = explain(task(13), GPU, &failed, &unknown, now).unwrap();
        assert!(error.message.contains("perhaps of job 12"), "{}", error.message);
        let alone = Seen { tasks: [task(13)].into(), ..unknown };
        assert_eq!(explain(task(13), GPU, &failed, &alone, now), None, "nobody else was there");
    }
}
