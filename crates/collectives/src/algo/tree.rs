//! The binomial tree.

use crate::error::Result;
use crate::kernel::Reducer;
use crate::lane::{Lane, Move};
use crate::span::Span;

/// Large messages go down the tree in pieces, so that all its levels work at once.
const PIECE: usize = 256 << 10;

pub(crate) fn all_reduce(lane: &mut Lane, buffer: Span, reducer: Reducer) -> Result<()> {
    let (me, n) = (lane.me, lane.size());
    let mut distance = 1;
    while distance < n {
        if me & distance != 0 {
            lane.run(&[Move::Send { to: me - distance, span: buffer }])?;
            break;
        }
        if me + distance < n {
            lane.run(&[Move::Fold { from: me + distance, span: buffer, reducer }])?;
        }
        distance *= 2;
    }
    if me == 0 {
        // SAFETY: no move is under way, so the buffer is this thread's alone.
        reducer.finish(unsafe { buffer.get_mut() }, n);
    }
    broadcast(lane, buffer, 0)
}

pub(crate) fn broadcast(lane: &mut Lane, buffer: Span, root: usize) -> Result<()> {
    let n = lane.size();
    let relative = (lane.me + n - root) % n;
    let member = |relative: usize| (relative + root) % n;
    // The lowest set bit says how far away the parent is; children are nearer than that.
    let reach = if relative == 0 { n.next_power_of_two() } else { 1 << relative.trailing_zeros() };
    let parent = (relative != 0).then(|| member(relative - reach));
    let children: Vec<usize> = std::iter::successors(Some(reach / 2), |d| Some(d / 2))
        .take_while(|d| *d > 0)
        .filter(|d| relative + d < n)
        .map(|d| member(relative + d))
        .collect();
    let pieces = buffer.len().div_ceil(PIECE).max(1);
    for i in 0..pieces {
        let piece = buffer.part(i * PIECE..buffer.len().min((i + 1) * PIECE));
        if let Some(parent) = parent {
            lane.run(&[Move::Recv { from: parent, span: piece }])?;
        }
        let sends = children.iter().map(|c| Move::Send { to: *c, span: piece });
        lane.run(&sends.collect::<Vec<_>>())?;
    }
    Ok(())
}
