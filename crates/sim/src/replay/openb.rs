//! The fragmentation experiment of FGD (ATC'23), through the production engine.
//!
//! Pods arrive one by one and never leave. A pod that is not placed by the pass right after its
//! arrival is cancelled and never tried again; its demand still counts as arrived. Nothing is moved
//! and nothing is preempted. CPUs are counted in thousandths here, which is only a unit.

use tutti_engine::{Actor, Command, Effect, Engine, Rejected, Reply, Settings, Step};
use tutti_model::{
    Greeting, JobState, NodeId, Order, PartReport, Policy, ReportedPhase, Role, Span, TaskId, Time,
};

use super::ReplayError;
use crate::cluster::NodeBuilder;
use crate::trace::{OpenbNode, OpenbPod};

const NEVER: Span = Span(1 << 60);
/// Between two arrivals.
const STEP_MS: u64 = 1000;

/// The share of GPUs that is allocated, by the share that has been asked for so far; in per cent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    /// By per cent arrived: sum and number of the samples taken there.
    columns: Vec<(f64, u64)>,
    pub pods: u64,
    pub placed: u64,
    pub events: u64,
    /// At the very end.
    pub final_per_cent: f64,
}

impl Allocation {
    /// The mean of all samples at which this many per cent had arrived.
    pub fn at(&self, arrived: usize) -> Option<f64> {
        self.columns.get(arrived).filter(|(_, n)| *n > 0).map(|(sum, n)| sum / *n as f64)
    }

    /// All columns that have a sample.
    pub fn curve(&self) -> impl Iterator<Item = (usize, f64)> + '_ {
        (0..self.columns.len()).filter_map(|k| self.at(k).map(|a| (k, a)))
    }

    fn sample(&mut self, arrived_milli: u64, held_milli: u64, gpus: u64) {
        let per_cent = |milli: u64| milli as f64 / gpus as f64 / 10.0;
        // As Python rounds: halves go to the even neighbour.
        let column = per_cent(arrived_milli).round_ties_even() as usize;
        let held = (per_cent(held_milli) * 100.0).round_ties_even() / 100.0;
        if self.columns.len() <= column {
            self.columns.resize(column + 1, (0.0, 0));
        }
        self.columns[column].0 += held;
        self.columns[column].1 += 1;
        self.final_per_cent = held;
    }
}

/// What this experiment changes in a policy: nothing is stopped for anybody.
pub fn without_preemption(mut policy: Policy) -> Policy {
    policy.preemption.enabled = false;
    policy
}

/// `progress` is told how many pods have arrived.
pub fn run(
    nodes: &[OpenbNode],
    pods: &[OpenbPod],
    order: &[usize],
    policy: &Policy,
    progress: &mut dyn FnMut(u64),
) -> Result<Allocation, ReplayError> {
    let mut rig = Rig::new(nodes, policy)?;
    let gpus = nodes.iter().map(|n| u64::from(n.gpus)).sum::<u64>().max(1);
    let (mut arrived, mut held) = (0, 0);
    let mut out = Allocation::default();
    for pod in order.iter().filter_map(|&row| pods.get(row)) {
        arrived += pod.milli();
        out.pods += 1;
        if rig.offer(pod)? {
            held += pod.milli();
            out.placed += 1;
        }
        out.sample(arrived, held, gpus);
        progress(out.pods);
    }
    out.events = rig.events;
    Ok(out)
}

struct Rig {
    engine: Engine,
    now: Time,
    events: u64,
}

fn operator() -> Actor {
    Actor { user: "openb".to_owned(), role: Role::Admin }
}

/// Node ids count from 1 in the order of joining, and so do the sessions.
fn session_of(node: NodeId) -> u64 {
    node.0.into()
}

impl Rig {
    fn new(nodes: &[OpenbNode], policy: &Policy) -> Result<Rig, ReplayError> {
        let settings = Settings {
            node_timeout: NEVER,
            // Pods that did not fit are of no further interest.
            keep_jobs_for: Span::secs(1),
            ..Settings::default()
        };
        let mut rig = Rig { engine: Engine::new(settings), now: Time(0), events: 0 };
        rig.command(Command::Start, "to start")?;
        let policy = Box::new(policy.clone());
        rig.command(Command::SetPolicy { actor: operator(), policy }, "the policy")?;
        for (session, node) in (1..).zip(nodes) {
            let facts = NodeBuilder::new(&node.name)
                .gpus(&node.model, node.gpus, 0)
                .host(node.cpu_milli, node.mem)
                .build();
            let greeting = Box::new(Greeting::new(facts, Vec::new()));
            rig.command(Command::Hello { greeting, session, key: None }, "a node")?;
        }
        Ok(rig)
    }

    /// Submits a pod, plans once, and takes it back if it did not start.
    fn offer(&mut self, pod: &OpenbPod) -> Result<bool, ReplayError> {
        self.now = self.now.plus(Span(STEP_MS));
        let spec = Box::new(pod.spec.clone());
        let submit = Command::Submit { actor: operator(), spec, user: None, key: None };
        let step = self.engine.step(submit, self.now);
        let job = match &step.reply {
            Ok(Reply::Submitted { job, .. }) => *job,
            // Refused at the door: no node could ever hold it.
            Ok(_) | Err(Rejected::Impossible(_)) => return Ok(false),
            Err(source) => {
                return Err(ReplayError::Refused { what: "a pod", source: source.clone() });
            }
        };
        self.obey(step)?;
        let step = self.engine.schedule(self.now);
        if let Err(source) = step.reply {
            return Err(ReplayError::Plan { at: self.now, source });
        }
        self.obey(step)?;
        let state = self.engine.state().job(job).map(|j| j.state());
        if state == Some(JobState::Running) {
            return Ok(true);
        }
        let cancel = Command::Cancel { actor: operator(), target: TaskId::single(job) };
        self.command(cancel, "to cancel a pod")?;
        Ok(false)
    }

    fn command(&mut self, command: Command, what: &'static str) -> Result<(), ReplayError> {
        let step = self.engine.step(command, self.now);
        if let Err(source) = step.reply {
            return Err(ReplayError::Refused { what, source });
        }
        self.obey(step)
    }

    fn obey(&mut self, step: Step) -> Result<(), ReplayError> {
        self.events += step.records.len() as u64;
        for Effect::Tell { node, order } in step.effects {
            let Order::Start(launch) = order else { continue };
            let phase = ReportedPhase::Running { exits: Vec::new() };
            let report = PartReport::new(launch.lease, phase);
            let session = session_of(node);
            self.command(Command::Report { node, session, report }, "a report")?;
        }
        Ok(())
    }
}
