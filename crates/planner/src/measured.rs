//! What was measured on real GPUs, to be planned with instead of what a data sheet promises.

use serde::{Deserialize, Serialize};

use crate::{Cluster, Precision};

/// A file that `tutti bench gpu --out` writes, of one kind of GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The kind of GPU, by the driver's name or the catalogue's.
    pub gpu: String,
    /// The best bf16 GEMM. Not there: cuBLAS was not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matmul_tflops: Option<f64>,
    /// Bytes that a copy within the GPU reads and writes, 10⁹ a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_gbps: Option<f64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shapes: Vec<MeasuredShape>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<MeasuredLinks>,
}

/// The product of an `m × k` and a `k × n` matrix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredShape {
    pub precision: Precision,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub tflops: f64,
}

/// Bus bandwidth of all-reduces, GB/s per GPU, as NCCL's tests print it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLinks {
    /// Inside of an island.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub island_busbw: Option<f64>,
    /// Between nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_busbw: Option<f64>,
}

#[derive(Debug, thiserror::Error)]
pub enum BadMeasured {
    #[error("no file of tutti bench gpu --out: {0}")]
    Json(#[from] serde_json::Error),
    #[error("gpu: '{0}' is no name of a GPU: write one such as H100-SXM5-80GB")]
    Gpu(String),
    #[error("{what}: {value} is not possible: it must be above 0 and at most {most}")]
    Figure { what: &'static str, value: f64, most: f64 },
    #[error("shapes: {count} are too many: at most {SHAPES_MAX} are read")]
    Shapes { count: usize },
    #[error("nothing was measured: neither matmul_tflops, copy_gbps nor links are there")]
    Nothing,
}

/// Far above what anything does, so that a slip of the unit is noticed.
const TFLOPS_MAX: f64 = 100_000.0;
const GBPS_MAX: f64 = 100_000.0;
const SIDE_MAX: f64 = 10_000_000.0;
const SHAPES_MAX: usize = 64;
const NAME_CHARS_MAX: usize = 100;

impl Measured {
    pub fn from_json(text: &str) -> Result<Measured, BadMeasured> {
        let measured: Measured = serde_json::from_str(text)?;
        measured.check()?;
        Ok(measured)
    }

    /// Takes the place of what the cluster was believed to do. What was not measured stays.
    pub fn apply(&self, cluster: &mut Cluster) {
        let links = self.links.unwrap_or_default();
        let places = [
            (&mut cluster.gpu.matmul_tflops, self.matmul_tflops),
            (&mut cluster.gpu.copy_gbps, self.copy_gbps),
            (&mut cluster.island_busbw, links.island_busbw),
            (&mut cluster.nic_busbw, links.nic_busbw),
        ];
        for (place, measured) in places {
            *place = measured.or(*place);
        }
    }

    fn check(&self) -> Result<(), BadMeasured> {
        let odd = self.gpu.trim().is_empty()
            || self.gpu.chars().count() > NAME_CHARS_MAX
            || self.gpu.chars().any(char::is_control);
        if odd {
            return Err(BadMeasured::Gpu(self.gpu.chars().take(NAME_CHARS_MAX).collect()));
        }
        let links = self.links.unwrap_or_default();
        let figures = [
            ("matmul_tflops", self.matmul_tflops, TFLOPS_MAX),
            ("copy_gbps", self.copy_gbps, GBPS_MAX),
            ("island_busbw", links.island_busbw, GBPS_MAX),
            ("nic_busbw", links.nic_busbw, GBPS_MAX),
        ];
        if figures.iter().all(|(_, value, _)| value.is_none()) {
            return Err(BadMeasured::Nothing);
        }
        for (what, value, most) in figures {
            value.map_or(Ok(()), |value| possible(what, value, most))?;
        }
        if self.shapes.len() > SHAPES_MAX {
            return Err(BadMeasured::Shapes { count: self.shapes.len() });
        }
        self.shapes.iter().try_for_each(MeasuredShape::check)
    }
}

impl MeasuredShape {
    fn check(&self) -> Result<(), BadMeasured> {
        for (what, side) in [("m", self.m), ("n", self.n), ("k", self.k)] {
            possible(what, f64::from(side), SIDE_MAX)?;
        }
        possible("tflops", self.tflops, TFLOPS_MAX)
    }
}

fn possible(what: &'static str, value: f64, most: f64) -> Result<(), BadMeasured> {
    // Not a number is not above 0 either.
    match value > 0.0 && value <= most {
        true => Ok(()),
        false => Err(BadMeasured::Figure { what, value, most }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gpu;

    const FILE: &str = r#"{
        "gpu": "NVIDIA H200",
        "matmul_tflops": 718.5,
        "copy_gbps": 4120.0,
        "shapes": [{"precision": "bf16", "m": 8192, "n": 8192, "k": 8192, "tflops": 718.5}]
    }"#;

    fn cluster() -> Cluster {
        let gpu = Gpu {
            name: "H200-SXM-141GB".into(),
            memory_gb: 141.0,
            hbm_gbps: 4800.0,
            bf16_tflops: 989.5,
            fp8_tflops: None,
            fp4_tflops: None,
            matmul_tflops: None,
            copy_gbps: Some(4000.0),
        };
        Cluster {
            name: "here".into(),
            gpu,
            nodes: 2,
            gpus_per_node: 8,
            island: 8,
            island_gbps: 450.0,
            pcie_gbps: 64.0,
            nic_gbps: 400.0,
            island_busbw: Some(360.0),
            nic_busbw: None,
            price_per_gpu_hour: None,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let measured = Measured::from_json(FILE).unwrap();
        assert_eq!(measured.shapes[0].precision, Precision::Bf16);
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(Measured::from_json(&text).unwrap(), measured);
    }

    #[test]
    fn only_what_was_measured_is_replaced() {
        let mut cluster = cluster();
        Measured { copy_gbps: None, ..Measured::from_json(FILE).unwrap() }.apply(&mut cluster);
        assert_eq!((cluster.gpu.matmul_tflops, cluster.gpu.copy_gbps), (Some(718.5), Some(4000.0)));
        let links = Some(MeasuredLinks { island_busbw: None, nic_busbw: Some(42.0) });
        Measured { gpu: "x".into(), links, ..Measured::default() }.apply(&mut cluster);
        assert_eq!((cluster.island_busbw, cluster.nic_busbw), (Some(360.0), Some(42.0)));
        assert_eq!(cluster.gpu.matmul_tflops, Some(718.5));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_figure() {
        let many: Vec<String> = (0..65)
            .map(|_| r#"{"precision":"fp8","m":1,"n":1,"k":1,"tflops":1}"#.to_owned())
            .collect();
        for (text, wanted) in [
            (r#"{"gpu": "x", "copy_gbps": 0}"#.to_owned(), "copy_gbps: 0 is not possible"),
            (r#"{"gpu": "x", "matmul_tflops": -3}"#.to_owned(), "matmul_tflops: -3"),
            (r#"{"gpu": "x", "matmul_tflops": 7e14}"#.to_owned(), "at most 100000"),
            (r#"{"gpu": " ", "copy_gbps": 1}"#.to_owned(), "gpu: ' ' is no name"),
            (r#"{"gpu": "x"}"#.to_owned(), "nothing was measured"),
            (r#"{"gpu": "x", "copy": 1}"#.to_owned(), "unknown field"),
            (r#"{"gpu": "x", "links": {"nic_busbw": 0}}"#.to_owned(), "nic_busbw: 0"),
            (
                format!(r#"{{"gpu": "x", "copy_gbps": 1, "shapes": [{}]}}"#, many.join(",")),
                "65 are too many",
            ),
            (
                r#"{"gpu": "x", "copy_gbps": 1,
                   "shapes": [{"precision": "bf16", "m": 0, "n": 1, "k": 1, "tflops": 1}]}"#
                    .to_owned(),
                "m: 0 is not possible",
            ),
        ] {
            let error = Measured::from_json(&text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
