use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tutti_testkit::{Cli, PATIENCE, Proc, processes_of, wait_until};

use crate::TUTTI;
use crate::up::Place;

/// In the foreground, so that what dies comes back.
const UP: [&str; 10] = [
    "up",
    "--nodes",
    "2",
    "--gpus-per-node",
    "2",
    "--simulate",
    "--listen",
    "127.0.0.1:0",
    "--router-listen",
    "127.0.0.1:0",
];

fn recipe(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/serve").join(name)
}

/// What is to be served, in a directory of its own.
fn pages() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("tutti-pages-").tempdir().unwrap();
    std::fs::write(dir.path().join("hello.txt"), "hello from a replica\n").unwrap();
    dir
}

fn url(place: &Place) -> String {
    std::fs::read_to_string(place.path().join("router")).unwrap_or_default().trim().to_owned()
}

/// Status and body, or none if nobody answers.
fn get(url: &str) -> Option<(u16, String)> {
    let (authority, path) = url.strip_prefix("http://")?.split_once('/')?;
    let mut stream = TcpStream::connect(authority).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let head = format!("GET /{path} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split_whitespace().nth(1)?.parse().ok()?;
    Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
}

fn process(place: &Place, verb: &str) -> Option<Proc> {
    let word = format!(" {verb} ");
    processes_of(place.path()).into_iter().find(|p| p.name == "tutti" && p.cmdline.contains(&word))
}

#[test]
fn an_endpoint_answers_over_deaths_of_router_and_controller() {
    let (place, pages) = (Place::new(), pages());
    let up = place.tutti(&UP).spawn();
    wait_until("the cluster is up", PATIENCE, || {
        place.ask(&["nodes"]).call().out.matches("ready").count() == 2 && !url(&place).is_empty()
    });
    let file = recipe("http.toml");
    let served = place.ask(&["serve", file.to_str().unwrap()]).dir(pages.path()).call();
    served.exited(0).says(&["replica (job", "ready on n", "files answers: 2 replicas ready"]);
    assert_eq!(served.out.trim(), "files");

    let url = url(&place);
    let page = format!("{url}/e/files/hello.txt");
    let answers = || get(&page) == Some((200, "hello from a replica\n".to_owned()));
    assert!(answers(), "{:?}", get(&page));
    let list = place.ask(&["endpoints"]).ok();
    assert!(list.lines().any(|l| l.starts_with("files") && l.contains(" 2/2 ")), "{list}");
    let shown = place.ask(&["endpoints", "show", "files"]).ok();
    assert!(shown.contains("2 of 2 ready") && shown.contains(&url), "{shown}");
    assert!(place.ask(&["why", "files"]).ok().contains("files is ready"));

    let router = process(&place, "router").expect("it runs");
    router.signal(Signal::SIGKILL);
    wait_until("the router is back at the same place", PATIENCE, || {
        !router.is_alive() && answers()
    });

    process(&place, "controller").expect("it runs").signal(Signal::SIGSTOP);
    assert!(answers(), "a router goes on without its controller");
    process(&place, "controller").expect("it is there").signal(Signal::SIGCONT);

    place.ask(&["endpoints", "scale", "files", "1"]).ok();
    wait_until("one replica is left", PATIENCE, || {
        place.ask(&["endpoints"]).ok().contains(" 1/1 ")
    });
    assert!(answers());
    place.ask(&["endpoints", "stop", "files"]).ok();
    wait_until("it is gone", PATIENCE, || place.ask(&["endpoints"]).ok().contains("no endpoint"));
    place.ask(&["endpoints", "show", "files"]).call().exited(3);
    let stopped = place.ask(&["endpoints", "--stopped"]).ok();
    assert!(stopped.contains("files") && stopped.contains("stopped "), "{stopped}");
    let report = place.ask(&["report"]).ok();
    assert!(report.contains("endpoints (totals") && report.contains("files"), "{report}");
    up.signal(Signal::SIGINT);
    up.finish().exited(0);
    assert!(processes_of(place.path()).is_empty(), "{:?}", processes_of(place.path()));
}

#[test]
fn replicas_that_fail_are_told_with_their_log() {
    let place = Place::new();
    place.tutti(&[&UP[..], &["-d"]].concat()).ok();
    let file = place.path().join("broken.toml");
    std::fs::write(&file, "run = 'echo no model >&2; exit 3'\n[service]\n").unwrap();
    let failed = place.ask(&["serve", file.to_str().unwrap()]).call();
    failed.exited(1).says(&["broken does not answer", "tutti logs "]);
    assert_eq!(failed.out.trim(), "broken");
    let job = failed.err.split("tutti logs ").nth(1).unwrap().split_whitespace().next().unwrap();
    place.ask(&["logs", job]).call().says(&["no model"]);
    place.ask(&["serve", file.to_str().unwrap(), "-d"]).call().says(&["broken"]);
    place.tutti(&["down"]).call().exited(0).says(&["router"]);
}

#[test]
fn a_router_stays_on_this_machine_without_tls() {
    let router = |args: &[&str]| Cli::new(Path::new(TUTTI), &[&["router"], args].concat()).call();
    let refused = router(&["--listen", "0.0.0.0:0"]);
    refused.exited(2).says(&["for everybody to read", "--tls-cert", "--insecure-plain"]);
    let refused = router(&["--tls-cert", "/no/c.pem", "--tls-key", "/no/k.pem"]);
    refused.exited(2).says(&["/no/c.pem is no certificate"]);
}

#[test]
fn up_without_a_router_has_none() {
    let place = Place::new();
    let up = ["up", "--nodes", "1", "--simulate", "--listen", "127.0.0.1:0", "--no-router", "-d"];
    place.tutti(&up).ok();
    assert!(process(&place, "router").is_none() && url(&place).is_empty());
    place.tutti(&["down"]).ok();
}
