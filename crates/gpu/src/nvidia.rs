//! NVIDIA cards: NVML's answers joined with what the kernel says of the same devices.

use std::collections::BTreeSet;
use std::path::Path;

use tutti_model::{FabricState, HardwareProblem, HardwareProblemKind as Kind, Vendor};

use crate::model_name::short_model;
use crate::nvml::{Answer, Answers, Instance, NvmlFailure};
use crate::readings::{Card, FarEnd, Readings, Slice};
use crate::{files, pci};

const VENDOR: u32 = 0x10de;
/// Every job with a GPU opens these.
const CONTROL: [&str; 3] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];
/// Without it no NVLink over a switch works; the fabric manager makes it.
const FABRIC_OUT: &str = "is nvidia-fabricmanager running, in the version of the driver?";

pub fn read(answers: Result<Answers, NvmlFailure>, root: &Path, readings: &mut Readings) {
    let on_bus = on_bus(root);
    let answers = match answers {
        Ok(answers) => answers,
        Err(failure) => {
            let whole = HardwareProblem { kind: Kind::Driver, pci: None, message: words(&failure) };
            // A machine without NVIDIA devices needs no driver for them.
            if !on_bus.is_empty() || matches!(failure, NvmlFailure::Driver { .. }) {
                readings.problems.push(whole);
            }
            readings.cards.extend(on_bus.into_iter().map(|address| dead(root, &address)));
            return;
        }
    };
    if readings.driver.is_none() {
        readings.driver.clone_from(&answers.driver);
        readings.runtime.clone_from(&answers.cuda);
    }
    let mut cards: Vec<Card> = Vec::new();
    for answer in &answers.devices {
        readings.problems.extend(problems(answer));
        cards.push(card(answer, root));
    }
    let answered: BTreeSet<&str> = answers.devices.iter().map(|a| a.pci.as_str()).collect();
    let expected = |address: &&String| {
        !answered.contains(address.as_str()) && !answers.excluded.contains(address)
    };
    let missing: Vec<&String> = on_bus.iter().filter(expected).collect();
    readings.problems.extend(lost(&missing, &answers.silent));
    cards.extend(missing.into_iter().map(|address| dead(root, address)));
    cards.sort_by(|a, b| a.place.address.cmp(&b.place.address));
    if !cards.is_empty() {
        let there = |name: &&str| root.join("dev").join(name).exists();
        let files = CONTROL.iter().filter(|n| there(n)).map(|name| format!("/dev/{name}"));
        readings.control_files.extend(files);
    }
    readings.cards.extend(cards);
}

/// Addresses of the devices that the driver should know. One that was given to another driver, such
/// as a virtual machine's, is not missing here.
fn on_bus(root: &Path) -> Vec<String> {
    let ours = |dir: &std::path::PathBuf| {
        // Display controllers: 0x0300 with outputs, 0x0302 without.
        let class = files::hex(&dir.join("class")).map(|class| class >> 8);
        let driver = std::fs::canonicalize(dir.join("driver")).ok().and_then(|d| files::name(&d));
        files::hex(&dir.join("vendor")) == Some(VENDOR)
            && matches!(class, Some(0x0300 | 0x0302))
            && driver.is_none_or(|driver| driver == "nvidia")
    };
    let all = files::entries(&pci::devices(root)).into_iter().filter(ours);
    all.filter_map(|dir| files::name(&dir)).collect()
}

fn dead(root: &Path, address: &str) -> Card {
    let place = pci::at_address(root, address);
    Card { vendor: Vendor::Nvidia, place, dead: true, ..Card::default() }
}

/// One problem for each device that does not answer, whether the driver still counts it or not.
fn lost(missing: &[&String], silent: &[String]) -> Vec<HardwareProblem> {
    let count = missing.len().max(silent.len());
    let problem = |i: usize| {
        let why = silent.get(i).map_or("the driver does not list it", String::as_str);
        HardwareProblem {
            kind: Kind::Missing,
            // Several that are silent can't be told apart, but none is named that answers.
            pci: missing.get(i).map(|address| (*address).clone()),
            message: format!(
                "a GPU does not answer ({why}): look for Xid in the kernel log; if it fell off the \
                 bus, reboot"
            ),
        }
    };
    (0..count).map(problem).collect()
}

fn problems(answer: &Answer) -> Vec<HardwareProblem> {
    let problem = |kind, message| HardwareProblem { kind, pci: Some(answer.pci.clone()), message };
    let mut all: Vec<HardwareProblem> = answer
        .unread
        .iter()
        .map(|what| problem(Kind::Unread, format!("can't read {what}")))
        .collect();
    let state = answer.fabric.as_ref().map_or(FabricState::NotSupported, |f| f.state);
    let waits = match state {
        FabricState::NotSupported | FabricState::Completed => None,
        FabricState::NotStarted => Some("has not begun to join"),
        FabricState::InProgress => Some("has not yet joined"),
        FabricState::Failed => Some("failed to join"),
    };
    if let Some(waits) = waits.filter(|_| answer.nvlinks.contains(&FarEnd::Switch)) {
        let message = format!("the GPU {waits} its NVLink fabric: {FABRIC_OUT}");
        all.push(problem(Kind::Fabric, message));
    }
    if answer.instances.as_ref().is_some_and(Vec::is_empty) {
        let message = "MIG is on and there are no instances, so nothing of this GPU is offered: make \
                       some with `nvidia-smi mig -cgi ... -C`, or turn MIG off";
        all.push(problem(Kind::NoInstances, message.to_owned()));
    }
    all
}

fn card(answer: &Answer, root: &Path) -> Card {
    let own: Vec<String> = answer.minor.iter().map(|minor| format!("/dev/nvidia{minor}")).collect();
    let slice = |instance: &Instance| Slice {
        uuid: instance.uuid.clone(),
        gpu_instance: instance.gpu_instance,
        compute_instance: instance.compute_instance,
        profile: profile(instance),
        mem: instance.mem,
        device_files: own.iter().cloned().chain(capabilities(answer, instance, root)).collect(),
    };
    Card {
        vendor: Vendor::Nvidia,
        name: answer.name.clone(),
        model: short_model(&answer.name),
        uuid: answer.uuid.clone(),
        mem: answer.mem,
        place: pci::at_address(root, &answer.pci),
        nvlinks: answer.nvlinks.clone(),
        fabric: answer.fabric.clone(),
        slices: answer.instances.as_ref().map(|all| all.iter().map(slice).collect()),
        device_files: own,
        ..Card::default()
    }
}

/// "NVIDIA H200 MIG 1g.18gb" says it at its end; a driver that does not is known by the memory.
fn profile(instance: &Instance) -> String {
    match instance.name.rsplit_once(" MIG ") {
        Some((_, profile)) => profile.trim().to_ascii_lowercase(),
        None => format!("mig.{}gb", (instance.mem.0 + (1 << 29)) >> 30),
    }
}

/// The files that let a process into one instance: of the GPU instance, and of the compute instance
/// in it.
fn capabilities(answer: &Answer, instance: &Instance, root: &Path) -> Vec<String> {
    let Some(minor) = answer.minor else { return Vec::new() };
    let mig = root.join(format!("proc/driver/nvidia/capabilities/gpu{minor}/mig"));
    let gpu = mig.join(format!("gi{}", instance.gpu_instance));
    let compute = gpu.join(format!("ci{}", instance.compute_instance));
    [gpu, compute].iter().filter_map(|dir| capability(&dir.join("access"))).collect()
}

fn capability(access: &Path) -> Option<String> {
    let text = files::text(access)?;
    let minor: u32 = files::value(&text, "DeviceFileMinor")?.parse().ok()?;
    Some(format!("/dev/nvidia-caps/nvidia-cap{minor}"))
}

/// With its causes, on one line.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
