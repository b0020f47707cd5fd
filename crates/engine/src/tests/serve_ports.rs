//! Whoever listens on a replica's port gets what is meant for it, so only what its agent has confirmed is
//! told to routers.

use tutti_model::{
    JobId, LeaseId, NodeId, NotReady, PartReport, PortOwner, ReplicaPhase, ReportedPhase, TaskId,
};

use super::serve::{Routers, chat, said, with_service};
use super::world::World;
use crate::{Event, route_table};

const N1: NodeId = NodeId(1);
const REPLICA: JobId = JobId(1);

fn mallory() -> PortOwner {
    PortOwner::Stranger { who: "process 4711 (python3) of user mallory, job 9".into() }
}

/// A replica that runs, and whose agent has said nothing of its port.
fn started() -> (World, LeaseId) {
    let mut world = World::new(&[2]);
    world.serve(with_service(chat(1, 1), |s| s.port = Some(8000)));
    let lease = world.lease(TaskId::single(REPLICA));
    for phase in
        [ReportedPhase::Prepared { port: 4000 }, ReportedPhase::Running { exits: Vec::new() }]
    {
        world.report_all(N1, PartReport::new(lease, phase));
    }
    (world, lease)
}

fn owned(world: &mut World, lease: LeaseId, owner: PortOwner) {
    let phase = ReportedPhase::Running { exits: Vec::new() };
    let report = PartReport { port_owner: Some(owner), ..PartReport::new(lease, phase) };
    world.report_all(N1, report);
}

fn routed(world: &World) -> usize {
    route_table(world.engine.state()).endpoints[0].replicas.len()
}

fn phase(world: &World) -> ReplicaPhase {
    world.endpoint().replicas[&REPLICA].phase
}

fn why(world: &World) -> String {
    let verdict = world.engine.endpoint_verdict("chat", world.now).expect("it is served");
    match &verdict.replicas[0].why {
        NotReady::Loads { said: Some(said), .. } | NotReady::Hangs { said: Some(said), .. } => {
            said.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_replica_is_routed_to_once_its_agent_has_seen_its_socket() {
    let (mut world, lease) = started();
    assert_eq!(routed(&world), 0, "nobody has said whose server that is");
    owned(&mut world, lease, PortOwner::Nobody);
    world.speak(&Routers::default());
    assert_eq!((routed(&world), phase(&world)), (0, ReplicaPhase::Coming));
    assert!(why(&world).contains("127.0.1.1:8000"), "{}", why(&world));
    owned(&mut world, lease, PortOwner::Part);
    assert_eq!(routed(&world), 1);
    world.speak(&Routers::default());
    assert_eq!(phase(&world), ReplicaPhase::Ready);
}

#[test]
fn one_who_binds_first_gets_nothing_and_is_named() {
    let (mut world, lease) = started();
    owned(&mut world, lease, mallory());
    // A router that was not told of it can't ask it; one that did would be wrong.
    let mut load = Routers::default().load(&world);
    load.replicas.insert(
        REPLICA,
        tutti_model::ReplicaLoad {
            generation: lease.generation,
            ready: true,
            ..Default::default()
        },
    );
    world.step(crate::Command::Load { loads: [("chat".to_owned(), load)].into() });
    assert_eq!((routed(&world), phase(&world)), (0, ReplicaPhase::Coming));
    let words = why(&world);
    assert!(words.contains("process 4711 (python3) of user mallory, job 9"), "{words}");
    assert!(words.contains("127.0.1.1:8000"), "{words}");
}

#[test]
fn one_who_takes_the_port_later_ends_it_at_once() {
    let (mut world, lease) = started();
    owned(&mut world, lease, PortOwner::Part);
    world.speak(&Routers::default());
    assert_eq!((routed(&world), phase(&world)), (1, ReplicaPhase::Ready));
    let before = route_table(world.engine.state()).version;
    owned(&mut world, lease, mallory());
    assert_eq!((routed(&world), phase(&world)), (0, ReplicaPhase::Coming));
    assert!(route_table(world.engine.state()).version > before, "routers hear of it");
    assert!(said(&world, "is not ready any more: process 4711 (python3) of user mallory"));
    // What a router said before it heard that changes nothing.
    owned(&mut world, lease, PortOwner::Part);
    world.speak(&Routers::default());
    assert_eq!((routed(&world), phase(&world)), (1, ReplicaPhase::Ready));
}

#[test]
fn silence_of_an_agent_that_has_just_started_changes_nothing() {
    let (mut world, lease) = started();
    owned(&mut world, lease, PortOwner::Part);
    world.speak(&Routers::default());
    let phase_said = ReportedPhase::Running { exits: Vec::new() };
    world.hello("n1", 2, vec![PartReport::new(lease, phase_said)]);
    world.speak(&Routers::default());
    assert_eq!((routed(&world), phase(&world)), (1, ReplicaPhase::Ready));
}

#[test]
fn a_server_on_another_address_is_told_what_to_do() {
    let (mut world, lease) = started();
    owned(&mut world, lease, PortOwner::Elsewhere { addresses: vec!["127.0.0.1:8000".into()] });
    world.speak(&Routers::default());
    let words = why(&world);
    assert!(words.starts_with("it listens on 127.0.0.1:8000 and not on 127.0.1.1:8000"), "{words}");
}

/// One event for each change of hands, however often it is said and whatever the stranger is called.
#[test]
fn what_is_known_is_not_written_again() {
    let (mut world, lease) = started();
    let count = |world: &mut World, owner: PortOwner| {
        let phase = ReportedPhase::Running { exits: Vec::new() };
        let report = PartReport { port_owner: Some(owner), ..PartReport::new(lease, phase) };
        let step = world.beat(N1, vec![report]);
        let owned = |e: &&crate::Record| matches!(e.event, Event::PortOwned { .. });
        step.records.iter().filter(owned).count()
    };
    assert_eq!(count(&mut world, PortOwner::Nobody), 0);
    assert_eq!(count(&mut world, mallory()), 1);
    assert_eq!(count(&mut world, PortOwner::Stranger { who: "process 4712".into() }), 0);
    assert_eq!(count(&mut world, PortOwner::Part), 1);
    assert_eq!(count(&mut world, PortOwner::Part), 0);
}

/// The next attempt is another process, and must be seen anew.
#[test]
fn an_attempt_inherits_nothing() {
    let (mut world, lease) = started();
    owned(&mut world, lease, PortOwner::Part);
    world.speak(&Routers::default());
    world.broken(N1, lease, tutti_model::Blame::Node);
    world.wait(2, &[]);
    let next = world.lease(TaskId::single(REPLICA));
    assert_ne!(next, lease);
    for phase in
        [ReportedPhase::Prepared { port: 4000 }, ReportedPhase::Running { exits: Vec::new() }]
    {
        world.report_all(N1, PartReport::new(next, phase));
    }
    assert_eq!(routed(&world), 0);
}
