//! The controller's socket in its data directory. The token goes over it as plain text: the file system
//! decides who may open it, and the kernel says whose process is on the other end.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, socket};
use nix::unistd::{AccessFlags, access, geteuid};
use tutti_files::{is_trusted_user, user_name};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

use super::ForeignPeer;

/// In the data directory.
pub const SOCKET_FILE: &str = "controller.sock";

const CONNECT_AGAIN: Duration = Duration::from_millis(20);

/// The system takes no longer ones.
pub const SOCKET_PATH_MAX: usize = 107;

/// The socket of the cluster in this directory, if there is one and this user may use it. That
/// nobody listens there is for the connection to find out.
pub(super) fn socket_in(dir: &Path) -> Option<PathBuf> {
    let path = dir.join(SOCKET_FILE);
    let fits = path.as_os_str().len() <= SOCKET_PATH_MAX;
    (fits && access(&path, AccessFlags::W_OK).is_ok()).then_some(path)
}

/// Takes every request that needs no TLS, if it has a socket.
#[derive(Debug)]
pub(super) struct Unix {
    pub socket: Option<PathBuf>,
}

impl<In: Transport> Connector<In> for Unix {
    type Out = UnixTransport;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        _: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(path) = self.socket.as_ref().filter(|_| !details.needs_tls()) else {
            return Ok(None);
        };
        let stream = connect(path, details.timeout)?;
        check_peer(&stream, path)?;
        let config = details.config;
        let buffers = LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size());
        Ok(Some(UnixTransport { stream, buffers, read_max: None, write_max: None }))
    }
}

/// A process that is stopped takes no connections, and when its queue is full the system would wait for
/// it without end.
fn connect(path: &Path, timeout: NextTimeout) -> Result<UnixStream, ureq::Error> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(io::Error::from)?;
    let address = UnixAddr::new(path).map_err(io::Error::from)?;
    let began = Instant::now();
    loop {
        match nix::sys::socket::connect(fd.as_raw_fd(), &address) {
            Ok(()) => break,
            Err(Errno::EAGAIN | Errno::EINTR) if began.elapsed() < *timeout.after => {
                std::thread::sleep(CONNECT_AGAIN);
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return Err(ureq::Error::Timeout(timeout.reason)),
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Root and this user may have the token, and nobody else: whoever can put a directory in place of
/// another can put a socket there as well.
fn check_peer(stream: &UnixStream, path: &Path) -> Result<(), ureq::Error> {
    let uid = getsockopt(stream, PeerCredentials).map_err(io::Error::from)?.uid();
    if is_trusted_user(uid) {
        return Ok(());
    }
    let (owner, me) = (user_name(uid), user_name(geteuid().as_raw()));
    Err(ureq::Error::Other(Box::new(ForeignPeer { path: path.to_owned(), owner, me })))
}

pub(super) struct UnixTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
    /// As last set, so that the system is asked only when they change.
    read_max: Option<Duration>,
    write_max: Option<Duration>,
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let timeout = timeout.for_write();
        let wanted = timeout.not_zero().map(|t| *t);
        if wanted != self.write_max {
            self.stream.set_write_timeout(wanted)?;
            self.write_max = wanted;
        }
        let output = &self.buffers.output()[..amount];
        match self.stream.write_all(output) {
            // The server has answered and left before it read all of the request; if it said
            // nothing, reading finds that out.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|e| failed(e, timeout)),
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let timeout = timeout.for_read();
        let wanted = timeout.not_zero().map(|t| *t);
        if wanted != self.read_max {
            self.stream.set_read_timeout(wanted)?;
            self.read_max = wanted;
        }
        let amount = loop {
            match self.stream.read(self.buffers.input_append_buf()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read.map_err(|e| failed(e, timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// Between two answers a live server says nothing.
    fn is_open(&mut self) -> bool {
        let silent = self.stream.set_nonblocking(true).is_ok()
            && matches!(self.stream.read(&mut [0]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock);
        silent && self.stream.set_nonblocking(false).is_ok()
    }
}

fn failed(error: io::Error, timeout: NextTimeout) -> ureq::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}

impl fmt::Debug for UnixTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnixTransport")
    }
}
