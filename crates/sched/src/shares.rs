//! What each team has, should have, lends and borrows: the rows of `tutti quota`.

use std::collections::BTreeMap;

use tutti_model::{
    GpuQuota, Job, JobState, Policy, State, Task, TaskId, Tasks, Team, TeamShare, Time, gpus_built,
};

/// All teams of the policy, and others that have usage or jobs: parents before their children,
/// siblings by name.
pub fn shares(state: &State, now: Time) -> Vec<TeamShare> {
    let tree = Tree::new(state, now);
    let mut rows = Vec::new();
    tree.rows_below(None, &mut rows);
    rows
}

struct Tree<'a> {
    policy: &'a Policy,
    teams: BTreeMap<&'a str, Facts<'a>>,
    /// Names by parent.
    children: BTreeMap<Option<&'a str>, Vec<&'a str>>,
    /// Thousandths of all GPUs that work or could.
    capacity: u64,
}

/// Of a team and everything under it.
#[derive(Debug, Default)]
struct Facts<'a> {
    quota: Option<&'a Team>,
    /// What its guarantee counts for, if that is less than is written.
    scaled: Option<GpuQuota>,
    /// Thousandths of GPUs by model, held now.
    held: BTreeMap<&'a str, u64>,
    running: u64,
    suspended: u64,
    waiting: u64,
    usage: u128,
}

impl Facts<'_> {
    fn used(&self) -> u64 {
        self.held.values().sum()
    }

    /// As much of its guarantee as there is.
    fn promise(&self) -> Option<&GpuQuota> {
        self.scaled.as_ref().or(self.quota.map(|team| &team.guarantee))
    }

    fn guarantee(&self) -> u64 {
        self.promise().map_or(0, GpuQuota::total) * 1000
    }

    /// Of what is held, beyond the guarantee.
    fn borrowed(&self) -> u64 {
        let none = GpuQuota::default();
        let guarantee = self.promise().unwrap_or(&none);
        let of_model = |model: &str| guarantee.models.get(model).copied().unwrap_or(0);
        let beyond =
            self.held.iter().map(|(m, held)| held.saturating_sub(u64::from(of_model(m)) * 1000));
        beyond.sum::<u64>().saturating_sub(u64::from(guarantee.any) * 1000)
    }

    /// Of the guarantee, what the team does not use itself.
    fn idle(&self) -> u64 {
        self.guarantee().saturating_sub(self.used() - self.borrowed())
    }

    /// A team that is gone from the policy has a part only as long as it has jobs.
    fn takes_part(&self) -> bool {
        let has_jobs = self.running + self.suspended + self.waiting > 0;
        has_jobs || self.usage > 0 && self.quota.is_some()
    }
}

impl<'a> Tree<'a> {
    fn new(state: &'a State, now: Time) -> Tree<'a> {
        let policy: &Policy = &state.policy;
        let mut tree =
            Tree { policy, teams: BTreeMap::new(), children: BTreeMap::new(), capacity: 0 };
        policy.teams.keys().for_each(|name| drop(tree.line(name)));
        for (name, counts) in policy.scaled_guarantees(&gpus_built(state.nodes.values())) {
            tree.teams.entry(name).or_default().scaled = Some(counts);
        }
        for (name, usage) in &state.ledger.teams {
            let usage = usage.at(now, policy.half_life);
            if usage > 0 {
                tree.line(name);
                // The ledger counts a team's usage for all above it already.
                tree.teams.entry(name).or_default().usage = usage;
            }
        }
        state.jobs.values().for_each(|job| tree.count(job));
        for &id in &state.index.active {
            tree.hold(state, id);
        }
        let names: Vec<&str> = tree.teams.keys().copied().collect();
        for name in names {
            let parent = tree.parent(name);
            tree.children.entry(parent).or_default().push(name);
        }
        let counts = state.nodes.values().filter(|n| n.accepts_work() || !n.used.leases.is_empty());
        let whole = |n: &tutti_model::Node| (n.facts.gpus.len() - n.fenced().len()) as u64;
        tree.capacity = counts.map(|n| whole(n) * 1000).sum();
        tree
    }

    /// The team and all above it, each with a row.
    fn line(&mut self, team: &'a str) -> Vec<&'a str> {
        let line = self.policy.line_of(team);
        for &name in &line {
            let quota = self.policy.teams.get(name);
            self.teams.entry(name).or_default().quota = quota;
        }
        line
    }

    /// A tree with a loop in it is refused when the policy is set.
    fn parent(&self, team: &str) -> Option<&'a str> {
        self.policy.teams.get(team)?.parent.as_deref().filter(|parent| *parent != team)
    }

    fn count(&mut self, job: &'a Job) {
        let pending = |t: &Task| u64::from(t.state() == JobState::Pending);
        let waiting = match &job.tasks {
            Tasks::One(task) => pending(task),
            Tasks::Array(array) => {
                array.waiting.len() + array.live.values().map(pending).sum::<u64>()
            }
        };
        let active = || job.live_tasks().filter(|(_, task)| task.attempt().is_some());
        let asleep = |task: &Task| task.state() == JobState::Suspended;
        let suspended = active().filter(|(_, task)| asleep(task)).count() as u64;
        let running = active().count() as u64 - suspended;
        if waiting + running + suspended == 0 {
            return;
        }
        for name in self.line(&job.team) {
            let facts = self.teams.entry(name).or_default();
            facts.waiting += waiting;
            facts.running += running;
            facts.suspended += suspended;
        }
    }

    fn hold(&mut self, state: &'a State, id: TaskId) {
        let Some(job) = state.job(id.job) else { return };
        let Some(attempt) = job.task(id.index).and_then(|task| task.attempt()) else { return };
        let line = self.line(&job.team);
        for part in attempt.parts.iter().filter(|p| !p.phase.is_over()) {
            let Some(node) = state.node(part.node) else { continue };
            let gpus = node.facts.gpus.iter().filter(|gpu| part.gpus.contains(&gpu.index));
            for gpu in gpus {
                for name in &line {
                    let held = &mut self.teams.entry(name).or_default().held;
                    *held.entry(&gpu.model).or_default() += u64::from(part.share.0);
                }
            }
        }
    }

    fn rows_below(&self, parent: Option<(&'a str, u64)>, rows: &mut Vec<TeamShare>) {
        let Some(names) = self.children.get(&parent.map(|(name, _)| name)) else { return };
        let lent = self.lent(parent, names);
        let all: Vec<&Facts<'a>> = names.iter().map(|name| &self.teams[name]).collect();
        let usage: u128 = all.iter().map(|facts| facts.usage).sum();
        let weight = |facts: &Facts<'_>| facts.quota.map_or(1000, |team| team.weight);
        let taking = all.iter().filter(|facts| facts.takes_part());
        let weights: u64 = taking.map(|facts| u64::from(weight(facts))).sum();
        for ((name, facts), lent) in names.iter().zip(&all).zip(lent) {
            let target = if facts.takes_part() { weight(facts) } else { 0 };
            let quota = facts.quota;
            let limit = quota.and_then(|team| team.limit.as_ref());
            let members = quota.map(|team| &team.members).into_iter().flatten();
            rows.push(TeamShare {
                team: (*name).to_owned(),
                parent: parent.map(|(name, _)| name.to_owned()),
                guarantee: quota.map_or(0, |team| whole(team.guarantee.total())),
                guarantee_counts: facts.scaled.as_ref().map(|counts| whole(counts.total())),
                guarantee_models: quota.map_or_else(BTreeMap::new, |t| t.guarantee.models.clone()),
                // A limit that names only models does not limit the sum.
                limit: limit.filter(|l| l.any > 0 || l.models.is_empty()).map(|l| l.any),
                limit_models: limit.map_or_else(BTreeMap::new, |l| l.models.clone()),
                weight: weight(facts),
                used: facts.used(),
                borrowed: facts.borrowed(),
                lent,
                share: per_mille(facts.usage, usage),
                target: per_mille(target.into(), weights.into()),
                running: facts.running,
                suspended: facts.suspended,
                waiting: facts.waiting,
                members: members.cloned().collect(),
            });
            self.rows_below(Some((*name, lent)), rows);
        }
    }

    /// What is borrowed comes first from what nobody is promised, then from idle guarantees, from
    /// each its part. Under a team, what the team lends comes from its children's, too.
    fn lent(&self, parent: Option<(&str, u64)>, names: &[&str]) -> Vec<u64> {
        let facts: Vec<&Facts<'_>> = names.iter().map(|name| &self.teams[name]).collect();
        let used: u64 = facts.iter().map(|f| f.used()).sum();
        let (all, own, outside) = match parent {
            None => (self.capacity.max(used), 0, 0),
            Some((name, lent)) => {
                let above = &self.teams[name];
                (above.guarantee().max(above.used()), above.used() - used, lent)
            }
        };
        let promised: u64 = facts.iter().map(|f| f.guarantee()).sum();
        let borrowed = facts.iter().map(|f| f.borrowed()).sum::<u64>() + own + outside;
        let idle: Vec<u64> = facts.iter().map(|f| f.idle()).collect();
        portions(borrowed.saturating_sub(all.saturating_sub(promised)), &idle)
    }
}

/// Divides an amount in proportion; nobody gives more than they have.
fn portions(amount: u64, of: &[u64]) -> Vec<u64> {
    let sum: u64 = of.iter().sum();
    let amount = amount.min(sum);
    let part = |n: &u64| match sum {
        0 => 0,
        sum => (u128::from(amount) * u128::from(*n) / u128::from(sum)) as u64,
    };
    let mut parts: Vec<u64> = of.iter().map(part).collect();
    let mut left = amount - parts.iter().sum::<u64>();
    for (part, most) in parts.iter_mut().zip(of) {
        let more = u64::from(left > 0 && *part < *most);
        *part += more;
        left -= more;
    }
    parts
}

fn per_mille(part: u128, whole: u128) -> u32 {
    match whole {
        0 => 0,
        whole => (part.saturating_mul(1000).saturating_add(whole / 2) / whole) as u32,
    }
}

fn whole(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
