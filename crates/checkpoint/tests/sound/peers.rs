//! Copies on other nodes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use crate::common::{file_of, load_and_check, options, quick_dir, save_with, text};
use tutti_checkpoint::peer::{Client, Server};
use tutti_checkpoint::tier::{Dir, Memory, Tier};
use tutti_checkpoint::{Error, Fallback, Options, Selector, Store};

const KEY: [u8; 32] = [7; 32];

fn serve(tier: impl Tier + 'static) -> Server {
    Server::bind("127.0.0.1:0".parse().unwrap(), KEY, Arc::new(tier)).unwrap()
}

fn with_peer(server: &Server, options: Options) -> Options {
    Options { replicas: vec![server.url()], key: Some(KEY), ..options }
}

#[test]
fn what_a_node_loses_its_peer_has() {
    let home = quick_dir();
    let server = serve(Memory::new("memory", 64 << 20));
    let open = |rank| Store::open(text(home.path()), with_peer(&server, options(rank, 2, 1)));
    // Several chunks, so that several connections are at work.
    let published = save_with(open, 2, 10, 2_000_000).unwrap();
    assert_eq!(published.warnings, Vec::<String>::new());
    std::fs::remove_dir_all(home.path()).unwrap();
    let store = Store::open(text(home.path()), with_peer(&server, Options::default())).unwrap();
    let (step, report) =
        store.load_with(Selector::Latest, |l| l.tensor("w").map(|_| l.step())).unwrap();
    assert_eq!(step, 10);
    assert!(matches!(report.fallbacks[0], Fallback::ManifestFrom { step: 10, .. }), "{report}");
    assert_eq!(load_and_check(&store, Selector::Latest).unwrap(), 10);
}

#[test]
fn a_peer_that_is_full_or_gone_costs_no_checkpoint() {
    let home = quick_dir();
    let server = serve(Memory::new("memory", 1000));
    let open = |rank| Store::open(text(home.path()), with_peer(&server, options(rank, 1, 1)));
    let published = save_with(open, 1, 10, 1000).unwrap();
    assert!(published.warnings[0].contains("is full"), "{:?}", published.warnings);
    let gone = Options { replicas: vec![server.url()], key: Some(KEY), ..options(0, 1, 1) };
    drop(server);
    let published = save_with(|_| Store::open(text(home.path()), gone.clone()), 1, 20, 64).unwrap();
    assert!(published.warnings[0].contains("can't write"), "{:?}", published.warnings);
    let store = Store::open(text(home.path()), gone).unwrap();
    assert_eq!(load_and_check(&store, Selector::Latest).unwrap(), 20);
}

#[test]
fn a_directory_can_be_kept_for_others_and_nothing_outside_of_it() {
    let kept = quick_dir();
    let server = serve(Dir::new(kept.path().join("kept")));
    std::fs::write(kept.path().join("secret"), b"x").unwrap();
    let client = Client::new(server.address().to_string(), KEY);
    let data = || [Ok(bytes::Bytes::from_static(b"abc"))].into_iter();
    client.put("a/b", 3, &mut data()).unwrap();
    assert_eq!(&client.read("a/b", 1..3).unwrap()[..], b"bc");
    assert_eq!(client.size("a/b").unwrap(), Some(3));
    assert_eq!(client.size("a/c").unwrap(), None);
    assert!(client.publish("a/m", "a/s", b"one").unwrap());
    assert!(!client.publish("a/m", "a/s", b"two").unwrap());
    let names: Vec<String> = client.list("a").unwrap().into_iter().map(|i| i.name).collect();
    assert_eq!(names, ["b", "m", "s"]);
    client.prune("a/s").unwrap();
    for path in ["../secret", "/etc/passwd", "a/../../secret", ""] {
        assert!(client.read(path, 0..1).is_err(), "{path}");
        assert!(client.put(path, 3, &mut data()).is_err(), "{path}");
        assert!(client.remove(path).is_err(), "{path}");
    }
    assert!(kept.path().join("secret").exists());
    client.remove("a/b").unwrap();
    assert_eq!(client.size("a/b").unwrap(), None);
}

#[test]
fn strangers_are_turned_away() {
    let server = serve(Memory::new("memory", 1000));
    let stranger = Client::new(server.address().to_string(), [8; 32]);
    let error = tutti_checkpoint::chain(&stranger.size("a").unwrap_err());
    assert!(error.ends_with("the other end has another key: it is not of this gang"), "{error}");
    // One that does not even speak the language gets nothing but the challenge.
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(&[0; 64]).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard.len(), 40);
    // And the other way round: a server without the key learns nothing from us.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"tuttick1").unwrap();
        stream.write_all(&[1; 32]).unwrap();
        let mut proof = [0; 64];
        stream.read_exact(&mut proof).unwrap();
        stream.write_all(&[0; 32]).unwrap();
    });
    let error = Client::new(address, KEY).size("a").unwrap_err();
    assert!(tutti_checkpoint::chain(&error).contains("another key"));
}

#[test]
fn a_peer_without_a_key_is_refused_in_words() {
    let home = quick_dir();
    let options = Options { replicas: vec!["tcp://127.0.0.1:1".into()], ..Options::default() };
    let error = Store::open(text(home.path()), options).err().unwrap();
    assert!(error.to_string().contains("TUTTI_GANG_KEY"), "{error}");
}

#[test]
fn a_peer_that_does_not_answer_is_no_reason_for_an_older_checkpoint() {
    let home = quick_dir();
    let server = serve(Memory::new("memory", 64 << 20));
    let places = with_peer(&server, options(0, 1, 1));
    let open = |_| Store::open(text(home.path()), places.clone());
    for step in [10, 20] {
        save_with(open, 1, step, 64).unwrap();
    }
    let shard = file_of(home.path(), 20, "rank-");
    std::fs::remove_file(&shard).unwrap();
    let store = open(0).unwrap();
    assert_eq!(load_and_check(&store, Selector::Latest).unwrap(), 20, "the peer has it");
    let loaded = store.load(Selector::Latest).unwrap();
    drop(server);
    let error = open(0).unwrap().load(Selector::Latest).err().unwrap();
    assert!(matches!(error, Error::NoAnswer { step: 20, .. }), "{error}");
    assert!(!error.is_damage());
    let error = loaded.tensor("w").unwrap_err();
    assert!(matches!(error, Error::NoAnswer { step: 20, .. }), "{error}");
    // Nothing anywhere is not nothing, either, while somebody was not heard.
    std::fs::remove_dir_all(home.path()).unwrap();
    let error = open(0).unwrap().load(Selector::Latest).err().unwrap();
    assert!(matches!(error, Error::NothingLoads { .. }), "{error}");
}
