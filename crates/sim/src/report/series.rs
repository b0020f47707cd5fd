//! A run over time, in so many equal steps.

use serde::Serialize;

use crate::replay::Run;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// Length of one step.
    pub step_s: f64,
    /// Part of the GPUs that was held.
    pub utilisation: Vec<f64>,
    /// Jobs that waited.
    pub waiting: Vec<f64>,
}

/// Means over each of `steps` steps, from the first submission to the last end.
pub fn series(run: &Run, steps: usize) -> Series {
    let start = run.samples.first().map_or(0, |s| s.at.0);
    let last_end = run.jobs.iter().filter_map(|j| j.end).max();
    let end = last_end.or(run.samples.last().map(|s| s.at)).map_or(0, |t| t.0);
    if end <= start || steps == 0 {
        return Series::default();
    }
    let step = (end - start) as f64 / steps as f64;
    let mut held = vec![0.0; steps];
    let mut waiting = vec![0.0; steps];
    for (i, sample) in run.samples.iter().enumerate() {
        let until = run.samples.get(i + 1).map_or(end, |next| next.at.0).min(end);
        let (mut from, until) = ((sample.at.0 - start) as f64, until.saturating_sub(start) as f64);
        while from < until {
            let n = ((from / step) as usize).min(steps - 1);
            let bound = if n + 1 == steps { until } else { ((n + 1) as f64 * step).min(until) };
            // Rounding must not stop the walk.
            let bound = if bound <= from { until.min(from + step) } else { bound };
            held[n] += sample.held as f64 / 1000.0 * (bound - from);
            waiting[n] += sample.waiting as f64 * (bound - from);
            from = bound;
        }
    }
    let all = run.gpus.max(1) as f64 * step;
    Series {
        step_s: step / 1000.0,
        utilisation: held.into_iter().map(|h| h / all).collect(),
        waiting: waiting.into_iter().map(|w| w / step).collect(),
    }
}
