//! A cluster under a virtual clock: carries out plans on a state as the engine would, without it.
//! Single tasks only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tutti_model::*;

use super::index::{change_rate, reindex};
use super::*;

pub(crate) struct World {
    pub state: State,
    pub now: Time,
    /// How long jobs really take. Those not named run for ever.
    pub runs: BTreeMap<JobId, Span>,
    /// When tasks started, oldest first.
    pub starts: BTreeMap<TaskId, Vec<Time>>,
    /// When something ends by itself, or is gone after it was told to stop.
    events: BTreeSet<(Time, TaskId)>,
    /// How long it takes to stop.
    pub grace: Span,
}

impl World {
    pub fn new(case: &Case) -> World {
        let mut world = World {
            state: case.state(),
            now: NOW,
            runs: BTreeMap::new(),
            starts: BTreeMap::new(),
            events: BTreeSet::new(),
            grace: Span::secs(5),
        };
        world.look();
        world
    }

    /// Brings the indexes up to date.
    pub fn look(&mut self) {
        reindex(&mut self.state);
    }

    pub fn submit(&mut self, user: &str, spec: JobSpec, run: Option<Span>) -> TaskId {
        self.state.next_job += 1;
        let id = JobId(self.state.next_job);
        let job = Job {
            id,
            user: user.to_owned(),
            team: spec.team.clone().unwrap_or_else(|| DEFAULT_TEAM.to_owned()),
            submitted_at: self.now,
            priority: spec.priority,
            held: false,
            rank: 0,
            replica_of: None,
            texts: TextRefs::default(),
            cut: TextRefs::default(),
            asked: None,
            spec: Arc::new(spec),
            tasks: Tasks::One(Task::pending(self.now)),
        };
        self.state.jobs.insert(id, Arc::new(job));
        self.runs.extend(run.map(|run| (id, run)));
        TaskId::single(id)
    }

    /// One pass, carried out.
    pub fn pass(&mut self) -> Plan {
        self.look();
        let policy = self.state.policy.clone();
        let plan = crate::plan(&self.state, &policy, self.now);
        self.carry_out(&plan);
        plan
    }

    pub fn carry_out(&mut self, plan: &Plan) {
        for task in &plan.dropped {
            self.state.claims.remove(task);
        }
        for placement in &plan.placements {
            self.start(placement);
        }
        for wake in &plan.wakes {
            self.wake(wake);
        }
        for claim in &plan.claims {
            self.claim(claim.task, &claim.parts, claim.cause, &claim.victims);
            for victim in &claim.victims {
                if let Stop::Shrink { keep } = &victim.how {
                    self.claim(victim.task, keep, ClaimCause::Resize, &[]);
                }
                let resized =
                    victim.task == claim.task || matches!(victim.how, Stop::Shrink { .. });
                self.stop(victim.task, claim.task.job, resized);
            }
        }
        self.look();
    }

    fn claim(&mut self, id: TaskId, parts: &[PartPlacement], cause: ClaimCause, of: &[Victim]) {
        let victims = of.iter().map(|v| v.task).collect();
        let claim = Claim { parts: parts.to_vec(), cause, made_at: self.now, victims };
        self.state.claims.insert(id, claim);
    }

    fn start(&mut self, placement: &Placement) {
        let id = placement.task;
        self.state.claims.remove(&id);
        let job = self.state.jobs_mut(id.job).unwrap();
        activate(task_mut(job, id.index), &placement.parts, self.now);
        self.starts.entry(id).or_default().push(self.now);
        if let Some(run) = self.runs.get(&id.job) {
            self.events.insert((self.now.plus(*run), id));
        }
        change_rate(&mut self.state, id, self.now, 1);
    }

    /// It goes on at once.
    fn wake(&mut self, wake: &Wake) {
        let (id, now) = (wake.task, self.now);
        self.state.claims.remove(&id);
        let job = self.state.jobs_mut(id.job).unwrap();
        let attempt = task_mut(job, id.index).attempt_mut().expect("who wakes was suspended");
        let since = attempt.running_since(now).expect("it ran before");
        for WakePart { node, gpus } in &wake.parts {
            let part = attempt.parts.iter_mut().find(|p| p.node == *node).unwrap();
            part.come_back(gpus);
            part.wake_up();
        }
        attempt.phase = AttemptPhase::Running { since };
        change_rate(&mut self.state, id, now, 1);
    }

    fn stop(&mut self, id: TaskId, for_job: JobId, resized: bool) {
        let now = self.now;
        let job = self.state.jobs_mut(id.job).unwrap();
        let attempt = task_mut(job, id.index).attempt_mut().expect("a victim runs");
        let running_since = attempt.running_since(now);
        let why = if resized {
            StopCause::Resized { nodes: 0 }
        } else {
            StopCause::Preempted { for_job, not_suspended: None }
        };
        assert!(!matches!(attempt.phase, AttemptPhase::Stopping { .. }), "{id} is stopped twice");
        attempt.phase = AttemptPhase::Stopping { since: now, running_since, why };
        self.events.retain(|(_, task)| *task != id);
        self.events.insert((now.plus(self.grace), id));
    }

    /// What happens next, if anything does by then.
    pub fn next_event(&self) -> Option<Time> {
        self.events.first().map(|(at, _)| *at)
    }

    /// Lets time pass.
    pub fn wait_until(&mut self, until: Time) {
        while let Some(&(at, task)) = self.events.first().filter(|(at, _)| *at <= until) {
            self.events.pop_first();
            self.now = at;
            self.gone(task);
        }
        self.now = until;
        self.look();
    }

    /// Nothing runs any longer: the task is over, or waits again if it was told to stop.
    fn gone(&mut self, id: TaskId) {
        let now = self.now;
        change_rate(&mut self.state, id, now, -1);
        let job = self.state.jobs_mut(id.job).unwrap();
        let task = task_mut(job, id.index);
        let Some(Attempt { phase: AttemptPhase::Stopping { why, .. }, .. }) = task.attempt() else {
            self.state.jobs.remove(&id.job);
            return;
        };
        if matches!(why, StopCause::Preempted { .. }) {
            task.preempted_at = Some(now);
            task.restarts.preemption += 1;
        }
        task.phase = Phase::Pending { since: now, not_before: Time(0) };
    }
}
