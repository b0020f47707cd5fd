//! Through shared memory, inside one node.
//!
//! A message goes in blocks. In each, every member writes what it has into its own slot, says so,
//! and reads from everybody's slots. The next block is written before the last one is read, so that
//! members seldom wait for each other, and blocks are small enough to stay in the cache: memory
//! itself is read once and written once.
//!
//! Why four slots are enough: a member writes block `b + 1` while it reads block `b`. Whoever has
//! said "written `b`" has finished reading `b - 2`. When block `b + 2` is written, everybody has been
//! seen to have written `b`, so slot `b - 2`, which is the same one, is free. An all-reduce reads a
//! block twice, as `b` and, reduced, as `b - 1`; its results have four places for the same reason.

use std::ops::Range;

use crate::error::Result;
use crate::kernel::Reducer;
use crate::lane::Lane;
use crate::link::HEAD;
use crate::shm::{SLOT, Team};
use crate::span::{Span, share};

/// Up to this size every member reduces everything itself: one wait less.
const WHOLE: usize = 8 << 10;
/// A fold goes in steps of this, so that the result is still near when it is copied on.
const STEP: usize = 16 << 10;

/// What an operation reads and writes of a block.
trait Exchange {
    /// Into this member's slot.
    fn write(&self, team: &Team, at: usize, slot: Span);
    /// From the slot of one member. Members come in order, this one too.
    fn read(&self, team: &Team, at: usize, member: usize, slot: Span);
}

fn exchange(lane: &mut Lane, team: &mut Team, blocks: usize, what: &impl Exchange) -> Result<()> {
    let first = team.block;
    let put = |lane: &Lane, team: &Team, at: usize| {
        let block = first.wrapping_add(at as u32);
        label(lane, team, block);
        what.write(team, at, team.slot(team.me, block));
        team.wrote(block);
    };
    put(lane, team, 0);
    for at in 0..blocks {
        if at + 1 < blocks {
            put(lane, team, at + 1);
        }
        let block = first.wrapping_add(at as u32);
        for member in 0..team.size() {
            expect(lane, team, member, block)?;
            what.read(team, at, member, team.slot(member, block));
        }
    }
    team.block = first.wrapping_add(blocks as u32);
    Ok(())
}

fn label(lane: &Lane, team: &Team, block: u32) {
    // SAFETY: this member's own label of a block that it has not announced yet.
    unsafe { team.label(team.me, block).part(0..HEAD).get_mut() }.copy_from_slice(&lane.head());
}

/// Waits until a member has written a block, and sees that it is in the same operation.
fn expect(lane: &mut Lane, team: &Team, member: usize, block: u32) -> Result<()> {
    if member == team.me {
        return Ok(());
    }
    team.wait_written(member, block, &lane.watch())?;
    // SAFETY: the member has announced the block, and writes to it only when all have read it.
    let theirs: &[u8] = unsafe { team.label(member, block).part(0..HEAD).get() };
    let theirs: [u8; HEAD] = theirs.try_into().expect("the length of a head");
    lane.compare(team.ids[member], &theirs)
}

/// Copies between the caller's buffer and shared memory.
fn copy(into: Span, from: Span) {
    assert_eq!(into.len(), from.len());
    // SAFETY: one is a buffer of this operation, the other a slot that its owner has announced, or
    // this member's own: nothing writes to either, and they do not overlap.
    unsafe { into.get_mut().copy_from_slice(from.get()) };
}

/// `at`th piece of `range` when it is cut into pieces of `piece` bytes.
fn piece(range: Range<usize>, at: usize, piece: usize) -> Range<usize> {
    let start = (range.start + at * piece).min(range.end);
    start..(start + piece).min(range.end)
}

fn room(team: &Team) -> usize {
    // Whole cache lines, so whole elements.
    SLOT / team.size() / 64 * 64
}

pub(crate) fn barrier(lane: &mut Lane, team: &mut Team) -> Result<()> {
    struct Nothing;
    impl Exchange for Nothing {
        fn write(&self, _: &Team, _: usize, _: Span) {}
        fn read(&self, _: &Team, _: usize, _: usize, _: Span) {}
    }
    exchange(lane, team, 1, &Nothing)
}

struct Gather<'a> {
    buffer: Span,
    part: &'a dyn Fn(usize) -> Range<usize>,
}

impl Exchange for Gather<'_> {
    fn write(&self, team: &Team, at: usize, slot: Span) {
        let mine = self.buffer.part(piece((self.part)(team.me), at, SLOT));
        copy(slot.part(0..mine.len()), mine);
    }
    fn read(&self, team: &Team, at: usize, member: usize, slot: Span) {
        if member != team.me {
            let into = self.buffer.part(piece((self.part)(member), at, SLOT));
            copy(into, slot.part(0..into.len()));
        }
    }
}

/// Everybody's part `i`, from member `i` of the team.
pub(crate) fn all_gather(
    lane: &mut Lane,
    team: &mut Team,
    buffer: Span,
    part: &dyn Fn(usize) -> Range<usize>,
) -> Result<()> {
    let longest = (0..team.size()).map(|i| part(i).len()).max().unwrap_or(0);
    exchange(lane, team, longest.div_ceil(SLOT).max(1), &Gather { buffer, part })
}

struct Spread {
    buffer: Span,
    root: usize,
}

impl Exchange for Spread {
    fn write(&self, team: &Team, at: usize, slot: Span) {
        if team.me == self.root {
            let mine = self.buffer.part(piece(0..self.buffer.len(), at, SLOT));
            copy(slot.part(0..mine.len()), mine);
        }
    }
    fn read(&self, team: &Team, at: usize, member: usize, slot: Span) {
        if member == self.root && team.me != self.root {
            let into = self.buffer.part(piece(0..self.buffer.len(), at, SLOT));
            copy(into, slot.part(0..into.len()));
        }
    }
}

/// `root` is its position in the team.
pub(crate) fn broadcast(lane: &mut Lane, team: &mut Team, buffer: Span, root: usize) -> Result<()> {
    exchange(lane, team, buffer.len().div_ceil(SLOT).max(1), &Spread { buffer, root })
}

struct Trade {
    input: Span,
    output: Span,
    room: usize,
}

impl Trade {
    fn part(&self, team: &Team, member: usize, at: usize) -> Range<usize> {
        let each = self.input.len() / team.size();
        piece(member * each..(member + 1) * each, at, self.room)
    }
}

impl Exchange for Trade {
    fn write(&self, team: &Team, at: usize, slot: Span) {
        for member in 0..team.size() {
            let part = self.input.part(self.part(team, member, at));
            let start = member * self.room;
            copy(slot.part(start..start + part.len()), part);
        }
    }
    fn read(&self, team: &Team, at: usize, member: usize, slot: Span) {
        let into = self.output.part(self.part(team, member, at));
        let start = team.me * self.room;
        copy(into, slot.part(start..start + into.len()));
    }
}

pub(crate) fn all_to_all(
    lane: &mut Lane,
    team: &mut Team,
    input: Span,
    output: Span,
) -> Result<()> {
    let room = room(team);
    let blocks = (input.len() / team.size()).div_ceil(room).max(1);
    exchange(lane, team, blocks, &Trade { input, output, room })
}

struct Whole {
    buffer: Span,
    reducer: Reducer,
}

impl Exchange for Whole {
    fn write(&self, _: &Team, _: usize, slot: Span) {
        copy(slot.part(0..self.buffer.len()), self.buffer);
    }
    fn read(&self, _: &Team, _: usize, member: usize, slot: Span) {
        let theirs = slot.part(0..self.buffer.len());
        if member == 0 {
            return copy(self.buffer, theirs);
        }
        fold(self.reducer, self.buffer, theirs, false);
    }
}

struct Scatter<'a> {
    input: Span,
    /// This member's part of the input, copied; the others' are folded into it.
    into: Span,
    part: &'a dyn Fn(usize) -> Range<usize>,
    room: usize,
    reducer: Reducer,
}

impl Exchange for Scatter<'_> {
    fn write(&self, team: &Team, at: usize, slot: Span) {
        for member in (0..team.size()).filter(|m| *m != team.me) {
            let mine = self.input.part(piece((self.part)(member), at, self.room));
            let start = member * self.room;
            copy(slot.part(start..start + mine.len()), mine);
        }
    }

    fn read(&self, team: &Team, at: usize, member: usize, slot: Span) {
        if member == team.me {
            return;
        }
        let into = self.into.part(piece(0..self.into.len(), at, self.room));
        let start = team.me * self.room;
        let theirs = slot.part(start..start + into.len());
        fold(self.reducer, into, theirs, member < team.me);
    }
}

/// Folds what a member has put into its slot into a buffer of this operation.
fn fold(reducer: Reducer, into: Span, theirs: Span, first: bool) {
    // SAFETY: the buffer is this operation's, the slot announced by its owner.
    let (into, theirs) = unsafe { (into.get_mut(), theirs.get()) };
    if first { reducer.fold_before(into, theirs) } else { reducer.fold(into, theirs) }
}

/// `into` holds this member's part of `input`, and afterwards the reduction of everybody's; no mean
/// is taken.
pub(crate) fn reduce_scatter(
    lane: &mut Lane,
    team: &mut Team,
    (input, into): (Span, Span),
    part: &dyn Fn(usize) -> Range<usize>,
    reducer: Reducer,
) -> Result<()> {
    let room = room(team);
    let longest = (0..team.size()).map(|i| part(i).len()).max().unwrap_or(0);
    let what = Scatter { input, into, part, room, reducer };
    exchange(lane, team, longest.div_ceil(room).max(1), &what)
}

pub(crate) fn all_reduce(
    lane: &mut Lane,
    team: &mut Team,
    buffer: Span,
    reducer: Reducer,
) -> Result<()> {
    let n = team.size();
    if buffer.len() <= WHOLE {
        exchange(lane, team, 1, &Whole { buffer, reducer })?;
        // SAFETY: nobody else has the buffer.
        reducer.finish(unsafe { buffer.get_mut() }, n);
        return Ok(());
    }
    // A block is a contiguous stretch of the buffer with one part per member.
    let room = room(team);
    let stretch = room * n;
    let blocks = buffer.len().div_ceil(stretch);
    let part = |at: usize, member: usize| {
        let here = at * stretch..buffer.len().min((at + 1) * stretch);
        let within = share(here.len(), reducer.size, n, member);
        here.start + within.start..here.start + within.end
    };
    let pipe = Pipe { buffer, part: &part, room, reducer, first: team.block };
    pipe.write(lane, team, 0);
    for at in 0..=blocks {
        if at + 1 < blocks {
            pipe.write(lane, team, at + 1);
        }
        if at < blocks {
            pipe.reduce(lane, team, at)?;
        }
        if at > 0 {
            pipe.gather(lane, team, at - 1)?;
        }
    }
    team.block = pipe.first.wrapping_add(blocks as u32);
    Ok(())
}

/// The three stages of an all-reduce, each a block behind the one before.
struct Pipe<'a> {
    buffer: Span,
    part: &'a dyn Fn(usize, usize) -> Range<usize>,
    room: usize,
    reducer: Reducer,
    first: u32,
}

impl Pipe<'_> {
    fn block(&self, at: usize) -> u32 {
        self.first.wrapping_add(at as u32)
    }

    fn write(&self, lane: &Lane, team: &Team, at: usize) {
        let block = self.block(at);
        let slot = team.slot(team.me, block);
        label(lane, team, block);
        for member in (0..team.size()).filter(|m| *m != team.me) {
            let mine = self.buffer.part((self.part)(at, member));
            let start = member * self.room;
            copy(slot.part(start..start + mine.len()), mine);
        }
        team.wrote(block);
    }

    fn reduce(&self, lane: &mut Lane, team: &Team, at: usize) -> Result<()> {
        let block = self.block(at);
        for member in 0..team.size() {
            expect(lane, team, member, block)?;
        }
        let mine = self.buffer.part((self.part)(at, team.me));
        let result = team.result(team.me, block);
        let start = team.me * self.room;
        let mut done = 0;
        while done < mine.len() {
            let step = done..mine.len().min(done + STEP);
            let into = mine.part(step.clone());
            for member in (0..team.size()).filter(|m| *m != team.me) {
                let theirs = team.slot(member, block).part(start + step.start..start + step.end);
                fold(self.reducer, into, theirs, member < team.me);
            }
            // SAFETY: as above.
            self.reducer.finish(unsafe { into.get_mut() }, team.size());
            copy(result.part(step.clone()), into);
            done = step.end;
        }
        team.reduced(block);
        Ok(())
    }

    fn gather(&self, lane: &Lane, team: &Team, at: usize) -> Result<()> {
        let block = self.block(at);
        for member in (0..team.size()).filter(|m| *m != team.me) {
            team.wait_reduced(member, block, &lane.watch())?;
            let into = self.buffer.part((self.part)(at, member));
            copy(into, team.result(member, block).part(0..into.len()));
        }
        Ok(())
    }
}
