use tutti_model::{
    ClaimCause, Elastic, ExitStatus, GpuQuota, JobId, JobSpec, JobState, NodeId, Span, StopCause,
    TaskId, Team,
};

use super::world::{World, gang};

const TERM: ExitStatus = ExitStatus::Signal(15);

fn elastic(min_nodes: u32, max_nodes: u32) -> JobSpec {
    JobSpec { nodes: None, elastic: Some(Elastic { min_nodes, max_nodes }), ..gang(1, 4) }
}

fn why(world: &World, job: JobId) -> Option<StopCause> {
    let job = world.engine.state().job(job)?;
    match &job.task(None)?.attempt()?.phase {
        tutti_model::AttemptPhase::Stopping { why, .. } => Some(why.clone()),
        _ => None,
    }
}

fn all_done(world: &mut World, job: JobId) {
    let lease = world.lease(TaskId::single(job));
    for (rank, node) in world.nodes_of(job).into_iter().enumerate() {
        world.done(node, lease, &[(rank as u32, TERM)]);
    }
}

#[test]
fn an_elastic_job_takes_what_there_is_and_grows_when_more_is_idle() {
    let mut world = World::new(&[4, 4]);
    world.set_policy(|p| p.resize_every = Span::secs(60));
    let other = world.submit(gang(1, 4));
    let job = world.submit(elastic(1, 2));
    assert_eq!(world.nodes_of(job).len(), 1);
    world.run(job);
    let lease = world.run(other);
    let node = world.nodes_of(other)[0];
    world.done(node, lease, &[(0, ExitStatus::Code(0))]);
    assert_eq!(world.state_of(job), JobState::Running, "not so soon after it has started");
    world.wait(61, &[]);
    assert_eq!(why(&world, job), Some(StopCause::Resized { nodes: 2 }));
    let claim = &world.engine.state().claims[&TaskId::single(job)];
    assert_eq!((claim.cause, claim.parts.len()), (ClaimCause::Resize, 2));
    all_done(&mut world, job);
    assert_eq!((world.state_of(job), world.nodes_of(job).len()), (JobState::Starting, 2));
    let task = world.engine.state().job(job).unwrap().task(None).unwrap();
    assert_eq!(task.restarts.total(), 0, "a change of size costs no retry");
    assert!(task.served > 0 && world.engine.state().claims.is_empty());
}

#[test]
fn an_elastic_job_shrinks_before_it_is_stopped() {
    let mut world = World::new(&[4, 4]);
    let job = world.submit(JobSpec { class: Some("scavenger".into()), ..elastic(1, 2) });
    assert_eq!(world.nodes_of(job).len(), 2);
    world.run(job);
    world.wait(5, &[]);
    let high = world.submit(gang(1, 4));
    assert_eq!(why(&world, job), Some(StopCause::Resized { nodes: 1 }));
    assert_eq!(world.engine.state().claims.len(), 2);
    all_done(&mut world, job);
    let (kept, taken) = (world.nodes_of(job), world.nodes_of(high));
    assert_eq!(
        (world.state_of(job), world.state_of(high)),
        (JobState::Starting, JobState::Starting)
    );
    assert_eq!(kept.len(), 1);
    assert_ne!(kept, taken);
    let task = world.engine.state().job(job).unwrap().task(None).unwrap();
    assert_eq!((task.restarts.total(), task.preempted_at), (0, None));
}

#[test]
fn a_resize_that_loses_its_node_goes_back_into_the_queue() {
    let mut world = World::new(&[4, 4]);
    world.set_policy(|p| p.resize_every = Span::secs(10));
    let other = world.submit(gang(1, 4));
    let job = world.submit(elastic(1, 2));
    world.run(job);
    let lease = world.run(other);
    let free = world.nodes_of(other)[0];
    world.done(free, lease, &[(0, ExitStatus::Code(0))]);
    world.wait(11, &[]);
    assert_eq!(world.state_of(job), JobState::Stopping);
    world.gone(free);
    world.wait(8, &[]);
    assert!(world.engine.state().claims.is_empty());
    let own: Vec<NodeId> = world.nodes_of(job);
    all_done(&mut world, job);
    assert_eq!((world.state_of(job), world.nodes_of(job)), (JobState::Starting, own));
}

#[test]
fn two_that_grow_stay_within_their_limit_and_lose_nothing() {
    let mut world = World::new(&[4; 8]);
    let limit = |world: &mut World, any: u32| {
        world.set_policy(|p| {
            p.resize_every = Span::secs(60);
            let limit = Some(GpuQuota { any, ..GpuQuota::default() });
            let members = ["*".to_owned()].into();
            p.teams.insert("default".into(), Team { limit, members, ..Team::default() });
        });
    };
    let jobs = [8, 16].map(|most| {
        limit(&mut world, most);
        let job = world.submit(elastic(1, 4));
        world.run(job);
        job
    });
    assert_eq!(jobs.map(|job| world.nodes_of(job).len()), [2, 2]);
    limit(&mut world, 24);
    world.wait(61, &[]);
    let grows: Vec<JobId> = jobs.into_iter().filter(|&job| why(&world, job).is_some()).collect();
    assert_eq!(grows.len(), 1, "there is room for one");
    all_done(&mut world, grows[0]);
    assert_eq!(world.state_of(grows[0]), JobState::Starting);
    assert_eq!(world.nodes_of(grows[0]).len(), 4);
}
