use tutti_model::{Bytes, GpuProcess, GpuSample, HostSample};

use super::file::Files;
use super::*;

const START: u64 = 1_800_000_000;

fn sample(at: u64, watts: u32) -> NodeSample {
    let gpu = |index| GpuSample {
        index: GpuIndex(index),
        power_mw: Some(watts * 1000),
        util: Some(50),
        ..GpuSample::default()
    };
    let mem_total = Bytes(100);
    let host =
        HostSample { cpu: 0.5, mem_total, mem_available: Bytes(25), ..HostSample::default() };
    NodeSample { at: Time(at * 1000), gpus: vec![gpu(0), gpu(1)], host, ..NodeSample::default() }
}

fn fill(store: &Store, node: &str, seconds: std::ops::Range<u64>, watts: u32) {
    for at in seconds {
        store.push(node, sample(START + at, watts), Time((START + at) * 1000));
    }
}

fn power(store: &Store, node: &str, from: u64, until: u64, step: u64) -> Vec<Option<f64>> {
    let time = |at: u64| Time((START + at) * 1000);
    let range = Range::new(time(from), time(until), Some(step), time(until));
    let curves =
        store.curves(node, range, |of, cell| of == Of::Gpu(GpuIndex(1)) && cell.name == "power");
    let [curve] = curves.unwrap().try_into().unwrap();
    curve.points.iter().map(|point| point.map(|p| p.mean)).collect()
}

#[test]
fn seconds_and_minutes_come_from_one_history() {
    let store = Store::default();
    fill(&store, "n1", 0..60, 100);
    fill(&store, "n1", 60..120, 300);
    assert_eq!(power(&store, "n1", 58, 62, 1), [100.0, 100.0, 300.0, 300.0].map(Some));
    assert_eq!(power(&store, "n1", 0, 120, 60), [100.0, 300.0].map(Some));
    assert_eq!(power(&store, "n1", 0, 120, 120), [Some(200.0)]);
    store.close(START + 120);
    assert_eq!(power(&store, "n1", 0, 180, 60), [Some(100.0), Some(300.0), None]);
    let range = Range::new(Time(START * 1000), Time(START * 1000 + 1), None, Time(START * 1000));
    assert!(store.curves("n2", range, |_, _| true).is_none());
}

#[test]
fn a_restart_keeps_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path()).unwrap();
    let store = Store::default();
    fill(&store, "n1", 0..150, 100);
    fill(&store, "n2", 0..150, 200);
    store.close(START + 150);
    files.save(&store, START + 150).unwrap();
    fill(&store, "n1", 150..170, 400);
    store.close(START + 170);
    files.save(&store, START + 170).unwrap();
    files.save(&store, START + 171).unwrap();

    let again = Store::default();
    // Agents were faster than the files.
    fill(&again, "n1", 200..210, 500);
    again.take_over(files.load(START + 210));
    assert_eq!(power(&again, "n1", 149, 151, 1), [Some(100.0), Some(400.0)]);
    assert_eq!(power(&again, "n1", 199, 201, 1), [None, Some(500.0)]);
    assert_eq!(power(&again, "n2", 0, 180, 60), [200.0, 200.0, 200.0].map(Some));
    // The minute that a restart divides is made of both halves.
    again.close(START + 240);
    let divided = (30.0 * 100.0 + 20.0 * 400.0) / 50.0;
    assert!((power(&again, "n1", 120, 180, 60)[0].unwrap() - divided).abs() < 0.5);

    // Only what is new is written, so a third controller sees each second once.
    files.save(&again, START + 240).unwrap();
    let third = Store::default();
    third.take_over(files.load(START + 240));
    assert_eq!(power(&third, "n1", 0, 240, 1), power(&again, "n1", 0, 240, 1));
}

/// The only file of seconds.
fn seconds(dir: &std::path::Path) -> std::path::PathBuf {
    let files: Vec<_> = std::fs::read_dir(dir.join(file::DIR))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("seconds-"))
        .collect();
    let [path] = files.try_into().unwrap();
    path
}

fn saved(files: &Files, store: &Store, seconds: std::ops::Range<u64>, watts: u32) {
    let end = START + seconds.end;
    fill(store, "n1", seconds, watts);
    store.close(end);
    files.save(store, end).unwrap();
}

fn loaded(files: &Files, at: u64) -> Store {
    let store = Store::default();
    store.take_over(files.load(START + at));
    store
}

#[test]
fn a_record_that_was_cut_off_costs_nothing_else() {
    for in_its_head in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path()).unwrap();
        let store = Store::default();
        saved(&files, &store, 0..60, 100);
        let path = seconds(dir.path());
        let whole = std::fs::metadata(&path).unwrap().len();
        saved(&files, &store, 60..120, 200);
        let full = std::fs::metadata(&path).unwrap().len();
        let length = if in_its_head { whole + 3 } else { full - 1 };
        std::fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let second = loaded(&files, 121);
        assert_eq!(power(&second, "n1", 59, 61, 1), [Some(100.0), None]);
        saved(&files, &second, 130..140, 300);
        let third = loaded(&files, 141);
        assert_eq!(power(&third, "n1", 59, 60, 1), [Some(100.0)]);
        assert_eq!(power(&third, "n1", 130, 131, 1), [Some(300.0)], "written behind it");
        assert!(!path.with_extension("damaged").exists());
    }
}

#[test]
fn what_is_damaged_is_cut_off_and_a_copy_goes_when_it_is_old() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path()).unwrap();
    let store = Store::default();
    saved(&files, &store, 0..60, 100);
    saved(&files, &store, 60..120, 200);
    let path = seconds(dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let again = loaded(&files, 121);
    assert!(path.with_extension("damaged").exists());
    assert_eq!(power(&again, "n1", 59, 61, 1), [Some(100.0), None]);
    assert_eq!(power(&again, "n1", 0, 60, 60), [Some(100.0)], "minutes are in another file");
    saved(&files, &again, 130..140, 300);
    let third = loaded(&files, 141);
    assert_eq!(power(&third, "n1", 130, 131, 1), [Some(300.0)]);
    files.save(&third, START + 8 * 24 * 3600).unwrap();
    assert!(!path.exists() && !path.with_extension("damaged").exists());
}

#[test]
fn old_files_and_old_nodes_go() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path()).unwrap();
    let store = Store::default();
    fill(&store, "gone", 0..60, 1);
    store.close(START + 60);
    files.save(&store, START + 60).unwrap();
    let week = 8 * 24 * 3600;
    fill(&store, "n1", week..week + 1, 1);
    store.close(START + week);
    files.save(&store, START + week).unwrap();
    assert!(store.newest("gone").is_none() && store.newest("n1").is_some());
    let names: Vec<_> = std::fs::read_dir(dir.path().join(file::DIR)).unwrap().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn steps_are_whole_and_no_finer_than_what_is_kept() {
    let now = Time(10_000_000_000);
    let range = |ago: u64, step| Range::new(Time(now.0 - ago * 1000), now, step, now);
    assert_eq!(range(600, None).step, 1);
    assert_eq!(range(600, Some(45)).step, 45);
    assert_eq!(range(600, Some(61)).step, 120);
    assert_eq!(range(7200, None).step, 60);
    assert_eq!(range(7200, Some(5)).step, 60);
    assert_eq!(range(600, Some(7)).points(), 600u64.div_ceil(7) + 1);
    assert_eq!(range(9_000_000, None).points(), 7 * 24 * 60 + 1, "no longer than what is kept");
}

/// A node's key is enough to send samples, and not to fill the controller with them.
#[test]
fn a_sample_is_no_longer_than_a_node_can_need() {
    let store = Store::default();
    let mut huge = sample(START, 100);
    huge.gpus = vec![huge.gpus[0].clone(); 60_000];
    let process = GpuProcess { gpu: GpuIndex(0), pid: 1, mem: Bytes(1), task: None };
    huge.processes = vec![process; 60_000];
    store.push("n1", huge, Time(START * 1000));
    let newest = store.newest("n1").unwrap().sample;
    assert_eq!((newest.gpus.len(), newest.processes.len()), (GPUS_MAX, PROCESSES_MAX));
}
