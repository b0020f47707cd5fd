//! Orders of the lists.

use std::cmp::Reverse;

use tutti_model::Time;
use tutti_wire::api::{JobRow, NodeRow};

use super::data::{Data, activity};
use crate::show::jobs::how_long;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JobSort {
    /// What has nodes, then what waits, then what ended.
    #[default]
    Usual,
    Id,
    Name,
    User,
    Team,
    State,
    Gpus,
    Time,
    Busy,
}

impl JobSort {
    const ALL: [JobSort; 9] = [
        JobSort::Usual,
        JobSort::Id,
        JobSort::Name,
        JobSort::User,
        JobSort::Team,
        JobSort::State,
        JobSort::Gpus,
        JobSort::Time,
        JobSort::Busy,
    ];

    pub fn next(self) -> JobSort {
        after(&JobSort::ALL, self)
    }

    /// The head of its column.
    pub fn column(self) -> &'static str {
        match self {
            JobSort::Usual => "",
            JobSort::Id => "ID",
            JobSort::Name => "NAME",
            JobSort::User => "USER",
            JobSort::Team => "TEAM",
            JobSort::State => "STATE",
            JobSort::Gpus => "GPUS",
            JobSort::Time => "TIME",
            JobSort::Busy => "BUSY",
        }
    }

    pub fn order(self, reverse: bool, data: &Data, now: Time) -> Vec<usize> {
        let rows = &data.jobs.rows;
        let mut order: Vec<usize> = (0..rows.len()).collect();
        let text = |of: fn(&JobRow) -> &str| move |i: &usize| of(&rows[*i]).to_lowercase();
        match self {
            JobSort::Usual => {}
            JobSort::Id => order.sort_by_key(|i| rows[*i].id),
            JobSort::Name => order.sort_by_cached_key(text(|j| &j.name)),
            JobSort::User => order.sort_by_cached_key(text(|j| &j.user)),
            JobSort::Team => {
                order.sort_by_cached_key(text(|j| j.team.as_deref().unwrap_or_default()));
            }
            JobSort::State => order.sort_by_key(|i| rows[*i].state),
            JobSort::Gpus => order.sort_by_key(|i| Reverse(rows[*i].gpus)),
            JobSort::Time => order.sort_by_key(|i| Reverse(how_long(&rows[*i], now))),
            JobSort::Busy => order.sort_by_cached_key(|i| {
                // Who does least first: that is what one looks for.
                let busy = data.job_load(rows[*i].id).and_then(activity);
                busy.map_or(u32::MAX, |share| (share * 1e4) as u32)
            }),
        }
        if reverse {
            order.reverse();
        }
        order
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeSort {
    #[default]
    Name,
    State,
    Used,
    Busy,
    Memory,
    Power,
}

impl NodeSort {
    const ALL: [NodeSort; 6] = [
        NodeSort::Name,
        NodeSort::State,
        NodeSort::Used,
        NodeSort::Busy,
        NodeSort::Memory,
        NodeSort::Power,
    ];

    pub fn next(self) -> NodeSort {
        after(&NodeSort::ALL, self)
    }

    pub fn column(self) -> &'static str {
        match self {
            NodeSort::Name => "NODE",
            NodeSort::State => "STATE",
            NodeSort::Used => "USED",
            NodeSort::Busy => "BUSY",
            NodeSort::Memory => "MEM",
            NodeSort::Power => "POWER",
        }
    }

    /// Whether the values of all nodes are needed, not only of those on the screen.
    pub fn needs_load(self) -> bool {
        matches!(self, NodeSort::Busy | NodeSort::Memory | NodeSort::Power)
    }

    /// Of these nodes, which come as people count.
    pub fn order(self, reverse: bool, data: &Data, mut order: Vec<usize>) -> Vec<usize> {
        let node = |i: &usize| -> &NodeRow { &data.nodes[*i] };
        let load = |i: &usize| data.node_load(&node(i).name).map(|n| &n.load);
        match self {
            NodeSort::Name => {}
            // The worst first.
            NodeSort::State => order
                .sort_by_key(|i| (Reverse(node(i).state as u8), Reverse(node(i).findings.len()))),
            NodeSort::Used => order.sort_by_key(|i| Reverse(node(i).gpu_milli_used)),
            NodeSort::Busy => order.sort_by_cached_key(|i| {
                Reverse(load(i).and_then(activity).map(|share| (share * 1e4) as u32))
            }),
            NodeSort::Memory => {
                order.sort_by_cached_key(|i| Reverse(load(i).map(|l| l.mem_used.0)))
            }
            NodeSort::Power => order.sort_by_cached_key(|i| {
                Reverse(load(i).and_then(|l| l.power).map(|watts| watts as u32))
            }),
        }
        if reverse {
            order.reverse();
        }
        order
    }
}

fn after<T: Copy + PartialEq>(all: &[T], one: T) -> T {
    let place = all.iter().position(|other| *other == one).unwrap_or_default();
    all[(place + 1) % all.len()]
}
