//! Numbers and layouts as sentences say them.

use crate::{Layout, Part, Precision, Recompute, Sharding};

/// `tp 8 × pp 2 × dp 8`, axes of 1 left out.
pub fn axes(l: &Layout) -> String {
    let all = [("tp", l.tp), ("pp", l.pp), ("cp", l.cp), ("dp", l.dp)];
    let split: Vec<String> =
        all.iter().filter(|(_, n)| *n > 1).map(|(axis, n)| format!("{axis} {n}")).collect();
    match split.is_empty() {
        true => "one GPU".to_owned(),
        false => split.join(" × "),
    }
}

pub fn sharding(s: Sharding) -> &'static str {
    match s {
        Sharding::None => "no sharding",
        Sharding::Zero1 => "ZeRO-1",
        Sharding::Zero2 => "ZeRO-2",
        Sharding::Zero3 => "ZeRO-3",
    }
}

pub fn recompute(r: Recompute) -> &'static str {
    match r {
        Recompute::None => "no recomputation",
        Recompute::Selective => "selective recomputation",
        Recompute::Full => "full recomputation",
    }
}

pub fn precision(p: Precision) -> &'static str {
    match p {
        Precision::Fp16 => "FP16",
        Precision::Bf16 => "BF16",
        Precision::Fp8 => "FP8",
        Precision::Mxfp8 => "MXFP8",
        Precision::Nvfp4 => "NVFP4",
    }
}

/// `16,384`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `153 GB`, `76.3 GB`, `1,234 GB`: of GPUs, in units of 2³⁰ bytes.
pub fn gb(n: f64) -> String {
    if n < 100.0 { format!("{n:.1} GB") } else { format!("{} GB", thousands(n.round() as u64)) }
}

/// `2.31 s`, `45 ms`.
pub fn seconds(s: f64) -> String {
    match s {
        s if s >= 100.0 => format!("{} s", thousands(s.round() as u64)),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s < 1e-6 => "0 s".to_owned(),
        s if s >= 1e-2 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.2} ms", s * 1e3),
    }
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;

/// `7.3 days`, `31 min`: not finer than an estimate is worth.
pub fn duration(s: f64) -> String {
    let digits = |n: f64| match n {
        n if n >= 100.0 => thousands(n.round() as u64),
        n => format!("{n:.1}"),
    };
    match s {
        s if s >= 2.0 * DAY => format!("{} days", digits(s / DAY)),
        s if s >= 2.0 * HOUR => format!("{} h", digits(s / HOUR)),
        s if s >= 2.0 * MINUTE => format!("{:.0} min", s / MINUTE),
        s => seconds(s),
    }
}

/// How much more: `3.2 %`, or `2.4 times` where percents say little.
pub fn more(ratio: f64) -> String {
    match ratio {
        r if r >= 2.0 => format!("{r:.1} times"),
        r => format!("{:.1} %", (r - 1.0) * 100.0),
    }
}

pub fn part(p: Part) -> &'static str {
    match p {
        Part::Gemm => "matrix products",
        Part::Attention => "attention",
        Part::Head => "the vocabulary head",
        Part::Elementwise => "memory-bound work",
        Part::Recompute => "recomputation",
        Part::TensorParallel => "tensor-parallel exchange",
        Part::ContextParallel => "context-parallel exchange",
        Part::ExpertParallel => "expert-parallel exchange",
        Part::PipelineTransfers => "pipeline transfers",
        Part::Bubble => "the pipeline's bubble",
        Part::DataParallel => "data-parallel exchange",
        Part::Optimizer => "the optimizer",
        Part::Overhead => "overhead",
    }
}
