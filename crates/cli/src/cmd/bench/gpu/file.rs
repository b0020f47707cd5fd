//! Figures for `tutti plan`: of a report, of the running cluster, and as a file.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use tutti_model::{GpuBenchFigures, GpuRates};
use tutti_planner::Measured;
use tutti_wire::api::NodeRow;

use super::report::{Report, giga, middle, tera};
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

/// What was last measured on the nodes of a running cluster, one for each kind of GPU: the median over
/// its GPUs. Empty: nobody has measured.
pub fn of_cluster(nodes: &[NodeRow]) -> Vec<Measured> {
    let mut kinds: BTreeMap<&str, Vec<&GpuBenchFigures>> = BTreeMap::new();
    for bench in nodes.iter().filter_map(|node| node.gpu_bench.as_ref()) {
        kinds.entry(&bench.figures.gpu).or_default().push(&bench.figures);
    }
    let of = |(gpu, nodes): (&str, Vec<&GpuBenchFigures>)| {
        // Each GPU counts, so a node counts as often as it has some.
        let over = |figure: fn(&GpuBenchFigures) -> Option<GpuRates>| {
            let each = |f: &&GpuBenchFigures| Some((figure(f)?.median as f64, f.gpus as usize));
            let values = nodes.iter().filter_map(each);
            middle(values.flat_map(|(rate, gpus)| std::iter::repeat_n(rate, gpus)))
        };
        Measured {
            gpu: gpu.to_owned(),
            matmul_tflops: over(|f| f.matmul).map(|rate| tera(rate as u64)),
            copy_gbps: over(|f| f.copy).map(|rate| giga(rate as u64)),
            shapes: Vec::new(),
            links: None,
        }
    };
    kinds.into_iter().map(of).collect()
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
    fn a_cluster_is_the_median_over_its_gpus() {
        let kept = by_node("7".parse().unwrap(), &report([700, 702, 600, 602]));
        let row = |name: &str, gpus: u32| {
            let mut figures = kept[name].clone();
            figures.gpus = gpus;
            let bench = GpuBench { at: Time(0), by: "root".into(), figures };
            NodeRow { name: name.into(), gpu_bench: Some(bench), ..node() }
        };
        let of = |one, two| of_cluster(&[row("n1", one), row("n2", two), node()]);
        let [measured] = &of(8, 2)[..] else { panic!("one kind") };
        assert_eq!((measured.gpu.as_str(), measured.matmul_tflops), (H200, Some(702.0)));
        assert_eq!(measured.copy_gbps, Some(4100.0));
        assert_eq!(of(1, 8)[0].matmul_tflops, Some(602.0), "most of the GPUs are in n2");
        assert!(of_cluster(&[node()]).is_empty());
    }
}
