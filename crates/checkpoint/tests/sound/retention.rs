//! Pins, removal, retention and sweeping on a disk.

use crate::common::{check_all, file_of, named, options, quick_dir, save, shards, text};
use tutti_checkpoint::{Dtype, Error, Keep, Options, Selector, Store, Tensor};

fn open(dir: &std::path::Path, generation: u64) -> Store {
    Store::open(text(dir), options(0, 1, generation)).unwrap()
}

#[test]
fn the_last_and_the_pinned_stay() {
    let dir = quick_dir();
    for step in [10, 20, 30, 40, 50] {
        save(dir.path(), 2, 1, step).unwrap();
    }
    let store = open(dir.path(), 1);
    store.pin(20, "best loss").unwrap();
    assert_eq!(store.retain(&Keep { last: 2, every: Some(30) }).unwrap(), [10]);
    assert_eq!(check_all(dir.path()), [20, 30, 40, 50]);
    let refused = store.remove(20, true).unwrap_err();
    assert_eq!(refused.to_string(), "step 20 is pinned (best loss); unpin it first");
    store.unpin(20).unwrap();
    store.remove(20, false).unwrap();
    assert!(matches!(store.remove(20, false), Err(Error::NoSuchStep { .. })));
    let newest = store.remove(50, false).unwrap_err();
    assert!(matches!(newest, Error::Newest { step: 50 }), "{newest}");
    store.remove(50, true).unwrap();
    assert_eq!(check_all(dir.path()), [30, 40]);
    assert_eq!(shards(dir.path()), named(&store));
    assert!(!dir.path().join("step-000000000050").exists());
}

#[test]
fn a_damaged_newest_one_does_not_cost_the_one_before() {
    let dir = quick_dir();
    for step in [10, 20, 30] {
        save(dir.path(), 1, 1, step).unwrap();
    }
    std::fs::remove_file(file_of(dir.path(), 30, "rank-")).unwrap();
    let store = open(dir.path(), 1);
    assert_eq!(store.retain(&Keep { last: 1, every: None }).unwrap(), [10]);
    assert!(matches!(store.remove(20, false), Err(Error::Newest { step: 20 })));
    assert_eq!(check_all(dir.path()), [20]);
}

#[test]
fn only_what_is_provably_dead_is_swept() {
    let dir = quick_dir();
    let stage = |store: &Store, step| {
        let mut save = store.save(step).unwrap();
        save.add(Tensor::whole("w", Dtype::U8, &[1], vec![1])).unwrap();
        save.finish().wait().unwrap()
    };
    let rival = Store::open(
        text(dir.path()),
        Options {
            writer: Some(tutti_checkpoint::Writer {
                rank: 0,
                world: 1,
                attempt: tutti_checkpoint::Attempt { owner: "other".into(), generation: 1 },
            }),
            ..Options::default()
        },
    )
    .unwrap();
    let older = open(dir.path(), 1);
    let newer = open(dir.path(), 2);
    let ours = stage(&rival, 10);
    stage(&older, 10);
    let live = stage(&newer, 20);
    save(dir.path(), 1, 2, 30).unwrap();
    // A reader knows of the newer generation from what it has published.
    let reader = Store::open(text(dir.path()), Options::default()).unwrap();
    let swept = reader.sweep().unwrap();
    assert_eq!(swept.files.len(), 1, "{swept:?}");
    assert!(swept.files[0].contains("-g0000000001/"), "{swept:?}");
    assert_eq!(reader.sweep().unwrap(), Default::default());
    newer.publish(20, vec![live], serde_json::Value::Null).unwrap();
    rival.publish(10, vec![ours], serde_json::Value::Null).unwrap();
    // What this very process has left behind is known to be dead as well.
    stage(&newer, 40);
    let last = stage(&newer, 50);
    newer.publish(50, vec![last], serde_json::Value::Null).unwrap();
    assert_eq!(newer.sweep().unwrap(), Default::default(), "step 40 may still be published");
    drop(newer);
    assert_eq!(open(dir.path(), 3).sweep().unwrap().files.len(), 1);
    assert_eq!(shards(dir.path()), named(&reader));
}

#[test]
fn copies_go_with_the_original() {
    let (home, copy) = (quick_dir(), quick_dir());
    let open = || {
        let replicas = vec![text(copy.path()).to_owned()];
        Store::open(text(home.path()), Options { replicas, ..options(0, 1, 1) })
    };
    for step in [10, 20, 30] {
        crate::common::save_with(|_| open(), 1, step, 64).unwrap();
    }
    assert_eq!(check_all(copy.path()), [10, 20, 30]);
    // One is removed while the copy is out of reach.
    Store::open(text(home.path()), options(0, 1, 1)).unwrap().remove(20, false).unwrap();
    let store = open().unwrap();
    store.remove(10, false).unwrap();
    assert_eq!(check_all(copy.path()), [20, 30]);
    store.sweep().unwrap();
    assert_eq!(check_all(copy.path()), [30]);
    assert_eq!(store.load(Selector::Latest).unwrap().step(), 30);
}

#[test]
fn of_a_pin_and_a_removal_one_wins() {
    for _ in 0..20 {
        let dir = quick_dir();
        save(dir.path(), 1, 1, 10).unwrap();
        save(dir.path(), 1, 1, 20).unwrap();
        let (a, b) = (open(dir.path(), 1), open(dir.path(), 1));
        let pin = std::thread::spawn(move || a.pin(10, "mine").is_ok());
        let remove = std::thread::spawn(move || b.remove(10, false).is_ok());
        let (pinned, removed) = (pin.join().unwrap(), remove.join().unwrap());
        assert!(pinned != removed, "pinned {pinned}, removed {removed}");
        let want: &[u64] = if pinned { &[10, 20] } else { &[20] };
        assert_eq!(check_all(dir.path()), want);
    }
}

#[test]
fn one_whose_manifest_is_damaged_goes_by_force() {
    let dir = quick_dir();
    save(dir.path(), 2, 1, 10).unwrap();
    save(dir.path(), 2, 1, 20).unwrap();
    std::fs::write(file_of(dir.path(), 10, "manifest-"), b"{}").unwrap();
    let store = open(dir.path(), 1);
    assert_eq!(store.retain(&Keep { last: 1, every: None }).unwrap(), Vec::<u64>::new());
    assert!(matches!(store.remove(10, false), Err(Error::Manifest { step: 10, .. })));
    store.remove(10, true).unwrap();
    assert!(!dir.path().join("step-000000000010").exists());
    assert_eq!(check_all(dir.path()), [20]);
}
