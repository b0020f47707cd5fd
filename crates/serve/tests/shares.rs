//! Who keeps a connection when there are as many as a router takes.

mod common;

use std::net::IpAddr;
use std::time::Duration;

use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tutti_model::KeyLimits;
use tutti_serve::RouterConfig;
use tutti_testkit::in_a_crowd;

const REQUEST: &[u8] = b"GET /e/m/x HTTP/1.1\r\nHost: r\r\n\r\n";

fn few(connections: usize) -> RouterConfig {
    let mut config = config();
    config.limits.connections = connections;
    config.timeouts.first = LONG;
    config
}

async fn silent(router: &Running, from: IpAddr, n: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..n {
        streams.push(router.connect_from(from).await);
    }
    streams
}

async fn ask_on(stream: &mut TcpStream) -> String {
    stream.write_all(REQUEST).await.unwrap();
    String::from_utf8_lossy(&read_until(stream, b"ok").await).into_owned()
}

#[test]
fn who_holds_most_and_says_nothing_goes_first() {
    in_a_crowd(async |crowd| {
        // Fifteen places, of which an address has eleven.
        let router = start_with(few(16), table(vec![endpoint("m", &[says("ok").await])]));
        let [mad, other, third] = [1, 2, 3].map(|n| crowd.local(n));
        let mut quiet = router.connect_from(other).await;
        assert!(ask_on(&mut quiet).await.starts_with("HTTP/1.1 200 OK"));
        let mut many = silent(&router, mad, 40).await;
        for n in 0..20 {
            let mut stream = router.connect_from(if n % 2 == 0 { third } else { mad }).await;
            assert!(ask_on(&mut stream).await.starts_with("HTTP/1.1 200 OK"), "request {n}");
        }
        for stream in &mut many[..29] {
            assert_eq!(read_to_end(stream).await, b"", "the oldest go");
        }
        let answer = ask_on(&mut quiet).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "who holds little stays: {answer}");
    });
}

#[test]
fn an_answer_under_way_is_not_cut_while_others_say_nothing() {
    in_a_crowd(async |crowd| {
        let (go_on, wait) = tokio::sync::watch::channel(false);
        let address = replica(move |mut stream, _| {
            let mut wait = wait.clone();
            async move {
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nbe";
                stream.write_all(head).await.unwrap();
                wait.wait_for(|go| *go).await.unwrap();
                let _ = stream.write_all(b"gin.").await;
            }
        })
        .await;
        let router = start_with(few(8), table(vec![endpoint("m", &[address])]));
        let busy = crowd.local(1);
        // The busiest address of all, with answers under way; what is silent goes before them.
        let mut asked = silent(&router, busy, 4).await;
        for stream in &mut asked {
            stream.write_all(REQUEST).await.unwrap();
            read_until(stream, b"be").await;
        }
        let _mad = silent(&router, crowd.local(2), 60).await;
        go_on.send(true).unwrap();
        for stream in &mut asked {
            let mut rest = [0; 4];
            soon(stream.read_exact(&mut rest)).await.unwrap();
            assert_eq!(&rest, b"gin.");
        }
    });
}

/// A replica that answers only `/x`.
async fn patient() -> std::net::SocketAddr {
    replica(|mut stream, request| async move {
        if request.starts_with(b"GET /x ") {
            let _ = stream.write_all(ok("ok").as_bytes()).await;
        } else {
            std::future::pending::<()>().await;
        }
    })
    .await
}

async fn hang_on(mut stream: TcpStream) -> TcpStream {
    stream.write_all(b"GET /e/m/hang HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    stream
}

#[test]
fn whoever_is_being_served_makes_room_for_addresses_that_have_less() {
    in_a_crowd(async |crowd| {
        let address = patient().await;
        // Seven rooms, of which an address has five.
        let router = start_with(few(8), table(vec![endpoint("m", &[address])]));
        let hang = async |n| hang_on(router.connect_from(crowd.local(n)).await).await;
        let mut greedy = Vec::new();
        for n in [1, 1, 1, 1, 1, 2, 2] {
            greedy.push(hang(n).await);
            router.until("m", |m| m.in_flight == greedy.len() as u32).await;
        }
        let mut small = router.connect_from(crowd.local(9)).await;
        assert!(ask_on(&mut small).await.starts_with("HTTP/1.1 200 OK"));
        assert!(
            soon(greedy[0].read(&mut [0])).await.is_err(),
            "cut, so that it looks like no answer"
        );
        drop(small);
        router.until("m", |m| m.in_flight == 6).await;
        greedy.push(hang(1).await);
        router.until("m", |m| m.in_flight == 7).await;
        // Its share is used up, by what is being served.
        let mut refused = router.connect_from(crowd.local(1)).await;
        let said = String::from_utf8_lossy(&read_to_end(&mut refused).await).into_owned();
        assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("router_busy"), "{said}");
    });
}

#[test]
fn requests_without_a_key_leave_room_for_keys_and_for_other_addresses() {
    in_a_crowd(async |crowd| {
        // Eight requests of whoever comes, four with a key, four without.
        let mut settings = few(64);
        settings.limits.requests = 16;
        let mut routes = table(vec![endpoint("m", &[patient().await])]);
        routes.keys.push(key(KeyLimits::default()));
        let router = start_with(settings, routes);
        let [greedy, other] = [1, 2].map(|n| crowd.local(n));
        let mut all = Vec::new();
        for n in 1..=12 {
            all.push(hang_on(router.connect_from(greedy).await).await);
            router.until("m", |m| m.in_flight == n).await;
        }
        let mut refused = hang_on(router.connect_from(greedy).await).await;
        let said = String::from_utf8_lossy(&read_until(&mut refused, b"}}").await).into_owned();
        assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
        assert!(said.contains("no address without a key has more of them than yours"), "{said}");
        let with_key = String::from_utf8_lossy(REQUEST).replacen(
            "\r\n",
            &format!("\r\nAuthorization: Bearer {KEY}\r\n"),
            1,
        );
        for _ in 0..8 {
            let mut stream = router.connect_from(greedy).await;
            stream.write_all(with_key.as_bytes()).await.unwrap();
            let said = read_until(&mut stream, b"ok").await;
            assert!(said.starts_with(b"HTTP/1.1 200 OK"), "{}", said.escape_ascii());
        }
        router.until("m", |m| m.in_flight == 12).await;
        let mut small = router.connect_from(other).await;
        assert!(ask_on(&mut small).await.starts_with("HTTP/1.1 200 OK"));
        assert!(soon(all[8].read(&mut [0])).await.is_err(), "the oldest of those beyond half goes");
        router.until("m", |m| m.in_flight == 11).await;
        assert!(ask_on(&mut small).await.starts_with("HTTP/1.1 200 OK"), "its room is free again");
        router.until("m", |m| m.in_flight == 11).await;
    });
}

#[test]
fn who_fills_the_queue_without_a_key_makes_place_for_other_addresses() {
    in_a_crowd(async |crowd| {
        let mut narrow = endpoint("m", &[patient().await]);
        (narrow.max_in_flight, narrow.queue) = (Some(1), 4);
        let router = start_with(few(64), table(vec![narrow]));
        let [greedy, other] = [1, 2].map(|n| crowd.local(n));
        let mut all = Vec::new();
        for n in 0..5 {
            all.push(hang_on(router.connect_from(greedy).await).await);
            router.until("m", |m| (m.in_flight, m.queued) == (1, n)).await;
        }
        let mut small = router.connect_from(other).await;
        small.write_all(REQUEST).await.unwrap();
        let said = read_until(&mut all[4], b"}}").await;
        assert!(said.starts_with(b"HTTP/1.1 429 "), "the newest goes: {}", said.escape_ascii());
        router.until("m", |m| (m.in_flight, m.queued) == (1, 4)).await;
        // The one that is being served, and the one that came before.
        all.drain(..2);
        let said = read_until(&mut small, b"ok").await;
        assert!(said.starts_with(b"HTTP/1.1 200 OK"), "{}", said.escape_ascii());
    });
}

/// Until somebody tells it that there are too many, and then again.
async fn send_half_of_much(from: IpAddr, to: std::net::SocketAddr, told: std::sync::Arc<Notify>) {
    let mut half = b"POST /v1/x HTTP/1.1\r\nHost: r\r\nContent-Length: 1000000\r\n\r\n".to_vec();
    half.extend_from_slice(&[b'x'; 100_000]);
    loop {
        let mut stream = connect_from(from, to).await.unwrap();
        let _ = stream.write_all(&half).await;
        if read_to_end(&mut stream).await.starts_with(b"HTTP/1.1 503 ") {
            told.notify_one();
        }
    }
}

#[test]
fn large_bodies_that_stall_make_room_for_those_of_others() {
    in_a_crowd(async |crowd| {
        let mut settings = few(200);
        settings.limits.peek_total = 4 << 20;
        let mut routes = table(vec![endpoint("m", &[says("ok").await]), endpoint("n", &[])]);
        routes.keys.push(key(KeyLimits::default()));
        let router = start_with(settings, routes);
        let told = std::sync::Arc::new(Notify::new());
        let mut mad = tokio::task::JoinSet::new();
        for _ in 0..48 {
            mad.spawn(send_half_of_much(crowd.local(1), router.handle.addr, told.clone()));
        }
        soon(told.notified()).await;
        let body = format!(r#"{{"model":"m","prompt":"{}"}}"#, "x".repeat(100_000));
        let without = post("/v1/x", &body);
        let line = format!("\r\nAuthorization: Bearer {KEY}\r\n");
        let with_key = without.replacen("\r\n", &line, 1);
        for n in 0..20 {
            for request in [&without, &with_key] {
                let mut stream = router.connect_from(crowd.local(2)).await;
                stream.write_all(request.as_bytes()).await.unwrap();
                let said = String::from_utf8_lossy(&read_until(&mut stream, b"\r\n\r\n").await)
                    .into_owned();
                assert!(said.starts_with("HTTP/1.1 200 OK"), "request {n}: {said}");
            }
        }
    });
}

/// A provider's customer has 2^64 addresses, which are one here.
#[test]
fn addresses_of_one_network_share_a_share() {
    in_a_crowd(async |crowd| {
        let mut settings = few(16);
        settings.listen = (crowd.stranger_v6(0, 1), 0).into();
        let mut open = endpoint("m", &[says("ok").await]);
        open.access = tutti_model::Access::Open;
        let router = start_with(settings, table(vec![open]));
        let mut quiet = router.connect_from(crowd.stranger_v6(1, 1)).await;
        ask_on(&mut quiet).await;
        let mut many = Vec::new();
        for n in 0..40 {
            many.push(router.connect_from(crowd.stranger_v6(2, n)).await);
        }
        for stream in &mut many[..29] {
            assert_eq!(read_to_end(stream).await, b"", "the oldest of the network go");
        }
        assert!(ask_on(&mut quiet).await.starts_with("HTTP/1.1 200 OK"));
    });
}

#[tokio::test]
async fn who_has_asked_before_is_waited_for_longer() {
    let mut settings = config();
    settings.timeouts.first = Duration::from_millis(80);
    let router = start_with(settings, table(vec![endpoint("m", &[says("ok").await])]));
    let mut proven = router.connect().await;
    ask_on(&mut proven).await;
    let mut mute = router.connect().await;
    assert_eq!(read_to_end(&mut mute).await, b"", "nothing said");
    assert!(ask_on(&mut proven).await.starts_with("HTTP/1.1 200 OK"), "it has time to think");
}
