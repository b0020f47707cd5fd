//! Jobs from files that others wrote: what came when, what it asked for, how long it took.
//!
//! Readers take text and give jobs, or an error with the line and the reason. Opening files is the
//! caller's business.

mod csv;
mod journal;
mod lingjun;
mod muri;
mod openb;
mod philly;
mod sacct;
mod table;
#[cfg(test)]
mod tests;

use tutti_engine::{Actor, Command, Engine, Rejected, Settings};
use tutti_model::{GpuRequest, JobSpec, Role, Span, Time};

pub use csv::read as read_csv;
pub use journal::History;
pub use lingjun::{read_jobs as read_lingjun, read_topology as read_lingjun_topology};
pub use muri::{MuriJob, read as read_muri};
pub use openb::{
    OpenbNode, OpenbPod, read_nodes as read_openb_nodes, read_order as read_openb_order,
    read_pods as read_openb_pods,
};
pub use philly::read as read_philly;
pub use sacct::read as read_sacct;
pub(crate) use table::{Row, Table};

/// One job of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceJob {
    /// What the trace calls it.
    pub name: String,
    /// Counted from the start of the trace.
    pub submit: Time,
    /// How long it runs on all that it asks for, when nothing disturbs it.
    pub run: Span,
    pub user: String,
    pub spec: JobSpec,
    pub manner: Manner,
}

/// What a job does beside running for its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    /// It says how far it is, and takes so long for a step.
    pub step: Option<Span>,
    /// With what it ends; tasks of an array all with the same.
    pub exit: i32,
}

/// Jobs in order of their submission, and how many were left out because they never ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    pub jobs: Vec<TraceJob>,
    pub skipped: usize,
    /// When the trace starts, where it has dates. What a policy says of dates, such as
    /// reservations, means nothing without.
    pub epoch: Option<Time>,
}

impl Trace {
    /// The first submission becomes time 0; equal times keep the order of the file.
    pub(crate) fn sorted(jobs: Vec<TraceJob>, skipped: usize) -> Trace {
        Trace { epoch: None, ..Trace::dated(jobs, skipped) }
    }

    /// The same from times since 1970.
    pub(crate) fn dated(mut jobs: Vec<TraceJob>, skipped: usize) -> Trace {
        jobs.sort_by_key(|j| j.submit);
        let epoch = jobs.first().map(|j| j.submit);
        let start = epoch.unwrap_or_default();
        jobs.iter_mut().for_each(|j| j.submit = Time(j.submit.since(start).0));
        Trace { jobs, skipped, epoch }
    }

    /// How many jobs come, where each task of an array is one, as in every figure of a run.
    pub fn job_count(&self) -> u64 {
        self.jobs.iter().map(|job| job.spec.task_count()).sum()
    }

    /// Jobs come `factor` times as fast.
    pub fn scale_load(&mut self, factor: f64) {
        for job in &mut self.jobs {
            job.submit = Time((job.submit.0 as f64 / factor).round() as u64);
        }
    }
}

/// Where a trace, cluster or table of figures is wrong, and why.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct BadLine {
    /// Counted from 1, the head included.
    pub line: usize,
    pub problem: Problem,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    #[error("the file is empty: a head with column names is missing")]
    NoHead,
    #[error("there is no column '{0}'")]
    NoColumn(String),
    #[error("the column '{0}' is unknown; known are {1}")]
    UnknownColumn(String, String),
    #[error("{have} fields where the head has {want}")]
    Fields { have: usize, want: usize },
    #[error("a quote is not closed")]
    OpenQuote,
    #[error("{column} is empty")]
    Empty { column: String },
    #[error("{column} '{value}' is not a number")]
    NotANumber { column: String, value: String },
    #[error("{column} '{value}' is not {wanted}")]
    NotA { column: String, value: String, wanted: &'static str },
    #[error("{column} {value} is too large: at most {max}")]
    TooLarge { column: String, value: String, max: u64 },
    #[error("{0}")]
    Spec(String),
    #[error("row {row} is not in the pod list, which has {rows}")]
    NoSuchRow { row: usize, rows: usize },
}

/// Longest time that a trace may name: a thousand years. Sums of two never overflow.
const SECONDS_MAX: f64 = 1000.0 * 366.0 * 86_400.0;

/// Most GPUs, nodes or CPUs that a line may ask for.
const COUNT_MAX: u64 = 1 << 24;

/// What is wrong with a spec whatever the cluster, in the words of the engine's own door.
pub(crate) fn spec_problem(spec: &JobSpec) -> Option<Problem> {
    let actor = Actor { user: "trace".to_owned(), role: Role::Admin };
    let spec = Box::new(spec.clone());
    let submit = Command::Submit { actor, spec, user: None, key: None };
    // Without nodes and teams most is refused for other reasons, which do not count here.
    match Engine::new(Settings::default()).step(submit, Time(0)).reply {
        Err(bad @ (Rejected::BadSpec { .. } | Rejected::Unparsable(_))) => {
            Some(Problem::Spec(bad.to_string()))
        }
        _ => None,
    }
}

/// `gpus` as a gang: whole nodes of `per_node` if it is a multiple of that, else a total that the
/// scheduler spreads.
pub(crate) fn gang(gpus: u32, per_node: u32) -> JobSpec {
    let mut spec = JobSpec::shell("trace");
    let each = |count| Some(GpuRequest { model: None, count });
    if gpus <= per_node {
        spec.gpus_per_node = each(gpus);
    } else if gpus.is_multiple_of(per_node) {
        spec.nodes = Some(gpus / per_node);
        spec.gpus_per_node = each(per_node);
    } else {
        spec.gpus = Some(gpus);
    }
    spec
}
