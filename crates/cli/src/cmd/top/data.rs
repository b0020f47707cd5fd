//! What the screen is made of, and what of it has to be asked for.

use std::collections::BTreeMap;

use serde::Serialize;
use tutti_model::{Alert, Explanation, TaskId};
use tutti_wire::api::{
    ClusterInfo, GpuLoad, JobDetail, JobRow, Load, NodeLoad, NodeRow, ProgressDetail,
};

use super::filter::JobFilter;

/// As it was last heard. `--json` prints it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Data {
    pub cluster: Option<ClusterInfo>,
    /// Of the cluster, and of the nodes and jobs on the screen.
    pub load: Load,
    #[serde(skip)]
    places: Places,
    pub nodes: Vec<NodeRow>,
    pub jobs: JobList,
    pub job: Option<JobData>,
    /// What is wrong now.
    pub alerts: Vec<Alert>,
}

/// Where in the load each node and job is: they are looked up for every row of a long list.
#[derive(Clone, Debug, Default)]
struct Places {
    nodes: BTreeMap<String, usize>,
    jobs: BTreeMap<TaskId, usize>,
}

impl Places {
    fn of(load: &Load) -> Places {
        let nodes = load.nodes.iter().enumerate().map(|(i, node)| (node.node.clone(), i));
        let jobs = load.jobs.iter().enumerate().map(|(i, job)| (job.id, i));
        Places { nodes: nodes.collect(), jobs: jobs.collect() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobList {
    pub rows: Vec<JobRow>,
    /// There are others behind these.
    pub more: bool,
    /// Why there are none: what is asked for does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// One job, opened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobData {
    pub id: TaskId,
    #[serde(flatten)]
    pub found: Found,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Found {
    Job(Box<FoundJob>),
    /// What the controller says instead.
    Not {
        error: String,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FoundJob {
    pub detail: JobDetail,
    pub progress: ProgressDetail,
    /// Why it does not run, while it does not.
    pub why: Option<Explanation>,
}

impl Data {
    pub fn job(&self, id: TaskId) -> Option<&Found> {
        self.job.as_ref().filter(|job| job.id == id).map(|job| &job.found)
    }

    pub fn node_load(&self, name: &str) -> Option<&NodeLoad> {
        self.places.nodes.get(name).and_then(|i| self.load.nodes.get(*i))
    }

    pub fn job_load(&self, id: TaskId) -> Option<&GpuLoad> {
        let job = self.places.jobs.get(&id).and_then(|i| self.load.jobs.get(*i));
        job.map(|job| &job.load)
    }

    /// Takes over what is new; the rest stays as it was.
    pub fn take(&mut self, news: News) {
        self.cluster = Some(news.cluster);
        self.places = Places::of(&news.load);
        self.load = news.load;
        self.alerts = news.alerts;
        if let Some(nodes) = news.nodes {
            self.nodes = nodes;
        }
        if let Some(jobs) = news.jobs {
            self.jobs = jobs;
        }
        if news.job.is_some() {
            self.job = news.job;
        }
    }
}

/// What one round of questions brought. None: it was not asked for, or has not changed.
#[derive(Clone, Debug)]
pub struct News {
    pub cluster: ClusterInfo,
    pub load: Load,
    pub alerts: Vec<Alert>,
    pub nodes: Option<Vec<NodeRow>>,
    pub jobs: Option<JobList>,
    pub job: Option<JobData>,
}

/// What the screen shows, so that nothing else is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// The list of nodes.
    pub nodes: bool,
    /// Nodes whose GPUs are on the screen.
    pub cells: Vec<String>,
    pub jobs: Option<JobsWanted>,
    /// Jobs whose load is on the screen.
    pub shown: Vec<TaskId>,
    /// The job that is open.
    pub job: Option<TaskId>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobsWanted {
    pub filter: JobFilter,
    /// So many of each kind: with nodes, waiting, ended.
    pub rows: u32,
    /// Ended ones too, not only the newest few.
    pub ended: bool,
    /// Tasks of arrays as rows of their own.
    pub tasks: bool,
}

/// How busy GPUs are, 0 to 1: by their SMs where they tell, else by the time in which any kernel ran.
pub fn activity(load: &GpuLoad) -> Option<f32> {
    load.sm.or(load.util)
}
