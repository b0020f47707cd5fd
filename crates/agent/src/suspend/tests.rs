use std::collections::BTreeMap;

use tutti_gpu::cuda::ProcessState;

use super::*;

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000000";
const OTHER: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// A driver and processes that do what the machine asks, and fail where they are told to.
struct World {
    machine: Machine,
    now: Instant,
    states: BTreeMap<i32, ProcessState>,
    frozen: bool,
    limit: bool,
    helper: bool,
    broken: Option<String>,
    /// Every call that was made, in order.
    log: Vec<String>,
    /// Calls that fail, by their number from 0, and how.
    faults: BTreeMap<usize, Fault>,
    levels: Vec<Option<Suspension>>,
    bytes: u64,
    available: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The driver says no, and nothing has changed.
    Refuses,
    /// A lock runs out of time.
    TooSlow,
    /// It never answers.
    Hangs,
    /// It was done, but the helper died before it could say so.
    DiesAfter,
}

impl World {
    fn new(procs: &[i32]) -> World {
        World {
            machine: Machine::new(Ability::Cuda { huge_pages: false }, vec![GPU.into()]),
            now: Instant::now(),
            states: procs.iter().map(|pid| (*pid, ProcessState::Running)).collect(),
            frozen: false,
            limit: false,
            helper: false,
            broken: None,
            log: Vec::new(),
            faults: BTreeMap::new(),
            levels: Vec::new(),
            bytes: 2 * GIB,
            available: 64 * GIB,
        }
    }

    fn with(procs: &[i32], at: usize, fault: Fault) -> World {
        World { faults: [(at, fault)].into(), ..World::new(procs) }
    }

    /// One input and all that follows, time included.
    fn go(&mut self, input: Input) -> &mut World {
        let mut inputs = std::collections::VecDeque::from([input]);
        for _ in 0..200 {
            let input = match inputs.pop_front() {
                Some(input) => input,
                None => match self.machine.next_alarm() {
                    Some(at) => {
                        self.now = at;
                        Input::Tick
                    }
                    None => return self,
                },
            };
            for action in self.machine.step(self.now, input) {
                inputs.extend(self.carry_out(action));
            }
            let level = self.machine.level().suspension;
            if self.levels.last() != Some(&level) {
                self.levels.push(level);
            }
        }
        panic!("it never comes to rest: {:?}", self.log);
    }

    fn carry_out(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Survey { id } => {
                let procs: Vec<i32> = self.states.keys().copied().collect();
                let (bytes, available) = (self.bytes, Some(self.available));
                self.called(id, "survey".into(), |_| {
                    Ok(Reply::Surveyed { procs, bytes, available })
                })
            }
            Action::Call { id, call } => self.call(id, call),
            Action::DismissHelper | Action::KillHelper => {
                self.helper = false;
                None
            }
            Action::MakeRoom(_) => {
                self.limit = true;
                None
            }
            Action::PutLimitBack => {
                self.limit = false;
                None
            }
            Action::Freeze => {
                let all_out = self.states.values().all(|s| *s == ProcessState::Checkpointed);
                assert!(all_out, "frozen before all is out: {:?}", self.states);
                self.frozen = true;
                Some(Input::Frozen(Ok(())))
            }
            Action::Thaw => {
                self.frozen = false;
                Some(Input::Thawed(Ok(())))
            }
            Action::Break { why } => {
                self.broken = Some(why);
                None
            }
        }
    }

    fn called(
        &mut self,
        id: u64,
        name: String,
        effect: impl FnOnce(&mut World) -> Result<Reply, Failed>,
    ) -> Option<Input> {
        assert!(!self.frozen, "{name} on a frozen process would hang");
        let fault = self.faults.get(&self.log.len()).copied();
        self.log.push(name);
        self.helper = true;
        let no = |why: &str, timeout| Err(Failed { why: why.into(), timeout });
        let result = match fault {
            None => effect(self),
            Some(Fault::Refuses) => no("CUDA_ERROR_NOT_SUPPORTED", false),
            Some(Fault::TooSlow) => no("CUDA_ERROR_NOT_READY", true),
            Some(Fault::Hangs) => return None,
            Some(Fault::DiesAfter) => {
                let _ = effect(self);
                return Some(Input::HelperGone { why: "the helper died".into() });
            }
        };
        Some(Input::Answer { id, result })
    }

    fn call(&mut self, id: u64, call: Call) -> Option<Input> {
        use ProcessState::*;
        let (name, pid) = match &call {
            Call::Survey { .. } => unreachable!("an action of its own"),
            Call::Lock { pid, .. } => ("lock", *pid),
            Call::Checkpoint { pid } => ("checkpoint", *pid),
            Call::Restore { pid, .. } => ("restore", *pid),
            Call::Unlock { pid } => ("unlock", *pid),
            Call::Settle { pid } => ("settle", *pid),
        };
        let name = match &call {
            Call::Restore { moves, .. } if !moves.is_empty() => format!("move {pid}"),
            _ => format!("{name} {pid}"),
        };
        self.called(id, name, |world| {
            let state = world.states.get_mut(&pid).expect("a process of the part");
            let next = match (&call, *state) {
                (Call::Lock { .. }, Running) => Locked,
                (Call::Checkpoint { .. }, Locked) => Checkpointed,
                (Call::Restore { .. }, Checkpointed | Locked) => Locked,
                (Call::Unlock { .. }, Locked) => Running,
                (Call::Settle { .. }, _) => Running,
                (call, state) => panic!("{call:?} in state {state:?}"),
            };
            *state = next;
            Ok(Reply::Done)
        })
    }

    fn all(&self, state: ProcessState) -> bool {
        self.states.values().all(|s| *s == state)
    }

    fn refusal(&self) -> Option<String> {
        match self.machine.level().suspension {
            Some(Suspension::Refused { why }) => Some(why),
            _ => None,
        }
    }

    /// Everything as it was, or everything out: nothing in between, and no helper left.
    fn assert_at_rest(&self) {
        let running = self.all(ProcessState::Running) && !self.frozen && !self.limit;
        let out = self.all(ProcessState::Checkpointed) && self.frozen;
        assert!(running || out || self.broken.is_some(), "{:?} {:?}", self.states, self.log);
        assert!(!self.helper, "{:?}", self.log);
    }
}

fn wake(gpu: &str) -> Input {
    Input::Wake { gpus: vec![gpu.into()] }
}

#[test]
fn a_gang_goes_out_in_order_and_comes_back() {
    let mut w = World::new(&[10, 11]);
    w.go(Input::Suspend { room: None });
    assert!(w.frozen && w.all(ProcessState::Checkpointed));
    let out = ["survey", "lock 10", "lock 11", "checkpoint 10", "checkpoint 11"];
    assert_eq!(w.log, out);
    let bytes = Bytes(2 * GIB);
    assert_eq!(w.levels, [Some(Suspension::Suspending), Some(Suspension::Suspended { bytes })]);
    w.assert_at_rest();
    w.go(wake(GPU));
    assert_eq!(w.log[out.len()..], ["restore 10", "restore 11", "unlock 10", "unlock 11"]);
    assert_eq!(w.levels[2..], [Some(Suspension::Waking), None]);
    w.assert_at_rest();
    assert!(w.machine.is_running());
}

#[test]
fn orders_that_come_twice_change_nothing() {
    let mut w = World::new(&[10]);
    w.go(Input::Suspend { room: None });
    let calls = w.log.len();
    w.go(Input::Suspend { room: None });
    assert_eq!(w.log.len(), calls);
    w.go(wake(GPU));
    let calls = w.log.len();
    w.go(wake(GPU));
    assert_eq!((w.log.len(), w.machine.is_running()), (calls, true));
}

#[test]
fn it_comes_back_on_another_gpu_and_stays_there() {
    let mut w = World::new(&[10]);
    w.go(Input::Suspend { room: None }).go(wake(OTHER));
    assert!(w.log.contains(&"move 10".to_owned()), "{:?}", w.log);
    assert_eq!(w.machine.level().gpus, [OTHER]);
    w.go(Input::Suspend { room: None }).go(wake(OTHER));
    assert_eq!(w.log.iter().filter(|c| c.starts_with("move")).count(), 1);
}

#[test]
fn a_part_without_cuda_is_only_frozen() {
    let mut w = World::new(&[]);
    (w.bytes, w.available) = (0, 0);
    w.go(Input::Suspend { room: None });
    assert!(w.frozen);
    assert_eq!(w.machine.level().suspension, Some(Suspension::Suspended { bytes: Bytes(0) }));
    w.go(wake(GPU));
    assert!(!w.frozen && w.machine.is_running());
    assert_eq!(w.log, ["survey"]);
}

#[test]
fn what_does_not_fit_into_host_memory_stays() {
    let mut w = World::new(&[10]);
    (w.bytes, w.available) = (60 * GIB, 60 * GIB);
    w.go(Input::Suspend { room: None });
    let why = w.refusal().unwrap();
    assert!(why.contains("has 60.0 GiB") && why.contains("64.0 GiB are needed"), "{why}");
    assert_eq!(w.log, ["survey"]);
    w.assert_at_rest();
}

#[test]
fn a_lock_that_takes_too_long_is_tried_again() {
    let mut w = World::with(&[10, 11], 2, Fault::TooSlow);
    w.go(Input::Suspend { room: None });
    let again = ["settle 10", "settle 11", "lock 10", "lock 11"];
    assert_eq!(w.log[3..7], again);
    assert!(w.frozen, "{:?}", w.log);
    // A gang that never comes to rest is let go.
    let mut w = World::new(&[10, 11]);
    w.faults = (0..100).map(|at| (at, Fault::TooSlow)).filter(|(at, _)| at % 4 == 2).collect();
    w.go(Input::Suspend { room: None });
    assert_eq!(w.refusal().as_deref(), Some("CUDA_ERROR_NOT_READY"));
    w.assert_at_rest();
}

/// Every call on the way out and back fails once, in every way.
#[test]
fn all_or_none_whatever_fails() {
    for at in 0..10 {
        for fault in [Fault::Refuses, Fault::Hangs, Fault::DiesAfter] {
            let mut w = World::with(&[10, 11], at, fault);
            w.go(Input::Suspend { room: None });
            w.assert_at_rest();
            let failed_on_the_way_out = at < 5;
            assert_eq!(w.refusal().is_some(), failed_on_the_way_out, "{at} {fault:?} {:?}", w.log);
            w.go(wake(GPU));
            w.assert_at_rest();
            assert_eq!(w.broken, None, "{at} {fault:?} {:?}", w.log);
            assert!(w.machine.is_running() && w.all(ProcessState::Running));
        }
    }
}

#[test]
fn what_can_not_be_undone_breaks_the_part() {
    let mut w = World::with(&[10, 11], 4, Fault::Refuses);
    w.faults.insert(5, Fault::Refuses);
    w.go(Input::Suspend { room: None });
    assert_eq!(w.broken.as_deref(), Some("CUDA_ERROR_NOT_SUPPORTED"));
    assert!(w.machine.is_out() && !w.helper);
    let mut w = World::new(&[10]);
    w.go(Input::Suspend { room: None });
    w.faults = (w.log.len()..w.log.len() + 9).map(|at| (at, Fault::Refuses)).collect();
    w.go(wake(GPU));
    assert_eq!(w.log.iter().filter(|c| *c == "restore 10").count(), RESTORE_TRIES as usize);
    assert!(w.broken.is_some());
}

#[test]
fn orders_that_overtake_each_other_end_where_the_last_one_wants() {
    let mut w = World::with(&[10], 2, Fault::Hangs);
    // Woken while it is on its way out.
    for action in w.machine.step(w.now, Input::Suspend { room: None }) {
        let input = w.carry_out(action).unwrap();
        w.machine.step(w.now, input);
    }
    w.machine.step(w.now, wake(OTHER));
    assert_eq!(w.machine.level().suspension, Some(Suspension::Suspending));
    w.faults.clear();
    w.states.insert(10, ProcessState::Locked);
    w.go(Input::Answer { id: 2, result: Ok(Reply::Done) });
    assert!(w.machine.is_running(), "{:?}", w.log);
    assert_eq!(w.machine.level().gpus, [OTHER]);
}

#[test]
fn a_stop_undoes_what_can_be_undone() {
    let mut w = World::with(&[10, 11], 1, Fault::Hangs);
    let mut actions = w.machine.step(w.now, Input::Suspend { room: None });
    while let Some(action) = actions.pop() {
        if let Some(input) = w.carry_out(action) {
            actions.extend(w.machine.step(w.now, input));
        }
    }
    w.machine.step(w.now, Input::Stop);
    assert!(!w.machine.is_running() && !w.machine.is_out());
    w.states.insert(10, ProcessState::Locked);
    w.go(Input::Answer { id: 2, result: Ok(Reply::Done) });
    assert!(w.machine.is_running());
    assert_eq!(w.refusal(), None, "nobody refused");
    w.assert_at_rest();
    let calls = w.log.len();
    w.go(Input::Suspend { room: None });
    assert_eq!(w.log.len(), calls, "it is on its way to its end");
}

#[test]
fn a_refusal_stands_for_a_moment() {
    let mut w = World::with(&[10], 1, Fault::Refuses);
    w.go(Input::Suspend { room: None });
    let calls = w.log.len();
    w.go(Input::Suspend { room: None });
    assert_eq!(w.log.len(), calls);
    w.now += REFUSAL_STANDS;
    w.go(Input::Suspend { room: None });
    assert!(w.frozen);
}

#[test]
fn simulated_parts_are_frozen_and_count_what_they_are_said_to_hold() {
    let bytes = Bytes::gib(3);
    let mut w = World::new(&[]);
    w.machine = Machine::new(Ability::Simulated { bytes }, vec!["SIM-h100-0".into()]);
    w.go(Input::Suspend { room: None });
    assert!(w.frozen && w.log.is_empty());
    assert_eq!(w.machine.level().suspension, Some(Suspension::Suspended { bytes }));
    w.go(Input::Wake { gpus: vec!["SIM-h100-5".into()] });
    assert!(!w.frozen);
    assert_eq!(w.machine.level(), Level { suspension: None, gpus: vec!["SIM-h100-5".into()] });
}

#[test]
fn a_node_that_can_not_says_why() {
    let mut w = World::new(&[]);
    w.machine = Machine::new(Ability::Not { why: "no driver".into() }, Vec::new());
    w.go(Input::Suspend { room: None });
    assert_eq!(w.refusal().as_deref(), Some("no driver"));
}

#[test]
fn what_imagined_gpus_hold_must_fit_into_the_node_s_memory_too() {
    let mut w = World::new(&[]);
    let bytes = Bytes(20 * GIB);
    w.machine = Machine::new(Ability::Simulated { bytes }, vec!["SIM-h100-0".into()]);
    w.go(Input::Suspend { room: Some(Bytes(20 * GIB - 1)) });
    let why = w.refusal().unwrap();
    assert!(why.contains("it has 20GiB on simulated GPUs, and 20.0 GiB is left"), "{why}");
    assert!(!w.frozen && w.machine.is_running());
    w.now += REFUSAL_STANDS;
    w.go(Input::Suspend { room: Some(bytes) });
    assert_eq!(w.machine.level().suspension, Some(Suspension::Suspended { bytes }));
}
