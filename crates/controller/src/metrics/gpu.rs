//! GPUs under DCGM's names. Help and types are dcgm-exporter's, but for what is a rate here.

use tutti_model::GpuSample;

use super::Shown;
use super::text::{Kind, Text};

type Of = fn(&GpuSample) -> Option<f64>;

const MIB: f64 = 1_048_576.0;

const FAMILIES: &[(&str, Kind, &str, Of)] = &[
    ("DCGM_FI_DEV_SM_CLOCK", Kind::Gauge, "SM clock frequency (in MHz).", |g| {
        g.sm_clock.map(f64::from)
    }),
    ("DCGM_FI_DEV_MEM_CLOCK", Kind::Gauge, "Memory clock frequency (in MHz).", |g| {
        g.mem_clock.map(f64::from)
    }),
    ("DCGM_FI_DEV_MEMORY_TEMP", Kind::Gauge, "Memory temperature (in C).", |g| {
        g.mem_temp.map(f64::from)
    }),
    ("DCGM_FI_DEV_GPU_TEMP", Kind::Gauge, "GPU temperature (in C).", |g| g.temp.map(f64::from)),
    ("DCGM_FI_DEV_POWER_USAGE", Kind::Gauge, "Power draw (in W).", |g| {
        g.power_mw.map(|mw| f64::from(mw) / 1000.0)
    }),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT", Kind::Gauge, "Power limit (in W).", |g| {
        g.power_limit_mw.map(|mw| f64::from(mw) / 1000.0)
    }),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        Kind::Counter,
        "Total energy consumption since boot (in mJ).",
        |g| count(g.energy_mj),
    ),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Kind::Counter, "Total number of PCIe retries.", |g| {
        count(g.pcie_replays)
    }),
    ("DCGM_FI_DEV_GPU_UTIL", Kind::Gauge, "GPU utilization (in %).", |g| g.util.map(f64::from)),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", Kind::Gauge, "Memory utilization (in %).", |g| {
        g.mem_util.map(f64::from)
    }),
    ("DCGM_FI_DEV_XID_ERRORS", Kind::Gauge, "Value of the last XID error encountered.", |g| {
        Some(f64::from(g.xid.unwrap_or(0)))
    }),
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", Kind::Gauge, "Why clocks are held down (bits).", |g| {
        count(g.throttle)
    }),
    ("DCGM_FI_DEV_FB_FREE", Kind::Gauge, "Framebuffer memory free (in MiB).", |g| {
        g.mem_free.map(|bytes| (bytes.0 as f64 / MIB).floor())
    }),
    ("DCGM_FI_DEV_FB_USED", Kind::Gauge, "Framebuffer memory used (in MiB).", |g| {
        g.mem_used.map(|bytes| (bytes.0 as f64 / MIB).floor())
    }),
    (
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        Kind::Counter,
        "Total number of single-bit volatile ECC errors.",
        |g| count(g.ecc_corrected),
    ),
    (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        Kind::Counter,
        "Total number of double-bit volatile ECC errors.",
        |g| count(g.ecc_uncorrected),
    ),
    (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        Kind::Counter,
        "Number of remapped rows for uncorrectable errors",
        |g| g.remapped_uncorrected.map(f64::from),
    ),
    (
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        Kind::Counter,
        "Number of remapped rows for correctable errors",
        |g| g.remapped_corrected.map(f64::from),
    ),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", Kind::Gauge, "Whether remapping of rows has failed", |g| {
        yes(g.remap_failed)
    }),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", Kind::Gauge, "Whether rows wait to be remapped", |g| {
        yes(g.remap_pending)
    }),
    (
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        Kind::Gauge,
        "NVLink traffic of all lanes, both ways (in MB/s).",
        |g| Some((g.nvlink_tx? + g.nvlink_rx?) as f64 / 1e6),
    ),
    (
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        Kind::Gauge,
        "Ratio of time the graphics engine is active.",
        |g| ratio(g.engine_active),
    ),
    (
        "DCGM_FI_PROF_SM_ACTIVE",
        Kind::Gauge,
        "The ratio of cycles an SM has at least 1 warp assigned.",
        |g| ratio(g.sm_active),
    ),
    (
        "DCGM_FI_PROF_SM_OCCUPANCY",
        Kind::Gauge,
        "The ratio of number of warps resident on an SM.",
        |g| ratio(g.occupancy),
    ),
    (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        Kind::Gauge,
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        |g| ratio(g.tensor_active),
    ),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        Kind::Gauge,
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        |g| ratio(g.dram_active),
    ),
    (
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        Kind::Gauge,
        "The rate of data transmitted over the PCIe bus in bytes per second.",
        |g| count(g.pcie_tx),
    ),
    (
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        Kind::Gauge,
        "The rate of data received over the PCIe bus in bytes per second.",
        |g| count(g.pcie_rx),
    ),
    (
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
        Kind::Gauge,
        "The rate of data transmitted over NVLink in bytes per second.",
        |g| count(g.nvlink_tx),
    ),
    (
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        Kind::Gauge,
        "The rate of data received over NVLink in bytes per second.",
        |g| count(g.nvlink_rx),
    ),
    ("tutti_gpu_nvlink_errors_total", Kind::Counter, "Errors of all NVLinks of a GPU.", |g| {
        count(g.nvlink_errors)
    }),
];

fn count(n: Option<u64>) -> Option<f64> {
    n.map(|n| n as f64)
}

fn yes(flag: Option<bool>) -> Option<f64> {
    flag.map(|flag| f64::from(u8::from(flag)))
}

/// Shortened, so that a share does not show the digits of its storage.
fn ratio(share: Option<f32>) -> Option<f64> {
    share.map(|share| (f64::from(share) * 1e4).round() / 1e4)
}

pub fn render(nodes: &[Shown<'_>], text: &mut Text<'_>) {
    // Joined once for all families.
    let gpus: Vec<(&str, &GpuSample)> = nodes.iter().flat_map(of_node).collect();
    for (name, kind, help, of) in FAMILIES {
        let samples = gpus.iter().filter_map(|(labels, gpu)| Some((*labels, of(gpu)?)));
        text.family((name, *kind, help), samples);
    }
}

/// GPUs that the node's facts and its sample both know.
fn of_node<'a>(node: &'a Shown<'a>) -> Vec<(&'a str, &'a GpuSample)> {
    let Some(newest) = node.newest else { return Vec::new() };
    let sample = |index| newest.sample.gpus.iter().find(|gpu| gpu.index == index);
    let gpus = node.scene.gpus.iter();
    gpus.filter_map(|(index, labels)| Some((labels.as_str(), sample(*index)?))).collect()
}
