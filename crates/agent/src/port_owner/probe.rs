//! Whether somebody has a port, by trying to have it: a socket that is bound and does not listen is in no list of
//! kernels before 6.8, but keeps others from it that do not agree to share.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrLike, SockaddrStorage, bind,
    getsockname, socket,
};

/// A socket that shares its address with nobody, and its port. `AddrInUse`: some socket is on this address or on all
/// of them, in whatever state. Those on other addresses don't matter.
pub fn bound_alone(at: SocketAddr) -> io::Result<(OwnedFd, u16)> {
    let family = if at.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    // Not as std has it: that sets SO_REUSEADDR, and so goes along with others that have set it.
    let own = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, SockProtocol::Tcp)?;
    bind(own.as_raw_fd(), &SockaddrStorage::from(at))?;
    let port = port_of(&getsockname(own.as_raw_fd())?).ok_or(io::ErrorKind::InvalidData)?;
    Ok((own, port))
}

fn port_of(address: &SockaddrStorage) -> Option<u16> {
    match address.family()? {
        AddressFamily::Inet => Some(address.as_sockaddr_in()?.port()),
        _ => Some(address.as_sockaddr_in6()?.port()),
    }
}
