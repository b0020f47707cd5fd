//! `tutti plan`: a plan in a few lines, in full, and as JSON.

pub mod bar;
mod because;
mod explain;
mod json;
pub mod seen;
pub mod serving;
pub mod which;

use tutti_planner::words::{axes, part, recompute, seconds, sharding};
use tutti_planner::{
    Answer, Arch, Cluster, Layout, Recompute, Run, Sharding, Task, WhatIf, Workload, usable_gb,
};

use super::table::{Field, Grid};
use super::{count, thousands};
use crate::style::{Ink, Style};

pub use explain::explained;

/// What was asked and what was found.
pub struct Plan<'a> {
    pub arch: &'a Arch,
    pub workload: &'a Workload,
    pub cluster: &'a Cluster,
    pub answer: &'a Answer,
    pub run: Option<&'a Run>,
    pub what_ifs: &'a [WhatIf],
    pub currency: &'a str,
}

/// List prices of the catalogue are in it.
pub const LISTED_IN: &str = "USD";

/// Columns of the bar in the short form.
const BAR: usize = 24;
/// Lines of what would help in the short form.
const HELPS: usize = 3;
/// What makes a token take less time by less is not worth a line.
const WORTH: f64 = 0.98;

pub fn short(plan: &Plan<'_>, style: Style) -> String {
    let mut lines = vec![headline(plan, style)];
    let mut add = |key: &str, value: String| lines.push(format!("  {key:<11}{value}"));
    add("layout", layout_words(&plan.answer.best.layout));
    if let Some(why) = because::because(plan.answer, usable_gb(&plan.cluster.gpu)) {
        add("because", why);
    }
    add("memory", memory(plan));
    add("step", step(plan));
    if let Some(run) = plan.run {
        add("run", whole(run));
    }
    if let Some(price) = price(plan) {
        add("price", price);
    }
    add("limit", limit(plan));
    for (n, help) in helps(plan).iter().take(HELPS).enumerate() {
        add(if n == 0 { "would help" } else { "" }, help.clone());
    }
    if let Some((gpus, seconds)) = plan.answer.faster_with_fewer {
        let gpus = thousands(gpus.into());
        add("fewer", format!("{gpus} of the GPUs would take {}: --fewer", step_time(seconds)));
    }
    lines.join("\n")
}

pub fn headline(plan: &Plan<'_>, style: Style) -> String {
    let (best, work) = (&plan.answer.best, plan.workload);
    let doing = match work.task {
        Task::Pretrain => "pretrain",
        Task::Finetune => "finetune",
        Task::Lora { .. } => "finetune by LoRA",
    };
    let (used, all, gpu) = (best.gpus, plan.cluster.gpus(), &plan.cluster.gpu.name);
    let gpus = if used == all {
        format!("{} {gpu}", thousands(all.into()))
    } else {
        let (used, all) = (thousands(used.into()), thousands(all.into()));
        format!("{used} of {all} {gpu}, the others stay idle")
    };
    format!(
        "{doing} {} ({} weights) on {}: {gpus}, {}",
        style.paint(Ink::Bold, &plan.arch.name),
        billions(plan.arch.params()),
        plan.cluster.name,
        style.paint(Ink::Bold, &axes(&best.layout)),
    )
}

/// Everything that a layout has, in words.
fn layout_words(l: &Layout) -> String {
    let mut words = vec![axes(l)];
    if l.vp > 1 {
        words.push(format!("{} chunks on each stage", l.vp));
    }
    if l.ep > 1 {
        words.push(format!("experts over {} GPUs", l.ep));
    }
    words.push(format!("micro-batch {}", l.micro_batch));
    if l.sharding != Sharding::None {
        words.push(sharding(l.sharding).to_owned());
    }
    if l.sequence_parallel && l.tp > 1 {
        words.push("sequence parallel".to_owned());
    }
    if l.recompute != Recompute::None {
        words.push(recompute(l.recompute).to_owned());
    }
    words.join(", ")
}

fn memory(plan: &Plan<'_>) -> String {
    let memory = &plan.answer.best.estimate.memory;
    let (used, usable) = (memory.total(), usable_gb(&plan.cluster.gpu));
    let mut parts: Vec<(&str, f64)> = memory.parts().to_vec();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let largest: Vec<String> = parts
        .iter()
        .take(3)
        .filter(|(_, gb)| *gb >= 0.05)
        .map(|(n, gb)| format!("{n} {gb:.1}"))
        .collect();
    format!(
        "{used:.1} of {usable:.1} GB on each GPU  {}  {}",
        bar::plain(used / usable.max(f64::MIN_POSITIVE), BAR),
        largest.join(", ")
    )
}

fn step(plan: &Plan<'_>) -> String {
    let best = &plan.answer.best;
    format!(
        "{} for {} sequences of {} tokens · {} tokens/s · MFU {:.0} %",
        step_time(best.estimate.time.total()),
        thousands(plan.workload.global_batch),
        thousands(plan.workload.seq),
        thousands(about(best.tokens_per_s)),
        100.0 * best.mfu
    )
}

fn whole(run: &Run) -> String {
    format!(
        "{} tokens in {}: {}; {} with failures (one in {}) and checkpoints (every {})",
        short_count(run.tokens),
        count(run.steps, "step"),
        duration(run.seconds),
        duration(run.effective_seconds),
        duration(run.mttf_s),
        duration(run.checkpoint_every_s)
    )
}

/// Of the run, else of so many tokens that it is a sum one can think of.
fn price(plan: &Plan<'_>) -> Option<String> {
    let hour = plan.cluster.price_per_gpu_hour.map(|hour| money(hour, plan.currency));
    let (Some(hour), Some(step)) = (hour, plan.answer.best.cost_per_step) else {
        // Only who asks for a whole run asks for its price.
        return plan.run.map(|_| "not known: --price says what a GPU costs for an hour".to_owned());
    };
    let sum = match plan.run.and_then(|run| Some((run, run.price?))) {
        Some((run, sum)) => {
            let hours = thousands(run.gpu_hours.round() as u64);
            format!("{} for {hours} GPU-hours", money(sum, plan.currency))
        }
        None => {
            let tokens = plan.workload.seq as f64 * plan.workload.global_batch as f64;
            format!("{} for a billion tokens", money(1e9 * step / tokens, plan.currency))
        }
    };
    Some(format!("{sum}, {hour} per GPU-hour"))
}

/// The two largest parts of a step.
fn limit(plan: &Plan<'_>) -> String {
    let time = &plan.answer.best.estimate.time;
    let total = time.total().max(f64::MIN_POSITIVE);
    let mut parts = time.parts.clone();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words: Vec<String> = parts
        .iter()
        .take(2)
        .filter(|(_, s)| *s > 0.0)
        .map(|(p, s)| format!("{} {:.0} %", part(*p), 100.0 * s / total))
        .collect();
    format!("{} of the step", words.join(", "))
}

/// Best first; only what really helps.
fn helps(plan: &Plan<'_>) -> Vec<String> {
    let mut all: Vec<&WhatIf> = plan.what_ifs.iter().filter(|w| w.ratio < WORTH).collect();
    all.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    all.iter().map(|w| format!("{}: {}", w.change, w.note)).collect()
}

/// `−12 %`, `+7 %` of what it was.
pub fn percent(ratio: f64) -> String {
    let change = 100.0 * (ratio - 1.0);
    let rounded = change.round();
    match rounded {
        r if r < 0.0 => format!("−{:.0} %", -r),
        r => format!("+{:.0} %", r.abs()),
    }
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;

/// `7.3 days`, `31 min`: not finer than an estimate is worth.
pub fn duration(s: f64) -> String {
    match s {
        s if s >= 2.0 * DAY => format!("{} days", three_digits(s / DAY)),
        s if s >= 2.0 * HOUR => format!("{} h", three_digits(s / HOUR)),
        s if s >= 2.0 * MINUTE => format!("{:.0} min", s / MINUTE),
        s => step_time(s),
    }
}

/// Three digits: an estimate is not better than that.
pub fn step_time(s: f64) -> String {
    match s {
        s if s >= 1_000.0 => duration(s),
        s if s >= 10.0 => format!("{} s", three_digits(s)),
        s => seconds(s),
    }
}

/// Likewise of a large number.
fn about(n: f64) -> u64 {
    let mut unit = 1.0;
    while n / unit >= 1_000.0 {
        unit *= 10.0;
    }
    ((n / unit).round() * unit) as u64
}

fn three_digits(n: f64) -> String {
    if n >= 100.0 { thousands(n.round() as u64) } else { format!("{n:.1}") }
}

/// `70.6 B`.
pub fn billions(n: f64) -> String {
    match n {
        n if n >= 1e11 => format!("{:.0} B", n / 1e9),
        n if n >= 1e9 => format!("{:.1} B", n / 1e9),
        n => format!("{:.0} M", n / 1e6),
    }
}

/// `2 T`, `300 B`.
pub fn short_count(n: f64) -> String {
    let (size, unit) = match n {
        n if n >= 1e12 => (n / 1e12, " T"),
        n if n >= 1e9 => (n / 1e9, " B"),
        n if n >= 1e6 => (n / 1e6, " M"),
        n => (n, ""),
    };
    let text = format!("{size:.1}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// `48,300 USD`; small sums keep their digits.
pub fn money(amount: f64, currency: &str) -> String {
    if amount >= 100.0 {
        format!("{} {currency}", thousands(amount.round() as u64))
    } else {
        format!("{amount:.2} {currency}")
    }
}

pub fn list(
    head: &[&str],
    rows: impl Iterator<Item = Vec<Field>>,
    style: Style,
    width: Option<u16>,
) -> String {
    let mut grid = Grid::new(head, style);
    rows.for_each(|row| grid.row(row));
    grid.render(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_fine_as_an_estimate_is_worth() {
        let spans: Vec<String> =
            [0.74, 1.324, 150.0, 3_000.0, 26_000.0, 630_720.0, 3e8].map(duration).into();
        assert_eq!(
            spans,
            ["740 ms", "1.32 s", "2 min", "50 min", "7.2 h", "7.3 days", "3,472 days"]
        );
        assert_eq!(
            [0.0451, 2.314, 44.79, 118.3].map(step_time),
            ["45 ms", "2.31 s", "44.8 s", "118 s"]
        );
        assert_eq!([93_637.0, 4_841.2, 77.7].map(about), [93_600, 4_840, 78]);
        assert_eq!([2e12, 1.5e9, 300e9, 12.0].map(short_count), ["2 T", "1.5 B", "300 B", "12"]);
        assert_eq!([70.55e9, 405.8e9, 1.24e8].map(billions), ["70.5 B", "406 B", "124 M"]);
        assert_eq!([0.88, 1.0, 1.071].map(percent), ["−12 %", "+0 %", "+7 %"]);
        assert_eq!(
            (money(48_299.7, "USD"), money(0.5, "€")),
            ("48,300 USD".into(), "0.50 €".into())
        );
    }

    #[test]
    fn a_layout_is_told_without_what_it_has_not() {
        let mut layout = Layout {
            tp: 4,
            pp: 1,
            vp: 1,
            cp: 1,
            ep: 1,
            dp: 2,
            micro_batch: 1,
            sharding: Sharding::Zero1,
            sequence_parallel: true,
            recompute: Recompute::None,
        };
        assert_eq!(layout_words(&layout), "tp 4 × dp 2, micro-batch 1, ZeRO-1, sequence parallel");
        (layout.tp, layout.dp, layout.sharding) = (1, 1, Sharding::None);
        assert_eq!(layout_words(&layout), "one GPU, micro-batch 1");
    }
}
