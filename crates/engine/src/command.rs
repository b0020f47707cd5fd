//! Everything that can be asked of the engine. One door for people, agents and the clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tutti_model::{
    BurnInFigures, Day, EndpointLoad, Finding, Generation, GpuBenchFigures, GpuIndex, Greeting,
    JobId, JobSpec, JobUpdate, NodeId, PartReport, Policy, Priority, Replicas, Role, Served,
    TaskId, Time, Token, WatchRule,
};

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    pub user: String,
    pub role: Role,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// A controller took over: the first command after every start.
    Start,
    /// The journal is an older copy that was put back. Comes before [`Command::Start`].
    Restored,
    Submit {
        actor: Actor,
        spec: Box<JobSpec>,
        /// Runs and is accounted as this user; only an admin may name somebody else.
        user: Option<String>,
        /// The same key by the same user gives the same job.
        key: Option<String>,
    },
    /// Without an index, all tasks of an array.
    Cancel {
        actor: Actor,
        target: TaskId,
    },
    /// The same without time to save.
    Kill {
        actor: Actor,
        target: TaskId,
    },
    Hold {
        actor: Actor,
        job: JobId,
    },
    Release {
        actor: Actor,
        job: JobId,
    },
    /// Its GPUs are given up until somebody resumes it. Without an index, all tasks of an array.
    Suspend {
        actor: Actor,
        target: TaskId,
    },
    Wake {
        actor: Actor,
        target: TaskId,
    },
    SetPriority {
        actor: Actor,
        job: JobId,
        priority: Priority,
    },
    /// What is said here changes, all of it or nothing.
    Update {
        actor: Actor,
        job: JobId,
        update: Box<JobUpdate>,
    },

    /// The owner says that the work of this task up to now is safe (a checkpoint is written).
    Saved {
        actor: Actor,
        task: TaskId,
    },
    /// The owner says where a checkpoint of this task is.
    Register {
        actor: Actor,
        task: TaskId,
        step: u64,
        path: String,
    },
    SetPolicy {
        actor: Actor,
        policy: Box<Policy>,
    },
    /// The same, if the running policy still is the one that the new one was made from.
    ReplacePolicy {
        actor: Actor,
        old: Arc<Policy>,
        policy: Box<Policy>,
    },

    /// An agent opened a stream. A later session of the same node replaces an earlier one.
    Hello {
        greeting: Box<Greeting>,
        session: u64,
        /// The key that the agent has proved to hold. None where nobody checks.
        key: Option<String>,
    },
    Heartbeat {
        node: NodeId,
        session: u64,
        parts: Vec<PartReport>,
    },
    Report {
        node: NodeId,
        session: u64,
        report: PartReport,
    },
    /// Everything that is wrong with the node now, as its agent sees it.
    Findings {
        node: NodeId,
        session: u64,
        findings: Vec<Finding>,
    },
    /// The stream of that session broke.
    Gone {
        node: NodeId,
        session: u64,
    },

    Drain {
        actor: Actor,
        node: String,
        reason: String,
        /// What runs there is asked to save, stopped, and started again elsewhere.
        evict: bool,
    },
    Resume {
        actor: Actor,
        node: String,
    },
    /// The node is no longer part of the cluster, and its key opens nothing.
    RemoveNode {
        actor: Actor,
        node: String,
        /// Also if something runs there, which is lost then.
        force: bool,
    },
    /// An agent holds the key of a node whose own agent answers all the while.
    KeyShared {
        node: NodeId,
        /// From where they call.
        first: String,
        second: String,
    },
    /// Somebody measured the node's links.
    Measured {
        actor: Actor,
        node: String,
        figures: Box<BurnInFigures>,
    },
    /// Somebody measured the node's GPUs.
    GpusMeasured {
        actor: Actor,
        node: String,
        figures: Box<GpuBenchFigures>,
    },

    /// GPUs of the node that hardly do anything for a while, as its samples say. A level: all of
    /// them, each time. Those that are new have been so since then.
    Activity {
        node: NodeId,
        idle: BTreeSet<GpuIndex>,
        since: Option<Time>,
    },
    /// The rows of a sealed day of the ledger are durable somewhere else and may go.
    DropLedger {
        day: Day,
    },
    /// An alert asks for this attempt to be stopped: to be started again, or for good. Without a
    /// generation whatever attempt there is, and a task that waits for the next one is ended.
    Intervene {
        task: TaskId,
        generation: Option<Generation>,
        rule: WatchRule,
        text: String,
        again: bool,
    },

    AddToken {
        actor: Actor,
        token: Token,
    },
    RevokeToken {
        actor: Actor,
        id: String,
    },
    /// An agent joined with this token: counts a use, refuses when none is left.
    UseJoinToken {
        id: String,
        node: String,
        /// The key that the certificate is for.
        key: String,
    },

    /// A person wants this served. The endpoint's name is the spec's `name`.
    Serve {
        actor: Actor,
        spec: Box<JobSpec>,
        /// Runs and is accounted as this user; only an admin may name somebody else.
        user: Option<String>,
        /// The same key by the same user gives the same endpoint.
        key: Option<String>,
    },
    /// A new revision. `canary` in place of the spec's: per cent of requests that it gets first.
    UpdateEndpoint {
        actor: Actor,
        name: String,
        spec: Box<JobSpec>,
        canary: Option<u32>,
    },
    /// Other bounds than the job file's; none: as the file says.
    ScaleEndpoint {
        actor: Actor,
        name: String,
        bounds: Option<Replicas>,
    },
    /// To this revision, or to the last one that was not taken back.
    RollBack {
        actor: Actor,
        name: String,
        to: Option<u32>,
    },
    StopEndpoint {
        actor: Actor,
        name: String,
    },
    /// What all routers together see, for every endpoint. A level: all of it, each time.
    Load {
        loads: BTreeMap<String, EndpointLoad>,
    },
    /// What was served since the last time, about once a minute.
    Served {
        endpoint: String,
        more: Served,
    },

    /// These ended jobs are kept elsewhere for good. Those that somebody waits for stay.
    Forget {
        jobs: Vec<JobId>,
    },

    /// Time has passed: limits, lost nodes, kept history.
    Tick,
}

/// What the engine answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    /// `repeated`: the key was known, and this is the job it made.
    Submitted {
        job: JobId,
        repeated: bool,
    },
    /// How many tasks it touched.
    Tasks(u64),
    Welcome {
        node: NodeId,
    },
    /// The revision that it serves, or will.
    Endpoint {
        name: String,
        revision: u32,
        /// Who goes back passes over these: they were still on probation when another took their place.
        passed_over: Vec<u32>,
    },
}
