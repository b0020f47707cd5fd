use std::sync::Arc;

use tutti_model::{Policy, QueueOrder, Span, Team};

use super::world::{World, ada, admin, gang};
use crate::{Command, Engine, Event, Rejected, Settings};

fn set(policy: Policy, actor: crate::Actor) -> Command {
    Command::SetPolicy { actor, policy: Box::new(policy) }
}

#[test]
fn only_an_admin_sets_a_policy_and_only_a_sound_one() {
    let mut world = World::new(&[8]);
    let sound = Policy { patience: Span::secs(60), ..Policy::default() };
    let refused = world.step(set(sound.clone(), ada())).reply;
    assert!(matches!(refused, Err(Rejected::RoleTooLow { .. })), "{refused:?}");
    let mut broken = sound.clone();
    broken.teams.insert("a".into(), Team { parent: Some("b".into()), ..Team::default() });
    let refused = world.step(set(broken, admin())).reply.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the policy was not changed: teams.a.parent: there is no team 'b'"
    );
    assert_eq!(*world.engine.state().policy, Policy::default());
    assert_eq!(world.step(set(sound.clone(), admin())).records.len(), 1);
    assert_eq!(*world.engine.state().policy, sound);
    assert_eq!(world.step(set(sound, admin())).records.len(), 0, "nothing changed");
}

#[test]
fn what_was_made_from_an_older_policy_is_refused() {
    let mut world = World::new(&[8]);
    let read = Arc::clone(&world.engine.state().policy);
    let replace = |old: &Arc<Policy>, actor, secs| Command::ReplacePolicy {
        actor,
        old: Arc::clone(old),
        policy: Box::new(Policy { patience: Span::secs(secs), ..Policy::default() }),
    };
    let refused = world.step(replace(&read, ada(), 1)).reply;
    assert!(matches!(refused, Err(Rejected::RoleTooLow { .. })), "{refused:?}");
    world.step(replace(&read, admin(), 1)).reply.unwrap();
    assert_eq!(world.step(replace(&read, admin(), 2)).reply, Err(Rejected::PolicyMoved));
    assert_eq!(world.engine.state().policy.patience, Span::secs(1));
    let read = Arc::clone(&world.engine.state().policy);
    world.step(replace(&read, admin(), 2)).reply.unwrap();
    assert_eq!(world.engine.state().policy.patience, Span::secs(2));
}

#[test]
fn a_new_order_reorders_what_waits() {
    let mut world = World::new(&[8]);
    world.submit(gang(1, 8));
    let limit = |secs| tutti_model::JobSpec { time: Some(Span::secs(secs)), ..gang(1, 8) };
    let (long, short) = (world.submit(limit(100)), world.submit(limit(10)));
    let order = |world: &World| -> Vec<_> {
        let lanes = world.engine.state().index.queue.iter();
        lanes.flat_map(|(_, keys)| keys.iter().map(|k| k.job)).collect()
    };
    assert_eq!(order(&world), [long, short]);
    world.set_policy(|p| p.order = QueueOrder::Srtf);
    assert_eq!(order(&world), [short, long]);
}

#[test]
fn a_cluster_begins_with_the_policy_of_its_settings_and_keeps_its_own() {
    let policy = Policy { patience: Span::secs(7), ..Policy::default() };
    let settings = Settings { policy: policy.clone(), ..Settings::default() };
    let mut engine = Engine::new(settings.clone());
    let started = engine.step(Command::Start, tutti_model::Time(1));
    assert!(started.records.iter().any(|r| matches!(r.event, Event::PolicyChanged { .. })));
    assert_eq!(*engine.state().policy, policy);
    let other = Policy { patience: Span::secs(8), ..Policy::default() };
    engine.step(set(other.clone(), admin()), tutti_model::Time(2)).reply.unwrap();
    let mut engine = Engine::restore(engine.state().clone(), settings);
    engine.step(Command::Start, tutti_model::Time(3));
    assert_eq!(*engine.state().policy, other);
}
