//! Values that NVML hands out by number, many in one call.

use nvml_wrapper_sys::bindings::field_id as id;
use tutti_model::GpuSample;

use super::{Card, Lost, Refusal, Told};

/// All links together.
const ALL: u32 = u32::MAX;
/// NVLink throughput is counted in these.
const KIB: u64 = 1024;
/// Links that a device has at most.
const LINKS: u32 = 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub id: u32,
    /// Which link; 0 where there is only one of it.
    pub scope: u32,
}

const fn field(id: u32) -> Field {
    Field { id, scope: 0 }
}

/// Asked every round.
pub const FAST: &[Field] = &[
    field(id::NVML_FI_DEV_MEMORY_TEMP),
    Field { id: id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, scope: ALL },
    Field { id: id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, scope: ALL },
    field(id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES),
    field(id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES),
];

/// Asked once a minute: it keeps the driver busy.
pub const METER: &[Field] = &[field(id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION)];

const PCIE: [u32; 2] = [id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES, id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES];

/// Errors of all links together, on cards before Hopper.
const LINK_TOTALS: [u32; 4] = [
    id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
];

/// The same link by link, on newer ones.
const BY_LINK: [u32; 3] = [
    id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
];

const SINGLE: [u32; 7] = [
    id::NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
    id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    id::NVML_FI_DEV_REMAPPED_COR,
    id::NVML_FI_DEV_REMAPPED_UNC,
    id::NVML_FI_DEV_REMAPPED_PENDING,
    id::NVML_FI_DEV_REMAPPED_FAILURE,
];

const SLOW_COUNT: usize = SINGLE.len() + LINK_TOTALS.len() + BY_LINK.len() * LINKS as usize;

/// Asked now and then.
pub const SLOW: &[Field] = &{
    let mut all = [field(0); SLOW_COUNT];
    let mut at = 0;
    while at < SINGLE.len() {
        all[at] = field(SINGLE[at]);
        at += 1;
    }
    while at < SINGLE.len() + LINK_TOTALS.len() {
        all[at] = field(LINK_TOTALS[at - SINGLE.len()]);
        at += 1;
    }
    while at < SLOW_COUNT {
        let link = at - SINGLE.len() - LINK_TOTALS.len();
        all[at] = Field { id: BY_LINK[link % BY_LINK.len()], scope: (link / BY_LINK.len()) as u32 };
        at += 1;
    }
    all
};

/// Fields that a card has; those it refused are gone.
pub struct Fields {
    wanted: Vec<Field>,
}

impl Fields {
    pub fn new(all: &[Field]) -> Fields {
        Fields { wanted: all.to_vec() }
    }

    pub fn has_pcie(&self) -> bool {
        self.wanted.iter().any(|f| PCIE.contains(&f.id))
    }

    pub fn without_pcie(mut self) -> Fields {
        self.wanted.retain(|f| !PCIE.contains(&f.id));
        self
    }

    /// None if the card has none of them, or gave no answer this time.
    pub(super) fn ask(&mut self, card: &mut dyn Card) -> Result<Option<Values>, Lost> {
        if self.wanted.is_empty() {
            return Ok(None);
        }
        let told = match card.fields(&self.wanted) {
            Ok(told) => told,
            Err(Refusal::Lost) => return Err(Lost),
            Err(Refusal::NotNow) => return Ok(None),
            Err(Refusal::NotSupported) => {
                self.wanted.clear();
                return Ok(None);
            }
        };
        let values = Values(self.wanted.iter().copied().zip(told.iter().copied()).collect());
        let mut told = told.into_iter();
        self.wanted.retain(|_| told.next() != Some(Err(Refusal::NotSupported)));
        Ok(Some(values))
    }
}

pub struct Values(Vec<(Field, Told<u64>)>);

impl Values {
    fn of(&self, id: u32) -> Option<u64> {
        self.sum(&[id])
    }

    /// None if the card has none of these.
    fn sum(&self, ids: &[u32]) -> Option<u64> {
        let told = self.0.iter().filter(|(field, _)| ids.contains(&field.id));
        told.filter_map(|(_, value)| value.ok()).reduce(|a, b| a.saturating_add(b))
    }

    pub fn mem_temp(&self) -> Option<i16> {
        // Cards without the sensor answer 0.
        self.of(id::NVML_FI_DEV_MEMORY_TEMP).filter(|t| *t > 0).map(|t| t as i16)
    }

    pub fn energy_mj(&self) -> Option<u64> {
        self.of(id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION)
    }

    /// Bytes sent and received.
    pub fn nvlink(&self) -> (Option<u64>, Option<u64>) {
        let bytes = |id| self.of(id).map(|kib| kib.saturating_mul(KIB));
        (
            bytes(id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
            bytes(id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
        )
    }

    pub fn pcie(&self) -> (Option<u64>, Option<u64>) {
        (self.of(id::NVML_FI_DEV_PCIE_COUNT_TX_BYTES), self.of(id::NVML_FI_DEV_PCIE_COUNT_RX_BYTES))
    }

    /// What the slow ones fill of a sample.
    pub fn slow(&self) -> GpuSample {
        let links: Vec<u32> = LINK_TOTALS.iter().chain(&BY_LINK).copied().collect();
        let rows = |id| self.of(id).map(|n| n as u32);
        let yes = |id| self.of(id).map(|n| n != 0);
        GpuSample {
            pcie_replays: self.of(id::NVML_FI_DEV_PCIE_REPLAY_COUNTER),
            nvlink_errors: self.sum(&links),
            ecc_corrected: self.of(id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
            ecc_uncorrected: self.of(id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
            remapped_corrected: rows(id::NVML_FI_DEV_REMAPPED_COR),
            remapped_uncorrected: rows(id::NVML_FI_DEV_REMAPPED_UNC),
            remap_pending: yes(id::NVML_FI_DEV_REMAPPED_PENDING),
            remap_failed: yes(id::NVML_FI_DEV_REMAPPED_FAILURE),
            ..GpuSample::default()
        }
    }
}
