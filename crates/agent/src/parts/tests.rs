use tutti_model::{ExitStatus, Rank, RankExit, Time};

use super::*;
use crate::testing::{TempDir, launch};

fn parts(dir: &TempDir) -> Parts {
    Parts::open(dir.path().join("parts")).unwrap()
}

fn record(task: &str, generation: u64) -> Record {
    Record { launch: launch(task, generation), port: 29500 }
}

#[test]
fn a_part_is_claimed_once() {
    let dir = TempDir::new("claim");
    let mut parts = parts(&dir);
    let record = record("1", 1);
    let lease = record.launch.lease;
    parts.write_launch(&record).unwrap();
    assert_eq!(parts.fate(lease).unwrap(), Fate::Unclaimed);
    let claim = Claim::take(&parts.stem(lease)).unwrap();
    assert!(claim.is_some());
    assert!(Claim::take(&parts.stem(lease)).unwrap().is_none());
    assert!(!parts.revoke(lease).unwrap(), "too late to revoke");
}

#[test]
fn a_revoked_part_is_never_claimed() {
    let dir = TempDir::new("revoke");
    let mut parts = parts(&dir);
    let record = record("1", 1);
    parts.write_launch(&record).unwrap();
    assert!(parts.revoke(record.launch.lease).unwrap());
    assert!(Claim::take(&parts.stem(record.launch.lease)).unwrap().is_none());
}

#[test]
fn a_prepared_part_is_not_claimable_before_it_is_released() {
    let dir = TempDir::new("prepared");
    let mut parts = parts(&dir);
    let record = record("1", 1);
    let lease = record.launch.lease;
    parts.write_prepared(&record).unwrap();
    assert!(Claim::take(&parts.stem(lease)).unwrap().is_none());
    parts.release(lease).unwrap();
    assert!(Claim::take(&parts.stem(lease)).unwrap().is_some());
}

#[test]
fn the_end_is_found_again() {
    let dir = TempDir::new("end");
    let mut parts = parts(&dir);
    let record = record("1_4", 9);
    let lease = record.launch.lease;
    parts.write_launch(&record).unwrap();
    let mut claim = Claim::take(&parts.stem(lease)).unwrap().unwrap();
    let exit = RankExit { rank: Rank(0), status: ExitStatus::Signal(9), at: Time(5) };
    let end = End { exits: vec![exit], ..End::default() };
    claim.write_end(&end).unwrap();
    drop(claim);
    assert_eq!(parts.fate(lease).unwrap(), Fate::Ended(end.clone()));
    let found = parts.scan().unwrap();
    assert_eq!(found[&lease], Found { record, state: FoundState::Ended(end), level: None });
    parts.remove(lease).unwrap();
    assert!(parts.scan().unwrap().is_empty());
}

#[test]
fn a_claim_without_its_process_is_dead() {
    let dir = TempDir::new("dead");
    let mut parts = parts(&dir);
    let record = record("2", 3);
    parts.write_launch(&record).unwrap();
    drop(Claim::take(&parts.stem(record.launch.lease)).unwrap().unwrap());
    assert_eq!(parts.fate(record.launch.lease).unwrap(), Fate::Dead);
    assert_eq!(parts.scan().unwrap()[&record.launch.lease].state, FoundState::Dead);
}

#[test]
fn a_record_cut_off_is_removed() {
    let dir = TempDir::new("torn");
    let mut parts = parts(&dir);
    let record = record("2", 3);
    parts.write_launch(&record).unwrap();
    let path = with_ending(&parts.stem(record.launch.lease), "launch");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert!(parts.scan().unwrap().is_empty());
    assert!(!path.exists());
}

#[test]
fn a_reused_record_holds_nothing_of_the_one_before() {
    let dir = TempDir::new("reuse");
    let mut parts = parts(&dir);
    let mut first = record("1", 1);
    std::sync::Arc::make_mut(&mut first.launch.spec).name = Some("x".repeat(500));
    parts.write_launch(&first).unwrap();
    let mut claim = Claim::take(&parts.stem(first.launch.lease)).unwrap().unwrap();
    claim.write_end(&End { exits: vec![], ..End::default() }).unwrap();
    drop(claim);
    parts.remove(first.launch.lease).unwrap();
    assert_eq!(parts.spares.len(), 1);
    let second = record("2", 2);
    parts.write_launch(&second).unwrap();
    assert!(parts.spares.is_empty());
    let found = parts.scan().unwrap();
    let wanted = Found { record: second.clone(), state: FoundState::Unclaimed, level: None };
    assert_eq!(found, BTreeMap::from([(second.launch.lease, wanted)]));
    drop(Claim::take(&parts.stem(second.launch.lease)).unwrap().unwrap());
    assert_eq!(parts.fate(second.launch.lease).unwrap(), Fate::Dead, "not the end of the first");
}

/// An agent that starts reads the directory while shims of the one before still claim parts.
#[test]
fn a_part_that_is_claimed_meanwhile_is_not_missed() {
    let dir = TempDir::new("meanwhile");
    let mut parts = parts(&dir);
    let records: Vec<Record> = (1..=300).map(|i| record(&i.to_string(), i)).collect();
    records.iter().for_each(|record| parts.write_launch(record).unwrap());
    std::thread::scope(|scope| {
        let claims = scope.spawn(|| {
            let take = |r: &Record| Claim::take(&parts.stem(r.launch.lease)).unwrap().unwrap();
            records.iter().map(take).collect::<Vec<_>>()
        });
        while !claims.is_finished() {
            assert_eq!(parts.scan().unwrap().len(), records.len());
            for record in &records {
                // Locks are the process's own, so a claimed part may look dead here; but only then.
                let fate = parts.fate(record.launch.lease).unwrap();
                let claimed = with_ending(&parts.stem(record.launch.lease), "running").exists();
                assert!(fate == Fate::Unclaimed || claimed, "{fate:?}");
            }
        }
        claims.join().unwrap();
    });
    assert_eq!(parts.scan().unwrap().len(), records.len());
}

#[test]
fn nothing_of_a_forgotten_part_stays_on_disk() {
    let dir = TempDir::new("forgotten");
    let mut parts = parts(&dir);
    let secret = "hf_abcdefghijklmnop";
    let mut record = record("1", 1);
    let env = &mut std::sync::Arc::make_mut(&mut record.launch.spec).env;
    env.insert("HF_TOKEN".into(), secret.into());
    let on_disk = || {
        let files = std::fs::read_dir(dir.path().join("parts")).unwrap().flatten();
        let texts = files.map(|file| std::fs::read(file.path()).unwrap());
        texts.filter(|text| text.windows(secret.len()).any(|w| w == secret.as_bytes())).count()
    };
    parts.write_launch(&record).unwrap();
    assert_eq!(on_disk(), 1, "while it may run");
    drop(Claim::take(&parts.stem(record.launch.lease)).unwrap().unwrap());
    parts.remove(record.launch.lease).unwrap();
    assert_eq!(parts.spares.len(), 1, "the file is kept for the next part");
    assert_eq!(on_disk(), 0);
}
