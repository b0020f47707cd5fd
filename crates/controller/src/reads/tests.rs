//! What is kept step by step must equal what a rebuild finds.

use tutti_engine::{Actor, Command, Effect, Engine, Reply, Settings, Step};
use tutti_model::*;

use super::*;

struct Rig {
    engine: Engine,
    reads: Reads,
    now: u64,
    node: NodeId,
    running: Vec<LeaseId>,
    seed: u64,
}

fn actor() -> Actor {
    Actor { user: "a".into(), role: Role::Admin }
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let engine = Engine::new(Settings { jobs_kept: 20, ..Settings::default() });
        let reads = Reads::rebuild(engine.state());
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut rig = Rig { engine, reads, now: 1000, node: NodeId(0), running: Vec::new(), seed };
        let facts = NodeFacts {
            name: "n".into(),
            address: "127.0.0.1".into(),
            cpus: 6,
            mem: Bytes(1 << 30),
            gpus: Vec::new(),
            simulated: true,
            isolation: String::new(),
            agent_version: String::new(),
            labels: BTreeMap::new(),
            ..NodeFacts::default()
        };
        let greeting = Box::new(Greeting::new(facts, Vec::new()));
        match rig.step(Command::Hello { greeting, session: 1, key: None }) {
            Some(Reply::Welcome { node }) => rig.node = node,
            other => panic!("{other:?}"),
        }
        rig
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    fn step(&mut self, command: Command) -> Option<Reply> {
        self.now += 100;
        let step = self.engine.step(command, Time(self.now));
        self.take(step)
    }

    fn take(&mut self, step: Step) -> Option<Reply> {
        for Effect::Tell { order, .. } in &step.effects {
            match order {
                Order::Start(launch) => self.running.push(launch.lease),
                Order::Stop { lease, .. } | Order::Forget { lease } => {
                    self.running.retain(|l| l != lease);
                    self.running.extend(matches!(order, Order::Stop { .. }).then_some(*lease));
                }
                Order::Go { .. }
                | Order::Suspend { .. }
                | Order::Wake { .. }
                | Order::Limit { .. } => {}
            }
        }
        self.reads.note(self.engine.state(), &step.records);
        assert_eq!(self.reads, Reads::rebuild(self.engine.state()), "{:?}", step.records);
        step.reply.ok()
    }

    fn spec(&mut self) -> JobSpec {
        let mut spec = JobSpec::shell("true");
        spec.retry.job_failure = self.random(2) as u32;
        match self.random(3) {
            0 => spec.array = Some("0-9".parse().unwrap()),
            1 => spec.array = Some("1,3,7-9%2".parse().unwrap()),
            _ => spec.hold = self.random(3) == 0,
        }
        let newest = self.engine.state().next_job.saturating_sub(1);
        if newest > 0 && self.random(3) == 0 {
            let on = [DependOn::Ok, DependOn::Failed, DependOn::Any][self.random(3) as usize];
            spec.after = vec![Dependency { job: JobId(newest), on }];
        }
        spec
    }

    fn report(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let chosen = self.random(self.running.len() as u64) as usize;
        let lease = self.running[chosen];
        let status = ExitStatus::Code(i32::from(self.random(4) == 0));
        let phase = match self.random(3) {
            0 => ReportedPhase::Running { exits: Vec::new() },
            _ => {
                let exit = RankExit { rank: Rank(0), status, at: Time(self.now) };
                ReportedPhase::Done { exits: vec![exit], error: None }
            }
        };
        let report = PartReport::new(lease, phase);
        self.step(Command::Report { node: self.node, session: 1, report });
    }

    fn target(&mut self) -> TaskId {
        let job = JobId(1 + self.random(self.engine.state().next_job.max(1)));
        let index = (self.random(2) == 0).then(|| self.random(10) as u32);
        TaskId { job, index }
    }

    fn anything(&mut self) {
        match self.random(12) {
            0 => {
                let spec = Box::new(self.spec());
                self.step(Command::Submit { actor: actor(), spec, user: None, key: None });
            }
            1 => {
                let target = self.target();
                self.step(Command::Cancel { actor: actor(), target });
            }
            2 => {
                let job = self.target().job;
                self.step(Command::Release { actor: actor(), job });
            }
            3 => {
                self.now += 2000;
                self.step(Command::Tick);
            }
            4..=6 => {
                let step = self.engine.schedule(Time(self.now));
                self.take(step);
            }
            _ => self.report(),
        }
    }
}

#[test]
fn steps_and_rebuild_agree() {
    for seed in 1..40 {
        let mut rig = Rig::new(seed);
        for _ in 0..300 {
            rig.anything();
        }
        let state = rig.engine.state();
        for job in state.jobs.values() {
            let found = rig.reads.array(job.id).map_or_else(|| job.state(), ArraySums::state);
            assert_eq!(found, job.state(), "job {}", job.id);
            assert!(rig.reads.jobs_in(job.state()).contains(&job.id));
        }
    }
}

#[test]
fn a_task_that_never_ran_spoils_the_code_of_its_array() {
    let ended = |outcome, exit_code| Ended {
        outcome,
        exit_code,
        reason: EndReason::Finished,
        started_at: None,
        ended_at: Time(1),
        attempts: 1,
        restarts: Restarts::default(),
        nodes: Vec::new(),
        gpus: 0,
        last_ran: None,
        between: Span(0),
        away: Span::default(),
        output_dropped: 0,
    };
    let code = |tasks: &[(Outcome, Option<i32>)]| {
        let mut sums = ArraySums::default();
        tasks.iter().for_each(|&(outcome, code)| sums.ended(&ended(outcome, code)));
        sums.exit_code
    };
    let fine = (Outcome::Completed, Some(0));
    assert_eq!(code(&[]), None);
    assert_eq!(code(&[fine, fine]), Some(0));
    assert_eq!(code(&[fine, (Outcome::Cancelled, None)]), Some(1));
    assert_eq!(code(&[(Outcome::Failed, None), fine]), Some(1));
    assert_eq!(code(&[(Outcome::Failed, Some(137)), (Outcome::Cancelled, None)]), Some(137));
}
