//! The dashboard's door: who is logged in, for how long, and what a browser can be led to do.

mod common;

use common::agent::{FakeAgent, Ranks};
use common::{Answer, Cluster};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A browser that is logged in.
struct Browser<'c> {
    cluster: &'c Cluster,
    cookie: String,
    csrf: String,
}

fn origin(cluster: &Cluster) -> String {
    format!("Origin: http://{}", cluster.addr())
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    let lines = answer.head.lines().filter_map(|line| line.split_once(": "));
    lines.into_iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).unwrap()
}

async fn post_login(cluster: &Cluster, token: &str, headers: &[&str]) -> Answer {
    cluster.raw("POST", "/login", headers, Some(&format!("token={token}&next=%2Fqueue"))).await
}

impl Browser<'_> {
    async fn log_in<'c>(cluster: &'c Cluster, token: &str) -> Browser<'c> {
        let answer = post_login(cluster, token, &[&origin(cluster)]).await;
        assert_eq!(
            (answer.status, header(&answer, "location")),
            (303, Some("/queue")),
            "{}",
            text(&answer)
        );
        let set = header(&answer, "set-cookie").unwrap();
        assert!(set.contains("; HttpOnly") && set.contains("; SameSite=Strict"), "{set}");
        assert!(!set.contains("Secure"), "plain text on loopback: {set}");
        assert!(!set.contains(token), "the cookie is not the token");
        let cookie = format!("Cookie: {}", set.split(';').next().unwrap());
        let mut browser = Browser { cluster, cookie, csrf: String::new() };
        let page = browser.get("/").await;
        assert_eq!(page.status, 200, "{}", text(&page));
        let page = text(&page);
        let (_, rest) = page.split_once("data-csrf=\"").unwrap();
        browser.csrf = rest.split('"').next().unwrap().to_owned();
        browser
    }

    async fn get(&self, path: &str) -> Answer {
        self.cluster.raw("GET", path, &[&self.cookie], None).await
    }

    /// As our own script does.
    async fn post(&self, path: &str, body: Option<&str>) -> Answer {
        let csrf = format!("X-Tutti-CSRF: {}", self.csrf);
        let headers = [self.cookie.as_str(), &csrf, &origin(self.cluster)];
        self.cluster.raw("POST", path, &headers, body).await
    }
}

const PAGES: &[&str] =
    &["/", "/queue", "/jobs", "/endpoints", "/nodes", "/teams", "/cost", "/timeline"];

#[tokio::test(flavor = "multi_thread")]
async fn strangers_are_shown_the_way_in_and_nothing_else() {
    let cluster = Cluster::start().await;
    for page in PAGES {
        let answer = cluster.raw("GET", page, &[], None).await;
        assert_eq!(answer.status, 303, "{page}");
        assert!(header(&answer, "location").unwrap().starts_with("/login"), "{page}");
    }
    let deep = cluster.raw("GET", "/jobs/7?x=1", &[], None).await;
    assert_eq!(header(&deep, "location"), Some("/login?next=%2Fjobs%2F7%3Fx%3D1"));
    assert_eq!(cluster.raw("GET", "/live?page=overview", &[], None).await.status, 401);
    assert_eq!(cluster.raw("GET", "/login", &[], None).await.status, 200);
    let css = format!("/assets/{}/app.css", tutti_web::assets::hash());
    let asset = cluster.raw("GET", &css, &[], None).await;
    assert_eq!(asset.status, 200);
    assert!(header(&asset, "cache-control").unwrap().contains("immutable"));
    let tag = format!("If-None-Match: {}", header(&asset, "etag").unwrap());
    assert_eq!(cluster.raw("GET", &css, &[&tag], None).await.status, 304);
    let squeezed = cluster.raw("GET", &css, &["Accept-Encoding: gzip"], None).await;
    assert_eq!(header(&squeezed, "content-encoding"), Some("gzip"));
    assert!(squeezed.body.len() * 2 < asset.body.len());
    assert_eq!(cluster.raw("GET", "/assets/0/app.css", &[], None).await.status, 404);
    let foreign = cluster.raw("GET", "/login", &["Host: evil.example:80"], None).await;
    assert_eq!(foreign.status, 403);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_for_no_page_is_told_so_in_words() {
    let cluster = Cluster::start().await;
    let accepts = "Accept: text/html,application/xhtml+xml,*/*;q=0.8";
    let lost = cluster.raw("GET", "/nosuch/a&b", &[accepts], None).await;
    let said = text(&lost);
    assert_eq!(lost.status, 404, "{said}");
    assert!(said.contains("there is no page at /nosuch/a&amp;b"), "{said}");
    assert!(header(&lost, "content-type").unwrap().starts_with("text/html"));
    assert!(header(&lost, "content-security-policy").unwrap().contains("default-src 'none'"));
    let foreign = cluster.raw("GET", "/nosuch", &[accepts, "Host: evil.example:80"], None).await;
    assert_eq!(foreign.status, 403);
    // Programs hear what they always did, and so does who looks at the API.
    for (path, header) in [("/nosuch", "Accept: */*"), ("/api/v1/nosuch", accepts)] {
        let refused = cluster.raw("GET", path, &[header], None).await;
        assert_eq!(refused.status, 401, "{path}");
        assert!(text(&refused).contains("no token"), "{path}");
    }
    assert_eq!(cluster.raw("POST", "/nosuch", &[accepts], None).await.status, 401);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_a_session_and_its_end_closes_it() {
    let cluster = Cluster::start().await;
    for bad in ["", "nonsense", "tutti_u_0_0_0"] {
        let answer = post_login(&cluster, bad, &[&origin(&cluster)]).await;
        assert_eq!(answer.status, 401, "{bad}");
        assert!(
            header(&answer, "set-cookie").is_none() && text(&answer).contains("role=\"alert\"")
        );
    }
    let join = cluster.token(json!({ "grants": "join", "node": null, "uses": 1 })).await;
    assert_eq!(post_login(&cluster, &join, &[&origin(&cluster)]).await.status, 401);
    assert_eq!(post_login(&cluster, &cluster.admin, &[]).await.status, 403, "no form of ours");
    let evil = post_login(&cluster, &cluster.admin, &["Origin: https://evil.example"]).await;
    assert_eq!(evil.status, 403);

    let vera = cluster.access("vera", "viewer").await;
    let browser = Browser::log_in(&cluster, &vera).await;
    for page in PAGES {
        let answer = browser.get(page).await;
        assert_eq!(answer.status, 200, "{page}: {}", text(&answer));
        let policy = header(&answer, "content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(header(&answer, "cache-control"), Some("no-store"));
        assert!(text(&answer).contains("data-role=\"viewer\""), "{page}");
    }
    let missing = browser.get("/jobs/99").await;
    assert!(
        missing.status == 404 && text(&missing).contains("there is no job 99"),
        "{}",
        text(&missing)
    );
    // Revoked: the session is over with it, and so is what it listens to.
    let mut stream = tokio::net::TcpStream::connect(cluster.addr()).await.unwrap();
    let request = format!(
        "GET /live?page=teams HTTP/1.1\r\nConnection: close\r\nHost: {}\r\n{}\r\n\r\n",
        cluster.addr(),
        browser.cookie
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 64];
    assert!(stream.read(&mut first).await.unwrap() > 0);
    let id = vera.split('_').nth(3).unwrap();
    let path = format!("/api/v1/tokens/{id}");
    assert_eq!(cluster.call("DELETE", &path, None).await.status, 200);
    let mut rest = Vec::new();
    let minute = std::time::Duration::from_secs(60);
    tokio::time::timeout(minute, stream.read_to_end(&mut rest)).await.expect("it ends").unwrap();
    assert_eq!(browser.get("/queue").await.status, 303);
    assert_eq!(browser.get("/api/v1/jobs").await.status, 401);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_survives_a_restart_and_not_a_log_out() {
    let cluster = Cluster::start().await;
    let browser = Browser::log_in(&cluster, &cluster.admin).await;
    let (cookie, csrf) = (browser.cookie.clone(), browser.csrf.clone());
    let port = cluster.addr().port();
    let dir = cluster.stop().await;
    let log = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    assert!(log.contains("POST /login"), "{log}");
    let cluster = Cluster::start_in(dir).await;
    // Another port has another cookie.
    let new =
        cookie.replace(&format!("tutti_{port}="), &format!("tutti_{}=", cluster.addr().port()));
    let browser = Browser { cluster: &cluster, cookie: new, csrf };
    assert_eq!(browser.get("/").await.status, 200);
    let form = |csrf: &str| format!("csrf={csrf}");
    let headers = [browser.cookie.as_str(), &origin(&cluster)];
    let forged = cluster.raw("POST", "/logout", &headers, Some(&form("guess"))).await;
    assert_eq!(forged.status, 403);
    assert_eq!(browser.get("/").await.status, 200);
    let out = cluster.raw("POST", "/logout", &headers, Some(&form(&browser.csrf))).await;
    assert_eq!((out.status, header(&out, "location")), (303, Some("/login")));
    assert!(header(&out, "set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(browser.get("/").await.status, 303);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_need_the_role_and_the_proof_of_our_page() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Stay).await;
    let ada = cluster.access("ada", "user").await;
    let body = json!({ "spec": { "run": "x" } });
    let answer = cluster.call_as(&ada, "POST", "/api/v1/jobs", Some(body)).await;
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    let cancel = format!("/api/v1/jobs/{id}/cancel");
    let viewer = cluster.access("vera", "viewer").await;
    let vera = Browser::log_in(&cluster, &viewer).await;
    let refused = vera.post(&cancel, None).await;
    assert_eq!(refused.status, 403);
    assert!(text(&refused).contains("needs the role user"), "{}", text(&refused));
    let page = text(&vera.get(&format!("/jobs/{id}")).await);
    assert!(!page.contains("data-verb"), "no buttons for viewers");
    assert!(page.contains("Logs are for the job"), "nor others' logs");
    let logs = vera.get(&format!("/api/v1/jobs/{id}/logs")).await;
    assert_eq!(logs.status, 403);

    let browser = Browser::log_in(&cluster, &ada).await;
    assert!(text(&browser.get(&format!("/jobs/{id}")).await).contains("data-verb=\"cancel\""));
    let (cookie, here) = (browser.cookie.as_str(), origin(&cluster));
    let csrf = format!("X-Tutti-CSRF: {}", browser.csrf);
    let stolen = format!("X-Tutti-CSRF: {}", vera.csrf);
    for headers in [
        vec![cookie],
        vec![cookie, &here],
        vec![cookie, &csrf],
        vec![cookie, &stolen, &here],
        vec![cookie, &csrf, "Origin: https://evil.example"],
        vec![cookie, &csrf, &here, "Sec-Fetch-Site: cross-site"],
    ] {
        let answer = cluster.raw("POST", &cancel, &headers, None).await;
        assert_eq!(answer.status, 403, "{headers:?}");
    }
    let drained = browser.post("/api/v1/nodes/n1/drain", Some("{}")).await;
    assert_eq!(drained.status, 403, "for admins");
    assert_eq!(browser.post(&cancel, None).await.status, 200);
    assert_eq!(cluster.wait(&id).await["state"], "cancelled");
    let dir = cluster.stop().await;
    let log = std::fs::read_to_string(dir.path().join("audit.log")).unwrap();
    let denied = log.lines().any(|line| line.contains("\"vera\"") && line.contains("denied"));
    assert!(denied, "{log}");
}

/// Reads an event stream until what it has said so far satisfies.
async fn listen(browser: &Browser<'_>, path: &str, enough: impl Fn(&str) -> bool) -> String {
    let mut socket = tokio::net::TcpStream::connect(browser.cluster.addr()).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\n{}\r\n\r\n",
        browser.cluster.addr(),
        browser.cookie
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut said = Vec::new();
    let mut piece = [0; 16_384];
    loop {
        let read =
            tokio::time::timeout(std::time::Duration::from_secs(60), socket.read(&mut piece));
        let n = read.await.expect("it says more").unwrap();
        assert!(n > 0, "it ended: {}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&piece[..n]);
        let text = String::from_utf8_lossy(&said).into_owned();
        if enough(&text) {
            return text;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_live() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Stay).await;
    let browser = Browser::log_in(&cluster, &cluster.admin).await;
    let first = listen(&browser, "/live?page=overview", |said| said.contains("event: grid")).await;
    assert!(first.contains("text/event-stream") && first.contains("event: html"), "{first}");
    // Somebody listens to the queue while a job comes that has to wait.
    let blocker = cluster.submit(json!({ "run": "x", "gpus": 8, "time": "1h" })).await;
    let queue = listen(&browser, "/live?page=queue", |said| said.contains("free GPUs"));
    let submit = async { cluster.submit(json!({ "run": "x", "gpus": 8, "name": "waits" })).await };
    let (said, waits) = tokio::join!(queue, submit);
    assert!(said.contains(&format!("/jobs/{waits}")), "{said}");
    let page = text(&browser.get(&format!("/jobs/{waits}")).await);
    assert!(page.contains("Why it waits") && page.contains("free GPUs"), "{page}");
    assert!(page.contains("data-testid=\"holders\""), "with the first answer: {page}");
    assert!(page.contains(&format!("href=\"/jobs/{blocker}\"")), "{page}");
    assert!(!page.contains("When it starts is not known"), "{page}");
    let path = format!("/live?page=job&id={waits}");
    let job = listen(&browser, &path, |said| said.contains("badge running"));
    let cancel =
        async { cluster.call("POST", &format!("/api/v1/jobs/{blocker}/cancel"), None).await };
    let (_, cancelled) = tokio::join!(job, cancel);
    assert_eq!(cancelled.status, 200);
    for (path, word) in [
        ("/live?page=jobs", "event: rows"),
        ("/live?page=endpoints", "event: rows"),
        ("/live?page=nodes", "event: rows"),
        ("/live?page=node&name=n1", "event: series"),
        ("/live?page=teams", "event: html"),
        ("/live?page=cost&q=user", "by-user"),
        ("/live?page=timeline", "gantt"),
    ] {
        listen(&browser, path, |said| said.contains(word)).await;
    }
    assert_eq!(browser.get("/live?page=nonsense").await.status, 404);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_has_a_page_and_its_replicas_lead_there() {
    let cluster = Cluster::start().await;
    let identity = cluster.join("n1").await;
    let _agent = FakeAgent::start(cluster.addr(), identity, 8, Ranks::Stay).await;
    let ada = cluster.access("ada", "user").await;
    let spec = json!({
        "name": "chat", "run": "serve --port $PORT", "gpus_per_node": 2, "env": { "KEY": "hush" },
        "service": { "replicas": 1, "models": ["llama"], "port": 8000 },
    });
    let body = Some(json!({ "spec": spec }));
    assert_eq!(cluster.call_as(&ada, "POST", "/api/v1/endpoints", body).await.status, 201);
    let (owner, other) = (
        Browser::log_in(&cluster, &ada).await,
        Browser::log_in(&cluster, &cluster.access("eve", "viewer").await).await,
    );
    let live = "/live?page=endpoint&name=chat";
    let said = listen(&other, live, |said| said.contains("/nodes/n1")).await;
    assert!(said.contains("event: html") && !said.contains("hush"), "{said}");
    let mine = text(&owner.get("/endpoints/chat").await);
    assert!(mine.contains("data-testid=\"replicas\"") && mine.contains("hush"), "{mine}");
    let theirs = text(&other.get("/endpoints/chat").await);
    assert!(theirs.contains("serve --port $PORT") && !theirs.contains("hush"), "{theirs}");
    for (query, found) in [("", true), ("?q=llama+user:ada", true), ("?q=state:ready", false)] {
        let list = text(&other.get(&format!("/endpoints{query}")).await);
        assert_eq!(list.contains("href=\"/endpoints/chat\""), found, "{query}: {list}");
    }
    let detail = cluster.get("/api/v1/endpoints/chat").await;
    let job = &detail["replicas"][0]["job"];
    let page = text(&other.get(&format!("/jobs/{job}")).await);
    assert!(page.contains("Replica of") && page.contains("/endpoints/chat"), "{page}");
    assert_eq!(other.get("/endpoints/none").await.status, 404);
    assert_eq!(other.get("/live?page=endpoint&name=none").await.status, 404);
    cluster.stop().await;
}
