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
    Notifier::start(dir.path()).tell(&notify, &Event::began(&alert()));
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

/// Written by another process: what is open for writing here, or in a child that a test beside this one
/// has just forked, can't be run.
fn script(dir: &Path, name: &str, script: &str) {
    let hooks = dir.join(HOOKS);
    std::fs::create_dir_all(&hooks).unwrap();
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod +x \"$2\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", write, "sh", script]).arg(hooks.join(name));
    assert!(shell.status().unwrap().success());
}

#[tokio::test]
async fn programs_get_it_on_their_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    script(dir.path(), "email", &format!("cat > {0}.new && mv {0}.new {0}", out.display()));
    let to = ["ops@example.org".to_owned(), "ada@example.org".to_owned()];
    let input = mail::message(&to, "began", &alert());
    hook::feed(&dir.path().join(HOOKS).join(MAIL), &input).await.unwrap();
    let message = std::fs::read_to_string(out).unwrap();
    let (head, body) = message.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("To: ops@example.org, ada@example.org\r\nSubject: [tutti] job 7"));
    assert!(body.starts_with("job 7 (train of ada): its GPU does nothing"), "{body}");
    assert!(body.contains("since:  1970-01-01 00:00:01 UTC\r\n"), "{body}");
}

#[tokio::test]
async fn what_fails_says_why() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "bad", "echo 'no such' >&2; echo list >&2; exit 3");
    script(dir.path(), "quiet", "exit 3");
    let hooks = dir.path().join(HOOKS);
    let failed = hook::feed(&hooks.join("bad"), "{}").await.unwrap_err().to_string();
    assert!(failed.ends_with("bad ended with exit status: 3 and said: no such list"), "{failed}");
    let failed = hook::feed(&hooks.join("quiet"), "{}").await.unwrap_err().to_string();
    assert!(failed.ends_with("and said: nothing"), "{failed}");
    let missing = hook::feed(&hooks.join("none"), "{}").await.unwrap_err();
    assert!(matches!(missing, NotTold::Run { .. }), "{missing}");
    let nobody = post::post("http://127.0.0.1:1/", "{}").await.unwrap_err();
    assert!(matches!(nobody, NotTold::Connect(..)), "{nobody}");
    let (url, _inbox) = listener(&["404 Not Found"]).await;
    let refused = post::post(&url, "{\"a\":{}}").await.unwrap_err();
    assert_eq!(refused.to_string(), "it was answered with 404 Not Found");
}

#[tokio::test]
async fn of_one_that_talks_much_the_last_words_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    // More than a pipe holds, so that somebody must read it.
    let talk = "head -c 200000 /dev/zero | tr '\\0' x >&2; echo ' the end' >&2; exit 1";
    script(dir.path(), "talks", talk);
    let error = hook::feed(&dir.path().join(HOOKS).join("talks"), "{}").await.unwrap_err();
    let NotTold::Failed { said, .. } = error else { panic!("{error}") };
    assert!(said.starts_with("xxx") && said.ends_with(" the end"), "{said}");
    // The newline at its end is not shown.
    assert_eq!(said.len(), 1023);
}

/// One that leaves something in the background has done its work when it ends itself.
#[tokio::test]
async fn what_a_program_leaves_behind_is_neither_waited_for_nor_killed() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    script(dir.path(), "leaves", &format!("sleep 1000 & echo $! > {}", pid.display()));
    let program = dir.path().join(HOOKS).join("leaves");
    let errand = Errand::Run { program, input: "{}".into() };
    insist(&errand, Duration::from_secs(60)).await.unwrap();
    let left: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
    assert!(is_alive(left));
    let left = nix::unistd::Pid::from_raw(left);
    nix::sys::signal::kill(left, nix::sys::signal::Signal::SIGKILL).unwrap();
}

/// One that nobody has asked after yet is as dead as one that is gone.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

async fn eventually(is_so: impl Fn() -> bool) {
    let asking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking).await.expect("it comes to pass");
}

#[tokio::test]
async fn a_program_that_takes_too_long_goes_with_all_that_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let line = format!("sleep 1000 & echo $! > {0}.new && mv {0}.new {0}; wait", pid.display());
    script(dir.path(), "hangs", &line);
    let program = dir.path().join(HOOKS).join("hangs");
    // Nobody waits for it any more once this has made its choice.
    tokio::select! {
        ended = hook::feed(&program, "{}") => panic!("{ended:?}"),
        () = eventually(|| pid.exists()) => {}
    }
    let started: i32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    eventually(|| !is_alive(started)).await;
}

#[tokio::test]
async fn a_program_that_takes_too_long_is_not_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let tries = dir.path().join("tries");
    script(dir.path(), "hangs", &format!("echo once >> {}; exec sleep 1000", tries.display()));
    let program = dir.path().join(HOOKS).join("hangs");
    let errand = Errand::Run { program, input: "{}".into() };
    let late = insist(&errand, Duration::from_millis(500)).await.unwrap_err();
    assert!(matches!(late, NotTold::Late), "{late}");
    // On a slow machine not even once.
    let tried = std::fs::read_to_string(tries).unwrap_or_default();
    assert!(tried.lines().count() <= 1, "{tried}");
}

#[test]
fn a_log_names_the_host_of_a_webhook_and_no_more() {
    let url = "https://hooks.example.org/T00/secret".to_owned();
    let to = Errand::Post { url, body: String::new() }.to();
    assert_eq!(to, "https://hooks.example.org/…");
}

#[tokio::test]
async fn what_jobs_ask_for_is_not_sent_unless_the_operator_wants_it() {
    let (url, mut inbox) = listener(&["204 No Content"]).await;
    let dir = tempfile::tempdir().unwrap();
    let notifier = Notifier::start(dir.path());
    let notify = Notify { webhook: Some(url), ..Notify::default() };
    let of_job = Alert { asked_by: AskedBy::Job, ..alert() };
    notifier.tell(&notify, &Event::began(&of_job));
    let of_jobs = Notify { of_jobs: true, ..notify };
    notifier.tell(&of_jobs, &Event::ended(&of_job));
    // They are sent in their order, so the first was not.
    let request = inbox.recv().await.unwrap();
    assert!(request.contains("\"event\":\"ended\""), "{request}");
}
