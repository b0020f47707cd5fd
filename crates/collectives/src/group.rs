//! Process groups: what a program calls.

mod start;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::algo;
use crate::element::{DType, Element, Op, bytes_of, bytes_of_mut};
use crate::error::{Error, Result, Verb};
use crate::health::{Wait, lock};
use crate::kernel::Reducer;
use crate::lane::{Call, Lane};
use crate::mail::Address;
use crate::pending::{Ticket, Turnstile, Worker};
use crate::plan::{self, Algorithm, Layout, Links};
use crate::shm::Team;
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
    layout: Layout,
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
        let lane = Lane::new(Arc::clone(&shared), id, Arc::clone(&members), me);
        let nodes = lane.nodes();
        let layout = Layout { members: members.len(), nodes: nodes.count(), rails: nodes.rails() };
        let inner = Inner {
            shared,
            id,
            members,
            me,
            turns: Turnstile::default(),
            lane: Mutex::new(lane),
            layout,
            worker: OnceLock::new(),
            made: AtomicU64::new(0),
        };
        let algorithm = inner.shared.choice().only();
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
        let bytes = size_of_val(buffer);
        let algorithm = self.algorithm.unwrap_or_else(|| self.plan(bytes));
        let call = call::<T>(Verb::AllReduce, op as u32, bytes, algorithm);
        let reducer = Reducer::new(T::DTYPE, op);
        let span = Span::of(bytes_of_mut(buffer));
        self.perform(ticket, call, |lane| match algorithm {
            Algorithm::Ring => algo::ring::all_reduce(&mut lane.crew(), span, reducer),
            Algorithm::Halving => algo::halving::all_reduce(&mut lane.crew(), span, reducer),
            Algorithm::Tree => algo::tree::all_reduce(&mut lane.crew(), span, reducer),
            Algorithm::Hierarchical => lane
                .with_team(|lane, team| algo::hierarchical::all_reduce(lane, team, span, reducer)),
            Algorithm::Direct => directly(lane, Verb::AllReduce, |lane, team| {
                algo::direct::all_reduce(lane, team, span, reducer)
            }),
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
        let algorithm = self.one_way(Algorithm::Ring);
        let call = call::<T>(verb, op as u32, size_of_val(input), algorithm);
        if input.len() != output.len() * n {
            let turn = self.inner.turns.enter(ticket);
            drop(turn);
            return Err(sizes(verb, "input", input.len(), n, "output", output.len()));
        }
        let reducer = Reducer::new(T::DTYPE, op);
        self.perform(ticket, call, |lane| {
            let (me, bytes) = (lane.me, size_of_val(input));
            let part = |i| share(bytes, reducer.size, n, i);
            let output = bytes_of_mut(output);
            if algorithm == Algorithm::Direct {
                output.copy_from_slice(&bytes_of(input)[part(me)]);
                let spans = (Span::read_only(bytes_of(input)), Span::of(output));
                directly(lane, verb, |lane, team| {
                    algo::direct::reduce_scatter(lane, team, spans, &part, reducer)
                })?;
            } else {
                let room = lane.scratch(bytes);
                // SAFETY: the scratch is this operation's alone, and no move is under way.
                unsafe { room.get_mut() }.copy_from_slice(bytes_of(input));
                algo::ring::reduce_scatter(&mut lane.crew(), room, &part, reducer)?;
                // SAFETY: as above.
                output.copy_from_slice(unsafe { room.part(part(me)).get() });
            }
            reducer.finish(output, n);
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
        let algorithm = self.one_way(Algorithm::Ring);
        let call = call::<T>(verb, 0, size_of_val(output), algorithm);
        let me = self.rank();
        output[me * input.len()..(me + 1) * input.len()].copy_from_slice(input);
        let span = Span::of(bytes_of_mut(output));
        let part = |i| share(span.len(), size_of::<T>(), n, i);
        self.gather(ticket, call, span, &part)
    }

    fn gather(
        &self,
        ticket: Ticket,
        call: Call,
        span: Span,
        part: &dyn Fn(usize) -> Range<usize>,
    ) -> Result<()> {
        self.perform(ticket, call, |lane| match call.algorithm {
            Algorithm::Direct => directly(lane, call.verb, |lane, team| {
                algo::direct::all_gather(lane, team, span, part)
            }),
            _ => algo::ring::all_gather(&mut lane.crew(), span, part),
        })
    }

    /// Everybody's `buffer` becomes that of member `root`.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        self.member(Verb::Broadcast, root)?;
        let bytes = size_of_val(buffer);
        let algorithm = self.one_way(Algorithm::Tree);
        let call = call::<T>(Verb::Broadcast, root as u32, bytes, algorithm);
        let span = Span::of(bytes_of_mut(buffer));
        self.perform(self.ticket(), call, |lane| match algorithm {
            Algorithm::Direct => directly(lane, Verb::Broadcast, |lane, team| {
                algo::direct::broadcast(lane, team, span, root)
            }),
            _ => algo::tree::broadcast(&mut lane.crew(), span, root),
        })
    }

    /// Part `i` of `input` goes to member `i`; part `i` of `output` comes from member `i`.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let (n, verb) = (self.size(), Verb::AllToAll);
        if input.len() != output.len() || !input.len().is_multiple_of(n) {
            return Err(sizes(verb, "input", input.len(), n, "output", output.len()));
        }
        let algorithm = self.one_way(Algorithm::Ring);
        let call = call::<T>(verb, 0, size_of_val(input), algorithm);
        let input = Span::read_only(bytes_of(input));
        let output = Span::of(bytes_of_mut(output));
        self.perform(self.ticket(), call, |lane| match algorithm {
            Algorithm::Direct => directly(lane, verb, |lane, team| {
                algo::direct::all_to_all(lane, team, input, output)
            }),
            _ => algo::pairwise::all_to_all(&mut lane.crew(), input, output),
        })
    }

    /// Returns when every member has called it.
    pub fn barrier(&self) -> Result<()> {
        let call = call::<u8>(Verb::Barrier, 0, 0, self.one_way(Algorithm::Tree));
        self.perform(self.ticket(), call, |lane| match call.algorithm {
            Algorithm::Direct => directly(lane, Verb::Barrier, algo::direct::barrier),
            _ => algo::pairwise::barrier(&mut lane.crew()),
        })
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
        let call = call::<u8>(Verb::AllGather, 1, all.len(), self.one_way(Algorithm::Ring));
        self.gather(self.ticket(), call, Span::of(&mut all), &part)?;
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

    fn plan(&self, bytes: usize) -> Algorithm {
        let shared = &self.inner.shared;
        plan::choose(self.inner.layout, bytes, shared.choice().links(shared.links()))
    }

    /// The algorithm of an operation that has one for links and one for shared memory.
    fn one_way(&self, over_links: Algorithm) -> Algorithm {
        let one_node = self.inner.layout.nodes == 1 && self.size() > 1;
        match self.algorithm {
            Some(Algorithm::Direct) => Algorithm::Direct,
            None | Some(Algorithm::Hierarchical) if one_node => Algorithm::Direct,
            _ => over_links,
        }
    }

    /// An error once a rank of the world has failed; `op` is what to name in it.
    pub fn check(&self, op: Verb) -> Result<()> {
        self.inner.shared.health.check(op)
    }

    pub(crate) fn op_timeout(&self) -> Duration {
        self.inner.shared.config.op_timeout
    }

    pub(crate) fn links(&self) -> Links {
        self.inner.shared.links()
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

/// Runs an operation through shared memory, which all members must have.
fn directly(
    lane: &mut Lane,
    verb: Verb,
    run: impl FnOnce(&mut Lane, &mut Team) -> Result<()>,
) -> Result<()> {
    let (nodes, size) = (lane.nodes().count(), lane.members.len());
    if nodes > 1 {
        let what = format!("direct is for one node; these {size} members are on {nodes}");
        return Err(Error::usage(verb, what));
    }
    lane.with_team(|lane, team| match team {
        Some(team) => run(lane, team),
        // A group of one: there is nothing to exchange.
        None => Ok(()),
    })
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
