//! Recursive halving and doubling: partners at half the distance each time.
//!
//! With a number of members that is no power of two, the first few fold into a neighbour before and
//! are told the result afterwards.

use crate::error::Result;
use crate::kernel::Reducer;
use crate::lane::{Crew, Move};
use crate::span::{Span, share};

/// Up to this size the whole vector is exchanged in every step: half as many steps.
pub(crate) const WHOLE: usize = 8 << 10;

/// Who takes part in the power of two.
struct Team {
    size: usize,
    /// Members below twice this pair up first.
    extra: usize,
}

impl Team {
    fn of(n: usize) -> Self {
        let size = 1 << n.ilog2();
        Self { size, extra: n - size }
    }

    /// Position in the team; none for those who folded into a neighbour.
    fn position(&self, member: usize) -> Option<usize> {
        match member {
            m if m >= 2 * self.extra => Some(m - self.extra),
            m if m % 2 == 0 => Some(m / 2),
            _ => None,
        }
    }

    fn member(&self, position: usize) -> usize {
        if position < self.extra { 2 * position } else { position + self.extra }
    }
}

pub(crate) fn all_reduce(crew: &mut Crew<'_>, buffer: Span, reducer: Reducer) -> Result<()> {
    let (me, n) = (crew.me, crew.size());
    let team = Team::of(n);
    let paired = me < 2 * team.extra;
    let Some(position) = team.position(me) else {
        crew.run(&[Move::Send { to: me - 1, span: buffer }])?;
        return crew.run(&[Move::Recv { from: me - 1, span: buffer }]);
    };
    if paired {
        crew.run(&[Move::Fold { from: me + 1, span: buffer, reducer }])?;
    }
    if buffer.len() <= WHOLE || buffer.len() / reducer.size < team.size {
        whole(crew, buffer, reducer, &team, position)?;
        // SAFETY: no move is under way, so the buffer is this thread's alone.
        reducer.finish(unsafe { buffer.get_mut() }, n);
    } else {
        halves(crew, buffer, reducer, &team, position)?;
    }
    if paired {
        crew.run(&[Move::Send { to: me + 1, span: buffer }])?;
    }
    Ok(())
}

/// Both partners compute the same, with the lower one's operand first, so they hold the same bits.
fn whole(
    crew: &mut Crew<'_>,
    buffer: Span,
    reducer: Reducer,
    team: &Team,
    position: usize,
) -> Result<()> {
    let theirs = crew.scratch(buffer.len());
    let mut distance = 1;
    while distance < team.size {
        let partner = position ^ distance;
        let peer = team.member(partner);
        crew.run(&[
            Move::Send { to: peer, span: buffer },
            Move::Recv { from: peer, span: theirs },
        ])?;
        // SAFETY: no move is under way; the two do not overlap.
        let (ours, theirs) = unsafe { (buffer.get_mut(), theirs.get()) };
        if partner < position {
            reducer.fold_before(ours, theirs);
        } else {
            reducer.fold(ours, theirs);
        }
        distance *= 2;
    }
    Ok(())
}

fn halves(
    crew: &mut Crew<'_>,
    buffer: Span,
    reducer: Reducer,
    team: &Team,
    position: usize,
) -> Result<()> {
    // Parts `low..low + width` of the buffer are still this member's to reduce.
    let range = |low: usize, width: usize| {
        let part = |i| share(buffer.len(), reducer.size, team.size, i);
        part(low).start..part(low + width - 1).end
    };
    let (mut low, mut width) = (0, team.size);
    while width > 1 {
        width /= 2;
        let upper = position & width != 0;
        let peer = team.member(position ^ width);
        let (keep, give) = if upper { (low + width, low) } else { (low, low + width) };
        crew.run(&[
            Move::Send { to: peer, span: buffer.part(range(give, width)) },
            Move::Fold { from: peer, span: buffer.part(range(keep, width)), reducer },
        ])?;
        low = keep;
    }
    // SAFETY: no move is under way, so the part is this thread's alone.
    reducer.finish(unsafe { buffer.part(range(low, 1)).get_mut() }, crew.size());
    while width < team.size {
        let peer = team.member(position ^ width);
        let theirs = if position & width != 0 { low - width } else { low + width };
        crew.run(&[
            Move::Send { to: peer, span: buffer.part(range(low, width)) },
            Move::Recv { from: peer, span: buffer.part(range(theirs, width)) },
        ])?;
        low = low.min(theirs);
        width *= 2;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_of_the_team_has_one_member() {
        for n in 1..40 {
            let team = Team::of(n);
            let positions: Vec<_> = (0..n).filter_map(|m| team.position(m)).collect();
            assert_eq!(positions, (0..team.size).collect::<Vec<_>>());
            for p in 0..team.size {
                assert_eq!(team.position(team.member(p)), Some(p));
            }
        }
    }
}
