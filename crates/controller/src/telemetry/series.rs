//! Which values are kept, and in how few bytes: one for a share or a temperature, two for the rest.
//! All bits set is "nothing known".

use tutti_model::{GpuSample, HostSample};

/// How a value is written down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// 0 to 1 in steps of a half percent. One byte.
    Share,
    /// Whole degrees from 0 to 254. One byte.
    Degrees,
    /// A number of twelve binary digits and its magnitude, in this unit: exact to 4095, then to
    /// 0.03 %. Two bytes.
    Amount { unit: f64 },
}

impl Scale {
    pub const fn bytes(self) -> usize {
        match self {
            Scale::Share | Scale::Degrees => 1,
            Scale::Amount { .. } => 2,
        }
    }

    pub fn write(self, value: Option<f64>, into: &mut [u8]) {
        let value = value.filter(|value| value.is_finite()).map(|value| value.max(0.0));
        match (self, value) {
            (_, None) => into.fill(u8::MAX),
            (Scale::Share, Some(share)) => into[0] = (share.min(1.0) * 200.0).round() as u8,
            (Scale::Degrees, Some(degrees)) => into[0] = degrees.min(254.0).round() as u8,
            (Scale::Amount { unit }, Some(amount)) => {
                into.copy_from_slice(&pack((amount / unit).round() as u64).to_le_bytes());
            }
        }
    }

    pub fn read(self, from: &[u8]) -> Option<f64> {
        if from.iter().all(|&byte| byte == u8::MAX) {
            return None;
        }
        Some(match self {
            Scale::Share => f64::from(from[0]) / 200.0,
            Scale::Degrees => f64::from(from[0]),
            Scale::Amount { unit } => unpack(u16::from_le_bytes([from[0], from[1]])) as f64 * unit,
        })
    }
}

const MANTISSA: u32 = 11;
/// The largest; one more would be "nothing known".
const PACKED_MAX: u16 = u16::MAX - 1;

/// Small numbers as they are; of large ones the first twelve binary digits.
fn pack(n: u64) -> u16 {
    if n < 1 << (MANTISSA + 1) {
        return n as u16;
    }
    let shift = (u64::BITS - n.leading_zeros()) - (MANTISSA + 1);
    let rounded = (n >> shift) + ((n >> (shift - 1)) & 1);
    // Rounding up may have made it one digit longer.
    let (digits, shift) =
        if rounded >> (MANTISSA + 1) > 0 { (rounded >> 1, shift + 1) } else { (rounded, shift) };
    if shift + 1 > 31 {
        return PACKED_MAX;
    }
    let packed = ((shift as u16 + 1) << MANTISSA) | (digits as u16 & ((1 << MANTISSA) - 1));
    packed.min(PACKED_MAX)
}

fn unpack(packed: u16) -> u64 {
    let (exponent, digits) = (u32::from(packed >> MANTISSA), u64::from(packed & 0x7ff));
    if exponent == 0 { digits } else { (digits | 1 << MANTISSA) << (exponent - 1) }
}

/// One curve of a device or of a host.
pub struct Series<T> {
    pub name: &'static str,
    pub unit: &'static str,
    pub scale: Scale,
    pub of: fn(&T) -> Option<f64>,
}

const BYTES: Scale = Scale::Amount { unit: 1.0 };
const MIB: Scale = Scale::Amount { unit: 1_048_576.0 };
const TENTHS: Scale = Scale::Amount { unit: 0.1 };
const HUNDREDTHS: Scale = Scale::Amount { unit: 0.01 };
const WHOLE: Scale = Scale::Amount { unit: 1.0 };

/// NVML's bits for clocks held down by heat or by the hardware's own brakes. That a card reaches
/// its power limit is no fault.
const HELD_DOWN: u64 = 0x8 | 0x20 | 0x40 | 0x80;

pub const GPU: &[Series<GpuSample>] = &[
    Series {
        name: "util",
        unit: "share",
        scale: Scale::Share,
        of: |g| Some(f64::from(g.util?) / 100.0),
    },
    Series { name: "sm", unit: "share", scale: Scale::Share, of: |g| g.sm_active.map(f64::from) },
    Series {
        name: "tensor",
        unit: "share",
        scale: Scale::Share,
        of: |g| g.tensor_active.map(f64::from),
    },
    Series {
        name: "dram",
        unit: "share",
        scale: Scale::Share,
        of: |g| g.dram_active.map(f64::from),
    },
    Series { name: "temp", unit: "°C", scale: Scale::Degrees, of: |g| g.temp.map(f64::from) },
    Series {
        name: "throttled",
        unit: "share",
        scale: Scale::Share,
        of: |g| g.throttle.map(|bits| if bits & HELD_DOWN == 0 { 0.0 } else { 1.0 }),
    },
    Series { name: "mem", unit: "B", scale: MIB, of: |g| g.mem_used.map(|b| b.0 as f64) },
    Series {
        name: "power",
        unit: "W",
        scale: TENTHS,
        of: |g| g.power_mw.map(|mw| f64::from(mw) / 1000.0),
    },
    Series { name: "clock", unit: "MHz", scale: WHOLE, of: |g| g.sm_clock.map(f64::from) },
    Series { name: "pcie", unit: "B/s", scale: BYTES, of: |g| both(g.pcie_tx, g.pcie_rx) },
    Series { name: "nvlink", unit: "B/s", scale: BYTES, of: |g| both(g.nvlink_tx, g.nvlink_rx) },
];

pub const HOST: &[Series<HostSample>] = &[
    Series { name: "cpu", unit: "share", scale: Scale::Share, of: |h| Some(f64::from(h.cpu)) },
    Series {
        name: "mem",
        unit: "share",
        scale: Scale::Share,
        of: |h| used(h.mem_total.0, h.mem_available.0),
    },
    Series {
        name: "disk",
        unit: "share",
        scale: Scale::Share,
        of: |h| used(h.disk_total.0, h.disk_free.0),
    },
    Series { name: "load", unit: "", scale: HUNDREDTHS, of: |h| Some(f64::from(h.load1)) },
    Series { name: "disk_read", unit: "B/s", scale: BYTES, of: |h| Some(h.disk_read as f64) },
    Series { name: "disk_write", unit: "B/s", scale: BYTES, of: |h| Some(h.disk_write as f64) },
    Series { name: "net_rx", unit: "B/s", scale: BYTES, of: |h| Some(h.net_rx as f64) },
    Series { name: "net_tx", unit: "B/s", scale: BYTES, of: |h| Some(h.net_tx as f64) },
    Series { name: "ib_rx", unit: "B/s", scale: BYTES, of: |h| ports(h, |n| n.rx) },
    Series { name: "ib_tx", unit: "B/s", scale: BYTES, of: |h| ports(h, |n| n.tx) },
];

fn both(tx: Option<u64>, rx: Option<u64>) -> Option<f64> {
    Some(tx? as f64 + rx? as f64)
}

fn used(total: u64, free: u64) -> Option<f64> {
    (total > 0).then(|| 1.0 - free as f64 / total as f64)
}

fn ports(host: &HostSample, of: fn(&tutti_model::NicSample) -> u64) -> Option<f64> {
    (!host.nics.is_empty()).then(|| host.nics.iter().map(|nic| of(nic) as f64).sum())
}

/// Bytes of one moment of all curves.
pub const fn width<T>(series: &[Series<T>]) -> usize {
    let (mut at, mut sum) = (0, 0);
    while at < series.len() {
        sum += series[at].scale.bytes();
        at += 1;
    }
    sum
}

/// A moment of all curves, written down.
pub fn row<T>(series: &[Series<T>], sample: &T) -> Vec<u8> {
    let mut row = vec![0; width(series)];
    let mut at = 0;
    for one in series {
        let end = at + one.scale.bytes();
        one.scale.write((one.of)(sample), &mut row[at..end]);
        at = end;
    }
    row
}

/// Where the values of a row are, without the type they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    pub cells: Vec<Cell>,
    pub width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    pub name: &'static str,
    pub unit: &'static str,
    pub scale: Scale,
    pub at: usize,
}

impl Layout {
    pub fn of<T>(series: &[Series<T>]) -> Layout {
        let mut at = 0;
        let cells = series.iter().map(|one| {
            let cell = Cell { name: one.name, unit: one.unit, scale: one.scale, at };
            at += one.scale.bytes();
            cell
        });
        Layout { cells: cells.collect(), width: width(series) }
    }

    pub fn gpu() -> &'static Layout {
        static LAYOUT: std::sync::LazyLock<Layout> = std::sync::LazyLock::new(|| Layout::of(GPU));
        &LAYOUT
    }

    pub fn host() -> &'static Layout {
        static LAYOUT: std::sync::LazyLock<Layout> = std::sync::LazyLock::new(|| Layout::of(HOST));
        &LAYOUT
    }

    pub fn cell(&self, name: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.name == name)
    }
}

impl Cell {
    pub fn read(&self, row: &[u8]) -> Option<f64> {
        self.scale.read(&row[self.at..self.at + self.scale.bytes()])
    }

    pub fn write(&self, value: Option<f64>, row: &mut [u8]) {
        self.scale.write(value, &mut row[self.at..self.at + self.scale.bytes()]);
    }
}

#[cfg(test)]
mod tests {
    use tutti_model::Bytes;

    use super::*;

    #[test]
    fn amounts_are_exact_when_small_and_close_when_large() {
        for n in (0..4096).chain([4097, 65_535, 1 << 20, 123_456_789, 4_000_000_000_000]) {
            let back = unpack(pack(n));
            let off = back.abs_diff(n) as f64 / n.max(1) as f64;
            assert!(if n < 4096 { back == n } else { off < 0.0003 }, "{n} became {back}");
        }
        assert!(pack(u64::MAX) < u16::MAX && pack(unpack(PACKED_MAX)) <= PACKED_MAX);
    }

    #[test]
    fn packing_keeps_the_order() {
        let mut last = 0;
        for n in (0..2_000_000u64).step_by(7).chain((1..42).map(|bit| 1 << bit).skip(21)) {
            let packed = pack(n);
            assert!(packed >= last, "{n}");
            last = packed;
        }
    }

    #[test]
    fn a_sample_is_read_back_from_its_row() {
        let sample = GpuSample {
            util: Some(37),
            sm_active: Some(0.5),
            temp: Some(64),
            mem_used: Some(Bytes(80 << 30)),
            power_mw: Some(698_700),
            sm_clock: Some(1755),
            throttle: Some(0x40 | 0x1),
            pcie_tx: Some(1000),
            pcie_rx: Some(24),
            ..GpuSample::default()
        };
        let row = row(GPU, &sample);
        assert_eq!(row.len(), 16, "it says so in the guide");
        let value = |name: &str| Layout::gpu().cell(name).unwrap().read(&row);
        assert_eq!((value("util"), value("sm"), value("tensor")), (Some(0.37), Some(0.5), None));
        assert_eq!((value("temp"), value("clock")), (Some(64.0), Some(1755.0)));
        assert_eq!((value("mem"), value("throttled")), (Some((80u64 << 30) as f64), Some(1.0)));
        assert_eq!((value("pcie"), value("nvlink")), (Some(1024.0), None));
        assert!((value("power").unwrap() - 698.7).abs() < 0.3, "{:?}", value("power"));
        assert_eq!(width(HOST), 17);
    }

    #[test]
    fn nonsense_is_nothing_and_too_much_is_the_most() {
        let mut byte = [0];
        Scale::Share.write(Some(f64::NAN), &mut byte);
        assert_eq!(Scale::Share.read(&byte), None);
        Scale::Share.write(Some(7.0), &mut byte);
        assert_eq!(Scale::Share.read(&byte), Some(1.0));
        Scale::Degrees.write(Some(900.0), &mut byte);
        assert_eq!(Scale::Degrees.read(&byte), Some(254.0));
        let mut two = [0; 2];
        BYTES.write(Some(1e30), &mut two);
        assert!(BYTES.read(&two).is_some_and(|most| most > 4e12));
    }
}
