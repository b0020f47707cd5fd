use tutti_engine::{Actor, Command, Effect, Reply};
use tutti_model::{
    ExitStatus, GpuRequest, Greeting, JobId, LeaseId, NodeId, Order, PartReport, Rank, RankExit,
    ReportedPhase, Role,
};

use super::*;
use crate::cluster::NodeBuilder;

const NODE: NodeId = NodeId(1);

/// One node with eight GPUs, and all that its journal holds.
struct Past {
    engine: Engine,
    now: Time,
    session: u64,
    records: Vec<Record>,
    started: Vec<LeaseId>,
}

fn admin() -> Actor {
    Actor { user: "ada".to_owned(), role: Role::Admin }
}

impl Past {
    fn new() -> Past {
        let mut past = Past {
            engine: Engine::new(Settings::default()),
            now: Time(1_000_000),
            session: 0,
            records: Vec::new(),
            started: Vec::new(),
        };
        past.command(Command::Start);
        past.hello();
        past
    }

    fn hello(&mut self) {
        self.session += 1;
        let facts = NodeBuilder::new("n1").gpus("h100", 8, 80).build();
        let greeting = Box::new(Greeting::new(facts, Vec::new()));
        self.command(Command::Hello { greeting, session: self.session, key: None });
    }

    fn command(&mut self, command: Command) -> Reply {
        let step = self.engine.step(command, self.now);
        let reply = step.reply.clone().expect("it is done");
        let mut steps = vec![step];
        while self.engine.wants_schedule() {
            steps.push(self.engine.schedule(self.now));
        }
        for step in steps {
            self.records.extend(step.records);
            for Effect::Tell { order, .. } in step.effects {
                self.started.extend(match order {
                    Order::Start(launch) => Some(launch.lease),
                    _ => None,
                });
            }
        }
        reply
    }

    fn submit(&mut self, gpus: u32, array: Option<&str>) -> JobId {
        let mut spec = JobSpec::shell("true");
        spec.gpus_per_node = Some(GpuRequest { model: None, count: gpus });
        spec.array = array.map(|a| a.parse().unwrap());
        let spec = Box::new(spec);
        let submit = Command::Submit { actor: admin(), spec, user: None, key: None };
        let Reply::Submitted { job, .. } = self.command(submit) else { panic!("no job") };
        job
    }

    fn report(&mut self, lease: LeaseId, phase: ReportedPhase) {
        let report = PartReport::new(lease, phase);
        self.command(Command::Report { node: NODE, session: self.session, report });
    }

    fn done(&mut self, lease: LeaseId) {
        let exit = RankExit { rank: Rank(0), status: ExitStatus::Code(0), at: self.now };
        self.report(lease, ReportedPhase::Done { exits: vec![exit], error: None });
    }

    fn after(&mut self, span: Span) {
        self.now = self.now.plus(span);
    }

    /// From the records, and from a snapshot of what they come to: both must say the same.
    fn read(&self) -> Trace {
        let mut by_record = History::default();
        self.records.iter().for_each(|r| by_record.record(r));
        let mut by_snapshot = History::default();
        by_snapshot.snapshot(self.engine.state().clone());
        let (by_record, by_snapshot) = (by_record.finish(self.now), by_snapshot.finish(self.now));
        assert_eq!(by_record.0, by_snapshot.0);
        by_record.0
    }
}

fn runs(trace: &Trace) -> Vec<(&str, u64)> {
    trace.jobs.iter().map(|j| (j.name.as_str(), j.run.0)).collect()
}

/// A task that is over before its node says that it runs has run all the same.
#[test]
fn short_tasks_are_there() {
    let mut past = Past::new();
    past.submit(1, Some("1-3"));
    past.after(Span(40));
    let [first, second, third] = past.started[..] else { panic!("{:?}", past.started) };
    past.done(first);
    past.after(Span(20));
    past.done(second);
    past.report(third, ReportedPhase::Running { exits: Vec::new() });
    past.after(Span(5));
    past.done(third);
    past.submit(1, None);
    past.done(past.started[3]);
    let trace = past.read();
    assert_eq!(runs(&trace), [("1_1", 40), ("1_2", 60), ("1_3", 5), ("2", 1)]);
    assert_eq!(trace.skipped, 0);
}

#[test]
fn the_last_attempt_counts() {
    let mut past = Past::new();
    past.submit(8, None);
    let lease = past.started[0];
    past.report(lease, ReportedPhase::Running { exits: Vec::new() });
    past.after(Span::secs(500));
    // It comes back and knows nothing of the job.
    past.hello();
    let again = *past.started.last().unwrap();
    assert_ne!(again, lease);
    past.report(again, ReportedPhase::Running { exits: Vec::new() });
    past.after(Span::secs(70));
    past.done(again);
    assert_eq!(runs(&past.read()), [("1", 70_000)]);
}

#[test]
fn what_was_cancelled_while_it_waited_again_had_run() {
    let mut past = Past::new();
    let job = past.submit(8, None);
    past.report(past.started[0], ReportedPhase::Running { exits: Vec::new() });
    past.after(Span::secs(500));
    let (node, reason) = ("n1".to_owned(), "repair".to_owned());
    past.command(Command::Drain { actor: admin(), node, reason, evict: false });
    past.hello();
    past.after(Span::secs(100));
    assert_eq!(runs(&past.read()), [("1", 500_000)]);
    past.command(Command::Cancel { actor: admin(), target: TaskId::single(job) });
    assert_eq!(runs(&past.read()), [("1", 500_000)]);
}

/// Nothing is written down while a job runs on, so the last record does not say how long it has.
#[test]
fn what_runs_has_run_until_now() {
    let mut past = Past::new();
    past.submit(8, None);
    past.after(Span::secs(10));
    past.report(past.started[0], ReportedPhase::Running { exits: Vec::new() });
    past.after(Span::secs(3600));
    assert_eq!(runs(&past.read()), [("1", 3_600_000)]);
}

#[test]
fn only_what_never_was_placed_is_left_out() {
    let mut past = Past::new();
    past.submit(8, None);
    let array = past.submit(1, Some("1-5"));
    past.submit(1, None);
    past.after(Span::secs(1));
    assert_eq!((runs(&past.read()), past.read().skipped), (vec![("1", 1000)], 6));
    let target = TaskId::single(array);
    past.command(Command::Cancel { actor: admin(), target });
    assert_eq!((runs(&past.read()), past.read().skipped), (vec![("1", 1000)], 6));
}
