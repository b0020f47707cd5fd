//! From a data dir to a running controller, and back.
//!
//! ```text
//!  data dir ─► journal ─► engine (replay) ─► Start ─► CA, certificate, admin token
//!           ─► bind ─► `endpoint`, `controller.pid` ─► serve ... stop: last batch, close
//! ```

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tutti_engine::{Actor, Command, Settings};
use tutti_files::OwnDir;
use tutti_journal::{Journal, JournalError, RedbJournal};
use tutti_model::{Policy, Role};
use tutti_wire::client::SOCKET_FILE;
use tutti_wire::pki::replace_file;

use crate::api::{self, App, Bodies, Execs, Hosts};
use crate::archive::{self, ARCHIVE_DIR, Archive};
use crate::audit::Audit;
use crate::clock::now;
use crate::config::ControllerConfig;
use crate::core::{self, CallError, CoreError, LoadError, Started};
use crate::dash::{self, Dash};
use crate::error::ControllerError;
use crate::identity::{self, Identity};
use crate::idle;
use crate::links::{AgentConfig, GangKeys, Links};
use crate::listener::{self, Listener};
use crate::room::JournalRoom;
use crate::serving::{self, Routers};
use crate::telemetry::{Keeper, Store, keep};

pub const JOURNAL_FILE: &str = "journal.redb";
pub const ENDPOINT_FILE: &str = "endpoint";
pub const PID_FILE: &str = "controller.pid";
pub const AUDIT_FILE: &str = "audit.log";
/// Data dirs of agents on the same machine, who look after them.
pub const NODES_DIR: &str = "nodes";
/// Its presence says that the journal is a copy that was put back.
pub const RESTORED_FILE: &str = "restored";

/// How long requests may go on after a stop was asked for.
const DRAIN_MAX: Duration = Duration::from_secs(3);

const WORKERS: usize = 2;

/// Connections that the kernel keeps until they are taken: beyond it a client tries again only after
/// a second.
const BACKLOG: u32 = 4096;
/// What the kernel keeps of answers that a client does not take. By itself it would keep megabytes of
/// each, which strangers could fill.
const SEND_BUFFER: u32 = 256 << 10;

/// How long a journal that another process holds is waited for.
const JOURNAL_WAIT: Duration = Duration::from_secs(3);
const JOURNAL_RETRY: Duration = Duration::from_millis(50);

/// A controller inside this process.
pub struct Handle {
    /// Where it listens, with the port that was picked.
    pub addr: SocketAddr,
    stop: watch::Sender<bool>,
    main: JoinHandle<Result<(), ControllerError>>,
}

impl Handle {
    /// Asks it to stop; [`Handle::ended`] says when it has.
    pub fn shutdown(&self) {
        self.stop.send_replace(true);
    }

    pub async fn ended(self) -> Result<(), ControllerError> {
        self.main.await.unwrap_or(Err(ControllerError::NotDurable(CoreError::Panicked)))
    }
}

/// Runs a controller until SIGTERM, SIGINT or `/shutdown`. Returns an error that says what to do.
pub fn run(config: ControllerConfig) -> Result<(), ControllerError> {
    let dir = config.data_dir.clone();
    run_until_signal(start(config)).map_err(|error| headline(error, &dir))
}

/// Whatever could not be written, a full disk is what to do something about.
fn headline(error: ControllerError, dir: &Path) -> ControllerError {
    match &error {
        ControllerError::NotDurable(_) => error,
        other if is_full_disk(other) => ControllerError::DiskFull { path: dir.to_owned() },
        _ => error,
    }
}

fn is_full_disk(error: &(dyn std::error::Error + 'static)) -> bool {
    let io = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(io, Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
        || error.source().is_some_and(is_full_disk)
}

/// Runs what is started until it stops or is told to.
pub(crate) fn run_until_signal(
    started: impl Future<Output = Result<Handle, ControllerError>>,
) -> Result<(), ControllerError> {
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name("tutti-io")
        .enable_all()
        .build()
        .map_err(ControllerError::Runtime)?;
    let ended = runtime.block_on(async {
        let handle = started.await?;
        let stop = handle.stop.clone();
        tokio::spawn(async move {
            match signalled().await {
                Ok(name) => tracing::info!("{name}: stopping"),
                Err(error) => {
                    tracing::error!(%error, "signals can't be watched; use `tutti down`");
                    return;
                }
            }
            stop.send_replace(true);
        });
        handle.ended().await
    });
    // What still runs are connections of clients that would not leave.
    runtime.shutdown_timeout(Duration::from_millis(200));
    ended
}

/// Every agent and client takes a file descriptor, and the usual soft limit is 1024.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

async fn signalled() -> std::io::Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    Ok(tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    })
}

/// A controller that was killed a moment ago may still be leaving; one that runs keeps the journal.
async fn open_journal(path: &Path) -> Result<RedbJournal, JournalError> {
    let give_up = tokio::time::Instant::now() + JOURNAL_WAIT;
    loop {
        match RedbJournal::open(path, &Default::default()) {
            Err(JournalError::InUse { .. }) if tokio::time::Instant::now() < give_up => {
                tokio::time::sleep(JOURNAL_RETRY).await;
            }
            opened => return opened,
        }
    }
}

/// The journal is made before the CA. So a CA without one means that the journal was lost, and a
/// controller that began anew would know nobody and forget everything in silence.
fn check_not_missing(journal: &Path) -> Result<(), ControllerError> {
    let had_cluster = journal.parent().is_some_and(|dir| dir.join("ca.key").exists());
    if had_cluster && !journal.exists() {
        return Err(ControllerError::JournalMissing { path: journal.to_owned() });
    }
    Ok(())
}

/// Starts a controller in the current tokio runtime, which must have several threads. It serves when
/// this returns.
pub async fn start(config: ControllerConfig) -> Result<Handle, ControllerError> {
    prepare_dir(&config.data_dir)?;
    let path = config.data_dir.join(JOURNAL_FILE);
    check_not_missing(&path)?;
    let journal = open_journal(&path).await?;
    let identity = Identity::load_or_create(&config)?;
    let links = Arc::new(Links::new(GangKeys::new(&identity.ca)));
    let Started { core, ended } = start_engine(&config, Box::new(journal), Arc::clone(&links))?;
    if let Err(error) = first_records(&core, &identity, &config).await {
        return Err(own_reason(error, ended).await);
    }
    let telemetry = Arc::new(Store::default());
    let keeper =
        keep(Arc::clone(&telemetry), &config.data_dir).map_err(ControllerError::Runtime)?;
    let inside = Inside { core, ended, links, identity, telemetry, keeper: Some(keeper) };
    let (handle, app) = open(config, inside).await?;
    tokio::spawn(dash::keep_pulse(Arc::clone(&app)));
    tokio::spawn(idle::watch(Arc::clone(&app)));
    tokio::spawn(serving::keep(Arc::clone(&app)));
    let (core, stopping) = (app.core.clone(), handle.stop.subscribe());
    tokio::spawn(archive::keep(core, Arc::clone(&app.archive), stopping));
    tokio::spawn(crate::watch::keep_watch(app));
    Ok(handle)
}

/// What is behind the port.
pub(crate) struct Inside {
    pub core: core::Core,
    pub ended: tokio::sync::oneshot::Receiver<Result<(), CoreError>>,
    pub links: Arc<Links>,
    pub identity: Identity,
    pub telemetry: Arc<Store>,
    /// None: nothing of it is written down.
    pub keeper: Option<Keeper>,
}

/// Opens the port and the socket beside it.
pub(crate) async fn open(
    config: ControllerConfig,
    inside: Inside,
) -> Result<(Handle, Arc<App>), ControllerError> {
    let Inside { core, ended, links, identity, telemetry, keeper } = inside;
    let epoch = core.peek(|w| w.engine.state().epoch).map_err(CallError::Stopped)?;
    let audit_path = config.data_dir.join(AUDIT_FILE);
    let (audit, audit_thread) = Audit::open(&audit_path)
        .map_err(|source| ControllerError::Write { path: audit_path, source })?;
    let (sockets, addr) = bind(config.listen).await?;
    let local = bind_local(&config.data_dir)?;
    let (stop, stopping) = watch::channel(false);
    let alerts = core.peek(|w| Arc::clone(&w.alerts)).map_err(CallError::Stopped)?;
    let folder = config.archive.clone().unwrap_or_else(|| config.data_dir.join(ARCHIVE_DIR));
    let routers = Arc::new(Routers::open(&config.data_dir, now()));
    let app = Arc::new(App {
        alerts,
        routers: Arc::clone(&routers),
        core: core.clone(),
        links: Arc::clone(&links),
        telemetry: Arc::clone(&telemetry),
        archive: Arc::new(Archive::at(&folder)),
        audit,
        ca: Arc::clone(&identity.ca),
        hosts: Hosts::new(addr, &config.extra_names),
        execs: Execs::default(),
        bodies: Bodies::default(),
        dash: Dash::open(&config.data_dir, addr.port()),
        data_dir: config.data_dir.clone(),
        room: JournalRoom::new(&config.data_dir),
        server_until: identity.server_until,
        shutdown: stop.clone(),
    });
    let agents = AgentConfig::new(
        core.clone(),
        Arc::clone(&links),
        telemetry,
        Arc::clone(&identity.ca),
        epoch,
        config.heartbeat,
    );
    let api = api::router(Arc::clone(&app));
    let (tls, agents) = (TlsAcceptor::from(identity.tls), Arc::new(agents));
    let listener = |router| {
        let (tls, agents) = (tls.clone(), Arc::clone(&agents));
        Arc::new(Listener::new(router, tls, agents, stopping.clone(), config.connections_max))
    };
    // Each has room of its own: strangers at the port can't keep the owner out.
    let listeners = [listener(api.clone()), listener(listener::local::router(api, addr.port()))];
    write_files(&config.data_dir, addr)?;
    tracing::info!(%addr, %epoch, data_dir = %config.data_dir.display(), "controller is up");
    let [outer, inner] = listeners.clone();
    let mut serve = vec![tokio::spawn(outer.run(sockets))];
    serve.extend(local.map(|local| tokio::spawn(inner.run_local(local, addr.port()))));
    let running =
        Running { core, ended, links, routers, listeners, serve, audit_thread, keeper, stopping };
    let main = tokio::spawn(running.until_stopped(config.data_dir));
    Ok((Handle { addr, stop, main }, app))
}

async fn first_records(
    core: &core::Core,
    identity: &Identity,
    config: &ControllerConfig,
) -> Result<(), ControllerError> {
    let mark = config.data_dir.join(RESTORED_FILE);
    let restored = fs::exists(&mark).unwrap_or(false);
    if restored {
        core.call(Command::Restored).await?;
    }
    core.call(Command::Start).await?;
    if restored {
        // If it stays, the next start only jumps once more.
        match fs::remove_file(&mark) {
            Ok(()) => tracing::info!("goes on from a journal that was restored"),
            Err(error) => tracing::warn!(%error, "can't remove {}", mark.display()),
        }
    }
    if let Some(policy) = &config.policy {
        apply_policy(core, policy).await?;
    }
    identity::ensure_admin_token(core, &identity.ca, &config.data_dir).await
}

/// One that runs already leaves no trace in the journal.
async fn apply_policy(core: &core::Core, policy: &Policy) -> Result<(), ControllerError> {
    let same = core.peek(|w| *w.engine.state().policy == *policy).map_err(CallError::Stopped)?;
    if same {
        return Ok(());
    }
    let actor = Actor { user: "controller".to_owned(), role: Role::Admin };
    let command = Command::SetPolicy { actor, policy: Box::new(policy.clone()) };
    core.call(command).await.map(drop).map_err(|error| match error {
        CallError::Rejected(rejected) => ControllerError::Policy(rejected),
        stopped => ControllerError::Start(stopped),
    })
}

/// An engine that has stopped knows why; whoever called it only that it did.
async fn own_reason(
    error: ControllerError,
    ended: tokio::sync::oneshot::Receiver<Result<(), CoreError>>,
) -> ControllerError {
    match error {
        ControllerError::Start(CallError::Stopped(_)) => match ended.await {
            Ok(Err(cause)) => cause.into(),
            Ok(Ok(())) => error,
            Err(_) => ControllerError::NotDurable(CoreError::Panicked),
        },
        other => other,
    }
}

fn start_engine(
    config: &ControllerConfig,
    mut journal: Box<dyn Journal>,
    links: Arc<Links>,
) -> Result<Started, ControllerError> {
    // Ended jobs leave for the archive, and never just so.
    let settings = Settings { archived: true, ..config.settings.clone() };
    let world =
        core::load(journal.as_mut(), settings).map_err(|LoadError::Journal(error)| error)?;
    core::start(world, journal, links, config.snapshots).map_err(ControllerError::Runtime)
}

struct Running {
    core: core::Core,
    ended: tokio::sync::oneshot::Receiver<Result<(), CoreError>>,
    links: Arc<Links>,
    routers: Arc<Routers>,
    listeners: [Arc<Listener>; 2],
    serve: Vec<JoinHandle<()>>,
    audit_thread: std::thread::JoinHandle<()>,
    keeper: Option<Keeper>,
    stopping: watch::Receiver<bool>,
}

impl Running {
    async fn until_stopped(mut self, data_dir: PathBuf) -> Result<(), ControllerError> {
        let asked = async {
            // An error means that nobody can ask any more; then only a failure ends it.
            if self.stopping.wait_for(|s| *s).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let result = tokio::select! {
            failed = &mut self.ended => failed.unwrap_or(Err(CoreError::Panicked)),
            () = asked => {
                self.drain().await;
                self.tell_served().await;
                self.core.stop().await;
                (&mut self.ended).await.unwrap_or(Err(CoreError::Panicked))
            }
        };
        self.serve.iter().for_each(JoinHandle::abort);
        self.links.close_all("the controller stops");
        let keeper = tokio::task::spawn_blocking(|| self.keeper.map(Keeper::stop));
        if tokio::time::timeout(DRAIN_MAX, keeper).await.is_err() {
            tracing::warn!("the last minute of telemetry may be lost: the disk is slow");
        }
        remove_files(&data_dir);
        drop((self.core, self.listeners));
        if result.is_ok() {
            // Ends when the last connection has let go of the log; lines are written at once, so
            // that a client that never leaves costs only the last sync.
            let audit = tokio::task::spawn_blocking(|| self.audit_thread.join());
            if tokio::time::timeout(DRAIN_MAX, audit).await.is_err() {
                tracing::debug!("a connection is still open");
            }
        }
        result.map_err(ControllerError::from)
    }

    /// What routers said last is in the journal as well.
    async fn tell_served(&self) {
        let told = serving::tell_served(&self.core, &self.routers);
        if tokio::time::timeout(DRAIN_MAX, told).await.is_err() {
            tracing::warn!("what endpoints served in the last minute is counted later");
        }
    }

    /// Lets requests under way finish.
    async fn drain(&self) {
        let quiet = async {
            while self.listeners.iter().any(|l| l.busy()) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        if tokio::time::timeout(DRAIN_MAX, quiet).await.is_err() {
            tracing::info!("some clients did not leave in time");
        }
    }
}

/// Others on the machine may read where the controller listens; secrets have modes of their own.
pub(crate) fn prepare_dir(path: &Path) -> Result<(), ControllerError> {
    let failed = |source: std::io::Error| match source.kind() {
        ErrorKind::StorageFull => ControllerError::DiskFull { path: path.to_owned() },
        _ => ControllerError::DataDir { path: path.to_owned(), source },
    };
    // What is in it decides who may do what, so it must be this user's alone.
    OwnDir::leaving_out(path, &[NODES_DIR]).make(0o755).map_err(|error| match error.io() {
        Ok(source) => failed(source),
        Err(source) => ControllerError::NotOwnDir { path: path.to_owned(), source },
    })?;
    let probe = path.join(".writable");
    fs::write(&probe, b"probe").map_err(failed)?;
    fs::remove_file(&probe).map_err(failed)
}

async fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), ControllerError> {
    let failed = |source: std::io::Error| match source.kind() {
        ErrorKind::AddrInUse => ControllerError::PortInUse(listen),
        _ => ControllerError::Listen { address: listen, source },
    };
    let sockets = bind_socket(listen).map_err(failed)?;
    let addr = sockets.local_addr().map_err(failed)?;
    Ok((sockets, addr))
}

fn bind_socket(listen: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match listen.is_ipv4() {
        true => TcpSocket::new_v4()?,
        false => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(listen)?;
    socket.listen(BACKLOG)
}

fn bind_local(dir: &Path) -> Result<Option<UnixListener>, ControllerError> {
    let path = dir.join(SOCKET_FILE);
    let local = listener::local::bind(dir)
        .map_err(|source| ControllerError::Write { path: path.clone(), source })?;
    if local.is_none() {
        tracing::info!(path = %path.display(), "too long for a socket; clients use the port");
    }
    Ok(local)
}

fn write_files(dir: &Path, addr: SocketAddr) -> Result<(), ControllerError> {
    let pid = std::process::id();
    replace_file(&dir.join(PID_FILE), format!("{pid}\n").as_bytes(), 0o644)?;
    Ok(replace_file(&dir.join(ENDPOINT_FILE), format!("{addr}\n").as_bytes(), 0o644)?)
}

fn remove_files(dir: &Path) {
    // When the data dir was replaced under us, these are another controller's.
    let pid = fs::read_to_string(dir.join(PID_FILE)).ok();
    if pid.and_then(|pid| pid.trim().parse().ok()) != Some(std::process::id()) {
        tracing::warn!("{} is not this controller's any more; left as it is", dir.display());
        return;
    }
    for name in [PID_FILE, ENDPOINT_FILE] {
        if let Err(error) = fs::remove_file(dir.join(name)) {
            tracing::warn!(%error, "can't remove {name}");
        }
    }
    if let Err(error) = listener::local::remove_if_there(&dir.join(SOCKET_FILE)) {
        tracing::warn!(%error, "can't remove {SOCKET_FILE}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_the_headline_whatever_was_written() {
        let full = || std::io::Error::from(ErrorKind::StorageFull);
        let path = PathBuf::from("/d/ca.pem");
        let error = ControllerError::Write { path: path.clone(), source: full() };
        let said = headline(error, Path::new("/d")).to_string();
        assert_eq!(said, "the disk of /d is full: free some space and start again");
        let other = ErrorKind::NotFound.into();
        let error = ControllerError::Write { path, source: other };
        assert_eq!(headline(error, Path::new("/d")).to_string(), "can't write /d/ca.pem");
    }
}
