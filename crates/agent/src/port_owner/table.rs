//! The kernel's list of sockets on a port: by netlink, or by `/proc/net` where the kernel has no `tcp_diag`.

mod diag;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

/// State of a socket that listens, as the list writes it.
const LISTENS: &str = "0A";

/// A socket that listens, is connected or on its way to be, or is bound and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its own end.
    pub at: SocketAddr,
    pub listens: bool,
    pub uid: u32,
    /// Zero: no process has it, because it was closed, or nobody has accepted it yet.
    pub inode: u64,
    /// It takes no IPv4, as all that are on one IPv6 address. `/proc/net` does not say so; there it is never set.
    pub ipv6_alone: bool,
}

impl Socket {
    pub fn is_held(&self) -> bool {
        self.inode != 0
    }

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All that a process may have. The list may be longer.
    Owned,
    /// With what is left of connections that are over.
    All,
}

/// Those on this port, of this network namespace, that are to be kept.
pub fn on_port(
    port: u16,
    which: Which,
    keep: impl Fn(&Socket) -> bool,
    within: Duration,
) -> io::Result<Vec<Socket>> {
    let mut list = List { port, keep, until: Instant::now() + within, found: Vec::new() };
    match diag::on_port(port, which, list.until, |socket| list.take(socket)) {
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
    found: Vec<Socket>,
}

impl<K: Fn(&Socket) -> bool> List<K> {
    fn read_files(&mut self) -> io::Result<()> {
        self.read(File::open("/proc/net/tcp")?)?;
        match File::open("/proc/net/tcp6") {
            Ok(file) => self.read(file),
            // A kernel without IPv6.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn read(&mut self, file: impl io::Read) -> io::Result<()> {
        for line in BufReader::with_capacity(64 << 10, file).lines().skip(1) {
            match parse(&line?, self.port) {
                Some(socket) => self.take(socket)?,
                None => self.in_time()?,
            }
        }
        Ok(())
    }

    fn take(&mut self, socket: Socket) -> io::Result<()> {
        if socket.at.port() == self.port && (self.keep)(&socket) {
            self.found.push(socket);
        }
        self.in_time()
    }

    fn in_time(&self) -> io::Result<()> {
        if Instant::now() < self.until { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

/// None: on another port, or not a line of the list.
fn parse(line: &str, port: u16) -> Option<Socket> {
    let mut fields = line.split_ascii_whitespace();
    let at = address(fields.nth(1)?).filter(|at| at.port() == port)?;
    let listens = fields.nth(1)? == LISTENS;
    let (uid, inode) = (fields.nth(3)?.parse().ok()?, fields.nth(1)?.parse().ok()?);
    Some(Socket { at, listens, uid, inode, ipv6_alone: false })
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
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use super::super::probe::bound_alone;
    use super::*;

    #[test]
    fn what_listens_is_listed_and_so_are_connections() {
        for any in ["127.0.0.1:0", "127.3.2.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else { continue };
            let at = listener.local_addr().unwrap();
            let client = TcpStream::connect(at).unwrap();
            let long = Duration::from_secs(60);
            let near = client.local_addr().unwrap();
            let listed = |at: SocketAddr, by_files: bool| {
                let keep = |s: &Socket| s.at == at;
                if !by_files {
                    return on_port(at.port(), Which::Owned, keep, long).unwrap();
                }
                let until = Instant::now() + long;
                let mut list = List { port: at.port(), keep, until, found: Vec::new() };
                list.read_files().unwrap();
                list.found
            };
            for by_files in [false, true] {
                let mut found = listed(at, by_files);
                found.sort_by_key(|s| !s.listens);
                // The other is the end of a connection that nobody has accepted.
                let told: Vec<_> = found.iter().map(|s| (s.listens, s.is_held())).collect();
                assert_eq!(told, [(true, true), (false, false)], "{any}: {found:?}");
                assert_eq!((found[0].uid, found[0].inode), mine(&listener), "{any}");
                let found = listed(near, by_files);
                let [client_end] = found[..] else { panic!("{any}: {found:?}") };
                assert!(!client_end.listens, "{any}");
                assert_eq!((client_end.uid, client_end.inode), mine(&client), "{any}");
            }
            let accepted = listener.accept().unwrap();
            let found = listed(at, false);
            assert!(found.iter().any(|s| (s.uid, s.inode) == mine(&accepted.0)), "{found:?}");
        }
    }

    fn mine(socket: &impl AsRawFd) -> (u32, u64) {
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        // SAFETY: no preconditions.
        let me = unsafe { libc::geteuid() };
        (me, std::fs::metadata(path).unwrap().ino())
    }

    /// Those that would be seen by older kernels as well, once they connect.
    #[test]
    fn what_is_bound_and_no_more_is_listed_where_the_kernel_can() {
        let (socket, port) = bound_alone("127.0.0.1:0".parse().unwrap()).unwrap();
        let (_other, _) = bound_alone("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut told = Vec::new();
        let until = Instant::now() + Duration::from_secs(60);
        let take = |socket| {
            told.push(socket);
            Ok(())
        };
        if diag::on_port(port, Which::Owned, until, take).is_err() || told.is_empty() {
            return; // A kernel that does not say.
        }
        let [one] = told[..] else { panic!("no other port is listed: {told:?}") };
        assert_eq!(((one.uid, one.inode), one.listens), (mine(&socket), false));
        assert_eq!(one.at, SocketAddr::new("127.0.0.1".parse().unwrap(), port));
    }

    #[test]
    fn what_is_left_of_a_connection_is_listed_only_where_it_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = TcpStream::connect(at).unwrap();
        drop(listener.accept().unwrap());
        let mut ended = client;
        assert_eq!(ended.read(&mut [0]).unwrap(), 0);
        drop((ended, listener));
        let listed = |which| on_port(at.port(), which, |s| s.at == at, Duration::from_secs(60));
        let rest = loop {
            // The two ends part in the kernel, a moment after they are closed.
            match listed(Which::All).unwrap()[..] {
                [one] if !one.listens && listed(Which::Owned).unwrap().is_empty() => break one,
                _ => std::thread::yield_now(),
            }
        };
        assert!(!rest.is_held());
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
            let take = |socket: Socket| {
                told.extend(Some(socket).filter(|s| s.at.is_ipv6()));
                Ok(())
            };
            if diag::on_port(port, Which::Owned, until, take).is_err() {
                return; // A kernel that does not say.
            }
            assert_eq!(told.iter().map(|l| l.ipv6_alone).collect::<Vec<_>>(), [alone]);
        }
    }

    #[test]
    fn files_are_read_to_their_end_or_until_it_is_late() {
        let head = "  sl  local_address rem_address st tx rx tr tm retrnsmt uid timeout inode\n";
        let listens = "0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 1001 0 77 1 0 100 0 0 10 0\n";
        let connected = "1: 0100007F:1F90 0100007F:0001 02 0:0 00:0 0 666 0 78 1 0 20 4 0 10 -1\n";
        let elsewhere = "1: 0100007F:1F91 0100007F:0001 01 0:0 00:0 0 0 0 79 1 0 20 4 0 10 -1\n";
        let until = Instant::now() + Duration::from_secs(60);
        let mut list = List { port: 8080, keep: |_: &Socket| true, until, found: Vec::new() };
        list.read([head, listens, elsewhere, connected].concat().as_bytes()).unwrap();
        if cfg!(target_endian = "little") {
            let at = "127.0.0.1:8080".parse().unwrap();
            let server = Socket { at, listens: true, uid: 1001, inode: 77, ipv6_alone: false };
            let client = Socket { listens: false, uid: 666, inode: 78, ..server };
            assert_eq!(list.found, [server, client]);
        }
        list.until = Instant::now();
        for line in [listens, elsewhere] {
            let late = list.read([head, line].concat().as_bytes()).unwrap_err();
            assert_eq!(late.kind(), io::ErrorKind::TimedOut, "a list may be of any length");
        }
        assert_eq!(parse("nonsense", 8080), None);
    }

    #[test]
    fn sockets_get_what_is_sent_to_their_address() {
        let on = |at: &str| Socket {
            at: at.parse().unwrap(),
            listens: true,
            uid: 0,
            inode: 1,
            ipv6_alone: false,
        };
        let gets = |own: &str, to: &str| on(own).receives(to.parse().unwrap());
        assert!(gets("10.0.0.1:80", "10.0.0.1") && !gets("10.0.0.1:80", "10.0.0.2"));
        assert!(gets("0.0.0.0:80", "10.0.0.1") && !gets("0.0.0.0:80", "fd00::1"));
        assert!(gets("[::]:80", "10.0.0.1") && gets("[::]:80", "fd00::1"));
        let alone = Socket { ipv6_alone: true, ..on("[::]:80") };
        assert!(alone.receives("fd00::1".parse().unwrap()));
        assert!(!alone.receives("10.0.0.1".parse().unwrap()));
        assert!(gets("[fd00::1]:80", "fd00::1") && !gets("[fd00::2]:80", "fd00::1"));
        assert!(gets("[::ffff:10.0.0.1]:80", "10.0.0.1"));
        assert!(!gets("127.0.0.1:80", "10.0.0.1") && !gets("[::1]:80", "10.0.0.1"));
    }
}
