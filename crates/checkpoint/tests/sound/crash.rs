//! kill -9 at every single change of the file system, while saving, publishing, pinning, retaining
//! and sweeping. After each: the newest complete checkpoint loads, and nothing incomplete does.

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{check_all, files, named, options, quick_dir, save, save_with, shards, text};
use tutti_checkpoint::tier::{Op, Watch};
use tutti_checkpoint::{Keep, Options, Selector, Store};

/// Kills the process before the n-th change.
struct Killer(AtomicU64);

impl Watch for Killer {
    fn before(&self, _: Op, _: &Path) -> io::Result<()> {
        if self.0.fetch_sub(1, Ordering::SeqCst) == 0 {
            let me = nix::unistd::Pid::this();
            nix::sys::signal::kill(me, nix::sys::signal::Signal::SIGKILL)?;
            std::thread::park();
        }
        Ok(())
    }
}

const KEEP: Keep = Keep { last: 2, every: None };

/// Everything that a run does to its checkpoints.
fn life(dir: &Path, generation: u64, step: u64, watch: Option<Arc<dyn Watch>>, say: impl Fn(&str)) {
    let open = |rank| {
        Store::open(text(dir), Options { watch: watch.clone(), ..options(rank, 2, generation) })
    };
    let store = open(0).unwrap();
    save_with(|rank| if rank == 0 { Ok(store.clone()) } else { open(rank) }, 2, step, 64).unwrap();
    say("published");
    store.pin(step, "good").unwrap();
    store.unpin(step).unwrap();
    store.retain(&KEEP).unwrap();
    say("retained");
    store.sweep().unwrap();
}

/// Not a test of its own: the process that is killed.
#[test]
fn child() {
    let Ok(dir) = std::env::var("CRASH_DIR") else { return };
    let after = std::env::var("CRASH_AFTER").unwrap().parse().unwrap();
    let killer = Arc::new(Killer(AtomicU64::new(after)));
    life(Path::new(&dir), 2, 30, Some(killer), |what| {
        io::stderr().write_all(format!("{what}\n").as_bytes()).unwrap();
    });
}

/// Runs a life that ends before its n-th change. Answers with how far it came, and whether it was
/// killed.
fn run(dir: &Path, after: u64) -> (String, bool) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--nocapture"])
        .env("CRASH_DIR", dir)
        .env("CRASH_AFTER", after.to_string())
        .output()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    let killed = output.status.signal() == Some(9);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(killed || output.status.success(), "{text}");
    (text, killed)
}

/// Two checkpoints, and what a killed save left behind.
fn prepare(dir: &Path) {
    save(dir, 2, 1, 10).unwrap();
    save(dir, 2, 1, 20).unwrap();
    let mut left = Store::open(text(dir), options(0, 1, 1)).unwrap().save(25).unwrap();
    left.add(tutti_checkpoint::Tensor::whole("w", tutti_checkpoint::Dtype::U8, &[1], vec![1]))
        .unwrap();
    left.finish().wait().unwrap();
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(&file);
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(from.join(file), target).unwrap();
    }
}

#[test]
fn whenever_it_is_killed_the_newest_complete_one_loads() {
    let template = quick_dir();
    prepare(template.path());
    let mut deaths = 0;
    for after in 0.. {
        let dir = quick_dir();
        copy(template.path(), dir.path());
        let (said, killed) = run(dir.path(), after);
        let good = check_all(dir.path());
        let newest = *good.last().unwrap();
        assert!(newest >= 20, "{after}: {good:?}");
        if said.contains("published") {
            assert_eq!(newest, 30, "{after}");
        }
        let store = Store::open(text(dir.path()), Options::default()).unwrap();
        let loaded = store.load(Selector::Latest).unwrap();
        assert_eq!(loaded.step(), newest, "{after}: an incomplete one was taken for the newest");
        // The next attempt goes on as if nothing had been, and leaves nothing behind.
        life(dir.path(), 3, 40, None, |_| {});
        assert_eq!(check_all(dir.path()).last(), Some(&40), "{after}");
        assert_eq!(shards(dir.path()), named(&store), "{after}");
        if !killed {
            break;
        }
        deaths += 1;
    }
    assert!(deaths > 50, "only {deaths}: are all changes watched?");
}

/// Fails the n-th change, as a full disk would, and only that.
struct Failing {
    left: AtomicU64,
    failed: Mutex<Option<Op>>,
}

impl Watch for Failing {
    fn before(&self, op: Op, _: &Path) -> io::Result<()> {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            *self.failed.lock().unwrap() = Some(op);
            return Err(io::Error::from_raw_os_error(nix::libc::ENOSPC));
        }
        Ok(())
    }
}

#[test]
fn whatever_fails_nothing_is_lost_and_it_can_be_done_again() {
    let template = quick_dir();
    prepare(template.path());
    for after in 0.. {
        let dir = quick_dir();
        copy(template.path(), dir.path());
        let watch = Arc::new(Failing { left: AtomicU64::new(after), failed: Mutex::default() });
        let store = Store::open(
            text(dir.path()),
            Options { watch: Some(watch.clone()), ..options(0, 1, 2) },
        )
        .unwrap();
        let before = shards(dir.path());
        let first = save_with(|_| Ok(store.clone()), 1, 30, 64);
        let good = check_all(dir.path());
        match (&first, *watch.failed.lock().unwrap()) {
            (Ok(_), _) => assert_eq!(good, [10, 20, 30], "{after}"),
            // A failed removal of what failed can't remove it.
            (Err(e), Some(op)) => {
                assert!(good.starts_with(&[10, 20]), "{after} {op:?}");
                assert!(e.to_string().contains("is full"), "{after} {op:?}: {e}");
                if good.len() == 2 && op != Op::SyncDir {
                    let now = shards(dir.path());
                    let new: Vec<_> = now.iter().filter(|f| !before.contains(f)).collect();
                    let rest = if op == Op::Write || op == Op::Create { 0 } else { new.len() };
                    assert!(new.len() <= 1 && rest <= 1, "{after} {op:?}: {new:?}");
                }
            }
            (Err(e), None) => panic!("{after}: {e}"),
        }
        let retained = store.retain(&KEEP);
        assert!(check_all(dir.path()).last() >= Some(&20), "{after}: {retained:?}");
        let again = || save_with(|_| Ok(store.clone()), 1, 40, 64);
        // The one failure may be still to come.
        let hit = watch.failed.lock().unwrap().is_some();
        again().or_else(|e| if hit { Err(e) } else { again() }).unwrap();
        assert_eq!(check_all(dir.path()).last(), Some(&40), "{after}");
        if watch.failed.lock().unwrap().is_none() {
            break;
        }
    }
}

/// Remembers what is done.
#[derive(Default)]
struct Recorder(Mutex<Vec<(Op, String)>>);

impl Watch for Recorder {
    fn before(&self, op: Op, path: &Path) -> io::Result<()> {
        self.0.lock().unwrap().push((op, path.to_str().unwrap().to_owned()));
        Ok(())
    }
}

/// A loss of power drops what was not synced. So everything is, before a manifest makes it count.
#[test]
fn a_manifest_appears_after_all_that_it_names_is_on_disk() {
    let dir = quick_dir();
    let recorder = Arc::new(Recorder::default());
    let open = |rank| {
        Store::open(
            text(dir.path()),
            Options { watch: Some(recorder.clone()), ..options(rank, 2, 1) },
        )
    };
    let manifest = save_with(open, 2, 30, 64).unwrap().manifest;
    let seen = recorder.0.lock().unwrap().clone();
    let root = text(dir.path());
    let at = |op: Op, path: &str| {
        let found = seen.iter().rposition(|(o, p)| *o == op && p == path);
        found.unwrap_or_else(|| panic!("no {op:?} of {path} in {seen:?}"))
    };
    let step = format!("{root}/step-000000000030");
    let published = at(Op::Rename, &format!("{step}/manifest-0000.json"));
    for file in &manifest.files {
        let path = format!("{root}/{}", file.path);
        let attempt = path.rsplit_once('/').unwrap().0;
        let order = [
            at(Op::Create, &path),
            at(Op::Write, &path),
            at(Op::SyncFile, &path),
            seen.iter()
                .enumerate()
                .skip(at(Op::SyncFile, &path))
                .find(|(_, (o, p))| *o == Op::SyncDir && p == attempt)
                .expect("the directory is synced after the file")
                .0,
            published,
        ];
        assert!(order.is_sorted(), "{order:?} {seen:?}");
        let first =
            |op: Op, path: &str| seen.iter().position(|(o, p)| *o == op && p == path).unwrap();
        assert!(first(Op::MakeDir, attempt) < first(Op::SyncDir, &step));
        assert!(first(Op::MakeDir, &step) < first(Op::SyncDir, root));
    }
    let hidden: Vec<usize> = (0..seen.len())
        .filter(|&i| seen[i].0 == Op::SyncFile && seen[i].1.contains("/.manifest-"))
        .collect();
    assert!(hidden.len() == 1 && hidden[0] < published);
    let last_sync = seen.iter().rposition(|(o, p)| *o == Op::SyncDir && *p == step).unwrap();
    assert!(last_sync > published, "the manifest's own name is synced before publish returns");
}
