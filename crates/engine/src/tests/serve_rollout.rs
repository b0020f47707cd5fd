//! From one revision to another.

use tutti_model::{
    ExitStatus, JobId, JobSpec, JobState, Replicas, RolloutStage, Span, TaskId, Traffic,
};

use super::serve::{Routers, chat, with_service};
use super::world::{World, ada};
use crate::{Command, EndpointRefused, Rejected, Reply};

pub fn revised(min: u32, max: u32) -> JobSpec {
    let mut spec = chat(min, max);
    spec.env.insert("VERSION".into(), "2".into());
    spec
}

pub fn traffic(requests: u64, errors: u64) -> Traffic {
    let mut traffic = Traffic { requests, errors, ..Traffic::default() };
    (0..requests).for_each(|_| traffic.first_byte.add(50_000));
    traffic
}

pub fn ready_of(world: &World, revision: u32) -> usize {
    world.endpoint().ready().filter(|(_, r)| r.revision == revision).count()
}

pub fn stage(world: &World) -> Option<RolloutStage> {
    world.endpoint().rollout.as_ref().map(|r| r.stage)
}

pub fn quiet() -> Routers {
    Routers { know_draining: true, in_flight: 35, ..Routers::default() }
}

/// Four replicas of revision 1 that answer.
pub fn four(gpus: &[u16], spec: JobSpec) -> World {
    let mut world = World::new(gpus);
    world.serve(spec);
    world.serve_on(2, &quiet());
    assert_eq!(world.ready().len(), 4);
    world
}

#[test]
fn an_exchange_never_has_fewer_that_answer() {
    let mut world = four(&[8], chat(4, 4));
    assert_eq!(world.update(revised(4, 4), None), 2);
    assert_eq!(extremes(&mut world, 20), (4, 5), "one on top while they are exchanged");
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (0, 4));
    assert!(matches!(stage(&world), Some(RolloutStage::Watching { .. })), "{:?}", stage(&world));
    world.serve_on(60, &quiet());
    assert_eq!((stage(&world), world.endpoint().current), (None, 2));
}

#[test]
fn where_there_is_no_room_one_goes_first_but_never_the_last() {
    let mut world = four(&[4], chat(4, 4));
    world.update(revised(4, 4), None);
    world.serve_on(29, &quiet());
    assert_eq!(ready_of(&world, 1), 4, "room may come");
    let mut least = usize::MAX;
    for _ in 0..200 {
        world.serve_on(1, &quiet());
        least = least.min(world.ready().len());
    }
    assert_eq!((least, ready_of(&world, 2)), (3, 4));
    let mut world = World::new(&[1]);
    world.serve(chat(1, 1));
    world.serve_on(1, &quiet());
    world.update(revised(1, 1), None);
    world.serve_on(300, &quiet());
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (1, 0), "it would answer nothing");
}

fn one_for_one(spec: JobSpec) -> JobSpec {
    with_service(spec, |s| s.rollout.surge = 0)
}

/// The fewest that answer and the most that are there, over so many seconds.
fn extremes(world: &mut World, seconds: u64) -> (usize, usize) {
    let (mut least, mut most) = (usize::MAX, 0);
    for _ in 0..seconds {
        world.serve_on(1, &quiet());
        (least, most) = (least.min(world.ready().len()), most.max(world.replicas().len()));
    }
    (least, most)
}

#[test]
fn without_surge_an_old_one_goes_first_one_at_a_time() {
    let mut world = four(&[8], chat(4, 4));
    world.update(one_for_one(revised(4, 4)), None);
    assert_eq!(extremes(&mut world, 30), (3, 4), "never one more, though there is room");
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (0, 4));
    let mut world = World::new(&[1]);
    world.serve(chat(1, 1));
    world.serve_on(1, &quiet());
    world.update(one_for_one(revised(1, 1)), None);
    assert_eq!(extremes(&mut world, 10), (0, 1));
    assert_eq!(ready_of(&world, 2), 1);
}

#[test]
fn without_surge_nobody_else_goes_while_the_new_one_waits_or_fails() {
    let mut world = four(&[4], chat(4, 4));
    world.update(one_for_one(revised(4, 4)), None);
    let mute = Routers { mute: (5..50).map(JobId).collect(), ..quiet() };
    world.serve_on(50, &mute);
    assert_eq!((ready_of(&world, 1), world.replicas().len()), (3, 4), "it loads");
    world.serve_on(60, &mute);
    assert_eq!((stage(&world), world.endpoint().current), (None, 1), "it was never ready");
    world.serve_on(2, &quiet());
    assert_eq!(ready_of(&world, 1), 4);
}

#[test]
fn who_is_stuck_is_told_the_way_out_and_it_works() {
    let mut world = World::new(&[1]);
    world.serve(chat(1, 1));
    world.serve_on(1, &quiet());
    world.update(revised(1, 1), None);
    world.serve_on(31, &quiet());
    let verdict = world.engine.endpoint_verdict("chat", world.now).unwrap();
    let words = verdict.rollout.unwrap();
    let way_out = ["no room for revision 2", "`surge = 0`", "tutti endpoints update chat FILE"];
    assert!(way_out.iter().all(|part| words.contains(part)), "{words}");
    assert_eq!(world.update(one_for_one(revised(1, 1)), None), 3);
    world.serve_on(10, &quiet());
    assert_eq!((ready_of(&world, 3), world.replicas().len()), (1, 1));
    assert_eq!(world.engine.endpoint_verdict("chat", world.now).unwrap().rollout, None);
}

#[test]
fn replicas_of_one_port_are_exchanged_one_by_one() {
    let fixed = |spec| with_service(spec, |s| s.port = Some(8000));
    let mut world = World::new(&[4, 4]);
    world.serve(fixed(chat(2, 2)));
    world.serve_on(2, &quiet());
    assert_eq!(world.ready().len(), 2);
    let nodes = |world: &World| -> Vec<_> {
        let jobs = world.replicas().into_iter().filter_map(|(id, _)| world.engine.state().job(id));
        let attempts = jobs.filter_map(|job| job.task(None)?.attempt());
        attempts.flat_map(|a| a.parts.iter().map(|p| p.node)).collect()
    };
    assert_ne!(nodes(&world)[0], nodes(&world)[1]);
    world.update(fixed(revised(2, 2)), None);
    let mut least = usize::MAX;
    for _ in 0..150 {
        world.serve_on(1, &quiet());
        least = least.min(world.ready().len());
        let all = nodes(&world);
        let once: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(all.len(), once.len(), "two on one node");
    }
    assert_eq!((least, ready_of(&world, 2)), (1, 2));
}

#[test]
fn settings_of_routers_need_no_new_replicas() {
    let mut world = four(&[8], chat(4, 4));
    let before = world.ready();
    let spec = with_service(chat(2, 6), |s| s.queue = 7);
    assert_eq!(world.update(spec.clone(), None), 2);
    assert_eq!((stage(&world), world.ready()), (None, before));
    assert_eq!(world.endpoint().bounds(), Replicas { min: 2, max: 6 });
    assert_eq!(ready_of(&world, 2), 4, "they are of the new one");
    assert_eq!(crate::route_table(world.engine.state()).endpoints[0].queue, 7);
    assert_eq!(world.update(spec, None), 2, "nothing is new");
}

pub fn canary() -> JobSpec {
    with_service(revised(4, 4), |s| (s.rollout.canary, s.rollout.bake) = (25, Span::secs(30)))
}

#[test]
fn a_canary_that_does_well_takes_over() {
    let mut world = four(&[8], chat(4, 4));
    world.update(canary(), None);
    world.serve_on(3, &quiet());
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (4, 1));
    let split: Vec<(u32, u32)> = crate::route_table(world.engine.state()).endpoints[0]
        .split
        .iter()
        .map(|s| (s.revision, s.milli))
        .collect();
    assert_eq!(split, [(1, 750), (2, 250)]);
    world.serve_on(60, &quiet());
    assert!(matches!(stage(&world), Some(RolloutStage::Canary { .. })), "nobody has asked it");
    let well =
        Routers { revisions: [(1, traffic(300, 1)), (2, traffic(100, 1))].into(), ..quiet() };
    world.serve_on(30, &well);
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (0, 4));
    world.serve_on(40, &well);
    assert_eq!((stage(&world), world.endpoint().current), (None, 2));
}

#[test]
fn a_canary_that_fails_is_taken_back_at_once() {
    let mut world = four(&[8], chat(4, 4));
    world.update(canary(), None);
    world.serve_on(3, &quiet());
    let badly =
        Routers { revisions: [(1, traffic(300, 1)), (2, traffic(30, 6))].into(), ..quiet() };
    world.serve_on(2, &badly);
    assert_eq!((stage(&world), world.endpoint().current), (None, 1));
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (4, 0));
    let why = world.endpoint().revisions[&2].taken_back.clone().unwrap();
    assert!(why.contains("20.0% of its requests fail"), "{why}");
    world.serve_on(5, &badly);
    assert_eq!(world.replicas().len(), 4);
    let refused = roll_back(&mut world, None).unwrap_err();
    assert_eq!(refused, Rejected::Endpoint(EndpointRefused::NothingToRollBackTo("chat".into())));
}

#[test]
fn a_person_may_promote_a_canary() {
    let mut world = four(&[8], chat(4, 4));
    world.update(canary(), None);
    world.serve_on(3, &quiet());
    assert_eq!(world.update(canary(), Some(100)), 2);
    assert_eq!(stage(&world), Some(RolloutStage::Rolling));
}

#[test]
fn a_slow_revision_is_taken_back_while_it_is_watched() {
    let mut world = four(&[8], chat(4, 4));
    world.update(revised(4, 4), None);
    world.serve_on(20, &quiet());
    assert!(matches!(stage(&world), Some(RolloutStage::Watching { .. })));
    let mut slow = Traffic { requests: 40, ..Traffic::default() };
    (0..40).for_each(|_| slow.first_byte.add(900_000));
    let routers = Routers { revisions: [(1, traffic(300, 1)), (2, slow)].into(), ..quiet() };
    let mut least = usize::MAX;
    for _ in 0..20 {
        world.serve_on(1, &routers);
        least = least.min(world.ready().len());
    }
    assert_eq!((least, ready_of(&world, 1), world.endpoint().current), (4, 4, 1));
    assert!(world.endpoint().revisions[&2].taken_back.is_some());
}

#[test]
fn a_revision_whose_replicas_fail_is_taken_back() {
    let mut world = four(&[8], chat(4, 4));
    world.update(revised(4, 4), None);
    for _ in 0..3 {
        while !new_one_runs(&mut world) {
            world.wait(1, &[]);
        }
        let job = newest(&world);
        let (node, lease) = (world.nodes_of(job)[0], world.lease(TaskId::single(job)));
        world.done(node, lease, &[(0, ExitStatus::Code(1))]);
    }
    world.serve_on(2, &quiet());
    assert_eq!((stage(&world), world.endpoint().current, ready_of(&world, 1)), (None, 1, 4));
    let why = world.endpoint().revisions[&2].taken_back.clone().unwrap();
    assert!(why.contains("3 replicas failed"), "{why}");
    assert_eq!(world.endpoint().failures, 0);
}

fn newest(world: &World) -> JobId {
    world.replicas().into_iter().map(|(id, _)| id).max().unwrap()
}

fn new_one_runs(world: &mut World) -> bool {
    world.start_and_stop();
    let replica = &world.endpoint().replicas[&newest(world)];
    replica.revision == 2 && world.state_of(newest(world)) == JobState::Running
}

#[test]
fn a_revision_that_is_never_ready_is_taken_back() {
    let mut world = four(&[8], chat(4, 4));
    world.update(revised(4, 4), None);
    let mute = Routers { mute: (5..50).map(JobId).collect(), ..quiet() };
    world.serve_on(99, &mute);
    assert!(stage(&world).is_some());
    world.serve_on(5, &mute);
    assert_eq!((stage(&world), world.endpoint().current, ready_of(&world, 1)), (None, 1, 4));
}

pub fn roll_back(world: &mut World, to: Option<u32>) -> Result<u32, Rejected> {
    let command = Command::RollBack { actor: ada(), name: "chat".into(), to };
    match world.step(command).reply? {
        Reply::Endpoint { revision, .. } => Ok(revision),
        other => panic!("it was answered with {other:?}"),
    }
}

#[test]
fn a_person_goes_back_during_and_after_a_rollout() {
    let mut world = four(&[8], chat(4, 4));
    world.update(revised(4, 4), None);
    world.serve_on(2, &quiet());
    assert_eq!(roll_back(&mut world, None), Ok(1));
    world.serve_on(5, &quiet());
    assert_eq!((stage(&world), world.endpoint().current, ready_of(&world, 1)), (None, 1, 4));
    let mut third = revised(4, 4);
    third.env.insert("VERSION".into(), "3".into());
    world.update(third, None);
    world.serve_on(90, &quiet());
    assert_eq!((stage(&world), world.endpoint().current), (None, 3));
    assert_eq!(roll_back(&mut world, None), Ok(1), "2 was taken back");
    world.serve_on(90, &quiet());
    assert_eq!((stage(&world), world.endpoint().current, ready_of(&world, 1)), (None, 1, 4));
    let refused = roll_back(&mut world, Some(1)).unwrap_err();
    let there = EndpointRefused::AlreadyThere { endpoint: "chat".into(), revision: 1 };
    assert_eq!(refused, Rejected::Endpoint(there));
    let unknown = roll_back(&mut world, Some(9)).unwrap_err();
    let none = EndpointRefused::NoSuchRevision { endpoint: "chat".into(), revision: 9 };
    assert_eq!(unknown, Rejected::Endpoint(none));
    assert_eq!(roll_back(&mut world, Some(2)), Ok(2));
    world.serve_on(90, &quiet());
    assert_eq!((stage(&world), world.endpoint().current, ready_of(&world, 2)), (None, 2, 4));
}

fn third_revision() -> JobSpec {
    let mut third = revised(4, 4);
    third.env.insert("VERSION".into(), "3".into());
    third
}

fn passed_over(world: &mut World, command: Command) -> (u32, Vec<u32>) {
    match world.step(command).reply {
        Ok(Reply::Endpoint { revision, passed_over, .. }) => (revision, passed_over),
        other => panic!("it was answered with {other:?}"),
    }
}

fn update_to(spec: JobSpec) -> Command {
    let (actor, name) = (ada(), "chat".into());
    Command::UpdateEndpoint { actor, name, spec: Box::new(spec), canary: None }
}

fn last_word(world: &World) -> String {
    world.endpoint().chronicle.last().unwrap().text.clone()
}

#[test]
fn what_answers_on_probation_is_not_passed_over_without_a_word() {
    let mut world = four(&[8], chat(4, 4));
    world.update(revised(4, 4), None);
    while !matches!(stage(&world), Some(RolloutStage::Watching { .. })) {
        world.serve_on(1, &quiet());
    }
    assert_eq!(passed_over(&mut world, update_to(third_revision())), (3, vec![2]));
    assert!(
        last_word(&world).contains("revision 2 was on probation, so a rollback goes to revision 1")
    );
    let back = || Command::RollBack { actor: ada(), name: "chat".into(), to: None };
    assert_eq!(passed_over(&mut world, back()), (1, vec![2]));
    let said = last_word(&world);
    assert!(
        said.contains("revision 1 returns, passing over what was on probation: revision 2"),
        "{said}"
    );
    // The same after the rollout, when 3 is in charge and 2 never was.
    let mut world = four(&[8], chat(4, 4));
    world.update(revised(4, 4), None);
    while !matches!(stage(&world), Some(RolloutStage::Watching { .. })) {
        world.serve_on(1, &quiet());
    }
    world.update(third_revision(), None);
    world.serve_on(120, &quiet());
    assert_eq!((stage(&world), world.endpoint().current), (None, 3));
    assert_eq!(passed_over(&mut world, back()), (1, vec![2]));
    let said = last_word(&world);
    assert!(said.contains("goes back to revision 1, passing over what was on probation"), "{said}");
    // Who names it gets it.
    let named = Command::RollBack { actor: ada(), name: "chat".into(), to: Some(2) };
    assert_eq!(passed_over(&mut world, named), (2, Vec::new()));
}

#[test]
fn other_settings_of_what_serves_have_served_too() {
    let mut world = four(&[8], chat(4, 4));
    assert_eq!(world.update(with_service(chat(4, 4), |s| s.queue = 7), None), 2);
    world.serve_on(2, &quiet());
    world.update(third_revision(), None);
    world.serve_on(120, &quiet());
    assert_eq!((stage(&world), world.endpoint().current), (None, 3));
    assert_eq!(roll_back(&mut world, None), Ok(2), "its replicas were the first one's");
}

#[test]
fn a_second_update_takes_the_place_of_the_first() {
    let mut world = four(&[8], chat(4, 4));
    world.update(revised(4, 4), None);
    world.serve_on(3, &quiet());
    assert!(ready_of(&world, 2) > 0);
    let mut third = revised(4, 4);
    third.env.insert("VERSION".into(), "3".into());
    assert_eq!(world.update(third, None), 3);
    let rollout = world.endpoint().rollout.clone().unwrap();
    assert_eq!((rollout.from, rollout.to), (1, 3));
    let mut least = usize::MAX;
    for _ in 0..90 {
        world.serve_on(1, &quiet());
        least = least.min(world.ready().len());
    }
    assert_eq!((least, ready_of(&world, 3), world.endpoint().current), (4, 4, 3));
}

#[test]
fn a_sleeping_endpoint_takes_the_new_revision_when_it_wakes() {
    let mut world = World::new(&[4]);
    world.serve(chat(0, 4));
    world.update(revised(0, 4), Some(25));
    assert!(matches!(stage(&world), Some(RolloutStage::Watching { .. })), "{:?}", stage(&world));
    world.serve_on(2, &Routers { queued: 1, ..Routers::default() });
    assert_eq!(ready_of(&world, 2), 1);
}

/// Whatever stage it is in, a controller that takes over brings it to its end.
#[test]
fn a_rollout_goes_on_after_a_restart_in_every_stage() {
    let badly =
        Routers { revisions: [(1, traffic(300, 1)), (2, traffic(30, 6))].into(), ..quiet() };
    let well =
        Routers { revisions: [(1, traffic(300, 1)), (2, traffic(100, 1))].into(), ..quiet() };
    for seconds in 0..80 {
        let mut world = four(&[8], chat(4, 4));
        world.update(canary(), None);
        world.serve_on(seconds, &well);
        world.take_over();
        world.serve_on(120, &well);
        assert_eq!((stage(&world), world.endpoint().current), (None, 2), "after {seconds} s");
        assert_eq!((world.replicas().len(), ready_of(&world, 2)), (4, 4), "after {seconds} s");
    }
    for seconds in 0..6 {
        let mut world = four(&[8], chat(4, 4));
        world.update(canary(), None);
        world.serve_on(3, &quiet());
        world.serve_on(seconds, &badly);
        world.take_over();
        world.serve_on(120, &badly);
        assert_eq!((stage(&world), world.endpoint().current), (None, 1), "after {seconds} s");
        assert_eq!((world.replicas().len(), ready_of(&world, 1)), (4, 4), "after {seconds} s");
    }
}

#[test]
fn a_canary_serves_all_while_nothing_else_answers() {
    let mut world = four(&[8], chat(4, 4));
    world.update(canary(), None);
    world.serve_on(3, &quiet());
    let old: Vec<JobId> = (1..=4).map(JobId).collect();
    world.serve_on(12, &Routers { mute: old, ..quiet() });
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (0, 1));
    assert!(crate::route_table(world.engine.state()).endpoints[0].split.is_empty());
}
