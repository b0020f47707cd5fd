//! Ten thousand connections from many addresses that want nothing but to be in the way of others, against a
//! router as it is installed. Somebody who means well is measured beside them.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tutti_model::{Access, EndpointRoute, KeyLimits};
use tutti_testkit::{Crowd, in_a_crowd};

use crate::common::{KEY, connect_from, endpoint, key, says, table};
use crate::frames::{ACK, END_HEADERS, HEADERS, PING, SETTINGS, begin, frame, next, post};
use crate::tally::{print, status};
use crate::tls;
use crate::victim::{Kind, PATIENCE, Victim, raise_file_limit};

const CROWD: usize = 10_000;
/// Addresses that they come from.
const ADDRESSES: u16 = 40;
/// That connect at the same time.
const AT_ONCE: usize = 100;
/// Requests that are measured, in each case.
const REQUESTS: usize = 20;
/// A busy machine may be slow by itself: then so many times as slow as without the crowd.
const SLOWER_MAX: u32 = 20;
const SOON: Duration = Duration::from_secs(1);

const REQUEST: &[u8] = b"GET /e/m/x HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n";

/// What each connection says before it falls silent.
fn kinds() -> Vec<(&'static str, Vec<u8>)> {
    let body = "POST /v1/x HTTP/1.1\r\nHost: r\r\nContent-Length: 60000\r\n\r\n{";
    let mut preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    preface.extend_from_slice(&frame(SETTINGS, 0, 0, &[]));
    vec![
        ("nothing", Vec::new()),
        ("half a head", b"GET /e/m/x HTTP/1.1\r\nHost: r\r\nX-Slow: ".to_vec()),
        ("half a body", body.into()),
        ("HTTP/2 without a request", preface),
    ]
}

/// `m` is for everybody, and so is another: a body has to be read to know for whom it is.
async fn routes() -> tutti_model::RouteTable {
    let open = |name| async move {
        EndpointRoute { access: Access::Open, ..endpoint(name, &[says("ok").await]) }
    };
    let mut table = table(vec![open("m").await, open("n").await]);
    table.keys.push(key(KeyLimits::default()));
    table
}

async fn victim(crowd: &Crowd, tls: Option<&Path>, files: Option<u32>) -> Victim {
    let kind = Kind {
        silence: None,
        files,
        listen: (crowd.server(), 0).into(),
        attackers: (0..ADDRESSES).map(|n| crowd.stranger(n)).collect(),
        tls: tls.map(Path::to_owned),
    };
    Victim::of(kind, &routes().await).await
}

/// All of them are there at the same time, as far as the router lets them.
async fn gather_crowd(victim: &Arc<Victim>, says: &[u8]) -> Vec<TcpStream> {
    let says: Arc<[u8]> = says.into();
    let (mut coming, mut there) = (JoinSet::new(), Vec::with_capacity(CROWD));
    for n in 0..CROWD {
        if n >= AT_ONCE {
            there.push(coming.join_next().await.unwrap().unwrap());
        }
        let (victim, says) = (victim.clone(), says.clone());
        coming.spawn(async move {
            let mut stream = victim.connect().await;
            // It may have lost its place already.
            let _ = stream.write_all(&says).await;
            stream
        });
    }
    there.extend(coming.join_all().await);
    assert_eq!(there.len(), CROWD);
    there
}

async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin) {
    ask_this(stream, REQUEST).await;
}

async fn ask_this(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &[u8]) {
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // Without the client's word some end TLS with an error.
    let _ = stream.read_to_end(&mut answer).await;
    assert_eq!(status(&answer), 200, "{}", answer.escape_ascii());
}

/// One request on a connection of its own.
async fn good_request(from: IpAddr, to: SocketAddr, tls: Option<&Arc<rustls::ClientConfig>>) {
    let stream = connect_from(from, to).await.unwrap();
    match tls {
        None => ask(stream).await,
        Some(config) => {
            let connector = tokio_rustls::TlsConnector::from(config.clone());
            let name = ServerName::try_from("localhost").unwrap();
            ask(connector.connect(name, stream).await.unwrap()).await;
        }
    }
}

/// The slowest of some, one after another from these addresses.
async fn slowest(
    from: &[IpAddr],
    to: SocketAddr,
    tls: Option<&Arc<rustls::ClientConfig>>,
) -> Duration {
    let mut slowest = Duration::ZERO;
    for n in 0..REQUESTS {
        let began = Instant::now();
        let asking = good_request(from[n % from.len()], to, tls);
        tokio::time::timeout(PATIENCE, asking).await.expect("it is served");
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

async fn against(crowd: &Crowd, what: &str, says: &[u8], tls: bool) {
    let folder = tempfile::tempdir().unwrap();
    let client = tls.then(|| tls::make(folder.path()));
    let victim = Arc::new(victim(crowd, client.as_ref().map(|_| folder.path()), None).await);
    // From an address where nobody else is, and from one of the attackers'.
    let from = [crowd.stranger(ADDRESSES), crowd.stranger(0)];
    let alone = slowest(&from, victim.addr, client.as_ref()).await;
    let there = gather_crowd(&victim, says).await;
    let beside = slowest(&from, victim.addr, client.as_ref()).await;
    drop(there);
    let (alone_ms, beside_ms) = (alone.as_millis(), beside.as_millis());
    print(&[format!("| {CROWD} × {what} | slowest alone {alone_ms} ms | beside {beside_ms} ms |")]);
    let bound = SOON.max(alone * SLOWER_MAX);
    assert!(beside <= bound, "{what}: {beside:?} beside {CROWD} of them, {alone:?} alone");
}

#[test]
fn whoever_means_well_is_served_beside_ten_thousand_who_do_not() {
    raise_file_limit(CROWD as u64 + 1000);
    in_a_crowd(async |crowd| {
        for (what, says) in kinds() {
            against(crowd, what, &says, false).await;
        }
    });
}

#[test]
fn half_a_tls_handshake_is_in_nobodys_way() {
    raise_file_limit(CROWD as u64 + 1000);
    in_a_crowd(async |crowd| {
        // The beginning of a ClientHello of 512 bytes.
        let hello = [0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
        against(crowd, "half a TLS handshake", &hello, true).await;
    });
}

/// Connections of HTTP/2 with many streams each, none of which says all of its request.
const STALLING: usize = 80;

/// Streams that stall: all of them together are more requests than the router takes.
struct Stalled {
    what: &'static str,
    path: &'static str,
    length: usize,
    /// On each connection.
    streams: u32,
    /// Open files of the router, where fewer make the test short.
    files: Option<u32>,
}

/// The one is read before a replica is chosen, the other goes there as it comes.
const STALLED: [Stalled; 2] = [
    Stalled { what: "half a body", path: "/v1/x", length: 60_000, streams: 256, files: None },
    Stalled {
        what: "half a body that is passed on",
        path: "/e/m/x",
        length: 100_000,
        streams: 32,
        files: Some(4096),
    },
];

/// What is still open afterwards, if the router did not close it.
async fn stall(victim: Arc<Victim>, how: &Stalled) -> TcpStream {
    let mut stream = victim.connect().await;
    begin(&mut stream, &[]).await;
    let mut bytes = Vec::new();
    let head = post(how.path, how.length);
    for n in 0..how.streams {
        bytes.extend_from_slice(&frame(HEADERS, END_HEADERS, 2 * n + 1, &head));
    }
    bytes.extend_from_slice(&frame(PING, 0, 0, b"the last"));
    let _ = stream.write_all(&bytes).await;
    // When that is answered, all before it was seen.
    while let Some(came) = next(&mut stream).await {
        if came.kind == PING && came.flags == ACK {
            break;
        }
    }
    stream
}

/// The slowest request of two, with and without a key, who take turns.
async fn slowest_of_both(crowd: &Crowd, to: SocketAddr) -> Duration {
    let line = format!("Connection: close\r\nAuthorization: Bearer {KEY}\r\n");
    let with_key = String::from_utf8_lossy(REQUEST).replacen("Connection: close\r\n", &line, 1);
    let both = [(ADDRESSES, with_key.as_bytes()), (ADDRESSES + 1, REQUEST)];
    let mut slowest = Duration::ZERO;
    for n in 0..2 * REQUESTS {
        let (address, request) = both[n % 2];
        let began = Instant::now();
        let asking = async {
            ask_this(connect_from(crowd.stranger(address), to).await.unwrap(), request).await;
        };
        tokio::time::timeout(PATIENCE, asking).await.expect("it is served");
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

#[test]
fn streams_that_stall_are_in_nobodys_way() {
    raise_file_limit(CROWD as u64 + 1000);
    in_a_crowd(async |crowd| {
        for how in &STALLED {
            let victim = Arc::new(victim(crowd, None, how.files).await);
            let alone = slowest_of_both(crowd, victim.addr).await;
            let mut coming = JoinSet::new();
            for _ in 0..STALLING {
                coming.spawn(stall(victim.clone(), how));
            }
            let there = coming.join_all().await;
            let beside = slowest_of_both(crowd, victim.addr).await;
            drop(there);
            let (what, streams) = (how.what, STALLING * how.streams as usize);
            let (alone_ms, beside_ms) = (alone.as_millis(), beside.as_millis());
            print(&[format!(
                "| {streams} streams: {what} | slowest alone {alone_ms} ms | beside {beside_ms} ms |"
            )]);
            let bound = SOON.max(alone * SLOWER_MAX);
            assert!(beside <= bound, "{what}: {beside:?} beside {streams}, {alone:?} alone");
        }
    });
}
