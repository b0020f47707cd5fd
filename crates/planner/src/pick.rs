//! Which cluster, for a deadline or a budget.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::near::count;
use crate::search::{best, ideal_seconds};
use crate::{
    Arch, Candidate, Cluster, Goal, Layout, NoPlan, Pins, Question, Run, Stack, Workload,
    candidate, catalogue, run, search,
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

/// GPUs that somebody might rent.
const MOST_GPUS: u32 = 131_072;
/// Sizes in a row that are no better, after which larger ones are not tried.
const ENOUGH: u32 = 3;

/// Every machine of the catalogue that does it in its best size, the best first. A machine without a list price meets
/// deadlines only, and comes last.
pub fn pick(arch: &Arch, workload: &Workload, aim: Aim, stack: Stack) -> Result<Vec<Pick>, NoPlan> {
    check(workload, aim)?;
    let ask = Ask { arch, workload, aim, stack };
    let mut known = Known::new();
    let mut picks = Vec::new();
    let mut missed: Vec<Pick> = Vec::new();
    let units: Vec<Cluster> = catalogue::machines().flat_map(catalogue::find).collect();
    for unit in &units {
        match size(&ask, &mut known, unit) {
            Some((true, pick)) => picks.push(pick),
            Some((false, pick)) => missed.push(pick),
            None => {}
        }
    }
    picks.sort_by(|a, b| aim.rank(&a.run).total_cmp(&aim.rank(&b.run)));
    if !picks.is_empty() {
        return Ok(picks);
    }
    match missed.iter().min_by(|a, b| aim.of(&a.run).total_cmp(&aim.of(&b.run))) {
        Some(closest) => Err(out_of_reach(aim, closest)),
        // It fits nowhere: the sentence is that of any machine.
        None => search(&ask.question(&units[0])).map(|_| Vec::new()),
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

/// The best size of one machine that keeps to the bound, or the one that comes closest to it.
fn size(ask: &Ask, known: &mut Known, unit: &Cluster) -> Option<(bool, Pick)> {
    let mut best: Option<(bool, Pick)> = None;
    // Powers of two and halfway between: batches divide among them.
    let sizes = (0..16).flat_map(|i| [2 << i, 3 << i]);
    let most = MOST_GPUS / unit.gpus();
    let sizes: Vec<u32> = std::iter::once(1).chain(sizes).take_while(|n| *n <= most).collect();
    let mut worse = 0;
    for nodes in sizes.iter().map(|n| n * unit.nodes) {
        let cluster = Cluster { nodes, ..unit.clone() };
        if nodes < most * unit.nodes / 2 && ask.hopeless(&cluster) {
            continue;
        }
        let Some(pick) = ask.plan(known, unit, cluster) else { continue };
        let does = ask.aim.of(&pick.run) <= ask.aim.bound();
        let better = best.as_ref().is_none_or(|(did, than)| match (does, *did) {
            (true, true) => ask.aim.rank(&pick.run) < ask.aim.rank(&than.run),
            (false, false) => ask.aim.of(&pick.run) < ask.aim.of(&than.run),
            (does, _) => does,
        });
        worse = if better { 0 } else { worse + 1 };
        if better {
            best = Some((does, pick));
        } else if worse == ENOUGH {
            break;
        }
    }
    best
}

/// Layouts by kind of GPU, network and nodes: clouds differ in price more often than in hardware.
type Known = BTreeMap<(String, u64, u32), Option<Layout>>;

struct Ask<'a> {
    arch: &'a Arch,
    workload: &'a Workload,
    aim: Aim,
    stack: Stack,
}

impl Ask<'_> {
    /// Too few for the deadline at their peak.
    fn hopeless(&self, cluster: &Cluster) -> bool {
        let question = self.question(cluster);
        let steps = self.workload.tokens.unwrap_or(0.0) / question.tokens();
        matches!(self.aim, Aim::Deadline(bound) if steps * ideal_seconds(&question) > bound)
    }

    fn question<'c>(&'c self, cluster: &'c Cluster) -> Question<'c> {
        let Ask { arch, workload, stack, .. } = *self;
        let pins = Pins::default();
        Question { arch, workload, cluster, pins, goal: Goal::Time, stack, fewer: true }
    }

    fn plan(&self, known: &mut Known, unit: &Cluster, cluster: Cluster) -> Option<Pick> {
        let question = self.question(&cluster);
        let same = (cluster.gpu.name.clone(), cluster.nic_gbps.to_bits(), cluster.nodes);
        let layout = *known.entry(same).or_insert_with(|| best(&question));
        let plan = candidate(&question, &layout?);
        let mut run = run(&question, &plan)?;
        let cluster = rented(&plan, &cluster, unit);
        // What is rented is paid for, used or not.
        let share = f64::from(cluster.gpus()) / f64::from(plan.gpus);
        run.gpu_hours *= share;
        run.price = run.price.map(|p| p * share);
        Some(Pick { plan, run, cluster })
    }
}

/// As many of the machines as the plan uses.
fn rented(plan: &Candidate, cluster: &Cluster, unit: &Cluster) -> Cluster {
    let nodes = plan.gpus.div_ceil(unit.gpus()) * unit.nodes;
    Cluster { nodes, ..cluster.clone() }
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
        for p in &picks {
            let rented = p.run.effective_seconds / 3600.0 * f64::from(p.cluster.gpus());
            let price = rented * p.cluster.price_per_gpu_hour.unwrap();
            assert!(price <= 50_000.0 && (price / p.run.price.unwrap() - 1.0).abs() < 1e-9);
        }
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
