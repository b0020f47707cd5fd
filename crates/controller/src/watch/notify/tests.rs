use std::os::unix::fs::PermissionsExt;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tutti_model::{AlertJob, AskedBy, JobId, Subject, TaskId, Time, WatchAction, WatchRule};

use super::*;

fn alert() -> Alert {
    Alert {
        id: 4,
        rule: WatchRule::Idle,
        subject: Subject::Job { id: TaskId::single(JobId(7)) },
        asked_by: AskedBy::Policy,
        action: WatchAction::Tell,
        text: "its GPU does nothing (under 3% busy): n1 GPU 0".into(),
        job: Some(AlertJob { name: "train".into(), user: "ada".into() }),
        since: Time(1000),
        fired_at: Time(2000),
        ended_at: None,
    }
}

/// Answers each request with the next status, and gives back what it was sent.
async fn listener(statuses: &'static [&'static str]) -> (String, mpsc::Receiver<String>) {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook?x=1", socket.local_addr().unwrap());
    let (heard, inbox) = mpsc::channel(9);
    tokio::spawn(async move {
        for status in statuses {
            let (mut stream, _) = socket.accept().await.unwrap();
            let mut text = String::new();
            let mut buffer = [0; 4096];
            while !text.ends_with("}}") {
                let n = stream.read(&mut buffer).await.unwrap();
                text.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
            }
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            heard.send(text).await.unwrap();
        }
    });
    (url, inbox)
}

#[tokio::test]
async fn a_webhook_is_tried_again_until_it_is_taken() {
    let (url, mut inbox) = listener(&["503 Busy", "204 No Content"]).await;
    let dir = tempfile::tempdir().unwrap();
    let notify = Notify { webhook: Some(url), ..Notify::default() };
    Notifier::start(dir.path()).tell(&notify, Event::began(&alert()));
    for _ in 0..2 {
        let request = inbox.recv().await.unwrap();
        assert!(request.starts_with("POST /hook?x=1 HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let value: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(value["event"], "began");
        assert_eq!(value["alert"]["rule"], "idle");
        assert_eq!(value["alert"]["subject"]["id"], "7");
    }
}

fn hook(dir: &Path, name: &str, script: &str) {
    let hooks = dir.join(HOOKS);
    std::fs::create_dir_all(&hooks).unwrap();
    std::fs::write(hooks.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(hooks.join(name), mode).unwrap();
}

#[tokio::test]
async fn programs_get_it_on_their_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    hook(dir.path(), "email", &format!("cat > {0}.new && mv {0}.new {0}", out.display()));
    let to = ["ops@example.org".to_owned(), "ada@example.org".to_owned()];
    let input = mail::message(&to, "began", &alert());
    feed(&dir.path().join(HOOKS).join(MAIL), &input).await.unwrap();
    let message = std::fs::read_to_string(out).unwrap();
    let (head, body) = message.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("To: ops@example.org, ada@example.org\r\nSubject: [tutti] job 7"));
    assert!(body.starts_with("job 7 (train of ada): its GPU does nothing"), "{body}");
}

#[tokio::test]
async fn what_fails_says_why() {
    let dir = tempfile::tempdir().unwrap();
    hook(dir.path(), "bad", "exit 3");
    let hooks = dir.path().join(HOOKS);
    let failed = feed(&hooks.join("bad"), "{}").await.unwrap_err();
    assert!(matches!(failed, NotTold::Failed { .. }), "{failed}");
    let missing = feed(&hooks.join("none"), "{}").await.unwrap_err();
    assert!(matches!(missing, NotTold::Run { .. }), "{missing}");
    let nobody = post::post("http://127.0.0.1:1/", "{}").await.unwrap_err();
    assert!(matches!(nobody, NotTold::Connect(..)), "{nobody}");
    let (url, _inbox) = listener(&["404 Not Found"]).await;
    let refused = post::post(&url, "{\"a\":{}}").await.unwrap_err();
    assert_eq!(refused.to_string(), "it was answered with 404 Not Found");
}
