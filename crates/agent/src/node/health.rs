//! The node's health: what feeds the board, and what operators ask of it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tutti_gpu::health::judge::judge;
use tutti_gpu::health::rules::Rules;
use tutti_gpu::health::{Addresses, Seen};
use tutti_model::{Finding, GpuIndex, Span, Time};
use tutti_wire::stream::{Examination, HealthAsk, HealthReply, RequestId, ToController, Watched};

use super::{Node, log_error, now};
use crate::config::{AgentConfig, AgentError};
use crate::health::{
    Board, KERNEL_LOG, KernelEntry, KernelLog, Stored, boot_id, booted_at, drill, imagined_address,
};

/// How often the clocks are compared.
const CLOCK_EVERY: Duration = Duration::from_secs(600);
/// An answer that took longer says nothing about a clock.
const CLOCK_WITHIN: Span = Span::secs(10);

pub struct Watch {
    dir: PathBuf,
    stored: Stored,
    addresses: Addresses,
    rules: Rules,
    /// Or why it can't be read.
    kernel_log: Result<KernelLog, String>,
    /// The controller has not heard of the newest findings.
    unsaid: bool,
    compare_clocks_at: Instant,
    /// What the last comparison found, in words.
    clock: String,
}

impl Watch {
    pub fn new(config: &AgentConfig) -> Result<Watch, AgentError> {
        let stored = Stored::load(&config.data_dir, &boot_id())
            .map_err(|source| AgentError::Health { dir: config.data_dir.clone(), source })?;
        let kernel_log = kernel_log(config, stored.kernel_log);
        if let Err(why) = &kernel_log {
            tracing::info!("errors in the kernel's log are not seen: {why}");
        }
        let expected = config.gpus.iter().filter(|_| !config.simulated).map(|g| g.index).collect();
        Ok(Watch {
            dir: config.data_dir.clone(),
            stored,
            addresses: addresses(config),
            rules: Rules::new(config.health.clone(), expected),
            kernel_log,
            unsaid: false,
            compare_clocks_at: Instant::now(),
            clock: "not compared yet".to_owned(),
        })
    }

    pub fn findings(&self) -> Vec<Finding> {
        self.stored.board.findings()
    }

    /// Until the kernel may have said something.
    pub async fn kernel_spoke(&self) {
        let Ok(log) = &self.kernel_log else { return std::future::pending().await };
        if log.ready().await.is_err() {
            std::future::pending().await
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
            }
        }
    }

    fn kernel_said(&mut self, entries: &[KernelEntry]) {
        let addresses = std::mem::take(&mut self.addresses);
        self.change(|board| {
            for entry in entries {
                let verdict = judge(&entry.event, &addresses, entry.at);
                board.overrule(&verdict.overruled);
                verdict.seen.into_iter().for_each(|seen| board.put(seen));
            }
        });
        self.addresses = addresses;
    }

    /// Something was found wrong.
    pub fn put(&mut self, seen: impl IntoIterator<Item = Seen>) {
        let seen: Vec<Seen> = seen.into_iter().collect();
        if !seen.is_empty() {
            self.change(|board| seen.into_iter().for_each(|seen| board.put(seen)));
        }
    }

    pub fn expire(&mut self) {
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

    fn resolve(&mut self, gpu: Option<GpuIndex>, key: Option<&str>) -> Vec<Finding> {
        let mut gone = Vec::new();
        self.change(|board| gone = board.resolve(gpu, key));
        // What the log has said up to now is resolved with it.
        self.save();
        gone
    }

    fn examine(&self) -> Examination {
        let watched = |what: &str, not: Option<String>, note: String| Watched {
            what: what.to_owned(),
            not,
            note,
        };
        let log = match &self.kernel_log {
            Ok(log) => watched("kernel log", None, log.in_words()),
            Err(why) => watched("kernel log", Some(why.clone()), String::new()),
        };
        let clock = watched("clock", None, self.clock.clone());
        Examination { findings: self.findings(), watched: vec![log, clock] }
    }
}

fn kernel_log(config: &AgentConfig, last: Option<u64>) -> Result<KernelLog, String> {
    if config.simulated {
        return Err("the devices are simulated".to_owned());
    }
    KernelLog::open(Path::new(KERNEL_LOG), last).map_err(|e| format!("{KERNEL_LOG}: {e}"))
}

fn addresses(config: &AgentConfig) -> Addresses {
    let mut addresses = Addresses::default();
    for gpu in &config.gpus {
        if config.simulated {
            addresses.add(&imagined_address(gpu.index), gpu.index);
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
    /// Before anything is said of parts: a rank that died of a broken GPU is not to blame.
    pub(super) fn say_findings(&mut self) {
        if !self.changed.is_empty() {
            self.watch.read_kernel_log();
        }
        if std::mem::take(&mut self.watch.unsaid) {
            self.say_level();
        }
    }

    pub(super) fn say_level(&mut self) {
        let findings = self.watch.findings();
        self.uplink.say(&ToController::Findings { findings });
    }

    /// The greeting says it all.
    pub(super) fn findings_for_greeting(&mut self) -> Vec<Finding> {
        self.watch.read_kernel_log();
        self.watch.expire();
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
                    HealthReply::Board { findings: self.watch.findings(), touched }
                }
                Err(reason) => HealthReply::Refused { reason },
            },
            HealthAsk::Resolve { gpu, key, by } => {
                self.watch.read_kernel_log();
                let touched = self.watch.resolve(gpu, key.as_deref());
                tracing::info!(by, count = touched.len(), "findings resolved");
                HealthReply::Board { findings: self.watch.findings(), touched }
            }
            HealthAsk::Examine => HealthReply::Examined(Box::new(self.watch.examine())),
        };
        self.uplink.say(&ToController::Health { request, reply });
    }
}
