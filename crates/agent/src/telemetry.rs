//! Samples of the machine, taken once a second on a thread of their own: a driver that hangs holds
//! up that thread and nothing else, and is noticed by the age of the newest sample.
//!
//! ```text
//!  node ── which part has which GPUs ─► thread: Sampler::round ─► watch ─► node ─► controller
//!                                                                   └────► health rules
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tutti_gpu::sample::{AsIf, Held, Machine, Marks, Round, Sampler};
use tutti_model::{Bytes, GpuIndex, LeaseId, NodeSample, TaskId, Time};

use crate::config::{AgentConfig, AgentError};

/// How often, unless the configuration says otherwise.
pub const EVERY: Duration = Duration::from_secs(1);
/// So long without a sample is worth a word.
const LATE: Duration = Duration::from_secs(10);

/// The newest sample, and the one before for rates of its counters.
#[derive(Clone, Debug)]
pub struct Samples {
    pub newest: Arc<NodeSample>,
    pub previous: Option<Arc<NodeSample>>,
    /// When it was taken.
    pub taken: Instant,
    /// Memory on GPUs by task.
    pub memory: Arc<BTreeMap<TaskId, Bytes>>,
}

/// What the rest of the agent tells the thread.
#[derive(Default)]
struct Told {
    parts: BTreeMap<LeaseId, Vec<GpuIndex>>,
    /// What jobs say that imagined GPUs do, or the file where they say it.
    wishes: BTreeMap<LeaseId, String>,
    /// The newest of each GPU.
    xids: BTreeMap<GpuIndex, u32>,
}

impl Told {
    fn held(&self) -> Vec<Held> {
        let of = |(lease, gpus): (&LeaseId, &Vec<GpuIndex>)| {
            let (task, as_if) = (lease.task, self.wishes.get(lease).and_then(|w| wish(w)));
            gpus.iter().map(|&gpu| Held { gpu, task, as_if }).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(of).collect()
    }
}

/// The job's variable that says what its imagined GPUs do: the words themselves, or the path of a file
/// with them, which is read again each time.
pub const AS_IF_VARIABLE: &str = "TUTTI_SIM_GPU";

fn wish(text: &str) -> Option<AsIf> {
    match text.starts_with('/') {
        true => std::fs::read_to_string(text).ok()?.parse().ok(),
        false => text.parse().ok(),
    }
}

type Shared = Arc<Mutex<Told>>;

/// The node's end of the thread.
pub struct Telemetry {
    told: Shared,
    samples: watch::Receiver<Option<Samples>>,
    began: Instant,
    complained: bool,
}

/// The devices that are sampled, or imagined.
pub fn machine(config: &AgentConfig) -> Machine {
    Machine {
        gpus: config.gpus.clone(),
        hardware: config.hardware.clone(),
        simulated: config.simulated,
    }
}

impl Telemetry {
    /// `cgroup` is the name of the agent's own group, where it has one.
    pub fn start(config: &AgentConfig, cgroup: Option<String>) -> Result<Telemetry, AgentError> {
        let machine = machine(config);
        let data_dir = config.data_dir.clone();
        let marks = Marks { parts: data_dir.join("parts"), cgroup };
        // On the thread: opening a driver may hang as well.
        let open = move || Sampler::open(&machine, data_dir, marks);
        Telemetry::with(open, config.sample_every)
    }

    fn with(
        open: impl FnOnce() -> Sampler + Send + 'static,
        every: Duration,
    ) -> Result<Telemetry, AgentError> {
        let told = Shared::default();
        let (out, samples) = watch::channel(None);
        let heard = told.clone();
        std::thread::Builder::new()
            .name("tutti-sample".to_owned())
            .spawn(move || sample(open(), &heard, &out, every))
            .map_err(|source| AgentError::SetUp {
                what: "the thread that takes samples",
                source,
            })?;
        Ok(Telemetry { told, samples, began: Instant::now(), complained: false })
    }

    /// For whoever else wants to see every sample.
    pub fn watch(&self) -> watch::Receiver<Option<Samples>> {
        self.samples.clone()
    }

    pub fn newest(&self) -> Option<Samples> {
        self.samples.borrow().clone()
    }

    /// Waits for the next sample; none when there will be no more.
    pub async fn next(&mut self) -> Option<Samples> {
        self.samples.changed().await.ok()?;
        self.samples.borrow_and_update().clone()
    }

    /// The part has these GPUs from now on.
    pub fn holds(&self, lease: LeaseId, gpus: &[GpuIndex]) {
        let parts = &mut lock(&self.told).parts;
        if !gpus.is_empty() && parts.get(&lease).is_none_or(|had| had != gpus) {
            parts.insert(lease, gpus.to_vec());
        }
    }

    /// What the job says that its imagined GPUs do.
    pub fn wishes(&self, lease: LeaseId, words: &str) {
        lock(&self.told).wishes.entry(lease).or_insert_with(|| words.to_owned());
    }

    pub fn lets_go(&self, lease: LeaseId) {
        let mut told = lock(&self.told);
        told.parts.remove(&lease);
        told.wishes.remove(&lease);
    }

    /// The driver reported this fault; samples say so from now on.
    pub fn saw_xid(&self, gpu: GpuIndex, xid: u32) {
        lock(&self.told).xids.insert(gpu, xid);
    }

    /// What the task's processes had on GPUs a moment ago. None: nobody knows.
    pub fn memory_of(&self, task: TaskId) -> Option<Bytes> {
        let samples = self.samples.borrow();
        let fresh = samples.as_ref().filter(|samples| samples.taken.elapsed() < LATE)?;
        fresh.memory.get(&task).copied()
    }

    /// Says once that samples are missing, and once that they are back.
    pub fn complain_if_late(&mut self) {
        let last = self.samples.borrow().as_ref().map_or(self.began, |samples| samples.taken);
        let late = last.elapsed() >= LATE;
        if late && !self.complained {
            let secs = last.elapsed().as_secs();
            tracing::warn!("no telemetry for {secs} s: a driver or a disk does not answer");
        } else if !late && self.complained {
            tracing::info!("telemetry is back");
        }
        self.complained = late;
    }
}

/// Until nobody listens.
fn sample(
    mut sampler: Sampler,
    told: &Shared,
    out: &watch::Sender<Option<Samples>>,
    every: Duration,
) {
    let began = Instant::now();
    let mut next = began;
    let mut previous: Option<Arc<NodeSample>> = None;
    while !out.is_closed() {
        let held = lock(told).held();
        let round = Round { at: now(), clock: began.elapsed(), held: &held };
        let mut newest = sampler.round(round);
        for (gpu, xid) in &lock(told).xids {
            let sample = newest.gpus.iter_mut().find(|sample| sample.index == *gpu);
            sample.into_iter().for_each(|sample| sample.xid = Some(*xid));
        }
        let newest = Arc::new(newest);
        let memory = Arc::new(by_task(&newest));
        let samples = Samples { newest, previous, taken: Instant::now(), memory };
        previous = Some(samples.newest.clone());
        out.send_replace(Some(samples));
        // On a grid, so that rounds that take long don't move those after them.
        next += every;
        match next.checked_duration_since(Instant::now()) {
            Some(rest) => std::thread::sleep(rest),
            None => next = Instant::now(),
        }
    }
}

fn by_task(sample: &NodeSample) -> BTreeMap<TaskId, Bytes> {
    let mut memory = BTreeMap::new();
    for process in &sample.processes {
        if let Some(task) = process.task {
            memory.entry(task).or_insert(Bytes(0)).0 += process.mem.0;
        }
    }
    memory
}

/// A map stays whole whatever panics beside it.
fn lock(told: &Shared) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn now() -> Time {
    Time(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tutti_gpu::sample::{DeviceProcess, Devices, Host, Owners, Tasks};
    use tutti_model::{Generation, GpuSample, JobId};

    use super::*;

    fn lease(job: u64) -> LeaseId {
        LeaseId { task: TaskId::single(JobId(job)), generation: Generation(1) }
    }

    fn sampler(devices: impl Devices + 'static) -> Sampler {
        let host = Host::new("/nowhere".into(), "/nowhere".into());
        let owners = Owners::new("/nowhere".into(), Marks::default());
        let tasks = Tasks::new("/nowhere".into(), Marks::default());
        Sampler::new(vec![Box::new(devices)], host, owners, tasks)
    }

    #[tokio::test]
    async fn a_part_that_holds_a_gpu_is_seen_with_its_memory() {
        let gpus = tutti_gpu::simulated::gpus(2, "h100");
        let open = move || sampler(tutti_gpu::sample::Simulated::new(&gpus));
        let mut telemetry = Telemetry::with(open, Duration::from_millis(1)).unwrap();
        telemetry.holds(lease(7), &[GpuIndex(1)]);
        telemetry.holds(lease(8), &[]);
        let seen = loop {
            let samples = telemetry.next().await.unwrap();
            if !samples.newest.processes.is_empty() && samples.previous.is_some() {
                break samples;
            }
        };
        assert!(seen.newest.gpus[1].util > Some(50) && seen.newest.gpus[0].util == Some(0));
        assert!(telemetry.memory_of(lease(7).task) > Some(Bytes::gib(10)));
        assert_eq!(telemetry.memory_of(lease(8).task), None);
        assert_eq!(seen.newest.gpus[1].xid, None);
        telemetry.saw_xid(GpuIndex(1), 94);
        while telemetry.next().await.unwrap().newest.gpus[1].xid != Some(94) {}
        telemetry.lets_go(lease(7));
        while !telemetry.next().await.unwrap().newest.processes.is_empty() {}
        assert_eq!(telemetry.memory_of(lease(7).task), None);
    }

    /// Its driver answers when it is told to.
    struct Hangs(mpsc::Receiver<()>);
    impl Devices for Hangs {
        fn read(&mut self, _: Round<'_>, _: &mut Vec<GpuSample>, _: &mut Vec<DeviceProcess>) {
            let _ = self.0.recv();
        }
    }

    #[tokio::test]
    async fn a_driver_that_hangs_holds_up_nobody() {
        let (answer, driver) = mpsc::channel();
        let open = move || sampler(Hangs(driver));
        let mut telemetry = Telemetry::with(open, Duration::from_millis(1)).unwrap();
        telemetry.holds(lease(1), &[GpuIndex(0)]);
        assert!(telemetry.newest().is_none());
        telemetry.began = Instant::now().checked_sub(LATE).expect("a machine that just started");
        telemetry.complain_if_late();
        assert!(telemetry.complained);
        answer.send(()).unwrap();
        assert!(telemetry.next().await.is_some());
        telemetry.complain_if_late();
        assert!(!telemetry.complained, "it is back");
    }
}
