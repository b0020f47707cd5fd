//! From an order to a plan that a shim can carry out.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use tutti_model::{Blame, Launch, LeaseId, PartError};

use super::lookup::Answer;
use super::{Node, chain};
use crate::cgroup::PartCgroup;
use crate::env::{self, Devices, Surroundings};
use crate::launcher;
use crate::logs::attempt_dir;
use crate::machine::{Input, Ports};
use crate::mps;
use crate::network::{self, Network};
use crate::parts::Record;
use crate::plan::{Plan, Workdir};
use crate::port_owner;
use crate::private::Rooms;
use crate::shim::tree;
use crate::user::Account;

/// How often a port that another part of this node was given is drawn again.
const PORT_TRIES: u32 = 16;
/// Processes that live this long after they were killed are worth a word.
const SAY_AFTER: Duration = Duration::from_secs(10);
const SWEEP_PAUSE_MAX: Duration = Duration::from_secs(5);

impl Node {
    /// Everything that can be known to fail before a process exists, and a port. None: something
    /// has to be looked up first.
    pub(super) fn prepare(&mut self, lease: LeaseId) -> Option<Input> {
        let launch = self.machine.launch(lease).expect("asked for a part it knows");
        let objection = self.isolation.objection(&self.config.name);
        if let Err(error) = check_text(launch)
            .and_then(|()| objection.map_or(Ok(()), Err))
            .and_then(|()| self.check_image(launch))
            .and_then(|()| self.suspending.check(launch, &self.config.gpus))
        {
            return Some(Input::Prepared { lease, result: Err(error) });
        }
        if !self.lookups.is_known(launch) {
            return None;
        }
        self.prepare_share(lease)
    }

    /// None: what keeps it to its share of a GPU has to be started first.
    fn prepare_share(&mut self, lease: LeaseId) -> Option<Input> {
        match self.may_share(lease) {
            Ok(true) => Some(self.prepared(lease)),
            Ok(false) => None,
            Err(error) => Some(Input::Prepared { lease, result: Err(error) }),
        }
    }

    pub(super) fn on_looked_up(&mut self, answer: Answer) {
        let (leases, found) = self.lookups.take(answer);
        for lease in leases {
            // It may have been stopped meanwhile.
            if !self.machine.is_preparing(lease) {
                continue;
            }
            let input = match &found {
                Ok(()) => self.prepare_share(lease),
                Err(error) => Some(Input::Prepared { lease, result: Err(error.clone()) }),
            };
            if let Some(input) = input {
                self.step(input);
            }
        }
    }

    pub(super) fn prepared(&mut self, lease: LeaseId) -> Input {
        let launch = self.machine.launch(lease);
        let result = match launch.and_then(|launch| self.port_objection(launch)) {
            Some(error) => Err(error),
            None => self.free_port(),
        };
        if let Ok(port) = result {
            self.ports.insert(lease, port);
        }
        Input::Prepared { lease, result }
    }

    /// A port that is free on this node's own address, and that no other part here was told.
    fn free_port(&self) -> Result<u16, PartError> {
        let address = self.config.address.as_str();
        let node = |e: &dyn std::fmt::Display| PartError {
            message: format!("no port is free on {address}: {e}"),
            blame: Blame::Node,
        };
        let at = self.lookups.address().ok_or_else(|| node(&"it has no address"))?;
        for _ in 0..PORT_TRIES {
            // Free of all others' sockets, also of those that don't listen.
            let (_, port) =
                port_owner::bound_alone(SocketAddr::new(at, 0)).map_err(|e| node(&e))?;
            if !self.ports.values().any(|&taken| taken == port) {
                return Ok(port);
            }
        }
        Err(node(&"all that were tried are promised to other parts"))
    }

    pub(super) fn keep_prepared(&mut self, lease: LeaseId) -> Option<Input> {
        let record = self.record(lease)?;
        let written = self.parts.write_prepared(&record);
        written.err().map(|e| Input::LaunchFailed { lease, message: chain(&e) })
    }

    /// The record first: once the zygote is asked, the part may start at any time.
    pub(super) fn launch(&mut self, lease: LeaseId, ports: &Ports) -> Option<Input> {
        let record = self.record(lease)?;
        let failed = |message| Some(Input::LaunchFailed { lease, message });
        self.look_at_network();
        let cgroup = self.isolation.of_part(&record.launch, &self.config);
        let plan = self.plan(&record.launch, ports);
        let plan = match plan.and_then(|plan| self.contain(&record.launch, plan)) {
            Ok(plan) => {
                let private = self.isolation.private(&plan, &record.launch, &self.program);
                Plan { cgroup, private, ..plan }
            }
            Err(error) => return failed(error.message),
        };
        let written = if record.launch.wait_for_go {
            self.parts.release(lease)
        } else {
            self.parts.write_launch(&record)
        };
        match written {
            Ok(()) => {
                self.zygote.start(&plan);
                None
            }
            Err(error) => failed(chain(&error)),
        }
    }

    fn look_at_network(&mut self) {
        let Some(own) = self.lookups.address().filter(|_| self.network.is_none()) else { return };
        let addresses = network::addresses().unwrap_or_else(|error| {
            tracing::warn!(%error, "can't look up interfaces: ranks must find them themselves");
            Vec::new()
        });
        let hardware = self.config.hardware.as_deref();
        self.network = Some(Network::discover(Path::new("/"), &addresses, own, hardware));
    }

    fn record(&self, lease: LeaseId) -> Option<Record> {
        let (launch, port) = (self.machine.launch(lease)?, self.machine.port(lease)?);
        Some(Record { launch: launch.clone(), port })
    }

    fn plan(&self, launch: &Launch, ports: &Ports) -> Result<Plan, PartError> {
        let config = &self.config;
        let account = self.lookups.account(&launch.user)?;
        let stem = self.parts.stem(launch.lease);
        let progress = self.places.socket(launch.lease, account.identity.is_some());
        let unknown = Network::default();
        let devices = Devices {
            gpus: &config.gpus,
            hardware: config.hardware.as_deref(),
            sees: self.sees(launch),
        };
        let rooms = self.isolation.rooms().is_some();
        let around = Surroundings {
            devices,
            node: &config.name,
            address: &config.address,
            simulated: config.simulated,
            account: &account,
            master_port: ports.master,
            ports: &ports.all,
            network: self.network.as_ref().unwrap_or(&unknown),
            part: &stem,
            progress: &progress,
            // One inside of /tmp is not there for a part that has its own.
            tmpdir: self.tmpdir.as_deref().filter(|dir| !(rooms && Rooms::hides(dir))),
            program: &self.program,
            as_root: account.identity.is_none() && nix::unistd::Uid::effective().is_root(),
            now: super::now(),
        };
        let mut env = env::of_part(launch, &around)?;
        let shares = self.share_variables(launch);
        let suspend = self.suspending.of_part(launch, shares.is_some());
        if let Some(variables) = shares {
            mps::put(&mut env.shared, variables);
        }
        Ok(Plan {
            lease: launch.lease,
            home: config.data_dir.clone(),
            log_dir: attempt_dir(&config.data_dir.join("logs"), launch.lease.task, launch.attempt),
            log_limits: config.log_limits,
            progress: progress.clone(),
            argv: launcher::argv(launch, &self.program),
            container: Vec::new(),
            new_privileges: false,
            podman: None,
            env: env.shared,
            by_rank: env.by_rank,
            first_rank: launch.first_rank,
            ranks: launch.ranks,
            workdir: workdir(launch, &account),
            stdin: launch.spec.stdin,
            cgroup: None,
            private: None,
            identity: account.identity,
            stem,
            program: self.program.clone(),
            gpus: self.uuids(&launch.gpus),
            suspend,
            limit: launch.limit.clone(),
        })
    }
}

fn workdir(launch: &Launch, account: &Account) -> Workdir {
    match &launch.spec.workdir {
        Some(dir) => Workdir::Asked(dir.clone()),
        None => Workdir::Home(account.home.clone()),
    }
}

/// What no program can be given.
fn check_text(launch: &Launch) -> Result<(), PartError> {
    let job = |message: &str| PartError { message: message.to_owned(), blame: Blame::Job };
    let argv = launcher::command(&launch.spec.run);
    if argv.first().is_none_or(String::is_empty) {
        return Err(job("the command is empty"));
    }
    let vars = launch.spec.env.iter().flat_map(|(k, v)| [k, v]);
    if argv.iter().chain(vars).any(|s| s.contains('\0')) {
        return Err(job("the command or a variable contains a zero byte"));
    }
    let bad = launch.spec.env.keys().find(|k| k.is_empty() || k.contains('='));
    bad.map_or(Ok(()), |k| Err(job(&format!("'{k}' can't be the name of a variable"))))
}

/// Kills what is left of a part without a shim, and waits until it is gone, however long that
/// takes: its GPUs must not be given to anybody while one of its processes lives.
pub(super) fn sweep(mark: &str, cgroup: Option<&PartCgroup>) {
    let began = Instant::now();
    let mut next_word = SAY_AFTER;
    let mut pause = Duration::from_millis(10);
    let mut marked = tree::Sweep::new(mark);
    loop {
        if let Some(cgroup) = cgroup {
            // Gone already, or the walk below finds its processes.
            let _ = cgroup.kill();
        }
        let left = marked.pass();
        if left == 0 && cgroup.is_none_or(PartCgroup::is_done) {
            return;
        }
        if began.elapsed() >= next_word {
            let secs = began.elapsed().as_secs();
            tracing::error!(
                "{} of {mark} won't die; its resources stay taken ({secs} s so far)",
                tutti_model::count(left as u64, "process")
            );
            next_word *= 2;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(SWEEP_PAUSE_MAX);
    }
}
