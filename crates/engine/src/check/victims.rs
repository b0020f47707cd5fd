//! Why exactly these tasks are stopped, and no others.

use tutti_model::{
    Attempt, AttemptPhase, ClaimCause, Job, NewClaim, Part, PartPlacement, Phase, PreemptMode,
    Span, State, Stop, Task, TaskId, Time, Victim,
};

use super::books::class_rank;
use super::{Checker, Violation, suspend};

/// Time to save that a job gets which names none.
const GRACE: Span = Span::secs(30);

/// An elastic job takes another number of nodes; it is stopped for itself alone.
pub(super) fn may_resize(state: &State, job: &Job, claim: &NewClaim) -> Result<(), Violation> {
    let id = claim.task;
    let wrong = |why| Err(Violation::BadResize(id, why));
    if job.spec.elastic.is_none() {
        return wrong("it is not elastic");
    }
    let Some(attempt) = attempt_of(state, id).filter(|a| is_running(a)) else {
        return wrong("it does not run");
    };
    if claim.parts.len() == attempt.parts.len() {
        return wrong("it has that size");
    }
    match &claim.victims[..] {
        [own] if own.task == id && own.cost == 0 => Ok(()),
        _ => wrong("others would be stopped for it"),
    }
}

impl<'a> Checker<'a> {
    /// The cause of a claim allows what it does to others.
    pub(super) fn justified(&mut self, claim: &NewClaim) -> Result<(), Violation> {
        let id = claim.task;
        let job = self.state.job(id.job).ok_or(Violation::NotPending(id))?;
        match claim.cause {
            ClaimCause::Resize => {
                self.victims.insert(id);
                return Ok(());
            }
            ClaimCause::Overdue => return self.is_overdue(job, claim),
            ClaimCause::Class | ClaimCause::Guarantee => {}
        }
        let rule = &self.state.policy.preemption;
        if !rule.enabled {
            return Err(Violation::PreemptionOff(id));
        }
        let most = rule.victims_max.saturating_mul(claim.parts.len());
        if claim.victims.len() > most {
            return Err(Violation::TooManyVictims(id, claim.victims.len(), most));
        }
        let beyond = || Violation::BeyondGuarantee(id);
        let guarantor = match claim.cause {
            ClaimCause::Guarantee => {
                Some(self.quota.guarantor(job, &claim.parts).ok_or_else(beyond)?)
            }
            _ => None,
        };
        claim.victims.iter().try_for_each(|victim| self.victim(job, claim, victim))?;
        let owned = guarantor.and_then(|team| self.quota.not_borrowing(team, &claim.victims));
        match owned {
            Some(victim) => {
                let why = "its team has no more than it is guaranteed";
                Err(Violation::NotJustified(id, victim, why))
            }
            None => Ok(()),
        }
    }

    fn is_overdue(&self, job: &Job, claim: &NewClaim) -> Result<(), Violation> {
        let id = claim.task;
        if let Some(victim) = claim.victims.first() {
            let why = "a job that has waited long stops nobody";
            return Err(Violation::NotJustified(id, victim.task, why));
        }
        let task = job.task(id.index);
        let asleep = task.and_then(Task::attempt).map(|a| &a.phase);
        let since = match task.map(|t| &t.phase) {
            _ if let Some(AttemptPhase::Suspended { since, .. }) = asleep => *since,
            Some(Phase::Pending { since, .. }) => *since,
            _ => job.submitted_at,
        };
        // What lost a node keeps the others from the first moment on.
        let returns = task.is_some_and(|t| t.lost_node);
        if returns || self.now.since(since) > self.state.policy.patience {
            Ok(())
        } else {
            Err(Violation::NotOverdue(id))
        }
    }

    fn victim(&mut self, job: &'a Job, claim: &NewClaim, victim: &Victim) -> Result<(), Violation> {
        let (id, task) = (claim.task, victim.task);
        let gone = || Violation::NotRunning(id, task);
        let its_job = self.state.job(task.job).ok_or_else(gone)?;
        let record = its_job.task(task.index).ok_or_else(gone)?;
        let attempt = record.attempt().filter(|a| holds(a)).ok_or_else(gone)?;
        if task == id || !self.victims.insert(task) {
            return Err(Violation::NotJustified(id, task, "it is stopped already"));
        }
        if self.was_preempted_lately(record, attempt) {
            return Err(Violation::PreemptedAgain(id, task));
        }
        if its_job.spec.preempt.as_ref().is_some_and(|p| p.mode == PreemptMode::Never) {
            return Err(Violation::NeverPreempt(id, task));
        }
        self.lower_standing(job, its_job, claim, task)?;
        if let Stop::Shrink { keep } = &victim.how {
            self.can_shrink(its_job, attempt, keep)
                .map_err(|why| Violation::BadShrink(id, task, why))?;
        }
        let cost = match &victim.how {
            Stop::Suspend { moved } => {
                suspend::may_suspend(self.state, its_job, attempt, moved)
                    .map_err(|why| Violation::BadSuspension(id, task, why))?;
                suspend::cost(self.state, attempt, moved)
            }
            how => cost(its_job, attempt, how, self.now),
        };
        if victim.cost != cost {
            return Err(Violation::WrongCost(id, task, victim.cost, cost));
        }
        Ok(())
    }

    fn was_preempted_lately(&self, task: &Task, attempt: &Attempt) -> bool {
        let spared = self.state.policy.preemption.not_again_within;
        task.preempted_at.is_some() && self.now.since(attempt.took_at()) < spared
    }

    fn lower_standing(
        &self,
        job: &'a Job,
        victim: &'a Job,
        claim: &NewClaim,
        task: TaskId,
    ) -> Result<(), Violation> {
        let rank = |j: &Job| class_rank(self.state, TaskId::single(j.id));
        let why = match claim.cause {
            ClaimCause::Class if rank(victim) >= rank(job) => "its class is not lower",
            ClaimCause::Guarantee if rank(victim) > rank(job) => "its class is higher",
            _ => return Ok(()),
        };
        Err(Violation::NotJustified(claim.task, task, why))
    }

    fn can_shrink(
        &self,
        job: &Job,
        attempt: &Attempt,
        keep: &[PartPlacement],
    ) -> Result<(), String> {
        let Some(elastic) = &job.spec.elastic else { return Err("it is not elastic".to_owned()) };
        if job.held {
            return Err("it is held, so it would not start again".to_owned());
        }
        if keep.len() < elastic.min_nodes.max(1) as usize {
            return Err(format!("it needs {} nodes", elastic.min_nodes));
        }
        if keep.len() >= attempt.parts.len() {
            return Err("it gives nothing up".to_owned());
        }
        match keep.iter().find(|k| !attempt.parts.iter().any(|p| is_same(p, k))) {
            Some(part) => Err(format!("it does not hold that part of node {}", part.node)),
            None => Ok(()),
        }
    }
}

fn attempt_of(state: &State, id: TaskId) -> Option<&Attempt> {
    state.job(id.job)?.task(id.index)?.attempt()
}

fn is_running(attempt: &Attempt) -> bool {
    matches!(attempt.phase, AttemptPhase::Running { .. })
}

/// It has something, and is not on its way out.
fn holds(attempt: &Attempt) -> bool {
    matches!(attempt.phase, AttemptPhase::Starting | AttemptPhase::Running { .. })
}

fn is_same(held: &Part, kept: &PartPlacement) -> bool {
    held.node == kept.node
        && held.gpus == kept.gpus
        && held.cpus == kept.cpus
        && held.mem == kept.mem
        && held.share == kept.share
        && held.ranks == kept.ranks
        && !held.phase.is_over()
}

/// GPU-milliseconds of work that are lost by stopping it.
fn cost(job: &Job, attempt: &Attempt, how: &Stop, now: Time) -> u64 {
    let (Stop::Requeue, Some(since)) = (how, attempt.running_since(now)) else { return 0 };
    let lost = match job.spec.checkpoint.as_ref().filter(|c| c.signal.is_some()) {
        Some(checkpoint) => checkpoint.grace.or(job.spec.grace).unwrap_or(GRACE),
        None => now.since(attempt.saved_at.map_or(since, |saved| saved.max(since))),
    };
    lost.0.saturating_mul(attempt.gpu_count().into())
}
