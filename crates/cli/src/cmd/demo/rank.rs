//! `tutti demo-rank`: one rank of the demo's training jobs, as a stand-in for a training program.
//!
//! The ranks fit three weights by gradient descent. Each has a share of the data; in every step
//! they add up their gradients over TCP (`group`) and so keep the same weights (`fit`). Rank 0
//! saves them after every step where a later attempt finds them.

mod fit;
mod group;
mod place;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tutti_model::Span;

use crate::fail::Fail;
use crate::terminal;
use fit::{Fit, WEIGHTS};
use group::Group;
use place::Place;

const RESULT: &str = "result ";

#[derive(clap::Args)]
pub struct RankArgs {
    #[arg(long, default_value_t = 60)]
    steps: u32,
    /// A step takes at least this long, so that people can watch
    #[arg(long, default_value = "50ms")]
    pace: Span,
    /// Where rank 0 saves after every step, and looks for what an earlier attempt has saved
    #[arg(long)]
    checkpoint: Option<PathBuf>,
}

/// What each rank says at its end; the demo reads it back from the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankResult {
    pub rank: u32,
    pub world: u32,
    pub node: String,
    /// Where this attempt began.
    pub first_step: u32,
    pub steps: u32,
    pub first_loss: f64,
    pub loss: f64,
    pub weights: [f64; WEIGHTS],
}

impl RankResult {
    pub fn parse(line: &str) -> Option<RankResult> {
        serde_json::from_str(line.strip_prefix(RESULT)?).ok()
    }
}

pub fn run(args: RankArgs) -> Result<ExitCode, Fail> {
    let place = Place::from_env(|name| std::env::var(name).ok())?;
    train(&args, &place).map_err(|f| Fail::new(format!("rank {}: {}", place.rank, f.message)))?;
    Ok(ExitCode::SUCCESS)
}

fn train(args: &RankArgs, place: &Place) -> Result<(), Fail> {
    terminal::say(&place.to_string());
    let mut group = Group::join(place)?;
    everybody_is_here(&mut group, place)?;
    let mut fit = Fit::new(place.rank);
    let saved = load_and_share(args, place, &mut group)?;
    fit.weights = saved.weights;
    if place.rank == 0 && saved.step > 0 {
        terminal::say(&format!("going on after step {}", saved.step));
    }
    let mut losses = Vec::new();
    for step in saved.step + 1..=args.steps {
        let began = Instant::now();
        let mut sums = fit.gradient();
        group.sum(&mut sums)?;
        let loss = fit.descend(&sums);
        losses.push(loss);
        if place.rank == 0 {
            terminal::say(&format!("step {step} of {}, loss {loss:.6}", args.steps));
            save(args.checkpoint.as_deref(), &Saved { step, weights: fit.weights })?;
        }
        let pace = Duration::from_millis(args.pace.0);
        std::thread::sleep(pace.saturating_sub(began.elapsed()));
    }
    let result = RankResult {
        rank: place.rank,
        world: place.world,
        node: place.node.clone(),
        first_step: saved.step,
        steps: args.steps,
        first_loss: losses.first().copied().unwrap_or_default(),
        loss: losses.last().copied().unwrap_or_default(),
        weights: fit.weights,
    };
    let text = serde_json::to_string(&result)
        .map_err(|e| Fail::new(format!("can't write the result: {e}")))?;
    terminal::say(&format!("{RESULT}{text}"));
    Ok(())
}

/// Each rank adds its number and 1: only if all are there, once each, do both sums come out.
fn everybody_is_here(group: &mut Group, place: &Place) -> Result<(), Fail> {
    let mut sums = [f64::from(place.rank), 1.0];
    group.sum(&mut sums)?;
    let world = f64::from(place.world);
    let want = [world * (world - 1.0) / 2.0, world];
    if sums == want {
        return Ok(());
    }
    Err(Fail::new(format!("the gang of {} adds up to {sums:?} instead of {want:?}", place.world)))
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Saved {
    step: u32,
    weights: [f64; WEIGHTS],
}

/// Rank 0 knows; the others learn it from a sum to which they add nothing.
fn load_and_share(args: &RankArgs, place: &Place, group: &mut Group) -> Result<Saved, Fail> {
    let mut values = [0.0; WEIGHTS + 1];
    if place.rank == 0 {
        let saved = load(args.checkpoint.as_deref())?;
        values[0] = f64::from(saved.step);
        values[1..].copy_from_slice(&saved.weights);
    }
    group.sum(&mut values)?;
    let mut weights = [0.0; WEIGHTS];
    weights.copy_from_slice(&values[1..]);
    Ok(Saved { step: values[0] as u32, weights })
}

fn load(path: Option<&Path>) -> Result<Saved, Fail> {
    let Some(path) = path else { return Ok(Saved::default()) };
    let bad = |e: &dyn std::fmt::Display| Fail::new(format!("{}: {e}", path.display()));
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|e| bad(&e)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Saved::default()),
        Err(e) => Err(bad(&e)),
    }
}

/// In one step: whoever reads it finds the old or the new one, never half of it.
fn save(path: Option<&Path>, saved: &Saved) -> Result<(), Fail> {
    let Some(path) = path else { return Ok(()) };
    let new = path.with_extension("new");
    let text = serde_json::to_vec(saved).map_err(std::io::Error::from);
    text.and_then(|text| std::fs::write(&new, text))
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(|e| Fail::new(format!("can't save {}: {e}", path.display())))
}

/// What the demo checks before it believes a training job.
pub fn check_results(results: &[RankResult], world: u32) -> Result<(), String> {
    let mut ranks: Vec<u32> = results.iter().map(|r| r.rank).collect();
    ranks.sort_unstable();
    if !ranks.iter().copied().eq(0..world) {
        return Err(format!(
            "results of {world} ranks were expected; there are those of {ranks:?}"
        ));
    }
    let first = &results[0];
    if let Some(other) = results.iter().find(|r| r.weights != first.weights || r.world != world) {
        return Err(format!("ranks {} and {} do not agree", first.rank, other.rank));
    }
    let away = fit::distance_from_truth(&first.weights);
    if away > 0.01 {
        return Err(format!("the model is wrong: {:?} is {away} off", first.weights));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(rank: u32) -> RankResult {
        RankResult {
            rank,
            world: 2,
            node: "n1".into(),
            first_step: 0,
            steps: 40,
            first_loss: 4.0,
            loss: 0.0,
            weights: fit::TRUTH,
        }
    }

    #[test]
    fn results_are_checked_against_each_other_and_the_truth() {
        let text = serde_json::to_string(&result(1)).unwrap();
        assert_eq!(RankResult::parse(&format!("result {text}")), Some(result(1)));
        assert_eq!(RankResult::parse("step 3 of 40, loss 0.1"), None);
        check_results(&[result(1), result(0)], 2).unwrap();
        assert!(check_results(&[result(0)], 2).unwrap_err().contains("[0]"));
        assert!(check_results(&[result(0), result(0)], 2).is_err());
        let other = RankResult { weights: [1.0; WEIGHTS], ..result(1) };
        assert!(check_results(&[result(0), other.clone()], 2).unwrap_err().contains("agree"));
        let wrong = RankResult { rank: 0, ..other.clone() };
        assert!(check_results(&[wrong, other], 2).unwrap_err().contains("wrong"));
    }

    #[test]
    fn what_is_saved_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint.json");
        assert_eq!(load(Some(&path)).unwrap(), Saved::default());
        let saved = Saved { step: 7, weights: [0.1, 0.2, 0.3] };
        save(Some(&path), &saved).unwrap();
        assert_eq!(load(Some(&path)).unwrap(), saved);
        std::fs::write(&path, "{").unwrap();
        assert!(load(Some(&path)).unwrap_err().message.contains("checkpoint.json"));
    }
}
