use std::sync::Arc;

use tutti_model::{
    DefaultTimeOf, GpuQuota, JobId, JobSpec, JobState, Policy, PolicyEffects, PreemptedHow,
    QueueOrder, Reservation, Span, TaskId, Team,
};

use super::world::{World, ada, admin, gang};
use crate::{Command, Engine, Event, Rejected, Settings, preview};

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

fn limited(any: u32) -> GpuQuota {
    GpuQuota { any, ..GpuQuota::default() }
}

fn of_team(team: &str, nodes: u32, gpus: u32) -> JobSpec {
    JobSpec { team: Some(team.to_owned()), ..gang(nodes, gpus) }
}

/// A borrower has all, an owner waits, and a large job waits behind it.
fn busy() -> (World, [JobId; 3]) {
    let mut world = World::new(&[4, 4]);
    world.set_policy(|p| {
        for name in ["own", "lent"] {
            let members = ["*".to_owned()].into();
            p.teams.insert(name.into(), Team { members, ..Team::default() });
        }
    });
    let borrower = world.submit(of_team("lent", 2, 4));
    world.run(borrower);
    let owner = world.submit(of_team("own", 1, 4));
    let large = world.submit(of_team("lent", 2, 4));
    (world, [borrower, owner, large])
}

fn preview_of(world: &World, change: impl FnOnce(&mut Policy)) -> PolicyEffects {
    let mut policy = (*world.engine.state().policy).clone();
    change(&mut policy);
    let state = world.engine.state().clone();
    let settings = world.engine.settings();
    let effects = preview(world.engine.state(), settings, &policy, world.now).unwrap();
    assert_eq!(*world.engine.state(), state, "looking changes nothing");
    effects
}

#[test]
fn a_preview_says_who_would_be_stopped_for_whom_and_is_right() {
    let (mut world, [borrower, owner, _]) = busy();
    assert_eq!(preview_of(&world, |_| {}), PolicyEffects::default(), "nothing would change");
    let promise = |p: &mut Policy| p.teams.get_mut("own").unwrap().guarantee = limited(4);
    let effects = preview_of(&world, promise);
    let [gone] = &effects.preempted[..] else { panic!("{effects:?}") };
    assert_eq!((gone.task.task, gone.task.gpus), (TaskId::single(borrower), 8));
    assert_eq!((gone.for_task, gone.how), (TaskId::single(owner), PreemptedHow::Stopped));
    assert!(effects.notes.warnings.is_empty() && effects.notes.never.is_empty(), "{effects:?}");
    assert_eq!(world.state_of(borrower), JobState::Running);
    world.set_policy(promise);
    assert_eq!(world.state_of(borrower), JobState::Stopping, "as it was told");
}

#[test]
fn a_preview_says_who_would_start_and_who_never_could() {
    let mut world = World::new(&[4, 4]);
    let limit = |n| {
        move |p: &mut Policy| {
            let members = ["*".to_owned()].into();
            let team = Team { limit: Some(limited(n)), members, ..Team::default() };
            p.teams.insert("lent".into(), team);
        }
    };
    world.set_policy(limit(4));
    let runs = world.submit(of_team("lent", 1, 4));
    let waits = world.submit(of_team("lent", 1, 4));
    assert_eq!(
        (world.state_of(runs), world.state_of(waits)),
        (JobState::Starting, JobState::Pending)
    );
    let more = preview_of(&world, limit(8));
    let started: Vec<TaskId> = more.starts.iter().map(|t| t.task).collect();
    assert_eq!(started, [TaskId::single(waits)]);
    let less = preview_of(&world, limit(2));
    let [never] = &less.notes.never[..] else { panic!("{less:?}") };
    assert_eq!(never.task.task, TaskId::single(waits));
    assert_eq!(never.why, "can never run: asks for 4 GPUs; team lent may have 2 at once");
}

#[test]
fn a_preview_says_what_is_in_the_way_and_what_is_odd() {
    let (world, [borrower, ..]) = busy();
    let reservation = |name: &str, node: &str| Reservation {
        name: name.into(),
        nodes: [node.to_owned()].into(),
        from: world.now.plus(Span::secs(60)),
        until: world.now.plus(Span::secs(3600)),
        team: None,
    };
    let effects = preview_of(&world, |p| {
        p.reservations = vec![reservation("power", "n1"), reservation("typo", "n9")];
        p.teams.get_mut("own").unwrap().guarantee = limited(100);
        p.teams.remove("lent");
    });
    let [met] = &effects.notes.overlaps[..] else { panic!("{effects:?}") };
    assert_eq!((met.reservation.as_str(), met.by.len()), ("power", 1));
    assert_eq!((met.by[0].task, met.by[0].ends_by), (TaskId::single(borrower), None));
    let warned: Vec<&str> = effects.notes.warnings.iter().map(|w| w.path.as_str()).collect();
    assert_eq!(warned, ["teams.own.guarantee", "reservations.typo.nodes", "teams.lent"]);
    let broken = Policy { half_life: Span(0), ..Policy::default() };
    let refused = preview(world.engine.state(), world.engine.settings(), &broken, world.now);
    assert!(matches!(refused, Err(Rejected::BadPolicy(_))), "{refused:?}");
}

#[test]
fn who_names_no_time_limit_gets_the_default_and_it_is_recorded_whose_it_is() {
    let mut world = World::new(&[8]);
    let before = world.submit(gang(1, 1));
    world.set_policy(|p| {
        p.default_time = Some(Span::secs(7200));
        p.classes.get_mut("scavenger").unwrap().default_time = Some(Span::secs(600));
    });
    let spec_of = |world: &World, job| world.engine.state().job(job).unwrap().spec.clone();
    assert_eq!(spec_of(&world, before).time, None, "for jobs that come later");
    let plain = world.submit_with_key(gang(1, 1), Some("k")).unwrap();
    let spec = spec_of(&world, plain);
    assert_eq!(
        (spec.time, &spec.default_time_of),
        (Some(Span::secs(7200)), &Some(DefaultTimeOf::Policy))
    );
    let again = world.submit_with_key(gang(1, 1), Some("k"));
    assert_eq!(again, Ok(plain), "the same submission is known again");
    let other = JobSpec { time: Some(Span::secs(7200)), ..gang(1, 1) };
    assert_eq!(world.submit_with_key(other, Some("k")), Err(Rejected::KeyReused(plain)));
    let scavenger = JobSpec { class: Some("scavenger".into()), ..gang(1, 1) };
    let scavenger = world.submit(scavenger);
    assert_eq!(spec_of(&world, scavenger).time, Some(Span::secs(600)));
    let claimed = JobSpec {
        time: Some(Span::secs(5)),
        default_time_of: Some(DefaultTimeOf::Policy),
        ..gang(1, 1)
    };
    let own = world.submit(claimed);
    let spec = spec_of(&world, own);
    assert_eq!((spec.time, &spec.default_time_of), (Some(Span::secs(5)), &None), "its own word");
    world.run(scavenger);
    world.wait(601, &[]);
    assert_eq!(world.state_of(scavenger), JobState::Stopping, "the limit holds");
    let waits = world.submit(gang(1, 8));
    let (state, plan) = (world.engine.state(), world.engine.plan());
    let task = TaskId::single(waits);
    let told = tutti_sched::explain(state, plan, &state.policy, task, world.now).unwrap();
    assert_eq!(told.default_time.map(|limit| limit.time), Some(Span::secs(7200)));
}
