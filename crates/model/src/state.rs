//! The whole cluster in memory. Changed by `engine::apply` and by nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    Claim, Endpoint, Epoch, Generation, Goodput, HolderBytes, Job, JobId, Learned, Ledger, Node,
    NodeId, NodeKeyRecord, PastEndpoints, Policy, Queue, Seq, SpecBytes, StoredText, TaskId,
    TextDigest, Time, Token,
};

/// Jobs are behind `Arc` so that a clone for a snapshot costs pointers, not jobs; `apply` copies a
/// job only while such a clone is alive. So are the days, jobs and attempts of the ledger, which are
/// as many. Nodes are copied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The last record applied.
    pub seq: Seq,
    /// When it was made. Time never goes backwards in the journal.
    pub at: Time,
    pub epoch: Epoch,
    pub next_job: u64,
    pub next_node: u32,
    pub next_generation: u64,
    pub jobs: BTreeMap<JobId, Arc<Job>>,
    pub nodes: BTreeMap<NodeId, Node>,
    /// By name, who may call itself so. Not those that joined before there was such a record and were
    /// not heard of since.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_keys: BTreeMap<String, NodeKeyRecord>,
    /// Names of nodes that were removed, for what is still told of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub past_nodes: BTreeMap<NodeId, String>,
    pub tokens: BTreeMap<String, Token>,
    /// Answers to submissions that may be repeated: user and key to the job, and when.
    pub keys: BTreeMap<(String, String), (JobId, Time)>,
    #[serde(default)]
    pub policy: Arc<Policy>,
    /// What is kept for tasks until it is free.
    #[serde(default)]
    pub claims: BTreeMap<TaskId, Claim>,
    #[serde(default)]
    pub ledger: Ledger,
    /// By name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoints: BTreeMap<String, Endpoint>,
    /// Those that were stopped.
    #[serde(default, skip_serializing_if = "PastEndpoints::is_empty")]
    pub past_endpoints: PastEndpoints,
    /// The last record that changed what routers are told.
    #[serde(default)]
    pub routes: Seq,
    #[serde(default)]
    pub learned: Learned,
    /// Where every GPU-second went.
    #[serde(default)]
    pub goodput: Goodput,
    /// Large commands and environments, each once, as long as a job or endpoint has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub texts: BTreeMap<TextDigest, StoredText>,
    #[serde(skip)]
    pub index: Index,
}

/// Everything that follows from the rest of the state; kept by `apply`, rebuilt on load.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    pub queue: Queue,
    /// Tasks with a lease.
    pub active: BTreeSet<TaskId>,
    /// Tasks in the queue by how long they have waited; an array's untouched rest counts as one.
    pub waiting: BTreeSet<(Time, TaskId)>,
    /// Running tasks with a time limit, by when it ends them.
    pub limits: BTreeSet<(Time, TaskId)>,
    /// Running tasks that may take more or fewer nodes.
    pub elastic: BTreeSet<TaskId>,
    /// Tasks with a lease of which a part is over and another is not.
    pub ending: BTreeSet<TaskId>,
    /// Suspended tasks that go on as soon as they can, by since when they are.
    pub asleep: BTreeSet<(Time, TaskId)>,
    /// Tasks that are being suspended, or wake.
    pub moving: BTreeSet<TaskId>,
    /// Waiting jobs by a job they wait for.
    pub dependents: BTreeMap<JobId, BTreeSet<JobId>>,
    /// Tasks that may be started again at this time.
    pub back_off: BTreeSet<(Time, TaskId)>,
    pub node_names: BTreeMap<String, NodeId>,
    /// Jobs that are over, oldest end first.
    pub ended: BTreeSet<(Time, JobId)>,
    /// What their specs take.
    pub ended_specs: HolderBytes,
    /// What all other specs take, and of whom.
    pub spec_bytes: SpecBytes,
}

impl State {
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).map(Arc::as_ref)
    }
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(&id)
    }
    pub fn node_named(&self, name: &str) -> Option<&Node> {
        self.nodes.get(self.index.node_names.get(name)?)
    }
    pub fn node_name(&self, id: NodeId) -> String {
        let past = || self.past_nodes.get(&id).cloned();
        let name = self.nodes.get(&id).map(|n| n.facts.name.clone()).or_else(past);
        name.unwrap_or_else(|| format!("node-{id}"))
    }
    pub fn generation(&self) -> Generation {
        Generation(self.next_generation)
    }
    pub fn jobs_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(&id).map(Arc::make_mut)
    }
}
