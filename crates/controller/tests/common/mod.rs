//! A controller in this process, agents that only pretend, and the barest HTTP client.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod agent;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tutti_controller::{ControllerConfig, Handle, start};
use tutti_model::Span;
use tutti_wire::pki::{NodeIdentity, NodeKey};

pub struct Cluster {
    pub dir: TempDir,
    pub handle: Handle,
    pub admin: String,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }
}

pub fn config(dir: &Path) -> ControllerConfig {
    let mut config = ControllerConfig::new(dir);
    config.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.heartbeat = Span::millis(500);
    config
}

impl Cluster {
    pub async fn start() -> Cluster {
        Cluster::start_in(tempfile::tempdir().unwrap()).await
    }

    pub async fn start_in(dir: TempDir) -> Cluster {
        let config = config(dir.path());
        Cluster::start_as(dir, config).await
    }

    /// It listens on all addresses of its machine, and is also called by this one.
    pub async fn start_for_others(name: IpAddr) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        config.listen = SocketAddr::from(([0, 0, 0, 0], 0));
        config.extra_names.push(name.to_string());
        Cluster::start_as(dir, config).await
    }

    async fn start_as(dir: TempDir, config: ControllerConfig) -> Cluster {
        let handle = start(config).await.unwrap();
        let admin = std::fs::read_to_string(dir.path().join("admin.token")).unwrap();
        Cluster { dir, handle, admin: admin.trim().to_owned() }
    }

    /// Stops it, and gives back the data dir.
    pub async fn stop(self) -> TempDir {
        self.handle.shutdown();
        self.handle.ended().await.unwrap();
        self.dir
    }

    /// Where this machine reaches it.
    pub fn addr(&self) -> SocketAddr {
        let addr = self.handle.addr;
        if addr.ip().is_unspecified() { (Ipv4Addr::LOCALHOST, addr.port()).into() } else { addr }
    }

    /// The CA's certificate, in PEM.
    pub fn ca(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("ca.pem")).unwrap()
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Answer {
        self.call_as(&self.admin, method, path, body).await
    }

    pub async fn call_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Answer {
        let bearer = format!("Authorization: Bearer {token}");
        self.raw(method, path, &[&bearer], body.map(|b| b.to_string()).as_deref()).await
    }

    pub async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: Option<&str>,
    ) -> Answer {
        let addr = self.addr();
        let host = headers.iter().any(|h| h.starts_with("Host:"));
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !host {
            text += &format!("Host: {addr}\r\n");
        }
        for header in headers {
            text += &format!("{header}\r\n");
        }
        let body = body.unwrap_or("");
        text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        let mut socket = TcpStream::connect(addr).await.unwrap();
        socket.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.unwrap();
        split(&answer)
    }

    pub async fn get(&self, path: &str) -> Value {
        let answer = self.call("GET", path, None).await;
        assert_eq!(answer.status, 200, "{path}: {}", String::from_utf8_lossy(&answer.body));
        answer.json()
    }

    /// Submits and returns the id.
    pub async fn submit(&self, spec: Value) -> String {
        let answer = self.call("POST", "/api/v1/jobs", Some(json!({ "spec": spec }))).await;
        assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    pub async fn wait(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/jobs/{id}/wait?seconds=30")).await
    }

    pub async fn token(&self, grant: Value) -> String {
        let answer = self.call("POST", "/api/v1/tokens", Some(json!({ "grant": grant }))).await;
        assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
        answer.json()["secret"].as_str().unwrap().to_owned()
    }

    pub async fn access(&self, user: &str, role: &str) -> String {
        self.token(json!({ "grants": "access", "user": user, "role": role })).await
    }

    /// Joins as the agent would: a token, a request, a certificate.
    pub async fn join(&self, node: &str) -> NodeIdentity {
        let token = self.token(json!({ "grants": "join", "node": null, "uses": 1 })).await;
        let key = NodeKey::generate().unwrap();
        let body = json!({ "node": node, "csr": key.csr().unwrap() });
        let answer = self.call_as(&token, "POST", "/api/v1/join", Some(body)).await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        let joined = answer.json();
        let text = |k: &str| joined[k].as_str().unwrap().to_owned();
        key.certified(&text("certificate"), &text("ca")).unwrap()
    }
}

pub fn split(answer: &[u8]) -> Answer {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or(answer.len());
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let body = answer.get(end + 4..).unwrap_or_default().to_vec();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Answer { status, head, body: if chunked { dechunk(&body) } else { body } }
}

fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = body.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        out.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 2 + size + 2..];
        if size == 0 {
            break;
        }
    }
    out
}

/// The `data:` of every event of an SSE body.
pub fn events(answer: &Answer) -> Vec<Value> {
    let text = String::from_utf8(answer.body.clone()).unwrap();
    text.lines()
        .filter_map(|l| l.strip_prefix("data: "))
        .map(|d| serde_json::from_str(d).unwrap())
        .collect()
}
