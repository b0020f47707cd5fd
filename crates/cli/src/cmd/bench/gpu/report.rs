//! What a measurement of GPUs comes to.

mod table;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tutti_gpu::active::numbers::median;
use tutti_gpu::speed::Speed;
use tutti_model::{Gpu, MatmulPrecision, MatmulRate, TaskId};
use tutti_planner::{MeasuredShape, Precision};

use super::rank::Found;
pub use table::number;

/// A GPU that does so much less than its like is slow: equal cards differ by a percent or two.
const SLOW_PERCENT: f64 = 5.0;

#[derive(Debug, Serialize)]
pub struct Report {
    /// None: without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<TaskId>,
    pub kinds: Vec<Kind>,
    pub gpus: Vec<Row>,
    /// The worst first.
    pub slow: Vec<Slow>,
    pub problems: Vec<Problem>,
}

/// GPUs with the same name: medians over them, and what the data sheet promises.
#[derive(Debug, Serialize)]
pub struct Kind {
    pub gpu: String,
    pub gpus: usize,
    pub matmul_tflops: Option<f64>,
    pub matmul_peak: Option<f64>,
    pub fp8_tflops: Option<f64>,
    pub fp8_peak: Option<f64>,
    pub copy_gbps: Option<f64>,
    pub copy_peak: Option<f64>,
    pub shapes: Vec<MeasuredShape>,
}

#[derive(Debug, Serialize)]
pub struct Row {
    pub node: String,
    /// Its number on the node.
    pub gpu: u16,
    pub uuid: String,
    pub name: String,
    /// At the shape that it is best at.
    pub matmul_tflops: Option<f64>,
    pub fp8_tflops: Option<f64>,
    pub copy_gbps: Option<f64>,
    pub shapes: Vec<MeasuredShape>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Slow {
    pub node: String,
    pub gpu: u16,
    /// `bf16`, `fp8` or `copy`.
    pub what: &'static str,
    /// Below the median of its kind.
    pub percent: f64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub node: String,
    /// None: of the whole node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u16>,
    pub why: String,
}

/// One of the figures of a GPU.
type Figure = fn(&Row) -> Option<f64>;

pub const FIGURES: [(&str, Figure); 3] = [
    ("bf16", |row| row.matmul_tflops),
    ("fp8", |row| row.fp8_tflops),
    ("copy", |row| row.copy_gbps),
];

/// What the data sheet promises of a GPU with this name.
pub fn catalogue(name: &str) -> Option<tutti_planner::Gpu> {
    tutti_planner::catalogue::gpu(name)
}

impl Report {
    /// `devices`: the GPUs of each node, to name them as everybody does; the driver's order where they
    /// are not known.
    pub fn new(
        job: Option<TaskId>,
        found: &[Found],
        devices: &BTreeMap<String, Vec<Gpu>>,
        peak: &dyn Fn(&str) -> Option<tutti_planner::Gpu>,
    ) -> Report {
        let (mut gpus, mut problems): (Vec<Row>, Vec<Problem>) = Default::default();
        let mut peaks: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        for node in found {
            problems.extend(node.problem.iter().map(|why| Problem {
                node: node.node.clone(),
                gpu: None,
                why: why.clone(),
            }));
            for (at, speed) in node.gpus.iter().enumerate() {
                let mut known = devices.get(&node.node).into_iter().flatten();
                let gpu = known.find(|gpu| gpu.uuid == speed.uuid);
                let gpu = gpu.map_or(at as u16, |gpu| gpu.index.0);
                let of = |why: &String| Problem {
                    node: node.node.clone(),
                    gpu: Some(gpu),
                    why: why.clone(),
                };
                problems.extend(speed.problems.iter().map(of));
                peaks.entry(&speed.name).or_insert(speed.copy_peak);
                gpus.extend(row(&node.node, gpu, speed));
            }
        }
        let names: BTreeSet<String> = gpus.iter().map(|row| row.name.clone()).collect();
        let kinds = names
            .iter()
            .map(|name| kind(name, &gpus, peak(name), peaks.get(name.as_str()).copied().flatten()));
        let kinds = kinds.collect();
        let slow = slow(&gpus);
        Report { job, kinds, gpus, slow, problems }
    }

    /// All was measured, and nothing is slow.
    pub fn all_is_well(&self) -> bool {
        self.slow.is_empty() && self.problems.is_empty()
    }
}

impl Slow {
    /// As it is said of its node.
    pub fn words(&self) -> String {
        format!("GPU {}: {} is {:.0} % slower than its like", self.gpu, self.what, self.percent)
    }
}

/// None if nothing could be measured.
fn row(node: &str, gpu: u16, speed: &Speed) -> Option<Row> {
    if speed.copy.is_none() && speed.products.is_empty() {
        return None;
    }
    Some(Row {
        node: node.to_owned(),
        gpu,
        uuid: speed.uuid.clone(),
        name: speed.name.clone(),
        matmul_tflops: speed.best(MatmulPrecision::Bf16).map(tera),
        fp8_tflops: speed.best(MatmulPrecision::Fp8).map(tera),
        copy_gbps: speed.copy.map(giga),
        shapes: speed.products.iter().map(shape).collect(),
    })
}

fn kind(
    name: &str,
    gpus: &[Row],
    peak: Option<tutti_planner::Gpu>,
    copy_peak: Option<u64>,
) -> Kind {
    let mine: Vec<&Row> = gpus.iter().filter(|row| row.name == name).collect();
    let [matmul_tflops, fp8_tflops, copy_gbps] =
        FIGURES.map(|(_, figure)| middle(mine.iter().filter_map(|row| figure(row))));
    Kind {
        gpu: name.to_owned(),
        gpus: mine.len(),
        matmul_tflops,
        matmul_peak: peak.as_ref().map(|gpu| gpu.bf16_tflops),
        fp8_tflops,
        fp8_peak: peak.as_ref().and_then(|gpu| gpu.fp8_tflops),
        copy_gbps,
        // What the driver says of clock and width is as good.
        copy_peak: peak.map(|gpu| gpu.hbm_gbps).or(copy_peak.map(giga)),
        shapes: shapes(&mine),
    }
}

/// The median of each shape, in the order in which they were measured.
pub fn shapes(rows: &[&Row]) -> Vec<MeasuredShape> {
    let mut medians: Vec<MeasuredShape> = Vec::new();
    let key = |s: &MeasuredShape| (s.precision, s.m, s.n, s.k);
    for shape in rows.iter().flat_map(|row| &row.shapes) {
        if medians.iter().any(|known| key(known) == key(shape)) {
            continue;
        }
        let same = rows.iter().flat_map(|row| &row.shapes).filter(|s| key(s) == key(shape));
        let tflops = middle(same.map(|s| s.tflops)).unwrap_or(shape.tflops);
        medians.push(MeasuredShape { tflops, ..*shape });
    }
    medians
}

/// What is slower than the median of its kind.
fn slow(gpus: &[Row]) -> Vec<Slow> {
    let mut kinds: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in gpus {
        kinds.entry(&row.name).or_default().push(row);
    }
    let mut all = Vec::new();
    for (what, figure) in FIGURES {
        for alike in kinds.values() {
            let Some(like) = middle(alike.iter().filter_map(|row| figure(row))) else { continue };
            for row in alike {
                let percent = figure(row).map_or(0.0, |value| (1.0 - value / like) * 100.0);
                if percent > SLOW_PERCENT {
                    all.push(Slow { node: row.node.clone(), gpu: row.gpu, what, percent });
                }
            }
        }
    }
    all.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    all
}

pub fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(&mut values))
}

fn shape(rate: &MatmulRate) -> MeasuredShape {
    MeasuredShape {
        precision: match rate.precision {
            MatmulPrecision::Bf16 => Precision::Bf16,
            MatmulPrecision::Fp8 => Precision::Fp8,
        },
        m: rate.m,
        n: rate.n,
        k: rate.k,
        tflops: tera(rate.rate),
    }
}

/// 10¹² a second; more digits than these are chance.
pub fn tera(rate: u64) -> f64 {
    (rate as f64 / 1e10).round() / 1e2
}

/// 10⁹ a second.
pub fn giga(rate: u64) -> f64 {
    (rate as f64 / 1e8).round() / 1e1
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    pub const H200: &str = "NVIDIA H200";

    fn speed(at: usize, tflops: u64) -> Speed {
        use MatmulPrecision::{Bf16, Fp8};
        let product = |(precision, side, rate): (MatmulPrecision, u32, u64)| MatmulRate {
            precision,
            m: side,
            n: side,
            k: side,
            rate: rate * 1_000_000_000_000,
        };
        let products = [(Bf16, 8192, tflops), (Bf16, 2048, tflops - 200), (Fp8, 8192, 1200)];
        Speed {
            uuid: format!("GPU-{at}"),
            name: H200.to_owned(),
            copy: Some(4_100_000_000_000),
            copy_peak: Some(4_900_000_000_000),
            products: products.map(product).to_vec(),
            problems: Vec::new(),
        }
    }

    fn peak(name: &str) -> Option<tutti_planner::Gpu> {
        assert_eq!(name, H200);
        Some(tutti_planner::Gpu {
            name: "H200-SXM-141GB".into(),
            memory_gb: 141.0,
            hbm_gbps: 4800.0,
            bf16_tflops: 989.5,
            fp8_tflops: Some(1979.0),
            fp4_tflops: None,
            matmul_tflops: None,
            copy_gbps: None,
        })
    }

    /// Two nodes with two GPUs each that do so much.
    pub fn report(tflops: [u64; 4]) -> Report {
        let node = |at: usize| Found {
            node: format!("n{}", at + 1),
            gpus: (0..2).map(|i| speed(i, tflops[2 * at + i])).collect(),
            problem: None,
        };
        Report::new(Some("7".parse().unwrap()), &[node(0), node(1)], &BTreeMap::new(), &peak)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{H200, report};
    use super::*;
    use crate::style::Style;
    use tutti_model::{Bytes, GpuIndex};

    #[test]
    fn kinds_stand_beside_their_peak_and_all_is_clear() {
        let report = report([700, 702, 698, 701]);
        let kind = &report.kinds[0];
        assert_eq!((kind.gpus, kind.matmul_tflops, kind.copy_gbps), (4, Some(701.0), Some(4100.0)));
        assert_eq!(kind.shapes.len(), 3);
        assert_eq!(kind.shapes[1].tflops, 501.0, "the median of the small ones");
        let text = report.text(Style::PLAIN, None);
        for word in ["701.0 of 990 (71 %)", "1200.0 of 1979 (61 %)", "4100.0 of 4800 (85 %)"] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
        for word in ["2048 × 2048 × 2048", "n2", "no GPU is more than 5 % slower"] {
            assert!(text.contains(word), "no {word} in\n{text}");
        }
    }

    #[test]
    fn a_gpu_that_is_slower_than_its_like_is_named() {
        let report = report([700, 650, 700, 667]);
        let [slow] = &report.slow[..] else { panic!("{:?}", report.slow) };
        assert_eq!((slow.node.as_str(), slow.gpu, slow.what), ("n1", 1, "bf16"));
        assert_eq!(slow.words(), "GPU 1: bf16 is 7 % slower than its like");
        assert!(report.text(Style::PLAIN, None).contains("7.1 %"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["slow"][0]["gpu"], 1);
        assert_eq!(json["kinds"][0]["gpu"], H200);
    }

    #[test]
    fn of_two_gpus_the_slower_one_is_slow() {
        let all = report([700, 600, 700, 700]);
        let two: Vec<Row> = all.gpus.into_iter().filter(|row| row.node == "n1").collect();
        assert_eq!(slow(&two).len(), 1);
        assert!(slow(&two[..1]).is_empty(), "alone it has no like");
    }

    #[test]
    fn gpus_have_their_numbers_on_the_node_and_problems_are_told_once() {
        let speed = |uuid: &str| Speed {
            uuid: uuid.into(),
            name: H200.into(),
            copy: Some(1_000_000_000),
            problems: vec!["no matrices are multiplied".into()],
            ..Speed::default()
        };
        let device = |index: u16| Gpu {
            index: GpuIndex(index),
            model: "h200".into(),
            uuid: format!("GPU-{index}"),
            mem: Bytes::gib(141),
            island: None,
        };
        let found = [
            Found { node: "n1".into(), gpus: vec![speed("GPU-5"), speed("GPU-3")], problem: None },
            Found { node: "n2".into(), problem: Some("n2: no driver".into()), ..Found::default() },
        ];
        let devices = BTreeMap::from([("n1".to_owned(), (0..8).map(device).collect())]);
        let report = Report::new(None, &found, &devices, &|_| None);
        assert_eq!(report.gpus.iter().map(|g| g.gpu).collect::<Vec<_>>(), [5, 3]);
        assert_eq!(report.problem_lines(), "n1 GPU 5,3: no matrices are multiplied\nn2: no driver");
        assert_eq!(report.kinds[0].matmul_tflops, None);
        assert!(report.text(Style::PLAIN, None).contains("1.0"), "memory is still told");
    }
}
