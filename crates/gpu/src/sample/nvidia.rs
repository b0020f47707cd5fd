//! A round over NVIDIA devices: which calls are made, how often, and what becomes of the answers.
//! The calls themselves are behind [`Card`], so that a fake can count them.
//!
//! What changes slowly (ECC, remapped rows, link errors) is asked every tenth round, each card at
//! another one; its meter, a dear call, once a minute. What a card does not support is asked once. A card that fell off the bus is left
//! alone for a while: each call to it may take seconds.

mod card;
mod energy;
mod fields;
mod gpm;

use std::collections::BTreeSet;
use std::time::Duration;

use tutti_model::{Bytes, GpuIndex, GpuSample};

use super::rate::Rate;
use super::{DeviceProcess, Devices, Round};
use energy::Meter;
use fields::{FAST, Field, Fields, METER, SLOW};

pub use card::open as open_nvml;

/// Rounds between two looks at what changes slowly.
const SLOW_EVERY: u64 = 10;
/// And between two looks at the meter.
const METER_EVERY: u64 = 60;
/// How long a lost card is left alone.
const LOST_FOR: Duration = Duration::from_secs(30);

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It never will have.
    NotSupported,
    /// The device is gone.
    Lost,
    NotNow,
}

pub type Told<T> = Result<T, Refusal>;

/// Calls that answer with one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    PowerMw,
    PowerLimitMw,
    Temperature,
    SmClock,
    MemClock,
    Throttle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Users {
    Compute,
    Graphics,
    Mps,
}

/// Shares of time between this call and the one before, 0 to 1, and bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    pub engine: Option<f32>,
    pub sm: Option<f32>,
    pub occupancy: Option<f32>,
    pub tensor: Option<f32>,
    pub dram: Option<f32>,
    pub pcie_tx: Option<u64>,
    pub pcie_rx: Option<u64>,
    pub nvlink_tx: Option<u64>,
    pub nvlink_rx: Option<u64>,
}

/// One device, call by call.
pub trait Card: Send {
    fn number(&mut self, which: Number) -> Told<u64>;
    /// Percent of time: kernels, memory.
    fn utilization(&mut self) -> Told<(u8, u8)>;
    /// Used and free.
    fn memory(&mut self) -> Told<(Bytes, Bytes)>;
    /// Many values in one call.
    fn fields(&mut self, wanted: &[Field]) -> Told<Vec<Told<u64>>>;
    fn activity(&mut self) -> Told<Activity>;
    /// Sent and received, bytes per second. Takes 40 ms.
    fn pcie_throughput(&mut self) -> Told<(u64, u64)>;
    fn users(&mut self, which: Users) -> Told<Vec<(u32, Bytes)>>;
}

/// Finds a card by its UUID; asked again when it was lost.
pub type Open = Box<dyn Fn(&str) -> Told<Box<dyn Card>> + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Number(Number),
    Utilization,
    Memory,
    Activity,
    PcieThroughput,
    Users(Users),
}

pub struct Nvidia {
    open: Open,
    readers: Vec<Reader>,
    rounds: u64,
}

struct Reader {
    index: GpuIndex,
    uuid: String,
    card: Option<Box<dyn Card>>,
    /// It did not answer until now; not asked before this.
    lost_until: Option<Duration>,
    left_alone: BTreeSet<Call>,
    fast: Fields,
    /// The counters say what the activity says, and take twice as long as all of that.
    fast_without_pcie: Fields,
    /// The activity told of PCIe the last time.
    active_pcie: bool,
    slow: Fields,
    energy: Fields,
    meter: Meter,
    /// What the slow ones said last.
    kept: GpuSample,
    limit_mw: Option<u32>,
    pcie: Rates,
    nvlink: Rates,
    pcie_last: Option<(u64, u64)>,
}

#[derive(Default)]
struct Rates {
    tx: Rate,
    rx: Rate,
}

impl Nvidia {
    pub fn new(open: Open, gpus: impl IntoIterator<Item = (GpuIndex, String)>) -> Nvidia {
        let readers = gpus.into_iter().map(|(index, uuid)| Reader::new(index, uuid)).collect();
        Nvidia { open, readers, rounds: 0 }
    }
}

impl Devices for Nvidia {
    fn read(&mut self, round: Round<'_>, gpus: &mut Vec<GpuSample>, on: &mut Vec<DeviceProcess>) {
        let cards = self.readers.len().max(1) as u64;
        for (at, reader) in self.readers.iter_mut().enumerate() {
            let due = |every| self.rounds == 0 || (self.rounds + at as u64).is_multiple_of(every);
            let turn = Turn {
                clock: round.clock,
                slow: due(SLOW_EVERY),
                meter: due(METER_EVERY),
                // One card a round: it takes long, and only old cards need it.
                pcie: self.rounds % cards == at as u64,
            };
            gpus.push(reader.read(&self.open, turn, on));
        }
        self.rounds += 1;
    }
}

#[derive(Clone, Copy)]
struct Turn {
    clock: Duration,
    slow: bool,
    meter: bool,
    pcie: bool,
}

impl Reader {
    fn new(index: GpuIndex, uuid: String) -> Reader {
        Reader {
            index,
            uuid,
            card: None,
            lost_until: None,
            left_alone: BTreeSet::new(),
            fast: Fields::new(FAST),
            fast_without_pcie: Fields::new(FAST).without_pcie(),
            active_pcie: false,
            slow: Fields::new(SLOW),
            energy: Fields::new(METER),
            meter: Meter::default(),
            kept: GpuSample::default(),
            limit_mw: None,
            pcie: Rates::default(),
            nvlink: Rates::default(),
            pcie_last: None,
        }
    }

    fn read(&mut self, open: &Open, turn: Turn, on: &mut Vec<DeviceProcess>) -> GpuSample {
        let silent = GpuSample { index: self.index, ..GpuSample::default() };
        if self.lost_until.is_some_and(|until| turn.clock < until) {
            return silent;
        }
        self.lost_until = None;
        if self.card.is_none() {
            match open(&self.uuid) {
                Ok(card) => self.card = Some(card),
                Err(_) => self.lost(turn),
            }
        }
        let Some(mut card) = self.card.take() else { return silent };
        let known = on.len();
        match self.ask(card.as_mut(), turn, on) {
            Ok(sample) => {
                self.card = Some(card);
                sample
            }
            Err(Lost) => {
                on.truncate(known);
                self.lost(turn);
                silent
            }
        }
    }

    fn lost(&mut self, turn: Turn) {
        let (index, uuid) = (self.index, &self.uuid);
        tracing::warn!(%index, uuid, "the GPU does not answer; it is asked again in 30 s");
        self.card = None;
        self.lost_until = Some(turn.clock + LOST_FOR);
    }

    fn ask(
        &mut self,
        card: &mut dyn Card,
        turn: Turn,
        on: &mut Vec<DeviceProcess>,
    ) -> Result<GpuSample, Lost> {
        if turn.slow {
            self.ask_slow(card)?;
        }
        let mut sample = GpuSample { index: self.index, ..self.kept.clone() };
        if let Some((util, mem_util)) = self.call(Call::Utilization, || card.utilization())? {
            (sample.util, sample.mem_util) = (Some(util), Some(mem_util));
        }
        if let Some((used, free)) = self.call(Call::Memory, || card.memory())? {
            (sample.mem_used, sample.mem_free) = (Some(used), Some(free));
        }
        let mut number = |which| self.call(Call::Number(which), || card.number(which));
        sample.power_mw = number(Number::PowerMw)?.map(|mw| mw as u32);
        sample.temp = number(Number::Temperature)?.map(|degrees| degrees as i16);
        sample.sm_clock = number(Number::SmClock)?.map(|mhz| mhz as u32);
        sample.mem_clock = number(Number::MemClock)?.map(|mhz| mhz as u32);
        sample.throttle = number(Number::Throttle)?;
        sample.power_limit_mw = self.limit_mw;
        sample.energy_mj = self.ask_meter(card, turn, sample.power_mw)?;
        self.ask_fast(card, turn, &mut sample)?;
        self.ask_activity(card, &mut sample)?;
        self.ask_pcie(card, turn, &mut sample)?;
        self.ask_users(card, on)?;
        Ok(sample)
    }

    fn ask_slow(&mut self, card: &mut dyn Card) -> Result<(), Lost> {
        let limit = Call::Number(Number::PowerLimitMw);
        let limit = self.call(limit, || card.number(Number::PowerLimitMw))?;
        self.limit_mw = limit.map(|mw| mw as u32);
        if let Some(values) = self.slow.ask(card)? {
            self.kept = values.slow();
        }
        Ok(())
    }

    fn ask_meter(
        &mut self,
        card: &mut dyn Card,
        turn: Turn,
        power_mw: Option<u32>,
    ) -> Result<Option<u64>, Lost> {
        let due = turn.meter || self.meter.is_stale(turn.clock);
        if due && let Some(mj) = self.energy.ask(card)?.and_then(|values| values.energy_mj()) {
            self.meter.looked(mj, turn.clock);
        }
        Ok(self.meter.shows(power_mw, turn.clock))
    }

    fn ask_fast(
        &mut self,
        card: &mut dyn Card,
        turn: Turn,
        sample: &mut GpuSample,
    ) -> Result<(), Lost> {
        let fast = if self.active_pcie { &mut self.fast_without_pcie } else { &mut self.fast };
        let Some(values) = fast.ask(card)? else { return Ok(()) };
        sample.mem_temp = values.mem_temp();
        let since = |rate: &mut Rate, bytes: Option<u64>| rate.since(bytes?, turn.clock);
        let (tx, rx) = values.nvlink();
        sample.nvlink_tx = since(&mut self.nvlink.tx, tx);
        sample.nvlink_rx = since(&mut self.nvlink.rx, rx);
        let (tx, rx) = values.pcie();
        sample.pcie_tx = since(&mut self.pcie.tx, tx);
        sample.pcie_rx = since(&mut self.pcie.rx, rx);
        Ok(())
    }

    fn ask_activity(&mut self, card: &mut dyn Card, sample: &mut GpuSample) -> Result<(), Lost> {
        let activity = self.call(Call::Activity, || card.activity())?;
        self.active_pcie = activity.is_some_and(|a| a.pcie_tx.is_some() && a.pcie_rx.is_some());
        let Some(activity) = activity else { return Ok(()) };
        sample.engine_active = activity.engine;
        sample.sm_active = activity.sm;
        sample.occupancy = activity.occupancy;
        sample.tensor_active = activity.tensor;
        sample.dram_active = activity.dram;
        sample.pcie_tx = activity.pcie_tx.or(sample.pcie_tx);
        sample.pcie_rx = activity.pcie_rx.or(sample.pcie_rx);
        sample.nvlink_tx = activity.nvlink_tx.or(sample.nvlink_tx);
        sample.nvlink_rx = activity.nvlink_rx.or(sample.nvlink_rx);
        Ok(())
    }

    /// The slow way, for cards that have no other.
    fn ask_pcie(
        &mut self,
        card: &mut dyn Card,
        turn: Turn,
        sample: &mut GpuSample,
    ) -> Result<(), Lost> {
        let other = self.fast.has_pcie() || !self.left_alone.contains(&Call::Activity);
        if other {
            return Ok(());
        }
        if turn.pcie {
            self.pcie_last = self.call(Call::PcieThroughput, || card.pcie_throughput())?;
        }
        if let Some((tx, rx)) = self.pcie_last {
            (sample.pcie_tx, sample.pcie_rx) = (Some(tx), Some(rx));
        }
        Ok(())
    }

    /// A process may be in several lists; its memory is what the longest of them says.
    fn ask_users(&mut self, card: &mut dyn Card, on: &mut Vec<DeviceProcess>) -> Result<(), Lost> {
        let first = on.len();
        for which in [Users::Compute, Users::Mps, Users::Graphics] {
            let users = self.call(Call::Users(which), || card.users(which))?;
            for (pid, mem) in users.unwrap_or_default() {
                match on[first..].iter_mut().find(|known| known.pid == pid) {
                    Some(known) => known.mem = known.mem.max(mem),
                    None => on.push(DeviceProcess { gpu: self.index, pid, mem, task: None }),
                }
            }
        }
        Ok(())
    }

    /// None: no answer this time, or never.
    fn call<T>(&mut self, which: Call, call: impl FnOnce() -> Told<T>) -> Result<Option<T>, Lost> {
        if self.left_alone.contains(&which) {
            return Ok(None);
        }
        match call() {
            Ok(answer) => Ok(Some(answer)),
            Err(Refusal::Lost) => Err(Lost),
            Err(Refusal::NotNow) => Ok(None),
            Err(Refusal::NotSupported) => {
                tracing::debug!(index = %self.index, ?which, "not supported; not asked again");
                self.left_alone.insert(which);
                Ok(None)
            }
        }
    }
}

/// The card fell off the bus, or its driver says so.
struct Lost;

#[cfg(test)]
mod tests;
