//! A small read model beside the engine: how many tasks are in which state, and which jobs are, so
//! that a page of jobs costs its rows and not the length of the history.
//!
//! Kept by the engine thread after every step, from the records of that step; rebuilt on start. It
//! lives under the same lock as the engine, so a reader sees both at the same record.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tutti_engine::{Event, Record};
use tutti_model::{Ended, IndexRanges, Job, JobId, JobState, Outcome, State, TaskId, Tasks, Time};
use tutti_wire::api::ArrayCounts;

/// Tasks by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; 8]);

impl Counts {
    pub fn get(&self, state: JobState) -> u64 {
        self.0[state as usize]
    }
    fn add(&mut self, state: JobState, n: u64) {
        self.0[state as usize] += n;
    }
    fn sub(&mut self, state: JobState, n: u64) {
        let count = &mut self.0[state as usize];
        debug_assert!(*count >= n, "{n} tasks leave '{}', which has {count}", state.as_str());
        if *count < n {
            // A wrong number on a screen is no reason to stop a cluster; a restart counts anew.
            tracing::error!(state = state.as_str(), count, n, "the counts of tasks are wrong");
        }
        *count = count.saturating_sub(n);
    }
    fn is_over(&self) -> bool {
        JobState::ALL.iter().filter(|s| !s.is_final()).all(|&s| self.get(s) == 0)
    }
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        JobState::ALL.iter().map(|&s| (s.as_str().to_owned(), self.get(s))).collect()
    }
}

/// What the row of a whole array shows, without a walk over its tasks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArraySums {
    pub counts: Counts,
    pub started_at: Option<Time>,
    pub ended_at: Option<Time>,
    pub restarts: u64,
    /// The largest of its tasks, so 0 only if all that ended returned 0. One that did not complete
    /// and has no code counts as 1.
    pub exit_code: Option<i32>,
    /// Started and not ended, with the state they are counted under.
    live: BTreeMap<u32, JobState>,
    over: IndexRanges,
}

impl ArraySums {
    fn of(job: &Job) -> ArraySums {
        let mut sums = ArraySums::default();
        let Tasks::Array(a) = &job.tasks else { return sums };
        sums.counts.add(JobState::Pending, a.waiting.len());
        for (&i, task) in &a.live {
            sums.counts.add(task.state(), 1);
            sums.live.insert(i, task.state());
            sums.started(task.first_started_at);
        }
        for (&i, ended) in &a.ended {
            sums.counts.add(ended.outcome.into(), 1);
            sums.over.insert_range(i, i);
            sums.ended(ended);
        }
        if let Some((indices, ended)) = a.never_started.as_deref() {
            sums.counts.add(ended.outcome.into(), indices.len());
            sums.ended(ended);
        }
        sums
    }

    fn started(&mut self, at: Option<Time>) {
        self.started_at = match (self.started_at, at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    fn ended(&mut self, ended: &Ended) {
        self.started(ended.started_at);
        self.ended_at = self.ended_at.max(Some(ended.ended_at));
        self.restarts += u64::from(ended.restarts.total());
        let failed = (ended.outcome != Outcome::Completed).then_some(1);
        self.exit_code = self.exit_code.max(ended.exit_code.or(failed));
    }

    /// Where the whole array stands; the same rule as [`Job::state`].
    pub fn state(&self) -> JobState {
        let order: &[JobState] = if self.counts.is_over() {
            &[JobState::Failed, JobState::Cancelled]
        } else {
            &[JobState::Running, JobState::Starting, JobState::Stopping, JobState::Suspended]
        };
        let rest = if self.counts.is_over() { JobState::Completed } else { JobState::Pending };
        order.iter().copied().find(|&s| self.counts.get(s) > 0).unwrap_or(rest)
    }

    pub fn array_counts(&self) -> ArrayCounts {
        let n = |s| self.counts.get(s);
        ArrayCounts {
            pending: n(JobState::Pending),
            running: n(JobState::Starting) + n(JobState::Running) + n(JobState::Stopping),
            suspended: n(JobState::Suspended),
            completed: n(JobState::Completed),
            failed: n(JobState::Failed),
            cancelled: n(JobState::Cancelled),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    One(JobState),
    Array(Box<ArraySums>),
}

impl Entry {
    fn of(job: &Job) -> Entry {
        match &job.tasks {
            Tasks::One(t) => Entry::One(t.state()),
            Tasks::Array(_) => Entry::Array(Box::new(ArraySums::of(job))),
        }
    }
    fn state(&self) -> JobState {
        match self {
            Entry::One(s) => *s,
            Entry::Array(sums) => sums.state(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reads {
    totals: Counts,
    entries: HashMap<JobId, Entry>,
    by_state: [BTreeSet<JobId>; 8],
    arrays: BTreeSet<JobId>,
}

impl Reads {
    pub fn rebuild(state: &State) -> Reads {
        let mut reads = Reads::default();
        for job in state.jobs.values() {
            reads.put(job);
        }
        reads
    }

    pub fn totals(&self) -> Counts {
        self.totals
    }

    pub fn array(&self, job: JobId) -> Option<&ArraySums> {
        match self.entries.get(&job)? {
            Entry::Array(sums) => Some(sums),
            Entry::One(_) => None,
        }
    }

    /// Jobs that as a whole are in this state.
    pub fn jobs_in(&self, state: JobState) -> &BTreeSet<JobId> {
        &self.by_state[state as usize]
    }

    pub fn arrays(&self) -> &BTreeSet<JobId> {
        &self.arrays
    }

    /// Takes in what one step did. `state` is the state after all of these records.
    pub fn note(&mut self, state: &State, records: &[Record]) {
        let mut whole = BTreeSet::new();
        let mut tasks = BTreeSet::new();
        for record in records {
            match &record.event {
                Event::JobSubmitted { job, .. } | Event::WaitingEnded { job, .. } => {
                    whole.insert(*job);
                }
                Event::JobsForgotten { jobs } => jobs.iter().for_each(|&j| self.remove(j)),
                event => tasks.extend(event.task()),
            }
        }
        for task in tasks {
            if !whole.contains(&task.job) {
                self.note_task(state, task);
            }
        }
        for id in whole {
            self.remove(id);
            if let Some(job) = state.job(id) {
                self.put(job);
            }
        }
    }

    fn note_task(&mut self, state: &State, task: TaskId) {
        let Some(job) = state.job(task.job) else { return };
        let Some(now) = job.task_state(task.index) else { return };
        let Some(entry) = self.entries.get_mut(&task.job) else { return };
        let job_was = entry.state();
        let was = match (&mut *entry, task.index) {
            (Entry::One(was), None) => std::mem::replace(was, now),
            (Entry::Array(sums), Some(i)) => {
                if sums.over.contains(i) {
                    return;
                }
                let was = sums.live.remove(&i).unwrap_or(JobState::Pending);
                sums.counts.sub(was, 1);
                sums.counts.add(now, 1);
                match job.ended(task.index) {
                    Some(ended) => {
                        sums.over.insert_range(i, i);
                        sums.ended(ended);
                    }
                    None => {
                        sums.live.insert(i, now);
                        sums.started(job.task(task.index).and_then(|t| t.first_started_at));
                    }
                }
                was
            }
            _ => return,
        };
        self.totals.sub(was, 1);
        self.totals.add(now, 1);
        let job_now = entry.state();
        if job_was != job_now {
            self.by_state[job_was as usize].remove(&task.job);
            self.by_state[job_now as usize].insert(task.job);
        }
    }

    fn put(&mut self, job: &Job) {
        let entry = Entry::of(job);
        match &entry {
            Entry::One(s) => self.totals.add(*s, 1),
            Entry::Array(sums) => {
                JobState::ALL.iter().for_each(|&s| self.totals.add(s, sums.counts.get(s)));
                self.arrays.insert(job.id);
            }
        }
        self.by_state[entry.state() as usize].insert(job.id);
        self.entries.insert(job.id, entry);
    }

    fn remove(&mut self, id: JobId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.by_state[entry.state() as usize].remove(&id);
        match entry {
            Entry::One(s) => self.totals.sub(s, 1),
            Entry::Array(sums) => {
                JobState::ALL.iter().for_each(|&s| self.totals.sub(s, sums.counts.get(s)));
                self.arrays.remove(&id);
            }
        }
    }
}

/// Every job that a record is about.
pub fn jobs_of(event: &Event) -> Vec<JobId> {
    match event {
        Event::JobSubmitted { job, .. }
        | Event::JobHeld { job, .. }
        | Event::JobReleased { job, .. }
        | Event::PriorityChanged { job, .. }
        | Event::JobUpdated { job, .. }
        | Event::WaitingEnded { job, .. }
        | Event::ReplicaChanged { job, .. }
        | Event::ReplicaFailed { job, .. }
        | Event::ReplicaSteady { job, .. }
        | Event::ReplicaGone { job, .. } => vec![*job],
        Event::JobsForgotten { jobs } => jobs.clone(),
        Event::Claimed { task, .. }
        | Event::Unclaimed { task }
        | Event::TaskReleased { task, .. }
        | Event::Registered { task, .. } => vec![task.job],
        Event::Saved { lease, .. }
        | Event::Accused { lease, .. }
        | Event::Disregarded { lease, .. }
        | Event::OutputDropped { lease, .. }
        | Event::PartHolds { lease, .. }
        | Event::SuspensionHeld { lease, .. }
        | Event::SuspensionReleased { lease, .. }
        | Event::LetGo { lease } => {
            vec![lease.task.job]
        }
        event => event.task().map(|t| t.job).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests;
