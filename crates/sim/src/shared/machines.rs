//! Nodes that do what they are told, each thing in the time that it takes.

use std::collections::BTreeMap;

use tutti_model::{
    Bytes, ExitStatus, Gpu, GpuIndex, Greeting, LeaseId, NodeFacts, NodeId, Order, PartReport,
    PortOwner, Rank, RankExit, ReportedPhase, Span, Suspension, Time,
};

/// From a start to the first rank, and from SIGTERM to the last.
const STARTS: Span = Span::secs(5);
const STOPS: Span = Span::secs(2);
/// Of the GPU state of all GPUs of a part, in a second.
const OUT: u64 = 3 << 29;
const IN: u64 = 4 << 30;

pub(super) struct Machines {
    /// What they will say, and when.
    due: BTreeMap<(Time, u64), (NodeId, PartReport)>,
    next: u64,
    ranks: BTreeMap<(NodeId, LeaseId), (Rank, u32)>,
    state: Bytes,
}

pub(super) fn greeting(number: u32, gpus: u16) -> Greeting {
    let name = format!("n{number}");
    let gpu = |i| Gpu {
        index: GpuIndex(i),
        model: "h100".into(),
        uuid: format!("{name}-{i}"),
        mem: Bytes::gib(80),
        island: None,
    };
    let facts = NodeFacts {
        address: format!("10.0.0.{number}"),
        cpus: 192,
        mem: Bytes::gib(2048),
        gpus: (0..gpus).map(gpu).collect(),
        simulated: true,
        isolation: "none".into(),
        agent_version: "sim".into(),
        can_suspend: true,
        can_move: true,
        name,
        ..NodeFacts::default()
    };
    Greeting::new(facts, Vec::new())
}

impl Machines {
    pub fn new(state: Bytes) -> Machines {
        Machines { due: BTreeMap::new(), next: 0, ranks: BTreeMap::new(), state }
    }

    /// What they say by now.
    pub fn due(&mut self, now: Time) -> Vec<(NodeId, PartReport)> {
        let later = self.due.split_off(&(Time(now.0 + 1), 0));
        std::mem::replace(&mut self.due, later).into_values().collect()
    }

    pub fn obey(&mut self, node: NodeId, order: Order, now: Time) {
        let lease = order.lease();
        let running = || ReportedPhase::Running { exits: Vec::new() };
        let moving = |rate: u64| Span(self.state.0.saturating_mul(1000) / rate);
        match order {
            Order::Start(launch) => {
                self.ranks.insert((node, lease), (launch.first_rank, launch.ranks));
                let phase = match launch.wait_for_go {
                    true => ReportedPhase::Prepared { port: 20_000 },
                    false => running(),
                };
                self.say(node, PartReport::new(lease, phase), now.plus(STARTS));
            }
            Order::Go { .. } => self.say(node, PartReport::new(lease, running()), now.plus(STARTS)),
            Order::Stop { .. } => {
                let (first, ranks) = self.ranks.get(&(node, lease)).copied().unwrap_or_default();
                let at = now.plus(STOPS);
                let exit =
                    |n| RankExit { rank: Rank(first.0 + n), status: ExitStatus::Signal(15), at };
                let exits = (0..ranks).map(exit).collect();
                let phase = ReportedPhase::Done { exits, error: None };
                self.say(node, PartReport::new(lease, phase), at);
            }
            Order::Suspend { .. } => {
                let suspension = Some(Suspension::Suspended { bytes: self.state });
                let report = PartReport { suspension, ..PartReport::new(lease, running()) };
                self.say(node, report, now.plus(moving(OUT)));
            }
            Order::Wake { .. } => {
                self.say(node, PartReport::new(lease, running()), now.plus(moving(IN)));
            }
            Order::Limit { .. } => {}
            Order::Forget { .. } => drop(self.ranks.remove(&(node, lease))),
        }
    }

    fn say(&mut self, node: NodeId, mut report: PartReport, at: Time) {
        if matches!(report.phase, ReportedPhase::Running { .. }) {
            report.gpu_mem = Some(self.state);
            report.port_owner = Some(PortOwner::Part);
        }
        self.next += 1;
        self.due.insert((at, self.next), (node, report));
    }
}
