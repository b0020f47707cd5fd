//! How often to save: the cadence that loses least, as a pure function.
//!
//! Saving costs time, and so does what is done twice after a failure. With a save that holds the
//! work up for `w` and a failure every `M` on average, Young found that an interval of √(2wM) loses
//! least; Daly's refinement of it is used here.

use serde::{Deserialize, Serialize};

/// Hours of one GPU between two failures, where nothing is known yet: what large runs with thousands
/// of GPUs report (419 failures in 54 days of 16,384 GPUs).
pub const PRIOR_GPU_HOURS: f64 = 50_000.0;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Failures that cost an attempt.
    pub failures: u32,
    /// Over so many hours of GPUs at work.
    pub gpu_hours: f64,
}

impl Evidence {
    /// Hours between two failures of a job of so many GPUs. What is known in general counts as one
    /// failure, so that a quiet hour proves little and a bad week much.
    pub fn mtbf_hours(&self, gpus: f64) -> f64 {
        let rate = (f64::from(self.failures) + 1.0) / (self.gpu_hours.max(0.0) + PRIOR_GPU_HOURS);
        1.0 / (rate * gpus.max(1.0))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Seconds for which one save holds up the work.
    pub save_s: f64,
    /// Seconds between two failures of this job.
    pub mtbf_s: f64,
    /// Seconds from a failure until the work goes on, without what is repeated.
    pub restart_s: f64,
    pub gpus: f64,
    /// Seconds between two saves as it is now, if that is known.
    pub interval_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub interval_s: f64,
    pub best: Loss,
    /// With the interval as it is now.
    pub now: Option<Loss>,
}

/// What is expected to be lost, as a part of all time and in hours of GPUs per day.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    pub saving: f64,
    pub repeating: f64,
    pub restarting: f64,
    pub gpu_hours_per_day: f64,
}

pub fn advise(question: &Question) -> Advice {
    let interval_s = best_interval(question.save_s, question.mtbf_s);
    Advice {
        interval_s,
        best: loss(question, interval_s),
        now: question.interval_s.map(|i| loss(question, i)),
    }
}

/// Daly's interval, of work between two saves.
fn best_interval(save: f64, mtbf: f64) -> f64 {
    if save >= 2.0 * mtbf {
        return mtbf;
    }
    let part = (save / (2.0 * mtbf)).sqrt();
    let interval = (2.0 * save * mtbf).sqrt() * (1.0 + part / 3.0 + part * part / 9.0) - save;
    // No cadence is quicker than the clock of the trainer.
    interval.max(1.0)
}

fn loss(question: &Question, interval: f64) -> Loss {
    let Question { save_s, mtbf_s, restart_s, gpus, .. } = *question;
    let saving = save_s / (interval + save_s);
    let repeating = ((interval + save_s) / 2.0 / mtbf_s).min(1.0);
    let restarting = (restart_s / mtbf_s).min(1.0);
    let all = (saving + repeating + restarting).min(1.0);
    Loss { saving, repeating, restarting, gpu_hours_per_day: all * gpus * 24.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(save_s: f64, mtbf_s: f64) -> Question {
        Question { save_s, mtbf_s, restart_s: 60.0, gpus: 16_384.0, interval_s: None }
    }

    #[test]
    fn the_published_example() {
        // 16k H100, one failure in 3.1 h, a save of 1 s: about 149 s, waste about 1.3 %.
        let advice = advise(&question(1.0, 3.1 * 3600.0));
        assert!((advice.interval_s - 149.0).abs() < 2.0, "{advice:?}");
        let waste = advice.best.saving + advice.best.repeating;
        assert!((waste - 0.0134).abs() < 0.0005, "{waste}");
    }

    #[test]
    fn no_other_interval_loses_less() {
        for (save, mtbf) in [(0.2, 1e4), (1.0, 1e5), (30.0, 1e4), (120.0, 3600.0)] {
            let question = question(save, mtbf);
            let advice = advise(&question);
            for factor in [0.3, 0.6, 1.6, 3.0] {
                let other = loss(&question, advice.interval_s * factor);
                assert!(
                    other.gpu_hours_per_day > advice.best.gpu_hours_per_day,
                    "{save} {mtbf} {factor}: {other:?} {advice:?}"
                );
            }
        }
    }

    #[test]
    fn hopeless_cases_have_an_answer() {
        let advice = advise(&Question { interval_s: Some(1e9), ..question(500.0, 100.0) });
        assert_eq!(advice.interval_s, 100.0);
        assert_eq!(advice.now.unwrap().gpu_hours_per_day, 16_384.0 * 24.0);
        assert_eq!(advise(&question(0.0, 1e6)).interval_s, 1.0);
    }

    #[test]
    fn evidence_moves_the_prior_as_far_as_it_goes() {
        let none = Evidence { failures: 0, gpu_hours: 0.0 };
        assert!((none.mtbf_hours(16_384.0) - 3.05).abs() < 0.01);
        let quiet = Evidence { failures: 0, gpu_hours: 200_000.0 };
        assert!(quiet.mtbf_hours(8.0) > none.mtbf_hours(8.0) * 4.9);
        let bad = Evidence { failures: 20, gpu_hours: 1_000.0 };
        assert!(bad.mtbf_hours(8.0) < none.mtbf_hours(8.0) / 20.0);
    }
}
