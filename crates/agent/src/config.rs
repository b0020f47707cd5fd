//! What an agent is told when it starts, and what can go wrong with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tutti_files::OwnDirError;
use tutti_gpu::health::rules::Thresholds;
use tutti_gpu::holdings::Holdings;
use tutti_model::{Bytes, Gpu, Hardware, Span};
use tutti_wire::client::ClientError;
use tutti_wire::pki::PkiError;
use tutti_wire::token::TokenText;

use crate::active::Measurer;
use crate::container::Runtime;
use crate::health::{ChecksConfig, StoreError};
use crate::isolation::IsolationMode;
use crate::logs::LogLimits;
use crate::parts::PartsError;

#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Keys, part records and logs; one agent at a time.
    pub data_dir: PathBuf,
    pub controller: Controller,
    /// Needed once, to join.
    pub join_token: Option<TokenText>,
    pub name: String,
    /// Where ranks on this node are reached by ranks on others.
    pub address: String,
    pub cpus: u32,
    pub mem: Bytes,
    pub gpus: Vec<Gpu>,
    /// What the machine is made of. None: nobody has looked.
    pub hardware: Option<Box<Hardware>>,
    pub simulated: bool,
    pub isolation: IsolationMode,
    /// Processes and threads that a part may have.
    pub pids: u64,
    /// The container runtime that is used, where there are several. None: whichever is there.
    pub runtime: Option<Runtime>,
    /// Who says what is held on GPUs. None: the drivers of this machine.
    pub holdings: Option<Arc<dyn Holdings>>,
    pub log_limits: LogLimits,
    pub log_retention: LogRetention,
    pub labels: BTreeMap<String, String>,
    /// Files and directories that replicas load from; those that exist are told.
    pub files: Vec<String>,
    /// Take the ranks along on SIGTERM, after this grace. None: they run on, and the next agent
    /// adopts them.
    pub kill_jobs_on_term: Option<Span>,
    /// How often the machine is looked at.
    pub sample_every: Duration,
    /// Switch the machine's huge pages on while GPU state is moved to host memory and back.
    pub huge_pages: bool,
    /// Give parts of a GPU also where nothing holds programs to them.
    pub share_without_mps: bool,
    /// From where on something is a finding.
    pub health: Thresholds,
    /// Whether GPUs are checked actively without being asked for.
    pub active_checks: ActiveChecks,
    /// Who makes GPUs compute. None: a process of its own on real devices, nobody on imagined ones.
    pub measurer: Option<Arc<dyn Measurer>>,
    /// None: the operator has no checks of their own here.
    pub checks: Option<ChecksConfig>,
}

/// When GPUs are checked actively.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActiveChecks {
    /// When they are new here, before a fence is lifted, and between jobs on suspicion.
    #[default]
    Auto,
    /// Only when somebody asks for it.
    Off,
}

impl std::str::FromStr for ActiveChecks {
    type Err = String;

    fn from_str(text: &str) -> Result<ActiveChecks, String> {
        match text {
            "auto" => Ok(ActiveChecks::Auto),
            "off" => Ok(ActiveChecks::Off),
            _ => Err(format!("'{text}' is neither auto nor off")),
        }
    }
}

/// Where the controller is.
#[derive(Clone, Debug)]
pub enum Controller {
    /// `host:port`.
    Address(String),
    /// On this machine: its data dir says where it listens, at every dial anew.
    DataDir(PathBuf),
}

/// How long logs of ended tasks are kept; whichever limit is reached first.
#[derive(Clone, Copy, Debug)]
pub struct LogRetention {
    pub tasks: usize,
    pub age: Duration,
    /// Of all tasks together; less on a disk that is nearly full, where logs never take more than
    /// they leave free.
    pub bytes: u64,
}

impl Default for LogRetention {
    fn default() -> Self {
        LogRetention { tasks: 20_000, age: Duration::from_secs(7 * 86_400), bytes: 20 << 30 }
    }
}

impl AgentConfig {
    /// The smallest: no GPUs, everything else as usual.
    pub fn new(data_dir: PathBuf, controller: Controller, name: &str, address: &str) -> Self {
        AgentConfig {
            data_dir,
            controller,
            join_token: None,
            name: name.to_owned(),
            address: address.to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            mem: total_memory(),
            gpus: Vec::new(),
            simulated: false,
            hardware: None,
            isolation: IsolationMode::Auto,
            pids: crate::isolation::default_pids(),
            runtime: None,
            holdings: None,
            log_limits: LogLimits::default(),
            log_retention: LogRetention::default(),
            labels: BTreeMap::new(),
            files: Vec::new(),
            kill_jobs_on_term: None,
            sample_every: crate::telemetry::EVERY,
            huge_pages: true,
            share_without_mps: false,
            health: Thresholds::default(),
            active_checks: ActiveChecks::Auto,
            measurer: None,
            checks: None,
        }
    }
}

/// The memory of this machine; 0 where it can't be read, and then nothing is placed by memory.
pub fn total_memory() -> Bytes {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    Bytes(kib.unwrap_or(0) * 1024)
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("can't {what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("can't use {} as data dir", path.display())]
    DataDir {
        path: PathBuf,
        #[source]
        source: OwnDirError,
    },
    #[error(
        "another agent uses {}: stop it first, or give this one its own --data-dir",
        .0.display()
    )]
    InUse(PathBuf),
    #[error(
        "this node has not joined a cluster yet: make a join token with `tutti token create --join` and pass it with --token-file or TUTTI_JOIN_TOKEN"
    )]
    NotJoined,
    #[error("{} belongs to node '{known}', not to '{wanted}'", path.display())]
    OtherNode { path: PathBuf, known: String, wanted: String },
    #[error("joining the cluster failed")]
    Join(#[source] ClientError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Parts(#[from] PartsError),
    #[error("can't set up the agent: {what}")]
    SetUp {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("what was found wrong with this machine is not known any more ({})", dir.display())]
    Health {
        dir: PathBuf,
        #[source]
        source: StoreError,
    },
    #[error("the process that starts jobs has died")]
    ZygoteDied,
}
