//! An endpoint's replicas, and the choice among them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tutti_model::{EndpointRoute, OwnLoad, ReplicaReport, RoutePolicy};
use twox_hash::XxHash3_64;

use super::breaker::Outcome;
use super::metrics::ServerMetrics;
use super::policy::{self, Candidate};
use super::prompt::PromptBlocks;
use super::replica::{Bounds, Listing, Replica, ReplicaKey, Standing, Wait};
use super::split::Split;

/// What is known of a request when a replica is chosen for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// Under `prefix` the choice goes by it. Under any policy it is counted what the replica has seen of
    /// it, at the price of a few microseconds.
    pub prompt: Option<&'a PromptBlocks>,
    /// The value of the endpoint's `sticky_header`.
    pub sticky: Option<&'a str>,
}

/// Where a request goes. It counts as under way until [`Endpoint::finished`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub key: ReplicaKey,
    pub address: Arc<str>,
    pub listing: Listing,
    pub revision: u32,
    /// Blocks of the prompt.
    pub prefix_blocks: u32,
    /// Of these, already seen by this replica.
    pub prefix_hit_blocks: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    Replica(Choice),
    /// There are replicas, but each has as many requests as it may have: wait in the queue.
    Busy,
    /// No replica is ready. One may come: hold the request.
    Absent,
    /// All that could be asked were tried: answer with the last failure.
    Exhausted,
}

/// One endpoint. Every call takes time in proportion to its replicas, `pick` to the prompt's blocks too.
pub struct Endpoint {
    policy: RoutePolicy,
    slow_start: Duration,
    bounds: Bounds,
    margin: u32,
    split: Split,
    /// By key.
    replicas: Vec<Replica>,
    last: Option<ReplicaKey>,
    random: u64,
    secret: u64,
    /// Kept between calls, so that none allocates.
    candidates: Vec<Candidate>,
}

impl Endpoint {
    pub fn new(route: &EndpointRoute, seed: u64, now: Instant) -> Self {
        let mut endpoint = Endpoint {
            policy: route.policy,
            slow_start: Duration::ZERO,
            bounds: Bounds { max_in_flight: None, wait: None },
            margin: 0,
            split: Split::default(),
            replicas: Vec::new(),
            last: None,
            random: seed | 1,
            secret: seed.rotate_left(32),
            candidates: Vec::new(),
        };
        endpoint.update(route, now);
        endpoint
    }

    /// Takes over a newer route. What is known of replicas that stay is kept; one that is no longer listed
    /// gets nothing more and is forgotten when its last request has ended.
    pub fn update(&mut self, route: &EndpointRoute, _now: Instant) {
        self.policy = route.policy;
        self.slow_start = policy::duration(route.slow_start);
        self.margin = policy::overload_margin(route.target_in_flight);
        let target = route.target_in_flight;
        let wait = match route.policy {
            // What a conversation has left at its server is worth waiting for: sent elsewhere it would
            // be computed anew, and make that one wait too. Who has too much is found by comparison.
            RoutePolicy::Prefix | RoutePolicy::Sticky => None,
            _ => Some(Wait { most: target.max(4) / 4, unseen: target }),
        };
        self.bounds = Bounds { max_in_flight: route.max_in_flight, wait };
        self.split.update(&route.split);
        let before: Vec<ReplicaKey> =
            self.replicas.iter().filter(|r| r.listed).map(|r| r.key).collect();
        self.replicas.iter_mut().for_each(|replica| replica.listed = false);
        for listed in &route.replicas {
            match self.find(listed.into()) {
                Ok(at) => self.replicas[at].update(listed, before.contains(&listed.into())),
                Err(at) => self.replicas.insert(at, Replica::new(listed, self.secret)),
            }
        }
        self.replicas.retain(|replica| replica.listed || replica.in_flight > 0);
        self.candidates.reserve(self.replicas.len());
    }

    /// Chooses a replica and counts the request as under way there. `tried` are those that this request
    /// was sent to before.
    pub fn pick(&mut self, ask: &Ask<'_>, tried: &[ReplicaKey], now: Instant) -> Pick {
        let census = self.census(ask, tried, now);
        let chosen = self.choose(ask, tried.is_empty()).map(|candidate| candidate.at);
        let chosen =
            chosen.or_else(|| if census.full { None } else { self.last_resort(tried, now) });
        match chosen {
            Some(at) => Pick::Replica(self.send(at, ask, now)),
            None if census.full => Pick::Busy,
            None if census.tried => Pick::Exhausted,
            None => Pick::Absent,
        }
    }

    /// A `pick` for a new request would find a replica.
    pub fn has_room(&self, now: Instant) -> bool {
        let mut full = false;
        for replica in self.eligible() {
            match replica.standing(self.bounds, now) {
                Standing::Open => return true,
                Standing::Full => full = true,
                Standing::Broken | Standing::Unready => {}
            }
        }
        !full && self.last_resort(&[], now).is_some()
    }

    /// The replica has begun to answer with something below 500. Said at the first byte, so that a long
    /// stream counts for its replica from the beginning.
    pub fn answered(&mut self, key: ReplicaKey) {
        if let Ok(at) = self.find(key) {
            self.replicas[at].breaker.answered();
        }
    }

    /// Once for every choice.
    pub fn finished(&mut self, key: ReplicaKey, outcome: Outcome, now: Instant) {
        let Ok(at) = self.find(key) else { return };
        self.replicas[at].finished(outcome, now);
        if !self.replicas[at].listed && self.replicas[at].in_flight == 0 {
            self.replicas.remove(at);
        }
    }

    /// What a replica's health path said, or why it said nothing.
    pub fn probed(&mut self, key: ReplicaKey, result: Result<(), String>, now: Instant) {
        if let Ok(at) = self.find(key) {
            self.replicas[at].probed(result, now);
        }
    }

    /// What a replica's metrics said.
    pub fn own_load(&mut self, key: ReplicaKey, metrics: &ServerMetrics, now: Instant) {
        if let Ok(at) = self.find(key) {
            self.replicas[at].heard(metrics, now);
        }
    }

    /// All replicas, also those that only finish what they have.
    pub fn replicas(&self, now: Instant) -> impl Iterator<Item = ReplicaView<'_>> {
        self.replicas.iter().map(move |replica| ReplicaView { replica, now })
    }

    pub fn in_flight(&self) -> u32 {
        self.replicas.iter().map(|replica| replica.in_flight).sum()
    }

    fn find(&self, key: ReplicaKey) -> Result<usize, usize> {
        self.replicas.binary_search_by_key(&key, |replica| replica.key)
    }

    fn eligible(&self) -> impl Iterator<Item = &Replica> {
        let fits = |r: &&Replica| r.listed && !r.draining && self.split.lists(r.revision);
        self.replicas.iter().filter(fits)
    }

    /// Fills in the candidates, and says who else there is.
    fn census(&mut self, ask: &Ask<'_>, tried: &[ReplicaKey], now: Instant) -> Census {
        let hashes = ask.prompt.map_or(&[][..], |prompt| prompt.hashes());
        let mut census = Census::default();
        self.candidates.clear();
        for (at, replica) in self.replicas.iter().enumerate() {
            if !replica.listed || replica.draining || !self.split.lists(replica.revision) {
                continue;
            }
            if tried.contains(&replica.key) {
                census.tried = true;
                continue;
            }
            match replica.standing(self.bounds, now) {
                Standing::Open => self.candidates.push(Candidate {
                    at,
                    key: replica.key,
                    load: replica.load(now),
                    weight: replica.weight(self.slow_start, now),
                    matched: replica.seen.matched(hashes),
                    known: replica.seen.len(),
                }),
                Standing::Full => census.full = true,
                Standing::Broken | Standing::Unready => {}
            }
        }
        census
    }

    fn choose(&mut self, ask: &Ask<'_>, first_try: bool) -> Option<Candidate> {
        self.narrow_to_revision(ask, first_try);
        if self.policy != RoutePolicy::Sticky || ask.sticky.is_none() {
            self.narrow_by_slow_start();
        }
        let candidates = &self.candidates[..];
        match self.policy {
            RoutePolicy::LeastOutstanding => policy::least(candidates, self.last),
            RoutePolicy::RoundRobin => policy::round_robin(candidates, self.last),
            RoutePolicy::P2c => {
                let random = self.next_random();
                policy::two_choices(&self.candidates, random)
            }
            RoutePolicy::Prefix => {
                let blocks = ask.prompt.map_or(0, |prompt| prompt.len());
                policy::prefix(candidates, blocks, self.margin, self.last)
            }
            RoutePolicy::Sticky => match ask.sticky {
                Some(value) => policy::sticky(candidates, value, self.margin),
                None => policy::least(candidates, self.last),
            },
        }
    }

    /// Keeps the revision whose turn it is, if any of its replicas can take the request. A value that
    /// sticks stays with its revision.
    fn narrow_to_revision(&mut self, ask: &Ask<'_>, first_try: bool) {
        if self.split.is_empty() || !first_try || self.candidates.is_empty() {
            return;
        }
        let by_value = ask.sticky.filter(|_| self.policy == RoutePolicy::Sticky);
        let revision = match by_value {
            Some(value) => self.split.of_hash(XxHash3_64::oneshot(value.as_bytes())),
            None => self.split.next(),
        };
        let Some(revision) = revision else { return };
        let replicas = &self.replicas;
        let is_it = |c: &Candidate| replicas[c.at].revision == revision;
        if self.candidates.iter().any(is_it) {
            self.candidates.retain(is_it);
        }
    }

    /// Leaves out those that start slowly and have had their part, if others are there.
    fn narrow_by_slow_start(&mut self) {
        let heaviest = self.candidates.iter().map(|c| c.weight).fold(0.0, f64::max);
        if !self.candidates.iter().any(|c| policy::is_ramping(c.weight, heaviest)) {
            return;
        }
        let count = self.candidates.len();
        for candidate in &self.candidates {
            let credit = &mut self.replicas[candidate.at].credit;
            *credit = policy::earn(*credit, candidate.weight, heaviest, count);
        }
        let replicas = &self.replicas;
        self.candidates
            .retain(|c| !policy::is_ramping(c.weight, heaviest) || replicas[c.at].credit >= 1.0);
    }

    /// When all breakers are open, refusing everything would be worse than asking the one that failed
    /// longest ago.
    fn last_resort(&self, tried: &[ReplicaKey], now: Instant) -> Option<usize> {
        let broken = self.replicas.iter().enumerate().filter(|(_, r)| {
            r.listed && !r.draining && self.split.lists(r.revision) && !tried.contains(&r.key)
        });
        let asked = broken.filter(|(_, r)| {
            r.last_probe_good()
                && r.standing(self.bounds, now) == Standing::Broken
                && !r.is_full(self.bounds, now)
        });
        asked.min_by_key(|(_, r)| (r.breaker.failed_at(), r.in_flight)).map(|(at, _)| at)
    }

    fn send(&mut self, at: usize, ask: &Ask<'_>, now: Instant) -> Choice {
        let replica = &mut self.replicas[at];
        let hashes = ask.prompt.map_or(&[][..], |prompt| prompt.hashes());
        let hit = replica.seen.matched(hashes);
        replica.seen.touch(hashes);
        replica.sent(now);
        replica.credit = (replica.credit - 1.0).max(0.0);
        self.last = Some(replica.key);
        Choice {
            key: replica.key,
            address: replica.address.clone(),
            listing: replica.listing,
            revision: replica.revision,
            prefix_blocks: hashes.len() as u32,
            prefix_hit_blocks: hit as u32,
        }
    }

    /// xorshift64*: two choices need no better.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Who there is beside the candidates.
#[derive(Default)]
struct Census {
    full: bool,
    tried: bool,
}

/// A replica to look at: for probes and reports.
#[derive(Clone, Copy)]
pub struct ReplicaView<'a> {
    replica: &'a Replica,
    now: Instant,
}

impl<'a> ReplicaView<'a> {
    pub fn key(&self) -> ReplicaKey {
        self.replica.key
    }
    pub fn address(&self) -> &'a Arc<str> {
        &self.replica.address
    }
    pub fn revision(&self) -> u32 {
        self.replica.revision
    }
    /// It gets no new requests, and need not be probed.
    pub fn draining(&self) -> bool {
        self.replica.draining || !self.replica.listed
    }
    pub fn ready(&self) -> bool {
        self.replica.is_ready()
    }
    pub fn broken(&self) -> bool {
        self.replica.breaker.is_broken()
    }
    pub fn in_flight(&self) -> u32 {
        self.replica.in_flight
    }
    pub fn known_blocks(&self) -> usize {
        self.replica.seen.len()
    }
    pub fn why(&self) -> Option<&'a str> {
        self.replica.why()
    }
    pub fn own(&self) -> Option<OwnLoad> {
        self.replica.own(self.now)
    }

    pub fn report(&self) -> ReplicaReport {
        ReplicaReport {
            generation: self.replica.key.generation,
            ready: self.ready(),
            broken: self.broken(),
            in_flight: self.replica.in_flight,
            requests: self.replica.requests,
            errors: self.replica.errors,
            why: self.why().map(str::to_owned),
            own: self.own(),
        }
    }
}

#[cfg(test)]
mod tests;
