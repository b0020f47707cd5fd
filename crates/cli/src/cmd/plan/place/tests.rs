use tutti_model::{GpuBench, GpuBenchFigures, GpuFacts, GpuIndex, GpuRates, Mig, Time};

use super::*;
use crate::show::nodes::tests::node;

const A100: &str = "NVIDIA A100-SXM4-80GB";

fn row(name: &str, model: &str, measured: Option<(&str, u64)>) -> NodeRow {
    let mut row = NodeRow { name: name.into(), state: NodeState::Ready, ..node() };
    row.facts.gpu_model = Some(model.into());
    row.gpu_bench = measured.map(|(gpu, tera)| GpuBench {
        at: Time(0),
        by: "root".into(),
        figures: GpuBenchFigures {
            job: "7".parse().unwrap(),
            gpu: gpu.into(),
            gpus: 8,
            matmul: Some(GpuRates { median: tera * 1_000_000_000_000, worst: 1 }),
            fp8: None,
            copy: None,
            shapes: Vec::new(),
            slow: Vec::new(),
        },
    });
    row
}

fn detail(name: &str, model: &str, mem: Bytes, mig: Option<Mig>) -> NodeDetail {
    let device = |index: u16| Gpu {
        index: GpuIndex(index),
        model: model.into(),
        uuid: format!("GPU-{index}"),
        mem,
        island: Some(0),
    };
    let facts = GpuFacts { name: name.into(), mig, ..GpuFacts::default() };
    NodeDetail {
        row: row("n1", model, None),
        sample: None,
        sample_age: None,
        devices: (0..8).map(device).collect(),
        hardware: Some(Box::new(Hardware { gpus: vec![facts; 8], ..Hardware::default() })),
    }
}

fn shaped(detail: &NodeDetail) -> Result<Cluster, Fail> {
    let mut notes = Vec::new();
    let alike = alike(std::slice::from_ref(&detail.row), &mut notes).unwrap();
    shape(&alike, detail, &mut notes)
}

#[test]
fn names_are_no_files() {
    for (on, file) in [
        ("16xdgx-h100", false),
        ("src", false),
        ("4xp5.48xlarge", false),
        ("lab.toml", true),
        ("./lab", true),
    ] {
        assert_eq!(is_file(on), file, "{on}");
    }
}

#[test]
fn memory_is_what_the_driver_offers() {
    let gpu = |mem: Bytes| {
        let gpu = shaped(&detail("NVIDIA L40S", "l40s", mem, None)).unwrap().gpu;
        (gpu.name, gpu.memory_gb)
    };
    assert_eq!(gpu(Bytes(46_068 << 20)), ("L40S".to_owned(), 44.9), "error correction takes some");
    assert_eq!(gpu(Bytes(0)), ("L40S".to_owned(), 48.0), "nobody knows it");
    let small = with_memory("a100", Bytes::gib(40)).unwrap();
    assert_eq!((small.name.as_str(), small.memory_gb), ("A100-SXM4-40GB", 40.0));
}

#[test]
fn instances_are_refused() {
    let mig = Mig {
        parent_uuid: "GPU-p".into(),
        parent: 0,
        gpu_instance: 1,
        compute_instance: 0,
        profile: "3g.40gb".into(),
    };
    let fail = shaped(&detail(A100, "a100-3g.40gb", Bytes::gib(40), Some(mig))).unwrap_err();
    let wanted = "n1 has MIG instances (a100-3g.40gb), and a plan is for whole GPUs";
    assert_eq!(fail.message, wanted);
}

#[test]
fn figures_of_gpus_that_are_gone_do_not_count() {
    let rows = [
        row("n1", "a100", Some((A100, 250))),
        row("n2", "a100", Some((A100, 240))),
        row("n3", "a100", Some(("Tesla V100-SXM2-32GB", 90))),
    ];
    let mut notes = Vec::new();
    let found = alike(&rows, &mut notes).unwrap();
    let [measured] = &found.measured[..] else { panic!("{:?}", found.measured) };
    assert_eq!((measured.gpu.as_str(), measured.matmul_tflops), (A100, Some(240.0)));
    assert_eq!(notes.len(), 1);
    assert!(notes[0].starts_with("1 node had other GPUs when measured"), "{}", notes[0]);
    assert!(!is_of_another(
        measured,
        &shaped(&detail(A100, "a100", Bytes::gib(80), None)).unwrap()
    ));
}
