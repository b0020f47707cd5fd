mod disk;
mod power_loss;

use std::os::unix::fs::PermissionsExt;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::conformance::{self, Seen, Store, batch, load};
use crate::{Entry, JournalError, Level, MemoryJournal, Place, What, verify};

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }
    fn path(&self) -> PathBuf {
        self.0.path().join("journal.redb")
    }
    fn journal(&self) -> RedbJournal {
        self.try_open().unwrap()
    }
    fn try_open(&self) -> Result<RedbJournal, JournalError> {
        RedbJournal::open(&self.path(), &Options::default())
    }
}

impl Store for Folder {
    fn open(&mut self) -> Box<dyn Journal> {
        Box::new(self.journal())
    }
}

#[test]
fn keeps_the_contract() {
    conformance::run_all(&mut || Box::new(Folder::new()));
}

#[derive(Clone, Debug)]
enum Step {
    Append { first: i64, count: u64, bytes: usize },
    Snapshot { back: u64, bytes: usize },
    Load,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (prop_oneof![9 => Just(0i64), 1 => -2i64..3], 1u64..40, 0usize..6000)
            .prop_map(|(first, count, bytes)| Step::Append { first, count, bytes }),
        2 => (0u64..60, 0usize..40_000).prop_map(|(back, bytes)| Step::Snapshot { back, bytes }),
        1 => Just(Step::Load),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..40)
}

/// The same steps on any journal, and what they answered.
fn play(store: &mut dyn Store, steps: &[Step]) -> Vec<String> {
    let mut journal = store.open();
    let mut answers = Vec::new();
    for step in steps {
        let stats = journal.stats().unwrap();
        let fill = |n: usize| vec![stats.last.0 as u8; n];
        answers.push(match step {
            Step::Append { first, count, bytes } => {
                let first = (stats.last.0 + 1).saturating_add_signed(*first);
                let last = Seq(first + count - 1);
                let batch = Batch { first: Seq(first), last, bytes: fill(*bytes) };
                format!("{:?}", journal.append(&batch))
            }
            Step::Snapshot { back, bytes } => {
                let seq = Seq(stats.last.0.saturating_sub(*back));
                format!("{:?}", journal.write_snapshot(seq, &fill(*bytes)))
            }
            Step::Load => format!("{:?}", load(&mut *journal)),
            Step::Reopen => {
                drop(journal);
                journal = store.open();
                format!("{:?}", load(&mut *journal).0)
            }
        });
        let stats = journal.stats().unwrap();
        answers.push(format!("{:?}", Stats { bytes: 0, disk_bytes: 0, ..stats }));
    }
    answers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The file behaves as the one in memory does, whatever is asked of it.
    #[test]
    fn like_memory(steps in steps()) {
        let file = play(&mut Folder::new(), &steps);
        let memory = play(&mut MemoryJournal::new(), &steps);
        prop_assert_eq!(file, memory);
    }
}

#[test]
fn a_second_controller_is_refused() {
    let folder = Folder::new();
    let first = folder.journal();
    let error = folder.try_open().unwrap_err();
    assert!(matches!(error, JournalError::InUse { .. }), "{error:?}");
    assert!(error.to_string().contains("another controller is using"), "{error}");
    let error = verify(&folder.path(), &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, JournalError::InUse { .. }), "{error:?}");
    drop(first);
    folder.journal();
}

#[test]
fn others_may_not_read_it() {
    let folder = Folder::new();
    let mode = || std::fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777;
    drop(folder.journal());
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let report = verify(&folder.path(), &mut |_| Ok(())).unwrap();
    assert_eq!(report.findings[0].what, What::Mode { mode: 0o644 });
    assert_eq!(mode(), 0o644, "verify changes nothing");
    drop(folder.journal());
    assert_eq!(mode(), 0o600);
}

#[test]
fn other_files_are_left_alone() {
    for bytes in [&b"hello"[..], &[7u8; 9000], b"redb"] {
        let folder = Folder::new();
        std::fs::write(folder.path(), bytes).unwrap();
        let error = folder.try_open().unwrap_err();
        assert!(matches!(error, JournalError::NotAJournal { .. }), "{error:?}");
        assert_eq!(std::fs::read(folder.path()).unwrap(), bytes);
        assert!(!verify(&folder.path(), &mut |_| Ok(())).unwrap().is_sound());
    }
    let folder = Folder::new();
    let db = Database::create(folder.path()).unwrap();
    let txn = db.begin_write().unwrap();
    txn.open_table(redb::TableDefinition::<u64, u64>::new("theirs")).unwrap();
    txn.commit().unwrap();
    drop(db);
    let error = folder.try_open().unwrap_err();
    assert!(matches!(error, JournalError::NotAJournal { .. }), "{error:?}");
    assert!(error.to_string().contains("theirs"), "{error}");
}

#[test]
fn newer_files_are_left_alone() {
    let folder = Folder::new();
    let journal = folder.journal();
    let txn = journal.db().unwrap().begin_write().unwrap();
    txn.open_table(tables::META).unwrap().insert("format", 2).unwrap();
    txn.commit().unwrap();
    drop(journal);
    let error = folder.try_open().unwrap_err();
    assert!(matches!(error, JournalError::NewerFormat { found: 2, known: 1, .. }), "{error:?}");

    let folder = Folder::new();
    drop(folder.journal());
    let mut bytes = std::fs::read(folder.path()).unwrap();
    (bytes[64], bytes[192]) = (4, 4);
    std::fs::write(folder.path(), &bytes).unwrap();
    let error = folder.try_open().unwrap_err();
    assert!(matches!(error, JournalError::NewerFormat { found: 4, known: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("newer tutti"), "{error}");
}

#[test]
fn a_file_whose_making_was_cut_short_is_made_again() {
    let folder = Folder::new();
    drop(folder.journal());
    let mut bytes = vec![0u8; std::fs::metadata(folder.path()).unwrap().len() as usize];
    bytes[9..300].fill(3);
    std::fs::write(folder.path(), &bytes).unwrap();
    folder.journal().append(&batch(1, 1)).unwrap();

    bytes[5000] = 1;
    std::fs::write(folder.path(), &bytes).unwrap();
    let error = folder.try_open().unwrap_err();
    assert!(matches!(error, JournalError::NotAJournal { .. }), "it may have held something");
}

#[test]
fn a_missing_folder_is_named() {
    let error = RedbJournal::open(Path::new("/nowhere/at/all/j"), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("/nowhere/at/all/j"), "{error}");
    let error = verify(Path::new("/nowhere/at/all/j"), &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, JournalError::Io { .. }), "{error:?}");
}

#[test]
fn io_errors_are_told_apart() {
    use std::io::{Error, ErrorKind};
    let guard = Guard::new("/data/journal.redb".into());
    let of = |kind: ErrorKind| guard.of_io("writing", Error::from(kind));
    assert!(matches!(of(ErrorKind::StorageFull), JournalError::DiskFull { .. }));
    assert!(matches!(of(ErrorKind::QuotaExceeded), JournalError::DiskFull { .. }));
    assert!(matches!(of(ErrorKind::PermissionDenied), JournalError::Permission { .. }));
    assert!(matches!(of(ErrorKind::ReadOnlyFilesystem), JournalError::Permission { .. }));
    assert!(matches!(of(ErrorKind::UnexpectedEof), JournalError::Damaged { .. }));
    assert!(matches!(of(ErrorKind::Other), JournalError::Io { .. }));
}

#[test]
fn a_panic_of_redb_is_an_error() {
    let guard = Guard::new("/data/journal.redb".into());
    let error = guard.run::<()>("reading", || panic!("page {} is odd", 7)).unwrap_err();
    assert!(error.to_string().contains("page 7 is odd"), "{error}");
    assert!(error.to_string().contains("tests.rs"), "it says where: {error}");
}

#[test]
fn a_full_disk_breaks_the_journal() {
    let disk = disk::Disk::default();
    let mut journal = disk.journal();
    journal.append(&batch(1, 4)).unwrap();
    disk.fill_up();
    let error = journal.append(&batch(5, 5)).unwrap_err();
    assert!(matches!(error, JournalError::DiskFull { .. }), "{error:?}");
    disk.make_room();
    let error = journal.append(&batch(5, 5)).unwrap_err();
    assert!(matches!(error, JournalError::Broken), "memory is ahead of the disk: {error:?}");
    drop(journal);
    let mut journal = disk.journal();
    assert_eq!(load(&mut journal).0.batches, vec![batch(1, 4)]);
    journal.append(&batch(5, 5)).unwrap();
}

#[test]
fn one_append_is_one_fsync() {
    let disk = disk::Disk::default();
    let mut journal = disk.journal();
    let before = disk.syncs();
    for seq in 1..=50 {
        journal.append(&batch(seq, seq)).unwrap();
    }
    assert_eq!(disk.syncs() - before, 50);
}

#[test]
fn verify_finds_what_is_wrong() {
    let folder = Folder::new();
    let mut journal = folder.journal();
    for seq in [1, 2, 3] {
        journal.append(&batch(seq, seq)).unwrap();
        journal.write_snapshot(Seq(seq), b"state").unwrap();
    }
    drop(journal);
    let before = std::fs::read(folder.path()).unwrap();
    let mut entries = 0;
    let report = verify(&folder.path(), &mut |_| {
        entries += 1;
        Ok(())
    })
    .unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
    assert_eq!((entries, report.stats.as_ref().unwrap().last), (3, Seq(3)));

    let report = verify(&folder.path(), &mut |entry| match entry {
        Entry::Snapshot { seq: Seq(3), .. } => Err("odd state".into()),
        Entry::Batch { .. } => Err("odd record".into()),
        _ => Ok(()),
    })
    .unwrap();
    assert!(!report.is_sound());
    let found: Vec<_> = report.findings.iter().map(|f| (f.level, f.place)).collect();
    let batch3 = Place::Batch { first: Seq(3), last: Seq(3) };
    let expected = [(Level::Warning, Place::Snapshot { seq: Seq(3) }), (Level::Error, batch3)];
    assert_eq!(found, expected);
    assert_eq!(report.findings[1].to_string(), "records 3 to 3: odd record");
    assert_eq!(std::fs::read(folder.path()).unwrap(), before, "verify changes nothing");
}

#[test]
fn verify_finds_gaps() {
    let folder = Folder::new();
    let mut journal = folder.journal();
    for seq in 1..=9 {
        journal.append(&batch(seq, seq)).unwrap();
    }
    let txn = journal.db().unwrap().begin_write().unwrap();
    txn.open_table(LOG).unwrap().remove((4, 4)).unwrap();
    txn.open_table(CHUNKS).unwrap().insert((3, 0), &b"loose"[..]).unwrap();
    txn.commit().unwrap();
    match journal.load(&mut Seen::default()) {
        Err(JournalError::Missing { after: Seq(3), found: Seq(5) }) => {}
        other => panic!("{other:?}"),
    }
    drop(journal);
    let report = verify(&folder.path(), &mut |_| Ok(())).unwrap();
    let found: Vec<_> = report.findings.iter().map(|f| (f.level, f.to_string())).collect();
    let loose = "file: 1 chunks belong to no snapshot; they only take space".to_owned();
    let gap = "records 5 to 5: records 4 to 4 are missing from the journal".to_owned();
    assert_eq!(found, [(Level::Warning, loose), (Level::Error, gap)]);
}

#[test]
fn a_killed_owner_is_noticed() {
    let folder = Folder::new();
    let mut journal = folder.journal();
    journal.append(&batch(1, 2)).unwrap();
    let copy = folder.0.path().join("copy");
    std::fs::copy(folder.path(), &copy).unwrap();
    let before = std::fs::read(&copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o600)).unwrap();
    let report = verify(&copy, &mut |_| Ok(())).unwrap();
    assert_eq!(report.findings.len(), 1, "{report:?}");
    assert_eq!(
        (report.findings[0].level, &report.findings[0].what),
        (Level::Note, &What::NotClosed)
    );
    assert_eq!(std::fs::read(&copy).unwrap(), before, "verify changes nothing");
    let mut again = RedbJournal::open(&copy, &Options::default()).unwrap();
    assert_eq!(again.recovery(), Recovery::Checked);
    assert_eq!(load(&mut again).0.batches, vec![batch(1, 2)]);
}

/// `rm -rf` of a data dir leaves the controller with a file that nobody will find again.
#[test]
fn nothing_is_appended_to_a_journal_that_is_gone() {
    let folder = Folder::new();
    let mut journal = folder.journal();
    journal.append(&batch(1, 1)).unwrap();
    journal.check_in_place().unwrap();
    std::fs::remove_file(folder.path()).unwrap();
    let gone = journal.check_in_place().unwrap_err();
    assert!(gone.to_string().contains("deleted or moved away"), "{gone}");
    assert!(matches!(journal.append(&batch(2, 2)), Err(JournalError::Gone { .. })));
    assert!(matches!(journal.append(&batch(2, 2)), Err(JournalError::Broken)));
}

#[test]
fn nothing_is_appended_to_a_journal_that_was_replaced() {
    let folder = Folder::new();
    let mut journal = folder.journal();
    journal.append(&batch(1, 1)).unwrap();
    let copy = folder.0.path().join("copy");
    std::fs::copy(folder.path(), &copy).unwrap();
    std::fs::rename(&copy, folder.path()).unwrap();
    let gone = journal.append(&batch(2, 2)).unwrap_err();
    assert!(matches!(gone, JournalError::Gone { .. }), "{gone}");
    assert!(gone.to_string().contains("another file has its name"), "{gone}");
}

#[test]
fn a_file_shrinks_when_what_it_held_is_gone() {
    let folder = Folder::new();
    let mut journal = folder.journal();
    for seq in 1..=100 {
        let bytes = vec![seq as u8; 1 << 20];
        journal.append(&Batch { first: Seq(seq), last: Seq(seq), bytes }).unwrap();
    }
    let full = journal.stats().unwrap().disk_bytes;
    assert!(full > 100 << 20, "{full}");
    journal.write_snapshot(Seq(99), b"small").unwrap();
    journal.write_snapshot(Seq(100), b"small").unwrap();
    let given_back = journal.give_back().unwrap();
    let now = journal.stats().unwrap().disk_bytes;
    assert!(given_back > 0 && now < 16 << 20, "{full} to {now}, {given_back} given back");
    journal.append(&batch(101, 102)).unwrap();
    drop(journal);
    let (seen, loaded) = load(&mut folder.journal());
    assert_eq!((seen.snapshot, loaded.last), (Some((Seq(100), b"small".to_vec())), Seq(102)));
}
