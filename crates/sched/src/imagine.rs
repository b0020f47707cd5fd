//! The cluster as it would be: a copy of the state in which tasks start and end and jobs and nodes
//! change, and the very pass that plans the cluster on top of it.
//!
//! Keeps only what a pass reads. What the engine keeps for people (outcomes, history) is left as
//! it was.

use std::sync::Arc;

use tutti_model::{
    Account, Attempt, AttemptPhase, Claim, Job, JobId, Lane, Node, Part, PartPlacement, PartState,
    Phase, Plan, Policy, QueueKey, Rank, Span, State, Task, TaskId, Tasks, Time,
};

use crate::pass::{View, WhatIf};
use crate::scheduler::Scheduler;
use crate::verdict::unmet;

/// Starts that one pass, and one look into the future, may imagine: beyond that nobody waits for
/// the answer.
pub(crate) const STARTS: usize = 2500;

pub(crate) struct World {
    pub state: State,
    scheduler: Scheduler,
    /// Each pass costs time that somebody waits for.
    passes_left: usize,
}

impl World {
    /// A copy that may be planned for so many times.
    pub fn new(state: &State, policy: &Policy, passes: usize) -> World {
        let mut state = state.clone();
        // What a pass leaves for the next starts as soon for those who wait.
        state.policy = Arc::new(Policy { placements_max: STARTS, ..policy.clone() });
        World { state, scheduler: Scheduler::default(), passes_left: passes }
    }

    /// None when no pass is left.
    pub fn plan(&mut self, now: Time, what_if: WhatIf) -> Option<Plan> {
        self.passes_left = self.passes_left.checked_sub(1)?;
        Some(self.scheduler.plan_if(&self.state, now, what_if))
    }

    pub fn look(&mut self) -> &mut View {
        self.scheduler.look(&self.state)
    }

    /// Makes the plan come true at once. Nobody is stopped: a claim keeps its room, no more.
    pub fn carry_out(&mut self, plan: Plan, at: Time) {
        for task in plan.dropped {
            self.drop_claim(task);
        }
        for claim in plan.claims {
            claim.parts.iter().for_each(|p| self.scheduler.touch(p.node));
            let (parts, cause) = (claim.parts, claim.cause);
            let claimed = Claim { parts, cause, made_at: at, victims: Vec::new() };
            self.state.claims.insert(claim.task, claimed);
        }
        for placement in plan.placements {
            self.start(placement.task, placement.parts, at);
        }
    }

    fn drop_claim(&mut self, task: TaskId) {
        if let Some(claim) = self.state.claims.remove(&task) {
            claim.parts.iter().for_each(|p| self.scheduler.touch(p.node));
        }
    }

    fn start(&mut self, id: TaskId, parts: Vec<PartPlacement>, at: Time) {
        let Some(job) = self.state.jobs.get(&id.job).cloned() else { return };
        self.drop_claim(id);
        let attempt = self.attempt(&job, &parts, at);
        let lease = attempt.lease(id);
        for part in &attempt.parts {
            self.scheduler.touch(part.node);
            let Some(node) = self.state.nodes.get_mut(&part.node) else { continue };
            for gpu in &part.gpus {
                let user = node.used.gpus.entry(*gpu).or_default();
                user.leases.insert(lease, part.share);
            }
            node.used.cpus += part.cpus;
            node.used.mem.0 += part.mem.0;
            node.used.leases.insert(lease);
        }
        self.charge(&job, at, attempt.charge as i64);
        if let Some(time) = job.spec.time {
            self.state.index.limits.insert((at.plus(time), id));
        }
        if job.spec.elastic.is_some() {
            self.state.index.elastic.insert(id);
        }
        self.state.index.active.insert(id);
        self.dequeue(&job, id);
        let submitted_at = job.submitted_at;
        drop(job);
        let Some(job) = self.state.jobs_mut(id.job) else { return };
        match (&mut job.tasks, id.index) {
            (Tasks::One(task), _) => task.phase = Phase::Active(Box::new(attempt)),
            (Tasks::Array(array), Some(index)) => {
                array.waiting.remove(index);
                let pending = || Task::pending(submitted_at);
                let task = array.live.entry(index).or_insert_with(pending);
                task.phase = Phase::Active(Box::new(attempt));
            }
            (Tasks::Array(_), None) => {}
        }
    }

    fn attempt(&mut self, job: &Job, parts: &[PartPlacement], at: Time) -> Attempt {
        let (state, exclusive) = (&self.state, job.spec.exclusive);
        let of_part = |part: &PartPlacement| {
            Some(state.policy.charge(&state.node(part.node)?.facts, part, exclusive))
        };
        let charge = parts.iter().filter_map(of_part).sum();
        let generation = state.generation();
        let parts = parts.iter().map(|p| Part {
            node: p.node,
            gpus: p.gpus.clone(),
            cpus: p.cpus,
            mem: p.mem,
            share: p.share,
            first_rank: Rank(0),
            ranks: p.ranks,
            phase: PartState::Running { exits: Vec::new() },
            port: None,
            gpu_mem: None,
            port_owner: None,
            asleep: None,
        });
        self.state.next_generation += 1;
        Attempt {
            number: 1,
            generation,
            placed_at: at,
            phase: AttemptPhase::Running { since: at },
            master_port: None,
            parts: parts.collect(),
            charge,
            saved_at: None,
            saved: None,
            advanced: false,
            let_go: false,
            accusations: Vec::new(),
            disregarded: Vec::new(),
            naps: Vec::new(),
            away: Span::default(),
            kept: None,
        }
    }

    /// The task ends well, and those that waited for its job may go. One that was only stopped for
    /// somebody else waits again.
    pub fn end(&mut self, id: TaskId, at: Time) {
        let Some(job) = self.state.jobs.get(&id.job).cloned() else { return };
        let Some(attempt) = job.task(id.index).and_then(Task::attempt) else { return };
        let lease = attempt.lease(id);
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
            self.scheduler.touch(part.node);
            let Some(node) = self.state.nodes.get_mut(&part.node) else { continue };
            for user in node.used.gpus.values_mut() {
                user.leases.remove(&lease);
            }
            node.used.gpus.retain(|_, user| !user.leases.is_empty());
            node.used.cpus = node.used.cpus.saturating_sub(part.cpus);
            node.used.mem.0 = node.used.mem.0.saturating_sub(part.mem.0);
            node.used.leases.remove(&lease);
        }
        self.charge(&job, at, -(attempt.charge as i64));
        let index = &mut self.state.index;
        index.active.remove(&id);
        index.elastic.remove(&id);
        if let Some((since, time)) = attempt.running_since(at).zip(job.spec.time) {
            index.limits.remove(&(since.plus(time), id));
        }
        let again = comes_back(attempt);
        drop(job);
        self.leave(id, again.then_some(at));
        if again {
            self.enqueue(id.job);
        }
        if self.state.job(id.job).is_none() {
            let waited = self.state.index.dependents.get(&id.job);
            let waited: Vec<JobId> = waited.into_iter().flatten().copied().collect();
            waited.into_iter().for_each(|job| self.enqueue(job));
        }
    }

    /// A job of which nothing is left is forgotten: it had ended, says everybody who asks.
    fn leave(&mut self, id: TaskId, again: Option<Time>) {
        let Some(job) = self.state.jobs_mut(id.job) else { return };
        let task = match (&mut job.tasks, id.index) {
            (Tasks::One(task), _) => Some(task),
            (Tasks::Array(array), Some(index)) => array.live.get_mut(&index),
            (Tasks::Array(_), None) => None,
        };
        if let (Some(task), Some(since)) = (task, again) {
            task.phase = Phase::Pending { since, not_before: Time(0) };
            return;
        }
        let left = match (&mut job.tasks, id.index) {
            (Tasks::Array(array), Some(index)) => {
                array.live.remove(&index);
                !array.live.is_empty() || !array.waiting.is_empty()
            }
            _ => false,
        };
        if !left {
            self.state.jobs.remove(&id.job);
        }
    }

    fn charge(&mut self, job: &Job, at: Time, by: i64) {
        let State { policy, ledger, .. } = &mut self.state;
        let account = Account { line: policy.line_of(&job.team), user: &job.user };
        ledger.change(&account, at, policy.half_life, by);
    }

    /// Puts everything of the job that may start into the queue. What is there stays.
    pub fn enqueue(&mut self, id: JobId) {
        let Some(job) = self.state.jobs.get(&id).cloned() else { return };
        if job.held || !unmet(&self.state, &job).is_empty() {
            return;
        }
        for (since, id, key) in entries(&self.state.policy, &job) {
            self.state.index.queue.insert(Lane::of(&job), key);
            self.state.index.waiting.insert((since, id));
        }
    }

    /// Takes the task out of the queue; the entry of an array's untouched rest goes with its last.
    fn dequeue(&mut self, job: &Job, id: TaskId) {
        let (since, entry, key) = match (&job.tasks, job.task(id.index)) {
            (_, Some(task)) => {
                let Some(since) = task.waits_since() else { return };
                (since, id, QueueKey::of(&self.state.policy, job, id.index, Some(task)))
            }
            (Tasks::Array(array), None) if array.waiting.len() == 1 => {
                let key = QueueKey::of(&self.state.policy, job, None, None);
                (job.submitted_at, TaskId::single(job.id), key)
            }
            _ => return,
        };
        self.state.index.queue.remove(&Lane::of(job), &key);
        self.state.index.waiting.remove(&(since, entry));
    }

    /// Its time to wait after a failure is over.
    pub fn wake(&mut self, id: TaskId) {
        let Some(job) = self.state.jobs_mut(id.job) else { return };
        let task = match (&mut job.tasks, id.index) {
            (Tasks::One(task), _) => Some(task),
            (Tasks::Array(array), Some(index)) => array.live.get_mut(&index),
            (Tasks::Array(_), None) => None,
        };
        if let Some(Task { phase: Phase::Pending { not_before, .. }, .. }) = task {
            *not_before = Time(0);
        }
        self.enqueue(id.job);
    }

    /// Puts a job in the place of the one with the same id, or of none.
    pub fn put_job(&mut self, id: JobId, new: Option<Arc<Job>>) {
        if let Some(old) = self.state.jobs.remove(&id) {
            for (since, entry, key) in entries(&self.state.policy, &old) {
                self.state.index.queue.remove(&Lane::of(&old), &key);
                self.state.index.waiting.remove(&(since, entry));
            }
        }
        if let Some(new) = new {
            self.state.jobs.insert(id, new);
            self.enqueue(id);
        }
    }

    pub fn put_node(&mut self, node: Node) {
        self.scheduler.touch(node.id);
        self.state.nodes.insert(node.id, node);
    }
}

fn comes_back(attempt: &Attempt) -> bool {
    use tutti_model::StopCause::{NodeLost, Preempted, Resized};
    let AttemptPhase::Stopping { why, .. } = &attempt.phase else { return false };
    matches!(why, NodeLost { .. } | Preempted { .. } | Resized { .. })
}

/// The entries of the queue that a job has if it may start.
fn entries(policy: &Policy, job: &Job) -> Vec<(Time, TaskId, QueueKey)> {
    let mut entries = Vec::new();
    if let Tasks::Array(array) = &job.tasks
        && !array.waiting.is_empty()
    {
        let key = QueueKey::of(policy, job, None, None);
        entries.push((job.submitted_at, TaskId::single(job.id), key));
    }
    for (id, task) in job.live_tasks().filter(|(_, task)| task.kept().is_none()) {
        if let (Phase::Pending { not_before: Time(0), .. }, Some(since)) =
            (&task.phase, task.waits_since())
        {
            entries.push((since, id, QueueKey::of(policy, job, id.index, Some(task))));
        }
    }
    entries
}
