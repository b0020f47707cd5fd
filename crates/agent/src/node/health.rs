//! The node's health: what feeds the board, and what operators ask of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tutti_gpu::health::klog::Event;
use tutti_gpu::health::rules::{Rules, Thresholds};
use tutti_gpu::health::{Addresses, Seen, checks, events};
use tutti_model::{Finding, GpuIndex, NodeSample, Span, Time, Vendor};
use tutti_wire::stream::{Examination, HealthAsk, HealthReply, RequestId, ToController, Watched};

use super::active::Resolve;
use super::{Node, log_error, now};
use crate::config::{AgentConfig, AgentError};
use crate::health::{
    Board, Checked, ChecksConfig, DriverEvents, KERNEL_LOG, KernelEntry, KernelLog, LISTEN_AGAIN,
    Stored, boot_id, booted_at, drill, imagined_address, inventory, run_for_ever,
};
use crate::{release, telemetry};

/// How often the clocks are compared.
const CLOCK_EVERY: Duration = Duration::from_secs(600);
/// An answer that took longer says nothing about a clock.
const CLOCK_WITHIN: Span = Span::secs(10);

/// The thread that runs the operator's checks.
struct Checks {
    config: ChecksConfig,
    results: UnboundedReceiver<Vec<Checked>>,
    newest: Vec<Checked>,
}

pub struct Watch {
    dir: PathBuf,
    /// UUIDs of the GPUs that were found at the start.
    there: BTreeSet<String>,
    stored: Stored,
    addresses: Addresses,
    rules: Rules,
    /// Or why it can't be read.
    kernel_log: Result<KernelLog, String>,
    /// The driver's own events, where the log can't be read. Or why there are none.
    driver: Result<DriverEvents, String>,
    /// Starts to listen to them.
    listen: Box<dyn Fn() -> Result<DriverEvents, String>>,
    checks: Option<Checks>,
    /// When the newest sample was taken; none where samples are not judged.
    sampled: Option<Time>,
    /// The controller has not heard of the newest findings.
    unsaid: bool,
    /// Found on what a part has just left: said after that it has.
    later: Vec<Seen>,
    /// That were read and telemetry has not heard of.
    xids: Vec<(GpuIndex, u32)>,
    compare_clocks_at: Instant,
    /// What the last comparison found, in words.
    clock: String,
}

impl Watch {
    pub fn new(config: &AgentConfig) -> Result<Watch, AgentError> {
        let mut stored = Stored::load(&config.data_dir, &boot_id())
            .map_err(|source| AgentError::Health { dir: config.data_dir.clone(), source })?;
        // Nobody has looked while there was no agent; this one will.
        stored.board.renew(now(), |finding| finding.check == release::CHECK && !finding.drill);
        let kernel_log = kernel_log(config, stored.kernel_log);
        if let Err(why) = &kernel_log {
            tracing::info!("errors in the kernel's log are not seen: {why}");
        }
        let listen = driver_events(config);
        let driver = match &kernel_log {
            Ok(_) => Err("the kernel's log says the same and more".to_owned()),
            Err(_) => listen(),
        };
        let expected = telemetry::machine(config).sampled();
        let mut watch = Watch {
            there: config.gpus.iter().map(|g| g.uuid.clone()).collect(),
            dir: config.data_dir.clone(),
            stored,
            addresses: addresses(config),
            rules: Rules::new(thresholds(config), expected),
            kernel_log,
            driver,
            listen: Box::new(listen),
            checks: config.checks.clone().map(Checks::start).transpose()?,
            sampled: (!config.simulated).then(now),
            unsaid: false,
            later: Vec::new(),
            xids: Vec::new(),
            compare_clocks_at: Instant::now(),
            clock: "not compared yet".to_owned(),
        };
        watch.take_stock(config);
        Ok(watch)
    }

    /// Is everything here that was here when the agent last ran?
    fn take_stock(&mut self, config: &AgentConfig) {
        if config.simulated {
            return;
        }
        match inventory::missing(&self.stored.gpus, &self.there, now()) {
            Some(gone) => self.put([gone]),
            None => {
                self.stored.gpus.clone_from(&self.there);
                self.resolve(|finding| finding.key == inventory::COUNT);
            }
        }
        let problems = config.hardware.iter().flat_map(|h| &h.problems).cloned();
        self.put(inventory::silent(&problems.collect::<Vec<_>>(), now()));
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.stored.board.findings()
    }

    /// Waits until something of this has something to say, and takes it.
    pub async fn next(&mut self) -> News {
        tokio::select! {
            () = kernel_spoke(&self.kernel_log) => News::Kernel,
            event = driver_spoke(&mut self.driver) => News::Driver(event),
            ran = from(self.checks.as_mut().map(|c| &mut c.results)) => News::Checks(ran),
        }
    }

    pub fn take(&mut self, news: News) {
        match news {
            News::Kernel => self.read_kernel_log(),
            News::Driver(event) => self.kernel_said(&[KernelEntry { event, at: now() }]),
            News::Checks(ran) => {
                let Some(checks) = &mut self.checks else { return };
                checks.newest.clone_from(&ran);
                let every = checks.config.every;
                let judged = |c: &Checked| checks::judge(&c.name, &c.ran, every, now());
                self.put(ran.iter().filter_map(judged).collect::<Vec<_>>());
            }
        }
    }

    /// Imagined devices have nothing to be judged by.
    pub fn sample(&mut self, sample: &NodeSample) {
        if let Some(sampled) = &mut self.sampled {
            *sampled = sample.at;
            let seen = self.rules.sample(sample);
            self.put(seen);
        }
    }

    /// Everything that the kernel has said by now.
    pub fn read_kernel_log(&mut self) {
        let Ok(log) = &mut self.kernel_log else { return };
        let found = log.read(booted_at(now()));
        self.stored.kernel_log = log.last();
        match found {
            Ok(entries) if entries.is_empty() => {}
            Ok(entries) => self.kernel_said(&entries),
            Err(error) => {
                log_error("the kernel's log can't be read any more", &error);
                self.kernel_log = Err(format!("reading it failed: {error}"));
                self.driver = (self.listen)();
            }
        }
    }

    fn kernel_said(&mut self, entries: &[KernelEntry]) {
        for entry in entries {
            if let Event::Xid { pci, xid, .. } = &entry.event {
                let gpus = self.addresses.gpus_at(pci);
                self.xids.extend(gpus.into_iter().map(|gpu| (gpu, *xid)));
            }
        }
        let addresses = std::mem::take(&mut self.addresses);
        self.change(|board| board.kernel_said(entries, &addresses));
        self.addresses = addresses;
    }

    /// Something was found wrong.
    pub fn put(&mut self, seen: impl IntoIterator<Item = Seen>) {
        let seen: Vec<Seen> = seen.into_iter().collect();
        if !seen.is_empty() {
            self.change(|board| seen.into_iter().for_each(|seen| board.put(seen)));
        }
    }

    /// Something that must not be held against the part that has just ended.
    pub fn put_after_reports(&mut self, seen: Seen) {
        self.later.push(seen);
    }

    /// Time has passed.
    pub fn tick(&mut self) {
        let silence = self.sampled.and_then(|last| self.rules.silence(last, now()));
        self.put(silence);
        self.change(|_| {});
    }

    pub fn next_alarm(&self) -> Option<Instant> {
        let wait = self.stored.board.next_end()?.since(now());
        Some(Instant::now() + Duration::from_millis(wait.0))
    }

    fn change(&mut self, change: impl FnOnce(&mut Board)) {
        let before = self.stored.board.clone();
        change(&mut self.stored.board);
        self.stored.board.expire(now());
        if self.stored.board == before {
            return;
        }
        let (old, new) = (before.findings(), self.stored.board.findings());
        if old != new {
            self.unsaid = true;
            tell_operator(&old, &new);
            self.save();
        }
    }

    fn save(&self) {
        if let Err(error) = self.stored.save(&self.dir) {
            log_error("findings would not outlive this agent", &error);
        }
    }

    /// Something is not so any more, without anybody having resolved it.
    pub fn forget(&mut self, meant: impl Fn(&Finding) -> bool) {
        self.change(|board| drop(board.resolve(meant)));
    }

    /// Some go and others come, in one step.
    pub fn replace(
        &mut self,
        gone: impl Fn(&Finding) -> bool,
        new: impl IntoIterator<Item = Seen>,
    ) {
        self.change(|board| {
            board.resolve(gone);
            new.into_iter().for_each(|seen| board.put(seen));
        });
    }

    pub fn resolve(&mut self, meant: impl Fn(&Finding) -> bool) -> Vec<Finding> {
        let mut gone = Vec::new();
        self.change(|board| gone = board.resolve(meant));
        if gone.iter().any(|f| f.key == inventory::COUNT) {
            self.stored.gpus.clone_from(&self.there);
        }
        // What the log has said up to now is resolved with it.
        self.save();
        gone
    }

    fn examine(&self, active: Result<String, String>) -> Examination {
        let watched = |what: &str, not: Option<String>, note: String| Watched {
            what: what.to_owned(),
            not,
            note,
        };
        let log = match &self.kernel_log {
            Ok(log) => watched("kernel log", None, log.in_words()),
            Err(why) => watched("kernel log", Some(why.clone()), String::new()),
        };
        let driver = match self.driver.as_ref().map_or_else(Err, |d| d.state().as_ref()) {
            Ok(note) => watched("driver events", None, note.clone()),
            Err(why) => watched("driver events", Some(why.clone()), String::new()),
        };
        let samples = match self.sampled {
            Some(at) => {
                let age = now().since(at).0 / 1000;
                watched("telemetry", None, format!("the newest sample is {age} s old"))
            }
            None => watched("telemetry", Some(SIMULATED.to_owned()), String::new()),
        };
        let clock = watched("clock", None, self.clock.clone());
        let active = match active {
            Ok(note) => watched("active checks", None, note),
            Err(why) => watched("active checks", Some(why), String::new()),
        };
        let mut all = vec![log, driver, samples, clock, active];
        match &self.checks {
            Some(checks) => {
                all.extend(checks.newest.iter().map(|c| {
                    watched(&format!("check {}", c.name), None, format!("ran: {}", c.ran))
                }))
            }
            None => {
                all.push(watched("own checks", Some("none are set up".to_owned()), String::new()))
            }
        }
        Examination { findings: self.findings(), watched: all }
    }
}

/// What there is to take.
pub enum News {
    Kernel,
    Driver(Event),
    Checks(Vec<Checked>),
}

async fn kernel_spoke(log: &Result<KernelLog, String>) {
    match log {
        Ok(log) if log.ready().await.is_ok() => {}
        _ => std::future::pending().await,
    }
}

async fn driver_spoke(driver: &mut Result<DriverEvents, String>) -> Event {
    match driver {
        Ok(events) => events.next().await,
        Err(_) => std::future::pending().await,
    }
}

/// The next of a channel that may not be there, or has ended.
async fn from<T>(channel: Option<&mut UnboundedReceiver<T>>) -> T {
    let Some(channel) = channel else { return std::future::pending().await };
    match channel.recv().await {
        Some(value) => value,
        None => std::future::pending().await,
    }
}

impl Checks {
    fn start(config: ChecksConfig) -> Result<Checks, AgentError> {
        let (out, results) = unbounded_channel();
        let ours = config.clone();
        spawn("tutti-checks", move || run_for_ever(&ours, &out))?;
        Ok(Checks { config, results, newest: Vec::new() })
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), AgentError> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    let failed = |source| AgentError::SetUp { what: "a thread that watches health", source };
    thread.map(drop).map_err(failed)
}

/// How the driver's events are listened to here, or why not.
fn driver_events(config: &AgentConfig) -> impl Fn() -> Result<DriverEvents, String> + use<> {
    let facts = config.hardware.iter().flat_map(|h| &h.gpus);
    let nvidia = facts.filter(|gpu| gpu.vendor == Vendor::Nvidia).count() > 0;
    let simulated = config.simulated;
    move || match () {
        () if simulated => Err(SIMULATED.to_owned()),
        () if !nvidia => Err("there is no NVIDIA GPU".to_owned()),
        () => DriverEvents::start(|hear| events::listen(hear), LISTEN_AGAIN)
            .map_err(|e| format!("no thread can be made: {e}")),
    }
}

const SIMULATED: &str = "the devices are simulated";

/// Whoever wants few samples does not want to hear that they are late.
fn thresholds(config: &AgentConfig) -> Thresholds {
    let every = Span(config.sample_every.as_millis() as u64);
    let health = config.health.clone();
    Thresholds {
        silent_for: health.silent_for.max(Span(every.0.saturating_mul(5))),
        silent_drain: health.silent_drain.max(Span(every.0.saturating_mul(20))),
        ..health
    }
}

fn kernel_log(config: &AgentConfig, last: Option<u64>) -> Result<KernelLog, String> {
    if config.simulated {
        return Err(SIMULATED.to_owned());
    }
    KernelLog::open(Path::new(KERNEL_LOG), last).map_err(|e| format!("{KERNEL_LOG}: {e}"))
}

fn addresses(config: &AgentConfig) -> Addresses {
    let mut addresses = Addresses::default();
    let facts = config.hardware.iter().flat_map(|h| &h.gpus);
    let known: Vec<_> = facts.filter_map(|g| Some((g.index, g.pci.as_deref()?))).collect();
    for gpu in &config.gpus {
        match known.iter().find(|(index, _)| *index == gpu.index) {
            Some((_, pci)) => addresses.add(pci, gpu.index),
            None if config.simulated => addresses.add(&imagined_address(gpu.index), gpu.index),
            None => {}
        }
    }
    addresses
}

fn tell_operator(old: &[Finding], new: &[Finding]) {
    for finding in new.iter().filter(|f| !old.iter().any(|o| o.same(f))) {
        let action = finding.action.as_str();
        tracing::warn!(key = finding.key, action, "found: {}", finding.text);
    }
    for finding in old.iter().filter(|o| !new.iter().any(|f| f.key == o.key)) {
        tracing::info!(key = finding.key, "no longer: {}", finding.text);
    }
}

impl Node {
    /// Samples say them from now on.
    pub(super) fn tell_xids(&mut self) {
        for (gpu, xid) in self.watch.xids.drain(..) {
            self.telemetry.saw_xid(gpu, xid);
        }
    }

    /// Before anything is said of parts: a rank that died of a broken GPU is not to blame.
    pub(super) fn say_findings(&mut self) {
        if !self.changed.is_empty() {
            self.watch.read_kernel_log();
        }
        if std::mem::take(&mut self.watch.unsaid) {
            self.say_level();
        }
    }

    /// After parts have been told of, in the same breath.
    pub(super) fn say_later_findings(&mut self) {
        let later = std::mem::take(&mut self.watch.later);
        if !later.is_empty() {
            self.watch.put(later);
            self.say_findings();
        }
    }

    pub(super) fn say_level(&mut self) {
        let findings = self.watch.findings();
        self.uplink.say(&ToController::Findings { findings });
    }

    /// The greeting says it all.
    pub(super) fn findings_for_greeting(&mut self) -> Vec<Finding> {
        self.watch.read_kernel_log();
        let later = std::mem::take(&mut self.watch.later);
        self.watch.put(later);
        self.watch.tick();
        self.watch.unsaid = false;
        self.watch.compare_clocks_at = Instant::now();
        self.watch.findings()
    }

    pub(super) fn compare_clocks(&mut self, at: Instant) {
        if self.watch.compare_clocks_at <= at {
            self.watch.compare_clocks_at = at + CLOCK_EVERY;
            self.uplink.say(&ToController::Clock { sent: now() });
        }
    }

    pub(super) fn on_clock(&mut self, sent: Time, theirs: Time) {
        let (ours, watch) = (now(), &mut self.watch);
        let took = ours.since(sent);
        if ours < sent || took > CLOCK_WITHIN {
            return;
        }
        let middle = sent.0 + took.0 / 2;
        let ahead = theirs.0 as i64 - middle as i64;
        watch.clock =
            format!("the controller's is {ahead} ms ahead, give or take {} ms", took.0 / 2);
        let seen = watch.rules.clock(ahead, Span(took.0 / 2), ours);
        watch.put(seen.map(|mut seen| {
            seen.keep = tutti_gpu::health::Keep::For(Span(CLOCK_EVERY.as_millis() as u64 * 5 / 2));
            seen
        }));
    }

    pub(super) fn on_health(&mut self, request: RequestId, ask: HealthAsk) {
        let reply = match ask {
            HealthAsk::Inject(ask) => match drill(&ask, &self.watch.addresses, now()) {
                Ok(seen) => {
                    tracing::warn!(by = ask.by, "a fire drill");
                    let touched = seen.iter().map(|s| s.finding.clone()).collect();
                    self.watch.put(seen);
                    HealthReply::Board { findings: self.watch.findings(), touched, active: None }
                }
                Err(reason) => HealthReply::Refused { reason },
            },
            HealthAsk::Resolve { gpu, key, by, unchecked } => {
                self.watch.read_kernel_log();
                let standing = self.watch.findings();
                let resolve = Resolve::new(request, by, &standing, gpu, key.as_deref());
                return self.check_before_resolve(resolve, unchecked);
            }
            HealthAsk::Check => return self.check_for_operator(request),
            HealthAsk::Examine => {
                HealthReply::Examined(Box::new(self.watch.examine(self.checking.in_words())))
            }
        };
        self.uplink.say(&ToController::Health { request, reply });
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::config::Controller;

    #[tokio::test]
    async fn when_the_log_fails_the_driver_is_listened_to() {
        let dir = tempfile::tempdir().unwrap();
        let controller = Controller::Address("127.0.0.1:1".to_owned());
        let config = AgentConfig {
            simulated: true,
            ..AgentConfig::new(dir.path().to_owned(), controller, "n1", "127.0.0.1")
        };
        let mut watch = Watch::new(&config).unwrap();
        // The end of a pipe that can't be read.
        let (_reader, writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        watch.kernel_log = Ok(KernelLog::of(file, None).unwrap());
        let (pci, rest) = ("0000:1b:00".to_owned(), String::new());
        let said = Event::Xid { pci, xid: 79, process: None, recovery: None, rest };
        let event = said.clone();
        watch.listen = Box::new(move || {
            let event = event.clone();
            let listen = move |hear: &mut dyn FnMut(Option<Event>) -> bool| {
                hear(None);
                hear(Some(event.clone()));
                Ok::<(), std::io::Error>(())
            };
            DriverEvents::start(listen, LISTEN_AGAIN).map_err(|e| e.to_string())
        });
        watch.read_kernel_log();
        let News::Driver(heard) = watch.next().await else { panic!("nobody else speaks") };
        assert_eq!(heard, said);
        let examined = watch.examine(Ok(String::new()));
        let of = |what: &str| examined.watched.iter().find(|w| w.what == what).unwrap();
        assert!(of("kernel log").not.as_deref().unwrap().starts_with("reading it failed"));
        assert_eq!(
            (&of("driver events").not, of("driver events").note.as_str()),
            (&None, "listening")
        );
    }
}
