//! A cluster that its owner describes.

use toml::{Table, Value};

use super::{CatalogueError, MOST_GPUS, lenient, machines};
use crate::near::{count, near};
use crate::words::thousands;
use crate::{Cluster, Gpu};

const KEYS: &[&str] = &[
    "name",
    "gpu",
    "nodes",
    "gpus_per_node",
    "island",
    "island_gbps",
    "pcie_gbps",
    "nic_gbps",
    "island_busbw",
    "nic_busbw",
    "price_per_gpu_hour",
];
const GPU_KEYS: &[&str] = &[
    "name",
    "memory_gb",
    "hbm_gbps",
    "bf16_tflops",
    "fp8_tflops",
    "fp4_tflops",
    "matmul_tflops",
    "copy_gbps",
];
const RATE: (f64, f64) = (1e-3, 1e6);

/// A cluster file: `nodes`, and `gpu` by name, or as a table of its figures. What is left out is as the catalogue has it.
pub fn from_toml(text: &str) -> Result<Cluster, CatalogueError> {
    let table: Table = text
        .parse()
        .map_err(|e: toml::de::Error| CatalogueError::NotToml(e.message().to_owned()))?;
    let file = Section { table: &table, at: "", keys: KEYS };
    file.known()?;
    let (gpu, usual) = gpu(&table)?;
    let nodes = file.whole("nodes", MOST_GPUS)?;
    let nodes =
        nodes.ok_or(CatalogueError::Missing { key: "nodes", why: ", how many there are" })?;
    let per_node = match (file.whole("gpus_per_node", 1024)?, &usual) {
        (Some(n), _) => n,
        (None, Some(u)) => u.gpus_per_node,
        (None, None) => return Err(missing("gpus_per_node")),
    };
    if u64::from(nodes) * u64::from(per_node) > MOST_GPUS {
        let value = format!("{nodes} nodes of {per_node} GPUs");
        return Err(file.wrong(
            "nodes",
            value,
            format!("{} or fewer in all", count(MOST_GPUS, "GPU")),
        ));
    }
    let island = file.whole("island", MOST_GPUS)?;
    let usual_of = |pick: fn(&Cluster) -> f64| usual.as_ref().map(pick);
    Ok(Cluster {
        name: file.text("name")?.unwrap_or_else(|| gpu.name.clone()),
        nodes,
        gpus_per_node: per_node,
        island: island.or(usual.as_ref().map(|u| u.island)).unwrap_or(1).min(nodes * per_node),
        island_gbps: file.rate("island_gbps")?.or(usual_of(|u| u.island_gbps)).unwrap_or(26.0),
        pcie_gbps: file.rate("pcie_gbps")?.or(usual_of(|u| u.pcie_gbps)).unwrap_or(26.0),
        nic_gbps: match file.rate("nic_gbps")?.or(usual_of(|u| u.nic_gbps)) {
            Some(gbps) => gbps,
            None => return Err(missing("nic_gbps")),
        },
        island_busbw: file.rate("island_busbw")?,
        nic_busbw: file.rate("nic_busbw")?,
        price_per_gpu_hour: match file.number("price_per_gpu_hour", (0.0, 1e4))? {
            None => machines::gpu_price(&gpu.name).map(|p| p.dollars),
            price => price,
        },
        gpu,
    })
}

fn missing(key: &'static str) -> CatalogueError {
    CatalogueError::Missing { key, why: ", and the catalogue does not know this GPU" }
}

/// The GPU, and the usual machine around it where the catalogue knows it.
fn gpu(table: &Table) -> Result<(Gpu, Option<Cluster>), CatalogueError> {
    let why = ": the name of a GPU such as \"h100\", or a table of its figures";
    match table.get("gpu") {
        None => Err(CatalogueError::Missing { key: "gpu", why }),
        Some(Value::String(name)) => match lenient::kind(name, None) {
            Some(kind) => Ok((kind.gpu(), Some(kind.cluster(1)))),
            None => {
                let names = super::gpus::kinds().iter().map(|k| k.name);
                let near = near(name, names).map(str::to_owned);
                Err(CatalogueError::Unknown { name: name.clone(), near })
            }
        },
        Some(Value::Table(table)) => figures(table),
        Some(other) => Err(CatalogueError::Value {
            key: "gpu".into(),
            value: shown(other),
            must: "a name or a table".into(),
        }),
    }
}

/// Figures that are given, over those of the catalogue where the name is known there.
fn figures(table: &Table) -> Result<(Gpu, Option<Cluster>), CatalogueError> {
    let part = Section { table, at: "gpu.", keys: GPU_KEYS };
    part.known()?;
    let name = part.text("name")?;
    let name = name.ok_or(CatalogueError::Missing { key: "gpu.name", why: "" })?;
    let memory = part.number("memory_gb", (1.0, 1e5))?;
    let kind = lenient::kind(&name, memory);
    let usual = kind.map(|k| k.gpu());
    let figure = |key: &'static str, pick: fn(&Gpu) -> f64| match part.rate(key)? {
        Some(given) => Ok(given),
        None => usual.as_ref().map(pick).ok_or(missing(key)),
    };
    let gpu = Gpu {
        memory_gb: memory.or(usual.as_ref().map(|u| u.memory_gb)).ok_or(missing("memory_gb"))?,
        hbm_gbps: figure("hbm_gbps", |u| u.hbm_gbps)?,
        bf16_tflops: figure("bf16_tflops", |u| u.bf16_tflops)?,
        fp8_tflops: part.rate("fp8_tflops")?.or(usual.as_ref().and_then(|u| u.fp8_tflops)),
        fp4_tflops: part.rate("fp4_tflops")?.or(usual.as_ref().and_then(|u| u.fp4_tflops)),
        matmul_tflops: part.rate("matmul_tflops")?,
        copy_gbps: part.rate("copy_gbps")?,
        name: usual.as_ref().map_or(name, |u| u.name.clone()),
    };
    Ok((gpu, kind.map(|k| k.cluster(1))))
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(s) => format!("'{s}'"),
        Value::Integer(n) => n.to_string(),
        Value::Float(f) if f.is_nan() => "nan".to_owned(),
        Value::Float(f) => f.to_string(),
        other => format!("a {}", other.type_str()),
    }
}

/// A table and the keys that it may have.
struct Section<'t> {
    table: &'t Table,
    at: &'static str,
    keys: &'static [&'static str],
}

impl Section<'_> {
    fn known(&self) -> Result<(), CatalogueError> {
        match self.table.keys().find(|k| !self.keys.contains(&k.as_str())) {
            None => Ok(()),
            Some(key) => Err(CatalogueError::Key {
                key: format!("{}{key}", self.at),
                near: near(key, self.keys.iter().copied()).map(str::to_owned),
            }),
        }
    }

    fn wrong(&self, key: &str, value: String, must: String) -> CatalogueError {
        CatalogueError::Value { key: format!("{}{key}", self.at), value, must }
    }

    fn text(&self, key: &str) -> Result<Option<String>, CatalogueError> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::String(s)) if !s.trim().is_empty() => Ok(Some(s.trim().to_owned())),
            Some(other) => Err(self.wrong(key, shown(other), "a name in quotes".into())),
        }
    }

    fn whole(&self, key: &str, high: u64) -> Result<Option<u32>, CatalogueError> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::Integer(n)) if *n >= 1 && *n as u64 <= high => Ok(Some(*n as u32)),
            Some(other) => Err(self.wrong(
                key,
                shown(other),
                format!("a whole number from 1 to {}", thousands(high)),
            )),
        }
    }

    fn rate(&self, key: &str) -> Result<Option<f64>, CatalogueError> {
        self.number(key, RATE)
    }

    fn number(&self, key: &str, (low, high): (f64, f64)) -> Result<Option<f64>, CatalogueError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let number = match value {
            Value::Integer(n) => *n as f64,
            Value::Float(f) => *f,
            _ => f64::NAN,
        };
        if (low..=high).contains(&number) {
            return Ok(Some(number));
        }
        Err(self.wrong(key, shown(value), format!("a number from {low} to {high}")))
    }
}
