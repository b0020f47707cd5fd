//! Checkpoints in a real S3 server: moto, started for the test on loopback.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{load_and_check, options, save_with};
use tutti_checkpoint::{Error, Keep, Options, Selector, Store};

struct Moto {
    child: Child,
    endpoint: String,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// None where moto is not installed and nobody says where it is. `scripts/test` installs it and says
/// so: there a missing server is a failure.
fn moto() -> Option<Moto> {
    let named = std::env::var("TUTTI_TEST_MOTO");
    let program = named.clone().unwrap_or_else(|_| "moto_server".to_owned());
    let started = Command::new(&program)
        .args(["-H", "127.0.0.1", "-p", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = started else {
        assert!(named.is_err(), "TUTTI_TEST_MOTO={program} can't be run");
        let why: &[u8] = b"skipped: moto_server is not installed (pip install 'moto[s3,server]')\n";
        std::io::Write::write_all(&mut std::io::stderr(), why).unwrap();
        return None;
    };
    // It picks its own port and says which.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let endpoint = loop {
        let line = lines.next().expect("moto says where it listens").unwrap();
        if let Some((_, rest)) = line.split_once("http://127.0.0.1:") {
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            break format!("http://127.0.0.1:{port}");
        }
    };
    std::thread::spawn(move || lines.for_each(drop));
    Some(Moto { child, endpoint })
}

fn make_bucket(moto: &Moto, name: &str) {
    let address = moto.endpoint.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let request = format!(
        "PUT /{name} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn of(moto: &Moto, options: Options) -> Options {
    let pairs = [
        ("aws_endpoint", moto.endpoint.as_str()),
        ("aws_allow_http", "true"),
        ("aws_region", "us-east-1"),
        ("aws_access_key_id", "test"),
        ("aws_secret_access_key", "test"),
    ];
    let object = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec();
    Options { object, ..options }
}

/// One test, since starting the server is what takes time.
#[test]
fn a_bucket_is_a_place_like_any_other() {
    let Some(moto) = moto() else { return };
    make_bucket(&moto, "ckpt");
    let url = "s3://ckpt/runs/one";
    let open = |rank, generation| Store::open(url, of(&moto, options(rank, 2, generation)));
    let save = |step, rows| save_with(|rank| open(rank, 1), 2, step, rows);
    for step in [10, 20, 30] {
        save(step, 64).unwrap();
    }
    // Larger than one request: it goes in parts.
    save(40, 5_000_000).unwrap();
    let reader = Store::open(url, of(&moto, Options::default())).unwrap();
    assert_eq!(load_and_check(&reader, Selector::Latest).unwrap(), 40);
    assert!(reader.verify(40, false, &|_| {}).unwrap().loads);

    // The conditional put decides between two writers.
    let rivals: Vec<Store> = (0..2).map(|_| open(0, 1).unwrap()).collect();
    let results: Vec<_> = std::thread::scope(|scope| {
        let race = rivals.iter().map(|store| {
            scope.spawn(|| {
                let other = |rank| if rank == 0 { Ok(store.clone()) } else { open(rank, 1) };
                save_with(other, 2, 50, 64)
            })
        });
        race.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1, "{results:?}");
    let lost = results.into_iter().find_map(Result::err).unwrap();
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
    let fenced = {
        save_with(|rank| open(rank, 2), 2, 60, 64).unwrap();
        save_with(|rank| if rank == 0 { Ok(rivals[0].clone()) } else { open(rank, 1) }, 2, 70, 64)
    };
    assert!(matches!(fenced, Err(Error::Fenced { .. })), "{fenced:?}");

    let store = open(0, 2).unwrap();
    store.pin(10, "first").unwrap();
    assert_eq!(store.retain(&Keep { last: 2, every: None }).unwrap(), [20, 30, 40]);
    let steps: Vec<u64> = store.list().unwrap().into_iter().map(|l| l.step).collect();
    assert_eq!(steps, [10, 50, 60]);
    assert_eq!(load_and_check(&reader, Selector::Latest).unwrap(), 60);

    // A directory as the nearest place, the bucket as home: what the disk loses, the bucket has.
    let local = crate::common::quick_dir();
    let both = |rank| {
        let local = Some(local.path().to_owned());
        Store::open(url, of(&moto, Options { local, ..options(rank, 2, 3) }))
    };
    save_with(both, 2, 80, 64).unwrap();
    std::fs::remove_file(crate::common::file_of(local.path(), 80, "rank-00001")).unwrap();
    let store = both(1).unwrap();
    let (step, report) =
        store.load_with(Selector::Latest, |l| l.tensor("w").map(|_| l.step())).unwrap();
    assert_eq!(step, 80);
    assert_eq!(report.fallbacks.len(), 1, "{report}");
}
