//! Figures for `tutti plan`: of a report, of the running cluster, and as a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use tutti_gpu::short_model;
use tutti_model::{GpuBenchFigures, GpuRates};
use tutti_planner::Measured;
use tutti_wire::api::NodeRow;

use super::report::{Report, giga, tera};
use crate::fail::Fail;

/// One for each kind of GPU.
pub fn of_report(report: &Report) -> Vec<Measured> {
    let of = |kind: &super::report::Kind| Measured {
        gpu: kind.gpu.clone(),
        matmul_tflops: kind.matmul_tflops,
        copy_gbps: kind.copy_gbps,
        shapes: kind.shapes.clone(),
        links: None,
    };
    report.kinds.iter().map(of).collect()
}

/// What was last measured on nodes of a running cluster, one for each kind of GPU. A node counts by the
/// median of its GPUs: one bad GPU is named as slow, and a job may be given others. Of the nodes the
/// slowest counts: a gang is as fast as that. Empty: nobody has measured.
pub fn of_cluster<'a>(nodes: impl IntoIterator<Item = &'a NodeRow>) -> Vec<Measured> {
    let mut kinds: BTreeMap<&str, Vec<&GpuBenchFigures>> = BTreeMap::new();
    for node in nodes.into_iter().filter(|node| !is_outdated(node)) {
        if let Some(bench) = &node.gpu_bench {
            kinds.entry(&bench.figures.gpu).or_default().push(&bench.figures);
        }
    }
    let of = |(gpu, nodes): (&str, Vec<&GpuBenchFigures>)| {
        let slowest = |figure: fn(&GpuBenchFigures) -> Option<GpuRates>| {
            let medians = nodes.iter().filter_map(|figures| figure(figures)).map(|r| r.median);
            medians.filter(|rate| *rate > 0).min()
        };
        Measured {
            gpu: gpu.to_owned(),
            matmul_tflops: slowest(|f| f.matmul).map(tera),
            copy_gbps: slowest(|f| f.copy).map(giga),
            shapes: Vec::new(),
            links: None,
        }
    };
    kinds.into_iter().map(of).collect()
}

/// It has other GPUs than when it was measured.
pub fn is_outdated(node: &NodeRow) -> bool {
    let then = node.gpu_bench.as_ref().map(|bench| short_model(&bench.figures.gpu));
    then.is_some_and(|then| node.facts.gpu_model.as_ref() != Some(&then))
}

/// Whether it can be, without a trace.
pub fn writable(file: &Path) -> Result<(), Fail> {
    let is_new = !file.exists();
    let can_not = |e: std::io::Error| Fail::new(format!("--out: {}: {e}", file.display()));
    File::options().append(true).create(true).open(file).map_err(can_not)?;
    if is_new { std::fs::remove_file(file).map_err(can_not) } else { Ok(()) }
}

/// A file holds one kind of GPU.
pub fn write(file: &Path, measured: &[Measured]) -> Result<(), Fail> {
    let one = match measured {
        [one] => one,
        [] => return Err(Fail::new("--out: nothing was measured: run tutti bench gpu first")),
        several => {
            let names: Vec<&str> = several.iter().map(|m| m.gpu.as_str()).collect();
            let message = format!("--out holds one kind of GPU, and here are {}", names.join(", "));
            return Err(Fail::usage(message).hint("-G h100:8 measures one kind alone"));
        }
    };
    let can_not = |e: &dyn std::fmt::Display| Fail::new(format!("{}: {e}", file.display()));
    let text = serde_json::to_string_pretty(one).map_err(|e| can_not(&e))?;
    std::fs::write(file, text + "\n").map_err(|e| can_not(&e))
}

#[cfg(test)]
mod tests {
    use super::super::keep::by_node;
    use super::super::report::testing::{H200, report};
    use super::*;
    use crate::show::nodes::tests::node;
    use tutti_model::{GpuBench, Time};

    #[test]
    fn what_is_written_is_what_a_plan_reads() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("here.json");
        let measured = of_report(&report([700, 702, 698, 701]));
        write(&file, &measured).unwrap();
        let read = Measured::from_json(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(read, measured[0]);
        assert_eq!((read.gpu.as_str(), read.matmul_tflops), (H200, Some(701.0)));
        assert_eq!(read.shapes.len(), 3);
        assert!(write(&file, &[]).is_err());
        let two = [read.clone(), Measured { gpu: "NVIDIA A100".into(), ..read }];
        let fail = write(&file, &two).unwrap_err();
        assert_eq!(fail.exit, crate::fail::USAGE);
        assert!(fail.message.contains("NVIDIA H200, NVIDIA A100"), "{}", fail.message);
    }

    #[test]
    fn what_can_not_be_written_is_known_before_anything_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("here.json");
        writable(&file).unwrap();
        assert!(!file.exists(), "nothing was measured yet");
        std::fs::write(&file, "before").unwrap();
        writable(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
        let fail = writable(&dir.path().join("none/here.json")).unwrap_err();
        assert!(fail.message.starts_with("--out: "), "{}", fail.message);
        assert!(writable(dir.path()).is_err(), "a directory");
    }

    #[test]
    fn a_cluster_is_as_fast_as_its_slowest_node() {
        let kept = by_node("7".parse().unwrap(), &report([700, 702, 600, 602]));
        let row = |name: &str, model: &str| {
            let bench = GpuBench { at: Time(0), by: "root".into(), figures: kept[name].clone() };
            let mut row = NodeRow { name: name.into(), gpu_bench: Some(bench), ..node() };
            row.facts.gpu_model = Some(model.to_owned());
            row
        };
        let both = [row("n1", "h200"), row("n2", "h200"), node()];
        let [measured] = &of_cluster(&both)[..] else { panic!("one kind") };
        assert_eq!((measured.gpu.as_str(), measured.matmul_tflops), (H200, Some(602.0)));
        assert_eq!(measured.copy_gbps, Some(4100.0));
        let changed = [row("n1", "h200"), row("n2", "h100")];
        assert_eq!(of_cluster(&changed)[0].matmul_tflops, Some(702.0), "n2 has others now");
        assert!(is_outdated(&changed[1]) && !is_outdated(&changed[0]));
        assert!(!is_outdated(&node()), "never measured");
        assert!(of_cluster(&changed[1..]).is_empty());
    }
}
