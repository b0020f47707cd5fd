//! Which processes of a part use CUDA, and how much they hold on GPUs.

use std::collections::BTreeMap;
use std::path::Path;

use tutti_gpu::NvmlFailure;
use tutti_gpu::cuda::{CudaError, ProcessState};

use super::Server;
use crate::suspend::calls::{Failed, Reply};
use crate::suspend::human;

/// Who holds memory on GPUs; tests bring their own.
pub trait Holders {
    /// Bytes by process, where the driver tells them apart.
    fn by_process(&self) -> Result<BTreeMap<i32, u64>, NvmlFailure>;
    /// Bytes in use on these GPUs, by whomever.
    fn on_gpus(&self, uuids: &[String]) -> Result<u64, NvmlFailure>;
}

pub struct Nvml;

impl Holders for Nvml {
    fn by_process(&self) -> Result<BTreeMap<i32, u64>, NvmlFailure> {
        tutti_gpu::memory::by_process()
    }
    fn on_gpus(&self, uuids: &[String]) -> Result<u64, NvmlFailure> {
        tutti_gpu::memory::in_use(uuids)
    }
}

impl Server<'_> {
    pub(super) fn survey(&self, pids: &[i32], gpus: &[String]) -> Result<Reply, Failed> {
        let nvml = |e: NvmlFailure| Failed { why: crate::node::chain(&e), timeout: false };
        let held = self.holders.by_process().map_err(nvml)?;
        let mut procs = Vec::new();
        for &pid in pids.iter().filter(|pid| self.has_device_open(**pid)) {
            match self.state_of(pid)? {
                Ok(ProcessState::Failed) => {
                    let why = format!("process {pid} has failed before and can't be moved");
                    return Err(Failed { why, timeout: false });
                }
                Ok(_) => procs.push(pid),
                // Forked from one that uses CUDA, or something that only reads sensors.
                Err(_) if !held.contains_key(&pid) => {}
                Err(error) => {
                    let why = format!(
                        "process {pid} holds {} on a GPU, and the driver can't move it: {error}",
                        human(held[&pid])
                    );
                    return Err(Failed { why, timeout: false });
                }
            }
        }
        if let Some(why) = self.shared_memory(&procs) {
            return Err(Failed { why, timeout: false });
        }
        let known: u64 = procs.iter().filter_map(|pid| held.get(pid)).sum();
        let bytes = match (procs.is_empty(), known) {
            (true, _) => 0,
            // Inside a container NVML does not always know the processes.
            (false, 0) => self.holders.on_gpus(gpus).map_err(nvml)?,
            (false, known) => known,
        };
        Ok(Reply::Surveyed { procs, bytes, available: available(self.root) })
    }

    fn state_of(&self, pid: i32) -> Result<Result<ProcessState, CudaError>, Failed> {
        if is_stopped(self.root, pid) {
            let why = format!("process {pid} is stopped, and the driver needs it to run");
            return Err(Failed { why, timeout: false });
        }
        Ok(self.driver.state(pid))
    }

    /// Two processes that have each other's GPU memory mapped can't be brought back, though the driver
    /// lets them go. What they map cannot be seen, but what CUDA, NCCL and PyTorch agree on beside it
    /// can: files in shared memory that both have.
    fn shared_memory(&self, procs: &[i32]) -> Option<String> {
        let mut seen: BTreeMap<String, i32> = BTreeMap::new();
        for &pid in procs {
            let maps = std::fs::read_to_string(self.root.join(format!("proc/{pid}/maps")));
            for file in tell_tales(&maps.unwrap_or_default()) {
                match seen.get(file) {
                    Some(first) if *first != pid => {
                        return Some(format!(
                            "processes {first} and {pid} share memory of GPUs (both use {file}), and the driver \
                             can't bring that back"
                        ));
                    }
                    _ => seen.insert(file.to_owned(), pid),
                };
            }
        }
        None
    }

    /// Every process that uses CUDA has its devices open; asking only those keeps the driver away
    /// from shells and data loaders.
    fn has_device_open(&self, pid: i32) -> bool {
        let fds = std::fs::read_dir(self.root.join(format!("proc/{pid}/fd")));
        fds.into_iter().flatten().flatten().any(|fd| {
            let target = std::fs::read_link(fd.path()).unwrap_or_default();
            target.to_str().is_some_and(|t| t.starts_with("/dev/nvidia"))
        })
    }
}

/// Names of shared memory by which libraries share memory of GPUs, in `/proc/PID/maps`.
fn tell_tales(maps: &str) -> impl Iterator<Item = &str> {
    let files = maps.lines().filter_map(|line| line.find("/dev/shm/").map(|at| &line[at..]));
    let files = files.map(|file| file.strip_suffix(" (deleted)").unwrap_or(file));
    let names = ["/dev/shm/nccl-", "/dev/shm/torch_", "/dev/shm/cuda.shm"];
    files.filter(move |file| names.iter().any(|name| file.starts_with(name)))
}

fn is_stopped(root: &Path, pid: i32) -> bool {
    let stat = std::fs::read_to_string(root.join(format!("proc/{pid}/stat"))).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('T' | 't'))
}

/// `MemAvailable`, in bytes.
fn available(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
