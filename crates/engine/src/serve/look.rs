//! An endpoint and its replicas, looked at once.

use tutti_model::{
    Attempt, AttemptPhase, Endpoint, Generation, Job, JobId, Part, Phase, PortOwner, Replica,
    ReplicaLoad, ReplicaPhase, State, Time,
};

use super::Memory;
use crate::decide::View;

pub(super) struct Look<'a> {
    pub view: View<'a>,
    pub endpoint: &'a Endpoint,
    pub memory: Option<&'a Memory>,
    /// In the order of their jobs.
    pub replicas: Vec<Seen<'a>>,
}

pub(super) struct Seen<'a> {
    pub id: JobId,
    pub replica: &'a Replica,
    /// None: it was forgotten.
    pub job: Option<&'a Job>,
    pub standing: Standing,
    /// What routers say of the attempt that runs.
    pub load: Option<&'a ReplicaLoad>,
}

/// Where a replica's job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// For GPUs.
    Waits {
        since: Time,
    },
    Starts,
    Runs {
        generation: Generation,
    },
    Suspended,
    Stops,
    Over,
}

impl<'a> Look<'a> {
    pub fn at(view: View<'a>, endpoint: &'a Endpoint) -> Look<'a> {
        let memory = view.live.memory(&endpoint.name);
        let load = memory.and_then(|m| m.load(view.now));
        let seen = |(&id, replica): (&JobId, &'a Replica)| {
            let job = view.state.job(id);
            let standing = job.map_or(Standing::Over, standing);
            let said = load.and_then(|l| l.replicas.get(&id));
            let same = |l: &&ReplicaLoad| matches!(standing, Standing::Runs { generation } if generation == l.generation);
            Seen { id, replica, job, standing, load: said.filter(same) }
        };
        Look { view, endpoint, memory, replicas: endpoint.replicas.iter().map(seen).collect() }
    }

    pub fn name(&self) -> String {
        self.endpoint.name.clone()
    }

    /// Why it is not ready, as its agent or a router says.
    pub fn said(&self, seen: &Seen<'_>) -> Option<String> {
        let strange = || {
            let part = seen.attempt()?.parts.first()?;
            let at = super::address(self.view.state, seen.id)?;
            port_words(part.port_owner.as_deref(), &at, &self.view.state.node_name(part.node))
        };
        strange().or_else(|| seen.load.and_then(|l| l.why.clone()))
    }

    /// Those that are not on their way out.
    pub fn live(&self) -> impl Iterator<Item = &Seen<'a>> {
        self.replicas.iter().filter(|r| !r.drains() && r.standing != Standing::Over)
    }

    pub fn ready(&self) -> impl Iterator<Item = &Seen<'a>> {
        self.live().filter(|r| r.is_ready())
    }
}

impl Seen<'_> {
    pub fn is_ready(&self) -> bool {
        self.replica.phase == ReplicaPhase::Ready
    }

    pub fn owns_its_port(&self) -> bool {
        let part = self.attempt().and_then(|attempt| attempt.parts.first());
        part.is_some_and(Part::owns_its_port)
    }

    pub fn lost_its_port(&self) -> bool {
        let part = self.attempt().and_then(|attempt| attempt.parts.first());
        part.is_some_and(Part::lost_its_port)
    }

    pub fn drains(&self) -> bool {
        matches!(self.replica.phase, ReplicaPhase::Draining { .. })
    }

    pub fn in_flight(&self) -> u32 {
        self.load.map_or(0, |l| l.in_flight)
    }

    pub fn attempt(&self) -> Option<&Attempt> {
        self.job.and_then(|j| j.task(None)).and_then(|t| t.attempt())
    }

    /// Since when it has run without a break.
    fn runs_since(&self, now: Time) -> Option<Time> {
        let attempt = self.attempt().filter(|_| matches!(self.standing, Standing::Runs { .. }))?;
        Some(attempt.running_since(now)?.max(attempt.woke_at().unwrap_or_default()))
    }

    /// Since when it could have become ready.
    pub fn loads_since(&self, now: Time) -> Option<Time> {
        Some(self.runs_since(now)?.max(self.replica.since))
    }

    /// It was ready since it runs, and is not any more.
    pub fn hangs(&self, now: Time) -> bool {
        let coming = self.replica.phase == ReplicaPhase::Coming;
        coming && self.runs_since(now).is_some_and(|began| began < self.replica.since)
    }
}

/// What is wrong with who listens where routers reach a replica.
fn port_words(owner: Option<&PortOwner>, at: &str, node: &str) -> Option<String> {
    match owner {
        Some(PortOwner::Part) => None,
        Some(PortOwner::Nobody) => Some(format!("nothing listens on {at}")),
        Some(PortOwner::Elsewhere { addresses }) => Some(format!(
            "it listens on {} and not on {at}, where routers ask: let it listen on 0.0.0.0 or \
             $TUTTI_NODE_ADDR",
            addresses.join(", ")
        )),
        Some(PortOwner::Stranger { who }) => Some(format!(
            "{who} has a socket on {at} on {node} and was not found among its processes: routers send nothing there"
        )),
        None => Some(format!("nothing of it listens on {at} yet, as far as {node} has said")),
    }
}

fn standing(job: &Job) -> Standing {
    let Some(task) = job.task(None) else { return Standing::Over };
    match &task.phase {
        Phase::Pending { since, .. } => Standing::Waits { since: *since },
        Phase::Ended(_) => Standing::Over,
        Phase::Active(attempt) => match attempt.phase {
            AttemptPhase::Starting => Standing::Starts,
            AttemptPhase::Running { .. } => Standing::Runs { generation: attempt.generation },
            AttemptPhase::Suspending { .. }
            | AttemptPhase::Suspended { .. }
            | AttemptPhase::Waking { .. } => Standing::Suspended,
            AttemptPhase::Stopping { .. } => Standing::Stops,
        },
    }
}

/// The endpoint whose replica this job is, if its endpoint knows it.
pub(super) fn endpoint_of(state: &State, job: JobId) -> Option<&Endpoint> {
    let of = state.job(job)?.replica_of.as_deref()?;
    state.endpoints.get(&of.endpoint).filter(|e| e.replicas.contains_key(&job))
}
