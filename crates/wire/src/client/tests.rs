mod server;

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use serde_json::json;
use tutti_model::{
    BurnInFigures, GpuBenchFigures, Grant, JobId, Policy, Priority, Rank, Role, RouterReport, Seq,
    TaskId,
};

use self::server::{Answer, Server};
use super::*;
use crate::api::*;
use crate::pki::{Ca, CaPin, ServerIdentity};
use crate::token::{Kind, TokenText};

fn token(pin: &str) -> TokenText {
    TokenText::mint(Kind::Access, pin.parse::<CaPin>().unwrap()).unwrap()
}

const PIN: &str = "0123456789abcdef";

fn client(server: &Server) -> Client {
    let cluster = ClusterRef::new(&format!("http://{}", server.address), token(PIN)).unwrap();
    Client::connect(&cluster)
}

fn job() -> Submit {
    let spec = serde_json::from_value(json!({"run": "true"})).unwrap();
    Submit { spec, user: None, key: None }
}

fn changed() -> Answer {
    Answer::Json(200, json!({"changed": 1}))
}

fn error(status: u16, code: &str, exit: i32) -> Answer {
    Answer::Json(status, json!({"code": code, "message": "no", "hint": "do", "exit": exit}))
}

const TASK: TaskId = TaskId { job: JobId(12), index: Some(3) };

/// Without a name of what was read, nothing is sent: it might overwrite somebody's change.
#[test]
fn a_policy_without_a_tag_is_not_changed() {
    let policy = serde_json::to_value(Policy::default()).unwrap();
    let server = Server::start(move |_, _| Answer::Json(200, policy.clone()));
    let error = client(&server).change_policy(Policy::clone).unwrap_err();
    assert!(matches!(error, ClientError::NoTag), "{error}");
    assert_eq!(server.lines(), ["GET /api/v1/policy"]);
}

#[test]
fn only_what_is_not_there_is_not_found() {
    for (status, code, exit, found) in
        [(404, "not_found", 3, false), (409, "conflict", 1, true), (500, "broken", 1, true)]
    {
        let server = Server::start(move |_, _| error(status, code, exit));
        let error = client(&server).job(TASK).unwrap_err();
        assert_eq!(error.is_not_found(), !found, "{error}");
    }
}

#[test]
fn the_cluster_says_its_time_with_every_answer() {
    let server = Server::start(|_, n| match n {
        0 => changed(),
        n => Answer::At(1_000 * n as u64, json!({"changed": 1})),
    });
    let c = client(&server);
    assert_eq!(c.told_at(), None);
    for told in [None, Some(Time(1_000)), Some(Time(2_000))] {
        c.resume("n1").unwrap();
        assert_eq!(c.told_at(), told);
    }
}

/// An end in a piece of its own would come after a quick answer, to a connection that is closed.
#[test]
fn a_change_without_a_body_says_so_and_keeps_its_connection() {
    let server = Server::start(|_, _| changed());
    let c = client(&server);
    for node in ["n1", "n2"] {
        c.resume(node).unwrap();
    }
    c.revoke_token("t1").unwrap();
    let seen = server.seen.lock().unwrap().clone();
    for ask in &seen {
        assert_eq!(ask.headers.get("transfer-encoding"), None, "{ask:?}");
    }
    assert_eq!(seen[0].headers["content-length"], "0");
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[test]
fn every_method_asks_for_its_route() {
    let server = Server::start(|_, _| error(404, "not_found", 3));
    let c = client(&server).with_patience(Duration::ZERO);
    let id = JobId(12);
    let grant = Grant::Access { user: "ada".into(), role: Role::User };
    let jobs = JobQuery { state: Some("active".into()), limit: Some(5), ..JobQuery::default() };
    let figures = BurnInFigures {
        job: TASK,
        ranks: 2,
        inside: None,
        outside: None,
        copy: 1,
        slow: Vec::new(),
    };
    let speeds = GpuBenchFigures {
        job: TASK,
        gpu: "NVIDIA H200".into(),
        gpus: 1,
        matmul: None,
        fp8: None,
        copy: None,
        shapes: Vec::new(),
        slow: Vec::new(),
    };
    let load = LoadQuery { nodes: Some("n1,n2".into()), jobs: None };
    let logs = LogQuery { follow: true, rank: Some("0-3,7".into()), ..LogQuery::default() };
    let serve =
        Serve { spec: job().spec, user: None, update: true, must_exist: false, canary: None };
    let asked: Vec<(ClientError, &str)> = vec![
        (c.openapi().unwrap_err(), "GET /api/v1/openapi.json"),
        (c.cluster_info().unwrap_err(), "GET /api/v1/cluster"),
        (c.submit(&job()).unwrap_err(), "POST /api/v1/jobs"),
        (c.submit_batch(vec![job()]).unwrap_err(), "POST /api/v1/jobs:batch"),
        (
            c.jobs(&jobs).unwrap_err(),
            "GET /api/v1/jobs?state=active&tasks=false&newest=false&limit=5",
        ),
        (c.job(TASK).unwrap_err(), "GET /api/v1/jobs/12_3"),
        (c.why(TASK).unwrap_err(), "GET /api/v1/jobs/12_3/why"),
        (c.wait(TASK, 90).unwrap_err(), "GET /api/v1/jobs/12_3/wait?seconds=60"),
        (c.cancel(TASK).unwrap_err(), "POST /api/v1/jobs/12_3/cancel"),
        (c.register(TASK, 5, "/ckpt/5".into()).unwrap_err(), "POST /api/v1/jobs/12_3/checkpoints"),
        (c.hold(id).unwrap_err(), "POST /api/v1/jobs/12/hold"),
        (c.release(id).unwrap_err(), "POST /api/v1/jobs/12/release"),
        (c.suspend(TaskId::of_array(id, 3)).unwrap_err(), "POST /api/v1/jobs/12_3/suspend"),
        (c.resume_job(TaskId::single(id)).unwrap_err(), "POST /api/v1/jobs/12/resume"),
        (c.priority(id, Priority(7)).unwrap_err(), "POST /api/v1/jobs/12/priority"),
        (c.saved(TASK).unwrap_err(), "POST /api/v1/jobs/12_3/saved"),
        (c.policy().unwrap_err(), "GET /api/v1/policy"),
        (c.set_policy(&Policy::default()).unwrap_err(), "PUT /api/v1/policy"),
        (c.change_policy(Policy::clone).unwrap_err(), "GET /api/v1/policy"),
        (c.quota().unwrap_err(), "GET /api/v1/quota"),
        (c.logs(TASK, &logs).unwrap_err(), "GET /api/v1/jobs/12_3/logs?rank=0-3%2C7&follow=true"),
        (
            c.put_stdin(TASK, Rank(1), true, &b"x"[..]).unwrap_err(),
            "PUT /api/v1/jobs/12_3/stdin?rank=1&keep=true",
        ),
        (
            c.exec(TASK, &ExecRequest { rank: 0, argv: vec!["ls".into()] }).unwrap_err(),
            "POST /api/v1/jobs/12_3/exec",
        ),
        (c.exec_stdin("a/b", &b""[..]).unwrap_err(), "PUT /api/v1/exec/a%2Fb/stdin"),
        (c.load(&load).unwrap_err(), "GET /api/v1/load?nodes=n1%2Cn2"),
        (c.nodes().unwrap_err(), "GET /api/v1/nodes"),
        (c.node("k ä/?").unwrap_err(), "GET /api/v1/nodes/k%20%C3%A4%2F%3F"),
        (c.drain("n1", "disk", true).unwrap_err(), "POST /api/v1/nodes/n1/drain"),
        (c.resume("n1").unwrap_err(), "POST /api/v1/nodes/n1/resume"),
        (c.measured("n1", &figures).unwrap_err(), "PUT /api/v1/nodes/n1/burn-in"),
        (c.gpus_measured("n1", &speeds).unwrap_err(), "PUT /api/v1/nodes/n1/gpu-bench"),
        (
            c.events::<serde_json::Value>(Some(Seq(9)), Some(TASK)).unwrap_err(),
            "GET /api/v1/events?since=9&job=12_3",
        ),
        (c.events::<serde_json::Value>(None, None).unwrap_err(), "GET /api/v1/events"),
        (c.tokens().unwrap_err(), "GET /api/v1/tokens"),
        (c.create_token(&NewToken { grant, expires_in: None }).unwrap_err(), "POST /api/v1/tokens"),
        (c.revoke_token("abc").unwrap_err(), "DELETE /api/v1/tokens/abc"),
        (
            c.join(&JoinRequest { node: "n".into(), csr: "c".into() }).unwrap_err(),
            "POST /api/v1/join",
        ),
        (c.endpoints().unwrap_err(), "GET /api/v1/endpoints"),
        (c.stopped_endpoints().unwrap_err(), "GET /api/v1/endpoints:stopped"),
        (c.endpoint_detail("a/b").unwrap_err(), "GET /api/v1/endpoints/a%2Fb"),
        (c.serve(&serve).unwrap_err(), "POST /api/v1/endpoints"),
        (
            c.scale("chat", &ScaleRequest::default()).unwrap_err(),
            "POST /api/v1/endpoints/chat/scale",
        ),
        (c.rollback("chat", Some(2)).unwrap_err(), "POST /api/v1/endpoints/chat/rollback"),
        (c.stop_endpoint("chat").unwrap_err(), "POST /api/v1/endpoints/chat/stop"),
        (
            c.routes(&RoutesQuery { after: Some(7), seconds: Some(30) }).unwrap_err(),
            "GET /api/v1/routes?after=7&seconds=30",
        ),
        (c.router_report(&RouterReport::default()).unwrap_err(), "POST /api/v1/routers"),
        (c.doctor().unwrap_err(), "GET /api/v1/doctor"),
        (c.shutdown().unwrap_err(), "POST /api/v1/shutdown"),
    ];
    let lines = server.lines();
    assert_eq!(lines.len(), asked.len());
    for ((error, want), line) in asked.iter().zip(&lines) {
        assert_eq!(line, want);
        assert_eq!(error.exit_code(), 3, "{error}");
        assert_eq!(error.hint().as_deref(), Some("do"));
    }
    let bearer = format!("Bearer {}", c.cluster().token);
    let seen = server.seen.lock().unwrap();
    assert!(seen.iter().all(|s| s.headers["authorization"] == bearer));
    let host = server.address.to_string();
    assert!(seen.iter().all(|s| s.headers["host"] == host));
}

#[test]
fn several_requests_share_one_connection() {
    let server = Server::start(|_, _| changed());
    let client = client(&server);
    for _ in 0..5 {
        assert_eq!(client.cancel(TASK).unwrap(), Changed { changed: 1 });
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

/// What one read of the server brings is what one write of the client sent.
#[test]
fn a_request_is_one_write() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut reads = Vec::new();
        for _ in 0..3 {
            let mut buffer = vec![0; 64 << 10];
            let n = socket.read(&mut buffer).unwrap();
            reads.push(String::from_utf8(buffer[..n].to_vec()).unwrap());
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{\"id\":\"7\"}";
            io::Write::write_all(&mut socket, answer.as_bytes()).unwrap();
        }
        reads
    });
    let client =
        Client::connect(&ClusterRef::new(&format!("http://{address}"), token(PIN)).unwrap());
    client.submit(&job()).unwrap();
    client.submit(&job()).unwrap();
    client.openapi().unwrap();
    let reads = serving.join().unwrap();
    assert!(reads[0].ends_with("{\"spec\":{\"run\":\"true\"}}"), "{reads:?}");
    assert!(reads[1].ends_with("{\"spec\":{\"run\":\"true\"}}"), "{reads:?}");
    assert!(reads[2].starts_with("GET /api/v1/openapi.json"), "{reads:?}");
}

#[test]
fn large_bodies_arrive_whole() {
    let server = Server::start(|_, _| Answer::Json(200, json!([])));
    let mut big = job();
    big.spec.env.insert("BIG".into(), "x".repeat(300_000));
    client(&server).submit_batch(vec![big.clone(), big.clone()]).unwrap();
    let seen = server.seen.lock().unwrap();
    let sent: Vec<Submit> = serde_json::from_slice(&seen[0].body).unwrap();
    assert_eq!(sent[1].spec, big.spec);
}

#[test]
fn a_submission_is_tried_again_with_the_same_key() {
    let server = Server::start(|_, number| match number {
        0 | 1 => Answer::Nothing,
        2 => error(503, "unavailable", 75),
        _ => Answer::Json(200, json!({"id": "7", "repeated": true})),
    });
    let submitted = client(&server).submit(&job()).unwrap();
    assert!(submitted.repeated);
    let seen = server.seen.lock().unwrap();
    let keys: Vec<_> = seen.iter().map(|s| s.headers["idempotency-key"].clone()).collect();
    assert_eq!(keys.len(), 4);
    assert!(keys.iter().all(|k| *k == keys[0] && k.len() == 32));
    assert!(seen.iter().all(|s| s.body == seen[0].body));
}

#[test]
fn a_given_key_is_used_and_new_ones_differ() {
    let server = Server::start(|_, _| Answer::Json(200, json!({"id": "7"})));
    let client = client(&server);
    client.submit(&Submit { key: Some("mine".into()), ..job() }).unwrap();
    client.submit(&job()).unwrap();
    client.submit(&job()).unwrap();
    let seen = server.seen.lock().unwrap();
    let keys: Vec<_> = seen.iter().map(|s| &s.headers["idempotency-key"]).collect();
    assert_eq!(keys[0], "mine");
    assert_ne!(keys[1], keys[2]);
}

#[test]
fn a_batch_has_a_key_for_each() {
    let server = Server::start(|_, number| match number {
        0 => Answer::Nothing,
        _ => Answer::Json(
            200,
            json!([
                {"id": "7"},
                {"error": {"code": "impossible", "message": "no", "exit": 5}},
            ]),
        ),
    });
    let mut jobs = vec![job(), job()];
    jobs[1].key = Some("mine".into());
    let results = client(&server).submit_batch(jobs).unwrap();
    assert!(matches!(&results[0], SubmitResult::Submitted(s) if s.id.job == JobId(7)));
    assert!(matches!(&results[1], SubmitResult::Refused { error } if error.exit == 5));
    let seen = server.seen.lock().unwrap();
    let sent: Vec<Submit> = serde_json::from_slice(&seen[0].body).unwrap();
    assert_eq!(sent[0].key.as_ref().map(String::len), Some(32));
    assert_eq!(sent[1].key.as_deref(), Some("mine"));
    assert_eq!(seen[0].body, seen[1].body);
}

/// Whoever gives up must know whether to look for what they asked for.
#[test]
fn a_lost_answer_is_told_from_a_question_that_never_arrived() {
    let server = Server::start(|_, number| match number {
        0 => Answer::Nothing,
        _ => error(503, "unavailable", 75),
    });
    let patience = Duration::from_millis(100);
    let error = client(&server).with_patience(patience).submit(&job()).unwrap_err();
    assert!(error.may_be_done(), "{error:?}");
    let nobody = ClusterRef::new(&format!("127.0.0.1:{}", dead_port()), token(PIN)).unwrap();
    let error = Client::connect(&nobody).with_patience(patience).submit(&job()).unwrap_err();
    assert!(error.is_unreachable() && !error.may_be_done(), "{error:?}");
}

/// The controller took it, died, and did not come back.
#[test]
fn a_lost_answer_is_remembered_when_nobody_is_there_any_more() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let dying = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        let mut taken = [0; 4096];
        std::io::Read::read(&mut stream, &mut taken).unwrap()
    });
    let client = Client::connect(&ClusterRef::new(&address, token(PIN)).unwrap());
    let error = client.with_patience(Duration::from_millis(300)).submit(&job()).unwrap_err();
    assert!(error.may_be_done(), "{error:?}");
    assert!(dying.join().unwrap() > 0);
}

#[test]
fn what_may_not_be_asked_twice_is_asked_once() {
    let server = Server::start(|_, _| Answer::Nothing);
    let error = client(&server).cancel(TASK).unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    assert_eq!(error.exit_code(), 75);
    assert_eq!(server.lines().len(), 1);
}

/// A port where nobody listens.
fn dead_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn nobody_there_is_75_and_says_where() {
    let address = format!("127.0.0.1:{}", dead_port());
    let cluster = ClusterRef::new(&address, token(PIN)).unwrap();
    let client = Client::connect(&cluster).with_patience(Duration::ZERO);
    for error in [client.nodes().unwrap_err(), client.submit(&job()).unwrap_err()] {
        assert_eq!(error.exit_code(), 75);
        assert!(error.to_string().contains(&address), "{error}");
        assert!(error.hint().unwrap().contains("tutti up"));
    }
}

#[test]
fn a_controller_that_moved_is_found_again() {
    let (ca, server) = secure_with(|_, _| Answer::Json(200, json!({"id": "7"})));
    let dir = tempfile::tempdir().unwrap();
    let token = TokenText::mint(Kind::Access, ca.pin()).unwrap();
    write_cluster(dir.path(), &format!("127.0.0.1:{}", dead_port()), &token);
    let cluster = ClusterRef::find(&lookup(dir.path())).unwrap();
    std::fs::write(dir.path().join("endpoint"), format!("{}\n", server.address)).unwrap();
    Client::connect(&cluster).submit(&job()).unwrap();
}

#[test]
fn errors_become_exit_codes() {
    let cases: Vec<(Answer, i32)> = vec![
        (error(401, "denied", 0), 4),
        (error(403, "denied", 4), 4),
        (error(404, "not_found", 0), 3),
        (error(400, "invalid", 0), 2),
        (error(422, "impossible", 5), 5),
        (error(503, "unavailable", 0), 75),
        (error(500, "internal", 0), 1),
        (Answer::Text(503, "<html>"), 75),
        (Answer::Text(502, "<html>"), 1),
        (Answer::Text(301, ""), 1),
        (Answer::Text(200, "<html>no controller"), 1),
    ];
    let (sender, answers) = mpsc::channel();
    let answers = Mutex::new(answers);
    let server = Server::start(move |_, _| answers.lock().unwrap().recv().unwrap());
    let client = client(&server);
    for (answer, exit) in cases {
        sender.send(answer).unwrap();
        let error = client.nodes().unwrap_err();
        assert_eq!(error.exit_code(), exit, "{error:?}");
    }
}

fn line(text: &str) -> String {
    let event = LogEvent::Line {
        rank: 0,
        at: tutti_model::Time(1),
        stream: crate::stream::LogStream::Out,
        text: text.to_owned(),
        raw: None,
        partial: false,
    };
    format!("event: line\ndata: {}\n\n", serde_json::to_string(&event).unwrap())
}

const END: &str = "event: end\ndata: {\"type\":\"end\",\"state\":null,\"exit_code\":0}\n\n";

fn logs(text: &str, size: usize, whole: bool) -> Vec<Result<LogEvent, ClientError>> {
    let chunks: Vec<Vec<u8>> = text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
    let server = Server::start(move |_, _| Answer::Stream(chunks.clone(), whole));
    client(&server).logs(TASK, &LogQuery::default()).unwrap().collect()
}

#[test]
fn logs_come_line_by_line_and_end() {
    let text = format!(": hello\n\n{}{}{END}", line("eins"), line("zwei ä"));
    for size in [1, 7, 4096] {
        let got: Vec<LogEvent> = logs(&text, size, true).into_iter().map(Result::unwrap).collect();
        assert_eq!(got.len(), 3);
        assert!(matches!(&got[1], LogEvent::Line { text, .. } if text == "zwei ä"));
        assert!(matches!(got[2], LogEvent::End { exit_code: Some(0), .. }));
    }
    assert_eq!(logs(&text, 4096, false).len(), 3, "a cut after the end is no error");
}

#[test]
fn a_broken_stream_is_told_from_one_that_ended() {
    for whole in [true, false] {
        let got = logs(&line("eins"), 4096, whole);
        assert_eq!(got.len(), 2);
        let error = got[1].as_ref().unwrap_err();
        assert!(matches!(error, ClientError::Interrupted(_)), "{error:?}");
        assert_eq!(error.exit_code(), 75);
    }
    let refused = "event: error\ndata: {\"code\":\"x\",\"message\":\"node lost\",\"exit\":1}\n\n";
    let got = logs(refused, 4096, true);
    assert_eq!(got[0].as_ref().unwrap_err().to_string(), "node lost");
    assert!(matches!(logs("data: nonsense\n\n", 4096, true)[0], Err(ClientError::Answer(_))));
}

#[test]
fn a_reader_that_is_told_to_stop_does() {
    let text = format!("{}{}{END}", line("eins"), line("zwei"));
    let server = Server::start(move |_, _| Answer::Stream(vec![text.clone().into_bytes()], true));
    let stop = Arc::new(AtomicBool::new(false));
    let logs = client(&server).logs(TASK, &LogQuery::default()).unwrap();
    let mut logs = logs.until(Arc::clone(&stop));
    assert!(matches!(logs.next(), Some(Ok(LogEvent::Line { .. }))));
    stop.store(true, Ordering::SeqCst);
    assert!(matches!(logs.next(), Some(Err(ClientError::Interrupted(None)))));
    assert!(logs.next().is_none());
}

#[test]
fn exec_ends_with_the_program() {
    let server = Server::start(|_, _| {
        let text = "data: {\"type\":\"started\",\"session\":\"s1\"}\n\n\
                    data: {\"type\":\"data\",\"stream\":\"out\",\"data\":\"aGk=\"}\n\n\
                    data: {\"type\":\"exited\",\"code\":3}\n\n";
        Answer::Stream(vec![text.as_bytes().to_vec()], true)
    });
    let request = ExecRequest { rank: 0, argv: vec!["ls".into()] };
    let got: Result<Vec<_>, _> = client(&server).exec(TASK, &request).unwrap().collect();
    let got = got.unwrap();
    assert_eq!(got[0], ExecEvent::Started { session: "s1".into() });
    assert_eq!(got[2], ExecEvent::Exited { code: 3 });
}

/// Gives its second piece only after the server has told of the first.
struct Typist {
    heard: mpsc::Receiver<Vec<u8>>,
    pieces: Vec<&'static [u8]>,
}

impl Read for Typist {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.pieces.len() < 2 {
            assert_eq!(self.heard.recv().unwrap(), b"first");
        }
        let Some(piece) = (!self.pieces.is_empty()).then(|| self.pieces.remove(0)) else {
            return Ok(0);
        };
        buffer[..piece.len()].copy_from_slice(piece);
        Ok(piece.len())
    }
}

#[test]
fn input_is_sent_as_it_comes() {
    let server = Server::start(|_, _| Answer::Text(204, ""));
    let (sender, heard) = mpsc::channel();
    *server.pieces.lock().unwrap() = Some(sender);
    let typist = Typist { heard, pieces: vec![b"first", b"first"] };
    // The end of the input is the second thing that waits for the server.
    client(&server).put_stdin(TASK, Rank(0), false, typist).unwrap();
    assert_eq!(server.seen.lock().unwrap()[0].body, b"firstfirst");
}

#[test]
fn input_that_fails_is_told_from_a_lost_controller() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("disk"))
        }
    }
    let server = Server::start(|_, _| Answer::Text(200, ""));
    let error = client(&server).put_stdin(TASK, Rank(0), false, Broken).unwrap_err();
    assert!(matches!(error, ClientError::Input(_)), "{error:?}");
}

fn secure() -> (Ca, Server) {
    secure_with(|_, _| changed())
}

fn secure_with(
    handler: impl Fn(&server::Seen, usize) -> Answer + Send + Sync + 'static,
) -> (Ca, Server) {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::create_in(dir.path()).unwrap();
    let identity = ServerIdentity::issue(&ca, &[]).unwrap();
    let config = crate::tls::server_config(&ca, &identity).unwrap();
    (ca, Server::start_tls(config, handler))
}

#[test]
fn https_with_the_right_pin_works_for_name_and_address() {
    let (ca, server) = secure();
    for host in ["127.0.0.1", "localhost"] {
        let address = format!("https://{host}:{}", server.address.port());
        let token = TokenText::mint(Kind::Access, ca.pin()).unwrap();
        let client = Client::connect(&ClusterRef::new(&address, token).unwrap());
        for _ in 0..2 {
            assert_eq!(client.cancel(TASK).unwrap().changed, 1);
        }
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn a_token_is_not_shown_to_another_cluster() {
    let (_, server) = secure();
    let address = format!("https://{}", server.address);
    let client = Client::connect(&ClusterRef::new(&address, token(PIN)).unwrap());
    let error = client.submit(&job()).unwrap_err();
    assert!(matches!(error, ClientError::NotTrusted { .. }), "{error:?}");
    assert_eq!(error.exit_code(), 4);
    assert_eq!(server.lines(), Vec::<String>::new());
    assert_eq!(server.connections.load(Ordering::SeqCst), 1, "not tried again");
}

#[test]
fn a_refused_certificate_is_no_lost_controller() {
    let client = Client::connect(&ClusterRef::new("head:7410", token(PIN)).unwrap());
    let refused = || rustls::Error::InvalidCertificate(rustls::CertificateError::NotValidForName);
    let wrapped = io::Error::new(io::ErrorKind::InvalidData, refused());
    for error in [ureq::Error::Io(wrapped), ureq::Error::Rustls(refused())] {
        let error = client.not_reached(error, Instant::now());
        assert!(matches!(error, ClientError::BadCertificate { .. }), "{error:?}");
        assert_eq!(error.exit_code(), 4);
        assert!(!error.is_unreachable());
    }
}

#[test]
fn plain_http_where_tls_is_spoken_is_unreachable_not_a_hang() {
    let (_, server) = secure();
    let error = client(&server).nodes().unwrap_err();
    assert_eq!(error.exit_code(), 75, "{error:?}");
}

#[test]
fn joining_checks_the_ca_that_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::create_in(dir.path()).unwrap();
    let pem = ca.pem().to_owned();
    let server =
        Server::start(move |_, _| Answer::Json(200, json!({"certificate": "x", "ca": pem})));
    let request = JoinRequest { node: "n".into(), csr: "c".into() };
    assert!(matches!(client(&server).join(&request), Err(ClientError::NotTrusted { .. })));
    let token = TokenText::mint(Kind::Join, ca.pin()).unwrap();
    let cluster = ClusterRef::new(&format!("http://{}", server.address), token).unwrap();
    assert_eq!(Client::connect(&cluster).join(&request).unwrap().ca, ca.pem());
}

fn lookup(dir: &Path) -> Lookup<'_> {
    Lookup { flag: None, cluster: None, token: None, default_data_dir: dir, home: None }
}

fn write_cluster(dir: &Path, endpoint: &str, token: &TokenText) {
    std::fs::write(dir.join("endpoint"), format!("{endpoint}\n")).unwrap();
    std::fs::write(dir.join("admin.token"), format!("{token}\n")).unwrap();
}

#[test]
fn a_cluster_is_found_by_its_directory() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (admin, mine) = (token(PIN), token(PIN));
    write_cluster(dir.path(), "0.0.0.0:7410", &admin);
    let found = ClusterRef::find(&lookup(dir.path())).unwrap();
    assert_eq!(found.endpoint.url(), "https://127.0.0.1:7410");
    assert_eq!(found.token.id, admin.id);

    let path = dir.path().to_str().unwrap();
    for named in [
        Lookup { flag: Some(path), cluster: Some("elsewhere"), ..lookup(other.path()) },
        Lookup { cluster: Some(path), ..lookup(other.path()) },
        Lookup { cluster: Some(""), ..lookup(dir.path()) },
    ] {
        assert_eq!(ClusterRef::find(&named).unwrap().token.id, admin.id);
    }

    // A token for this cluster is used, one for another is not.
    let (text, foreign) = (mine.to_string(), token("ffffffffffffffff").to_string());
    let found = ClusterRef::find(&Lookup { token: Some(&text), ..lookup(dir.path()) }).unwrap();
    assert_eq!(found.token.id, mine.id);
    let found = ClusterRef::find(&Lookup { token: Some(&foreign), ..lookup(dir.path()) }).unwrap();
    assert_eq!(found.token.id, admin.id);

    // Who has no admin token uses their own.
    std::fs::remove_file(dir.path().join("admin.token")).unwrap();
    let found = ClusterRef::find(&Lookup { token: Some(&text), ..lookup(dir.path()) }).unwrap();
    assert_eq!(found.token.id, mine.id);
    let error = ClusterRef::find(&lookup(dir.path())).unwrap_err();
    assert_eq!((error.exit_code(), error.hint().is_some()), (4, true));
}

#[test]
fn a_cluster_is_found_by_its_address() {
    let home = tempfile::tempdir().unwrap();
    let mine = token(PIN);
    let by = |address| {
        ClusterRef::find(&Lookup {
            flag: Some(address),
            home: Some(home.path()),
            ..lookup(Path::new("/nowhere"))
        })
    };
    assert!(matches!(by("head:7410"), Err(ClientError::NoToken { .. })));
    std::fs::create_dir_all(home.path().join(".config/tutti")).unwrap();
    let file = home.path().join(".config/tutti/token");
    std::fs::write(&file, format!("{mine}\n")).unwrap();
    assert_eq!(by("head:7410").unwrap().endpoint.url(), "https://head:7410");
    assert_eq!(by("https://10.0.0.1:7410/").unwrap().endpoint.url(), "https://10.0.0.1:7410");
    assert_eq!(by("127.0.0.1:7410").unwrap().endpoint.url(), "https://127.0.0.1:7410");
    assert_eq!(by("127.0.0.9:7410").unwrap().endpoint.url(), "https://127.0.0.9:7410");
    assert_eq!(by("[::1]:7410").unwrap().endpoint.url(), "https://[::1]:7410");
    assert_eq!(by("http://[::1]:7410").unwrap().endpoint.url(), "http://[::1]:7410");
    assert_eq!(by("https://localhost:7410").unwrap().endpoint.url(), "https://localhost:7410");
    assert_eq!(by("[fd00::1]:7410").unwrap().endpoint.url(), "https://[fd00::1]:7410");
    assert!(matches!(by("http://head:7410"), Err(ClientError::PlainText(_))));
    for bad in
        ["https://head", "ftp://head:1", "https://:1", "https://a b:1", "head:0", "https://h:x"]
    {
        let error = by(bad).unwrap_err();
        assert!(matches!(error, ClientError::BadAddress(_)), "{bad}: {error:?}");
        assert_eq!(error.exit_code(), 2);
    }
    std::fs::write(&file, "tutti_u_short").unwrap();
    let error = by("head:7410").unwrap_err();
    assert_eq!(error.exit_code(), 4);
    assert!(error.to_string().contains("config/tutti/token"), "{error}");
}

#[test]
fn a_missing_cluster_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none");
    let error = ClusterRef::find(&lookup(&missing)).unwrap_err();
    assert!(matches!(error, ClientError::NoDataDir { .. }));
    assert_eq!(error.exit_code(), 75);
    let hint = error.hint().unwrap();
    assert!(hint.contains("tutti up") && hint.contains("TUTTI_CLUSTER"), "{hint}");

    let error = ClusterRef::find(&lookup(dir.path())).unwrap_err();
    assert!(matches!(error, ClientError::NotStarted { .. }));
    assert_eq!(error.exit_code(), 75);
}

#[test]
fn the_default_data_dir() {
    let home = Some(Path::new("/home/ada"));
    let dir = |v, root, home| default_data_dir(v, root, home).display().to_string();
    assert_eq!(dir(Some(Path::new("/x")), true, home), "/x");
    assert_eq!(dir(None, true, home), "/var/lib/tutti");
    assert_eq!(dir(None, false, home), "/home/ada/.local/share/tutti");
    assert_eq!(dir(None, false, None), "/var/lib/tutti");
}

#[test]
fn a_cluster_found_by_its_directory_is_reached_over_its_socket() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start_unix(&dir.path().join(SOCKET_FILE), |_, _| changed());
    write_cluster(dir.path(), &format!("127.0.0.1:{}", dead_port()), &token(PIN));
    let client = Client::connect(&ClusterRef::find(&lookup(dir.path())).unwrap());
    for _ in 0..3 {
        assert_eq!(client.cancel(TASK).unwrap().changed, 1);
    }
    client.put_stdin(TASK, Rank(0), false, &b"input"[..]).unwrap();
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    let seen = server.seen.lock().unwrap();
    assert!(seen.iter().all(|s| s.headers["host"] == "localhost"), "{seen:?}");
    assert_eq!(seen[3].body, b"input");
}

/// While the controller is down, anybody on the machine may take its port.
#[test]
fn whoever_took_the_port_is_not_told_the_token() {
    let thief = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = thief.local_addr().unwrap().to_string();
    let heard = std::thread::spawn(move || {
        let (mut socket, _) = thief.accept().unwrap();
        let mut bytes = vec![0; 64 << 10];
        let n = socket.read(&mut bytes).unwrap();
        bytes.truncate(n);
        bytes
    });
    let dir = tempfile::tempdir().unwrap();
    let admin = token(PIN);
    write_cluster(dir.path(), &address, &admin);
    let client = Client::connect(&ClusterRef::find(&lookup(dir.path())).unwrap());
    assert!(client.with_patience(Duration::ZERO).cancel(TASK).is_err());
    let heard = heard.join().unwrap();
    assert_eq!(heard[0], 0x16, "a TLS handshake");
    let secret = admin.to_string();
    assert!(!heard.windows(secret.len()).any(|w| w == secret.as_bytes()));

    // Nor is it asked at all where a socket was left behind.
    drop(std::os::unix::net::UnixListener::bind(dir.path().join(SOCKET_FILE)).unwrap());
    let thief = TcpListener::bind(&address).unwrap();
    thief.set_nonblocking(true).unwrap();
    let client = Client::connect(&ClusterRef::find(&lookup(dir.path())).unwrap());
    assert!(client.cancel(TASK).unwrap_err().is_unreachable());
    assert_eq!(thief.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Somebody else's directory, with all that a cluster has: where it is, a socket for everybody, and a
/// token for those who bring none.
#[test]
fn a_directory_of_somebody_else_gets_no_token() {
    use std::os::unix::fs::chown;
    let dir = tempfile::tempdir().unwrap();
    let thief = Server::start_unix(&dir.path().join(SOCKET_FILE), |_, _| changed());
    let own = token(PIN).to_string();
    let find = || {
        ClusterRef::find(&Lookup { token: Some(&own), ..lookup(dir.path()) })
            .and_then(|cluster| Client::connect(&cluster).cancel(TASK))
    };
    write_cluster(dir.path(), "http://127.0.0.1:1", &token(PIN));
    set_mode(dir.path(), 0o777);
    let error = find().unwrap_err();
    assert!(matches!(error, ClientError::Open { .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("chmod go-w"), "{error:?}");
    assert_eq!(error.exit_code(), exit::DENIED);
    set_mode(dir.path(), 0o755);
    if nix::unistd::geteuid().is_root() {
        for name in ["", "endpoint", "admin.token"] {
            let path = dir.path().join(name);
            chown(&path, Some(61_001), None).unwrap();
            let error = find().unwrap_err();
            assert!(matches!(error, ClientError::Foreign { .. }), "{name}: {error:?}");
            let (said, hint) = (error.to_string(), error.hint().unwrap());
            assert!(said.contains("belongs to user 61001, and this runs as root"), "{said}");
            assert!(hint.contains("sudo -u '#61001'") && hint.contains("TUTTI_TOKEN"), "{hint}");
            chown(&path, Some(0), None).unwrap();
        }
        // Without a token of its own as well, and where root's own token is said to lie there.
        std::fs::remove_file(dir.path().join("admin.token")).unwrap();
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), &own).unwrap();
        std::os::unix::fs::symlink(home.path().join("token"), dir.path().join("admin.token"))
            .unwrap();
        let error = ClusterRef::find(&lookup(dir.path())).unwrap_err();
        assert!(matches!(error, ClientError::File { .. }), "{error:?}");
        assert_eq!(error.hint(), None);
    }
    assert!(thief.lines().is_empty(), "{:?}", thief.lines());
}

/// In place of the controller, behind a directory that looks right.
#[test]
fn a_process_of_somebody_else_gets_no_token() {
    use std::os::unix::net::UnixListener;
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SOCKET_FILE);
    // Whoever listens is who the kernel names: here a thread with another user's id.
    let thief = std::thread::spawn(move || {
        let socket = UnixListener::bind(&path).unwrap();
        // SAFETY: plain numbers. The raw call changes this thread alone, which ends here.
        let switched = unsafe { nix::libc::syscall(nix::libc::SYS_setresuid, -1, 61_001, -1) };
        assert_eq!(switched, 0);
        nix::sys::socket::listen(&socket, nix::sys::socket::Backlog::new(8).unwrap()).unwrap();
        socket
    });
    let thief = thief.join().unwrap();
    write_cluster(dir.path(), "127.0.0.1:1", &token(PIN));
    let client = Client::connect(&ClusterRef::find(&lookup(dir.path())).unwrap());
    for error in [client.cancel(TASK).unwrap_err(), client.submit(&job()).unwrap_err()] {
        assert!(matches!(error, ClientError::ForeignPeer(_)), "{error:?}");
        assert!(error.to_string().contains("a process of user 61001 answers"), "{error}");
        assert!(error.to_string().contains(SOCKET_FILE), "{error}");
        assert_eq!((error.exit_code(), error.is_unreachable()), (exit::DENIED, false));
        assert!(error.hint().is_some());
        let (mut met, _) = thief.accept().unwrap();
        let mut heard = Vec::new();
        met.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"", "nothing was said");
    }
}

/// Root with the home of whoever called sudo.
#[test]
fn a_token_file_of_somebody_else_is_not_used() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join(".config/tutti/token");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, token(PIN).to_string()).unwrap();
    let find = || {
        let home = Some(home.path());
        ClusterRef::find(&Lookup { flag: Some("head:1"), home, ..lookup(Path::new("/nowhere")) })
    };
    find().unwrap();
    set_mode(&file, 0o666);
    assert!(matches!(find(), Err(ClientError::Open { .. })));
    set_mode(&file, 0o600);
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(61_001), None).unwrap();
        assert!(matches!(find(), Err(ClientError::Foreign { .. })));
    }
}

#[test]
fn a_directory_with_too_long_a_name_is_reached_with_tls() {
    let (ca, server) = secure();
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("d".repeat(SOCKET_PATH_MAX));
    std::fs::create_dir(&deep).unwrap();
    std::fs::write(deep.join(SOCKET_FILE), "").unwrap();
    let token = TokenText::mint(Kind::Access, ca.pin()).unwrap();
    write_cluster(&deep, &server.address.to_string(), &token);
    let client = Client::connect(&ClusterRef::find(&lookup(&deep)).unwrap());
    assert_eq!(client.cancel(TASK).unwrap().changed, 1);
}

proptest::proptest! {
    #[test]
    fn random_addresses_never_panic(text in ".{0,60}") {
        if let Ok(endpoint) = Endpoint::parse(&text) {
            proptest::prop_assert_eq!(Endpoint::parse(&endpoint.url()).unwrap(), endpoint);
        }
    }
}

/// Stopped or hung: its sockets are there, and nobody is behind them.
#[test]
fn a_controller_that_hangs_is_not_waited_for_without_end() {
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
    };
    use std::os::fd::AsRawFd;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SOCKET_FILE);
    let make = |flags| socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
    let (hung, address) = (make(SockFlag::empty()), UnixAddr::new(&path).unwrap());
    bind(hung.as_raw_fd(), &address).unwrap();
    listen(&hung, Backlog::new(1).unwrap()).unwrap();
    write_cluster(dir.path(), "127.0.0.1:1", &token(PIN));
    let limits = Limits { answer: Duration::from_millis(300), notice: None };
    let client = || {
        let client = Client::connect(&ClusterRef::find(&lookup(dir.path())).unwrap());
        client.with_limits(limits).with_patience(Duration::ZERO)
    };
    let began = Instant::now();
    let error = client().cancel(TASK).unwrap_err();
    assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
    assert!(error.is_unreachable() && error.exit_code() == exit::UNREACHABLE);
    assert!(error.hint().unwrap().contains("--timeout"), "{error:?}");
    let stream = client().logs(TASK, &LogQuery::default()).unwrap_err();
    assert!(matches!(stream, ClientError::Silent { .. }), "{stream:?}");
    // Its queue is full, and the system would make everybody wait.
    let waiting: Vec<_> = std::iter::repeat_with(|| {
        let fd = make(SockFlag::SOCK_NONBLOCK);
        connect(fd.as_raw_fd(), &address).map(|()| fd)
    })
    .take(64)
    .map_while(Result::ok)
    .collect();
    assert!(waiting.len() < 64, "the queue is full");
    let error = client().cancel(TASK).unwrap_err();
    assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
