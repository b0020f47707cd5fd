//! The kernel's list of sockets that listen: by netlink, or by `/proc/net` where the kernel has no `tcp_diag`.

mod diag;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// State of a socket that listens, as the list writes it.
const LISTENS: &str = "0A";

/// A socket that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub at: SocketAddr,
    pub uid: u32,
    pub inode: u64,
    /// It takes no IPv4, as all that are on one IPv6 address. `/proc/net` does not say so; there it is never set.
    pub ipv6_alone: bool,
}

impl Listener {
    /// Whether connections to this address may come to it. One on all IPv6 addresses gets those to IPv4 addresses
    /// too, unless it refuses them.
    pub fn receives(&self, address: IpAddr) -> bool {
        match (self.at.ip(), address) {
            (IpAddr::V6(own), wanted) if own.is_unspecified() => {
                wanted.is_ipv6() || !self.ipv6_alone
            }
            (IpAddr::V6(own), IpAddr::V4(wanted)) => own.to_ipv4_mapped() == Some(wanted),
            (own, wanted) => own == wanted || (own.is_unspecified() && wanted.is_ipv4()),
        }
    }
}

/// Those on this port, of this network namespace, that are to be kept.
pub fn on_port(
    port: u16,
    keep: impl Fn(&Listener) -> bool,
    within: Duration,
) -> io::Result<Vec<Listener>> {
    let mut list = List { port, keep, until: Instant::now() + within, found: Vec::new() };
    match diag::on_port(port, list.until, |listener| list.take(listener)) {
        Err(error) if Instant::now() < list.until => {
            tracing::debug!(%error, "no list of sockets by netlink");
            list.found.clear();
            list.read_files()?;
        }
        told => told?,
    }
    Ok(list.found)
}

struct List<K> {
    port: u16,
    keep: K,
    until: Instant,
    found: Vec<Listener>,
}

impl<K: Fn(&Listener) -> bool> List<K> {
    fn read_files(&mut self) -> io::Result<()> {
        self.read(File::open("/proc/net/tcp")?)?;
        match File::open("/proc/net/tcp6") {
            Ok(file) => self.read(file),
            // A kernel without IPv6.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The kernel lists sockets that listen before all others, so connections need not be read.
    fn read(&mut self, file: impl io::Read) -> io::Result<()> {
        for line in BufReader::with_capacity(64 << 10, file).lines().skip(1) {
            match parse(&line?) {
                Some(Some(listener)) => self.take(listener)?,
                Some(None) => return Ok(()),
                None => {}
            }
        }
        Ok(())
    }

    fn take(&mut self, listener: Listener) -> io::Result<()> {
        if listener.at.port() == self.port && (self.keep)(&listener) {
            self.found.push(listener);
        }
        if Instant::now() < self.until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

/// None: not a line of the list. Inside, none: a socket that does not listen.
fn parse(line: &str) -> Option<Option<Listener>> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, _, state, _, _, _, uid, _, inode, ..] = fields[..] else { return None };
    if state != LISTENS {
        return Some(None);
    }
    let (uid, inode) = (uid.parse().ok()?, inode.parse().ok()?);
    Some(Some(Listener { at: address(local)?, uid, inode, ipv6_alone: false }))
}

/// `0100007F:1F90`: an address in words of the machine's own order, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |n: usize| {
        let digits = address.get(8 * n..8 * n + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for n in 0..4 {
                bytes[4 * n..4 * n + 4].copy_from_slice(&word(n)?);
            }
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_listens_is_listed_and_connections_are_not() {
        for any in ["127.0.0.1:0", "127.3.2.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else { continue };
            let at = listener.local_addr().unwrap();
            let client = TcpStream::connect(at).unwrap();
            let long = Duration::from_secs(60);
            let found = on_port(at.port(), |l| l.at == at, long).unwrap();
            // SAFETY: no preconditions.
            let me = unsafe { libc::geteuid() };
            assert_eq!(found.len(), 1, "{any}: {found:?}");
            assert_eq!(found[0].uid, me);
            let near = client.local_addr().unwrap();
            assert_eq!(on_port(near.port(), |l| l.at == near, long).unwrap(), []);
            // By the other way it is the same, but for what that does not say.
            let until = Instant::now() + long;
            let keep = |l: &Listener| l.at == at;
            let mut list = List { port: at.port(), keep, until, found: Vec::new() };
            list.read_files().unwrap();
            assert_eq!(list.found, [Listener { ipv6_alone: false, ..found[0] }]);
        }
    }

    #[test]
    fn what_is_for_ipv6_alone_is_told_from_what_is_not() {
        use nix::sys::socket::{self, sockopt::Ipv6V6Only, *};
        for alone in [false, true] {
            let any: SockaddrIn6 = "[::]:0".parse::<std::net::SocketAddrV6>().unwrap().into();
            let flags = SockFlag::SOCK_CLOEXEC;
            let Ok(own) =
                socket::socket(AddressFamily::Inet6, SockType::Stream, flags, SockProtocol::Tcp)
            else {
                return; // A kernel without IPv6.
            };
            setsockopt(&own, Ipv6V6Only, &alone).unwrap();
            // A port that others have for IPv4 would be refused, if it is for both.
            bind(own.as_raw_fd(), &any).unwrap();
            listen(&own, Backlog::new(1).unwrap()).unwrap();
            let port = TcpListener::from(own.try_clone().unwrap()).local_addr().unwrap().port();
            let until = Instant::now() + Duration::from_secs(60);
            let mut told = Vec::new();
            let take = |listener: Listener| {
                told.extend(Some(listener).filter(|l| l.at.is_ipv6()));
                Ok(())
            };
            if diag::on_port(port, until, take).is_err() {
                return; // A kernel that does not say.
            }
            assert_eq!(told.iter().map(|l| l.ipv6_alone).collect::<Vec<_>>(), [alone]);
        }
    }

    #[test]
    fn reading_ends_where_connections_begin() {
        let head = "  sl  local_address rem_address st tx rx tr tm retrnsmt uid timeout inode\n";
        let listens = "0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 1001 0 77 1 0 100 0 0 10 0\n";
        let connected = "1: 0100007F:1F91 0100007F:0001 01 0:0 00:0 0 0 0 78 1 0 20 4 0 10 -1\n";
        let until = Instant::now() + Duration::from_secs(60);
        let mut list = List { port: 8080, keep: |_: &Listener| true, until, found: Vec::new() };
        list.read([head, listens, connected, listens].concat().as_bytes()).unwrap();
        if cfg!(target_endian = "little") {
            let at = "127.0.0.1:8080".parse().unwrap();
            assert_eq!(list.found, [Listener { at, uid: 1001, inode: 77, ipv6_alone: false }]);
        }
        list.until = Instant::now();
        let late = list.read([head, listens].concat().as_bytes()).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut, "a list may be of any length");
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn sockets_get_what_is_sent_to_their_address() {
        let on =
            |at: &str| Listener { at: at.parse().unwrap(), uid: 0, inode: 1, ipv6_alone: false };
        let gets = |own: &str, to: &str| on(own).receives(to.parse().unwrap());
        assert!(gets("10.0.0.1:80", "10.0.0.1") && !gets("10.0.0.1:80", "10.0.0.2"));
        assert!(gets("0.0.0.0:80", "10.0.0.1") && !gets("0.0.0.0:80", "fd00::1"));
        assert!(gets("[::]:80", "10.0.0.1") && gets("[::]:80", "fd00::1"));
        let alone = Listener { ipv6_alone: true, ..on("[::]:80") };
        assert!(alone.receives("fd00::1".parse().unwrap()));
        assert!(!alone.receives("10.0.0.1".parse().unwrap()));
        assert!(gets("[fd00::1]:80", "fd00::1") && !gets("[fd00::2]:80", "fd00::1"));
        assert!(gets("[::ffff:10.0.0.1]:80", "10.0.0.1"));
        assert!(!gets("127.0.0.1:80", "10.0.0.1") && !gets("[::1]:80", "10.0.0.1"));
    }
}
