//! Process groups: what a program calls.

mod start;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::algo;
use crate::element::{DType, Element, Op, bytes_of, bytes_of_mut};
use crate::error::{Error, Result, Verb};
use crate::health::{Wait, lock};
use crate::kernel::Reducer;
use crate::lane::{Call, Lane};
use crate::mail::Address;
use crate::pending::{Ticket, Turnstile, Worker};
use crate::plan::Algorithm;
use crate::span::{Span, share};
use crate::world::Shared;

/// Some ranks, in an order, and operations between them.
///
/// All members call the same collective operations in the same order. Different groups are
/// independent: their operations may run at the same time, in any order. Clones are the same group.
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
    algorithm: Option<Algorithm>,
}

struct Inner {
    shared: Arc<Shared>,
    id: u64,
    members: Arc<[usize]>,
    me: usize,
    turns: Turnstile,
    lane: Mutex<Lane>,
    worker: OnceLock<Worker>,
    /// Sub-groups made from it so far: part of their identity.
    made: AtomicU64,
}

impl Group {
    pub(crate) fn of_world(shared: Arc<Shared>) -> Self {
        let members: Arc<[usize]> = (0..shared.config.world).collect();
        let me = shared.config.rank;
        Self::new(shared, 0, members, me)
    }

    fn new(shared: Arc<Shared>, id: u64, members: Arc<[usize]>, me: usize) -> Self {
        let lane = Mutex::new(Lane::new(Arc::clone(&shared), id, Arc::clone(&members), me));
        let inner = Inner {
            shared,
            id,
            members,
            me,
            turns: Turnstile::default(),
            lane,
            worker: OnceLock::new(),
            made: AtomicU64::new(0),
        };
        let algorithm = inner.shared.config.algorithm;
        Self { inner: Arc::new(inner), algorithm }
    }

    /// The same group, with an algorithm of the caller's choice where there are several. All members
    /// must choose the same.
    #[must_use]
    pub fn with_algorithm(&self, algorithm: Algorithm) -> Self {
        Self { inner: Arc::clone(&self.inner), algorithm: Some(algorithm) }
    }

    /// Position of this rank in the group.
    pub fn rank(&self) -> usize {
        self.inner.me
    }

    pub fn size(&self) -> usize {
        self.inner.members.len()
    }

    /// The rank in the world of member `i`.
    pub fn global_rank(&self, i: usize) -> usize {
        self.inner.members[i]
    }

    /// The node of member `i`.
    pub fn node(&self, i: usize) -> &str {
        &self.inner.shared.health.peers[self.inner.members[i]].node
    }

    /// A group of some members, numbered as in the list. Every member of this group calls it, with
    /// the same list and in the same order; those who are not in it get `None`.
    pub fn subgroup(&self, members: &[usize]) -> Result<Option<Self>> {
        let size = self.size();
        let bad = |what| Err(Error::usage(Verb::Subgroup, what));
        for (at, m) in members.iter().enumerate() {
            if *m >= size {
                return bad(format!("there is no member {m} in a group of {size}"));
            }
            if members[..at].contains(m) {
                return bad(format!("member {m} is listed twice"));
            }
        }
        let made = self.inner.made.fetch_add(1, Ordering::Relaxed);
        let Some(me) = members.iter().position(|m| *m == self.rank()) else { return Ok(None) };
        let global: Arc<[usize]> = members.iter().map(|m| self.inner.members[*m]).collect();
        let mut hash = blake3::Hasher::new();
        hash.update(&self.inner.id.to_le_bytes()).update(&made.to_le_bytes());
        global.iter().for_each(|m| {
            hash.update(&(*m as u64).to_le_bytes());
        });
        let mut id = [0; 8];
        hash.finalize_xof().fill(&mut id);
        Ok(Some(Self::new(Arc::clone(&self.inner.shared), u64::from_le_bytes(id), global, me)))
    }

    /// Every rank's `buffer` becomes the reduction of all of them.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: Op) -> Result<()> {
        self.all_reduce_at(self.ticket(), buffer, op)
    }

    fn all_reduce_at<T: Element>(&self, ticket: Ticket, buffer: &mut [T], op: Op) -> Result<()> {
        let algorithm = self.algorithm(size_of_val(buffer));
        let call = call::<T>(Verb::AllReduce, op as u32, size_of_val(buffer), algorithm);
        let reducer = Reducer::new(T::DTYPE, op);
        let span = Span::of(bytes_of_mut(buffer));
        self.perform(ticket, call, |lane| match algorithm {
            Algorithm::Ring | Algorithm::Hierarchical | Algorithm::Direct => {
                algo::ring::all_reduce(lane, span, reducer)
            }
            Algorithm::Halving => algo::halving::all_reduce(lane, span, reducer),
            Algorithm::Tree => algo::tree::all_reduce(lane, span, reducer),
        })
    }

    /// `input` is one part per member; `output` becomes the reduction of everybody's part `rank()`.
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: Op) -> Result<()> {
        self.reduce_scatter_at(self.ticket(), input, output, op)
    }

    fn reduce_scatter_at<T: Element>(
        &self,
        ticket: Ticket,
        input: &[T],
        output: &mut [T],
        op: Op,
    ) -> Result<()> {
        let n = self.size();
        let verb = Verb::ReduceScatter;
        let call = call::<T>(verb, op as u32, size_of_val(input), Algorithm::Ring);
        if input.len() != output.len() * n {
            let turn = self.inner.turns.enter(ticket);
            drop(turn);
            return Err(sizes(verb, "input", input.len(), n, "output", output.len()));
        }
        let reducer = Reducer::new(T::DTYPE, op);
        self.perform(ticket, call, |lane| {
            let (me, bytes) = (lane.me, size_of_val(input));
            let room = lane.scratch(bytes);
            // SAFETY: the scratch is this operation's alone, and no move is under way.
            unsafe { room.get_mut() }.copy_from_slice(bytes_of(input));
            let part = |i| share(bytes, reducer.size, n, i);
            algo::ring::reduce_scatter(lane, room, &part, reducer)?;
            // SAFETY: as above.
            let mine = unsafe { room.part(part(me)).get_mut() };
            reducer.finish(mine, n);
            bytes_of_mut(output).copy_from_slice(mine);
            Ok(())
        })
    }

    /// `output` becomes everybody's `input`, in the order of the group.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.all_gather_at(self.ticket(), input, output)
    }

    fn all_gather_at<T: Element>(
        &self,
        ticket: Ticket,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let n = self.size();
        let verb = Verb::AllGather;
        if output.len() != input.len() * n {
            drop(self.inner.turns.enter(ticket));
            return Err(sizes(verb, "output", output.len(), n, "input", input.len()));
        }
        let call = call::<T>(verb, 0, size_of_val(output), Algorithm::Ring);
        let me = self.rank();
        output[me * input.len()..(me + 1) * input.len()].copy_from_slice(input);
        let span = Span::of(bytes_of_mut(output));
        let part = |i| share(span.len(), size_of::<T>(), n, i);
        self.perform(ticket, call, |lane| algo::ring::all_gather(lane, span, &part))
    }

    /// Everybody's `buffer` becomes that of member `root`.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        self.member(Verb::Broadcast, root)?;
        let bytes = size_of_val(buffer);
        let call = call::<T>(Verb::Broadcast, root as u32, bytes, Algorithm::Tree);
        let span = Span::of(bytes_of_mut(buffer));
        self.perform(self.ticket(), call, |lane| algo::tree::broadcast(lane, span, root))
    }

    /// Part `i` of `input` goes to member `i`; part `i` of `output` comes from member `i`.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let (n, verb) = (self.size(), Verb::AllToAll);
        if input.len() != output.len() || !input.len().is_multiple_of(n) {
            return Err(sizes(verb, "input", input.len(), n, "output", output.len()));
        }
        let call = call::<T>(verb, 0, size_of_val(input), Algorithm::Direct);
        let input = Span::read_only(bytes_of(input));
        let output = Span::of(bytes_of_mut(output));
        self.perform(self.ticket(), call, |lane| algo::pairwise::all_to_all(lane, input, output))
    }

    /// Returns when every member has called it.
    pub fn barrier(&self) -> Result<()> {
        let call = call::<u8>(Verb::Barrier, 0, 0, Algorithm::Tree);
        self.perform(self.ticket(), call, algo::pairwise::barrier)
    }

    /// Everybody's bytes, which may differ in length, in the order of the group.
    pub fn all_gather_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let n = self.size();
        let mut lengths = vec![0u64; n];
        self.all_gather(&[mine.len() as u64], &mut lengths)?;
        let ends: Vec<usize> = lengths
            .iter()
            .scan(0, |end, len| {
                *end += *len as usize;
                Some(*end)
            })
            .collect();
        let part = |i: usize| ends[i] - lengths[i] as usize..ends[i];
        let mut all = vec![0; ends[n - 1]];
        all[part(self.rank())].copy_from_slice(mine);
        let call = call::<u8>(Verb::AllGather, 1, all.len(), Algorithm::Ring);
        let span = Span::of(&mut all);
        self.perform(self.ticket(), call, |lane| algo::ring::all_gather(lane, span, &part))?;
        Ok((0..n).map(|i| all[part(i)].to_vec()).collect())
    }

    /// Sends to member `to`. Does not wait for its `recv`, unless very much lies unclaimed there.
    pub fn send<T: Element>(&self, data: &[T], to: usize, tag: u64) -> Result<()> {
        let to = self.address(Verb::Send, to, tag)?;
        let way = self.inner.shared.outbox.way(to.from);
        way.send(&self.inner.shared, way.ticket(), to, bytes_of(data))
    }

    /// Receives from member `from` what it sent with this tag; the length must be the same. Messages
    /// of one sender with one tag come in order.
    pub fn recv<T: Element>(&self, buffer: &mut [T], from: usize, tag: u64) -> Result<()> {
        let address = self.address(Verb::Recv, from, tag)?;
        self.inner.shared.health.check(Verb::Recv)?;
        let span = Span::of(bytes_of_mut(buffer));
        let wait = Wait { group: address.group, seq: tag, on: address.from };
        self.inner.shared.inbox.receive(address, span, self.inner.shared.config.op_timeout, wait)
    }

    fn address(&self, verb: Verb, member: usize, tag: u64) -> Result<Address> {
        self.member(verb, member)?;
        if member == self.rank() {
            return Err(Error::usage(verb, "a rank can't exchange messages with itself"));
        }
        Ok(Address { from: self.inner.members[member], group: self.inner.id, tag })
    }

    fn member(&self, verb: Verb, member: usize) -> Result<()> {
        if member < self.size() {
            return Ok(());
        }
        let what = format!("there is no member {member} in a group of {}", self.size());
        Err(Error::usage(verb, what))
    }

    fn algorithm(&self, bytes: usize) -> Algorithm {
        let small = bytes <= 64 << 10;
        let usual = if small { Algorithm::Halving } else { Algorithm::Ring };
        self.algorithm.unwrap_or(usual)
    }

    fn ticket(&self) -> Ticket {
        self.inner.turns.ticket()
    }

    /// Runs one collective operation when its turn has come.
    fn perform(
        &self,
        ticket: Ticket,
        call: Call,
        run: impl FnOnce(&mut Lane) -> Result<()>,
    ) -> Result<()> {
        let _turn = self.inner.turns.enter(ticket);
        let mut lane = lock(&self.inner.lane);
        lane.begin(call)?;
        run(&mut lane)
    }
}

fn call<T: Element>(verb: Verb, detail: u32, bytes: usize, algorithm: Algorithm) -> Call {
    let dtype: DType = T::DTYPE;
    Call { verb, dtype, detail, bytes, algorithm }
}

fn sizes(verb: Verb, large: &str, a: usize, n: usize, small: &str, b: usize) -> Error {
    let what = match verb {
        Verb::AllToAll => format!(
            "{large} has {a} elements and {small} {b}; both must have the same number, one equal \
             part for each of {n} members"
        ),
        _ => format!(
            "{large} has {a} elements and {small} {b}; for {n} members it must have {n} times as \
             many"
        ),
    };
    Error::usage(verb, what)
}
