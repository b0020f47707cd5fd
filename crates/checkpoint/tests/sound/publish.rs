//! What becomes a checkpoint, and who may make it one.

use crate::common::{bytes_of, load_and_check, options, save, text, writer};
use tutti_checkpoint::{Attempt, Dtype, Error, Options, Selector, Store, Tensor, Writer};

fn read(dir: &std::path::Path) -> Store {
    Store::open(text(dir), Options::default()).unwrap()
}

#[test]
fn the_newest_is_loaded_whatever_the_order_of_saving() {
    let dir = tempfile::tempdir().unwrap();
    for step in [100, 20, 7] {
        save(dir.path(), 3, 1, step).unwrap();
    }
    let store = read(dir.path());
    assert_eq!(load_and_check(&store, Selector::Latest).unwrap(), 100);
    assert_eq!(load_and_check(&store, Selector::Before(100)).unwrap(), 20);
    assert_eq!(load_and_check(&store, Selector::Step(7)).unwrap(), 7);
    let steps: Vec<u64> = store.list().unwrap().into_iter().map(|l| l.step).collect();
    assert_eq!(steps, [7, 20, 100]);
    let error = store.load(Selector::Step(8)).err().unwrap();
    assert!(error.to_string().starts_with("there is no checkpoint of step 8 in "), "{error}");
}

#[test]
fn what_is_not_published_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(text(dir.path()), options(0, 1, 1)).unwrap();
    let mut saving = store.save(5).unwrap();
    saving.add(Tensor::whole("w", Dtype::U8, &[3], vec![1, 2, 3])).unwrap();
    let report = saving.finish().wait().unwrap();
    assert!(matches!(read(dir.path()).load(Selector::Latest), Err(Error::Nothing { .. })));
    store.publish(5, vec![report], serde_json::Value::Null).unwrap();
    assert_eq!(read(dir.path()).load(Selector::Latest).unwrap().step(), 5);
}

#[test]
fn ranks_must_agree_and_be_complete() {
    let dir = tempfile::tempdir().unwrap();
    let stores: Vec<Store> =
        (0..2).map(|r| Store::open(text(dir.path()), options(r, 2, 1)).unwrap()).collect();
    let report = |rank: usize, tensor: Tensor| {
        let mut save = stores[rank].save(1).unwrap();
        save.add(tensor).unwrap();
        save.finish().wait().unwrap()
    };
    let row = |rank: u64, value: u8| {
        Tensor::piece("w", Dtype::U8, &[2, 2], &[rank, 0], &[1, 2], vec![value; 2])
    };
    let publish = |reports| {
        stores[0]
            .publish(1, reports, serde_json::Value::Null)
            .map(|_| ())
            .map_err(|e| tutti_checkpoint::chain(&e))
    };
    let first = report(0, row(0, 1));
    let missing = publish(vec![first.clone()]).unwrap_err();
    assert_eq!(missing, "step 1 needs one report from each of 2 ranks; those of [1] are missing");
    let hole = publish(vec![first.clone(), report(1, row(0, 1))]).unwrap_err();
    let want = "what the ranks wrote for step 1 does not make a checkpoint: tensor w: 2 of its 4 elements are in no piece";
    assert_eq!(hole, want);
    let conflict = publish(vec![first.clone(), report(1, row(0, 9))]).unwrap_err();
    assert_eq!(conflict, "tensor w at [0, 0]: ranks 0 and 1 both wrote it, and not the same bytes");
    let shape = Tensor::piece("w", Dtype::U8, &[3, 2], &[1, 0], &[2, 2], vec![0; 4]);
    let disagree = publish(vec![first.clone(), report(1, shape)]).unwrap_err();
    assert_eq!(disagree, "tensor w is U8[2, 2] for rank 0, but U8[3, 2] for rank 1");
    assert!(matches!(stores[0].load(Selector::Latest), Err(Error::Nothing { .. })));
    publish(vec![first, report(1, row(1, 2))]).unwrap();
    assert_eq!(stores[0].load(Selector::Latest).unwrap().tensor("w").unwrap().bytes, [1, 1, 2, 2]);
}

#[test]
fn a_replicated_tensor_may_be_written_by_two_if_they_agree() {
    let dir = tempfile::tempdir().unwrap();
    let stores: Vec<Store> =
        (0..2).map(|r| Store::open(text(dir.path()), options(r, 2, 1)).unwrap()).collect();
    let reports = stores
        .iter()
        .map(|store| {
            let mut save = store.save(1).unwrap();
            save.add(Tensor::whole("norm", Dtype::F32, &[4], bytes_of(1, 16))).unwrap();
            save.finish().wait().unwrap()
        })
        .collect();
    let published = stores[0].publish(1, reports, serde_json::Value::Null).unwrap();
    assert_eq!(published.manifest.tensors[0].pieces.len(), 1);
}

#[test]
fn shards_that_the_publisher_can_not_see_are_refused() {
    let here = tempfile::tempdir().unwrap();
    let there = tempfile::tempdir().unwrap();
    let open = |dir: &std::path::Path, rank| Store::open(text(dir), options(rank, 2, 1)).unwrap();
    let mut save = open(there.path(), 1).save(1).unwrap();
    save.add(Tensor::whole("w", Dtype::U8, &[1], vec![1])).unwrap();
    let far = save.finish().wait().unwrap();
    let near = open(here.path(), 0).save(1).unwrap().finish().wait().unwrap();
    let error =
        open(here.path(), 0).publish(1, vec![near, far], serde_json::Value::Null).unwrap_err();
    assert!(matches!(error, Error::NotHere { rank: 1, .. }), "{error}");
}

#[test]
fn of_two_writers_one_wins_and_the_other_is_told() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        // Two processes that take themselves for the same attempt.
        let race: Vec<_> = (0..2)
            .map(|_| {
                let store = Store::open(text(dir.path()), options(0, 1, 1)).unwrap();
                std::thread::spawn(move || {
                    let mut save = store.save(round).unwrap();
                    save.add(Tensor::whole("w", Dtype::U8, &[999], bytes_of(round, 999))).unwrap();
                    let report = save.finish().wait().unwrap();
                    store.publish(round, vec![report], serde_json::Value::Null)
                })
            })
            .collect();
        let results: Vec<_> = race.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
        let lost = results.into_iter().find_map(Result::err).unwrap();
        assert!(matches!(lost, Error::Lost { .. }), "{lost}");
        assert_eq!(load_and_check(&read(dir.path()), Selector::Latest).unwrap(), round);
        // The loser has cleaned up after itself.
        crate::common::file_of(dir.path(), round, "rank-");
    }
}

#[test]
fn an_older_attempt_is_fenced_off() {
    let dir = tempfile::tempdir().unwrap();
    let old = Store::open(text(dir.path()), options(0, 1, 1)).unwrap();
    save(dir.path(), 1, 2, 10).unwrap();
    for step in [10, 11, 9] {
        let mut saving = old.save(step).unwrap();
        saving.add(Tensor::whole("w", Dtype::U8, &[3], vec![1, 2, 3])).unwrap();
        let report = saving.finish().wait().unwrap();
        let error = old.publish(step, vec![report], serde_json::Value::Null).unwrap_err();
        let want = "job 12 (generation 1) is fenced off: job 12 (generation 2) has published step 10; stop this attempt";
        assert_eq!(error.to_string(), want);
    }
    assert_eq!(load_and_check(&read(dir.path()), Selector::Latest).unwrap(), 10);
}

#[test]
fn a_newer_attempt_writes_a_step_again() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 2, 1, 10).unwrap();
    save(dir.path(), 3, 2, 10).unwrap();
    let store = read(dir.path());
    assert_eq!(load_and_check(&store, Selector::Latest).unwrap(), 10);
    assert_eq!(store.load(Selector::Latest).unwrap().manifest().world, 3);
}

#[test]
fn another_owner_replaces_only_what_was_left_there() {
    let dir = tempfile::tempdir().unwrap();
    let open = |owner: &str, takeover| {
        let attempt = Attempt { owner: owner.into(), generation: 1 };
        let writer = Some(Writer { attempt, ..writer(0, 1, 1) });
        Store::open(text(dir.path()), Options { writer, takeover, ..Options::default() })
    };
    let early = open("early", false).unwrap();
    crate::common::save_with(|_| open("first", false), 1, 10, 64).unwrap();
    let rival = crate::common::save_with(|_| Ok(early.clone()), 1, 10, 64).unwrap_err();
    assert!(matches!(rival, Error::Lost { .. }), "{rival}");
    crate::common::save_with(|_| open("second", false), 1, 10, 64).unwrap();
    // A new cluster counts generations from the beginning; the old one's are in the way.
    save(dir.path(), 1, 50, 20).unwrap();
    assert!(matches!(save(dir.path(), 1, 3, 20), Err(Error::Fenced { .. })));
    let anew = |_| {
        let options = Options { takeover: true, ..options(0, 1, 3) };
        Store::open(text(dir.path()), options)
    };
    crate::common::save_with(anew, 1, 20, 64).unwrap();
    assert_eq!(load_and_check(&read(dir.path()), Selector::Latest).unwrap(), 20);
}

#[test]
fn publishing_twice_is_publishing_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(text(dir.path()), options(0, 1, 1)).unwrap();
    let mut saving = store.save(5).unwrap();
    saving.add(Tensor::whole("w", Dtype::U8, &[3], vec![1, 2, 3])).unwrap();
    let report = saving.finish().wait().unwrap();
    store.publish(5, vec![report.clone()], serde_json::Value::Null).unwrap();
    store.publish(5, vec![report], serde_json::Value::Null).unwrap();
    assert_eq!(store.load(Selector::Latest).unwrap().tensor("w").unwrap().bytes, [1, 2, 3]);
}

#[test]
fn wrong_tensors_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(text(dir.path()), options(0, 1, 1)).unwrap();
    let mut saving = store.save(5).unwrap();
    let cases = [
        (vec![3u64], vec![0u64], vec![3u64], 5, "tensor w: 5 bytes were given, [3] of F32 are 12"),
        (vec![3], vec![1], vec![3], 12, "tensor w: a piece at [1] of [3] is outside the shape [3]"),
        (vec![3], vec![], vec![3], 12, "tensor w: a piece at [] of [3] is outside the shape [3]"),
    ];
    for (shape, offset, extent, len, want) in cases {
        let tensor = Tensor::piece("w", Dtype::F32, &shape, &offset, &extent, vec![0; len]);
        assert_eq!(saving.add(tensor).unwrap_err().to_string(), want);
    }
    let reader = read(dir.path());
    assert!(matches!(reader.save(1), Err(Error::ReadOnly)));
}
