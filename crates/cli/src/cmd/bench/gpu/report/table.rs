//! What a measurement of GPUs comes to, as tables.

use tutti_planner::{MeasuredShape, Precision};

use super::{FIGURES, Figure, Kind, Problem, Report, SLOW_PERCENT, Slow};
use crate::show::table::{Grid, plain};
use crate::style::{Ink, Style};

/// Of more GPUs than this, JSON has each; the tables have kinds and what is slow.
const GPUS_SHOWN: usize = 64;

impl Report {
    /// Each on a line of its own; the same of several GPUs once.
    pub fn problem_lines(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for problem in &self.problems {
            let line = match problem.gpu {
                // A problem of a whole node names it.
                None => problem.why.clone(),
                Some(_) => {
                    let same = |p: &&Problem| p.node == problem.node && p.why == problem.why;
                    let gpus: Vec<String> = self
                        .problems
                        .iter()
                        .filter(same)
                        .filter_map(|p| p.gpu.map(|gpu| gpu.to_string()))
                        .collect();
                    format!("{} GPU {}: {}", problem.node, gpus.join(","), problem.why)
                }
            };
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines.join("\n")
    }

    pub fn text(&self, style: Style, width: Option<u16>) -> String {
        let mut parts = vec![self.kind_table(style, width)];
        let shapes = self.kinds.iter().filter(|kind| !kind.shapes.is_empty());
        parts.extend(shapes.map(|kind| self.shape_table(kind, style, width)));
        parts.push(match self.gpus.len() <= GPUS_SHOWN {
            true => self.gpu_table(style, width),
            false => format!("{} GPUs: --json has each", self.gpus.len()),
        });
        if !self.problems.is_empty() {
            parts.push(self.problem_lines());
        }
        parts.push(match self.slow.is_empty() {
            true => format!("no GPU is more than {SLOW_PERCENT} % slower than its like"),
            false => self.slow_table(style, width),
        });
        parts.join("\n\n")
    }

    fn kind_table(&self, style: Style, width: Option<u16>) -> String {
        let head = ["GPU", ">GPUS", ">BF16 TFLOP/S", ">FP8 TFLOP/S", ">COPY GB/S"];
        let mut grid = Grid::new(&head, style);
        for k in &self.kinds {
            grid.row([
                plain(&k.gpu),
                plain(k.gpus.to_string()),
                plain(of_peak(k.matmul_tflops, k.matmul_peak)),
                plain(of_peak(k.fp8_tflops, k.fp8_peak)),
                plain(of_peak(k.copy_gbps, k.copy_peak)),
            ]);
        }
        grid.render(width)
    }

    fn shape_table(&self, kind: &Kind, style: Style, width: Option<u16>) -> String {
        // Only one kind needs no name.
        let first = match self.kinds.len() {
            1 => "M × N × K".to_owned(),
            _ => format!("{}: M × N × K", kind.gpu),
        };
        let mut grid = Grid::new(&[first.as_str(), ">BF16", ">FP8"], style);
        let mut sides: Vec<(u32, u32, u32)> = Vec::new();
        for s in &kind.shapes {
            if !sides.contains(&(s.m, s.n, s.k)) {
                sides.push((s.m, s.n, s.k));
            }
        }
        for (m, n, k) in sides {
            let of = |precision: Precision| {
                let same =
                    |s: &&MeasuredShape| (s.m, s.n, s.k, s.precision) == (m, n, k, precision);
                number(kind.shapes.iter().find(same).map(|s| s.tflops))
            };
            let name = format!("{m} × {n} × {k}");
            grid.row([plain(name), plain(of(Precision::Bf16)), plain(of(Precision::Fp8))]);
        }
        grid.render(width)
    }

    fn gpu_table(&self, style: Style, width: Option<u16>) -> String {
        let head = ["NODE", ">GPU", ">BF16 TFLOP/S", ">FP8 TFLOP/S", ">COPY GB/S"];
        let mut grid = Grid::new(&head, style);
        for row in &self.gpus {
            let cell = |(what, figure): (&str, Figure)| {
                let is = |s: &Slow| s.node == row.node && s.gpu == row.gpu && s.what == what;
                let ink = if self.slow.iter().any(is) { Ink::Red } else { Ink::Plain };
                (number(figure(row)), ink)
            };
            let names = [plain(&row.node), plain(row.gpu.to_string())];
            grid.row(names.into_iter().chain(FIGURES.map(cell)));
        }
        grid.render(width)
    }

    fn slow_table(&self, style: Style, width: Option<u16>) -> String {
        let mut grid = Grid::new(&["SLOW", "NODE", ">GPU", ">BELOW ITS LIKE"], style);
        for s in &self.slow {
            grid.row([
                (s.what.to_owned(), Ink::Red),
                plain(&s.node),
                plain(s.gpu.to_string()),
                plain(format!("{:.1} %", s.percent)),
            ]);
        }
        grid.render(width)
    }
}

pub fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

fn of_peak(value: Option<f64>, peak: Option<f64>) -> String {
    match (value, peak.filter(|peak| *peak > 0.0)) {
        (Some(value), Some(peak)) => {
            format!("{value:.1} of {peak:.0} ({:.0} %)", 100.0 * value / peak)
        }
        (value, _) => number(value),
    }
}
