//! What a job says about itself while it runs: lines of JSON on a unix socket, and what becomes of
//! them on the way to the controller.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Rank, Span, Time};

/// One line of `$TUTTI_PROGRESS`. Every key is optional; unknown ones are skipped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgressLine {
    /// Who speaks; the first rank of the part if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<Rank>,
    /// Steps done since the very beginning of the work, over all attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Tokens (samples, cells, frames) done since the very beginning, by all ranks together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// A complete checkpoint of this step is durable: a restart goes on from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saved: Option<u64>,
    /// Where that checkpoint is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How long saving it held up the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_ms: Option<u64>,
    /// Another rank of the gang is dead or hangs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

/// A rank accuses another: it is the suspect's node that gets the blame, not the accuser's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Fault {
    pub rank: Rank,
    /// What the accuser waited for: `all_reduce`, say.
    #[serde(default)]
    pub op: String,
    #[serde(default)]
    pub why: String,
}

/// Where the ranks of one part are. A level, sent again with every heartbeat, never in the journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartProgress {
    /// Those that said something, in rank order.
    pub ranks: Vec<RankProgress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<SavedPoint>,
    /// Since `saved` was said; nothing while there is none.
    #[serde(default, skip_serializing_if = "is_no_time")]
    pub saved_age: Span,
    /// The first that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

impl PartProgress {
    /// The same, said again after this long.
    pub fn aged(mut self, by: Span) -> PartProgress {
        let older = |age: &mut Span| age.0 = age.0.saturating_add(by.0);
        self.ranks.iter_mut().for_each(|r| older(&mut r.age));
        if self.saved.is_some() {
            older(&mut self.saved_age);
        }
        self
    }
}

fn is_no_time(span: &Span) -> bool {
    *span == Span(0)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RankProgress {
    pub rank: Rank,
    pub step: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Since it last reported a new step.
    pub age: Span,
    /// The usual time of a step: a median of the last ones. None before there are enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Span>,
}

/// The newest durable checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SavedPoint {
    pub step: u64,
    /// Known once it is on record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_ms: Option<u64>,
    /// The node whose ranks said so: a path may be known there alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_needs_nothing_and_skips_what_it_does_not_know() {
        let line: ProgressLine = serde_json::from_str(r#"{"step": 7, "mood": "fine"}"#).unwrap();
        assert_eq!(line, ProgressLine { step: Some(7), ..ProgressLine::default() });
        let line: ProgressLine =
            serde_json::from_str(r#"{"fault": {"rank": 3, "op": "all_reduce"}}"#).unwrap();
        let fault = Fault { rank: Rank(3), op: "all_reduce".into(), why: String::new() };
        assert_eq!(line.fault, Some(fault));
    }
}
