//! Endpoints in a storm: people serve, change and stop them, and routers say what they see, late,
//! wrongly, or not at all.

use std::collections::BTreeMap;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tutti_engine::{Actor, Command, route_table};
use tutti_model::{
    Command as Run, Endpoint, EndpointLoad, GpuRequest, JobSpec, ReplicaLoad, ReplicaRoute,
    Replicas, Role, RolloutRule, RouteTable, Served, ServiceSpec, Span, Traffic,
};

use super::{Failure, World};
use crate::net::chance;
use crate::workload::Fate;

const NAMES: [&str; 2] = ["chat", "embed"];
/// How long a replica runs that never ends by itself: longer than any storm and its calm.
const FOR_EVER_MS: u64 = 10_000_000;
/// Requests at a time in the calm: one replica answers them, so that nothing sleeps.
const CALM_ASKED: u32 = 1;
/// Steps of the calm after which every endpoint must be as it should be, and so many on end.
const RESTLESS_STEPS: u32 = 6000;
const REST_STEPS: u32 = 50;

/// What routers know, and what they were asked. Has a source of chance of its own, so that storms
/// without endpoints are what they were.
pub(super) struct Serving {
    rng: ChaCha8Rng,
    pub endpoints: usize,
    /// As of the last time they asked for it.
    table: RouteTable,
    asked: u32,
    version: u32,
    /// Steps on end for which all endpoints were as they should be.
    rested: u32,
}

impl Serving {
    pub fn new(seed: u64, endpoints: usize) -> Serving {
        Serving {
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x5e7_7e15),
            endpoints,
            table: RouteTable::default(),
            asked: 0,
            version: 0,
            rested: 0,
        }
    }

    fn spec(&mut self, name: &str) -> JobSpec {
        let rng = &mut self.rng;
        self.version += u32::from(rng.random_range(0..3) != 0);
        // Some end by themselves soon, some never.
        let runs_for = [2_000, 15_000, FOR_EVER_MS][rng.random_range(0..3usize)];
        let words = ["sim".to_owned(), runs_for.to_string(), rng.random_range(0..2).to_string()];
        let mut spec = JobSpec::new(Run::Argv(words.to_vec()));
        spec.name = Some(name.to_owned());
        spec.env.insert("VERSION".into(), self.version.to_string());
        spec.nodes = Some(rng.random_range(1..=2));
        spec.gpus_per_node = Some(GpuRequest { model: None, count: rng.random_range(1..=2) });
        let min = rng.random_range(0..=1);
        let rollout = RolloutRule {
            canary: [0, 0, 30][rng.random_range(0..3usize)],
            bake: Span::secs(rng.random_range(0..5)),
            min_requests: 5,
            ..RolloutRule::default()
        };
        let service = ServiceSpec {
            replicas: Replicas { min, max: rng.random_range(1..=3) },
            target_in_flight: 4,
            warm_up: Span::secs(rng.random_range(3..20)),
            drain: Span::secs(rng.random_range(0..5)),
            up_after: Span::secs(1),
            down_after: Span::secs(4),
            zero_after: Span::secs(8),
            rollout,
            files: rng.random_bool(0.5).then(|| "/models/chat".to_owned()),
            ..ServiceSpec::default()
        };
        spec.service = Some(Box::new(service));
        spec
    }

    /// What people do next, if anything.
    fn command(&mut self) -> Option<Command> {
        if self.endpoints == 0 || !chance(&mut self.rng, 40) {
            return None;
        }
        let name = NAMES[self.rng.random_range(0..self.endpoints.min(NAMES.len()))].to_owned();
        let actor = Actor { user: "root".into(), role: Role::Admin };
        Some(match self.rng.random_range(0..10) {
            0..=3 => {
                let spec = Box::new(self.spec(&name));
                Command::Serve { actor, spec, user: Some("ada".into()), key: None }
            }
            4..=6 => {
                let spec = Box::new(self.spec(&name));
                Command::UpdateEndpoint { actor, name, spec, canary: None }
            }
            7 => {
                let min = self.rng.random_range(0..2);
                let bounds = Replicas { min, max: self.rng.random_range(1..=4) };
                let bounds = self.rng.random_bool(0.7).then_some(bounds);
                Command::ScaleEndpoint { actor, name, bounds }
            }
            8 => Command::RollBack { actor, name, to: None },
            _ if self.rng.random_bool(0.5) => Command::StopEndpoint { actor, name },
            _ => {
                let more = Served { requests: 3, ..Served::default() };
                Command::Served { endpoint: name, more }
            }
        })
    }

    /// What all routers see. Those of a calm are right, and they are asked steadily.
    fn loads(&mut self, now: &RouteTable, calm: bool) -> BTreeMap<String, EndpointLoad> {
        if calm || self.rng.random_bool(0.6) {
            self.table = now.clone();
        }
        if self.rng.random_bool(0.2) {
            self.asked = self.rng.random_range(0..16);
        }
        let asked = if calm { CALM_ASKED } else { self.asked };
        let rng = &mut self.rng;
        let mut traffic = |bad: bool| {
            let requests = rng.random_range(0..30);
            let errors = if bad { requests / 2 } else { 0 };
            Traffic { requests, errors, ..Traffic::default() }
        };
        let bad = !calm && traffic(false).requests % 5 == 0;
        let mut loads = BTreeMap::new();
        for endpoint in &self.table.endpoints {
            let new = endpoint.replicas.iter().map(|r| r.revision).max().unwrap_or(1);
            let of = |r: &ReplicaRoute| (r.revision, traffic(bad && r.revision == new));
            let revisions = endpoint.replicas.iter().map(of).collect();
            let load = EndpointLoad {
                routers: 1,
                in_flight: asked,
                queued: 0,
                peak: 0,
                replicas: BTreeMap::new(),
                revisions,
            };
            loads.insert(endpoint.name.clone(), load);
        }
        for endpoint in &self.table.endpoints {
            let Some(load) = loads.get_mut(&endpoint.name) else { continue };
            for route in &endpoint.replicas {
                let replica = ReplicaLoad {
                    generation: route.generation,
                    ready: calm || self.rng.random_bool(0.85),
                    in_flight: if calm { 0 } else { self.rng.random_range(0..3) },
                    all_know_draining: route.draining,
                    why: None,
                };
                load.replicas.insert(route.job, replica);
            }
        }
        loads
    }
}

impl World {
    pub(super) fn people_serve(&mut self) -> Result<(), Failure> {
        let Some(command) = self.serving.command() else { return Ok(()) };
        self.command(command)?;
        Ok(())
    }

    pub(super) fn routers(&mut self) -> Result<(), Failure> {
        let calm = self.weather.lose == 0;
        if self.serving.endpoints == 0 || !calm && chance(&mut self.serving.rng, 100) {
            return Ok(());
        }
        let table = route_table(self.controller.engine.state());
        let loads = self.serving.loads(&table, calm);
        self.command(Command::Load { loads })?;
        Ok(())
    }

    /// In the calm, endpoints first come to be what they should be. Then they are stopped: nothing
    /// that is served ever ends by itself.
    pub(super) fn serve_out(&mut self, step: u32) -> Result<(), Failure> {
        if self.serving.rested == REST_STEPS {
            return self.stop_endpoints();
        }
        self.mend_endpoints()?;
        match self.at_rest() {
            Ok(()) => self.serving.rested += 1,
            Err(found) if step >= RESTLESS_STEPS => return Err(self.failure(found)),
            Err(_) => self.serving.rested = 0,
        }
        if self.serving.rested == REST_STEPS {
            let settled = self.controller.engine.state().endpoints.len();
            self.controller.counts.endpoints_settled += settled as u32;
        }
        Ok(())
    }

    /// Somebody serves something better in place of what ends by itself again and again.
    fn mend_endpoints(&mut self) -> Result<(), Failure> {
        let endpoints = self.controller.engine.state().endpoints.values();
        let mended = |endpoint: &Endpoint| {
            let spec = &endpoint.revision(endpoint.newest())?.spec;
            let ends = Fate::of(spec).runs_for < Span(FOR_EVER_MS);
            (ends && !endpoint.stopping).then(|| (endpoint.name.clone(), for_ever(spec)))
        };
        let mended: Vec<(String, JobSpec)> = endpoints.filter_map(mended).collect();
        for (name, spec) in mended {
            let actor = Actor { user: "root".into(), role: Role::Admin };
            let spec = Box::new(spec);
            let update = Command::UpdateEndpoint { actor, name, spec, canary: None };
            if let Some(Err(rejected)) = self.command(update)? {
                return Err(self.failure(format!("an endpoint can't be mended: {rejected}")));
            }
        }
        Ok(())
    }

    /// As many replicas answer as should, none is there beside them, and no rollout is under way.
    fn at_rest(&self) -> Result<(), String> {
        for endpoint in self.controller.engine.state().endpoints.values() {
            let ready = endpoint.ready().count();
            let answers = endpoint.want > 0 && ready == endpoint.want as usize;
            let alone = endpoint.replicas.len() == ready;
            if endpoint.stopping || endpoint.rollout.is_some() || !answers || !alone {
                let name = &endpoint.name;
                return Err(format!("endpoint {name} does not come to rest: {endpoint:?}"));
            }
        }
        Ok(())
    }

    fn stop_endpoints(&mut self) -> Result<(), Failure> {
        let state = self.controller.engine.state();
        let going = state.endpoints.values().filter(|e| !e.stopping).map(|e| e.name.clone());
        let names: Vec<String> = going.collect();
        for name in names {
            let actor = Actor { user: "root".into(), role: Role::Admin };
            self.command(Command::StopEndpoint { actor, name })?;
        }
        Ok(())
    }
}

fn for_ever(spec: &JobSpec) -> JobSpec {
    let words = ["sim".to_owned(), FOR_EVER_MS.to_string(), "0".to_owned()];
    JobSpec { run: Run::Argv(words.to_vec()).into(), ..spec.clone() }
}
