//! What can change about a job after it was submitted.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::heap::Heap as _;
use crate::{Dependency, GpuRequest, JobSpec, Priority, Span};

/// Nothing that is left out changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct JobUpdate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The limit of each attempt, from its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Span>,
    /// No limit any more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_time: bool,
    /// Held, or released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// In place of all that it waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<Dependency>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// In all, on as many nodes as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<GpuRequest>,
}

impl JobUpdate {
    pub fn is_empty(&self) -> bool {
        *self == JobUpdate::default()
    }

    /// About what it takes in memory beside itself.
    pub fn bytes(&self) -> u64 {
        self.heap() as u64
    }

    /// Nothing that anybody goes by.
    pub fn only_renames(&self) -> bool {
        JobUpdate { name: None, ..self.clone() }.is_empty()
    }

    /// Other nodes or GPUs.
    pub fn changes_demand(&self) -> bool {
        self.nodes.is_some() || self.gpus.is_some() || self.gpus_per_node.is_some()
    }

    /// Anything of the spec itself: priority and hold are the job's.
    pub fn changes_spec(&self) -> bool {
        let only_job =
            JobUpdate { priority: self.priority, hold: self.hold, ..JobUpdate::default() };
        *self != only_job
    }

    /// The spec as it is to be. How much it asks for is given in one of two ways, so one takes the
    /// place of the other.
    pub fn applied(&self, spec: &JobSpec) -> JobSpec {
        let mut spec = spec.clone();
        fn set<T: Clone>(place: &mut Option<T>, value: &Option<T>) {
            if value.is_some() {
                place.clone_from(value);
            }
        }
        set(&mut spec.name, &self.name);
        set(&mut spec.time, &self.time);
        if self.no_time {
            spec.time = None;
        }
        if self.time.is_some() || self.no_time {
            // The limit is no longer that of the policy.
            spec.default_time_of = None;
        }
        set(&mut spec.team, &self.team);
        set(&mut spec.class, &self.class);
        if let Some(after) = &self.after {
            spec.after.clone_from(after);
        }
        if self.gpus.is_some() {
            (spec.nodes, spec.gpus_per_node) = (None, None);
        }
        if self.nodes.is_some() || self.gpus_per_node.is_some() {
            spec.gpus = None;
        }
        set(&mut spec.nodes, &self.nodes);
        set(&mut spec.gpus, &self.gpus);
        set(&mut spec.gpus_per_node, &self.gpus_per_node);
        spec
    }

    /// In words, for those who ask what happened: `time 2h, team vision`.
    pub fn words(&self) -> String {
        let mut words = Vec::new();
        let mut add = |key: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("{key} {value}")));
        };
        add("name", self.name.clone());
        add("priority", self.priority.map(|p| p.to_string()));
        add("time", self.time.map(|t| t.to_string()));
        add("time", self.no_time.then(|| "without limit".to_owned()));
        add("hold", self.hold.map(|held| if held { "on" } else { "off" }.to_owned()));
        add("team", self.team.clone());
        add("class", self.class.clone());
        let after = |list: &Vec<Dependency>| match list.is_empty() {
            true => "nothing".to_owned(),
            false => list.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        };
        add("after", self.after.as_ref().map(after));
        add("nodes", self.nodes.map(|n| n.to_string()));
        add("GPUs", self.gpus.map(|n| n.to_string()));
        add("GPUs per node", self.gpus_per_node.as_ref().map(ToString::to_string));
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_said_changes() {
        let spec = JobSpec { nodes: Some(2), time: Some(Span::secs(60)), ..JobSpec::shell("x") };
        assert_eq!(JobUpdate::default().applied(&spec), spec);
        let update = JobUpdate { gpus: Some(16), no_time: true, ..JobUpdate::default() };
        let new = update.applied(&spec);
        assert_eq!((new.nodes, new.gpus, new.time), (None, Some(16), None));
        assert!(update.changes_demand() && update.changes_spec());
        let back = JobUpdate { nodes: Some(3), ..JobUpdate::default() }.applied(&new);
        assert_eq!((back.nodes, back.gpus), (Some(3), None));
        let held = JobUpdate { hold: Some(true), ..JobUpdate::default() };
        assert!(!held.changes_spec() && !held.is_empty());
        assert_eq!(held.words(), "hold on");
        assert_eq!(update.words(), "time without limit, GPUs 16");
    }
}
