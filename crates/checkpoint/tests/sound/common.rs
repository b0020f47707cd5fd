//! What the tests share: stores in temporary directories, and checkpoints to put into them.

use std::path::Path;

use tutti_checkpoint::{
    Attempt, Dtype, Error, Options, Published, Selector, Store, Tensor, Writer,
};

pub fn writer(rank: u32, world: u32, generation: u64) -> Writer {
    Writer { rank, world, attempt: Attempt { owner: "12".into(), generation } }
}

pub fn options(rank: u32, world: u32, generation: u64) -> Options {
    Options { writer: Some(writer(rank, world, generation)), ..Options::default() }
}

pub fn text(dir: &Path) -> &str {
    dir.to_str().unwrap()
}

/// Every element tells which step it is of and where it stands, so that none can be taken for
/// another.
pub fn bytes_of(step: u64, len: usize) -> Vec<u8> {
    let mut state = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Saves one tensor of `rows` × 8 bytes, a row block per rank, and publishes it.
pub fn save_with(
    open: impl Fn(u32) -> Result<Store, Error>,
    world: u32,
    step: u64,
    rows: u64,
) -> Result<Published, Error> {
    let all = bytes_of(step, rows as usize * 8);
    let mut reports = Vec::new();
    let publisher = open(0)?;
    for rank in 0..world {
        let store = if rank == 0 { publisher.clone() } else { open(rank)? };
        let mut save = store.save(step)?;
        let (begin, end) = (
            rows * u64::from(rank) / u64::from(world),
            rows * (u64::from(rank) + 1) / u64::from(world),
        );
        let data = all[begin as usize * 8..end as usize * 8].to_vec();
        save.add(Tensor::piece("w", Dtype::U8, &[rows, 8], &[begin, 0], &[end - begin, 8], data))?;
        reports.push(save.finish().wait()?);
    }
    publisher.publish(step, reports, serde_json::json!({ "step": step }))
}

pub fn save(dir: &Path, world: u32, generation: u64, step: u64) -> Result<Published, Error> {
    save_with(|rank| Store::open(text(dir), options(rank, world, generation)), world, step, 64)
}

/// Loads, checks every byte, and says which step it was.
pub fn load_and_check(store: &Store, selector: Selector) -> Result<u64, Error> {
    let (step, _) = store.load_with(selector, |loaded| {
        let found = loaded.tensor("w")?;
        assert_eq!(
            found.bytes,
            bytes_of(loaded.step(), found.bytes.len()),
            "step {}",
            loaded.step()
        );
        Ok(loaded.step())
    })?;
    Ok(step)
}

/// The one file of a step whose name begins so.
pub fn file_of(dir: &Path, step: u64, prefix: &str) -> std::path::PathBuf {
    let mut found = Vec::new();
    let mut dirs = vec![dir.join(format!("step-{step:012}"))];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.file_name().unwrap().to_str().unwrap().starts_with(prefix) {
                found.push(path);
            }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Where files are cheap to sync, if the system has such a place.
pub fn quick_dir() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { tempfile::tempdir_in(shm).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Every file below, by its path.
pub fn files(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                dirs.push(path);
            } else {
                found.push(path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// What the manifests of a store name, and the manifests: all that should be there.
pub fn named(store: &Store) -> Vec<String> {
    let mut named = Vec::new();
    for listed in store.list().unwrap() {
        named.extend(listed.manifest.unwrap().files.into_iter().map(|f| f.path));
    }
    named.sort();
    named
}

/// Files that are no manifests.
pub fn shards(dir: &Path) -> Vec<String> {
    files(dir).into_iter().filter(|f| !f.contains("/manifest-")).collect()
}

/// Nothing incomplete loads; what loads is right to the last bit. Answers with the steps that do.
pub fn check_all(dir: &Path) -> Vec<u64> {
    let store = Store::open(text(dir), Options::default()).unwrap();
    let mut good = Vec::new();
    for listed in store.list().unwrap() {
        listed.manifest.unwrap();
        if load_and_check(&store, Selector::Step(listed.step)).is_ok() {
            good.push(listed.step);
        }
    }
    good
}
