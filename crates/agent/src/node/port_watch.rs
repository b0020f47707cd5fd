//! Looks once a second whose servers listen where routers reach the parts of this node. Whoever listens
//! on the port of a replica gets what people ask of it, so the controller names no replica to routers
//! before its agent has seen that the socket is the replica's own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinSet};
use tutti_model::{Blame, Launch, LeaseId, PartError, PortOwner};

use super::{Node, log_error};
use crate::port_owner::{self, PortWatcher, ServingPart};

const EVERY: Duration = Duration::from_secs(1);

pub struct PortWatch {
    /// Parts that routers ask.
    serving: BTreeSet<LeaseId>,
    owners: BTreeMap<LeaseId, PortOwner>,
    next: Instant,
    /// Away while it looks, on a thread: that reads files of many processes.
    watcher: Option<PortWatcher>,
    looking: JoinSet<Looked>,
    complained: bool,
}

pub struct Looked {
    watcher: PortWatcher,
    found: std::io::Result<BTreeMap<LeaseId, PortOwner>>,
}

impl PortWatch {
    pub fn new() -> PortWatch {
        PortWatch {
            serving: BTreeSet::new(),
            owners: BTreeMap::new(),
            next: Instant::now(),
            watcher: None,
            looking: JoinSet::new(),
            complained: false,
        }
    }

    pub fn next_alarm(&self) -> Option<Instant> {
        let idle = self.serving.is_empty() || !self.looking.is_empty();
        (!idle).then_some(self.next)
    }

    /// Waits for what a look found.
    pub async fn next(&mut self) -> Option<Result<Looked, JoinError>> {
        self.looking.join_next().await
    }

    pub fn owner(&self, lease: LeaseId) -> Option<PortOwner> {
        self.owners.get(&lease).cloned()
    }

    fn forget(&mut self, lease: LeaseId) {
        self.serving.remove(&lease);
        self.owners.remove(&lease);
    }

    /// What has changed since the last look.
    fn take(&mut self, found: BTreeMap<LeaseId, PortOwner>) -> Vec<LeaseId> {
        let fresh = |(lease, owner): &(LeaseId, PortOwner)| {
            self.serving.contains(lease) && self.owners.get(lease) != Some(owner)
        };
        let fresh: Vec<(LeaseId, PortOwner)> = found.into_iter().filter(fresh).collect();
        let changed = fresh.iter().map(|(lease, _)| *lease).collect();
        self.owners.extend(fresh);
        changed
    }
}

/// Routers ask the first part of what is served.
fn is_asked(launch: &Launch) -> bool {
    launch.spec.service.is_some() && launch.node_rank == 0
}

impl Node {
    /// After every change of a part.
    pub(super) fn watch_port(&mut self, lease: LeaseId) {
        let live = self.machine.launch(lease).filter(|_| !self.machine.is_over(lease));
        if live.is_some_and(is_asked) {
            self.port_watch.serving.insert(lease);
        } else {
            self.port_watch.forget(lease);
        }
    }

    pub(super) fn look_at_ports(&mut self, now: Instant) {
        if self.port_watch.next_alarm().is_none_or(|at| at > now) {
            return;
        }
        self.port_watch.next = now + EVERY;
        let parts: Vec<ServingPart> = self.serving_parts().collect();
        if parts.is_empty() {
            return;
        }
        let shims = self.shims.pids();
        let mut watcher = self.port_watch.watcher.take().unwrap_or_default();
        self.port_watch.looking.spawn_blocking(move || {
            let listening = port_owner::listeners();
            let found = listening.map(|listening| watcher.look(&parts, &listening, &shims));
            Looked { watcher, found }
        });
    }

    /// Those whose shim is there: it is what tells their processes from others'.
    fn serving_parts(&self) -> impl Iterator<Item = ServingPart> + '_ {
        self.port_watch.serving.iter().filter_map(|&lease| {
            let launch = self.machine.launch(lease)?;
            let fixed = launch.spec.service.as_deref().and_then(|service| service.port);
            let port = fixed.or_else(|| self.ports.get(&lease).copied())?;
            let at = SocketAddr::new(self.own_address()?, port);
            Some(ServingPart { lease, shim: self.shims.pid(lease)?, at })
        })
    }

    /// An agent that has just started and adopted its parts has looked up nothing yet.
    fn own_address(&self) -> Option<IpAddr> {
        self.lookups.address().or_else(|| self.config.address.parse().ok())
    }

    pub(super) fn on_ports_seen(&mut self, looked: Result<Looked, JoinError>) {
        let Looked { watcher, found } = match looked {
            Ok(looked) => looked,
            Err(error) => return log_error("whose servers listen could not be looked at", &error),
        };
        self.port_watch.watcher = Some(watcher);
        match found {
            Ok(found) => {
                self.port_watch.complained = false;
                self.changed.extend(self.port_watch.take(found));
            }
            Err(error) => {
                if !std::mem::replace(&mut self.port_watch.complained, true) {
                    log_error("the kernel's list of listening sockets can't be read", &error);
                }
            }
        }
    }

    /// Nothing of the part runs yet, so whoever listens on its port is somebody else.
    pub(super) fn port_objection(&self, launch: &Launch) -> Option<PartError> {
        let service = launch.spec.service.as_deref().filter(|_| is_asked(launch))?;
        let at = SocketAddr::new(self.own_address()?, service.port?);
        let listening = port_owner::listeners().ok()?;
        let taken = listening.iter().find(|l| l.at.port() == at.port() && l.receives(at.ip()))?;
        let who = port_owner::describe(taken, &self.shims.pids());
        let message = format!(
            "port {} of {} ({}) is taken: {who} listens there; write another 'port', or leave the key \
             out and let the server listen on $PORT",
            at.port(),
            self.config.name,
            at.ip()
        );
        Some(PartError { message, blame: Blame::Job })
    }
}
