//! AMD's devices, from the files of their kernel driver.

use std::fs;
use std::path::{Path, PathBuf};

use tutti_model::{Bytes, GpuIndex, GpuSample};

use super::{DeviceProcess, Devices, Round};

pub struct Amd {
    cards: Vec<Card>,
}

struct Card {
    index: GpuIndex,
    device: PathBuf,
    /// Where its sensors are; looked for once.
    hwmon: Option<PathBuf>,
}

impl Amd {
    /// `gpus` by their PCI addresses, "0000:05:00.0".
    pub fn new(root: &Path, gpus: impl IntoIterator<Item = (GpuIndex, String)>) -> Amd {
        let card = |(index, pci): (GpuIndex, String)| {
            let device = root.join("sys/bus/pci/devices").join(pci);
            Card { index, hwmon: first_entry(&device.join("hwmon")), device }
        };
        Amd { cards: gpus.into_iter().map(card).collect() }
    }
}

impl Devices for Amd {
    fn read(&mut self, _: Round<'_>, gpus: &mut Vec<GpuSample>, _: &mut Vec<DeviceProcess>) {
        gpus.extend(self.cards.iter().map(Card::read));
    }
}

impl Card {
    fn read(&self) -> GpuSample {
        let of = |name: &str| number(&self.device.join(name));
        let sensor = |name: &str| number(&self.hwmon.as_ref()?.join(name));
        let used = of("mem_info_vram_used");
        let free = used.and_then(|used| of("mem_info_vram_total")?.checked_sub(used));
        // Millionths of a watt, thousandths of a degree, hertz.
        let milliwatts = |name| sensor(name).map(|microwatts| (microwatts / 1000) as u32);
        let degrees = |name| sensor(name).map(|milli| (milli / 1000) as i16);
        let megahertz = |name| sensor(name).map(|hertz| (hertz / 1_000_000) as u32);
        GpuSample {
            index: self.index,
            util: of("gpu_busy_percent").map(|percent| percent.min(100) as u8),
            mem_util: of("mem_busy_percent").map(|percent| percent.min(100) as u8),
            mem_used: used.map(Bytes),
            mem_free: free.map(Bytes),
            // Newer devices say what they take now instead of an average.
            power_mw: milliwatts("power1_average").or_else(|| milliwatts("power1_input")),
            power_limit_mw: milliwatts("power1_cap"),
            // Edge or, on Instinct cards, junction.
            temp: degrees("temp1_input").or_else(|| degrees("temp2_input")),
            mem_temp: degrees("temp3_input"),
            sm_clock: megahertz("freq1_input"),
            mem_clock: megahertz("freq2_input"),
            pcie_replays: of("pcie_replay_count"),
            ecc_corrected: ecc(&self.device, "ce"),
            ecc_uncorrected: ecc(&self.device, "ue"),
            ..GpuSample::default()
        }
    }
}

/// Of the memory controller: "ue: 0\nce: 3\n".
fn ecc(device: &Path, kind: &str) -> Option<u64> {
    let text = fs::read_to_string(device.join("ras/umc_err_count")).ok()?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix(kind))?;
    line.trim_start_matches(':').trim().parse().ok()
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn first_entry(dir: &Path) -> Option<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    entries.into_iter().next()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tutti_model::Time;

    use super::*;

    /// Hand-made after an MI300X.
    #[test]
    fn an_instinct_card_is_read() {
        let root = std::env::temp_dir().join(format!("tutti-amd-{}", std::process::id()));
        let device = root.join("sys/bus/pci/devices/0000:05:00.0");
        for (file, text) in [
            ("gpu_busy_percent", "83\n"),
            ("mem_busy_percent", "31\n"),
            ("mem_info_vram_total", "206141652992\n"),
            ("mem_info_vram_used", "104857600\n"),
            ("pcie_replay_count", "2\n"),
            ("ras/umc_err_count", "ue: 1\nce: 3\n"),
            ("hwmon/hwmon7/power1_input", "612000000\n"),
            ("hwmon/hwmon7/power1_cap", "750000000\n"),
            ("hwmon/hwmon7/temp2_input", "64000\n"),
            ("hwmon/hwmon7/temp3_input", "52000\n"),
            ("hwmon/hwmon7/freq1_input", "2100000000\n"),
        ] {
            let path = device.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let gpus = [(GpuIndex(0), "0000:05:00.0".into()), (GpuIndex(1), "0000:99:00.0".into())];
        let mut amd = Amd::new(&root, gpus);
        let mut samples = Vec::new();
        let round = Round { at: Time(0), clock: Duration::ZERO, held: &[] };
        amd.read(round, &mut samples, &mut Vec::new());
        let gpu = &samples[0];
        assert_eq!((gpu.util, gpu.mem_util), (Some(83), Some(31)));
        assert_eq!(gpu.mem_free, Some(Bytes(206_141_652_992 - 104_857_600)));
        assert_eq!((gpu.power_mw, gpu.power_limit_mw), (Some(612_000), Some(750_000)));
        assert_eq!((gpu.temp, gpu.mem_temp, gpu.sm_clock), (Some(64), Some(52), Some(2100)));
        assert_eq!((gpu.ecc_corrected, gpu.ecc_uncorrected), (Some(3), Some(1)));
        assert_eq!((gpu.pcie_replays, gpu.mem_clock), (Some(2), None));
        // One that is gone has no values, and hides no other.
        assert_eq!(samples[1], GpuSample { index: GpuIndex(1), ..GpuSample::default() });
        fs::remove_dir_all(root).unwrap();
    }
}
