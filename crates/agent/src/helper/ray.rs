//! A Ray cluster on the gang's nodes: its head on the first, which then runs the command; the others
//! join and stay until the command has ended. Ray's processes are in the parts' cgroups and end with
//! the gang.

use std::fs::{self, DirBuilder};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};

use super::peer::{self, Piece, Request, Server};
use super::place::Place;
use super::{HelperError, io_error, run};

const ADDRESS: &str = "RAY_ADDRESS";
/// Ray puts sockets far below this directory, and their names have a limit.
const DIR_CHARS_MAX: usize = 40;

pub fn run(command: &[String]) -> Result<ExitCode, HelperError> {
    let place = Place::from_env()?;
    run::outlive_commands()?;
    let dir = Directory::make()?;
    if place.is_first() { head(&place, &dir, command) } else { worker(&place) }
}

fn head(place: &Place, dir: &Directory, command: &[String]) -> Result<ExitCode, HelperError> {
    let own = place.own();
    let mut ray = ray_start(place)?;
    ray.args(["--head", "--include-dashboard=false"]);
    ray.arg(format!("--port={}", own.port));
    ray.arg(format!("--temp-dir={}", dir.0.display()));
    ray.arg(format!("--ray-client-server-port={}", free_ports(&own.address, 1)?[0]));
    started(ray, place)?;
    for node in place.others() {
        let mut stream = peer::ask(node, &place.key, &Request::Ready)?;
        Piece::read(&mut stream).map_err(|e| peer::no_answer(node, e))?;
    }
    let mut program = run::program(command);
    if std::env::var_os(ADDRESS).is_none() {
        program.env(ADDRESS, own.authority());
    }
    let status = run::to_the_end(program)?;
    run::leave(place, status)
}

fn worker(place: &Place) -> Result<ExitCode, HelperError> {
    // Held until Ray is up here: who asks for it waits.
    let (up, is_up) = mpsc::channel::<()>();
    let is_up = Arc::new(Mutex::new(is_up));
    let left = Server::bind(place.own(), place.key)?.serve(move |request, stream| {
        if request == Request::Ready {
            let is_up = is_up.lock().unwrap_or_else(PoisonError::into_inner);
            say_ready(&is_up, stream);
        }
    });
    // The port is open before Ray's own programs, which give up sooner, look for it.
    drop(peer::connect(&place.nodes[0])?);
    let mut ray = ray_start(place)?;
    ray.arg(format!("--address={}", place.nodes[0].authority()));
    started(ray, place)?;
    drop(up);
    run::wait_to_leave(&left)
}

fn say_ready(is_up: &mpsc::Receiver<()>, mut stream: TcpStream) {
    // Nothing is ever sent: it returns when the other end was dropped.
    let _ = is_up.recv();
    drop(Piece::Exit(0).write(&mut stream));
}

/// What head and workers have in common.
fn ray_start(place: &Place) -> Result<Command, HelperError> {
    let own = place.own();
    let number = |name: &'static str| {
        let text = std::env::var(name).ok().filter(|n| n.parse::<u32>().is_ok());
        text.ok_or(HelperError::Environment(name))
    };
    let mut ray = run::program(&["ray".to_owned(), "start".to_owned()]);
    ray.arg("--disable-usage-stats");
    ray.arg(format!("--node-ip-address={}", own.address));
    ray.arg(format!("--num-gpus={}", number("TUTTI_GPUS")?));
    ray.arg(format!("--num-cpus={}", number("TUTTI_CPUS")?));
    // Ray would take fixed ports, which another job of this node may have.
    const PORTS: [&str; 6] = [
        "--node-manager-port",
        "--object-manager-port",
        "--metrics-export-port",
        "--dashboard-agent-listen-port",
        "--dashboard-agent-grpc-port",
        "--runtime-env-agent-port",
    ];
    for (flag, port) in PORTS.iter().zip(free_ports(&own.address, PORTS.len())?) {
        ray.arg(format!("{flag}={port}"));
    }
    ray.args(["--min-worker-port=0", "--max-worker-port=0"]);
    Ok(ray)
}

/// `ray start` returns when its processes are up, and leaves them behind as our own.
fn started(ray: Command, place: &Place) -> Result<(), HelperError> {
    let status = run::to_the_end(ray)?;
    if status.success() {
        return Ok(());
    }
    let (what, node) = ("ray start".to_owned(), place.own().name.clone());
    Err(HelperError::Failed { what, node, status })
}

/// So many that are free now, all different.
fn free_ports(address: &str, count: usize) -> Result<Vec<u16>, HelperError> {
    let failed = || io_error(format!("find a free port on {address}"));
    let bind = |_| TcpListener::bind((address, 0)).map_err(failed());
    let listeners = (0..count).map(bind).collect::<Result<Vec<_>, _>>()?;
    let port = |l: &TcpListener| l.local_addr().map(|a| a.port()).map_err(failed());
    listeners.iter().map(port).collect()
}

/// Where Ray keeps its session: the same path on all nodes, because Ray wants that. Several nodes
/// that are one machine share it.
struct Directory(PathBuf);

impl Directory {
    fn make() -> Result<Directory, HelperError> {
        let part = |name: &'static str| std::env::var(name).or(Err(HelperError::Environment(name)));
        let (task, generation) = (part("TUTTI_TASK_ID")?, part("TUTTI_GENERATION")?);
        let base = std::env::temp_dir();
        let short = base.as_os_str().len() <= DIR_CHARS_MAX;
        let base = if short { base } else { PathBuf::from("/tmp") };
        let dir = base.join(format!("tutti-ray-{task}-{generation}"));
        let failed = |source| io_error(format!("make the directory {}", dir.display()))(source);
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && is_ours(&dir) => {}
            Err(e) => return Err(failed(e)),
        }
        Ok(Directory(dir))
    }
}

fn is_ours(dir: &Path) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == own && m.mode() & 0o77 == 0)
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Ray's processes are still there and may write: what stays is a few logs.
        let _ = fs::remove_dir_all(&self.0);
    }
}
