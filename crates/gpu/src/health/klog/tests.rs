//! Lines as real machines wrote them; addresses and programs are made up.

use super::*;

fn found(log: &str) -> Vec<Event> {
    log.lines().filter_map(parse).collect()
}

fn xid_of(line: &str) -> (String, u32, Option<String>, Option<u32>) {
    match parse(line) {
        Some(Event::Xid { pci, xid, process, recovery, .. }) => (pci, xid, process, recovery),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn xids_of_all_driver_versions_are_read() {
    let cases = [
        (
            "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
            ("0000:1b:00", 79, Some("python3 (1234)"), None),
        ),
        (
            "[ 4711.815162] NVRM: Xid (PCI:0000:05:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008, intr 10000000. MMU Fault",
            ("0000:05:00", 31, None, None),
        ),
        ("NVRM: Xid (0000:03:00): 13, 0003 00000000 0000a0c0", ("0000:03:00", 13, None, None)),
        (
            "NVRM: Xid (PCI:0000:5d:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            ("0000:5d:00", 154, None, Some(1)),
        ),
        (
            "NVRM: Xid (PCI:0000:5d:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            ("0000:5d:00", 154, None, Some(0)),
        ),
        (
            "[Fri Jan  3 10:00:00 2025] NVRM: Xid (PCI:0000:d0:00): 94, pid=7, name=train, Contained: SM (0x1). RST: No, D-RST: No",
            ("0000:d0:00", 94, Some("train (7)"), None),
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 63, Row Remapper: New row marked for remapping",
            ("0000:01:00", 63, None, None),
        ),
    ];
    for (line, (pci, xid, process, recovery)) in cases {
        let expected = (pci.to_owned(), xid, process.map(str::to_owned), recovery);
        assert_eq!(xid_of(line), expected, "{line}");
    }
}

#[test]
fn a_log_of_a_machine_with_a_dead_gpu_is_read() {
    let events = found(include_str!("../../../tests/fixtures/kernel/dead-gpu.log"));
    let numbers: Vec<u32> = events
        .iter()
        .filter_map(|e| match e {
            Event::Xid { xid, .. } => Some(*xid),
            _ => None,
        })
        .collect();
    assert_eq!(numbers, [79, 154, 45]);
    assert!(events.contains(&Event::OffTheBus { pci: "0000:9c:00.0".into() }), "{events:?}");
    assert!(events.contains(&Event::Pcie { pci: "0000:9c:00.0".into(), fatal: true }));
    assert_eq!(events.len(), 5, "{events:?}");
}

#[test]
fn a_log_of_an_nvswitch_machine_is_read() {
    let events = found(include_str!("../../../tests/fixtures/kernel/nvswitch.log"));
    let switch = |e: &Event| match e {
        Event::Sxid { sxid, fatal, .. } => Some((*sxid, *fatal)),
        _ => None,
    };
    assert_eq!(
        events.iter().filter_map(switch).collect::<Vec<_>>(),
        [(12028, false), (20034, true)]
    );
    assert_eq!(events.len(), 3, "and XID 74: {events:?}");
}

#[test]
fn a_log_of_an_amd_machine_is_read() {
    let events = found(include_str!("../../../tests/fixtures/kernel/mi300x.log"));
    let pci = || "0000:c3:00.0".to_owned();
    assert!(matches!(&events[0], Event::AmdUncorrectable { pci: at, .. } if *at == pci()));
    assert_eq!(events[1], Event::AmdReset { pci: pci(), ok: true });
    assert_eq!(events[2], Event::AmdReset { pci: pci(), ok: false });
    assert_eq!(events.len(), 3, "{events:?}");
}

#[test]
fn memory_and_disks_are_read_and_the_rest_is_left_alone() {
    let events = found(include_str!("../../../tests/fixtures/kernel/host.log"));
    assert_eq!(events[0], Event::OutOfMemory { process: "python3 (81234)".into() });
    let disk = |e: &Event| match e {
        Event::Disk { device, read_only, .. } => Some((device.clone(), *read_only)),
        _ => None,
    };
    let disks: Vec<_> = events.iter().filter_map(disk).collect();
    let expected = [("nvme0n1", false), ("sda1", false), ("sda1", true), ("nvme1", false)];
    assert_eq!(disks, expected.map(|(d, ro)| (d.to_owned(), ro)));
    assert_eq!(events.len(), 5, "{events:?}");
}

#[test]
fn records_of_kmsg_have_a_number_and_a_time() {
    let record =
        Record::parse("3,1723,98765432100,-;NVRM: Xid (PCI:0000:1b:00): 48\n SUBSYSTEM=pci\n");
    let record = record.unwrap();
    assert_eq!((record.seq, record.at(Time(1000))), (1723, Time(98_766_432)));
    assert_eq!(record.text, "NVRM: Xid (PCI:0000:1b:00): 48");
    assert!(parse(record.text).is_some());
    for bad in ["", "no record", "6,x,5,-;text", "6,1"] {
        assert_eq!(Record::parse(bad), None, "{bad}");
    }
}

#[test]
fn no_line_makes_the_parser_fall() {
    for bad in [
        "NVRM: Xid (PCI:0000:1b:00): ",
        "NVRM: Xid (",
        "NVRM: Xid (PCI:0000:1b:00): 99999999999999",
        "NVRM: Xid (PCI:): 79,",
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034",
        "amdgpu",
        "amdgpu 0000:c3:00.0: ",
        "Out of memory: Killed process",
        "EXT4-fs (",
        "nvme : ",
        "I/O error, dev ",
        "é[",
        "AER: Uncorrected",
    ] {
        let _ = parse(bad);
    }
    assert_eq!(parse("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04"), None);
}
