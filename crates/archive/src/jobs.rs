//! The table of ended jobs: one row for each job, and for each task of an array that ever started.
//! Tasks that ended together before they started have one row together.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tutti_model::{
    Amounts, ArraySpec, EndReason, IndexRanges, JobId, JobSpec, JobState, Milli, Priority,
    ReplicaOf, ReportLine, Restarts, SavedPoint, Span, TaskId, Time, TimeClass,
};
use tutti_wire::api::{JobDetail, JobRow, SuspensionRow};

use crate::table::{BadContent, Cell, Columns, Field, Key, Kind, Row, may, must};

/// An ended job or task as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct JobEntry {
    pub row: JobRow,
    /// How many tasks this row stands for; more than one only if they never started.
    pub tasks: u64,
    /// Which ones, if it is more than one.
    pub indices: Option<IndexRanges>,
    /// Why it ended, in a word.
    pub reason: String,
    pub attempts: u32,
    pub restarts: Restarts,
    /// How long the last attempt lasted.
    pub ran: Option<Span>,
    /// Of the GPUs that it had.
    pub gpu_model: Option<String>,
    /// As it asked for them.
    pub cpus_per_node: u32,
    pub mem_per_node: u64,
    /// What became of the GPU-time of the whole job; only with the first of its rows.
    pub time: Option<Amounts>,
    /// The spec as JSON, shared by the tasks of an array. None if it was not read.
    pub spec: Option<Bytes>,
    /// None if it was not read.
    pub more: Option<More>,
}

/// What only `tutti show` tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct More {
    pub end: EndReason,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checkpoints: Vec<SavedPoint>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspensions: Vec<SuspensionRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_before: Option<String>,
    /// Where the GPU-hours of the whole job went, at the prices of the day; with the first of its rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<ReportLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_of: Option<ReplicaOf>,
    /// Bytes of its output that are in no log.
    #[serde(default)]
    pub output_dropped: u64,
}

impl JobEntry {
    /// As `tutti show` had told it before; `inside` is for those who may know everything.
    pub fn detail(&self) -> Result<JobDetail, BadContent> {
        let spec = self.spec.as_deref().ok_or(BadContent::Missing("spec"))?;
        let spec: JobSpec = json("spec", spec)?;
        let more = self.more.clone().ok_or(BadContent::Missing("more"))?;
        Ok(JobDetail {
            row: self.row.clone(),
            spec,
            attempt: Some(self.attempts).filter(|&n| n > 0),
            generation: None,
            restarts_by_cause: self.restarts,
            parts: Vec::new(),
            end: Some(more.end),
            time_left: None,
            held: false,
            checkpoints: more.checkpoints,
            stopped_before: more.stopped_before,
            suspensions: more.suspensions,
            goodput: more.goodput,
            replica_of: more.replica_of,
            output_dropped: more.output_dropped,
        })
    }
}

/// Why it ended, in the word that JSON has for it.
pub fn reason_word(end: &EndReason) -> &'static str {
    match end {
        EndReason::Finished => "finished",
        EndReason::RankFailed { .. } => "rank_failed",
        EndReason::LaunchFailed { .. } => "launch_failed",
        EndReason::TimeLimit => "time_limit",
        EndReason::Cancelled { .. } => "cancelled",
        EndReason::DependencyUnmet { .. } => "dependency_unmet",
        EndReason::NodeFailures { .. } => "node_failures",
        EndReason::Preemptions => "preemptions",
        EndReason::PeerFault { .. } => "peer_fault",
        EndReason::Stalled { .. } => "stalled",
        EndReason::Unhealthy { .. } => "unhealthy",
        EndReason::Watched { .. } => "watched",
        EndReason::CrashLoop { .. } => "crash_loop",
    }
}

/// The heavy ones, which a list does not need.
pub(crate) const HEAVY: [&str; 2] = ["spec", "more"];

impl Row for JobEntry {
    const TABLE: &'static str = "jobs";

    const FIELDS: &'static [Field] = &[
        must("job", Kind::Int),
        must("submitted", Kind::Time),
        may("task", Kind::Int),
        must("tasks", Kind::Int),
        may("indices", Kind::Text),
        must("name", Kind::Text),
        must("user", Kind::Text),
        may("team", Kind::Text),
        must("class", Kind::Text),
        must("priority", Kind::Int),
        must("state", Kind::Text),
        may("exit_code", Kind::Int),
        must("reason", Kind::Text),
        must("note", Kind::Text),
        may("started", Kind::Time),
        must("ended", Kind::Time),
        may("queued_ms", Kind::Int),
        may("ran_ms", Kind::Int),
        must("suspended_ms", Kind::Int),
        must("attempts", Kind::Int),
        must("restarts_node_failure", Kind::Int),
        must("restarts_preemption", Kind::Int),
        must("restarts_job_failure", Kind::Int),
        must("nodes", Kind::Int),
        must("gpus", Kind::Int),
        must("gpu_share", Kind::Int),
        may("gpu_model", Kind::Text),
        must("cpus_per_node", Kind::Int),
        must("mem_per_node", Kind::Int),
        must("node_names", Kind::Text),
        must("spec", Kind::Json),
        must("more", Kind::Json),
        may("gpu_micros_productive", Kind::Int),
        may("gpu_micros_starting", Kind::Int),
        may("gpu_micros_lost_to_failure", Kind::Int),
        may("gpu_micros_lost_to_preemption", Kind::Int),
        may("gpu_micros_suspended", Kind::Int),
        may("gpu_micros_idle", Kind::Int),
        may("gpu_micros_reserved", Kind::Int),
        may("restarts_health", Kind::Int),
        may("between_attempts_ms", Kind::Int),
    ];

    fn key(&self) -> Key {
        key(self.row.id.job, self.row.submitted_at)
    }

    fn cells(&self) -> Vec<Cell> {
        let row = &self.row;
        let time = |t: Option<Time>| t.map_or(Cell::Null, |t| Cell::large(t.0));
        let span = |s: Option<Span>| s.map_or(Cell::Null, |s| Cell::large(s.0));
        let indices = self.indices.as_ref().map(ToString::to_string);
        let more = self.more.as_ref().and_then(|m| serde_json::to_vec(m).ok());
        let mut cells = vec![
            Cell::large(row.id.job.0),
            Cell::large(row.submitted_at.0),
            row.id.index.map_or(Cell::Null, Cell::int),
            Cell::large(self.tasks),
            Cell::some(indices.as_deref()),
            Cell::text(&row.name),
            Cell::text(&row.user),
            Cell::some(row.team.as_deref()),
            Cell::text(&row.class),
            Cell::int(row.priority.0),
            Cell::text(row.state.as_str()),
            row.exit_code.map_or(Cell::Null, Cell::int),
            Cell::text(&self.reason),
            Cell::text(&row.note),
            time(row.started_at),
            time(row.ended_at),
            span(row.started_at.map(|at| at.since(row.submitted_at))),
            span(self.ran),
            Cell::large(row.suspended_for.0),
            Cell::int(self.attempts),
            Cell::int(self.restarts.node_failure),
            Cell::int(self.restarts.preemption),
            Cell::int(self.restarts.job_failure),
            Cell::int(row.nodes),
            Cell::int(row.gpus),
            Cell::int(row.share.0),
            Cell::some(self.gpu_model.as_deref()),
            Cell::int(self.cpus_per_node),
            Cell::large(self.mem_per_node),
            Cell::text(&row.node_names.join(",")),
            self.spec.clone().map_or(Cell::Null, Cell::Text),
            more.map_or(Cell::Null, |m| Cell::Text(m.into())),
        ];
        let time = |class| self.time.as_ref().map_or(Cell::Null, |t| Cell::large(t.of(class)));
        cells.extend(TIMES.map(|(class, _)| time(class)));
        cells.push(Cell::int(self.restarts.health));
        cells.push(Cell::large(row.between_attempts.0));
        cells
    }

    fn read(c: &Columns, row: usize) -> Result<JobEntry, BadContent> {
        let restarts = Restarts {
            node_failure: c.number("restarts_node_failure", row)?,
            preemption: c.number("restarts_preemption", row)?,
            job_failure: c.number("restarts_job_failure", row)?,
            // Files of before do not have it.
            health: c.number_or_none("restarts_health", row)?.unwrap_or(0),
        };
        let more = c.text_or_none("more", row)?;
        Ok(JobEntry {
            row: job_row(c, row, restarts)?,
            tasks: c.number("tasks", row)?,
            indices: c.text_or_none("indices", row)?.map(indices).transpose()?,
            reason: c.text("reason", row)?.to_owned(),
            attempts: c.number("attempts", row)?,
            restarts,
            ran: c.number_or_none("ran_ms", row)?.map(Span),
            gpu_model: c.text_or_none("gpu_model", row)?.map(str::to_owned),
            cpus_per_node: c.number("cpus_per_node", row)?,
            mem_per_node: c.number("mem_per_node", row)?,
            time: time(c, row)?,
            spec: c.text_or_none("spec", row)?.map(|s| Bytes::copy_from_slice(s.as_bytes())),
            more: more.map(|m| json("more", m.as_bytes())).transpose()?,
        })
    }
}

/// What a job's GPU-time may be, and its column.
pub(crate) const TIMES: [(TimeClass, &str); 7] = [
    (TimeClass::Productive, "gpu_micros_productive"),
    (TimeClass::Starting, "gpu_micros_starting"),
    (TimeClass::LostToFailure, "gpu_micros_lost_to_failure"),
    (TimeClass::LostToPreemption, "gpu_micros_lost_to_preemption"),
    (TimeClass::Suspended, "gpu_micros_suspended"),
    (TimeClass::Idle, "gpu_micros_idle"),
    (TimeClass::Reserved, "gpu_micros_reserved"),
];

/// Only the first row of a job has it.
pub(crate) fn time(c: &Columns, row: usize) -> Result<Option<Amounts>, BadContent> {
    let mut amounts = Amounts::default();
    let mut known = false;
    for (class, column) in TIMES {
        if let Some(amount) = c.number_or_none(column, row)? {
            known = true;
            amounts.add(class, amount);
        }
    }
    Ok(known.then_some(amounts))
}

pub fn key(job: JobId, submitted: Time) -> Key {
    let int = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    (int(job.0), int(submitted.0))
}

fn job_row(c: &Columns, row: usize, restarts: Restarts) -> Result<JobRow, BadContent> {
    let text = |column| c.text(column, row).map(str::to_owned);
    let index = c.number_or_none("task", row)?;
    let state = c.text("state", row)?;
    let names = c.text("node_names", row)?;
    let bad = |column| BadContent::Value { column, value: state.to_owned() };
    Ok(JobRow {
        id: TaskId { job: JobId(c.number("job", row)?), index },
        name: text("name")?,
        user: text("user")?,
        team: c.text_or_none("team", row)?.map(str::to_owned),
        class: text("class")?,
        state: JobState::named(state).ok_or_else(|| bad("state"))?,
        nodes: c.number("nodes", row)?,
        gpus: c.number("gpus", row)?,
        share: Milli(c.number("gpu_share", row)?),
        priority: Priority(c.number("priority", row)?),
        submitted_at: Time(c.number("submitted", row)?),
        started_at: c.number_or_none("started", row)?.map(Time),
        ended_at: Some(Time(c.number("ended", row)?)),
        suspended_for: Span(c.number("suspended_ms", row)?),
        // Files of before do not have it.
        between_attempts: Span(c.number_or_none("between_attempts_ms", row)?.unwrap_or(0)),
        exit_code: c.number_or_none("exit_code", row)?,
        restarts: restarts.total(),
        verdict: None,
        blockers: Vec::new(),
        note: text("note")?,
        array: None,
        node_names: names.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect(),
        progress: None,
    })
}

fn indices(text: &str) -> Result<IndexRanges, BadContent> {
    let bad = |_| BadContent::Value { column: "indices", value: text.to_owned() };
    text.parse::<ArraySpec>().map(|array| array.indices).map_err(bad)
}

fn json<T: for<'a> Deserialize<'a>>(column: &'static str, text: &[u8]) -> Result<T, BadContent> {
    serde_json::from_slice(text).map_err(|e| BadContent::Value { column, value: e.to_string() })
}

/// What is written for tasks of an array again and again.
pub fn spec_json(spec: &JobSpec) -> Option<Bytes> {
    serde_json::to_vec(spec).ok().map(Bytes::from)
}
