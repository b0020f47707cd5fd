//! What follows from active checks. Pure.
//!
//! A wrong answer fences the GPU until somebody resolves it: once is enough, and a later right answer
//! proves nothing. What is slow is noted; operators may have it fenced. Slow is measured against what the card's
//! memory allows, what equal cards of the node do, and what the same card did before.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tutti_model::{
    ActiveFigures, ActiveGpu, ActiveOutcome, ActivePart, ActiveReport, ActiveSum, Finding,
    GpuIndex, HealthAction, Time, Wrong,
};

use crate::health::rules::Thresholds;
use crate::health::{Keep, Seen};

/// The finding of a GPU that could not be checked.
pub const NOT_RUN: &str = "check-not-run";
/// What is slow is named after what it is slow at.
const SLOW: &str = "-slow";
/// Fewer equal GPUs have no median to speak of.
const PEERS_MIN: usize = 3;

/// What GPUs did when all was right, by their UUIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Known {
    /// Another driver may make other speeds.
    pub driver: String,
    pub gpus: BTreeMap<String, Speeds>,
    /// By the UUIDs of all GPUs that took part.
    pub sums: BTreeMap<String, u64>,
}

/// Bytes and operations a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Speeds {
    pub memory: u64,
    pub matmul: u64,
    pub tensor: u64,
}

/// One of them.
type Of = fn(&Speeds) -> u64;

impl Speeds {
    fn of(figures: &ActiveFigures) -> Speeds {
        let tensor = figures.tensor.as_ref().map_or(0, |tensor| tensor.rate);
        Speeds { memory: figures.memory_rate, matmul: figures.matmul.rate, tensor }
    }

    fn best(self, other: Speeds) -> Speeds {
        Speeds {
            memory: self.memory.max(other.memory),
            matmul: self.matmul.max(other.matmul),
            tensor: self.tensor.max(other.tensor),
        }
    }
}

impl Known {
    /// What was learned under another driver is forgotten.
    pub fn under(self, driver: &str) -> Known {
        match self.driver == driver {
            true => self,
            false => Known { driver: driver.to_owned(), ..Known::default() },
        }
    }

    /// The best that each did with right answers.
    pub fn learn(&mut self, report: &ActiveReport) {
        for (gpu, figures) in done(report).filter(|(_, figures)| is_right(figures)) {
            let known = self.gpus.entry(gpu.uuid.clone()).or_default();
            *known = known.best(Speeds::of(figures));
        }
        if let ActiveSum::Done { gpus, rate, wrong, .. } = &report.all_reduce
            && wrong.is_empty()
        {
            let known = self.sums.entry(names(report, gpus)).or_default();
            *known = (*known).max(*rate);
        }
    }
}

fn names(report: &ActiveReport, gpus: &[GpuIndex]) -> String {
    let of = |gpu: &&ActiveGpu| gpus.contains(&gpu.gpu);
    let names: Vec<&str> = report.gpus.iter().filter(of).map(|g| g.uuid.as_str()).collect();
    names.join(" ")
}

fn done(report: &ActiveReport) -> impl Iterator<Item = (&ActiveGpu, &ActiveFigures)> {
    report.gpus.iter().filter_map(|gpu| match &gpu.outcome {
        ActiveOutcome::Done(figures) => Some((gpu, figures)),
        _ => None,
    })
}

/// All answers.
pub fn is_right(figures: &ActiveFigures) -> bool {
    let tensor = figures.tensor.as_ref().is_none_or(|tensor| tensor.wrong.is_right());
    figures.memory_wrong.is_right() && figures.matmul.wrong.is_right() && tensor
}

/// GPUs that did all of it, and right. What earlier checks noted of them is over.
pub fn passed(report: &ActiveReport) -> Vec<GpuIndex> {
    done(report).filter(|(_, figures)| is_right(figures)).map(|(gpu, _)| gpu.gpu).collect()
}

/// GPUs that were to be checked and have not passed, for whatever reason, and that reason.
pub fn not_passed(report: &ActiveReport) -> BTreeMap<GpuIndex, String> {
    let right = passed(report);
    let of = |gpu: &ActiveGpu| {
        let against = report.findings.iter().find(|f| f.fences() == Some(gpu.gpu));
        let why = match (&gpu.outcome, against) {
            (_, Some(finding)) => finding.text.clone(),
            _ if right.contains(&gpu.gpu) => return None,
            (ActiveOutcome::Busy { why } | ActiveOutcome::NotRun { why }, None) => {
                format!("GPU {} could not be checked: {why}", gpu.gpu)
            }
            (ActiveOutcome::Failed { why, .. }, None) => {
                format!("GPU {} failed its check: {why}", gpu.gpu)
            }
            (ActiveOutcome::Done(_), None) => format!("GPU {} gave wrong answers", gpu.gpu),
        };
        Some((gpu.gpu, why))
    };
    report.gpus.iter().filter_map(of).collect()
}

/// Whether a finding was made by such a check.
pub fn is_ours(finding: &Finding) -> bool {
    let check = finding.check.as_str();
    let parts = [ActivePart::Memory, ActivePart::Matmul, ActivePart::AllReduce];
    check == NOT_RUN || parts.iter().any(|p| check.strip_suffix(SLOW).unwrap_or(check) == p.check())
}

/// Ours, and no more than a note: another check replaces it.
pub fn is_note_of_ours(finding: &Finding) -> bool {
    is_ours(finding) && (finding.check == NOT_RUN || finding.check.ends_with(SLOW))
}

/// What is found wrong. `known`: from before this check.
pub fn judge(report: &ActiveReport, known: &Known, limits: &Thresholds, at: Time) -> Vec<Seen> {
    let judge = Judge { report, known, limits, at };
    let mut seen: Vec<Seen> = report.gpus.iter().flat_map(|gpu| judge.gpu(gpu)).collect();
    seen.extend(judge.sum());
    seen
}

/// GPUs that were to be checked and were not.
pub fn unchecked(report: &ActiveReport, at: Time) -> Vec<Seen> {
    let of = |gpu: &ActiveGpu| {
        let why = match &gpu.outcome {
            ActiveOutcome::Busy { why } | ActiveOutcome::NotRun { why } => why,
            ActiveOutcome::Done(_) | ActiveOutcome::Failed { .. } => return None,
        };
        let text = format!("it could not be checked: {why}");
        Some(seen(NOT_RUN, Some(gpu.gpu), HealthAction::Note, &text, Keep::UntilReboot, at))
    };
    report.gpus.iter().filter_map(of).collect()
}

struct Judge<'a> {
    report: &'a ActiveReport,
    known: &'a Known,
    limits: &'a Thresholds,
    at: Time,
}

impl Judge<'_> {
    fn gpu(&self, gpu: &ActiveGpu) -> Vec<Seen> {
        let figures = match &gpu.outcome {
            ActiveOutcome::Done(figures) => figures,
            ActiveOutcome::Failed { what, why } => return vec![self.broken(gpu.gpu, *what, why)],
            ActiveOutcome::Busy { .. } | ActiveOutcome::NotRun { .. } => return Vec::new(),
        };
        let wrong = |part, what: &str, wrong: &Wrong| {
            let text = format!("{what} wrong: {} in all, the first: {}", wrong.count, wrong.first);
            (!wrong.is_right()).then(|| self.broken(gpu.gpu, part, &text))
        };
        let (memory, matmul) = (ActivePart::Memory, ActivePart::Matmul);
        let tensor = figures.tensor.as_ref();
        let answers = [
            wrong(memory, "memory gave back something", &figures.memory_wrong),
            wrong(matmul, "a matrix product was", &figures.matmul.wrong),
            tensor.and_then(|t| wrong(matmul, "a product on tensor cores was", &t.wrong)),
        ];
        let mut all: Vec<Seen> = answers.into_iter().flatten().collect();
        // One finding for each part: the first says enough.
        all.dedup_by(|b, a| a.finding.key == b.finding.key);
        if all.is_empty() {
            all.extend(self.slow(gpu, figures));
        }
        all
    }

    fn slow(&self, gpu: &ActiveGpu, figures: &ActiveFigures) -> Vec<Seen> {
        let now = Speeds::of(figures);
        let before = self.known.gpus.get(&gpu.uuid).copied().unwrap_or_default();
        let parts: [(ActivePart, &str, Of, f64, &str); 3] = [
            (ActivePart::Memory, "copies", |s| s.memory, 1e9, "GB/s"),
            (ActivePart::Matmul, "products", |s| s.matmul, 1e12, "TFLOP/s"),
            (ActivePart::Matmul, "products on tensor cores", |s| s.tensor, 1e12, "TFLOP/s"),
        ];
        let mut all = Vec::new();
        for (part, what, of, unit, name) in parts {
            let peak = figures.memory_peak.filter(|_| part == ActivePart::Memory);
            let bars = [
                (peak, self.limits.check_memory_percent, "its memory allows"),
                (self.median(gpu, of), self.limits.check_peers_percent, "its equals here do"),
                (Some(of(&before)), self.limits.check_before_percent, "it did before"),
            ];
            let short = bars.into_iter().find_map(|(bar, percent, words)| {
                let bar = bar.filter(|bar| *bar > 0 && is_below(of(&now), *bar, percent))?;
                Some((bar, words))
            });
            let Some((bar, words)) = short else { continue };
            let in_unit = |rate: u64| rate as f64 / unit;
            let text = format!(
                "{what} at {:.1} {name}, which is {} % of the {:.1} that {words}",
                in_unit(of(&now)),
                of(&now).saturating_mul(100) / bar,
                in_unit(bar)
            );
            all.push(self.note(&format!("{}{SLOW}", part.check()), Some(gpu.gpu), &text));
        }
        all.dedup_by(|b, a| a.finding.key == b.finding.key);
        all
    }

    /// Of the GPUs here that are of the same model.
    fn median(&self, gpu: &ActiveGpu, of: Of) -> Option<u64> {
        let equals = done(self.report).filter(|(other, _)| other.model == gpu.model);
        let mut rates: Vec<u64> = equals.map(|(_, figures)| of(&Speeds::of(figures))).collect();
        rates.sort_unstable();
        (rates.len() >= PEERS_MIN).then(|| rates[rates.len() / 2])
    }

    fn sum(&self) -> Vec<Seen> {
        match &self.report.all_reduce {
            ActiveSum::NotApplicable { .. } | ActiveSum::NotRun { .. } => Vec::new(),
            ActiveSum::Failed { gpu: Some(gpu), why } => {
                vec![self.broken(*gpu, ActivePart::AllReduce, why)]
            }
            ActiveSum::Failed { gpu: None, why } => {
                let text = format!("a sum over all GPUs failed: {why}");
                vec![self.note(ActivePart::AllReduce.check(), None, &text)]
            }
            ActiveSum::Done { gpus, rate, wrong, .. } => {
                let of = |(gpu, wrong): &(GpuIndex, Wrong)| {
                    let text = format!("a sum over all GPUs is wrong: {} words", wrong.count);
                    self.broken(*gpu, ActivePart::AllReduce, &text)
                };
                let mut all: Vec<Seen> = wrong.iter().map(of).collect();
                if wrong.is_empty() {
                    all.extend(self.slow_sum(gpus, *rate));
                }
                all
            }
        }
    }

    fn slow_sum(&self, gpus: &[GpuIndex], rate: u64) -> Option<Seen> {
        let before = *self.known.sums.get(&names(self.report, gpus))?;
        if !is_below(rate, before, self.limits.check_before_percent) {
            return None;
        }
        let text = format!(
            "a sum over all GPUs at {:.1} GB/s, and {:.1} before",
            rate as f64 / 1e9,
            before as f64 / 1e9
        );
        Some(self.note(&format!("{}{SLOW}", ActivePart::AllReduce.check()), None, &text))
    }

    fn broken(&self, gpu: GpuIndex, part: ActivePart, text: &str) -> Seen {
        let action = self.action(part.check(), HealthAction::FenceGpu);
        seen(part.check(), Some(gpu), action, text, Keep::UntilResolved, self.at)
    }

    /// After the machine was started anew it is checked again.
    fn note(&self, check: &str, gpu: Option<GpuIndex>, text: &str) -> Seen {
        let action = self.action(check, HealthAction::Note);
        seen(check, gpu, action, text, Keep::UntilReboot, self.at)
    }

    fn action(&self, check: &str, usual: HealthAction) -> HealthAction {
        self.limits.actions.get(check).copied().unwrap_or(usual)
    }
}

fn is_below(rate: u64, bar: u64, percent: u8) -> bool {
    u128::from(rate) * 100 < u128::from(bar) * u128::from(percent)
}

fn seen(
    check: &str,
    gpu: Option<GpuIndex>,
    action: HealthAction,
    text: &str,
    keep: Keep,
    since: Time,
) -> Seen {
    let on = gpu.map_or_else(String::new, |gpu| format!("/gpu{gpu}"));
    let of = gpu.map_or_else(String::new, |gpu| format!("GPU {gpu}: "));
    let finding = Finding {
        key: format!("{check}{on}"),
        check: check.to_owned(),
        gpu,
        action,
        text: format!("{of}{text}"),
        since,
        drill: false,
        by_job: false,
    };
    Seen { finding, keep }
}

/// Whether what was found on a GPU is reason to check it before somebody else gets it. What programs
/// bring about themselves is not, and what fences it anyway needs no suspicion.
pub fn is_suspicious(finding: &Finding) -> bool {
    // XIDs that follow whatever ended a program.
    let follows = finding.key.split('/').any(|part| matches!(part, "xid-43" | "xid-45"));
    let by_job = finding.by_job || follows;
    let of_gpu = finding.gpu.is_some() && finding.fences().is_none() && !by_job;
    let checks = [
        "xid",
        "ecc",
        "row-remap-pending",
        "throttle",
        "nvlink",
        "pcie-replays",
        "pcie",
        "amd-reset",
    ];
    of_gpu && checks.contains(&finding.check.as_str())
}

#[cfg(test)]
mod tests;
