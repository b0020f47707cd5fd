//! Alibaba's openb traces (cluster-trace-gpu-v2023), as used for fragmentation experiments.

use tutti_model::{Bytes, GpuRequest, JobSpec};

use super::{BadLine, Problem, Row, Table};

#[derive(Clone, Debug, PartialEq)]
pub struct OpenbNode {
    pub name: String,
    /// Thousandths of a CPU.
    pub cpu_milli: u32,
    pub mem: Bytes,
    pub gpus: u16,
    /// Lower case.
    pub model: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OpenbPod {
    pub name: String,
    pub gpus: u32,
    /// Of each GPU, in thousandths.
    pub gpu_milli: u32,
    pub spec: JobSpec,
}

impl OpenbPod {
    /// Its whole demand, in thousandths of a GPU.
    pub fn milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.gpu_milli)
    }
}

pub fn read_nodes(text: &str) -> Result<Vec<OpenbNode>, BadLine> {
    let table = Table::new(text, ',')?;
    table.need(&["sn", "cpu_milli", "memory_mib", "gpu", "model"])?;
    table.rows().map(|row| node(&row?)).collect()
}

fn node(row: &Row<'_>) -> Result<OpenbNode, BadLine> {
    let gpus = row.count("gpu")?;
    let too_many = |_| {
        let (column, value) = ("gpu".to_owned(), gpus.to_string());
        row.bad(Problem::TooLarge { column, value, max: u16::MAX.into() })
    };
    Ok(OpenbNode {
        name: row.text("sn").to_owned(),
        cpu_milli: row.count("cpu_milli")?,
        mem: mebibytes(row, "memory_mib")?,
        gpus: u16::try_from(gpus).map_err(too_many)?,
        model: row.text("model").to_ascii_lowercase(),
    })
}

fn mebibytes(row: &Row<'_>, column: &str) -> Result<Bytes, BadLine> {
    Ok(Bytes(u64::from(row.count(column)?) << 20))
}

/// Columns after `gpu_milli` may be missing, as in the multi-GPU variants.
pub fn read_pods(text: &str) -> Result<Vec<OpenbPod>, BadLine> {
    let table = Table::new(text, ',')?;
    table.need(&["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"])?;
    table.rows().map(|row| pod(&row?)).collect()
}

fn pod(row: &Row<'_>) -> Result<OpenbPod, BadLine> {
    let gpus = row.count("num_gpu")?;
    let gpu_milli = row.count("gpu_milli")?;
    let whole_or_one = gpu_milli <= 1000 && (gpus <= 1 || gpu_milli == 1000);
    if !whole_or_one || (gpus == 1 && gpu_milli == 0) {
        let (column, value) = ("gpu_milli".to_owned(), gpu_milli.to_string());
        let wanted = "1 to 1000, and 1000 with more than one GPU";
        return Err(row.bad(Problem::NotA { column, value, wanted }));
    }
    let models = row.text("gpu_spec").to_ascii_lowercase();
    let mut spec = JobSpec::shell("pod");
    spec.name = Some("pod".to_owned());
    spec.nodes = Some(1);
    spec.cpus_per_node = Some(row.count("cpu_milli")?.max(1));
    spec.mem_per_node = Some(mebibytes(row, "memory_mib")?);
    if gpus > 0 {
        let model = (!models.is_empty()).then_some(models);
        spec.gpus_per_node = Some(GpuRequest { model, count: gpus });
        spec.gpu_share = (gpu_milli < 1000).then(|| f64::from(gpu_milli) / 1000.0);
    }
    let gpu_milli = if gpus == 0 { 0 } else { gpu_milli };
    Ok(OpenbPod { name: row.text("name").to_owned(), gpus, gpu_milli, spec })
}

/// The order of arrival: one row number of the pod list per line, counted from 0.
pub fn read_order(text: &str, rows: usize) -> Result<Vec<usize>, BadLine> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    lines
        .map(|(i, l)| {
            let at = |problem| BadLine { line: i + 1, problem };
            let value = l.trim();
            let number =
                |_| Problem::NotANumber { column: "row".to_owned(), value: value.to_owned() };
            let row: usize = value.parse().map_err(number).map_err(at)?;
            if row >= rows { Err(at(Problem::NoSuchRow { row, rows })) } else { Ok(row) }
        })
        .collect()
}
