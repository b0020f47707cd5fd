//! Sockets on a port, as the kernel tells over netlink (`sock_diag(7)`). Unlike `/proc/net/tcp6` this says which
//! are for IPv6 alone, it is asked for one port, and from Linux 6.8 on it names those that are bound and no more.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recvfrom, sendto,
    setsockopt, socket,
};
use nix::sys::time::TimeVal;

use super::{Socket, Which};

/// `linux/sock_diag.h` and `linux/inet_diag.h`, which libc does not have.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_SKV6ONLY: u16 = 11;
const INET_DIAG_REQ_BYTECODE: u16 = 1;
const INET_DIAG_BC_NOP: u8 = 0;
const INET_DIAG_BC_S_GE: u8 = 2;
const INET_DIAG_BC_S_LE: u8 = 3;
const TCP_TIME_WAIT: u32 = 6;
const TCP_LISTEN: u32 = 10;
/// Every state, also that of a socket that is bound and no more: older kernels know no such bit, and pass it over.
const ALL_STATES: u32 = (1 << 14) - 1;

const HEADER: usize = 16;
/// Of `inet_diag_req_v2` and `inet_diag_msg`.
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// Of a filter that lets one port through.
const FILTER: usize = 4 + 16;
/// More than the kernel says at once.
const BUFFER: usize = 64 << 10;

/// Hands on all that are on this port.
pub fn on_port(
    port: u16,
    which: Which,
    until: Instant,
    mut take: impl FnMut(Socket) -> io::Result<()>,
) -> io::Result<()> {
    for family in [libc::AF_INET, libc::AF_INET6] {
        let kernel = ask(&request(family as u8, port, which), until)?;
        let mut buffer = vec![0; BUFFER];
        while !hear(&kernel, &mut buffer, &mut take)? {}
    }
    Ok(())
}

fn ask(request: &[u8], until: Instant) -> io::Result<OwnedFd> {
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let kernel = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkSockDiag)?;
    // Zero would be for ever.
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let left = TimeVal::new(left.as_secs() as i64, i64::from(left.subsec_micros()));
    setsockopt(&kernel, ReceiveTimeout, &left)?;
    sendto(kernel.as_raw_fd(), request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    Ok(kernel)
}

fn states(which: Which) -> u32 {
    match which {
        Which::Owned => ALL_STATES & !(1 << TCP_TIME_WAIT),
        Which::All => ALL_STATES,
    }
}

fn request(family: u8, port: u16, which: Which) -> Vec<u8> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut out = Vec::with_capacity(HEADER + REQUEST + FILTER);
    out.extend(((HEADER + REQUEST + FILTER) as u32).to_ne_bytes());
    out.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend([0; 8]);
    out.extend([family, libc::IPPROTO_TCP as u8, 0, 0]);
    out.extend(states(which).to_ne_bytes());
    out.extend(port.to_be_bytes());
    out.resize(HEADER + REQUEST, 0);
    out.extend(filter(port));
    out
}

/// The port in the request does not hold for sockets that are bound and no more, of which anybody may have many.
fn filter(port: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(FILTER);
    out.extend((FILTER as u16).to_ne_bytes());
    out.extend(INET_DIAG_REQ_BYTECODE.to_ne_bytes());
    // What to do, how far to go on where that holds, and where it does not: beyond the end is a no.
    for (code, beyond) in [(INET_DIAG_BC_S_GE, 20_u16), (INET_DIAG_BC_S_LE, 12)] {
        out.extend([code, 8]);
        out.extend(beyond.to_ne_bytes());
        out.extend([INET_DIAG_BC_NOP, 0]);
        out.extend(port.to_ne_bytes());
    }
    out
}

/// True: that was the last of it.
fn hear(
    kernel: &OwnedFd,
    buffer: &mut [u8],
    take: &mut impl FnMut(Socket) -> io::Result<()>,
) -> io::Result<bool> {
    let (length, from) = recvfrom::<NetlinkAddr>(kernel.as_raw_fd(), buffer)?;
    // Other processes have numbers.
    if from.is_some_and(|from| from.pid() != 0) {
        return Ok(false);
    }
    read(&buffer[..length], take)
}

fn read(mut messages: &[u8], take: &mut impl FnMut(Socket) -> io::Result<()>) -> io::Result<bool> {
    while let Some(length) = u32_at(messages, 0) {
        let length = length as usize;
        let (Some(kind), Some(body)) = (u16_at(messages, 4), messages.get(HEADER..length)) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let code = u32_at(body, 0).unwrap_or(0) as i32;
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            _ if kind == SOCK_DIAG_BY_FAMILY => {
                take(parse(body).ok_or(io::ErrorKind::InvalidData)?)?;
            }
            _ => {}
        }
        messages = messages.get(aligned(length)..).unwrap_or_default();
    }
    Ok(false)
}

fn parse(body: &[u8]) -> Option<Socket> {
    let attributes = body.get(ANSWER..)?;
    let port = u16::from_be_bytes(body[4..6].try_into().ok()?);
    let ip: IpAddr = match i32::from(body[0]) {
        libc::AF_INET => Ipv4Addr::from(<[u8; 4]>::try_from(&body[8..12]).ok()?).into(),
        libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(&body[8..24]).ok()?).into(),
        _ => return None,
    };
    Some(Socket {
        at: SocketAddr::new(ip, port),
        listens: u32::from(body[1]) == TCP_LISTEN,
        uid: u32_at(body, 64)?,
        inode: u64::from(u32_at(body, 68)?),
        ipv6_alone: attribute(attributes, INET_DIAG_SKV6ONLY).is_some_and(|value| value != [0]),
    })
}

fn attribute(mut all: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (length, kind) = (usize::from(u16_at(all, 0)?), u16_at(all, 2)?);
        let value = all.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        all = all.get(aligned(length)..)?;
    }
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut out = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        out.extend(kind.to_ne_bytes());
        out.extend([0; 10]);
        out.extend(body);
        out
    }

    fn heard(messages: &[u8]) -> io::Result<(bool, Vec<Socket>)> {
        let mut all = Vec::new();
        let done = read(messages, &mut |socket| {
            all.push(socket);
            Ok(())
        })?;
        Ok((done, all))
    }

    #[test]
    fn answers_are_read_to_their_end() {
        let mut body = vec![0; ANSWER];
        (body[0], body[1]) = (libc::AF_INET6 as u8, TCP_LISTEN as u8);
        body[4..6].copy_from_slice(&8080_u16.to_be_bytes());
        body[64..68].copy_from_slice(&1001_u32.to_ne_bytes());
        body[68..72].copy_from_slice(&77_u32.to_ne_bytes());
        // Another attribute first, of an odd length.
        for (kind, value) in [(8_u16, 0_u8), (INET_DIAG_SKV6ONLY, 1)] {
            body.extend(5_u16.to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend([value, 0, 0, 0]);
        }
        let one = message(SOCK_DIAG_BY_FAMILY, &body);
        let at = "[::]:8080".parse().unwrap();
        let socket = Socket { at, listens: true, uid: 1001, inode: 77, ipv6_alone: true };
        assert_eq!(heard(&[one.clone(), one.clone()].concat()).unwrap(), (false, vec![socket; 2]));
        let done = message(libc::NLMSG_DONE as u16, &[0; 4]);
        assert_eq!(heard(&[one.clone(), done].concat()).unwrap(), (true, vec![socket]));
        let refused = message(libc::NLMSG_ERROR as u16, &(-libc::ENOENT).to_ne_bytes());
        assert_eq!(heard(&refused).unwrap_err().kind(), io::ErrorKind::NotFound);
        // Whatever is cut off, nothing is read beyond it.
        for length in 0..one.len() {
            assert!(heard(&one[..length]).is_err() || length < 4, "{length}");
        }
    }
}
