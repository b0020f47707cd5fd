//! A trace run again, by the production engine under a virtual clock.
//!
//! ```text
//! trace ─► World: agenda of arrivals, ends, failures ─► Engine.step / Engine.schedule
//!              ▲                                              │ orders
//!              └──────── perfect agents, no latency ◄─────────┘
//! ```
//! [`run`] is for any trace, to its end; a [`World`] can be looked at on its way. [`openb`] and [`muri`] follow the rules of published experiments.

mod clock;
pub mod muri;
pub mod openb;
mod patience;
mod racks;
mod speed;
#[cfg(test)]
mod tests;
mod world;

use tutti_engine::{Command, Engine, Rejected, Step};
use tutti_model::{Finding, Goodput, GpuMicros, NodeId, Policy, Span, Time};

use crate::cluster::Cluster;
use crate::trace::Trace;

pub use speed::Spreading;
pub use world::{World, settings};

/// How a trace is run.
#[derive(Clone, Debug)]
pub struct Options {
    pub policy: Policy,
    /// Jobs without a time limit get one that is just long enough, so that the scheduler knows.
    pub know_durations: bool,
    /// For failures.
    pub seed: u64,
    /// Failures that take a node down, per 1,000 node-days.
    pub failures: f64,
    /// How long a node is down.
    pub repair: Span,
    pub restart: Restart,
    /// None: it does not matter where a job runs.
    pub spreading: Option<Spreading>,
    /// What happens beside the trace.
    pub incidents: Vec<Incident>,
    /// Agents speak up so often: ranks say how far they are, and a node that fails falls silent.
    /// None: they say only what they must, and a node that fails is drained.
    pub heartbeat: Option<Span>,
    /// How long ended jobs are known.
    pub keep: Span,
}

/// Something that happens so long after the start of the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    pub after: Span,
    pub what: Misfortune,
}

/// Nodes by name, jobs by their place in the trace.
#[derive(Clone, Debug, PartialEq)]
pub enum Misfortune {
    Fails {
        node: String,
        repair: Span,
    },
    Drain {
        node: String,
        reason: String,
    },
    Resume {
        node: String,
    },
    /// All that its agent finds wrong, from here on.
    Findings {
        node: String,
        findings: Vec<Finding>,
    },
    Cancel {
        job: usize,
    },
    Hold {
        job: usize,
    },
    Release {
        job: usize,
    },
}

/// Whoever has the engine: the engine itself, or somebody who keeps more of what it does.
pub trait Host {
    fn engine(&self) -> &Engine;
    fn step(&mut self, command: Command, now: Time) -> Step;
    fn schedule(&mut self, now: Time) -> Step;
}

impl Host for Engine {
    fn engine(&self) -> &Engine {
        self
    }
    fn step(&mut self, command: Command, now: Time) -> Step {
        Engine::step(self, command, now)
    }
    fn schedule(&mut self, now: Time) -> Step {
        Engine::schedule(self, now)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            policy: Policy::default(),
            know_durations: false,
            seed: 1,
            failures: 0.0,
            repair: Span::secs(4 * 3600),
            restart: Restart::Scratch,
            spreading: None,
            incidents: Vec::new(),
            heartbeat: None,
            keep: world::KEEP,
        }
    }
}

/// From where a job goes on that was stopped before its end. One that changes its size on its own
/// account always goes on where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    Scratch,
    /// From where it was stopped.
    Served,
    /// From its last checkpoint; it saves this often.
    Checkpoint(Span),
}

#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("the engine refused {what}")]
    Refused { what: &'static str, source: Rejected },
    #[error("at {} s the engine's own check refused a plan", .at.0 / 1000)]
    Plan { at: Time, source: Rejected },
    #[error("at {} s the scheduler plans again and again without placing anything", .at.0 / 1000)]
    NoProgress { at: Time },
}

/// What became of a trace. Times count from the start of the trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// In the order of the trace.
    pub jobs: Vec<JobRun>,
    /// Each moment at which something changed.
    pub samples: Vec<Sample>,
    pub gpus: u64,
    /// Name and GPUs of each node; the first has id 1.
    pub nodes: Vec<(String, u32)>,
    /// Nodes that failed.
    pub failures: u64,
    /// Records that the engine made.
    pub events: u64,
    /// How long it took, to the last moment at which anything happened.
    pub lasted: Span,
    /// The engine's ledger at the end.
    pub goodput: Goodput,
}

/// Work that was done in vain, as the simulation itself has counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thrown {
    pub by_failure: GpuMicros,
    pub by_preemption: GpuMicros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub at: Time,
    /// Thousandths of GPUs that are held.
    pub held: u64,
    pub waiting: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobRun {
    pub name: String,
    pub user: String,
    pub team: String,
    /// Thousandths of GPUs that it asks for.
    pub milli: u64,
    pub submit: Time,
    pub start: Option<Time>,
    pub end: Option<Time>,
    pub fate: Fate,
    pub attempts: u32,
    pub preemptions: u32,
    pub node_failures: u32,
    /// GPU-milliseconds of work that had to be done again.
    pub lost: u64,
    /// The same by its cause, and exactly.
    pub thrown: Thrown,
    /// Racks of the last attempt, and how few an empty cluster would have needed.
    pub racks: Option<(u32, u32)>,
    pub stints: Vec<Stint>,
}

impl JobRun {
    pub fn jct(&self) -> Option<Span> {
        self.end.filter(|_| self.fate == Fate::Completed).map(|end| end.since(self.submit))
    }
    pub fn wait(&self) -> Option<Span> {
        self.start.map(|start| start.since(self.submit))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Completed,
    /// Ended by its time limit or by too many failures.
    Failed,
    /// Never accepted: this cluster can't run it.
    Refused(String),
    /// Still there when nothing could happen any more.
    Stuck,
    /// Given up: with nodes failing this often it never ends.
    Hopeless,
}

/// One attempt on the machines it had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stint {
    pub from: Time,
    pub until: Time,
    pub nodes: Vec<NodeId>,
    pub milli: u64,
}

/// Runs a trace to its end. `progress` is told how many jobs are over.
pub fn run(
    cluster: &Cluster,
    trace: &Trace,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<Run, ReplayError> {
    let engine = Engine::new(settings(options));
    World::new(engine, cluster, trace, options)?.run(progress)
}
