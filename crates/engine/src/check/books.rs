//! What every node gives to whom: leases, what this plan places, and what is kept for somebody.
//! Nodes that the plan does not touch are never looked at.

use std::collections::{BTreeMap, BTreeSet};

use tutti_model::{
    AttemptPhase, ClaimCause, DEFAULT_CLASS, GpuIndex, LeaseId, NewClaim, NodeId, PartPlacement,
    State, Stop, TaskId,
};

use super::{Violation, tenant};

/// Who takes what on one node.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub task: TaskId,
    pub gpus: Vec<GpuIndex>,
    pub share: u32,
    pub cpus: u64,
    pub mem: u64,
    pub exclusive: bool,
}

pub(super) struct Books<'a> {
    state: &'a State,
    placed: BTreeMap<NodeId, Vec<Tenant>>,
    kept: BTreeMap<NodeId, Vec<Kept>>,
    claimants: BTreeSet<TaskId>,
    /// Stopped by this plan: their leases end.
    going: BTreeSet<TaskId>,
}

#[derive(Clone, Debug)]
struct Kept {
    tenant: Tenant,
    /// It waits for whoever is there to end, so both are on the books.
    overdue: bool,
    /// The memory of one that is being suspended: it is there already, and ends one day.
    asleep: bool,
}

/// What has to fit together on a node.
struct Room<'b> {
    tenants: Vec<&'b Tenant>,
}

impl<'a> Books<'a> {
    pub fn new(state: &'a State, dropped: &[TaskId]) -> Books<'a> {
        let mut books = Books {
            state,
            placed: BTreeMap::new(),
            kept: BTreeMap::new(),
            claimants: BTreeSet::new(),
            going: BTreeSet::new(),
        };
        for (&task, claim) in state.claims.iter().filter(|(task, _)| !dropped.contains(task)) {
            let exclusive = is_exclusive(state, task);
            books.keep(task, &claim.parts, exclusive, claim.cause == ClaimCause::Overdue);
        }
        books
    }

    fn keep(&mut self, task: TaskId, parts: &[PartPlacement], exclusive: bool, overdue: bool) {
        self.claimants.insert(task);
        for part in parts {
            let tenant = tenant(task, part, exclusive);
            self.kept.entry(part.node).or_default().push(Kept { tenant, overdue, asleep: false });
        }
    }

    pub fn has_claim(&self, task: TaskId) -> bool {
        self.claimants.contains(&task)
    }

    pub fn claim_ends(&mut self, task: TaskId) {
        if self.claimants.remove(&task) {
            self.kept.values_mut().for_each(|kept| kept.retain(|k| k.tenant.task != task));
        }
    }

    pub fn place(&mut self, task: TaskId, parts: &[PartPlacement], exclusive: bool) {
        for part in parts {
            self.placed.entry(part.node).or_default().push(tenant(task, part, exclusive));
        }
    }

    /// Leases with a part on the node, counted from the attempts themselves.
    fn leases(&self, node: NodeId) -> Vec<(Tenant, bool)> {
        let leases = self.state.node(node).into_iter().flat_map(|n| n.used.leases.iter());
        leases.flat_map(|lease| self.tenants_of(lease, node).unwrap_or_default()).collect()
    }

    /// What one lease holds on a node, and whether that is about to be given back. What is being
    /// suspended gives its GPUs and CPUs back, and keeps its memory.
    fn tenants_of(&self, lease: &LeaseId, node: NodeId) -> Option<Vec<(Tenant, bool)>> {
        let job = self.state.job(lease.task.job)?;
        let attempt = job.task(lease.task.index)?.attempt()?;
        let part = attempt.part_on(node).filter(|p| !p.phase.is_over())?;
        let tenant = Tenant {
            task: lease.task,
            gpus: part.gpus.clone(),
            share: part.share.0.into(),
            cpus: part.cpus.into(),
            mem: part.mem.0,
            exclusive: job.spec.exclusive,
        };
        Some(match attempt.phase {
            AttemptPhase::Stopping { .. } => vec![(tenant, true)],
            AttemptPhase::Suspending { .. } => {
                let stays = Tenant { gpus: Vec::new(), cpus: 0, ..tenant.clone() };
                vec![(Tenant { mem: 0, exclusive: false, ..tenant }, true), (stays, false)]
            }
            _ => vec![(tenant, false)],
        })
    }

    /// What is kept on a node for others. Who has only waited long keeps nothing from a higher class.
    fn kept_from(&self, task: TaskId, node: NodeId) -> Vec<&Kept> {
        let rank = |task| class_rank(self.state, task);
        let binds = |k: &&Kept| !k.overdue || rank(k.tenant.task) >= rank(task);
        self.kept.get(&node).into_iter().flatten().filter(binds).collect()
    }

    /// Everything it gets is there now, belongs to nobody else, and is kept for nobody else.
    pub fn fits_now(
        &self,
        task: TaskId,
        parts: &[PartPlacement],
        exclusive: bool,
    ) -> Result<(), Violation> {
        for part in parts {
            // What is suspended is there already, with its memory.
            let mut leases = self.leases(part.node);
            leases.retain(|(t, _)| t.task != task);
            let placed = self.placed.get(&part.node).into_iter().flatten();
            let here = leases.iter().map(|(t, _)| t).chain(placed.clone()).collect();
            let wanted = tenant(task, part, exclusive);
            Room { tenants: here }.takes(self.state, part.node, &wanted)?;
            let kept = self.kept_from(task, part.node);
            let Some(owner) = kept.first().map(|k| k.tenant.task) else { continue };
            let kept_for = |_| Violation::Kept(task, part.node, owner);
            for then in futures(&leases, &kept) {
                let tenants = then.into_iter().chain(placed.clone()).collect();
                let room = Room { tenants };
                room.takes(self.state, part.node, &wanted).map_err(kept_for)?;
            }
        }
        Ok(())
    }

    /// Once the victims are gone, there is room for the claim beside what stays and what is kept.
    pub fn fits_later(&self, claim: &NewClaim, exclusive: bool) -> Result<(), Violation> {
        let spared = None;
        claim.parts.iter().try_for_each(|part| self.part_fits_later(claim, part, exclusive, spared))
    }

    /// Whether there would be room even if this victim stayed.
    pub fn fits_without(&self, claim: &NewClaim, exclusive: bool, spared: TaskId) -> bool {
        let mut parts = claim.parts.iter();
        parts.all(|part| self.part_fits_later(claim, part, exclusive, Some(spared)).is_ok())
    }

    fn part_fits_later(
        &self,
        claim: &NewClaim,
        part: &PartPlacement,
        exclusive: bool,
        spared: Option<TaskId>,
    ) -> Result<(), Violation> {
        let node = part.node;
        let stops =
            |task: TaskId| Some(task) != spared && claim.victims.iter().any(|v| v.task == task);
        let leases: Vec<_> = self
            .leases(node)
            .into_iter()
            .filter(|(t, _)| !self.going.contains(&t.task) && !stops(t.task))
            .collect();
        let kept = self.kept_from(claim.task, node);
        let shrunk: Vec<Tenant> = claim
            .victims
            .iter()
            .filter(|v| Some(v.task) != spared && v.task != claim.task)
            .flat_map(|v| keeps(self.state, v).into_iter().filter(|(n, _)| *n == node))
            .map(|(_, tenant)| tenant)
            .collect();
        let wanted = tenant(claim.task, part, exclusive);
        // What has waited long waits for all who are there to end, those who start now included.
        if claim.cause == ClaimCause::Overdue {
            let tenants = kept.iter().filter(|k| !k.asleep).map(|k| &k.tenant).collect();
            return Room { tenants }.takes(self.state, node, &wanted);
        }
        for then in futures(&leases, &kept) {
            let placed = self.placed.get(&node).into_iter().flatten();
            let tenants = then.into_iter().chain(&shrunk).chain(placed).collect();
            Room { tenants }.takes(self.state, node, &wanted)?;
        }
        Ok(())
    }

    /// Memory of a node that is taken once all who are told to go are gone: by those who stay, by what
    /// this plan starts, by what is kept, and by those who are suspended for this claim.
    pub fn memory_later(&self, node: NodeId, claim: &NewClaim) -> u64 {
        let stops = |task: TaskId| claim.victims.iter().any(|v| v.task == task);
        let stays = |t: &Tenant| !self.going.contains(&t.task) && !stops(t.task);
        let leases = self.leases(node);
        let staying = leases.iter().filter(|(t, leaves)| !leaves && stays(t)).map(|(t, _)| t.mem);
        let placed = self.placed.get(&node).into_iter().flatten().map(|t| t.mem);
        let kept = self.kept_from(claim.task, node).into_iter().map(|k| k.tenant.mem);
        let victims = claim.victims.iter().flat_map(|v| keeps(self.state, v));
        let moved = victims.filter(|(n, _)| *n == node).map(|(_, t)| t.mem);
        staying.chain(placed).chain(kept).chain(moved).sum()
    }

    /// The claim is good: its room is kept, and what its victims leave is no longer theirs.
    pub fn keep_for(&mut self, claim: &NewClaim, exclusive: bool) {
        let overdue = claim.cause == ClaimCause::Overdue;
        for victim in &claim.victims {
            self.going.insert(victim.task);
            match &victim.how {
                Stop::Shrink { keep } if victim.task != claim.task => {
                    self.keep(victim.task, keep, is_exclusive(self.state, victim.task), false);
                }
                Stop::Suspend { .. } => {
                    for (node, tenant) in keeps(self.state, victim) {
                        let kept = Kept { tenant, overdue: false, asleep: true };
                        self.kept.entry(node).or_default().push(kept);
                    }
                }
                _ => {}
            }
        }
        self.keep(claim.task, &claim.parts, exclusive, overdue);
    }
}

fn keeps(state: &State, victim: &tutti_model::Victim) -> Vec<(NodeId, Tenant)> {
    let exclusive = is_exclusive(state, victim.task);
    match &victim.how {
        Stop::Requeue => Vec::new(),
        Stop::Suspend { moved } => {
            let job = state.job(victim.task.job);
            let attempt = job.and_then(|j| j.task(victim.task.index)).and_then(|t| t.attempt());
            let memory = |m: &tutti_model::Moved| {
                let own = attempt?.part_on(m.node)?.mem.0;
                let mem = own.saturating_add(m.bytes.0);
                let (task, gpus) = (victim.task, Vec::new());
                Some((m.node, Tenant { task, gpus, share: 0, cpus: 0, mem, exclusive }))
            };
            moved.iter().filter_map(memory).collect()
        }
        Stop::Shrink { keep } => {
            keep.iter().map(|part| (part.node, tenant(victim.task, part, exclusive))).collect()
        }
    }
}

pub(super) fn class_rank(state: &State, task: TaskId) -> i32 {
    let class = state.job(task.job).and_then(|j| j.spec.class.as_deref());
    state.policy.class_rank(class.unwrap_or(DEFAULT_CLASS))
}

fn is_exclusive(state: &State, task: TaskId) -> bool {
    state.job(task.job).is_some_and(|j| j.spec.exclusive)
}

/// Who shares a node later: those who stay with what is kept beside them; and, once they have
/// ended, what is kept for somebody who waits for just that.
fn futures<'t>(leases: &'t [(Tenant, bool)], kept: &[&'t Kept]) -> [Vec<&'t Tenant>; 2] {
    let stays = leases.iter().filter(|(_, leaves)| !leaves).map(|(tenant, _)| tenant);
    let soon = || kept.iter().filter(|k| !k.overdue).map(|k| &k.tenant);
    let overdue = kept.iter().filter(|k| k.overdue).map(|k| &k.tenant);
    [soon().chain(stays).collect(), soon().chain(overdue).collect()]
}

impl Room<'_> {
    /// Whether a node holds all of these and one more.
    fn takes(&self, state: &State, id: NodeId, wanted: &Tenant) -> Result<(), Violation> {
        let task = wanted.task;
        let node = state.node(id).ok_or(Violation::NodeClosed(task, id))?;
        for &gpu in &wanted.gpus {
            let holders = self.tenants.iter().filter(|t| t.gpus.contains(&gpu));
            if holders.map(|t| t.share).sum::<u32>() + wanted.share > 1000 {
                return Err(Violation::GpuTaken(task, id, gpu));
            }
        }
        // A node may come back smaller than what it already runs; that is not this part's doing.
        let cpus = self.tenants.iter().map(|t| t.cpus).sum::<u64>() + wanted.cpus;
        if wanted.cpus > 0 && cpus > u64::from(node.facts.cpus) {
            return Err(Violation::CpusTaken(task, id));
        }
        let mem = self.tenants.iter().map(|t| t.mem).sum::<u64>() + wanted.mem;
        if wanted.mem > 0 && mem > node.facts.mem.0 {
            return Err(Violation::MemoryTaken(task, id));
        }
        let alone = self.tenants.iter().any(|t| t.exclusive);
        if alone || (wanted.exclusive && !self.tenants.is_empty()) {
            return Err(Violation::NotAlone(task, id));
        }
        Ok(())
    }
}
