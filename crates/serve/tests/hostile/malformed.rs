//! Requests that are none, or too large.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;

use crate::tally::{Tally, each, ending};
use crate::victim::Victim;

/// How often each of them is sent at a time.
const SOME: usize = 50;

/// Each of these on connections of their own, whatever of it is taken. `leaves`: nothing more is said.
async fn send(victim: Arc<Victim>, requests: Vec<(Vec<u8>, bool)>) -> Tally {
    let requests = Arc::new(requests);
    each(SOME * requests.len(), |at| {
        let (victim, requests) = (victim.clone(), requests.clone());
        async move {
            let (request, leaves) = &requests[at % requests.len()];
            let mut stream = victim.connect().await;
            let _ = stream.write_all(request).await;
            if *leaves {
                let _ = stream.shutdown().await;
            }
            ending(&mut stream).await
        }
    })
    .await
}

pub async fn long_header(victim: Arc<Victim>) -> Tally {
    let request = format!("GET /e/m/ok HTTP/1.1\r\nHost: r\r\nX: {}\r\n\r\n", "y".repeat(1 << 20));
    send(victim, vec![(request.into_bytes(), false)]).await
}

pub async fn many_headers(victim: Arc<Victim>) -> Tally {
    let request = format!("GET /e/m/ok HTTP/1.1\r\nHost: r\r\n{}\r\n", "a: b\r\n".repeat(10_000));
    send(victim, vec![(request.into_bytes(), false)]).await
}

/// Both where the body is read before a replica is chosen, and where it is passed on as it comes.
pub async fn chunks(victim: Arc<Victim>) -> Tally {
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(10_000));
    let trailers = format!("0\r\n{}\r\n", "a: b\r\n".repeat(10_000));
    let wrong = [
        "zz\r\nhello\r\n",
        "-5\r\nhello\r\n",
        "fffffffffffffffff\r\nhello\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhelloworld\r\n0\r\n\r\n",
        &long,
        &trailers,
    ];
    let mut requests = Vec::new();
    for target in ["/v1/x", "/e/m/hang"] {
        let head =
            format!("POST {target} HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n");
        let wrong = wrong.iter().map(|chunks| (format!("{head}{chunks}").into_bytes(), false));
        requests.extend(wrong);
        for cut in ["", "5", "5\r\n", "5\r\nhel", "5\r\nhello\r\n", "5\r\nhello\r\n0\r\n"] {
            requests.push((format!("{head}{cut}").into_bytes(), true));
        }
    }
    let tally = send(victim, requests).await;
    assert_eq!(tally.of(400), SOME * 2 * wrong.len(), "all but those that were cut: {tally}");
    tally
}

pub async fn lengths(victim: Arc<Victim>) -> Tally {
    let requests = [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        "Content-Length: 1, 1\r\n\r\nx",
        "Content-Length: +1\r\n\r\nx",
        "Content-Length: 99999999999999999999\r\n\r\nx",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    ];
    let whole = |lines| format!("POST /e/m/ok HTTP/1.1\r\nHost: r\r\n{lines}").into_bytes();
    send(victim, requests.into_iter().map(|lines| (whole(lines), false)).collect()).await
}
