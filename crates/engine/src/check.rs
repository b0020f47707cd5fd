//! The plan checker. It shares no code with the scheduler: it counts again, from the leases
//! themselves, and refuses a plan that breaks any rule.
//!
//! ```text
//! dropped claims ─► placements, one by one ─► new claims, one by one
//!                     ask:   what the spec wants            ask
//!                     books: what is there for it           books, without the victims
//!                     ports: nobody else listens there      ports
//!                     quota: what the team may have         victims: why these, and no others
//! ```

mod ask;
mod books;
mod ports;
mod quota;
mod start;
mod suspend;
mod victims;
mod violation;
mod wake;

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{ClaimCause, Job, NewClaim, Placement, Plan, State, TaskId, Time, Wake};

use books::{Books, Tenant};
use ports::Ports;
use quota::Quota;
pub use violation::Violation;

pub fn check(state: &State, plan: &Plan, now: Time) -> Result<(), Violation> {
    if let Some(task) = plan.dropped.iter().find(|task| !state.claims.contains_key(task)) {
        return Err(Violation::NoClaim(*task));
    }
    let mut checker = Checker::new(state, plan, now);
    plan.wakes.iter().try_for_each(|w| checker.wake(w))?;
    plan.placements.iter().try_for_each(|p| checker.placement(p))?;
    plan.claims.iter().try_for_each(|c| checker.claim(c))
}

/// Takes out of a plan what breaks a rule, and says what that was. The rest is as sound as a plan
/// that passes whole: one wrong decision must not keep all others from starting.
pub(crate) fn sift(state: &State, plan: &mut Plan, now: Time) -> Option<Violation> {
    let violation = check(state, plan, now).err()?;
    plan.dropped.retain(|task| state.claims.contains_key(task));
    let mut checker = Checker::new(state, plan, now);
    let mut refused = Vec::new();
    plan.wakes.retain(|w| checker.wake(w).is_ok());
    plan.placements.retain(|p| {
        let is_fine = checker.placement(p).is_ok();
        refused.extend((!is_fine).then_some(p.task));
        is_fine
    });
    // A claim that may not come true would keep its room for ever.
    refused.retain(|task| state.claims.contains_key(task) && !plan.dropped.contains(task));
    plan.dropped.extend(refused);
    plan.claims.retain(|c| checker.claim(c).is_ok());
    // What was refused may have left traces in the books.
    if check(state, plan, now).is_err() {
        plan.wakes.clear();
        plan.placements.clear();
        plan.claims.clear();
        plan.dropped.clear();
    }
    Some(violation)
}

/// What the plan has done so far, as if it were carried out step by step.
struct Checker<'a> {
    state: &'a State,
    now: Time,
    books: Books<'a>,
    quota: Quota<'a>,
    ports: Ports,
    /// Running tasks of arrays.
    started: BTreeMap<tutti_model::JobId, u32>,
    /// Tasks that were placed, or have claimed room, in this plan.
    seen: BTreeSet<TaskId>,
    /// Tasks that this plan stops.
    victims: BTreeSet<TaskId>,
}

impl<'a> Checker<'a> {
    fn new(state: &'a State, plan: &Plan, now: Time) -> Checker<'a> {
        let mut checker = Checker {
            state,
            now,
            books: Books::new(state, &plan.dropped),
            quota: Quota::new(state),
            ports: Ports::new(state, &plan.dropped),
            started: BTreeMap::new(),
            seen: BTreeSet::new(),
            victims: BTreeSet::new(),
        };
        plan.dropped.iter().for_each(|task| checker.quota.claim_ends(*task));
        checker
    }

    fn placement(&mut self, placement: &Placement) -> Result<(), Violation> {
        let (id, parts) = (placement.task, &placement.parts);
        if !self.seen.insert(id) {
            return Err(Violation::PlacedTwice(id));
        }
        let job = self.state.job(id.job).ok_or(Violation::NotPending(id))?;
        start::may_start(self.state, job, id)?;
        self.one_more(job)?;
        ask::is_met(self.state, job, id, parts)?;
        start::not_reserved(self.state, job, id, parts, self.now)?;
        self.ports.are_free(job, id, parts)?;
        self.books.claim_ends(id);
        self.books.fits_now(id, parts, job.spec.exclusive)?;
        self.quota.within_limit(job, id, parts)?;
        self.books.place(id, parts, job.spec.exclusive);
        self.ports.take(job, id, parts.iter().map(|p| p.node));
        self.quota.placed(job, id, parts);
        Ok(())
    }

    /// It has its memory and its place in an array already.
    fn wake(&mut self, wake: &Wake) -> Result<(), Violation> {
        let id = wake.task;
        if !self.seen.insert(id) {
            return Err(Violation::PlacedTwice(id));
        }
        let job = self.state.job(id.job).ok_or(Violation::NotPending(id))?;
        let parts = wake::parts(self.state, job, wake)?;
        start::not_reserved_again(self.state, job, id, &parts, self.now)?;
        self.books.claim_ends(id);
        self.books.fits_now(id, &parts, job.spec.exclusive)?;
        self.quota.within_limit(job, id, &parts)?;
        self.books.place(id, &parts, job.spec.exclusive);
        self.quota.placed(job, id, &parts);
        Ok(())
    }

    /// Of an array, no more tasks than it allows.
    fn one_more(&mut self, job: &'a Job) -> Result<(), Violation> {
        let running = self.started.entry(job.id).or_insert_with(|| start::running_tasks(job));
        *running += 1;
        start::array_limit(job, *running)
    }

    fn claim(&mut self, claim: &NewClaim) -> Result<(), Violation> {
        let (id, parts) = (claim.task, &claim.parts);
        let job = self.state.job(id.job).ok_or(Violation::NotPending(id))?;
        if !self.seen.insert(id) || self.books.has_claim(id) {
            return Err(Violation::ClaimedTwice(id));
        }
        match claim.cause {
            ClaimCause::Resize => victims::may_resize(self.state, job, claim)?,
            ClaimCause::Overdue if wake::is_suspended(job, id) => {
                wake::may_claim(self.state, job, claim)?;
            }
            _ => {
                start::may_start(self.state, job, id)?;
                self.one_more(job)?;
            }
        }
        if !wake::is_suspended(job, id) {
            ask::is_met(self.state, job, id, parts)?;
        }
        self.ports.are_free(job, id, parts)?;
        self.justified(claim)?;
        suspend::memory_fits(self.state, &self.books, claim)?;
        self.books.fits_later(claim, job.spec.exclusive)?;
        for victim in claim.victims.iter().filter(|v| v.task != id) {
            if self.books.fits_without(claim, job.spec.exclusive, victim.task) {
                return Err(Violation::Superfluous(id, victim.task));
            }
        }
        self.quota.within_limit_later(job, claim)?;
        self.books.keep_for(claim, job.spec.exclusive);
        self.ports.take(job, id, parts.iter().map(|p| p.node));
        claim.victims.iter().for_each(|victim| self.quota.victim_goes(victim));
        // What nobody is stopped for may be far away, and is nobody's guarantee yet.
        if claim.cause != ClaimCause::Overdue {
            self.quota.claimed(job, parts);
        }
        Ok(())
    }
}

/// What a lease, a placement or a claim takes on one node.
fn tenant(task: TaskId, part: &tutti_model::PartPlacement, exclusive: bool) -> Tenant {
    Tenant {
        task,
        gpus: part.gpus.clone(),
        share: part.share.0.into(),
        cpus: part.cpus.into(),
        mem: part.mem.0,
        exclusive,
    }
}

#[cfg(test)]
mod tests;
