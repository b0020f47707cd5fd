//! What keeps the jobs of a node apart: decided once when the agent starts, and worked out for
//! every part. What the host can't do is said to whoever asks for the node.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tutti_model::{Command, GpuIndex, Hardware, Lack, Launch, LeaseId, PartError};

use crate::cgroup::{Cgroups, PartCgroup, Wanted};
use crate::config::AgentConfig;
use crate::cpus::{self, Cpus, Machine};
use crate::devices::{Rules, files};
use crate::plan::{Plan, Workdir};
use crate::private::{Keep, Private, Rooms};
use crate::progress::place;

/// Variables that name a place which the part must reach.
const NAMED: [&str; 4] =
    ["HOME=", "TUTTI_RESUME_PATH=", "CUDA_MPS_PIPE_DIRECTORY=", "CUDA_MPS_LOG_DIRECTORY="];

/// How much jobs are to be kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsolationMode {
    /// As far as the host can, on nodes with real devices.
    #[default]
    Auto,
    /// Also on simulated nodes.
    On,
    /// On, and no part starts while the host can't do all of it.
    Required,
    Off,
}

impl std::str::FromStr for IsolationMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(IsolationMode::Auto),
            "on" => Ok(IsolationMode::On),
            "required" => Ok(IsolationMode::Required),
            "off" => Ok(IsolationMode::Off),
            other => Err(format!("'{other}' is none of auto, on, required and off")),
        }
    }
}

/// More than any training program has threads, and less than the machine has numbers for.
pub fn default_pids() -> u64 {
    let max = std::fs::read_to_string("/proc/sys/kernel/pid_max");
    let max = max.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(32_768);
    (max / 4 * 3).min(100_000)
}

#[derive(Debug, Default)]
pub struct Isolation {
    cgroups: Option<Cgroups>,
    lacks: Vec<Lack>,
    required: bool,
    machine: Machine,
    rooms: Option<Rooms>,
    /// Which CPUs each part has for itself.
    pinned: BTreeMap<LeaseId, Cpus>,
}

impl Isolation {
    /// Cgroups cost a short job about as much as its own fork, so simulated nodes do without unless
    /// told otherwise.
    pub fn set_up(config: &AgentConfig) -> Isolation {
        let wanted = match config.isolation {
            IsolationMode::Auto => !config.simulated,
            IsolationMode::On | IsolationMode::Required => true,
            IsolationMode::Off => false,
        };
        let required = config.isolation == IsolationMode::Required;
        let mut isolation = Isolation { required, ..Isolation::default() };
        if !wanted {
            return isolation;
        }
        match Cgroups::set_up(&config.name, &config.data_dir) {
            Ok(cgroups) => {
                isolation.lacks.extend_from_slice(cgroups.lacks());
                let all = cgroups.cpus().and_then(|list| cpus::parse(&list)).unwrap_or_default();
                isolation.machine = Machine::look(Path::new("/"), all);
                isolation.cgroups = Some(cgroups);
            }
            Err(error) => {
                isolation.lacks.push(Lack::new("cgroup", crate::node::chain(&error)));
            }
        }
        if let Some(why) = unknown_devices(config) {
            isolation.lacks.retain(|lack| lack.what != "devices");
            isolation.lacks.push(Lack::new("devices", why));
        }
        let mut rooms = Rooms::new(&config.data_dir);
        match rooms.probe() {
            Ok(()) => isolation.rooms = Some(rooms),
            Err(error) => {
                isolation.lacks.push(Lack::new("private-tmp", crate::node::chain(&error)));
            }
        }
        isolation.tell_operator();
        isolation
    }

    fn tell_operator(&self) {
        for Lack { what, why } in &self.lacks {
            if self.required {
                tracing::error!("jobs are refused, because isolation is required: {what}: {why}");
            } else {
                tracing::warn!("jobs are not kept apart by {what} here: {why}");
            }
        }
    }

    /// How processes are held together.
    pub fn describe(&self) -> &'static str {
        self.cgroups.as_ref().map_or("process group", Cgroups::describe)
    }

    /// The last name in the path of the agent's own group; parts are below it.
    pub fn name(&self) -> Option<String> {
        self.cgroups.as_ref().and_then(Cgroups::name)
    }

    pub fn lacks(&self) -> &[Lack] {
        &self.lacks
    }

    /// Why no part may start here, if so.
    pub fn objection(&self, node: &str) -> Option<PartError> {
        if !self.required || self.lacks.is_empty() {
            return None;
        }
        let lacks: Vec<String> =
            self.lacks.iter().map(|Lack { what, why }| format!("{what} ({why})")).collect();
        let message = format!(
            "node {node} must keep jobs apart and can't: {}; its operator mends that or starts the \
             agent with --isolation auto",
            lacks.join(", ")
        );
        Some(PartError { message, blame: tutti_model::Blame::Node })
    }

    /// What a part that has these GPUs may open.
    pub fn devices(&self, gpus: &[GpuIndex], config: &AgentConfig) -> Option<Rules> {
        self.cgroups.as_ref().filter(|_| self.confines())?;
        Some(files::rules(config.hardware.as_deref(), gpus, &files::Seen::now()))
    }

    /// The groups of a part that is about to start.
    pub fn of_part(&mut self, launch: &Launch, config: &AgentConfig) -> Option<PartCgroup> {
        let cgroups = self.cgroups.as_ref()?;
        let hardware = config.hardware.as_deref();
        let devices = self.devices(&launch.gpus, config);
        let mut wanted = Wanted { devices, ..Wanted::default() };
        // What a simulated node offers is not what this machine has.
        if !config.simulated {
            wanted.mem = Some(launch.mem).filter(|mem| mem.0 > 0);
            wanted.cpus = Some(launch.cpus).filter(|&cpus| cpus > 0);
            let taken = self.pinned.values().flatten().copied().collect();
            let chosen = self.machine.choose(&taken, &near(hardware, launch), launch.cpus);
            wanted.cpuset = chosen.as_ref().map(cpus::text);
            self.pinned.extend(chosen.map(|cpus| (launch.lease, cpus)));
        }
        wanted.pids = Some(config.pids).filter(|&pids| pids > 0);
        Some(cgroups.for_part(launch.lease, wanted))
    }

    /// A part can open no GPU but its own.
    pub fn confines(&self) -> bool {
        self.cgroups.is_some() && self.lacks.iter().all(|lack| lack.what != "devices")
    }

    /// The directories that a part has for itself. `program` is this binary, which its ranks may call.
    pub fn private(&mut self, plan: &Plan, launch: &Launch, program: &str) -> Option<Private> {
        let (socket, warnings) = (plan.progress.clone(), place::warnings(&plan.progress));
        let own = [PathBuf::from(program), socket, warnings];
        let runtime = plan.container.first().map(PathBuf::from);
        let own = own.into_iter().chain(runtime).map(|path| Keep { path, named: false });
        let workdir = match &plan.workdir {
            Workdir::Asked(dir) | Workdir::Home(dir) => dir.as_str(),
        };
        let value = |var: &str| Some(var.split_once('=')?.1.to_owned());
        let named = plan.env.iter().filter(|var| NAMED.iter().any(|n| var.starts_with(n)));
        let named = named.filter_map(|var| value(var)).chain([workdir.to_owned()]);
        let named = named.chain(command_path(&launch.spec.run));
        let named = named.map(|path| Keep { path: path.into(), named: true });
        // Those that share a GPU find each other's server there.
        let memory = launch.spec.gpu_share.is_none_or(|share| share >= 1.0);
        let rooms = self.rooms.as_mut()?;
        Some(rooms.of_part(launch.lease, memory, own.chain(named).collect()))
    }

    /// Where private directories are, to be removed.
    pub fn rooms(&self) -> Option<Rooms> {
        self.rooms.clone()
    }

    /// A part of an earlier agent keeps the CPUs that it was given.
    pub fn adopt(&mut self, lease: LeaseId) {
        let pinned = self.cgroups.as_ref().and_then(|cgroups| cgroups.cpuset_of(lease));
        let pinned = pinned.and_then(|list| cpus::parse(&list));
        self.pinned.extend(pinned.map(|cpus| (lease, cpus)));
    }

    pub fn part_over(&mut self, lease: LeaseId) {
        self.pinned.remove(&lease);
    }

    /// Removes what the agent had, as far as nothing is in it any more.
    pub fn leave(&self) {
        self.cgroups.iter().for_each(Cgroups::leave);
        self.rooms.iter().for_each(Rooms::leave);
    }

    /// Private directories of parts that are over, to be removed.
    pub fn left_behind(&self, live: &BTreeSet<LeaseId>) -> Vec<PathBuf> {
        let names: BTreeSet<String> = live.iter().map(ToString::to_string).collect();
        let left = |rooms: &Rooms| rooms.all_but(|name| names.contains(name));
        self.rooms.as_ref().map(left).unwrap_or_default()
    }

    /// All groups that a part may have had.
    pub fn groups(&self, lease: LeaseId) -> Option<PartCgroup> {
        self.cgroups.as_ref().map(|cgroups| cgroups.of_part(lease))
    }
}

/// The program that a command names by its path. What else it names may be meant to be its own.
fn command_path(run: &Command) -> Option<String> {
    let word = match run {
        Command::Argv(words) => words.first()?.as_str(),
        Command::Shell(line) => line.split_whitespace().find(|word| *word != "exec")?,
    };
    word.starts_with('/').then(|| word.to_owned())
}

/// Closing all GPUs but those whose files are known would close a part's own.
fn unknown_devices(config: &AgentConfig) -> Option<String> {
    if config.simulated {
        return None;
    }
    let facts = config.hardware.as_deref().map_or(&[][..], |h| &h.gpus);
    let known = |index| facts.iter().any(|f| f.index == index && !f.device_files.is_empty());
    let unknown = config.gpus.iter().find(|gpu| !known(gpu.index))?;
    Some(format!("the device files of GPU {} are not known", unknown.index))
}

/// CPUs near the part's GPUs.
fn near(hardware: Option<&Hardware>, launch: &Launch) -> Cpus {
    let own = hardware.iter().flat_map(|h| &h.gpus).filter(|g| launch.gpus.contains(&g.index));
    own.filter_map(|gpu| cpus::parse(gpu.cpus.as_deref()?)).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_required_and_missing_is_the_nodes_fault() {
        let lacks = vec![Lack::new("devices", "Operation not permitted".into())];
        let mut isolation = Isolation { lacks, ..Isolation::default() };
        assert_eq!(isolation.objection("n1"), None, "the operator has not asked for it");
        isolation.required = true;
        let error = isolation.objection("n1").unwrap();
        assert_eq!(error.blame, tutti_model::Blame::Node);
        assert!(error.message.contains("n1") && error.message.contains("devices (Operation"));
        isolation.lacks.clear();
        assert_eq!(isolation.objection("n1"), None);
    }

    #[test]
    fn modes_have_names() {
        assert_eq!("required".parse(), Ok(IsolationMode::Required));
        assert!("strict".parse::<IsolationMode>().unwrap_err().contains("auto, on"));
    }
}
