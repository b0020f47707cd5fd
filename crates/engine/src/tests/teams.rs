use tutti_model::{
    DEFAULT_TEAM, GpuQuota, Impossible, JobSpec, JobState, Role, Span, TaskId, Team, Verdict,
};

use super::world::{World, ada, admin, gang};
use crate::{Actor, Command, Rejected, Reply};

fn team(members: &[&str], guarantee: u32) -> Team {
    Team {
        guarantee: GpuQuota { any: guarantee, ..GpuQuota::default() },
        members: members.iter().map(|m| (*m).to_owned()).collect(),
        ..Team::default()
    }
}

fn of_team(team: &str) -> JobSpec {
    JobSpec { team: Some(team.to_owned()), ..gang(1, 1) }
}

fn submit(world: &mut World, actor: Actor, spec: JobSpec) -> Result<String, Rejected> {
    let command = Command::Submit { actor, spec: Box::new(spec), user: None, key: None };
    match world.step(command).reply? {
        Reply::Submitted { job, .. } => Ok(world.engine.state().job(job).unwrap().team.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_configured_teams_anybody_names_any() {
    let mut world = World::new(&[8]);
    assert_eq!(submit(&mut world, ada(), gang(1, 1)).unwrap(), DEFAULT_TEAM);
    assert_eq!(submit(&mut world, ada(), of_team("whatever")).unwrap(), "whatever");
}

#[test]
fn a_job_goes_to_the_team_of_its_user_or_to_the_one_it_names() {
    let mut world = World::new(&[8]);
    world.set_policy(|p| {
        p.teams.insert("lab".into(), team(&["grace"], 0));
        p.teams.insert("speech".into(), Team { parent: Some("lab".into()), ..team(&["ada"], 0) });
        p.teams.insert("vision".into(), Team { parent: Some("lab".into()), ..team(&[], 0) });
    });
    assert_eq!(submit(&mut world, ada(), gang(1, 1)).unwrap(), "speech");
    let bob = Actor { user: "bob".into(), role: Role::User };
    assert_eq!(submit(&mut world, bob.clone(), gang(1, 1)).unwrap(), DEFAULT_TEAM);
    let refused = submit(&mut world, ada(), of_team("vision")).unwrap_err();
    assert_eq!(refused, Rejected::NotInTeam { user: "ada".into(), team: "vision".into() });
    // Members of a team above are members below.
    let grace = Actor { user: "grace".into(), role: Role::User };
    assert_eq!(submit(&mut world, grace, of_team("vision")).unwrap(), "vision");
    assert_eq!(submit(&mut world, admin(), of_team("vision")).unwrap(), "vision");
    let refused = submit(&mut world, bob, of_team("visoin")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "team: there is no team 'visoin'; the teams are lab, speech, vision"
    );
}

#[test]
fn classes_are_known_and_some_are_for_admins() {
    let mut world = World::new(&[8]);
    let of = |class: &str| JobSpec { class: Some(class.to_owned()), ..gang(1, 1) };
    assert!(submit(&mut world, ada(), of("scavenger")).is_ok());
    assert!(matches!(
        submit(&mut world, ada(), of("urgent")),
        Err(Rejected::BadSpec { key: "class", .. })
    ));
    assert!(submit(&mut world, admin(), of("urgent")).is_ok());
    let refused = submit(&mut world, ada(), of("gold")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "class: there is no class 'gold'; the classes are scavenger, serving, standard, urgent"
    );
}

#[test]
fn a_team_at_its_limit_waits_with_a_reason() {
    let mut world = World::new(&[8]);
    let limit = Some(GpuQuota { any: 1, ..GpuQuota::default() });
    world.set_policy(|p| {
        p.teams.insert("speech".into(), Team { limit, ..team(&["ada"], 0) });
    });
    let (first, second) = (world.submit(gang(1, 1)), world.submit(gang(1, 1)));
    assert_eq!(
        (world.state_of(first), world.state_of(second)),
        (JobState::Starting, JobState::Pending)
    );
    let task = TaskId::single(second);
    let verdict = tutti_sched::verdict(world.engine.state(), world.engine.plan(), task, world.now);
    assert!(matches!(verdict, Some(Verdict::TeamLimit { limit: 1, .. })), "{verdict:?}");
}

#[test]
fn a_team_pays_for_all_that_its_jobs_block() {
    let mut world = World::new(&[8]);
    world.set_policy(|p| {
        p.gpu_weights.insert("h100".into(), 2000);
        p.teams.insert("lab".into(), team(&[], 0));
        p.teams.insert("speech".into(), Team { parent: Some("lab".into()), ..team(&["ada"], 0) });
    });
    // Half of the CPUs are half of the node, which has 8 GPUs of weight 2.
    let job = world.submit(JobSpec { cpus_per_node: Some(16), ..gang(1, 1) });
    let rate = |world: &World, team: &str| world.engine.state().ledger.teams[team].rate();
    assert_eq!((rate(&world, "speech"), rate(&world, "lab")), (8000, 8000));
    let lease = world.run(job);
    world.wait(10, &[]);
    world.done(tutti_model::NodeId(1), lease, &[(0, tutti_model::ExitStatus::Code(0))]);
    assert_eq!((rate(&world, "speech"), rate(&world, "lab")), (0, 0));
    let (state, now) = (world.engine.state(), world.now);
    let half_life = Span::secs(7 * 86_400);
    assert_eq!(state.ledger.team("lab", now, half_life), 8000 * 10_000);
    assert_eq!(state.ledger.user("speech", "ada", now, half_life), 8000 * 10_000);
}

#[test]
fn a_new_tree_takes_over_what_runs() {
    let mut world = World::new(&[8]);
    world.set_policy(|p| {
        p.teams.insert("lab".into(), team(&[], 0));
        p.teams.insert("speech".into(), Team { parent: Some("lab".into()), ..team(&["ada"], 0) });
    });
    world.submit(gang(1, 2));
    world.set_policy(|p| {
        p.teams.insert("site".into(), team(&[], 0));
        p.teams.get_mut("speech").unwrap().parent = Some("site".into());
    });
    let rate = |team: &str| world.engine.state().ledger.teams[team].rate();
    assert_eq!([rate("lab"), rate("site"), rate("speech")], [0, 2000, 2000]);
}

#[test]
fn what_its_team_may_never_have_is_refused() {
    let mut world = World::new(&[8]);
    let limit = Some(GpuQuota { any: 2, ..GpuQuota::default() });
    world.set_policy(|p| {
        p.teams.insert("lab".into(), Team { limit, ..team(&[], 0) });
        p.teams.insert("speech".into(), Team { parent: Some("lab".into()), ..team(&["ada"], 0) });
    });
    let refused = world.try_submit(gang(1, 3));
    let found = Impossible::OverTeamLimit { team: "lab".into(), limit: 2, wanted: 3 };
    assert_eq!(refused, Err(Rejected::Impossible(found)));
    assert!(world.try_submit(gang(1, 2)).is_ok());
}

/// The plan and its checker agree on what a guarantee counts for where there are too few GPUs.
#[test]
fn a_guarantee_beyond_what_exists_counts_for_its_part_of_it() {
    let mut world = World::new(&[4, 4]);
    world.set_policy(|p| {
        p.teams.insert("a".into(), team(&["*"], 1000));
        p.teams.insert("b".into(), team(&["*"], 4));
    });
    let of = |team: &str, nodes, gpus| JobSpec { team: Some(team.to_owned()), ..gang(nodes, gpus) };
    let (guest, owner) = (world.submit(of("b", 2, 4)), of("a", 1, 4));
    world.run(guest);
    let whole = world.submit(of("a", 2, 4));
    assert_eq!(world.state_of(guest), JobState::Running, "8 are more than its part of 8");
    world.step(Command::Cancel { actor: admin(), target: TaskId::single(whole) }).reply.unwrap();
    let part = world.submit(owner);
    assert_eq!(world.state_of(guest), JobState::Stopping, "b has more than its part");
    assert_eq!(world.state_of(part), JobState::Pending);
    let shares = tutti_sched::shares(world.engine.state(), world.now);
    let counts: Vec<_> = shares.iter().map(|s| (s.guarantee, s.guarantee_counts)).collect();
    assert_eq!(counts, [(1000, Some(5)), (4, Some(2))]);
}
