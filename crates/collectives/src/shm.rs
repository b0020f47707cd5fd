//! Memory that the members of a group on one node share.
//!
//! The first member of the node makes an anonymous file and tells the others its number; they open
//! it through `/proc`. It has no name, so nothing is left behind whoever is killed when. Where the
//! others may not open it, all of them use TCP instead, and know it.
//!
//! ```text
//! one board per member:  flags │ slot 0 │ slot 1 │ slot 2 │ slot 3 │ results 0..4
//! ```
//! A member writes only to its own board and reads everybody's. A slot is written for block `b` and
//! again for block `b + 4`; the order of an operation's steps (`algo::direct`) makes sure that all
//! have read it in between.

mod flag;
mod segment;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::auth;
use crate::error::{Result, Verb, Why};
use crate::health::{Health, Patience, Wait};
use crate::idle::{Aside, Idle};
use crate::lane::{Lane, Move};
use crate::span::Span;
use crate::sys;
use crate::wire::{Reader, Writer};

pub(crate) use flag::Flag;
use segment::Segment;

/// Slots of a board: how many blocks may be under way.
pub(crate) const SLOTS: usize = 4;
/// Room of one slot, and of one result. Small enough that all of them stay in a core's cache.
pub(crate) const SLOT: usize = 256 << 10;
/// In front of every slot: which operation it belongs to.
const LABEL: usize = 64;
const FLAGS: usize = 4096;
const BOARD: usize = FLAGS + SLOTS * (LABEL + SLOT) + SLOTS * SLOT;

/// The members of one group on this node, and the memory they share.
pub(crate) struct Team {
    /// Their numbers in the group, ascending.
    pub ids: Vec<usize>,
    pub me: usize,
    segment: Segment,
    /// The next block. All members count alike.
    pub block: u32,
    aside: Aside,
}

#[repr(C, align(64))]
struct Flags {
    /// Blocks that this member has put into its slots.
    written: Flag,
    _apart: [u8; 56],
    /// Blocks whose result it has put into its results.
    reduced: Flag,
    _further: [u8; 56],
    /// The core it last ran on.
    core: AtomicU32,
}

impl Team {
    /// Sets the memory up. Every member of the node calls it in the same operation.
    pub fn form(lane: &mut Lane, ids: Vec<usize>) -> Result<Option<Self>> {
        let me = ids.iter().position(|i| *i == lane.me).expect("one of them");
        let bytes = BOARD * ids.len();
        let segment = if me == 0 { lead(lane, &ids, bytes)? } else { follow(lane, ids[0], bytes)? };
        Ok(segment.map(|segment| Self { ids, me, segment, block: 0, aside: Aside::default() }))
    }

    pub fn size(&self) -> usize {
        self.ids.len()
    }

    fn flags(&self, member: usize) -> &Flags {
        let at = self.segment.at(member * BOARD, size_of::<Flags>());
        // SAFETY: inside the segment, aligned to a page, made of atomics for which zero is valid.
        unsafe { &*at.cast::<Flags>() }
    }

    fn slot_at(&self, member: usize, block: u32) -> usize {
        member * BOARD + FLAGS + (block as usize % SLOTS) * (LABEL + SLOT)
    }

    /// Where a member puts what it has for a block.
    pub fn slot(&self, member: usize, block: u32) -> Span {
        self.segment.span(self.slot_at(member, block) + LABEL, SLOT)
    }

    /// Where it says which operation the block belongs to.
    pub fn label(&self, member: usize, block: u32) -> Span {
        self.segment.span(self.slot_at(member, block), LABEL)
    }

    pub fn result(&self, member: usize, block: u32) -> Span {
        let at = FLAGS + SLOTS * (LABEL + SLOT) + (block as usize % SLOTS) * SLOT;
        self.segment.span(member * BOARD + at, SLOT)
    }

    /// Says that this member's slot of a block is written.
    pub fn wrote(&self, block: u32) {
        self.flags(self.me).core.store(sys::core(), Ordering::Relaxed);
        self.flags(self.me).written.set(block.wrapping_add(1));
    }

    /// Says that this member's result of a block is there.
    pub fn reduced(&self, block: u32) {
        self.flags(self.me).reduced.set(block.wrapping_add(1));
    }

    pub fn wait_written(&self, member: usize, block: u32, watch: &Watch<'_>) -> Result<()> {
        let flags = self.flags(member);
        let target = block.wrapping_add(1);
        if flags.written.has_reached(target) {
            return Ok(());
        }
        if !watch.idle.is_crowded() && member < self.me {
            self.aside.met_on(flags.core.load(Ordering::Relaxed));
        }
        watch.wait(&flags.written, target, self.ids[member])
    }

    pub fn wait_reduced(&self, member: usize, block: u32, watch: &Watch<'_>) -> Result<()> {
        watch.wait(&self.flags(member).reduced, block.wrapping_add(1), self.ids[member])
    }
}

/// How to wait for a flag, and what to do when it does not come.
pub(crate) struct Watch<'a> {
    pub health: &'a Health,
    pub members: &'a [usize],
    pub verb: Verb,
    pub group: u64,
    pub seq: u64,
    pub limit: std::time::Duration,
    pub idle: Idle,
}

impl Watch<'_> {
    fn wait(&self, flag: &Flag, target: u32, member: usize) -> Result<()> {
        if flag.has_reached(target) {
            return Ok(());
        }
        let mut idle = self.idle;
        while idle.spin() {
            if flag.has_reached(target) {
                return Ok(());
            }
        }
        let on = self.members[member];
        let wait = Wait { group: self.group, seq: self.seq, on };
        let mut patience = Patience::new(self.health, wait, self.verb, self.limit);
        loop {
            // First who left, then the flag: one who leaves has set its last flags before.
            let left = self.health.has_left(on);
            if flag.sleep(target, if left { std::time::Duration::ZERO } else { Patience::SLICE }) {
                return Ok(());
            }
            if left {
                return Err(self.health.blame(wait, self.verb, Why::Left));
            }
            patience.tick()?;
        }
    }
}

const OFFER: usize = 64;

/// The first member makes the memory, offers it, and says whether all could open it.
fn lead(lane: &mut Lane, ids: &[usize], bytes: usize) -> Result<Option<Segment>> {
    let secret: [u8; 16] = auth::random()?;
    let made = segment::create(bytes, &secret);
    let fd = made.as_ref().map_or(u32::MAX, |(file, _)| file.as_raw_fd() as u32);
    let offer = Writer::default().u32(std::process::id()).u32(fd).bytes(&secret).0;
    let mut letter = [0; OFFER];
    letter[..offer.len()].copy_from_slice(&offer);
    let mut agreed = made.is_ok();
    for id in &ids[1..] {
        lane.run(&[Move::Send { to: *id, span: Span::of(&mut letter) }])?;
    }
    for id in &ids[1..] {
        let mut answer = [0];
        lane.run(&[Move::Recv { from: *id, span: Span::of(&mut answer) }])?;
        agreed &= answer == [1];
    }
    for id in &ids[1..] {
        lane.run(&[Move::Send { to: *id, span: Span::of(&mut [u8::from(agreed)]) }])?;
    }
    Ok(made.ok().map(|(_, segment)| segment).filter(|_| agreed))
}

fn follow(lane: &mut Lane, leader: usize, bytes: usize) -> Result<Option<Segment>> {
    let mut letter = [0; OFFER];
    lane.run(&[Move::Recv { from: leader, span: Span::of(&mut letter) }])?;
    let opened = open_offer(&letter, bytes);
    let mut agreed = [u8::from(opened.is_some())];
    lane.run(&[Move::Send { to: leader, span: Span::of(&mut agreed) }])?;
    lane.run(&[Move::Recv { from: leader, span: Span::of(&mut agreed) }])?;
    Ok(opened.filter(|_| agreed == [1]))
}

fn open_offer(letter: &[u8], bytes: usize) -> Option<Segment> {
    let mut r = Reader(letter);
    let (pid, fd) = (r.u32()?, r.u32()?);
    let secret = r.bytes()?;
    let path = format!("/proc/{pid}/fd/{fd}");
    let file = File::options().read(true).write(true).open(path).ok()?;
    segment::open(&file, bytes, secret)
}
