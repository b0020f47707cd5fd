//! Everything a shim needs to know, worked out by the agent beforehand: a shim looks nothing up.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tutti_model::{LeaseId, Rank, TimeLimit};

use crate::cgroup::PartCgroup;
use crate::env::ByRank;
use crate::logs::LogLimits;
use crate::private::Private;
use crate::suspend::Ability;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub lease: LeaseId,
    /// The agent's data dir. The shim lives there, so that the socket's path is never too long.
    pub home: PathBuf,
    /// The part's record, without its ending.
    pub stem: PathBuf,
    /// The socket on which ranks report progress.
    pub progress: PathBuf,
    pub log_dir: PathBuf,
    pub log_limits: LogLimits,
    pub argv: Vec<String>,
    /// Words before those of everything that runs in the part: its container runtime.
    pub container: Vec<String>,
    /// Set-uid programs work: a runtime needs them to make a container for a user.
    pub new_privileges: bool,
    /// If that is what makes its containers.
    pub podman: Option<Podman>,
    /// `NAME=value`, all but what differs between ranks.
    pub env: Vec<String>,
    pub by_rank: ByRank,
    pub first_rank: Rank,
    pub ranks: u32,
    pub workdir: Workdir,
    /// None: ranks run as whoever the agent runs as.
    pub identity: Option<Identity>,
    pub stdin: bool,
    pub cgroup: Option<PartCgroup>,
    /// None: it sees what everybody sees.
    pub private: Option<Private>,
    /// This binary, for the helper that speaks with the CUDA driver.
    pub program: String,
    /// UUIDs of its GPUs, in its own order.
    pub gpus: Vec<String>,
    pub suspend: Ability,
    pub limit: Option<TimeLimit>,
}

/// What podman itself is given, beside the words for each rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Podman {
    /// `NAME=value`: nothing here is the job's to choose.
    pub env: Vec<String>,
    /// The ranks' variables, a file for each, named by its rank. None: podman has them itself, because
    /// it can do no more than the job.
    pub files: Option<PathBuf>,
    /// Words that list what it has of the part, and that remove what was listed.
    pub list: Vec<String>,
    pub remove: Vec<String>,
}

impl Plan {
    /// The words before those of a program that runs for this rank.
    pub fn container_of(&self, rank: Rank) -> Vec<String> {
        let files = self.podman.as_ref().and_then(|podman| podman.files.as_deref());
        let file = files.map(crate::container::env_file_word);
        let own = |word: &String| match file.as_ref() == Some(word) {
            true => format!("{word}{rank}"),
            false => word.clone(),
        };
        self.container.iter().map(own).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Workdir {
    /// The job asked for it: without it the rank can't run.
    Asked(String),
    /// The user's home, or `/` if that is not there.
    Home(String),
}

/// Whom ranks run as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Identity {
    /// With this user's rights on files, on this thread.
    pub fn act<T>(&self, work: impl FnOnce() -> T) -> std::io::Result<T> {
        tutti_files::act_as(self.uid, self.gid, &self.groups, work)
    }
}
