//! Which cluster, for a deadline or a budget.

use serde::Serialize;

use crate::near::count;
use crate::{
    Arch, Candidate, Cluster, Goal, NoPlan, Pins, Question, Run, Stack, Workload, catalogue, run,
    search,
};

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Aim {
    /// Seconds, failures and checkpoints among them: the cheapest that is done by then.
    Deadline(f64),
    /// Dollars by the list: the fastest that costs no more.
    Budget(f64),
}

/// A cluster that does it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pick {
    pub cluster: Cluster,
    pub plan: Candidate,
    pub run: Run,
}

/// Nodes are tried in these sizes: powers of two and halfway between, which batches divide among.
const MOST_DOUBLINGS: u32 = 13;

/// Every machine of the catalogue that does it in its best size, the best first. A machine without a list price meets
/// deadlines only, and comes last.
pub fn pick(arch: &Arch, workload: &Workload, aim: Aim, stack: Stack) -> Result<Vec<Pick>, NoPlan> {
    check(workload, aim)?;
    let mut picks = Vec::new();
    let mut missed: Option<Pick> = None;
    let mut refused = None;
    for name in catalogue::machines() {
        let Ok(cluster) = catalogue::find(name) else { continue };
        match size(arch, workload, aim, stack, &cluster) {
            Ok(Sized::Does(pick)) => picks.push(*pick),
            Ok(Sized::Misses(pick)) => {
                let best = missed.take().filter(|m| aim.of(&m.run) <= aim.of(&pick.run));
                missed = Some(best.unwrap_or(*pick));
            }
            Err(no) => refused = Some(no),
        }
    }
    picks.sort_by(|a, b| aim.rank(&a.run).total_cmp(&aim.rank(&b.run)));
    match (picks.is_empty(), missed, refused) {
        (false, ..) => Ok(picks),
        (true, Some(missed), _) => Err(out_of_reach(aim, &missed)),
        (true, None, Some(no)) => Err(no),
        (true, None, None) => unreachable!("the catalogue has machines"),
    }
}

impl Aim {
    /// What is held against the bound.
    fn of(self, run: &Run) -> f64 {
        match self {
            Aim::Deadline(_) => run.effective_seconds,
            Aim::Budget(_) => run.price.unwrap_or(f64::INFINITY),
        }
    }

    /// What is as small as can be within the bound.
    fn rank(self, run: &Run) -> f64 {
        match self {
            Aim::Deadline(_) => run.price.unwrap_or(f64::INFINITY),
            Aim::Budget(_) => run.effective_seconds,
        }
    }

    fn bound(self) -> f64 {
        match self {
            Aim::Deadline(bound) | Aim::Budget(bound) => bound,
        }
    }
}

fn check(workload: &Workload, aim: Aim) -> Result<(), NoPlan> {
    let bad = |what, value: String, must| Err(NoPlan::Workload { what, value, must });
    if workload.tokens.is_none() {
        let must = "given where a deadline or a budget is";
        return bad("the number of tokens", "missing".to_owned(), must);
    }
    let (what, most) = match aim {
        Aim::Deadline(_) => ("the deadline", 1e10),
        Aim::Budget(_) => ("the budget", 1e15),
    };
    match aim.bound() {
        b if (1.0..=most).contains(&b) => Ok(()),
        b => bad(what, b.to_string(), "at least 1 and of this world"),
    }
}

enum Sized {
    Does(Box<Pick>),
    /// The one that comes closest.
    Misses(Box<Pick>),
}

/// The best number of nodes of one machine: for a deadline the fewest that meet it, for a budget the most.
fn size(
    arch: &Arch,
    workload: &Workload,
    aim: Aim,
    stack: Stack,
    unit: &Cluster,
) -> Result<Sized, NoPlan> {
    let sizes: Vec<u32> = (0..=MOST_DOUBLINGS)
        .flat_map(|i| [1_u32 << i, 3 << i])
        .filter(|n| *n != 3)
        .map(|n| n * unit.nodes)
        .collect();
    let mut sizes = sizes;
    sizes.sort_unstable();
    let planned = |nodes: u32| plan(arch, workload, stack, Cluster { nodes, ..unit.clone() });
    let fits = first(&sizes, |n| planned(n).is_ok());
    let Some(least) = fits else {
        return Err(planned(sizes[sizes.len() - 1]).err().expect("it did not fit"));
    };
    let sizes = &sizes[least..];
    let does = |n: u32| planned(n).is_ok_and(|p| aim.of(&p.run) <= aim.bound());
    let at = match aim {
        Aim::Deadline(_) => first(sizes, does),
        // More nodes cost more: the last before it is too much.
        Aim::Budget(_) => {
            first(sizes, |n| !does(n)).map_or(Some(sizes.len() - 1), |i| i.checked_sub(1))
        }
    };
    let closest = match aim {
        Aim::Deadline(_) => sizes.len() - 1,
        Aim::Budget(_) => 0,
    };
    let pick = planned(sizes[at.unwrap_or(closest)]).map(Box::new)?;
    Ok(if at.is_some() { Sized::Does(pick) } else { Sized::Misses(pick) })
}

/// The first size for which it is so, by halving: beyond it, it is so for all.
fn first(sizes: &[u32], is: impl Fn(u32) -> bool) -> Option<usize> {
    let at = sizes.partition_point(|n| !is(*n));
    (at < sizes.len()).then_some(at)
}

fn plan(arch: &Arch, workload: &Workload, stack: Stack, cluster: Cluster) -> Result<Pick, NoPlan> {
    let question = Question {
        arch,
        workload,
        cluster: &cluster,
        pins: Pins::default(),
        goal: Goal::Time,
        stack,
        fewer: true,
    };
    let plan = search(&question)?.best;
    let run = run(&question, &plan).expect("the number of tokens is given");
    Ok(Pick { plan, run, cluster })
}

fn out_of_reach(aim: Aim, closest: &Pick) -> NoPlan {
    let amount = |n: f64| match aim {
        Aim::Deadline(_) => format!("{:.1} days", n / 86_400.0),
        Aim::Budget(_) => format!("${n:.0}"),
    };
    let nodes = count(u64::from(closest.cluster.nodes), "node");
    NoPlan::OutOfReach {
        name: format!("{nodes} of {}", closest.cluster.name),
        takes: amount(aim.of(&closest.run)),
        asked: amount(aim.bound()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::work;
    use crate::{Task, names};

    const DAY: f64 = 86_400.0;

    fn ask(model: &str, tokens: f64, aim: Aim) -> Result<Vec<Pick>, NoPlan> {
        let arch = names::find(model).unwrap();
        let workload = Workload { tokens: Some(tokens), ..work(Task::Pretrain, 4096, 1024) };
        pick(&arch, &workload, aim, Stack::Current)
    }

    #[test]
    fn a_deadline_is_met_and_the_cheapest_comes_first() {
        let picks = ask("llama-3.1-8b", 1e12, Aim::Deadline(30.0 * DAY)).unwrap();
        assert!(picks.iter().all(|p| p.run.effective_seconds <= 30.0 * DAY));
        let prices: Vec<f64> = picks.iter().filter_map(|p| p.run.price).collect();
        assert!(prices.len() > 5 && prices.is_sorted());
    }

    #[test]
    fn half_the_time_takes_more_nodes() {
        let at = |days: f64| {
            let picks = ask("llama-3.1-8b", 1e12, Aim::Deadline(days * DAY)).unwrap();
            picks.into_iter().find(|p| p.cluster.name == "dgx-h100").unwrap().cluster.nodes
        };
        assert!(at(15.0) > at(40.0));
    }

    #[test]
    fn a_budget_is_kept_and_the_fastest_comes_first() {
        let picks = ask("llama-3.1-8b", 1e11, Aim::Budget(50_000.0)).unwrap();
        assert!(picks.iter().all(|p| p.run.price.unwrap() <= 50_000.0));
        assert!(picks.is_sorted_by_key(|p| p.run.effective_seconds));
    }

    #[test]
    fn what_nobody_can_is_one_sentence() {
        let e = ask("llama-3.1-405b", 15e12, Aim::Deadline(DAY)).unwrap_err().to_string();
        assert!(e.starts_with("no cluster of the catalogue does it: the best, "), "{e}");
        let e = ask("llama-3.1-8b", 1e12, Aim::Budget(5.0)).unwrap_err().to_string();
        assert!(e.ends_with("where $5 were given"), "{e}");
        for aim in [Aim::Deadline(f64::NAN), Aim::Budget(-1.0), Aim::Deadline(0.0)] {
            assert!(
                ask("llama-3.1-8b", 1e12, aim)
                    .unwrap_err()
                    .to_string()
                    .contains("must be at least 1")
            );
        }
    }
}
