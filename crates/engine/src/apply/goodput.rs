//! Keeps the ledger of GPU-seconds while records are applied.
//!
//! Books hold what is the case since they were last closed. So they are closed after the change, with
//! what they say themselves, and opened anew with what the state says now. Only the nodes and the
//! attempt that an event is about are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tutti_model::{
    Attempt, AttemptPhase, Capacity, Claim, EndReason, Ended, Generation, Goodput, Gpu, GpuIndex,
    GpuUse, Job, JobId, LeaseId, Link, Lot, Node, NodeBook, NodeId, Part, PartPlacement, Policy,
    ReplicaPhase, RowKey, RunBook, Slice, State, TaskId, Time, TimeClass, TimeSums, Window,
};

use crate::carry_out::touched;
use crate::effects::find_attempt;
use crate::event::{Event, RetryCause};

/// What an event is about.
pub(super) struct Scope {
    nodes: BTreeSet<NodeId>,
}

/// Before the event is applied: a claim that it drops is only known until then.
pub(super) fn scope(state: &mut State, event: &Event, at: Time) -> Scope {
    if !state.goodput.begun {
        begin(state, at);
    }
    let mut nodes = BTreeSet::new();
    match event {
        Event::PolicyChanged { .. } => {
            // What is over was reserved by the old one.
            let State { goodput, nodes, policy, .. } = state;
            close_all(goodput, nodes, policy, at);
        }
        Event::LedgerSettled => {}
        // Its book is closed while it is known when it was reserved.
        Event::NodeRemoved { node: Some(id), .. } => {
            let State { goodput, nodes, policy, .. } = state;
            let node = nodes.get(id).into_iter();
            node.for_each(|node| goodput.close_node(*id, &windows(policy, node), at));
        }
        // What a part does by itself; `note` sees if it was the last.
        Event::GpusIdle { node, .. }
        | Event::PartSuspended { node, .. }
        | Event::PartWoken { node, .. } => nodes.extend([*node]),
        _ => touched(state, event, |node| nodes.extend([node])),
    }
    Scope { nodes }
}

/// After it was applied.
pub(super) fn note(state: &mut State, scope: &Scope, event: &Event, at: Time) {
    let (mut woken, mut fresh) = (Vec::new(), Vec::new());
    match event {
        Event::PolicyChanged { .. } => return open_all(state, at),
        Event::LedgerSettled => return settled(state, at),
        Event::LedgerDropped { day } => return state.goodput.drop_day(*day),
        Event::JobsForgotten { jobs } => {
            jobs.iter().for_each(|job| drop(state.goodput.jobs.remove(job)));
        }
        Event::NodeRemoved { node: Some(id), .. } => {
            if let Some(book) = state.goodput.nodes.get_mut(id) {
                book.capacity.change(0, at);
                book.unheld.clear();
                book.idle.clear();
            }
        }
        Event::GpusIdle { node, gpus, .. } => {
            if let Some(book) = state.goodput.nodes.get_mut(node) {
                fresh = gpus.difference(&book.idle).copied().collect();
                book.idle.clone_from(gpus);
            }
        }
        // Whoever had them before says nothing about those who have them now.
        Event::Placed { parts, .. } => {
            let woke = parts.iter().filter(|p| in_use(&mut state.goodput, p.node, &p.gpus));
            woken.extend(woke.map(|p| p.node));
        }
        Event::Waking { parts, .. } => {
            let woke = parts.iter().filter(|p| in_use(&mut state.goodput, p.node, &p.gpus));
            woken.extend(woke.map(|p| p.node));
        }
        _ => {}
    }
    let own = leases(state, event);
    // Others may have a part of the same GPU.
    for lease in on_nodes(state, &woken).difference(&own) {
        open_run(state, *lease, None, at);
    }
    for &lease in &own {
        change_run(state, lease, event, at);
        if let Event::GpusIdle { node, since: Some(since), .. } = event {
            date_back(state, lease, *node, &fresh, *since);
        }
    }
    open_nodes(state, &scope.nodes, at);
    if let Event::PartSuspended { lease, .. } = event
        && let Some(attempt) = find_attempt(state, *lease).filter(|a| has_lent(a))
    {
        let all: BTreeSet<NodeId> = attempt.parts.iter().map(|p| p.node).collect();
        open_nodes(state, &all, at);
    }
}

/// What an attempt has of these GPUs did nothing since then, as is known only now.
fn date_back(state: &mut State, lease: LeaseId, id: NodeId, gpus: &[GpuIndex], since: Time) {
    let (Some(node), Some(attempt)) = (state.node(id), find_attempt(state, lease)) else { return };
    let mut by_model: BTreeMap<String, u32> = BTreeMap::new();
    for part in attempt.parts.iter().filter(|part| part.node == id) {
        let its = |gpu: &&Gpu| part.gpus.contains(&gpu.index) && gpus.contains(&gpu.index);
        for gpu in node.facts.gpus.iter().filter(its) {
            *by_model.entry(gpu.model.clone()).or_default() += u32::from(part.share.0);
        }
    }
    for (model, milli) in by_model {
        state.goodput.was_idle(lease, id, &model, milli, since);
    }
}

/// The last part that is out frees the GPUs of all.
fn has_lent(attempt: &Attempt) -> bool {
    matches!(attempt.phase, AttemptPhase::Suspended { .. })
}

/// True if one of them was idle.
fn in_use(goodput: &mut Goodput, node: NodeId, gpus: &[GpuIndex]) -> bool {
    let Some(book) = goodput.nodes.get_mut(&node) else { return false };
    let before = book.idle.len();
    book.idle.retain(|gpu| !gpus.contains(gpu));
    book.idle.len() < before
}

fn on_nodes(state: &State, nodes: &[NodeId]) -> BTreeSet<LeaseId> {
    let nodes = nodes.iter().filter_map(|node| state.nodes.get(node));
    nodes.flat_map(|node| node.used.leases.iter().copied()).collect()
}

/// Everything as of now, without changing the state: for those who read. Copies what is not closed;
/// whoever wants only sums has [`time_sums_at`].
pub fn goodput_at(state: &State, now: Time) -> Goodput {
    let mut goodput = state.goodput.clone();
    if goodput.begun {
        let State { nodes, policy, .. } = state;
        close_all(&mut goodput, nodes, policy, now.max(state.at));
    }
    goodput
}

/// What all GPU time was up to now. Copies nothing, so it may be asked every few seconds.
pub fn time_sums_at(state: &State, now: Time) -> TimeSums {
    let at = now.max(state.at);
    let mut sums = TimeSums::default();
    for (id, book) in &state.goodput.nodes {
        let windows = state.nodes.get(id).map(|node| windows(&state.policy, node));
        book.sum_up(&windows.unwrap_or_default(), at, &mut sums);
    }
    state.goodput.runs.values().for_each(|run| run.sum_up(at, &mut sums));
    sums
}

/// As [`goodput_at`] for one job alone: nothing else is in it.
pub fn job_goodput_at(state: &State, job: JobId, now: Time) -> Goodput {
    let at = now.max(state.at);
    let mut few = Goodput { begun: true, ..Goodput::default() };
    few.jobs.extend(state.goodput.jobs.get(&job).map(|amounts| (job, amounts.clone())));
    few.runs.extend(state.goodput.runs_of(job).map(|(lease, run)| (*lease, Arc::new(run.clone()))));
    let slices = few.runs.values().flat_map(|run| &run.slices);
    let nodes: BTreeSet<NodeId> = slices.map(|slice| slice.node).collect();
    let leases: Vec<LeaseId> = few.runs.keys().copied().collect();
    leases.into_iter().for_each(|lease| few.close_run(lease, None, at));
    for id in nodes {
        // What it keeps from others beside its own.
        let Some(book) = state.goodput.nodes.get(&id) else { continue };
        let unheld = book.unheld.iter().filter(|lot| lot.job == Some(job)).cloned().collect();
        few.nodes.insert(id, NodeBook { since: book.since, unheld, ..NodeBook::default() });
        few.close_node(id, &[], at);
    }
    few
}

/// A state from before there was a ledger: every book begins now.
fn begin(state: &mut State, at: Time) {
    state.goodput.begun = true;
    state.goodput.settled = at;
    open_all(state, at);
}

fn open_all(state: &mut State, at: Time) {
    let tasks: Vec<TaskId> = state.index.active.iter().copied().collect();
    let nodes: BTreeSet<NodeId> = state.nodes.keys().copied().collect();
    for task in tasks {
        let lease =
            state.job(task.job).and_then(|j| Some(j.task(task.index)?.attempt()?.lease(task)));
        lease.into_iter().for_each(|lease| open_run(state, lease, None, at));
    }
    open_nodes(state, &nodes, at);
}

fn settled(state: &mut State, at: Time) {
    let State { goodput, nodes, policy, .. } = state;
    close_all(goodput, nodes, policy, at);
    goodput.settled = at;
}

fn close_all(goodput: &mut Goodput, nodes: &BTreeMap<NodeId, Node>, policy: &Policy, at: Time) {
    let leases: Vec<LeaseId> = goodput.runs.keys().copied().collect();
    leases.into_iter().for_each(|lease| goodput.close_run(lease, None, at));
    for node in nodes.values() {
        goodput.close_node(node.id, &windows(policy, node), at);
    }
}

/// When the node is kept for somebody, by the calendar.
fn windows(policy: &Policy, node: &Node) -> Vec<Window> {
    let here = policy.reservations.iter().filter(|r| r.nodes.contains(&node.facts.name));
    let window = |r: &tutti_model::Reservation| Window {
        from: r.from,
        until: r.until,
        team: r.team.clone().unwrap_or_default(),
    };
    here.map(window).collect()
}

/// Closes the books of nodes and opens them with what is the case now.
fn open_nodes(state: &mut State, ids: &BTreeSet<NodeId>, at: Time) {
    if ids.is_empty() {
        return;
    }
    let State { goodput, nodes, policy, jobs, claims, .. } = state;
    let kept = claimed(claims, |node| ids.contains(&node));
    let job = |job: JobId| jobs.get(&job).map(AsRef::as_ref);
    for node in ids.iter().filter_map(|id| nodes.get(id)) {
        goodput.close_node(node.id, &windows(policy, node), at);
        let book = goodput.nodes.entry(node.id).or_default();
        count_gpus(book, node.facts.gpus.len() as u32, at);
        book.unheld = lots(node, kept.on(node.id), &job);
    }
}

fn count_gpus(book: &mut NodeBook, gpus: u32, at: Time) {
    if book.since == Time(0) && book.capacity == Capacity::default() {
        book.capacity = Capacity { past: 0, gpus, since: at };
        book.since = at;
    }
    if book.capacity.gpus != gpus {
        book.capacity.change(gpus, at);
    }
}

/// What nobody holds of each node, and why.
pub(crate) fn unheld(state: &State) -> impl Iterator<Item = (NodeId, Vec<Lot>)> {
    let kept = claimed(&state.claims, |_| true);
    state
        .nodes
        .values()
        .map(move |node| (node.id, lots(node, kept.on(node.id), &|job| state.job(job))))
}

/// What is kept of each node, and for whom.
struct Kept<'a>(BTreeMap<NodeId, Vec<(JobId, &'a PartPlacement)>>);

impl<'a> Kept<'a> {
    fn on(&self, node: NodeId) -> &[(JobId, &'a PartPlacement)] {
        self.0.get(&node).map(Vec::as_slice).unwrap_or_default()
    }
}

/// One look at the claims for all nodes: there may be many of both.
fn claimed(claims: &BTreeMap<TaskId, Claim>, wanted: impl Fn(NodeId) -> bool) -> Kept<'_> {
    let mut kept: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
    for (task, claim) in claims {
        for part in claim.parts.iter().filter(|p| wanted(p.node)) {
            kept.entry(part.node).or_default().push((task.job, part));
        }
    }
    Kept(kept)
}

fn lots<'a>(
    node: &Node,
    kept: &[(JobId, &PartPlacement)],
    job: &dyn Fn(JobId) -> Option<&'a Job>,
) -> Vec<Lot> {
    let mut lots = Lots::default();
    let alone = node.used.leases.iter().filter_map(|l| job(l.task.job)).find(|j| j.spec.exclusive);
    let open = node.link == Link::Up && node.drain.is_none() && node.stale.is_empty();
    for gpu in &node.facts.gpus {
        let mut left = 1000 - node.used.gpus.get(&gpu.index).map_or(0, GpuUse::milli).min(1000);
        if !open || node.is_fenced(gpu.index) {
            lots.add(TimeClass::Unhealthy, None, gpu, left);
            continue;
        }
        // Nobody else may use what is beside it.
        if let Some(alone) = alone {
            lots.add(TimeClass::Idle, Some(alone), gpu, left);
            continue;
        }
        for (claimant, part) in kept.iter().filter(|(_, p)| p.gpus.contains(&gpu.index)) {
            let milli = left.min(part.share.0.into());
            lots.add(TimeClass::Reserved, job(*claimant), gpu, milli);
            left -= milli;
        }
        lots.add(TimeClass::Free, None, gpu, left);
    }
    lots.0
}

#[derive(Default)]
struct Lots(Vec<Lot>);

impl Lots {
    fn add(&mut self, class: TimeClass, job: Option<&Job>, gpu: &Gpu, milli: u32) {
        let of = |who: fn(&Job) -> &String| job.map_or("", |j| who(j).as_str());
        let (team, user) = (of(|j| &j.team), of(|j| &j.user));
        // What waits for its room holds nothing yet.
        let id = job.map(|j| j.id).filter(|_| class.is_held());
        let same = |lot: &&mut Lot| {
            let RowKey { team: t, user: u, model } = &lot.key;
            (lot.class, t.as_str(), u.as_str(), model, lot.job)
                == (class, team, user, &gpu.model, id)
        };
        if milli == 0 {
            return;
        }
        match self.0.iter_mut().find(same) {
            Some(lot) => lot.milli += milli,
            None => {
                let (team, user, model) = (team.to_owned(), user.to_owned(), gpu.model.clone());
                self.0.push(Lot { class, key: RowKey { team, user, model }, job: id, milli });
            }
        }
    }
}

/// Attempts whose books an event may change.
fn leases(state: &State, event: &Event) -> BTreeSet<LeaseId> {
    match event {
        Event::Placed { task, generation, .. } => {
            [LeaseId { task: *task, generation: *generation }].into()
        }
        Event::PartRunning { lease, .. }
        | Event::PartDone { lease, .. }
        | Event::PartLost { lease, .. }
        | Event::Stopping { lease, .. }
        | Event::Saved { lease, .. }
        | Event::Suspending { lease, .. }
        | Event::PartSuspended { lease, .. }
        | Event::Waking { lease, .. }
        | Event::PartWoken { lease, .. }
        | Event::Requeued { lease, .. } => [*lease].into(),
        Event::TaskEnded { task, .. } => {
            let lease = |n: u64| LeaseId { task: *task, generation: Generation(n) };
            state.goodput.runs.range(lease(0)..=lease(u64::MAX)).map(|(l, _)| *l).collect()
        }
        Event::ReplicaChanged { job, .. } | Event::ReplicaFailed { job, .. } => {
            let task = TaskId::single(*job);
            let attempt = state.job(*job).and_then(|j| j.task(None)).and_then(|t| t.attempt());
            attempt.map(|a| a.lease(task)).into_iter().collect()
        }
        // Its GPUs may be others than before, or busy now.
        Event::NodeUp { node, .. } | Event::GpusIdle { node, .. } => on_nodes(state, &[*node]),
        _ => BTreeSet::new(),
    }
}

fn change_run(state: &mut State, lease: LeaseId, event: &Event, at: Time) {
    let served = serves(state, lease.task.job).then_some(TimeClass::Productive);
    let judged = match event {
        Event::Requeued { cause, .. } => Some(served.unwrap_or(class_of_retry(*cause))),
        Event::TaskEnded { ended, .. } => Some(served.unwrap_or(class_of_end(ended))),
        _ => None,
    };
    if let Some(class) = judged {
        state.goodput.close_run(lease, None, at);
        state.goodput.judge(lease, Time(u64::MAX), class);
        state.goodput.runs.remove(&lease);
        return;
    }
    let lent = find_attempt(state, lease).is_some_and(has_lent);
    let on = match event {
        // So does the end of the only part that was not out.
        Event::PartDone { .. } | Event::PartSuspended { .. } if lent => None,
        Event::PartRunning { node, .. }
        | Event::PartDone { node, .. }
        | Event::PartLost { node, .. }
        | Event::PartSuspended { node, .. }
        | Event::PartWoken { node, .. }
        | Event::NodeUp { node, .. }
        | Event::GpusIdle { node, .. } => Some(*node),
        _ => None,
    };
    open_run(state, lease, on, at);
    match event {
        Event::Saved { point, .. } => {
            // An agent that was away reports it late.
            let saved_at = point.as_ref().and_then(|p| p.at).unwrap_or(at);
            state.goodput.judge(lease, saved_at, TimeClass::Productive);
        }
        // It has served until now.
        Event::ReplicaChanged { phase, .. } if *phase != ReplicaPhase::Ready => {
            state.goodput.judge(lease, at, TimeClass::Productive);
        }
        Event::ReplicaFailed { .. } => {
            state.goodput.judge(lease, at, TimeClass::LostToFailure);
        }
        _ => {}
    }
}

/// A replica that was ready: what it has answered is not thrown away, however it comes to its end.
fn serves(state: &State, job: JobId) -> bool {
    let of = state.job(job).and_then(|j| j.replica_of.as_deref());
    let endpoint = of.and_then(|of| state.endpoints.get(&of.endpoint));
    let replica = endpoint.and_then(|e| e.replicas.get(&job));
    replica.is_some_and(|r| r.phase == ReplicaPhase::Ready)
}

/// Thrown away for others, or through somebody's fault?
fn class_of_retry(cause: RetryCause) -> TimeClass {
    match cause {
        RetryCause::Preemption | RetryCause::Resize | RetryCause::Eviction => {
            TimeClass::LostToPreemption
        }
        RetryCause::NodeFailure | RetryCause::JobFailure | RetryCause::Health => {
            TimeClass::LostToFailure
        }
    }
}

/// What its owner ended, or its own time limit, is not done again: it was what was asked for.
fn class_of_end(ended: &Ended) -> TimeClass {
    match ended.reason {
        EndReason::Finished
        | EndReason::Cancelled { .. }
        | EndReason::TimeLimit
        | EndReason::DependencyUnmet { .. } => TimeClass::Productive,
        EndReason::Preemptions => TimeClass::LostToPreemption,
        EndReason::RankFailed { .. }
        | EndReason::LaunchFailed { .. }
        | EndReason::NodeFailures { .. }
        | EndReason::PeerFault { .. }
        | EndReason::Stalled { .. }
        | EndReason::Unhealthy { .. }
        | EndReason::Watched { .. }
        | EndReason::CrashLoop { .. } => TimeClass::LostToFailure,
    }
}

/// What the time of an attempt is by itself. None: work, which is judged by what becomes of it.
pub(crate) fn kind(attempt: &Attempt) -> Option<TimeClass> {
    match &attempt.phase {
        AttemptPhase::Starting => Some(TimeClass::Starting),
        AttemptPhase::Suspending { .. }
        | AttemptPhase::Suspended { .. }
        | AttemptPhase::Waking { .. } => Some(TimeClass::Suspended),
        AttemptPhase::Stopping { running_since: None, .. } => Some(TimeClass::Starting),
        AttemptPhase::Running { .. } | AttemptPhase::Stopping { .. } => None,
    }
}

/// Closes the slices of an attempt, on one node if nothing else can have changed, and opens them
/// with what it holds now.
fn open_run(state: &mut State, lease: LeaseId, on: Option<NodeId>, at: Time) {
    let Some(attempt) = find_attempt(state, lease) else { return };
    let kind = kind(attempt);
    let known = state.goodput.runs.get(&lease);
    let on = on.filter(|_| known.is_some_and(|run| run.kind == kind));
    let parts = attempt.parts.iter().filter(|p| on.is_none_or(|node| p.node == node));
    let held: Vec<Held> = parts.flat_map(|part| held(state, part)).collect();
    if known.is_none() && held.is_empty() {
        return;
    }
    if known.is_none() {
        let Some(job) = state.job(lease.task.job) else { return };
        let (team, user) = (job.team.clone(), job.user.clone());
        let run = RunBook { team, user, kind, slices: Vec::new() };
        state.goodput.runs.insert(lease, Arc::new(run));
    }
    state.goodput.close_run(lease, on, at);
    let Some(run) = state.goodput.runs.get_mut(&lease).map(Arc::make_mut) else { return };
    run.kind = kind;
    run.take(on, held, at);
}

/// What a part has of one model.
pub(crate) struct Held {
    pub node: NodeId,
    pub model: String,
    pub busy: u32,
    pub idle: u32,
}

/// GPUs that the node no longer has are nobody's.
pub(crate) fn held(state: &State, part: &Part) -> Vec<Held> {
    let Some(node) = state.node(part.node).filter(|_| !part.phase.is_over()) else {
        return Vec::new();
    };
    let idle = state.goodput.nodes.get(&part.node).map(|book| &book.idle);
    let mut held: Vec<Held> = Vec::new();
    for gpu in node.facts.gpus.iter().filter(|g| part.gpus.contains(&g.index)) {
        let at = held.iter().position(|h| h.model == gpu.model).unwrap_or_else(|| {
            let model = gpu.model.clone();
            held.push(Held { node: part.node, model, busy: 0, idle: 0 });
            held.len() - 1
        });
        let is_idle = idle.is_some_and(|idle| idle.contains(&gpu.index));
        let milli = if is_idle { &mut held[at].idle } else { &mut held[at].busy };
        *milli += u32::from(part.share.0);
    }
    held
}

trait Take {
    fn take(&mut self, on: Option<NodeId>, held: Vec<Held>, at: Time);
}

impl Take for RunBook {
    /// From now on it holds this, on one node or on all.
    fn take(&mut self, on: Option<NodeId>, held: Vec<Held>, at: Time) {
        // Where those of a node are: it has few, the attempt may have thousands.
        let mut known: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (n, slice) in self.slices.iter_mut().enumerate() {
            if on.is_none_or(|node| slice.node == node) {
                (slice.busy, slice.idle, slice.since) = (0, 0, at);
                known.entry(slice.node).or_default().push(n);
            }
        }
        for Held { node, model, busy, idle } in held {
            let here = known.entry(node).or_default();
            match here.iter().copied().find(|&n| self.slices[n].model == model) {
                Some(n) => (self.slices[n].busy, self.slices[n].idle) = (busy, idle),
                None => {
                    here.push(self.slices.len());
                    self.slices.push(Slice { busy, idle, ..Slice::new(node, &model, at) });
                }
            }
        }
        self.slices.retain(|slice| !slice.is_empty());
    }
}
