//! Operations in which everybody meets everybody.

use crate::error::Result;
use crate::lane::{Crew, Move};
use crate::span::Span;

/// Part `i` of `input` goes to member `i`; part `i` of `output` comes from it.
pub(crate) fn all_to_all(crew: &mut Crew<'_>, input: Span, output: Span) -> Result<()> {
    let (me, n) = (crew.me, crew.size());
    let each = input.len() / n;
    let part = |i: usize| i * each..(i + 1) * each;
    // SAFETY: two buffers of the caller's, and no move is under way.
    unsafe { output.part(part(me)).get_mut().copy_from_slice(input.part(part(me)).get()) };
    for step in 1..n {
        let (to, from) = ((me + step) % n, (me + n - step) % n);
        crew.run(&[
            Move::Send { to, span: input.part(part(to)) },
            Move::Recv { from, span: output.part(part(from)) },
        ])?;
    }
    Ok(())
}

/// Nobody leaves before everybody has come: in each round a sign from twice as far away.
pub(crate) fn barrier(crew: &mut Crew<'_>) -> Result<()> {
    let (me, n) = (crew.me, crew.size());
    let mut distance = 1;
    while distance < n {
        crew.run(&[
            Move::Send { to: (me + distance) % n, span: Span::empty() },
            Move::Recv { from: (me + n - distance) % n, span: Span::empty() },
        ])?;
        distance *= 2;
    }
    Ok(())
}
