//! When ended jobs leave the state, and which of them may.

use proptest::prelude::*;
use tutti_model::{ExitStatus, JobId, JobSpec, NodeId, Span, State, TaskId, Time};

use super::world::{World, admin, gang};
use crate::{Command, Engine, Event, Record, Reply, Settings, apply, forgettable, invariants};

const N1: NodeId = NodeId(1);

fn world(settings: Settings) -> World {
    let mut world = World::new(&[8]);
    let state = world.engine.state().clone();
    world.engine = Engine::restore(state, settings);
    world.hello("n1", 8, Vec::new());
    world
}

fn archived(keep: u64, jobs_kept: usize) -> Settings {
    Settings { keep_jobs_for: Span::secs(keep), jobs_kept, archived: true, ..Settings::default() }
}

fn ended(world: &mut World) -> JobId {
    let job = world.submit(gang(1, 1));
    let lease = world.run(job);
    world.done(N1, lease, &[(0, ExitStatus::Code(0))]);
    job
}

fn due(world: &World) -> Vec<JobId> {
    forgettable(world.engine.state(), world.engine.settings(), world.now).collect()
}

#[test]
fn what_is_archived_is_forgotten_when_it_is_said_and_not_by_the_clock() {
    let mut world = world(archived(10, 100));
    let job = ended(&mut world);
    assert_eq!(due(&world), []);
    world.wait(60, &[]);
    assert_eq!(due(&world), [job]);
    assert!(world.engine.state().job(job).is_some());
    let step = world.step(Command::Forget { jobs: vec![job] });
    assert_eq!(step.reply, Ok(Reply::Tasks(1)));
    assert!(world.engine.state().job(job).is_none());
    let again = world.step(Command::Forget { jobs: vec![job] });
    assert_eq!((again.reply, again.records.len()), (Ok(Reply::Tasks(0)), 0));
}

#[test]
fn without_an_archive_the_clock_is_enough() {
    let mut world = world(Settings { archived: false, ..archived(10, 100) });
    let job = ended(&mut world);
    world.wait(60, &[]);
    assert!(world.engine.state().job(job).is_none());
}

#[test]
fn more_than_may_be_kept_are_due_at_once_the_oldest_first() {
    let mut world = world(archived(1_000_000, 2));
    let jobs: Vec<JobId> = (0..5).map(|_| ended(&mut world)).collect();
    assert_eq!(due(&world), jobs[..3]);
}

#[test]
fn a_job_that_somebody_waits_for_stays() {
    let mut world = world(archived(0, 100));
    let first = ended(&mut world);
    let next = JobSpec { hold: true, ..gang(1, 1) };
    let next = JobSpec { after: vec![first.to_string().parse().unwrap()], ..next };
    let next = world.submit(next);
    assert_eq!(due(&world), []);
    let step = world.step(Command::Forget { jobs: vec![first] });
    assert_eq!((step.reply, step.records.len()), (Ok(Reply::Tasks(0)), 0));
    world.step(Command::Cancel { actor: admin(), target: TaskId::single(next) });
    assert_eq!(due(&world), [first, next]);
}

#[test]
fn a_hundred_thousand_ended_jobs_leave_the_state() {
    let mut state = State::default();
    let spec = std::sync::Arc::new(JobSpec::shell("true"));
    let mut seq = 0;
    let mut put = |state: &mut State, event| {
        seq += 1;
        apply(state, &Record { seq: tutti_model::Seq(seq), at: Time(seq), event });
    };
    for id in 1..=100_000 {
        let (job, user, spec) = (JobId(id), "ada".to_owned(), spec.clone());
        put(
            &mut state,
            Event::JobSubmitted {
                job,
                user,
                spec,
                key: None,
                team: None,
                replica_of: None,
                texts: Default::default(),
            },
        );
        let ended = tutti_model::Ended {
            outcome: tutti_model::Outcome::Cancelled,
            exit_code: None,
            reason: tutti_model::EndReason::Cancelled { by: "ada".into() },
            started_at: None,
            ended_at: Time(id),
            attempts: 0,
            restarts: Default::default(),
            nodes: Vec::new(),
            gpus: 0,
            away: Span(0),
            last_ran: None,
            output_dropped: 0,
            between: Span(0),
        };
        put(&mut state, Event::TaskEnded { task: TaskId::single(job), ended });
    }
    let mut engine = Engine::restore(state, archived(0, 10));
    loop {
        let now = Time(1_000_000);
        let jobs = forgettable(engine.state(), engine.settings(), now).take(1000).collect();
        let step = engine.step(Command::Forget { jobs }, now);
        if step.records.is_empty() {
            break;
        }
    }
    let state = engine.state();
    assert!(state.jobs.is_empty() && state.index.ended.is_empty());
    assert_eq!(invariants::check_all(state), []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is named, only what is over and what nobody waits for goes.
    #[test]
    fn nothing_is_forgotten_that_matters(
        steps in proptest::collection::vec((0..5u8, 1..12u64, proptest::bool::ANY), 1..40),
    ) {
        let mut world = world(archived(0, 100));
        for (what, n, chained) in steps {
            match what {
                0 | 1 => {
                    let id = JobId(n);
                    let mut spec = gang(1, 1);
                    if chained && world.engine.state().job(id).is_some() {
                        spec.after = vec![format!("any:{id}").parse().unwrap()];
                    }
                    world.submit(spec);
                }
                2 => {
                    let target = TaskId::single(JobId(n));
                    world.step(Command::Cancel { actor: admin(), target });
                }
                _ => {
                    let before = world.engine.state().clone();
                    world.step(Command::Forget { jobs: (n..n + 4).map(JobId).collect() });
                    for (id, job) in &before.jobs {
                        if world.engine.state().job(*id).is_none() {
                            prop_assert!(job.is_over(), "{id} was not over");
                            prop_assert!(!before.index.dependents.contains_key(id));
                        }
                    }
                }
            }
        }
    }
}
