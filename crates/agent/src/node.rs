//! The shell around the state machine: feeds it orders, shims' words and time, and carries out
//! what it answers. One task owns everything here; only reading and writing streams is elsewhere.

mod active;
mod files;
mod health;
mod image;
mod launch;
mod logs;
mod lookup;
mod mps;
pub(crate) mod podman;
mod port_watch;
mod release;
mod requests;
mod session;
mod shims;
mod suspend;
mod zygote;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep_until;
use tutti_files::OwnDir;
use tutti_model::{Bytes, LeaseId, Span, Time};
use tutti_wire::pki::NodeIdentity;
use tutti_wire::stream::ToController;

use crate::barred::Barred;
use crate::config::{AgentConfig, AgentError};
use crate::container::{self, Found};
use crate::isolation::Isolation;
use crate::join;
use crate::machine::{Action, Input, Machine};
use crate::network::Network;
use crate::parts::{Fate, FoundState, Parts};
use crate::private;
use crate::progress::place::Places;
use crate::telemetry::{self, Telemetry};
use crate::zygote::Zygote;
use active::Checking;
use files::Files;
use health::Watch;
use lookup::Lookups;
use mps::Sharing;
use port_watch::PortWatch;
use release::Releasing;
use requests::Requests;
use session::Uplink;
use shims::{Conn, Listener, Shims};
use suspend::Suspending;
use zygote::ZygoteLink;

/// How often logs are looked through for those that are no longer kept.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// At most this many events between two flushes, so that answers are not held back by a flood.
const BURST: usize = 256;
/// An agent that ends waits so long for directories that are being removed; the next one goes on with it.
const REMOVE_WITHIN: Duration = Duration::from_secs(2);

/// Runs until SIGTERM or SIGINT. The zygote must have been forked before any thread.
pub fn run(config: AgentConfig, zygote: Zygote) -> Result<(), AgentError> {
    let setup = |what| move |source| AgentError::SetUp { what, source };
    make_dir(&config.data_dir)?;
    let _lock = lock(&config.data_dir)?;
    let identity = join::identity(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(setup("the runtime"))?;
    let result = runtime.block_on(async move {
        let mut term = signal(SignalKind::terminate()).map_err(setup("signals"))?;
        let mut int = signal(SignalKind::interrupt()).map_err(setup("signals"))?;
        let mut node = Node::new(config, identity, zygote)?;
        node.take_over()?;
        let result = node.live(&mut term, &mut int).await;
        node.places.leave();
        node.finish_removing().await;
        node.isolation.leave();
        result
    });
    // A thread that waits for a dead file system or a process that can't die is left behind.
    runtime.shutdown_background();
    result
}

/// What is in it decides what runs here and as whom, so it must be this user's alone.
fn make_dir(dir: &Path) -> Result<(), AgentError> {
    let made = OwnDir::new(dir).make(0o700);
    made.map(drop).map_err(|source| AgentError::DataDir { path: dir.to_owned(), source })
}

fn file_error(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> AgentError {
    let path = path.to_owned();
    move |source| AgentError::File { what, path, source }
}

/// Two agents in one data dir would each take the other's parts for their own.
fn lock(dir: &Path) -> Result<File, AgentError> {
    let path = dir.join("agent.lock");
    let file =
        File::options().create(true).append(true).open(&path).map_err(file_error("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(AgentError::InUse(dir.to_owned())),
        Err(std::fs::TryLockError::Error(e)) => Err(file_error("lock", &path)(e)),
    }
}

pub(crate) struct Node {
    config: AgentConfig,
    machine: Machine,
    parts: Parts,
    barred: Barred,
    places: Places,
    lookups: Lookups,
    isolation: Isolation,
    releasing: Releasing,
    checking: Checking,
    /// Container runtimes that are here.
    runtimes: Vec<Found>,
    tmpdir: Option<String>,
    /// None: to be looked at before the next part starts.
    network: Option<Network>,
    /// This binary, for the helpers that some launchers need.
    program: String,
    ports: BTreeMap<LeaseId, u16>,
    port_watch: PortWatch,
    zygote: ZygoteLink,
    listener: Listener,
    shims: Shims,
    /// Parts to look at on disk, by when.
    looks: BTreeSet<(Instant, LeaseId)>,
    /// Parts whose state changed since the last flush.
    changed: BTreeSet<LeaseId>,
    /// What the controller was last told that parts have on GPUs.
    told_memory: BTreeMap<LeaseId, Bytes>,
    uplink: Uplink,
    files: Files,
    watch: Watch,
    requests: Requests,
    telemetry: Telemetry,
    /// Whether parts can be suspended here, or why not.
    suspending: Suspending,
    /// How parts of a GPU are held to their shares.
    sharing: Sharing,
    sweeping: BTreeSet<LeaseId>,
    swept: mpsc::UnboundedSender<LeaseId>,
    swept_in: mpsc::UnboundedReceiver<LeaseId>,
    /// Directories of parts that are over. May take long.
    removing: JoinSet<()>,
    prune_at: Instant,
    /// SIGTERM came, ranks are being taken along, and this is when that has to be over.
    leave_at: Option<Instant>,
}

impl Node {
    fn new(
        config: AgentConfig,
        identity: NodeIdentity,
        zygote: Zygote,
    ) -> Result<Node, AgentError> {
        let parts = Parts::open(config.data_dir.join("parts"))?;
        let barred = Barred::open(config.data_dir.join("barred"))
            .map_err(file_error("read", &config.data_dir.join("barred")))?;
        let (swept, swept_in) = mpsc::unbounded_channel();
        let isolation = Isolation::set_up(&config);
        let telemetry = Telemetry::start(&config, isolation.name())?;
        let program = program()?;
        Ok(Node {
            machine: Machine::new(barred.leases()),
            isolation,
            releasing: Releasing::new(&config),
            checking: Checking::find(&config, &program),
            runtimes: container::find(&search_path(), Path::new("/")),
            places: Places::new(&config.data_dir),
            tmpdir: std::env::var("TMPDIR").ok(),
            network: None,
            program,
            lookups: Lookups::new(&config.name, &config.address),
            ports: BTreeMap::new(),
            port_watch: PortWatch::new(),
            zygote: ZygoteLink::new(zygote)?,
            listener: Listener::bind(&config.data_dir)?,
            shims: Shims::default(),
            looks: BTreeSet::new(),
            changed: BTreeSet::new(),
            told_memory: BTreeMap::new(),
            watch: Watch::new(&config)?,
            uplink: Uplink::new(&config.data_dir, Arc::new(identity))?,
            files: Files::watch(&config.files),
            requests: Requests::default(),
            telemetry,
            suspending: Suspending::find(&config),
            sharing: Sharing::find(&config),
            sweeping: BTreeSet::new(),
            swept,
            swept_in,
            removing: JoinSet::new(),
            prune_at: Instant::now(),
            leave_at: None,
            parts,
            barred,
            config,
        })
    }

    /// Whatever an earlier agent left here.
    fn take_over(&mut self) -> Result<(), AgentError> {
        let mut ends = Vec::new();
        for (_, found) in self.parts.scan()? {
            let (record, state) = (Box::new(found.record), found.state);
            if matches!(state, FoundState::Alive | FoundState::Unclaimed) {
                self.isolation.adopt(record.launch.lease);
            }
            if !matches!(state, FoundState::Dead | FoundState::Ended(_)) {
                self.ports.insert(record.launch.lease, record.port);
            }
            if state == FoundState::Prepared {
                self.lookups.look_up_now(&record.launch.user);
            }
            let moved = found.level.map(|level| self.moved(level));
            let state = match state {
                // Its end is told when its GPUs are free, whichever agent finds it.
                FoundState::Ended(end) if self.releasing.looks() => {
                    ends.push((record.launch.lease, end));
                    FoundState::Alive
                }
                other => other,
            };
            self.step(Input::Found { record, state, moved });
        }
        // When it is known who else has those GPUs.
        for (lease, end) in ends {
            self.step(Input::Looked { lease, fate: Fate::Ended(end) });
        }
        // Whoever is adopted works on: its GPUs are not idle.
        for lease in self.machine.live() {
            self.tell_telemetry(lease);
            self.watch_port(lease);
        }
        self.sweep_left_behind();
        self.look_again_at_start();
        self.check_at_start();
        Ok(())
    }

    /// What parts that are over had for themselves; a crash of the agent may have kept it from that.
    fn sweep_left_behind(&mut self) {
        let left = self.isolation.left_behind(&self.machine.live());
        if !left.is_empty() {
            self.removing.spawn_blocking(move || private::remove_all(&left));
        }
    }

    async fn finish_removing(&mut self) {
        let all = async {
            while let Some(removed) = self.removing.join_next().await {
                tell_if_broken(removed);
            }
        };
        if tokio::time::timeout(REMOVE_WITHIN, all).await.is_err() {
            tracing::info!("directories of parts are left for the next agent to remove");
        }
    }

    async fn live(&mut self, term: &mut Signal, int: &mut Signal) -> Result<(), AgentError> {
        self.tidy_mps();
        while !self.may_leave() {
            let alarm = sleep_until(self.next_alarm().into());
            let clogged = self.uplink.is_clogged();
            tokio::select! {
                biased;
                _ = term.recv() => self.leave(),
                _ = int.recv() => self.leave(),
                event = self.uplink.next() => self.on_uplink(event),
                accepted = self.listener.accept() => self.on_accept(accepted),
                Some((conn, event)) = self.shims.next(), if !clogged => {
                    self.on_shim(conn, event);
                }
                Some(lease) = self.swept_in.recv() => {
                    self.sweeping.remove(&lease);
                    self.step(Input::Swept { lease });
                }
                Some(looked) = self.port_watch.next() => self.on_ports_seen(looked),
                Some(looked) = self.releasing.next() => self.on_looked(looked),
                Some(checked) = self.checking.next() => self.on_checked(checked),
                Some(answer) = self.lookups.next() => self.on_looked_up(answer),
                () = self.files.changed() => {}
                news = self.watch.next() => self.watch.take(news),
                failed = self.zygote.next() => self.on_zygote(failed)?,
                Some(samples) = self.telemetry.next() => {
                    self.watch_mps(&samples.newest);
                    self.notice_memory(&samples);
                    self.tell_samples(&samples);
                }
                event = self.sharing.next() => self.on_mps(event),
                Some(removed) = self.removing.join_next() => tell_if_broken(removed),
                () = alarm => self.on_alarm(),
            }
            self.drain();
            self.flush();
        }
        Ok(())
    }

    /// What else has come meanwhile, so that a burst is answered by few writes.
    fn drain(&mut self) {
        for _ in 0..BURST {
            if let Some(frame) = self.uplink.try_next() {
                self.on_uplink(frame);
            } else if !self.uplink.is_clogged()
                && let Some((conn, event)) = self.shims.try_next()
            {
                self.on_shim(conn, event);
            } else {
                return;
            }
        }
    }

    fn flush(&mut self) {
        self.zygote.flush();
        self.tell_xids();
        if self.uplink.is_up() {
            self.say_findings();
            let changed = std::mem::take(&mut self.changed);
            for lease in changed {
                if let Some(report) = self.report(lease) {
                    self.uplink.say(&ToController::Report { report });
                }
            }
            self.say_later_findings();
        } else if !self.uplink.has_greeted() {
            // The greeting will say it all.
            self.changed.clear();
        }
        self.uplink.flush();
    }

    fn next_alarm(&self) -> Instant {
        let look = self.looks.first().map(|(at, _)| *at);
        let (uplink, watch) = (Some(self.uplink.next_alarm()), self.watch.next_alarm());
        let ports = self.port_watch.next_alarm();
        let times = [look, uplink, watch, ports, Some(self.prune_at), self.leave_at];
        times.into_iter().flatten().min().expect("pruning has a time")
    }

    fn on_alarm(&mut self) {
        let now = Instant::now();
        while let Some(&(at, lease)) = self.looks.first()
            && at <= now
        {
            self.looks.pop_first();
            self.look(lease);
        }
        if self.prune_at <= now {
            self.prune_at = now + PRUNE_EVERY;
            self.prune_logs();
        }
        self.look_at_ports(now);
        self.telemetry.complain_if_late();
        self.watch.tick();
        self.uplink_alarm(now);
    }

    /// One input, unless it has to wait, and everything that follows from it.
    fn step(&mut self, mut input: Input) {
        self.explain(&mut input);
        if let Some(input) = self.hold_end(input) {
            self.take(input);
        }
    }

    fn take(&mut self, input: Input) {
        tell_operator(&input);
        let mut actions = VecDeque::from(self.machine.step(now(), input));
        while let Some(action) = actions.pop_front() {
            if let Some(input) = self.carry_out(action) {
                tell_operator(&input);
                actions.extend(self.machine.step(now(), input));
            }
        }
    }

    /// Does it; some actions have an answer at once.
    fn carry_out(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Prepare(lease) => {
                self.releasing.disturb(self.machine.gpus_of(lease));
                return self.prepare(lease);
            }
            Action::KeepPrepared(lease) => return self.keep_prepared(lease),
            Action::Launch { lease, ports } => return self.launch(lease, &ports),
            Action::Revoke(lease) => return self.revoke(lease),
            Action::Tell { lease, message } => self.shims.tell(lease, &message),
            Action::TellSuspend(lease) => self.tell_suspend(lease),
            Action::TellWake { lease, gpus } => {
                self.releasing.disturb(&gpus);
                self.tell_wake(lease, &gpus);
            }
            Action::Complain(text) => tracing::error!("{text}"),
            Action::Look { lease, after } => {
                self.looks.insert((Instant::now() + Duration::from_millis(after.0), lease));
            }
            Action::Sweep(lease) => self.sweep(lease),
            Action::Bar(lease) => {
                if let Err(error) = self.barred.add(lease) {
                    tracing::error!(%lease, %error, "can't remember that this lease is stopped");
                }
            }
            Action::Report(lease) => self.on_change(lease),
            Action::Remove(lease) => {
                self.ports.remove(&lease);
                if let Err(error) = self.parts.remove(lease) {
                    log_error("a part's record stays behind", &error);
                }
            }
        }
        None
    }

    fn on_change(&mut self, lease: LeaseId) {
        self.changed.insert(lease);
        self.watch_port(lease);
        if self.machine.is_over(lease) {
            self.telemetry.lets_go(lease);
            self.ports.remove(&lease);
            self.isolation.part_over(lease);
            if let Some(launch) = self.machine.launch(lease) {
                self.forget_variables(launch);
            }
            if let Some(rooms) = self.isolation.rooms() {
                self.removing.spawn_blocking(move || rooms.sweep(lease));
            }
            self.part_over(lease);
            self.tidy_mps();
        } else {
            self.tell_telemetry(lease);
        }
    }

    /// Which GPUs the part has now.
    fn tell_telemetry(&self, lease: LeaseId) {
        match self.machine.gpus_of(lease) {
            [] => self.telemetry.lets_go(lease),
            gpus => {
                self.telemetry.holds(lease, gpus);
                let launch = self.machine.launch(lease).filter(|_| self.config.simulated);
                let words = launch.and_then(|l| l.spec.env.get(telemetry::AS_IF_VARIABLE));
                words.into_iter().for_each(|words| self.telemetry.wishes(lease, words));
            }
        }
    }

    /// Reads the part's fate from disk, unless its shim has been heard meanwhile.
    fn look(&mut self, lease: LeaseId) {
        if !self.machine.is_unheard(lease) {
            return;
        }
        match self.parts.fate(lease) {
            Ok(fate) => self.step(Input::Looked { lease, fate }),
            Err(error) => {
                log_error("a part's record can't be read", &error);
                self.looks.insert((Instant::now() + Duration::from_secs(5), lease));
            }
        }
    }

    fn revoke(&mut self, lease: LeaseId) -> Option<Input> {
        match self.parts.revoke(lease) {
            Ok(true) => {
                let message = "no supervisor came for the part in time".to_owned();
                Some(Input::LaunchFailed { lease, message })
            }
            Ok(false) => {
                self.looks.insert((Instant::now(), lease));
                None
            }
            Err(error) => {
                log_error("a part can't be revoked", &error);
                self.looks.insert((Instant::now() + Duration::from_secs(5), lease));
                None
            }
        }
    }

    /// Off this thread: it walks all processes of the machine.
    fn sweep(&mut self, lease: LeaseId) {
        if !self.sweeping.insert(lease) {
            return;
        }
        let mark = self.parts.stem(lease).display().to_string();
        let cgroup = self.isolation.groups(lease);
        let (swept, places) = (self.swept.clone(), self.places.clone());
        tokio::task::spawn_blocking(move || {
            launch::sweep(&mark, cgroup.as_ref());
            places.sweep(lease);
            // The node is gone only when the agent is.
            let _ = swept.send(lease);
        });
    }

    fn leave(&mut self) {
        match self.config.kill_jobs_on_term {
            Some(grace) if self.leave_at.is_none() => {
                tracing::info!("stopping, and taking all ranks along");
                // What ends now ends because of us; the next agent reports it that way.
                self.uplink.close();
                let patience = Duration::from_millis(grace.0) + Duration::from_secs(5);
                self.leave_at = Some(Instant::now() + patience);
                self.step(Input::Shutdown { grace });
            }
            Some(_) => {}
            None => {
                tracing::info!("stopping; ranks run on");
                self.leave_at = Some(Instant::now());
            }
        }
    }

    fn may_leave(&self) -> bool {
        let Some(at) = self.leave_at else { return false };
        let kills = self.config.kill_jobs_on_term.is_some();
        at <= Instant::now() || (kills && self.machine.is_idle())
    }

    fn on_zygote(
        &mut self,
        failed: Result<crate::zygote::ForkFailed, AgentError>,
    ) -> Result<(), AgentError> {
        let failed = failed?;
        let lease = failed.lease;
        match self.parts.revoke(lease) {
            Ok(true) => {
                let message = format!("no process could be made: {}", failed.error);
                self.step(Input::LaunchFailed { lease, message });
            }
            Ok(false) => {}
            Err(error) => log_error("a part can't be revoked", &error),
        }
        Ok(())
    }

    fn on_accept(&mut self, accepted: std::io::Result<std::os::unix::net::UnixStream>) {
        match accepted {
            Ok(stream) => {
                for (conn, event) in self.shims.admit(stream) {
                    self.on_shim(conn, event);
                }
            }
            Err(error) => tracing::error!(%error, "a shim's connection can't be accepted"),
        }
    }

    fn on_shim(&mut self, conn: Conn, event: shims::FromConn) {
        use crate::messages::FromShim;
        use shims::FromConn;
        let message = match event {
            FromConn::Message(FromShim::Hello { lease, exits, keeps_limits, limit }) => {
                self.shims.is_for(conn, lease);
                self.step(Input::Hello { lease, exits });
                if keeps_limits {
                    self.step(Input::Limit { lease, level: limit });
                }
                self.shim_came(lease);
                return;
            }
            FromConn::Closed => {
                if let Some(lease) = self.shims.closed(conn) {
                    self.step(Input::Gone { lease });
                    self.execs_gone(lease);
                }
                return;
            }
            FromConn::Message(message) => message,
        };
        let Some(lease) = self.shims.lease(conn) else { return };
        match message {
            FromShim::Hello { .. } => {}
            FromShim::Limit { level } => self.step(Input::Limit { lease, level }),
            FromShim::Exits { exits } => self.step(Input::Exits { lease, exits }),
            FromShim::Progress { progress } => self.step(Input::Progress { lease, progress }),
            FromShim::Suspension { level } => {
                let moved = self.moved(level);
                self.step(Input::Suspension { lease, moved });
            }
            FromShim::Ended(end) => self.step(Input::Ended { lease, end }),
            FromShim::Grew { rank } => self.log_grew(lease, rank),
            FromShim::ExecData { request, stream, data } => {
                self.exec_data(request, stream, data);
            }
            FromShim::ExecExited { request, status } => self.exec_exited(request, status),
            FromShim::ExecFailed { request, reason } => self.exec_failed(request, reason),
        }
    }
}

/// Where programs are looked for.
fn search_path() -> String {
    std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned())
}

/// Where this binary is, for helpers that run as other users.
fn program() -> Result<String, AgentError> {
    let found = std::env::current_exe();
    let source = |source| AgentError::SetUp { what: "the way to this program", source };
    let path = found.map_err(source)?.into_os_string();
    path.into_string().map_err(|_| source(std::io::ErrorKind::InvalidFilename.into()))
}

fn now() -> Time {
    Time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64))
}

fn span(span: Span) -> Duration {
    Duration::from_millis(span.0)
}

/// A node that can start nothing, on a full disk for instance, says so where its operator looks;
/// the job's owner hears of it through the controller.
fn tell_if_broken(removed: Result<(), tokio::task::JoinError>) {
    if let Err(error) = removed {
        log_error("directories of a part may stay behind", &error);
    }
}

fn tell_operator(input: &Input) {
    let (lease, message) = match input {
        Input::LaunchFailed { lease, message } => (lease, message),
        Input::Prepared { lease, result: Err(error) } => (lease, &error.message),
        _ => return,
    };
    tracing::warn!(%lease, "a part could not be started: {message}");
}

pub(crate) fn log_error(what: &str, error: &(dyn std::error::Error + 'static)) {
    tracing::error!("{what}: {}", chain(error));
}

/// The error with its causes, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
