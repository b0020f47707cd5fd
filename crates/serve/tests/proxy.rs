//! What goes through the router, and how.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};

#[tokio::test]
async fn bytes_and_headers_go_through_as_they_are() {
    let (seen, mut requests) = mpsc::unbounded_channel();
    let answer = "HTTP/1.1 207 Odd Thing\r\nX-CaSe: Kept\r\nx-case: Twice\r\nSet-Cookie: a=b\r\n\
        Content-Length: 4\r\n\r\n\x00\x01\r\n";
    let address = replica(move |mut stream, mut request| {
        let seen = seen.clone();
        async move {
            while !request.ends_with(b"\x7f\x00body") {
                stream.read_buf(&mut request).await.unwrap();
            }
            seen.send(request).unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    let body = "\x7f\x00body";
    let request = format!(
        "BREW /e/m/pot%2F?a=1&b HTTP/1.1\r\nHoSt: r\r\nX-OdD:  spaced out\r\nx-odd: 2\r\n\
         Authorization: Bearer sk-other\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
    assert_eq!(
        String::from_utf8(soon(requests.recv()).await.unwrap()).unwrap(),
        request.replacen("/e/m/", "/", 1).replacen("\r\n\r\n", "\r\nx-tutti-router: 1\r\n\r\n", 1)
    );
    let mut back = vec![0; answer.len()];
    soon(client.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, answer.as_bytes());
}

#[tokio::test]
async fn events_arrive_one_by_one() {
    let go_on = Arc::new(Notify::new());
    let gate = go_on.clone();
    let address = replica(move |mut stream, _| {
        let gate = gate.clone();
        async move {
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head).await.unwrap();
            for n in 0..3 {
                let event = format!("data: {{\"delta\":\"{n}\"}}\n\n");
                let chunk = format!("{:x}\r\n{event}\r\n", event.len());
                stream.write_all(chunk.as_bytes()).await.unwrap();
                gate.notified().await;
            }
            stream.write_all(b"0\r\n\r\n").await.unwrap();
        }
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    let body = r#"{"model":"m","stream":true}"#;
    client.write_all(post("/v1/chat/completions", body).as_bytes()).await.unwrap();
    for n in 0..3 {
        // The next one is only written after this one was read.
        read_until(&mut client, format!("{{\"delta\":\"{n}\"}}\n\n\r\n").as_bytes()).await;
        go_on.notify_one();
    }
    read_until(&mut client, b"0\r\n\r\n").await;
    let report = router.until("m", |m| m.traffic.requests == 1).await;
    assert_eq!(report.traffic.output_tokens, 3);
}

#[tokio::test]
async fn an_upgraded_connection_is_a_tunnel() {
    let address = replica(|mut stream, request| async move {
        let text = String::from_utf8_lossy(&request).into_owned();
        assert!(text.contains("Upgrade: websocket\r\n") && text.contains("Sec-WebSocket-Key: x"));
        let head =
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut bytes = [0; 64];
        while let Ok(n) = stream.read(&mut bytes).await {
            if n == 0 {
                return;
            }
            stream.write_all(&bytes[..n]).await.unwrap();
        }
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    let request = "GET /e/m/ws HTTP/1.1\r\nHost: r\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Key: x\r\n\r\nearly";
    client.write_all(request.as_bytes()).await.unwrap();
    let answer = read_until(&mut client, b"early").await;
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", answer.escape_ascii());
    for frame in [&b"\x81\x02hi"[..], b"\x00\xff\x00", b"more"] {
        client.write_all(frame).await.unwrap();
        let mut back = vec![0; frame.len()];
        soon(client.read_exact(&mut back)).await.unwrap();
        assert_eq!(back, frame);
    }
    client.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut client).await, b"");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let address = answers(ok).await;
    let router = before(address);
    let mut client = router.connect().await;
    let mut requests = String::new();
    for n in 0..5 {
        requests
            .push_str(&format!("POST /p{n} HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\nxy"));
    }
    client.write_all(requests.as_bytes()).await.unwrap();
    let all = read_until(&mut client, b"/p4").await;
    let text = String::from_utf8(all).unwrap();
    let at: Vec<_> = (0..5).map(|n| text.find(&format!("\r\n\r\n/p{n}")).unwrap()).collect();
    assert!(at.is_sorted(), "{text}");
}

#[tokio::test]
async fn a_client_that_waits_for_100_gets_it() {
    let address = says("done").await;
    let router = before(address);
    let mut client = router.connect().await;
    let head =
        "POST /v1/x HTTP/1.1\r\nHost: r\r\nExpect: 100-continue\r\nContent-Length: 13\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(read_until(&mut client, b"\r\n\r\n").await, b"HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(br#"{"model":"m"}"#).await.unwrap();
    let answer = read_until(&mut client, b"done").await;
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", answer.escape_ascii());
}

#[tokio::test]
async fn answers_without_a_body_leave_the_connection_usable() {
    let address = answers(|path| match path {
        "/head" => "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n".to_owned(),
        "/204" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        "/304" => "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n".to_owned(),
        "/hints" => format!("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{}", ok("ok")),
        _ => ok("end"),
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    let requests = "HEAD /head HTTP/1.1\r\nHost: r\r\n\r\nGET /204 HTTP/1.1\r\nHost: r\r\n\r\n\
        GET /304 HTTP/1.1\r\nHost: r\r\n\r\nGET /hints HTTP/1.1\r\nHost: r\r\n\r\nGET /end HTTP/1.1\r\nHost: r\r\n\r\n";
    client.write_all(requests.as_bytes()).await.unwrap();
    let all = String::from_utf8(read_until(&mut client, b"\r\n\r\nend").await).unwrap();
    assert_eq!(
        all,
        "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n\
         HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\
         HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nend"
    );
}

#[tokio::test]
async fn chunks_and_their_trailers_go_both_ways() {
    let (seen, mut requests) = mpsc::unbounded_channel();
    let address = replica(move |mut stream, mut request| {
        let seen = seen.clone();
        async move {
            while !request.ends_with(b"x-sum: 7\r\n\r\n") {
                stream.read_buf(&mut request).await.unwrap();
            }
            seen.send(String::from_utf8(request).unwrap()).unwrap();
            let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-t\r\n\r\n\
                1\r\na\r\n0\r\nx-t: 1\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    let request = "POST /e/m/x HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n\
        3;ext=1\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n";
    client.write_all(request.as_bytes()).await.unwrap();
    let got = soon(requests.recv()).await.unwrap();
    assert!(got.ends_with("\r\n\r\n3;ext=1\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n"), "{got}");
    let answer = read_until(&mut client, b"x-t: 1\r\n\r\n").await;
    assert!(answer.ends_with(b"1\r\na\r\n0\r\nx-t: 1\r\n\r\n"), "{}", answer.escape_ascii());
}

#[tokio::test]
async fn an_answer_that_ends_with_the_connection_ends_with_a_chunk() {
    let address = replica(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nold style").await.unwrap();
    })
    .await;
    let router = before(address);
    let answer = router.get("/x").await;
    assert!(answer.contains("Transfer-Encoding: chunked\r\n"), "{answer}");
    assert!(answer.ends_with("9\r\nold style\r\n0\r\n\r\n"), "{answer}");
    let mut client = router.connect().await;
    client.write_all(b"GET /x HTTP/1.0\r\n\r\n").await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut client).await).unwrap();
    assert!(answer.ends_with("\r\n\r\nold style"), "{answer}");
}

#[tokio::test]
async fn a_large_body_streams_through_little_memory() {
    const SIZE: usize = 24 << 20;
    let address = replica(|mut stream, request| async move {
        let head = request.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let (mut sum, mut seen) = (0u64, request.len() - head);
        request[head..].iter().for_each(|b| sum += u64::from(*b));
        let mut bytes = vec![0; 64 << 10];
        while seen < SIZE {
            let n = stream.read(&mut bytes).await.unwrap();
            assert!(n > 0);
            seen += n;
            bytes[..n].iter().for_each(|b| sum += u64::from(*b));
        }
        let text = sum.to_string();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    let head = format!(
        "POST /v1/audio HTTP/1.1\r\nHost: r\r\nx-tutti-endpoint: m\r\nConnection: close\r\nContent-Length: {SIZE}\r\n\r\n"
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let piece: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    let sum: u64 = piece.iter().map(|b| u64::from(*b)).sum();
    for _ in 0..SIZE >> 20 {
        soon(client.write_all(&piece)).await.unwrap();
    }
    let answer = String::from_utf8(read_to_end(&mut client).await).unwrap();
    assert!(answer.ends_with(&format!("\r\n\r\n{}", sum * 24)), "{answer}");
}

#[tokio::test]
async fn who_leaves_is_not_served_any_longer() {
    let (closed, mut closings) = mpsc::unbounded_channel();
    let begun = Arc::new(Notify::new());
    let begin = begun.clone();
    let address = replica(move |mut stream, mut request| {
        let (closed, begin) = (closed.clone(), begin.clone());
        async move {
            while whole_request(&request).is_none() {
                stream.read_buf(&mut request).await.unwrap();
            }
            begin.notify_one();
            let n = stream.read(&mut [0; 1]).await.unwrap_or(0);
            closed.send(n).unwrap();
        }
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    client.write_all(post("/v1/x", r#"{"model":"m"}"#).as_bytes()).await.unwrap();
    soon(begun.notified()).await;
    assert_eq!(router.handle.report().endpoints["m"].in_flight, 1);
    drop(client);
    assert_eq!(soon(closings.recv()).await, Some(0), "the replica's connection was closed");
    let report = router.until("m", |m| m.traffic.cancelled == 1 && m.in_flight == 0).await;
    assert_eq!(report.traffic.errors, 0);
}

#[tokio::test]
async fn a_replica_that_breaks_off_in_the_middle_is_an_error_for_the_client() {
    let address = replica(|mut stream, request| async move {
        let text = String::from_utf8_lossy(&request).into_owned();
        let head = match text.contains("/chunks") {
            true => "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            false => "Content-Length: 10\r\n\r\nhello",
        };
        stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes()).await.unwrap();
    })
    .await;
    let router = before(address);
    for path in ["/chunks", "/length"] {
        let answer = router.get(path).await;
        assert!(answer.contains("hello"), "{answer}");
        assert!(!answer.contains("0\r\n\r\n"), "no clean end: {answer}");
    }
    let report = router.until("m", |m| m.traffic.errors == 2).await;
    assert_eq!(report.traffic.retried, 0, "never after the first byte");
}

#[tokio::test]
async fn shutting_down_lets_requests_end() {
    let go_on = Arc::new(Notify::new());
    let gate = go_on.clone();
    let address = replica(move |mut stream, _| {
        let gate = gate.clone();
        async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf").await.unwrap();
            gate.notified().await;
            stream.write_all(b"half").await.unwrap();
        }
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    client.write_all(b"GET /x HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    read_until(&mut client, b"half").await;
    let (listening, reporter) = (router.handle.addr, router.handle.reporter());
    let ending = tokio::spawn(router.handle.shutdown(LONG));
    let refused = async {
        while tokio::net::TcpStream::connect(listening).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(refused).await;
    assert!(!ending.is_finished());
    assert_eq!(reporter.report().endpoints["m"].in_flight, 1, "it still says what it has");
    go_on.notify_one();
    read_until(&mut client, b"half").await;
    assert_eq!(soon(ending).await.unwrap(), 0, "nothing was cut off");
    let last = &reporter.report().endpoints["m"];
    assert_eq!((last.in_flight, last.traffic.requests), (0, 1), "the last one is counted");
}

#[tokio::test]
async fn a_client_that_does_not_know_chunks_gets_none() {
    let address = replica(|mut stream, _| async move {
        let answer =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    client.write_all(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await.unwrap();
    let answer = String::from_utf8(read_to_end(&mut client).await).unwrap();
    assert_eq!(answer, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcde");
}

#[tokio::test]
async fn one_connection_too_many_takes_the_place_of_an_idle_one() {
    let address = says("ok").await;
    let mut settings = config();
    settings.limits.connections = 1;
    let router = start_with(settings, table(vec![endpoint("m", &[address])]));
    let mut first = router.connect().await;
    first.write_all(b"GET /x HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    read_until(&mut first, b"\r\n\r\nok").await;
    let mut second = router.connect().await;
    second.write_all(b"GET /x HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    read_until(&mut second, b"\r\n\r\nok").await;
    let left = first.read(&mut [0; 64]).await;
    assert!(matches!(left, Ok(0) | Err(_)), "the idle one was closed: {left:?}");
}

#[tokio::test]
async fn a_client_that_reads_slowly_slows_the_replica_down() {
    const SIZE: usize = 64 << 20;
    let written = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = written.clone();
    let address = replica(move |mut stream, _| {
        let count = count.clone();
        async move {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            let piece = vec![1; 1 << 20];
            for _ in 0..SIZE >> 20 {
                stream.write_all(&piece).await.unwrap();
                count.fetch_add(piece.len(), std::sync::atomic::Ordering::Relaxed);
            }
        }
    })
    .await;
    let router = before(address);
    let mut client = router.connect().await;
    client.write_all(b"GET /x HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut seen = 0;
    let mut most_ahead = 0;
    let mut bytes = vec![0; 64 << 10];
    loop {
        let n = soon(client.read(&mut bytes)).await.unwrap();
        if n == 0 {
            break;
        }
        seen += n;
        let ahead = written.load(std::sync::atomic::Ordering::Relaxed).saturating_sub(seen);
        most_ahead = most_ahead.max(ahead);
    }
    assert!(seen > SIZE);
    // What lies between them are the system's socket buffers, not ours.
    assert!(most_ahead < 32 << 20, "{most_ahead} bytes ahead");
}
