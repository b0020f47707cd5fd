use clap::Parser;
use tutti_checkpoint::advise::{Evidence, Question, advise};
use tutti_checkpoint::{Attempt, Dtype, Options, Store, Tensor, Writer};

use super::output::{checked, detail, table};
use super::*;
use crate::args::Cli;
use crate::style::Style;

fn saved(dir: &Path, steps: &[u64]) -> Store {
    let attempt = Attempt { owner: "12".into(), generation: 3 };
    let writer = Some(Writer { rank: 0, world: 1, attempt });
    let options = Options { writer, ..Options::default() };
    let store = Store::open(dir.to_str().unwrap(), options).unwrap();
    for &step in steps {
        let mut save = store.save(step).unwrap();
        save.add(Tensor::whole("w", Dtype::F32, &[2, 3], vec![1; 24])).unwrap();
        let report = save.finish().wait().unwrap();
        store.publish(step, vec![report], serde_json::json!({"dp": 1})).unwrap();
    }
    store
}

fn tutti(line: &str) -> Result<ExitCode, Fail> {
    let cli =
        Cli::try_parse_from(line.split_whitespace()).unwrap_or_else(|e| panic!("{line}: {e}"));
    let crate::args::Verb::Ckpt(args) = cli.verb else { panic!("{line}") };
    run(None, args)
}

#[test]
fn what_is_there_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let store = saved(dir.path(), &[10, 20]);
    store.pin(10, "best").unwrap();
    let shown = table(&output::rows(&store.list().unwrap(), &[]), Style::PLAIN);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 3, "{shown}");
    assert!(lines[1].starts_with("  10") && lines[1].ends_with("pinned: best"), "{shown}");
    assert_eq!(table(&[], Style::PLAIN), "no checkpoints");
    let shown = detail(&store.published(20).unwrap(), true, Style::PLAIN);
    for want in ["by        1 rank, job 12 (generation 3)", "meta      {\"dp\":1}", "[2, 3]"] {
        assert!(shown.contains(want), "{shown}");
    }
}

#[test]
fn damage_is_shown_and_fails() {
    let dir = tempfile::tempdir().unwrap();
    let store = saved(dir.path(), &[10]);
    let path = dir.path().join(&store.published(10).unwrap().files[0].path);
    let where_ = dir.path().display();
    assert_eq!(tutti(&format!("tutti ckpt verify {where_}")).unwrap(), ExitCode::SUCCESS);
    std::fs::write(path, b"short").unwrap();
    assert_eq!(tutti(&format!("tutti ckpt verify {where_} 10")).unwrap(), ExitCode::FAILURE);
    let found = output::Checked::Read(store.verify(10, false, &|_| {}).unwrap());
    let shown = checked(&[found], Style::PLAIN);
    assert!(shown.starts_with("step 10  lost  1 file, "), "{shown}");
    assert!(shown.contains("it has 5 of "), "{shown}");
}

#[test]
fn verbs_do_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let store = saved(dir.path(), &[10, 20, 30, 40]);
    let at = dir.path().display();
    let steps = || store.list().unwrap().iter().map(|l| l.step).collect::<Vec<_>>();
    tutti(&format!("tutti ckpt pin {at} 10 --why first")).unwrap();
    tutti(&format!("tutti ckpt rm {at} --keep-last 2")).unwrap();
    assert_eq!(steps(), [10, 30, 40]);
    let pinned = tutti(&format!("tutti ckpt rm {at} 10")).unwrap_err();
    assert_eq!(pinned.message, "step 10 is pinned (first); unpin it first");
    tutti(&format!("tutti ckpt unpin {at} 10")).unwrap();
    tutti(&format!("tutti ckpt rm {at} 10 30")).unwrap();
    let newest = tutti(&format!("tutti ckpt rm {at} 40")).unwrap_err();
    assert_eq!(newest.hint.as_deref(), Some("--force removes it all the same"));
    assert_eq!(tutti(&format!("tutti ckpt show {at} 7")).unwrap_err().exit, NOT_FOUND);
    assert_eq!(tutti("tutti ckpt ls /no/such/place").unwrap_err().exit, NOT_FOUND);
    let file = dir.path().join("model.safetensors");
    tutti(&format!("tutti ckpt restore {at} --to {} --single", file.display())).unwrap();
    assert!(std::fs::metadata(&file).unwrap().len() > 24);
    let copy = dir.path().join("copy");
    tutti(&format!("tutti ckpt restore {at} 40 --to {}", copy.display())).unwrap();
    let copied = Store::open(copy.to_str().unwrap(), Options::default()).unwrap();
    assert_eq!(copied.list().unwrap().len(), 1);
    tutti(&format!("tutti ckpt rm {at} 40 --force")).unwrap();
    assert_eq!(steps(), Vec::<u64>::new());
}

#[test]
fn a_foreign_directory_is_taken_in() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("checkpoint-500");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("model.bin"), b"weights").unwrap();
    tutti(&format!("tutti ckpt register {} --step 500", foreign.display())).unwrap();
    let at = dir.path().display();
    assert_eq!(tutti(&format!("tutti ckpt verify {at} 500")).unwrap(), ExitCode::SUCCESS);
    let to = dir.path().join("back");
    tutti(&format!("tutti ckpt restore {at} 500 --to {}", to.display())).unwrap();
    assert_eq!(std::fs::read(to.join("model.bin")).unwrap(), b"weights");
}

/// A user of the machine who prepares directories for root to trip over.
const MALLORY: u32 = 61_003;

fn give_all(path: &Path, uid: u32) {
    std::os::unix::fs::lchown(path, Some(uid), Some(uid)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give_all(&entry.unwrap().path(), uid);
        }
    }
}

/// Checkpoints of root, and a directory of somebody else with checkpoints of theirs.
fn two_users() -> Option<(tempfile::TempDir, std::path::PathBuf, std::path::PathBuf)> {
    use std::os::unix::fs::PermissionsExt;
    if !tutti_files::is_privileged() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let (victim, theirs) = (dir.path().join("victim"), dir.path().join("mallory/ckpt"));
    saved(&victim, &[10, 20]);
    saved(&theirs, &[10, 20]);
    give_all(&dir.path().join("mallory"), MALLORY);
    Some((dir, victim, theirs))
}

fn steps_of(dir: &Path) -> Vec<u64> {
    let store = Store::open(dir.to_str().unwrap(), Options::default()).unwrap();
    let listed = store.list().unwrap();
    let whole = |l: &&Listed| store.verify(l.step, false, &|_| {}).unwrap().loads;
    listed.iter().filter(whole).map(|l| l.step).collect()
}

/// The only directory in another.
fn inner(dir: &Path) -> std::path::PathBuf {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    entries.filter(|path| path.is_dir()).min().unwrap()
}

#[test]
fn root_removes_nothing_through_links_of_others() {
    let Some((dir, victim, theirs)) = two_users() else { return };
    // What the manifest names is in a directory that is a link, to the same names elsewhere.
    let attempt = inner(&theirs.join("step-000000000010"));
    let meant = inner(&victim.join("step-000000000010"));
    for file in std::fs::read_dir(&attempt).unwrap() {
        std::fs::write(meant.join(file.unwrap().file_name()), "precious").unwrap();
    }
    let before = std::fs::read_dir(&meant).unwrap().count();
    std::fs::remove_dir_all(&attempt).unwrap();
    std::os::unix::fs::symlink(&meant, &attempt).unwrap();
    std::os::unix::fs::lchown(&attempt, Some(MALLORY), Some(MALLORY)).unwrap();
    let refused = tutti(&format!("tutti ckpt rm {} 10 --force", theirs.display())).unwrap_err();
    assert!(refused.message.contains("is a link, and links are not followed"), "{refused:?}");
    assert_eq!(std::fs::read_dir(&meant).unwrap().count(), before);

    // The step itself is one, and so is the whole place.
    let _ = tutti(&format!("tutti ckpt rm {} --keep-last 1", theirs.display()));
    std::fs::remove_dir_all(theirs.join("step-000000000020")).unwrap();
    let step = theirs.join("step-000000000020");
    std::os::unix::fs::symlink(victim.join("step-000000000020"), step).unwrap();
    assert!(tutti(&format!("tutti ckpt rm {} 20 --force", theirs.display())).is_err());
    let link = dir.path().join("mallory/link");
    std::os::unix::fs::symlink(&victim, &link).unwrap();
    let refused = tutti(&format!("tutti ckpt rm {} 10 20 --force", link.display())).unwrap_err();
    assert!(refused.message.contains("name the directory that is meant"), "{refused:?}");
    assert_eq!(steps_of(&victim), [10, 20]);
}

#[test]
fn root_acts_with_the_rights_of_who_owns_the_checkpoints() {
    use std::os::unix::fs::MetadataExt;
    let Some((dir, victim, theirs)) = two_users() else { return };
    // Theirs are removed and copied as ever, and what is made there is theirs.
    tutti(&format!("tutti ckpt rm {} 10", theirs.display())).unwrap();
    assert_eq!(steps_of(&theirs), [20]);
    let copy = dir.path().join("mallory/copy");
    tutti(&format!("tutti ckpt restore {} 20 --to {}", victim.display(), copy.display())).unwrap();
    assert_eq!(std::fs::metadata(inner(&inner(&copy))).unwrap().uid(), MALLORY);
    // Root's own directory with a step of somebody else in it.
    let shared = dir.path().join("shared");
    std::fs::rename(&theirs, &shared).unwrap();
    std::os::unix::fs::chown(&shared, Some(0), Some(0)).unwrap();
    let refused = tutti(&format!("tutti ckpt rm {} 20 --force", shared.display())).unwrap_err();
    assert!(refused.message.contains("sudo -u '#61003'"), "{refused:?}");
    assert_eq!(steps_of(&shared), [20]);
}

#[test]
fn root_writes_and_hashes_nothing_through_links_of_others() {
    let Some((dir, victim, _)) = two_users() else { return };
    let home = dir.path().join("mallory/foreign");
    std::fs::create_dir_all(home.join("run/sub")).unwrap();
    std::fs::write(home.join("run/sub/a.bin"), b"weights").unwrap();
    give_all(&home, MALLORY);
    tutti(&format!("tutti ckpt register {} --step 5", home.join("run").display())).unwrap();
    // Where it is restored to, a directory on the way is a link.
    let to = dir.path().join("mallory/to");
    std::fs::create_dir(&to).unwrap();
    std::os::unix::fs::symlink(&victim, to.join("run")).unwrap();
    std::fs::create_dir(home.join("other")).unwrap();
    std::fs::write(home.join("other/b.bin"), b"more").unwrap();
    give_all(&dir.path().join("mallory"), MALLORY);
    let both = format!(
        "tutti ckpt register {} --step 6 --in {}",
        home.display(),
        dir.path().join("mallory").display()
    );
    tutti(&both).unwrap();
    let at = dir.path().join("mallory");
    let refused = tutti(&format!("tutti ckpt restore {} 6 --to {}", at.display(), to.display()));
    assert!(refused.unwrap_err().message.contains("is a link"), "nothing is written through it");
    let seen: Vec<_> = std::fs::read_dir(&victim).unwrap().collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
    // A file that is a link to what only root may read is not hashed.
    let secret = dir.path().join("secret");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("key"), "secret").unwrap();
    std::os::unix::fs::symlink(secret.join("key"), home.join("run/key")).unwrap();
    tutti(&format!("tutti ckpt register {} --step 7", home.join("run").display())).unwrap();
    let store = Store::open(home.to_str().unwrap(), Options::default()).unwrap();
    let files = store.published(7).unwrap().files;
    assert_eq!(files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["run/sub/a.bin"]);
}

#[test]
fn advice_reads_well() {
    let question = Question {
        save_s: 1.0,
        mtbf_s: 11_160.0,
        restart_s: 60.0,
        gpus: 16_384.0,
        interval_s: Some(3600.0),
    };
    let given = advise::Basis {
        save: advise::Source::Given,
        mtbf: advise::Source::Given,
        restart: advise::Source::Given,
        evidence: None,
    };
    let shown = advise::text(&question, &advise(&question), Some(74), &given);
    assert!(shown.starts_with("save every 2m28s, which is 74 steps\n"), "{shown}");
    assert!(shown.contains("a failure is expected every 3h6m\n"), "{shown}");
    assert!(!shown.contains("assumed"), "{shown}");
    let source = advise::Source::Assumed;
    let evidence = Some(Evidence { failures: 0, gpu_hours: 1.5 });
    let assumed = advise::Basis { save: source, mtbf: source, restart: source, evidence };
    let text = advise::text(&question, &advise(&question), None, &assumed);
    assert_eq!(text.matches("(assumed").count(), 3, "{text}");
    assert!(text.contains("one in 50000 GPU-hours, as large runs report; none in 1.5 here"));
    assert!(shown.ends_with("saving every 1h"), "{shown}");
    assert_eq!(advise::median_gap(vec![5000, 1000, 2000]), Some(3.0));
    assert_eq!(advise::median_gap(vec![5000]), None);
    tutti("tutti ckpt advise --save-time 2s --mtbf 8h --gpus 64 --every 1h").unwrap();
}

#[test]
fn hours_are_counted_as_far_as_failures_are() {
    let ran = |n: u64| advise::Ran {
        id: n.to_string().parse().unwrap(),
        restarts: u32::from(n.is_multiple_of(2)),
        gpu_hours: 1.0,
    };
    let found = advise::count_up((0..10_000).map(ran), |_| Ok(2)).unwrap();
    let asked = advise::LOOK_AT as u32;
    // The jobs before the first whose failures are not looked at.
    assert_eq!((found.failures, found.gpu_hours), (2 * asked, f64::from(2 * asked)));
    let few = advise::count_up((0..5).map(ran), |_| Ok(1)).unwrap();
    assert_eq!((few.failures, few.gpu_hours), (3, 5.0));
}

#[test]
fn a_jobs_words_do_nothing_to_the_terminal() {
    let recorded = "/ck/\u{1b}[2Jgone".to_owned();
    let standing = known::Standing::NotHashed { files: 1, bytes: 1 };
    let one =
        known::Known { step: 3, at: None, path: Some(recorded.clone()), node: None, standing };
    let all = [
        output::known(&one, None),
        checked(
            &[
                output::Checked::Recorded {
                    step: 3,
                    recorded: recorded.clone(),
                    files: 1,
                    bytes: 1,
                },
                output::Checked::Unreadable { step: 4, why: recorded },
            ],
            Style::PLAIN,
        ),
    ];
    for text in all {
        assert!(text.contains("gone") && !text.contains('\u{1b}'), "{text:?}");
    }
}
