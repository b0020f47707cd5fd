//! How far a job is, in `tutti ps` and `tutti show`.

use tutti_model::{SavedPoint, Span, Time};
use tutti_wire::api::{JobProgress, ProgressPoint};

use super::curve::number;
use super::{curve, thousands, time};

/// `step 1,200 · loss 2.315`.
pub fn short(progress: &JobProgress) -> String {
    let mut words = Vec::new();
    match (progress.step, &progress.saved) {
        (Some(step), _) => words.push(format!("step {}", thousands(step))),
        (None, Some(saved)) => words.push(format!("saved at {}", thousands(saved.step))),
        (None, None) => {}
    }
    words.extend(progress.loss.map(|loss| format!("loss {}", number(loss))));
    words.join(" · ")
}

/// Keys and values for `tutti show`.
pub fn lines(
    progress: &JobProgress,
    history: &[ProgressPoint],
    now: Time,
) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if progress.step.is_some() {
        lines.push(("progress", sentence(progress)));
        lines.push(("last step", last_step(progress)));
    }
    lines.push(("loss", loss_curve(history)));
    lines.push(("durable", progress.saved.as_ref().map_or_else(String::new, |s| saved(s, now))));
    lines
}

fn sentence(progress: &JobProgress) -> String {
    let mut words = vec![short(progress)];
    words
        .extend(progress.tokens_per_s.map(|n| format!("{} tokens/s", thousands(n.round() as u64))));
    words.extend(progress.pace.map(|pace| format!("{} a step", pace.fine())));
    words.join(" · ")
}

fn last_step(progress: &JobProgress) -> String {
    let mut text = match progress.age {
        Some(age) => format!("{} ago", time::short(age)),
        None => return String::new(),
    };
    if let (Some(rank), Some(max)) = (progress.behind, progress.step_max) {
        text.push_str(&format!("; rank {rank} is behind, others are at {}", thousands(max)));
    }
    text
}

fn saved(point: &SavedPoint, now: Time) -> String {
    let mut text = format!("step {}", thousands(point.step));
    if let Some(at) = point.at {
        text.push_str(&format!(", saved {} ago", time::short(now.since(at))));
    }
    if let Some(ms) = point.save_ms {
        text.push_str(&format!(" in {}", Span(ms)));
    }
    if let Some(path) = &point.path {
        text.push_str(&format!(", at {path}"));
    }
    text
}

/// The loss over time, from first to last; empty while there is too little of it.
fn loss_curve(history: &[ProgressPoint]) -> String {
    let losses: Vec<f64> = history.iter().filter_map(|p| p.loss).collect();
    curve::of(&losses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_that_count() {
        let shown: Vec<String> =
            [0.0, 2.31449, 10.5, 123.456, 99_999.4, 0.012_345, -1.5, 0.000_012_34, 1e9]
                .map(number)
                .into();
        let want =
            ["0", "2.314", "10.50", "123.5", "99999", "0.01235", "-1.500", "1.234e-5", "1.000e9"];
        assert_eq!(shown, want);
    }

    #[test]
    fn a_job_that_goes_well_one_that_does_not_and_one_that_is_over() {
        let mut progress = JobProgress {
            step: Some(1200),
            step_max: Some(1200),
            slowest: Some(0),
            loss: Some(2.5),
            tokens_per_s: Some(12_345.6),
            pace: Some(Span(2_000)),
            age: Some(Span(1_500)),
            ranks: 8,
            saved: Some(SavedPoint {
                node: None,
                step: 1000,
                at: Some(Time(40_000)),
                path: Some("/ckpt/1000".into()),
                save_ms: Some(1_500),
            }),
            ..JobProgress::default()
        };
        let told = |p: &JobProgress| {
            let lines = lines(p, &[], Time(100_000));
            let shown = lines.iter().filter(|(_, v)| !v.is_empty());
            shown.map(|(k, v)| format!("{k}: {v}")).collect::<Vec<_>>()
        };
        let durable = "durable: step 1,000, saved 1m ago in 1s500ms, at /ckpt/1000";
        let first = "progress: step 1,200 · loss 2.500 · 12,346 tokens/s · 2s a step";
        assert_eq!(told(&progress), [first, "last step: 1s ago", durable]);
        (progress.step_max, progress.behind) = (Some(1204), Some(5));
        progress.age = Some(Span(42_000));
        let late = "last step: 42s ago; rank 5 is behind, others are at 1,204";
        assert_eq!(told(&progress)[1], late);
        let known = JobProgress { saved: progress.saved, ..JobProgress::default() };
        assert_eq!(told(&known), [durable]);
        assert_eq!(short(&known), "saved at 1,000");
    }

    #[test]
    fn a_curve_from_high_to_low() {
        let points = |n: u64| -> Vec<ProgressPoint> {
            let loss = |i| Some(8.0 - 7.0 * i as f64 / (n - 1) as f64);
            (0..n).map(|step| ProgressPoint { at: Time(step), step, loss: loss(step) }).collect()
        };
        assert_eq!(loss_curve(&points(2)), "");
        assert_eq!(loss_curve(&points(8)), "8.000 █▇▆▅▄▃▂▁ 1.000");
        let long = loss_curve(&points(511));
        assert_eq!(long.chars().filter(|c| ('▁'..='█').contains(c)).count(), 40);
        let flat: Vec<_> =
            points(4).into_iter().map(|p| ProgressPoint { loss: Some(1.0), ..p }).collect();
        assert_eq!(loss_curve(&flat), "1.000 ▁▁▁▁ 1.000");
    }
}
