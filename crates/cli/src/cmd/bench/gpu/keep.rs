//! What a measurement says of the GPUs of each node, to be kept with it.

use std::collections::BTreeMap;

use tutti_model::{GpuBenchFigures, GpuRates, MatmulPrecision, MatmulRate, TaskId};
use tutti_planner::{MeasuredShape, Precision};

use super::report::{FIGURES, Report, Row, middle, shapes};

/// Slow things that are kept by name; the rest is counted.
const SLOW_KEPT: usize = 8;
const TERA: f64 = 1e12;
const GIGA: f64 = 1e9;

pub fn by_node(job: TaskId, report: &Report) -> BTreeMap<String, GpuBenchFigures> {
    let mut nodes: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in &report.gpus {
        nodes.entry(&row.node).or_default().push(row);
    }
    let of = |(node, rows): (&str, Vec<&Row>)| (node.to_owned(), figures(job, report, node, &rows));
    nodes.into_iter().map(of).collect()
}

/// A node whose GPUs are of several kinds is known by the one it has most of.
fn figures(job: TaskId, report: &Report, node: &str, rows: &[&Row]) -> GpuBenchFigures {
    let count = |name: &str| rows.iter().filter(|row| row.name == name).count();
    let names = rows.iter().map(|row| row.name.as_str());
    let gpu = names.max_by_key(|name| (count(name), std::cmp::Reverse(*name))).unwrap_or_default();
    let mine: Vec<&Row> = rows.iter().filter(|row| row.name == gpu).copied().collect();
    let [matmul, fp8, copy] = FIGURES.map(|(_, figure)| {
        let values: Vec<f64> = mine.iter().filter_map(|row| figure(row)).collect();
        let worst = values.iter().copied().fold(f64::INFINITY, f64::min);
        Some((middle(values.into_iter())?, worst))
    });
    let rates = |unit: f64| {
        move |(median, worst): (f64, f64)| GpuRates {
            median: (median * unit).round() as u64,
            worst: (worst * unit).round() as u64,
        }
    };
    GpuBenchFigures {
        job,
        gpu: gpu.to_owned(),
        gpus: mine.len() as u32,
        matmul: matmul.map(rates(TERA)),
        fp8: fp8.map(rates(TERA)),
        copy: copy.map(rates(GIGA)),
        shapes: shapes(&mine).iter().filter_map(rate).collect(),
        slow: slow(report, node),
    }
}

fn rate(shape: &MeasuredShape) -> Option<MatmulRate> {
    let precision = match shape.precision {
        Precision::Bf16 => MatmulPrecision::Bf16,
        Precision::Fp8 => MatmulPrecision::Fp8,
        // Nobody measures those.
        Precision::Fp16 | Precision::Mxfp8 | Precision::Nvfp4 => return None,
    };
    let MeasuredShape { m, n, k, tflops, .. } = *shape;
    Some(MatmulRate { precision, m, n, k, rate: (tflops * TERA).round() as u64 })
}

fn slow(report: &Report, node: &str) -> Vec<String> {
    let mine: Vec<_> = report.slow.iter().filter(|slow| slow.node == node).collect();
    let mut words: Vec<String> = mine.iter().take(SLOW_KEPT).map(|slow| slow.words()).collect();
    if mine.len() > SLOW_KEPT {
        words.push(format!("{} more are slow", mine.len() - SLOW_KEPT));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::report::testing::{H200, report};
    use super::*;

    #[test]
    fn each_node_keeps_the_median_and_the_worst_of_its_gpus() {
        let kept = by_node("7".parse().unwrap(), &report([700, 650, 702, 704]));
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["n1", "n2"]);
        let n1 = &kept["n1"];
        assert_eq!((n1.gpu.as_str(), n1.gpus), (H200, 2));
        let tera = |n: u64| n * 1_000_000_000_000;
        assert_eq!(n1.matmul, Some(GpuRates { median: tera(700), worst: tera(650) }));
        assert_eq!(n1.fp8.unwrap().worst, tera(1200));
        assert_eq!(n1.copy.unwrap().median, 4_100_000_000_000);
        assert_eq!((n1.shapes.len(), n1.shapes[0].rate), (3, tera(700)));
        assert_eq!(n1.slow, ["GPU 1: bf16 is 7 % slower than its like"]);
        assert!(kept["n2"].slow.is_empty());
    }
}
