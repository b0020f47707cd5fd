//! Who had what and for how long, and how far each job is: read off the records of the engine.

use tutti_engine::{Event, Record, RetryCause};
use tutti_model::{AttemptPhase, Demand, JobId, LeaseId, NodeId, Outcome, Span, TaskId, Time};

use super::super::clock::Due;
use super::super::{Fate, Host, Restart, Stint};
use super::{Stretch, World};

impl<H: Host> World<'_, H> {
    /// Keeps the books.
    pub(super) fn note(&mut self, records: &[Record]) {
        self.out.events += records.len() as u64;
        for record in records {
            match &record.event {
                Event::Placed { task, .. } => self.placed(*task),
                Event::PartRunning { lease, .. } => self.begun(*lease),
                Event::Requeued { lease, cause, .. } => self.stopped(*lease, *cause),
                Event::TaskEnded { task, ended } => self.over(*task, ended.outcome),
                Event::WaitingEnded { job, ended } => self.none_left(*job, ended.outcome),
                Event::JobsForgotten { jobs } => {
                    for job in jobs {
                        self.ids.remove(job);
                    }
                }
                _ => {}
            }
        }
    }

    fn placed(&mut self, task: TaskId) {
        let Some(index) = self.index_of(task) else { return };
        let job = self.host.engine().state().job(task.job);
        let Some(attempt) = job.and_then(|j| j.task(task.index)?.attempt()) else { return };
        let nodes: Vec<NodeId> = attempt.parts.iter().map(|p| p.node).collect();
        let milli =
            attempt.parts.iter().map(|p| p.gpus.len() as u64 * u64::from(p.share.0)).sum::<u64>();
        let needed = job.map(|j| self.racks.needed(&Demand::of(&j.spec)));
        let spanned = self.racks.spanned(nodes.iter().copied());
        let now = self.on_trace();
        let row = &mut self.jobs[index];
        row.attempts += 1;
        row.racks = needed.map(|n| (spanned, n.racks));
        row.stints.push(Stint { from: now, until: now, nodes, milli });
        self.work[index].holds = true;
        self.idle_failures = 0;
        self.held += milli;
    }

    /// Every part runs: the work goes on from what is safe.
    fn begun(&mut self, lease: LeaseId) {
        let Some(index) = self.index_of(lease.task) else { return };
        let running = self.attempt(lease).map(|a| matches!(a.phase, AttemptPhase::Running { .. }));
        if running != Some(true) || self.work[index].now.is_some() {
            return;
        }
        let speed = self.speed(lease, index);
        let left = (self.work[index].run.0 as f64 - self.work[index].safe).max(0.0);
        let finish = self.now.plus(Span((left / speed).ceil() as u64));
        let milli = self.jobs[index].stints.last().map_or(0, |s| s.milli);
        let began = self.on_trace();
        self.jobs[index].start.get_or_insert(began);
        self.agenda.add(finish, Due::Finish(lease));
        if let Restart::Checkpoint(every) = self.options.restart {
            self.agenda.add(self.now.plus(every), Due::Saved(lease));
        }
        let (since, saved_at) = (self.now, self.now);
        let stretch = Stretch { lease, since, speed, finish, saved_at, halted_at: None, milli };
        self.work[index].now = Some(stretch);
    }

    /// Against running on all that it asked for, near together.
    fn speed(&mut self, lease: LeaseId, index: usize) -> f64 {
        let Some(job) = self.state().job(lease.task.job) else { return 1.0 };
        let demand = Demand::of(&job.spec);
        let Some(attempt) = self.attempt(lease) else { return 1.0 };
        let (gpus, nodes) = (attempt.gpu_count(), attempt.parts.len() as u32);
        let asked = demand.total_gpus().max(1) as f64;
        let elastic = job.spec.elastic.is_some() && gpus > 0;
        let size = if elastic { f64::from(gpus) / asked } else { 1.0 };
        let needed = self.racks.needed(&demand);
        let wide = self.jobs[index].racks.is_some_and(|(spanned, least)| spanned > least);
        let spread = wide || nodes > needed.nodes;
        let spreading = self.options.spreading.as_ref().filter(|_| spread);
        size * spreading.map_or(1.0, |s| s.speed(gpus))
    }

    /// The attempt is over and the job waits again. What is not safe is lost.
    fn stopped(&mut self, lease: LeaseId, cause: RetryCause) {
        let Some(index) = self.index_of(lease.task) else { return };
        let row = &mut self.jobs[index];
        match cause {
            RetryCause::Preemption => row.preemptions += 1,
            RetryCause::NodeFailure => row.node_failures += 1,
            _ => {}
        }
        let restart = match cause {
            RetryCause::Resize | RetryCause::Eviction | RetryCause::Health => Restart::Served,
            _ => self.options.restart,
        };
        self.release(index);
        self.throw_away(index, restart, cause);
        let (lost_ms, gained) = self.settle(index, restart);
        if cause == RetryCause::NodeFailure {
            let work = &mut self.work[index];
            work.setbacks.note(lost_ms, gained);
            if work.setbacks.hopeless(work.run.0 as f64) {
                self.hopeless.push(lease.task);
            }
        }
    }

    /// What the attempt had done since its work was last safe, in whole numbers.
    fn throw_away(&mut self, index: usize, restart: Restart, cause: RetryCause) {
        let Some(stretch) = &self.work[index].now else { return };
        let safe_until = match restart {
            Restart::Scratch => stretch.since,
            Restart::Served => self.now,
            Restart::Checkpoint(_) => stretch.saved_at,
        };
        let end = stretch.halted_at.unwrap_or(self.now);
        let lost = end.since(safe_until).0 * stretch.milli;
        let thrown = &mut self.jobs[index].thrown;
        match cause {
            RetryCause::Preemption => thrown.by_preemption += lost,
            _ => thrown.by_failure += lost,
        }
    }

    /// Ends the stretch that runs. Gives the milliseconds that it lost, and whether it came on.
    fn settle(&mut self, index: usize, restart: Restart) -> (f64, bool) {
        let Some(stretch) = self.work[index].now.take() else { return (0.0, false) };
        self.agenda.remove(stretch.finish, Due::Finish(stretch.lease));
        let end = stretch.halted_at.unwrap_or(self.now);
        let done = |until: Time| until.since(stretch.since).0 as f64 * stretch.speed;
        let (all, before) = (done(end), self.work[index].safe);
        self.work[index].safe = match restart {
            Restart::Scratch => 0.0,
            Restart::Served => before + all,
            Restart::Checkpoint(_) => before + done(stretch.saved_at),
        };
        let lost = (before + all - self.work[index].safe) / stretch.speed;
        self.jobs[index].lost += (lost * stretch.milli as f64 / 1000.0) as u64;
        (lost, self.work[index].safe > before)
    }

    fn over(&mut self, task: TaskId, outcome: Outcome) {
        let Some(index) = self.index_of(task).filter(|index| !self.work[*index].over) else {
            return;
        };
        self.work[index].over = true;
        if let Some(stretch) = self.work[index].now.take() {
            self.agenda.remove(stretch.finish, Due::Finish(stretch.lease));
        }
        self.release(index);
        let (now, given_up) = (self.on_trace(), self.work[index].given_up);
        let row = &mut self.jobs[index];
        // To be given up is no end.
        row.end = (!given_up).then_some(now);
        row.fate = match outcome {
            Outcome::Completed => Fate::Completed,
            _ if given_up => Fate::Hopeless,
            _ => Fate::Failed,
        };
        self.over += 1;
    }

    /// What waited of an array never starts.
    fn none_left(&mut self, job: JobId, outcome: Outcome) {
        let Some(first) = self.ids.get(&job).copied() else { return };
        let array = self.trace.jobs[self.work[first].job].spec.array.as_ref();
        let indices: Vec<u32> = array.map_or_else(Vec::new, |array| array.indices.iter().collect());
        let waits = |index: &u32| {
            let known = self.state().job(job).and_then(|known| known.task(Some(*index)));
            known.is_none_or(|task| task.attempt().is_none())
        };
        for index in indices.into_iter().filter(waits).collect::<Vec<_>>() {
            self.over(TaskId::of_array(job, index), outcome);
        }
    }

    /// The GPUs of its last attempt are free.
    fn release(&mut self, index: usize) {
        let holds = std::mem::take(&mut self.work[index].holds);
        let now = self.on_trace();
        if let Some(stint) = self.jobs[index].stints.last_mut().filter(|_| holds) {
            stint.until = now;
            self.held -= stint.milli;
        }
    }
}
