//! The last checkpoint of a run, brought to where it is safe without the nodes.

use tutti_checkpoint::{Error, Manifest, Options, Selector, Store, chain};

/// Copies a step there. When the work is done, what came is read again, and only if it is this very
/// checkpoint, byte by byte, the nodes' own are removed.
pub fn to_place(store: &Store, step: u64, place: &str, done: bool) -> Result<(), String> {
    let durable = Store::open(place, Options::default()).map_err(|e| chain(&e))?;
    let wanted = copy(store, &durable, step).map_err(|e| chain(&e))?;
    let there = durable.published(step).map_err(|e| chain(&e))?;
    if !there.has_files_of(&wanted) {
        return Err(format!(
            "there is another checkpoint of this step, of {}; name another --durable, or remove it with `tutti ckpt rm {place} {step} --force`",
            there.attempt
        ));
    }
    if done {
        let found = durable.verify(step, false, &|_| {}).map_err(|e| chain(&e))?;
        if let Some(bad) = found.bad.first() {
            return Err(format!("{} came to be wrong: {}", bad.path, bad.why));
        }
        store.clear_nodes();
    }
    Ok(())
}

fn copy(store: &Store, durable: &Store, step: u64) -> Result<Manifest, Error> {
    let loaded = store.load(Selector::Step(step))?;
    let own = loaded.manifest();
    match durable.receive(&loaded, &|_| {}) {
        Ok(_) => {}
        // An earlier attempt brought what it had; this one has done that step again.
        Err(Error::Lost { winner, .. })
            if winner.owner == own.attempt.owner && winner.generation < own.attempt.generation =>
        {
            durable.remove(step, true)?;
            durable.receive(&loaded, &|_| {})?;
        }
        // Whose it is, the caller looks at.
        Err(Error::Lost { .. }) => {}
        Err(e) => return Err(e),
    }
    Ok(own.clone())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tutti_checkpoint::{Attempt, Dtype, Tensor, Writer};

    use super::*;

    fn open(dir: &Path, owner: &str, generation: u64) -> Store {
        let attempt = Attempt { owner: owner.into(), generation };
        let writer = Some(Writer { rank: 0, world: 1, attempt });
        let options = Options { writer, scattered: true, ..Options::default() };
        Store::open(dir.to_str().unwrap(), options).unwrap()
    }

    fn save(store: &Store, step: u64, fill: u8) {
        let mut save = store.save(step).unwrap();
        save.add(Tensor::whole("w", Dtype::U8, &[64], vec![fill; 64])).unwrap();
        let report = save.finish().wait().unwrap();
        store.publish(step, vec![report], serde_json::Value::Null).unwrap();
    }

    fn value(dir: &Path) -> u8 {
        let store = Store::open(dir.to_str().unwrap(), Options::default()).unwrap();
        store.load(Selector::Latest).unwrap().tensor("w").unwrap().bytes[63]
    }

    #[test]
    fn what_is_not_ours_or_not_right_leaves_the_nodes_alone() {
        let root = tempfile::tempdir().unwrap();
        let (node, place) = (root.path().join("node"), root.path().join("durable"));
        let at = place.to_str().unwrap();
        save(&open(&place, "another", 9), 20, 1);
        let own = open(&node, "12", 2);
        save(&own, 20, 2);
        for done in [false, true] {
            let why = to_place(&own, 20, at, done).unwrap_err();
            assert!(why.contains("another (generation 9)"), "{why}");
        }
        assert_eq!((value(&node), value(&place)), (2, 1));

        // What an earlier attempt of ours brought is replaced; what was cut off is written again.
        std::fs::remove_dir_all(&place).unwrap();
        let before = open(&root.path().join("before"), "12", 1);
        save(&before, 20, 3);
        to_place(&before, 20, at, false).unwrap();
        assert_eq!(value(&place), 3);
        let file = own.load(Selector::Latest).unwrap().manifest().files[0].clone();
        let left = place.join(&file.path);
        std::fs::create_dir_all(left.parent().unwrap()).unwrap();
        std::fs::write(&left, vec![0; file.bytes as usize]).unwrap();
        to_place(&own, 20, at, true).unwrap();
        assert_eq!(value(&place), 2);
        assert_eq!(own.list().unwrap().len(), 0, "the nodes' own is gone");
    }
}
