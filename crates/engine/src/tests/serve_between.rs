//! Two revisions at the same time, and two endpoints.

use tutti_model::{Access, ExitStatus, JobId, JobSpec, Replicas, TaskId};

use super::serve::{chat, with_service};
use super::serve_rollout::{canary, four, quiet, ready_of, revised, roll_back, stage};
use super::world::{World, ada};
use crate::{Command, Rejected, route_table};

fn named(name: &str, models: &[&str]) -> JobSpec {
    let spec = JobSpec { name: Some(name.into()), ..chat(1, 1) };
    with_service(spec, |s| s.models = models.iter().map(|&model| model.to_owned()).collect())
}

fn refusal(found: Result<u32, Rejected>) -> String {
    found.unwrap_err().to_string()
}

#[test]
fn old_replicas_are_asked_where_they_always_said_how_they_are() {
    let mut world = four(&[8], chat(4, 4));
    let other = with_service(canary(), |s| {
        (s.health, s.access) = ("/v2/ready".into(), Access::Open);
        s.models = vec!["chat-2".into()];
    });
    world.update(other, None);
    world.serve_on(3, &quiet());
    let route = route_table(world.engine.state()).endpoints.remove(0);
    for replica in &route.replicas {
        let old = replica.revision == 1;
        assert_eq!(replica.health.as_deref(), old.then_some("/health"), "{replica:?}");
    }
    assert_eq!((route.health.as_str(), route.replicas.len()), ("/v2/ready", 5));
    assert_eq!((route.access, route.models.len()), (Access::Keys, 0), "for all, when it serves");
    let same = world.endpoint().revisions[&2].spec.as_ref().clone();
    world.update(same, Some(100));
    let route = route_table(world.engine.state()).endpoints.remove(0);
    assert_eq!((route.access, route.models.len()), (Access::Open, 1));
}

#[test]
fn the_old_revision_is_kept_up_while_a_canary_is_looked_at() {
    let mut world = four(&[16], chat(4, 12));
    let wide = |spec| with_service(spec, |s| s.replicas = Replicas { min: 4, max: 12 });
    world.update(wide(canary()), None);
    world.serve_on(3, &quiet());
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (4, 1));
    let (node, lease) = (world.nodes_of(JobId(2))[0], world.lease(TaskId::single(JobId(2))));
    world.done(node, lease, &[(0, ExitStatus::Code(1))]);
    world.serve_on(5, &quiet());
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (4, 1), "it is replaced");
    let (actor, name) = (ada(), "chat".into());
    let bounds = Some(Replicas { min: 8, max: 8 });
    world.step(Command::ScaleEndpoint { actor, name, bounds }).reply.unwrap();
    world.serve_on(5, &quiet());
    assert_eq!((ready_of(&world, 1), ready_of(&world, 2)), (7, 2), "both grow");
}

#[test]
fn what_came_between_serves_until_it_is_exchanged() {
    let mut world = four(&[16], chat(4, 4));
    world.update(revised(4, 4), None);
    world.serve_on(2, &quiet());
    let middle = ready_of(&world, 2) as u32;
    assert!((1..4).contains(&middle), "{middle}");
    let mut third = canary();
    third.env.insert("VERSION".into(), "3".into());
    world.update(third, None);
    let table = route_table(world.engine.state());
    let milli = |n| table.endpoints[0].split.iter().find(|s| s.revision == n).map(|s| s.milli);
    assert_eq!(milli(3), Some(0), "none of it answers yet");
    assert!(milli(1).unwrap() > 0 && milli(2).unwrap() > 0, "{:?}", table.endpoints[0].split);
}

#[test]
fn going_back_leads_to_what_has_served() {
    let mut world = four(&[8], chat(4, 4));
    world.update(revised(4, 4), None);
    world.serve_on(1, &quiet());
    let mut third = revised(4, 4);
    third.env.insert("VERSION".into(), "3".into());
    world.update(third, None);
    world.serve_on(120, &quiet());
    assert_eq!((stage(&world), world.endpoint().current), (None, 3));
    assert_eq!(roll_back(&mut world, None), Ok(1), "2 never was in charge");
    world.serve_on(120, &quiet());
    assert_eq!(roll_back(&mut world, Some(3)), Ok(3));
    world.serve_on(120, &quiet());
    assert_eq!(roll_back(&mut world, None), Ok(1), "it was left, not taken back");
}

#[test]
fn a_look_that_finds_nothing_is_not_due_again() {
    let mut world = four(&[8], chat(4, 4));
    world.update(canary(), None);
    world.serve_on(60, &quiet());
    let (now, next) = (world.now, world.engine.next_wakeup());
    assert!(next.is_none_or(|at| at > now), "{next:?} at {now:?}");
    let why = world.engine.endpoint_verdict("chat", now).and_then(|v| v.rollout).unwrap();
    assert!(why.contains("0 of the 20 requests") && why.contains("--canary 100"), "{why}");
}

#[test]
fn no_two_endpoints_are_asked_for_by_one_name() {
    let mut world = World::new(&[8]);
    world.serve(named("vllm", &["qwen"]));
    for (spec, says) in [
        (named("qwen", &[]), "name: requests for 'qwen' go to endpoint vllm already"),
        (named("a", &["qwen"]), "service.models: requests for 'qwen' go to endpoint vllm already"),
        (named("a", &["vllm"]), "service.models: requests for 'vllm' go to endpoint vllm already"),
        (named("12", &[]), "a letter among them"),
        (named("-a", &[]), "no '-' first"),
        (with_service(chat(0, 1), |s| s.queue = 0), "while nobody is awake"),
    ] {
        let found = refusal(world.try_serve(spec));
        assert!(found.contains(says), "{found}");
    }
    world.try_serve(named("a", &["llama"])).unwrap();
}
