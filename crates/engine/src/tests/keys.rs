use tutti_model::{
    Grant, Greeting, JobState, LeaseId, NodeId, NodeKeyRecord, NodeState, Order, PartProgress,
    PartReport, Rank, RankProgress, ReportedPhase, Span, TaskId, Time, Token,
};

use super::world::{World, ada, admin, facts, gang};
use crate::{Command, Engine, Event, Rejected, Reply, Settings};

fn remove(world: &mut World, node: &str, force: bool) -> Result<Reply, Rejected> {
    world.step(Command::RemoveNode { actor: admin(), node: node.into(), force }).reply
}

fn hello(world: &mut World, name: &str, key: &str) -> Result<Reply, Rejected> {
    let greeting = Box::new(Greeting::new(facts(name, 8), Vec::new()));
    let key = Some(key.to_owned());
    world.step(Command::Hello { greeting, session: 77, key }).reply
}

fn join(world: &mut World, only: Option<&str>, node: &str, key: &str) -> Result<Reply, Rejected> {
    let token = Token {
        id: "t".into(),
        hash: "h".into(),
        grant: Grant::Join { node: only.map(str::to_owned), uses: Some(9) },
        created_at: world.now,
        created_by: "root".into(),
        expires_at: None,
    };
    world.step(Command::AddToken { actor: admin(), token }).reply.unwrap();
    let (id, key) = ("t".into(), key.into());
    world.step(Command::UseJoinToken { id, node: node.into(), key }).reply
}

#[test]
fn a_removed_node_is_gone_and_its_key_opens_nothing() {
    let mut world = World::new(&[]);
    join(&mut world, None, "n1", "old").unwrap();
    let Ok(Reply::Welcome { node }) = hello(&mut world, "n1", "old") else { panic!() };
    let user = Command::RemoveNode { actor: ada(), node: "n1".into(), force: true };
    assert!(matches!(world.step(user).reply, Err(Rejected::RoleTooLow { .. })));
    remove(&mut world, "n1", false).unwrap();
    let state = world.engine.state();
    assert!(state.nodes.is_empty() && state.node_named("n1").is_none());
    assert_eq!(state.node_name(node), "n1", "for what is told of it");
    let refused = hello(&mut world, "n1", "old").unwrap_err();
    assert!(matches!(refused, Rejected::NodeRemoved { .. }), "{refused}");
    assert_eq!(remove(&mut world, "n1", true), Err(Rejected::NoSuchNode("n1".into())));
    // A token for any name will do, since nobody has it now.
    join(&mut world, None, "n1", "new").unwrap();
    assert_eq!(hello(&mut world, "n1", "old"), Err(Rejected::OtherKey("n1".into())));
    let Ok(Reply::Welcome { node: again }) = hello(&mut world, "n1", "new") else { panic!() };
    assert_ne!(again, node);
}

#[test]
fn what_runs_on_a_removed_node_is_lost_and_stopped() {
    let mut world = World::new(&[8, 8, 8]);
    let job = world.submit(gang(2, 8));
    world.run(job);
    let lease = world.lease(tutti_model::TaskId::single(job));
    let node = world.nodes_of(job)[0];
    let name = world.engine.state().node_name(node);
    world.take_orders();
    let busy = remove(&mut world, &name, false).unwrap_err();
    assert_eq!(busy, Rejected::NodeBusy { node: name.clone(), leases: 1 });
    assert!(busy.to_string().contains("--force"), "{busy}");
    remove(&mut world, &name, true).unwrap();
    let told = world.take_orders();
    let stops = |(to, order): &&(NodeId, Order)| *to == node && matches!(order, Order::Stop { .. });
    assert_eq!(told.iter().filter(stops).count(), 1, "{told:?}");
    // The other half of the gang stops, and all of it starts again on what is left.
    let other = world.nodes_of(job).into_iter().find(|n| *n != node).unwrap();
    world.done(other, lease, &[(8, tutti_model::ExitStatus::Signal(15))]);
    world.wait(60, &[]);
    assert_eq!(world.state_of(job), JobState::Starting);
    assert!(!world.nodes_of(job).contains(&node));
}

#[test]
fn a_name_that_never_connected_is_not_given_twice() {
    let mut world = World::new(&[]);
    join(&mut world, None, "n1", "first").unwrap();
    assert_eq!(
        join(&mut world, None, "n1", "second"),
        Err(Rejected::NameTaken("n1".into())),
        "whoever holds the first certificate would share the name"
    );
    assert_eq!(join(&mut world, None, "n1", "first"), Ok(Reply::Done), "the answer was lost");
    // An admin may give it to another machine; the first certificate is void then.
    join(&mut world, Some("n1"), "n1", "second").unwrap();
    assert_eq!(hello(&mut world, "n1", "first"), Err(Rejected::OtherKey("n1".into())));
    hello(&mut world, "n1", "second").unwrap();
    // One that never came is removed as well.
    join(&mut world, None, "n2", "k").unwrap();
    remove(&mut world, "n2", false).unwrap();
    assert!(matches!(hello(&mut world, "n2", "k"), Err(Rejected::NodeRemoved { .. })));
}

#[test]
fn a_node_from_before_keys_were_on_record_is_known_by_the_first_that_it_shows() {
    let mut world = World::new(&[8]);
    assert!(world.engine.state().node_keys.is_empty());
    hello(&mut world, "n1", "own").unwrap();
    assert_eq!(hello(&mut world, "n1", "other"), Err(Rejected::OtherKey("n1".into())));
    hello(&mut world, "n1", "own").unwrap();
}

#[test]
fn two_holders_of_a_key_fence_the_node_until_somebody_has_looked() {
    let mut world = World::new(&[8, 8]);
    hello(&mut world, "n1", "own").unwrap();
    let node = world.engine.state().node_named("n1").unwrap().id;
    let shared =
        || Command::KeyShared { node, first: "10.0.0.1".into(), second: "10.9.9.9".into() };
    let step = world.step(shared());
    assert!(step.records.iter().any(|r| matches!(r.event, Event::NodeKeyShared { .. })));
    assert!(world.step(shared()).records.is_empty(), "it is on record already");
    let fenced = world.engine.state().node(node).unwrap();
    assert_eq!(fenced.state(), NodeState::Drained);
    let reason = &fenced.drain.as_ref().unwrap().reason;
    assert!(reason.contains("10.0.0.1") && reason.contains("10.9.9.9"), "{reason}");
    world.step(Command::Resume { actor: admin(), node: "n1".into() }).reply.unwrap();
    let record = &world.engine.state().node_keys["n1"];
    assert!(record.shared().is_none());
    // A person's own drain stays.
    let reason = "fan".to_owned();
    let drain = Command::Drain { actor: admin(), node: "n1".into(), reason, evict: false };
    world.step(drain).reply.unwrap();
    world.step(shared()).reply.unwrap();
    assert_eq!(world.engine.state().node(node).unwrap().drain.as_ref().unwrap().reason, "fan");
}

#[test]
fn what_was_removed_is_forgotten_when_no_certificate_of_it_is_left() {
    let mut world = World::new(&[8, 8]);
    remove(&mut world, "n1", false).unwrap();
    world.now = Time(world.now.0 + NodeKeyRecord::REMOVED_KEPT.0 + 1);
    remove(&mut world, "n2", false).unwrap();
    let names: Vec<&String> = world.engine.state().node_keys.keys().collect();
    assert_eq!(names, ["n2"]);
}

#[test]
fn an_old_record_of_a_join_loads() {
    let old = r#"{"event":"token_used","id":"t","node":"n1"}"#;
    let event: Event = serde_json::from_str(old).unwrap();
    assert_eq!(event, Event::TokenUsed { id: "t".into(), node: "n1".into(), key: None });
    let mut engine = Engine::new(Settings::default());
    let record = crate::Record { seq: tutti_model::Seq(1), at: Time(1), event };
    engine.replay(&record);
    assert!(engine.state().node_keys.is_empty());
}

/// Whoever is turned away has said nothing: how far a job is decides what becomes of it.
#[test]
fn what_a_refused_agent_says_of_a_job_does_not_count() {
    let mut world = World::new(&[]);
    join(&mut world, None, "n1", "right").unwrap();
    let Ok(Reply::Welcome { node }) = hello(&mut world, "n1", "right") else { panic!() };
    let job = world.submit(gang(1, 1));
    let lease = world.lease(TaskId::single(job));
    let says = |lease: LeaseId| {
        let rank = RankProgress {
            rank: Rank(0),
            step: 1_000_000,
            loss: None,
            tokens: None,
            age: Span(0),
            pace: None,
        };
        let progress = PartProgress { ranks: vec![rank], ..PartProgress::default() };
        let running = ReportedPhase::Running { exits: Vec::new() };
        PartReport { progress: Some(Box::new(progress)), ..PartReport::new(lease, running) }
    };
    let greets = |name: &str, key: &str, lease: LeaseId| {
        let greeting = Box::new(Greeting::new(facts(name, 8), vec![says(lease)]));
        Command::Hello { greeting, session: 78, key: Some(key.to_owned()) }
    };
    let known = |world: &World, lease| world.engine.levels().highest_step(lease);
    let refused = world.step(greets("n1", "wrong", lease)).reply;
    assert_eq!(refused, Err(Rejected::OtherKey("n1".into())));
    assert_eq!(known(&world, lease), None);
    // Nor does what a node says of a job that it does not have.
    join(&mut world, None, "n2", "other").unwrap();
    hello(&mut world, "n2", "other").unwrap();
    world.step(greets("n2", "other", lease)).reply.unwrap();
    assert_eq!(known(&world, lease), None);
    let Ok(Reply::Welcome { node: same }) = world.step(greets("n1", "right", lease)).reply else {
        panic!()
    };
    assert_eq!((same, known(&world, lease)), (node, Some(1_000_000)));
}
