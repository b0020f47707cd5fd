//! Open MPI without ssh: `mpirun` on the first node calls `__rsh` where it would call ssh, and the
//! helper on that node, a rank of the same gang, runs the daemon. So daemons and ranks are in the
//! part's cgroup, have the part's GPUs, and are killed with the gang.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use super::hostfile::{self, Hostfile};
use super::peer::{self, Piece, Request, Server};
use super::place::Place;
use super::scratch::Scratch;
use super::{HelperError, io_error, run};

/// Where several nodes are one machine, their files must not meet: Open MPI names them after the
/// host.
const FILES: [&str; 3] =
    ["TMPDIR", "OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"];

const HOSTFILE: [&str; 3] =
    [hostfile::VARIABLE, "OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"];

pub fn run(command: &[String]) -> Result<ExitCode, HelperError> {
    let place = Place::from_env()?;
    run::outlive_commands()?;
    let files = place.simulated.then(|| Scratch::new(&std::env::temp_dir())).transpose()?;
    let dir = files.as_ref().map(|files| files.path().to_owned());
    let left = Server::bind(place.own(), place.key)?.serve(move |request, stream| {
        serve(request, stream, dir.as_deref());
    });
    if !place.is_first() {
        return run::wait_to_leave(&left);
    }
    let hostfile = Hostfile::new(&place)?;
    let mut program = run::program(command);
    // The job may bring a host file of its own.
    for name in HOSTFILE.iter().filter(|name| std::env::var_os(name).is_none()) {
        program.env(name, hostfile.path());
    }
    let status = run::to_the_end(program)?;
    run::leave(&place, status)
}

fn serve(request: Request, mut stream: TcpStream, files: Option<&Path>) {
    match request {
        Request::Run(line) => run_line(stream, &line, files.map(PathBuf::from)),
        // Nobody waits for this node: mpirun asks again until its daemons are there.
        Request::Ready | Request::Leave => drop(Piece::Exit(0).write(&mut stream)),
    }
}

/// Runs the line as rsh would. Its caller may be gone before it ends, and then nobody listens.
fn run_line(stream: TcpStream, line: &str, files: Option<PathBuf>) {
    let _at_work = run::AtWork::begin();
    let out = Mutex::new(stream);
    let say = |piece: Piece| {
        let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = piece.write(&mut *out);
    };
    let mut shell = run::program(&[login_shell(), "-c".into(), line.into()]);
    if let Some(files) = files {
        shell.envs(FILES.iter().map(|name| (name, &files)));
    }
    let child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => {
            say(Piece::Err(format!("tutti: can't run the daemon: {e}\n").into_bytes()));
            return say(Piece::Exit(126));
        }
    };
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| forward(stdout, |data| say(Piece::Out(data))));
        scope.spawn(|| forward(stderr, |data| say(Piece::Err(data))));
    });
    say(Piece::Exit(child.wait().map_or(1, run::shell_code)));
}

fn forward(from: Option<impl Read>, say: impl Fn(Vec<u8>)) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; 64 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => say(buffer[..n].to_vec()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Open MPI quotes for the kind of shell that the user has.
fn login_shell() -> String {
    let own = std::env::var("SHELL").unwrap_or_default();
    if own.ends_with("csh") { own } else { "/bin/sh".to_owned() }
}

/// What `mpirun` calls instead of ssh.
pub fn rsh(host: &str, command: &[String]) -> Result<ExitCode, HelperError> {
    if command.is_empty() {
        return Err(HelperError::NoCommand);
    }
    let place = Place::from_env()?;
    let node = place.find(host)?;
    let mut stream = peer::ask(node, &place.key, &Request::Run(command.join(" ")))?;
    loop {
        match Piece::read(&mut stream).map_err(|e| peer::no_answer(node, e))? {
            Piece::Out(data) => pass_on(io::stdout().lock(), &data)?,
            Piece::Err(data) => pass_on(io::stderr().lock(), &data)?,
            Piece::Exit(code) => return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        }
    }
}

fn pass_on(mut to: impl Write, data: &[u8]) -> Result<(), HelperError> {
    to.write_all(data).and_then(|()| to.flush()).map_err(io_error("write output"))
}
