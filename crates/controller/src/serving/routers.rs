//! The newest word of every router.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use tutti_model::{
    EndpointLoad, EndpointReport, Generation, JobId, OwnLoad, RouterReport, Served, Span, Time,
    Traffic,
};
use tutti_wire::api::{Figures, RouterRow};

use super::accounts::{Accounts, Pending, Told};
use super::file::File;
use super::loads::{Scene, Word};
use super::tally::{Point, Tally};
use crate::lock::lock;

/// A router that says nothing for so long is not counted on.
const LIVE_FOR: Span = Span::secs(10);
/// And for so long it is not forgotten either: it may be cut off, and still serve.
const KEPT_FOR: Span = Span::secs(60);
const ROUTERS_MAX: usize = 1000;
const NAME_MAX: usize = 128;

#[derive(Default)]
pub struct Routers {
    file: Option<File>,
    book: Mutex<Book>,
    /// Of those that tell the engine what was served, one after another.
    pub(super) telling: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Book {
    routers: BTreeMap<String, Router>,
    tallies: BTreeMap<String, Tally>,
    drains: BTreeMap<JobId, u64>,
    /// Those that there were when it was last looked, or shortly before, and when each was created.
    endpoints: BTreeMap<String, Time>,
    accounts: Accounts,
}

struct Router {
    heard_at: Time,
    /// None: it was there before this controller was, and has not spoken yet.
    report: Option<RouterReport>,
}

/// Why a report is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReport {
    #[error("router: '{0}' is no name of a router")]
    Name(String),
    #[error("there are {ROUTERS_MAX} routers already")]
    TooMany,
}

/// An endpoint as routers see it now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Routers that spoke lately, whatever they said.
    pub routers: u32,
    pub in_flight: u32,
    pub queued: u32,
    pub figures: Figures,
    /// Since the controller's start.
    pub traffic: Traffic,
    /// Of what was served, what the state may not have yet.
    pub pending: Pending,
    pub replicas: BTreeMap<JobId, ReplicaSeen>,
}

/// A replica as they see it, all of its newest generation together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaSeen {
    pub generation: Generation,
    pub ready: bool,
    pub broken: bool,
    pub in_flight: u32,
    pub requests: u64,
    pub errors: u64,
    pub own: Option<OwnLoad>,
    pub why: Option<String>,
}

/// What a report is worth telling at once for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// A replica answers that did not, or the other way round.
    pub readiness: bool,
    /// Endpoints for which requests wait.
    pub waiting: Vec<String>,
}

impl Routers {
    /// Goes on with what an earlier controller has counted.
    pub fn open(data_dir: &Path, now: Time) -> Routers {
        let file = File::new(data_dir);
        let book = Book::after(file.load(), now);
        Routers { file: Some(file), book: Mutex::new(book), ..Routers::default() }
    }

    /// Takes a router's word.
    pub fn note(&self, report: RouterReport, now: Time) -> Result<News, BadReport> {
        let name = &report.router;
        if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
            return Err(BadReport::Name(name.escape_debug().to_string()));
        }
        lock(&self.book).note(report, now)
    }

    /// Of every endpoint that there is.
    pub fn loads(&self, scene: &Scene, now: Time) -> BTreeMap<String, EndpointLoad> {
        lock(&self.book).loads(scene, now)
    }

    pub fn forget_endpoints(&self, scene: &Scene) {
        lock(&self.book).forget_endpoints(scene);
    }

    pub fn seen(&self, endpoint: &str, now: Time) -> Seen {
        lock(&self.book).seen(endpoint, now)
    }

    /// Of what an endpoint served, what the state may not have yet.
    pub fn pending(&self, endpoint: &str) -> Pending {
        lock(&self.book).accounts.pending(endpoint)
    }

    /// The last five minutes of an endpoint, a few seconds each, oldest first.
    pub fn history(&self, endpoint: &str, now: Time) -> Vec<Point> {
        lock(&self.book).tallies.get(endpoint).map_or_else(Vec::new, |tally| tally.history(now))
    }

    /// Those that spoke lately. `version` is the newest table's.
    pub fn rows(&self, version: u64, now: Time) -> Vec<RouterRow> {
        let book = lock(&self.book);
        let row = |router: &Router| {
            let report = router.live(now)?;
            Some(RouterRow {
                router: report.router.clone(),
                address: report.address.clone(),
                heard_at: router.heard_at,
                current: report.version >= version,
            })
        };
        book.routers.values().filter_map(row).collect()
    }

    pub fn count(&self, now: Time) -> usize {
        lock(&self.book).routers.values().filter(|router| router.live(now).is_some()).count()
    }

    /// What the engine is to be told, by what it has of each endpoint; none if no router ever spoke.
    pub(super) fn take_served(&self, has: &BTreeMap<String, Served>, now: Time) -> Option<Told> {
        let mut book = lock(&self.book);
        (!book.accounts.routers.is_empty()).then(|| book.accounts.take(has, now))
    }

    /// Something was served that the engine was not told of.
    pub(super) fn owes(&self, endpoint: &str) -> bool {
        self.pending(endpoint) != Pending::default()
    }

    /// The engine has it.
    pub(super) fn told(&self) {
        lock(&self.book).accounts.told();
    }

    pub(super) fn save(&self, accounts: &Accounts) {
        self.file.iter().for_each(|file| file.save(accounts));
    }
}

impl Router {
    fn live(&self, now: Time) -> Option<&RouterReport> {
        self.report.as_ref().filter(|_| now.since(self.heard_at) < LIVE_FOR)
    }
}

impl Book {
    /// Routers that spoke until the end may still serve what they did then.
    fn after(accounts: Accounts, now: Time) -> Book {
        let last = accounts.routers.values().map(|account| account.heard_at).max();
        let there = accounts.routers.iter().filter(|(_, account)| {
            last.is_some_and(|last| last.since(account.heard_at) < LIVE_FOR)
        });
        let router = |name: &String| (name.clone(), Router { heard_at: now, report: None });
        let routers = there.map(|(name, _)| router(name)).collect();
        Book { routers, accounts, ..Book::default() }
    }

    fn note(&mut self, mut report: RouterReport, now: Time) -> Result<News, BadReport> {
        self.routers.retain(|_, router| now.since(router.heard_at) < KEPT_FOR);
        let name = report.router.clone();
        if self.routers.len() >= ROUTERS_MAX && !self.routers.contains_key(&name) {
            return Err(BadReport::TooMany);
        }
        let known = self.accounts.routers.contains_key(&name);
        self.accounts.note(&report, now);
        let before = self.routers.remove(&name).and_then(|router| router.report);
        // What was not heard for a while did not happen just now.
        if before.is_some() || !known {
            self.count(&report, before.as_ref(), now);
        }
        keep_peaks(&mut report, before.as_ref());
        let news = news(&report, before.as_ref());
        let router = Router { heard_at: now, report: Some(report) };
        self.routers.insert(name, router);
        Ok(news)
    }

    fn count(&mut self, report: &RouterReport, before: Option<&RouterReport>, now: Time) {
        let nothing = EndpointReport::default();
        for (name, said) in &report.endpoints {
            let earlier = before.and_then(|b| b.endpoints.get(name)).unwrap_or(&nothing);
            let tally = self.tallies.entry(name.clone()).or_insert_with(|| Tally::new(now));
            tally.add(said, earlier, now);
        }
    }

    fn loads(&mut self, scene: &Scene, now: Time) -> BTreeMap<String, EndpointLoad> {
        self.routers.retain(|_, router| now.since(router.heard_at) < KEPT_FOR);
        self.forget_endpoints(scene);
        self.follow_drains(scene);
        for (name, endpoint) in &scene.endpoints {
            if let Some(tally) = self.tallies.get_mut(name) {
                tally.follow(endpoint.rollout);
            }
        }
        let word = self.word(now);
        let load = |(name, endpoint): (&String, &super::loads::EndpointScene)| {
            let tally = self.tallies.get(name);
            let revisions = tally.map(|tally| tally.revisions(endpoint.rollout, now));
            (name.clone(), word.load(name, endpoint, revisions.unwrap_or_default()))
        };
        let loads = scene.endpoints.iter().map(load).collect();
        self.peaks_are_told();
        loads
    }

    fn peaks_are_told(&mut self) {
        let reports = self.routers.values_mut().filter_map(|router| router.report.as_mut());
        reports.flat_map(|report| report.endpoints.values_mut()).for_each(|said| said.peak = 0);
    }

    fn forget_endpoints(&mut self, scene: &Scene) {
        let gone = |name: &str| match (self.endpoints.get(name), scene.created_at(name)) {
            (_, None) => true,
            (Some(then), Some(now)) => *then != now,
            (None, Some(_)) => false,
        };
        self.tallies.retain(|name, _| scene.endpoints.contains_key(name) && !gone(name));
        self.accounts.forget(gone);
        let there = scene.endpoints.iter().map(|(name, now)| (name, now.created_at));
        let there = there.chain(scene.gone.iter().map(|(name, at)| (name, *at)));
        self.endpoints = there.map(|(name, at)| (name.clone(), at)).collect();
    }

    /// The table in which it is first seen to drain is good for as long as it drains: others, which
    /// come for other reasons, need not be waited for.
    fn follow_drains(&mut self, scene: &Scene) {
        let replicas = || scene.endpoints.values().flat_map(|endpoint| &endpoint.replicas);
        let draining: BTreeMap<JobId, u64> = replicas()
            .filter(|(_, replica)| replica.draining)
            .map(|(id, _)| (*id, self.drains.get(id).copied().unwrap_or(scene.version)))
            .collect();
        self.drains = draining;
    }

    fn word(&self, now: Time) -> Word<'_> {
        let spoke = self.routers.values().filter_map(|r| Some((r.report.as_ref()?, r.heard_at)));
        let (live, silent): (Vec<_>, Vec<_>) =
            spoke.partition(|(_, heard_at)| now.since(*heard_at) < LIVE_FOR);
        Word {
            live: live.into_iter().map(|(report, _)| report).collect(),
            silent: silent.into_iter().map(|(report, _)| report).collect(),
            unheard: self.routers.values().filter(|router| router.report.is_none()).count(),
            drains: &self.drains,
        }
    }

    fn seen(&self, endpoint: &str, now: Time) -> Seen {
        let tally = self.tallies.get(endpoint);
        let mut seen = Seen {
            figures: tally.map(|tally| tally.figures(now)).unwrap_or_default(),
            traffic: tally.map(|tally| tally.total().clone()).unwrap_or_default(),
            pending: self.accounts.pending(endpoint),
            ..Seen::default()
        };
        for report in self.routers.values().filter_map(|router| router.live(now)) {
            seen.routers += 1;
            let Some(said) = report.endpoints.get(endpoint) else { continue };
            seen.in_flight += said.in_flight;
            seen.queued += said.queued;
            for (id, replica) in &said.replicas {
                seen.replicas.entry(*id).or_default().add(replica);
            }
        }
        seen
    }
}

impl ReplicaSeen {
    /// A newer generation is another replica.
    fn add(&mut self, said: &tutti_model::ReplicaReport) {
        if said.generation < self.generation {
            return;
        }
        if said.generation > self.generation {
            *self = ReplicaSeen { generation: said.generation, ..ReplicaSeen::default() };
        }
        self.ready |= said.ready;
        self.broken |= said.broken;
        self.in_flight += said.in_flight;
        self.requests += said.requests;
        self.errors += said.errors;
        self.own = self.own.or(said.own);
        self.why = self.why.take().or_else(|| said.why.clone());
    }
}

/// A router says a peak once. One that the engine was not told of yet is not lost to the next report.
fn keep_peaks(report: &mut RouterReport, before: Option<&RouterReport>) {
    for (name, said) in &mut report.endpoints {
        let earlier = before.and_then(|before| before.endpoints.get(name));
        said.peak = said.peak.max(earlier.map_or(0, |earlier| earlier.peak));
    }
}

fn news(report: &RouterReport, before: Option<&RouterReport>) -> News {
    let ready = |report: &RouterReport| {
        let of_endpoint = |(name, said): (&String, &EndpointReport)| {
            let ready = said.replicas.iter().filter(|(_, replica)| replica.ready);
            let key = |(id, replica): (&JobId, &tutti_model::ReplicaReport)| {
                (name.clone(), *id, replica.generation)
            };
            ready.map(key).collect::<Vec<_>>()
        };
        report.endpoints.iter().flat_map(of_endpoint).collect::<Vec<_>>()
    };
    let waiting = report.endpoints.iter().filter(|(_, said)| said.queued > 0);
    News {
        readiness: ready(report) != before.map(ready).unwrap_or_default(),
        waiting: waiting.map(|(name, _)| name.clone()).collect(),
    }
}
