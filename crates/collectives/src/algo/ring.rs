//! The ring: everybody sends to the right and receives from the left.

use std::ops::Range;

use crate::error::Result;
use crate::kernel::Reducer;
use crate::lane::{Crew, Move};
use crate::span::{Span, share};

fn neighbours(crew: &Crew<'_>) -> (usize, usize) {
    let (me, n) = (crew.me, crew.size());
    ((me + n - 1) % n, (me + 1) % n)
}

/// Afterwards part `me` holds the sum of everybody's part `me`; the other parts are left-overs.
pub(crate) fn reduce_scatter(
    crew: &mut Crew<'_>,
    buffer: Span,
    part: &dyn Fn(usize) -> Range<usize>,
    reducer: Reducer,
) -> Result<()> {
    let (me, n) = (crew.me, crew.size());
    let (left, right) = neighbours(crew);
    for step in 0..n - 1 {
        let out = part((me + 2 * n - step - 1) % n);
        let into = part((me + 2 * n - step - 2) % n);
        crew.run(&[
            Move::Send { to: right, span: buffer.part(out) },
            Move::Fold { from: left, span: buffer.part(into), reducer },
        ])?;
    }
    Ok(())
}

/// Everybody's part `i`, from member `i`.
pub(crate) fn all_gather(
    crew: &mut Crew<'_>,
    buffer: Span,
    part: &dyn Fn(usize) -> Range<usize>,
) -> Result<()> {
    let (me, n) = (crew.me, crew.size());
    let (left, right) = neighbours(crew);
    for step in 0..n - 1 {
        let out = part((me + n - step) % n);
        let into = part((me + 2 * n - step - 1) % n);
        crew.run(&[
            Move::Send { to: right, span: buffer.part(out) },
            Move::Recv { from: left, span: buffer.part(into) },
        ])?;
    }
    Ok(())
}

pub(crate) fn all_reduce(crew: &mut Crew<'_>, buffer: Span, reducer: Reducer) -> Result<()> {
    let (me, n) = (crew.me, crew.size());
    let part = |i| share(buffer.len(), reducer.size, n, i);
    reduce_scatter(crew, buffer, &part, reducer)?;
    // SAFETY: no move is under way, so the part is this thread's alone.
    reducer.finish(unsafe { buffer.part(part(me)).get_mut() }, n);
    all_gather(crew, buffer, &part)
}
