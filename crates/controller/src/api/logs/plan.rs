//! Which attempt to read, how many ranks it has, and which nodes may have their logs.

use tutti_model::{Attempt, Demand, JobSpec, JobState, NodeId, RankRule, Spread, State, TaskId};
use tutti_wire::api::JobDetail;

use crate::core::World;

pub(super) struct Plan {
    pub state: JobState,
    /// 0: never started.
    pub attempt: u32,
    pub world_size: u32,
    places: Places,
}

enum Places {
    /// First rank, number of ranks and node.
    Known(Vec<(u32, u32, NodeId)>),
    /// One of these; ask them in this order.
    Among(Vec<NodeId>),
}

impl Plan {
    /// None if there is no such task.
    pub fn new(world: &World, id: TaskId, wanted: Option<u32>) -> Option<Plan> {
        let state = world.engine.state();
        let job = state.job(id.job)?;
        let now = job.task_state(id.index)?;
        let task = job.task(id.index);
        let newest = task.map(|t| t.attempts).or(job.ended(id.index).map(|e| e.attempts));
        let newest = newest.unwrap_or(0);
        let attempt = wanted.unwrap_or(newest).min(newest);
        let active = task.and_then(|t| t.attempt()).filter(|a| a.number == attempt);
        let (world_size, places) = match (active, job.ended(id.index)) {
            (Some(active), _) => (active.world_size(), known(active)),
            (None, Some(ended)) if attempt == newest => from_ended(&job.spec, &ended.nodes),
            _ => (ranks(&job.spec, 1), Places::Among(everywhere(state))),
        };
        Some(Plan { state: now, attempt, world_size, places })
    }

    /// Of a job that has left memory: its nodes are known by name.
    pub fn archived(world: &World, job: &JobDetail, wanted: Option<u32>) -> Plan {
        let state = world.engine.state();
        let newest = job.attempt.unwrap_or(0);
        let attempt = wanted.unwrap_or(newest).min(newest);
        let nodes = job.row.node_names.iter().filter_map(|name| state.node_named(name));
        let nodes: Vec<NodeId> = nodes.map(|node| node.id).collect();
        let whole = nodes.len() == job.row.node_names.len();
        let (world_size, places) = if attempt == newest && whole {
            from_ended(&job.spec, &nodes)
        } else {
            (ranks(&job.spec, 1), Places::Among(everywhere(state)))
        };
        Plan { state: job.row.state, attempt, world_size, places }
    }

    /// Yes also where that is not known.
    pub fn has(&self, rank: u32) -> bool {
        matches!(self.places, Places::Among(_)) || !self.nodes_of(rank).is_empty()
    }

    pub fn nodes_of(&self, rank: u32) -> Vec<NodeId> {
        match &self.places {
            Places::Among(nodes) => nodes.clone(),
            Places::Known(parts) => parts
                .iter()
                .filter(|(first, ranks, _)| (*first..first.saturating_add(*ranks)).contains(&rank))
                .map(|(_, _, node)| *node)
                .collect(),
        }
    }
}

fn known(attempt: &Attempt) -> Places {
    Places::Known(attempt.parts.iter().map(|p| (p.first_rank.0, p.ranks, p.node)).collect())
}

/// Of an attempt that is over only the nodes are remembered; the spec says the rest, except how
/// many GPUs each node gave when the scheduler was free to choose.
fn from_ended(spec: &JobSpec, nodes: &[NodeId]) -> (u32, Places) {
    let demand = Demand::of(spec);
    let world_size = ranks(spec, nodes.len() as u32);
    let each = match (demand.spread, demand.ranks) {
        (Spread::Nodes { gpus_each, .. }, _) => demand.ranks_for(gpus_each),
        (Spread::Gpus { .. }, RankRule::PerNode(n)) => n.max(1),
        (Spread::Gpus { .. }, RankRule::PerGpu) => {
            return (world_size, Places::Among(nodes.into()));
        }
    };
    let parts = nodes.iter().zip(0u32..).map(|(&node, i)| (i.saturating_mul(each), each, node));
    (world_size, Places::Known(parts.collect()))
}

fn ranks(spec: &JobSpec, nodes: u32) -> u32 {
    let demand = Demand::of(spec);
    match (demand.spread, demand.ranks) {
        (Spread::Nodes { nodes, gpus_each }, _) => {
            nodes.saturating_mul(demand.ranks_for(gpus_each))
        }
        (Spread::Gpus { total }, RankRule::PerGpu) => total.max(1),
        (Spread::Gpus { .. }, RankRule::PerNode(n)) => n.max(1).saturating_mul(nodes.max(1)),
    }
}

/// Where an older attempt ran is not remembered.
fn everywhere(state: &State) -> Vec<NodeId> {
    state.nodes.keys().copied().collect()
}
