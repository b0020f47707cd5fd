//! The process that makes shims: forked from the agent before it had a thread, so that a fork is
//! safe and cheap, and small for as long as it lives.
//!
//! ```text
//! agent (threads, TLS, megabytes) ──plan──► zygote ──fork──► shim ──exec──► ranks
//! ```
//!
//! It leaves when the agent does; shims live on.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal, sigaction};
use nix::unistd::ForkResult;

use crate::frames::{self, Inbox};
use crate::plan::Plan;
use crate::shim;

#[derive(Debug, thiserror::Error)]
pub enum ZygoteError {
    #[error("can't set up the process that starts jobs: {what}")]
    SetUp {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the process has {0} threads already: fork the zygote first in main")]
    Threads(usize),
}

/// The agent's end.
pub struct Zygote {
    socket: UnixStream,
}

impl Zygote {
    /// Must be called before the process has a second thread; refuses otherwise.
    pub fn fork() -> Result<Zygote, ZygoteError> {
        let failed = |what| move |source| ZygoteError::SetUp { what, source };
        let threads = std::fs::read_dir("/proc/self/task").map_err(failed("counting threads"))?;
        match threads.count() {
            1 => {}
            n => return Err(ZygoteError::Threads(n)),
        }
        let (ours, theirs) = UnixStream::pair().map_err(failed("making a socket"))?;
        // SAFETY: there is one thread, so the child may do anything.
        let forked = unsafe { nix::unistd::fork() };
        match forked.map_err(|e| failed("forking")(e.into()))? {
            ForkResult::Parent { .. } => Ok(Zygote { socket: ours }),
            ForkResult::Child => {
                drop(ours);
                let code = match serve(theirs) {
                    Ok(()) => 0,
                    Err(_) => 1,
                };
                // SAFETY: leaves without running the agent's exit handlers.
                unsafe { libc::_exit(code) }
            }
        }
    }

    /// The raw connection: plans go in as frames ([`request`]); what comes back are leases that
    /// could not be forked, as frames of [`ForkFailed`].
    pub fn into_socket(self) -> UnixStream {
        self.socket
    }
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ForkFailed {
    pub lease: tutti_model::LeaseId,
    pub error: String,
}

/// Appends the request to start this plan's shim. Without field names: both ends are the same
/// program, and the shim has to read it.
pub fn request(out: &mut Vec<u8>, plan: &Plan) {
    frames::put_compact(out, plan);
}

/// The zygote's life.
fn serve(mut socket: UnixStream) -> io::Result<()> {
    become_zygote(&socket)?;
    let mut inbox = Inbox::default();
    let mut buf = vec![0; 256 << 10];
    loop {
        match socket.read(&mut buf) {
            Ok(0) => return Ok(()),
            Ok(n) => inbox.push(&buf[..n]),
            // A shim has ended.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        reap();
        while let Some(body) = inbox.next_body().map_err(io::Error::other)? {
            // SAFETY: one thread.
            match unsafe { nix::unistd::fork() } {
                Ok(ForkResult::Parent { .. }) => {}
                Ok(ForkResult::Child) => shim::main(body, socket.into()),
                Err(error) => refuse(&mut socket, body, error)?,
            }
        }
    }
}

fn refuse(socket: &mut UnixStream, body: &[u8], error: nix::Error) -> io::Result<()> {
    let plan: Plan = rmp_serde::from_slice(body).map_err(io::Error::other)?;
    let mut out = Vec::new();
    frames::put(&mut out, &ForkFailed { lease: plan.lease, error: error.desc().to_owned() });
    socket.write_all(&out)
}

/// Everything that shims inherit is done here once: signals, standard streams, open files.
fn become_zygote(socket: &UnixStream) -> io::Result<()> {
    extern "C" fn wake(_: libc::c_int) {}
    // SAFETY: the handler does nothing; it only makes system calls return.
    unsafe {
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        for signal in
            [Signal::SIGPIPE, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT]
        {
            sigaction(signal, &ignore)?;
        }
        let wake = SigAction::new(SigHandler::Handler(wake), SaFlags::empty(), SigSet::empty());
        sigaction(Signal::SIGCHLD, &wake)?;
    }
    nix::sys::signal::sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    set_name(c"tutti-zygote");
    let null: OwnedFd =
        std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?.into();
    // SAFETY: both descriptors are open; the standard ones belong to nobody in this process.
    unsafe {
        for target in 0..3 {
            if libc::dup2(null.as_raw_fd(), target) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    drop(null);
    close_others(socket.as_raw_fd());
    nix::unistd::setsid()?;
    Ok(())
}

/// Descriptors that the agent was started with: a shim must not hold somebody's pipe open.
fn close_others(keep: libc::c_int) {
    let keep = keep as libc::c_uint;
    // SAFETY: nothing else in this process uses them. Where the call does not exist, what is
    // left open is close-on-exec and lives as long as the shim.
    unsafe {
        if keep > 3 {
            libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, keep - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, keep + 1, libc::c_uint::MAX, 0);
    }
}

pub(crate) fn set_name(name: &std::ffi::CStr) {
    // SAFETY: a valid C string; the kernel cuts it at 15 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

fn reap() {
    // SAFETY: no status is asked for.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}
