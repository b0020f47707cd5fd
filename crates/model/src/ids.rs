//! Typed ids. Each has one spelling, used by people, the API and the journal alike.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident, $inner:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id!(
    /// What a person submitted. Numbers grow with time, so a smaller id is an older job.
    JobId, u64
);
number_id!(
    /// A server. The name that people see is in [`crate::Node::name`].
    NodeId, u32
);
number_id!(
    /// A GPU's position on its node.
    GpuIndex, u16
);
number_id!(
    /// Fences leases: a larger generation always replaces a smaller one. Never reused.
    Generation, u64
);
number_id!(
    /// Counts controller starts; an agent refuses a controller with a smaller epoch than it has seen.
    Epoch, u64
);
number_id!(
    /// Position of a record in the journal. The first record has 1; 0 means "before everything".
    Seq, u64
);
number_id!(
    /// Position of a process in its gang.
    Rank, u32
);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a job id: write a number such as 12, or 12_3 for task 3 of array 12")]
pub struct BadId(pub String);

impl FromStr for JobId {
    type Err = BadId;
    fn from_str(s: &str) -> Result<Self, BadId> {
        s.parse().map(JobId).map_err(|_| BadId(s.to_owned()))
    }
}

/// One unit of scheduling: a job that is no array, or one task of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    pub job: JobId,
    pub index: Option<u32>,
}

impl TaskId {
    pub fn single(job: JobId) -> Self {
        TaskId { job, index: None }
    }
    pub fn of_array(job: JobId, index: u32) -> Self {
        TaskId { job, index: Some(index) }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            None => write!(f, "{}", self.job),
            Some(i) => write!(f, "{}_{i}", self.job),
        }
    }
}

impl FromStr for TaskId {
    type Err = BadId;
    fn from_str(s: &str) -> Result<Self, BadId> {
        let bad = || BadId(s.to_owned());
        match s.split_once('_') {
            None => Ok(TaskId::single(s.parse()?)),
            Some((job, index)) => Ok(TaskId {
                job: job.parse().map_err(|_: BadId| bad())?,
                index: Some(index.parse().map_err(|_| bad())?),
            }),
        }
    }
}

crate::units::text_serde!(TaskId, "12, or 12_3 for task 3 of array 12");

/// One try at running a task. The generation alone is unique; the task makes it readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId {
    pub task: TaskId,
    pub generation: Generation,
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.task, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_ids_round_trip() {
        for s in ["12", "12_0", "7_99999"] {
            assert_eq!(s.parse::<TaskId>().unwrap().to_string(), s);
        }
        for s in ["", "x", "12_", "_3", "12_3_4", "-1"] {
            assert!(s.parse::<TaskId>().is_err(), "{s}");
        }
    }
}
