//! The binomial tree.

use crate::error::Result;
use crate::kernel::Reducer;
use crate::lane::{Crew, Move};
use crate::span::Span;

/// Large messages go down the tree in pieces, so that all its levels work at once.
const PIECE: usize = 256 << 10;

pub(crate) fn all_reduce(crew: &mut Crew<'_>, buffer: Span, reducer: Reducer) -> Result<()> {
    let (me, n) = (crew.me, crew.size());
    let mut distance = 1;
    while distance < n {
        if me & distance != 0 {
            crew.run(&[Move::Send { to: me - distance, span: buffer }])?;
            break;
        }
        if me + distance < n {
            crew.run(&[Move::Fold { from: me + distance, span: buffer, reducer }])?;
        }
        distance *= 2;
    }
    if me == 0 {
        // SAFETY: no move is under way, so the buffer is this thread's alone.
        reducer.finish(unsafe { buffer.get_mut() }, n);
    }
    broadcast(crew, buffer, 0)
}

pub(crate) fn broadcast(crew: &mut Crew<'_>, buffer: Span, root: usize) -> Result<()> {
    let n = crew.size();
    let relative = (crew.me + n - root) % n;
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
            crew.run(&[Move::Recv { from: parent, span: piece }])?;
        }
        let sends = children.iter().map(|c| Move::Send { to: *c, span: piece });
        crew.run(&sends.collect::<Vec<_>>())?;
    }
    Ok(())
}
