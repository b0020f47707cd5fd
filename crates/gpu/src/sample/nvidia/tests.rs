use std::sync::{Arc, Mutex};

use nvml_wrapper_sys::bindings::field_id as id;
use tutti_model::Time;

use super::*;

/// What was asked of a fake card, and what it can't do.
#[derive(Default)]
struct Log {
    calls: Vec<String>,
    fields: usize,
    lost: bool,
    old: bool,
}

type Shared = Arc<Mutex<Log>>;

struct Fake(Shared, u64);

impl Fake {
    fn note(&self, call: String) -> Told<()> {
        let mut log = self.0.lock().unwrap();
        log.calls.push(call);
        if log.lost { Err(Refusal::Lost) } else { Ok(()) }
    }
    fn is_old(&self) -> bool {
        self.0.lock().unwrap().old
    }
}

impl Card for Fake {
    fn number(&mut self, which: Number) -> Told<u64> {
        self.note(format!("{which:?}"))?;
        Ok(match which {
            Number::PowerMw => 350_000,
            Number::PowerLimitMw => 700_000,
            Number::Temperature => 61,
            Number::SmClock => 1980,
            Number::MemClock => 2619,
            Number::Throttle => 4,
        })
    }
    fn utilization(&mut self) -> Told<(u8, u8)> {
        self.note("utilization".into())?;
        Ok((97, 40))
    }
    fn memory(&mut self) -> Told<(Bytes, Bytes)> {
        self.note("memory".into())?;
        Ok((Bytes::gib(30), Bytes::gib(50)))
    }
    fn fields(&mut self, wanted: &[Field]) -> Told<Vec<Told<u64>>> {
        self.note("fields".into())?;
        self.0.lock().unwrap().fields = wanted.len();
        self.1 += 1;
        let answer = |field: &Field| match field.id {
            id::NVML_FI_DEV_MEMORY_TEMP => Ok(0),
            id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION => Ok(1000 * self.1),
            id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX if field.scope == u32::MAX => Ok(self.1),
            id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY => Ok(2),
            id::NVML_FI_DEV_REMAPPED_UNC => Ok(1),
            id::NVML_FI_DEV_REMAPPED_PENDING => Ok(1),
            id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL => Err(Refusal::NotNow),
            _ => Err(Refusal::NotSupported),
        };
        Ok(wanted.iter().map(answer).collect())
    }
    fn activity(&mut self) -> Told<Activity> {
        self.note("activity".into())?;
        if self.is_old() {
            return Err(Refusal::NotSupported);
        }
        Ok(Activity { sm: Some(0.5), pcie_tx: Some(7), ..Activity::default() })
    }
    fn pcie_throughput(&mut self) -> Told<(u64, u64)> {
        self.note("pcie".into())?;
        Ok((5, 6))
    }
    fn users(&mut self, which: Users) -> Told<Vec<(u32, Bytes)>> {
        self.note(format!("{which:?}"))?;
        match which {
            Users::Compute => Ok(vec![(10, Bytes(0)), (11, Bytes::gib(2))]),
            Users::Mps => Ok(vec![(10, Bytes::gib(3))]),
            Users::Graphics => Err(Refusal::NotSupported),
        }
    }
}

struct Rig {
    nvidia: Nvidia,
    log: Shared,
    seconds: u64,
}

fn rig(cards: u16, old: bool) -> Rig {
    let log = Shared::new(Mutex::new(Log { old, ..Log::default() }));
    let cards_log = log.clone();
    let open: Open = Box::new(move |_| {
        cards_log.lock().unwrap().calls.push("open".into());
        Ok(Box::new(Fake(cards_log.clone(), 0)))
    });
    let gpus = (0..cards).map(|i| (GpuIndex(i), format!("GPU-{i}")));
    Rig { nvidia: Nvidia::new(open, gpus), log, seconds: 0 }
}

impl Rig {
    /// One round: the samples, and the calls that it took.
    fn round(&mut self) -> (Vec<GpuSample>, Vec<DeviceProcess>, Vec<String>) {
        let (mut gpus, mut on) = (Vec::new(), Vec::new());
        let clock = Duration::from_secs(self.seconds);
        let round = Round { at: Time(self.seconds * 1000), clock, held: &[] };
        self.nvidia.read(round, &mut gpus, &mut on);
        self.seconds += 1;
        (gpus, on, std::mem::take(&mut self.log.lock().unwrap().calls))
    }
}

#[test]
fn a_round_fills_a_sample() {
    let mut rig = rig(1, false);
    rig.round();
    let (gpus, on, _) = rig.round();
    let gpu = &gpus[0];
    assert_eq!((gpu.util, gpu.mem_util), (Some(97), Some(40)));
    assert_eq!((gpu.mem_used, gpu.mem_free), (Some(Bytes::gib(30)), Some(Bytes::gib(50))));
    assert_eq!((gpu.power_mw, gpu.power_limit_mw), (Some(350_000), Some(700_000)));
    assert_eq!((gpu.temp, gpu.mem_temp), (Some(61), None), "it has no sensor for memory");
    assert_eq!((gpu.sm_clock, gpu.mem_clock, gpu.throttle), (Some(1980), Some(2619), Some(4)));
    assert_eq!((gpu.sm_active, gpu.tensor_active), (Some(0.5), None));
    assert_eq!((gpu.pcie_tx, gpu.nvlink_tx), (Some(7), Some(1024)));
    assert_eq!(gpu.energy_mj, Some(352_000), "the meter, and a second of power since");
    assert_eq!(gpu.nvlink_errors, Some(36), "two on each of 18 links");
    assert_eq!((gpu.remapped_uncorrected, gpu.remap_pending), (Some(1), Some(true)));
    assert_eq!((gpu.remap_failed, gpu.ecc_corrected, gpu.xid), (None, None, None));
    let users: Vec<_> = on.iter().map(|p| (p.pid, p.mem)).collect();
    assert_eq!(users, [(10, Bytes::gib(3)), (11, Bytes::gib(2))], "each once, with its memory");
}

#[test]
fn what_is_not_supported_is_asked_once() {
    let mut rig = rig(1, false);
    let (_, _, first) = rig.round();
    assert!(first.contains(&"Graphics".to_owned()) && first.contains(&"open".to_owned()));
    let (_, _, second) = rig.round();
    assert!(!second.contains(&"Graphics".to_owned()) && !second.contains(&"open".to_owned()));
    assert_eq!(rig.log.lock().unwrap().fields, 2, "of the fast fields only those that it has");
}

/// The cost of a round, as far as it can be counted without a driver.
#[test]
fn eight_cards_take_few_calls() {
    let mut rig = rig(8, false);
    rig.round();
    let rounds: Vec<usize> = (0..60).map(|_| rig.round().2.len()).collect();
    // Utilisation, memory, five numbers, fields, activity, two lists; at times the slow ones, and
    // the meter.
    assert!(rounds.iter().all(|calls| (8 * 11..=8 * 11 + 3).contains(calls)), "{rounds:?}");
    let slow = 6 * 8 * 2 + 8;
    assert_eq!(rounds.iter().sum::<usize>(), 60 * 8 * 11 + slow, "every tenth time; once a minute");
}

/// A call of 40 ms is made for one card a round, and only where there is no other way.
#[test]
fn old_cards_take_turns_with_their_slow_call() {
    let mut rig = rig(4, true);
    rig.round();
    rig.round();
    for _ in 0..8 {
        let (gpus, _, calls) = rig.round();
        assert_eq!(calls.iter().filter(|call| *call == "pcie").count(), 1);
        assert!(gpus.iter().all(|gpu| gpu.sm_active.is_none()));
    }
    let (gpus, _, _) = rig.round();
    assert!(gpus.iter().all(|gpu| (gpu.pcie_tx, gpu.pcie_rx) == (Some(5), Some(6))));
}

#[test]
fn a_lost_card_is_left_alone_and_found_again() {
    let mut rig = rig(1, false);
    rig.round();
    rig.log.lock().unwrap().lost = true;
    let (gpus, on, calls) = rig.round();
    let silent = GpuSample { index: GpuIndex(0), ..GpuSample::default() };
    assert_eq!((gpus, on.len(), calls.len()), (vec![silent], 0, 1), "nothing after the first call");
    rig.log.lock().unwrap().lost = false;
    let asked: Vec<usize> = (0..30).map(|_| rig.round().2.len()).collect();
    assert_eq!(asked.iter().filter(|calls| **calls > 0).count(), 1, "{asked:?}");
    assert!(rig.round().0[0].util.is_some());
}

#[test]
fn a_card_that_stays_lost_is_found_to_be_gone() {
    use crate::health::rules::{Rules, Thresholds};
    let mut rig = rig(2, false);
    let mut rules = Rules::new(Thresholds::default(), [0, 1].map(GpuIndex).into());
    let mut keys = |rig: &mut Rig| {
        let at = Time(rig.seconds * 1000);
        let sample = tutti_model::NodeSample { at, gpus: rig.round().0, ..Default::default() };
        let seen = rules.sample(&sample).into_iter().map(|seen| seen.finding.key);
        seen.filter(|key| key.starts_with("bus/")).collect::<Vec<_>>()
    };
    assert_eq!(keys(&mut rig), Vec::<String>::new());
    rig.log.lock().unwrap().lost = true;
    let found = (0..60).map(|_| keys(&mut rig)).find(|keys| !keys.is_empty());
    assert_eq!(found, Some(vec!["bus/gpu0".to_owned(), "bus/gpu1".to_owned()]));
}
