//! A flipped bit, a cut file, a missing one, in a shard or in a manifest: found at load, read from
//! a copy, and else the checkpoint before is loaded.

use std::path::Path;

use crate::common::{bytes_of, file_of, load_and_check, options, quick_dir, save_with, text};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tutti_checkpoint::{Error, Fallback, Options, Selector, Store};

fn with_copies(copies: &[&Path], rank: u32) -> Options {
    let replicas = copies.iter().map(|c| text(c).to_owned()).collect();
    Options { replicas, ..options(rank, 2, 1) }
}

fn save(home: &Path, copies: &[&Path], step: u64) {
    let open = |rank| Store::open(text(home), with_copies(copies, rank));
    let published = save_with(open, 2, step, 200_000).unwrap();
    assert_eq!(published.warnings, Vec::<String>::new());
}

fn reader(home: &Path, copies: &[&Path]) -> Store {
    let replicas = copies.iter().map(|c| text(c).to_owned()).collect();
    Store::open(text(home), Options { replicas, ..Options::default() }).unwrap()
}

/// Breaks a file in one of the ways in which files break.
fn damage(rng: &mut ChaCha8Rng, path: &Path) -> String {
    let mut bytes = std::fs::read(path).unwrap();
    match rng.random_range(0..4) {
        0 => {
            std::fs::remove_file(path).unwrap();
            return "removed".into();
        }
        1 => bytes.truncate(rng.random_range(0..bytes.len())),
        2 => bytes.push(0),
        _ => {
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
    }
    std::fs::write(path, &bytes).unwrap();
    format!("{} bytes are left", bytes.len())
}

#[test]
fn what_is_damaged_is_never_loaded() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for round in 0..40 {
        let home = quick_dir();
        for step in [10, 20] {
            save(home.path(), &[], step);
        }
        let which = ["rank-00000", "rank-00001", "manifest-"][round % 3];
        let how = damage(&mut rng, &file_of(home.path(), 20, which));
        let store = reader(home.path(), &[]);
        let ((step, bytes), report) =
            store.load_with(Selector::Latest, |l| Ok((l.step(), l.tensor("w")?.bytes))).unwrap();
        assert_eq!(bytes, bytes_of(step, bytes.len()), "{which} {how}");
        // The header of a shard and its padding hold no element; all else must lead back.
        if step == 20 {
            let found = store.verify(20, false, &|_| {}).unwrap();
            assert_eq!(found.bad.len(), 1, "{which} {how}");
        } else if !(which == "manifest-" && how == "removed") {
            assert!(!report.is_clean(), "{which} {how}");
        }
        let again = store.load_with(Selector::Step(20), |l| l.tensor("w"));
        assert_eq!(again.is_ok(), step == 20, "{which} {how}");
    }
}

#[test]
fn a_copy_steps_in() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    for round in 0..20 {
        let (home, copy) = (quick_dir(), quick_dir());
        save(home.path(), &[copy.path()], 20);
        let which = ["rank-00000", "rank-00001", "manifest-"][round % 3];
        // Each file is damaged in one place, now this one, now that.
        let place = if rng.random_bool(0.5) { home.path() } else { copy.path() };
        let how = damage(&mut rng, &file_of(place, 20, which));
        let store = reader(home.path(), &[copy.path()]);
        assert_eq!(load_and_check(&store, Selector::Latest).unwrap(), 20, "{which} {how}");
        let found = store.verify(20, true, &|_| {}).unwrap();
        assert!(found.loads, "{which} {how}");
        if which != "manifest-" {
            assert_eq!(found.bad.len(), 1, "{which} {how}");
            assert!(found.bad[0].mended);
            assert_eq!(store.verify(20, false, &|_| {}).unwrap().bad, []);
        }
    }
}

#[test]
fn each_step_of_the_way_back_is_told() {
    let (home, copy) = (quick_dir(), quick_dir());
    save(home.path(), &[], 10);
    save(home.path(), &[copy.path()], 20);
    let flip = |dir: &Path| {
        let path = file_of(dir, 20, "rank-00001");
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    flip(home.path());
    let store = reader(home.path(), &[copy.path()]);
    let (step, report) =
        store.load_with(Selector::Latest, |l| l.tensor("w").map(|_| l.step())).unwrap();
    assert_eq!((step, report.step), (20, Some(20)));
    let [Fallback::BadCopy { step: 20, place, why, .. }] = &report.fallbacks[..] else {
        panic!("{report}")
    };
    assert_eq!(place, text(home.path()));
    assert!(why.ends_with("have another hash"), "{why}");

    flip(copy.path());
    let (step, report) =
        store.load_with(Selector::Latest, |l| l.tensor("w").map(|_| l.step())).unwrap();
    assert_eq!(step, 10);
    let lines = report.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines[2].starts_with("step 20 was given up for an older one: step 20: no good copy of ")
    );
}

#[test]
fn without_its_home_a_checkpoint_loads_from_the_copies() {
    let (home, copy) = (quick_dir(), quick_dir());
    save(home.path(), &[copy.path()], 20);
    std::fs::remove_dir_all(home.path().join("step-000000000020")).unwrap();
    let store = reader(home.path(), &[copy.path()]);
    let (step, report) =
        store.load_with(Selector::Latest, |l| l.tensor("w").map(|_| l.step())).unwrap();
    assert_eq!(step, 20);
    assert!(report.lines()[0].contains("its manifest was taken from"), "{report}");
}

#[test]
fn when_nothing_is_left_it_says_what_was_tried() {
    let home = quick_dir();
    save(home.path(), &[], 10);
    std::fs::remove_file(file_of(home.path(), 10, "rank-00000")).unwrap();
    let error = reader(home.path(), &[]).load(Selector::Latest).err().unwrap();
    assert!(matches!(error, Error::NothingLoads { .. }), "{error}");
    assert!(error.to_string().contains("does not have it"), "{error}");
}
