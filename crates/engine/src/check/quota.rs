//! What teams have, in thousandths of GPUs by model, everything below them included.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use tutti_model::{
    AttemptPhase, ClaimCause, GpuQuota, Job, NewClaim, PartPlacement, State, Stop, TaskId, Victim,
    gpus_built,
};

use super::Violation;

type ByModel<'a> = BTreeMap<&'a str, u64>;

/// Counted only when somebody asks: most clusters have no limits, and most plans no victims.
pub(super) struct Quota<'a> {
    state: &'a State,
    /// Guarantees that count for less than is written, because there are too few GPUs.
    scaled: OnceCell<BTreeMap<&'a str, GpuQuota>>,
    /// With everything that is not gone yet.
    held: OnceCell<BTreeMap<&'a str, ByModel<'a>>>,
    /// As it will be when all that is being stopped is gone and all claims have come true. What the
    /// plan places beside them is left out: it may well be borrowed, after the claims were made.
    later: OnceCell<BTreeMap<&'a str, ByModel<'a>>>,
    /// What the plan has changed so far, by team.
    placed: Vec<(&'a str, ByModel<'a>)>,
    /// Of that, what did not come of a claim, which counts already.
    unclaimed: Vec<(&'a str, ByModel<'a>)>,
    claimed: Vec<(&'a str, ByModel<'a>)>,
    removed: Vec<(&'a str, ByModel<'a>)>,
    claims_ended: Vec<TaskId>,
}

impl<'a> Quota<'a> {
    pub fn new(state: &'a State) -> Quota<'a> {
        Quota {
            state,
            scaled: OnceCell::new(),
            held: OnceCell::new(),
            later: OnceCell::new(),
            placed: Vec::new(),
            unclaimed: Vec::new(),
            claimed: Vec::new(),
            removed: Vec::new(),
            claims_ended: Vec::new(),
        }
    }

    pub fn placed(&mut self, job: &'a Job, id: TaskId, parts: &[PartPlacement]) {
        let given = of_parts(self.state, parts);
        let claim = self.state.claims.get(&id).filter(|c| c.cause != ClaimCause::Overdue);
        if claim.is_none() || self.claims_ended.contains(&id) {
            self.unclaimed.push((&job.team, given.clone()));
        }
        self.placed.push((&job.team, given));
    }

    pub fn claimed(&mut self, job: &'a Job, parts: &[PartPlacement]) {
        let given = of_parts(self.state, parts);
        self.claimed.push((&job.team, given));
    }

    pub fn claim_ends(&mut self, task: TaskId) {
        self.claims_ended.push(task);
    }

    /// What a victim gives up: all, less what it goes on with.
    pub fn victim_goes(&mut self, victim: &Victim) {
        let Some(job) = self.state.job(victim.task.job) else { return };
        let Some(attempt) = job.task(victim.task.index).and_then(|t| t.attempt()) else { return };
        let live = attempt.parts.iter().filter(|p| !p.phase.is_over());
        let all: Vec<PartPlacement> = live.map(PartPlacement::from).collect();
        self.removed.push((&job.team, of_parts(self.state, &all)));
        if let Stop::Shrink { keep } = &victim.how {
            self.claimed.push((&job.team, of_parts(self.state, keep)));
        }
    }

    /// No team of the job's line gets more than it may have at once.
    pub fn within_limit(
        &self,
        job: &'a Job,
        id: TaskId,
        parts: &[PartPlacement],
    ) -> Result<(), Violation> {
        let policy = &self.state.policy;
        let wanted = of_parts(self.state, parts);
        for team in policy.line_of(&job.team) {
            let Some(limit) = policy.teams.get(team).and_then(|t| t.limit.as_ref()) else {
                continue;
            };
            let held = self.held.get_or_init(|| self.count_held());
            let held = self.with_changes(held, team, &self.placed, &[]);
            if over_limit(limit, &held, &wanted) {
                return Err(Violation::TeamLimit(id, team.to_owned()));
            }
        }
        Ok(())
    }

    /// The same for a claim, once its victims are gone and it comes true.
    pub fn within_limit_later(&self, job: &'a Job, claim: &NewClaim) -> Result<(), Violation> {
        let policy = &self.state.policy;
        let wanted = of_parts(self.state, &claim.parts);
        let mut then = Quota {
            later: self.later.clone(),
            claimed: self.claimed.clone(),
            removed: self.removed.clone(),
            claims_ended: self.claims_ended.clone(),
            ..Quota::new(self.state)
        };
        claim.victims.iter().for_each(|victim| then.victim_goes(victim));
        for team in policy.line_of(&job.team) {
            let Some(limit) = policy.teams.get(team).and_then(|t| t.limit.as_ref()) else {
                continue;
            };
            let later = BTreeMap::from([(team, then.later_of(team))]);
            let held = self.with_changes(&later, team, &self.unclaimed, &[]);
            if over_limit(limit, &held, &wanted) {
                return Err(Violation::TeamLimit(claim.task, team.to_owned()));
            }
        }
        Ok(())
    }

    /// The nearest team of the job's line that stays within its guarantee with these parts.
    /// Whoever wants nodes alone takes all of them.
    pub fn guarantor(&self, job: &'a Job, parts: &[PartPlacement]) -> Option<&'a str> {
        let policy = &self.state.policy;
        let wanted = match job.spec.exclusive {
            true => of_nodes(self.state, parts),
            false => of_parts(self.state, parts),
        };
        policy.line_of(&job.team).into_iter().find(|team| {
            let Some(guarantee) = self.guarantee(team) else { return false };
            let mut held = self.later_of(team);
            merge(&mut held, &wanted);
            excess(guarantee, &held) == 0
        })
    }

    /// As much of a team's guarantee as there is; none if it has none.
    fn guarantee(&self, team: &str) -> Option<&GpuQuota> {
        let policy = &self.state.policy;
        let written = policy.teams.get(team).map(|t| &t.guarantee).filter(|g| !g.is_none())?;
        let scaled = self
            .scaled
            .get_or_init(|| policy.scaled_guarantees(&gpus_built(self.state.nodes.values())));
        Some(scaled.get(team).unwrap_or(written)).filter(|g| !g.is_none())
    }

    /// The first victim, taken one by one from the smallest up, whose team does not borrow when its
    /// turn comes: it is the guarantor's own, or some team of its line, up to where it meets the
    /// guarantor's, is within its guarantee.
    pub fn not_borrowing(&self, guarantor: &str, victims: &[Victim]) -> Option<TaskId> {
        let mut then = Quota {
            later: self.later.clone(),
            scaled: self.scaled.clone(),
            // Room that it gets by this very plan makes a team borrow as well.
            claimed: self.claimed.iter().chain(&self.placed).cloned().collect(),
            removed: self.removed.clone(),
            claims_ended: self.claims_ended.clone(),
            ..Quota::new(self.state)
        };
        let mut order: Vec<&Victim> = victims.iter().collect();
        order.sort_by_key(|victim| (self.given_up(victim), victim.task));
        let unjust = order.into_iter().find(|victim| {
            let job = self.state.job(victim.task.job);
            let borrows = job.is_some_and(|job| then.borrows(job, guarantor));
            then.victim_goes(victim);
            !borrows
        });
        unjust.map(|victim| victim.task)
    }

    fn borrows(&self, victim: &'a Job, guarantor: &str) -> bool {
        let policy = &self.state.policy;
        let line = policy.line_of(&victim.team);
        if line.contains(&guarantor) {
            return false;
        }
        let above = policy.line_of(guarantor);
        line.into_iter().take_while(|team| !above.contains(team)).all(|team| {
            let within = |g: &GpuQuota| excess(g, &self.later_of(team)) == 0;
            !self.guarantee(team).is_some_and(within)
        })
    }

    fn given_up(&self, victim: &Victim) -> u64 {
        let mut alone = Quota::new(self.state);
        alone.victim_goes(victim);
        let sum = |of: &[(&str, ByModel<'_>)]| of.iter().flat_map(|(_, n)| n.values()).sum::<u64>();
        sum(&alone.removed).saturating_sub(sum(&alone.claimed))
    }

    fn later_of(&self, team: &'a str) -> ByModel<'a> {
        let later = self.later.get_or_init(|| self.count_later());
        self.with_changes(later, team, &self.claimed, &self.removed)
    }

    fn with_changes(
        &self,
        base: &BTreeMap<&'a str, ByModel<'a>>,
        team: &'a str,
        added: &[(&'a str, ByModel<'a>)],
        removed: &[(&'a str, ByModel<'a>)],
    ) -> ByModel<'a> {
        let of_team = |who: &'a str| self.state.policy.line_of(who).contains(&team);
        let mut sum = base.get(team).cloned().unwrap_or_default();
        added.iter().filter(|(who, _)| of_team(who)).for_each(|(_, n)| merge(&mut sum, n));
        for (_, n) in removed.iter().filter(|(who, _)| of_team(who)) {
            for (model, n) in n {
                let held = sum.entry(model).or_default();
                *held = held.saturating_sub(*n);
            }
        }
        sum
    }

    fn count_held(&self) -> BTreeMap<&'a str, ByModel<'a>> {
        let mut teams = BTreeMap::new();
        self.count_leases(&mut teams, |_| true);
        teams
    }

    fn count_later(&self) -> BTreeMap<&'a str, ByModel<'a>> {
        let mut teams = BTreeMap::new();
        self.count_leases(&mut teams, |phase| {
            !matches!(phase, AttemptPhase::Stopping { .. } | AttemptPhase::Suspending { .. })
        });
        let claims = self.state.claims.iter().filter(|(_, c)| c.cause != ClaimCause::Overdue);
        for (task, claim) in claims.filter(|(task, _)| !self.claims_ended.contains(task)) {
            let Some(job) = self.state.job(task.job) else { continue };
            let parts = of_parts(self.state, &claim.parts);
            self.add_to_line(&mut teams, job, &parts);
        }
        teams
    }

    fn count_leases(
        &self,
        teams: &mut BTreeMap<&'a str, ByModel<'a>>,
        counts: impl Fn(&AttemptPhase) -> bool,
    ) {
        for id in &self.state.index.active {
            let Some(job) = self.state.job(id.job) else { continue };
            let Some(attempt) = job.task(id.index).and_then(|t| t.attempt()) else { continue };
            if counts(&attempt.phase) {
                let live = attempt.parts.iter().filter(|p| !p.phase.is_over());
                let parts: Vec<PartPlacement> = live.map(PartPlacement::from).collect();
                let parts = of_parts(self.state, &parts);
                self.add_to_line(teams, job, &parts);
            }
        }
    }

    fn add_to_line(
        &self,
        teams: &mut BTreeMap<&'a str, ByModel<'a>>,
        job: &'a Job,
        parts: &ByModel<'a>,
    ) {
        for team in self.state.policy.line_of(&job.team) {
            merge(teams.entry(team).or_default(), parts);
        }
    }
}

fn of_nodes<'a>(state: &'a State, parts: &[PartPlacement]) -> ByModel<'a> {
    let mut sum = ByModel::new();
    for gpu in parts.iter().filter_map(|p| state.node(p.node)).flat_map(|n| &n.facts.gpus) {
        *sum.entry(gpu.model.as_str()).or_default() += 1000;
    }
    sum
}

fn of_parts<'a>(state: &'a State, parts: &[PartPlacement]) -> ByModel<'a> {
    let mut sum = ByModel::new();
    for part in parts {
        let gpus = state.node(part.node).into_iter().flat_map(|n| &n.facts.gpus);
        for gpu in gpus.filter(|g| part.gpus.contains(&g.index)) {
            *sum.entry(gpu.model.as_str()).or_default() += u64::from(part.share.0);
        }
    }
    sum
}

fn merge<'a>(sum: &mut ByModel<'a>, more: &ByModel<'a>) {
    for (model, n) in more {
        *sum.entry(model).or_default() += n;
    }
}

/// What is held beyond a quota: what its numbers for models do not cover, less its number for any.
fn excess(quota: &GpuQuota, held: &ByModel<'_>) -> u64 {
    let uncovered = held.iter().map(|(model, n)| {
        n.saturating_sub(u64::from(quota.models.get(*model).copied().unwrap_or(0)) * 1000)
    });
    uncovered.sum::<u64>().saturating_sub(u64::from(quota.any) * 1000)
}

/// A number for a model limits that model; the number for any limits the sum, unless only models
/// are named.
fn over_limit(limit: &GpuQuota, held: &ByModel<'_>, wanted: &ByModel<'_>) -> bool {
    let of_model = |(model, n): (&&str, &u64)| {
        let most = limit.models.get(*model).map(|m| u64::from(*m) * 1000);
        *n > 0 && most.is_some_and(|most| held.get(*model).copied().unwrap_or(0) + n > most)
    };
    let all: u64 = wanted.values().sum();
    let sum_counts = limit.any > 0 || limit.models.is_empty();
    let over_all =
        sum_counts && all > 0 && held.values().sum::<u64>() + all > u64::from(limit.any) * 1000;
    over_all || wanted.iter().any(of_model)
}
