//! What active checks of GPUs found: `tutti doctor --active`.

use tutti_model::{
    ActiveFigures, ActiveGpu, ActiveOutcome, ActiveProduct, ActiveReport, ActiveSum,
};

use super::doctor::exit_of;
use super::table::{Field, Grid, plain};
use super::{count, harmless};
use crate::style::{Ink, Style};

const HEAD: [&str; 8] = [
    "GPU",
    "MODEL",
    ">MEMORY GB/s",
    ">OF PEAK",
    ">FP32 TFLOP/s",
    ">TENSOR TFLOP/s",
    "ANSWERS",
    "NOTE",
];

pub fn table(report: &ActiveReport, style: Style, width: Option<u16>) -> String {
    if report.gpus.is_empty() {
        return "there are no GPUs to check".to_owned();
    }
    let mut grid = Grid::new(&HEAD, style);
    report.gpus.iter().for_each(|gpu| grid.row(row(gpu)));
    let simulated = if report.simulated { "\nsimulated: nothing was computed" } else { "" };
    format!("{}\n{}{simulated}", grid.render(width), harmless(&sum(&report.all_reduce)))
}

/// 0: all was checked and is well. 1: something was not, or is slow. 2: a GPU is broken.
pub fn exit(report: &ActiveReport) -> u8 {
    let unchecked = report.gpus.iter().any(|gpu| {
        matches!(gpu.outcome, ActiveOutcome::Busy { .. } | ActiveOutcome::NotRun { .. })
    });
    let sum = matches!(report.all_reduce, ActiveSum::NotRun { .. } | ActiveSum::Failed { .. });
    exit_of(&report.findings).max(u8::from(unchecked || sum))
}

fn row(gpu: &ActiveGpu) -> [Field; 8] {
    let name = [plain(gpu.gpu.to_string()), plain(&gpu.model)];
    let rest = match &gpu.outcome {
        ActiveOutcome::Done(figures) => done(figures),
        ActiveOutcome::Busy { why } => nothing(("busy", Ink::Dim), why),
        ActiveOutcome::NotRun { why } => nothing(("not run", Ink::Yellow), why),
        ActiveOutcome::Failed { what, why } => {
            nothing(("failed", Ink::Red), &format!("{}: {why}", what.check()))
        }
    };
    let (name, rest) = (name.into_iter(), rest.into_iter());
    let all: Vec<Field> = name.chain(rest).collect();
    all.try_into().expect("two and six")
}

fn nothing((word, ink): (&str, Ink), why: &str) -> [Field; 6] {
    let none = || plain("-");
    [none(), none(), none(), none(), (word.to_owned(), ink), plain(why)]
}

fn done(figures: &ActiveFigures) -> [Field; 6] {
    // Imagined devices have no speed.
    let rate = |rate: u64, unit: f64, digits: usize| match rate {
        0 => plain("-"),
        rate => plain(format!("{:.digits$}", rate as f64 / unit)),
    };
    let tera = |product: &ActiveProduct| rate(product.rate, 1e12, 1);
    let percent = |peak: u64| format!("{} %", figures.memory_rate.saturating_mul(100) / peak);
    let peak = figures.memory_peak.filter(|peak| *peak > 0).map_or_else(|| "-".to_owned(), percent);
    let wrong: Vec<String> = [
        ("memory", Some(&figures.memory_wrong)),
        ("FP32", Some(&figures.matmul.wrong)),
        ("tensor", figures.tensor.as_ref().map(|tensor| &tensor.wrong)),
    ]
    .into_iter()
    .filter_map(|(what, wrong)| Some((what, wrong?)))
    .filter(|(_, wrong)| !wrong.is_right())
    .map(|(what, wrong)| format!("{what}: {} wrong, {}", wrong.count, wrong.first))
    .collect();
    let (answers, note) = match wrong.is_empty() {
        true => {
            let runs = figures.matmul.runs + figures.tensor.as_ref().map_or(0, |t| t.runs);
            let took = figures.took_ms as f64 / 1e3;
            let note = format!("{} filled, {runs} products, {took:.1} s", figures.memory);
            (("right".to_owned(), Ink::Green), note)
        }
        false => (("WRONG".to_owned(), Ink::Red), wrong.join("; ")),
    };
    [
        rate(figures.memory_rate, 1e9, 0),
        plain(peak),
        tera(&figures.matmul),
        figures.tensor.as_ref().map_or_else(|| plain("-"), tera),
        answers,
        plain(note),
    ]
}

fn sum(sum: &ActiveSum) -> String {
    match sum {
        ActiveSum::NotApplicable { why } => format!("all-reduce: not applicable, {why}"),
        ActiveSum::NotRun { why } => format!("all-reduce: not run, {why}"),
        ActiveSum::Failed { gpu, why } => {
            let on = gpu.map_or_else(String::new, |gpu| format!(" on GPU {gpu}"));
            format!("all-reduce: failed{on}, {why}")
        }
        ActiveSum::Done { gpus, rate, wrong, through_host } => {
            let words = match wrong.is_empty() {
                true => "right".to_owned(),
                false => {
                    let gpus: Vec<String> = wrong.iter().map(|(gpu, _)| gpu.to_string()).collect();
                    format!("WRONG on GPU {}", gpus.join(", "))
                }
            };
            let host = if *through_host { ", through the host's memory" } else { "" };
            let gpus = count(gpus.len() as u64, "GPU");
            format!("all-reduce: {gpus}, {:.1} GB/s{host}, {words}", *rate as f64 / 1e9)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tutti_model::{Bytes, GpuIndex, Wrong};

    fn gpu(index: u16, outcome: ActiveOutcome) -> ActiveGpu {
        ActiveGpu { gpu: GpuIndex(index), uuid: "GPU-1".into(), model: "h200".into(), outcome }
    }

    #[test]
    fn figures_and_who_was_left_out() {
        let product = |tera: u64| ActiveProduct {
            rate: tera * 1_000_000_000_000,
            runs: 9,
            ..Default::default()
        };
        let figures = ActiveFigures {
            memory: Bytes::gib(2),
            memory_rate: 4_100_000_000_000,
            memory_peak: Some(4_800_000_000_000),
            matmul: product(41),
            tensor: Some(product(320)),
            took_ms: 2345,
            ..ActiveFigures::default()
        };
        let mut bad = figures.clone();
        bad.matmul.wrong = Wrong { count: 2, first: "row 7 of the product is wrong".into() };
        let report = ActiveReport {
            gpus: vec![
                gpu(0, ActiveOutcome::Done(figures)),
                gpu(1, ActiveOutcome::Done(bad)),
                gpu(2, ActiveOutcome::Busy { why: "job 7 is on it".into() }),
            ],
            all_reduce: ActiveSum::NotApplicable { why: "there is one GPU".into() },
            ..ActiveReport::default()
        };
        let text = table(&report, Style::PLAIN, None);
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..8], ["0", "h200", "4100", "85", "%", "41.0", "320.0", "right"]);
        assert!(text.contains("2GiB filled, 18 products, 2.3 s"), "{text}");
        assert!(text.contains("WRONG    FP32: 2 wrong, row 7 of the product is wrong"), "{text}");
        assert!(text.contains("busy     job 7 is on it"), "{text}");
        assert!(text.ends_with("all-reduce: not applicable, there is one GPU"), "{text}");
        assert_eq!(exit(&report), 1, "one was not checked");
    }
}
