//! The tree of teams during a pass: what each has had, has now, may have and is due.

use std::collections::BTreeMap;

use tutti_model::{GpuQuota, PartPlacement, Policy, Span, State, Time};

use crate::ask::Ask;
use crate::cluster::Cluster;

pub(crate) type TeamNo = usize;

#[derive(Debug)]
pub(crate) struct Teams<'a> {
    pub teams: Vec<Team<'a>>,
    by_name: BTreeMap<&'a str, TeamNo>,
    users: BTreeMap<(TeamNo, &'a str), Account>,
    policy: &'a Policy,
    state: &'a State,
    now: Time,
}

#[derive(Debug)]
pub(crate) struct Team<'a> {
    pub name: &'a str,
    pub parent: Option<TeamNo>,
    account: Account,
    /// Everything of its own users, without the teams below.
    own: Account,
    /// GPUs held now in thousandths, by model, the teams below included.
    pub held: Vec<u64>,
    pub quota: Option<&'a tutti_model::Team>,
}

/// Past and present use, and the weight it is divided by.
#[derive(Clone, Copy, Debug)]
struct Account {
    past: u128,
    rate: u64,
    weight: u64,
}

impl Account {
    /// What is held now counts as if it were held for a while longer: a placement tells at once.
    fn due(&self, half_life: Span) -> u128 {
        let ahead = u128::from(self.rate) * u128::from(half_life.0 / 8);
        (self.past + ahead) * 1000 / u128::from(self.weight.max(1))
    }
}

impl<'a> Teams<'a> {
    pub fn new(state: &'a State, policy: &'a Policy, cluster: &Cluster, now: Time) -> Teams<'a> {
        let mut teams = Teams {
            teams: Vec::new(),
            by_name: BTreeMap::new(),
            users: BTreeMap::new(),
            policy,
            state,
            now,
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
            teams.add_held(no, held);
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
        let account = Account {
            past: usage.at(self.now, self.policy.half_life),
            rate: usage.rate(),
            weight: quota.map_or(1000, |q| q.weight.into()),
        };
        let own = self.own(name);
        self.teams.push(Team { name, parent, account, own, held: Vec::new(), quota });
        self.by_name.insert(name, self.teams.len() - 1);
        self.teams.len() - 1
    }

    fn own(&self, name: &str) -> Account {
        let mut own = Account { past: 0, rate: 0, weight: 1000 };
        let from = (name.to_owned(), String::new());
        let of_team =
            self.state.ledger.users.range(from..).take_while(|((team, _), _)| team == name);
        for (_, usage) in of_team {
            own.past += usage.at(self.now, self.policy.half_life);
            own.rate += usage.rate();
        }
        own
    }

    fn add_held(&mut self, no: TeamNo, held: &[u64]) {
        let mut at = Some(no);
        while let Some(no) = at {
            let team = &mut self.teams[no];
            team.held.resize(team.held.len().max(held.len()), 0);
            team.held.iter_mut().zip(held).for_each(|(sum, n)| *sum += n);
            at = team.parent;
        }
    }

    pub fn line(&self, no: TeamNo) -> impl Iterator<Item = TeamNo> + '_ {
        std::iter::successors(Some(no), |&at| self.teams[at].parent)
    }

    /// What decides between teams: the use of each team on the way down from the top, the team's
    /// own users last. Smaller goes first.
    pub fn due(&self, no: TeamNo) -> Vec<(u128, TeamNo)> {
        let half_life = self.policy.half_life;
        let mut path = vec![(self.teams[no].own.due(half_life), no)];
        path.extend(self.line(no).map(|at| (self.teams[at].account.due(half_life), at)));
        path.reverse();
        path
    }

    pub fn user_due(&mut self, no: TeamNo, user: &'a str) -> u128 {
        let half_life = self.policy.half_life;
        self.user(no, user).due(half_life)
    }

    fn user(&mut self, no: TeamNo, user: &'a str) -> &mut Account {
        let (state, now, half_life) = (self.state, self.now, self.policy.half_life);
        let team = self.teams[no].name;
        self.users.entry((no, user)).or_insert_with(|| {
            let usage = state.ledger.users.get(&(team.to_owned(), user.to_owned()));
            let usage = usage.copied().unwrap_or_default();
            Account { past: usage.at(now, half_life), rate: usage.rate(), weight: 1000 }
        })
    }

    /// Something was placed for a user of the team.
    pub fn charge(&mut self, no: TeamNo, user: &'a str, held: &[u64], charge: u64) {
        self.add_held(no, held);
        self.user(no, user).rate += charge;
        self.teams[no].own.rate += charge;
        let line: Vec<TeamNo> = self.line(no).collect();
        for at in line {
            self.teams[at].account.rate += charge;
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
            let over = |limit: u32, used: u64, wanted: u64| {
                (used + wanted > u64::from(limit) * 1000 && wanted > 0).then(|| OverLimit {
                    team: team.name,
                    limit,
                    used: used.div_ceil(1000) as u32,
                })
            };
            let of_model = models.iter().enumerate().find_map(|(m, name)| {
                let limit = *limit.models.get(name)?;
                over(limit, used(m), wanted.get(m).copied().unwrap_or(0))
            });
            of_model.or_else(|| {
                let counts = limit.any > 0 || limit.models.is_empty();
                let all = (team.held.iter().sum(), wanted.iter().sum());
                counts.then(|| over(limit.any, all.0, all.1))?
            })
        })
    }

    /// Whether these GPUs would still be inside the guarantee of the team, or of one above it.
    pub fn in_guarantee(&self, no: TeamNo, wanted: &Wanted<'_>) -> bool {
        self.line(no).any(|at| {
            let team = &self.teams[at];
            team.quota.is_some_and(|q| covers(&q.guarantee, &team.held, wanted))
        })
    }

    /// Whether any team of the line has a guarantee at all.
    pub fn has_guarantee(&self, no: TeamNo) -> bool {
        self.line(no).any(|at| self.teams[at].quota.is_some_and(|q| !q.guarantee.is_none()))
    }

    /// Whether what this team has is borrowed, from the point of view of another: no team of its
    /// line, up to where the lines meet, is within its guarantee.
    pub fn is_beyond_guarantee(&self, no: TeamNo, other: TeamNo, models: &[String]) -> bool {
        self.is_beyond_guarantee_after(no, other, models, &|_| &[])
    }

    /// The same, once each team has given back this much.
    pub fn is_beyond_guarantee_after<'r>(
        &self,
        no: TeamNo,
        other: TeamNo,
        models: &[String],
        gone: &dyn Fn(TeamNo) -> &'r [u64],
    ) -> bool {
        let others: Vec<TeamNo> = self.line(other).collect();
        self.line(no).take_while(|at| !others.contains(at)).all(|at| {
            let team = &self.teams[at];
            let Some(guarantee) = team.quota.map(|q| &q.guarantee) else { return true };
            let mut held = team.held.clone();
            held.iter_mut().zip(gone(at)).for_each(|(sum, n)| *sum = sum.saturating_sub(*n));
            guarantee.is_none() || beyond(guarantee, &held, models) > 0
        })
    }

    /// Takes back what a victim held.
    pub fn release(&mut self, no: TeamNo, held: &[u64]) {
        let line: Vec<TeamNo> = self.line(no).collect();
        for at in line {
            let sums = self.teams[at].held.iter_mut();
            sums.zip(held).for_each(|(sum, n)| *sum = sum.saturating_sub(*n));
        }
    }

    pub fn find(&self, name: &str) -> Option<TeamNo> {
        self.by_name.get(name).copied()
    }
}

pub(crate) struct OverLimit<'a> {
    pub team: &'a str,
    pub limit: u32,
    pub used: u32,
}

/// GPUs that are asked for, before it is known of which model they will be.
pub(crate) struct Wanted<'m> {
    pub milli: u64,
    /// By model number: whether it may be that.
    pub of: Vec<bool>,
    pub models: &'m [String],
}

impl<'m> Wanted<'m> {
    pub fn by(ask: &Ask, models: &'m [String]) -> Wanted<'m> {
        let milli = ask.least_gpus() * u64::from(ask.demand.share.0);
        Wanted { milli, of: models.iter().map(|m| ask.wants_model(m)).collect(), models }
    }
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

fn covers(guarantee: &GpuQuota, held: &[u64], wanted: &Wanted<'_>) -> bool {
    if guarantee.is_none() || wanted.milli == 0 {
        return false;
    }
    let (mut used, mut cover) = (0, 0);
    for (m, name) in wanted.models.iter().enumerate() {
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
