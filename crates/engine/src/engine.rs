//! The engine: state, what is known only now, and the steps between them.

use std::collections::{BTreeSet, VecDeque};

use tutti_model::{
    EndpointLoad, EndpointVerdict, Link, NewClaim, NodeId, Plan, ReplicaPhase, Seq, Span, State,
    TaskId, Time,
};
use tutti_sched::Scheduler;

use crate::agenda::Agenda;
use crate::apply::apply;
use crate::carry_out::{self, touched};
use crate::check::sift;
use crate::command::{Command, Reply};
use crate::consequences::{consequences, gets_further};
use crate::decide::{View, answer, decide, next_due, said_by_node};
use crate::effect::Effect;
use crate::effects::{effects, find_attempt, find_part, reconcile};
use crate::event::{Event, Record};
use crate::health::may_take_out;
use crate::index;
use crate::live::{Levels, Live};
use crate::reject::Rejected;
use crate::serve;
use crate::settings::Settings;
use crate::stall::{self, Stalled};
use crate::texts;

/// What a step brought. The records are applied in memory already; they must be durable before
/// an effect or the reply leaves.
#[derive(Debug)]
pub struct Step {
    pub reply: Result<Reply, Rejected>,
    pub records: Vec<Record>,
    pub effects: Vec<Effect>,
}

pub struct Engine {
    state: State,
    live: Live,
    settings: Settings,
    scheduler: Scheduler,
    agenda: Agenda,
    plan: Plan,
    /// When it was made.
    planned_at: Time,
    /// Something changed that could let a waiting task start.
    dirty: bool,
    /// Endpoints of which something changed.
    unsettled: BTreeSet<String>,
}

/// What endpoints do follows from what they did in so many rounds at most. It ends by itself long
/// before; what is left then waits for the next step.
const ROUNDS_MAX: usize = 64;

impl Engine {
    pub fn new(settings: Settings) -> Engine {
        Engine::restore(State::default(), settings)
    }

    /// Goes on from a snapshot. [`Engine::replay`] the records after it, then [`Command::Start`].
    pub fn restore(mut state: State, settings: Settings) -> Engine {
        texts::unpack(&mut state);
        index::rebuild(&mut state);
        Engine {
            agenda: Agenda::of(&state),
            state,
            live: Live::default(),
            settings,
            scheduler: Scheduler::default(),
            plan: Plan::default(),
            planned_at: Time(0),
            dirty: true,
            unsettled: BTreeSet::new(),
        }
    }

    pub fn replay(&mut self, record: &Record) {
        apply(&mut self.state, record);
        self.agenda.note(&self.state, &record.event);
        self.scheduler.forget();
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// Where the ranks of running attempts are, as they say themselves.
    pub fn levels(&self) -> &Levels {
        self.live.levels()
    }

    /// Whether this task runs and makes no steps any more.
    pub fn stalled(&self, task: TaskId, now: Time) -> Option<Stalled> {
        stall::stalled(self.view(now), task)
    }

    /// Whether the attempt of this task that is under way has got further than those before it: what
    /// failed until then is made good.
    pub fn gets_further(&self, task: TaskId, now: Time) -> bool {
        gets_further(self.view(now), task)
    }

    /// What keeps this endpoint from being as it should be. A replica that waits for GPUs has the
    /// verdict of its job in [`Engine::plan`].
    pub fn endpoint_verdict(&self, name: &str, now: Time) -> Option<EndpointVerdict> {
        serve::verdict(self.view(now), name)
    }

    /// What routers say of this endpoint, if any spoke lately.
    pub fn endpoint_load(&self, name: &str, now: Time) -> Option<&EndpointLoad> {
        self.live.memory(name)?.load(now)
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The newest plan, for the verdicts in it.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn step(&mut self, command: Command, now: Time) -> Step {
        let now = self.live.clock(now, self.state.at);
        if command == Command::Tick {
            self.live.tick(now, Span(self.settings.node_timeout.0 / 2));
            let next = self.agenda.next(&self.state, self.planned_at);
            self.dirty |= next.is_some_and(|at| at <= now);
        }
        self.note_levels(&command, now);
        let (reply, events) = match decide(self.view(now), &command) {
            Ok(decided) => decided,
            Err(rejected) => {
                return Step { reply: Err(rejected), records: Vec::new(), effects: Vec::new() };
            }
        };
        let mut step = Step { reply: Ok(reply), records: Vec::new(), effects: Vec::new() };
        self.run(events, now, &mut step);
        if matches!(command, Command::Load { .. } | Command::Tick) {
            self.unsettled.extend(self.state.endpoints.keys().cloned());
        }
        self.settle(now, &mut step);
        self.note_live(&command, &step, now);
        // What the records have just said need not be said again.
        let mut more = answer(self.view(now), &command);
        more.retain(|effect| !step.effects.contains(effect));
        step.effects.extend(more);
        step
    }

    /// One scheduling pass: plan, check, carry out.
    pub fn schedule(&mut self, now: Time) -> Step {
        let now = self.live.clock(now, self.state.at);
        let mut step = Step { reply: Ok(Reply::Done), records: Vec::new(), effects: Vec::new() };
        self.plan = self.scheduler.plan(&self.state, now);
        self.dirty = false;
        self.planned_at = now;
        self.agenda.passed(now);
        let full = self.plan.placements.len() >= self.state.policy.placements_max;
        if let Some(violation) = sift(&self.state, &mut self.plan, now) {
            // Waiting longer is better than giving a GPU twice. The shell reports it.
            step.reply = Err(Rejected::PlanRefused(violation));
        }
        leave_as_they_are(&self.state, &mut self.plan);
        // Room of a claim that is dropped was not seen by those tried before.
        let more = !self.plan.dropped.is_empty() || full && !self.plan.placements.is_empty();
        let events = carry_out::events(&self.state, &mut self.plan, now);
        self.run(events, now, &mut step);
        self.dirty = more;
        self.settle(now, &mut step);
        step
    }

    /// A plan that was made by hand.
    #[cfg(test)]
    pub(crate) fn carry_out(&mut self, mut plan: Plan, now: Time) -> Step {
        let mut step = Step { reply: Ok(Reply::Done), records: Vec::new(), effects: Vec::new() };
        let events = carry_out::events(&self.state, &mut plan, now);
        self.run(events, now, &mut step);
        step
    }

    pub fn wants_schedule(&self) -> bool {
        self.dirty && self.has_choices()
    }

    /// Is there anything that a plan could be about?
    fn has_choices(&self) -> bool {
        let index = &self.state.index;
        !(index.queue.is_empty()
            && index.elastic.is_empty()
            && index.asleep.is_empty()
            && self.state.claims.is_empty())
    }

    /// When a tick would next find something to do, beyond watching over nodes.
    pub fn next_wakeup(&self) -> Option<Time> {
        let due = next_due(self.view(self.state.at));
        let pass = || self.agenda.next(&self.state, self.planned_at);
        due.into_iter().chain(self.has_choices().then(pass).flatten()).min()
    }

    /// What agents should be told as things stand. For a controller that took over; single nodes
    /// are brought up to date when they say hello.
    pub fn reconcile(&self) -> Vec<Effect> {
        reconcile(&self.state, &self.settings)
    }

    fn view(&self, now: Time) -> View<'_> {
        View { state: &self.state, live: &self.live, settings: &self.settings, now }
    }

    /// Applies events and all that follows from them.
    fn run(&mut self, events: Vec<Event>, now: Time, step: &mut Step) {
        let mut todo = VecDeque::from(events);
        while let Some(mut event) = todo.pop_front() {
            if let Some(text) = texts::share(&self.state, &mut event) {
                todo.push_front(event);
                todo.push_front(text);
                continue;
            }
            // Several nodes may be lost in one moment, and few of them may be taken out.
            if let Event::NodeDrained { node, drain } = &event
                && drain.auto
                && drain.finding.is_none()
                && !may_take_out(&self.state, &self.settings, *node)
            {
                continue;
            }
            let record = Record { seq: Seq(self.state.seq.0 + 1), at: now, event };
            // Before, because a claim that is dropped is only known until then.
            touched(&self.state, &record.event, |node| self.scheduler.touch(node));
            apply(&mut self.state, &record);
            if matches!(record.event, Event::PolicyChanged { .. } | Event::NodeRemoved { .. }) {
                self.scheduler.forget();
            }
            self.agenda.note(&self.state, &record.event);
            self.dirty |= opens_room(&self.state, &record.event);
            self.unsettled.extend(serve::touched(&self.state, &record.event));
            if let Event::ReplicaChanged {
                endpoint, phase: ReplicaPhase::Draining { .. }, ..
            } = &record.event
            {
                self.live.note_drained(endpoint, now);
            }
            step.effects.extend(effects(&self.state, &self.settings, &record));
            let view = self.view(now);
            todo.extend(consequences(view, &record.event));
            step.records.push(record);
        }
    }

    /// Endpoints do what they must, until there is nothing left to do.
    fn settle(&mut self, now: Time, step: &mut Step) {
        for _ in 0..ROUNDS_MAX {
            let names = std::mem::take(&mut self.unsettled);
            for name in &names {
                let events = serve::settle(self.view(now), name);
                self.run(events, now, step);
            }
            if self.unsettled.is_empty() {
                return;
            }
        }
        debug_assert!(self.unsettled.is_empty(), "endpoints go in circles: {:?}", self.unsettled);
    }

    /// Before anything is decided: how far the ranks are decides what becomes of an attempt.
    fn note_levels(&mut self, command: &Command, now: Time) {
        let said = said_by_node(self.view(now), command);
        let Engine { state, live, .. } = self;
        if let Some((node, parts)) = said {
            let sleeps = |lease| find_attempt(state, lease).is_some_and(|a| a.is_hardly_awake(now));
            let own = parts.iter().filter(|part| find_part(state, part.lease, node).is_some());
            live.note_levels(node, own, now, sleeps);
        }
        match command {
            Command::Load { loads } => live.note_loads(state, loads, now),
            Command::Tick => {
                live.forget_levels(|lease| find_attempt(state, lease).is_some());
            }
            _ => {}
        }
    }

    fn note_live(&mut self, command: &Command, step: &Step, now: Time) {
        match (command, &step.reply) {
            (Command::Start, _) => {
                self.live.begin(&self.state);
                let ids: Vec<_> = self.state.nodes.keys().copied().collect();
                ids.into_iter().for_each(|node| self.live.disconnected(node, now));
            }
            (Command::Hello { session, .. }, Ok(Reply::Welcome { node })) => {
                self.live.connected(*node, *session, now);
            }
            (Command::Heartbeat { node, .. } | Command::Report { node, .. }, Ok(_)) => {
                self.live.heard(*node, now);
            }
            (Command::Gone { node, session }, _) if self.live.is_session(*node, *session) => {
                self.live.disconnected(*node, now);
            }
            (Command::RemoveNode { .. }, Ok(_)) => {
                let known = |node: NodeId| self.state.nodes.contains_key(&node);
                self.live.keep_nodes(known);
            }
            (Command::Tick, _) => {
                let lost = |l: Link| matches!(l, Link::Lost { .. });
                let ids: Vec<_> = step
                    .records
                    .iter()
                    .filter_map(|r| match r.event {
                        Event::NodeLost { node } => Some(node),
                        _ => None,
                    })
                    .filter(|id| self.state.node(*id).is_some_and(|n| lost(n.link)))
                    .collect();
                ids.into_iter().for_each(|node| self.live.disconnected(node, now));
            }
            _ => {}
        }
    }
}

/// A claim that is dropped and made again just as it was, without anybody getting there in between, is
/// no news, and the next pass would do the same.
fn leave_as_they_are(state: &State, plan: &mut Plan) {
    let placed = plan.placements.iter().flat_map(|p| &p.parts).map(|p| p.node);
    let woken = plan.wakes.iter().flat_map(|w| &w.parts).map(|p| p.node);
    let taken: BTreeSet<NodeId> = placed.chain(woken).collect();
    let dropped: BTreeSet<TaskId> = plan.dropped.iter().copied().collect();
    let same = |new: &NewClaim| {
        let old = state.claims.get(&new.task).filter(|_| dropped.contains(&new.task));
        let equal = old.is_some_and(|old| old.parts == new.parts && old.cause == new.cause);
        equal && new.victims.is_empty() && !new.parts.iter().any(|p| taken.contains(&p.node))
    };
    let kept: BTreeSet<TaskId> = plan.claims.iter().filter(|c| same(c)).map(|c| c.task).collect();
    plan.claims.retain(|claim| !kept.contains(&claim.task));
    plan.dropped.retain(|task| !kept.contains(task));
}

/// Could this let something start that could not before?
fn opens_room(state: &State, event: &Event) -> bool {
    match event {
        Event::Placed { .. }
        | Event::PartPrepared { .. }
        | Event::Stopping { .. }
        | Event::Saved { .. }
        | Event::Registered { .. }
        | Event::NodeMeasured { .. }
        | Event::GpusMeasured { .. }
        | Event::Accused { .. }
        | Event::Disregarded { .. }
        | Event::OutputDropped { .. }
        | Event::Suspending { .. }
        | Event::Waking { .. }
        | Event::SuspensionHeld { .. }
        | Event::Claimed { .. }
        | Event::TokenAdded { .. }
        | Event::TokenUsed { .. }
        | Event::TokenRevoked { .. }
        | Event::NodeKeyKnown { .. }
        | Event::NodeKeyShared { .. }
        | Event::TextKept { .. }
        | Event::JournalRestored { .. }
        | Event::NumbersSkipped { .. }
        | Event::GpusIdle { .. }
        | Event::LedgerSettled
        | Event::LedgerDropped { .. } => false,
        // Room that was kept there may have to be found elsewhere.
        Event::NodeAway { .. } | Event::NodeLost { .. } => !state.claims.is_empty(),
        // It may be suspended for somebody who waits, or not any more.
        Event::PartHolds { .. } => !state.index.queue.is_empty(),
        // Only what runs may grow.
        Event::PartRunning { lease, .. } => state.index.elastic.contains(&lease.task),
        // What an endpoint wants becomes jobs first.
        event => event.endpoint().is_none(),
    }
}
