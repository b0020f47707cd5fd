//! Endpoints in a storm: people serve, change and stop them, and routers say what they see, late,
//! wrongly, or not at all.

use std::collections::BTreeMap;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tutti_engine::{Actor, Command, route_table};
use tutti_model::{
    Command as Run, EndpointLoad, GpuRequest, JobSpec, ReplicaLoad, ReplicaRoute, Replicas, Role,
    RolloutRule, RouteTable, Served, ServiceSpec, Span, Traffic,
};

use super::{Failure, World};
use crate::net::chance;

const NAMES: [&str; 2] = ["chat", "embed"];

/// What routers know, and what they were asked. Has a source of chance of its own, so that storms
/// without endpoints are what they were.
pub(super) struct Serving {
    rng: ChaCha8Rng,
    pub endpoints: usize,
    /// As of the last time they asked for it.
    table: RouteTable,
    asked: u32,
    version: u32,
}

impl Serving {
    pub fn new(seed: u64, endpoints: usize) -> Serving {
        Serving {
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x5e7_7e15),
            endpoints,
            table: RouteTable::default(),
            asked: 0,
            version: 0,
        }
    }

    fn spec(&mut self, name: &str) -> JobSpec {
        let rng = &mut self.rng;
        self.version += u32::from(rng.random_range(0..3) != 0);
        // Some end by themselves soon, some never.
        let runs_for = [2_000, 15_000, 10_000_000][rng.random_range(0..3usize)];
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

    /// What all routers see. Those of a calm are right, and nobody asks them.
    fn loads(&mut self, now: &RouteTable, calm: bool) -> BTreeMap<String, EndpointLoad> {
        if calm || self.rng.random_bool(0.6) {
            self.table = now.clone();
        }
        if self.rng.random_bool(0.2) {
            self.asked = self.rng.random_range(0..16);
        }
        let asked = if calm { 0 } else { self.asked };
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

    /// Nothing that is served ever ends by itself.
    pub(super) fn stop_endpoints(&mut self) -> Result<(), Failure> {
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
