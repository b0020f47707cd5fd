//! Two levels: reduce inside each node, exchange between nodes, spread inside.
//!
//! Every node cuts the buffer into as many parts as the smallest node has members. Member `r` of
//! each node reduces part `r` of its node, exchanges it with the `r`th members of the others, and
//! hands it out. So all members talk between nodes at once, each a part of the whole.

use super::{direct, halving, ring};
use crate::error::Result;
use crate::kernel::Reducer;
use crate::lane::Lane;
use crate::shm::Team;
use crate::span::{Span, share};

/// Below this the few steps of halving beat the ring's even load.
const RING_FROM: usize = 256 << 10;

pub(crate) fn all_reduce(
    lane: &mut Lane,
    team: &mut Option<Team>,
    buffer: Span,
    reducer: Reducer,
) -> Result<()> {
    let total = lane.members.len();
    let rails = lane.nodes().rails();
    let part = |i: usize| match i < rails {
        true => share(buffer.len(), reducer.size, rails, i),
        false => buffer.len()..buffer.len(),
    };
    let bare = reducer.without_mean();
    if let Some(team) = team {
        let mine = buffer.part(part(team.me));
        direct::reduce_scatter(lane, team, (buffer, mine), &part, bare)?;
    }
    let rail = team.as_ref().map_or(0, |t| t.me);
    if rail < rails {
        let mine = buffer.part(part(rail));
        let ids = lane.nodes().rail(rail);
        let crew = &mut lane.crew_of(ids);
        if mine.len() < RING_FROM {
            halving::all_reduce(crew, mine, bare)?;
        } else {
            ring::all_reduce(crew, mine, bare)?;
        }
        // SAFETY: no move is under way, so the part is this thread's alone.
        reducer.finish(unsafe { mine.get_mut() }, total);
    }
    match team {
        Some(team) => direct::all_gather(lane, team, buffer, &part),
        None => Ok(()),
    }
}
