//! Clients that leave, or take nothing more, while bytes are stuck.

mod common;

use common::*;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

/// More than a connection's buffer, and than is kept of a body; less than the system takes by itself.
const UPLOAD: usize = 80 << 10;

fn upload(size: usize) -> String {
    post("/e/m/up", &"u".repeat(size))
}

fn quick() -> tutti_serve::RouterConfig {
    let mut settings = config();
    settings.timeouts.head = std::time::Duration::from_millis(200);
    settings
}

#[tokio::test]
async fn one_who_leaves_the_queue_with_an_upload_loses_its_place() {
    let mut asleep = endpoint("m", &[]);
    asleep.hold = tutti_model::Span::secs(600);
    let router = start_with(quick(), table(vec![asleep]));
    let mut client = router.connect().await;
    client.write_all(upload(UPLOAD).as_bytes()).await.unwrap();
    router.until("m", |m| m.queued == 1).await;
    drop(client);
    router.until("m", |m| m.queued == 0 && m.traffic.cancelled == 1).await;
}

#[tokio::test]
async fn one_who_leaves_while_the_replica_does_not_read_frees_it() {
    let (began, mut begun) = mpsc::unbounded_channel();
    let address = replica(move |stream, _| {
        let began = began.clone();
        async move {
            began.send(()).unwrap();
            std::future::pending::<()>().await;
            drop(stream);
        }
    })
    .await;
    let router = start_with(quick(), table(vec![endpoint("m", &[address])]));
    let mut client = router.connect().await;
    const SIZE: usize = 64 << 20;
    let head = format!("POST /e/m/up HTTP/1.1\r\nHost: r\r\nContent-Length: {SIZE}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    soon(begun.recv()).await.unwrap();
    // Until nobody takes anything for a while: the replica's system, the router, and the router's system are full.
    let piece = vec![b'u'; 16 << 10];
    while tokio::time::timeout(std::time::Duration::from_millis(300), client.write_all(&piece))
        .await
        .is_ok()
    {}
    assert_eq!(router.handle.report().endpoints["m"].in_flight, 1);
    // With a reset, which is not held back by what lies before it.
    socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    router.until("m", |m| m.in_flight == 0 && m.traffic.cancelled == 1).await;
}
