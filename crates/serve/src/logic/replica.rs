//! One replica as this router knows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tutti_model::{Generation, JobId, OwnLoad, ReplicaRoute};

use super::breaker::{Breaker, Outcome, Passage};
use super::metrics::ServerMetrics;
use super::prompt::BLOCK_BYTES;
use super::seen::SeenBlocks;

/// Failed probes one after another after which a replica is no longer ready.
const PROBES_FAILED_MAX: u32 = 3;
/// What a server said of itself is old news after this long.
const OWN_LOAD_FRESH: Duration = Duration::from_secs(5);
/// Share with which a replica that has just become ready begins.
const SLOW_START_FROM: f64 = 0.1;
/// Blocks that a server is thought to hold when it does not say: 2 MiB of text, half a million tokens.
const CACHE_BLOCKS: usize = 16 * 1024;
/// Most blocks remembered per replica, about 3 MiB of memory here.
const CACHE_BLOCKS_MAX: usize = 64 * 1024;
/// Of English text.
const BYTES_PER_TOKEN: u64 = 4;

/// A replica that was started again is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaKey {
    pub job: JobId,
    pub generation: Generation,
}

impl From<&ReplicaRoute> for ReplicaKey {
    fn from(route: &ReplicaRoute) -> Self {
        ReplicaKey { job: route.job, generation: route.generation }
    }
}

/// The time from when a replica was put into the table until it is left out, by a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Listing(u64);

impl Listing {
    #[expect(clippy::new_without_default, reason = "each is another one")]
    pub fn new() -> Listing {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Listing(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a server said of itself, and what we had there at that time.
struct Own {
    load: OwnLoad,
    at: Instant,
    in_flight: u32,
}

pub struct Replica {
    pub key: ReplicaKey,
    pub address: Arc<str>,
    pub revision: u32,
    pub draining: bool,
    /// In the newest route. Others are kept until their last request has ended.
    pub listed: bool,
    /// No other replica has it, nor had this one before it was last left out of a route: somebody else
    /// may have listened at its address meanwhile, and connections from then must not be used.
    pub listing: Listing,
    pub in_flight: u32,
    pub requests: u64,
    pub errors: u64,
    pub breaker: Breaker,
    pub seen: SeenBlocks,
    /// What it may get of its share while it starts slowly, in requests.
    pub credit: f64,
    ready_since: Option<Instant>,
    failed_probes: u32,
    why: Option<String>,
    own: Option<Own>,
}

/// Whether a replica may get a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Open,
    /// It has as many as it may have.
    Full,
    /// Its breaker is open, though its last probe was good.
    Broken,
    Unready,
}

impl Replica {
    pub fn new(route: &ReplicaRoute, secret: u64) -> Self {
        Replica {
            key: route.into(),
            address: route.address.as_str().into(),
            revision: route.revision,
            draining: route.draining,
            listed: true,
            listing: Listing::new(),
            in_flight: 0,
            requests: 0,
            errors: 0,
            breaker: Breaker::default(),
            seen: SeenBlocks::new(CACHE_BLOCKS, secret),
            credit: 1.0,
            ready_since: None,
            failed_probes: 0,
            why: Some("not probed yet".to_owned()),
            own: None,
        }
    }

    /// `stays`: it was in the route before this one, too.
    pub fn update(&mut self, route: &ReplicaRoute, stays: bool) {
        self.listed = true;
        self.draining = route.draining;
        self.revision = route.revision;
        if !stays || *self.address != *route.address {
            self.address = route.address.as_str().into();
            self.listing = Listing::new();
            self.ready_since = None;
            self.why = Some("not probed yet at its new address".to_owned());
        }
    }

    pub fn standing(&self, bounds: Bounds, now: Instant) -> Standing {
        if self.ready_since.is_none() {
            return Standing::Unready;
        }
        if self.breaker.passage(now) == Passage::Shut {
            return Standing::Broken;
        }
        if self.is_full(bounds, now) { Standing::Full } else { Standing::Open }
    }

    /// By the endpoint's bound, or because the server says that requests wait inside it, or because it has
    /// got as many since it said so as might have to. Such a word holds only while we have something
    /// there: its end is what makes us look again.
    pub fn is_full(&self, bounds: Bounds, now: Instant) -> bool {
        if bounds.max_in_flight.is_some_and(|max| self.load(now) >= max) {
            return true;
        }
        let Some(own) = self.fresh_own(now).filter(|_| self.in_flight > 0) else { return false };
        let Some(wait) = bounds.wait else { return false };
        let since = i64::from(self.in_flight) - i64::from(own.in_flight);
        match own.load.waiting {
            0 => since >= i64::from(wait.unseen.max(own.load.running)),
            waiting => i64::from(waiting) + since >= i64::from(wait.most),
        }
    }

    /// Requests under way: ours, and those that the server has from others.
    pub fn load(&self, now: Instant) -> u32 {
        let others = self.fresh_own(now).map_or(0, |own| {
            own.load.running.saturating_add(own.load.waiting).saturating_sub(own.in_flight)
        });
        self.in_flight.saturating_add(others)
    }

    /// From a tenth to 1 while it starts slowly.
    pub fn weight(&self, slow_start: Duration, now: Instant) -> f64 {
        let Some(since) = self.ready_since else { return SLOW_START_FROM };
        let age = now.saturating_duration_since(since);
        if age >= slow_start {
            return 1.0;
        }
        SLOW_START_FROM + (1.0 - SLOW_START_FROM) * age.as_secs_f64() / slow_start.as_secs_f64()
    }

    pub fn sent(&mut self, now: Instant) {
        self.in_flight += 1;
        self.requests += 1;
        self.breaker.sent(now);
    }

    pub fn finished(&mut self, outcome: Outcome, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.breaker.ended(outcome, now);
        if matches!(outcome, Outcome::Failed | Outcome::Refused) {
            self.errors += 1;
        }
        if outcome == Outcome::Refused {
            self.ready_since = None;
            self.seen.clear();
            self.why = Some(format!("{} refuses connections", self.address));
        }
    }

    pub fn probed(&mut self, result: Result<(), String>, now: Instant) {
        self.breaker.probed(result.is_ok());
        match result {
            Ok(()) => {
                self.failed_probes = 0;
                self.why = None;
                if self.ready_since.is_none() {
                    self.ready_since = Some(now);
                    self.credit = 1.0;
                }
            }
            Err(why) => {
                self.failed_probes += 1;
                if self.failed_probes >= PROBES_FAILED_MAX {
                    self.ready_since = None;
                }
                if self.ready_since.is_none() {
                    self.why = Some(why);
                }
            }
        }
    }

    /// Its last probe was good, and no connection was refused since.
    pub fn last_probe_good(&self) -> bool {
        self.ready_since.is_some() && self.failed_probes == 0
    }

    pub fn heard(&mut self, metrics: &ServerMetrics, now: Instant) {
        self.own = Some(Own { load: metrics.load, at: now, in_flight: self.in_flight });
        if let Some(tokens) = metrics.cache_tokens {
            let blocks = tokens.saturating_mul(BYTES_PER_TOKEN) / BLOCK_BYTES as u64;
            let blocks = usize::try_from(blocks).unwrap_or(usize::MAX).min(CACHE_BLOCKS_MAX);
            if blocks > 0 && blocks != self.seen.capacity() {
                self.seen.set_capacity(blocks);
            }
        }
    }

    pub fn is_ready(&self) -> bool {
        self.ready_since.is_some()
    }

    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    pub fn own(&self, now: Instant) -> Option<OwnLoad> {
        self.fresh_own(now).map(|own| own.load)
    }

    fn fresh_own(&self, now: Instant) -> Option<&Own> {
        self.own.as_ref().filter(|own| now.saturating_duration_since(own.at) <= OWN_LOAD_FRESH)
    }
}

/// How much a replica may have.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub max_in_flight: Option<u32>,
    /// None: requests may wait inside servers as they like.
    pub wait: Option<Wait>,
}

#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Requests waiting inside the server from which on the rest is held back here.
    pub most: u32,
    /// One where none waited gets so many before it is looked at again.
    pub unseen: u32,
}
