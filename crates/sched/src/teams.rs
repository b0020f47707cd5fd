//! The tree of teams during a pass: what each has had, has now, may have and is due.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use tutti_model::{GpuQuota, PartPlacement, Policy, Span, State, Time, Verdict};

use crate::ask::Ask;
use crate::cluster::Cluster;

pub(crate) type TeamNo = usize;
/// A user in a team.
pub(crate) type UserNo = usize;
/// How many charges there were so far: as long as it is the same, so is everybody's due.
pub(crate) type Charges = u64;

#[derive(Debug)]
pub(crate) struct Teams<'a> {
    pub teams: Vec<Team<'a>>,
    by_name: BTreeMap<&'a str, TeamNo>,
    users: Vec<Account>,
    user_numbers: BTreeMap<(TeamNo, &'a str), UserNo>,
    charges: Charges,
    policy: &'a Policy,
    state: &'a State,
    now: Time,
    scaled: BTreeMap<String, GpuQuota>,
}

#[derive(Debug)]
pub(crate) struct Team<'a> {
    pub name: &'a str,
    pub parent: Option<TeamNo>,
    /// From the top of the tree down to this team.
    path: Vec<TeamNo>,
    account: Account,
    /// Everything of its own users, without the teams below.
    own: Account,
    /// GPUs held now or kept for it, in thousandths, by model, the teams below included.
    pub held: Vec<u64>,
    /// The same without what is about to be given back.
    pub keeps: Vec<u64>,
    pub quota: Option<&'a tutti_model::Team>,
    /// As much of its guarantee as there is; none if it has none.
    guarantee: Option<Cow<'a, GpuQuota>>,
}

/// Past and present use, and what follows from it: whoever is due least goes first.
#[derive(Clone, Copy, Debug)]
struct Account {
    past: u128,
    rate: u64,
    weight: u64,
    due: u128,
}

impl Account {
    fn new(past: u128, rate: u64, weight: u64, half_life: Span) -> Account {
        let mut account = Account { past, rate, weight, due: 0 };
        account.add(0, half_life);
        account
    }

    fn subtract(&mut self, rate: u64, half_life: Span) {
        self.rate = self.rate.saturating_sub(rate);
        self.add(0, half_life);
    }

    /// What is held now counts as if it were held for a while longer: a placement tells at once.
    fn add(&mut self, rate: u64, half_life: Span) {
        self.rate += rate;
        let ahead = u128::from(self.rate) * u128::from(half_life.0 / 8);
        self.due = (self.past + ahead) * 1000 / u128::from(self.weight.max(1));
    }
}

impl<'a> Teams<'a> {
    pub fn new(state: &'a State, policy: &'a Policy, cluster: &Cluster, now: Time) -> Teams<'a> {
        let mut teams = Teams {
            teams: Vec::new(),
            by_name: BTreeMap::new(),
            users: Vec::new(),
            user_numbers: BTreeMap::new(),
            charges: 0,
            policy,
            state,
            now,
            scaled: cluster.scaled.clone(),
        };
        policy.teams.keys().for_each(|name| {
            teams.number(name);
        });
        for (name, held) in &cluster.held {
            // The name must outlive the pass: the ledger and the policy know every team that holds
            // something; one they do not know has no quota either.
            let known = state.ledger.teams.get_key_value(name).map(|(n, _)| n.as_str());
            let Some(known) =
                known.or_else(|| policy.teams.get_key_value(name).map(|(n, _)| n.as_str()))
            else {
                continue;
            };
            let no = teams.number(known);
            teams.add(no, held);
            if let Some(leaving) = cluster.leaving.get(name) {
                teams.release(no, leaving);
            }
        }
        teams
    }

    pub fn number(&mut self, name: &'a str) -> TeamNo {
        if let Some(&no) = self.by_name.get(name) {
            return no;
        }
        let quota = self.policy.teams.get(name);
        // The tree was checked when the policy was set; a parent is there and is no descendant.
        let parent = quota.and_then(|q| q.parent.as_deref()).filter(|p| *p != name);
        let parent = parent.map(|p| self.number(p));
        let usage = self.state.ledger.teams.get(name).copied().unwrap_or_default();
        let half_life = self.policy.half_life;
        let weight = quota.map_or(1000, |q| q.weight.into());
        let account = Account::new(usage.at(self.now, half_life), usage.rate(), weight, half_life);
        let own = self.own(name);
        let no = self.teams.len();
        let above = parent.map_or(&[][..], |p| self.teams[p].path.as_slice());
        let path = above.iter().copied().chain([no]).collect();
        let (held, keeps) = (Vec::new(), Vec::new());
        let written = quota.map(|q| &q.guarantee).filter(|g| !g.is_none());
        let guarantee = written.map(|written| match self.scaled.get(name) {
            Some(counts) => Cow::Owned(counts.clone()),
            None => Cow::Borrowed(written),
        });
        self.teams.push(Team { name, parent, path, account, own, held, keeps, quota, guarantee });
        self.by_name.insert(name, no);
        no
    }

    fn own(&self, name: &str) -> Account {
        let (mut past, mut rate) = (0, 0);
        let from = (name.to_owned(), String::new());
        let of_team =
            self.state.ledger.users.range(from..).take_while(|((team, _), _)| team == name);
        for (_, usage) in of_team {
            past += usage.at(self.now, self.policy.half_life);
            rate += usage.rate();
        }
        Account::new(past, rate, 1000, self.policy.half_life)
    }

    /// The team has this much more, or will have.
    pub fn add(&mut self, no: TeamNo, more: &[u64]) {
        let mut at = Some(no);
        while let Some(no) = at {
            let team = &mut self.teams[no];
            for sums in [&mut team.held, &mut team.keeps] {
                sums.resize(sums.len().max(more.len()), 0);
                sums.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
            }
            at = team.parent;
        }
    }

    /// The team is about to give this much back.
    pub fn release(&mut self, no: TeamNo, less: &[u64]) {
        let mut at = Some(no);
        while let Some(no) = at {
            let team = &mut self.teams[no];
            team.keeps.iter_mut().zip(less).for_each(|(sum, n)| *sum = sum.saturating_sub(*n));
            at = team.parent;
        }
    }

    /// What it was about to give back it will have again.
    pub fn unrelease(&mut self, no: TeamNo, more: &[u64]) {
        let mut at = Some(no);
        while let Some(no) = at {
            let team = &mut self.teams[no];
            team.keeps.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
            at = team.parent;
        }
    }

    /// Counts for limits alone: a claim that nobody is stopped for.
    pub fn hold(&mut self, no: TeamNo, more: &[u64]) {
        for at in 0..self.teams[no].path.len() {
            let team = self.teams[no].path[at];
            let held = &mut self.teams[team].held;
            held.resize(held.len().max(more.len()), 0);
            held.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
        }
    }

    /// Such a claim counts no longer.
    pub fn unhold(&mut self, no: TeamNo, less: &[u64]) {
        for at in 0..self.teams[no].path.len() {
            let team = self.teams[no].path[at];
            let held = &mut self.teams[team].held;
            held.iter_mut().zip(less).for_each(|(sum, n)| *sum = sum.saturating_sub(*n));
        }
    }

    pub fn line(&self, no: TeamNo) -> impl Iterator<Item = TeamNo> + '_ {
        self.teams[no].path.iter().rev().copied()
    }

    /// Whose turn it is: on the way down from the top, the first team that is due less, a team's
    /// own users counting as one more team below it.
    pub fn compare(&self, a: TeamNo, b: TeamNo) -> Ordering {
        let steps = |no: TeamNo| {
            let team = &self.teams[no];
            let way = team.path.iter().map(|&at| (self.teams[at].account.due, at));
            way.chain([(team.own.due, no)])
        };
        steps(a).cmp(steps(b))
    }

    pub fn user_number(&mut self, no: TeamNo, user: &'a str) -> UserNo {
        if let Some(&known) = self.user_numbers.get(&(no, user)) {
            return known;
        }
        let key = (self.teams[no].name.to_owned(), user.to_owned());
        let usage = self.state.ledger.users.get(&key).copied().unwrap_or_default();
        let half_life = self.policy.half_life;
        self.users.push(Account::new(usage.at(self.now, half_life), usage.rate(), 1000, half_life));
        self.user_numbers.insert((no, user), self.users.len() - 1);
        self.users.len() - 1
    }

    pub fn charges(&self) -> Charges {
        self.charges
    }

    pub fn user_due(&self, user: UserNo) -> u128 {
        self.users[user].due
    }

    /// What was charged for a claim is not counted any longer.
    pub fn uncharge(&mut self, no: TeamNo, user: &'a str, charge: u64) {
        self.charges += 1;
        let half_life = self.policy.half_life;
        let user = self.user_number(no, user);
        self.users[user].subtract(charge, half_life);
        self.teams[no].own.subtract(charge, half_life);
        for at in self.teams[no].path.clone() {
            self.teams[at].account.subtract(charge, half_life);
        }
    }

    /// Something was placed for a user of the team.
    pub fn charge(&mut self, no: TeamNo, user: &'a str, held: &[u64], charge: u64) {
        self.charges += 1;
        self.add(no, held);
        let half_life = self.policy.half_life;
        let user = self.user_number(no, user);
        self.users[user].add(charge, half_life);
        self.teams[no].own.add(charge, half_life);
        let mut at = Some(no);
        while let Some(no) = at {
            self.teams[no].account.add(charge, half_life);
            at = self.teams[no].parent;
        }
    }

    /// The first limit on the way up that these GPUs (thousandths, by model) would break.
    pub fn over_limit(
        &self,
        no: TeamNo,
        wanted: &[u64],
        models: &[String],
    ) -> Option<OverLimit<'a>> {
        self.line(no).find_map(|at| {
            let team = &self.teams[at];
            let limit = team.quota?.limit.as_ref()?;
            let used = |m: usize| team.held.get(m).copied().unwrap_or(0);
            let over = |model: Option<(usize, &'a str)>, limit: u32, used: u64, wanted: u64| {
                let used_gpus = used.div_ceil(1000) as u32;
                let is_over = used + wanted > u64::from(limit) * 1000 && wanted > 0;
                let (model, model_name) = model.unzip();
                let team = team.name;
                is_over.then_some(OverLimit { team, limit, used: used_gpus, model, model_name })
            };
            let of_model = models.iter().enumerate().find_map(|(m, name)| {
                let (name, limit) = limit.models.get_key_value(name)?;
                over(Some((m, name)), *limit, used(m), wanted.get(m).copied().unwrap_or(0))
            });
            of_model.or_else(|| {
                let counts = limit.any > 0 || limit.models.is_empty();
                let all = (team.held.iter().sum(), wanted.iter().sum());
                counts.then(|| over(None, limit.any, all.0, all.1))?
            })
        })
    }

    /// Every limit on the way up that so much would break, of any model or of those it may be.
    pub fn all_over_limit(
        &self,
        no: TeamNo,
        milli: u64,
        wanted: &Wanted,
        models: &[String],
    ) -> Vec<OverLimit<'a>> {
        let mut found = Vec::new();
        for at in self.line(no) {
            let team = &self.teams[at];
            let Some(limit) = team.quota.and_then(|q| q.limit.as_ref()) else { continue };
            let over = |limit: u32, used: u64| milli > 0 && used + milli > u64::from(limit) * 1000;
            let gpus = |used: u64| used.div_ceil(1000) as u32;
            let name = team.name;
            for (m, model) in models.iter().enumerate().filter(|(m, _)| wanted.of[*m]) {
                let used = team.held.get(m).copied().unwrap_or(0);
                if let Some((model, &limit)) = limit.models.get_key_value(model)
                    && over(limit, used)
                {
                    let (model, model_name) = (Some(m), Some(model.as_str()));
                    let used = gpus(used);
                    found.push(OverLimit { team: name, limit, used, model, model_name });
                }
            }
            let used: u64 = team.held.iter().sum();
            if (limit.any > 0 || limit.models.is_empty()) && over(limit.any, used) {
                let (limit, used) = (limit.any, gpus(used));
                found.push(OverLimit { team: name, limit, used, model: None, model_name: None });
            }
        }
        found
    }

    /// Whether no limit on the way up is smaller than this much, of a model or of any.
    pub fn may_ever_have(&self, no: TeamNo, model: Option<&str>, milli: u64) -> bool {
        self.line(no).filter_map(|at| self.teams[at].quota?.limit.as_ref()).all(|limit| {
            let of_model = model.and_then(|m| limit.models.get(m)).copied();
            let of_any = (limit.any > 0 || limit.models.is_empty()).then_some(limit.any);
            let enough = |most: u32| milli <= u64::from(most) * 1000;
            of_model.is_none_or(enough) && of_any.is_none_or(enough)
        })
    }

    /// The nearest team of the line, itself first, in whose guarantee these GPUs would still be.
    pub fn guarantor(&self, no: TeamNo, wanted: &Wanted, models: &[String]) -> Option<TeamNo> {
        self.line(no).find(|&at| {
            let team = &self.teams[at];
            team.guarantee.as_deref().is_some_and(|g| covers(g, &team.keeps, wanted, models))
        })
    }

    /// Which models could be had inside the guarantee of this very team.
    pub fn covered_models(&self, no: TeamNo, wanted: &Wanted, models: &[String]) -> Vec<bool> {
        let team = &self.teams[no];
        let covered = |m: usize| {
            let only = Wanted { milli: wanted.milli, of: one_of(models.len(), m) };
            wanted.of[m]
                && team.guarantee.as_deref().is_some_and(|g| covers(g, &team.keeps, &only, models))
        };
        (0..models.len()).map(covered).collect()
    }

    /// Whether these GPUs, of known models, are inside the guarantee of this very team.
    pub fn is_guaranteed(&self, no: TeamNo, held: &[u64], models: &[String]) -> bool {
        let team = &self.teams[no];
        let Some(guarantee) = team.guarantee.as_deref() else { return false };
        let sum = |m: usize| team.keeps.get(m).unwrap_or(&0) + held.get(m).unwrap_or(&0);
        let then: Vec<u64> = (0..models.len()).map(sum).collect();
        !guarantee.is_none() && beyond(guarantee, &then, models) == 0
    }

    /// Whether any team of the line has a guarantee at all.
    pub fn has_guarantee(&self, no: TeamNo) -> bool {
        self.line(no).any(|at| self.teams[at].guarantee.as_deref().is_some_and(|g| !g.is_none()))
    }

    /// Whether a team outside the guarantor's has something that the guarantor may take back: no
    /// team of its line, up to where the lines meet, is within its guarantee once each has given
    /// back this much already.
    pub fn borrows<'r>(
        &self,
        no: TeamNo,
        guarantor: TeamNo,
        models: &[String],
        gone: &dyn Fn(TeamNo) -> &'r [u64],
    ) -> bool {
        if self.teams[no].path.contains(&guarantor) {
            return false;
        }
        let above = &self.teams[guarantor].path;
        self.line(no).take_while(|at| !above.contains(at)).all(|at| {
            let team = &self.teams[at];
            let Some(guarantee) = team.guarantee.as_deref() else { return true };
            let gone = gone(at);
            let left = |(m, keeps): (usize, &u64)| keeps.saturating_sub(*gone.get(m).unwrap_or(&0));
            let keeps: Vec<u64> = team.keeps.iter().enumerate().map(left).collect();
            guarantee.is_none() || beyond(guarantee, &keeps, models) > 0
        })
    }

    pub fn find(&self, name: &str) -> Option<TeamNo> {
        self.by_name.get(name).copied()
    }
}

pub(crate) struct OverLimit<'a> {
    pub team: &'a str,
    pub limit: u32,
    pub used: u32,
    /// The limit is for this model alone.
    pub model: Option<usize>,
    pub model_name: Option<&'a str>,
}

impl OverLimit<'_> {
    pub fn verdict(&self, milli: u64) -> Verdict {
        let wanted = milli.div_ceil(1000) as u32;
        let (limit, used) = (self.limit, self.used);
        let model = self.model_name.map(str::to_owned);
        Verdict::TeamLimit { team: self.team.to_owned(), limit, used, wanted, model }
    }
}

/// GPUs that are asked for, before it is known of which model they will be.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub milli: u64,
    /// By model number: whether it may be that.
    pub of: Vec<bool>,
}

impl Wanted {
    pub fn by(ask: &Ask, models: &[String]) -> Wanted {
        Wanted { milli: ask.least_milli(), of: models.iter().map(|m| ask.wants_model(m)).collect() }
    }
}

fn one_of(count: usize, one: usize) -> Vec<bool> {
    (0..count).map(|at| at == one).collect()
}

/// What is used beyond the guarantees for certain models, less the guarantee for any.
fn beyond(guarantee: &GpuQuota, held: &[u64], models: &[String]) -> u64 {
    let mut sum = 0;
    for (m, held) in held.iter().enumerate() {
        let own = models.get(m).and_then(|name| guarantee.models.get(name)).copied().unwrap_or(0);
        sum += held.saturating_sub(u64::from(own) * 1000);
    }
    sum.saturating_sub(u64::from(guarantee.any) * 1000)
}

fn covers(guarantee: &GpuQuota, held: &[u64], wanted: &Wanted, models: &[String]) -> bool {
    if guarantee.is_none() || wanted.milli == 0 {
        return false;
    }
    let (mut used, mut cover) = (0, 0);
    for (m, name) in models.iter().enumerate() {
        let held = held.get(m).copied().unwrap_or(0);
        let own = u64::from(guarantee.models.get(name).copied().unwrap_or(0)) * 1000;
        used += held.saturating_sub(own);
        if wanted.of[m] {
            cover = cover.max(own.saturating_sub(held));
        }
    }
    used + wanted.milli.saturating_sub(cover) <= u64::from(guarantee.any) * 1000
}

/// Thousandths of GPUs of each model in a placement.
pub(crate) fn by_model(cluster: &Cluster, parts: &[PartPlacement]) -> Vec<u64> {
    let mut sums = vec![0; cluster.models.len()];
    for part in parts {
        let Some(slot) = cluster.slot_of(part.node) else { continue };
        let cards = cluster.get(slot).cards.iter().filter(|c| part.gpus.contains(&c.index));
        cards.for_each(|c| sums[usize::from(c.model)] += u64::from(part.share.0));
    }
    sums
}

#[cfg(test)]
mod tests;
