//! What a node decides: a pure state machine. The shell around it (`node`) feeds it what happened
//! and carries out what it answers; nothing here touches a process, a file or a clock.
//!
//! ```text
//!             Start                  Go (or at once)          shim says hello
//! (unknown) ────────► preparing ──► waiting ──► launched ──────────► running ──► done ──Forget─► (gone)
//!                         └──────────── error, Stop ────────────────────────────►─┘
//! ```

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Blame, Bytes, Generation, GpuIndex, Launch, LeaseId, LimitReport, Order, PartError,
    PartProgress, PartReport, RankExit, ReportedPhase, Span, Suspension, TaskId, Time, TimeLimit,
};

use crate::messages::{End, ToShim};
use crate::parts::{Fate, FoundState, Record};
use crate::seen::Seen;

/// A shim that did not say hello by then is looked for on disk.
pub const HELLO_WITHIN: Span = Span::secs(10);
/// A part that an earlier agent asked for and nobody claimed may still be in the old zygote's
/// hands for a moment.
pub const CLAIM_WITHIN: Span = Span::secs(2);
/// How often a shim that lives but does not dial is looked at again.
const LOOK_AGAIN: Span = Span::secs(5);

/// Something happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Order(Order),
    /// Answer to [`Action::Prepare`]: a free port, or why the part can't run.
    Prepared {
        lease: LeaseId,
        result: Result<u16, PartError>,
    },
    /// The part will not start any more: its record could not be written, or no shim could be
    /// made for it and it was revoked.
    LaunchFailed {
        lease: LeaseId,
        message: String,
    },
    Hello {
        lease: LeaseId,
        exits: Vec<RankExit>,
    },
    Exits {
        lease: LeaseId,
        exits: Vec<RankExit>,
    },
    Progress {
        lease: LeaseId,
        progress: Box<PartProgress>,
    },
    Ended {
        lease: LeaseId,
        end: End,
    },
    /// The shim's connection broke.
    Gone {
        lease: LeaseId,
    },
    /// Answer to [`Action::Look`]: what the disk says.
    Looked {
        lease: LeaseId,
        fate: Fate,
    },
    /// Answer to [`Action::Sweep`].
    Swept {
        lease: LeaseId,
    },
    /// A starting agent found this on disk.
    Found {
        record: Box<Record>,
        state: FoundState,
        /// How far it was with being suspended, and on which GPUs it is.
        moved: Option<Moved>,
    },
    /// The shim says how far its part is with being suspended.
    Suspension {
        lease: LeaseId,
        moved: Moved,
    },
    /// What the shim knows of its part's time limit.
    Limit {
        lease: LeaseId,
        level: Option<LimitReport>,
    },
    /// The node is being taken down with all that runs on it.
    Shutdown {
        grace: Span,
    },
}

/// Where a part stands that was told to leave its GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    pub suspension: Option<Suspension>,
    /// Where it is, or was; none if that is not known.
    pub gpus: Option<Vec<GpuIndex>>,
}

/// Ports that were free on the nodes of the gang when they prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// On the first node.
    pub master: u16,
    /// One on each node, in rank order; none if the controller is too old to say.
    pub all: Vec<u16>,
}

/// Something is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Look up the user, check the directory, find a port. The answer may come later.
    Prepare(LeaseId),
    /// Write the record of a part that waits for its gang.
    KeepPrepared(LeaseId),
    /// Write the record and ask the zygote for a shim.
    Launch {
        lease: LeaseId,
        ports: Ports,
    },
    /// Dropped if the shim is not connected: it is told when it says hello.
    Tell {
        lease: LeaseId,
        message: ToShim,
    },
    /// Tell it to take these GPUs and go on.
    /// Out of its GPUs, if the node has room for what it has there.
    TellSuspend(LeaseId),
    TellWake {
        lease: LeaseId,
        gpus: Vec<GpuIndex>,
    },
    /// Look at the part's record on disk after this long.
    Look {
        lease: LeaseId,
        after: Span,
    },
    /// Make sure that no shim can start it; then say `LaunchFailed`, or look again if one was
    /// faster.
    Revoke(LeaseId),
    /// Kill what a dead shim left behind.
    Sweep(LeaseId),
    /// Say it where the operator looks.
    Complain(String),
    /// Remember on disk that this lease must never start.
    Bar(LeaseId),
    Report(LeaseId),
    /// Remove the record.
    Remove(LeaseId),
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Preparing,
    Waiting { port: u16 },
    Launched { port: u16 },
    Running { exits: Vec<RankExit>, connected: bool },
    Done { exits: Vec<RankExit>, error: Option<PartError> },
}

#[derive(Clone, Debug, PartialEq)]
struct Part {
    /// None for leases that are only remembered as done.
    launch: Option<Box<Launch>>,
    phase: Phase,
    /// Told to stop: kill at this time.
    kill_at: Option<Time>,
    /// Asks it to save first.
    signal: Option<String>,
    because: Option<PartError>,
    /// What its ranks said of themselves, and when that came.
    progress: Option<(Box<PartProgress>, Time)>,
    suspension: Option<Suspension>,
    /// Those it was woken on, where that was elsewhere than it began.
    gpus: Option<Vec<GpuIndex>>,
    /// An order that its shim has not been told, because it was not there.
    untold: Option<Untold>,
    /// Its shim was told to take it out, and has not said anything since.
    told_out: bool,
    /// Its time limit, and when that was so.
    limit: Option<(LimitReport, Time)>,
    /// Its shim enforces it.
    keeps_limit: bool,
    /// Bytes of its output that the disk had no room for.
    output_dropped: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Untold {
    Suspend,
    Wake(Vec<GpuIndex>),
}

impl Part {
    fn new(launch: Option<Box<Launch>>, phase: Phase) -> Part {
        Part {
            launch,
            phase,
            kill_at: None,
            signal: None,
            because: None,
            progress: None,
            suspension: None,
            gpus: None,
            untold: None,
            told_out: false,
            limit: None,
            keeps_limit: false,
            output_dropped: 0,
        }
    }
    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done { .. })
    }
    fn shares(&self) -> bool {
        self.launch.as_deref().is_some_and(takes_share)
    }
    fn gpus(&self) -> &[GpuIndex] {
        let first = self.launch.as_ref().map_or(&[][..], |l| &l.gpus);
        self.gpus.as_deref().unwrap_or(first)
    }
    fn is_suspended(&self) -> bool {
        matches!(self.suspension, Some(Suspension::Suspended { .. }))
    }
    /// Can its ranks do anything?
    fn is_paused(&self) -> bool {
        !matches!(self.suspension, None | Some(Suspension::Refused { .. }))
    }
    fn limit_at(&self, now: Time) -> Option<LimitReport> {
        match self.limit {
            Some((LimitReport::Left { left }, at)) if !self.is_paused() => {
                Some(LimitReport::Left { left: Span(left.0.saturating_sub(now.since(at).0)) })
            }
            Some((level, _)) => Some(level),
            // Its shim will count from about now.
            None if matches!(self.phase, Phase::Launched { .. }) => {
                let limit = self.launch.as_ref()?.limit.as_ref()?;
                Some(LimitReport::Left { left: limit.left })
            }
            None => None,
        }
    }
    fn holds(&self, gpu: GpuIndex) -> bool {
        !self.is_over() && !self.is_suspended() && self.gpus().contains(&gpu)
    }
}

#[derive(Debug)]
pub struct Machine {
    parts: BTreeMap<LeaseId, Part>,
    /// The newest generation of every task that was here lately: nothing older or equal starts
    /// again.
    seen: Seen,
    gpus: Newest,
}

/// The newest generation that each GPU was given to. Leases that share a GPU replace those that had
/// it whole, but not each other.
#[derive(Debug, Default)]
struct Newest {
    whole: BTreeMap<GpuIndex, Generation>,
    shared: BTreeMap<GpuIndex, Generation>,
}

impl Newest {
    fn note(&mut self, launch: &Launch) {
        let kind = if takes_share(launch) { &mut self.shared } else { &mut self.whole };
        for &gpu in &launch.gpus {
            let newest = kind.entry(gpu).or_insert(launch.lease.generation);
            *newest = (*newest).max(launch.lease.generation);
        }
    }

    fn newer_than(&self, than: Generation, gpu: GpuIndex, shares: bool) -> Option<Generation> {
        let shared = self.shared.get(&gpu).filter(|_| !shares);
        self.whole.get(&gpu).into_iter().chain(shared).copied().find(|g| *g > than)
    }
}

fn takes_share(launch: &Launch) -> bool {
    launch.spec.gpu_share.is_some_and(|share| share < 1.0)
}

impl Machine {
    /// `barred`: leases that an earlier agent was told to stop before it knew them.
    pub fn new(barred: impl IntoIterator<Item = LeaseId>) -> Machine {
        let mut seen = Seen::default();
        barred.into_iter().for_each(|lease| seen.insert(lease));
        Machine { parts: BTreeMap::new(), seen, gpus: Newest::default() }
    }

    pub fn step(&mut self, now: Time, input: Input) -> Vec<Action> {
        let mut out = Vec::new();
        match input {
            Input::Order(Order::Start(launch)) => self.start(now, launch, &mut out),
            Input::Order(Order::Go { lease, master_port, ports }) => {
                self.go(lease, Ports { master: master_port, all: ports }, &mut out);
            }
            Input::Order(Order::Stop { lease, grace, signal }) => {
                self.stop(now, lease, grace, signal, &mut out);
            }
            Input::Order(Order::Suspend { lease }) => {
                self.relocate(lease, Untold::Suspend, &mut out);
            }
            Input::Order(Order::Wake { lease, gpus }) => {
                self.relocate(lease, Untold::Wake(gpus), &mut out);
            }
            Input::Suspension { lease, moved } => self.moved(now, lease, moved, &mut out),
            Input::Order(Order::Forget { lease }) => self.forget(lease, &mut out),
            Input::Prepared { lease, result } => self.prepared(lease, result, &mut out),
            Input::LaunchFailed { lease, message } => {
                self.end(lease, Vec::new(), Some(node_error(message)), &mut out);
            }
            Input::Progress { lease, progress } => self.progress(now, lease, progress, &mut out),
            Input::Hello { lease, exits } => self.hello(now, lease, exits, &mut out),
            Input::Exits { lease, exits } => self.exits(lease, exits, &mut out),
            Input::Ended { lease, end } => self.ended(now, lease, end, &mut out),
            Input::Gone { lease } => self.gone(lease, &mut out),
            Input::Looked { lease, fate } => self.looked(now, lease, fate, &mut out),
            Input::Swept { lease } => self.swept(lease, &mut out),
            Input::Found { record, state, moved } => {
                self.found(now, *record, state, moved, &mut out);
            }
            Input::Order(Order::Limit { lease, limit }) => {
                self.set_limit(now, lease, limit, &mut out);
            }
            Input::Limit { lease, level } => self.limit_said(now, lease, level, &mut out),
            Input::Shutdown { grace } => self.shutdown(now, grace, &mut out),
        }
        out
    }

    fn start(&mut self, now: Time, launch: Box<Launch>, out: &mut Vec<Action>) {
        let lease = launch.lease;
        if let Some(part) = self.parts.get(&lease) {
            if part.phase != Phase::Preparing {
                out.push(Action::Report(lease));
            }
            return;
        }
        if let Some(error) = self.objection(&launch) {
            self.remember_done(lease, Some(node_error(error)), out);
            return;
        }
        self.replace_older(now, lease, out);
        self.seen.insert(lease);
        self.gpus.note(&launch);
        self.parts.insert(lease, Part::new(Some(launch), Phase::Preparing));
        out.push(Action::Prepare(lease));
    }

    /// Why this lease must not start here, if so.
    fn objection(&self, launch: &Launch) -> Option<String> {
        let lease = launch.lease;
        if let Some(newer) = self.seen.get(lease.task).filter(|&g| g >= lease.generation) {
            return Some(format!("lease {lease} is old: this node has seen generation {newer}"));
        }
        let shares = takes_share(launch);
        launch.gpus.iter().find_map(|&gpu| {
            if let Some(newer) = self.gpus.newer_than(lease.generation, gpu, shares) {
                return Some(format!("lease {lease} is old: GPU {gpu} was given to {newer}"));
            }
            // Those who have parts of it may share it.
            let bars = |p: &Part| p.holds(gpu) && !(shares && p.shares());
            let (holder, _) = self.parts.iter().find(|(_, p)| bars(p))?;
            Some(format!("GPU {gpu} is still held by {holder}"))
        })
    }

    /// A larger generation replaces a smaller one, so what is left of an earlier attempt goes.
    fn replace_older(&mut self, now: Time, lease: LeaseId, out: &mut Vec<Action>) {
        let older: Vec<LeaseId> =
            self.parts_of(lease.task).filter(|(_, p)| !p.is_over()).map(|(l, _)| l).collect();
        for old in older {
            self.stop(now, old, Span(0), None, out);
        }
    }

    fn parts_of(&self, task: TaskId) -> impl Iterator<Item = (LeaseId, &Part)> + '_ {
        let first = LeaseId { task, generation: Generation(0) };
        let last = LeaseId { task, generation: Generation(u64::MAX) };
        self.parts.range(first..=last).map(|(l, p)| (*l, p))
    }

    fn prepared(&mut self, lease: LeaseId, result: Result<u16, PartError>, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get_mut(&lease) else { return };
        if part.phase != Phase::Preparing {
            return;
        }
        let waits = part.launch.as_ref().is_some_and(|l| l.wait_for_go);
        match result {
            Err(error) => self.end(lease, Vec::new(), Some(error), out),
            Ok(port) if waits => {
                part.phase = Phase::Waiting { port };
                out.extend([Action::KeepPrepared(lease), Action::Report(lease)]);
            }
            Ok(port) => {
                part.phase = Phase::Launched { port };
                out.push(Action::Launch { lease, ports: Ports { master: port, all: vec![port] } });
                out.push(Action::Look { lease, after: HELLO_WITHIN });
            }
        }
    }

    fn go(&mut self, lease: LeaseId, ports: Ports, out: &mut Vec<Action>) {
        match self.parts.get_mut(&lease) {
            Some(part) => {
                if let Phase::Waiting { port } = part.phase {
                    part.phase = Phase::Launched { port };
                    out.push(Action::Launch { lease, ports });
                    out.push(Action::Look { lease, after: HELLO_WITHIN });
                } else {
                    out.push(Action::Report(lease));
                }
            }
            // Nothing of it is left here, so the gang can't be whole.
            None => {
                let error = node_error(format!("this node has no prepared part of {lease}"));
                self.remember_done(lease, Some(error), out);
            }
        }
    }

    fn stop(
        &mut self,
        now: Time,
        lease: LeaseId,
        grace: Span,
        signal: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let Some(part) = self.parts.get_mut(&lease) else {
            self.remember_done(lease, None, out);
            out.push(Action::Bar(lease));
            return;
        };
        match part.phase {
            Phase::Preparing => self.end(lease, Vec::new(), None, out),
            Phase::Waiting { .. } => {
                out.push(Action::Remove(lease));
                self.end(lease, Vec::new(), None, out);
            }
            Phase::Launched { .. } | Phase::Running { .. } => {
                let kill_at = now.plus(grace);
                part.kill_at = Some(part.kill_at.map_or(kill_at, |at| at.min(kill_at)));
                part.signal = signal;
                self.tell_stop(now, lease, out);
            }
            Phase::Done { .. } => out.push(Action::Report(lease)),
        }
    }

    fn tell_stop(&self, now: Time, lease: LeaseId, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get(&lease) else { return };
        if let Some(kill_at) = part.kill_at {
            let (signal, because) = (part.signal.clone(), part.because.clone());
            let message = ToShim::Stop { grace: kill_at.since(now), signal, because };
            out.push(Action::Tell { lease, message });
        }
    }

    /// Out of its GPUs, or back onto some.
    fn relocate(&mut self, lease: LeaseId, order: Untold, out: &mut Vec<Action>) {
        let taken = match &order {
            Untold::Wake(gpus) => self.holder_of(lease, gpus),
            Untold::Suspend => None,
        };
        let Some(part) = self.parts.get_mut(&lease) else {
            let error = node_error(format!("this node has no part of {lease}"));
            return self.remember_done(lease, Some(error), out);
        };
        match (&part.phase, order) {
            (Phase::Done { .. }, _) => out.push(Action::Report(lease)),
            (Phase::Preparing | Phase::Waiting { .. }, Untold::Wake(_)) => {}
            (Phase::Preparing | Phase::Waiting { .. }, Untold::Suspend) => {
                let why = "it has not started yet".to_owned();
                part.suspension = Some(Suspension::Refused { why });
                out.push(Action::Report(lease));
            }
            (_, Untold::Wake(_)) if taken.is_some() => {
                let (gpu, holder) = taken.expect("just looked");
                out.push(Action::Complain(format!(
                    "{lease} can't be woken on GPU {gpu}: {holder} holds it"
                )));
            }
            (Phase::Launched { .. } | Phase::Running { .. }, order) => {
                if let (Untold::Wake(gpus), true) = (&order, part.is_suspended()) {
                    // From now on nobody else may have them.
                    part.gpus = Some(gpus.clone());
                    part.suspension = Some(Suspension::Waking);
                }
                part.untold = Some(order);
                self.tell_order(lease, out);
                out.push(Action::Report(lease));
            }
        }
    }

    fn holder_of(&self, lease: LeaseId, gpus: &[GpuIndex]) -> Option<(GpuIndex, LeaseId)> {
        let shares = self.parts.get(&lease).is_some_and(Part::shares);
        gpus.iter().find_map(|&gpu| {
            let bars = |p: &Part| p.holds(gpu) && !(shares && p.shares());
            let (holder, _) = self.parts.iter().find(|(l, p)| **l != lease && bars(p))?;
            Some((gpu, *holder))
        })
    }

    /// What its shim was not there to hear.
    fn tell_order(&mut self, lease: LeaseId, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get_mut(&lease) else { return };
        if !matches!(part.phase, Phase::Running { connected: true, .. }) {
            return;
        }
        match part.untold.take() {
            Some(Untold::Suspend) => {
                part.told_out = true;
                out.push(Action::TellSuspend(lease));
            }
            Some(Untold::Wake(gpus)) => out.push(Action::TellWake { lease, gpus }),
            None => {}
        }
    }

    /// The controller says it again until the part's report agrees.
    fn set_limit(
        &mut self,
        now: Time,
        lease: LeaseId,
        limit: Option<TimeLimit>,
        out: &mut Vec<Action>,
    ) {
        let Some(part) = self.parts.get_mut(&lease) else { return };
        let Phase::Running { connected, .. } = part.phase else { return };
        // One that can't keep it is not told, and the controller is not asked to go on telling.
        if connected || !part.keeps_limit {
            let left = limit.as_ref().map(|limit| LimitReport::Left { left: limit.left });
            part.limit = left.map(|left| (left, now));
        }
        if part.keeps_limit {
            out.push(Action::Tell { lease, message: ToShim::Limit { limit } });
        }
    }

    fn limit_said(
        &mut self,
        now: Time,
        lease: LeaseId,
        level: Option<LimitReport>,
        out: &mut Vec<Action>,
    ) {
        let Some(part) = self.parts.get_mut(&lease).filter(|p| !p.is_over()) else { return };
        part.keeps_limit = true;
        part.limit = level.map(|level| (level, now));
        if level == Some(LimitReport::Over) {
            out.push(Action::Report(lease));
        }
    }

    fn moved(&mut self, now: Time, lease: LeaseId, moved: Moved, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get_mut(&lease).filter(|p| !p.is_over()) else { return };
        let paused = part.is_paused();
        part.suspension = moved.suspension;
        part.told_out = false;
        // While it waits for GPUs, those it had are nobody's business.
        part.gpus = moved.gpus.or(part.gpus.take());
        if let (true, Some((said, at))) = (paused != part.is_paused(), &mut part.progress) {
            // Time in which it can't do anything does not count.
            let age = if paused { Span(0) } else { now.since(*at) };
            **said = (**said).clone().aged(age);
            *at = now;
        }
        out.push(Action::Report(lease));
    }

    fn forget(&mut self, lease: LeaseId, out: &mut Vec<Action>) {
        if self.parts.get(&lease).is_some_and(Part::is_over) {
            self.parts.remove(&lease);
            out.push(Action::Remove(lease));
        }
    }

    fn hello(&mut self, now: Time, lease: LeaseId, exits: Vec<RankExit>, out: &mut Vec<Action>) {
        match self.parts.get_mut(&lease) {
            Some(part) if !part.is_over() => {
                let fresh = !matches!(&part.phase, Phase::Running { exits: e, .. } if *e == exits);
                part.phase = Phase::Running { exits, connected: true };
                if fresh {
                    out.push(Action::Report(lease));
                }
                self.tell_stop(now, lease, out);
                self.tell_order(lease, out);
            }
            // Nobody knows this part, or it was given up: it must not run on.
            _ => out.push(Action::Tell {
                lease,
                message: ToShim::Stop { grace: Span(0), signal: None, because: None },
            }),
        }
    }

    fn exits(&mut self, lease: LeaseId, new: Vec<RankExit>, out: &mut Vec<Action>) {
        if let Some(Part { phase: Phase::Running { exits, .. }, .. }) = self.parts.get_mut(&lease) {
            *exits = new;
            out.push(Action::Report(lease));
        }
    }

    /// Steps can wait for the next heartbeat; a checkpoint or a fault is told at once.
    fn progress(
        &mut self,
        now: Time,
        lease: LeaseId,
        progress: Box<PartProgress>,
        out: &mut Vec<Action>,
    ) {
        let Some(part) = self.parts.get_mut(&lease).filter(|p| !p.is_over()) else { return };
        let known = part.progress.replace((progress, now)).unwrap_or_default().0;
        let (new, _) = part.progress.as_ref().expect("just set");
        if new.saved != known.saved || new.fault != known.fault {
            out.push(Action::Report(lease));
        }
    }

    fn ended(&mut self, now: Time, lease: LeaseId, end: End, out: &mut Vec<Action>) {
        if let Some(part) = self.parts.get_mut(&lease) {
            part.output_dropped = end.output_dropped;
            part.progress = end.progress.map(|progress| (progress, now)).or(part.progress.take());
            part.limit = end.out_of_time.then_some((LimitReport::Over, now));
        }
        self.end(lease, end.exits, end.error, out);
    }

    fn end(
        &mut self,
        lease: LeaseId,
        exits: Vec<RankExit>,
        error: Option<PartError>,
        out: &mut Vec<Action>,
    ) {
        let Some(part) = self.parts.get_mut(&lease) else { return };
        if !part.is_over() {
            part.phase = Phase::Done { exits, error };
            out.push(Action::Report(lease));
        }
    }

    fn remember_done(&mut self, lease: LeaseId, error: Option<PartError>, out: &mut Vec<Action>) {
        self.seen.insert(lease);
        let phase = Phase::Done { exits: Vec::new(), error };
        self.parts.insert(lease, Part::new(None, phase));
        out.push(Action::Report(lease));
    }

    fn gone(&mut self, lease: LeaseId, out: &mut Vec<Action>) {
        if let Some(Part { phase: Phase::Running { connected, .. }, .. }) =
            self.parts.get_mut(&lease)
        {
            *connected = false;
            out.push(Action::Look { lease, after: Span(0) });
        }
    }

    fn looked(&mut self, now: Time, lease: LeaseId, fate: Fate, out: &mut Vec<Action>) {
        if !self.is_unheard(lease) {
            return;
        }
        let Some(part) = self.parts.get(&lease) else { return };
        match (&part.phase, fate) {
            (Phase::Launched { .. } | Phase::Running { .. }, Fate::Ended(end)) => {
                self.ended(now, lease, end, out);
            }
            (Phase::Launched { .. } | Phase::Running { .. }, Fate::Dead) => {
                out.push(Action::Sweep(lease));
            }
            (Phase::Launched { .. }, Fate::Unclaimed) => out.push(Action::Revoke(lease)),
            // It lives and will dial; should it die first, nobody else would notice.
            (Phase::Launched { .. } | Phase::Running { .. }, _) => {
                out.push(Action::Look { lease, after: LOOK_AGAIN });
            }
            (Phase::Preparing | Phase::Waiting { .. } | Phase::Done { .. }, _) => {}
        }
    }

    fn swept(&mut self, lease: LeaseId, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get(&lease) else { return };
        let exits = match &part.phase {
            Phase::Running { exits, .. } => exits.clone(),
            _ => Vec::new(),
        };
        let error = node_error(format!("the supervisor of {lease} died, and its ranks with it"));
        self.end(lease, exits, Some(error), out);
    }

    fn found(
        &mut self,
        now: Time,
        record: Record,
        state: FoundState,
        moved: Option<Moved>,
        out: &mut Vec<Action>,
    ) {
        let Record { launch, port } = record;
        let lease = launch.lease;
        self.seen.insert(lease);
        self.gpus.note(&launch);
        let (mut progress, mut limit, mut output_dropped) = (None, None, 0);
        let phase = match state {
            FoundState::Prepared => Phase::Waiting { port },
            FoundState::Unclaimed => {
                out.push(Action::Look { lease, after: CLAIM_WITHIN });
                Phase::Launched { port }
            }
            FoundState::Alive => {
                out.push(Action::Look { lease, after: LOOK_AGAIN });
                Phase::Running { exits: Vec::new(), connected: false }
            }
            FoundState::Dead => {
                out.push(Action::Sweep(lease));
                Phase::Running { exits: Vec::new(), connected: false }
            }
            FoundState::Ended(end) => {
                progress = end.progress.map(|progress| (progress, now));
                limit = end.out_of_time.then_some((LimitReport::Over, now));
                output_dropped = end.output_dropped;
                Phase::Done { exits: end.exits, error: end.error }
            }
        };
        let own = Part::new(Some(Box::new(launch)), phase);
        let mut part = Part { progress, limit, output_dropped, ..own };
        if let Some(moved) = moved.filter(|_| !part.is_over()) {
            (part.suspension, part.gpus) = (moved.suspension, moved.gpus);
        }
        self.parts.insert(lease, part);
    }

    fn shutdown(&mut self, now: Time, grace: Span, out: &mut Vec<Action>) {
        let active: Vec<LeaseId> =
            self.parts.iter().filter(|(_, p)| !p.is_over()).map(|(l, _)| *l).collect();
        for lease in active {
            let message = "the node was taken down".to_owned();
            let because = PartError { message, blame: Blame::Operator };
            self.parts.get_mut(&lease).expect("just listed").because = Some(because);
            self.stop(now, lease, grace, None, out);
        }
    }

    /// Nothing runs or may still start.
    pub fn is_idle(&self) -> bool {
        self.parts.values().all(Part::is_over)
    }

    /// The GPUs that a part has now; a suspended one may have come back on others.
    pub fn gpus_of(&self, lease: LeaseId) -> &[GpuIndex] {
        let live = self.parts.get(&lease).filter(|part| !part.is_over() && !part.is_suspended());
        live.map_or(&[], Part::gpus)
    }

    /// Whether a part that is not over has this GPU, another one than `but`.
    pub fn is_held(&self, gpu: GpuIndex, but: Option<LeaseId>) -> bool {
        self.parts.iter().any(|(lease, part)| Some(*lease) != but && part.holds(gpu))
    }

    /// Parts that run or may still start.
    pub fn live(&self) -> BTreeSet<LeaseId> {
        self.parts.iter().filter(|(_, part)| !part.is_over()).map(|(lease, _)| *lease).collect()
    }

    pub fn is_preparing(&self, lease: LeaseId) -> bool {
        self.parts.get(&lease).is_some_and(|part| part.phase == Phase::Preparing)
    }

    pub fn is_over(&self, lease: LeaseId) -> bool {
        self.parts.get(&lease).is_some_and(Part::is_over)
    }

    /// The part should have a shim that is not connected now.
    pub fn is_unheard(&self, lease: LeaseId) -> bool {
        self.parts.get(&lease).is_some_and(|part| {
            matches!(part.phase, Phase::Launched { .. } | Phase::Running { connected: false, .. })
        })
    }

    /// Where one part stands, if there is anything to say about it yet.
    pub fn report(&self, now: Time, lease: LeaseId) -> Option<PartReport> {
        let part = self.parts.get(&lease)?;
        let phase = match &part.phase {
            Phase::Preparing => return None,
            Phase::Waiting { port } => ReportedPhase::Prepared { port: *port },
            Phase::Launched { .. } => ReportedPhase::Running { exits: Vec::new() },
            Phase::Running { exits, .. } => ReportedPhase::Running { exits: exits.clone() },
            Phase::Done { exits, error } => {
                ReportedPhase::Done { exits: exits.clone(), error: error.clone() }
            }
        };
        let aged = |(said, at): &(Box<PartProgress>, Time)| {
            let age = if part.is_paused() { Span(0) } else { now.since(*at) };
            Box::new((**said).clone().aged(age))
        };
        Some(PartReport {
            progress: part.progress.as_ref().map(aged),
            suspension: part.suspension.clone().filter(|_| !part.is_over()),
            limit: part.limit_at(now),
            output_dropped: part.output_dropped,
            ..PartReport::new(lease, phase)
        })
    }

    pub fn reports(&self, now: Time) -> Vec<PartReport> {
        self.parts.keys().filter_map(|&lease| self.report(now, lease)).collect()
    }

    /// Everything that runs, or may yet.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> + '_ {
        self.parts.values().filter(|p| !p.is_over()).filter_map(|p| p.launch.as_deref())
    }

    /// What is left of so much memory for the GPU state of one part: less what parts asked for, and
    /// what others have there that were suspended before. `out` is what a part has on its GPUs.
    pub fn room_for(&self, lease: LeaseId, mem: Bytes, out: impl Fn(&Launch) -> Bytes) -> Bytes {
        let live = self.parts.iter().filter(|(_, part)| !part.is_over());
        let taken = live.filter_map(|(other, part)| {
            let launch = part.launch.as_deref()?;
            let there = *other != lease && (part.told_out || part.is_paused());
            Some(launch.mem.0.saturating_add(if there { out(launch).0 } else { 0 }))
        });
        Bytes(taken.fold(mem.0, u64::saturating_sub))
    }

    /// Its end was asked for.
    pub fn is_stopping(&self, lease: LeaseId) -> bool {
        self.parts.get(&lease).is_some_and(|part| part.kill_at.is_some())
    }

    pub fn launch(&self, lease: LeaseId) -> Option<&Launch> {
        self.parts.get(&lease)?.launch.as_deref()
    }

    /// The port that was found for the part.
    pub fn port(&self, lease: LeaseId) -> Option<u16> {
        match self.parts.get(&lease)?.phase {
            Phase::Waiting { port } | Phase::Launched { port } => Some(port),
            _ => None,
        }
    }

    /// The newest part of the task that is not over.
    pub fn live_part(&self, task: TaskId) -> Option<&Launch> {
        let live = self.parts_of(task).filter(|(_, p)| !p.is_over());
        live.filter_map(|(_, p)| p.launch.as_deref()).last()
    }

    /// Tasks with a part here, over or not.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.parts.keys().map(|lease| lease.task)
    }
}

fn node_error(message: String) -> PartError {
    PartError { message, blame: Blame::Node }
}

#[cfg(test)]
mod tests;
