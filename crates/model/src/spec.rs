//! The job file, as data. Reading TOML, YAML, JSON and `#SBATCH` into it is `wire::jobfile`.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::units::text_serde;
use crate::{
    Bytes, DeclaredPlan, DefaultTimeOf, JobId, JobWatch, ServiceSpec, Shared, Span, Stall,
    Variables, count, thousands,
};

/// What a person asks for. Every key is optional but `run`.
///
/// Unknown keys are skipped here, so that an older agent understands a newer controller; the job
/// file reader and the API refuse them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A shell line, or a list of words that is executed without a shell.
    #[schema(value_type = Command)]
    pub run: Shared<Command>,
    /// How many nodes; 1 if neither this nor `gpus` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Total GPUs, spread over nodes by the scheduler. Not together with `nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<GpuRequest>,
    /// A part of one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_share: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_per_gpu: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_per_gpu: Option<Bytes>,
    /// CPUs per node, for work that is not counted by GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_per_node: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_per_node: Option<Bytes>,
    /// Processes per node. Follows from the launcher unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks_per_node: Option<u32>,
    /// After this long the job is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Span>,
    /// Whose default the time limit is, if it named none itself. Set when it is submitted; what a
    /// submitter writes here is not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_time_of: Option<DefaultTimeOf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    #[serde(default, skip_serializing_if = "Priority::is_normal")]
    pub priority: Priority,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
    /// A cluster-wide class, such as `scavenger` or `urgent`; `standard` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Least memory of each GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_mem: Option<Bytes>,
    /// Labels that a node must have, `a|b` for either value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Labels that a node must not have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub avoid_labels: BTreeMap<String, String>,
    /// Nobody else on the same nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    #[serde(default, skip_serializing_if = "Launcher::is_none")]
    pub launcher: Launcher,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<Dependency>,
    #[serde(default, skip_serializing_if = "has_no_variables")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub env: Shared<Variables>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Runs inside this image, by a container runtime of its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArraySpec>,
    /// Wait for `tutti release`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// Time between SIGTERM and SIGKILL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt: Option<Preempt>,
    #[serde(default, skip_serializing_if = "Retry::is_default")]
    pub retry: Retry,
    /// What happens when it makes no steps any more, if it reports any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stall: Option<Stall>,
    /// What it asks to be watched for, on top of what the operator has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<Box<JobWatch>>,
    /// What it was planned to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<DeclaredPlan>>,
    /// It is served to many users: one replica of it is what the rest of the file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Box<ServiceSpec>>,
    /// Keep standard input open and fed from the client (`tutti run`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
}

impl JobSpec {
    /// The port of a service that is the same wherever it runs.
    pub fn fixed_port(&self) -> Option<u16> {
        self.service.as_deref()?.port
    }

    /// The smallest job: one shell line on one node, no GPU.
    pub fn shell(line: impl Into<String>) -> JobSpec {
        JobSpec::new(Command::Shell(line.into()))
    }

    pub fn new(run: Command) -> JobSpec {
        JobSpec {
            name: None,
            run: run.into(),
            nodes: None,
            gpus: None,
            gpus_per_node: None,
            gpu_share: None,
            cpus_per_gpu: None,
            mem_per_gpu: None,
            cpus_per_node: None,
            mem_per_node: None,
            ranks_per_node: None,
            time: None,
            default_time_of: None,
            team: None,
            priority: Priority::NORMAL,
            elastic: None,
            class: None,
            gpu_mem: None,
            labels: BTreeMap::new(),
            avoid_labels: BTreeMap::new(),
            exclusive: false,
            topology: None,
            launcher: Launcher::None,
            after: Vec::new(),
            env: Shared::default(),
            workdir: None,
            image: None,
            array: None,
            hold: false,
            grace: None,
            checkpoint: None,
            preempt: None,
            retry: Retry::default(),
            stall: None,
            watch: None,
            plan: None,
            service: None,
            stdin: false,
        }
    }

    /// As it was submitted: without what the policy added.
    pub fn as_asked(&self) -> JobSpec {
        let time = self.time.filter(|_| self.default_time_of.is_none());
        JobSpec { time, default_time_of: None, ..self.clone() }
    }

    /// The name shown to people: the given one, else the first word of the command.
    pub fn display_name(&self) -> &str {
        if let Some(name) = &self.name {
            return name;
        }
        match self.program() {
            "" => "job",
            word => word,
        }
    }

    /// The first word of the command, without its directory.
    pub fn program(&self) -> &str {
        let line = match &*self.run {
            Command::Shell(line) => line.as_str(),
            Command::Argv(words) => words.first().map_or("", String::as_str),
        };
        let word = line.split_whitespace().next().unwrap_or("");
        word.rsplit('/').next().unwrap_or("")
    }

    /// How long an attempt runs before it is told to stop. What can save its work is told early
    /// enough to be gone when its time is over, but never in the first half of it.
    pub fn runs_for(&self) -> Option<Span> {
        let limit = self.time?;
        let Some(checkpoint) = &self.checkpoint else { return Some(limit) };
        let grace = checkpoint.grace.or(self.grace).unwrap_or(DEFAULT_GRACE);
        Some(Span(limit.0 - grace.0.min(limit.0 / 2)))
    }

    pub fn task_count(&self) -> u64 {
        self.array.as_ref().map_or(1, |a| a.indices.len())
    }
}

fn has_no_variables(env: &Shared<Variables>) -> bool {
    env.is_empty()
}

/// Between SIGTERM and SIGKILL, where nobody says otherwise.
pub const DEFAULT_GRACE: Span = Span::secs(30);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Command {
    Shell(String),
    Argv(Vec<String>),
}

/// `8`, `"h100:8"` or `"h100"` (one).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuRequest {
    pub model: Option<String>,
    pub count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSpec {
    #[error("'{0}' is no GPU request: write a number, or model:number such as h100:8")]
    Gpus(String),
    #[error("'{0}' is no priority: write low, normal, high or a number")]
    Priority(String),
    #[error("'{0}' is no dependency: write 41, ok:41, failed:41 or any:41")]
    Dependency(String),
    #[error("'{0}' is no array: write 0-999, 1,3,5 or 0-99:2, with %N for at most N at once")]
    Array(String),
    #[error("index {index} is too large for an array: the largest is {}", thousands(u32::MAX.into()))]
    ArrayIndex { index: String },
    #[error("'{range}' runs backwards: write {last}-{first}")]
    ArrayReversed { range: String, first: u32, last: u32 },
    #[error(
        "'{array}' has {}; at most {} are accepted: split it into several arrays",
        count(*.tasks, "task"),
        thousands(MAX_ARRAY_TASKS)
    )]
    ArrayTooLarge { array: String, tasks: u64 },
}

impl FromStr for GpuRequest {
    type Err = BadSpec;
    fn from_str(s: &str) -> Result<Self, BadSpec> {
        let bad = || BadSpec::Gpus(s.to_owned());
        let model_ok = |m: &str| {
            m.starts_with(|c: char| c.is_ascii_alphanumeric())
                && m.chars().all(|c| c.is_ascii_alphanumeric() || "-_.|".contains(c))
        };
        if let Ok(count) = s.parse() {
            return Ok(GpuRequest { model: None, count });
        }
        let (model, count) = match s.split_once(':') {
            Some((m, n)) => (m, n.parse().map_err(|_| bad())?),
            None => (s, 1),
        };
        if !model_ok(model) {
            return Err(bad());
        }
        Ok(GpuRequest { model: Some(model.to_ascii_lowercase()), count })
    }
}

impl fmt::Display for GpuRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.model {
            Some(m) => write!(f, "{m}:{}", self.count),
            None => write!(f, "{}", self.count),
        }
    }
}

/// Higher runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority(pub i32);

impl Priority {
    pub const LOW: Priority = Priority(-100);
    pub const NORMAL: Priority = Priority(0);
    pub const HIGH: Priority = Priority(100);
    fn is_normal(&self) -> bool {
        *self == Priority::NORMAL
    }
}

impl Default for Priority {
    fn default() -> Self {
        Priority::NORMAL
    }
}

impl FromStr for Priority {
    type Err = BadSpec;
    fn from_str(s: &str) -> Result<Self, BadSpec> {
        Ok(match s {
            "low" => Priority::LOW,
            "normal" => Priority::NORMAL,
            "high" => Priority::HIGH,
            n => Priority(n.parse().map_err(|_| BadSpec::Priority(s.to_owned()))?),
        })
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Priority::LOW => f.write_str("low"),
            Priority::NORMAL => f.write_str("normal"),
            Priority::HIGH => f.write_str("high"),
            Priority(n) => n.fmt(f),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Elastic {
    pub min_nodes: u32,
    pub max_nodes: u32,
}

/// The widest domain that a job may span, narrowest first.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// GPUs joined by NVLink inside one node.
    Island,
    Node,
    /// Under one leaf switch.
    Rack,
    /// A rail group, pod or block of racks.
    Rail,
    Site,
    #[default]
    Any,
}

impl Topology {
    pub fn as_str(self) -> &'static str {
        match self {
            Topology::Island => "island",
            Topology::Node => "node",
            Topology::Rack => "rack",
            Topology::Rail => "rail",
            Topology::Site => "site",
            Topology::Any => "any",
        }
    }
}

/// Who starts the processes, and so what environment they expect.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Launcher {
    /// One process per node.
    #[default]
    None,
    /// One process per GPU, with torch's `env://` variables.
    Torch,
    /// One `torchrun` per node, which starts the rest.
    Torchrun,
    /// `mpirun` on the first node; its daemons start through the agents of the others.
    Mpi,
    /// One process per node, with the coordinator's variables.
    Jax,
    /// One process per node, with `TF_CONFIG`.
    Tf,
    /// As `torch`, with what DeepSpeed reads besides.
    Deepspeed,
    /// A Ray cluster on the gang's nodes; the command runs on the first.
    Ray,
}

impl Launcher {
    pub fn as_str(self) -> &'static str {
        match self {
            Launcher::None => "none",
            Launcher::Torch => "torch",
            Launcher::Torchrun => "torchrun",
            Launcher::Mpi => "mpi",
            Launcher::Jax => "jax",
            Launcher::Tf => "tf",
            Launcher::Deepspeed => "deepspeed",
            Launcher::Ray => "ray",
        }
    }

    /// Whether one process per node is started, which makes the others itself.
    pub fn makes_processes(self) -> bool {
        matches!(self, Launcher::Torchrun | Launcher::Mpi | Launcher::Tf | Launcher::Ray)
    }

    fn is_none(&self) -> bool {
        *self == Launcher::None
    }
}

/// `ok:41` (the default for a bare id), `failed:41` or `any:41`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    pub job: JobId,
    pub on: DependOn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DependOn {
    Ok,
    Failed,
    Any,
}

impl FromStr for Dependency {
    type Err = BadSpec;
    fn from_str(s: &str) -> Result<Self, BadSpec> {
        let bad = || BadSpec::Dependency(s.to_owned());
        let (on, job) = match s.split_once(':') {
            None => (DependOn::Ok, s),
            Some(("ok", j)) => (DependOn::Ok, j),
            Some(("failed", j)) => (DependOn::Failed, j),
            Some(("any", j)) => (DependOn::Any, j),
            Some(_) => return Err(bad()),
        };
        Ok(Dependency { job: job.parse().map_err(|_| bad())?, on })
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = match self.on {
            DependOn::Ok => "ok",
            DependOn::Failed => "failed",
            DependOn::Any => "any",
        };
        write!(f, "{on}:{}", self.job)
    }
}

text_serde!(GpuRequest, "a number of GPUs, or model:number");
text_serde!(Priority, "low, normal, high or a number");
text_serde!(Dependency, "a job id with ok:, failed: or any: before it");
text_serde!(ArraySpec, "array indices such as 0-999 or 1,3,5%2");

/// `0-999`, `1,3,5`, `0-98:2`, each with `%N` for at most N tasks at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    pub indices: IndexRanges,
    pub max_running: Option<u32>,
}

/// The largest array that is accepted; a guard against `0-4000000000`.
pub const MAX_ARRAY_TASKS: u64 = 1_000_000;

impl FromStr for ArraySpec {
    type Err = BadSpec;
    fn from_str(s: &str) -> Result<Self, BadSpec> {
        let bad = || BadSpec::Array(s.to_owned());
        let (list, max_running) = match s.split_once('%') {
            Some((l, n)) => (l, Some(n.parse::<u32>().ok().filter(|&n| n > 0).ok_or_else(bad)?)),
            None => (s, None),
        };
        let mut ranges = Vec::new();
        for item in list.split(',') {
            let (range, step) = match item.split_once(':') {
                Some((r, n)) => (r, n.parse::<u32>().ok().filter(|&n| n > 0).ok_or_else(bad)?),
                None => (item, 1),
            };
            let (a, b) = range.split_once('-').unwrap_or((range, range));
            let (a, b) = (array_index(s, a)?, array_index(s, b)?);
            if b < a {
                let range = range.to_owned();
                return Err(BadSpec::ArrayReversed { range, first: a, last: b });
            }
            ranges.push((a, b, step));
        }
        // Before any is kept: a set of four thousand million would not fit.
        let tasks: u64 = ranges.iter().map(|(a, b, step)| u64::from((b - a) / step) + 1).sum();
        if tasks > MAX_ARRAY_TASKS {
            return Err(BadSpec::ArrayTooLarge { array: s.to_owned(), tasks });
        }
        let mut indices = IndexRanges::default();
        for (a, b, step) in ranges {
            if step == 1 {
                indices.insert_range(a, b);
            } else {
                (a..=b).step_by(step as usize).for_each(|i| indices.insert_range(i, i));
            }
        }
        Ok(ArraySpec { indices, max_running })
    }
}

/// One index of this array. A number that is none only because it is too large is told so.
fn array_index(array: &str, text: &str) -> Result<u32, BadSpec> {
    text.trim().parse().map_err(|bad: ParseIntError| match bad.kind() {
        IntErrorKind::PosOverflow => BadSpec::ArrayIndex { index: text.trim().to_owned() },
        _ => BadSpec::Array(array.to_owned()),
    })
}

impl fmt::Display for ArraySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.indices.fmt(f)?;
        self.max_running.map_or(Ok(()), |n| write!(f, "%{n}"))
    }
}

/// A set of array indices as ranges: a hundred thousand waiting tasks are one pair of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IndexRanges {
    /// First index to last index, both included; never touching or overlapping.
    ranges: BTreeMap<u32, u32>,
}

impl IndexRanges {
    /// About what they take in memory.
    pub fn bytes(&self) -> usize {
        self.ranges.len() * size_of::<(u32, u32)>()
    }

    pub fn insert_range(&mut self, first: u32, last: u32) {
        let (mut first, mut last) = (first, last);
        let touching: Vec<u32> = self
            .ranges
            .range(..=last.saturating_add(1))
            .rev()
            .take_while(|&(_, &end)| end.saturating_add(1) >= first)
            .map(|(&start, _)| start)
            .collect();
        for start in touching {
            let end = self.ranges.remove(&start).expect("key was just listed");
            first = first.min(start);
            last = last.max(end);
        }
        self.ranges.insert(first, last);
    }

    /// Takes one index out; false if it was not in.
    pub fn remove(&mut self, index: u32) -> bool {
        let Some((&start, &end)) = self.ranges.range(..=index).next_back() else { return false };
        if index > end {
            return false;
        }
        self.ranges.remove(&start);
        if start < index {
            self.ranges.insert(start, index - 1);
        }
        if index < end {
            self.ranges.insert(index + 1, end);
        }
        true
    }

    pub fn contains(&self, index: u32) -> bool {
        self.ranges.range(..=index).next_back().is_some_and(|(_, &end)| index <= end)
    }
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|(a, b)| u64::from(b - a) + 1).sum()
    }
    pub fn first(&self) -> Option<u32> {
        self.ranges.keys().next().copied()
    }
    pub fn last(&self) -> Option<u32> {
        self.ranges.values().next_back().copied()
    }
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(|(&a, &b)| a..=b)
    }
    /// The smallest index that is larger than this one.
    pub fn next_after(&self, index: u32) -> Option<u32> {
        let from = index.checked_add(1)?;
        if self.contains(from) {
            return Some(from);
        }
        self.ranges.range(from..).next().map(|(&a, _)| a)
    }
}

impl fmt::Display for IndexRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (a, b)) in self.ranges.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            if a == b {
                write!(f, "{comma}{a}")?;
            } else {
                write!(f, "{comma}{a}-{b}")?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    pub dir: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace: Option<Span>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Preempt {
    pub mode: PreemptMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PreemptMode {
    Auto,
    Suspend,
    Checkpoint,
    Requeue,
    Never,
}

/// How often a task is started again, separately for each cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Retry {
    pub node_failure: u32,
    pub preemption: u32,
    pub job_failure: u32,
}

impl Retry {
    fn is_default(&self) -> bool {
        *self == Retry::default()
    }
}

impl Default for Retry {
    fn default() -> Self {
        Retry { node_failure: 10, preemption: 1000, job_failure: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_parse_and_print() {
        for (text, len, shown) in [
            ("0-999", 1000, "0-999"),
            ("1,3,5", 3, "1,3,5"),
            ("0-8:2", 5, "0,2,4,6,8"),
            ("0-9,5-20%4", 21, "0-20%4"),
        ] {
            let a: ArraySpec = text.parse().unwrap();
            assert_eq!((a.indices.len(), a.to_string().as_str()), (len, shown), "{text}");
        }
        for text in ["", "5-1", "0-4000000000", "a", "1-5%0", "0-9:0", "1,,2"] {
            assert!(text.parse::<ArraySpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_refused_array_says_why() {
        let why = |text: &str| text.parse::<ArraySpec>().unwrap_err().to_string();
        for (text, want) in [
            ("0-4000000000", "has 4,000,000,001 tasks; at most 1,000,000 are accepted"),
            ("0-1000000%4", "has 1,000,001 tasks; at most 1,000,000"),
            ("0-999999,7", "has 1,000,001 tasks"),
            ("0-4294967295,0-4294967295", "has 8,589,934,592 tasks"),
            ("1,5-1", "'5-1' runs backwards: write 1-5"),
            ("x", "is no array: write 0-999"),
            (
                "0-99999999999",
                "99999999999 is too large for an array: the largest is 4,294,967,295",
            ),
            ("4294967296", "4294967296 is too large"),
        ] {
            assert!(why(text).contains(want), "{text}: {}", why(text));
        }
        assert_eq!("0-999999".parse::<ArraySpec>().unwrap().indices.len(), MAX_ARRAY_TASKS);
    }

    #[test]
    fn gpu_requests_parse() {
        assert_eq!("8".parse::<GpuRequest>().unwrap(), GpuRequest { model: None, count: 8 });
        assert_eq!("H100:8".parse::<GpuRequest>().unwrap().to_string(), "h100:8");
        for text in ["-1", "-1:2", "", ":8", "h100:", "h100:x", "a b:1"] {
            assert!(text.parse::<GpuRequest>().is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn index_ranges_are_a_set(
            low in proptest::bool::ANY,
            ops in proptest::collection::vec((0u32..60, 0u32..8, proptest::bool::ANY), 0..60),
        ) {
            let base = if low { 0 } else { u32::MAX - 66 };
            let mut ranges = IndexRanges::default();
            let mut set = std::collections::BTreeSet::new();
            for (at, len, add) in ops {
                let at = base + at;
                if add {
                    ranges.insert_range(at, at + len);
                    set.extend(at..=at + len);
                } else {
                    proptest::prop_assert_eq!(ranges.remove(at), set.remove(&at));
                }
                proptest::prop_assert_eq!(ranges.iter().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
                proptest::prop_assert_eq!(ranges.len(), set.len() as u64);
                let mut walked: Vec<u32> = ranges.first().into_iter().collect();
                while let Some(next) = walked.last().and_then(|&last| ranges.next_after(last)) {
                    walked.push(next);
                }
                proptest::prop_assert_eq!(walked, set.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
