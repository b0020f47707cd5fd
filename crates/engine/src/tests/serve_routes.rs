//! What routers are told, and when.

use tutti_model::{Grant, JobId, KeyLimits, Order, Span, Time, Token};

use super::serve::{Routers, chat, with_service};
use super::world::{World, admin, gang};
use crate::{Command, route_table};

#[test]
fn a_service_waits_for_its_port_and_is_found_there() {
    let mut world = World::new(&[4]);
    world.serve(chat(1, 1));
    let starts = world.take_orders().into_iter().filter_map(|(_, order)| match order {
        Order::Start(launch) => Some(launch.wait_for_go),
        _ => None,
    });
    assert_eq!(starts.collect::<Vec<_>>(), [true], "also on one node");
    assert!(route_table(world.engine.state()).endpoints[0].replicas.is_empty());
    world.start_and_stop();
    let go = |(_, order): &(_, Order)| matches!(order, Order::Go { master_port: 4000, .. });
    assert!(world.take_orders().iter().any(go));
    let table = route_table(world.engine.state());
    assert_eq!(table.endpoints[0].replicas[0].address, "127.0.1.1:4000");
    assert_eq!(table.endpoints[0].hold, Span::secs(160));
    world.wait(1, &[]);
    let mut fixed = chat(1, 1);
    fixed.name = Some("fixed".into());
    world.serve(with_service(fixed, |s| s.port = Some(8080)));
    world.start_and_stop();
    let table = route_table(world.engine.state());
    assert_eq!(table.endpoints[1].replicas[0].address, "127.0.1.1:8080");
}

#[test]
fn the_version_changes_with_the_table_and_only_then() {
    let mut world = World::new(&[4]);
    world.serve(chat(1, 4));
    world.serve_on(2, &Routers::default());
    let mut seen = vec![route_table(world.engine.state())];
    let look = |world: &World, seen: &mut Vec<tutti_model::RouteTable>| {
        let (now, last) = (route_table(world.engine.state()), seen.last().unwrap().clone());
        let same = (&now.endpoints, &now.keys) == (&last.endpoints, &last.keys);
        assert_eq!(same, now.version == last.version, "{last:?} {now:?}");
        seen.push(now);
    };
    let other = world.submit(gang(1, 1));
    world.run(other);
    look(&world, &mut seen);
    for in_flight in [5, 35, 12, 0] {
        for _ in 0..25 {
            world.serve_on(1, &Routers { in_flight, know_draining: true, ..Routers::default() });
            look(&world, &mut seen);
        }
    }
    let versions: std::collections::BTreeSet<u64> = seen.iter().map(|t| t.version).collect();
    assert!((4..30).contains(&versions.len()), "{versions:?}");
    let grant = Grant::Serve { user: "eve".into(), limits: KeyLimits::default() };
    let token = Token {
        id: "k".into(),
        hash: "00".into(),
        grant,
        created_at: Time(0),
        created_by: "root".into(),
        expires_at: Some(Time(9)),
    };
    world.step(Command::AddToken { actor: admin(), token }).reply.unwrap();
    look(&world, &mut seen);
    assert_eq!(seen.last().unwrap().keys[0].user, "eve");
}

#[test]
fn what_is_preempted_gets_no_new_requests_and_may_finish_what_it_has() {
    let mut world = World::new(&[1]);
    world.serve(chat(1, 1));
    world.serve_on(1, &Routers::default());
    let mut urgent = gang(1, 1);
    urgent.class = Some("urgent".into());
    let (actor, spec) = (admin(), Box::new(urgent));
    world.step(Command::Submit { actor, spec, user: None, key: None }).reply.unwrap();
    let table = route_table(world.engine.state());
    assert!(table.endpoints[0].replicas[0].draining);
    assert!(world.ready().is_empty());
    world.start_and_stop();
    assert!(route_table(world.engine.state()).endpoints[0].replicas.is_empty());
    assert!(world.endpoint().replicas.contains_key(&JobId(1)), "it waits for its turn");
}

#[test]
fn why_says_what_each_replica_waits_for() {
    let mut world = World::new(&[2]);
    world.serve(chat(4, 4));
    let why = |world: &World| {
        let verdict = world.engine.endpoint_verdict("chat", world.now).unwrap();
        verdict.sentences(world.now).join("\n")
    };
    let first = why(&world);
    assert!(first.contains("no router has spoken"), "{first}");
    assert!(first.contains("replica 1 starts since"), "{first}");
    assert!(first.contains("replica 4 waits for GPUs since"), "{first}");
    world.start_and_stop();
    world.wait(7, &[]);
    assert!(why(&world).contains("replica 2 runs for 7s, and no router has seen it"));
    let mute = Routers { mute: vec![JobId(2)], ..Routers::default() };
    world.serve_on(5, &mute);
    let said = why(&world);
    assert!(said.contains("replica 2 runs for 12s and does not answer (connection refused)"));
    assert!(!said.contains("replica 1 "), "it is ready: {said}");
    let lease = world.lease(tutti_model::TaskId::single(JobId(2)));
    let node = world.nodes_of(JobId(2))[0];
    world.done(node, lease, &[(0, tutti_model::ExitStatus::Code(9))]);
    let failed = why(&world);
    let words = "a replica failed: rank 0 failed (exit code 9); next in 1s";
    assert!(failed.contains(words), "{failed}");
}
