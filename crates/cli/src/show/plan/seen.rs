//! What was planned beside what is seen.

use serde::Serialize;
use tutti_model::{DeclaredPlan, Span};
use tutti_planner::words::seconds;

use super::percent;

/// Of a job that says how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlanSeen {
    pub planned_step_s: f64,
    pub seen_step_s: f64,
    /// Seen over planned.
    pub ratio: f64,
}

impl PlanSeen {
    /// None unless both are known.
    pub fn of(plan: Option<&DeclaredPlan>, pace: Option<Span>) -> Option<PlanSeen> {
        let planned = plan?.step_time_s.filter(|s| *s > 0.0)?;
        let seen = pace.filter(|pace| pace.0 > 0)?.0 as f64 / 1e3;
        Some(PlanSeen { planned_step_s: planned, seen_step_s: seen, ratio: seen / planned })
    }

    /// After the word "planned".
    pub fn words(&self) -> String {
        let (planned, seen) = (seconds(self.planned_step_s), seconds(self.seen_step_s));
        format!("{planned} a step, seen {seen} ({})", percent(self.ratio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_compared() {
        let text = r#"{"model": "m", "seq": 1, "global_batch": 1, "step_time_s": 1.32}"#;
        let plan: DeclaredPlan = serde_json::from_str(text).unwrap();
        let seen = PlanSeen::of(Some(&plan), Some(Span(1410))).unwrap();
        assert_eq!(seen.words(), "1.32 s a step, seen 1.41 s (+7 %)");
        assert_eq!(PlanSeen::of(Some(&plan), None), None);
        assert_eq!(PlanSeen::of(None, Some(Span(1410))), None);
        let without = DeclaredPlan { step_time_s: None, ..plan };
        assert_eq!(PlanSeen::of(Some(&without), Some(Span(1410))), None);
    }
}
