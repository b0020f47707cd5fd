//! What the demo trains: `tutti train` on eight ranks, and what its ranks say in their logs.

use std::collections::BTreeMap;

use serde::Deserialize;
use tutti_model::{Command, JobSpec, Launcher, TaskId};
use tutti_wire::api::LogQuery;

use super::stage::{Stage, check};
use super::{GANG_NODES, GPUS_PER_NODE};
use crate::fail::Fail;

/// Pairs share each matrix, two stages share the layers, and two ranks see different data.
pub const LAYOUT: &str = "2 × 2 × 2";
/// Where the gang that nobody disturbs saves, below the shared directory.
pub const UNDISTURBED: &str = "undisturbed";
pub const STEPS: u64 = 300;
/// Steps between checkpoints.
pub const SAVE_EVERY: u64 = 20;
/// Small enough for eight ranks on two cores.
const ARGUMENTS: &str = "--tp 2 --pp 2 --dp 2 --zero --layers 2 --dim 32 --heads 4 --seq 32 \
                         --batch 8 --micro-batch 2 --lr 0.01 --warmup 10";

/// One line of a rank's log.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    Started {
        step: u64,
    },
    Step {
        step: u64,
        loss: f64,
    },
    Ended {
        rank: u32,
        step: u64,
        loss: Option<f64>,
        tokens_per_s: f64,
    },
    #[serde(other)]
    Else,
}

/// What all ranks agree on at the end.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// Where the last attempt began.
    pub from_step: u64,
    pub steps: u64,
    pub loss: f64,
    pub tokens_per_s: f64,
}

/// A gang of one rank per GPU that saves into `dir` below the shared directory.
pub fn job(stage: &Stage<'_>, name: &str, dir: &str) -> Result<JobSpec, Fail> {
    let dir = stage.shared.join(dir);
    let dir = dir.to_str().ok_or_else(|| Fail::new(format!("{dir:?} is not UTF-8")))?;
    let (steps, every) = (STEPS.to_string(), SAVE_EVERY.to_string());
    let words = [stage.program.as_str(), "train", "--json", "--all-ranks", "--steps", &steps]
        .into_iter()
        .chain(["--checkpoint", dir, "--every", &every])
        .chain(ARGUMENTS.split_whitespace());
    let mut spec = JobSpec::new(Command::Argv(words.map(str::to_owned).collect()));
    spec.name = Some(name.to_owned());
    spec.nodes = Some(GANG_NODES.into());
    spec.gpus_per_node = Some(tutti_model::GpuRequest { model: None, count: GPUS_PER_NODE.into() });
    spec.launcher = Launcher::Torch;
    Ok(spec)
}

/// What the ranks of the newest attempt said last, checked against each other.
pub fn result(stage: &Stage<'_>, id: TaskId) -> Result<Trained, Fail> {
    let log = stage.log(id, &LogQuery::default())?;
    let lines: Vec<Line> = log.iter().filter_map(|(_, text)| parse(text)).collect();
    agree(&lines, u32::from(GANG_NODES * GPUS_PER_NODE))
        .map_err(|why| Fail::new(format!("job {id}: {why}")))
}

/// The losses that were told in one attempt, with their steps. All ranks tell the same ones; those on
/// a node that is gone can't be asked any more.
pub fn losses(stage: &Stage<'_>, id: TaskId, attempt: u32) -> Result<Vec<(u64, f64)>, Fail> {
    let log = stage.log(id, &LogQuery { attempt: Some(attempt), ..LogQuery::default() })?;
    let losses = log.iter().filter_map(|(_, text)| parse(text)?.loss());
    Ok(losses.collect::<BTreeMap<u64, f64>>().into_iter().collect())
}

impl Line {
    fn loss(&self) -> Option<(u64, f64)> {
        match self {
            Line::Step { step, loss } => Some((*step, *loss)),
            _ => None,
        }
    }
}

fn parse(text: &str) -> Option<Line> {
    serde_json::from_str(text).ok()
}

/// Every rank came to its end once, and all have the same loss.
fn agree(lines: &[Line], world: u32) -> Result<Trained, String> {
    let ends = || {
        lines.iter().filter_map(|line| match line {
            Line::Ended { rank, step, loss: Some(loss), tokens_per_s } => {
                Some((*rank, *step, *loss, *tokens_per_s))
            }
            _ => None,
        })
    };
    let mut ranks: Vec<u32> = ends().map(|(rank, ..)| rank).collect();
    ranks.sort_unstable();
    if !ranks.iter().copied().eq(0..world) {
        return Err(format!("{world} ranks should have come to an end, but {ranks:?} did"));
    }
    let starts = lines.iter().filter_map(|line| match line {
        Line::Started { step } => Some(*step),
        _ => None,
    });
    let from_step = starts.min().ok_or("no rank said where it began")?;
    let (first, steps, loss, tokens_per_s) = ends().next().ok_or("no rank came to an end")?;
    if let Some((other, ..)) = ends().find(|(_, s, l, _)| (*s, *l) != (steps, loss)) {
        return Err(format!("ranks {first} and {other} do not agree"));
    }
    Ok(Trained { from_step, steps, loss, tokens_per_s })
}

/// How far rank 0 is, for those who look.
pub fn last_step(stage: &Stage<'_>, id: TaskId) -> Result<Option<(u64, f64)>, Fail> {
    let query = LogQuery { rank: Some("0".into()), tail: Some(3), ..LogQuery::default() };
    let log = stage.log(id, &query)?;
    Ok(log.iter().rev().filter_map(|(_, text)| parse(text)).find_map(|line| line.loss()))
}

/// A loss that is no number at any step is no training.
pub fn check_falls(first: f64, last: f64) -> Result<(), Fail> {
    check(last.is_finite() && last < 0.8 * first, || {
        format!("the loss should fall by a fifth at least, but went from {first} to {last}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(rank: u32, loss: f64) -> Line {
        Line::Ended { rank, step: 300, loss: Some(loss), tokens_per_s: 1000.0 }
    }

    #[test]
    fn lines_are_read_as_the_trainer_writes_them() {
        let step = r#"{"event":"step","step":3,"loss":5.5,"lr":0.1,"step_ms":2.0,"rank":0}"#;
        assert_eq!(parse(step), Some(Line::Step { step: 3, loss: 5.5 }));
        let saved = r#"{"event":"saved","step":20,"location":"/x","rank":0}"#;
        assert_eq!(parse(saved), Some(Line::Else));
        assert_eq!(parse("step 3 of 300"), None);
    }

    #[test]
    fn ranks_must_all_be_there_and_agree() {
        let start = Line::Started { step: 40 };
        let good = [start.clone(), ended(1, 2.5), ended(0, 2.5)];
        let trained = agree(&good, 2).unwrap();
        assert_eq!((trained.from_step, trained.steps, trained.loss), (40, 300, 2.5));
        assert!(agree(&good[..2], 2).unwrap_err().contains("[1]"));
        let bad = [start, ended(0, 2.5), ended(1, 2.6)];
        assert!(agree(&bad, 2).unwrap_err().contains("do not agree"));
    }

    #[test]
    fn a_loss_that_stays_or_is_no_number_is_refused() {
        assert!(check_falls(5.5, 3.0).is_ok());
        assert!(check_falls(5.5, 5.0).is_err());
        assert!(check_falls(5.5, f64::NAN).is_err());
    }
}
