//! Slow, hung and mad peers: an error for them, nothing for anybody else.

mod common;
#[path = "hostile/crowd.rs"]
mod crowd;

use std::time::Duration;

use common::Cluster;
use common::agent::{self, FakeAgent, Ranks};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_agent_delays_nobody() {
    let cluster = Cluster::start().await;
    let hung = cluster.join("hung").await;
    // Says hello, then neither reads nor speaks.
    let _hung = agent::connect(cluster.addr(), &hung, 8).await;
    let fine = cluster.join("fine").await;
    let _fine = FakeAgent::start(cluster.addr(), fine, 8, Ranks::Finish).await;
    for name in ["hung", "fine"] {
        let row = cluster.get(&format!("/api/v1/nodes/{name}")).await;
        assert_eq!(row["state"], "ready");
    }
    // Enough for both nodes; those on the hung one must not hold up the others.
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(cluster.submit(json!({ "run": "true", "gpus_per_node": 1 })).await);
    }
    let all = async {
        for id in &ids {
            assert_eq!(cluster.wait(id).await["state"], "completed");
        }
    };
    // The hung node is given up after its timeout, and its jobs start again on the other.
    tokio::time::timeout(Duration::from_secs(30), all).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_do_no_harm() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    for seed in 0..40 {
        let mut bytes = noise(seed, 300);
        match seed % 4 {
            0 => bytes[0] = 0x16,
            1 => bytes.splice(0..0, *b"GET / HTTP/1.1\r\n").for_each(drop),
            2 => {
                bytes.splice(0..0, *b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n").for_each(drop)
            }
            _ => {}
        }
        let mut socket = TcpStream::connect(cluster.addr()).await.unwrap();
        // The server may hang up at any moment.
        let _ = socket.write_all(&bytes).await;
        let _ = socket.shutdown().await;
        let _ = socket.read_to_end(&mut Vec::new()).await;
    }
    for seed in 0..20 {
        let mut stream = agent::dial(cluster.addr(), &identity).await.unwrap();
        let _ = stream.write_all(&noise(seed, 200)).await;
        let _ = stream.shutdown().await;
    }
    for seed in 0..20 {
        let mut stream = agent::connect(cluster.addr(), &identity, 1).await;
        let mut bytes = noise(seed, 200);
        // A length that fits, so that the noise is decoded.
        bytes[..4].copy_from_slice(&[0, 0, 0, (seed * 7) as u8]);
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    let bearer = format!("Authorization: Bearer {}", cluster.admin);
    for seed in 0..60 {
        let body = String::from_utf8_lossy(&noise(seed, 100)).into_owned();
        for (method, path) in [
            ("POST", "/api/v1/jobs"),
            ("POST", "/api/v1/jobs:batch"),
            ("POST", "/api/v1/tokens"),
            ("POST", "/api/v1/nodes/n1/drain"),
            ("PUT", "/api/v1/nodes/n1/burn-in"),
            ("PUT", "/api/v1/nodes/n1/gpu-bench"),
            ("POST", "/api/v1/jobs/1/exec"),
            ("POST", "/api/v1/jobs/1/priority"),
            ("POST", "/api/v1/jobs/1/checkpoints"),
        ] {
            let answer = cluster.raw(method, path, &[&bearer], Some(&body)).await;
            assert_eq!(answer.status, 400, "{path}");
        }
        let hex: String = noise(seed, 12).iter().map(|b| format!("%{b:02x}")).collect();
        for path in [format!("/api/v1/jobs/{hex}"), format!("/api/v1/jobs?after={hex}")] {
            let answer = cluster.call("GET", &path, None).await;
            assert!([400, 404].contains(&answer.status), "{path}: {}", answer.status);
        }
    }
    let fine = cluster.join("fine").await;
    let _fine = FakeAgent::start(cluster.addr(), fine, 8, Ranks::Finish).await;
    let id = cluster.submit(json!({ "run": "true" })).await;
    assert_eq!(cluster.wait(&id).await["state"], "completed");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_large_a_body_is_refused() {
    let cluster = Cluster::start().await;
    let mut socket = TcpStream::connect(cluster.addr()).await.unwrap();
    let head = format!(
        "POST /api/v1/jobs HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: 99999999\r\n\r\n",
        cluster.addr(),
        cluster.admin
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b' '; 1 << 16];
    while socket.write_all(&piece).await.is_ok() {}
    cluster.get("/api/v1/cluster").await;
    cluster.stop().await;
}

/// Begins a batch, and sends so much of it.
async fn begin_batch(cluster: &Cluster, token: &str, bytes: usize) -> TcpStream {
    let mut socket = TcpStream::connect(cluster.addr()).await.unwrap();
    let head = format!(
        "POST /api/v1/jobs:batch HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Length: 33554432\r\n\r\n",
        cluster.addr()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    // Who is refused meanwhile is hung up on.
    let _ = socket.write_all(&vec![b' '; bytes]).await;
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_do_not_end_leave_room_for_others() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _stream = agent::connect(cluster.addr(), &identity, 1).await;
    let (ada, bob) = (cluster.access("ada", "user").await, cluster.access("bob", "user").await);
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(begin_batch(&cluster, &ada, 31 << 20).await);
    }
    // The last of them is told so, while the others are waited for.
    let mut said = Vec::new();
    let _ = open.pop().unwrap().read_to_end(&mut said).await;
    let said = String::from_utf8_lossy(&said).to_lowercase();
    assert!(said.starts_with("http/1.1 503 ") && said.contains("retry-after: 1"), "{said}");
    assert!(said.contains("too many large requests"), "{said}");
    let spec = json!({ "run": "true", "hold": true, "env": { "X": "x".repeat(100_000) } });
    let batch = json!([{ "spec": spec }, { "spec": spec }]);
    let answer = cluster.call_as(&bob, "POST", "/api/v1/jobs:batch", Some(batch)).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert_eq!(answer.json()[1]["id"], "2");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn start_errors_say_what_to_do() {
    let cluster = Cluster::start().await;
    let same_dir = tutti_controller::start(common::config(cluster.dir.path())).await;
    let text = tutti_controller::chain(&same_dir.err().unwrap());
    assert!(text.contains("another controller"), "{text}");

    let other = tempfile::tempdir().unwrap();
    let mut config = common::config(other.path());
    config.listen = cluster.addr();
    let text = tutti_controller::start(config).await.err().unwrap().to_string();
    assert!(text.contains(&cluster.addr().to_string()) && text.contains("--listen"), "{text}");

    let file = other.path().join("file");
    std::fs::write(&file, "").unwrap();
    let text = tutti_controller::start(common::config(&file.join("x"))).await.err().unwrap();
    assert!(text.to_string().contains("--data-dir"), "{text}");
    cluster.stop().await;
}
