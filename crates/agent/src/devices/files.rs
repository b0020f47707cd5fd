//! From device files to rules: a part may open the files of its own GPUs and of their drivers, and
//! no other device of a GPU. Everything else is as the file system has it.
//!
//! A driver is known by the name under which `/proc/devices` has its numbers, so a card that was
//! not there when the agent started is closed as well.

use std::collections::BTreeSet;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use tutti_model::{GpuFacts, GpuIndex, Hardware, Vendor};

use super::{Kind, Rule, Rules, Verdict};

/// Numbers that NVIDIA's driver and the kernel's graphics have always had, loaded or not.
const FIXED: [u32; 2] = [195, 226];
/// The beginnings of other drivers' names; their numbers are given out when they are loaded.
const DRIVERS: [&str; 4] = ["nvidia", "drm", "kfd", "accel"];
/// GPUDirect Storage: a way to files, which is of no use without a GPU.
const NOT_A_GPU: &str = "nvidia-fs";

const UNIFIED_MEMORY: &str = "nvidia-uvm";

/// What a machine has, read anew for every part: drivers are loaded when somebody first needs them.
pub struct Seen {
    /// The text of `/proc/devices`.
    pub drivers: String,
    /// The numbers of a device file; none if it is not there.
    pub number: fn(&str) -> Option<(Kind, u32, u32)>,
}

impl Seen {
    pub fn now() -> Seen {
        // Without it the fixed numbers and the files that discovery named are still closed.
        let drivers = std::fs::read_to_string("/proc/devices").unwrap_or_default();
        Seen { drivers, number }
    }
}

fn number(file: &str) -> Option<(Kind, u32, u32)> {
    let meta = std::fs::metadata(Path::new(file)).ok()?;
    let kind = match meta.file_type() {
        t if t.is_char_device() => Kind::Char,
        t if t.is_block_device() => Kind::Block,
        _ => return None,
    };
    let device = meta.rdev();
    Some((kind, libc::major(device), libc::minor(device)))
}

/// For a part that has these GPUs; `hardware` is all that the node has.
pub fn rules(hardware: Option<&Hardware>, gpus: &[GpuIndex], seen: &Seen) -> Rules {
    let number = |file: &String| (seen.number)(file);
    let (mut own, mut all) = (BTreeSet::new(), BTreeSet::new());
    for gpu in hardware.iter().flat_map(|h| &h.gpus) {
        let files: Vec<_> = gpu.device_files.iter().filter_map(number).collect();
        if gpus.contains(&gpu.index) {
            own.extend(files.iter().copied());
        }
        all.extend(files);
    }
    let of_nvidia = |gpu: &&GpuFacts| gpu.vendor == Vendor::Nvidia && gpus.contains(&gpu.index);
    let uses_nvidia = hardware.iter().flat_map(|h| &h.gpus).find(of_nvidia).is_some();
    for file in hardware.iter().flat_map(|h| &h.control_files).filter_map(number) {
        if !gpus.is_empty() {
            own.insert(file);
        }
        all.insert(file);
    }
    let one = |verdict| move |&(kind, major, minor)| Rule::new(verdict, kind, major, Some(minor));
    let foreign: Vec<_> = all.difference(&own).copied().collect();
    let drivers = majors(&seen.drivers);
    let whole = drivers.iter().map(|&major| Rule::new(Verdict::Deny, Kind::Char, major, None));
    // The files of this driver may be made after the agent has looked, when somebody first needs them.
    let memory = named(&seen.drivers, |name| name == UNIFIED_MEMORY);
    let memory = memory.filter(|_| uses_nvidia);
    let memory = memory.map(|major| Rule::new(Verdict::Allow, Kind::Char, major, None));
    let own = own.iter().map(one(Verdict::Allow)).chain(memory);
    let list = own.chain(foreign.iter().map(one(Verdict::Deny)));
    Rules { list: list.chain(whole).collect(), otherwise: Verdict::Allow }
}

/// Character devices of GPU drivers.
fn majors(devices: &str) -> BTreeSet<u32> {
    let ours = |name: &str| DRIVERS.iter().any(|d| name.starts_with(d)) && name != NOT_A_GPU;
    FIXED.into_iter().chain(named(devices, ours)).collect()
}

fn named(devices: &str, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = u32> {
    let chars = devices.lines().take_while(|line| !line.starts_with("Block"));
    chars.filter_map(move |line| {
        let (major, name) = line.trim().split_once(' ')?;
        wanted(name).then(|| major.parse::<u32>().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICES: &str = "Character devices:\n  1 mem\n 10 misc\n195 nvidia\n195 nvidiactl\n\
                           226 drm\n235 kfd\n238 nvidia-uvm\n241 nvidia-caps\n242 nvidia-fs\n\n\
                           Block devices:\n  7 loop\n259 nvidia-not-really\n";

    fn number(file: &str) -> Option<(Kind, u32, u32)> {
        let minor = |prefix: &str| file.strip_prefix(prefix)?.parse().ok();
        match file {
            "/dev/nvidiactl" => Some((Kind::Char, 195, 255)),
            "/dev/nvidia-uvm" => Some((Kind::Char, 238, 0)),
            "/dev/odd0" => Some((Kind::Char, 1, 7)),
            _ => Some((Kind::Char, 195, minor("/dev/nvidia")?)),
        }
    }

    fn hardware(files: &[&str]) -> Hardware {
        let gpu = |(i, file): (usize, &&str)| GpuFacts {
            index: GpuIndex(i as u16),
            device_files: vec![(*file).to_owned()],
            ..GpuFacts::default()
        };
        Hardware {
            gpus: files.iter().enumerate().map(gpu).collect(),
            control_files: vec!["/dev/nvidiactl".into(), "/dev/nvidia-uvm".into()],
            ..Hardware::default()
        }
    }

    fn text(hardware: &Hardware, gpus: &[u16], devices: &str) -> Vec<String> {
        let seen = Seen { drivers: devices.to_owned(), number };
        let gpus: Vec<GpuIndex> = gpus.iter().map(|&i| GpuIndex(i)).collect();
        let rules = rules(Some(hardware), &gpus, &seen);
        assert_eq!(rules.otherwise, Verdict::Allow);
        rules.list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn own_files_come_first_then_everything_of_a_gpu_is_closed() {
        let hardware = hardware(&["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia9x"]);
        let rules = text(&hardware, &[1], DEVICES);
        let wanted = [
            "allow c 195:1 rwm",
            "allow c 195:255 rwm",
            "allow c 238:0 rwm",
            "allow c 238:* rwm",
            "deny c 195:0 rwm",
            "deny c 195:* rwm",
            "deny c 226:* rwm",
            "deny c 235:* rwm",
            "deny c 238:* rwm",
            "deny c 241:* rwm",
        ];
        assert_eq!(rules, wanted);
    }

    #[test]
    fn a_part_without_gpus_opens_no_gpu_and_no_driver() {
        let rules = text(&hardware(&["/dev/nvidia0"]), &[], DEVICES);
        assert!(rules.iter().all(|rule| rule.starts_with("deny")), "{rules:?}");
        assert!(rules.contains(&"deny c 195:255 rwm".to_owned()));
    }

    #[test]
    fn a_driver_that_is_not_loaded_yet_is_closed_where_its_number_is_known() {
        let rules = text(&hardware(&[]), &[], "Character devices:\n  1 mem\n");
        assert!(rules.contains(&"deny c 195:* rwm".to_owned()), "{rules:?}");
        assert!(rules.contains(&"deny c 226:* rwm".to_owned()));
    }

    #[test]
    fn only_known_drivers_are_closed_as_a_whole() {
        // Else a card with a number among those of /dev/null would take that away.
        let rules = text(&hardware(&["/dev/odd0"]), &[], DEVICES);
        assert!(rules.contains(&"deny c 1:7 rwm".to_owned()));
        assert!(!rules.iter().any(|rule| rule.starts_with("deny c 1:*")));
    }
}
