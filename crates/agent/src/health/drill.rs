//! Fire drills: as near to the real thing as can be. An XID goes through the reader of the kernel's
//! log as a line of it.

use tutti_gpu::health::judge::judge;
use tutti_gpu::health::{Addresses, Seen, klog, xid};
use tutti_model::{Finding, GpuIndex, Time};
use tutti_wire::stream::{Drill, DrillWhat};

/// What an agent would have seen.
pub fn drill(drill: &Drill, addresses: &Addresses, now: Time) -> Result<Vec<Seen>, String> {
    let mut seen = match &drill.what {
        DrillWhat::Xid { xid } => {
            let gpu = drill.gpu.ok_or("an XID is an error of a GPU, and none is named")?;
            let address = addresses.address_of(gpu);
            let address = address.ok_or_else(|| format!("it is not known where GPU {gpu} is"))?;
            line(*xid, address, addresses, now)?
        }
        DrillWhat::Finding { check, action, text } => {
            let on = drill.gpu.map_or_else(String::new, |gpu| format!("/gpu{gpu}"));
            let of = drill.gpu.map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
            let finding = Finding {
                key: format!("{check}{on}"),
                check: check.clone(),
                gpu: drill.gpu,
                action: *action,
                text: format!("{of}{text}"),
                since: now,
                drill: true,
                by_job: false,
            };
            vec![Seen { finding, keep: xid::keep_of(*action) }]
        }
    };
    for seen in &mut seen {
        seen.finding.drill = true;
        seen.finding.key = format!("drill/{}", seen.finding.key);
        seen.finding.text = format!("{} (a fire drill by {})", seen.finding.text, drill.by);
    }
    Ok(seen)
}

fn line(xid: u32, address: &str, all: &Addresses, now: Time) -> Result<Vec<Seen>, String> {
    let line = match xid {
        xid::RECOVERY => format!(
            "NVRM: Xid (PCI:{address}): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        ),
        xid => format!("NVRM: Xid (PCI:{address}): {xid}"),
    };
    let event = klog::parse(&line).ok_or_else(|| format!("'{line}' is not understood"))?;
    Ok(judge(&event, all, now).seen)
}

/// Where imagined GPUs are.
pub fn imagined_address(gpu: GpuIndex) -> String {
    format!("ffff:{:02x}:{:02x}.0", gpu.0 >> 5, gpu.0 & 0x1f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::HealthAction;

    fn addresses() -> Addresses {
        let mut addresses = Addresses::default();
        (0..40).map(GpuIndex).for_each(|g| addresses.add(&imagined_address(g), g));
        addresses
    }

    fn run(gpu: Option<u16>, what: DrillWhat) -> Result<Vec<Seen>, String> {
        let ask = Drill { gpu: gpu.map(GpuIndex), what, by: "ada".into() };
        drill(&ask, &addresses(), Time(9))
    }

    #[test]
    fn an_xid_goes_through_the_reader_of_the_log() {
        for (xid, action) in [
            (79, HealthAction::RebootNode),
            (94, HealthAction::RestartJob),
            (154, HealthAction::ResetGpu),
        ] {
            let seen = run(Some(37), DrillWhat::Xid { xid }).unwrap();
            assert_eq!(seen.len(), 1, "{seen:?}");
            let found = &seen[0].finding;
            assert_eq!((found.gpu, found.action, found.drill), (Some(GpuIndex(37)), action, true));
            assert_eq!(found.key, format!("drill/xid-{xid}/gpu37"));
            assert!(found.text.ends_with("(a fire drill by ada)"), "{}", found.text);
        }
        assert!(run(None, DrillWhat::Xid { xid: 79 }).is_err());
        assert!(run(Some(99), DrillWhat::Xid { xid: 79 }).unwrap_err().contains("GPU 99"));
    }

    #[test]
    fn any_finding_can_be_tried() {
        let (check, text) = ("disk".to_owned(), "full".to_owned());
        let what = DrillWhat::Finding { check, action: HealthAction::DrainNode, text };
        let seen = run(None, what).unwrap();
        assert_eq!(seen[0].finding.key, "drill/disk");
        assert_eq!(seen[0].finding.action, HealthAction::DrainNode);
    }
}
