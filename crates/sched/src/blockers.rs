//! Everything that keeps a waiting task from starting. A pass stops at the first reason it meets,
//! which is enough to go on; who asks is told all of them, and which ends last.
//!
//! Nothing here runs in a pass. A [`Lookout`] is made for somebody who looks, and asked about as many
//! tasks as are shown: tasks that want the same are looked at once.

mod apart;
mod node;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    Blocker, ClaimCause, Demand, Job, KeptFor, NodeId, Obstacle, PartPlacement, Plan, Policy,
    State, Task, TaskId, Time, Verdict,
};

use crate::ask::Ask;
use crate::backfill::ends_at;
use crate::cluster::{Claims, Cluster, SlotNo, is_empty_and_open};
use crate::pass::spare_slots;
use crate::ports::port_taken;
use crate::preempt::{left_alone_until, may_ever_stop};
use crate::teams::{TeamNo, Teams, Wanted, by_model};
use crate::verdict::{Waiting, array_limit, unmet, verdict};
use apart::Apart;
use node::NodeLook;
pub use words::{describe_all, tell_blockers};

/// Tasks named one by one; more tell nobody anything.
const NAMED_MAX: usize = 100;

/// The cluster as somebody looks at it at one moment.
#[derive(Debug)]
pub struct Lookout {
    now: Time,
    cluster: Cluster,
    /// Empty nodes that stay so for gangs that lose one.
    spares: BTreeSet<SlotNo>,
    /// Running tasks that were preempted before and are not preempted again before a time.
    left_alone: Vec<(TaskId, Time)>,
    known: BTreeMap<Question, (Vec<Blocker>, Apart)>,
}

/// All that somebody who looks is told of a waiting task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Of the last pass, with what is kept, reserved or taken no longer counted as busy or fitting.
    pub verdict: Verdict,
    /// Everything that keeps the task from starting, what ends last first. Nothing for one that is not
    /// pending: what a suspended task needs to wake is its verdict.
    pub blockers: Vec<Blocker>,
    /// For whom GPUs that it could use are free and kept.
    pub kept: Vec<KeptFor>,
}

/// All on which it depends what nodes and teams keep from a task.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    team: String,
    class: String,
    demand: Demand,
    /// Numbers of the reservations that it would run into, wherever they are.
    meets: Vec<usize>,
    /// It lost a node before, and may use the spares.
    restarted: bool,
    ports: Vec<NodeId>,
    /// What is kept for it.
    claims: Option<TaskId>,
}

/// A waiting task that somebody asks about.
struct Asker<'a> {
    state: &'a State,
    policy: &'a Policy,
    job: &'a Job,
    task: TaskId,
    ask: Ask,
    now: Time,
    /// When it would have ended if it started now, as far as reservations go.
    until: Time,
    restarted: bool,
    ports: BTreeSet<NodeId>,
}

impl Lookout {
    pub fn new(state: &State, now: Time) -> Lookout {
        let policy = &*state.policy;
        let cluster = Cluster::new(state, policy);
        let spares = spare_slots(policy, &cluster, &is_empty_and_open);
        let left_alone = if policy.preemption.enabled {
            state.index.active.iter().filter_map(|id| left_alone(state, *id, now)).collect()
        } else {
            Vec::new()
        };
        Lookout { now, cluster, spares, left_alone, known: BTreeMap::new() }
    }

    /// None if the task does not wait.
    pub fn look(&mut self, state: &State, plan: &Plan, task: TaskId) -> Option<Outlook> {
        let now = self.now;
        let verdict = verdict(state, plan, task, now)?;
        let job = state.job(task.job)?;
        let (mut found, apart) = match verdict {
            Verdict::Suspended { .. } | Verdict::Next => {
                return Some(Outlook { verdict, blockers: Vec::new(), kept: Vec::new() });
            }
            Verdict::Claimed { ref waiting_for, .. } => {
                (vec![self.leaving(state, waiting_for)], Apart::default())
            }
            _ => self.of_the_cluster(state, plan, job, task),
        };
        found.extend(of_the_job(state, plan, job, task, now));
        if let Verdict::Behind { job } = verdict {
            found.push(Blocker::new(Obstacle::Behind { job }, head_start(plan, job)));
        }
        Blocker::last_first(&mut found);
        let verdict = apart.tell(verdict);
        Some(Outlook { verdict, blockers: found, kept: apart.kept_for })
    }

    /// Room is kept for it until these have gone.
    fn leaving(&self, state: &State, waiting_for: &[TaskId]) -> Blocker {
        let attempts =
            waiting_for.iter().filter_map(|t| state.job(t.job)?.task(t.index)?.attempt());
        let (mut gpus, mut nodes) = (0, BTreeSet::new());
        for part in attempts.flat_map(|a| &a.parts).filter(|p| !p.phase.is_over()) {
            gpus += part.gpus.len() as u32;
            nodes.insert(part.node);
        }
        let ends = waiting_for.iter().map(|t| node::end_of(state, *t, self.now));
        let until = ends.collect::<Option<Vec<Time>>>().and_then(|ends| ends.into_iter().max());
        Blocker::new(Obstacle::Busy { nodes: nodes.len() as u32, gpus }, until)
    }

    fn of_the_cluster(
        &mut self,
        state: &State,
        plan: &Plan,
        job: &Job,
        task: TaskId,
    ) -> (Vec<Blocker>, Apart) {
        let asker = Asker::new(state, plan, job, task, self.now);
        let question = asker.question();
        if let Some(known) = self.known.get(&question) {
            return known.clone();
        }
        let teams = self.teams(state, &asker);
        let mut found = asker.team_limits(&teams, &self.cluster);
        let rights = asker.left_alone(&self.left_alone, &teams, &self.cluster);
        let claims = Claims::of(state);
        let look =
            NodeLook { asker: &asker, claims: &claims, left_alone: &rights, spares: &self.spares };
        let (of_nodes, apart) = look.blockers(&mut self.cluster);
        found.extend(of_nodes);
        self.known.insert(question, (found.clone(), apart.clone()));
        (found, apart)
    }

    /// What teams have, with what is kept for them.
    fn teams<'a>(&self, state: &'a State, asker: &Asker<'a>) -> Teams<'a> {
        let mut teams = Teams::new(state, asker.policy, &self.cluster, self.now);
        for (task, claim) in state.claims.iter().filter(|(task, _)| **task != asker.task) {
            let Some(job) = state.job(task.job) else { continue };
            let attempt =
                job.task(task.index).and_then(Task::attempt).filter(|a| !a.is_suspended());
            let new = |p: &&PartPlacement| attempt.is_none_or(|a| a.part_on(p.node).is_none());
            let parts: Vec<PartPlacement> = claim.parts.iter().filter(new).cloned().collect();
            let held = by_model(&self.cluster, &parts);
            let team = teams.number(&job.team);
            match claim.cause {
                ClaimCause::Overdue => teams.hold(team, &held),
                _ => teams.add(team, &held),
            }
        }
        teams.number(&asker.job.team);
        teams
    }
}

/// Whether a running task is spared for a while, and until when.
fn left_alone(state: &State, id: TaskId, now: Time) -> Option<(TaskId, Time)> {
    let job = state.job(id.job)?;
    let task = job.task(id.index)?;
    let attempt = task.attempt()?;
    let until = left_alone_until(&state.policy, task, attempt, now)?;
    may_ever_stop(state, id, job, attempt).then_some((id, until))
}

/// When the one before it in line is to start.
fn head_start(plan: &Plan, job: tutti_model::JobId) -> Option<Time> {
    plan.heads.iter().find(|head| head.task.job == job)?.starts_by
}

/// What has nothing to do with nodes.
fn of_the_job(state: &State, plan: &Plan, job: &Job, task: TaskId, now: Time) -> Vec<Blocker> {
    let mut found = Vec::new();
    let waiting = Waiting::find(job, task.index);
    let own = match waiting {
        Some(Waiting::Task { index, .. }) => job.task(index),
        _ => None,
    };
    if job.held || own.is_some_and(|t| t.kept().is_some()) {
        found.push(Blocker::new(Obstacle::Held, None));
    }
    let unmet = unmet(state, job).into_iter();
    let dependency = |waiting_for| Blocker::new(Obstacle::Dependency { waiting_for }, None);
    found.extend(unmet.map(dependency));
    if let Some(Waiting::Task { not_before, .. }) = waiting
        && not_before > now
    {
        found.push(Blocker::new(Obstacle::BackOff, Some(not_before)));
    }
    if let Some(Verdict::ArrayLimit { max_running }) = array_limit(state, plan, job, task) {
        found.push(Blocker::new(Obstacle::ArrayLimit { max_running }, None));
    }
    found
}

impl<'a> Asker<'a> {
    fn new(state: &'a State, plan: &Plan, job: &'a Job, task: TaskId, now: Time) -> Asker<'a> {
        let policy = &*state.policy;
        let ends = ends_at(state, policy, job, now);
        let kept = state.claims.iter().map(|(task, claim)| (*task, claim.parts.as_slice()));
        let new = plan.claims.iter().map(|claim| (claim.task, claim.parts.as_slice()));
        let ports = port_taken(state, job, &BTreeSet::new(), kept.chain(new));
        let index = match Waiting::find(job, task.index) {
            Some(Waiting::Task { index, .. }) => index,
            _ => task.index,
        };
        Asker {
            state,
            policy,
            job,
            task,
            ask: Ask::new(&Demand::of(&job.spec)),
            now,
            until: ends.unwrap_or_else(|| now.plus(policy.durations.assumed)),
            restarted: job.task(index).is_some_and(|t| t.restarts.node_failure > 0),
            ports,
        }
    }

    fn question(&self) -> Question {
        let meets = |r: &tutti_model::Reservation| r.from < self.until && r.until > self.now;
        let all = self.policy.reservations.iter().enumerate();
        Question {
            team: self.job.team.clone(),
            class: self.job.class().to_owned(),
            demand: self.ask.demand.clone(),
            meets: all.filter(|(_, r)| meets(r)).map(|(no, _)| no).collect(),
            restarted: self.restarted,
            ports: self.ports.iter().copied().collect(),
            claims: self.state.claims.contains_key(&self.task).then_some(self.task),
        }
    }

    /// Every limit on the way up that the least of this would break.
    fn team_limits(&self, teams: &Teams<'_>, cluster: &Cluster) -> Vec<Blocker> {
        let Some(team) = teams.find(&self.job.team) else { return Vec::new() };
        let milli = self.ask.least_milli();
        let wanted = Wanted::by(&self.ask, &cluster.models);
        let over = teams.all_over_limit(team, milli, &wanted, &cluster.models).into_iter();
        let blocker = |over: crate::teams::OverLimit<'_>| {
            let model = over.model_name.map(str::to_owned);
            let (limit, used) = (over.limit, over.used);
            Blocker::new(
                Obstacle::TeamLimit { team: over.team.to_owned(), limit, used, model },
                None,
            )
        };
        over.map(blocker).collect()
    }

    /// Of those that are spared for a while, the ones that could be stopped for this task then.
    fn left_alone(
        &self,
        spared: &[(TaskId, Time)],
        teams: &Teams<'_>,
        cluster: &Cluster,
    ) -> BTreeMap<TaskId, Time> {
        let rank = self.policy.class_rank(self.job.class());
        let wanted = Wanted::by(&self.ask, &cluster.models);
        let team = teams.find(&self.job.team).filter(|team| teams.has_guarantee(*team));
        let guarantor = team.and_then(|team| teams.guarantor(team, &wanted, &cluster.models));
        let borrows = |of: &str, guarantor: TeamNo| {
            let of = teams.find(of);
            of.is_none_or(|of| teams.borrows(of, guarantor, &cluster.models, &|_| &[]))
        };
        let has_right = |(id, _): &&(TaskId, Time)| {
            self.state.job(id.job).is_some_and(|other| {
                let class = self.policy.class_rank(other.class());
                class < rank || class <= rank && guarantor.is_some_and(|g| borrows(&other.team, g))
            })
        };
        spared.iter().filter(has_right).copied().collect()
    }
}
