//! Endpoints and their replicas: made, ready, scaled, lost, failing, stopped.

use std::collections::BTreeMap;

use tutti_model::{
    EndReason, Endpoint, EndpointLoad, ExitStatus, JobId, JobSpec, JobState, NotReady, Outcome,
    Preempt, PreemptMode, Replica, ReplicaLoad, ReplicaPhase, Replicas, ServiceSpec, Span, TaskId,
    Traffic,
};

use super::world::{World, ada, admin, gang};
use crate::{
    Actor, Command, EndpointRefused, Engine, Event, Rejected, Reply, Settings, invariants,
};

/// One GPU for each replica.
pub fn chat(min: u32, max: u32) -> JobSpec {
    let service = ServiceSpec {
        replicas: Replicas { min, max },
        target_in_flight: 10,
        up_after: Span::secs(5),
        down_after: Span::secs(20),
        zero_after: Span::secs(60),
        warm_up: Span::secs(100),
        drain: Span::secs(30),
        ..ServiceSpec::default()
    };
    let mut spec = gang(1, 1);
    spec.name = Some("chat".into());
    spec.service = Some(Box::new(service));
    spec
}

pub fn with_service(mut spec: JobSpec, change: impl FnOnce(&mut ServiceSpec)) -> JobSpec {
    change(spec.service.as_mut().expect("it is served"));
    spec
}

/// What all routers see of one endpoint.
#[derive(Clone, Default)]
pub struct Routers {
    pub in_flight: u32,
    pub queued: u32,
    /// Of each replica.
    pub busy: u32,
    pub know_draining: bool,
    pub mute: Vec<JobId>,
    pub revisions: BTreeMap<u32, Traffic>,
}

impl Routers {
    /// Every replica that runs answers, but those that are mute.
    pub fn load(&self, world: &World) -> EndpointLoad {
        let routes = crate::route_table(world.engine.state());
        let route = routes.endpoints.into_iter().find(|e| e.name == "chat");
        let replica = |r: tutti_model::ReplicaRoute| {
            let ready = !self.mute.contains(&r.job);
            let load = ReplicaLoad {
                generation: r.generation,
                ready,
                in_flight: self.busy,
                all_know_draining: self.know_draining && r.draining,
                why: (!ready).then(|| "connection refused".to_owned()),
            };
            (r.job, load)
        };
        EndpointLoad {
            routers: 1,
            in_flight: self.in_flight,
            queued: self.queued,
            peak: 0,
            replicas: route.into_iter().flat_map(|r| r.replicas).map(replica).collect(),
            revisions: self.revisions.clone(),
        }
    }
}

impl World {
    pub fn try_serve(&mut self, spec: JobSpec) -> Result<u32, Rejected> {
        let (spec, user, key) = (Box::new(spec), None, None);
        match self.step(Command::Serve { actor: ada(), spec, user, key }).reply? {
            Reply::Endpoint { revision, .. } => Ok(revision),
            other => panic!("serve was answered with {other:?}"),
        }
    }

    pub fn serve(&mut self, spec: JobSpec) {
        assert_eq!(self.try_serve(spec), Ok(1));
    }

    pub fn update(&mut self, spec: JobSpec, canary: Option<u32>) -> u32 {
        let (actor, name, spec) = (ada(), "chat".to_owned(), Box::new(spec));
        match self.step(Command::UpdateEndpoint { actor, name, spec, canary }).reply {
            Ok(Reply::Endpoint { revision, .. }) => revision,
            other => panic!("update was answered with {other:?}"),
        }
    }

    pub fn endpoint(&self) -> &Endpoint {
        self.engine.state().endpoints.get("chat").expect("it is served")
    }

    pub fn replicas(&self) -> Vec<(JobId, Replica)> {
        self.endpoint().replicas.iter().map(|(id, r)| (*id, r.clone())).collect()
    }

    pub fn ready(&self) -> Vec<JobId> {
        self.endpoint().ready().map(|(id, _)| id).collect()
    }

    /// Everything that was placed starts, everything that was told to stop is gone, and routers speak;
    /// so for some seconds.
    pub fn serve_on(&mut self, seconds: u64, routers: &Routers) {
        for _ in 0..seconds {
            self.start_and_stop();
            self.speak(routers);
            self.wait(1, &[]);
        }
        self.start_and_stop();
        self.speak(routers);
    }

    pub fn speak(&mut self, routers: &Routers) {
        let loads = [("chat".to_owned(), routers.load(self))].into();
        self.step(Command::Load { loads }).reply.expect("load is always taken");
    }

    pub fn start_and_stop(&mut self) {
        let jobs: Vec<JobId> = self.engine.state().jobs.keys().copied().collect();
        for job in jobs {
            match self.state_of(job) {
                JobState::Starting => drop(self.run(job)),
                JobState::Stopping => {
                    let lease = self.lease(TaskId::single(job));
                    for node in self.nodes_of(job) {
                        self.done(node, lease, &[(0, ExitStatus::Signal(15))]);
                    }
                }
                _ => {}
            }
        }
    }

    /// A controller that takes over: the same state, nothing known of now.
    pub fn take_over(&mut self) {
        let state = self.engine.state().clone();
        self.engine = Engine::restore(state, Settings::default());
        self.step(Command::Start);
        let nodes: Vec<_> = self.engine.state().nodes.keys().copied().collect();
        for node in nodes {
            let name = self.engine.state().node_name(node);
            let gpus = self.engine.state().node(node).map_or(0, |n| n.facts.gpus.len() as u16);
            let parts = self.reports_of(node);
            self.hello(&name, gpus, parts);
        }
    }
}

fn phases(world: &World) -> Vec<ReplicaPhase> {
    world.replicas().into_iter().map(|(_, r)| r.phase).collect()
}

pub fn said(world: &World, words: &str) -> bool {
    world.endpoint().chronicle.iter().any(|h| h.text.contains(words))
}

#[test]
fn replicas_are_jobs_that_become_ready_when_a_router_says_so() {
    let mut world = World::new(&[4]);
    world.serve(chat(2, 4));
    let jobs: Vec<JobId> = world.replicas().into_iter().map(|(id, _)| id).collect();
    assert_eq!(jobs, [JobId(1), JobId(2)]);
    let job = world.engine.state().job(jobs[0]).unwrap();
    assert_eq!((job.user.as_str(), job.class()), ("ada", "serving"));
    assert_eq!(job.replica_of.as_deref().unwrap().endpoint, "chat");
    world.start_and_stop();
    assert_eq!(phases(&world), [ReplicaPhase::Coming; 2], "they run, and nobody has seen them");
    world.speak(&Routers { mute: vec![jobs[1]], ..Routers::default() });
    assert_eq!(phases(&world), [ReplicaPhase::Ready, ReplicaPhase::Coming]);
    world.speak(&Routers::default());
    assert_eq!(phases(&world), [ReplicaPhase::Ready; 2]);
}

#[test]
fn a_word_about_an_earlier_attempt_does_not_make_a_replica_ready() {
    let mut world = World::new(&[1]);
    world.serve(chat(1, 1));
    world.start_and_stop();
    let mut load = Routers::default().load(&world);
    load.replicas.values_mut().for_each(|r| r.generation.0 += 1);
    world.step(Command::Load { loads: [("chat".to_owned(), load)].into() });
    assert_eq!(phases(&world), [ReplicaPhase::Coming]);
}

#[test]
fn load_adds_replicas_and_takes_them_away_again() {
    let mut world = World::new(&[4]);
    world.serve(chat(1, 4));
    let busy = |in_flight| Routers { in_flight, know_draining: true, ..Routers::default() };
    world.serve_on(3, &busy(5));
    assert_eq!((world.endpoint().want, world.ready().len()), (1, 1));
    world.serve_on(10, &busy(35));
    assert_eq!((world.endpoint().want, world.ready().len()), (4, 4));
    assert!(said(&world, "4 replicas instead of 1: at least 35 requests"));
    world.serve_on(15, &busy(12));
    assert_eq!(world.endpoint().want, 4, "not so soon");
    world.serve_on(10, &busy(12));
    assert_eq!((world.endpoint().want, world.ready().len()), (2, 2));
    assert_eq!(world.replicas().len(), 2);
    let over = world.engine.state().index.ended.len();
    assert_eq!(over, 2, "their jobs are over, and are forgotten as others are");
    let served = &world.endpoint().served;
    assert!(served.gpu_ms > 0, "{served:?}");
}

#[test]
fn it_sleeps_when_nobody_asks_and_wakes_for_the_first_request() {
    let mut world = World::new(&[4]);
    world.serve(chat(0, 4));
    assert_eq!(world.replicas(), [], "nobody has asked yet");
    world.speak(&Routers { queued: 1, ..Routers::default() });
    assert_eq!(world.replicas().len(), 1, "at once");
    let idle = Routers { know_draining: true, ..Routers::default() };
    world.serve_on(50, &idle);
    assert_eq!(world.ready().len(), 1);
    world.serve_on(20, &idle);
    assert_eq!((world.endpoint().want, world.replicas().len()), (0, 0));
    assert!(said(&world, "no request for 1m"));
}

#[test]
fn without_routers_nothing_becomes_ready_fails_or_goes() {
    let mut world = World::new(&[4]);
    world.serve(chat(1, 4));
    world.start_and_stop();
    world.wait(600, &[]);
    assert_eq!((phases(&world), world.endpoint().failures), (vec![ReplicaPhase::Coming], 0));
    world.serve_on(1, &Routers::default());
    assert_eq!(world.ready().len(), 1);
    world.wait(3600, &[]);
    assert_eq!(world.ready().len(), 1, "what was ready is, until somebody says otherwise");
}

#[test]
fn a_replica_that_goes_finishes_what_it_has() {
    let mut world = World::new(&[4]);
    world.serve(chat(2, 4));
    world.serve_on(1, &Routers::default());
    let bounds = Some(Replicas { min: 1, max: 1 });
    let scale = Command::ScaleEndpoint { actor: ada(), name: "chat".into(), bounds };
    world.step(scale).reply.unwrap();
    let going: Vec<JobId> = world
        .replicas()
        .into_iter()
        .filter(|(_, r)| matches!(r.phase, ReplicaPhase::Draining { .. }))
        .map(|(id, _)| id)
        .collect();
    assert_eq!(going, [JobId(2)], "the youngest");
    let table = crate::route_table(world.engine.state());
    let draining: Vec<bool> = table.endpoints[0].replicas.iter().map(|r| r.draining).collect();
    assert_eq!(draining, [false, true]);
    let busy = Routers { busy: 3, know_draining: true, ..Routers::default() };
    world.serve_on(10, &busy);
    assert_eq!(world.state_of(going[0]), JobState::Running);
    world.serve_on(1, &Routers { know_draining: false, ..Routers::default() });
    assert_eq!(world.state_of(going[0]), JobState::Running, "a router may not know it yet");
    world.speak(&Routers { know_draining: true, ..Routers::default() });
    assert_eq!(world.state_of(going[0]), JobState::Stopping);
}

#[test]
fn a_replica_that_never_finishes_goes_when_its_time_is_over() {
    let mut world = World::new(&[4]);
    world.serve(chat(1, 4));
    world.serve_on(1, &Routers::default());
    world.step(Command::StopEndpoint { actor: ada(), name: "chat".into() }).reply.unwrap();
    let busy = Routers { busy: 3, know_draining: true, ..Routers::default() };
    world.serve_on(29, &busy);
    assert_eq!(world.state_of(JobId(1)), JobState::Running);
    world.serve_on(2, &busy);
    assert_eq!(world.state_of(JobId(1)), JobState::Cancelled);
    assert!(world.engine.state().endpoints.is_empty());
}

#[test]
fn what_was_told_to_go_comes_back_when_it_is_needed_again() {
    let mut world = World::new(&[4]);
    world.serve(chat(2, 4));
    world.serve_on(1, &Routers::default());
    let scale = |world: &mut World, bounds| {
        let command = Command::ScaleEndpoint { actor: ada(), name: "chat".into(), bounds };
        world.step(command).reply.unwrap();
    };
    scale(&mut world, Some(Replicas { min: 1, max: 1 }));
    assert_eq!(world.ready().len(), 1);
    scale(&mut world, None);
    world.speak(&Routers::default());
    assert_eq!(world.ready(), [JobId(1), JobId(2)], "and nothing was started for it");
}

#[test]
fn a_lost_node_is_made_good_by_the_job_itself() {
    let mut world = World::new(&[1, 1]);
    world.serve(chat(1, 2));
    world.serve_on(1, &Routers::default());
    let node = world.nodes_of(JobId(1))[0];
    world.wait(9, &[node]);
    assert_eq!(phases(&world), [ReplicaPhase::Coming]);
    assert_eq!(world.endpoint().failures, 0, "it is not the replica's fault");
    world.serve_on(1, &Routers::default());
    assert_eq!(world.ready(), [JobId(1)], "the same job, elsewhere");
    assert_ne!(world.nodes_of(JobId(1)), [node]);
    assert_eq!(world.endpoint().warm.len(), 2);
}

#[test]
fn a_replica_that_hangs_is_taken_out_and_then_replaced() {
    let mut world = World::new(&[3]);
    world.serve(chat(2, 2));
    world.serve_on(1, &Routers::default());
    let mute = Routers { mute: vec![JobId(1)], ..Routers::default() };
    world.serve_on(5, &mute);
    assert_eq!(world.ready(), [JobId(1), JobId(2)], "a moment is nothing");
    world.serve_on(6, &mute);
    assert_eq!(phases(&world), [ReplicaPhase::Coming, ReplicaPhase::Ready]);
    assert!(said(&world, "connection refused"));
    let verdict = world.engine.endpoint_verdict("chat", world.now).unwrap();
    assert!(matches!(verdict.replicas[0].why, NotReady::Hangs { .. }), "{verdict:?}");
    world.serve_on(50, &mute);
    assert_eq!(world.ready(), [JobId(2)], "it may come back");
    world.serve_on(10, &mute);
    assert_eq!(world.state_of(JobId(1)), JobState::Cancelled);
    assert!(said(&world, "it did not answer again within 1m"));
    world.serve_on(3, &mute);
    assert_eq!(world.ready(), [JobId(2), JobId(3)]);
}

#[test]
fn what_is_loaded_is_not_thrown_away_because_routers_reach_nobody() {
    let mut world = World::new(&[3]);
    world.serve(chat(2, 2));
    world.serve_on(1, &Routers::default());
    let blind = Routers { mute: vec![JobId(1), JobId(2)], ..Routers::default() };
    world.serve_on(85, &blind);
    assert_eq!(phases(&world), [ReplicaPhase::Coming; 2]);
    world.serve_on(2, &Routers::default());
    assert_eq!((world.ready(), world.endpoint().failures), (vec![JobId(1), JobId(2)], 0));
    world.serve_on(115, &blind);
    assert_eq!(world.endpoint().failures, 1, "but not for ever");
}

#[test]
fn a_job_that_a_person_cancels_is_replaced_at_once() {
    let mut world = World::new(&[4]);
    world.serve(chat(1, 4));
    world.serve_on(1, &Routers::default());
    let target = TaskId::single(JobId(1));
    world.step(Command::Cancel { actor: ada(), target }).reply.unwrap();
    world.serve_on(1, &Routers::default());
    assert_eq!((world.ready(), world.endpoint().failures), (vec![JobId(2)], 0));
    assert!(said(&world, "ada cancelled its job"));
}

#[test]
fn replicas_that_wait_for_gpus_are_not_asked_for_twice() {
    let mut world = World::new(&[2]);
    world.serve(chat(1, 8));
    world.serve_on(60, &Routers { in_flight: 50, ..Routers::default() });
    assert_eq!((world.endpoint().want, world.replicas().len(), world.ready().len()), (5, 5, 2));
    let waiting = world.engine.state().index.waiting.len();
    assert_eq!(waiting, 3);
}

#[test]
fn serving_goes_before_standard_work_and_training_comes_back_at_night() {
    let mut world = World::new(&[2]);
    let node = world.engine.state().node_named("n1").unwrap().id;
    world.can_suspend(node);
    let mut spec = gang(1, 2);
    spec.preempt = Some(Preempt { mode: PreemptMode::Suspend });
    let train = world.submit(spec);
    let lease = world.run(train);
    world.wait(60, &[]);
    world.serve(chat(0, 1));
    assert_eq!(world.state_of(train), JobState::Running, "nobody asks");
    world.speak(&Routers { queued: 1, ..Routers::default() });
    assert_eq!(world.state_of(train), JobState::Suspended);
    let out = |suspension| {
        let phase = tutti_model::ReportedPhase::Running { exits: Vec::new() };
        tutti_model::PartReport { suspension, ..tutti_model::PartReport::new(lease, phase) }
    };
    let bytes = tutti_model::Bytes::gib(80);
    world.report_all(node, out(Some(tutti_model::Suspension::Suspended { bytes })));
    world.serve_on(2, &Routers { in_flight: 1, ..Routers::default() });
    assert_eq!(world.ready().len(), 1);
    world.serve_on(70, &Routers { know_draining: true, ..Routers::default() });
    assert_eq!(world.replicas(), []);
    world.report_all(node, out(None));
    assert_eq!(world.state_of(train), JobState::Running, "where it was");
    assert_eq!(world.lease(TaskId::single(train)), lease);
}

#[test]
fn a_stopped_endpoint_is_gone_when_its_replicas_are() {
    let mut world = World::new(&[4]);
    world.serve(chat(2, 4));
    world.serve_on(1, &Routers::default());
    let stop = |actor| Command::StopEndpoint { actor, name: "chat".into() };
    let bob = Actor { user: "bob".into(), ..ada() };
    let refused = world.step(stop(bob)).reply.unwrap_err();
    assert!(matches!(refused, Rejected::Endpoint(EndpointRefused::NotYours { .. })), "{refused}");
    world.step(stop(admin())).reply.unwrap();
    assert!(world.endpoint().stopping);
    let again = world.try_serve(chat(1, 1)).unwrap_err();
    assert_eq!(again, Rejected::Endpoint(EndpointRefused::Stopping("chat".into())));
    world.serve_on(2, &Routers { know_draining: true, ..Routers::default() });
    assert!(world.engine.state().endpoints.is_empty());
    for job in [JobId(1), JobId(2)] {
        let ended = world.engine.state().job(job).unwrap().ended(None).unwrap().clone();
        assert_eq!(ended.outcome, Outcome::Cancelled);
        assert_eq!(ended.reason, EndReason::Cancelled { by: "tutti".into() });
    }
    assert_eq!(world.try_serve(chat(1, 1)), Ok(1), "the name is free again");
}

#[test]
fn a_replica_may_be_a_gang() {
    let mut world = World::new(&[2, 2, 2]);
    let mut spec = chat(1, 1);
    spec.nodes = Some(2);
    world.serve(spec);
    world.serve_on(1, &Routers::default());
    assert_eq!(world.ready(), [JobId(1)]);
    assert_eq!(world.nodes_of(JobId(1)).len(), 2);
    assert_eq!(crate::address(world.engine.state(), JobId(1)).as_deref(), Some("127.0.1.1:4000"));
}

#[test]
fn a_controller_that_takes_over_goes_on_where_the_other_was() {
    let mut world = World::new(&[4]);
    world.serve(chat(1, 4));
    world.serve_on(10, &Routers { in_flight: 30, ..Routers::default() });
    assert_eq!(world.ready().len(), 3);
    world.take_over();
    assert_eq!(world.ready().len(), 3);
    world.serve_on(15, &Routers::default());
    assert_eq!(world.ready().len(), 3, "what was asked before is not known, so nobody goes yet");
    world.serve_on(10, &Routers { know_draining: true, ..Routers::default() });
    assert_eq!(world.ready().len(), 1);
}

#[test]
fn what_can_not_be_served_is_refused_with_a_way_out() {
    let mut world = World::new(&[4]);
    let refusal = |world: &mut World, spec: JobSpec| match world.try_serve(spec).unwrap_err() {
        Rejected::Endpoint(refused) => refused,
        other => panic!("refused for another reason: {other}"),
    };
    let mut array = chat(1, 1);
    array.array = Some("0-3".parse().unwrap());
    let mut nameless = chat(1, 1);
    nameless.name = None;
    let mut odd = chat(1, 1);
    odd.name = Some("Chat!".into());
    let night = r#"{"from":"08:00","until":"08:00","min":1}"#;
    let night: tutti_model::ScheduledMin = serde_json::from_str(night).unwrap();
    for (spec, expected) in [
        (gang(1, 1), EndpointRefused::NotAService),
        (array, EndpointRefused::Excluded { key: "array" }),
        (nameless, EndpointRefused::NoName),
        (odd, EndpointRefused::BadName("Chat!".into())),
        (
            with_service(chat(1, 1), |s| s.schedule = vec![night.clone()]),
            EndpointRefused::BadService {
                key: "schedule[0].until".into(),
                problem: "the same as 'from': write 00:00 and 24:00 for a day".into(),
            },
        ),
    ] {
        let refused = refusal(&mut world, spec);
        assert_eq!(refused, expected);
        assert!(!refused.hint().is_empty());
    }
    let submitted = world.try_submit(chat(1, 1)).unwrap_err();
    assert_eq!(submitted, Rejected::Endpoint(EndpointRefused::MustBeServed));
    let mut jumps = gang(1, 1);
    jumps.class = Some("serving".into());
    let refused = world.try_submit(jumps).unwrap_err().to_string();
    assert_eq!(refused, "class: serving is for endpoints: use `tutti serve`");
    world.serve(chat(1, 1));
    assert_eq!(refusal(&mut world, chat(1, 1)), EndpointRefused::Exists("chat".into()));
}

#[test]
fn a_repeated_request_gives_the_same_endpoint() {
    let mut world = World::new(&[4]);
    let command = |key: &str| Command::Serve {
        actor: ada(),
        spec: Box::new(chat(1, 1)),
        user: None,
        key: Some(key.to_owned()),
    };
    let first = world.step(command("k1")).reply;
    let again = world.step(command("k1"));
    assert_eq!((&again.reply, again.records.len()), (&first, 0));
    assert!(world.step(command("k2")).reply.is_err());
}

#[test]
fn what_was_served_adds_up() {
    let mut world = World::new(&[4]);
    world.serve(chat(1, 1));
    let more = tutti_model::Served { requests: 7, output_tokens: 70, ..Default::default() };
    for _ in 0..2 {
        let command = Command::Served { endpoint: "chat".into(), more: more.clone() };
        let step = world.step(command);
        assert!(matches!(step.records[0].event, Event::EndpointServed { .. }));
    }
    assert_eq!(
        (world.endpoint().served.requests, world.endpoint().served.output_tokens),
        (14, 140)
    );
    assert!(invariants::check_all(world.engine.state()).is_empty());
}

#[test]
fn what_a_stopped_endpoint_served_is_kept() {
    let mut world = World::new(&[4]);
    let stop = || Command::StopEndpoint { actor: ada(), name: "chat".into() };
    let served = |requests| Command::Served {
        endpoint: "chat".into(),
        more: tutti_model::Served { requests, ..Default::default() },
    };
    let unknown = world.step(served(1)).reply.unwrap_err();
    assert_eq!(unknown, Rejected::Endpoint(EndpointRefused::Unknown("chat".into())));
    world.serve(chat(1, 1));
    let created_at = world.endpoint().created_at;
    world.serve_on(5, &Routers::default());
    world.step(served(7)).reply.unwrap();
    world.step(stop()).reply.unwrap();
    world.serve_on(2, &Routers { know_draining: true, ..Routers::default() });
    assert!(world.engine.state().endpoints.is_empty());
    // A router says after the end what it has counted before.
    world.step(served(2)).reply.unwrap();
    let past = world.engine.state().past_endpoints.last("chat").unwrap().clone();
    assert_eq!((past.user.as_str(), past.created_at, past.served.requests), ("ada", created_at, 9));
    assert!(past.served.gpu_ms >= 5000 && past.stopped_at > created_at, "{past:?}");

    world.serve(chat(0, 1));
    world.step(served(3)).reply.unwrap();
    assert_eq!(world.endpoint().served.requests, 3, "it is another one");
    world.step(stop()).reply.unwrap();
    let requests = world.engine.state().past_endpoints.iter().map(|p| p.served.requests);
    assert_eq!(requests.collect::<Vec<_>>(), [3, 9], "newest first");
    assert!(invariants::check_all(world.engine.state()).is_empty());
}
