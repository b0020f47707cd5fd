//! Directories of other frameworks.

use std::fs;

use crate::common::{options, quick_dir, text};
use serde_json::Value;
use tutti_checkpoint::{Acting, Error, ForeignError, Kind, Selector, Store};

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
    assert_eq!(crate::common::files(home.path()), ["checkpoint-500/notes.txt", "last"]);
}

#[test]
fn a_single_file_does_as_well() {
    let home = quick_dir();
    let file = home.path().join("epoch-3.pt");
    fs::write(&file, b"weights").unwrap();
    let store = Store::open(text(home.path()), options(0, 1, 0)).unwrap();
    let manifest = store.register(home.path(), &file, 3, Value::Null, &|_| {}).unwrap();
    assert_eq!(manifest.files[0].path, "epoch-3.pt");
    assert!(store.verify(3, false, &|_| {}).unwrap().loads);
    let to = quick_dir();
    store
        .load(Selector::Latest)
        .unwrap()
        .restore_files(to.path(), &Acting::Myself, &|_| {})
        .unwrap();
    assert_eq!(fs::read(to.path().join("epoch-3.pt")).unwrap(), b"weights");
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

#[test]
fn it_is_restored_with_every_byte_checked() {
    let home = quick_dir();
    let dir = home.path().join("ckpt/500");
    fs::create_dir_all(dir.join("opt")).unwrap();
    fs::write(dir.join("a.bin"), vec![1; 5 << 20]).unwrap();
    fs::write(dir.join("opt/b.bin"), b"b").unwrap();
    let store = Store::open(text(home.path()), options(0, 1, 0)).unwrap();
    store.register(home.path(), &dir, 500, Value::Null, &|_| {}).unwrap();
    let loaded = store.load(Selector::Latest).unwrap();
    let to = quick_dir();
    loaded.restore_files(to.path(), &Acting::Myself, &|_| {}).unwrap();
    assert_eq!(crate::common::files(to.path()), ["a.bin", "opt/b.bin"]);
    assert_eq!(fs::read(to.path().join("a.bin")).unwrap(), vec![1; 5 << 20]);
    let again = loaded.restore_files(to.path(), &Acting::Myself, &|_| {}).unwrap_err();
    assert!(matches!(again, tutti_checkpoint::ExportError::Exists { .. }), "{again}");
    fs::write(dir.join("opt/b.bin"), b"c").unwrap();
    let elsewhere = quick_dir();
    let loaded = store.load(Selector::Latest).unwrap();
    assert!(loaded.restore_files(elsewhere.path(), &Acting::Myself, &|_| {}).is_err());
    assert_eq!(crate::common::files(elsewhere.path()), ["a.bin"]);
}

#[test]
fn tensors_are_exported_whole_and_copied_as_they_are() {
    let home = quick_dir();
    crate::common::save(home.path(), 3, 1, 10).unwrap();
    let store = Store::open(text(home.path()), tutti_checkpoint::Options::default()).unwrap();
    let loaded = store.load(Selector::Latest).unwrap();
    let to = quick_dir();
    let file = to.path().join("model.safetensors");
    loaded.export(&file, &Acting::Myself, &|_| {}).unwrap();
    let bytes = fs::read(&file).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.tensor("w").unwrap().data(), crate::common::bytes_of(10, 64 * 8));
    let copy = quick_dir();
    let other = Store::open(text(copy.path()), tutti_checkpoint::Options::default()).unwrap();
    other.receive(&loaded, &|_| {}).unwrap();
    other.receive(&loaded, &|_| {}).unwrap();
    assert_eq!(crate::common::load_and_check(&other, Selector::Latest).unwrap(), 10);
}
