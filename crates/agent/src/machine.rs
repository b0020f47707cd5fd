//! What a node decides: a pure state machine. The shell around it (`node`) feeds it what happened
//! and carries out what it answers; nothing here touches a process, a file or a clock.
//!
//! ```text
//!             Start                  Go (or at once)          shim says hello
//! (unknown) ────────► preparing ──► waiting ──► launched ──────────► running ──► done ──Forget─► (gone)
//!                         └──────────── error, Stop ────────────────────────────►─┘
//! ```

mod exchange;
mod part;
mod queries;

use std::collections::BTreeMap;

use tutti_model::{
    Blame, Generation, GpuIndex, Launch, LeaseId, LimitReport, Order, PartError, PartProgress,
    RankExit, Span, Suspension, TaskId, Time, TimeLimit,
};

use crate::messages::{End, ToShim};
use crate::parts::{Fate, FoundState, Record};
use crate::seen::Seen;
pub use exchange::{Action, Input, Moved, Ports};
use part::{Part, Phase, Untold, takes_share};

/// A shim that did not say hello by then is looked for on disk.
pub const HELLO_WITHIN: Span = Span::secs(10);
/// A part that an earlier agent asked for and nobody claimed may still be in the old zygote's
/// hands for a moment.
pub const CLAIM_WITHIN: Span = Span::secs(2);
/// How often a shim that lives but does not dial is looked at again.
const LOOK_AGAIN: Span = Span::secs(5);

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
}

fn node_error(message: String) -> PartError {
    PartError { message, blame: Blame::Node }
}

#[cfg(test)]
mod tests;
