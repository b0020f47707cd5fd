use std::collections::BTreeMap;
use std::sync::Mutex;

use tutti_gpu::NvmlFailure;

use super::*;
use crate::testing::TempDir;

/// A driver in which every process is where the test put it.
#[derive(Default)]
struct Fake {
    states: Mutex<BTreeMap<i32, ProcessState>>,
    moves: Mutex<Vec<Move>>,
}

impl Fake {
    fn with(states: &[(i32, ProcessState)]) -> Fake {
        Fake { states: Mutex::new(states.iter().copied().collect()), ..Fake::default() }
    }

    fn change(&self, pid: i32, from: ProcessState, to: ProcessState) -> Result<(), CudaError> {
        let mut states = self.states.lock().unwrap();
        match states.get_mut(&pid) {
            Some(state) if *state == from => {
                *state = to;
                Ok(())
            }
            _ => Err(no("CUDA_ERROR_ILLEGAL_STATE", 401)),
        }
    }
}

fn no(name: &str, code: i32) -> CudaError {
    CudaError::Driver { call: "call", code, name: name.into(), words: "words".into() }
}

impl Checkpointer for Fake {
    fn state(&self, pid: i32) -> Result<ProcessState, CudaError> {
        let known = self.states.lock().unwrap().get(&pid).copied();
        known.ok_or_else(|| no("CUDA_ERROR_INVALID_VALUE", 1))
    }
    fn lock(&self, pid: i32, within: Duration) -> Result<(), CudaError> {
        match within.is_zero() {
            true => Err(no("CUDA_ERROR_NOT_READY", 600)),
            false => self.change(pid, ProcessState::Running, ProcessState::Locked),
        }
    }
    fn checkpoint(&self, pid: i32) -> Result<(), CudaError> {
        self.change(pid, ProcessState::Locked, ProcessState::Checkpointed)
    }
    fn restore(&self, pid: i32, moves: &[Move]) -> Result<(), CudaError> {
        self.moves.lock().unwrap().extend(moves);
        self.change(pid, ProcessState::Checkpointed, ProcessState::Locked)
    }
    fn unlock(&self, pid: i32) -> Result<(), CudaError> {
        self.change(pid, ProcessState::Locked, ProcessState::Running)
    }
}

struct Held(BTreeMap<i32, u64>);

impl Holders for Held {
    fn by_process(&self) -> Result<BTreeMap<i32, u64>, NvmlFailure> {
        Ok(self.0.clone())
    }
    fn on_gpus(&self, uuids: &[String]) -> Result<u64, NvmlFailure> {
        Ok(uuids.len() as u64 * 1000)
    }
}

/// A root with these processes: pid, state letter, and whether it has a device open.
fn root(name: &str, processes: &[(i32, char, bool)]) -> TempDir {
    let dir = TempDir::new(name);
    for (pid, state, device) in processes {
        let proc = dir.path().join(format!("proc/{pid}"));
        std::fs::create_dir_all(proc.join("fd")).unwrap();
        std::fs::write(proc.join("stat"), format!("{pid} (a) b) {state} 1 1")).unwrap();
        let target = if *device { "/dev/nvidia-uvm" } else { "/dev/null" };
        std::os::unix::fs::symlink(target, proc.join("fd/3")).unwrap();
    }
    let meminfo = "MemTotal: 200 kB\nMemAvailable:     100 kB\n";
    std::fs::write(dir.path().join("proc/meminfo"), meminfo).unwrap();
    dir
}

fn ask(server: &Server<'_>, calls: Vec<Call>) -> BTreeMap<u64, Result<Reply, Failed>> {
    let lines: String = calls
        .into_iter()
        .zip(1..)
        .map(|(call, id)| serde_json::to_string(&Question { id, call }).unwrap() + "\n")
        .collect();
    let mut output = Vec::new();
    server.serve(lines.as_bytes(), &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    let answers = text.lines().map(|line| serde_json::from_str::<Answered>(line).unwrap());
    answers.map(|a| (a.id, a.result)).collect()
}

fn survey(pids: &[i32]) -> Call {
    Call::Survey { pids: pids.to_vec(), gpus: vec!["GPU-1".into(), "GPU-2".into()] }
}

#[test]
fn a_survey_finds_those_that_use_cuda() {
    let processes = [(1, 'S', false), (2, 'R', true), (3, 'S', true), (4, 'S', true)];
    let dir = root("survey", &processes);
    let driver = Fake::with(&[
        (1, ProcessState::Running),
        (2, ProcessState::Running),
        (4, ProcessState::Running),
    ]);
    let holders = Held([(2, 70), (4, 30), (99, 5)].into());
    let server = Server { driver: &driver, holders: &holders, root: dir.path() };
    let answers = ask(&server, vec![survey(&[4, 3, 2, 1])]);
    // 1 has no device open and is not asked; 3 was forked from one that uses CUDA.
    let found = Reply::Surveyed { procs: vec![4, 2], bytes: 100, available: Some(102_400) };
    assert_eq!(answers[&1], Ok(found));
}

#[test]
fn where_nobody_knows_the_processes_the_gpus_count() {
    let dir = root("container", &[(2, 'R', true)]);
    let driver = Fake::with(&[(2, ProcessState::Running)]);
    let server = Server { driver: &driver, holders: &Held(BTreeMap::new()), root: dir.path() };
    let answers = ask(&server, vec![survey(&[2])]);
    assert!(matches!(answers[&1], Ok(Reply::Surveyed { bytes: 2000, .. })), "{answers:?}");
}

#[test]
fn a_survey_refuses_what_can_not_be_moved() {
    let dir = root("stuck", &[(1, 'T', true), (2, 'S', true), (3, 'S', true)]);
    let driver = Fake::with(&[(1, ProcessState::Running), (3, ProcessState::Failed)]);
    let holders = Held([(2, 1 << 30)].into());
    let server = Server { driver: &driver, holders: &holders, root: dir.path() };
    let answers = ask(&server, vec![survey(&[1]), survey(&[2]), survey(&[3])]);
    let why = |id| answers[&id].as_ref().unwrap_err().why.clone();
    assert!(why(1).contains("process 1 is stopped"), "{}", why(1));
    assert!(why(2).contains("holds 1.0 GiB") && why(2).contains("INVALID_VALUE"), "{}", why(2));
    assert!(why(3).contains("has failed before"), "{}", why(3));
}

#[test]
fn a_survey_refuses_processes_that_share_memory_of_gpus() {
    let dir = root("ipc", &[(1, 'S', true), (2, 'S', true), (3, 'S', true), (4, 'S', false)]);
    let states: Vec<_> = (1..=4).map(|pid| (pid, ProcessState::Running)).collect();
    let driver = Fake::with(&states);
    let server = Server { driver: &driver, holders: &Held(BTreeMap::new()), root: dir.path() };
    let maps = |pid: i32, files: &[&str]| {
        let line = |f: &&str| format!("7f00-7f10 rw-s 00000000 00:19 7   {f}\n");
        let text: String = files.iter().map(line).collect();
        std::fs::write(dir.path().join(format!("proc/{pid}/maps")), text).unwrap();
    };
    maps(1, &["/usr/lib/libc.so", "/dev/shm/torch_9_1_0", "/dev/shm/of-its-own"]);
    maps(2, &["/usr/lib/libc.so", "/dev/shm/nccl-AbC", "/dev/shm/of-its-own"]);
    maps(3, &["/dev/shm/torch_9_1_0 (deleted)"]);
    maps(4, &["/dev/shm/nccl-AbC"]);
    let answers = ask(&server, vec![survey(&[1, 2, 4]), survey(&[1, 2, 3]), survey(&[1])]);
    // 4 uses no GPU: what it shares with others is its own affair.
    assert!(answers[&1].is_ok(), "{answers:?}");
    let why = &answers[&2].as_ref().unwrap_err().why;
    assert!(why.contains("processes 1 and 3 share") && why.contains("torch_9_1_0"), "{why}");
    assert!(answers[&3].is_ok(), "{answers:?}");
}

#[test]
fn calls_reach_the_driver_and_its_words_come_back() {
    let dir = root("calls", &[(2, 'R', true)]);
    let driver = Fake::with(&[(2, ProcessState::Running)]);
    let server = Server { driver: &driver, holders: &Held(BTreeMap::new()), root: dir.path() };
    let one = |call| ask(&server, vec![call]).remove(&1).unwrap();
    assert!(one(Call::Lock { pid: 2, timeout_ms: 0 }).unwrap_err().timeout);
    let refused = one(Call::Checkpoint { pid: 2 }).unwrap_err();
    assert_eq!(refused.why, "process 2: call: CUDA_ERROR_ILLEGAL_STATE (401): words");
    assert!(!refused.timeout);
    one(Call::Lock { pid: 2, timeout_ms: 9 }).unwrap();
    one(Call::Checkpoint { pid: 2 }).unwrap();
    let uuid = |end: &str| format!("GPU-00000000-0000-0000-0000-0000000000{end}");
    let wrong = vec![("SIM-1".to_owned(), uuid("02"))];
    assert!(one(Call::Restore { pid: 2, moves: wrong }).unwrap_err().why.contains("SIM-1"));
    let moves = vec![(uuid("01"), uuid("02"))];
    one(Call::Restore { pid: 2, moves: moves.clone() }).unwrap();
    // The second time it is there already.
    one(Call::Restore { pid: 2, moves }).unwrap();
    assert_eq!(driver.moves.lock().unwrap().len(), 1);
    one(Call::Unlock { pid: 2 }).unwrap();
    assert_eq!(driver.state(2).unwrap(), ProcessState::Running);
}

#[test]
fn settling_brings_back_from_anywhere() {
    use ProcessState::*;
    let dir = root("settle", &[(1, 'R', true), (2, 'R', true), (3, 'R', true), (4, 'R', true)]);
    let driver = Fake::with(&[(1, Running), (2, Locked), (3, Checkpointed), (4, Failed)]);
    let server = Server { driver: &driver, holders: &Held(BTreeMap::new()), root: dir.path() };
    let answers = ask(&server, [1, 2, 3, 4, 5].map(|pid| Call::Settle { pid }).to_vec());
    for id in [1, 2, 3] {
        assert_eq!(answers[&id], Ok(Reply::Done));
        assert_eq!(driver.state(id as i32).unwrap(), Running);
    }
    assert!(answers[&4].is_err(), "no way back");
    assert_eq!(answers[&5], Ok(Reply::Done), "a process that is gone");
}
