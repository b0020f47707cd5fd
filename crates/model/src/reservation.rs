//! Reservations and maintenance as people look at them: when, where, and who is in the way.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{TaskId, Time};

/// One line of `tutti reservations`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservationRow {
    pub name: String,
    /// Whose it is; none is maintenance, which is nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    pub from: Time,
    pub until: Time,
    pub state: ReservationState,
    /// Names of nodes, as people count.
    pub nodes: Vec<String>,
    /// Names among them that no node has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// GPUs of those nodes.
    pub gpus: u32,
    /// What runs there and may still run when it begins, or since it has begun. It is not stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlaps: Vec<ReservationOverlap>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReservationState {
    Now,
    Coming,
    Over,
}

impl ReservationState {
    pub fn of(from: Time, until: Time, now: Time) -> ReservationState {
        match (from <= now, until <= now) {
            (_, true) => ReservationState::Over,
            (true, false) => ReservationState::Now,
            (false, false) => ReservationState::Coming,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            ReservationState::Now => "now",
            ReservationState::Coming => "coming",
            ReservationState::Over => "over",
        }
    }
}

/// A task that runs into somebody's reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservationOverlap {
    pub task: TaskId,
    pub user: String,
    pub name: String,
    /// How many of the reserved nodes it is on.
    pub nodes: u32,
    /// When its time limit ends it; none if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<Time>,
}

/// Free GPUs of a node that are kept for a task that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeKept {
    pub task: TaskId,
    /// 0 for a task that needs none: it is CPUs and memory that are kept.
    pub gpus: u32,
    /// It starts by then, and what ends before may still run there. None: nobody else gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Time>,
}

/// A reservation as the row of one of its nodes has it, coming or now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeReservation {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    pub from: Time,
    pub until: Time,
}
