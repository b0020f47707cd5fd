//! Servers and their GPUs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Bytes, Finding, GpuBench, GpuIndex, Hardware, LeaseId, Milli, NodeId, TaskId, Time};

/// What an agent says about its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeFacts {
    pub name: String,
    /// Where ranks on this node are reached by ranks on others.
    pub address: String,
    pub cpus: u32,
    pub mem: Bytes,
    pub gpus: Vec<Gpu>,
    /// The devices are imagined; processes are real.
    pub simulated: bool,
    /// How a job's processes are held together: "cgroup2" or "process group".
    pub isolation: String,
    /// What keeps jobs apart elsewhere and can't be had on this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<Lack>,
    /// What can run images: "podman", "apptainer", "enroot".
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runtimes: Vec<String>,
    pub agent_version: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What it is made of, in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Box<Hardware>>,
    /// Its agent can move a running program's GPU state to host memory and back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_suspend: bool,
    /// And to other GPUs than it came from, of the same model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_move: bool,
    /// Why it can't, where one might expect it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_note: Option<String>,
    /// Why parts of its GPUs can't be given, or are given without limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_note: Option<String>,
    /// Its agent stops what is over its time limit when the controller does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_limits: bool,
    /// Files and directories that it has, as its operator says: models that are served, say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// Its address is one that only processes of the same machine reach. None: others reach it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loopback: Option<LoopbackOf>,
}

impl NodeFacts {
    /// Nodes where this is the same reach each other.
    pub fn reach(&self) -> Option<&str> {
        self.loopback.as_ref().map(|of| of.id.as_str())
    }
}

/// Whose loopback a node's address is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoopbackOf {
    /// The machine's name, for people.
    pub host: String,
    /// The same for all that share the loopback, and for nobody else.
    pub id: String,
}

/// Something that should keep jobs apart, and why this host does not have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lack {
    /// "devices", "memory", "cpu", "cpuset", "pids", "private-tmp", "cgroup".
    pub what: String,
    pub why: String,
}

impl Lack {
    pub fn new(what: &str, why: String) -> Lack {
        Lack { what: what.to_owned(), why }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    pub index: GpuIndex,
    /// Short and lower case: `h100`.
    pub model: String,
    pub uuid: String,
    pub mem: Bytes,
    /// GPUs of a node with the same number are joined by NVLink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub island: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    pub facts: NodeFacts,
    pub link: Link,
    /// Set by an operator, or because too much went wrong; nothing new starts, what runs goes on.
    pub drain: Option<Drain>,
    /// Leases that the node still runs but must not: its GPUs are given again when these are gone.
    pub stale: BTreeSet<LeaseId>,
    pub joined_at: Time,
    /// Since when it is as it is: connected, or in use again. None: from before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_since: Option<Time>,
    /// What speaks against it, oldest first; cleared when it is resumed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strikes: Vec<Strike>,
    /// When something last went well on it: a task completed, or got further.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good_at: Option<Time>,
    /// What its links were last measured to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burn_in: Option<BurnIn>,
    /// What its GPUs were last measured to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_bench: Option<GpuBench>,
    /// What is wrong with it, as its agent last said. Those on a GPU may fence that GPU.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Derived from the leases; kept by `apply`, rebuilt on load.
    #[serde(skip)]
    pub used: Used,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub gpus: BTreeMap<GpuIndex, GpuUse>,
    pub cpus: u32,
    pub mem: Bytes,
    /// Every lease with a part here that is not over.
    pub leases: BTreeSet<LeaseId>,
}

/// Who has how much of one GPU. Never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    pub leases: BTreeMap<LeaseId, Milli>,
}

impl GpuUse {
    pub fn milli(&self) -> u32 {
        self.leases.values().map(|m| u32::from(m.0)).sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Link {
    Up,
    /// The stream broke at this time; the agent may come back before it counts as lost.
    Away {
        since: Time,
    },
    Lost {
        since: Time,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drain {
    pub by: String,
    pub reason: String,
    pub since: Time,
    /// Nobody asked for it: too much had gone wrong here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto: bool,
    /// The key of the finding that asks for it: the drain ends when nothing asks for it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
}

/// What `tutti bench collectives` last found out about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BurnIn {
    pub at: Time,
    pub by: String,
    #[serde(flatten)]
    pub figures: BurnInFigures,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BurnInFigures {
    /// The job that measured.
    pub job: TaskId,
    /// How many ranks took part, on all nodes.
    pub ranks: u32,
    /// Between ranks of this node, if there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<LinkFigures>,
    /// Between its ranks and those of other nodes, if there were others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outside: Option<LinkFigures>,
    /// Bytes per second that its slowest rank copies in memory.
    pub copy: u64,
    /// What is slower than its like, in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<String>,
}

/// Medians over several links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkFigures {
    pub latency_ns: u64,
    /// Bytes per second, each way.
    pub bandwidth: u64,
}

/// Something went wrong on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    pub at: Time,
    pub what: Mishap,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mishap {
    /// It did not answer any more.
    Lost,
    /// A task failed here, and as far as is known nowhere else.
    Failed {
        task: TaskId,
        user: String,
        /// It is not the task: the node or other ranks said so, or it went well elsewhere.
        proven: bool,
    },
}

impl Node {
    /// May something new start here?
    pub fn accepts_work(&self) -> bool {
        self.link == Link::Up && self.drain.is_none() && self.stale.is_empty()
    }
    /// Nothing may be placed on this GPU.
    pub fn is_fenced(&self, gpu: GpuIndex) -> bool {
        self.findings.iter().any(|f| f.fences() == Some(gpu))
    }
    /// GPUs that exist and that nothing may be placed on.
    pub fn fenced(&self) -> BTreeSet<GpuIndex> {
        let known = |gpu: &GpuIndex| self.facts.gpus.iter().any(|g| g.index == *gpu);
        self.findings.iter().filter_map(Finding::fences).filter(known).collect()
    }
    /// The finding that fences this GPU, the hardest if there are several.
    pub fn fence_of(&self, gpu: GpuIndex) -> Option<&Finding> {
        let mut of_gpu: Vec<&Finding> =
            self.findings.iter().filter(|f| f.fences() == Some(gpu)).collect();
        of_gpu.sort_by_key(|f| (std::cmp::Reverse(f.action), f.since));
        of_gpu.first().copied()
    }
    pub fn free_gpus(&self) -> impl Iterator<Item = &Gpu> + '_ {
        let is_free = |g: &&Gpu| !self.used.gpus.contains_key(&g.index) && !self.is_fenced(g.index);
        self.facts.gpus.iter().filter(is_free)
    }
    /// What is free of one GPU, in thousandths.
    pub fn free_milli(&self, gpu: GpuIndex) -> u16 {
        if self.is_fenced(gpu) {
            return 0;
        }
        let used = self.used.gpus.get(&gpu).map_or(0, GpuUse::milli);
        1000u32.saturating_sub(used) as u16
    }
    pub fn free_gpu_count(&self) -> u32 {
        self.free_gpus().count() as u32
    }
    pub fn free_cpus(&self) -> u32 {
        self.facts.cpus.saturating_sub(self.used.cpus)
    }
    pub fn free_mem(&self) -> Bytes {
        Bytes(self.facts.mem.0.saturating_sub(self.used.mem.0))
    }
    pub fn state(&self) -> NodeState {
        match (self.link, &self.drain) {
            (Link::Lost { .. }, _) => NodeState::Lost,
            (Link::Away { .. }, _) => NodeState::Away,
            (Link::Up, _) if !self.stale.is_empty() => NodeState::Cleaning,
            (Link::Up, Some(_)) if self.used.leases.is_empty() => NodeState::Drained,
            (Link::Up, Some(_)) => NodeState::Draining,
            (Link::Up, None) => NodeState::Ready,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    Ready,
    /// Stopping what it should no longer run.
    Cleaning,
    Draining,
    Drained,
    /// Its stream broke a moment ago.
    Away,
    Lost,
}

impl NodeState {
    pub fn as_str(self) -> &'static str {
        match self {
            NodeState::Ready => "ready",
            NodeState::Cleaning => "cleaning",
            NodeState::Draining => "draining",
            NodeState::Drained => "drained",
            NodeState::Away => "away",
            NodeState::Lost => "lost",
        }
    }
}
