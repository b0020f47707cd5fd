use std::sync::atomic::{AtomicBool, Ordering};

use tutti_engine::{Actor, Command, Engine, Settings};
use tutti_journal::Batch;
use tutti_model::{Greeting, JobSpec, Role, Time};
use tutti_sim::cluster::NodeBuilder;

use super::*;

/// A controller in small: every command is a batch, and now and then there is a snapshot.
struct Writer {
    engine: Engine,
    journal: RedbJournal,
}

impl Writer {
    fn new(file: &Path) -> Writer {
        let journal = RedbJournal::open(file, &Options::default()).unwrap();
        let mut writer = Writer { engine: Engine::new(Settings::default()), journal };
        writer.write(Command::Start);
        let facts = NodeBuilder::new("n1").gpus("h100", 8, 80).build();
        let greeting = Box::new(Greeting::new(facts, Vec::new()));
        writer.write(Command::Hello { greeting, session: 1, key: None });
        writer
    }

    fn write(&mut self, command: Command) {
        let records = self.engine.step(command, Time(1_000_000)).records;
        let (first, last) = (records.first().unwrap(), records.last().unwrap());
        let bytes = codec::encode(&records).unwrap();
        self.journal.append(&Batch { first: first.seq, last: last.seq, bytes }).unwrap();
    }

    fn submit(&mut self) {
        let actor = Actor { user: "ada".to_owned(), role: Role::Admin };
        let spec = Box::new(JobSpec::shell("x".repeat(2000)));
        self.write(Command::Submit { actor, spec, user: None, key: None });
    }

    fn snapshot(&mut self) {
        let state = self.engine.state();
        let bytes = codec::encode_packed(state).unwrap();
        self.journal.write_snapshot(state.seq, &bytes).unwrap();
    }
}

/// Overwrites every page, as reuse by later writes does to some.
fn spoil(file: &Path) {
    let length = std::fs::metadata(file).unwrap().len();
    let bytes = vec![0xA5; usize::try_from(length).unwrap() - HEAD];
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    file.write_all_at(&bytes, HEAD as u64).unwrap();
}

#[test]
fn a_torn_copy_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    let mut writer = Writer::new(&file);
    let mut copies = 0;
    let (trace, ..) = read_with(&file, |from, to| {
        let copied = std::fs::copy(from, to)?;
        copies += 1;
        if copies <= 3 {
            writer.submit();
            spoil(to);
        }
        Ok(copied)
    })
    .unwrap();
    assert_eq!((copies, trace.skipped), (4, 3));
}

/// Whether or not copies are torn by writes, every read succeeds.
#[test]
fn a_journal_is_read_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    let mut writer = Writer::new(&file);
    (0..50).for_each(|_| writer.submit());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1.. {
                writer.submit();
                if n % 20 == 0 {
                    writer.snapshot();
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let failed: Vec<String> =
            (0..10).filter_map(|_| read(&file).err()).map(|f| f.to_string()).collect();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failed, Vec::<String>::new());
    });
}

#[test]
fn a_journal_in_use_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    let mut writer = Writer::new(&file);
    writer.submit();
    assert!(in_use(&file).unwrap());
    // The pages are gone, and only a controller that is at work could say why.
    let broken = dir.path().join("broken.redb");
    std::fs::copy(&file, &broken).unwrap();
    spoil(&broken);
    let damaged = read(&broken).err().unwrap();
    assert!(damaged.message.contains("damaged"), "{damaged}");
    let held = File::open(&broken).unwrap();
    held.lock().unwrap();
    let live = read(&broken).err().unwrap();
    assert!(live.message.contains("written to faster than it can be copied"), "{live}");
    assert!(!live.to_string().contains("damaged"), "{live}");
}

#[test]
fn a_journal_is_where_somebody_says_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(tutti_controller::JOURNAL_FILE);
    let _writer = Writer::new(&file);
    let data_dir = dir.path().display().to_string();
    let by_cluster = locate(None, Some(&data_dir)).unwrap();
    assert!(by_cluster.named_by_cluster && by_cluster.file == file);
    // With a trace, the cluster says which nodes to use.
    let by_trace = locate(Some(dir.path()), Some("4xh100:8")).unwrap();
    assert!(!by_trace.named_by_cluster && by_trace.file == file);
    let missing = locate(Some(Path::new("/nowhere/at/all")), None).err().unwrap();
    assert_eq!(missing.exit, crate::fail::USAGE);
}
