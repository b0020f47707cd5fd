//! `tutti nodes --gpus`.

use tutti_model::{Bytes, GpuSample, Span};
use tutti_wire::api::{GpuRow, JobTelemetry};

use super::table::{Field, Grid, plain};
use super::{count, time};
use crate::style::{Ink, Style};

/// Older values are not shown.
const OLD: Span = Span::secs(10);
/// NVML's bits, in the order of how bad they are, and what they are called here.
const REASONS: &[(u64, &str)] = &[
    (0x40, "hw heat"),
    (0x80, "power brake"),
    (0x8, "hw slowdown"),
    (0x20, "heat"),
    (0x4, "power cap"),
    (0x10, "sync boost"),
    (0x2, "clocks set"),
    (0x1, "idle"),
];
/// Of these the hardware itself or its heat is the cause.
const BAD: u64 = 0x40 | 0x80 | 0x8 | 0x20;

pub fn table(gpus: &[GpuRow], style: Style, width: Option<u16>) -> String {
    if gpus.is_empty() {
        return "no GPUs".to_owned();
    }
    let head = [
        "NODE",
        ">GPU",
        "MODEL",
        ">UTIL",
        ">SM",
        ">TENSOR",
        ">MEM",
        ">OF",
        ">POWER",
        ">TEMP",
        ">CLOCK",
        "HELD DOWN BY",
        "JOB",
    ];
    let mut grid = Grid::new(&head, style);
    for gpu in gpus {
        grid.row(row(gpu));
    }
    let used = gpus.iter().filter(|gpu| !gpu.jobs.is_empty()).count();
    // Of MIG instances nobody knows what they draw.
    let powers: Vec<f64> =
        gpus.iter().filter_map(|gpu| Some(f64::from(fresh(gpu)?.power_mw?) / 1e3)).collect();
    let watts = match powers.is_empty() {
        true => String::new(),
        false => format!(", {:.0} W", powers.iter().sum::<f64>()),
    };
    let simulated = if gpus.iter().any(|gpu| gpu.simulated) { " (simulated)" } else { "" };
    let total = count(gpus.len() as u64, "GPU");
    format!("{}\n{used} of {total}{simulated} in use{watts}", grid.render(width))
}

/// What a job's GPUs did since it began, in a line. None if nothing is known.
pub fn figures(job: &JobTelemetry) -> Option<String> {
    let all = &job.total;
    let share = |name: &str, share: Option<f32>| Some(format!("{name} {:.0}%", share? * 100.0));
    let words: Vec<String> = [
        share("util", all.util),
        share("SM", all.sm),
        share("tensor", all.tensor),
        all.mem.map(|mem| format!("memory {} in all", gib(mem))),
        all.power.map(|watts| format!("{watts:.0} W in all")),
        share("throttled", all.throttled.filter(|share| *share > 0.005)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let gpus = count(job.gpus.len() as u64, "GPU");
    (!words.is_empty()).then(|| format!("{gpus} on average: {}", words.join(", ")))
}

fn fresh(gpu: &GpuRow) -> Option<&GpuSample> {
    gpu.sample.as_ref().filter(|_| gpu.age.is_some_and(|age| age < OLD))
}

fn row(gpu: &GpuRow) -> Vec<Field> {
    let none = GpuSample::default();
    let sample = fresh(gpu).unwrap_or(&none);
    let share = |share: Option<f32>| or_dash(share.map(|s| format!("{:.0}%", s * 100.0)));
    let (throttle, ink) = match (fresh(gpu), gpu.age) {
        (Some(sample), _) => held_down(sample.throttle),
        (None, Some(age)) => (format!("no values for {}", time::short(age)), Ink::Red),
        (None, None) => ("no values yet".to_owned(), Ink::Dim),
    };
    vec![
        plain(gpu.node.clone()),
        plain(gpu.gpu.to_string()),
        plain(gpu.model.clone()),
        plain(or_dash(sample.util.map(|percent| format!("{percent}%")))),
        plain(share(sample.sm_active)),
        plain(share(sample.tensor_active)),
        plain(or_dash(sample.mem_used.map(gib))),
        plain(gib(gpu.mem)),
        plain(power(sample)),
        plain(or_dash(sample.temp.map(|degrees| format!("{degrees}°C")))),
        plain(or_dash(sample.sm_clock.map(|mhz| format!("{mhz}MHz")))),
        (throttle, ink),
        users(gpu),
    ]
}

fn users(gpu: &GpuRow) -> Field {
    let jobs: Vec<String> = gpu.jobs.iter().map(ToString::to_string).collect();
    match (&gpu.fenced, jobs.is_empty()) {
        (Some(_), true) => ("fenced".to_owned(), Ink::Red),
        (Some(_), false) => (format!("{}, fenced", jobs.join(",")), Ink::Red),
        (None, true) => plain("-".to_owned()),
        (None, false) => plain(jobs.join(",")),
    }
}

fn power(sample: &GpuSample) -> String {
    let watts = |mw: u32| (f64::from(mw) / 1000.0).round() as u32;
    match (sample.power_mw, sample.power_limit_mw) {
        (Some(now), Some(limit)) => format!("{}/{}W", watts(now), watts(limit)),
        (Some(now), None) => format!("{}W", watts(now)),
        _ => "-".to_owned(),
    }
}

fn held_down(reasons: Option<u64>) -> (String, Ink) {
    let Some(bits) = reasons.filter(|bits| *bits != 0) else { return ("-".to_owned(), Ink::Plain) };
    let named: Vec<&str> =
        REASONS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    let ink = if bits & BAD == 0 { Ink::Dim } else { Ink::Red };
    (if named.is_empty() { format!("{bits:#x}") } else { named.join(", ") }, ink)
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn gib(bytes: Bytes) -> String {
    format!("{:.1}G", bytes.0 as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use tutti_model::{GpuIndex, JobId, TaskId};
    use tutti_wire::api::{GpuFigures, JobGpu};

    use super::*;

    fn gpu(index: u16) -> GpuRow {
        GpuRow {
            node: "n1".into(),
            gpu: GpuIndex(index),
            model: "h100".into(),
            uuid: "GPU-1".into(),
            mem: Bytes::gib(80),
            simulated: true,
            jobs: Vec::new(),
            fenced: None,
            sample: None,
            age: None,
        }
    }

    #[test]
    fn a_job_is_summed_up_in_a_line() {
        let total = GpuFigures {
            sm: Some(0.82),
            mem: Some(Bytes::gib(124)),
            power: Some(1298.4),
            throttled: Some(0.0),
            ..GpuFigures::default()
        };
        let gpu = |index| JobGpu { node: "n1".into(), gpu: GpuIndex(index), figures: total };
        let id = TaskId::single(JobId(12));
        let job = JobTelemetry { id, since: None, total, gpus: vec![gpu(0), gpu(1)] };
        let line = figures(&job).unwrap();
        assert_eq!(line, "2 GPUs on average: SM 82%, memory 124.0G in all, 1298 W in all");
        assert_eq!(figures(&JobTelemetry { total: GpuFigures::default(), ..job }), None);
    }

    #[test]
    fn gpus_are_a_table() {
        let sample = GpuSample {
            util: Some(97),
            sm_active: Some(0.814),
            mem_used: Some(Bytes::gib(62)),
            power_mw: Some(648_900),
            power_limit_mw: Some(700_000),
            temp: Some(64),
            sm_clock: Some(1755),
            throttle: Some(0x4 | 0x40),
            ..GpuSample::default()
        };
        let busy = GpuRow {
            jobs: vec![TaskId::single(JobId(12))],
            sample: Some(sample.clone()),
            age: Some(Span::secs(1)),
            ..gpu(0)
        };
        let old = GpuRow { sample: Some(sample), age: Some(Span::secs(90)), ..gpu(1) };
        let fenced = GpuRow { fenced: Some("XID 48".into()), ..gpu(2) };
        let text = table(&[busy, old, fenced], Style::PLAIN, None);
        assert_eq!(
            text,
            "NODE  GPU  MODEL  UTIL   SM  TENSOR    MEM     OF     POWER  TEMP    CLOCK  HELD DOWN BY         JOB
n1      0  h100    97%  81%       -  62.0G  80.0G  649/700W  64°C  1755MHz  hw heat, power cap   12
n1      1  h100      -    -       -      -  80.0G         -     -        -  no values for 1m30s  -
n1      2  h100      -    -       -      -  80.0G         -     -        -  no values yet        fenced
1 of 3 GPUs (simulated) in use, 649 W"
        );
    }
}
