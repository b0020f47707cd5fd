//! Directories of other frameworks.

mod common;

use std::fs;

use common::{options, quick_dir, text};
use serde_json::Value;
use tutti_checkpoint::{Error, ForeignError, Kind, Selector, Store};

#[test]
fn a_directory_becomes_a_checkpoint() {
    let home = quick_dir();
    let dir = home.path().join("checkpoint-500");
    fs::create_dir_all(dir.join("optimizer")).unwrap();
    fs::write(dir.join("model.bin"), b"weights").unwrap();
    fs::write(dir.join("optimizer/state.pt"), vec![7; 5 << 20]).unwrap();
    std::os::unix::fs::symlink("checkpoint-500", home.path().join("last")).unwrap();
    let store = Store::open(text(home.path()), options(0, 1, 0)).unwrap();
    let register = |step| store.register(home.path(), &dir, step, Value::Null, &|_| {});
    let manifest = register(500).unwrap();
    assert_eq!(manifest.kind, Kind::Foreign);
    let paths: Vec<&str> = manifest.files.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(paths, ["checkpoint-500/model.bin", "checkpoint-500/optimizer/state.pt"]);
    assert_eq!(register(500).unwrap(), manifest, "a second time changes nothing");
    assert!(store.verify(500, false, &|_| {}).unwrap().loads);
    let loaded = store.load(Selector::Latest).unwrap();
    assert!(matches!(loaded.tensor("w"), Err(Error::Foreign { step: 500 })));

    fs::write(dir.join("model.bin"), b"weights!").unwrap();
    assert!(matches!(register(500), Err(ForeignError::Taken { step: 500 })));
    let found = store.verify(500, false, &|_| {}).unwrap();
    assert!(!found.loads);
    assert_eq!(found.bad[0].why, "it has 8 of 7 bytes");

    fs::write(dir.join("notes.txt"), b"written by hand").unwrap();
    store.remove(500, true).unwrap();
    assert_eq!(common::files(home.path()), ["checkpoint-500/notes.txt", "last"]);
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let home = quick_dir();
    let store = Store::open(text(home.path()), options(0, 1, 0)).unwrap();
    let register = |dir: &std::path::Path| {
        store.register(home.path(), dir, 1, Value::Null, &|_| {}).unwrap_err()
    };
    let outside = quick_dir();
    assert!(matches!(register(outside.path()), ForeignError::NotBelow { .. }));
    assert!(matches!(register(home.path()), ForeignError::NotBelow { .. }));
    assert!(matches!(register(&home.path().join("none")), ForeignError::Io { .. }));
    fs::create_dir(home.path().join("empty")).unwrap();
    assert!(matches!(register(&home.path().join("empty")), ForeignError::Empty { .. }));
}
