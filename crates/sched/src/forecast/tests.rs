use std::sync::Arc;

use proptest::prelude::*;
use tutti_model::*;

use crate::imagine::World;
use crate::pass::WhatIf;
use crate::testing::*;

const HOUR: Span = Span::secs(3600);

fn hours(n: u64) -> Span {
    Span(n * HOUR.0)
}

fn late(c: &Case, task: &str) -> Option<Time> {
    c.explain(task).forecast.and_then(|f| f.late)
}

/// When something that runs since before now, with this limit, ends.
fn end(limit: Span) -> Option<Time> {
    Some(Time(NOW.0 - 10_000 + limit.0))
}

#[test]
fn it_walks_the_ends_and_leaves_room_for_those_ahead() {
    let c = case().nodes(2, 8).running(time(HOUR, gpus(8)), &[(1, ALL)]);
    let c = c.running(time(hours(2), gpus(8)), &[(2, ALL)]).submit(gpus(8));
    assert_eq!(late(&c, "3"), end(HOUR));
    let c = c.submit(gpus(1)).submit(gang(2, 8));
    assert_eq!(late(&c, "4"), end(hours(2)));
    assert_eq!(late(&c, "5"), None, "those ahead have no limit");
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).submit(gpus(8));
    assert_eq!(c.explain("2").forecast, None, "the holder has no limit");
}

#[test]
fn those_ahead_run_and_end_as_well() {
    let c = case().nodes(1, 8).running(time(HOUR, gpus(8)), &[(1, ALL)]);
    let c = c.submit(time(hours(3), gpus(8))).submit(gpus(8));
    assert_eq!(late(&c, "3"), end(hours(4)));
}

#[test]
fn an_array_at_its_limit_goes_on_when_one_of_its_own_ends() {
    let c = case().nodes(1, 8).submit(array("0-9%1", time(HOUR, gpus(1))));
    let c = c.running_index(0, &[(1, &[0])]);
    assert_eq!(late(&c, "1"), end(HOUR));
    assert_eq!(late(&c, "1_5"), end(hours(5)), "four siblings go before");
}

#[test]
fn what_was_learned_gives_the_early_end() {
    let mut c = case().nodes(1, 8).running(time(hours(10), gpus(8)), &[(1, ALL)]).submit(gpus(8));
    let key = RunKey::of(c.state.job(JobId(1)).unwrap());
    for n in [2, 1, 3] {
        c.state.learned.note_run(key.clone(), hours(n));
    }
    let forecast = c.explain("2").forecast.unwrap();
    assert_eq!((Some(forecast.early), forecast.late), (end(hours(2)), end(hours(10))));
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).submit(gpus(8));
    let c = Case { state: State { learned: learned(key), ..c.state }, ..c };
    let forecast = c.explain("2").forecast.unwrap();
    assert_eq!((Some(forecast.early), forecast.late), (end(hours(2)), None), "no limit");
}

fn learned(key: RunKey) -> Learned {
    let mut learned = Learned::default();
    for n in [2, 1, 3] {
        learned.note_run(key.clone(), hours(n));
    }
    learned
}

#[test]
fn waiting_for_jobs_back_off_and_reservations_is_foreseen() {
    let c = case().nodes(1, 8).running(time(HOUR, gpus(4)), &[(1, &[0, 1, 2, 3])]);
    let c = c.submit(after("any:1", gpus(1)));
    assert_eq!(late(&c, "2"), end(HOUR));
    let until = NOW.plus(HOUR);
    let wait = |t: &mut Task| t.phase = Phase::Pending { since: NOW, not_before: until };
    let c = case().nodes(1, 8).submit(gpus(8)).change_task(wait);
    assert_eq!(late(&c, "1"), Some(until));
    let c = case().nodes(1, 8).submit(JobSpec { hold: true, ..gpus(1) });
    assert_eq!(late(&c, "1"), None, "somebody must release it");
    let (name, nodes) = ("work".to_owned(), ["n1".to_owned()].into());
    let reservation = Reservation { name, nodes, from: Time(NOW.0 - 1), until, team: None };
    let c = case().nodes(1, 8).policy(|p| p.reservations.push(reservation)).submit(gpus(8));
    assert_eq!(late(&c, "1"), Some(until));
}

/// Runs the cluster from here on by the same pass, everybody using all their time, step by step.
fn replay(c: &Case, task: TaskId, steps: usize) -> Option<Time> {
    let mut world = World::new(&c.state(), &c.policy, usize::MAX);
    let mut at = NOW;
    for _ in 0..steps {
        let plan = world.plan(at, WhatIf { peaceful: true, ..WhatIf::default() })?;
        if plan.placements.iter().any(|p| p.task == task) {
            return Some(at);
        }
        world.carry_out(plan, at);
        at = world.state.index.limits.first()?.0;
        let limits = world.state.index.limits.iter();
        let over: Vec<TaskId> = limits.take_while(|(end, _)| *end == at).map(|l| l.1).collect();
        over.into_iter().for_each(|task| world.end(task, at));
    }
    None
}

fn jobs() -> impl Strategy<Value = Vec<(u32, u32, u64, bool)>> {
    prop::collection::vec((1u32..4, 1u32..9, 1u64..9, prop::bool::ANY), 2..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// What is foretold with limits comes true when everybody uses them.
    #[test]
    fn the_forecast_comes_true(jobs in jobs()) {
        let mut c = case().nodes(3, 8);
        for &(nodes, gpus, limit, urgent) in &jobs {
            let spec = time(hours(limit), gang(nodes, gpus));
            c = c.submit(if urgent { class("urgent", spec) } else { spec });
        }
        let plan = c.plan();
        for placement in &plan.placements {
            let job = Arc::make_mut(c.state.jobs.get_mut(&placement.task.job).unwrap());
            activate(task_mut(job, None), &placement.parts, NOW);
        }
        for id in c.state.jobs.keys().copied().collect::<Vec<_>>() {
            let task = TaskId::single(id);
            if c.state.job(id).unwrap().state() == JobState::Pending {
                let forecast = c.explain(&task.to_string()).forecast;
                prop_assert_eq!(forecast.and_then(|f| f.late), replay(&c, task, 1000));
            }
        }
    }
}

#[test]
fn one_look_ahead_says_the_same_as_one_for_each() {
    let c = case().nodes(2, 8).running(time(HOUR, gpus(8)), &[(1, ALL)]);
    let c = c.running(time(hours(2), gpus(8)), &[(2, ALL)]).submit(time(HOUR, gpus(8)));
    let c = c.submit(time(hours(3), gpus(4))).submit(array("0-3%2", time(HOUR, gpus(2))));
    let c = c.submit(time(HOUR, gang(2, 8))).submit(gpus(8));
    let all = crate::forecasts(&c.state(), &c.policy, NOW);
    for task in ["3", "4", "5", "6", "7"] {
        let alone = c.explain(task).forecast;
        assert!(alone.is_some(), "{task}");
        assert_eq!(all.get(&task.parse().unwrap()).copied(), alone, "{task}");
    }
}

#[test]
fn what_nobody_knows_is_left_out() {
    let c = case().nodes(1, 8).running(gpus(8), &[(1, ALL)]).submit(gpus(8));
    assert!(crate::forecasts(&c.state(), &c.policy, NOW).is_empty());
}
