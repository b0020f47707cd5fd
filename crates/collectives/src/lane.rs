//! A lane is a group's own way between its members: links that no other group uses, and the
//! sequence of its collective operations. One operation runs on it at a time.

use std::io;
use std::sync::Arc;

use crate::door::{Kind, Purpose};
use crate::element::DType;
use crate::error::{Error, Result, Verb, Why};
use crate::health::{Patience, Wait};
use crate::idle::Aside;
use crate::kernel::Reducer;
use crate::link::tcp::TcpLink;
use crate::link::{HEAD, Step, Transfer};
use crate::nodes::Nodes;
use crate::plan::Algorithm;
use crate::shm::{Team, Watch};
use crate::span::Span;
use crate::sys;
use crate::world::Shared;

/// What is being done; all members must agree on every field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub verb: Verb,
    pub dtype: DType,
    /// The reduction, or which rank is the root: whatever else must agree.
    pub detail: u32,
    pub bytes: usize,
    pub algorithm: Algorithm,
}

/// Where a head says on which core its sender runs: not a thing that must agree.
const CORE: usize = 11;

fn agree(a: &[u8; HEAD], b: &[u8; HEAD]) -> bool {
    a[..CORE] == b[..CORE] && a[CORE + 1..] == b[CORE + 1..]
}

impl Call {
    fn encode(&self, seq: u64) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(&seq.to_le_bytes());
        head[8] = self.verb as u8;
        head[9] = self.dtype as u8;
        head[10] = self.algorithm as u8;
        head[CORE] = sys::core() as u8;
        head[12..16].copy_from_slice(&self.detail.to_le_bytes());
        head[16..].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        head
    }

    fn describe(head: &[u8; HEAD]) -> String {
        let word = |r: std::ops::Range<usize>| {
            let mut b = [0; 8];
            b[..r.len()].copy_from_slice(&head[r]);
            u64::from_le_bytes(b)
        };
        let name = |found: Option<String>| found.unwrap_or_else(|| "?".into());
        let verb = name(Verb::ALL.get(usize::from(head[8])).map(ToString::to_string));
        let dtype = name(DType::ALL.get(usize::from(head[9])).map(|d| format!("{d:?}")));
        let how = name(Algorithm::ALL.get(usize::from(head[10])).map(ToString::to_string));
        format!(
            "operation {} ({verb} of {} bytes of {dtype}, by {how}, detail {})",
            word(0..8),
            word(16..24),
            word(12..16)
        )
    }
}

/// One step of an algorithm, as one member sees it. Peers are numbered inside the group.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    Send {
        to: usize,
        span: Span,
    },
    Recv {
        from: usize,
        span: Span,
    },
    /// Receive, and fold into what is there: what comes is the first operand.
    Fold {
        from: usize,
        span: Span,
        reducer: Reducer,
    },
}

impl Move {
    fn peer(&self) -> usize {
        match self {
            Self::Send { to, .. } => *to,
            Self::Recv { from, .. } | Self::Fold { from, .. } => *from,
        }
    }
    fn is_send(&self) -> bool {
        matches!(self, Self::Send { .. })
    }
}

/// Some members of a lane among whom an algorithm runs, numbered anew.
pub(crate) struct Crew<'a> {
    lane: &'a mut Lane,
    ids: Vec<usize>,
    pub me: usize,
}

impl Crew<'_> {
    pub fn size(&self) -> usize {
        self.ids.len()
    }

    pub fn run(&mut self, moves: &[Move]) -> Result<()> {
        let ids = &self.ids;
        let named = moves.iter().map(|m| match *m {
            Move::Send { to, span } => Move::Send { to: ids[to], span },
            Move::Recv { from, span } => Move::Recv { from: ids[from], span },
            Move::Fold { from, span, reducer } => Move::Fold { from: ids[from], span, reducer },
        });
        let named: Vec<Move> = named.collect();
        self.lane.run(&named)
    }

    pub fn scratch(&mut self, bytes: usize) -> Span {
        self.lane.scratch(bytes)
    }
}

pub(crate) struct Lane {
    pub shared: Arc<Shared>,
    pub group: u64,
    /// Global rank of every member.
    pub members: Arc<[usize]>,
    pub me: usize,
    links: Vec<Option<TcpLink>>,
    /// The last operation whose head went out to, or came from, each peer.
    sent: Vec<u64>,
    seen: Vec<u64>,
    seq: u64,
    call: Call,
    broken: Option<Error>,
    nodes: Nodes,
    aside: Aside,
    /// An operation takes it along while it runs.
    team: Option<Team>,
    /// Room for intermediate results, kept between operations; aligned for every type.
    scratch: Vec<u64>,
}

impl Lane {
    pub fn new(shared: Arc<Shared>, group: u64, members: Arc<[usize]>, me: usize) -> Self {
        let n = members.len();
        let nodes = Nodes::of(&members, me, &shared.health.peers, shared.sharing());
        Self {
            shared,
            group,
            members,
            me,
            links: (0..n).map(|_| None).collect(),
            sent: vec![0; n],
            seen: vec![0; n],
            seq: 0,
            call: Call {
                verb: Verb::Barrier,
                dtype: DType::U8,
                detail: 0,
                bytes: 0,
                algorithm: Algorithm::Ring,
            },
            broken: None,
            nodes,
            aside: Aside::default(),
            team: None,
            scratch: Vec::new(),
        }
    }

    /// All members, as an algorithm sees them.
    pub fn crew(&mut self) -> Crew<'_> {
        let (ids, me) = ((0..self.members.len()).collect(), self.me);
        Crew { lane: self, ids, me }
    }

    /// Some of them; this rank is one.
    pub fn crew_of(&mut self, ids: Vec<usize>) -> Crew<'_> {
        let me = ids.iter().position(|i| *i == self.me).expect("this rank is in its crew");
        Crew { lane: self, ids, me }
    }

    /// How to wait in shared memory.
    pub fn watch(&self) -> Watch<'_> {
        Watch {
            health: &self.shared.health,
            members: &self.members,
            verb: self.call.verb,
            group: self.group,
            seq: self.seq,
            limit: self.shared.config.op_timeout,
            idle: self.shared.idle(),
        }
    }

    /// The members of each node that can share memory, this rank's own node first found.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Runs a part of an operation with the memory that this node's members share, which is set up
    /// on first use. `None` where this rank is alone on its node.
    pub fn with_team(
        &mut self,
        run: impl FnOnce(&mut Self, &mut Option<Team>) -> Result<()>,
    ) -> Result<()> {
        let mut team = self.team.take();
        if team.is_none() && self.nodes.mine().len() > 1 {
            let ids = self.nodes.mine().to_vec();
            team = Team::form(self, ids)?;
            if team.is_none() {
                // It worked when the world was connected.
                let what = "share memory with the other ranks of this node (out of memory?)";
                return Err(Error::io(what, io::ErrorKind::OutOfMemory.into()));
            }
        }
        let result = run(self, &mut team);
        self.team = team;
        result
    }

    /// What a block of this operation is labelled with.
    pub fn head(&self) -> [u8; HEAD] {
        self.call.encode(self.seq)
    }

    /// Starts the next operation.
    pub fn begin(&mut self, call: Call) -> Result<()> {
        self.shared.health.check(call.verb)?;
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        self.seq += 1;
        self.call = call;
        Ok(())
    }

    /// Room that stays valid until the next call of this. Its contents are left-overs.
    pub fn scratch(&mut self, bytes: usize) -> Span {
        let words = bytes.div_ceil(8);
        if self.scratch.len() < words {
            self.scratch = vec![0; words];
        }
        // SAFETY: u64s are plain bytes, and there are enough of them.
        let all =
            unsafe { std::slice::from_raw_parts_mut(self.scratch.as_mut_ptr().cast(), words * 8) };
        Span::of(&mut all[..bytes])
    }

    fn wait_for(&self, peer: usize) -> Wait {
        Wait { group: self.group, seq: self.seq, on: self.members[peer] }
    }

    fn patience(&self, peer: usize) -> Patience<'_> {
        let limit = self.shared.config.op_timeout;
        Patience::new(&self.shared.health, self.wait_for(peer), self.call.verb, limit)
    }

    fn lost(&self, peer: usize, e: &io::Error) -> Error {
        let gone = matches!(
            e.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::ConnectionRefused
        );
        let why = if gone { Why::Died } else { Why::Broken(e.to_string()) };
        self.shared.health.blame(self.wait_for(peer), self.call.verb, why)
    }

    /// The lower rank dials, so that both sides know who does.
    fn connect(&mut self, peer: usize) -> Result<()> {
        if self.links[peer].is_some() {
            return Ok(());
        }
        let (mine, theirs) = (self.members[self.me], self.members[peer]);
        let other = &self.shared.health.peers[theirs];
        let door = self.shared.door();
        let streams = (0..self.shared.streams_to(other) as u32).map(|index| {
            if mine < theirs {
                return door.dial(other, self.group, Kind::Lane, index).map_err(|e| match e {
                    Error::Io { source, .. } => self.lost(peer, &source),
                    e => e,
                });
            }
            let purpose = Purpose { from: theirs, group: self.group, kind: Kind::Lane, index };
            door.expect(purpose, self.patience(peer))
        });
        let streams = streams.collect::<Result<Vec<_>>>()?;
        let link = TcpLink::new(streams).map_err(|e| self.lost(peer, &e))?;
        self.links[peer] = Some(link);
        Ok(())
    }

    /// Carries out the moves at the same time, and returns when all are done. There is at most one
    /// in each direction per peer.
    pub fn run(&mut self, moves: &[Move]) -> Result<()> {
        let mut open: Vec<(Move, Transfer)> = Vec::with_capacity(moves.len());
        for m in moves {
            self.connect(m.peer())?;
            open.push((*m, self.transfer(m)));
        }
        let mut idle = self.shared.idle();
        while !open.is_empty() {
            let mut moved = false;
            let mut i = 0;
            while i < open.len() {
                let (m, t) = &mut open[i];
                match self.step(*m, t)? {
                    Step::Nothing => i += 1,
                    Step::Moved => {
                        moved = true;
                        i += 1;
                    }
                    Step::Finished => {
                        moved = true;
                        open.swap_remove(i);
                    }
                }
            }
            if moved {
                idle.reset();
            } else if !idle.spin() {
                self.sleep(&open)?;
                idle.reset();
            }
        }
        Ok(())
    }

    fn transfer(&mut self, m: &Move) -> Transfer {
        let (span, reduce, last) = match m {
            Move::Send { to, span } => (*span, None, &mut self.sent[*to]),
            Move::Recv { from, span } => (*span, None, &mut self.seen[*from]),
            Move::Fold { from, span, reducer } => (*span, Some(*reducer), &mut self.seen[*from]),
        };
        let head = (*last != self.seq).then(|| self.call.encode(self.seq));
        *last = self.seq;
        Transfer::new(span, reduce, head)
    }

    fn step(&mut self, m: Move, t: &mut Transfer) -> Result<Step> {
        let had_head = t.head_done < HEAD;
        let link = self.links[m.peer()].as_mut().expect("connected before");
        let step = if m.is_send() { link.send(t) } else { link.recv(t) };
        let step = step.map_err(|e| self.lost(m.peer(), &e))?;
        if had_head && t.head_done == HEAD && !m.is_send() {
            self.compare(m.peer(), &t.head)?;
            self.make_room(m.peer(), t.head[CORE]);
        }
        Ok(step)
    }

    /// For ranks of one machine that talk over TCP.
    fn make_room(&self, peer: usize, core: u8) {
        let peers = &self.shared.health.peers;
        let (mine, theirs) = (self.members[self.me], self.members[peer]);
        let near = peers[mine].machine == peers[theirs].machine;
        if near && theirs < mine && !self.shared.idle().is_crowded() {
            // Cores beyond 255 look like others; then there are enough of them.
            self.aside.met_on(core.into());
        }
    }

    /// That a member is in the same operation as this one.
    pub fn compare(&mut self, peer: usize, theirs: &[u8; HEAD]) -> Result<()> {
        let ours = self.call.encode(self.seq);
        if agree(theirs, &ours) {
            return Ok(());
        }
        let error = Error::Mismatch {
            rank: self.members[peer],
            ours: Call::describe(&ours),
            theirs: Call::describe(theirs),
        };
        // The others would wait for this rank until they give up.
        let why = Why::Broken(error.to_string());
        let verdict = self.shared.health.blame(self.wait_for(peer), self.call.verb, why.clone());
        // If the world was lost already, what is left of the last operation explains nothing.
        let ours = verdict.accused().is_some_and(|a| a.why == why);
        let error = if ours { error } else { verdict };
        self.broken = Some(error.clone());
        Err(error)
    }

    /// Nothing moves: sleeps until something can.
    fn sleep(&mut self, open: &[(Move, Transfer)]) -> Result<()> {
        // What is received from is what is waited for; a full send buffer is only its echo.
        let first = open.iter().find(|(m, _)| !m.is_send()).unwrap_or(&open[0]);
        let mut patience = self.patience(first.0.peer());
        loop {
            let mut fds = Vec::new();
            for (m, t) in open {
                let link = self.links[m.peer()].as_ref().expect("connected before");
                link.interest(t, m.is_send(), &mut fds);
            }
            sys::poll(&mut fds, Patience::SLICE);
            if fds.iter().any(|f| f.revents != 0) {
                return Ok(());
            }
            patience.tick()?;
        }
    }
}
