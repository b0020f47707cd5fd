//! Looks once a second whose servers listen where routers reach the parts of this node. Whoever listens
//! on the port of a replica gets what people ask of it, so the controller names no replica to routers
//! before its agent has seen that the socket is the replica's own, and no longer than it sees that.
//!
//! Each part is looked at by itself, so that one with very many processes makes nobody else wait.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{Id, JoinError, JoinSet};
use tutti_model::{Blame, Launch, LeaseId, PartError, PortOwner};

use super::{Node, log_error};
use crate::port_owner::{self, Found, PortWatcher, ServingPart};

const EVERY: Duration = Duration::from_secs(1);
/// A part that has more than a look can go through.
const EVERY_SPENT: Duration = Duration::from_secs(5);
/// So long a look is good for, from when it began.
const GOOD_FOR: Duration = Duration::from_secs(3);
/// What is not ready anyway may be explained a little longer, so that the words do not come and go.
const EXPLAINS_FOR: Duration = Duration::from_secs(10);

pub struct PortWatch {
    /// Parts that routers ask.
    turns: BTreeMap<LeaseId, Turn>,
    looking: JoinSet<Looked>,
    complained: bool,
}

/// One part's looks.
struct Turn {
    next: Instant,
    /// While it is looked at, on a thread: that reads files of many processes.
    looking: Option<Id>,
    /// Away meanwhile.
    watcher: PortWatcher,
    verdict: Option<Verdict>,
}

struct Verdict {
    owner: PortOwner,
    /// When the look began.
    at: Instant,
}

impl Verdict {
    fn ends(&self) -> Option<Instant> {
        match self.owner {
            PortOwner::Part => Some(self.at + GOOD_FOR),
            PortOwner::Nobody => None,
            PortOwner::Elsewhere { .. } | PortOwner::Stranger { .. } => {
                Some(self.at + EXPLAINS_FOR)
            }
        }
    }
}

impl Turn {
    fn new(now: Instant) -> Turn {
        Turn { next: now, looking: None, watcher: PortWatcher::default(), verdict: None }
    }

    /// What was seen too long ago counts for nothing.
    fn owner(&self, now: Instant) -> Option<PortOwner> {
        let verdict = self.verdict.as_ref()?;
        let over = verdict.ends().is_some_and(|at| at <= now);
        Some(if over { PortOwner::Nobody } else { verdict.owner.clone() })
    }

    /// Whether that is another one than before.
    fn take(&mut self, owner: PortOwner, at: Instant) -> bool {
        let changed = self.verdict.as_ref().is_none_or(|known| known.owner != owner);
        self.verdict = Some(Verdict { owner, at });
        changed
    }

    /// Whether the verdict has just ended.
    fn lapse(&mut self, now: Instant) -> bool {
        let verdict = self.verdict.as_mut();
        let ended = verdict.filter(|v| v.ends().is_some_and(|at| at <= now));
        ended.map(|verdict| verdict.owner = PortOwner::Nobody).is_some()
    }

    fn next_alarm(&self) -> Option<Instant> {
        let look = self.looking.is_none().then_some(self.next);
        look.into_iter().chain(self.verdict.as_ref().and_then(Verdict::ends)).min()
    }
}

pub struct Looked {
    lease: LeaseId,
    began: Instant,
    watcher: PortWatcher,
    found: std::io::Result<Found>,
}

impl PortWatch {
    pub fn new() -> PortWatch {
        PortWatch { turns: BTreeMap::new(), looking: JoinSet::new(), complained: false }
    }

    pub fn next_alarm(&self) -> Option<Instant> {
        self.turns.values().filter_map(Turn::next_alarm).min()
    }

    /// Waits for what a look found.
    pub async fn next(&mut self) -> Option<Result<Looked, JoinError>> {
        self.looking.join_next().await
    }

    pub fn owner(&self, lease: LeaseId) -> Option<PortOwner> {
        self.turns.get(&lease)?.owner(Instant::now())
    }

    /// Parts whose verdict has ended.
    fn lapse(&mut self, now: Instant) -> Vec<LeaseId> {
        let ended = self.turns.iter_mut().filter_map(|(lease, t)| t.lapse(now).then_some(*lease));
        ended.collect()
    }

    /// Parts that are to be looked at.
    fn due(&mut self, now: Instant) -> Vec<LeaseId> {
        let due = |turn: &Turn| turn.looking.is_none() && turn.next <= now;
        let due = self.turns.iter_mut().filter(|(_, turn)| due(turn));
        due.map(|(lease, turn)| {
            turn.next = now + EVERY;
            *lease
        })
        .collect()
    }

    fn look(&mut self, part: ServingPart, shims: Arc<BTreeMap<i32, LeaseId>>) {
        let Some(turn) = self.turns.get_mut(&part.lease) else { return };
        let mut watcher = std::mem::take(&mut turn.watcher);
        let handle = self.looking.spawn_blocking(move || {
            let began = Instant::now();
            let found = watcher.look(&part, &shims);
            Looked { lease: part.lease, began, watcher, found }
        });
        turn.looking = Some(handle.id());
    }

    /// Whether something has changed, and what went wrong. A look that failed has seen nobody.
    fn take(&mut self, looked: Looked) -> (bool, Option<std::io::Error>) {
        // It may have ended meanwhile.
        let Some(turn) = self.turns.get_mut(&looked.lease) else { return (false, None) };
        (turn.looking, turn.watcher) = (None, looked.watcher);
        match looked.found {
            Ok(Found { owner, spent }) => {
                if spent {
                    turn.next = looked.began + EVERY_SPENT;
                }
                (turn.take(owner, looked.began), None)
            }
            Err(error) => (turn.take(PortOwner::Nobody, looked.began), Some(error)),
        }
    }

    /// A look that broke off: the next one begins from nothing.
    fn broke(&mut self, id: Id) -> Option<LeaseId> {
        let (lease, turn) = self.turns.iter_mut().find(|(_, turn)| turn.looking == Some(id))?;
        turn.looking = None;
        turn.take(PortOwner::Nobody, Instant::now()).then_some(*lease)
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
            self.port_watch.turns.entry(lease).or_insert_with(|| Turn::new(Instant::now()));
        } else {
            self.port_watch.turns.remove(&lease);
        }
    }

    pub(super) fn look_at_ports(&mut self, now: Instant) {
        self.changed.extend(self.port_watch.lapse(now));
        let due = self.port_watch.due(now);
        if due.is_empty() {
            return;
        }
        let shims = Arc::new(self.shims.pids());
        for lease in due {
            if let Some(part) = self.serving_part(lease) {
                self.port_watch.look(part, shims.clone());
            }
        }
    }

    /// None before its shim is there, which is what tells its processes from others'.
    fn serving_part(&mut self, lease: LeaseId) -> Option<ServingPart> {
        let uid = self.uid_of(lease)?;
        let launch = self.machine.launch(lease)?;
        let fixed = launch.spec.service.as_deref().and_then(|service| service.port);
        let port = fixed.or_else(|| self.ports.get(&lease).copied())?;
        let at = SocketAddr::new(self.own_address()?, port);
        Some(ServingPart { lease, shim: self.shims.pid(lease)?, uid, at })
    }

    /// The user that a part runs as. An agent that has just adopted its parts finds that out.
    fn uid_of(&mut self, lease: LeaseId) -> Option<u32> {
        let user = &self.machine.launch(lease)?.user;
        let uid = self.known_uid(user);
        if uid.is_none() {
            self.lookups.want(user);
        }
        uid
    }

    fn known_uid(&self, user: &str) -> Option<u32> {
        let me = nix::unistd::Uid::effective();
        if !me.is_root() {
            return Some(me.as_raw());
        }
        let account = self.lookups.account(user).ok()?;
        Some(account.identity.map_or(me.as_raw(), |identity| identity.uid))
    }

    /// An agent that has just started and adopted its parts has looked up nothing yet.
    fn own_address(&self) -> Option<IpAddr> {
        self.lookups.address().or_else(|| self.config.address.parse().ok())
    }

    pub(super) fn on_ports_seen(&mut self, looked: Result<Looked, JoinError>) {
        let looked = match looked {
            Ok(looked) => looked,
            Err(error) => {
                self.changed.extend(self.port_watch.broke(error.id()));
                return log_error("whose servers listen could not be looked at", &error);
            }
        };
        let lease = looked.lease;
        let (changed, failed) = self.port_watch.take(looked);
        self.changed.extend(changed.then_some(lease));
        let complained = std::mem::replace(&mut self.port_watch.complained, failed.is_some());
        if let Some(error) = failed.filter(|_| !complained) {
            log_error("the kernel's list of sockets can't be read", &error);
        }
    }

    /// Nothing of the part runs yet, so whoever has its port is somebody else.
    pub(super) fn port_objection(&self, launch: &Launch) -> Option<PartError> {
        let service = launch.spec.service.as_deref().filter(|_| is_asked(launch))?;
        let at = SocketAddr::new(self.own_address()?, service.port?);
        // What can't be listed now is looked at again before the part is said to be ready.
        let taken = port_owner::taken(at, self.known_uid(&launch.user)).ok()??;
        let who = taken.words(&self.shims.pids());
        let message = format!(
            "port {} of {} ({}) is taken: {who}; write another 'port', or leave the key \
             out and let the server listen on $PORT",
            at.port(),
            self.config.name,
            at.ip()
        );
        Some(PartError { message, blame: Blame::Job })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    fn looked(lease: LeaseId, began: Instant, found: std::io::Result<Found>) -> Looked {
        Looked { lease, began, watcher: PortWatcher::default(), found }
    }

    fn found(owner: PortOwner) -> std::io::Result<Found> {
        Ok(Found { owner, spent: false })
    }

    #[test]
    fn what_was_seen_too_long_ago_counts_for_nothing() {
        let (start, lease) = (Instant::now(), crate::testing::launch("1", 1).lease);
        let mut watch = PortWatch::new();
        watch.turns.insert(lease, Turn::new(start));
        assert!(watch.take(looked(lease, start, found(PortOwner::Part))).0);
        let owner = |watch: &PortWatch, ms| watch.turns[&lease].owner(after(start, ms));
        assert_eq!(owner(&watch, 2_900), Some(PortOwner::Part));
        assert_eq!(watch.lapse(after(start, 2_900)), []);
        // The next look does not end.
        watch.turns.get_mut(&lease).unwrap().next = after(start, 1_000_000);
        assert_eq!(watch.next_alarm(), Some(after(start, 3_000)));
        assert_eq!(owner(&watch, 3_000), Some(PortOwner::Nobody));
        assert_eq!(watch.lapse(after(start, 3_000)), [lease], "the controller is told");
        assert_eq!(watch.lapse(after(start, 3_100)), [], "once");
        // One that began before it counts from when it began.
        watch.take(looked(lease, after(start, 1_000), found(PortOwner::Part)));
        assert_eq!(owner(&watch, 3_900), Some(PortOwner::Part));
        assert_eq!(owner(&watch, 4_000), Some(PortOwner::Nobody));
    }

    #[test]
    fn a_look_that_failed_has_seen_nobody() {
        let (start, lease) = (Instant::now(), crate::testing::launch("1", 1).lease);
        let mut watch = PortWatch::new();
        watch.turns.insert(lease, Turn::new(start));
        watch.take(looked(lease, start, found(PortOwner::Part)));
        let (changed, error) =
            watch.take(looked(lease, start, Err(std::io::ErrorKind::TimedOut.into())));
        assert!(changed && error.is_some());
        assert_eq!(watch.turns[&lease].owner(start), Some(PortOwner::Nobody));
    }

    #[test]
    fn who_is_looked_at_keeps_nobody_else_from_being_looked_at() {
        let start = Instant::now();
        let [slow, quick] = ["1", "2"].map(|task| crate::testing::launch(task, 1).lease);
        let mut watch = PortWatch::new();
        for lease in [slow, quick] {
            watch.turns.insert(lease, Turn::new(start));
        }
        assert_eq!(watch.due(start), [slow, quick]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let never = runtime.spawn(std::future::pending::<()>());
        watch.turns.get_mut(&slow).unwrap().looking = Some(never.id());
        assert_eq!(watch.due(after(start, 500)), [], "once a second");
        assert_eq!(watch.due(after(start, 1_000)), [quick]);
        // One that has more than can be looked at comes less often.
        let spent = Found { owner: PortOwner::Nobody, spent: true };
        watch.take(looked(slow, start, Ok(spent)));
        assert_eq!(watch.due(after(start, 2_000)), [quick]);
        assert_eq!(watch.due(after(start, 5_000)), [slow, quick]);
    }
}
