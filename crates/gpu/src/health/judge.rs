//! From what the kernel's log says to findings.

use tutti_model::{Finding, GpuIndex, HealthAction, Span, Time};

use super::klog::Event;
use super::xid::{self, Rule};
use super::{Addresses, Keep, Seen};

/// Of a line of the kernel's log, so much is repeated.
const REST_CHARS_MAX: usize = 160;
const HOUR: Keep = Keep::For(Span::secs(3600));

/// What follows from one event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    pub seen: Vec<Seen>,
    /// The driver has said what these GPUs need, or that they need nothing any more: what the table
    /// made of their XIDs is replaced by that.
    pub overruled: Vec<GpuIndex>,
}

pub fn judge(event: &Event, addresses: &Addresses, at: Time) -> Verdict {
    let one = |seen: Vec<Seen>| Verdict { seen, overruled: Vec::new() };
    match event {
        Event::Xid { pci, xid, process, recovery, rest } => {
            let said = Said { pci, at, process: process.as_deref(), rest };
            match (*xid, recovery) {
                (xid::RECOVERY, Some(value)) => said.recovery(addresses, *value),
                _ => one(said.findings(addresses, *xid)),
            }
        }
        Event::OffTheBus { pci } => {
            let said = Said { pci, at, process: None, rest: "" };
            one(said.findings(addresses, 79))
        }
        Event::Sxid { pci, sxid, fatal, rest } => {
            let action = if *fatal { HealthAction::DrainNode } else { HealthAction::Note };
            let keep = if *fatal { Keep::UntilReboot } else { HOUR };
            let how = if *fatal { "fatal" } else { "not fatal" };
            let text = format!("NVSwitch {pci}: SXID {sxid}, {how}: {}", clip(rest));
            one(vec![node(&format!("sxid-{sxid}"), "sxid", action, text, keep, at)])
        }
        Event::AmdReset { pci, ok: true } => {
            let text = "the driver had to reset the GPU".to_owned();
            one(on_gpus(addresses, pci, "amd-reset", HealthAction::RestartJob, &text, at))
        }
        Event::AmdReset { pci, ok: false } => {
            let text = "the driver could not reset the GPU".to_owned();
            one(on_gpus(addresses, pci, "amd-reset", HealthAction::RebootNode, &text, at))
        }
        Event::AmdUncorrectable { pci, text } => {
            one(on_gpus(addresses, pci, "ecc", HealthAction::FenceGpu, &clip(text), at))
        }
        Event::Pcie { pci, fatal } => {
            let action = if *fatal { HealthAction::FenceGpu } else { HealthAction::Note };
            let how = if *fatal { "fatal" } else { "uncorrected" };
            one(on_gpus(addresses, pci, "pcie", action, &format!("a {how} PCIe error"), at))
        }
        Event::OutOfMemory { process } => {
            let text = format!("the machine ran out of memory, and {process} was killed");
            one(vec![node("oom", "memory", HealthAction::Note, text, HOUR, at)])
        }
        Event::Disk { device, read_only, text } => {
            let (action, keep) = match read_only {
                true => (HealthAction::DrainNode, Keep::UntilReboot),
                false => (HealthAction::Note, HOUR),
            };
            let key = format!("disk-{device}");
            one(vec![node(&key, "disk-errors", action, clip(text), keep, at)])
        }
    }
}

/// One line of the driver.
struct Said<'a> {
    pci: &'a str,
    at: Time,
    process: Option<&'a str>,
    rest: &'a str,
}

impl Said<'_> {
    fn findings(&self, addresses: &Addresses, number: u32) -> Vec<Seen> {
        let rule = xid::rule_of(number);
        let mut text = format!("XID {number}: {}", rule.what);
        if let Some(process) = self.process {
            text.push_str(&format!(", met by {process}"));
        }
        self.on_gpus(addresses, &format!("xid-{number}"), rule, &text)
    }

    fn recovery(&self, addresses: &Addresses, value: u32) -> Verdict {
        let overruled = addresses.gpus_at(self.pci);
        let seen = xid::recovery(value).map_or_else(Vec::new, |rule| {
            let mut text = format!("XID 154: {}", rule.what);
            if !self.rest.is_empty() {
                text.push_str(&format!(" ({})", clip(self.rest)));
            }
            self.on_gpus(addresses, "xid-154", rule, &text)
        });
        Verdict { seen, overruled }
    }

    fn on_gpus(&self, addresses: &Addresses, name: &str, rule: Rule, text: &str) -> Vec<Seen> {
        let mut all = on_gpus(addresses, self.pci, name, rule.action, text, self.at);
        for seen in &mut all {
            seen.finding.check = "xid".to_owned();
            seen.finding.by_job = rule.by_job;
        }
        all
    }
}

/// A finding for each of our GPUs at this address. A GPU that is not ours is nobody's who asks us;
/// the node may have to be rebooted all the same.
fn on_gpus(
    addresses: &Addresses,
    pci: &str,
    name: &str,
    action: HealthAction,
    text: &str,
    at: Time,
) -> Vec<Seen> {
    let gpus = addresses.gpus_at(pci);
    if gpus.is_empty() {
        let action = match action {
            HealthAction::RebootNode => action,
            _ => HealthAction::Note,
        };
        let text = format!("PCI {pci}, which is none of tutti's GPUs: {text}");
        let keep = xid::keep_of(action);
        return vec![node(&format!("{name}/{pci}"), name, action, text, keep, at)];
    }
    gpus.into_iter()
        .map(|gpu| Seen {
            finding: Finding {
                key: format!("{name}/gpu{gpu}"),
                check: name.to_owned(),
                gpu: Some(gpu),
                action,
                text: format!("GPU {gpu} ({pci}): {text}"),
                since: at,
                drill: false,
                by_job: false,
            },
            keep: xid::keep_of(action),
        })
        .collect()
}

/// A finding about the machine as a whole.
pub(super) fn node(
    key: &str,
    check: &str,
    action: HealthAction,
    text: String,
    keep: Keep,
    at: Time,
) -> Seen {
    let finding = Finding {
        key: key.to_owned(),
        check: check.to_owned(),
        gpu: None,
        action,
        text,
        since: at,
        drill: false,
        by_job: false,
    };
    Seen { finding, keep }
}

fn clip(text: &str) -> String {
    text.chars().take(REST_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::klog;

    fn addresses() -> Addresses {
        let mut addresses = Addresses::default();
        addresses.add("0000:9c:00.0", GpuIndex(5));
        addresses.add("0000:c3:00.0", GpuIndex(6));
        // Two MIG instances of one GPU.
        addresses.add("0000:4e:00.0", GpuIndex(0));
        addresses.add("0000:4e:00.0", GpuIndex(1));
        addresses
    }

    fn of_log(log: &str) -> Vec<Verdict> {
        let events = log.lines().filter_map(klog::parse);
        events.map(|e| judge(&e, &addresses(), Time(7))).collect()
    }

    fn actions(verdicts: &[Verdict]) -> Vec<(String, HealthAction)> {
        let seen = verdicts.iter().flat_map(|v| &v.seen);
        seen.map(|s| (s.finding.key.clone(), s.finding.action)).collect()
    }

    #[test]
    fn a_gpu_that_fell_off_the_bus_wants_a_reboot_as_the_driver_says() {
        let verdicts = of_log(include_str!("../../tests/fixtures/kernel/dead-gpu.log"));
        let expected = [
            ("pcie/gpu5", HealthAction::FenceGpu),
            ("xid-79/gpu5", HealthAction::RebootNode),
            ("xid-79/gpu5", HealthAction::RebootNode),
            ("xid-154/gpu5", HealthAction::RebootNode),
            ("xid-45/gpu5", HealthAction::Note),
        ];
        assert_eq!(actions(&verdicts), expected.map(|(k, a)| (k.to_owned(), a)));
        assert_eq!(verdicts[3].overruled, [GpuIndex(5)]);
        let text = &verdicts[1].seen[0].finding.text;
        assert!(text.starts_with("GPU 5 (0000:9c:00): XID 79: "), "{text}");
        assert!(text.contains("python3 (220114)"), "{text}");
    }

    #[test]
    fn all_instances_of_a_gpu_are_concerned_and_a_switch_is_the_nodes() {
        let verdicts = of_log(include_str!("../../tests/fixtures/kernel/nvswitch.log"));
        let expected = [
            ("sxid-12028", HealthAction::Note),
            ("sxid-20034", HealthAction::DrainNode),
            ("xid-74/gpu0", HealthAction::FenceGpu),
            ("xid-74/gpu1", HealthAction::FenceGpu),
        ];
        assert_eq!(actions(&verdicts), expected.map(|(k, a)| (k.to_owned(), a)));
    }

    #[test]
    fn amd_gpus_are_judged_too() {
        let verdicts = of_log(include_str!("../../tests/fixtures/kernel/mi300x.log"));
        let expected = [
            ("ecc/gpu6", HealthAction::FenceGpu),
            ("amd-reset/gpu6", HealthAction::RestartJob),
            ("amd-reset/gpu6", HealthAction::RebootNode),
        ];
        assert_eq!(actions(&verdicts), expected.map(|(k, a)| (k.to_owned(), a)));
    }

    #[test]
    fn hosts_are_drained_when_they_cannot_write() {
        let verdicts = of_log(include_str!("../../tests/fixtures/kernel/host.log"));
        let expected = [
            ("oom", HealthAction::Note),
            ("disk-nvme0n1", HealthAction::Note),
            ("disk-sda1", HealthAction::Note),
            ("disk-sda1", HealthAction::DrainNode),
            ("disk-nvme1", HealthAction::Note),
        ];
        assert_eq!(actions(&verdicts), expected.map(|(k, a)| (k.to_owned(), a)));
    }

    #[test]
    fn a_gpu_that_is_not_ours_is_not_fenced() {
        let event = klog::parse("NVRM: Xid (PCI:0000:ff:00): 48, pid=1, name=x").unwrap();
        let seen = judge(&event, &addresses(), Time(0)).seen;
        assert_eq!((seen[0].finding.gpu, seen[0].finding.action), (None, HealthAction::Note));
    }

    #[test]
    fn a_driver_that_needs_nothing_any_more_overrules_without_a_finding() {
        let line = "NVRM: Xid (PCI:0000:9c:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
        let verdict = judge(&klog::parse(line).unwrap(), &addresses(), Time(0));
        assert_eq!((verdict.seen.len(), verdict.overruled), (0, vec![GpuIndex(5)]));
    }
}
